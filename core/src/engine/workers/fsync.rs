//! Executing fsyncs: one call for all that wait for the one under way (`syncs.rs`).
#![allow(unsafe_code)]

use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Workers;
use super::syncs::Arrival;
use crate::descriptor;
use crate::exec::{self, Mode};
use crate::instance::{By, Instance, Taker, without_taker};
use crate::request::{Kind, Request};
use crate::sqe::{FSYNC_DATASYNC, opcode};
use crate::sys;

/// A worker looks so many times in a row for others that came meanwhile.
const ROUNDS: usize = 16;

/// Calls `f` with each of a list of slots, which it may pass on.
pub(super) fn each_linked(instance: &Instance, first: u32, mut f: impl FnMut(u32)) {
    let mut rest = Some(first);
    while let Some(slot) = rest {
        // Read first: it is not ours afterwards.
        rest = instance.slot(slot).linked();
        f(slot);
    }
}

/// Starts all of a list but those that were cancelled. Gives the list of them, the other way round.
fn start_linked(instance: &Instance, newest: u32) -> Option<u32> {
    let mut oldest = None;
    each_linked(instance, newest, |slot| {
        if instance.start(slot) {
            instance.slot(slot).link(oldest);
            oldest = Some(slot);
        }
    });
    oldest
}

impl Workers {
    /// Is this an fsync that waits for nothing by all that is known, and that nothing has to come before? Then it is executed
    /// like any inline request: telling another thread of it takes longer.
    #[inline]
    pub(super) fn is_quick_sync(&self, request: &Request) -> bool {
        let (kind, opcode) = (request.kind, request.sqe.opcode);
        (kind, opcode) == (Kind::Sync, opcode::FSYNC)
            && descriptor::Facts::noted(request.sqe.fd).is_some_and(|facts| facts.syncs_quickly())
            && !self.is_overtaking()
    }

    /// Executes a started fsync, and those of its descriptor that come meanwhile; or leaves it to the thread that is at one
    /// already. Gives the ticks that the first one took.
    #[inline(never)]
    pub(super) fn sync(
        &self,
        instance: &Arc<Instance>,
        slot: u32,
        by: By,
        taker: &mut Taker<'_>,
    ) -> u64 {
        // SAFETY: started by the caller.
        let fd = unsafe { instance.slot(slot).request() }.sqe.fd;
        let mut waits = false;
        let link = |below| {
            instance.slot(slot).link(below);
            if !waits {
                // It can be cancelled while it waits.
                instance.slot(slot).requeue();
                waits = true;
            }
        };
        let arrival = if by == By::Pool && !self.threads.pool.is_helpless() {
            self.syncs.arrive(fd, slot, link)
        } else {
            // A thread of the program does this for nobody else: it may have enough, be interrupted, or not come back.
            self.syncs.join(fd, slot, link).map_or(Arrival::Alone, |()| Arrival::Waits)
        };
        if arrival == Arrival::Waits {
            return 0;
        }
        let mut ticks = 0;
        if !waits || instance.start(slot) {
            instance.slot(slot).link(None);
            let begin = sys::ticks();
            self.sync_all(instance, slot, by, taker);
            ticks = sys::ticks().wrapping_sub(begin);
        }
        if let Arrival::Leads(seat) = arrival {
            self.sync_waiting(instance, seat, taker);
        }
        ticks
    }

    /// A worker executes those who wait at its seat, for a while, and leaves it.
    fn sync_waiting(&self, instance: &Arc<Instance>, seat: usize, taker: &mut Taker<'_>) {
        for _ in 0..ROUNDS {
            let Some(newest) = self.syncs.next(seat) else { return };
            self.sync_linked(instance, newest, By::Pool, taker);
        }
        if let Some(newest) = self.syncs.leave(seat) {
            each_linked(instance, newest, |slot| self.pool.push(&[slot]));
            self.watch_over(instance);
            self.call_worker_at_once(instance);
        }
    }

    /// Those that wait for their turn on one of these descriptors, which the program is about to close, have it here and now.
    pub(super) fn sync_before_close(&self, instance: &Instance, fds: &RangeInclusive<RawFd>) {
        let execute = |newest| {
            without_taker(|taker| self.sync_linked(instance, newest, By::Waiter, taker));
        };
        self.syncs.take_waiting(|fd| fds.contains(&fd), execute);
    }

    /// Those that wait for their turn, and were cancelled, give their slots back.
    pub(super) fn purge_syncs(&self, instance: &Arc<Instance>) {
        let stay = |slot| {
            let queued = instance.slot(slot);
            if queued.is_canceled() {
                instance.start(slot);
                return;
            }
            // SAFETY: taken off its seat by us, so not freed; only read, as whoever cancels it at this moment does.
            let fd = unsafe { queued.shared() }.sqe.fd;
            if self.syncs.join(fd, slot, |below| queued.link(below)).is_err() {
                self.pool.push(&[slot]);
                self.watch_over(instance);
                self.call_worker_at_once(instance);
            }
        };
        self.syncs.take_waiting(|_| true, |newest| each_linked(instance, newest, stay));
    }

    /// One call for all of a list but those that were cancelled.
    fn sync_linked(&self, instance: &Instance, newest: u32, by: By, taker: &mut Taker<'_>) {
        if let Some(oldest) = start_linked(instance, newest) {
            self.sync_all(instance, oldest, by, taker);
        }
    }

    /// One call for all of a list of started fsyncs of one descriptor.
    fn sync_all(&self, instance: &Instance, first: u32, by: By, taker: &mut Taker<'_>) {
        let mut op_flags = FSYNC_DATASYNC;
        each_linked(instance, first, |slot| {
            // SAFETY: started by the caller.
            op_flags &= unsafe { instance.slot(slot).request() }.sqe.op_flags;
        });
        // SAFETY: as above.
        let request = unsafe { instance.slot(first).request() };
        request.sqe.op_flags = op_flags;
        let fd = request.sqe.fd;
        self.threads.syncing.fetch_add(1, Ordering::Relaxed);
        let begin = sys::ticks();
        // SAFETY: it has no buffers.
        let result = unsafe { exec::execute(request, Mode::Plain) };
        descriptor::learn_sync(fd, sys::ticks().wrapping_sub(begin), self.ticks_per_us);
        self.threads.syncing.fetch_sub(1, Ordering::Relaxed);
        // Which file system it is on may not be known yet.
        descriptor::prove(fd, true);
        each_linked(instance, first, |slot| {
            if slot != first {
                instance.count(|stats| &stats.syncs_together);
            }
            instance.finish_for(slot, result, by, taker);
        });
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::{Arrival, By, Instance, Workers, each_linked};
    use crate::descriptor;
    use crate::engine::Contract;
    use crate::engine::workers::threads::leave_alone;
    use crate::front::Entry;
    use crate::instance::without_taker;
    use crate::request::Kind;
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
        let workers = Workers::of(&instance);
        let Arrival::Leads(seat) = workers.syncs.arrive(fd, 0, |_| ()) else { panic!("not free") };
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
            if let Some(newest) = workers.syncs.newest_waiting(seat) {
                each_linked(&instance, newest, |_| linked += 1);
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
        let workers = Workers::of(&instance);
        without_taker(|taker| workers.sync_waiting(&instance, seat, taker));
        let canceled = Some(-libc::ECANCELED);
        assert_eq!(results(&instance), [Some(0), Some(0), canceled, Some(0), Some(0), Some(0)]);
        assert_eq!(together(&instance), 4, "all but the first and the cancelled one");
        assert_eq!(instance.free_slots().held(), 0);
        assert_eq!(workers.syncs.arrive(1, 0, |_| ()), Arrival::Leads(seat), "free again");
    }

    #[test]
    fn a_thread_of_the_program_does_its_own_only() {
        let file = tempfile::tempfile().unwrap();
        let builder = Context::builder().entries(2).engine(EngineKind::Workers);
        let instance = Instance::new(&builder).unwrap();
        let workers = Workers::of(&instance);
        let slots = instance.free_slots().take_counted(2, &mut ());
        for &slot in slots.as_slice() {
            // SAFETY: just taken.
            let request = unsafe { instance.slot(slot).request() };
            (request.sqe, request.kind) = (Sqe::fsync(file.as_raw_fd()), Kind::Sync);
            instance.slot(slot).fill(u64::from(slot), file.as_raw_fd(), -1);
            instance.slot(slot).queue();
            assert!(instance.start(slot));
            without_taker(|taker| workers.sync(&instance, slot, By::Waiter, taker));
            assert_eq!(workers.syncs.arrive(1, 0, |_| ()), Arrival::Leads(0), "it has no seat");
            assert_eq!(workers.syncs.leave(0), None);
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
        assert_eq!(instance.free_slots().held(), FSYNCS as usize, "they are in the list");
        Workers::of(&instance).purge(&instance);
        assert_eq!(instance.free_slots().held(), 3);
        let mut left = 0;
        let newest = Workers::of(&instance).syncs.newest_waiting(seat).expect("three");
        each_linked(&instance, newest, |_| left += 1);
        assert_eq!(left, 3);
        instance.close();
    }

    #[test]
    fn one_alone_is_executed_by_who_waits_for_it_and_wakes_nobody() {
        let file = tempfile::tempfile().unwrap();
        let builder = Context::builder().entries(1).engine(EngineKind::Workers).stats(true);
        let instance = Instance::new(&builder).unwrap();
        leave_alone(&instance);
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
        leave_alone(&instance);
        let fsyncs = |n: u32| {
            let entry = Entry { sqe: Sqe::fsync(file.as_raw_fd()), data: 0, notify: -1 };
            for _ in 0..n {
                // SAFETY: no buffers.
                assert_eq!(unsafe { instance.submit(&[entry]) }.accepted, 1);
            }
            without_taker(|taker| instance.wait(n, n, None, None, taker));
            assert_eq!(instance.reap(n, |cqe| assert_eq!(cqe.res, 0)), n);
        };
        let facts = || descriptor::Facts::known(fd).unwrap();
        // An earlier file of this number may have been as quick.
        descriptor::Facts::forget(&(fd..=fd));
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
        descriptor::Facts::forget(&(fd..=fd));
        let deadline = Instant::now() + Duration::from_secs(60);
        while !facts().syncs_quickly() {
            assert!(Instant::now() < deadline, "always slow");
            fsyncs(1);
        }
        let passed_on = || Workers::of(&instance).pool.taken();
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
        let workers = Workers::of(&instance);
        without_taker(|taker| workers.sync_waiting(&instance, seat, taker));
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
