//! What the threads of a process know of a context.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use crate::board::Board;

/// What the threads of a process ask of a context.
pub(crate) trait Tenant: Send + Sync + fmt::Debug {
    /// The requests of this context.
    fn board(&self) -> &Board;

    /// Its place among those that share the pool.
    fn entry(&self) -> &PoolEntry;

    /// As many workers may serve it at a time.
    fn workers_max(&self) -> usize;

    /// What waits for workers, as requests that need one each.
    fn waiting(&self) -> usize;

    /// A worker is to take the baton, or to hand requests over.
    fn has_wishes(&self) -> bool;

    /// Something must not wait for the workers that are at work.
    fn is_urgent(&self) -> bool;

    /// There is something for a worker to do.
    fn needs_worker(&self) -> bool;

    /// A worker's turn: it executes some of its requests.
    fn serve(&self);

    /// How far each part of it is.
    fn words(&self) -> Vec<u64>;

    /// The watchdog looks at it, and gets somebody to come to what lies about.
    fn look(&self, watched: &mut Watched) -> Activity;

    /// There is no watchdog, and none can be made.
    fn is_unwatched(&self);
}

/// What the pool knows about one context. Both change under the pool's lock.
#[derive(Debug, Default)]
pub(crate) struct PoolEntry {
    pub(super) queued: AtomicBool,
    pub(super) active: AtomicUsize,
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
    pub(crate) words: Vec<u64>,
    /// Looks that have found nothing to do.
    pub(crate) quiet: u32,
    /// Of a placed context: looks in which no worker was to be had.
    pub(crate) starved: u32,
}
