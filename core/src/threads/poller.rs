//! The poller: one thread that waits for descriptors on behalf of requests on pipes, sockets
//! and terminals, so that such a request costs no worker, and can be cancelled.
#![allow(unsafe_code)]

use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::spawn::Spawner;
use crate::board::{Board, By, Dispatcher};
use crate::exec::{self, Mode};
use crate::own::{self, Copied, Copies};
use crate::request::{Kind, Route, Slot, Started};
use crate::router::tuning::{BLIND, RETIRE_AFTER, STRAYS};
use crate::sync::lock_counted;
use crate::sys;

#[derive(Debug)]
pub(crate) struct Poller {
    spawner: Spawner,
    state: Mutex<PollerState>,
}

#[derive(Debug)]
struct PollerState {
    waiting: Vec<PolledRequest>,
    /// Descriptors and directions of transfers that the thread has taken off the list to execute
    /// them: they may come back.
    served: Vec<(RawFd, i16)>,
    /// Contexts whose kernel lane tells of completions by an eventfd.
    kernels: Vec<(Weak<dyn Dispatcher>, RawFd)>,
    /// Wakes the thread out of ppoll; -1 before the first use.
    eventfd: RawFd,
    alive: bool,
    /// Grows with each request that is passed on to a worker.
    passed_on: u32,
}

#[derive(Debug)]
struct PolledRequest {
    owner: Arc<dyn Dispatcher>,
    slot: u32,
    fd: RawFd,
    events: i16,
    /// A read or a write, not a poll.
    transfer: bool,
    /// Behind others of its descriptor with a smaller number. The first of them stays in front.
    priority: u16,
    /// If not 0: a worker executes it, and it only stands here so that later ones of its descriptor
    /// wait.
    passed_on: u32,
    /// The thread looks at this file under this number: what it finds there is about it.
    watched: bool,
    /// It would have waited, so poll(2) says when to try again. What poll says before that is no
    /// answer: a socket that is not writable by its measure, or a full pipe whose last page is not,
    /// take some bytes all the same.
    tried: bool,
    /// Some that were submitted before it were not known to be of a stream, and are yet to come
    /// here.
    held: bool,
    /// What keeps the file open, since the program has closed its descriptor.
    kept: Option<Arc<Copied>>,
}

impl PolledRequest {
    fn is(&self, board: &Board, slot: u32) -> bool {
        self.slot == slot && std::ptr::eq(self.owner.board(), board)
    }

    fn slot(&self) -> &Slot {
        self.owner.board().slot(self.slot)
    }

    /// Both are reads, or both writes, of one descriptor: executed one after the other.
    fn goes_with(&self, other: &Self) -> bool {
        self.transfer && other.transfer && self.fd == other.fd && self.events == other.events
    }

    /// Of one context, and submitted before that.
    fn comes_before(&self, other: &Self) -> bool {
        let of_one = std::ptr::eq(self.owner.board(), other.owner.board());
        of_one && self.slot().comes_before(other.slot())
    }

    fn has_strays_before(&self) -> bool {
        self.transfer && self.owner.board().has_strays_before(self.slot)
    }
}

impl PollerState {
    /// Every descriptor that is waited for, once. The longest to wait for them, if there are
    /// requests that are not for poll.
    fn collect(&mut self, set: &mut Vec<libc::pollfd>) -> Option<Duration> {
        self.kernels.retain(|(owner, _)| owner.strong_count() > 0);
        let kernel = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        set.extend(self.kernels.iter().map(|&(_, fd)| kernel(fd)));
        let first = set.len();
        let executed = self.waiting.iter().filter(|one| one.passed_on != 0);
        let executed: Vec<(RawFd, i16)> = executed.map(|one| (one.fd, one.events)).collect();
        for one in &mut self.waiting {
            let (fd, events) = (one.fd, one.events);
            // What waits for a worker is not to find its descriptor ready all the time.
            let waits = one.transfer && executed.contains(&(fd, events));
            one.held = one.held && one.has_strays_before();
            one.watched = one.passed_on == 0 && !waits && !one.held;
            if !one.watched {
                continue;
            }
            match set[first..].iter_mut().find(|polled| polled.fd == fd) {
                Some(polled) => polled.events |= events,
                None => set.push(libc::pollfd { fd, events, revents: 0 }),
            }
        }
        let mut all = self.waiting.iter().enumerate();
        if all.any(|(at, one)| !one.tried && !one.held && !self.is_behind(at)) {
            return Some(Duration::ZERO);
        }
        self.waiting.iter().any(|one| one.held).then_some(STRAYS)
    }

    /// Is it one of a stream's reads, or writes, and not the first?
    fn is_behind(&self, at: usize) -> bool {
        self.waiting[..at].iter().any(|other| other.goes_with(&self.waiting[at]))
    }

    /// Is it the oldest of a stream's reads, or writes? Not if the thread is trying that one.
    fn is_first(&self, at: usize) -> bool {
        let one = &self.waiting[at];
        let is_tried = one.transfer && self.served.contains(&(one.fd, one.events));
        !is_tried && !self.is_behind(at)
    }

    /// Where a new one is to stand.
    fn place_of(&self, new: &PolledRequest) -> usize {
        let mut others = self.waiting.iter().enumerate().filter(|(_, other)| other.goes_with(new));
        // Not known to be of this stream before: it goes in front of those that were submitted
        // after it.
        let first = others.next().filter(|(_, first)| new.comes_before(first));
        let behind = |other: &PolledRequest| {
            other.priority > new.priority
                || other.priority == new.priority && new.comes_before(other)
        };
        let place = first.or_else(|| others.find(|(_, other)| behind(other)));
        place.map_or(self.waiting.len(), |(at, _)| at)
    }

    /// Contexts of which the kernel has completed requests.
    fn ready_kernels(&self, set: &[libc::pollfd]) -> Vec<(Arc<dyn Dispatcher>, RawFd)> {
        let is_ready = |fd: RawFd| set.iter().any(|polled| polled.fd == fd && polled.revents != 0);
        let ready = self.kernels.iter().filter(|&&(_, fd)| is_ready(fd));
        // One that is gone has closed its descriptor: the number is somebody else's.
        ready.filter_map(|(owner, fd)| Some((owner.upgrade()?, *fd))).collect()
    }

    /// Nothing has completed for long: contexts with nothing in flight announce themselves again.
    fn let_go_of_idle_kernels(&mut self) {
        self.kernels
            .retain(|(owner, _)| owner.upgrade().is_some_and(|owner| owner.stays_watched()));
    }

    /// Somebody else looks at a context's eventfd. Who was told of it twice looks on.
    fn let_go_of_kernel(&mut self, events: RawFd) {
        if let Some(at) = self.kernels.iter().position(|&(_, fd)| fd == events) {
            self.kernels.swap_remove(at);
        }
    }

    /// Takes those off the list whose descriptor is ready, or that were not tried yet: every poll,
    /// and of the reads and writes of a descriptor the one that has waited longest, which may leave
    /// nothing for the next.
    fn take_ready(&mut self, set: &[libc::pollfd]) -> Vec<(PolledRequest, i16)> {
        const ALWAYS: i16 = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;
        let mut ready: Vec<(PolledRequest, i16)> = Vec::new();
        let mut at = 0;
        while at < self.waiting.len() {
            let one = &self.waiting[at];
            let polled = set.iter().find(|polled| one.watched && polled.fd == one.fd);
            let revents = polled.map_or(0, |polled| polled.revents & (one.events | ALWAYS));
            if revents == 0 && one.tried
                || one.held
                || self.is_behind(at)
                || ready.iter().any(|(other, _)| other.goes_with(one))
            {
                at += 1;
                continue;
            }
            if one.has_strays_before() {
                self.waiting[at].held = true;
                at += 1;
                continue;
            }
            let waiting = self.waiting.remove(at);
            waiting.slot().begin();
            if waiting.transfer {
                self.served.push((waiting.fd, waiting.events));
            }
            ready.push((waiting, revents));
        }
        ready
    }
}

impl Poller {
    pub(crate) fn new(spawner: Spawner) -> Self {
        Self {
            spawner,
            state: Mutex::new(PollerState {
                waiting: Vec::new(),
                served: Vec::new(),
                kernels: Vec::new(),
                eventfd: -1,
                alive: false,
                passed_on: 0,
            }),
        }
    }

    /// Waits on behalf of a started request.
    pub(crate) fn add(&'static self, owner: Arc<dyn Dispatcher>, request: Started<'_>) {
        let (sqe, kind) = (request.sqe, request.kind);
        let events = match kind {
            Kind::Poll => sqe.op_flags as i16,
            Kind::Write => libc::POLLOUT,
            _ => libc::POLLIN,
        };
        let waiting = PolledRequest {
            slot: request.into_index(),
            owner,
            fd: sqe.fd,
            events,
            transfer: kind != Kind::Poll,
            priority: sqe.ioprio,
            passed_on: 0,
            kept: None,
            watched: false,
            tried: kind == Kind::Poll,
            held: false,
        };
        let mut state = lock_counted(&self.state);
        waiting.slot().polling();
        let at = state.place_of(&waiting);
        state.waiting.insert(at, waiting);
        let (woken, eventfd) = self.wake(&mut state);
        drop(state);
        if woken {
            return;
        }
        if eventfd < 0 || self.spawner.spawn("poll", move || self.run(eventfd)).is_err() {
            let mut state = lock_counted(&self.state);
            state.alive = false;
            let is_here = |one: &mut PolledRequest| one.passed_on == 0;
            let stranded: Vec<PolledRequest> = state.waiting.extract_if(.., is_here).collect();
            for waiting in &stranded {
                waiting.slot().begin();
            }
            drop(state);
            // Without the thread, a worker or a waiter waits inside the call itself.
            for waiting in stranded {
                let board = waiting.owner.board();
                if let Some(kept) = waiting.kept {
                    board.keep(kept);
                }
                // SAFETY: taken off the list by this thread.
                let request = unsafe { board.in_hand(waiting.slot) };
                waiting.owner.forward(request, Route::Worker, By::Poller);
            }
        }
    }

    /// Collects the completions of a context's kernel lane when `events` tells of some.
    pub(crate) fn watch(&'static self, owner: &Arc<dyn Dispatcher>, events: RawFd) {
        let mut state = lock_counted(&self.state);
        state.kernels.push((Arc::downgrade(owner), events));
        let (woken, eventfd) = self.wake(&mut state);
        drop(state);
        if woken {
            return;
        }
        if eventfd < 0 || self.spawner.spawn("poll", move || self.run(eventfd)).is_err() {
            // The watchdog finds the completions.
            lock_counted(&self.state).alive = false;
        }
    }

    /// Has the thread look at the lists again. False: the caller has to make it.
    fn wake(&self, state: &mut PollerState) -> (bool, RawFd) {
        let make = !std::mem::replace(&mut state.alive, true);
        if make && state.eventfd < 0 {
            state.eventfd = own::eventfd() as RawFd;
        }
        if !make {
            sys::eventfd_add(state.eventfd, 1);
        }
        (!make, state.eventfd)
    }

    /// Is the thread at a transfer on this slot's descriptor?
    pub(crate) fn is_trying(&self, slot: &Slot) -> bool {
        lock_counted(&self.state).served.iter().any(|&(fd, _)| slot.names(fd))
    }

    /// Takes a request off the list: the caller completes it. False if it is not there (any more).
    pub(crate) fn remove(&self, board: &Board, slot: u32, key: u64) -> bool {
        let mut state = lock_counted(&self.state);
        // A slot on the list is not reused: its key is that of the request.
        let found =
            |waiting: &PolledRequest| waiting.is(board, slot) && board.slot(slot).key() == key;
        let Some(at) = state.waiting.iter().position(found) else {
            return false;
        };
        let one = &state.waiting[at];
        if one.passed_on != 0
            || board.begins_streams_at_once() && one.transfer && state.is_first(at)
        {
            // aio_cancel(3): the first one is being executed, as the C library has it.
            return false;
        }
        let waiting = state.waiting.remove(at);
        waiting.slot().begin();
        let eventfd = state.eventfd;
        drop(state);
        // So that the thread lets go of the descriptor.
        sys::eventfd_add(eventfd, 1);
        true
    }

    /// These descriptors are about to be closed: requests on the list get others of the same files.
    /// `gone`: the numbers stand for no file then.
    /// True if the thread has some in hand, which may come back to the list.
    pub(crate) fn keep_files(&self, fds: &RangeInclusive<RawFd>, gone: bool) -> bool {
        let mut copies = Copies::default();
        let mut state = lock_counted(&self.state);
        let of_numbers = |&at: &usize| fds.contains(&state.waiting[at].fd);
        let is_kept = |at: usize| {
            let holds_first = state.waiting[at].owner.board().begins_streams_at_once();
            (at, !holds_first || state.is_first(at))
        };
        let found = (0..state.waiting.len()).filter(of_numbers).map(is_kept);
        let found: Vec<(usize, bool)> = found.collect();
        for &(at, is_kept) in &found {
            let waiting = &mut state.waiting[at];
            // As with the C library's aio: what is not the first of its stream finds no file. That
            // is not left to the number, which the next file to be opened in the process gets.
            let copy = if is_kept { copies.of(waiting.fd) } else { None };
            let Some(fd) = copy.as_ref().map(|copy| copy.fd()).or(gone.then_some(-1)) else {
                continue;
            };
            // A worker's has only its place here, for the others.
            if waiting.passed_on == 0 {
                // SAFETY: on the list, whose lock is held, so it is ours alone.
                let mut request = unsafe { waiting.owner.board().in_hand(waiting.slot) };
                request.slot().moved_to(fd);
                request.sqe.fd = fd;
                request.into_index();
                waiting.watched = false;
                waiting.tried &= fd >= 0;
            }
            (waiting.fd, waiting.kept) = (fd, copy);
        }
        if !found.is_empty() {
            // What the thread finds under the old numbers belongs to nobody on the list any more.
            sys::eventfd_add(state.eventfd, 1);
        }
        state.served.iter().any(|(fd, _)| fds.contains(fd))
    }

    fn run(&self, mut eventfd: RawFd) {
        let mut set = Vec::new();
        loop {
            set.clear();
            set.push(libc::pollfd { fd: eventfd, events: libc::POLLIN, revents: 0 });
            let soon = lock_counted(&self.state).collect(&mut set);
            let idle = lock_counted(&self.state).waiting.is_empty();
            let timeout = match () {
                () if soon.is_some() => soon,
                () if eventfd < 0 => Some(BLIND),
                () => idle.then_some(RETIRE_AFTER),
            };
            let ret = sys::ppoll(&mut set, timeout, None);
            if ret == 0 && soon.is_none() {
                let mut state = lock_counted(&self.state);
                state.let_go_of_idle_kernels();
                if state.waiting.is_empty() && state.kernels.is_empty() {
                    state.alive = false;
                    return;
                }
                continue;
            }
            if ret == -(libc::EINTR as sys::Ret) {
                // A handler of the C library's (setuid(2)).
                continue;
            }
            if ret < 0 {
                // More descriptors than poll takes (RLIMIT_NOFILE was lowered): try them all,
                // now and then.
                set.truncate(1);
                sys::ppoll(&mut set, Some(BLIND), None);
                let mut all = Vec::new();
                lock_counted(&self.state).collect(&mut all);
                all.iter_mut().for_each(|polled| polled.revents = polled.events);
                set.extend(all);
            }
            if set[0].revents & libc::POLLNVAL != 0 {
                // Closed in a way that nobody sees. Without one, new requests wait for BLIND.
                eventfd = own::eventfd() as RawFd;
                lock_counted(&self.state).eventfd = eventfd;
            } else if set[0].revents != 0 {
                sys::eventfd_drain(eventfd);
            }
            let (kernels, ready) = {
                let mut state = lock_counted(&self.state);
                (state.ready_kernels(&set[1..]), state.take_ready(&set[1..]))
            };
            for (owner, fd) in kernels {
                sys::eventfd_drain(fd);
                if !owner.collect() {
                    lock_counted(&self.state).let_go_of_kernel(fd);
                }
            }
            for (waiting, revents) in ready {
                let (fd, events) = (waiting.fd, waiting.events);
                self.serve(waiting, revents);
                // It is over, and no later one has begun.
                lock_counted(&self.state).served.retain(|&served| served != (fd, events));
            }
        }
    }

    fn serve(&self, waiting: PolledRequest, revents: i16) {
        let owner = Arc::clone(&waiting.owner);
        let board = owner.board();
        // SAFETY: off the list, so it is ours alone.
        let mut request = unsafe { board.in_hand(waiting.slot) };
        let kind = request.kind;
        if kind == Kind::Poll {
            let bad = revents & libc::POLLNVAL != 0;
            let result = if bad { -libc::EBADF } else { i32::from(revents) };
            return board.finish(request, result, By::Poller);
        }
        if request.route == Route::Inline {
            // It does not wait, and is here for its turn only.
            // SAFETY: copied in at submit; the buffers are the request's until its completion.
            let result = unsafe { exec::execute(&mut request, Mode::Stream) };
            return board.finish(request, result, By::Poller);
        }
        // SAFETY: as above.
        let result = unsafe { exec::execute(&mut request, Mode::StreamNoWait) };
        match -result {
            // Nothing yet, or somebody else was quicker.
            libc::EAGAIN => self.put_back(waiting, request),
            // No way to ask for "do not sleep" here, or a sandbox that refuses the question: a
            // worker of its own.
            libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS | libc::EPERM
                if request.sqe.op_flags == 0 =>
            {
                if waiting.tried {
                    self.pass_on(waiting, request)
                } else {
                    self.put_back(waiting, request)
                }
            }
            _ if kind == Kind::Write
                && !board.ends_short_writes()
                && exec::advance(&mut request, result) =>
            {
                self.put_back(waiting, request)
            }
            _ => {
                let done = request.partial as i32;
                let total = if result < 0 && done > 0 { done } else { result.saturating_add(done) };
                let total = if result < 0 && done == 0 { result } else { total };
                board.finish(request, total, By::Poller);
            }
        }
    }

    /// Back to the list, in front: those that have waited less long stay behind.
    fn put_back(&self, mut waiting: PolledRequest, request: Started<'_>) {
        waiting.tried = true;
        let mut state = lock_counted(&self.state);
        // In one step: a cancel that saw it on the list and served would take it for a later one.
        state.served.retain(|&served| served != (waiting.fd, waiting.events));
        request.slot().polling();
        request.into_index();
        state.waiting.insert(0, waiting);
    }

    /// A worker executes it; later ones of its descriptor wait for that.
    fn pass_on(&self, waiting: PolledRequest, mut request: Started<'_>) {
        let owner = Arc::clone(&waiting.owner);
        let mut state = lock_counted(&self.state);
        // 0 is for those that are not passed on.
        state.passed_on = state.passed_on.wrapping_add(1).max(1);
        let passed_on = state.passed_on;
        state.waiting.insert(0, PolledRequest { passed_on, ..waiting });
        drop(state);
        request.passed_on = passed_on;
        owner.forward(request, Route::Worker, By::Poller);
    }

    /// A request that was passed on was executed, or withdrawn: the next one may go.
    pub(crate) fn end(&self, number: u32) {
        let mut state = lock_counted(&self.state);
        let Some(at) = state.waiting.iter().position(|one| one.passed_on == number) else { return };
        state.waiting.remove(at);
        let eventfd = state.eventfd;
        drop(state);
        sys::eventfd_add(eventfd, 1);
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests;
