//! The worker lane: requests that may wait without end, such as the open of a FIFO, or a call that
//! a file server answers. Workers for such requests execute them; waiters do so only if no worker
//! can be made.
use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

use super::{Lane, Progress, Stuck, Withdraw};
use crate::board::{Board, Executor};
use crate::own::{Copied, Copies};
use crate::queue::IndexRing;
use crate::request::{Queued, Started};
use crate::router::Call;
use crate::sqe::opcode;
use crate::sync::lock;

/// The queue of the worker lane.
#[derive(Debug)]
pub(crate) struct WorkerLane {
    queue: IndexRing,
    /// For queued requests, by their slots: duplicates of descriptors that the program has closed.
    kept: Mutex<Vec<(u32, Arc<Copied>)>>,
}

impl WorkerLane {
    pub(super) fn new(slots: usize) -> Self {
        Self { queue: IndexRing::new(slots), kept: Mutex::default() }
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
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes the oldest request, and lets `f` end it, unless it was cancelled. False: the queue is
    /// empty.
    pub(crate) fn take(&self, board: &Board, f: impl FnOnce(Started<'_>)) -> bool {
        let Some(request) = board.pop(&self.queue) else { return false };
        self.end(board, request, f);
        true
    }

    /// Lets `f` end a popped request, unless it was cancelled. The duplicate that was kept for the
    /// request stays open meanwhile. If the poller has passed the request on, tells the poller that
    /// the request has ended: later requests of its stream may proceed.
    fn end(&self, board: &Board, request: Queued<'_>, f: impl FnOnce(Started<'_>)) {
        let passed_on = request.passed_on;
        let _kept = self.kept_for(request.index());
        if let Some(started) = board.start(request) {
            f(started);
        }
        if passed_on != 0
            && let Some(owner) = board.dispatcher()
        {
            owner.passed_on_ended(passed_on);
        }
    }

    /// The duplicate that was kept for this request, which the caller has popped.
    fn kept_for(&self, slot: u32) -> Option<Arc<Copied>> {
        let mut kept = lock(&self.kept);
        let at = kept.iter().position(|&(of, _)| of == slot)?;
        Some(kept.swap_remove(at).1)
    }

    /// Pops each request that is in the queue now, and calls `f` with it.
    fn each(&self, board: &Board, mut f: impl FnMut(Queued<'_>)) {
        let end = self.queue.end();
        while let Some(request) = board.pop_before(&self.queue, end) {
            f(request);
        }
    }

    /// Ends all queued requests with EAGAIN, because no thread comes for them.
    pub(crate) fn refuse(&self, board: &Board) {
        self.each(board, |request| {
            self.end(board, request, |request| {
                board.finish(request, -libc::EAGAIN, Executor::Worker)
            });
        });
    }

    /// Descriptors are about to be closed. Their requests get duplicates, because the closing
    /// thread must not execute requests that may wait without end.
    fn keep_files(&self, board: &Board, fds: &RangeInclusive<RawFd>) {
        let (mut copies, mut any, mut needed) = (Copies::default(), false, false);
        board.free_slots().each_held(|slot| needed |= board.slot(slot).names_one_of(fds));
        if !needed {
            return;
        }
        self.each(board, |request| {
            any = true;
            let index = request.index();
            if !request.slot().names_one_of(fds) {
                return self.queue.push(&[index]);
            }
            let passed_on = request.passed_on;
            let Some(mut request) = board.start(request) else {
                if passed_on != 0
                    && let Some(owner) = board.dispatcher()
                {
                    owner.passed_on_ended(passed_on);
                }
                return;
            };
            // If no descriptor is free, there is no duplicate, and the request finds its own
            // descriptor closed.
            if request.sqe.opcode != opcode::CLOSE
                && let Some(copy) = copies.of(request.sqe.fd)
            {
                request.sqe.fd = copy.fd();
                request.slot().moved_to(copy.fd());
                lock(&self.kept).push((index, copy));
            }
            self.queue.push(&[request.queue()]);
        });
        if any {
            // A worker that came while requests were out of the queue may have found it empty. So a
            // worker is called once more.
            board.call(Call::Patient);
        }
    }
}

impl Lane for WorkerLane {
    fn progress(&self) -> [Progress; 2] {
        [Progress::of(&self.queue), Progress::NOTHING]
    }

    fn unstick(&self, _: &Board, _: usize, _: bool) -> Stuck {
        Stuck { nobody_came: false, call: Some(Call::Patient) }
    }

    fn withdraw(&self, board: &Board, which: &Withdraw<'_>) {
        match which {
            Withdraw::Canceled => self.each(board, |request| {
                if request.slot().is_canceled() {
                    self.end(board, request, |_| unreachable!("it was cancelled"));
                } else {
                    self.queue.push(&[request.index()]);
                }
            }),
            Withdraw::All => while self.take(board, |request| board.end_started(request)) {},
            Withdraw::On(fds) => self.keep_files(board, fds),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
