//! The waiting requests, by descriptor. A stream is what such a descriptor names: a pipe, a socket
//! or a terminal. Reads of one descriptor are executed one after the other, and so are writes.
//!
//! A descriptor is registered for one event at a time (EPOLLONESHOT). Its token has a number that
//! changes with each registration. So an event of an earlier file of this descriptor is ignored.

#![allow(unsafe_code)]

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::board::{Board, Dispatcher};
use crate::own::{Copied, Copies};
use crate::request::{Kind, Slot, Started};
use crate::sys;

/// Tokens that belong to no stream. `WAKE` is that of the eventfd that wakes the thread. `KERNEL`
/// is a bit, set beside the number of a kernel lane's eventfd.
pub(super) const WAKE: u64 = u64::MAX;
pub(super) const KERNEL: u64 = 1 << 63;

#[derive(Debug)]
pub(super) struct PolledRequest {
    pub(super) owner: Arc<dyn Dispatcher>,
    pub(super) slot: u32,
    pub(super) fd: RawFd,
    pub(super) events: i16,
    /// The request is a read or a write, not a poll.
    pub(super) transfer: bool,
    /// The request comes after others of its descriptor with a smaller priority number. The first
    /// request of a stream stays in front.
    pub(super) priority: u16,
    /// If not 0: a worker executes the request. It is on the list only so that later ones of its
    /// descriptor wait.
    pub(super) passed_on: u32,
    /// A try would have waited, so poll(2) says when to try again. Before the first try, poll(2)
    /// does not decide: a socket that poll(2) reports as not writable, or a full pipe with room in
    /// its last page, may still take some bytes.
    pub(super) tried: bool,
    /// The request is held back. Earlier requests were not known to be of a stream, and are not on
    /// the list yet.
    pub(super) held: bool,
    /// A duplicate that keeps the file open, because the program has closed its descriptor.
    pub(super) kept: Option<Arc<Copied>>,
}

impl PolledRequest {
    pub(super) fn new(owner: Arc<dyn Dispatcher>, request: Started<'_>) -> Self {
        let (sqe, kind) = (request.sqe, request.kind);
        let events = match kind {
            Kind::Poll => sqe.op_flags as i16,
            Kind::Write => libc::POLLOUT,
            _ => libc::POLLIN,
        };
        Self {
            slot: request.into_index(),
            owner,
            fd: sqe.fd,
            events,
            transfer: kind != Kind::Poll,
            priority: sqe.ioprio,
            passed_on: 0,
            kept: None,
            tried: kind == Kind::Poll,
            held: false,
        }
    }

    fn is(&self, board: &Board, slot: u32) -> bool {
        self.slot == slot && std::ptr::eq(self.owner.board(), board)
    }

    fn slot(&self) -> &Slot {
        self.owner.board().slot(self.slot)
    }

    pub(super) fn begins_to_wait(&self) {
        self.owner.board().begins_to_wait(self.slot);
    }

    pub(super) fn ends_to_wait(&self) {
        self.owner.board().ends_to_wait(self.slot);
    }

    /// Are both reads, or both writes, which are executed one after the other?
    fn goes_with(&self, other: &Self) -> bool {
        self.transfer && other.transfer && self.events == other.events
    }

    /// Are both of one context, and was this one submitted first?
    fn comes_before(&self, other: &Self) -> bool {
        let of_one = std::ptr::eq(self.owner.board(), other.owner.board());
        of_one && self.slot().comes_before(other.slot())
    }

    fn has_strays_before(&self) -> bool {
        self.transfer && self.owner.board().has_strays_before(self.slot)
    }
}

/// The requests that wait for one descriptor.
#[derive(Debug, Default)]
struct Stream {
    waiting: Vec<PolledRequest>,
    /// The number of the stream's registration; 0: none.
    registration: u32,
    /// The stream is in the list of streams to check.
    due: bool,
    /// The events that were seen.
    revents: i16,
    /// The file has no poll method: no event comes later.
    is_refused: bool,
}

impl Stream {
    /// Is the request at `at` a read (or write) that waits behind another one?
    fn is_behind(&self, at: usize) -> bool {
        self.waiting[..at].iter().any(|other| other.goes_with(&self.waiting[at]))
    }

    /// The index at which to insert a new request. `is_served`: a thread executes the front
    /// request, which is not on the list.
    fn place_of(&self, new: &PolledRequest, is_served: bool) -> usize {
        let mut others = self.waiting.iter().enumerate().filter(|(_, other)| other.goes_with(new));
        let first = if is_served { None } else { others.next() };
        // If `new` comes late, because its descriptor was not known as a stream's, it may go even
        // in front of the first request.
        let first = first.filter(|(_, first)| new.comes_before(first));
        let behind = |other: &PolledRequest| {
            other.priority > new.priority
                || other.priority == new.priority && new.comes_before(other)
        };
        let place = first.or_else(|| others.find(|(_, other)| behind(other)));
        place.map_or(self.waiting.len(), |(at, _)| at)
    }

    /// The events that the stream waits for. Requests that were passed on to a worker, or are held
    /// back, do not count. `is_served`: a thread executes a transfer for these events, and others
    /// wait for its end.
    fn events(&self, is_served: impl Fn(i16) -> bool) -> Option<i16> {
        let waits = |&at: &usize| {
            let one = &self.waiting[at];
            let is_behind = self.is_behind(at) || one.transfer && is_served(one.events);
            one.passed_on == 0 && !one.held && !is_behind
        };
        let all = (0..self.waiting.len()).filter(waits).map(|at| self.waiting[at].events);
        all.reduce(|events, one| events | one)
    }

    /// epoll has refused to watch the stream, with this errno. Sets the events that poll(2) would
    /// report.
    fn unwatched(&mut self, errno: i32, events: i16) -> StreamWatch {
        self.revents = match errno {
            libc::EBADF => libc::POLLNVAL,
            libc::EPERM => events & sys::ALWAYS_READY,
            _ => events,
        };
        let is_answer = errno == libc::EBADF
            || errno == libc::EPERM && self.waiting.iter().any(|one| !one.transfer);
        self.is_refused = is_answer && errno == libc::EPERM;
        if is_answer { StreamWatch::Ready } else { StreamWatch::Blind }
    }
}

/// The result of an attempt to watch a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamWatch {
    /// The stream is watched, or there is nothing to wait for.
    Yes,
    /// The stream is ready, and need not be watched.
    Ready,
    /// The stream cannot be watched, and is tried now and then.
    Blind,
    /// A request waits for earlier ones that have not come yet.
    Held,
}

#[derive(Debug, Default)]
pub(super) struct Streams {
    by_fd: BTreeMap<RawFd, Stream>,
    /// Descriptors to check.
    due: VecDeque<RawFd>,
    /// Descriptors to check when the thread wakes.
    later: Vec<RawFd>,
    /// Descriptors and directions of transfers that a thread executes, and that are not on the
    /// list: they may come back.
    pub(super) served: Vec<(RawFd, i16)>,
    registrations: u32,
}

impl Streams {
    pub(super) fn is_empty(&self) -> bool {
        self.by_fd.is_empty()
    }

    /// The waiting requests of all descriptors, in no order.
    #[cfg(test)]
    pub(super) fn waiting(&mut self) -> impl Iterator<Item = &mut PolledRequest> {
        self.by_fd.values_mut().flat_map(|stream| &mut stream.waiting)
    }

    /// Makes the thread check a descriptor.
    pub(super) fn is_due(&mut self, fd: RawFd) {
        if let Some(stream) = self.by_fd.get_mut(&fd)
            && !std::mem::replace(&mut stream.due, true)
        {
            self.due.push_back(fd);
        }
    }

    pub(super) fn all_are_due(&mut self) {
        let all: Vec<RawFd> = self.by_fd.keys().copied().collect();
        all.into_iter().for_each(|fd| self.is_due(fd));
    }

    /// The thread has woken. Makes it check the streams that were left for later.
    pub(super) fn look_again(&mut self) {
        for fd in std::mem::take(&mut self.later) {
            self.is_due(fd);
        }
    }

    pub(super) fn next_due(&mut self) -> Option<RawFd> {
        let fd = self.due.pop_front()?;
        if let Some(stream) = self.by_fd.get_mut(&fd) {
            stream.due = false;
        }
        Some(fd)
    }

    /// Notes an event of a stream, and has the thread check it. Ignores an event of an earlier
    /// registration.
    pub(super) fn is_ready(&mut self, token: u64, revents: i16) {
        let (fd, registration) = (token as u32 as RawFd, (token >> 32) as u32);
        if let Some(stream) = self.by_fd.get_mut(&fd)
            && stream.registration == registration
        {
            stream.revents |= revents;
            self.is_due(fd);
        }
    }

    /// Takes a transfer of this context off the list: one that was not tried yet, and stands behind
    /// no other one.
    pub(super) fn take_untried(&mut self, board: &Board) -> Option<PolledRequest> {
        let mut found = None;
        for &fd in &self.due {
            let Some(stream) = self.by_fd.get(&fd) else { continue };
            let is_one = |&at: &usize| {
                let one = &stream.waiting[at];
                let is_free = one.transfer && !one.tried && !one.held && one.passed_on == 0;
                let is_first = !stream.is_behind(at) && !self.served.contains(&(fd, one.events));
                let is_of_board = std::ptr::eq(one.owner.board(), board);
                is_of_board && is_free && is_first && !one.has_strays_before()
            };
            if let Some(at) = (0..stream.waiting.len()).find(is_one) {
                found = Some((fd, at));
                break;
            }
        }
        let (fd, at) = found?;
        let waiting = self.by_fd.get_mut(&fd)?.waiting.remove(at);
        waiting.ends_to_wait();
        self.served.push((fd, waiting.events));
        Some(waiting)
    }

    /// Have streams to check requests?
    pub(super) fn has_due(&self) -> bool {
        let waits = |fd| self.by_fd.get(fd).is_some_and(|stream| !stream.waiting.is_empty());
        self.due.iter().any(waits)
    }

    /// A transfer was executed. `is_back`: it is on the list again. Otherwise it no longer counts
    /// as served, and the next one of its stream may begin.
    pub(super) fn was_served(&mut self, served: (RawFd, i16), is_back: bool) {
        if !is_back {
            self.served.retain(|&one| one != served);
        }
        let fd = served.0;
        let is_over = |stream: &Stream| stream.waiting.is_empty() && stream.registration == 0;
        if self.by_fd.get(&fd).is_some_and(is_over) {
            self.by_fd.remove(&fd);
            self.due.retain(|&one| one != fd);
        }
        self.is_due(fd);
    }

    pub(super) fn add(&mut self, new: PolledRequest) {
        let fd = new.fd;
        let is_served = self.served.contains(&(fd, new.events));
        let stream = self.by_fd.entry(fd).or_default();
        let at = stream.place_of(&new, is_served);
        stream.waiting.insert(at, new);
        self.is_due(fd);
    }

    /// Puts a request back in front: requests that have waited less long stay behind it.
    pub(super) fn put_back(&mut self, one: PolledRequest) {
        let fd = one.fd;
        self.by_fd.entry(fd).or_default().waiting.insert(0, one);
        self.is_due(fd);
    }

    /// Takes all requests off the list that were not passed on to a worker.
    pub(super) fn take_stranded(&mut self) -> Vec<PolledRequest> {
        let mut stranded = Vec::new();
        for stream in self.by_fd.values_mut() {
            stranded.extend(stream.waiting.extract_if(.., |one| one.passed_on == 0));
        }
        self.by_fd.retain(|_, stream| !stream.waiting.is_empty());
        stranded
    }

    /// Takes requests of a descriptor that are ready, or were not tried yet, off the list. These
    /// are all polls, the read that has waited longest, and the write that has waited longest.
    /// A poll without an event waits for what never occurs on its file.
    /// Later transfers stay on the list, because earlier ones may leave no data, or no room, for
    /// them.
    pub(super) fn take_ready(&mut self, fd: RawFd) -> Vec<(PolledRequest, i16)> {
        const ALWAYS: i16 = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;
        let mut ready: Vec<(PolledRequest, i16)> = Vec::new();
        let Some(stream) = self.by_fd.get_mut(&fd) else { return ready };
        let mut seen = std::mem::take(&mut stream.revents);
        let is_refused = std::mem::take(&mut stream.is_refused);
        if is_refused {
            // Requests may have come since epoll was asked.
            seen |= sys::ALWAYS_READY;
        }
        let mut at = 0;
        while at < stream.waiting.len() {
            let is_behind = stream.is_behind(at);
            let one = &mut stream.waiting[at];
            let is_behind = is_behind || one.transfer && self.served.contains(&(fd, one.events));
            one.held = one.held && one.has_strays_before();
            let revents = seen & (one.events | ALWAYS);
            let is_answered = revents != 0 || !one.tried || is_refused && !one.transfer;
            if !is_answered
                || one.held
                || one.passed_on != 0
                || is_behind
                || ready.iter().any(|(other, _)| other.goes_with(one))
            {
                at += 1;
                continue;
            }
            if one.has_strays_before() {
                one.held = true;
                at += 1;
                continue;
            }
            let waiting = stream.waiting.remove(at);
            waiting.ends_to_wait();
            if waiting.transfer {
                self.served.push((fd, waiting.events));
            }
            ready.push((waiting, revents));
        }
        // Polls come first, because a transfer may leave nothing for a poll.
        ready.sort_by_key(|(one, _)| one.transfer);
        ready
    }

    /// Makes epoll watch a stream that is not ready.
    pub(super) fn arm(&mut self, epoll: RawFd, fd: RawFd) -> StreamWatch {
        let Entry::Occupied(mut entry) = self.by_fd.entry(fd) else { return StreamWatch::Yes };
        if entry.get().waiting.is_empty() {
            entry.remove();
            return StreamWatch::Yes;
        }
        let stream = entry.get_mut();
        let is_held = stream.waiting.iter().any(|one| one.held);
        if is_held {
            self.later.push(fd);
        }
        let served = &self.served;
        let Some(events) = stream.events(|events| served.contains(&(fd, events))) else {
            return if is_held { StreamWatch::Held } else { StreamWatch::Yes };
        };
        let is_known = stream.registration != 0;
        self.registrations = (self.registrations + 1) % (1 << 30);
        stream.registration = self.registrations + 1;
        let token = u64::from(stream.registration) << 32 | u64::from(fd as u32);
        let mask = u32::from(events as u16) | libc::EPOLLONESHOT as u32;
        let armed = match sys::epoll_set(epoll, fd, mask, token, is_known) {
            0 => StreamWatch::Yes,
            errno => stream.unwatched(-errno as i32, events),
        };
        match armed {
            StreamWatch::Ready => self.is_due(fd),
            StreamWatch::Blind if !is_held => self.later.push(fd),
            _ => {}
        }
        if is_held { StreamWatch::Held } else { armed }
    }

    /// Makes the thread register all streams with the new epoll, which watches nothing yet.
    pub(super) fn forget_epoll(&mut self) {
        self.by_fd.values_mut().for_each(|stream| stream.registration = 0);
        self.all_are_due();
    }

    /// Takes a request of a descriptor off the list, if it is there. Also returns whether the
    /// stream has other requests. A request that a worker executes stays on the list. So does the
    /// first transfer of a stream, if the context has `begins_streams_at_once`: aio_cancel(3) of
    /// the C library cannot cancel it.
    pub(super) fn remove(
        &mut self,
        fd: RawFd,
        board: &Board,
        slot: u32,
    ) -> Option<(PolledRequest, bool)> {
        let stream = self.by_fd.get_mut(&fd)?;
        let at = stream.waiting.iter().position(|one| one.is(board, slot))?;
        let one = &stream.waiting[at];
        let is_tried = one.transfer && self.served.contains(&(fd, one.events));
        let is_first = !is_tried && !stream.is_behind(at);
        if one.passed_on != 0 || board.begins_streams_at_once() && one.transfer && is_first {
            return None;
        }
        let one = stream.waiting.remove(at);
        let others = !stream.waiting.is_empty();
        if others {
            self.is_due(fd);
        } else {
            self.by_fd.remove(&fd);
        }
        Some((one, others))
    }

    /// Takes off the list the request that was passed on to a worker under this number, and has
    /// ended. True: it was there, and others of its stream may proceed.
    pub(super) fn end(&mut self, number: u32) -> bool {
        let is_it = |one: &PolledRequest| one.passed_on == number;
        let found = self.by_fd.iter_mut().find_map(|(&fd, stream)| {
            let at = stream.waiting.iter().position(is_it)?;
            stream.waiting.remove(at);
            Some(fd)
        });
        found.is_some_and(|fd| {
            self.is_due(fd);
            true
        })
    }

    /// Gives requests on these descriptors duplicates, because the descriptors are about to be
    /// closed. `gone`: the numbers will name no file. True: there are such requests.
    pub(super) fn keep_files(
        &mut self,
        epoll: RawFd,
        fds: &RangeInclusive<RawFd>,
        gone: bool,
        copies: &mut Copies,
    ) -> bool {
        let found: Vec<RawFd> = self.by_fd.keys().copied().filter(|fd| fds.contains(fd)).collect();
        for &fd in &found {
            let Some(stream) = self.by_fd.remove(&fd) else { continue };
            if stream.registration != 0 {
                sys::epoll_del(epoll, fd);
            }
            let mut firsts = Vec::new();
            for at in 0..stream.waiting.len() {
                let one = &stream.waiting[at];
                let is_tried = one.transfer && self.served.contains(&(fd, one.events));
                firsts.push(!is_tried && !stream.is_behind(at));
            }
            // The requests are put back in front, the last one first, so they keep their order. A
            // request that is being tried now comes back later, and goes in front of them.
            for (mut one, is_first) in stream.waiting.into_iter().zip(firsts).rev() {
                // As with the C library's aio, a request that is not the first of its stream finds
                // no file. The number itself does not ensure that, because the next opened file
                // gets it.
                let is_kept = !one.owner.board().begins_streams_at_once() || is_first;
                let copy = if is_kept { copies.of(fd) } else { None };
                let number = copy.as_ref().map(|copy| copy.fd()).or(gone.then_some(-1));
                if let Some(number) = number {
                    one.move_to(number, copy);
                }
                self.put_back(one);
            }
        }
        !found.is_empty()
    }
}

impl PolledRequest {
    fn move_to(&mut self, fd: RawFd, copy: Option<Arc<Copied>>) {
        // A worker executes a request that was passed on: its entry only keeps later ones waiting.
        if self.passed_on == 0 {
            // SAFETY: on the list, whose lock is held, so it is ours alone.
            let mut request = unsafe { self.owner.board().in_hand(self.slot) };
            request.slot().moved_to(fd);
            request.sqe.fd = fd;
            request.into_index();
            self.tried &= fd >= 0;
        }
        (self.fd, self.kept) = (fd, copy);
    }
}
