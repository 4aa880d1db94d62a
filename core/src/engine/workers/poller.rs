//! The poller: one thread that waits for descriptors on behalf of requests on pipes, sockets
//! and terminals, so that such a request costs no worker, and can be cancelled.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

use super::Workers;
use super::lane::Lane;
use super::threads::{RETIRE_AFTER, spawn};
use crate::exec::{self, Kind, Mode};
use crate::instance::{By, Instance};
use crate::sync::lock;
use crate::sys;

#[derive(Debug)]
pub(super) struct Poller {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    waiting: Vec<Waiting>,
    /// Wakes the thread out of ppoll; -1 before the first use.
    eventfd: RawFd,
    alive: bool,
}

#[derive(Debug)]
struct Waiting {
    instance: Arc<Instance>,
    slot: u32,
    fd: RawFd,
    events: i16,
}

impl Waiting {
    fn is(&self, instance: &Instance, slot: u32) -> bool {
        self.slot == slot && std::ptr::eq(&*self.instance, instance)
    }
}

impl Poller {
    pub(super) fn new() -> Self {
        Self { state: Mutex::new(State { waiting: Vec::new(), eventfd: -1, alive: false }) }
    }

    /// Waits on behalf of a started request.
    pub(super) fn add(&self, instance: &Arc<Instance>, slot: u32) {
        let started = instance.slot(slot);
        // SAFETY: started by the caller.
        let sqe = unsafe { started.request() }.sqe;
        let events = match exec::kind(&sqe) {
            Kind::Poll => sqe.op_flags as i16,
            Kind::Write => libc::POLLOUT,
            _ => libc::POLLIN,
        };
        let mut state = lock(&self.state);
        started.polling();
        let instance_too = Arc::clone(instance);
        state.waiting.push(Waiting { instance: instance_too, slot, fd: sqe.fd, events });
        let make = !std::mem::replace(&mut state.alive, true);
        if make && state.eventfd < 0 {
            state.eventfd = sys::eventfd() as RawFd;
        }
        let eventfd = state.eventfd;
        drop(state);
        if !make {
            sys::eventfd_add(eventfd, 1);
            return;
        }
        let threads = Workers::of(instance).threads;
        if eventfd < 0 || spawn("poll", move || threads.poller.run(eventfd)).is_err() {
            let mut state = lock(&self.state);
            state.alive = false;
            let stranded: Vec<Waiting> = state.waiting.drain(..).collect();
            for waiting in &stranded {
                waiting.instance.slot(waiting.slot).polled();
            }
            drop(state);
            // Without the thread, a worker or a waiter waits inside the call itself.
            for waiting in stranded {
                Workers::of(&waiting.instance).to_pool(&waiting.instance, waiting.slot);
            }
        }
    }

    /// Takes a request off the list: the caller completes it. False if it is not there (any more).
    pub(super) fn remove(&self, instance: &Instance, slot: u32) -> bool {
        let mut state = lock(&self.state);
        let Some(at) = state.waiting.iter().position(|waiting| waiting.is(instance, slot)) else {
            return false;
        };
        let waiting = state.waiting.remove(at);
        waiting.instance.slot(slot).polled();
        let eventfd = state.eventfd;
        drop(state);
        // So that the thread lets go of the descriptor.
        sys::eventfd_add(eventfd, 1);
        true
    }

    fn run(&self, eventfd: RawFd) {
        let mut set = Vec::new();
        loop {
            set.clear();
            set.push(libc::pollfd { fd: eventfd, events: libc::POLLIN, revents: 0 });
            let state = lock(&self.state);
            set.extend(state.waiting.iter().map(|waiting| libc::pollfd {
                fd: waiting.fd,
                events: waiting.events,
                revents: 0,
            }));
            drop(state);
            let timeout = (set.len() == 1).then_some(RETIRE_AFTER);
            let ret = sys::ppoll(&mut set, timeout, None);
            if ret == 0 {
                let mut state = lock(&self.state);
                if state.waiting.is_empty() {
                    state.alive = false;
                    return;
                }
                continue;
            }
            if set[0].revents != 0 {
                sys::eventfd_drain(eventfd);
            }
            for (waiting, revents) in self.take_ready(&set[1..]) {
                self.serve(waiting, revents);
            }
        }
    }

    /// Takes those off the list whose descriptor is ready, in the order of submission.
    fn take_ready(&self, set: &[libc::pollfd]) -> Vec<(Waiting, i16)> {
        let mut state = lock(&self.state);
        let mut ready = Vec::new();
        let mut at = 0;
        for polled in set {
            // The list has only lost entries from, or gained some behind, those that were polled.
            let same = |waiting: &Waiting| {
                waiting.fd == polled.fd && waiting.events == polled.events
            };
            if !state.waiting.get(at).is_some_and(same) {
                continue;
            }
            if polled.revents == 0 {
                at += 1;
                continue;
            }
            let waiting = state.waiting.remove(at);
            waiting.instance.slot(waiting.slot).polled();
            ready.push((waiting, polled.revents));
        }
        ready
    }

    fn serve(&self, waiting: Waiting, revents: i16) {
        let Waiting { instance, slot, .. } = &waiting;
        // SAFETY: off the list, so it is ours alone.
        let request = unsafe { instance.slot(*slot).request() };
        let kind = exec::kind(&request.sqe);
        if kind == Kind::Poll {
            let bad = revents & libc::POLLNVAL != 0;
            let result = if bad { -libc::EBADF } else { i32::from(revents) };
            return instance.finish(*slot, result, By::Poller);
        }
        // SAFETY: copied in at submit; the buffers are the request's until its completion.
        let result = unsafe { exec::execute(request, Mode::StreamNoWait) };
        match -result {
            // Somebody else was quicker: wait again, behind the others.
            libc::EAGAIN => self.add(instance, *slot),
            // No way to ask for "do not sleep" here: a worker of its own.
            libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS if request.sqe.op_flags == 0 => {
                request.lane = Lane::Pool as u8;
                Workers::of(instance).to_pool(instance, *slot);
            }
            _ if kind == Kind::Write && exec::advance(request, result) => {
                self.add(instance, *slot);
            }
            _ => {
                let done = request.partial as i32;
                let total = if result < 0 && done > 0 { done } else { result.saturating_add(done) };
                let total = if result < 0 && done == 0 { result } else { total };
                instance.finish(*slot, total, By::Poller);
            }
        }
    }
}
