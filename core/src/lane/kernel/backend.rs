//! The trait of a kernel interface that the kernel lane hands requests to.

use std::fmt;
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::config::EngineKind;
use crate::queue::SleepEnd;
use crate::request::Requests;
use crate::router::tuning::TICK;
use crate::{own, sys};

/// A completion from the kernel: the slot, and a count or a negative errno.
pub(super) type Harvested = (u32, i32);

/// How completions are made known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tell {
    /// [`Backend::events`] becomes readable.
    pub(super) events: bool,
    /// The eventfd of the context, on which its program sleeps; -1 for none. A backend that
    /// [counts it up](Backend::counts_up) does so for each request that names it.
    pub(super) program: RawFd,
}

/// One kernel interface, set up for one context. All methods can be called from any thread, and at
/// any time, unless they say otherwise.
pub(super) trait Backend: Send + Sync + fmt::Debug {
    /// The kind of the interface.
    fn kind(&self) -> EngineKind;

    /// The maximum number of requests in flight.
    fn room(&self) -> usize;

    /// Does a request that was handed over keep its file open, even if the descriptor is closed?
    fn holds_files(&self) -> bool {
        true
    }

    /// Hands requests over. Returns the number of requests that were taken, from the first one on.
    /// If not all were taken, also returns the negative errno for the next one. With `at_once`,
    /// the kernel does not wait inside the call: it answers EAGAIN instead.
    fn submit(&self, requests: Requests<'_>, tell: Tell, at_once: bool) -> (usize, i32);

    /// Does the interface count up [`Tell::program`] itself?
    fn counts_up(&self) -> bool {
        false
    }

    /// Can the backend hand over without waiting?
    fn submits_at_once(&self) -> bool {
        false
    }

    /// Ends the signals on [`Backend::events`]. Needed by an interface where a submit with `tell`
    /// affects the completions of later submits, too.
    fn untell(&self) {}

    /// Has the backend taken requests that have not reached the kernel yet? The next `submit` or
    /// `sleep` hands them over.
    fn keeps_back(&self) -> bool {
        false
    }

    /// Collects completions without sleeping; returns the number that was written to `done`. One
    /// thread at a time calls this, the reaper.
    fn harvest(&self, done: &mut [Harvested]) -> usize;

    /// Sleeps until `min` completions have come, the time is over, a signal handler ran, or
    /// [`Backend::wake_fd`] was counted up. The signal mask, if given, holds meanwhile. Returns the
    /// number of completions that the call has written to `done`, and what has ended the sleep.
    /// Other completions are left to [`Backend::harvest`].
    fn sleep(
        &self,
        min: usize,
        timeout: Option<Duration>,
        mask: Option<u64>,
        done: &mut [Harvested],
    ) -> (usize, SleepEnd);

    /// Nothing is in flight, and nothing will be: frees resources that are scarce on the host. The
    /// reaper calls this once.
    fn close(&self) {}

    /// The eventfd(2) that ends a sleep, made on first use; negative if none can be made.
    fn wake_fd(&self) -> RawFd;

    /// The eventfd(2) that signals completions, made as [`Backend::wake_fd`].
    fn events(&self) -> RawFd;
}

/// Sleeps for a tick, because the kernel refuses the call that sleeps for completions.
pub(super) fn nap() -> SleepEnd {
    sys::nap(TICK);
    SleepEnd::TimedOut
}

/// Two eventfds of a backend, each made on first use: one wakes the sleeping thread, and one
/// signals completions.
#[derive(Debug)]
pub(super) struct Eventfds {
    wake: OnceLock<RawFd>,
    events: OnceLock<RawFd>,
    /// The kernel will end a sleep when `wake` is counted up.
    pub(super) armed: AtomicBool,
    /// Incremented when a submit has read its requests. The kernel orders a submit before its
    /// completions, but the language's memory model knows that only through this number.
    read: AtomicU32,
}

impl Eventfds {
    pub(super) fn new() -> Self {
        let (wake, events) = (OnceLock::new(), OnceLock::new());
        Self { wake, events, armed: AtomicBool::new(false), read: AtomicU32::new(0) }
    }

    /// The calling thread has read the requests, and hands them over next. From then on the kernel
    /// may complete them.
    pub(super) fn before_submit(&self) {
        self.read.fetch_add(1, Ordering::Release);
    }

    /// The calling thread has found completions. From here on it may change their requests, because
    /// the submitting thread has read them before.
    pub(super) fn after_harvest(&self) {
        self.read.load(Ordering::Acquire);
    }

    pub(super) fn wake(&self) -> RawFd {
        Self::made(&self.wake)
    }

    pub(super) fn events(&self) -> RawFd {
        Self::made(&self.events)
    }

    /// The eventfd; a negative number if none can be made now.
    fn made(place: &OnceLock<RawFd>) -> RawFd {
        if let Some(&fd) = place.get() {
            return fd;
        }
        let fd = own::eventfd() as RawFd;
        if fd < 0 {
            return fd;
        }
        // Another thread may have stored a descriptor first.
        place.set(fd).err().inspect(|&fd| own::close(fd));
        *place.get().expect("set")
    }
}

impl Drop for Eventfds {
    fn drop(&mut self) {
        let made = [self.wake.get(), self.events.get()].into_iter().flatten();
        made.for_each(|&fd| own::close(fd));
    }
}
