//! The copy lane: large reads from the page cache. Any waiter or worker that comes executes them,
//! several in parallel.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use super::{Help, Lane, Progress, Stuck, Withdraw, run, withdraw_from};
use crate::board::{Board, DirectCompletions, Executor, without_taker};
use crate::queue::IndexRing;
use crate::router::Call;
use crate::router::tuning::{COPIERS_MAX, FAVOUR_US, FAVOURS, TIMED_EVERY};
use crate::sys;

/// The queue of the copy lane, and the threads that work on it.
#[derive(Debug)]
pub(crate) struct CopyLane {
    queue: IndexRing,
    /// The number of workers that execute copies.
    at_them: AtomicUsize,
    /// No copy was taken between two checks of the watchdog: the workers sleep in their reads,
    /// although cached reads usually do not sleep.
    stuck: AtomicBool,
}

impl CopyLane {
    pub(super) fn new(slots: usize) -> Self {
        let queue = IndexRing::new(slots);
        Self { queue, at_them: AtomicUsize::new(0), stuck: AtomicBool::new(false) }
    }

    /// Queues requests.
    pub(crate) fn push(&self, slots: &[u32]) {
        self.queue.push(slots);
    }

    /// Requests in the queue.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Is the queue empty?
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The number of requests for which a further worker should come. There are at most
    /// [`COPIERS_MAX`] workers, and no more than CPUs. One CPU is left to an expected waiter. If
    /// all workers are stuck, one more should come.
    pub(crate) fn for_workers(&self, waiters_come: bool) -> usize {
        if self.stuck.load(Ordering::Relaxed) {
            return self.queue.len().min(1);
        }
        let cpus = sys::cpus() - usize::from(waiters_come);
        let at_them = self.at_them.load(Ordering::Relaxed);
        self.queue.len().min(cpus.clamp(1, COPIERS_MAX).saturating_sub(at_them))
    }

    /// A waiter executes copies until one takes long, or until it has executed enough of them. True
    /// if it executed any.
    pub(crate) fn help(
        &self,
        board: &Board,
        help: &Help,
        taker: &mut DirectCompletions<'_>,
    ) -> bool {
        let (mut executed, before) = (0, taker.taken());
        while let Some(request) = board.pop(&self.queue) {
            let ticks = board
                .start(request)
                .map_or(0, |request| run::execute(board, request, Executor::Waiter, true, taker));
            executed += 1;
            let taken = taker.taken() - before;
            let slow = ticks > FAVOUR_US * board.ticks_per_us();
            // The count of completions is on a cache line that workers write to, so it is read
            // seldom.
            let look = executed % TIMED_EVERY == 0 && help.max < u32::MAX;
            let available = if look { board.completions().available() } else { 0 };
            if slow || executed >= FAVOURS || taken + available >= help.max {
                break;
            }
        }
        executed > 0
    }

    /// A worker executes requests until there are none, or until `others_wait` returns true.
    pub(crate) fn work(&self, board: &Board, others_wait: impl Fn() -> bool) {
        self.stuck.store(false, Ordering::Relaxed);
        loop {
            self.at_them.fetch_add(1, Ordering::SeqCst);
            let mut leave = false;
            while !leave && let Some(request) = board.pop(&self.queue) {
                if let Some(request) = board.start(request) {
                    without_taker(|taker| {
                        taker.bound(true);
                        run::execute(board, request, Executor::Pool, true, taker)
                    });
                }
                // If requests of other lanes wait for a worker, this turn ends. The worker then
                // puts the context at the end of the pool's queue.
                leave = others_wait();
            }
            self.at_them.fetch_sub(1, Ordering::SeqCst);
            // Pairs with the fence of a submitter. Either the submitter sees that no worker is
            // here, or this worker sees the submitter's requests.
            fence(Ordering::SeqCst);
            if leave || self.queue.is_empty() {
                return;
            }
        }
    }

    /// Takes a request for the submitter, if no other thread can execute it.
    pub(crate) fn pop_for_submitter<'a>(
        &self,
        board: &'a Board,
    ) -> Option<crate::request::Started<'a>> {
        board.pop_started(&self.queue)
    }
}

impl Lane for CopyLane {
    fn progress(&self) -> [Progress; 2] {
        [Progress::of(&self.queue), Progress::NOTHING]
    }

    fn unstick(&self, _: &Board, _: usize, _: bool) -> Stuck {
        self.stuck.store(true, Ordering::Relaxed);
        Stuck { nobody_came: false, call: Some(Call::WorkerNow) }
    }

    fn withdraw(&self, board: &Board, which: &Withdraw<'_>) {
        withdraw_from(&self.queue, board, which);
    }
}
