//! The pool lane: requests that sleep. Each is executed by a worker of its own, or by a waiter that
//! needs its completion anyway.

use super::{Lane, Progress, Stuck, Withdraw, withdraw_from};
use crate::board::Board;
use crate::queue::IndexRing;
use crate::request::Started;
use crate::router::Call;

/// The queue of the pool lane.
#[derive(Debug)]
pub(crate) struct PoolLane(IndexRing);

impl PoolLane {
    pub(super) fn new(slots: usize) -> Self {
        Self(IndexRing::new(slots))
    }

    /// Queues requests.
    pub(crate) fn push(&self, slots: &[u32]) {
        self.0.push(slots);
    }

    /// Requests in the queue.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Is the queue empty?
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the oldest request that was not cancelled.
    pub(crate) fn pop<'a>(&self, board: &'a Board) -> Option<Started<'a>> {
        board.pop_started(&self.0)
    }

    #[cfg(test)]
    pub(crate) fn taken(&self) -> u64 {
        self.0.taken()
    }
}

impl Lane for PoolLane {
    fn progress(&self) -> [Progress; 2] {
        [Progress::of(&self.0), Progress::NOTHING]
    }

    fn unstick(&self, _: &Board, _: usize, _: bool) -> Stuck {
        Stuck { nobody_came: false, call: Some(Call::WorkerNow) }
    }

    fn withdraw(&self, board: &Board, which: &Withdraw<'_>) {
        withdraw_from(&self.0, board, which);
    }
}
