//! A single request that its submitter leaves for its own wait: the usual case of a program that
//! submits one and waits for it, in one atomic step each.
//!
//! One word: `use << 33 | WATCHED | ALONE | slot + 1`. Whoever takes the slot out of the word has it: a
//! waiter that executes it, the submitter that needs the ring instead because more has come, the
//! watchdog that finds it lying about, or a cancel. The count of uses makes every word a different one. A slot that is here with
//! the mark `ALONE` is the only one of its context: no other was held when it was left, and whoever submits another takes it out
//! first. Its waiter need not look anywhere else.

use crate::sync::{AtomicU64, Ordering};

const SLOT: u64 = 0x7fff_ffff;
const ALONE: u64 = 1 << 31;
const WATCHED: u64 = 1 << 32;
const USE: u64 = 1 << 33;

#[derive(Debug)]
pub(crate) struct Next(AtomicU64);

/// What was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) slot: u32,
    /// Grows by one with each request.
    pub(crate) number: u64,
}

impl Next {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Is there nothing? A hint.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::SeqCst) & SLOT == 0
    }

    /// The word, for seeing whether it is still the same later.
    pub(crate) fn word(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Leaves a slot here, the only one that is held or not. `Some(watched)` if there was room.
    #[inline]
    pub(crate) fn put(&self, slot: u32, alone: bool) -> Option<bool> {
        let now = self.0.load(Ordering::Relaxed);
        if now & SLOT != 0 {
            return None;
        }
        let alone = if alone { ALONE } else { 0 };
        let next = now.wrapping_add(USE) | alone | (u64::from(slot) + 1);
        // Release: the slot's contents. In one order with the flag of sleepers, as for the baton.
        let swap = self.0.compare_exchange(now, next, Ordering::SeqCst, Ordering::Relaxed);
        swap.ok().map(|now| now & WATCHED != 0)
    }

    /// Takes what is here.
    #[inline]
    pub(crate) fn take(&self) -> Option<Taken> {
        if self.0.load(Ordering::Relaxed) & SLOT == 0 {
            return None;
        }
        let was = self.0.fetch_and(!(SLOT | ALONE), Ordering::AcqRel);
        let slot = (was & SLOT).checked_sub(1)? as u32;
        Some(Taken { slot, number: was / USE })
    }

    /// Takes what is here if it is the only request of its context.
    #[inline]
    pub(crate) fn take_alone(&self) -> Option<Taken> {
        let now = self.0.load(Ordering::Relaxed);
        if now & ALONE == 0 {
            return None;
        }
        let empty = now & !(SLOT | ALONE);
        self.0.compare_exchange(now, empty, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        Some(Taken { slot: (now & SLOT) as u32 - 1, number: now / USE })
    }

    /// Takes a certain slot, if `still` says of it what is to be true when it is taken.
    pub(crate) fn remove(&self, slot: u32, still: impl Fn() -> bool) -> bool {
        let now = self.0.load(Ordering::Acquire);
        now & SLOT == u64::from(slot) + 1
            && still()
            && self
                .0
                .compare_exchange(now, now & !(SLOT | ALONE), Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// Marks it as watched. True for the one caller that has to tell the watchdog.
    pub(crate) fn watch(&self) -> bool {
        self.0.fetch_or(WATCHED, Ordering::AcqRel) & WATCHED == 0
    }

    /// Ends the watch if nothing is here.
    pub(crate) fn unwatch(&self) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        now & SLOT == 0
            && self
                .0
                .compare_exchange(now, now & !WATCHED, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Next;

    #[test]
    fn one_slot_at_a_time_and_each_taken_once() {
        let next = Next::new();
        assert_eq!(next.take(), None);
        assert_eq!(next.put(0, false), Some(false));
        assert_eq!(next.put(1, false), None);
        let word = next.word();
        assert!(next.watch() && !next.watch() && !next.unwatch());
        assert_eq!(next.take().map(|taken| taken.slot), Some(0));
        assert_eq!(next.take(), None);
        assert_eq!(next.put(0, false), Some(true));
        assert_ne!(next.word() | (1 << 32), word | (1 << 32), "another use");
        assert!(!next.remove(1, || true) && !next.remove(0, || false) && next.remove(0, || true));
        assert!(next.is_empty() && next.unwatch());
    }

    #[test]
    fn one_that_is_alone_is_taken_as_such_and_the_next_one_is_not() {
        let next = Next::new();
        assert_eq!(next.put(7, true), Some(false));
        assert_eq!(next.take_alone().map(|taken| taken.slot), Some(7));
        assert_eq!(next.take_alone(), None);
        assert_eq!(next.put(8, false), Some(false));
        assert_eq!(next.take_alone(), None);
        assert!(next.remove(8, || true));
        for take in [|next: &Next| next.take().is_some(), |next: &Next| next.remove(9, || true)] {
            assert_eq!(next.put(9, true), Some(false));
            assert!(take(&next));
            assert_eq!(next.put(9, false), Some(false));
            assert_eq!(next.take_alone(), None, "the mark goes with the slot");
            assert!(next.take().is_some());
        }
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    //! Failure would look like: a slot taken by two, or by nobody, or a request left here that
    //! nobody watches.

    use super::Next;
    use loom::sync::Arc;
    use loom::thread;

    #[test]
    fn loom_a_slot_left_here_is_taken_by_exactly_one() {
        loom::model(|| {
            let next = Arc::new(Next::new());
            assert!(next.put(3, true).is_some());
            let other = Arc::clone(&next);
            let waiter = thread::spawn(move || other.take().is_some());
            let other = Arc::clone(&next);
            let canceller = thread::spawn(move || other.remove(3, || true));
            let here = next.take_alone().is_some();
            let takers = [here, waiter.join().unwrap(), canceller.join().unwrap()];
            assert_eq!(takers.iter().filter(|&&took| took).count(), 1);
        });
    }

    #[test]
    fn loom_what_is_left_here_is_watched() {
        loom::model(|| {
            let next = Arc::new(Next::new());
            next.watch();
            let other = Arc::clone(&next);
            let watchdog = thread::spawn(move || other.unwatch());
            let watched = next.put(1, true);
            let ended = watchdog.join().unwrap();
            match watched {
                // The put lost to the end of the watch: the submitter uses the ring.
                None => assert!(ended),
                Some(true) => assert!(!ended, "left here, and nobody watches"),
                Some(false) => assert!(ended),
            }
        });
    }

    /// Canary: an end of the watch by a plain store forgets a slot.
    #[test]
    #[should_panic(expected = "forgotten")]
    fn loom_canary_unwatch_by_store_forgets_a_slot() {
        loom::model(|| {
            let next = Arc::new(Next::new());
            next.watch();
            let other = Arc::clone(&next);
            let watchdog = thread::spawn(move || {
                if other.is_empty() {
                    other.0.store(0, super::Ordering::Release);
                }
            });
            let put = next.put(1, true).is_some();
            watchdog.join().unwrap();
            assert!(!put || next.take().is_some(), "forgotten");
        });
    }
}
