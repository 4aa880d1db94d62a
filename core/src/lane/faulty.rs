//! Lies in front of the lanes and delays, reorders, shortens and fails requests, as a seed says.
//!
//! What order the promises leave open is taken advantage of; what they keep is kept: before a sync,
//! an append, a transfer at the file position and whatever else is not a plain transfer, everything
//! held back goes on its way. A request held back can be cancelled.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Which;
use crate::board::{Board, By, Dispatcher};
use crate::config::ConfigError;
use crate::request::{BATCH, Kind, Request};
use crate::sqe::{FILE_POSITION, opcode};
use crate::sync::lock;
use crate::sys;
use crate::threads::spawn;

/// What happens to requests, each with a probability in thousandths. The same seed and the same
/// submits give the same faults; when what is held back goes on depends on time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Replays a run.
    pub seed: u64,
    /// Reads and writes of files that are held back, to be overtaken by later ones.
    pub held: u16,
    /// For how long at most, in microseconds. A wait or submit may end it earlier.
    pub held_us_max: u32,
    /// Reads, writes and syncs that complete with `-EIO` and do nothing.
    pub eio: u16,
    /// Reads and writes that complete with `-EAGAIN` and do nothing.
    pub eagain: u16,
    /// Reads and writes that transfer less than they could, and at least a byte: whole parts of a
    /// vector, multiples of 4 KiB of a file opened with `O_DIRECT`.
    pub short: u16,
}

impl Faults {
    /// No faults.
    #[must_use]
    pub fn none(seed: u64) -> Self {
        Self { seed, held: 0, held_us_max: 2000, eio: 0, eagain: 0, short: 0 }
    }

    /// Every third transfer held back for up to 2 ms, and no errors: a correct program does not notice.
    #[must_use]
    pub fn reordering(seed: u64) -> Self {
        Self { held: 333, ..Self::none(seed) }
    }

    /// Of a thousand: 333 held back, 50 `EIO`, 50 `EAGAIN`, 100 short.
    #[must_use]
    pub fn all(seed: u64) -> Self {
        Self { eio: 50, eagain: 50, short: 100, ..Self::reordering(seed) }
    }

    pub(crate) fn check(self) -> Result<(), ConfigError> {
        let errors = u32::from(self.eio) + u32::from(self.eagain) + u32::from(self.short);
        if errors <= 1000 && self.held <= 1000 && self.held_us_max > 0 {
            return Ok(());
        }
        Err(ConfigError {
            field: "faults",
            value: format!("{self:?}"),
            expected: "probabilities of at most 1000 in all, and a time".to_owned(),
            errno: libc::EINVAL,
        })
    }
}

/// Holds requests back in front of the lanes.
#[derive(Debug)]
pub(crate) struct Faulty(Arc<Held>);

#[derive(Debug)]
struct Held {
    faults: Faults,
    /// Locked over the submits behind it, so that no request passes one that it must not pass. They are
    /// short; this is for tests.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: Random,
    /// Queued requests that no lane has seen.
    held: Vec<u32>,
    /// A thread is there that lets go of them.
    releaser: bool,
}

/// A small generator (xorshift64*).
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

/// What is done to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Fails(i32),
    /// Goes on, after all that is held back.
    Follows,
    /// Goes on at once.
    Passes,
    Held,
}

impl Faulty {
    pub(crate) fn new(faults: Faults) -> Self {
        let random = Random(faults.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let state = State { random, held: Vec::new(), releaser: false };
        Self(Arc::new(Held { faults, state: Mutex::new(state) }))
    }

    /// Takes requests that their submitter has filled, and hands them on now or later.
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
                    board.finish(request, errno, By::Worker);
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

    /// A thread has come to wait: now and then that ends the delay. True if it did.
    pub(crate) fn help(&self, board: &Board) -> bool {
        let Some(owner) = board.dispatcher() else { return false };
        let mut state = lock(&self.0.state);
        let release = !state.held.is_empty() && state.random.below(2) == 0;
        release && Held::release(&*owner, &mut state)
    }

    /// Withdraws requests that are held back.
    pub(crate) fn withdraw(&self, board: &Board, which: &Which<'_>) {
        let mut held = std::mem::take(&mut lock(&self.0.state).held);
        held.retain(|&slot| {
            let withdrawn = match which {
                Which::Canceled => board.slot(slot).is_canceled(),
                Which::All => true,
                Which::On(_) => false,
            };
            // SAFETY: taken off the list just now.
            if withdrawn && let Some(request) = board.start(unsafe { board.popped(slot) }) {
                board.end_started(request);
            }
            !withdrawn
        });
        lock(&self.0.state).held.append(&mut held);
    }
}

impl Held {
    /// Decides, and shortens what is to be short.
    fn fate(&self, request: &mut Request, random: &mut Random) -> Fate {
        let transfer = matches!(request.kind, Kind::Read | Kind::Write);
        let Faults { eio, eagain, short, held, .. } = self.faults;
        let roll = random.thousandths();
        let malformed = request.refused != 0 || request.kind == Kind::Invalid;
        if malformed || request.kind == Kind::Quick {
            return Fate::Passes;
        }
        if (transfer || request.kind == Kind::Sync) && roll < eio {
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

    /// Hands everything held back on, in another order. What was cancelled stays behind.
    fn release(owner: &dyn Dispatcher, state: &mut State) -> bool {
        let mut held = std::mem::take(&mut state.held);
        state.random.shuffle(&mut held);
        // Started means ours alone again, as a submitter's; the lane queues it once more.
        held.retain(|&slot| {
            // SAFETY: taken off the list just now.
            let started = owner.board().start(unsafe { owner.board().popped(slot) });
            started.map(|request| request.into_index()).is_some()
        });
        Self::pass(owner, &held);
        !held.is_empty()
    }

    fn pass(owner: &dyn Dispatcher, slots: &[u32]) {
        slots.chunks(BATCH).for_each(|batch| owner.submit(batch));
    }

    /// Sees to it that what is held back goes on although nobody comes.
    fn release_later(self: &Arc<Self>, owner: Arc<dyn Dispatcher>, state: &mut State) {
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
                // The delay is the fault.
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

/// Is this flag of open(2) set? No for what is not a descriptor.
fn has_flag(fd: i32, flag: i32) -> bool {
    let flags = sys::status_flags(fd);
    flags >= 0 && flags & flag as sys::Ret != 0
}

/// A transfer whose place among others does not matter: of a file, at an offset of its own. What was
/// learned about the number is no answer, it may be of an earlier file.
fn may_be_overtaken(request: &Request) -> bool {
    let sqe = &request.sqe;
    let appends = request.kind == Kind::Write
        && (has_flag(sqe.fd, libc::O_APPEND) || sqe.op_flags & libc::RWF_APPEND as u32 != 0);
    sys::stat(sqe.fd).is_ok_and(|stat| stat.kind == libc::S_IFREG)
        && sqe.off != FILE_POSITION
        && !appends
}

/// Takes something off a transfer, and leaves something to transfer.
fn shorten(request: &mut Request, random: &mut Random) {
    let Request { sqe, copied, .. } = request;
    if let (opcode::READV | opcode::WRITEV, Some(copied)) = (sqe.opcode, copied) {
        let parts = copied.iov.len();
        if parts < 2 {
            return;
        }
        let keep = 1 + random.below(parts - 1);
        // No byte would be the end of the file, or nothing written.
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
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::Faults;
    use crate::{Context, Sqe};

    /// The results of 1,000 reads of 100 bytes, one after the other.
    fn results(faults: Faults) -> Vec<i32> {
        let file = std::fs::File::open("/dev/zero").unwrap();
        let mut buffer = [0u8; 100];
        let mut context = Context::builder().entries(4).faulty(faults).build().unwrap();
        let one = |_| {
            let sqe = Sqe::read(file.as_raw_fd(), &mut buffer[..], 0);
            // SAFETY: the buffer outlives the context's use of it: each read is reaped.
            unsafe { context.push(sqe) }.unwrap();
            context.submit().unwrap();
            context.wait(1, None).unwrap();
            context.reap().unwrap().res
        };
        (0..1000).map(one).collect()
    }

    #[test]
    fn a_seed_gives_the_same_faults_again_and_all_kinds_of_them() {
        let first = results(Faults::all(1));
        assert!(first == results(Faults::all(1)));
        assert!(first != results(Faults::all(2)));
        let count = |is: fn(i32) -> bool| first.iter().filter(|&&res| is(res)).count();
        assert!((20..120).contains(&count(|res| res == -libc::EIO)));
        assert!((20..120).contains(&count(|res| res == -libc::EAGAIN)));
        assert!((50..200).contains(&count(|res| (1..100).contains(&res))));
        assert_eq!(count(|res| res == 0), 0, "a short read is not the end of the file");
        assert!(results(Faults::reordering(1)).iter().all(|&res| res == 100));
    }

    #[test]
    fn probabilities_are_checked() {
        let faults = Faults { eio: 600, short: 500, ..Faults::none(1) };
        let error = Context::builder().faulty(faults).build().unwrap_err();
        assert!(error.to_string().starts_with("faults is "), "{error}");
    }
}
