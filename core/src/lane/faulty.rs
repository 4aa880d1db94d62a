//! A filter in front of the lanes: delays, reorders, shortens and fails requests at random, from a
//! seed.
//!
//! The filter reorders only requests whose order the engine does not promise. Before a sync, an
//! append, a transfer at the file position, or anything else but a plain transfer, all delayed
//! requests are sent on. Malformed requests, and calls that never sleep, pass at once. A delayed
//! request can be cancelled.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Withdraw;
use crate::board::{Board, Dispatcher, Executor};
use crate::config::Faults;
use crate::exec::CALL;
use crate::request::{BATCH, Kind, Request};
use crate::sqe::{FILE_POSITION, opcode};
use crate::sync::lock;
use crate::sys;
use crate::threads::spawn::spawn;

/// The filter: injects faults into requests before they go to their lanes.
#[derive(Debug)]
pub(crate) struct Faulty(Arc<Held>);

#[derive(Debug)]
struct Held {
    faults: Faults,
    /// The lock is held during the submits to the lanes, so that no request overtakes one that it
    /// must not overtake. These submits are short, and the filter is for tests.
    state: Mutex<HeldState>,
}

#[derive(Debug)]
struct HeldState {
    random: Random,
    /// Delayed requests that no lane has seen.
    held: Vec<u32>,
    /// There is a thread that sends the delayed requests on.
    releaser: bool,
}

/// A small random number generator (xorshift64*).
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    fn thousandths(&mut self) -> u16 {
        self.below(1000) as u16
    }

    fn shuffle(&mut self, slots: &mut [u32]) {
        for at in (1..slots.len()).rev() {
            slots.swap(at, self.below(at + 1));
        }
    }
}

/// The fault that a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Fails(i32),
    /// The request is sent on after all delayed ones.
    Follows,
    /// The request is sent on at once.
    Passes,
    Held,
}

impl Faulty {
    pub(crate) fn new(faults: Faults) -> Self {
        let random = Random(faults.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let state = HeldState { random, held: Vec::new(), releaser: false };
        Self(Arc::new(Held { faults, state: Mutex::new(state) }))
    }

    /// Takes requests that their submitter has filled, and sends them on now or later.
    pub(crate) fn submit(&self, board: &Board, slots: &[u32]) {
        let Some(owner) = board.dispatcher() else { return };
        let mut state = lock(&self.0.state);
        let mut passed = Vec::with_capacity(slots.len());
        for &slot in slots {
            // SAFETY: filled by the submitter, which has not passed it on yet.
            let mut request = unsafe { board.in_hand(slot) };
            match self.0.fate(&mut request, &mut state.random) {
                Fate::Passes => passed.push(request.into_index()),
                Fate::Fails(errno) => {
                    request.slot().begin();
                    board.finish(request, errno, Executor::Worker);
                }
                Fate::Follows => {
                    Held::release(&*owner, &mut state);
                    passed.push(request.into_index());
                }
                Fate::Held => state.held.push(request.queue()),
            }
        }
        Held::pass(&*owner, &passed);
        if state.random.below(2) == 0 {
            Held::release(&*owner, &mut state);
        }
        self.0.release_later(owner, &mut state);
    }

    /// A thread has come to wait. With a probability of one half, this sends the delayed requests
    /// on. True if it did.
    pub(crate) fn help(&self, board: &Board) -> bool {
        let Some(owner) = board.dispatcher() else { return false };
        let mut state = lock(&self.0.state);
        let release = !state.held.is_empty() && state.random.below(2) == 0;
        release && Held::release(&*owner, &mut state)
    }

    /// Withdraws delayed requests.
    pub(crate) fn withdraw(&self, board: &Board, which: &Withdraw<'_>) {
        let mut held = std::mem::take(&mut lock(&self.0.state).held);
        held.retain(|&slot| {
            let withdrawn = match which {
                Withdraw::Canceled => board.slot(slot).is_canceled(),
                Withdraw::All => true,
                Withdraw::On(_) => false,
            };
            // SAFETY: this thread has just taken the number off the list, so it alone has it.
            if withdrawn && let Some(request) = board.start(unsafe { board.popped(slot) }) {
                board.end_started(request);
            }
            !withdrawn
        });
        lock(&self.0.state).held.append(&mut held);
    }
}

impl Held {
    /// Chooses the fault, and shortens the transfer if that is the fault.
    fn fate(&self, request: &mut Request, random: &mut Random) -> Fate {
        let transfer = matches!(request.kind, Kind::Read | Kind::Write);
        let Faults { eio, eagain, short, held, .. } = self.faults;
        let roll = random.thousandths();
        let malformed = request.refused != 0 || request.kind == Kind::Invalid;
        if malformed || request.kind == Kind::Quick {
            return Fate::Passes;
        }
        let may_fail = transfer || request.kind == Kind::Sync || request.sqe.opcode == CALL;
        if may_fail && roll < eio {
            return Fate::Fails(-libc::EIO);
        }
        if transfer && (eio..eio + eagain).contains(&roll) {
            return Fate::Fails(-libc::EAGAIN);
        }
        if transfer && (eio + eagain..eio + eagain + short).contains(&roll) {
            shorten(request, random);
        }
        if !transfer || !may_be_overtaken(request) {
            return Fate::Follows;
        }
        if random.thousandths() < held { Fate::Held } else { Fate::Passes }
    }

    /// Sends all delayed requests on, in another order, without the cancelled ones.
    fn release(owner: &dyn Dispatcher, state: &mut HeldState) -> bool {
        let mut held = std::mem::take(&mut state.held);
        state.random.shuffle(&mut held);
        // A started request belongs to this thread alone, like a request that is being submitted.
        // So it can be pushed to its lane.
        held.retain(|&slot| {
            // SAFETY: this thread has just taken the number off the list, so it alone has it.
            let started = owner.board().start(unsafe { owner.board().popped(slot) });
            started.map(|request| request.into_index()).is_some()
        });
        Self::pass(owner, &held);
        !held.is_empty()
    }

    fn pass(owner: &dyn Dispatcher, slots: &[u32]) {
        slots.chunks(BATCH).for_each(|batch| owner.submit(batch));
    }

    /// Makes a thread that sends delayed requests on, even if no thread comes to wait.
    fn release_later(self: &Arc<Self>, owner: Arc<dyn Dispatcher>, state: &mut HeldState) {
        if state.held.is_empty() || state.releaser {
            return;
        }
        let us_max = self.faults.held_us_max;
        let delay = move |random: &mut Random| {
            Duration::from_micros(1 + random.below(us_max as usize) as u64)
        };
        let mut time = delay(&mut state.random);
        let (this, its) = (Arc::clone(self), Arc::clone(&owner));
        let thread = spawn("faulty", move || {
            loop {
                // The sleep is the injected delay.
                std::thread::sleep(time);
                let mut state = lock(&this.state);
                Self::release(&*its, &mut state);
                if state.held.is_empty() {
                    state.releaser = false;
                    return;
                }
                time = delay(&mut state.random);
            }
        });
        match thread {
            Ok(()) => state.releaser = true,
            Err(_) => drop(Self::release(&*owner, state)),
        }
    }
}

/// Is this flag of open(2) set? False for a descriptor that is not open.
fn has_flag(fd: i32, flag: i32) -> bool {
    let flags = sys::status_flags(fd);
    flags >= 0 && flags & flag as sys::Ret != 0
}

/// Is this a transfer of a regular file at a given offset, whose order does not matter? The kernel
/// is asked, because the remembered facts may be about an earlier file with the same number.
fn may_be_overtaken(request: &Request) -> bool {
    let sqe = &request.sqe;
    let appends = request.kind == Kind::Write
        && (has_flag(sqe.fd, libc::O_APPEND) || sqe.op_flags & libc::RWF_APPEND as u32 != 0);
    sys::stat(sqe.fd).is_ok_and(|stat| stat.kind == libc::S_IFREG)
        && sqe.off != FILE_POSITION
        && !appends
}

/// Shortens a transfer by a random amount, but not to zero.
fn shorten(request: &mut Request, random: &mut Random) {
    let Request { sqe, copied, .. } = request;
    if let (opcode::READV | opcode::WRITEV, Some(copied)) = (sqe.opcode, copied) {
        let parts = copied.iov.len();
        if parts < 2 {
            return;
        }
        let keep = 1 + random.below(parts - 1);
        // Zero bytes would mean the end of the file, or that nothing was written.
        if copied.iov[..keep].iter().any(|part| part.iov_len > 0) {
            copied.iov.truncate(keep);
            sqe.len = keep as u32;
        }
        return;
    }
    let unit = if has_flag(sqe.fd, libc::O_DIRECT) { 4096 } else { 1 };
    let units = sqe.len.div_ceil(unit);
    if units > 1 {
        sqe.len = unit * (1 + random.below(units as usize - 1) as u32);
    }
}

#[cfg(test)]
mod tests;
