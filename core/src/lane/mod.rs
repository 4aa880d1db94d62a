//! Lanes: the ways to get requests executed, one file each. A lane knows its [`Board`] and nothing
//! above it. [`Lane`] is what watchdog, cancel, purge and close ask of each; [`Lanes`] has them
//! all.

mod cold;
mod copy;
#[cfg(feature = "faulty")]
pub(crate) mod faulty;
mod inline;
pub(crate) mod kernel;
mod null;
mod pool;
mod run;
mod sync;
mod worker;

use std::fmt;
use std::ops::RangeInclusive;
use std::os::fd::RawFd;

use self::cold::ColdLane;
use self::copy::CopyLane;
use self::inline::InlineLane;
use self::kernel::KernelLane;
use self::null::Null;
use self::pool::PoolLane;
use self::sync::SyncLane;
use self::worker::WorkerLane;
use crate::board::{Board, By, DirectCompletions, without_taker};
use crate::config::{Builder, ConfigError};
use crate::queue::IndexRing;
use crate::request::{Route, Started};
use crate::router::Call;

/// A waiting thread's offer to execute requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Help {
    /// Completions that the thread waits for; 0 if it only looks.
    pub(crate) min: u32,
    /// Completions that it can take.
    pub(crate) max: u32,
    /// It has no deadline, so it may execute what it would have to wait for anyway.
    pub(crate) unbounded: bool,
    /// It may also execute what a file system's server may hold up for ever: it waits for all of
    /// its context, and without a deadline.
    pub(crate) wary: bool,
    /// There is no worker, and none can be had: whoever waits executes everything.
    pub(crate) helpless: bool,
    /// Threads of the program usually come.
    pub(crate) waiters_come: bool,
}

/// How far a part of a lane is. Two looks that find the same word have seen no progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Requests wait to be taken.
    pub(crate) queued: bool,
    /// They pass through the hands of somebody who is at them, such as the kernel: the context is
    /// watched, more seldom.
    pub(crate) in_hand: bool,
    pub(crate) word: u64,
}

impl Progress {
    pub(crate) const NOTHING: Self = Self { queued: false, in_hand: false, word: 0 };

    /// Of a queue.
    fn of(queue: &IndexRing) -> Self {
        Self { queued: !queue.is_empty(), in_hand: false, word: queue.taken() }
    }
}

/// What is to be done about a part of a lane that makes no progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stuck {
    /// A thread of the program was expected, and has not come.
    pub(crate) nobody_came: bool,
    /// Who is to come.
    pub(crate) call: Option<Call>,
}

/// Which requests are withdrawn from a lane.
#[derive(Clone, Debug)]
pub(crate) enum Which<'a> {
    /// Those that were cancelled: their slots are needed.
    Canceled,
    /// All that have not begun: the context is being destroyed, and they end.
    All,
    /// Those on these descriptors, which are about to be closed, and which nobody but a worker
    /// executes: they keep their files, or are executed by the caller.
    On(&'a RangeInclusive<RawFd>),
}

/// What is asked of every lane.
pub(crate) trait Lane: fmt::Debug {
    /// How far its parts are.
    fn progress(&self) -> [Progress; PARTS];

    /// A part has requests queued, and was seen twice with the same word.
    fn unstick(&self, board: &Board, part: usize, waiters_come: bool) -> Stuck;

    /// Withdraws requests that have not begun.
    fn withdraw(&self, board: &Board, which: &Which<'_>);
}

/// Parts of a lane that make progress by themselves.
pub(crate) const PARTS: usize = 2;
/// Lanes of a context.
pub(crate) const LANES: usize = 7;

/// The lanes of one context.
#[derive(Debug)]
pub(crate) struct Lanes {
    pub(crate) inline: InlineLane,
    pub(crate) pool: PoolLane,
    pub(crate) worker: WorkerLane,
    pub(crate) sync: SyncLane,
    pub(crate) copy: CopyLane,
    pub(crate) cold: ColdLane,
    pub(crate) kernel: KernelLane,
    null: Null,
}

impl Lanes {
    /// # Errors
    /// The builder asks for an interface of the kernel that this machine refuses.
    pub(crate) fn new(builder: &Builder, slots: usize) -> Result<Self, ConfigError> {
        Ok(Self {
            inline: InlineLane::new(slots),
            pool: PoolLane::new(slots),
            worker: WorkerLane::new(slots),
            sync: SyncLane::new(),
            copy: CopyLane::new(slots),
            cold: ColdLane::new(slots),
            kernel: KernelLane::new(builder, slots)?,
            null: Null,
        })
    }

    /// Every lane with queues.
    pub(crate) fn each(&self) -> [&dyn Lane; LANES] {
        // Copies before the pool: what is withdrawn from a lane may go to the pool.
        [&self.kernel, &self.inline, &self.sync, &self.worker, &self.copy, &self.cold, &self.pool]
    }

    /// Puts requests into the queue of their lane: memory only. True if somebody is at it, who sees
    /// them.
    #[inline]
    pub(crate) fn push(
        &self,
        board: &Board,
        route: Route,
        slots: &[u32],
        waiters_come: bool,
    ) -> bool {
        match route {
            Route::Inline | Route::Sync => self.inline.push(slots),
            Route::Ordered => slots.iter().for_each(|&slot| self.inline.push_ordered(board, slot)),
            Route::Pool => self.pool.push(slots),
            Route::Worker => self.worker.push(slots),
            Route::Copy => self.copy.push(slots),
            Route::Cold => self.cold.push(slots, waiters_come),
            Route::Kernel => return self.kernel.push(slots),
            Route::Null => self.null.push(board, slots),
            Route::Stream => unreachable!("the poller has them"),
        }
        false
    }

    /// Requests that wait for a worker each.
    pub(crate) fn for_worker_each(&self, waiters_come: bool) -> usize {
        self.pool.len() + self.worker.len() + self.copy.for_workers(waiters_come)
    }

    /// Is there something in any queue?
    pub(crate) fn are_empty(&self) -> bool {
        self.each()
            .iter()
            .all(|lane| lane.progress().iter().all(|part| !part.queued && !part.in_hand))
    }

    /// Executes a request of the pool's or the workers' queue. Gives the ticks that it took, 0 if
    /// it was not timed.
    pub(crate) fn execute(
        &self,
        board: &Board,
        request: Started<'_>,
        by: By,
        taker: &mut DirectCompletions<'_>,
    ) -> u64 {
        if run::is_fsync(&request) {
            return self.sync.execute(board, request, by, taker);
        }
        run::execute(board, request, by, true, taker)
    }

    /// Executes a request that was left for a wait. `timed`: it is one of those that are.
    #[inline(always)]
    pub(crate) fn execute_left(
        &self,
        board: &Board,
        request: Started<'_>,
        timed: bool,
        taker: &mut DirectCompletions<'_>,
    ) {
        run::execute(board, request, By::Waiter, timed, taker);
    }

    /// Executes a plain transfer, without what only others need. `None`: it has to be executed as
    /// any other.
    #[inline(always)]
    pub(crate) fn transfer_fast(&self, request: &Started<'_>) -> Option<i32> {
        run::transfer_fast(request)
    }

    /// No worker exists and none can be made, and the program may not come to wait: the submitter
    /// executes the requests of all lanes but the inline one, as the kernel's AIO does with
    /// buffered ones.
    pub(crate) fn run_without_workers(&self, board: &Board) {
        let pooled = || self.pool.pop(board);
        let copy = || self.copy.pop_for_submitter(board);
        let cold = || self.cold.pop_for_submitter(board);
        let kernel = || self.kernel.pop(board);
        while let Some(request) = pooled().or_else(copy).or_else(kernel).or_else(cold) {
            without_taker(|taker| self.execute(board, request, By::Waiter, taker));
        }
    }
}
