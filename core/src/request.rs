//! Request slots: preallocated, one request each.
//!
//! A slot is held from submit until its completion was reaped, so a free slot *is* a reserved
//! place in the completion queue.

mod free;
mod slot;
mod token;

pub(crate) use self::free::{BATCH, CountSteps, FreeSlots, Numbers, Returned};
pub(crate) use self::slot::{Cancel, Expect, FreeIt, Slot};
pub(crate) use self::token::{Batch, Queued, Requests, Started};

use crate::cqe::Cqe;
use crate::sqe::Sqe;

/// The parts of a request that are copied from the caller at submit, kept with the slot so that
/// a later request finds the memory allocated.
#[derive(Debug, Default)]
pub(crate) struct CopiedIn {
    pub(crate) iov: Vec<Iovec>,
    pub(crate) path: Vec<u8>,
    pub(crate) path2: Vec<u8>,
}

/// `struct iovec`, as plain numbers.
pub(crate) type Iovec = libc::iovec;

/// How an operation treats its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Read = 0,
    Write,
    /// Waits for what was written before it on its descriptor.
    Sync,
    Poll,
    /// Finishes at once.
    Quick,
    /// Anything else: works on names and metadata, and may sleep.
    Other,
    /// Unknown or malformed.
    Invalid,
}

/// Where a request is executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Route {
    /// One after the other, by the thread that holds the baton.
    #[default]
    Inline = 0,
    /// As inline, and never before another of these is done that was submitted earlier.
    Ordered,
    /// On a worker of its own, or on a waiter that has to wait for it anyway.
    Pool,
    /// Cached reads that have lately slept: tried without waiting, and then executed one after the
    /// other as their pages come.
    Cold,
    /// On a worker of its own: it may wait without end, as opening a FIFO does.
    Worker,
    /// An fsync: on a worker, after the inline and ordered requests that were submitted before it.
    Sync,
    /// When its descriptor is ready.
    Stream,
    /// Handed to the kernel.
    Kernel,
    /// Large copies out of the page cache: side by side on as many threads as there are CPUs.
    Copy,
    /// Completed undone: the engine `null`.
    Null,
}

/// What a slot holds while it is held.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) sqe: Sqe,
    /// The front end's own word (libaio's `data`).
    pub(crate) data: u64,
    /// An eventfd to count up at completion, -1, or
    /// [`TOLD_OTHERWISE`](crate::instance::submit::TOLD_OTHERWISE).
    pub(crate) notify: i32,
    pub(crate) kind: Kind,
    /// Where it is executed.
    pub(crate) route: Route,
    /// It has passed the inline requests before it, and waits for the ordered ones.
    pub(crate) passed_inline: bool,
    /// The descriptor is a stream, the offset is ignored.
    pub(crate) stream: bool,
    /// It came by the [fast path](crate::instance::fast::Transfer), or could have.
    pub(crate) fast: bool,
    /// It may wait for a server without end, for all that is known. A thread with a deadline does
    /// not execute it.
    pub(crate) may_hang: bool,
    /// Not 0: the poller keeps its place in the list of its stream under this number, while a
    /// worker executes it.
    pub(crate) passed_on: u32,
    /// Bytes that went into a stream already, of a write that is not finished.
    pub(crate) partial: u32,
    /// A negative errno found at submit: the request completes with it; else 0.
    pub(crate) refused: i16,
    /// [`ticks`](crate::sys::ticks) at submit; only kept while statistics are.
    pub(crate) submitted: u64,
    pub(crate) copied: Option<Box<CopiedIn>>,
}

impl Request {
    /// Of a slot that was never used.
    pub(crate) fn zero() -> Self {
        Self {
            sqe: Sqe::default(),
            data: 0,
            notify: 0,
            kind: Kind::Read,
            route: Route::Inline,
            passed_inline: false,
            stream: false,
            fast: false,
            may_hang: false,
            passed_on: 0,
            partial: 0,
            refused: 0,
            submitted: 0,
            copied: None,
        }
    }
}

/// A completion on its way into the completion queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Completion {
    pub(crate) cqe: Cqe,
    pub(crate) data: u64,
    pub(crate) notify: i32,
    pub(crate) slot: u32,
}
