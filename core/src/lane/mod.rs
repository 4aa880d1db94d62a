//! Lanes: the ways to execute requests, one file each. A lane knows its [`Board`] (the context's
//! request slots and completion queue) and nothing above it. The watchdog, a submit without a free
//! slot, and a close use each lane through [`Lane`]; `lanes.rs` has all lanes. A waiter is a thread
//! of the program that waits for completions.

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
    /// Completions that the thread waits for; 0 if it only polls.
    pub(crate) min: u32,
    /// Completions that the thread can take.
    pub(crate) max: u32,
    /// The thread has no deadline, so it may execute what it would have to wait for anyway.
    pub(crate) unbounded: bool,
    /// The thread may also execute requests that a file server may hold up without end. It has no
    /// deadline, and waits for any requests of its context, not for certain ones.
    pub(crate) accepts_hanging: bool,
    /// There is no worker, and none can be made: a waiter executes everything.
    pub(crate) helpless: bool,
    /// Threads of the program usually come to wait after a submit.
    pub(crate) waiters_come: bool,
}

/// The progress of a part of a lane. Two checks that find the same word have seen no progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Requests are queued.
    pub(crate) queued: bool,
    /// Requests are being executed, for example by the kernel: the context is watched less often.
    pub(crate) in_hand: bool,
    pub(crate) word: u64,
}

impl Progress {
    pub(crate) const NOTHING: Self = Self { queued: false, in_hand: false, word: 0 };

    /// The progress of a queue.
    fn of(queue: &IndexRing) -> Self {
        Self { queued: !queue.is_empty(), in_hand: false, word: queue.taken() }
    }
}

/// What to do about a part of a lane that makes no progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stuck {
    /// A thread of the program was expected, and has not come.
    pub(crate) nobody_came: bool,
    /// The thread to call.
    pub(crate) call: Option<Call>,
}

/// The requests that are withdrawn from a lane.
#[derive(Clone, Debug)]
pub(crate) enum Withdraw<'a> {
    /// Cancelled requests, because their slots are needed.
    Canceled,
    /// All requests that have not begun: the context is being destroyed, and they end.
    All,
    /// Requests on descriptors that are about to be closed. The worker lane gives its requests
    /// duplicates of the descriptors. The sync lane executes the fsyncs that wait in it. The other
    /// lanes do nothing: the closing thread executes their requests as a waiter does.
    On(&'a RangeInclusive<RawFd>),
}

/// The interface of every lane.
pub(crate) trait Lane: fmt::Debug {
    /// The progress of its parts.
    fn progress(&self) -> [Progress; PARTS];

    /// Called if a part has requests queued, and two checks found the same word.
    fn unstick(&self, board: &Board, part: usize, waiters_come: bool) -> Stuck;

    /// Withdraws requests that have not begun.
    fn withdraw(&self, board: &Board, which: &Withdraw<'_>);
}

/// Parts of a lane that make progress independently.
pub(crate) const PARTS: usize = 2;

/// Withdraws requests of a queue. The others may lose their order.
fn withdraw_from(queue: &IndexRing, board: &Board, which: &Withdraw<'_>) {
    match which {
        Withdraw::Canceled => board.purge(queue),
        Withdraw::All => board.end_all(queue),
        Withdraw::On(_) => {}
    }
}
