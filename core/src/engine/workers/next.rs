//! Requests that their submitter leaves for its own wait: the usual case of a program that submits one, or a few, and waits for
//! them, in one atomic step each.
//!
//! One word: `use << 42 | WATCHED | ALONE | up to four times slot + 1`, the oldest in the lowest bits. Whoever takes a slot out of the
//! word has it: a waiter that executes it, a submitter that needs the ring instead because more has come, the watchdog that finds it
//! lying about, or a cancel. The count of uses makes every word a different one. Slots that are here with the mark `ALONE` are the only
//! requests of their context that wait to be executed: no other was held when the first was left, and whoever submits
//! one that goes elsewhere takes them out first. Their waiter need not look anywhere else.

use crate::sync::{AtomicU64, Ordering};

/// Slots that there is room for, beside the first one only with the mark.
pub(crate) const MOST: usize = 4;
const FIELD: u32 = 10;
const SLOT: u64 = (1 << FIELD) - 1;
const SLOTS: u64 = (1 << (FIELD * MOST as u32)) - 1;
const ALONE: u64 = 1 << 40;
const WATCHED: u64 = 1 << 41;
const USE: u64 = 1 << 42;

#[derive(Debug)]
pub(crate) struct Next(AtomicU64);

/// What was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) slot: u32,
    /// Grows by one with each request.
    pub(crate) number: u64,
    /// There are more.
    pub(crate) more: bool,
}

/// How many slots there are in a word.
#[inline]
fn count(word: u64) -> u32 {
    (u64::BITS - (word & SLOTS).leading_zeros()).div_ceil(FIELD)
}

/// The word without its oldest slot, and that one.
#[inline]
fn without_first(word: u64) -> Option<(u64, Taken)> {
    let slot = (word & SLOT).checked_sub(1)? as u32;
    let left = (word & SLOTS) >> FIELD;
    let marks = word & !(SLOTS | if left == 0 { ALONE } else { 0 });
    let number = (word / USE).wrapping_sub(u64::from(count(word)) - 1);
    Some((marks | left, Taken { slot, number, more: left != 0 }))
}

/// The word without a certain slot.
fn without(word: u64, slot: u32) -> Option<u64> {
    let field = u64::from(slot) + 1;
    let at = (0..MOST as u32).map(|at| at * FIELD).find(|at| word >> at & SLOT == field)?;
    let below = word & ((1 << at) - 1);
    let left = (word & SLOTS) >> (at + FIELD) << at | below;
    Some(word & !(SLOTS | if left == 0 { ALONE } else { 0 }) | left)
}

impl Next {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Is there nothing? A hint.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::SeqCst) & SLOTS == 0
    }

    /// The word, for seeing whether it is still the same later.
    pub(crate) fn word(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Leaves a slot here, the only one that is held or not. `Some(watched)` if nothing was here.
    #[inline]
    pub(crate) fn put(&self, slot: u32, alone: bool) -> Option<bool> {
        let now = self.0.load(Ordering::Relaxed);
        if now & SLOTS != 0 || u64::from(slot) >= SLOT {
            return None;
        }
        let alone = if alone { ALONE } else { 0 };
        self.add(now, now | alone | (u64::from(slot) + 1))
    }

    /// Is there room beside what is alone here?
    #[inline]
    pub(crate) fn has_room_beside(&self) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        now & ALONE != 0 && count(now) < MOST as u32
    }

    /// Leaves a slot beside others that are alone here. `Some(watched)` if they are, and there was room.
    #[inline]
    pub(crate) fn put_beside(&self, slot: u32) -> Option<bool> {
        let now = self.0.load(Ordering::Relaxed);
        let at = count(now);
        if now & ALONE == 0 || at == MOST as u32 || u64::from(slot) >= SLOT {
            return None;
        }
        self.add(now, now | (u64::from(slot) + 1) << (at * FIELD))
    }

    #[inline]
    fn add(&self, now: u64, next: u64) -> Option<bool> {
        let next = next.wrapping_add(USE);
        // Release: the slot's contents. In one order with the flag of sleepers, as for the baton.
        let swap = self.0.compare_exchange(now, next, Ordering::SeqCst, Ordering::Relaxed);
        swap.ok().map(|now| now & WATCHED != 0)
    }

    /// Takes the oldest that is here.
    #[inline]
    pub(crate) fn take(&self) -> Option<Taken> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let (next, taken) = without_first(now)?;
            match self.0.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(taken),
                Err(changed) => now = changed,
            }
        }
    }

    /// Takes the one that is here if the context has no other that waits to be executed, and `may` says so of who has taken from
    /// here before.
    #[inline]
    pub(crate) fn take_single(&self, may: impl FnOnce() -> bool) -> Option<Taken> {
        let now = self.0.load(Ordering::Acquire);
        // The mark, one slot, and no other.
        let slot = (now & (ALONE | SLOTS)).wrapping_sub(ALONE + 1);
        if slot >= SLOT || !may() {
            return None;
        }
        let next = now & !(ALONE | SLOTS);
        self.0.compare_exchange(now, next, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        Some(Taken { slot: slot as u32, number: now / USE, more: false })
    }

    /// Are there several here, and nothing else of the context that waits to be executed? A hint.
    #[inline]
    pub(crate) fn has_several(&self) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        now & ALONE != 0 && count(now) > 1
    }

    /// Takes everything that is here: the slots, from the oldest on.
    pub(crate) fn take_all(&self) -> impl Iterator<Item = u32> {
        let was = self.0.fetch_and(!(SLOTS | ALONE), Ordering::AcqRel);
        (0..count(was)).map(move |at| (was >> (at * FIELD) & SLOT) as u32 - 1)
    }

    /// Takes a certain slot, if `still` says of it what is to be true when it is taken.
    pub(crate) fn remove(&self, slot: u32, still: impl Fn() -> bool) -> bool {
        let mut now = self.0.load(Ordering::Acquire);
        while let Some(next) = without(now, slot).filter(|_| still()) {
            match self.0.compare_exchange(now, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(changed) => now = changed,
            }
        }
        false
    }

    /// Marks it as watched. True for the one caller that has to tell the watchdog.
    pub(crate) fn watch(&self) -> bool {
        self.0.fetch_or(WATCHED, Ordering::AcqRel) & WATCHED == 0
    }

    /// Ends the watch if nothing is here.
    pub(crate) fn unwatch(&self) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        now & SLOTS == 0
            && self
                .0
                .compare_exchange(now, now & !WATCHED, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Next, SLOT, WATCHED};

    #[test]
    fn one_slot_at_a_time_and_each_taken_once() {
        let next = Next::new();
        assert_eq!(next.take(), None);
        assert_eq!(next.put(0, false), Some(false));
        assert_eq!(next.put(1, false), None);
        assert_eq!(next.put_beside(1), None);
        let word = next.word();
        assert!(next.watch() && !next.watch() && !next.unwatch());
        assert_eq!(next.take_single(|| true), None);
        assert_eq!(next.take().map(|taken| taken.slot), Some(0));
        assert_eq!(next.take(), None);
        assert_eq!(next.put(0, false), Some(true));
        assert_ne!(next.word() | WATCHED, word | WATCHED, "another use");
        assert!(!next.remove(1, || true) && !next.remove(0, || false) && next.remove(0, || true));
        assert!(next.is_empty() && next.unwatch());
        let too_large = SLOT as u32;
        assert_eq!(next.put(too_large, true), None);
        assert_eq!(next.put(too_large - 1, true), Some(false));
        assert_eq!(next.put_beside(too_large), None);
        assert_eq!(next.take_single(|| true).map(|taken| taken.slot), Some(too_large - 1));
    }

    /// Takes all that is alone here, and checks that it is numbered.
    fn all(next: &Next) -> Vec<(u32, bool)> {
        let mut number = None;
        std::iter::from_fn(|| next.take())
            .inspect(|taken| {
                assert!(number.is_none_or(|before| taken.number == before + 1), "{taken:?}");
                number = Some(taken.number);
            })
            .map(|taken| (taken.slot, taken.more))
            .collect()
    }

    #[test]
    fn several_that_are_alone_are_taken_in_their_order() {
        let next = Next::new();
        for round in 0..3 {
            assert!(!next.has_room_beside());
            assert!(next.put(7, true).is_some());
            for slot in [3, 9, 0] {
                assert!(next.has_room_beside() && next.put_beside(slot).is_some());
            }
            assert!(!next.has_room_beside() && next.put_beside(1).is_none());
            assert!(next.has_several() && next.take_single(|| true).is_none());
            match round {
                0 => assert_eq!(all(&next), [(7, true), (3, true), (9, true), (0, false)]),
                1 => assert_eq!(next.take_all().collect::<Vec<_>>(), [7, 3, 9, 0]),
                _ => {
                    assert!(next.remove(3, || true) && next.remove(0, || true));
                    assert!(!next.remove(3, || true));
                    assert!(next.put_beside(5).is_some());
                    assert_eq!(all(&next), [(7, true), (9, true), (5, false)]);
                }
            }
            assert!(next.is_empty() && next.take_all().next().is_none());
        }
    }

    #[test]
    fn the_mark_goes_with_the_last_slot() {
        let next = Next::new();
        let ways: [fn(&Next) -> bool; 3] = [
            |next| next.take().is_some(),
            |next| next.remove(9, || true),
            |next| next.take_all().count() == 1,
        ];
        for take in ways {
            assert_eq!(next.put(9, true), Some(false));
            assert!(take(&next));
            assert_eq!(next.put(9, false), Some(false));
            assert_eq!(next.take_single(|| true), None);
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
            let here = next.take_single(|| true).is_some();
            let takers = [here, waiter.join().unwrap(), canceller.join().unwrap()];
            assert_eq!(takers.iter().filter(|&&took| took).count(), 1);
        });
    }

    #[test]
    fn loom_of_two_each_is_taken_by_exactly_one_and_the_mark_says_so() {
        loom::model(|| {
            let next = Arc::new(Next::new());
            assert!(next.put(3, true).is_some());
            let other = Arc::clone(&next);
            let waiter = thread::spawn(move || other.take_single(|| true).map(|taken| taken.slot));
            let other = Arc::clone(&next);
            let canceller = thread::spawn(move || other.remove(3, || true).then_some(3));
            // Beside it, or, where it is gone, elsewhere.
            let left = next.put_beside(4).is_some();
            let taken = [waiter.join().unwrap(), canceller.join().unwrap()];
            let rest: Vec<u32> = next.take_all().collect();
            let took = |slot| taken.iter().flatten().chain(&rest).filter(|&&s| s == slot).count();
            assert_eq!((took(3), took(4)), (1, usize::from(left)));
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
