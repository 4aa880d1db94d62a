//! Lies over another engine and delays, reorders, shortens and fails requests, as a seed says.
//!
//! What order the promises leave open is taken advantage of; what they keep is kept: before a sync,
//! an append, a transfer at the file position and whatever else is not a plain transfer, everything
//! held back goes on its way. A request held back can be cancelled.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::workers::threads::spawn;
use super::{Contract, Engine, Help};
use crate::config::ConfigError;
use crate::instance::{By, Instance, Taker};
use crate::queue::{SleepEnd, Sleeper};
use crate::request::{BATCH, Kind, Request, Slot};
use crate::sqe::{FILE_POSITION, opcode};
use crate::sync::lock;
use crate::sys;

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

/// The engine.
#[derive(Debug)]
pub(crate) struct Faulty {
    below: Box<Engine>,
    faults: Faults,
    /// Held over the submits below, so that no request passes one that it must not pass. They are
    /// short; this engine is for tests.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: Random,
    /// Queued requests that the engine below has not seen.
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
    pub(super) fn over(below: Engine, faults: Faults) -> Self {
        let random = Random(faults.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let state = State { random, held: Vec::new(), releaser: false };
        Self { below: Box::new(below), faults, state: Mutex::new(state) }
    }

    pub(super) fn below(&self) -> &Engine {
        &self.below
    }

    fn of(instance: &Instance) -> &Self {
        match instance.outer_engine() {
            Engine::Faulty(faulty) => faulty,
            other => unreachable!("a request of {other:?} is held back"),
        }
    }

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
    fn release(&self, instance: &Arc<Instance>, state: &mut State) -> bool {
        let mut held = std::mem::take(&mut state.held);
        state.random.shuffle(&mut held);
        // Started means ours alone again, as a submitter's; the engine below queues it once more.
        held.retain(|&slot| instance.start(slot));
        self.pass(instance, &held);
        !held.is_empty()
    }

    fn pass(&self, instance: &Arc<Instance>, slots: &[u32]) {
        for batch in slots.chunks(BATCH) {
            self.below.submit(instance, batch);
        }
    }

    /// Sees to it that what is held back goes on although nobody comes.
    fn release_later(&self, instance: &Arc<Instance>, state: &mut State) {
        if state.held.is_empty() || state.releaser {
            return;
        }
        let delay = |random: &mut Random, us_max: u32| {
            Duration::from_micros(1 + random.below(us_max as usize) as u64)
        };
        let (us_max, mut time) =
            (self.faults.held_us_max, delay(&mut state.random, self.faults.held_us_max));
        let instance_of_thread = Arc::clone(instance);
        let thread = spawn("faulty", move || {
            let instance = instance_of_thread;
            loop {
                // The delay is the fault.
                std::thread::sleep(time);
                let this = Self::of(&instance);
                let mut state = lock(&this.state);
                this.release(&instance, &mut state);
                if state.held.is_empty() {
                    state.releaser = false;
                    return;
                }
                time = delay(&mut state.random, us_max);
            }
        });
        match thread {
            Ok(()) => state.releaser = true,
            Err(_) => drop(self.release(instance, state)),
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

impl Contract for Faulty {
    fn submit(&self, instance: &Arc<Instance>, slots: &[u32]) {
        let mut state = lock(&self.state);
        let mut passed = Vec::with_capacity(slots.len());
        for &slot in slots {
            // SAFETY: filled by the submitter, which has not passed it on yet.
            let request = unsafe { instance.slot(slot).request() };
            match self.fate(request, &mut state.random) {
                Fate::Passes => passed.push(slot),
                Fate::Fails(errno) => {
                    instance.slot(slot).queue();
                    if instance.start(slot) {
                        instance.finish(slot, errno, By::Worker);
                    }
                }
                Fate::Follows => {
                    self.release(instance, &mut state);
                    passed.push(slot);
                }
                Fate::Held => {
                    instance.slot(slot).queue();
                    state.held.push(slot);
                }
            }
        }
        self.pass(instance, &passed);
        if state.random.below(2) == 0 {
            self.release(instance, &mut state);
        }
        self.release_later(instance, &mut state);
    }

    fn help(&self, instance: &Arc<Instance>, help: &Help, taker: &mut Taker<'_>) -> bool {
        let mut released = false;
        {
            let mut state = lock(&self.state);
            if !state.held.is_empty() && state.random.below(2) == 0 {
                released = self.release(instance, &mut state);
            }
        }
        self.below.help(instance, help, taker) || released
    }

    fn is_trying(&self, slot: &Slot) -> bool {
        self.below.is_trying(slot)
    }

    fn has_help_to_offer(&self, instance: &Instance, help: &Help) -> bool {
        self.below.has_help_to_offer(instance, help)
    }

    fn is_handing_over(&self) -> bool {
        self.below.is_handing_over()
    }

    fn closed(&self) {
        self.below.closed();
    }

    fn sleep(
        &self,
        instance: &Arc<Instance>,
        sleeper: &Sleeper<'_>,
        time: Option<Duration>,
        mask: Option<u64>,
        taker: &mut Taker<'_>,
    ) -> SleepEnd {
        self.below.sleep(instance, sleeper, time, mask, taker)
    }

    fn nap(&self, nap: u32) -> Option<Duration> {
        self.below.nap(nap)
    }

    fn watch(&self, instance: &Arc<Instance>) {
        self.below.watch(instance);
    }

    fn purge(&self, instance: &Arc<Instance>) {
        // What was cancelled gives its slot back here; the rest stays as it is.
        lock(&self.state)
            .held
            .retain(|&slot| !instance.slot(slot).is_canceled() || instance.start(slot));
        self.below.purge(instance);
    }

    fn drain(&self, instance: &Instance) {
        let held = std::mem::take(&mut lock(&self.state).held);
        held.into_iter().for_each(|slot| instance.end_popped(slot));
        self.below.drain(instance);
    }

    fn before_close(
        &self,
        instance: &Arc<Instance>,
        fds: &std::ops::RangeInclusive<std::os::fd::RawFd>,
    ) {
        self.below.before_close(instance, fds);
    }

    fn retract(&self, instance: &Instance, slot: u32, key: u64) -> bool {
        self.below.retract(instance, slot, key)
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
