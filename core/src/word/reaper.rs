//! The right to collect a kernel lane's completions: one thread at a time, asleep or awake.
//!
//! While requests are in flight somebody who waits has to have it. Whoever gives it up wakes those
//! that sleep elsewhere (they registered as sleepers of the completion queue first, and looked at
//! this flag afterwards), so either the leaver sees the sleeper, or the sleeper sees the flag free.

use crate::queue::Completions;
use crate::sync::{AtomicBool, Ordering, fence};

#[derive(Debug)]
pub(crate) struct Reaper {
    taken: AtomicBool,
    /// Somebody wanted the right while another had it.
    wanted: AtomicBool,
}

/// The right, given up on drop: followed by [`Reaper::pass_on`].
#[derive(Debug)]
pub(crate) struct Reaping<'a>(&'a Reaper);

impl Reaper {
    pub(crate) fn new() -> Self {
        Self { taken: AtomicBool::new(false), wanted: AtomicBool::new(false) }
    }

    /// Takes the right, if nobody has it.
    #[inline]
    pub(crate) fn take(&self) -> Option<Reaping<'_>> {
        // The load first, so that those who only look do not take the line from the holder.
        if self.taken.load(Ordering::Relaxed) || self.taken.swap(true, Ordering::Acquire) {
            return None;
        }
        Some(Reaping(self))
    }

    /// As [`Reaper::take`], by somebody who is told of completions once. `None`: who has the right
    /// finds out by [`Reaper::was_wanted`].
    #[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "a tokio runtime drives"))]
    pub(crate) fn take_or_be_missed(&self) -> Option<Reaping<'_>> {
        self.take().or_else(|| {
            self.wanted.store(true, Ordering::Relaxed);
            if self.is_free() { self.take() } else { None }
        })
    }

    /// Asked after [`Reaper::pass_on`]: there is somebody to be called.
    #[inline]
    pub(crate) fn was_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) && self.wanted.swap(false, Ordering::AcqRel)
    }

    /// Nobody has it: a thread that is about to sleep elsewhere, and is known to, asks this.
    pub(crate) fn is_free(&self) -> bool {
        // Pairs with the fence in `pass_on`: of two threads that each write their own word and then
        // read the other's, one at least reads what was written.
        fence(Ordering::SeqCst);
        !self.taken.load(Ordering::Relaxed)
    }

    fn sees_sleepers(completions: &Completions) -> bool {
        fence(Ordering::SeqCst);
        completions.has_sleepers()
    }

    /// The right was given up while requests are in flight: somebody who sleeps elsewhere takes it.
    pub(crate) fn pass_on(&self, completions: &Completions) {
        if Self::sees_sleepers(completions) {
            completions.wake_now();
        }
    }
}

impl Drop for Reaping<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    //! Failure would look like: a thread asleep for ever while requests are in flight and nobody
    //! collects them.

    use std::cell::Cell;

    use super::{AtomicBool, Ordering, Reaper};
    use crate::queue::{Completions, Ring, Sleeper};
    use loom::sync::Arc;
    use loom::thread;

    fn reaper_and_queue() -> (Arc<Reaper>, Arc<Completions>) {
        (Arc::new(Reaper::new()), Arc::new(Completions::new(Ring::cqes(1), 1)))
    }

    #[test]
    fn loom_the_right_to_collect_is_passed_on() {
        loom::model(|| {
            let (reaper, completions) = reaper_and_queue();
            let right = reaper.take().expect("free");
            let (other, queue) = (Arc::clone(&reaper), Arc::clone(&completions));
            let waiter = thread::spawn(move || {
                while other.take().is_none() {
                    let stay_up = || other.is_free();
                    let sleeper = Sleeper {
                        need: 1,
                        concern: None,
                        stay_up: &stay_up,
                        even_if_closed: false,
                        restarts: false,
                    };
                    queue.sleep(&sleeper, None);
                }
            });
            drop(right);
            reaper.pass_on(&completions);
            // A thread that slept for ever would be a deadlock.
            waiter.join().unwrap();
        });
    }

    /// The leaver sees the sleeper, or the sleeper, who looks before or after it is known to
    /// sleep, the free flag.
    fn one_sees_the_other(looks_after: bool) {
        loom::model(move || {
            let (reaper, completions) = reaper_and_queue();
            let right = reaper.take().expect("free");
            let (other, queue) = (Arc::clone(&reaper), Arc::clone(&completions));
            let has_looked = Arc::new(AtomicBool::new(false));
            let leaver_has_looked = Arc::clone(&has_looked);
            let waiter = thread::spawn(move || {
                let before = other.is_free();
                let after = Cell::new(false);
                let stay_up = || {
                    after.set(other.is_free());
                    // It stays known to sleep, as one that sleeps does.
                    while !leaver_has_looked.load(Ordering::Acquire) {
                        thread::yield_now();
                    }
                    true
                };
                let sleeper = Sleeper {
                    need: 1,
                    concern: None,
                    stay_up: &stay_up,
                    even_if_closed: false,
                    restarts: false,
                };
                queue.sleep(&sleeper, None);
                if looks_after { after.get() } else { before }
            });
            drop(right);
            let seen = Reaper::sees_sleepers(&completions);
            has_looked.store(true, Ordering::Release);
            assert!(waiter.join().unwrap() || seen, "neither sees the other");
        });
    }

    #[test]
    fn loom_leaver_or_sleeper_sees_the_other() {
        one_sees_the_other(true);
    }

    /// Something completes, and who is told of it wants to collect while another is at its end.
    /// `looks`: that one looks whether it was wanted.
    fn what_has_completed_is_collected(looks: bool) {
        loom::model(move || {
            let (reaper, completions) = reaper_and_queue();
            let completed = Arc::new(AtomicBool::new(false));
            let right = reaper.take().expect("free");
            let (other, also_completed) = (Arc::clone(&reaper), Arc::clone(&completed));
            let told = thread::spawn(move || {
                also_completed.store(true, Ordering::Relaxed);
                other.take_or_be_missed().is_some()
            });
            let collected = completed.load(Ordering::Relaxed);
            drop(right);
            reaper.pass_on(&completions);
            let calls = looks && reaper.was_wanted();
            assert!(collected | told.join().unwrap() | calls, "nobody collects");
        });
    }

    #[test]
    fn loom_who_is_told_once_collects_or_is_called() {
        what_has_completed_is_collected(true);
    }

    /// Canary: who gives up the right has to look.
    #[test]
    #[should_panic(expected = "nobody collects")]
    fn loom_canary_a_holder_that_does_not_look_leaves_a_completion() {
        what_has_completed_is_collected(false);
    }

    /// Canary: who looks only before it is known to sleep is left asleep.
    #[test]
    #[should_panic(expected = "neither sees the other")]
    fn loom_canary_looking_before_is_too_early() {
        one_sees_the_other(false);
    }
}
