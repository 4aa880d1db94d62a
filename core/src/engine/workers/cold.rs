//! Cached reads of files whose pages are usually not in memory: each is tried without waiting (preadv2(2), `RWF_NOWAIT`),
//! which starts the device, and those whose page is still on its way are read one after the other by one worker.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use super::Workers;
use super::readers::Readers;
use super::wait::FAVOURS;
use crate::descriptor;
use crate::engine::Help;
use crate::exec::{self, Tried};
use crate::front::has_memory;
use crate::instance::{By, Instance, Taker, without_taker};
use crate::queue::IndexRing;
use crate::sqe::Sqe;
use crate::sys;

/// A try that took less has started nothing.
const STARTED_US: u64 = 3;
/// A worker serves other contexts after so many.
const TURN: usize = 64;

/// The cold reads of a context.
#[derive(Debug)]
pub(super) struct Cold {
    /// Those that are to be tried without waiting.
    untried: IndexRing,
    /// None was taken for a tick of the watchdog.
    stuck: AtomicBool,
    /// Those whose pages are on their way.
    coming: IndexRing,
    readers: Readers,
}

impl Cold {
    fn new(slots: usize) -> Self {
        Self {
            untried: IndexRing::new(slots),
            stuck: AtomicBool::new(false),
            coming: IndexRing::new(slots),
            readers: Readers::new(),
        }
    }

    #[inline]
    pub(super) fn has_untried(&self) -> bool {
        !self.untried.is_empty()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.untried.is_empty() && self.coming.is_empty()
    }

    /// Another worker is to come and read.
    fn wants_reader(&self) -> bool {
        !self.coming.is_empty() && self.readers.are_too_few()
    }
}

impl Workers {
    /// Has it the queues for cold reads, or can have them?
    #[inline]
    pub(super) fn can_be_cold(&self) -> bool {
        self.cold.get().is_some() || self.make_cold()
    }

    #[cold]
    fn make_cold(&self) -> bool {
        let slots = self.inline.capacity();
        let bytes = size_of::<Cold>() + 2 * slots * size_of::<u64>();
        has_memory(bytes) && self.cold.set(Box::new(Cold::new(slots))).is_ok()
            || self.cold.get().is_some()
    }

    /// Queues cold reads, and sees to it that somebody tries them.
    pub(super) fn queue_cold(&self, instance: &Arc<Instance>, slots: &[u32], helpers_come: bool) {
        let cold = self.cold.get().expect("made when the lane was chosen");
        cold.untried.push(slots);
        fence(Ordering::SeqCst);
        if !helpers_come {
            return self.call_worker(instance);
        }
        if instance.completions().has_sleepers() {
            instance.completions().wake_now();
        }
        if !self.baton.view().is_watched() {
            self.watch_over(instance);
        }
    }

    /// A waiter tries what is queued, so that the device has work, and reads itself if it has to wait for all of it.
    #[inline(never)]
    pub(super) fn help_cold(
        &self,
        cold: &Cold,
        instance: &Arc<Instance>,
        help: &Help,
        taker: &mut Taker<'_>,
    ) -> bool {
        if help.min > 0 {
            self.habit.waiter_came();
        }
        if help.unbounded
            && cold.untried.len() + cold.coming.len() == 1
            && self.must_wait_for_all(instance, help.min)
            && let Some(slot) = cold.untried.pop()
        {
            // It would sleep for this one anyway.
            self.run(instance, slot, By::Waiter, true, taker);
            return true;
        }
        let (mut present, before) = (0, taker.taken());
        while let Some(slot) = cold.untried.pop() {
            present += u32::from(self.try_cold(cold, instance, slot, By::Waiter, taker));
            let enough = |wanted| taker.taken() - before >= wanted;
            if present >= FAVOURS && help.min > 0 && enough(help.min) || enough(help.max) {
                break;
            }
        }
        if cold.coming.is_empty() {
            return present > 0;
        }
        let in_order = help.unbounded && self.must_wait_for_all(instance, help.min);
        if (in_order || self.threads.pool.is_helpless())
            && let Some(slot) = cold.coming.pop()
        {
            self.run(instance, slot, By::Waiter, false, taker);
            return true;
        }
        if cold.wants_reader() {
            self.call_worker(instance);
        }
        present > 0
    }

    /// A worker tries what is queued, unless waiters do, and reads what is on its way, unless other workers do.
    pub(super) fn work_at_cold(&self, instance: &Arc<Instance>) {
        let Some(cold) = self.cold.get() else { return };
        if self.is_to_try(cold) {
            cold.stuck.store(false, Ordering::Relaxed);
            for _ in 0..TURN {
                let Some(slot) = cold.untried.pop() else { break };
                without_taker(|taker| self.try_cold(cold, instance, slot, By::Pool, taker));
            }
        }
        if cold.coming.is_empty() || !cold.readers.enter() {
            return;
        }
        for _ in 0..TURN {
            let Some(slot) = cold.coming.pop() else { break };
            without_taker(|taker| self.run(instance, slot, By::Pool, false, taker));
            if self.is_to_try(cold) || self.others_wait() {
                break;
            }
        }
        cold.readers.leave();
    }

    /// Reads a page that is there, and starts the device for one that is not. True if the request is completed.
    fn try_cold(
        &self,
        cold: &Cold,
        instance: &Arc<Instance>,
        slot: u32,
        by: By,
        taker: &mut Taker<'_>,
    ) -> bool {
        if !instance.start(slot) {
            return false;
        }
        // SAFETY: started by us just now, and not passed on before the reference's last use.
        let sqe = &unsafe { instance.slot(slot).request() }.sqe;
        let begin = sys::ticks();
        // SAFETY: the buffer is the request's until its completion.
        let tried = unsafe { exec::try_read(sqe) };
        let ticks = sys::ticks().wrapping_sub(begin);
        let &Sqe { fd, off, len, .. } = sqe;
        match tried {
            Tried::Done(result) => {
                descriptor::learn_tried(fd, true);
                instance.finish_for(slot, result, by, taker);
                return true;
            }
            Tried::Impossible => self.to_pool(instance, slot),
            Tried::WouldWait => {
                if ticks < STARTED_US * self.ticks_per_us {
                    // On its way already, or this kernel leaves it to whoever waits.
                    sys::fadvise(fd, off, len.into(), libc::POSIX_FADV_WILLNEED as u32);
                }
                descriptor::learn_tried(fd, false);
                instance.count(|stats| &stats.reads_ahead);
                instance.slot(slot).requeue();
                cold.coming.push(&[slot]);
            }
        }
        false
    }

    /// There is something to be tried, and by a worker.
    fn is_to_try(&self, cold: &Cold) -> bool {
        cold.has_untried() && (!self.waiters_execute() || cold.stuck.load(Ordering::Relaxed))
    }

    /// What workers are to do for cold reads, as one request each.
    pub(super) fn cold_for_workers(&self) -> usize {
        self.cold
            .get()
            .map_or(0, |cold| usize::from(self.is_to_try(cold)) + usize::from(cold.wants_reader()))
    }

    /// The queues for cold reads, if there have been any.
    pub(super) fn cold_queues(&self) -> impl Iterator<Item = &IndexRing> {
        self.cold.get().into_iter().flat_map(|cold| [&cold.untried, &cold.coming])
    }

    /// Nobody has taken one for a tick of the watchdog. False: there is none.
    pub(super) fn cold_is_stuck(&self) -> bool {
        let Some(cold) = self.cold.get().filter(|cold| !cold.is_empty()) else { return false };
        if cold.has_untried() {
            cold.stuck.store(true, Ordering::Relaxed);
            self.habit.nobody_came();
        } else {
            cold.readers.are_stuck();
        }
        true
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::{Cold, Workers};
    use crate::front::Entry;
    use crate::instance::{Instance, without_taker};
    use crate::{Context, EngineKind, Sqe, descriptor, sys};
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    const READS: usize = 16;
    const LEN: usize = 512;
    const STRIDE: usize = 64 << 10;
    const LONG: Duration = Duration::from_secs(30);

    /// A file whose pages are expected, and mostly will be found, not to be in memory.
    fn cold_file() -> File {
        let file = tempfile::tempfile().unwrap();
        for at in 0..READS {
            file.write_all_at(&[at as u8 + 1; LEN], (at * STRIDE) as u64).unwrap();
        }
        file.sync_all().unwrap();
        sys::fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED as u32);
        descriptor::Facts::fresh(file.as_raw_fd()).unwrap();
        (0..8).for_each(|_| descriptor::learn_tried(file.as_raw_fd(), false));
        file
    }

    struct Reads {
        file: File,
        instance: Arc<Instance>,
        buffers: Box<[[u8; LEN]; READS]>,
    }

    impl Reads {
        fn submit() -> Self {
            let (file, mut buffers) = (cold_file(), Box::new([[0; LEN]; READS]));
            let builder = Context::builder().entries(32).engine(EngineKind::Workers).stats(true);
            let instance = Instance::new(&builder).unwrap();
            let mut buffer = buffers.iter_mut();
            let entries = std::array::from_fn::<_, READS, _>(|at| {
                let (fd, offset) = (file.as_raw_fd(), (at * STRIDE) as u64);
                let sqe = Sqe::read(fd, &mut buffer.next().unwrap()[..], offset);
                Entry { sqe: sqe.user_data(at as u64), data: 0, notify: -1 }
            });
            // SAFETY: the buffers are kept until the requests have ended.
            assert_eq!(unsafe { instance.submit(&entries) }.accepted, READS);
            Self { file, instance, buffers }
        }

        fn cold(&self) -> &Cold {
            Workers::of(&self.instance).cold.get().expect("there were some")
        }

        /// As if all had been tried, and none had been there.
        fn all_coming(&self) {
            while let Some(slot) = self.cold().untried.pop() {
                self.cold().coming.push(&[slot]);
            }
        }

        /// Until all have completed; nobody waits for them meanwhile.
        fn come_by_themselves(&self) {
            let deadline = Instant::now() + LONG;
            while (self.instance.completions().available() as usize) < READS {
                assert!(Instant::now() < deadline, "some never came");
                std::thread::yield_now();
            }
        }

        /// The results, once each.
        fn results(&self) -> [Option<i32>; READS] {
            let mut results = [None; READS];
            self.instance.reap(u32::MAX, |cqe| {
                let before = results[cqe.user_data as usize].replace(cqe.res);
                assert_eq!(before, None, "completed twice");
            });
            results
        }

        fn all_right(&self) {
            assert_eq!(self.results(), [Some(LEN as i32); READS]);
            assert!((0..READS).all(|at| self.buffers[at] == [at as u8 + 1; LEN]));
            assert_eq!(self.instance.free_slots().held(), 0);
        }
    }

    #[test]
    fn reads_of_absent_pages_are_tried_and_then_read() {
        let mut ahead = 0;
        for _ in 0..1000 {
            let reads = Reads::submit();
            let all = READS as u32;
            without_taker(|taker| reads.instance.wait(all, all, None, None, taker));
            reads.all_right();
            ahead = reads.instance.stats().unwrap().reads_ahead;
            if ahead > 0 {
                break;
            }
        }
        if ahead == 0 {
            // Where files are in memory anyway, no page is ever absent.
            let _ = writeln!(
                std::io::stderr(),
                "\nSKIPPED reads_of_absent_pages_are_tried_and_then_read: pages cannot be dropped here"
            );
        }
    }

    #[test]
    fn somebody_comes_where_nobody_waits() {
        let reads = Reads::submit();
        reads.come_by_themselves();
        reads.all_right();
    }

    #[test]
    fn another_reader_comes_for_one_that_is_stuck() {
        let reads = Reads::submit();
        let readers = &reads.cold().readers;
        for _ in 0..2 {
            // They never come back.
            while !readers.enter() {
                readers.are_stuck();
            }
        }
        reads.all_coming();
        reads.come_by_themselves();
        reads.all_right();
    }

    #[test]
    fn what_is_on_its_way_can_be_cancelled_and_ends_with_the_context() {
        let reads = Reads::submit();
        // Nobody reads: the watchdog's helper would be one too many.
        while !reads.cold().readers.enter() {
            std::thread::yield_now();
        }
        reads.all_coming();
        let canceled = reads.instance.cancel(READS as u64 - 1).is_ok();
        reads.instance.close();
        let results = reads.results();
        assert!(
            results.iter().all(
                |&res| matches!(res, Some(res) if res == LEN as i32 || res == -libc::ECANCELED)
            )
        );
        assert!(!canceled || results[READS - 1] == Some(-libc::ECANCELED));
        assert!(reads.cold().is_empty());
        drop(reads.file);
    }

    #[test]
    fn a_file_that_is_in_memory_again_leaves_the_lane_and_not_too_soon() {
        let file = cold_file();
        let sleeps = || descriptor::Facts::known(file.as_raw_fd()).unwrap().sleeps(false);
        assert!(sleeps());
        let mut present = 0;
        while sleeps() {
            descriptor::learn_tried(file.as_raw_fd(), true);
            present += 1;
        }
        assert!((40..100).contains(&present), "{present} reads");
    }
}
