//! Calls on sockets: tried without waiting, and again when the socket is ready.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::attempts::{Attempt, Sleeper, Tried};
use crate::buffers::Provided;
use crate::files::move_aside;
use crate::sys::{self, sockets};
use crate::tuning::{SPARE_SOCKETS, VAIN_SENDS};
use crate::{service, user};

mod bundle;
mod messages;
mod read;
mod rest;

use self::bundle::Bundle;
pub(crate) use self::messages::{Header, Message};
pub(crate) use self::rest::Rest;
use self::rest::Stream;

/// The longest name of a socket (`struct sockaddr_storage`).
pub(crate) const NAME_MAX: usize = 128;

/// The name of a socket, copied at submit. Empty: none.
pub(crate) type Name = Box<[u8]>;

/// What a call on a socket does.
#[derive(Debug)]
pub(crate) enum Ask {
    Transfer(Message),
    /// READ, or READV of one part, into a buffer of a group. Not only for sockets.
    Read {
        len: u64,
        offset: u64,
    },
    Accept {
        name: u64,
        len: u64,
    },
    Connect(Name),
    Bind(Name),
    Listen(i32),
    Shutdown(i32),
    Socket {
        domain: i32,
        kind: i32,
        protocol: i32,
    },
    Other(Arc<dyn Attempt>),
}

/// Memory of calls that have ended. No thread waits for its lock, because a signal handler may have
/// interrupted the thread that has the lock.
static SPARE: Mutex<Vec<Arc<Socket>>> = Mutex::new(Vec::new());

/// A call on a socket, and its progress.
#[derive(Debug)]
pub(crate) struct Socket {
    ask: Ask,
    /// `MSG_*`, or the flags of a new socket.
    flags: i32,
    /// The call fails with `-EAGAIN` where it would wait.
    pub(crate) gives_up: bool,
    /// The call is not tried before its socket is ready.
    pub(crate) polls_first: bool,
    /// Multishot: the call continues after a completion.
    pub(crate) goes_on: bool,
    /// A new socket gets a high number, by [`move_aside`].
    pub(crate) is_aside: bool,
    /// The request takes a buffer of a group for each try.
    pub(crate) selects: bool,
    /// The request takes several buffers of the group at once.
    pub(crate) bundle: Option<Bundle>,
    /// The group has no buffers behind those of the bundle.
    is_last: AtomicBool,
    /// The number of bytes after which a multishot call ends; 0: there is no limit.
    pub(crate) bytes_left: AtomicU64,
    /// The registered buffer that the data is sent from.
    pub(crate) buffer_index: Option<u16>,
    /// The data is sent only if the kernel could send it without a copy.
    pub(crate) is_uncopied: bool,
    /// The group had no buffer, or there is no such group: the errno.
    lacks_buffer: AtomicI32,
    /// The address and the length of the buffer for the next try.
    buffer: [AtomicU64; 2],
    /// The completion says whether the socket has more: RECV, RECVMSG and ACCEPT.
    pub(crate) tells_rest: bool,
    /// What is known about the data after a completion: a [`Rest`].
    rest: AtomicU32,
    /// Is it a stream for which the kernel reports whether more data follows? Asked once.
    stream: OnceLock<Option<Stream>>,
    /// The number of completions so far, without those after which no data was left.
    rounds: AtomicU32,
    /// The present completion of a multishot call is its last one.
    ended: AtomicBool,
    /// Bytes that were transferred, of a transfer that has to be complete (`MSG_WAITALL`).
    done: AtomicUsize,
    /// The value of [`misses`](Self::misses).
    misses: AtomicU32,
    /// The connection is being made, or a first try was made of a read that goes on.
    begun: AtomicBool,
    /// A worker found that the call would wait, and gave it back.
    gave_back: AtomicBool,
    /// The chain ends here, whatever the result.
    failed: AtomicBool,
}

impl Socket {
    pub(crate) fn new(ask: Ask, flags: i32) -> Self {
        Self {
            ask,
            flags,
            gives_up: false,
            polls_first: false,
            goes_on: false,
            is_aside: false,
            tells_rest: false,
            rest: AtomicU32::new(0),
            stream: OnceLock::new(),
            rounds: AtomicU32::new(0),
            ended: AtomicBool::new(false),
            selects: false,
            bundle: None,
            is_last: AtomicBool::new(false),
            bytes_left: AtomicU64::new(0),
            buffer_index: None,
            is_uncopied: false,
            lacks_buffer: AtomicI32::new(0),
            buffer: Default::default(),
            done: AtomicUsize::new(0),
            misses: AtomicU32::new(0),
            begun: AtomicBool::new(false),
            gave_back: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        }
    }

    /// The call, to be shared with the thread that tries it. Memory of an earlier call is used, if
    /// there is some. With many calls in flight, malloc(3) and free(3) would cost as much as a
    /// third of a call.
    pub(crate) fn shared(self) -> Arc<Self> {
        let spare = SPARE.try_lock().ok().and_then(|mut spare| spare.pop());
        if let Some(mut spare) = spare
            && let Some(place) = Arc::get_mut(&mut spare)
        {
            *place = self;
            return spare;
        }
        Arc::new(self)
    }

    /// The call has ended. Its memory is kept for a later one, unless a thread still has the call.
    pub(crate) fn retire(mut socket: Arc<Self>) {
        if let Some(place) = Arc::get_mut(&mut socket) {
            (place.ask, place.bundle) = (Ask::Listen(0), None);
            if let Ok(mut spare) = SPARE.try_lock()
                && spare.len() < SPARE_SOCKETS
            {
                spare.push(socket);
            }
        }
    }

    /// Sets whether a send to a broken connection raises SIGPIPE.
    pub(crate) fn raises_signal(&mut self, raises: bool) {
        let flags = self.flags & !libc::MSG_NOSIGNAL;
        self.flags = if raises { flags } else { flags | libc::MSG_NOSIGNAL };
    }

    /// The events that the call waits for (poll(2)).
    pub(crate) fn events(&self) -> i16 {
        match &self.ask {
            Ask::Transfer(message) if message.is_send => libc::POLLOUT,
            Ask::Transfer(_) if self.flags & libc::MSG_OOB != 0 => libc::POLLPRI,
            // No event is asked for: errors are always reported.
            Ask::Transfer(_) if self.flags & libc::MSG_ERRQUEUE != 0 => 0,
            Ask::Transfer(_) | Ask::Read { .. } | Ask::Accept { .. } => libc::POLLIN,
            Ask::Other(other) => other.events(),
            _ => libc::POLLOUT,
        }
    }

    /// The line in which the call waits: that of calls with the same events. Reads have a line of
    /// their own, because their files may be no sockets.
    pub(crate) fn line(&self) -> i16 {
        const OF_READS: i16 = 1 << 14;
        self.events() | if self.is_read() { OF_READS } else { 0 }
    }

    /// Is the call executed after earlier calls with the same events? Yes for receives, reads,
    /// accepts, and sends without a destination, unless they must not wait.
    pub(crate) fn is_in_line(&self) -> bool {
        match &self.ask {
            _ if self.gives_up => false,
            Ask::Transfer(message) => message.name.is_empty(),
            Ask::Accept { .. } | Ask::Read { .. } => true,
            _ => false,
        }
    }

    /// Does the kernel check the rights of the calling thread?
    pub(crate) fn is_judged(&self) -> bool {
        match &self.ask {
            Ask::Transfer(message) => is_path(&message.name),
            Ask::Connect(_) | Ask::Bind(_) | Ask::Socket { .. } => true,
            Ask::Other(other) => other.is_judged(),
            Ask::Accept { .. } | Ask::Read { .. } | Ask::Listen(_) | Ask::Shutdown(_) => false,
        }
    }

    /// The number of tries that would have waited, since the last progress of the call.
    pub(crate) fn misses(&self) -> u32 {
        self.misses.load(Ordering::Relaxed)
    }

    /// The result of a call that has ended with `result`, and whether its chain ends there.
    pub(crate) fn outcome(&self, result: i32) -> (i32, bool) {
        match self.done.load(Ordering::Relaxed) {
            // Bytes that were transferred cannot be taken back.
            done if result < 0 && done > 0 => (done as i32, true),
            _ => (result, self.failed.load(Ordering::Relaxed)),
        }
    }

    /// Notes for the next try that the group has no buffer, or does not exist.
    pub(crate) fn lacks_buffer(&self, has_group: bool) {
        let is_known_missing = !has_group && (self.commits() || self.bundle.is_some());
        let errno = if is_known_missing { -libc::ENOENT } else { -libc::ENOBUFS };
        self.lacks_buffer.store(errno, Ordering::Relaxed);
    }

    /// Notes the buffer of a group for the next try. Returns the length of it that is used.
    pub(crate) fn select(&self, (at, len): (u64, u32)) -> u64 {
        self.lacks_buffer.store(0, Ordering::Relaxed);
        let wanted = self.wanted();
        let len = if wanted == 0 { len.into() } else { wanted.min(len.into()) };
        self.buffer[0].store(at, Ordering::Relaxed);
        self.buffer[1].store(len, Ordering::Relaxed);
        len
    }

    /// The length that the program has asked for; 0: that of the buffer.
    fn wanted(&self) -> u64 {
        match &self.ask {
            Ask::Transfer(Message { header: Some(_), parts, .. }) => {
                parts.first().map_or(0, |part| part[1])
            }
            Ask::Transfer(message) => message.buffer[1],
            Ask::Read { len, .. } => *len,
            _ => 0,
        }
    }

    /// The number of bytes for which the call takes several buffers; 0: any number. `None`: the
    /// call takes one buffer.
    pub(crate) fn takes_several(&self) -> Option<u64> {
        self.bundle.as_ref()?;
        let left = self.bytes_left.load(Ordering::Relaxed);
        // The length in a send's entry bounds the first bundle only.
        let is_later = self.commits() && self.rounds.load(Ordering::Relaxed) > 0;
        let wanted = if is_later { 0 } else { self.wanted() };
        Some(if wanted == 0 || left == 0 { wanted.max(left) } else { wanted.min(left) })
    }

    /// Do the taken buffers have exactly the number of bytes that a bundle has asked for? Then the
    /// bundle takes further buffers, except in a call with several completions.
    pub(crate) fn exceeds(&self, bytes: u64) -> bool {
        !self.goes_on && bytes > 0 && bytes == self.wanted()
    }

    /// Takes several buffers for the next try. `is_last`: the group has no more.
    pub(crate) fn select_several(&self, buffers: &[Provided], most: u64, is_last: bool) {
        let Some(bundle) = &self.bundle else { return };
        bundle.set(buffers.iter().map(|one| [one.at, one.len.into()]), most);
        self.is_last.store(is_last, Ordering::Relaxed);
    }

    /// Are the buffers used up by the try, whatever its result?
    pub(crate) fn commits(&self) -> bool {
        self.selects && matches!(&self.ask, Ask::Transfer(message) if message.is_send)
    }

    /// Does a call with this result use up the buffer that it has taken from a group?
    pub(crate) fn uses_buffer(&self, result: i32) -> bool {
        result > 0 || self.is_read() && result == 0 && !self.goes_on
    }

    /// Does the call continue after this result?
    pub(crate) fn goes_on_after(&self, result: i32) -> bool {
        let least = i32::from(!matches!(self.ask, Ask::Accept { .. }));
        self.goes_on && result >= least && !self.ended.load(Ordering::Relaxed)
    }

    /// Counts a completion. Returns the number of counted completions.
    pub(crate) fn rounds(&self) -> u32 {
        self.rounds.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The wait in a separate thread, if the call needs one.
    pub(crate) fn sleeper(&self) -> Option<Arc<dyn Sleeper>> {
        if let Ask::Other(other) = &self.ask { Arc::clone(other).sleeper() } else { None }
    }

    /// Is it a receive that may wait for an event of its socket before it is tried?
    pub(crate) fn may_be_left_untried(&self) -> bool {
        let receives = matches!(&self.ask, Ask::Transfer(message) if !message.is_send);
        receives && self.events() == libc::POLLIN && !self.gives_up && !self.selects
    }

    /// What is sent, or received.
    pub(crate) fn message(&self) -> Option<&Message> {
        if let Ask::Transfer(message) = &self.ask { Some(message) } else { None }
    }

    pub(crate) fn is_read(&self) -> bool {
        matches!(self.ask, Ask::Read { .. })
    }

    /// Was a part of the data transferred?
    pub(crate) fn has_begun(&self) -> bool {
        self.done.load(Ordering::Relaxed) > 0
    }

    /// Makes the call without waiting. Polls of the socket get the events of data that the call
    /// takes.
    pub(crate) fn try_now(&self, fd: i32) -> Tried {
        const READABLE: i16 = libc::POLLIN | libc::POLLRDNORM;
        const WRITABLE: i16 = libc::POLLOUT | libc::POLLWRNORM;
        let is_send = match &self.ask {
            _ if self.lacks_buffer.load(Ordering::Relaxed) < 0 => return self.without_buffer(fd),
            Ask::Transfer(message) => message.is_send,
            Ask::Read { .. } => false,
            _ => return self.attempt(fd, false),
        };
        if !is_send {
            service::look(fd);
        }
        let tried = self.attempt(fd, false);
        if matches!(tried, Tried::Done(1..)) {
            service::went_through(fd, if is_send { WRITABLE } else { READABLE } as u32);
        }
        tried
    }

    /// The result of a call without a buffer. An error of the descriptor takes precedence.
    fn without_buffer(&self, fd: i32) -> Tried {
        Tried::Done(match sockets::option(fd, libc::SO_TYPE) {
            Err(errno) if !self.is_read() || errno == -libc::EBADF => errno,
            _ => self.lacks_buffer.load(Ordering::Relaxed),
        })
    }

    /// The errno of a transfer that has to wait before its first try (`polls_first`), if it must
    /// not wait, or if its descriptor is refused.
    pub(crate) fn refusal(&self, fd: i32) -> Option<i32> {
        let sends = || if self.is_uncopied { sockets::can_send_uncopied(fd) } else { Ok(()) };
        let known = sockets::option(fd, libc::SO_TYPE).and_then(|_| sends());
        let is_recv = self.message().is_some_and(|it| !it.is_send && it.header.is_none());
        match known {
            // As in the kernel: RECV does not check whether the file is a socket.
            Err(errno) if !is_recv || errno != -libc::ENOTSOCK => Some(errno),
            _ => self.gives_up.then_some(-libc::EAGAIN),
        }
    }

    /// Makes the call on a thread that may wait. See [`was_given_back`](Self::was_given_back).
    pub(crate) fn run(&self, fd: i32) -> i32 {
        loop {
            if let Tried::Done(result) = self.attempt(fd, true) {
                return result;
            }
            if matches!(self.ask, Ask::Accept { .. }) {
                // The request then waits without a thread, and so can be cancelled.
                self.gave_back.store(true, Ordering::Relaxed);
                return -libc::EAGAIN;
            }
            let seen = sys::poll(fd, self.events(), None);
            if seen < 0 && seen != -libc::EINTR {
                return seen;
            }
        }
    }

    /// Has the worker left the request unfinished, so that it waits for its socket again? True
    /// once.
    pub(crate) fn was_given_back(&self) -> bool {
        self.gave_back.swap(false, Ordering::Relaxed)
    }

    fn attempt(&self, fd: i32, may_wait: bool) -> Tried {
        let tried = self.call(fd, may_wait);
        if let Tried::Done(result @ 0..) = tried
            && (self.goes_on || self.tells_rest)
        {
            self.misses.store(0, Ordering::Relaxed);
            self.note_rest(fd, result);
        }
        tried
    }

    fn call(&self, fd: i32, may_wait: bool) -> Tried {
        let result = match &self.ask {
            Ask::Transfer(message) => return self.transfer(message, fd, may_wait),
            Ask::Read { offset, .. } => return self.read(fd, *offset, may_wait),
            Ask::Accept { name, len } => return self.accept(fd, (*name, *len), may_wait),
            Ask::Other(other) => return other.attempt(fd),
            Ask::Connect(name) => return self.connect(fd, name, may_wait),
            // The path is looked up, and a file server may have to answer.
            Ask::Bind(name) if is_path(name) && !may_wait => return Tried::Blocks,
            Ask::Bind(name) => sockets::bind(fd, name),
            Ask::Listen(backlog) => sockets::listen(fd, *backlog),
            Ask::Shutdown(how) => sockets::shutdown(fd, *how),
            Ask::Socket { domain, kind, protocol } => {
                self.opened(sockets::socket(*domain, *kind, *protocol))
            }
        };
        Tried::Done(result)
    }

    fn opened(&self, fd: i32) -> i32 {
        if self.is_aside { move_aside(fd) } else { fd }
    }

    /// The call would have waited.
    fn missed(&self) -> Tried {
        if self.gives_up { Tried::Done(-libc::EAGAIN) } else { Tried::Waits }
    }

    fn transfer(&self, message: &Message, fd: i32, may_wait: bool) -> Tried {
        let done = self.done.load(Ordering::Relaxed);
        if self.is_uncopied
            && done == 0
            && let Err(errno) = sockets::can_send_uncopied(fd)
        {
            return Tried::Done(errno);
        }
        let is_whole = self.flags & libc::MSG_WAITALL != 0;
        let fails = || self.failed.store(true, Ordering::Relaxed);
        let flags = if may_wait { self.flags } else { self.flags | libc::MSG_DONTWAIT };
        let one = [self.buffer.each_ref().map(|it| it.load(Ordering::Relaxed))];
        let several = self.bundle.as_ref().map(Bundle::parts);
        let picked = self.selects.then_some(several.as_deref().unwrap_or(&one));
        let transfer = || match (&message.header, picked) {
            (Some(header), Some(_)) if self.goes_on && !message.is_send => {
                self.receive_framed(header, fd, one[0], flags)
            }
            _ => message.transfer(fd, (done, picked), flags),
        };
        let (result, received) = uninterrupted(transfer, |it| it.0);
        if result == -libc::EAGAIN && !self.gives_up {
            // A bundle that had to wait is the last one.
            self.ended.fetch_or(self.commits(), Ordering::Relaxed);
            return self.missed_transfer(message.is_send, may_wait);
        }
        if result < 0 {
            fails();
            return Tried::Done(if done > 0 { done as i32 } else { result });
        }
        let total = done + result as usize;
        let is_short = is_whole && total < message.len(picked);
        if is_short && result > 0 && !self.gives_up && self.goes_on(fd) {
            self.done.store(total, Ordering::Relaxed);
            self.misses.store(0, Ordering::Relaxed);
            self.ended.fetch_or(self.commits(), Ordering::Relaxed);
            return Tried::Waits;
        }
        self.went(fd, result as u64, total == message.len(picked));
        if is_short || is_whole && received & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            fails();
        }
        Tried::Done(total as i32)
    }

    /// Notes transferred bytes, and sets `ended` if the call makes no further completion. There are
    /// three reasons. The call has reached its byte limit, its bundle has used the group's last
    /// buffer, or it sends a bundle and polls first. `is_full`: all of its buffers are used.
    fn went(&self, fd: i32, bytes: u64, is_full: bool) {
        let left = self.bytes_left.load(Ordering::Relaxed);
        if left > 0 {
            self.bytes_left.store(left.saturating_sub(bytes), Ordering::Relaxed);
            self.ended.fetch_or(left <= bytes, Ordering::Relaxed);
        }
        let is_last = self.bundle.is_some() && self.is_last.load(Ordering::Relaxed);
        // A bundle that polls first ends like a bundle that had to wait.
        self.ended.fetch_or(self.polls_first && self.commits(), Ordering::Relaxed);
        if is_last && is_full && (self.commits() || sockets::readable(fd) > 0) {
            self.ended.store(true, Ordering::Relaxed);
        }
    }

    /// Receives a message, with its name and control data, into a buffer (`struct
    /// io_uring_recvmsg_out`).
    fn receive_framed(
        &self,
        header: &Header,
        fd: i32,
        [at, len]: [u64; 2],
        flags: i32,
    ) -> (i32, i32) {
        const OUT: u64 = 16;
        let (name, control) = (u64::from(header.name.1), header.control.1);
        let front = (OUT + name).saturating_add(control);
        if len < front {
            return (-libc::EFAULT, 0);
        }
        let place = |len, offset| (if len == 0 { 0 } else { at.wrapping_add(offset) }, len);
        let (to, control) = (place(name, OUT), place(control, OUT + name));
        let framed = Header { at: 0, name: (to.0, name as u32), control };
        let part = [[at.wrapping_add(front), len - front]];
        let mut message = framed.with(&part);
        let result = sockets::transfer(fd, false, &mut message, flags);
        if result < 0 {
            return (result, 0);
        }
        self.ended.store(result == 0, Ordering::Relaxed);
        let used = message.msg_controllen as u32;
        let out = [message.msg_namelen, used, result as u32, message.msg_flags as u32];
        // SAFETY: the place is in the program's buffer.
        match unsafe { user::write(at as usize, out) } {
            Ok(()) => (front as i32 + (result as u64).min(len - front) as i32, message.msg_flags),
            Err(errno) => (errno, 0),
        }
    }

    /// Reads into a buffer of a group. For a file that cannot be waited for, a worker may have to
    /// read.
    /// Does a transfer that has to be complete take its rest from the next bytes of the socket?
    fn goes_on(&self, fd: i32) -> bool {
        let kind = sockets::option(fd, libc::SO_TYPE);
        self.flags & libc::MSG_PEEK == 0
            && matches!(kind, Ok(libc::SOCK_STREAM | libc::SOCK_SEQPACKET))
    }

    fn missed_transfer(&self, is_send: bool, may_wait: bool) -> Tried {
        let misses = self.misses.fetch_add(1, Ordering::Relaxed);
        match () {
            () if self.flags & libc::MSG_ERRQUEUE != 0 && misses > 0 => Tried::Done(-libc::EAGAIN),
            () if !is_send || misses < VAIN_SENDS => Tried::Waits,
            () if may_wait => Tried::Done(-libc::EAGAIN),
            () => Tried::Blocks,
        }
    }

    fn accept(&self, fd: i32, (name, len): (u64, u64), may_wait: bool) -> Tried {
        let flags = sys::status_flags(fd);
        if flags < 0 {
            return Tried::Done(flags);
        }
        let blocks = flags & libc::O_NONBLOCK == 0;
        let mut alone = None;
        if blocks && may_wait {
            // accept4(2) waits if another thread or process has accepted the client first.
            alone = Alone::at(fd);
            if alone.is_none() || sys::poll_now(fd, libc::POLLIN) == 0 {
                return self.missed();
            }
        } else if blocks {
            match sockets::option(fd, libc::SO_ACCEPTCONN) {
                Err(errno) => return Tried::Done(errno),
                // A socket that is no listener gets its error at once.
                Ok(0) => {}
                Ok(_) if sys::poll_now(fd, libc::POLLIN) == 0 => return self.missed(),
                Ok(_) => return Tried::Blocks,
            }
        }
        let accepted = uninterrupted(|| sockets::accept(fd, name, len, self.flags), |&it| it);
        drop(alone);
        match accepted {
            errno if errno == -libc::EAGAIN => self.missed(),
            result => Tried::Done(self.opened(result)),
        }
    }

    fn connect(&self, fd: i32, name: &[u8], may_wait: bool) -> Tried {
        let begun = self.begun.load(Ordering::Relaxed);
        if !begun && !may_wait && is_path(name) {
            // The call waits for room in the listener's backlog, which no event reports.
            return Tried::Blocks;
        }
        let blocks = match (sys::status_flags(fd), sockets::option(fd, libc::SO_TYPE)) {
            (errno, _) | (_, Err(errno)) if errno < 0 => return Tried::Done(errno),
            (flags, Ok(kind)) => flags & libc::O_NONBLOCK == 0 && kind != libc::SOCK_DGRAM,
            (_, Err(errno)) => return Tried::Done(errno),
        };
        let turns = blocks && !may_wait;
        if turns {
            sockets::set_nonblocking(fd, true);
        }
        let mut result = sockets::connect(fd, name);
        if result == -libc::ECONNABORTED {
            // The result of an earlier connection is reported once.
            result = sockets::connect(fd, name);
        }
        if turns {
            sockets::set_nonblocking(fd, false);
        }
        match -result {
            libc::EINPROGRESS | libc::EINTR => {
                self.begun.store(true, Ordering::Relaxed);
                Tried::Waits
            }
            libc::EALREADY if begun => {
                self.misses.fetch_add(1, Ordering::Relaxed);
                Tried::Waits
            }
            libc::EISCONN if begun => Tried::Done(0),
            _ => Tried::Done(result),
        }
    }
}

/// The right to accept at a blocking listener. One worker of the process has it.
struct Alone(&'static AtomicU32);

impl Alone {
    /// Takes the right. `None`: another worker has it. Several descriptor numbers share an element
    /// of `PLACES`.
    fn at(fd: i32) -> Option<Self> {
        /// The process whose worker has the right. A value from before a fork does not count here.
        static PLACES: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];
        let place = &PLACES[fd as usize % PLACES.len()];
        let (me, now) = (std::process::id(), place.load(Ordering::Relaxed));
        let takes =
            || place.compare_exchange(now, me, Ordering::Acquire, Ordering::Relaxed).is_ok();
        (now != me && takes()).then(|| Self(place))
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// Is this a name of a Unix socket (unix(7)), which may be a path?
fn is_path(name: &[u8]) -> bool {
    name.get(..2).is_some_and(|family| family == (libc::AF_UNIX as u16).to_ne_bytes())
}

/// Repeats a call that a signal has interrupted.
fn uninterrupted<T>(mut call: impl FnMut() -> T, result: impl Fn(&T) -> i32) -> T {
    loop {
        let answer = call();
        if result(&answer) != -libc::EINTR {
            return answer;
        }
    }
}
