//! Executing fsyncs: one call for all of a descriptor that come while one is under way
//! (`word/seats.rs`). Where a queue has an fsync for a worker or a waiter, it is executed here.
#![allow(unsafe_code)]

use std::ops::RangeInclusive;
use std::os::fd::RawFd;

use super::{Lane, Progress, Stuck, Which, run};
use crate::board::{Board, By, Taker, without_taker};
use crate::request::{Route, Started};
use crate::router::tuning::SYNC_ROUNDS;
use crate::sqe::FSYNC_DATASYNC;
use crate::sys;
use crate::word::seats::{Arrival, Seats};

/// Fsyncs under way, and those that wait for one.
#[derive(Debug)]
pub(crate) struct Sync(Seats);

/// Calls `f` with each of a list of slots, which it may pass on.
fn each_linked(board: &Board, first: u32, mut f: impl FnMut(u32)) {
    let mut rest = Some(first);
    while let Some(slot) = rest {
        // Read first: it is not ours afterwards.
        rest = board.slot(slot).linked();
        f(slot);
    }
}

impl Sync {
    pub(super) fn new() -> Self {
        Self(Seats::new())
    }

    /// Executes a started fsync, and those of its descriptor that come meanwhile; or leaves it to the thread that is at one
    /// already. Gives the ticks that the first one took.
    #[inline(never)]
    pub(crate) fn execute(
        &self,
        board: &Board,
        request: Started<'_>,
        by: By,
        taker: &mut Taker<'_>,
    ) -> u64 {
        let fd = request.sqe.fd;
        let place = request.slot();
        // From the first link on others may see it waiting, and it can be cancelled while it waits.
        let index = request.queue();
        let link = |below| place.link(below);
        let arrival = if by == By::Pool {
            self.0.arrive(fd, index, link)
        } else {
            // A thread of the program does this for nobody else: it may have enough, be interrupted, or not come back.
            self.0.join(fd, index, link).map_or(Arrival::Alone, |()| Arrival::Waits)
        };
        if arrival == Arrival::Waits {
            return 0;
        }
        // SAFETY: it is in no queue, and waits nowhere: this thread has its number.
        let mut started = board.start(unsafe { board.popped(index) });
        let mut ticks = 0;
        if let Some(mut request) = started.take() {
            let begin = sys::ticks();
            let (result, _) = run::sync(board, &mut request, FSYNC_DATASYNC);
            ticks = sys::ticks().wrapping_sub(begin);
            board.finish_for(request, result, by, taker);
        }
        if let Arrival::Leads(seat) = arrival {
            self.execute_waiting(board, seat, taker);
        }
        ticks
    }

    /// A worker executes those who wait at its seat, for a while, and leaves it.
    fn execute_waiting(&self, board: &Board, seat: usize, taker: &mut Taker<'_>) {
        for _ in 0..SYNC_ROUNDS {
            let Some(newest) = self.0.next(seat) else { return };
            Self::execute_linked(board, newest, By::Pool, taker);
        }
        if let Some(newest) = self.0.leave(seat) {
            Self::each_started(board, newest, |request| {
                board.forward(request, Route::Pool, By::Pool);
            });
        }
    }

    /// Starts all of a list but those that were cancelled, and calls `f` with each.
    fn each_started<'a>(board: &'a Board, newest: u32, mut f: impl FnMut(Started<'a>)) {
        each_linked(board, newest, |slot| {
            // SAFETY: taken off its seat by this thread.
            if let Some(request) = board.start(unsafe { board.popped(slot) }) {
                f(request);
            }
        });
    }

    /// One call for all of a list but those that were cancelled.
    fn execute_linked(board: &Board, newest: u32, by: By, taker: &mut Taker<'_>) {
        let (mut first, mut others, mut flags) = (None, None, FSYNC_DATASYNC);
        Self::each_started(board, newest, |request| {
            flags &= request.sqe.op_flags;
            match first {
                None => first = Some(request),
                Some(_) => {
                    request.slot().link(others);
                    others = Some(request.into_index());
                }
            }
        });
        let Some(mut first) = first else { return };
        let (result, _) = run::sync(board, &mut first, flags);
        board.finish_for(first, result, by, taker);
        let Some(others) = others else { return };
        each_linked(board, others, |slot| {
            board.count(|stats| &stats.syncs_together);
            // SAFETY: started above, and linked by this thread.
            board.finish_for(unsafe { board.in_hand(slot) }, result, by, taker);
        });
    }

    /// Those that wait for their turn on one of these descriptors, which the program is about to close, have it here and now.
    fn execute_before_close(&self, board: &Board, fds: &RangeInclusive<RawFd>) {
        let execute = |newest| {
            without_taker(|taker| Self::execute_linked(board, newest, By::Waiter, taker));
        };
        self.0.take_waiting(|fd| fds.contains(&fd), execute);
    }

    /// Those that wait for their turn, and were cancelled, give their slots back.
    fn purge(&self, board: &Board) {
        let stay = |slot| {
            // SAFETY: taken off its seat by this thread.
            let queued = unsafe { board.popped(slot) };
            if queued.slot().is_canceled() {
                drop(board.start(queued));
                return;
            }
            let (fd, place) = (queued.sqe.fd, queued.slot());
            if self.0.join(fd, slot, |below| place.link(below)).is_err()
                && let Some(request) = board.start(queued)
            {
                board.forward(request, Route::Pool, By::Pool);
            }
        };
        self.0.take_waiting(|_| true, |newest| each_linked(board, newest, stay));
    }
}

impl Lane for Sync {
    fn progress(&self) -> [Progress; 2] {
        // Those that wait here are in the hands of the thread at the seat.
        [Progress::NOTHING; 2]
    }

    fn unstick(&self, _: &Board, _: usize, _: bool) -> Stuck {
        Stuck { nobody_came: false, call: None }
    }

    fn withdraw(&self, board: &Board, which: &Which<'_>) {
        match which {
            Which::Canceled => self.purge(board),
            Which::All => self.0.take_waiting(
                |_| true,
                |newest| Self::each_started(board, newest, |request| board.end_started(request)),
            ),
            Which::On(fds) => self.execute_before_close(board, fds),
        }
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::{Arrival, By, each_linked};
    use crate::board::without_taker;
    use crate::descriptor;
    use crate::front::Entry;
    use crate::instance::Instance;
    use crate::lane::{Lane, Which};
    use crate::request::Kind;
    use crate::router::facts::Facts;
    use crate::{Context, EngineKind, Sqe};
    use std::fs::File;
    use std::os::fd::{AsRawFd, FromRawFd, RawFd};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    const FSYNCS: u64 = 6;

    /// A context with fsyncs that all wait at a seat, as if one were under way. Every second one is an fdatasync.
    fn waiting(fd: RawFd) -> (Arc<Instance>, usize) {
        let builder = Context::builder().entries(32).engine(EngineKind::Workers).stats(true);
        let instance = Instance::new(&builder).unwrap();
        let sync = &instance.lanes().sync;
        let Arrival::Leads(seat) = sync.0.arrive(fd, 0, |_| ()) else { panic!("not free") };
        let entries = std::array::from_fn::<_, { FSYNCS as usize }, _>(|key| {
            let sqe = if key % 2 == 0 { Sqe::fsync(fd) } else { Sqe::fdatasync(fd) };
            Entry { sqe: sqe.user_data(key as u64), data: 0, notify: -1 }
        });
        // SAFETY: no buffers.
        assert_eq!(unsafe { instance.submit(&entries) }.accepted, entries.len());
        let mut linked = 0;
        while linked < FSYNCS {
            // The inline queue is passed through by whoever comes.
            instance.poll();
            std::thread::yield_now();
            linked = 0;
            if let Some(newest) = sync.0.newest_waiting(seat) {
                each_linked(instance.board(), newest, |_| linked += 1);
            }
        }
        (instance, seat)
    }

    /// Waits for all, and gives their results.
    fn results(instance: &Arc<Instance>) -> [Option<i32>; FSYNCS as usize] {
        let mut results = [None; FSYNCS as usize];
        while results.contains(&None) {
            without_taker(|taker| instance.wait(1, u32::MAX, None, None, taker));
            instance.reap(u32::MAX, |cqe| {
                let before = results[cqe.user_data as usize].replace(cqe.res);
                assert_eq!(before, None, "completed twice");
            });
        }
        results
    }

    fn together(instance: &Instance) -> u64 {
        instance.stats().unwrap().syncs_together
    }

    #[test]
    fn one_call_does_for_all_that_wait_and_a_cancelled_one_is_left_out() {
        let file = tempfile::tempfile().unwrap();
        let (instance, seat) = waiting(file.as_raw_fd());
        assert!(instance.cancel(2).is_ok(), "it has not begun");
        let sync = &instance.lanes().sync;
        without_taker(|taker| sync.execute_waiting(instance.board(), seat, taker));
        let canceled = Some(-libc::ECANCELED);
        assert_eq!(results(&instance), [Some(0), Some(0), canceled, Some(0), Some(0), Some(0)]);
        assert_eq!(together(&instance), 4, "all but the first and the cancelled one");
        assert_eq!(instance.board().free_slots().held(), 0);
        assert_eq!(sync.0.arrive(1, 0, |_| ()), Arrival::Leads(seat), "free again");
    }

    #[test]
    fn a_thread_of_the_program_does_its_own_only() {
        let file = tempfile::tempfile().unwrap();
        let builder = Context::builder().entries(2).engine(EngineKind::Workers);
        let instance = Instance::new(&builder).unwrap();
        let sync = &instance.lanes().sync;
        let slots = instance.board().free_slots().take_counted(2, &mut ());
        for &slot in slots.as_slice() {
            // SAFETY: just taken.
            let mut request = unsafe { instance.board().in_hand(slot) };
            (request.sqe, request.kind) = (Sqe::fsync(file.as_raw_fd()), Kind::Sync);
            request.slot().fill(u64::from(slot), file.as_raw_fd(), -1);
            without_taker(|taker| sync.execute(instance.board(), request, By::Waiter, taker));
            assert_eq!(sync.0.arrive(1, 0, |_| ()), Arrival::Leads(0), "it has no seat");
            assert_eq!(sync.0.leave(0), None);
        }
        assert_eq!(instance.available(), 2);
    }

    #[test]
    fn those_that_wait_are_executed_before_their_descriptor_is_closed() {
        let file = tempfile::tempfile().unwrap();
        let (instance, _) = waiting(file.as_raw_fd());
        // The one that is under way never ends.
        instance.before_close(file.as_raw_fd());
        assert_eq!(instance.available(), FSYNCS as u32);
        assert_eq!(together(&instance), FSYNCS - 1);
        assert_eq!(results(&instance), [Some(0); FSYNCS as usize]);
    }

    #[test]
    fn cancelled_ones_cost_no_room_and_the_others_stay() {
        let file = tempfile::tempfile().unwrap();
        let (instance, seat) = waiting(file.as_raw_fd());
        for key in [0, 2, 5] {
            assert!(instance.cancel(key).is_ok());
        }
        assert_eq!(instance.reap(3, |cqe| assert_eq!(cqe.res, -libc::ECANCELED)), 3);
        assert_eq!(instance.board().free_slots().held(), FSYNCS as usize, "they are in the list");
        instance.lanes().sync.withdraw(instance.board(), &Which::Canceled);
        assert_eq!(instance.board().free_slots().held(), 3);
        let mut left = 0;
        let newest = instance.lanes().sync.0.newest_waiting(seat).expect("three");
        each_linked(instance.board(), newest, |_| left += 1);
        assert_eq!(left, 3);
        instance.close();
    }

    #[test]
    fn one_alone_is_executed_by_who_waits_for_it_and_wakes_nobody() {
        let file = tempfile::tempfile().unwrap();
        // What is remembered of the number is of a file of another test.
        let fd = file.as_raw_fd();
        Facts::forget(&(fd..=fd));
        descriptor::fresh(fd).unwrap();
        descriptor::prove(fd, true);
        let builder = Context::builder().entries(1).engine(EngineKind::Workers).stats(true);
        let instance = Instance::new(&builder).unwrap();
        instance.leave_alone();
        let entry = Entry { sqe: Sqe::fsync(file.as_raw_fd()), data: 0, notify: -1 };
        for _ in 0..4 {
            // SAFETY: no buffers.
            assert_eq!(unsafe { instance.submit(&[entry]) }.accepted, 1);
            without_taker(|taker| instance.wait(1, 1, None, None, taker));
            assert_eq!(instance.reap(1, |cqe| assert_eq!(cqe.res, 0)), 1);
        }
        let stats = instance.stats().unwrap();
        assert_eq!((stats.by_waiter, stats.wakeups), (4, 0));
    }

    #[test]
    fn one_that_waits_for_nothing_is_executed_with_the_inline_requests() {
        // SAFETY: the name is a string.
        let fd = unsafe { libc::memfd_create(c"fsync".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: just made, and nobody else's.
        let file = unsafe { File::from_raw_fd(fd) };
        let builder = Context::builder().entries(32).engine(EngineKind::Workers).stats(true);
        let instance = Instance::new(&builder).unwrap();
        instance.leave_alone();
        let fsyncs = |n: u32| {
            let entry = Entry { sqe: Sqe::fsync(file.as_raw_fd()), data: 0, notify: -1 };
            for _ in 0..n {
                // SAFETY: no buffers.
                assert_eq!(unsafe { instance.submit(&[entry]) }.accepted, 1);
            }
            without_taker(|taker| instance.wait(n, n, None, None, taker));
            assert_eq!(instance.reap(n, |cqe| assert_eq!(cqe.res, 0)), n);
        };
        let facts = || descriptor::known(fd).unwrap();
        // An earlier file of this number may have been as quick.
        Facts::forget(&(fd..=fd));
        // And its file system is known.
        facts();
        descriptor::prove(fd, true);
        assert!(!facts().syncs_quickly());
        let quick = |n: u32| (0..n).for_each(|_| descriptor::learn_sync(fd, 1, 1));
        quick(2);
        assert!(!facts().syncs_quickly());
        // Each is timed: it is the third quick one, or it is slow and the next two are not enough.
        fsyncs(1);
        if !facts().syncs_quickly() {
            quick(2);
            assert!(!facts().syncs_quickly(), "nothing was learned");
        }
        Facts::forget(&(fd..=fd));
        let deadline = Instant::now() + Duration::from_secs(60);
        while !facts().syncs_quickly() {
            assert!(Instant::now() < deadline, "always slow");
            fsyncs(1);
        }
        let passed_on = || instance.lanes().pool.taken();
        // One of them may be slow: what comes is chosen before.
        quick(3);
        let before = passed_on();
        fsyncs(1);
        assert_eq!(passed_on(), before, "executed as any inline request");
        // It would wait for the device now.
        descriptor::learn_sync(fd, u64::MAX, 1);
        assert!(!facts().syncs_quickly());
        fsyncs(1);
        assert_eq!(passed_on(), before + 1);
    }

    #[test]
    fn what_is_wrong_is_said_to_each() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let (instance, seat) = waiting(reader.as_raw_fd());
        let sync = &instance.lanes().sync;
        without_taker(|taker| sync.execute_waiting(instance.board(), seat, taker));
        assert_eq!(results(&instance), [Some(-libc::EINVAL); FSYNCS as usize]);
    }

    #[test]
    fn closing_does_not_wait_for_one_that_hangs() {
        let file = tempfile::tempfile().unwrap();
        let (instance, _) = waiting(file.as_raw_fd());
        instance.close();
        assert_eq!(results(&instance), [Some(-libc::ECANCELED); FSYNCS as usize]);
    }
}
