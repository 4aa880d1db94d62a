//! What the threads of a process know of a context.

use std::fmt;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use crate::board::Board;

/// What a worker does, by how long it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// It ends by itself: transfers of files on local file systems.
    Ends,
    /// It may wait without end: for a server, for the other end of a FIFO, or for a stream that
    /// cannot be polled.
    MayWait,
}

/// Parts of a context that the watchdog looks at.
pub(crate) const WATCHED_PARTS: usize = 14;

/// What the threads of a process ask of a context.
pub(crate) trait Tenant: Send + Sync + fmt::Debug {
    /// The requests of this context.
    fn board(&self) -> &Board;

    /// Its place among the contexts that share the pool for this work.
    fn entry(&self, work: Work) -> &PoolEntry;

    /// As many workers may serve it at a time.
    fn workers_max(&self) -> usize;

    /// What waits for workers, as requests that need one each.
    fn waiting(&self, work: Work) -> usize;

    /// A worker is to take the baton, or to hand requests over.
    fn has_wishes(&self, work: Work) -> bool;

    /// Something must not wait for the workers that are at work.
    fn is_urgent(&self, work: Work) -> bool;

    /// There is something for a worker to do.
    fn needs_worker(&self, work: Work) -> bool;

    /// A worker's turn: it executes some of its requests.
    fn serve(&self, work: Work);

    /// How far each part of it is.
    fn words(&self) -> [u64; WATCHED_PARTS];

    /// The watchdog looks at it, and gets somebody to come to what lies about.
    fn look(&self, watched: &mut Watched) -> Activity;

    /// There is no watchdog, and none can be made.
    fn is_unwatched(&self);

    /// The calling thread is about to sleep in poll(2) or the like. It hands over what is queued
    /// for the kernel, and collects what has completed. `told`: eventfds that have ended its last
    /// sleep, before which it is called once more without. `None`: the context needs no such
    /// thread.
    fn drive_in_poll(&self, told: &[RawFd]) -> Option<Collecting>;

    /// The calling thread is about to sleep where completions do not wake it.
    fn leave_poll(&self);
}

/// What a thread that sleeps in poll(2) is to know of a context that it drives.
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
    /// Workers that serve it, and were not let go of, if [`PoolEntry::round`] is the pool's.
    pub(super) active: AtomicUsize,
    /// As the pool's when this was last looked at.
    pub(super) round: AtomicUsize,
    /// How often its own workers were let go of.
    pub(super) let_go: AtomicUsize,
}

/// What a look at a context has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Requests wait to be taken, or have just lain about.
    Busy,
    /// None wait but those that pass through the kernel.
    Calm,
    /// It needs no watch any more.
    Quiet,
}

/// What the watchdog remembers of a context from one look to the next; the context says what it is.
#[derive(Debug)]
pub(crate) struct Watched {
    /// How far each part of it was.
    pub(crate) words: [u64; WATCHED_PARTS],
    /// Looks that have found nothing to do.
    pub(crate) quiet: u32,
    /// Of a placed context: looks for which no worker could be made.
    pub(crate) starved: u32,
    /// Looks in which no thread came to requests that may wait without end, and none could be
    /// made.
    pub(crate) refused: u32,
}
