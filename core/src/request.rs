//! Request slots: preallocated, taken in batches with one contended step, given back one by one.
//!
//! A slot is held from submit until its completion was reaped, so a free slot *is* a reserved
//! place in the completion queue.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ops::RangeInclusive;

use crate::cqe::Cqe;
use crate::sqe::Sqe;
use crate::sync::{AtomicU32, AtomicU64, Ordering, UnsafeCell};
use crate::zeros::Zero;

/// The most slots that one step takes.
pub(crate) const BATCH: usize = 32;

/// Which slots are free: one bit each.
#[derive(Debug)]
pub(crate) struct FreeSlots {
    words: Box<[AtomicU64]>,
    /// A word that probably has a free slot; lower slots are preferred, they are warm.
    hint: AtomicU32,
    count: usize,
}

/// Up to [`BATCH`] slot numbers. Only the first `len` are initialised: three of these are made
/// for every submit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    slots: [MaybeUninit<u32>; BATCH],
    len: usize,
}

impl Batch {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { slots: [const { MaybeUninit::uninit() }; BATCH], len: 0 }
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u32] {
        // SAFETY: `push` has initialised the first `len`.
        unsafe { std::slice::from_raw_parts(self.slots.as_ptr().cast(), self.len) }
    }

    #[inline]
    pub(crate) fn push(&mut self, slot: u32) {
        self.slots[self.len].write(slot);
        self.len += 1;
    }
}

impl FreeSlots {
    /// `count` free slots.
    pub(crate) fn new(count: usize) -> Self {
        let words = (0..count.div_ceil(64))
            .map(|word| {
                let bits = (count - word * 64).min(64);
                AtomicU64::new(u64::MAX >> (64 - bits))
            })
            .collect();
        Self { words, hint: AtomicU32::new(0), count }
    }

    /// Takes up to `want` (at most [`BATCH`]) slots with one contended step where they lie together.
    #[inline]
    pub(crate) fn take(&self, want: usize) -> Batch {
        let want = want.min(BATCH);
        let mut batch = Batch::new();
        let start = self.hint.load(Ordering::Relaxed) as usize;
        for step in 0..self.words.len() {
            let mut at = start + step;
            if at >= self.words.len() {
                at -= self.words.len();
            }
            self.take_from(at, want, &mut batch);
            if batch.len == want {
                if step != 0 {
                    self.hint.store(at as u32, Ordering::Relaxed);
                }
                break;
            }
        }
        batch
    }

    #[inline]
    fn take_from(&self, at: usize, want: usize, batch: &mut Batch) {
        let word = &self.words[at];
        let mut free = word.load(Ordering::Relaxed);
        while free != 0 {
            let missing = want - batch.len;
            let mut rest = free;
            for _ in 0..missing.min(free.count_ones() as usize) {
                rest &= rest - 1;
            }
            // Acquire: the last holder's use of the slot is over (pairs with `give`).
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
        let at = slot / 64;
        let bit = 1 << (slot % 64);
        let before = self.words[at as usize].fetch_or(bit, Ordering::Release);
        debug_assert_eq!(before & bit, 0, "slot {slot} given back twice");
        if at < self.hint.load(Ordering::Relaxed) {
            self.hint.store(at, Ordering::Relaxed);
        }
    }

    /// How many slots are held: exact when nobody else acts, a hint otherwise.
    pub(crate) fn held(&self) -> usize {
        let free: u32 = self.words.iter().map(|w| w.load(Ordering::Relaxed).count_ones()).sum();
        self.count - free as usize
    }

    /// Are more than `n` slots held? Looks no further than needed to say yes.
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

    /// Calls `f` with each slot that is held at the moment it is looked at.
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

/// Where a request is on its way. The word counts uses above these bits, so that a stale view
/// of a slot that was reused never matches.
mod phase {
    pub(super) const MASK: u32 = 0xf;
    /// In the hands of its submitter.
    pub(super) const FILLED: u32 = 7;
    /// In a submission ring, or about to be.
    pub(super) const QUEUED: u32 = 1;
    /// Somebody executes it.
    pub(super) const STARTED: u32 = 2;
    /// Cancelled while its number was still in a ring; the completion is posted.
    pub(super) const CANCELED: u32 = 3;
    /// Waits in the poller for its descriptor.
    pub(super) const POLLING: u32 = 4;
    /// Left for the submitter's own wait.
    pub(super) const NEXT: u32 = 6;
    /// Completed.
    pub(super) const DONE: u32 = 5;
    /// In the kernel's hands.
    pub(super) const KERNEL: u32 = 8;
    /// Of a cancelled request: its number left the ring.
    pub(super) const POPPED: u32 = 0x10;
    /// Of a cancelled request: its completion was reaped.
    pub(super) const REAPED: u32 = 0x20;
    /// One use.
    pub(super) const USE: u32 = 0x40;
}

/// What [`Slot::cancel_queued`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cancel {
    /// It was waiting and is cancelled: the caller posts the completion.
    Done,
    /// It waits where only the engine can withdraw it.
    Polling,
    /// It is being executed.
    Started,
    /// Another request, or completed.
    Missed,
}

/// The parts of a request that are copied from the caller at submit, kept with the slot so that
/// a later request finds the memory allocated.
#[derive(Debug, Default)]
pub(crate) struct Copied {
    pub(crate) iov: Vec<Iovec>,
    pub(crate) path: Vec<u8>,
    pub(crate) path2: Vec<u8>,
}

/// `struct iovec`, as plain numbers.
pub(crate) type Iovec = libc::iovec;

/// How an operation treats its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Read = 0,
    Write,
    /// Waits for what was written before it on its descriptor.
    Sync,
    Poll,
    /// Finishes at once.
    Quick,
    /// Anything else: works on names and metadata, and may sleep.
    Other,
    /// Unknown or malformed.
    Invalid,
}

/// One request.
#[derive(Debug)]
pub(crate) struct Slot {
    request: UnsafeCell<Request>,
    state: AtomicU32,
    /// [`Sqe::user_data`] and [`Sqe::fd`] once more, for those who look at a slot that they do not own.
    key: AtomicU64,
    fd: AtomicU32,
}

/// What a slot holds while it is held.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) sqe: Sqe,
    /// The front end's own word (libaio's `data`).
    pub(crate) data: u64,
    /// An eventfd to count up at completion, -1, or
    /// [`TOLD_OTHERWISE`](crate::instance::TOLD_OTHERWISE).
    pub(crate) notify: i32,
    pub(crate) kind: Kind,
    /// The engine's: where it is executed.
    pub(crate) lane: u8,
    /// The engine's: the descriptor is a stream, the offset is ignored.
    pub(crate) stream: bool,
    /// Bytes that went into a stream already, of a write that is not finished.
    pub(crate) partial: u32,
    /// A negative errno found at submit: the request completes with it; else 0.
    pub(crate) refused: i32,
    /// [`ticks`](crate::sys::ticks) at submit; only kept while statistics are.
    pub(crate) submitted: u64,
    pub(crate) copied: Option<Box<Copied>>,
}

// SAFETY: a slot's request is touched only by whoever holds it at the moment (submitter, then the
// executor that popped its number); raw pointers inside are addresses that the kernel checks.
unsafe impl Send for Slot {}
// SAFETY: as above; state and key are atomics.
unsafe impl Sync for Slot {}

// SAFETY: numbers, atomics, a `Kind` that has 0, and no box, which is a null pointer.
unsafe impl Zero for Slot {
    fn zero() -> Self {
        let request = Request {
            sqe: Sqe::default(),
            data: 0,
            notify: 0,
            kind: Kind::Read,
            lane: 0,
            stream: false,
            partial: 0,
            refused: 0,
            submitted: 0,
            copied: None,
        };
        Self {
            request: UnsafeCell::new(request),
            state: AtomicU32::new(0),
            key: AtomicU64::new(0),
            fd: AtomicU32::new(0),
        }
    }
}

impl Slot {
    /// The request of a slot that the caller holds alone.
    ///
    /// # Safety
    /// The caller took the slot from [`FreeSlots`] and has not pushed it yet, or popped its number
    /// (or got it from the poller's list), or started it; and lets go of the reference before it
    /// passes the slot on.
    #[allow(clippy::mut_from_ref)]
    #[inline]
    pub(crate) unsafe fn request(&self) -> &mut Request {
        // SAFETY: exclusive by the caller's contract.
        self.request.with_mut(|at| unsafe { &mut *at })
    }

    /// Begins a use under `key`, for `fd`. It cannot be cancelled until the engine has put it somewhere.
    #[inline]
    pub(crate) fn fill(&self, key: u64, fd: i32) {
        self.key.store(key, Ordering::Relaxed);
        self.fd.store(fd as u32, Ordering::Relaxed);
        let used = self.state.load(Ordering::Relaxed) & !(phase::USE - 1);
        self.state.store(used.wrapping_add(phase::USE) | phase::FILLED, Ordering::Relaxed);
    }

    /// Popped from a ring: may it be executed? If not, it was cancelled; `free` says whether the
    /// slot is to be given back by the caller (its completion was reaped already).
    #[inline]
    pub(crate) fn start(&self) -> Result<(), FreeIt> {
        let now = self.state.load(Ordering::Relaxed);
        if now & phase::MASK == phase::QUEUED {
            let started = now - phase::QUEUED + phase::STARTED;
            let swap =
                self.state.compare_exchange(now, started, Ordering::AcqRel, Ordering::Relaxed);
            if swap.is_ok() {
                return Ok(());
            }
        }
        let before = self.state.fetch_or(phase::POPPED, Ordering::AcqRel);
        debug_assert_eq!(before & phase::MASK, phase::CANCELED);
        Err(FreeIt(before & phase::REAPED != 0))
    }

    /// Puts a started request back: its number goes into a ring next.
    pub(crate) fn requeue(&self) {
        let now = self.state.load(Ordering::Relaxed);
        debug_assert_eq!(now & phase::MASK, phase::STARTED);
        self.state.store(now - phase::STARTED + phase::QUEUED, Ordering::Release);
    }

    /// Left for the submitter's own wait, by the submitter.
    #[inline]
    pub(crate) fn leave(&self) {
        self.set_phase(phase::NEXT);
    }

    /// About to be pushed to a ring, by its submitter or by whoever took it from there.
    #[inline]
    pub(crate) fn queue(&self) {
        self.set_phase(phase::QUEUED);
    }

    /// From there to being executed, by whoever took it.
    #[inline]
    pub(crate) fn begin(&self) {
        self.set_phase(phase::STARTED);
    }

    /// From started to the kernel, by whoever started it.
    #[inline]
    pub(crate) fn hand_over(&self) {
        self.set_phase(phase::KERNEL);
    }

    /// Back from the kernel, not done: started again.
    pub(crate) fn take_back(&self) {
        self.set_phase(phase::STARTED);
    }

    #[inline]
    fn set_phase(&self, phase: u32) {
        let now = self.state.load(Ordering::Relaxed) & !phase::MASK;
        self.state.store(now | phase, Ordering::Release);
    }

    /// From queued or started to the poller's list. Called with the poller's list locked.
    pub(crate) fn polling(&self) {
        self.set_phase(phase::POLLING);
    }

    /// Out of the poller's list and executed. Called with the poller's list locked.
    pub(crate) fn polled(&self) {
        self.set_phase(phase::STARTED);
    }

    /// Its completion is about to be posted by the thread that executed it.
    #[inline]
    pub(crate) fn done(&self) {
        let now = self.state.load(Ordering::Relaxed);
        self.state.store(now & !phase::MASK | phase::DONE, Ordering::Relaxed);
    }

    /// Cancels the request if it is `key`'s and still queued. The caller does not own the slot.
    pub(crate) fn cancel_queued(&self, key: u64) -> Cancel {
        let now = self.state.load(Ordering::Acquire);
        if self.key.load(Ordering::Relaxed) != key {
            return Cancel::Missed;
        }
        match now & phase::MASK {
            phase::QUEUED => {
                let canceled = now - phase::QUEUED + phase::CANCELED;
                match self.state.compare_exchange(
                    now,
                    canceled,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                ) {
                    Ok(_) => Cancel::Done,
                    Err(_) => self.cancel_queued(key),
                }
            }
            phase::POLLING | phase::NEXT => Cancel::Polling,
            phase::STARTED | phase::KERNEL => Cancel::Started,
            _ => Cancel::Missed,
        }
    }

    /// Its completion was reaped: may the slot be given back now? Not while the number of a
    /// cancelled request is still in a ring; whoever pops it does so then.
    #[inline]
    pub(crate) fn reaped(&self) -> FreeIt {
        if self.state.load(Ordering::Acquire) & phase::MASK != phase::CANCELED {
            return FreeIt(true);
        }
        let before = self.state.fetch_or(phase::REAPED, Ordering::AcqRel);
        FreeIt(before & phase::POPPED != 0)
    }

    /// A request on one of these descriptors that is to be executed, or being executed; `handing_over`: those in
    /// the kernel's phase may not have reached it.
    pub(crate) fn is_waiting_for(&self, fds: &RangeInclusive<i32>, handing_over: bool) -> bool {
        self.names_one_of(fds)
            && match self.state.load(Ordering::Acquire) & phase::MASK {
                phase::QUEUED | phase::STARTED | phase::NEXT => true,
                phase::KERNEL => handing_over,
                _ => false,
            }
    }

    /// Its state, if it is on this descriptor and was submitted and has not ended.
    pub(crate) fn in_flight_on(&self, fd: i32) -> Option<u32> {
        let state = self.state.load(Ordering::Acquire);
        let over = matches!(state & phase::MASK, phase::DONE | phase::CANCELED | 0);
        (!over && self.names(fd)).then_some(state)
    }

    /// The request that had this state has ended.
    pub(crate) fn is_over(&self, before: u32) -> bool {
        let now = self.state.load(Ordering::SeqCst);
        let used_again = now / phase::USE != before / phase::USE;
        used_again || matches!(now & phase::MASK, phase::DONE | phase::CANCELED)
    }

    /// It is on this descriptor, which was not closed since.
    pub(crate) fn names(&self, fd: i32) -> bool {
        self.fd.load(Ordering::SeqCst) as i32 == fd
    }

    fn names_one_of(&self, fds: &RangeInclusive<i32>) -> bool {
        fds.contains(&(self.fd.load(Ordering::SeqCst) as i32))
    }

    /// These descriptors are about to be closed: a request in the kernel's hands holds the file, and its
    /// number is not to be used again.
    pub(crate) fn forget_number(&self, fds: &RangeInclusive<i32>) {
        if self.names_one_of(fds)
            && self.state.load(Ordering::Acquire) & phase::MASK == phase::KERNEL
        {
            self.fd.store(u32::MAX, Ordering::SeqCst);
        }
    }

    /// The key of its current use.
    pub(crate) fn key(&self) -> u64 {
        self.key.load(Ordering::Relaxed)
    }

    /// Waits in the poller.
    pub(crate) fn is_polling(&self) -> bool {
        self.state.load(Ordering::Relaxed) & phase::MASK == phase::POLLING
    }

    /// Cancelled while its number was in a ring.
    pub(crate) fn is_canceled(&self) -> bool {
        self.state.load(Ordering::Relaxed) & phase::MASK == phase::CANCELED
    }
}

/// Is the slot to be given back by whoever holds this?
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreeIt(pub(crate) bool);

/// A completion on its way into the completion queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Completion {
    pub(crate) cqe: Cqe,
    pub(crate) data: u64,
    pub(crate) notify: i32,
    pub(crate) slot: u32,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{BATCH, Cancel, FreeIt, FreeSlots, Slot};
    use crate::zeros::Zero;

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
    fn a_cancelled_slot_is_freed_once_whichever_comes_first() {
        for popped_first in [true, false] {
            let slot = Slot::zero();
            slot.fill(5, 0);
            slot.queue();
            assert_eq!(slot.cancel_queued(6), Cancel::Missed);
            assert_eq!(slot.cancel_queued(5), Cancel::Done);
            assert_eq!(slot.cancel_queued(5), Cancel::Missed);
            let pop = || slot.start().unwrap_err();
            let (first, second) =
                if popped_first { (pop(), slot.reaped()) } else { (slot.reaped(), pop()) };
            assert_eq!((first, second), (FreeIt(false), FreeIt(true)));
        }
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    //! Failure would look like: one slot given to two submitters, a slot that nobody can get
    //! any more, or a cancelled slot freed twice or never.

    use super::{Cancel, FreeSlots, Slot};
    use crate::zeros::Zero;
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
            let mut all = free.take(2).as_slice().to_vec();
            all.extend(submitter.join().unwrap());
            releaser.join().unwrap();
            all.extend_from_slice(free.take(3).as_slice());
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2]);
        });
    }

    /// Canary: taking by a load and a store gives a slot to two.
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

    #[test]
    fn loom_start_cancel_and_reap_agree_on_who_frees() {
        loom::model(|| {
            let slot = Arc::new(Slot::zero());
            slot.fill(1, 0);
            slot.queue();
            let other = Arc::clone(&slot);
            let executor = thread::spawn(move || match other.start() {
                Ok(()) => None,
                Err(free) => Some(free.0),
            });
            let canceled = slot.cancel_queued(1) == Cancel::Done;
            let freed_by_reaper = canceled && slot.reaped().0;
            match executor.join().unwrap() {
                None => assert!(!canceled, "executed and cancelled"),
                Some(freed) => {
                    assert!(canceled);
                    assert!(freed ^ freed_by_reaper, "freed twice or never");
                }
            }
        });
    }
}
