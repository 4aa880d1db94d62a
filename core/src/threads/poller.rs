//! The poller: one thread that waits for descriptors on behalf of requests on pipes, sockets and
//! terminals. So such a request costs no worker, and can be cancelled.
//!
//! The poller sleeps in epoll_wait(2). Its work after a wake-up depends on the number of ready
//! streams, not of waiting ones: streams with something to do are in a list.
#![allow(unsafe_code)]

mod streams;

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, Weak};

use self::streams::{KERNEL, PolledRequest, StreamWatch, Streams, WAKE};
use super::spawn::Spawner;
use crate::board::{Board, Dispatcher, Executor};
use crate::exec::{self, Mode};
use crate::own::{self, Copies};
use crate::request::{Kind, Route, Slot, Started};
use crate::router::tuning::{LATER, RETIRE_AFTER, TICK};
use crate::sync::{Count, Guard, lock_counted};
use crate::sys;

/// Events for a kernel lane's eventfd: each increment is an event, and no thread has to read the
/// eventfd.
const EACH: u32 = (libc::EPOLLIN | libc::EPOLLET) as u32;

/// Flags of preadv2(2) that a stream may have beside `RWF_NOWAIT`: HIPRI, DSYNC, SYNC, APPEND,
/// NOAPPEND, NOSIGNAL. If a stream refuses a transfer with another flag, that flag is the reason.
const RWF_ON_STREAMS: u32 = 0x137;

/// Which thread tries the transfers on streams that a thread submits: the poller's thread, or the
/// submitting thread itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Untried {
    /// The poller's thread tries them.
    Never,
    /// This thread tries them. So far, no transfer was left to it.
    None,
    /// This thread tries them. At least one transfer was left to it.
    Some,
}

thread_local! {
    static UNTRIED: Cell<Untried> = const { Cell::new(Untried::Never) };
}

impl Untried {
    /// From now on, the calling thread tries the transfers that it submits. Returns the value for
    /// [`end`](Self::end).
    pub(crate) fn begin() -> Self {
        UNTRIED.replace(Self::None)
    }

    /// Ends what [`begin`](Self::begin) has begun. Were transfers left on the list for this thread
    /// to try?
    pub(crate) fn end(self) -> bool {
        UNTRIED.replace(self) == Self::Some
    }

    /// Notes a transfer. True: the calling thread will try it.
    fn note() -> bool {
        let is_left = UNTRIED.get() != Self::Never;
        if is_left {
            UNTRIED.set(Self::Some);
        }
        is_left
    }
}

#[derive(Debug)]
pub(crate) struct Poller {
    spawner: Spawner,
    state: Mutex<PollerState>,
}

#[derive(Debug)]
struct PollerState {
    streams: Streams,
    /// Contexts whose kernel lane signals completions by an eventfd.
    kernels: Vec<(Weak<dyn Dispatcher>, RawFd)>,
    /// The epoll in which the thread sleeps, and the eventfd that wakes it; -1 before the first
    /// use.
    epoll: RawFd,
    eventfd: RawFd,
    alive: bool,
    /// Counts requests that were passed on to a worker.
    passed_on: u32,
}

impl PollerState {
    /// Makes the epoll and the eventfd, if they do not exist. False: the kernel refuses.
    fn prepare(&mut self) -> bool {
        if self.epoll >= 0 {
            return true;
        }
        let (epoll, eventfd) = (own::epoll() as RawFd, own::eventfd() as RawFd);
        let watched = || sys::epoll_add(epoll, eventfd, libc::POLLIN as u32, WAKE) == 0;
        if epoll < 0 || eventfd < 0 || !watched() {
            [epoll, eventfd].into_iter().filter(|&fd| fd >= 0).for_each(own::close);
            return false;
        }
        (self.epoll, self.eventfd) = (epoll, eventfd);
        for (_, fd) in &self.kernels {
            sys::epoll_add(epoll, *fd, EACH, KERNEL | *fd as u64);
        }
        self.streams.forget_epoll();
        true
    }

    /// Makes the thread check the lists again. False: there is none, and the caller has to make it.
    #[must_use]
    fn wake_or_begin(&mut self) -> bool {
        let is_there = self.wake();
        self.alive = true;
        is_there
    }

    /// Makes the thread check the lists again, if there is one. A submitter that tries its requests
    /// itself makes the thread later, if some requests have to wait.
    fn wake(&mut self) -> bool {
        if self.alive {
            sys::eventfd_add(self.eventfd, 1);
        }
        self.alive
    }

    /// The context whose kernel lane counts this eventfd up.
    fn kernel(&self, events: RawFd) -> Option<Arc<dyn Dispatcher>> {
        let mut all = self.kernels.iter().filter(|&&(_, fd)| fd == events);
        // A dropped context has closed its eventfd. Another context's eventfd may have the number
        // now.
        all.find_map(|(owner, _)| owner.upgrade())
    }

    /// Nothing has completed for long: stops watching contexts with nothing in flight. They will
    /// register again.
    fn unwatch_idle_kernels(&mut self) {
        let stays =
            |owner: &Weak<dyn Dispatcher>| owner.upgrade().is_some_and(|one| one.stays_watched());
        let gone = self.kernels.extract_if(.., |(owner, _)| !stays(owner));
        let gone: Vec<RawFd> = gone.map(|(_, fd)| fd).collect();
        gone.into_iter().for_each(|fd| self.unwatch(fd));
    }

    /// Takes one entry of a context's eventfd off the list. If another entry has the same eventfd,
    /// epoll keeps watching it.
    fn unwatch_kernel(&mut self, events: RawFd) {
        if let Some(at) = self.kernels.iter().position(|&(_, fd)| fd == events) {
            self.kernels.swap_remove(at);
            self.unwatch(events);
        }
    }

    /// Makes epoll stop watching an eventfd whose entry was taken off the list, if no other entry
    /// has it.
    fn unwatch(&self, events: RawFd) {
        if self.kernels.iter().all(|&(_, fd)| fd != events) {
            sys::epoll_del(self.epoll, events);
        }
    }
}

impl Poller {
    pub(crate) fn new(spawner: Spawner) -> Self {
        Self {
            spawner,
            state: Mutex::new(PollerState {
                streams: Streams::default(),
                kernels: Vec::new(),
                epoll: -1,
                eventfd: -1,
                alive: false,
                passed_on: 0,
            }),
        }
    }

    /// Puts a started request on the list: the thread waits for its descriptor, unless the calling
    /// thread will [try](Self::try_untried) it first.
    pub(crate) fn add(&'static self, owner: Arc<dyn Dispatcher>, request: Started<'_>) {
        let waiting = PolledRequest::new(owner, request);
        let is_left = waiting.transfer && Untried::note();
        let mut state = lock_counted(&self.state);
        waiting.begins_to_wait();
        state.streams.add(waiting);
        if !is_left {
            self.make_it_look(state);
        }
    }

    /// Executes, on the calling thread, the context's transfers that were not tried yet. Transfers
    /// that would wait, or stand behind others, are left to the thread.
    pub(crate) fn try_untried(&'static self, board: &Board) {
        loop {
            let mut state = lock_counted(&self.state);
            let Some(waiting) = state.streams.take_untried(board) else {
                if state.streams.has_due() {
                    self.make_it_look(state);
                }
                return;
            };
            drop(state);
            let served = (waiting.fd, waiting.events);
            let is_back = self.serve(waiting, 0, Executor::Waiter);
            lock_counted(&self.state).streams.was_served(served, is_back);
        }
    }

    /// Makes the thread check the list: wakes it, or makes it.
    fn make_it_look(&'static self, mut state: Guard<'_, PollerState>) {
        let woken = state.wake_or_begin();
        drop(state);
        if woken || self.spawn() {
            return;
        }
        let mut state = lock_counted(&self.state);
        state.alive = false;
        let stranded = state.streams.take_stranded();
        for waiting in &stranded {
            waiting.ends_to_wait();
        }
        drop(state);
        // Without the thread, a worker executes the request, and waits inside the call itself.
        for waiting in stranded {
            let board = waiting.owner.board();
            if let Some(kept) = waiting.kept {
                board.keep(kept);
            }
            // SAFETY: taken off the list by this thread.
            let request = unsafe { board.in_hand(waiting.slot) };
            waiting.owner.forward(request, Route::Worker, Executor::Poller);
        }
    }

    /// Collects the completions of a context's kernel lane when `events` signals some.
    pub(crate) fn watch(&'static self, owner: &Arc<dyn Dispatcher>, events: RawFd) {
        let mut state = lock_counted(&self.state);
        state.kernels.retain(|(owner, _)| owner.strong_count() > 0);
        state.kernels.push((Arc::downgrade(owner), events));
        let woken = state.wake_or_begin();
        sys::epoll_add(state.epoll, events, EACH, KERNEL | events as u64);
        drop(state);
        if !woken && !self.spawn() {
            // The watchdog finds the completions.
            lock_counted(&self.state).alive = false;
        }
    }

    fn spawn(&'static self) -> bool {
        lock_counted(&self.state).prepare()
            && self.spawner.spawn("poll", move || self.run()).is_ok()
    }

    /// Is the thread executing a transfer on this slot's descriptor?
    pub(crate) fn is_trying(&self, slot: &Slot) -> bool {
        lock_counted(&self.state).streams.served.iter().any(|&(fd, _)| slot.names(fd))
    }

    /// Takes a request off the list: the caller completes it. False if it is not (or no longer)
    /// there.
    pub(crate) fn remove(&self, board: &Board, slot: u32, key: u64) -> bool {
        let mut state = lock_counted(&self.state);
        // A slot on the list is not reused: its key is that of the request.
        if board.slot(slot).key() != key {
            return false;
        }
        let fd = board.slot(slot).fd();
        let Some((waiting, others)) = state.streams.remove(fd, board, slot) else { return false };
        waiting.ends_to_wait();
        if others || state.streams.is_empty() {
            // The thread is woken to serve the stream's new first request. Or no request is left,
            // and the thread has to begin the wait after which it ends.
            state.wake();
        }
        drop(state);
        true
    }

    /// Gives requests on the list duplicates of these descriptors, which are about to be closed.
    /// `gone`: the numbers will name no file. True if the thread is trying some requests, which may
    /// come back to the list: the caller calls again with the same copies.
    pub(crate) fn keep_files(
        &self,
        fds: &RangeInclusive<RawFd>,
        gone: bool,
        copies: &mut Copies,
    ) -> bool {
        let mut state = lock_counted(&self.state);
        let epoll = state.epoll;
        if state.streams.keep_files(epoll, fds, gone, copies) {
            state.wake();
        }
        state.streams.served.iter().any(|(fd, _)| fds.contains(fd))
    }

    fn run(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let mut kernels = Vec::new();
        loop {
            let (is_blind, is_held) = self.serve_due();
            let (epoll, idle) = {
                let state = lock_counted(&self.state);
                (state.epoll, state.streams.is_empty())
            };
            let timeout = match () {
                () if is_held => Some(TICK),
                () if is_blind => Some(LATER),
                () => idle.then_some(RETIRE_AFTER),
            };
            let count = sys::epoll_wait(epoll, &mut events, timeout);
            if count == -(libc::EINTR as sys::Ret) {
                // A signal handler of the C library has interrupted the wait. setuid(2), for
                // example, runs such a handler in every thread.
                continue;
            }
            let mut state = lock_counted(&self.state);
            if count < 0 {
                // The program has closed the epoll by a call that the engine does not see. If no
                // new one can be made, all streams are tried now and then.
                (state.epoll, state.eventfd) = (-1, -1);
                if !state.prepare() {
                    drop(state);
                    sys::nap(LATER);
                    lock_counted(&self.state).streams.all_are_due();
                }
                continue;
            }
            if count == 0 && timeout == Some(RETIRE_AFTER) {
                state.unwatch_idle_kernels();
                if state.streams.is_empty() && state.kernels.is_empty() {
                    state.alive = false;
                    return;
                }
            }
            state.streams.look_again();
            for event in &events[..count as usize] {
                let (token, seen) = (event.u64, event.events as i16);
                match token {
                    WAKE => sys::eventfd_drain(state.eventfd),
                    _ if token & KERNEL != 0 => {
                        let fd = token as u32 as RawFd;
                        kernels.push((state.kernel(fd), fd));
                    }
                    _ => state.streams.is_ready(token, seen),
                }
            }
            drop(state);
            for (owner, fd) in kernels.drain(..) {
                let Some(owner) = owner else {
                    lock_counted(&self.state).unwatch_kernel(fd);
                    continue;
                };
                if !owner.collect() {
                    lock_counted(&self.state).unwatch_kernel(fd);
                }
            }
        }
    }

    /// Serves streams that are ready or were not tried yet, until there are none, and has epoll
    /// watch the others. Returns two flags: at least one stream cannot be watched; at least one
    /// request is held back.
    fn serve_due(&self) -> (bool, bool) {
        let (mut is_blind, mut is_held) = (false, false);
        loop {
            let mut state = lock_counted(&self.state);
            let epoll = state.epoll;
            let Some(fd) = state.streams.next_due() else { return (is_blind, is_held) };
            let ready = state.streams.take_ready(fd);
            if ready.is_empty() {
                match state.streams.arm(epoll, fd) {
                    StreamWatch::Yes | StreamWatch::Ready => {}
                    StreamWatch::Blind => is_blind = true,
                    StreamWatch::Held => is_held = true,
                }
                continue;
            }
            drop(state);
            for (waiting, revents) in ready {
                let (fd, events) = (waiting.fd, waiting.events);
                let is_back = self.serve(waiting, revents, Executor::Poller);
                lock_counted(&self.state).streams.was_served((fd, events), is_back);
            }
        }
    }

    /// Executes a request that was taken off the list, without waiting. True: the request was put
    /// back on the list, and another thread may have taken it since.
    fn serve(&self, waiting: PolledRequest, revents: i16, by: Executor) -> bool {
        let owner = Arc::clone(&waiting.owner);
        let board = owner.board();
        // SAFETY: off the list, so it is ours alone.
        let mut request = unsafe { board.in_hand(waiting.slot) };
        let kind = request.kind;
        if kind == Kind::Poll {
            let result = match revents {
                _ if revents & libc::POLLNVAL != 0 || waiting.fd < 0 => -libc::EBADF,
                0 => -libc::EINVAL,
                _ => i32::from(revents),
            };
            board.finish(request, result, by);
            return false;
        }
        if let Some(result) = board.before_transfer(&request.sqe) {
            board.finish(request, result, by);
            return false;
        }
        if request.route == Route::Inline {
            // The call does not wait. The request came here only to stay behind earlier ones.
            // SAFETY: copied in at submit; the buffers are the request's until its completion.
            let result = unsafe { exec::execute(&mut request, Mode::Stream) };
            board.after_transfer(request.sqe.fd, kind == Kind::Write, result);
            board.finish(request, result, by);
            return false;
        }
        let result = {
            // The stream's next request waits for this thread. So a signal handler that interrupts
            // this thread must not wait for that request.
            let _count = Count::new();
            // SAFETY: as above.
            unsafe { exec::execute(&mut request, Mode::StreamNoWait) }
        };
        board.after_transfer(request.sqe.fd, kind == Kind::Write, result);
        match -result {
            // The stream has no data or no room yet, or another thread was quicker.
            libc::EAGAIN => return self.put_back(waiting, request),
            // RWF_NOWAIT is not supported here, or a sandbox refuses it: the request needs a worker
            // of its own.
            libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS | libc::EPERM
                if request.sqe.op_flags & !RWF_ON_STREAMS == 0 && !is_final(waiting.fd, result) =>
            {
                if !waiting.tried {
                    return self.put_back(waiting, request);
                }
                self.pass_on(waiting, request);
            }
            _ if kind == Kind::Write
                && !board.ends_short_writes()
                && exec::advance(&mut request, result) =>
            {
                return self.put_back(waiting, request);
            }
            _ => {
                let done = request.partial as i32;
                let total = if result < 0 && done > 0 { done } else { result.saturating_add(done) };
                let total = if result < 0 && done == 0 { result } else { total };
                board.finish(request, total, by);
            }
        }
        false
    }

    /// Puts a request back in front: requests that have waited less long stay behind it. Returns
    /// true.
    fn put_back(&self, mut waiting: PolledRequest, request: Started<'_>) -> bool {
        waiting.tried = true;
        let mut state = lock_counted(&self.state);
        // The list and `served` change in one step. A cancel that saw the request in both would
        // take the one on the list for a later request.
        state.streams.served.retain(|&served| served != (waiting.fd, waiting.events));
        request.into_index();
        waiting.begins_to_wait();
        state.streams.put_back(waiting);
        true
    }

    /// A worker executes the request; later ones of its descriptor wait for it.
    fn pass_on(&self, waiting: PolledRequest, mut request: Started<'_>) {
        let owner = Arc::clone(&waiting.owner);
        let mut state = lock_counted(&self.state);
        // 0 means: not passed on.
        state.passed_on = state.passed_on.wrapping_add(1).max(1);
        let passed_on = state.passed_on;
        state.streams.put_back(PolledRequest { passed_on, ..waiting });
        drop(state);
        request.passed_on = passed_on;
        owner.forward(request, Route::Worker, Executor::Poller);
    }

    /// Takes the request with this number off the list. A worker has executed it, or it was
    /// withdrawn: the next request of its stream may proceed.
    pub(crate) fn end(&self, number: u32) {
        let mut state = lock_counted(&self.state);
        if state.streams.end(number) {
            state.wake();
        }
    }
}

/// Is this the `-EINVAL` of a socket, or of a file without a type, such as a timerfd? Such a file
/// supports calls that do not sleep, so a call that may sleep would also fail. Two such calls are a
/// read of a listening socket and a write to a timerfd. For these, poll(2) waits without end. False
/// for an epoll: it has no calls that do not sleep, so its `-EINVAL` proves nothing.
fn is_final(fd: RawFd, result: i32) -> bool {
    if result != -libc::EINVAL {
        return false;
    }
    match sys::stat(fd).map(|stat| stat.kind) {
        Ok(libc::S_IFSOCK) => true,
        Ok(0) => {
            let other = own::eventfd() as RawFd;
            let is_epoll = sys::is_epoll(fd, other);
            own::close(other);
            !is_epoll
        }
        _ => false,
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests;
