//! Does the program come to wait after a submit, or must engine threads take the requests? Learned
//! per context; wrong guesses cost time, which the watchdog (`threads/watchdog.rs`) bounds.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use super::tuning::{COMING_COUNTS, LYING_ABOUT};

/// What is known of the program's waits.
#[derive(Debug)]
pub(crate) struct Waiters {
    /// A saturating count: above 0, waiters have been coming.
    coming: AtomicI32,
    /// The last waiter had no deadline, so the next one may execute requests that wait.
    unbounded: AtomicBool,
    /// A waiter asks for the baton, the right to execute the inline requests, instead of sleeping.
    wants_baton: AtomicBool,
}

impl Waiters {
    /// A state without knowledge: most programs wait. If this program does not, the watchdog finds
    /// out at its first request.
    pub(crate) fn new() -> Self {
        Self {
            coming: AtomicI32::new(1),
            unbounded: AtomicBool::new(true),
            wants_baton: AtomicBool::new(false),
        }
    }

    #[inline]
    pub(crate) fn come(&self) -> bool {
        self.coming.load(Ordering::Relaxed) > 0
    }

    /// Counts a thread that came to wait (or to poll, and found something to do).
    #[inline]
    pub(crate) fn one_came(&self) {
        let now = self.coming.load(Ordering::Relaxed);
        if now < *COMING_COUNTS.end() {
            self.coming.store(now + 1, Ordering::Relaxed);
        }
    }

    /// Notes that requests were found waiting, and no thread came for them.
    pub(crate) fn nobody_came(&self) {
        let now = self.coming.load(Ordering::Relaxed);
        if now > *COMING_COUNTS.start() {
            self.coming.store((now - LYING_ABOUT).max(*COMING_COUNTS.start()), Ordering::Relaxed);
        }
    }

    /// Leaves all requests to workers from now on, also if threads come to wait.
    pub(crate) fn leave_all_to_workers(&self) {
        self.coming.store(i32::MIN / 2, Ordering::Relaxed);
    }

    /// Had the last waiter no deadline?
    #[inline]
    pub(crate) fn are_unbounded(&self) -> bool {
        self.unbounded.load(Ordering::Relaxed)
    }

    /// Notes whether the thread that has come to wait has no deadline.
    #[inline]
    pub(crate) fn one_waits(&self, unbounded: bool) {
        if self.are_unbounded() != unbounded {
            self.unbounded.store(unbounded, Ordering::Relaxed);
        }
    }

    /// A waiter asks the worker that holds the baton for it.
    pub(crate) fn ask_for_baton(&self) {
        self.wants_baton.store(true, Ordering::Relaxed);
    }

    /// Should a worker give the baton to a waiter, which executes without waking a thread? A waiter
    /// that came once, and does not come any more, must not stop a worker that is needed.
    #[inline]
    pub(crate) fn takes_baton(&self) -> bool {
        self.wants_baton.load(Ordering::Relaxed)
            && self.come()
            && self.wants_baton.swap(false, Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Waiters;

    #[test]
    fn a_program_that_was_away_once_is_still_believed() {
        let waiters = Waiters::new();
        assert!(waiters.come());
        (0..8).for_each(|_| waiters.one_came());
        waiters.nobody_came();
        assert!(waiters.come());
        waiters.nobody_came();
        assert!(!waiters.come());
        (0..8).for_each(|_| waiters.one_came());
        assert!(waiters.come());
    }

    #[test]
    fn the_baton_is_given_to_a_waiter_once_for_each_time_it_asks() {
        let waiters = Waiters::new();
        assert!(!waiters.takes_baton());
        waiters.ask_for_baton();
        assert!(waiters.takes_baton() && !waiters.takes_baton());
        waiters.leave_all_to_workers();
        waiters.ask_for_baton();
        assert!(!waiters.takes_baton(), "nobody comes");
    }
}
