//! Request slots: preallocated, one request each.
//!
//! A slot is held from submit until its completion was reaped. So a free slot *is* a reserved place
//! in the completion queue.

mod free;
mod slot;
mod token;

pub(crate) use self::free::{BATCH, CountSteps, FreeSlots, Numbers, Returned};
pub(crate) use self::slot::{Cancel, Expect, FreeIt, Slot};
pub(crate) use self::token::{Batch, Queued, Requests, Started};

use crate::cqe::Cqe;
use crate::sqe::Sqe;

/// The parts of a request that are copied from the caller at submit. They are kept with the slot,
/// so that a later request can use the memory again.
#[derive(Debug, Default)]
pub(crate) struct CopiedIn {
    pub(crate) iov: Vec<Iovec>,
    pub(crate) path: Vec<u8>,
    pub(crate) path2: Vec<u8>,
}

/// `struct iovec` (readv(2)).
pub(crate) type Iovec = libc::iovec;

/// The kind of an operation: what the engine has to know about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Read = 0,
    Write,
    /// Waits for earlier writes on its descriptor.
    Sync,
    Poll,
    /// The call never sleeps.
    Quick,
    /// Any other operation, which may sleep: works on names, metadata or space, closes a
    /// descriptor, or calls a function of a front end (`exec::CALL`).
    Other,
    /// Unknown or malformed.
    Invalid,
}

/// Where a request is executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Route {
    /// In order, by the thread that holds the baton: the right to execute the context's inline
    /// requests.
    #[default]
    Inline = 0,
    /// As [`Route::Inline`]. The request also waits for earlier ordered requests.
    Ordered,
    /// On a worker of its own, or on a waiter that needs its completion anyway.
    Pool,
    /// For cached reads that have lately slept. Tried without waiting, then executed in order as
    /// their pages arrive.
    Cold,
    /// On a worker of its own, because it may wait without end, as the open of a FIFO does.
    Worker,
    /// An fsync: on a worker, after earlier inline and ordered requests.
    Sync,
    /// A thread executes the request when its descriptor is ready.
    Stream,
    /// Handed to the kernel.
    Kernel,
    /// For large copies from the page cache: in parallel, on waiters, and on one worker for each
    /// CPU, but on four workers at most.
    Copy,
    /// Completed without being executed: the engine `null`.
    Null,
}

/// The request in a slot.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) sqe: Sqe,
    /// A word that the front end gives (libaio's `data`).
    pub(crate) data: u64,
    /// The eventfd to count up at completion, or -1. With
    /// [`TOLD_OTHERWISE`](crate::instance::submit::TOLD_OTHERWISE), a front end notifies the
    /// program.
    pub(crate) notify: i32,
    pub(crate) kind: Kind,
    /// Where the request is executed.
    pub(crate) route: Route,
    /// Of an fsync: the inline requests before it have left their queue, and it waits behind the
    /// ordered requests now.
    pub(crate) passed_inline: bool,
    /// The descriptor is a stream: the offset is ignored.
    pub(crate) stream: bool,
    /// The request took the [fast path](crate::instance::fast::Transfer), or could have.
    pub(crate) fast: bool,
    /// The request may wait for a server without end. A thread with a deadline does not execute it.
    pub(crate) may_hang: bool,
    /// If not 0, a worker executes the request, and this number stands for it in its stream's list
    /// at the poller.
    pub(crate) passed_on: u32,
    /// Bytes of an unfinished write that a stream has taken already.
    pub(crate) partial: u32,
    /// A negative errno found at submit, with which the request completes; else 0.
    pub(crate) refused: i16,
    /// [`ticks`](crate::sys::ticks) at submit; recorded only with statistics.
    pub(crate) submitted: u64,
    pub(crate) copied: Option<Box<CopiedIn>>,
}

impl Request {
    /// The request of a slot that was never used.
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

/// A completion on its way to the completion queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Completion {
    pub(crate) cqe: Cqe,
    pub(crate) data: u64,
    pub(crate) notify: i32,
    pub(crate) slot: u32,
}
