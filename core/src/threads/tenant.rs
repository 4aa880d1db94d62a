//! What the threads of a process know of a context.

use std::fmt;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use crate::board::Board;

/// Kinds of work for a worker, by how long it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// The work ends by itself: transfers of files on local file systems.
    Ends,
    /// The work may wait without end: for a server, for the other end of a FIFO, or for a stream
    /// that cannot be polled.
    MayWait,
}

/// The number of parts of a context that the watchdog checks.
pub(crate) const WATCHED_PARTS: usize = 14;

/// The interface of a context for the threads of a process.
pub(crate) trait Tenant: Send + Sync + fmt::Debug {
    /// The requests of this context.
    fn board(&self) -> &Board;

    /// What the pool for this work knows about this context.
    fn entry(&self, work: Work) -> &PoolEntry;

    /// The maximum number of workers that serve this context at a time.
    fn workers_max(&self) -> usize;

    /// The work that waits for workers, as a number of requests that need one each.
    fn waiting(&self, work: Work) -> usize;

    /// Has a worker been asked for, either to take the baton (the right to execute the inline
    /// requests) or to hand requests over to the kernel?
    fn has_wishes(&self, work: Work) -> bool;

    /// Is there work that must not wait for the workers that are busy?
    fn is_urgent(&self, work: Work) -> bool;

    /// Is there work for a worker?
    fn needs_worker(&self, work: Work) -> bool;

    /// A worker executes some of the context's requests, and is then free for another context.
    fn serve(&self, work: Work);

    /// The progress of each part.
    fn words(&self) -> [u64; WATCHED_PARTS];

    /// The watchdog checks the context, and calls threads for requests that wait.
    fn look(&self, watched: &mut Watched) -> Activity;

    /// Called if the context asks for a watch, and no watchdog can be made.
    fn is_unwatched(&self);

    /// The calling thread is about to sleep in poll(2) or the like. It hands queued requests over
    /// to the kernel, and collects completions. `told`: eventfds that have ended the thread's last
    /// sleep. Before the next sleep, the thread calls this once more, with no eventfd in `told`.
    /// `None`: the context needs no such thread.
    fn drive_in_poll(&self, told: &[RawFd]) -> Option<Collecting>;

    /// Leaves the context to threads of the engine: the calling thread is about to sleep where
    /// completions do not wake it.
    fn leave_poll(&self);
}

/// What a thread that sleeps in poll(2) needs to know of a context that it drives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Collecting {
    /// The eventfd that the kernel counts up for completions.
    pub(crate) events: RawFd,
    /// Completions were collected.
    pub(crate) any: bool,
}

/// What a pool knows about one context. It changes under the pool's lock.
#[derive(Debug, Default)]
pub(crate) struct PoolEntry {
    pub(super) queued: AtomicBool,
    /// Workers that serve the context, without released ones, if [`PoolEntry::round`] is the
    /// pool's.
    pub(super) active: AtomicUsize,
    /// The pool's round (how often it has released all workers) when `active` was last updated.
    pub(super) round: AtomicUsize,
    /// How often the context's own workers were released.
    pub(super) released: AtomicUsize,
}

/// What a check of a context has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Requests wait to be taken, or the check has called a thread for some.
    Busy,
    /// No requests wait, except requests that pass through the kernel.
    Calm,
    /// The context needs no watch any more.
    Quiet,
}

/// What the watchdog remembers of a context from one check to the next; the context fills it in.
#[derive(Debug)]
pub(crate) struct Watched {
    /// The progress of each part.
    pub(crate) words: [u64; WATCHED_PARTS],
    /// Successive checks that found no request queued or being executed.
    pub(crate) quiet: u32,
    /// Of a placed context: successive checks that found requests waiting, and every worker of the
    /// pool busy.
    pub(crate) starved: u32,
    /// Successive checks in which no thread came to requests that may wait without end, and none
    /// could be made.
    pub(crate) refused: u32,
}
