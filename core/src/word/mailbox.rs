//! A request that its submitter leaves for its own wait. This is the usual case of a program that
//! submits one request and waits for it; the submit and the wait take one atomic step each.
//!
//! One word: `use << 12 | WATCHED | ALONE | slot + 1`. The thread that takes the slot out of the
//! word has the request. That thread is a waiter that executes it, the watchdog, or a thread that
//! cancels it. Or it is a submitter that pushes more to the inline lane's ring. `WATCHED`: the
//! watchdog checks the context. The count of uses makes every word a different one. A slot with the
//! mark `ALONE` is the only request of its context that waits to be executed. No other slot was
//! held when it was put here, and a thread that submits to another lane takes it out first. So its
//! waiter need not check other lanes.

use crate::sync::{AtomicU64, Ordering};

const SLOT: u64 = (1 << 10) - 1;
const ALONE: u64 = 1 << 10;
const WATCHED: u64 = 1 << 11;
const USE: u64 = 1 << 12;

#[derive(Debug)]
pub(crate) struct Mailbox(AtomicU64);

/// The slot that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) slot: u32,
    /// The request's number in the order in which requests were put into this mailbox.
    pub(crate) number: u64,
}

impl Mailbox {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Is the mailbox empty? A hint.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::SeqCst) & SLOT == 0
    }

    /// The word, to check later whether it is the same.
    pub(crate) fn word(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Puts a slot here; `alone`: no other slot is held. Returns whether the mailbox is watched.
    /// `None`: nothing was put. The mailbox has a slot, the new slot's number is too large, or
    /// another thread has changed the word.
    #[inline]
    pub(crate) fn put(&self, slot: u32, alone: bool) -> Option<bool> {
        let now = self.0.load(Ordering::Relaxed);
        let field = u64::from(slot) + 1;
        if now & SLOT != 0 || field > SLOT {
            return None;
        }
        let next = (now | field | if alone { ALONE } else { 0 }).wrapping_add(USE);
        // Release: the thread that takes the slot sees its contents. The exchange is also ordered
        // with the sleepers' flag, as in `Baton::announce`.
        let swap = self.0.compare_exchange(now, next, Ordering::SeqCst, Ordering::Relaxed);
        swap.ok().map(|now| now & WATCHED != 0)
    }

    /// Takes the slot.
    #[inline]
    pub(crate) fn take(&self) -> Option<Taken> {
        self.take_if(|_| true)
    }

    /// Takes the slot if no other request of the context waits to be executed.
    #[inline(always)]
    pub(crate) fn take_alone(&self) -> Option<Taken> {
        let now = self.0.load(Ordering::Acquire);
        let slot = (now & (ALONE | SLOT)).wrapping_sub(ALONE + 1);
        if slot >= SLOT {
            return None;
        }
        let next = now & !(ALONE | SLOT);
        self.0.compare_exchange(now, next, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        Some(Taken { slot: slot as u32, number: now / USE })
    }

    /// Takes a certain slot, if `still` is true of it at that moment.
    pub(crate) fn remove(&self, slot: u32, still: impl Fn() -> bool) -> bool {
        self.take_if(|here| here == slot && still()).is_some()
    }

    #[inline]
    fn take_if(&self, wanted: impl Fn(u32) -> bool) -> Option<Taken> {
        let mut now = self.0.load(Ordering::Acquire);
        loop {
            let slot = (now & SLOT).checked_sub(1)? as u32;
            if !wanted(slot) {
                return None;
            }
            let next = now & !(ALONE | SLOT);
            match self.0.compare_exchange(now, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(Taken { slot, number: now / USE }),
                Err(changed) => now = changed,
            }
        }
    }

    /// Marks the mailbox as watched. True for the one caller that has to tell the watchdog.
    pub(crate) fn watch(&self) -> bool {
        self.0.fetch_or(WATCHED, Ordering::AcqRel) & WATCHED == 0
    }

    /// Ends the watch if the mailbox is empty.
    pub(crate) fn unwatch(&self) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        let swap =
            || self.0.compare_exchange(now, now & !WATCHED, Ordering::AcqRel, Ordering::Relaxed);
        now & SLOT == 0 && swap().is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Mailbox, SLOT, WATCHED};

    #[test]
    fn one_slot_at_a_time_and_every_use_is_another_word() {
        let mailbox = Mailbox::new();
        assert!(mailbox.is_empty() && mailbox.take().is_none() && mailbox.take_alone().is_none());
        assert_eq!(mailbox.put(5, false), Some(false));
        assert!(mailbox.watch() && !mailbox.watch() && !mailbox.unwatch());
        assert_eq!((mailbox.put(6, true), mailbox.take_alone()), (None, None));
        assert_eq!(mailbox.take().map(|taken| taken.slot), Some(5));
        let word = mailbox.word();
        assert_eq!(mailbox.put(0, false), Some(true));
        assert_ne!(mailbox.word() | WATCHED, word | WATCHED, "another use");
        let mine = |slot, still: bool| mailbox.remove(slot, || still);
        assert!(!mine(1, true) && !mine(0, false) && mine(0, true));
        assert!(mailbox.is_empty() && mailbox.unwatch());
        assert_eq!(mailbox.put(SLOT as u32, true), None, "there is no such number");
        assert_eq!(mailbox.put(SLOT as u32 - 1, true), Some(false));
        assert_eq!(mailbox.take_alone().map(|taken| taken.slot), Some(SLOT as u32 - 1));
    }

    #[test]
    fn the_mark_goes_with_the_slot_and_requests_are_numbered() {
        let mailbox = Mailbox::new();
        let ways: [fn(&Mailbox) -> bool; 3] = [
            |mailbox| mailbox.take().is_some(),
            |mailbox| mailbox.take_alone().is_some(),
            |mailbox| mailbox.remove(9, || true),
        ];
        for (round, take) in (0..).zip(ways) {
            assert_eq!(mailbox.put(9, true), Some(false));
            assert!(take(&mailbox));
            assert_eq!(mailbox.put(9, false), Some(false));
            assert_eq!(mailbox.take_alone(), None);
            assert_eq!(mailbox.take().map(|taken| taken.number), Some(2 * round + 2));
        }
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    //! A failure would be: a slot taken by two threads, or by none, or a request left here that is
    //! not watched.

    use super::Mailbox;
    use loom::sync::Arc;
    use loom::thread;

    #[test]
    fn loom_a_slot_left_here_is_taken_by_exactly_one() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::new());
            assert!(mailbox.put(3, true).is_some());
            let other = Arc::clone(&mailbox);
            let waiter = thread::spawn(move || other.take().is_some());
            let other = Arc::clone(&mailbox);
            let canceller = thread::spawn(move || other.remove(3, || true));
            let here = mailbox.take_alone().is_some();
            let takers = [here, waiter.join().unwrap(), canceller.join().unwrap()];
            assert_eq!(takers.iter().filter(|&&took| took).count(), 1);
        });
    }

    #[test]
    fn loom_what_is_left_here_is_watched() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::new());
            mailbox.watch();
            let other = Arc::clone(&mailbox);
            let watchdog = thread::spawn(move || other.unwatch());
            let watched = mailbox.put(1, true);
            let ended = watchdog.join().unwrap();
            match watched {
                // `put` has failed, because the watch ended in between: the submitter uses the
                // ring.
                None => assert!(ended),
                Some(true) => assert!(!ended, "left here, and nobody watches"),
                Some(false) => assert!(ended),
            }
        });
    }

    /// Has to fail: ending the watch by a plain store loses a slot.
    #[test]
    #[should_panic(expected = "forgotten")]
    fn loom_canary_unwatch_by_store_forgets_a_slot() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::new());
            mailbox.watch();
            let other = Arc::clone(&mailbox);
            let watchdog = thread::spawn(move || {
                if other.is_empty() {
                    other.0.store(0, super::Ordering::Release);
                }
            });
            let put = mailbox.put(1, true).is_some();
            watchdog.join().unwrap();
            assert!(!put || mailbox.take().is_some(), "forgotten");
        });
    }
}
