//! The seat: the right of one thread that waits in io_uring_enter(2) to take events out of the
//! epoll itself.
//!
//! The word `holder` is a hint, and a wrong value loses no event. The poll thread sleeps on the
//! same epoll, and events stay there until a thread takes them. The poll thread only leaves events
//! alone for a while, as long as waiters come and go. Then it takes the remaining events.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

/// The holder has not taken events that were there: it executes something else, or has left by a
/// jump (siglongjmp(3)).
const LATE: u32 = 1 << 31;

#[derive(Debug, Default)]
pub(super) struct Seat {
    /// The thread that has the seat (gettid(2)), or 0.
    holder: AtomicU32,
    /// How many times the seat was left, or a thread executed requests for events that it had
    /// taken.
    turns: AtomicU32,
}

impl Seat {
    /// The calling thread is about to sleep until events come. False: another thread has the seat.
    pub(super) fn take(&self) -> bool {
        let me = sys::thread_id() as u32;
        let exchange =
            |from| self.holder.compare_exchange(from, me, Ordering::Acquire, Ordering::Relaxed);
        // If this thread has the seat already, it has left its sleep by a jump, or is in a signal
        // handler.
        let is_its_own = |now| now & !LATE == me && exchange(now).is_ok();
        exchange(0).map_or_else(is_its_own, |_| true)
    }

    /// The calling thread no longer sleeps. If it has the seat, it gives it up.
    pub(super) fn leave(&self) {
        let me = sys::thread_id() as u32;
        self.turns.fetch_add(1, Ordering::Relaxed);
        let is_its_own = |now| (now & !LATE == me).then_some(0);
        let _ = self.holder.fetch_update(Ordering::Release, Ordering::Relaxed, is_its_own);
    }

    /// A thread executes requests for events that it has taken.
    pub(super) fn goes_on(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that changes while waiters come and go.
    pub(super) fn turns(&self) -> u32 {
        self.turns.load(Ordering::Relaxed)
    }

    /// May the seat be held by a thread that takes events?
    pub(super) fn is_taken(&self) -> bool {
        let holder = self.holder.load(Ordering::Relaxed);
        holder != 0 && holder & LATE == 0
    }

    /// The thread that may have the seat has not taken events that were there.
    pub(super) fn is_late(&self) {
        let late = |now| (now != 0).then_some(now | LATE);
        let _ = self.holder.fetch_update(Ordering::Relaxed, Ordering::Relaxed, late);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::thread;

    use super::Seat;

    #[test]
    fn one_thread_has_the_seat_and_a_late_one_has_it_to_itself_all_the_same() {
        let seat = Seat::default();
        let other_takes = || thread::scope(|scope| scope.spawn(|| seat.take()).join().unwrap());
        assert!(seat.take() && !other_takes());
        // The thread still has the seat, as after a jump out of a handler.
        assert!(seat.take());
        seat.is_late();
        assert!(!seat.is_taken() && !other_takes());
        assert!(seat.take() && seat.is_taken());
        seat.is_late();
        seat.leave();
        assert_eq!((seat.turns(), seat.is_taken()), (1, false));
        seat.is_late();
        assert!(other_takes());
    }
}
