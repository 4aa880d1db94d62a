//! Submission queue: a bounded ring of slot numbers, many producers and many consumers, no lock.
//!
//! The ring is never full. Every entry is the number of a held request slot, and the ring has at
//! least as many cells as there are slots. README.md beside this file gives the argument.

use crossbeam_utils::CachePadded;

use crate::lazy_zeroed::Zeros;
use crate::sync::{AtomicU64, Ordering};

/// A ring of slot numbers. A cell has the slot number in its low half. Its high half has the lap:
/// the number of the pass around the ring in which it was written.
#[derive(Debug)]
pub(crate) struct IndexRing {
    head: CachePadded<AtomicU64>,
    tail: CachePadded<AtomicU64>,
    cells: Zeros<AtomicU64>,
    shift: u32,
}

impl IndexRing {
    /// A ring for `slots` request slots.
    pub(crate) fn new(slots: usize) -> Self {
        let capacity = slots.max(2).next_power_of_two();
        Self {
            head: CachePadded::new(AtomicU64::new(0)),
            tail: CachePadded::new(AtomicU64::new(0)),
            cells: Zeros::new(capacity),
            shift: capacity.trailing_zeros(),
        }
    }

    #[inline]
    fn cell(&self, position: u64) -> &AtomicU64 {
        &self.cells[(position & (self.cells.len() as u64 - 1)) as usize]
    }

    /// The high half of the cell of `position` once it is written. The first lap is 1, because a
    /// new cell holds 0.
    #[inline]
    fn lap(&self, position: u64) -> u64 {
        ((position >> self.shift) + 1) & 0xffff_ffff
    }

    /// Appends `slots`, each of which the caller holds. This takes one contended step, whatever
    /// their number.
    #[inline]
    pub(crate) fn push(&self, slots: &[u32]) {
        let first = self.tail.fetch_add(slots.len() as u64, Ordering::Relaxed);
        for (position, &slot) in (first..).zip(slots) {
            let value = self.lap(position) << 32 | u64::from(slot);
            // Release: the thread that pops the number sees the slot's contents.
            self.cell(position).store(value, Ordering::Release);
        }
    }

    /// Takes the oldest entry. `None` if there is none, or if its producer has reserved the cell
    /// and not written it: that producer announces its entries afterwards.
    #[inline]
    pub(crate) fn pop(&self) -> Option<u32> {
        self.pop_if(|_| true)
    }

    /// As [`IndexRing::pop`], if `wanted` accepts the oldest entry.
    #[inline]
    pub(crate) fn pop_if(&self, wanted: impl Fn(u32) -> bool) -> Option<u32> {
        loop {
            let (position, slot) = self.front()?;
            if !wanted(slot) {
                return None;
            }
            // The value is read before the position is claimed: once the head has moved, the cell
            // may be written for the next lap.
            if self.pop_at(position) {
                return Some(slot);
            }
        }
    }

    /// As [`IndexRing::pop`], if the oldest entry is before `end` ([`IndexRing::end`]).
    pub(crate) fn pop_before(&self, end: u64) -> Option<u32> {
        loop {
            let (position, slot) = self.front().filter(|&(position, _)| position < end)?;
            if self.pop_at(position) {
                return Some(slot);
            }
        }
    }

    /// The oldest entry and its position, for [`IndexRing::pop_at`].
    #[inline]
    pub(crate) fn front(&self) -> Option<(u64, u32)> {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let value = self.cell(head).load(Ordering::Acquire);
            if value >> 32 == self.lap(head) {
                return Some((head, value as u32));
            }
            let now = self.head.load(Ordering::Relaxed);
            if now == head {
                return None;
            }
            head = now;
        }
    }

    /// Takes the entry that [`IndexRing::front`] has found at `position`, unless another thread has
    /// taken it.
    #[inline]
    pub(crate) fn pop_at(&self, position: u64) -> bool {
        // One exchange succeeds for each position: its thread alone has the entry that was read
        // there.
        self.head
            .compare_exchange(position, position + 1, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// Reads the oldest entry without taking it: a hint under concurrency.
    #[inline]
    pub(crate) fn peek(&self) -> Option<u32> {
        let head = self.head.load(Ordering::Relaxed);
        let value = self.cell(head).load(Ordering::Relaxed);
        (value >> 32 == self.lap(head)).then_some(value as u32)
    }

    /// The position after the last entry.
    pub(crate) fn end(&self) -> u64 {
        self.tail.load(Ordering::Relaxed)
    }

    /// Entries in the ring, including half-written ones: a hint under concurrency.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        let head = self.head.load(Ordering::Relaxed);
        self.tail.load(Ordering::Relaxed).saturating_sub(head) as usize
    }

    /// Is there no entry, and none being written? A hint under concurrency.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A number that changes with every entry taken.
    #[inline]
    pub(crate) fn taken(&self) -> u64 {
        self.head.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::IndexRing;

    #[test]
    fn entries_come_out_in_order_over_many_laps() {
        let ring = IndexRing::new(3);
        assert_eq!(ring.pop(), None);
        for round in 0..100u32 {
            ring.push(&[round, round + 1, round + 2]);
            assert_eq!(ring.len(), 3);
            for i in 0..3 {
                assert_eq!(ring.pop(), Some(round + i));
            }
            assert!(ring.is_empty());
            assert_eq!(ring.pop(), None);
        }
    }
}

#[cfg(all(test, loom))]
#[allow(unsafe_code)]
mod loom_models {
    //! A failure would be: a number popped twice, a number missing when all producers and consumers
    //! are done, or slot contents that its producer has not written.

    use super::IndexRing;
    use crate::sync::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    struct Model {
        ring: IndexRing,
        slots: [UnsafeCell<u32>; 2],
    }

    impl Model {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                ring: IndexRing::new(2),
                slots: [UnsafeCell::new(0), UnsafeCell::new(0)],
            })
        }

        fn fill_and_push(&self, slot: u32, value: u32) {
            // SAFETY: the model hands each slot to one thread until it is pushed.
            self.slots[slot as usize].with_mut(|at| unsafe { *at = value });
            self.ring.push(&[slot]);
        }

        fn read(&self, slot: u32) -> u32 {
            // SAFETY: a popped slot belongs to the thread that popped it.
            self.slots[slot as usize].with(|at| unsafe { *at })
        }
    }

    #[test]
    fn loom_two_producers_two_consumers_lose_and_repeat_nothing() {
        loom::model(|| {
            let model = Model::new();
            let other = Arc::clone(&model);
            let producer = thread::spawn(move || other.fill_and_push(0, 10));
            let other = Arc::clone(&model);
            let consumer = thread::spawn(move || other.ring.pop().map(|slot| other.read(slot)));
            model.fill_and_push(1, 11);
            let here = model.ring.pop().map(|slot| model.read(slot));
            producer.join().unwrap();
            let there = consumer.join().unwrap();
            let mut got: Vec<u32> = [here, there].into_iter().flatten().collect();
            while let Some(slot) = model.ring.pop() {
                got.push(model.read(slot));
            }
            got.sort_unstable();
            assert_eq!(got, [10, 11]);
        });
    }

    #[test]
    fn loom_a_slot_goes_round_the_ring_while_a_consumer_looks() {
        loom::model(|| {
            let model = Model::new();
            model.fill_and_push(0, 1);
            model.fill_and_push(1, 2);
            let other = Arc::clone(&model);
            let consumer = thread::spawn(move || {
                let slot = other.ring.pop().expect("two entries, two consumers");
                (slot, other.read(slot))
            });
            let slot = model.ring.pop().expect("two entries, two consumers");
            let first = model.read(slot);
            model.fill_and_push(slot, 3);
            let (_, second) = consumer.join().unwrap();
            let slot = model.ring.pop().expect("the one that went round, or the older one");
            let third = model.read(slot);
            let mut got = [first, second, third];
            got.sort_unstable();
            assert_eq!(got, [1, 2, 3]);
        });
    }

    /// Canary: a consumer that claims first and reads afterwards reads the next lap's entry.
    #[test]
    #[should_panic]
    fn loom_canary_claiming_before_reading_repeats_an_entry() {
        loom::model(|| {
            let model = Model::new();
            model.fill_and_push(0, 1);
            model.fill_and_push(1, 2);
            let claim_first = |model: &Model| {
                let at = model.ring.head.fetch_add(1, loom::sync::atomic::Ordering::Relaxed);
                model.ring.cell(at).load(loom::sync::atomic::Ordering::Acquire) as u32
            };
            let other = Arc::clone(&model);
            let consumer = thread::spawn(move || claim_first(&other));
            let here = claim_first(&model);
            // Slot `here` was popped, and is pushed once more. It goes to the next lap.
            model.ring.push(&[here]);
            let there = consumer.join().unwrap();
            let again = claim_first(&model);
            assert_ne!(here, there, "one slot given to two consumers");
            assert_eq!(here, again);
        });
    }
}
