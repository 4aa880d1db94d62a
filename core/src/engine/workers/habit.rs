//! What a program does after it has submitted: does it come to wait, or must somebody of ours
//! take the requests? Learned per context; wrong guesses cost time, and the watchdog bounds it.

use std::sync::atomic::{AtomicI32, Ordering};

/// A saturating count: above 0, waiters have been coming.
#[derive(Debug)]
pub(super) struct Habit(AtomicI32);

const MOST: i32 = 8;
/// The other end: as many waits change the mind again.
const LEAST: i32 = -16;
/// What it counts that requests were found lying about. A program whose thread was only preempted between
/// submitting and waiting is still believed; the second time in a row it is not.
const LYING_ABOUT: i32 = 6;

impl Habit {
    /// Nothing known: most programs wait. If this one does not, the watchdog finds out at its
    /// first request.
    pub(super) fn new() -> Self {
        Self(AtomicI32::new(1))
    }

    #[inline]
    pub(super) fn waiters_come(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// A thread came to wait (or to poll, and found something to do).
    #[inline]
    pub(super) fn waiter_came(&self) {
        let now = self.0.load(Ordering::Relaxed);
        if now < MOST {
            self.0.store(now + 1, Ordering::Relaxed);
        }
    }

    /// Nobody came.
    pub(super) fn nobody_came(&self) {
        let now = self.0.load(Ordering::Relaxed);
        if now > LEAST {
            self.0.store((now - LYING_ABOUT).max(LEAST), Ordering::Relaxed);
        }
    }

    /// Nobody is to come, whatever is seen.
    pub(super) fn leave_all_to_workers(&self) {
        self.0.store(i32::MIN / 2, Ordering::Relaxed);
    }
}
