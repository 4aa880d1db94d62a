//! Threads that poll (wait for zero completions) in a loop. A thread with a real-time policy
//! (sched(7)) keeps a CPU from the engine's threads, which have no such policy. sched_yield(2) does
//! not let them run either. So such a thread sleeps briefly if its polls find nothing for long.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Instance;
use crate::router::tuning::{MOMENT, TICK};
use crate::sys;

/// The times of polls that found nothing, in ticks.
#[derive(Debug, Default)]
pub(super) struct Polls {
    /// The first of successive polls that found nothing; 0 if there is none.
    since: AtomicU64,
    last: AtomicU64,
}

impl Polls {
    /// Counts a poll that found nothing, at the time `now`. True once in `long` ticks of successive
    /// polls.
    fn is_long(&self, now: u64, long: u64) -> bool {
        let (since, last) = (self.since.load(Ordering::Relaxed), self.last.load(Ordering::Relaxed));
        self.last.store(now, Ordering::Relaxed);
        let begins = since == 0 || now.wrapping_sub(last) > long;
        let is_long = !begins && now.wrapping_sub(since) > long;
        if begins || is_long {
            self.since.store(now, Ordering::Relaxed);
        }
        is_long
    }
}

impl Instance {
    /// The calling thread has polled; `found`: it has got a completion.
    #[inline]
    pub(super) fn polled(&self, found: bool) {
        if !found {
            self.polled_in_vain();
        } else if self.polls.since.load(Ordering::Relaxed) != 0 {
            self.polls.since.store(0, Ordering::Relaxed);
        }
    }

    #[inline(never)]
    fn polled_in_vain(&self) {
        let long = TICK.as_micros() as u64 * self.board.ticks_per_us();
        if self.polls.is_long(sys::ticks(), long)
            && self.board.free_slots().held_more_than(0)
            && sys::is_real_time()
        {
            sys::nap(MOMENT);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Polls;

    #[test]
    fn only_polls_that_follow_each_other_for_long_count() {
        let polls = Polls::default();
        let long = |now| polls.is_long(now, 1000);
        assert!(!long(5000));
        assert!(!long(5500) && !long(6000));
        assert!(long(6001));
        assert!(!long(6002), "once in this many ticks");
        assert!(!long(7000) && long(7002));
        // More than 1000 ticks pass between these polls: each begins a new series.
        assert!(!long(8003) && !long(9004) && !long(10_005));
    }
}
