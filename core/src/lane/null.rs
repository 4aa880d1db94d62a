//! A lane that completes every request without executing it. It is for measuring the overhead
//! around a lane, and is the skeleton of a new lane.

use super::{Lane, Progress, Stuck, Withdraw};
use crate::board::{Board, Executor};

/// The null lane. A lane that queues requests would have its queue as a field here.
#[derive(Debug)]
pub(crate) struct Null;

impl Null {
    /// Ends requests that their submitter has filled.
    pub(crate) fn push(&self, board: &Board, slots: &[u32]) {
        // A lane that queues requests calls `Started::queue` for each, and puts the numbers into
        // its queue. From then on each request can be cancelled, and is executed only if
        // `Board::start` returns it.
        let done = |&slot: &u32| {
            board.slot(slot).begin();
            (slot, 0)
        };
        let mut ended = [(0, 0); crate::request::BATCH];
        for some in slots.chunks(ended.len()) {
            ended.iter_mut().zip(some).for_each(|(ended, slot)| *ended = done(slot));
            // Each request ends once, with a count or a negative errno.
            board.finish_together(&ended[..some.len()], Executor::Worker);
        }
    }
}

impl Lane for Null {
    fn progress(&self) -> [Progress; 2] {
        // No request is ever queued.
        [Progress::NOTHING; 2]
    }

    fn unstick(&self, _: &Board, _: usize, _: bool) -> Stuck {
        Stuck { nobody_came: false, call: None }
    }

    fn withdraw(&self, _: &Board, _: &Withdraw<'_>) {}
}
