//! How a poll handles requests that other threads are executing.
//!
//! A poll is a wait for zero completions. The kernel executes a buffered request inside its submit,
//! and a poll that follows finds its completion. So a poll here executes queued requests that do
//! not sleep. The baton is the right to execute the inline lane's queue. A poll takes it from a
//! holder that is in one request for long, to execute what that holder has not begun. And a poll
//! waits, within bounds, for what other threads have begun.

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use super::Instance;
use crate::board::DirectCompletions;
use crate::lane::Help;
use crate::router::tuning::{HOLDER_SPIN_US, LOOKS, NAP_US, PERHAPS_US, SOON_US, WORKERS_MAX};
use crate::sync::fence_behind_exchange;
use crate::sys;

/// Are there requests whose end a poll may expect? `NOTHING`: no. `EXPECTED`: perhaps. `LOOKING`: a
/// poll is checking.
const NOTHING: u32 = 0;
const EXPECTED: u32 = 1;
const LOOKING: u32 = 2;
/// The maximum number of requests that a poll waits for: as many as a process has workers for work
/// that ends. The poll takes requests that no thread has begun from the queues.
const AT_A_TIME: usize = WORKERS_MAX;

impl Instance {
    /// Marks that a request was queued whose end a poll may expect.
    #[inline]
    pub(super) fn expects_one(&self) {
        // Either this thread sees that a poll is about to clear the mark, or the poll sees the
        // request.
        fence_behind_exchange();
        if self.expected.load(Ordering::Relaxed) != EXPECTED {
            self.expected.store(EXPECTED, Ordering::Release);
        }
    }

    /// For a poll that has helped: takes requests that other threads have not begun, and waits for
    /// begun ones that are expected to end soon.
    #[inline]
    pub(super) fn see_what_others_have(&self, help: &Help, taker: &mut DirectCompletions<'_>) {
        if self.expected.load(Ordering::Relaxed) != NOTHING
            && self.board.free_slots().held_more_than(0)
            && !self.stands_by()
        {
            self.poll_slowly(help, taker);
        }
    }

    #[inline(never)]
    fn poll_slowly(&self, help: &Help, taker: &mut DirectCompletions<'_>) {
        let (board, inline) = (&self.board, &self.lanes.inline);
        let begin = sys::ticks();
        let passed = |us| sys::ticks().wrapping_sub(begin) > us * board.ticks_per_us();
        board.collect_reaped();
        let change = |from, to| {
            let (success, failure) = (Ordering::SeqCst, Ordering::Relaxed);
            let _ = self.expected.compare_exchange(from, to, success, failure);
        };
        change(EXPECTED, LOOKING);
        fence(Ordering::SeqCst);
        let mut expected = [(0, 0, false); AT_A_TIME];
        let mut count = 0;
        board.free_slots().each_held(|index| {
            if count < AT_A_TIME
                && let Some((state, soon)) = board.slot(index).expected()
            {
                expected[count] = (index, state, soon);
                count += 1;
            }
        });
        // If a request was queued meanwhile, its submitter has set the mark again, and this
        // exchange fails.
        change(LOOKING, if count == 0 { NOTHING } else { EXPECTED });
        let (mut waits, mut seen) = (0u32, inline.view());
        let mut since = begin;
        let is_enough = |taker: &DirectCompletions<'_>| {
            taker.taken() >= help.max || board.completions().available() >= help.max - taker.taken()
        };
        let mut at = 0;
        while at < count && !is_enough(taker) {
            let (index, state, soon) = expected[at];
            let slot = board.slot(index);
            if slot.is_over(state) {
                at += 1;
                continue;
            }
            if passed(if soon { SOON_US } else { PERHAPS_US }) {
                slot.expect_no_more(state);
                at += 1;
                continue;
            }
            let now = inline.view();
            // A holder without queued requests is not stuck: it spins for more.
            if !now.is_stuck_since(seen) || !inline.has_work_for(help.accepts_hanging) {
                (seen, since) = (now, sys::ticks());
            } else if sys::ticks().wrapping_sub(since) > HOLDER_SPIN_US.1 * board.ticks_per_us() {
                inline.steal(board, self.router.waiters.come(), now);
            }
            if !self.lanes.kernel.is_idle() && self.help_kernel(help, taker) {
                continue;
            }
            if !inline.baton().view().is_held()
                && inline.has_work_for(help.accepts_hanging)
                && self.help_more(help, taker)
            {
                continue;
            }
            Self::give_others_time(&mut waits);
        }
        // Completions of requests that have ended may still be on their way to the queue.
        while !is_enough(taker) && !passed(SOON_US) {
            let mut posted = 0;
            board
                .free_slots()
                .each_held(|index| posted += u32::from(board.slot(index).is_posted()));
            // The queue is checked after the count. If another thread reaps in between, the poll
            // only checks once more.
            if board.completions().available() >= posted {
                break;
            }
            Self::give_others_time(&mut waits);
        }
    }

    pub(super) fn give_others_time(waits: &mut u32) {
        *waits += 1;
        if sys::cpus() > 1 && *waits < LOOKS {
            std::hint::spin_loop();
        } else {
            // sched_yield(2) would not let threads of a lower scheduling class run.
            sys::nap(Duration::from_micros(NAP_US.0));
        }
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use crate::board::{Executor, without_taker};
    use crate::instance::Instance;
    use crate::instance::submit::Entry;
    use crate::router::facts::{self, Facts};
    use crate::sqe::opcode;
    use crate::sys;
    use crate::{Context, EngineKind, Sqe, descriptor};

    const DATA: &[u8] = b"what is written";
    const LEN: i32 = DATA.len() as i32;

    /// A context, and a file whose writes are known not to sleep.
    fn instance() -> (Arc<Instance>, File) {
        let builder = Context::builder().entries(8).engine(EngineKind::Workers).stats(true);
        let file = tempfile::tempfile().unwrap();
        Facts::forget(&(file.as_raw_fd()..=file.as_raw_fd()));
        descriptor::fresh(file.as_raw_fd()).unwrap();
        descriptor::prove(file.as_raw_fd(), true);
        (Instance::new(&builder).unwrap(), file)
    }

    fn submit(instance: &Arc<Instance>, file: &File) {
        let sqe = Sqe::write(file.as_raw_fd(), DATA, 0);
        // SAFETY: the data is a constant.
        let submitted = unsafe { instance.submit(&[Entry { sqe, data: 0, notify: -1 }]) };
        assert_eq!((submitted.accepted, submitted.refused), (1, 0));
    }

    /// Polls, and returns the number of completions.
    fn poll(instance: &Arc<Instance>) -> u32 {
        without_taker(|taker| instance.wait(0, 8, None, None, taker));
        instance.available()
    }

    fn reap(instance: &Arc<Instance>) -> u32 {
        instance.reap(8, |cqe| assert_eq!(cqe.res, LEN))
    }

    /// Submits a write that this thread begins, as a holder of the baton does, and does not end.
    fn begun(instance: &Arc<Instance>, file: &File) -> u32 {
        let inline = &instance.lanes().inline;
        loop {
            // The baton is never given back: a poll or the watchdog takes it away.
            inline.take_baton();
            submit(instance, file);
            match inline.pop_started(instance.board()) {
                Some(request) => return request.into_index(),
                // This thread was preempted, and a worker has the request.
                _ => while poll(instance) == 0 {},
            }
            reap(instance);
        }
    }

    /// Ends the request of [`begun`].
    #[allow(unsafe_code)]
    fn finish(instance: &Instance, slot: u32) {
        // SAFETY: the caller has begun this request, and no other thread has it.
        instance.board().finish(unsafe { instance.board().in_hand(slot) }, LEN, Executor::Worker);
    }

    /// How often a thread has slept.
    fn naps(thread: libc::pid_t) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse().ok()).expect("a count")
    }

    #[test]
    fn a_poll_waits_for_what_another_thread_has_begun() {
        let (instance, file) = instance();
        let slot = begun(&instance, &file);
        // SAFETY: the call takes no arguments, and cannot fail.
        let me = unsafe { libc::gettid() };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Waits until the poll naps.
                let before = naps(me);
                while naps(me) < before + 5 {
                    std::thread::yield_now();
                }
                finish(&instance, slot);
            });
            assert_eq!(poll(&instance), 1);
        });
        assert_eq!(reap(&instance), 1);
    }

    #[test]
    fn a_poll_does_not_wait_for_ever_and_once_only() {
        let (instance, file) = instance();
        let slot = begun(&instance, &file);
        // Both polls return although the request does not end.
        assert_eq!((poll(&instance), poll(&instance)), (0, 0));
        assert_eq!(instance.board().slot(slot).expected(), None);
        finish(&instance, slot);
        assert_eq!((poll(&instance), reap(&instance)), (1, 1));
    }

    #[test]
    fn a_poll_executes_what_a_holder_has_not_begun() {
        let (instance, file) = instance();
        for _ in 0..100 {
            instance.lanes().inline.take_baton();
            (0..3).for_each(|_| submit(&instance, &file));
            assert_eq!((poll(&instance), reap(&instance)), (3, 3));
        }
    }

    #[test]
    fn what_was_cancelled_behind_a_holder_that_is_away_holds_no_room() {
        let (instance, file) = instance();
        let most = instance.room() as u32;
        for _ in 0..100 {
            // This thread does not give the baton back, as if it was preempted.
            instance.lanes().inline.take_baton();
            (0..most).for_each(|_| submit(&instance, &file));
            let canceled = instance.cancel_all_on(file.as_raw_fd()).canceled;
            while instance.available() < most {
                poll(&instance);
            }
            assert_eq!(instance.reap(most, |_| ()), most);
            (0..most).for_each(|_| submit(&instance, &file));
            while instance.available() < most {
                poll(&instance);
            }
            assert_eq!(reap(&instance), most, "{canceled} were cancelled");
        }
    }

    #[test]
    fn a_poll_sees_every_kind_of_transfer_on_new_and_known_descriptors() {
        let name = "a_poll_sees_every_kind_of_transfer_on_new_and_known_descriptors";
        // In `prove`, the engine finds out that the file system is a local one.
        let file = tempfile::tempfile().unwrap();
        let fd = file.as_raw_fd();
        descriptor::fresh(fd).unwrap();
        descriptor::prove(fd, true);
        if !sys::takes_nowait(fd) || !Facts::noted(fd).is_some_and(Facts::is_local) {
            return crate::skipped(name, "no local file system here whose reads can be tried");
        }
        for known in [false, true] {
            for op in [opcode::READ, opcode::READV, opcode::WRITE, opcode::WRITEV] {
                let instance = Instance::new(&Context::builder().entries(8)).unwrap();
                // Only the poll executes.
                instance.leave_alone();
                let mut buffer = *b"what is written";
                std::os::unix::fs::FileExt::write_all_at(&file, DATA, 0).unwrap();
                let (address, len) = (buffer.as_mut_ptr(), buffer.len());
                let halves = [0, 5].map(|at| libc::iovec {
                    iov_base: buffer[at..].as_mut_ptr().cast(),
                    iov_len: if at == 0 { 5 } else { len - 5 },
                });
                let sqe = match op {
                    opcode::READ => Sqe::read(fd, &mut buffer[..], 0),
                    opcode::WRITE => Sqe::write(fd, &buffer[..], 0),
                    other => {
                        let addr = halves.as_ptr() as u64;
                        Sqe { opcode: other, fd, addr, len: 2, ..Sqe::default() }
                    }
                };
                Facts::forget(&(fd..=fd));
                if known {
                    descriptor::fresh(fd).unwrap();
                    descriptor::prove(fd, false);
                }
                // SAFETY: the buffers outlive the request, which has ended when the poll is over.
                let submitted = unsafe { instance.submit(&[Entry { sqe, data: 0, notify: -1 }]) };
                assert_eq!(submitted.accepted, 1);
                assert_eq!((poll(&instance), reap(&instance)), (1, 1), "{op} known {known}");
                std::hint::black_box(address);
                instance.close();
            }
        }
    }

    #[test]
    fn of_two_threads_in_a_context_each_sees_its_own() {
        let (instance, file) = instance();
        let other = tempfile::tempfile().unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    submit(&instance, &other);
                    // The other thread may reap this thread's completion.
                    while !instance.in_flight_on(other.as_raw_fd()).is_empty() {
                        poll(&instance);
                    }
                    reap(&instance);
                }
            });
            for round in 0..5000 {
                submit(&instance, &file);
                poll(&instance);
                let left = instance.in_flight_on(file.as_raw_fd());
                assert_eq!(left, [], "in round {round}");
                reap(&instance);
            }
            over.store(true, Ordering::Relaxed);
            while instance.board().free_slots().held() > 0 {
                poll(&instance);
                reap(&instance);
                std::thread::yield_now();
            }
        });
    }

    #[test]
    fn what_a_server_may_hold_up_is_executed_by_workers_and_not_by_polls() {
        let (instance, file) = instance();
        for round in 0..20 {
            facts::distrust(file.as_raw_fd());
            let before = instance.stats().unwrap();
            submit(&instance, &file);
            while poll(&instance) == 0 {
                without_taker(|taker| {
                    instance.wait(1, 8, Some(Duration::from_millis(round)), None, taker)
                });
            }
            assert_eq!(reap(&instance), 1);
            let after = instance.stats().unwrap();
            assert_eq!(after.by_waiter, before.by_waiter, "round {round}");
            assert_eq!(after.by_pool + after.by_worker, before.by_pool + before.by_worker + 1);
        }
        // A file of another test may get this number.
        Facts::forget(&(file.as_raw_fd()..=file.as_raw_fd()));
    }
}
