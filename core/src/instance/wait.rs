//! Waiting and reaping: a waiting thread executes requests, sleeps if there are none for it, and
//! takes completions.
//!
//! A poll is a wait for zero completions. A `taker` takes completions of requests that its thread
//! executes itself, past the completion queue. The mailbox has a request that was submitted alone.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Instance;
use crate::board::{DirectCompletions, without_taker};
use crate::cqe::Cqe;
use crate::lane::Help;
use crate::queue::{Concern, Ring, SleepEnd, Sleeper};
use crate::router::tuning::{COLLECT_EVERY_US, TAKEN_MAX};
use crate::sys;
use crate::sys::aio::IoEvent;

/// The condition of a wait in [`Instance::wait_for`].
#[derive(Clone, Copy)]
pub struct WaitCondition<'a> {
    /// The number of completions that the wait still lacks. At 0 the wait ends.
    pub missing: &'a dyn Fn() -> u32,
    /// The requests of the wait. Only their completions wake a sleeping thread.
    pub concern: Concern,
    /// Ends the wait although completions are missing; asked again after [`Instance::disturb`].
    pub gives_up: &'a dyn Fn() -> bool,
    /// The signal mask while the thread sleeps, if it is not the thread's own.
    pub mask: Option<u64>,
    /// Does a wait without a deadline continue after a signal handler with `SA_RESTART`
    /// (aio_suspend(3))?
    pub restarts: bool,
    /// A descriptor that the sleeping thread waits for, too.
    pub beside: Option<&'a dyn Alongside>,
}

/// A descriptor that a thread waits for beside completions.
pub trait Alongside {
    /// The thread is about to sleep. Returns a descriptor that ends the sleep when it is readable,
    /// and an eventfd that wakes the thread. No other thread gets this eventfd until
    /// [`rise`](Self::rise). `None`: the thread sleeps without descriptors.
    fn sit(&self) -> Option<[RawFd; 2]>;

    /// The sleep has ended. `ready`: the descriptor was readable.
    fn rise(&self, ready: bool);

    /// The thread has slept where the descriptor does not wake it.
    fn slept_apart(&self);
}

impl std::fmt::Debug for WaitCondition<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitCondition").finish_non_exhaustive()
    }
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// At least `min` completions can be reaped.
    Enough,
    /// The deadline has passed.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
    /// The context is being destroyed, or belongs to another process: `EINVAL`.
    Gone,
    /// [`WaitCondition::gives_up`] was true.
    GaveUp,
}

impl Instance {
    /// Waits until `min` completions can be reaped, and executes requests meanwhile. With `min` 0
    /// it executes only requests that will not sleep. The caller can take `max` completions.
    /// Completions that `taker` has taken count, and are not in the queue. The signal mask, if
    /// given, holds while the thread sleeps.
    #[inline]
    pub fn wait(
        &self,
        min: u32,
        max: u32,
        timeout: Option<Duration>,
        mask: Option<u64>,
        taker: &mut DirectCompletions<'_>,
    ) -> Waited {
        if !self.is_usable() {
            return Waited::Gone;
        }
        let unbounded = timeout.is_none() && min > 0;
        // This shortcut executes the only request of the context. No deadline is needed for that:
        // the wait has none, or ends with this one completion. Completions in the queue come first.
        if (min == 1 || unbounded)
            && self.board.completions().available() == 0
            && self.help_alone(!unbounded, taker)
        {
            taker.give_back(&self.board);
            if self.has_enough(min, taker) {
                return Waited::Enough;
            }
        }
        let help = self.offer(min, max.max(min), unbounded, unbounded);
        self.wait_more(help, timeout, mask, taker)
    }

    /// The general wait, after the shortcut for a request that is alone.
    #[inline(never)]
    fn wait_more(
        &self,
        help: Help,
        timeout: Option<Duration>,
        mask: Option<u64>,
        taker: &mut DirectCompletions<'_>,
    ) -> Waited {
        let Help { min, max, .. } = help;
        if min == 0 {
            if self.board.completions().available() < max {
                self.help(&help, taker);
                self.poll_others(&help, taker);
            }
            self.polled(self.has_enough(1, taker));
            return Waited::Enough;
        }
        if self.has_enough(min, taker) {
            return Waited::Enough;
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let helped = self.help(&Help { min: min - taker.taken(), ..help }, taker);
        if self.has_enough(min, taker) {
            return Waited::Enough;
        }
        let waited = self.wait_on(help, helped, deadline, mask, taker);
        if timeout == Some(Duration::ZERO) {
            self.polled(waited != Waited::TimedOut);
        }
        waited
    }

    /// One round of help: the calling thread executes requests. The slots of the completions that
    /// `taker` has taken are free afterwards. True if there may be new completions.
    #[inline]
    pub(super) fn help(&self, help: &Help, taker: &mut DirectCompletions<'_>) -> bool {
        taker.bound(!help.accepts_hanging && !help.helpless);
        #[cfg(feature = "faulty")]
        let released = self.faulty.as_ref().is_some_and(|faulty| faulty.help(&self.board));
        #[cfg(not(feature = "faulty"))]
        let released = false;
        let helped = self.help_lanes(help, taker);
        taker.give_back(&self.board);
        helped || released
    }

    /// For a poll, or a wait whose time is over. Submitted requests that do not sleep are executed
    /// nevertheless, as the kernel would have done inside their submit.
    fn poll_others(&self, help: &Help, taker: &mut DirectCompletions<'_>) {
        let help = Help { min: 0, unbounded: false, accepts_hanging: false, ..*help };
        self.see_what_others_have(&help, taker);
        taker.give_back(&self.board);
    }

    /// Sleeps until a completion or a descriptor wakes the thread. The signal mask holds meanwhile,
    /// if one is given. Completions may go to `taker`.
    pub(super) fn sleep(
        &self,
        sleeper: &Sleeper<'_>,
        time: Option<Duration>,
        mask: Option<u64>,
        beside: Option<&dyn Alongside>,
        taker: &mut DirectCompletions<'_>,
    ) -> SleepEnd {
        let completions = self.board.completions();
        let elsewhere = || {
            let Some((beside, fds)) = beside.and_then(|beside| Some((beside, beside.sit()?)))
            else {
                return completions.sleep_with(sleeper, time, mask);
            };
            let (end, ready) = completions.sleep_beside(sleeper, fds, time, mask);
            beside.rise(ready);
            end
        };
        if self.stands_by() {
            return elsewhere();
        }
        let Some(end) = self.lanes.kernel.sleep(&self.board, sleeper, time, mask, taker) else {
            return elsewhere();
        };
        beside.inspect(|beside| beside.slept_apart());
        end
    }

    /// Have `min` completions been taken, or can they be reaped?
    #[inline]
    fn has_enough(&self, min: u32, taker: &DirectCompletions<'_>) -> bool {
        taker.taken() >= min || self.board.completions().available() >= min - taker.taken()
    }

    /// The rest of a wait after one round of help; `helped`: that round executed something.
    #[inline(never)]
    fn wait_on(
        &self,
        help: Help,
        mut helped: bool,
        deadline: Option<Instant>,
        mask: Option<u64>,
        taker: &mut DirectCompletions<'_>,
    ) -> Waited {
        let min = help.min;
        let mut naps = 0;
        loop {
            let help = Help { min: min - taker.taken(), ..help };
            if helped {
                helped = self.help(&help, taker);
                if self.has_enough(min, taker) {
                    return Waited::Enough;
                }
                continue;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                self.poll_others(&help, taker);
                let enough = self.has_enough(min, taker);
                return if enough { Waited::Enough } else { Waited::TimedOut };
            }
            if self.interrupted.load(Ordering::Relaxed)
                && self.interrupted.swap(false, Ordering::Relaxed)
            {
                return Waited::Interrupted;
            }
            let nap = self.nap(naps);
            let time = [left, nap].into_iter().flatten().min();
            let stay_up =
                || self.interrupted.load(Ordering::SeqCst) || self.has_help_to_offer(&help);
            let need = min - taker.taken();
            let sleeper = Sleeper {
                need,
                concern: None,
                stay_up: &stay_up,
                even_if_closed: false,
                restarts: false,
            };
            let end = self.sleep(&sleeper, time, mask, None, taker);
            taker.give_back(&self.board);
            match end {
                SleepEnd::Again => {}
                SleepEnd::TimedOut => {
                    if nap.is_some() {
                        naps += 1;
                        self.look_at_holder();
                    }
                }
                SleepEnd::Interrupted => return Waited::Interrupted,
                SleepEnd::Closed => return Waited::Gone,
            }
            // If the thread has slept in the kernel's own wait, `taker` may have completions.
            if taker.taken() >= min {
                return Waited::Enough;
            }
            helped = true;
        }
    }

    /// Waits until nothing is missing, and executes requests meanwhile, for contexts with a
    /// [`Sink`](super::Sink).
    pub fn wait_for(&self, condition: &WaitCondition<'_>, timeout: Option<Duration>) -> Waited {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        without_taker(|taker| {
            let mut naps = 0;
            loop {
                let missing = (condition.missing)();
                if missing == 0 {
                    return Waited::Enough;
                }
                if !self.is_usable() {
                    return Waited::Gone;
                }
                // This thread waits for certain requests only. So it executes no request that a
                // server may hold up: that request might not be one of them.
                let unbounded = timeout.is_none();
                let help = self.offer(missing, u32::MAX, unbounded, false);
                let helped = self.help(&help, taker);
                if (condition.missing)() == 0 {
                    return Waited::Enough;
                }
                let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
                if left.is_some_and(|left| left.is_zero()) {
                    return Waited::TimedOut;
                }
                if (condition.gives_up)() {
                    return Waited::GaveUp;
                }
                if helped {
                    continue;
                }
                let nap = self.nap(naps);
                let time = [left, nap].into_iter().flatten().min();
                let stay_up = || {
                    (condition.missing)() == 0
                        || (condition.gives_up)()
                        || self.has_help_to_offer(&help)
                };
                let concern = Some(condition.concern);
                let sleeper = Sleeper {
                    need: missing,
                    concern,
                    stay_up: &stay_up,
                    even_if_closed: false,
                    restarts: condition.restarts,
                };
                match self.sleep(&sleeper, time, condition.mask, condition.beside, taker) {
                    SleepEnd::Again => {}
                    SleepEnd::TimedOut if nap.is_some() => {
                        naps += 1;
                        self.look_at_holder();
                    }
                    SleepEnd::TimedOut => {}
                    SleepEnd::Interrupted if (condition.missing)() == 0 => return Waited::Enough,
                    SleepEnd::Interrupted => return Waited::Interrupted,
                    SleepEnd::Closed => return Waited::Gone,
                }
            }
        })
    }

    /// Makes every thread that sleeps in [`Instance::wait_for`] check its condition again.
    pub fn disturb(&self) {
        if self.board.completions().has_sleepers() {
            self.board.completions().wake_now();
        }
    }

    /// Ends the [`Instance::wait`] of a thread that sleeps there, or of the next one that would
    /// sleep.
    pub(crate) fn interrupt(&self) {
        // Either the thread that goes to sleep sees this store, or this thread sees a sleeper.
        self.interrupted.store(true, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        self.disturb();
    }

    /// Wakes threads that wait for a request that the front end has completed itself.
    pub fn wake_for(&self, event: &IoEvent) {
        self.board.completions().completed(event);
    }

    /// Completes what can be completed at once: executes requests that are known not to sleep and,
    /// now and then, collects the kernel's completions. It does not wait, except for file metadata
    /// that is not in memory when it tries a cold read.
    #[inline]
    pub fn poll(&self) {
        if !self.is_usable() {
            return;
        }
        let help = self.offer(0, TAKEN_MAX, false, false);
        if !self.has_help_to_offer(&help) {
            let now = sys::ticks();
            let every = COLLECT_EVERY_US * self.board.ticks_per_us();
            if now.wrapping_sub(self.looked.load(Ordering::Relaxed)) < every {
                return;
            }
            self.looked.store(now, Ordering::Relaxed);
            without_taker(|taker| self.lanes.kernel.harvest(&self.board, taker));
            return self.polled(false);
        }
        without_taker(|taker| self.help(&help, taker));
    }

    /// Reaps up to `max` completions as [`Cqe`]s, without sleeping. Returns the number.
    #[inline]
    pub fn reap(&self, max: u32, mut take: impl FnMut(Cqe)) -> u32 {
        // SAFETY: `reap` passes places between head and tail.
        let take = |ring: &Ring, at| take(unsafe { ring.read_cqe(at) });
        self.board.reaping(|reaped| self.board.completions().reap(max, take, reaped))
    }

    /// Reaps up to `max` completions as [`IoEvent`]s, without sleeping. Returns the number.
    #[inline]
    pub fn reap_events(&self, max: u32, mut take: impl FnMut(IoEvent)) -> u32 {
        // SAFETY: `reap` passes places between head and tail.
        let take = |ring: &Ring, at| take(unsafe { ring.read_event(at) });
        self.board.reaping(|reaped| self.board.completions().reap(max, take, reaped))
    }

    /// Completions that can be reaped.
    #[inline]
    pub fn available(&self) -> u32 {
        self.board.completions().available()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    use std::sync::Arc;

    use super::{DirectCompletions, Waited};
    use crate::config::Builder;
    use crate::instance::Instance;
    use crate::instance::submit::Entry;
    use crate::router::facts::Facts;
    use crate::sqe::Sqe;

    fn submit(instance: &Arc<Instance>, user_data: u64) {
        let entry = Entry { sqe: Sqe::nop().user_data(user_data), data: 0, notify: -1 };
        // SAFETY: the request has no buffers.
        let submitted = unsafe { instance.submit(&[entry]) };
        assert_eq!((submitted.accepted, submitted.refused), (1, 0));
    }

    /// Waits for one completion and takes it.
    fn take_one(instance: &Arc<Instance>) -> u64 {
        let mut found = Vec::new();
        let mut take = |_, user_data, _| found.push(user_data);
        let mut taker = DirectCompletions::new(1, &mut take);
        assert_eq!(instance.wait(1, 1, None, None, &mut taker), Waited::Enough);
        if taker.taken() == 0 {
            instance.reap(1, |cqe| found.push(cqe.user_data));
        }
        let [one] = found[..] else { panic!("{found:?}") };
        one
    }

    #[test]
    fn a_completion_that_is_there_is_not_passed_over_while_requests_keep_coming() {
        let instance = Instance::new(&Builder::default().entries(8)).unwrap();
        instance.leave_alone();
        (1..=3).for_each(|user_data| submit(&instance, user_data));
        assert!(instance.cancel(2).is_ok());
        // Two requests are always left queued.
        let taken: Vec<u64> = (4..20)
            .map(|user_data| {
                submit(&instance, user_data);
                take_one(&instance)
            })
            .collect();
        assert!(taken.contains(&2), "{taken:?}");
        let mut all: Vec<u64> =
            taken.into_iter().chain((0..3).map(|_| take_one(&instance))).collect();
        all.sort_unstable();
        assert_eq!(all, (1..20).collect::<Vec<u64>>());
        instance.close();
    }

    #[test]
    fn requests_that_are_cancelled_together_are_answered_in_their_order() {
        let instance = Instance::new(&Builder::default().entries(8)).unwrap();
        instance.leave_alone();
        (1..=4).for_each(|user_data| submit(&instance, user_data));
        let mut told = Vec::new();
        instance.cancel_each(&[3, 9, 1], |user_data, answer| told.push((user_data, answer)));
        assert_eq!(told, [(3, Ok(())), (9, Err(-libc::ENOENT)), (1, Ok(()))]);
        let mut all: Vec<u64> = (0..4).map(|_| take_one(&instance)).collect();
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3, 4]);
        instance.close();
    }

    #[test]
    fn a_poll_that_executes_a_large_read_executes_what_is_behind_it_too() {
        const LARGE: usize = 1 << 20;
        let instance = Instance::new(&Builder::default().entries(8)).unwrap();
        instance.leave_alone();
        let mut file = tempfile::tempfile().unwrap();
        let mut buffer = vec![1u8; LARGE];
        // The file is in the page cache: no read of it waits for the device.
        file.write_all(&buffer).unwrap();
        for _ in 0..20 {
            // A request in which this thread was preempted looks as if it had slept. What was
            // learned from such a request is forgotten.
            Facts::forget(&(file.as_raw_fd()..=file.as_raw_fd()));
            let sqe = Sqe::read(file.as_raw_fd(), &mut buffer[..], 0).user_data(1);
            // SAFETY: the buffer outlives the requests, which `close` waits for.
            let submitted = unsafe { instance.submit(&[Entry { sqe, data: 0, notify: -1 }]) };
            assert_eq!(submitted.accepted, 1);
            submit(&instance, 2);
            let mut found = Vec::new();
            let mut take = |_, user_data, _| found.push(user_data);
            let mut taker = DirectCompletions::new(2, &mut take);
            instance.wait(0, 2, None, None, &mut taker);
            instance.reap(2, |cqe| found.push(cqe.user_data));
            found.sort_unstable();
            assert_eq!(found, [1, 2]);
        }
        instance.close();
    }

    #[test]
    fn a_thread_that_waits_is_interrupted_wherever_it_sleeps() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let path = tempfile::NamedTempFile::new().unwrap();
        let mut options = std::fs::File::options();
        let direct = std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_DIRECT);
        let direct = direct.read(true).open(path.path());
        for is_alone in [true, false] {
            let instance = Instance::new(&Builder::default().entries(8)).unwrap();
            let mut byte = [0u8; 1];
            let sqe = Sqe::read(reader.as_raw_fd(), &mut byte[..], 0);
            // SAFETY: the buffer outlives the request, which `close` cancels.
            unsafe { instance.submit(&[Entry { sqe, data: 0, notify: -1 }]) };
            let mut block = Box::new([0u64; 512]);
            if let (Ok(file), false) = (&direct, is_alone) {
                // The kernel has a request: the waiting thread sleeps in the kernel's wait.
                let block = std::ptr::slice_from_raw_parts_mut(block.as_mut_ptr().cast(), 4096);
                let sqe = Sqe::read(file.as_raw_fd(), block, 0);
                // SAFETY: as above.
                unsafe { instance.submit(&[Entry { sqe, data: 0, notify: -1 }]) };
            }
            let mut nothing = |_, _, _| {};
            let mut wait = |min| {
                let mut taker = DirectCompletions::new(0, &mut nothing);
                instance.wait(min, 8, None, None, &mut taker)
            };
            for _ in 0..200 {
                let other = Arc::clone(&instance);
                let thread = std::thread::spawn(move || other.interrupt());
                assert_eq!(wait(3), Waited::Interrupted);
                thread.join().unwrap();
            }
            // Interruptions that come before the wait end it, too.
            instance.interrupt();
            instance.interrupt();
            assert_eq!(wait(3), Waited::Interrupted);
            instance.close();
        }
    }
}
