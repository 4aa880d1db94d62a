//! The free slots: taken in batches with one contended step, given back one by one.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The maximum number of slots that one step takes.
pub(crate) const BATCH: usize = 32;
/// The number of words that a submit checks for one with enough free slots: a cache line.
const WORDS_NEAR: usize = 8;

/// The free slots: one bit each.
#[derive(Debug)]
pub(crate) struct FreeSlots {
    words: Box<[AtomicU64]>,
    /// A word that probably has a free slot. Lower slots are preferred, because they are in the
    /// cache.
    hint: AtomicU32,
    count: usize,
    /// The last word when all of its slots are free.
    last: u64,
}

/// Up to [`BATCH`] slot numbers. Only the first `len` are initialized: a submit makes several of
/// these arrays, and to fill each would take time.
#[derive(Debug)]
pub(crate) struct Numbers {
    slots: [MaybeUninit<u32>; BATCH],
    len: usize,
}

/// Slots of one word that will be given back together. They are held until then.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Returned {
    word: u32,
    bits: u64,
}

impl Drop for Returned {
    #[inline]
    fn drop(&mut self) {
        debug_assert_eq!(self.bits, 0, "slots were never given back");
    }
}

impl Numbers {
    #[inline]
    pub(crate) const fn new() -> Self {
        Self { slots: [const { MaybeUninit::uninit() }; BATCH], len: 0 }
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u32] {
        // SAFETY: `push` has initialised the first `len`.
        unsafe { std::slice::from_raw_parts(self.slots.as_ptr().cast(), self.len) }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(crate) fn push(&mut self, slot: u32) {
        self.slots[self.len].write(slot);
        self.len += 1;
    }
}

/// Counts the contended steps of a submit, for a measurement. The implementation `()` counts
/// nothing, and compiles to nothing.
pub(crate) trait CountSteps {
    /// Counts one attempt to change a word that other submitters change, too.
    fn step(&mut self);
    /// Counts one batch that is passed to the engine.
    fn handed_over(&mut self);
}

impl CountSteps for () {
    #[inline(always)]
    fn step(&mut self) {}
    #[inline(always)]
    fn handed_over(&mut self) {}
}

impl FreeSlots {
    /// `count` free slots.
    pub(crate) fn new(count: usize) -> Self {
        let free = |word: usize| u64::MAX >> (64 - (count - word * 64).min(64));
        let words = (0..count.div_ceil(64)).map(|word| AtomicU64::new(free(word))).collect();
        let last = count.div_ceil(64).checked_sub(1).map_or(0, free);
        Self { words, hint: AtomicU32::new(0), count, last }
    }

    /// As [`FreeSlots::take_counted`], without counting.
    #[cfg(any(test, loom))]
    pub(crate) fn take(&self, want: usize) -> Numbers {
        self.take_counted(want, &mut ())
    }

    /// Takes up to `want` (at most [`BATCH`]) slots, with one contended step if they are in one
    /// word. Each attempt is counted.
    #[inline]
    pub(crate) fn take_counted(&self, want: usize, steps: &mut impl CountSteps) -> Numbers {
        let want = want.min(BATCH);
        let mut batch = Numbers::new();
        // First, a few words are searched for one with `want` free slots: taking them needs one
        // step. If no word has that many, this search has only read words.
        let near = self.words.len().min(WORDS_NEAR);
        if want == 1 || near == 1 || !self.take_from_words(near, want, want, &mut batch, steps) {
            self.take_from_words(self.words.len(), 1, want, &mut batch, steps);
        }
        batch
    }

    /// Takes one slot: the usual case of a program that submits one request at a time.
    #[inline]
    pub(crate) fn take_one(&self, steps: &mut impl CountSteps) -> Option<u32> {
        let start = self.hint.load(Ordering::Relaxed);
        match self.take_one_from(start as usize, steps) {
            None => self.take_one_elsewhere(start as usize, steps),
            found => found,
        }
    }

    /// Takes one slot from the word of the hint, and says whether it is the only held slot, as
    /// [`FreeSlots::is_alone`] does. `None`: that word has no free slot, or another thread has
    /// changed it meanwhile.
    #[inline(always)]
    pub(crate) fn take_near(&self) -> Option<(u32, bool)> {
        let at = self.hint.load(Ordering::Relaxed) as usize;
        let (word, rest_is_free, all) = match &*self.words {
            [only] => (only, true, self.last),
            [first, last] if at == 0 => {
                (first, last.load(Ordering::Relaxed) == self.last, u64::MAX)
            }
            [first, last] => (last, first.load(Ordering::Relaxed) == u64::MAX, self.last),
            words => (words.get(at)?, false, 0),
        };
        let free = word.load(Ordering::Relaxed);
        if free == 0 {
            return None;
        }
        // Acquire: as in `take_from`.
        let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
        word.compare_exchange(free, free & (free - 1), success, failure).ok()?;
        Some(((at * 64) as u32 + free.trailing_zeros(), rest_is_free && free == all))
    }

    #[cold]
    fn take_one_elsewhere(&self, start: usize, steps: &mut impl CountSteps) -> Option<u32> {
        let others = (start + 1..self.words.len()).chain(0..start);
        let found = others.filter_map(|at| self.take_one_from(at, steps)).next()?;
        self.hint.store(found / 64, Ordering::Relaxed);
        Some(found)
    }

    #[inline]
    fn take_one_from(&self, at: usize, steps: &mut impl CountSteps) -> Option<u32> {
        let word = &self.words[at];
        let mut free = word.load(Ordering::Relaxed);
        while free != 0 {
            steps.step();
            // Acquire: as in `take_from`.
            match word.compare_exchange_weak(
                free,
                free & (free - 1),
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some((at * 64) as u32 + free.trailing_zeros()),
                Err(now) => free = now,
            }
        }
        None
    }

    /// Fills `batch` up to `want` from `words` words, the hint's word first. Words with fewer than
    /// `at_least` free slots are skipped. True if the batch is full.
    #[inline]
    fn take_from_words(
        &self,
        words: usize,
        at_least: usize,
        want: usize,
        batch: &mut Numbers,
        steps: &mut impl CountSteps,
    ) -> bool {
        let start = self.hint.load(Ordering::Relaxed) as usize;
        for step in 0..words {
            let mut at = start + step;
            if at >= self.words.len() {
                at -= self.words.len();
            }
            self.take_from(at, at_least, want, batch, steps);
            if batch.len == want {
                if step != 0 {
                    self.hint.store(at as u32, Ordering::Relaxed);
                }
                return true;
            }
        }
        false
    }

    #[inline]
    fn take_from(
        &self,
        at: usize,
        at_least: usize,
        want: usize,
        batch: &mut Numbers,
        steps: &mut impl CountSteps,
    ) {
        let word = &self.words[at];
        let mut free = word.load(Ordering::Relaxed);
        while free.count_ones() as usize >= at_least {
            let missing = want - batch.len;
            let mut rest = free;
            for _ in 0..missing.min(free.count_ones() as usize) {
                rest &= rest - 1;
            }
            steps.step();
            // Acquire: the last holder no longer uses the slot (pairs with `give`).
            match word.compare_exchange_weak(free, rest, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    let mut taken = free ^ rest;
                    while taken != 0 {
                        batch.push((at * 64) as u32 + taken.trailing_zeros());
                        taken &= taken - 1;
                    }
                    return;
                }
                Err(now) => free = now,
            }
        }
    }

    /// Gives one slot back.
    #[inline]
    pub(crate) fn give(&self, slot: u32) {
        self.give_bits(slot / 64, 1 << (slot % 64));
    }

    /// Collects a slot that is given back together with other slots of its word.
    /// [`FreeSlots::give_returned`] gives back what is left.
    #[inline]
    pub(crate) fn give_later(&self, slot: u32, returned: &mut Returned) {
        if slot / 64 != returned.word {
            self.give_returned(returned);
            returned.word = slot / 64;
        }
        returned.bits |= 1 << (slot % 64);
    }

    /// Gives the collected slots back, with one contended step.
    #[inline]
    pub(crate) fn give_returned(&self, returned: &mut Returned) {
        if returned.bits != 0 {
            self.give_bits(returned.word, std::mem::take(&mut returned.bits));
        }
    }

    #[inline]
    fn give_bits(&self, at: u32, bits: u64) {
        let before = self.words[at as usize].fetch_or(bits, Ordering::Release);
        debug_assert_eq!(before & bits, 0, "slots of word {at} given back twice");
        if at < self.hint.load(Ordering::Relaxed) {
            self.hint.store(at, Ordering::Relaxed);
        }
    }

    /// Does the caller hold the only held slot? Exact if no other thread acts, a hint otherwise.
    /// With more than two words of slots, the answer is always no.
    #[inline]
    pub(crate) fn is_alone(&self, slot: u32) -> bool {
        let held = |word: &AtomicU64, free: u64| word.load(Ordering::Relaxed) ^ free;
        let (first, second) = match &*self.words {
            [only] => (held(only, self.last), 0),
            [first, last] => (held(first, u64::MAX), held(last, self.last)),
            _ => return false,
        };
        let (own, other) = if slot < 64 { (first, second) } else { (second, first) };
        other == 0 && own == 1 << (slot % 64)
    }

    /// The number of held slots: exact if no other thread acts, a hint otherwise.
    pub(crate) fn held(&self) -> usize {
        let free: u32 = self.words.iter().map(|w| w.load(Ordering::Relaxed).count_ones()).sum();
        self.count - free as usize
    }

    /// Are more than `n` slots held? Stops counting as soon as the answer is yes.
    #[inline]
    pub(crate) fn held_more_than(&self, n: usize) -> bool {
        let mut held = 0;
        for (at, word) in self.words.iter().enumerate() {
            let bits = (self.count - at * 64).min(64);
            held += bits - word.load(Ordering::Relaxed).count_ones() as usize;
            if held > n {
                return true;
            }
        }
        false
    }

    /// Calls `f` with each slot that is held at the moment of the check.
    pub(crate) fn each_held(&self, mut f: impl FnMut(u32)) {
        for (at, word) in self.words.iter().enumerate() {
            let bits = (self.count - at * 64).min(64);
            let mut held = !word.load(Ordering::Acquire) & (u64::MAX >> (64 - bits));
            while held != 0 {
                f((at * 64) as u32 + held.trailing_zeros());
                held &= held - 1;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{BATCH, CountSteps, FreeSlots, Returned};

    #[test]
    fn a_batch_is_trimmed_to_what_is_free() {
        let free = FreeSlots::new(70);
        let mut all = Vec::new();
        loop {
            let batch = free.take(100);
            if batch.as_slice().is_empty() {
                break;
            }
            assert!(batch.as_slice().len() <= BATCH);
            all.extend_from_slice(batch.as_slice());
        }
        assert_eq!(free.held(), 70);
        assert!(free.held_more_than(69) && !free.held_more_than(70));
        all.sort_unstable();
        assert_eq!(all, (0..70).collect::<Vec<u32>>());
        free.give(65);
        free.give(3);
        assert_eq!(free.take(2).as_slice().len(), 2);
    }

    #[test]
    fn a_slot_is_alone_if_no_other_is_held() {
        for count in [1, 64, 65, 128] {
            let free = FreeSlots::new(count);
            let slots: Vec<u32> = std::iter::from_fn(|| free.take_one(&mut ())).collect();
            assert!(slots.iter().all(|&slot| free.is_alone(slot) == (count == 1)));
            let (&last, others) = slots.split_last().unwrap();
            others.iter().for_each(|&slot| free.give(slot));
            assert!(free.is_alone(last));
            free.give(last);
            let first = free.take_one(&mut ()).unwrap();
            assert!(free.is_alone(first));
        }
        let many = FreeSlots::new(129);
        assert!(!many.is_alone(many.take_one(&mut ()).unwrap()));
    }

    #[test]
    fn single_slots_come_from_every_word_and_each_once() {
        let free = FreeSlots::new(130);
        let mut all: Vec<u32> = std::iter::from_fn(|| free.take_one(&mut ())).collect();
        all.sort_unstable();
        assert_eq!(all, (0..130).collect::<Vec<u32>>());
        // Wherever the hint points, the words before it are checked, too.
        for slot in [129, 64, 0] {
            free.give(slot);
            assert_eq!((free.take_one(&mut ()), free.take_one(&mut ())), (Some(slot), None));
        }
    }

    /// A counter of contended steps.
    #[derive(Default)]
    struct Counted(u32);

    impl CountSteps for Counted {
        fn step(&mut self) {
            self.0 += 1;
        }

        fn handed_over(&mut self) {}
    }

    #[test]
    fn slots_given_back_together_are_all_free_afterwards() {
        let free = FreeSlots::new(130);
        let mut held = Vec::new();
        while let Some(slot) = free.take_one(&mut ()) {
            held.push(slot);
        }
        let mut returned = Returned::default();
        // Slots of several words, alternating.
        for slot in [3, 64, 65, 4, 129, 128, 0] {
            free.give_later(slot, &mut returned);
        }
        free.give_returned(&mut returned);
        free.give_returned(&mut returned);
        assert_eq!((held.len(), free.held()), (130, 123));
        let mut again: Vec<u32> = std::iter::from_fn(|| free.take_one(&mut ())).collect();
        again.sort_unstable();
        assert_eq!(again, [0, 3, 4, 64, 65, 128, 129]);
    }

    #[test]
    fn a_batch_comes_from_one_word_where_one_has_enough() {
        let free = FreeSlots::new(128);
        while !free.take(BATCH).as_slice().is_empty() {}
        (0..20).chain(64..104).for_each(|slot| free.give(slot));
        let mut steps = Counted::default();
        let batch = free.take_counted(BATCH, &mut steps);
        assert_eq!((batch.as_slice().len(), steps.0), (BATCH, 1));
        assert!(batch.as_slice().iter().all(|&slot| slot >= 64));
        // 20 slots are free in one word, and 8 in the other: the batch takes all of them.
        let batch = free.take_counted(BATCH, &mut steps);
        assert_eq!((batch.as_slice().len(), steps.0), (28, 3));
        assert!(free.take_counted(1, &mut steps).as_slice().is_empty());
        assert_eq!((free.held(), steps.0), (128, 3), "a look at nothing is no step");
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    //! A failure would be: one slot given to two submitters, or a slot that no thread can get any
    //! more.

    use super::FreeSlots;
    use loom::sync::Arc;
    use loom::thread;

    #[test]
    fn loom_two_submitters_and_a_releaser_never_share_a_slot() {
        loom::model(|| {
            let free = Arc::new(FreeSlots::new(3));
            let held = free.take(1).as_slice()[0];
            let other = Arc::clone(&free);
            let submitter = thread::spawn(move || other.take(2).as_slice().to_vec());
            let other = Arc::clone(&free);
            let releaser = thread::spawn(move || other.give(held));
            let mut all = Vec::from_iter(free.take_one(&mut ()));
            all.extend(submitter.join().unwrap());
            releaser.join().unwrap();
            all.extend_from_slice(free.take(3).as_slice());
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2]);
        });
    }

    /// Canary: taking by a load and a store gives a slot to two threads.
    #[test]
    #[should_panic(expected = "taken by both")]
    fn loom_canary_taking_by_store_gives_a_slot_twice() {
        fn take_first(free: &FreeSlots) -> u32 {
            let now = free.words[0].load(super::Ordering::Acquire);
            free.words[0].store(now & (now - 1), super::Ordering::Release);
            now.trailing_zeros()
        }
        loom::model(|| {
            let free = Arc::new(FreeSlots::new(2));
            let other = Arc::clone(&free);
            let submitter = thread::spawn(move || take_first(&other));
            let here = take_first(&free);
            assert_ne!(here, submitter.join().unwrap(), "taken by both");
        });
    }
}
