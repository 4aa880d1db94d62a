//! The types that the parts of a ring share: requests, mail, tasks.
#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use uringlet::front::CALL;
use uringlet::{FILE_POSITION, Sqe};

use crate::abi::{Cqe, iosqe, op};
use crate::attempts::{Sleeper, Tried};
use crate::buffers::Provided;
use crate::calls::{self, Call};
use crate::chains::{Links, NONE};
use crate::files::{Buffer, File, Registered};
use crate::prepare::{Fields, Plan};
use crate::service::{Events, Poll};
use crate::sockets::Socket;
use crate::timers::Timer;

/// A descriptor number, and the events that are waited for. Requests on a socket for the same
/// events wait in one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) fd: i32,
    pub(super) events: i16,
}

impl Line {
    /// The key of its requests in an index.
    pub(super) fn key(self) -> u64 {
        u64::from(self.fd as u32) << 16 | u64::from(self.events as u16)
    }
}

/// An edge-triggered poll for a call on a socket, after more than `VAIN_TRIES` tries that would
/// have waited. The socket may stay ready although the call would wait, for example with an empty
/// error queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edges {
    pub(super) poll: Poll,
    /// An event has occurred since the last try began.
    pub(super) again: bool,
}

/// Buffers that were taken out of a group for a request.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    /// [`BufferGroup::id`](crate::buffers::BufferGroup::id).
    pub(super) group: u64,
    pub(super) buffer: Provided,
    /// All taken buffers, if the transfer may take several.
    pub(super) others: Vec<Provided>,
    /// The call has transferred a part, or waits in another thread. The first buffer then counts as
    /// used, whatever the result.
    pub(super) stays: bool,
    /// The flags of the completion, if the buffers count as used at once, as for a send.
    pub(super) committed: Option<u32>,
}

/// The stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Free,
    /// Behind another request of its chain, or in a chain that waits.
    Waits,
    /// About to be handed to the engine.
    Ready,
    /// In line for a socket, or for a group of buffers, behind another request.
    Behind,
    /// A read, or a call on a socket, is tried without the lock and without waiting; or a write is
    /// executed by its submitter.
    Tried,
    /// The engine has the request.
    Engine,
    Poll(Poll),
    Timer(Option<Timer>),
    /// A linked timeout whose target is being executed.
    LinkTimer(Timer),
    /// A thread is starting or ending the request, or has a task whose result ends it.
    Here,
    /// A cancel or another request has ended this request. Its completion is posted after that of
    /// the cancel or the other request.
    Ends,
    /// As [`Ends`](Self::Ends), and no cancel finds it: it was removed.
    Removed,
}

/// What may be executed before a request that the engine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overtaken {
    /// The request is a read, and other reads may overtake it.
    ByReads,
    /// No request may overtake it: programs may rely on the order, which many file systems keep.
    ByNone,
}

/// A request.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) generation: u32,
    pub(super) stage: Stage,
    pub(super) opcode: u8,
    pub(super) flags: u8,
    pub(super) user_data: u64,
    pub(super) fd: i32,
    pub(super) plan: Plan,
    /// The negative errno with which the request ends instead of starting, or of waiting any
    /// longer; 0: none. Set for a refused entry, for the head of a chain with a refused entry, and
    /// by cancels that cannot end the request at once.
    pub(super) refused: i32,
    /// The next request of its chain.
    pub(super) next: u32,
    /// The linked timeout of this request.
    pub(super) timeout: u32,
    /// The target of this linked timeout.
    pub(super) target: u32,
    pub(super) file: Option<Arc<Registered<File>>>,
    pub(super) buffer: Option<Arc<Registered<Buffer>>>,
    /// The number of bytes that counts as success; -1: any result that is no error.
    pub(super) expected: i32,
    pub(super) iov: Vec<libc::iovec>,
    pub(super) call: Option<Box<Call>>,
    /// Memory of an earlier call in this place, to be used again.
    pub(super) spare_call: Option<Box<Call>>,
    /// The thread that has submitted the call (gettid(2)), if threads may have different rights; or
    /// 0.
    pub(super) submitter: i32,
    /// The thread that has submitted it, from [`threads::enters`](crate::threads::enters).
    pub(super) thread: u32,
    /// The slot for an opened file.
    pub(super) target_slot: Option<u32>,
    /// The registered file that a splice reads from.
    pub(super) source: Option<Arc<Registered<File>>>,
    /// Its line for a socket.
    pub(super) line: Option<Line>,
    /// The requests behind it and ahead of it in that line.
    pub(super) in_line: [u32; 2],
    pub(super) edges: Option<Edges>,
    /// The group from which the request takes a buffer, and the buffer that it has.
    pub(super) group: Option<u16>,
    pub(super) taken: Option<Taken>,
    /// The key of the last cancel that had to ask the engine to cancel this request.
    pub(super) canceled_by: u64,
    /// Requests behind this one in its chain leave no completions if it fails.
    pub(super) quiet: bool,
    /// A multishot poll of a ring, or of an epoll, which may contain a ring.
    pub(super) is_of_rings: bool,
    /// [`State::counted_up`] when this poll began.
    pub(super) counted_up: u32,
    /// A poll that each thread checks when it enters the ring.
    pub(super) looked_at: bool,
    /// The result of a second completion (SEND_ZC).
    pub(super) notice: Option<i32>,
    /// Nothing is started before this request has ended. It is a cancel, a close or an open.
    pub(super) asks: bool,
    /// What may overtake this request. Set from shortly before the engine gets the request until it
    /// ends.
    pub(super) in_front: Option<Overtaken>,
}

// SAFETY: the iovecs are addresses of the program's, which are only handed on.
unsafe impl Send for Request {}

impl Request {
    pub(super) fn new() -> Self {
        Self {
            generation: 0,
            stage: Stage::Free,
            opcode: 0,
            flags: 0,
            user_data: 0,
            fd: -1,
            plan: Plan::Nop(0),
            refused: 0,
            next: NONE,
            timeout: NONE,
            target: NONE,
            file: None,
            buffer: None,
            expected: -1,
            iov: Vec::new(),
            call: None,
            spare_call: None,
            submitter: 0,
            thread: 0,
            target_slot: None,
            source: None,
            line: None,
            in_line: [NONE; 2],
            edges: None,
            group: None,
            taken: None,
            canceled_by: 0,
            quiet: false,
            is_of_rings: false,
            counted_up: 0,
            looked_at: false,
            notice: None,
            asks: false,
            in_front: None,
        }
    }

    /// The number of the request's descriptor.
    pub(super) fn number(&self) -> i32 {
        self.file.as_ref().map_or(self.fd, |file| file.number())
    }

    /// Gives the request its call.
    pub(super) fn set_call(&mut self, call: Call) {
        self.call = Some(match self.spare_call.take() {
            Some(mut place) => {
                *place = call;
                place
            }
            None => Box::new(call),
        });
    }

    /// Ends the request's call. Its memory is kept for the next one in this place.
    pub(super) fn drop_call(&mut self) {
        let Some(mut place) = self.call.take() else { return };
        if let Call::Socket { socket, .. } = std::mem::replace(&mut *place, Call::NONE) {
            Socket::retire(socket);
        }
        self.spare_call = Some(place);
    }

    /// The engine's request for its call.
    pub(super) fn call_sqe(&self) -> Sqe {
        let call = self.call.as_deref();
        let off = call.map_or(0, |call| std::ptr::from_ref(call).expose_provenance());
        let addr = calls::run as *const () as usize as u64;
        Sqe { opcode: CALL, addr, off: off as u64, ..Sqe::nop() }
    }

    /// Does the request make a call that depends on the rights of the calling thread?
    pub(super) fn is_judged(&self) -> bool {
        self.call.as_deref().is_some_and(Call::is_judged)
    }
}

impl Links for Vec<Request> {
    fn next(&self, at: u32) -> u32 {
        self[at as usize].next
    }

    fn set_next(&mut self, at: u32, next: u32) {
        self[at as usize].next = next;
    }

    fn drains(&self, at: u32) -> bool {
        self[at as usize].flags & iosqe::DRAIN != 0
    }

    fn set_drains(&mut self, at: u32) {
        self[at as usize].flags |= iosqe::DRAIN;
    }

    fn fails(&self, at: u32) -> bool {
        self[at as usize].refused != 0
    }
}

/// A cancel of requests that the engine has.
#[derive(Debug)]
pub(super) struct CancelJob {
    pub(super) keys: Vec<u64>,
    /// The number of requests that were cancelled without the engine.
    pub(super) done: i32,
    pub(super) all: bool,
    /// The request that gets the answer: a cancel, or a linked timeout.
    pub(super) by: u64,
    pub(super) is_link_timeout: bool,
}

impl CancelJob {
    /// The result of the request that has asked for the cancel. `done` requests were cancelled in
    /// all, and `last` is the engine's last answer.
    pub(super) fn answer(&self, done: i32, last: i32) -> i32 {
        match () {
            () if self.all => done,
            () if last > 0 => last,
            () if (self.done > 0 || last == 0) && self.is_link_timeout => -libc::ETIME,
            () if self.done > 0 || last == 0 => 0,
            () => last,
        }
    }
}

/// What is done without the lock.
#[derive(Debug)]
pub(super) enum Task {
    /// Asks the engine to cancel.
    Cancel(CancelJob),
    /// A call of this thread, with its rights. Its result ends the request with this key.
    Call(u64, Box<Call>),
    /// Tries an open, for the request with this key.
    Open(u64, Box<Call>),
    /// Tries a call on a socket, for the request with this key.
    Try(u64, i32, Arc<Socket>),
    Send(PlainSend),
    /// Makes a separate thread wait for the request with this key.
    Sleep(u64, Arc<dyn Sleeper>),
    /// Drops a file that nobody uses any more.
    Drop(File),
    /// Sends a parcel to another ring, for the request with this key.
    Parcel {
        key: u64,
        to: Arc<dyn Peer>,
        parcel: Parcel,
    },
    /// A parcel was read: its sender gets the result.
    Answer(Sender, i32),
}

/// Must this transfer not overtake earlier reads? A write may change what they read, and a read at
/// the file position moves it.
#[inline]
pub(super) fn is_in_order(sqe: &Sqe) -> bool {
    op::is_write(sqe.opcode) || sqe.off == FILE_POSITION
}

/// What the submitting thread tries without the lock, before its tasks.
#[derive(Debug)]
pub(super) enum Try {
    /// A read or a write, for the request with this key. Its result, if it has one.
    Transfer {
        key: u64,
        sqe: Sqe,
        result: Option<i32>,
    },
    Send(PlainSend),
}

/// A send that the submitting thread makes without the lock. Most sockets have room for the data.
/// Then the entry ends without becoming a request.
#[derive(Debug)]
pub(super) struct PlainSend {
    pub(super) fields: Fields,
    /// As [`Request::thread`].
    pub(super) thread: u32,
    pub(super) outcome: SendOutcome,
}

impl PlainSend {
    /// Does the send fail where it would wait?
    pub(super) fn gives_up(&self) -> bool {
        self.fields.op_flags() & libc::MSG_DONTWAIT as u32 != 0
    }
}

#[derive(Debug)]
pub(super) enum SendOutcome {
    /// The call was not made, or the file is no socket.
    Untried,
    Ended(i32),
    /// The call has to wait, and may have sent a part of its data.
    Waits(Arc<Socket>, Tried),
}

/// A call on a socket that was tried.
#[derive(Debug)]
pub(super) enum Attempted {
    /// The call of the request with this key.
    Request(u64, Tried),
    Send(PlainSend),
}

/// Messages from threads that do not wait for the ring's lock.
#[derive(Debug)]
pub(super) enum Mail {
    /// A request has ended, with its result.
    Ended(u64, i32),
    /// Calls on sockets were tried.
    Tried(Vec<Attempted>),
    Timer(u64),
    /// Requests whose descriptors are ready, with their events.
    Polls(Events),
    /// A parcel from another ring, and the sender.
    Parcel(Box<(Parcel, Sender)>),
    /// The engine has not accepted these requests, because there is no room (`-EAGAIN`) or because
    /// of another error.
    Refused(Vec<u64>, i32),
}

/// A message from one ring to another.
#[derive(Debug)]
pub(crate) struct Parcel {
    /// The completion in the other ring.
    pub(crate) cqe: Cqe,
    /// A file for a slot there, or for any slot, whose number is the result.
    pub(crate) file: Option<(File, u32)>,
    /// The message posts no completion in the other ring.
    pub(crate) skips: bool,
}

/// A ring, and the key of its request that gets the answer.
pub(crate) type Sender = (Arc<dyn Peer>, u64);

/// A ring that others send parcels to. None of these methods waits for its lock.
pub(crate) trait Peer: fmt::Debug + Send + Sync {
    /// Reads a parcel. Returns the result for the request that has sent it. `None`: another thread
    /// has the lock, reads the parcel and answers.
    fn receive(self: Arc<Self>, parcel: Parcel, from: Sender) -> Option<i32>;
    /// Delivers the result of a parcel to the request that has sent it.
    fn answer(self: Arc<Self>, key: u64, result: i32);
}

/// Questions about all rings of the process, by their descriptor numbers.
pub(crate) trait Registry: fmt::Debug + Send + Sync {
    /// Does this number name a ring?
    fn has(&self, fd: i32) -> bool;
    /// The ring that this number names.
    fn peer(&self, fd: i32) -> Option<Arc<dyn Peer>>;
    /// Notes that a descriptor is watched by epoll, a poll or the like.
    fn is_polled(&self, fd: i32);
    /// Would a close of this descriptor wait for requests of a ring?
    fn is_needed(&self, fd: i32) -> bool;
    /// May the descriptor of a ring be watched by an epoll?
    fn any_is_polled(&self) -> bool;
}

/// No other rings, for tests.
#[cfg(test)]
#[derive(Debug)]
pub(super) struct NoOther;

#[cfg(test)]
impl Registry for NoOther {
    fn has(&self, _: i32) -> bool {
        false
    }

    fn peer(&self, _: i32) -> Option<Arc<dyn Peer>> {
        None
    }

    fn is_polled(&self, _: i32) {}

    fn is_needed(&self, _: i32) -> bool {
        false
    }

    fn any_is_polled(&self) -> bool {
        false
    }
}
