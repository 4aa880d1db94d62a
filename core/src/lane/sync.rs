//! Executes fsyncs. A seat (`word/seats.rs`) belongs to a descriptor with an fsync under way.
//! Fsyncs of this descriptor that come meanwhile wait at the seat, and then one call serves all of
//! them. A worker or a waiter that takes an fsync from the queue of another lane executes it here.
#![allow(unsafe_code)]

use std::ops::RangeInclusive;
use std::os::fd::RawFd;

use super::{Lane, Progress, Stuck, Withdraw, run};
use crate::board::{Board, DirectCompletions, Executor, without_taker};
use crate::request::{Queued, Route, Started};
use crate::router::tuning::SYNC_ROUNDS;
use crate::sqe::FSYNC_DATASYNC;
use crate::sys;
use crate::word::seats::{Arrival, Seats};

/// Fsyncs under way, and fsyncs that wait for one of them.
#[derive(Debug)]
pub(crate) struct SyncLane(Seats);

/// Calls `f` with each slot of a list; `f` may pass the slot on.
fn each_linked(board: &Board, first: u32, mut f: impl FnMut(u32)) {
    let mut rest = Some(first);
    while let Some(slot) = rest {
        // The link is read first: after the call the slot belongs to `f`.
        rest = board.slot(slot).linked();
        f(slot);
    }
}

impl SyncLane {
    pub(super) fn new() -> Self {
        Self(Seats::new())
    }

    /// Executes a started fsync, and then fsyncs of its descriptor that come meanwhile. If another
    /// thread executes one already, leaves the fsync to that thread. Returns the ticks that the
    /// started fsync took.
    #[inline(never)]
    pub(crate) fn execute(
        &self,
        board: &Board,
        request: Started<'_>,
        by: Executor,
        taker: &mut DirectCompletions<'_>,
    ) -> u64 {
        let fd = request.sqe.fd;
        let place = request.slot();
        // Once the fsync is linked, other threads may see it waiting, and it can be cancelled.
        let index = request.queue();
        let link = |below| place.link(below);
        let arrival = if by == Executor::Pool {
            self.0.arrive(fd, index, link)
        } else {
            // A thread of the program executes no other fsyncs afterwards: it may have enough
            // completions, be interrupted, or not return.
            self.0.join(fd, index, link).map_or(Arrival::Alone, |()| Arrival::Waits)
        };
        if arrival == Arrival::Waits {
            return 0;
        }
        // SAFETY: the fsync is in no queue, and waits at no seat: this thread alone has its number.
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

    /// A worker executes the fsyncs that wait at its seat, with at most [`SYNC_ROUNDS`] calls. Then
    /// it leaves the seat, and sends the fsyncs that still wait to the pool lane.
    fn execute_waiting(&self, board: &Board, seat: usize, taker: &mut DirectCompletions<'_>) {
        for _ in 0..SYNC_ROUNDS {
            let Some(newest) = self.0.next(seat) else { return };
            Self::execute_linked(board, newest, Executor::Pool, taker);
        }
        if let Some(newest) = self.0.leave(seat) {
            Self::each_started(board, newest, |request| {
                board.forward(request, Route::Pool, Executor::Pool);
            });
        }
    }

    /// Calls `f` with each request of a list that this thread has taken off its seat.
    fn each_queued<'a>(board: &'a Board, newest: u32, mut f: impl FnMut(Queued<'a>)) {
        // SAFETY: the caller has taken the list off its seat, so it alone has the numbers.
        each_linked(board, newest, |slot| f(unsafe { board.popped(slot) }));
    }

    /// Starts each request of a linked list, and calls `f` with it. Cancelled requests are left
    /// out.
    fn each_started<'a>(board: &'a Board, newest: u32, mut f: impl FnMut(Started<'a>)) {
        Self::each_queued(board, newest, |queued| {
            if let Some(request) = board.start(queued) {
                f(request);
            }
        });
    }

    /// Makes one call for all requests of a list. Cancelled requests are left out.
    fn execute_linked(board: &Board, newest: u32, by: Executor, taker: &mut DirectCompletions<'_>) {
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

    /// The program is about to close these descriptors: executes the fsyncs on them that wait at a
    /// seat.
    fn execute_before_close(&self, board: &Board, fds: &RangeInclusive<RawFd>) {
        let execute = |newest| {
            without_taker(|taker| Self::execute_linked(board, newest, Executor::Waiter, taker));
        };
        self.0.take_waiting(|fd| fds.contains(&fd), execute);
    }

    /// Frees the slots of cancelled fsyncs that wait at a seat. The other fsyncs go back to the
    /// seat, or to the pool if no thread executes there any more.
    fn purge(&self, board: &Board) {
        let stay = |queued: Queued<'_>| {
            if queued.slot().is_canceled() {
                drop(board.start(queued));
                return;
            }
            let (fd, place) = (queued.sqe.fd, queued.slot());
            if self.0.join(fd, queued.index(), |below| place.link(below)).is_err()
                && let Some(request) = board.start(queued)
            {
                board.forward(request, Route::Pool, Executor::Pool);
            }
        };
        self.0.take_waiting(|_| true, |newest| Self::each_queued(board, newest, stay));
    }
}

impl Lane for SyncLane {
    fn progress(&self) -> [Progress; 2] {
        // The thread at a seat executes the fsyncs that wait there. The watchdog has nothing to
        // check.
        [Progress::NOTHING; 2]
    }

    fn unstick(&self, _: &Board, _: usize, _: bool) -> Stuck {
        Stuck { nobody_came: false, call: None }
    }

    fn withdraw(&self, board: &Board, which: &Withdraw<'_>) {
        match which {
            Withdraw::Canceled => self.purge(board),
            Withdraw::All => self.0.take_waiting(
                |_| true,
                |newest| Self::each_started(board, newest, |request| board.end_started(request)),
            ),
            Withdraw::On(fds) => self.execute_before_close(board, fds),
        }
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests;
