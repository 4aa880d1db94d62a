//! Polls of a ring's requests: beginning, events, changes.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use uringlet::front::Alongside;
use uringlet::{Sqe, front};

use super::state::{Core, Locked};
use super::types::{Request, Stage};
use crate::abi::{self, op, poll};
use crate::memory::Word;
use crate::prepare::Plan;
use crate::service::{self, Watch};
use crate::sys;

/// True once any ring has polled the descriptor of a ring.
pub(super) static POLLS_RINGS: AtomicBool = AtomicBool::new(false);

impl Core {
    /// A thread enters the ring. It looks for events of polls if the program could notice that an
    /// event comes late. `asks`: the thread collects completions without waiting, and looks as a
    /// waiter does. `count`: the maximum number of entries that it submits. If one of them is a
    /// cancel, requests that are ready by now end before the cancel.
    #[inline]
    pub(crate) fn look_at_polls(&self, asks: bool, count: u32) {
        let looks = self.looks.load(Ordering::Relaxed) > 0;
        if looks
            || asks && self.may_sit() && service::is_of(self.address())
            || count > 0 && service::is_busy() && self.submits_cancel(count)
        {
            service::look_at_all();
        }
    }

    /// A thread has submitted, and goes on without a sleep: it tries the receives that wait without
    /// a first try, if their sockets have data.
    #[inline]
    pub(crate) fn look_for_untried(&self) {
        if self.untried.load(Ordering::Relaxed) && self.untried.swap(false, Ordering::Relaxed) {
            let _entered = self.entered();
            service::look_at_all();
        }
    }

    /// Is one of the next entries a cancel?
    fn submits_cancel(&self, count: u32) -> bool {
        let head = self.memory.page().sq_head.load(Ordering::Acquire);
        let tail = self.memory.word(Word::SqTail).load(Ordering::Acquire);
        let count = count.min(tail.wrapping_sub(head)).min(self.memory.sq_entries());
        (0..count).any(|at| self.memory.opcode(head.wrapping_add(at)) == Some(op::ASYNC_CANCEL))
    }
}

/// The polls of a ring, for a thread that waits for its completions.
#[derive(Debug)]
pub(crate) struct Waiter<'a>(&'a Core);

impl Core {
    pub(crate) fn waiter(&self) -> Waiter<'_> {
        Waiter(self)
    }

    /// May threads that wait for the ring take events? No if the program is notified of
    /// completions, and does other work meanwhile. No, too, once `waits_apart` is set.
    fn may_sit(&self) -> bool {
        !self.told.load(Ordering::Relaxed) && !self.waits_apart.load(Ordering::Relaxed)
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl Alongside for Waiter<'_> {
    fn sit(&self) -> Option<[RawFd; 2]> {
        if !self.0.may_sit() {
            return None;
        }
        let seat = service::sit(self.0.address());
        if seat.is_err() {
            self.slept_apart();
        }
        seat.unwrap_or(None)
    }

    fn rise(&self, ready: bool) {
        service::rise();
        if ready {
            service::look_at_all();
        }
    }

    fn slept_apart(&self) {
        self.0.waits_apart.store(true, Ordering::Relaxed);
    }
}

impl Locked<'_> {
    /// Starts a poll. If a file server may have to be asked, the engine makes the poll, because the
    /// server may not answer. Then the first event ends the poll.
    pub(super) fn issue_poll(&mut self, at: u32, watch: Watch) -> Option<i32> {
        let fd = self.number(at);
        self.list_number(at);
        if !front::poll_may_wait(fd) {
            return self.begin_poll(at, watch);
        }
        let sqe = Sqe { opcode: op::POLL_ADD, fd, op_flags: watch.events, ..Sqe::nop() };
        self.hand_over(at, sqe)
    }

    fn begin_poll(&mut self, at: u32, watch: Watch) -> Option<i32> {
        let fd = self.number(at);
        let events = (watch.events & 0xffff) as i16;
        if self.core().registry.has(fd) {
            POLLS_RINGS.store(true, Ordering::Relaxed);
            self.core().registry.is_polled(fd);
            // The polled file may be this very ring: its descriptor is brought up to date first.
            self.settle();
        }
        // A multishot poll gets no result here, because a result would end it. The epoll reports
        // events that are there already.
        let now = if watch.multi { 0 } else { sys::poll_now(fd, events) };
        if now != 0 {
            return Some(now);
        }
        let is_of_rings = watch.multi && (self.core().registry.has(fd) || service::is_epoll(fd));
        if is_of_rings || watch.multi && self.core().has(abi::setup::DEFER_TASKRUN) {
            self.look_first(at);
        }
        let counted_up = self.counted_up;
        let request = self.request(at);
        (request.is_of_rings, request.counted_up) = (is_of_rings, counted_up);
        let key = self.key(at);
        match service::watch(fd, watch, Arc::clone(self.core()) as _, key) {
            Ok(poll) => {
                self.request(at).stage = Stage::Poll(poll);
                self.core().polls_edges.fetch_or(watch.multi, Ordering::Relaxed);
                None
            }
            // The file has no poll method: it is always ready, and other events never occur.
            Err(errno) if errno == -libc::EPERM => Some(match events & front::ALWAYS_READY {
                0 => -libc::EINVAL,
                ready => i32::from(ready),
            }),
            Err(errno) => Some(errno),
        }
    }

    /// Does the number name the eventfd that this ring counts up?
    fn is_told_by(&self, number: i32) -> bool {
        let eventfd = self.eventfd.as_ref().map(|(eventfd, _)| eventfd.number());
        eventfd.is_some_and(|eventfd| sys::is_same_file(eventfd, number))
    }

    pub(super) fn poll_fired(&mut self, at: u32, seen: u32) {
        if self.socket_is_ready(at) {
            return;
        }
        let request = &*self.request(at);
        let (Stage::Poll(_), Plan::Poll(watch)) = (request.stage, request.plan.clone()) else {
            return;
        };
        let refused = request.refused;
        if refused != 0 {
            return self.finish(at, refused, 0);
        }
        let always = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        let result = (seen & (watch.events | always)) as i32;
        // Each completion of a multishot poll of the ring's own eventfd would cause the next one.
        // So this completion ends such a poll.
        let (number, may_have_one) = (request.number(), request.is_of_rings);
        let is_told = request.counted_up != self.counted_up && self.is_told_by(number);
        let is_of_rings = is_told || may_have_one && self.core().registry.any_is_polled();
        if !watch.multi || !self.can_go_on() || is_of_rings {
            return self.finish(at, result, 0);
        }
        let user_data = self.request(at).user_data;
        let cqe = abi::Cqe { user_data, res: result, flags: abi::CQE_MORE };
        self.post(cqe, false);
    }

    /// Removes a poll, or changes it.
    pub(super) fn update_poll(&mut self, old: u64, new: u64, events: u32, flags: u32) -> i32 {
        let is_it = |at: &u32| {
            let Request { opcode, stage, .. } = &self.state.requests[*at as usize];
            *opcode == op::POLL_ADD
                && matches!(stage, Stage::Poll(_) | Stage::Ends | Stage::Ready | Stage::Engine)
        };
        let found = self.state.by_user_data.all(old).find(is_it);
        let Some(at) = found else { return -libc::ENOENT };
        if !matches!(self.request(at).stage, Stage::Poll(_)) {
            return -libc::EALREADY;
        }
        if flags == 0 {
            self.remove(at);
            return 0;
        }
        if flags & poll::UPDATE_USER_DATA != 0 {
            self.request(at).user_data = new;
            self.state.by_user_data.remove(at);
            self.list(at);
        }
        if flags & poll::UPDATE_EVENTS != 0 {
            // A multishot poll stays one.
            let multi = match self.request(at).plan {
                Plan::Poll(watch) => watch.multi,
                _ => return -libc::ENOENT,
            };
            let key = self.key(at);
            let Stage::Poll(before) = self.request(at).stage else { return -libc::ENOENT };
            if multi && service::change(before, Watch::of(events, true).events) {
                self.request(at).plan = Plan::Poll(Watch::of(events, true));
                return 0;
            }
            service::unwatch(before, key, Arc::as_ptr(self.core()).addr());
            let watch = Watch::of(events, multi);
            let request = self.request(at);
            request.stage = Stage::Here;
            request.plan = Plan::Poll(watch);
            if let Some(result) = self.begin_poll(at, watch) {
                self.end_later(at, result);
            }
        }
        0
    }

    /// Lets each thread that enters the ring check this poll, as the poll thread does.
    fn look_first(&mut self, at: u32) {
        let before = std::mem::replace(&mut self.request(at).looked_at, true);
        self.core.looks.fetch_add(u32::from(!before), Ordering::Relaxed);
    }
}
