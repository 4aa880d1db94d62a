//! A word to sleep on: a futex, or loom's condition variable in models.

use std::time::Duration;

use crate::sync::{AtomicU32, Ordering};
#[cfg(loom)]
use crate::sync::{Mutex, lock};

/// The reason why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SleepEnd {
    /// There may be completions: check again.
    Again,
    /// The timeout has passed.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
    /// The context is being destroyed.
    Closed,
}

/// A word to sleep on: a futex.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct Sleep(AtomicU32);

#[cfg(not(loom))]
impl Sleep {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// The current value. A change after this call ends a sleep with this ticket.
    pub(crate) fn ticket(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn sleep(&self, ticket: u32, timeout: Option<Duration>, restarts: bool) -> SleepEnd {
        use crate::sys::FutexEnd;
        match crate::sys::futex_wait(&self.0, ticket, timeout, restarts) {
            FutexEnd::Again => SleepEnd::Again,
            FutexEnd::TimedOut => SleepEnd::TimedOut,
            FutexEnd::Interrupted => SleepEnd::Interrupted,
        }
    }

    /// Ends the sleep of every thread with an older ticket, together with [`Sleep::wake_all`].
    pub(crate) fn change(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn wake_all(&self) {
        crate::sys::futex_wake(self.0.as_ptr().addr(), i32::MAX);
    }
}

/// The same type with loom's atomics.
#[cfg(loom)]
#[derive(Debug)]
pub(crate) struct Sleep {
    word: AtomicU32,
    gate: Mutex<()>,
    changed: loom::sync::Condvar,
}

#[cfg(loom)]
impl Sleep {
    pub(crate) fn new() -> Self {
        Self { word: AtomicU32::new(0), gate: Mutex::new(()), changed: loom::sync::Condvar::new() }
    }

    pub(crate) fn ticket(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    pub(crate) fn sleep(
        &self,
        ticket: u32,
        _timeout: Option<Duration>,
        _restarts: bool,
    ) -> SleepEnd {
        let mut gate = lock(&self.gate);
        while self.word.load(Ordering::Acquire) == ticket {
            gate = self.changed.wait(gate).unwrap();
        }
        drop(gate);
        SleepEnd::Again
    }

    pub(crate) fn change(&self) {
        self.word.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn wake_all(&self) {
        drop(lock(&self.gate));
        self.changed.notify_all();
    }
}
