//! All lanes of a context.
#![allow(unsafe_code)]

use super::cold::ColdLane;
use super::copy::CopyLane;
use super::inline::InlineLane;
use super::kernel::KernelLane;
use super::null::Null;
use super::pool::PoolLane;
use super::sync::SyncLane;
use super::worker::WorkerLane;
use super::{Lane, run};
use crate::board::{Board, DirectCompletions, Executor, without_taker};
use crate::config::{Builder, ConfigError};
use crate::place::fill;
use crate::request::{Route, Started};
use crate::sqe::Sqe;

/// The number of lanes of a context, without the null lane.
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
    /// Builds the lanes in place.
    ///
    /// # Errors
    /// The builder asks for a kernel interface that this machine refuses: nothing is made.
    ///
    /// # Safety
    /// `at` is valid for a write, and aligned.
    pub(crate) unsafe fn put(
        at: *mut Self,
        builder: &Builder,
        slots: usize,
    ) -> Result<(), ConfigError> {
        let kernel = KernelLane::new(builder, slots)?;
        // SAFETY: the caller's contract.
        unsafe {
            fill!(at, Self with {} {
                inline: InlineLane::new(slots),
                pool: PoolLane::new(slots),
                worker: WorkerLane::new(slots),
                sync: SyncLane::new(),
                copy: CopyLane::new(slots),
                cold: ColdLane::new(slots),
                kernel: kernel,
                null: Null,
            });
        }
        Ok(())
    }

    /// Every lane with queues.
    pub(crate) fn each(&self) -> [&dyn Lane; LANES] {
        // The pool comes last: requests that are withdrawn from another lane may go to the pool.
        [&self.kernel, &self.inline, &self.sync, &self.worker, &self.copy, &self.cold, &self.pool]
    }

    /// Pushes requests to the queue of their lane, without a system call. True if a thread hands
    /// the kernel lane's queue over now, and will see the requests. False for the other lanes.
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

    /// The number of requests of the pool lane and the copy lane for each of which a worker should
    /// come. Requests that may never end do not count.
    pub(crate) fn for_worker_each(&self, waiters_come: bool) -> usize {
        self.pool.len() + self.copy.for_workers(waiters_come)
    }

    /// Are all queues empty, and does the kernel have no request?
    pub(crate) fn are_empty(&self) -> bool {
        self.each()
            .iter()
            .all(|lane| lane.progress().iter().all(|part| !part.queued && !part.in_hand))
    }

    /// Executes a started request of any lane but the inline one. Returns the ticks that it took,
    /// 0 if it was not timed.
    pub(crate) fn execute(
        &self,
        board: &Board,
        request: Started<'_>,
        by: Executor,
        taker: &mut DirectCompletions<'_>,
    ) -> u64 {
        if run::is_fsync(&request) {
            return self.sync.execute(board, request, by, taker);
        }
        run::execute(board, request, by, true, taker)
    }

    /// Executes a request from the mailbox. `timed`: its time is measured.
    #[inline(always)]
    pub(crate) fn execute_from_mailbox(
        &self,
        board: &Board,
        request: Started<'_>,
        timed: bool,
        taker: &mut DirectCompletions<'_>,
    ) {
        run::execute(board, request, Executor::Waiter, timed, taker);
    }

    /// Executes a plain transfer, without checks that only other requests need. `None`: the request
    /// has to be executed as requests of other kinds are.
    #[inline(always)]
    pub(crate) fn transfer_fast(&self, request: &Started<'_>) -> Option<i32> {
        run::transfer_fast(request)
    }

    /// Executes a plain write on the thread that submits it, without a request. `None`: the write
    /// needs a request.
    ///
    /// # Safety
    /// The buffer is the write's during the call.
    #[inline]
    pub(crate) unsafe fn write_now(&self, board: &Board, sqe: &Sqe, timed: bool) -> Option<i32> {
        // SAFETY: the caller's contract.
        unsafe { run::write_now(board, sqe, timed) }
    }

    /// No worker exists and none can be made, and the program might never wait. So the submitter
    /// executes the requests of the pool, copy, kernel and cold lanes, as the kernel's AIO does
    /// with buffered requests.
    pub(crate) fn run_without_workers(&self, board: &Board) {
        let pooled = || self.pool.pop(board);
        let copy = || self.copy.pop_for_submitter(board);
        let cold = || self.cold.pop_for_submitter(board);
        let kernel = || self.kernel.pop(board);
        while let Some(request) = pooled().or_else(copy).or_else(kernel).or_else(cold) {
            without_taker(|taker| self.execute(board, request, Executor::Waiter, taker));
        }
    }
}
