//! What a worker does for a context, and the watchdog and the poller in its name.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::{Workers, threads};
use crate::instance::{By, Instance, without_taker};
use crate::queue::IndexRing;
use crate::sys;

/// Workers that execute cached reads of one context side by side: more than this wait for memory.
const COPIERS_MAX: usize = 4;

impl Workers {
    /// What a worker does for a context that it was called for: some cold reads, a hand-over to the kernel, one request of the
    /// pool lane, or else a turn with the baton.
    pub(super) fn serve(&self, instance: &Arc<Instance>) {
        if self.work_at_cold(instance) && !self.others_wait() {
            return;
        }
        if self.seat.takes_hand_over() {
            self.hand_over(instance, By::Worker);
        } else if let Some(slot) = self.pool.pop() {
            self.run_pooled(instance, slot);
        } else if let Some(slot) = self.worker.pop() {
            self.run_for_poller(instance, slot);
        } else if self.copies_for_workers() > 0 {
            self.work_at_copies(instance);
        } else if self.seat.takes_holder()
            && let Some(turn) = self.baton.take()
        {
            self.spin_pays();
            without_taker(|taker| {
                self.hold(instance, turn, By::Worker, taker, &mut |_, _| false);
            });
        }
    }

    /// A worker executes requests that any thread may until there are none.
    pub(super) fn work_at_copies(&self, instance: &Arc<Instance>) {
        self.copies_stuck.store(false, Ordering::Relaxed);
        self.copying.fetch_add(1, Ordering::SeqCst);
        loop {
            let mut idle_since = sys::ticks();
            loop {
                let worked = without_taker(|taker| match self.copies.pop() {
                    Some(slot) => {
                        self.run_copy(instance, slot, By::Pool, taker);
                        true
                    }
                    None => self.read_part(instance, By::Pool, taker),
                });
                if self.others_wait() {
                    // Back to the queue of contexts, which serves them in turn.
                    self.copying.fetch_sub(1, Ordering::SeqCst);
                    return;
                }
                if worked {
                    idle_since = sys::ticks();
                } else if sys::ticks().wrapping_sub(idle_since) > self.gain.patience() {
                    break;
                }
                std::hint::spin_loop();
            }
            self.gain.leaves();
            self.copying.fetch_sub(1, Ordering::SeqCst);
            // Pairs with the fence of a submitter: it sees that nobody is here, or this its requests.
            fence(Ordering::SeqCst);
            if !self.has_copies() {
                return;
            }
            self.copying.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Requests of other lanes wait for a worker.
    pub(super) fn others_wait(&self) -> bool {
        !self.pool.is_empty() || self.needs_worker_at_once()
    }

    /// A request of the pool lane, on one of our workers or in its place.
    pub(super) fn run_pooled(&self, instance: &Arc<Instance>, slot: u32) {
        let ticks = without_taker(|taker| self.run(instance, slot, By::Pool, true, taker));
        if ticks > 0 {
            self.threads.pool.took(ticks);
        }
    }

    /// A request that only a worker may execute: one of a stream keeps later ones waiting.
    pub(super) fn run_for_poller(&self, instance: &Arc<Instance>, slot: u32) {
        let passed_on = self.threads.poller.find(instance, slot);
        let _kept = self.kept_for(slot);
        self.run_pooled(instance, slot);
        if let Some(passed_on) = passed_on {
            self.threads.poller.end(passed_on);
        }
    }

    /// No worker exists and none can be made, and the program may not come to wait: the submitter
    /// executes its own requests, as the kernel's AIO does with buffered ones.
    #[cold]
    pub(super) fn run_without_workers(&self, instance: &Arc<Instance>) {
        if let Some(turn) = self.baton.take() {
            without_taker(|taker| {
                self.hold(instance, turn, By::Waiter, taker, &mut |_, _| false);
            });
        }
        let queues = || [&self.pool, &self.copies, self.kernel.queue()].into_iter();
        let left = || queues().chain(self.cold_queues()).find_map(IndexRing::pop);
        while let Some(slot) = left() {
            self.run_pooled(instance, slot);
        }
    }

    /// Collects for a program that does not come for its completions.
    pub(super) fn collect(&self, instance: &Arc<Instance>) -> bool {
        let any = without_taker(|taker| {
            let mut finish = |slot, result| self.finish_kernel(instance, slot, result, taker);
            self.kernel.harvest(instance, &mut finish)
        });
        if any && self.kernel.queued() > 0 {
            // There is room again.
            self.seat.want_hand_over();
            self.call_worker_at_once(instance);
        }
        any
    }

    /// Is there something for a worker to do?
    pub(super) fn needs_worker(&self) -> bool {
        self.for_workers() > 0 || self.seat.wants_holder() || self.seat.wants_hand_over()
    }

    /// Is there something that must not wait for those that are at work?
    pub(super) fn needs_worker_at_once(&self) -> bool {
        !self.worker.is_empty() || self.seat.wants_holder() || self.seat.wants_hand_over()
    }

    /// What waits for workers: requests that need one each, and cold reads.
    pub(super) fn for_workers(&self) -> usize {
        self.for_worker_each() + self.cold_for_workers()
    }

    /// Requests that wait for a worker each.
    pub(super) fn for_worker_each(&self) -> usize {
        self.pool.len() + self.worker.len() + self.copies_for_workers()
    }

    /// Large copies for which there are CPUs, this thread's own not counted.
    pub(super) fn copies_for_workers(&self) -> usize {
        let most = if self.waiters_execute() { threads::cpus() - 1 } else { threads::cpus() };
        let most = most.min(COPIERS_MAX);
        let waiting = self.copies.len() + self.split.left();
        if self.copies_stuck.load(Ordering::Relaxed) {
            // Those at them sleep, which cached reads do not usually.
            return waiting.min(1);
        }
        let at_them = self.copying.load(Ordering::Relaxed);
        waiting.min(most.max(1).saturating_sub(at_them))
    }

    /// Requests that neither the baton's word nor the next cell tells of.
    pub(super) fn has_more(&self) -> bool {
        self.has_queued() || !self.kernel.is_idle() || self.kernel.door().view().is_held()
    }

    /// Those of them that are not for the kernel.
    pub(super) fn has_queued(&self) -> bool {
        let cold = self.cold.get().is_some_and(|cold| !cold.is_empty());
        self.for_workers() > 0 || !self.copies.is_empty() || cold
    }

    /// How many requests have been taken for execution: by holders, and by workers of their own.
    pub(super) fn taken(&self) -> [u64; 2] {
        let inline = self.inline.taken() + self.ordered.taken();
        let own = [&self.pool, &self.worker, &self.copies, self.kernel.queue()];
        [inline, own.iter().map(|queue| queue.taken()).sum()]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::{AsRawFd as _, RawFd};

    use crate::config::Builder;
    use crate::engine::workers::Workers;
    use crate::engine::workers::threads::leave_alone;
    use crate::instance::{Entry, Instance};
    use crate::sqe::Sqe;
    use crate::sys;

    #[test]
    fn what_waits_for_a_worker_has_its_file_after_the_program_has_closed_it() {
        let instance = Instance::new(&Builder::default().entries(4)).unwrap();
        leave_alone(&instance);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), "text").unwrap();
        let opened = std::fs::File::open(folder.path()).unwrap();
        // Its entry is a copy: the path is read at submit.
        let sqe = Sqe::openat(opened.as_raw_fd(), c"file", libc::O_RDONLY | libc::O_CLOEXEC, 0);
        // SAFETY: the path is there for good.
        let submitted = unsafe { instance.submit(&[Entry { sqe, data: 0, notify: -1 }]) };
        assert_eq!(submitted.accepted, 1);
        instance.before_close(opened.as_raw_fd());
        drop(opened);
        let workers = Workers::of(&instance);
        let slot = workers.worker.pop().expect("nobody has executed it");
        workers.run_for_poller(&instance, slot);
        let mut result = None;
        instance.reap(1, |cqe| result = Some(cqe.res));
        let file: RawFd = result.unwrap();
        assert!(file >= 0, "{file}");
        sys::close(file);
        assert!(workers.kept.lock().unwrap().is_empty(), "the other descriptor is closed");
        instance.close();
    }
}
