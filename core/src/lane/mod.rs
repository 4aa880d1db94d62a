//! Lanes: the ways to get requests executed, one file each. A lane knows its [`Board`] and nothing
//! above it. [`Lane`] is what watchdog, cancel, purge and close ask of each; `lanes.rs` has them
//! all.

mod cold;
mod copy;
#[cfg(feature = "faulty")]
pub(crate) mod faulty;
mod inline;
pub(crate) mod kernel;
pub(crate) mod lanes;
mod null;
mod pool;
mod run;
mod sync;
mod worker;

use std::fmt;
use std::ops::RangeInclusive;
use std::os::fd::RawFd;

use crate::board::Board;
use crate::queue::IndexRing;
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
    /// It may also execute what a file system's server may hold up without end: it waits for all of
    /// its context, and without a deadline.
    pub(crate) accepts_hanging: bool,
    /// There is no worker, and none can be made: a waiter executes everything.
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
pub(crate) enum Withdraw<'a> {
    /// Requests that were cancelled: their slots are needed.
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
    fn withdraw(&self, board: &Board, which: &Withdraw<'_>);
}

/// Parts of a lane that make progress by themselves.
pub(crate) const PARTS: usize = 2;

/// Withdraws the requests of a queue whose order does not matter.
fn withdraw_from(queue: &IndexRing, board: &Board, which: &Withdraw<'_>) {
    match which {
        Withdraw::Canceled => board.purge(queue),
        Withdraw::All => board.end_all(queue),
        Withdraw::On(_) => {}
    }
}
