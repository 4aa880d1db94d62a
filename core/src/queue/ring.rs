//! The memory of a completion queue: head, tail and entries, in one of two layouts.
#![allow(unsafe_code)]

use crate::cqe::Cqe;
use crate::lazy_zeroed::{Zero, Zeros};
use crate::request::Completion;
use crate::sync::{AtomicU32, Ordering};
use crate::sys::aio::IoEvent;

// SAFETY: a `Cqe` is numbers only, and the default of each is 0.
unsafe impl Zero for Cqe {
    fn zero() -> Self {
        Self::default()
    }
}

#[derive(Debug)]
enum Entries {
    Cqes(*mut Cqe),
    Events(*mut IoEvent),
}

/// Completions are written and reaped here. One place is always empty, so that head = tail means
/// "empty".
#[derive(Debug)]
pub(crate) struct Ring {
    head: *const AtomicU32,
    tail: *const AtomicU32,
    entries: Entries,
    /// The number of places, the empty one included.
    places: u32,
    /// The memory of the ring, from a box; null if the memory belongs to the front end.
    own: *mut Own,
}

#[derive(Debug)]
struct Own {
    head: AtomicU32,
    tail: AtomicU32,
    _cqes: Zeros<Cqe>,
}

impl Drop for Ring {
    fn drop(&mut self) {
        if !self.own.is_null() {
            // SAFETY: from a box in `cqes`, and nobody is left to use it.
            drop(unsafe { Box::from_raw(self.own) });
        }
    }
}

// SAFETY: the pointers are to atomics, and to entries whose access `Completions` orders: one
// publisher at a time writes beyond the tail, reapers read between head and tail.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// A ring of [`Cqe`]s with room for `room` completions.
    pub(crate) fn cqes(room: u32) -> Self {
        let places = room + 1;
        let cqes = Zeros::<Cqe>::new(places as usize);
        let entries = Entries::Cqes(cqes.first());
        let own = Own { head: AtomicU32::new(0), tail: AtomicU32::new(0), _cqes: cqes };
        let own = Box::into_raw(Box::new(own));
        // SAFETY: allocated just above.
        let (head, tail) = unsafe { (&raw const (*own).head, &raw const (*own).tail) };
        Self { head, tail, entries, places, own }
    }

    /// A ring in memory that belongs to the front end: `places` [`IoEvent`]s, with head and tail
    /// elsewhere.
    ///
    /// # Safety
    /// All three stay valid while the ring lives. Nobody else uses them, except as the reader of an
    /// aio ring does (moves the head, reads entries).
    pub(crate) unsafe fn events(
        head: *const AtomicU32,
        tail: *const AtomicU32,
        events: *mut IoEvent,
        places: u32,
    ) -> Self {
        Self { head, tail, entries: Entries::Events(events), places, own: std::ptr::null_mut() }
    }

    pub(crate) fn places(&self) -> u32 {
        self.places
    }

    /// The number of completions that fit.
    pub(crate) fn room(&self) -> u32 {
        self.places - 1
    }

    fn head_word(&self) -> &AtomicU32 {
        // SAFETY: valid for the ring's life (`own`, or the contract of `events`).
        unsafe { &*self.head }
    }

    fn tail_word(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { &*self.tail }
    }

    /// The index of the next entry to reap. A program that reads the ring by itself moves the head;
    /// a value out of range is reduced.
    #[inline]
    pub(crate) fn head(&self) -> u32 {
        let head = self.head_word().load(Ordering::Acquire);
        if head < self.places { head } else { head % self.places }
    }

    #[inline]
    pub(crate) fn tail(&self) -> u32 {
        // A program can write here, too: the index stays in range in any case.
        let tail = self.tail_word().load(Ordering::Acquire);
        if tail < self.places { tail } else { tail % self.places }
    }

    #[inline]
    pub(crate) fn set_head(&self, head: u32) {
        self.head_word().store(head, Ordering::Release);
    }

    /// Makes the entries before `tail` visible.
    #[inline]
    pub(crate) fn set_tail(&self, tail: u32) {
        self.tail_word().store(tail, Ordering::Release);
    }

    /// The place after `at`.
    #[inline]
    pub(crate) fn after(&self, at: u32) -> u32 {
        if at + 1 == self.places { 0 } else { at + 1 }
    }

    /// Entries that can be reaped.
    #[inline]
    pub(crate) fn available(&self) -> u32 {
        let (head, tail) = (self.head(), self.tail());
        if tail >= head { tail - head } else { tail + self.places - head }
    }

    /// Writes the entry at `at`.
    ///
    /// # Safety
    /// The caller is the publisher. `at` is beyond the tail, and is not the empty place.
    #[inline]
    pub(crate) unsafe fn write(&self, at: u32, completion: &Completion) {
        let Cqe { user_data, res, .. } = completion.cqe;
        match self.entries {
            // SAFETY: `at` is in range; no reader looks beyond the tail.
            Entries::Cqes(cqes) => unsafe { *cqes.add(at as usize) = completion.cqe },
            Entries::Events(events) => {
                let event =
                    IoEvent { data: completion.data, obj: user_data, res: i64::from(res), res2: 0 };
                // SAFETY: as above.
                unsafe { *events.add(at as usize) = event };
            }
        }
    }

    /// Reads the entry at `at` as a [`Cqe`].
    ///
    /// # Safety
    /// The caller reaps, and `at` is between head and tail.
    #[inline]
    pub(crate) unsafe fn read_cqe(&self, at: u32) -> Cqe {
        match self.entries {
            // SAFETY: `at` is in range, and published.
            Entries::Cqes(cqes) => unsafe { *cqes.add(at as usize) },
            Entries::Events(events) => {
                // SAFETY: as above.
                let event = unsafe { *events.add(at as usize) };
                Cqe { user_data: event.obj, res: event.res as i32, flags: 0 }
            }
        }
    }

    /// Reads the entry at `at` as an [`IoEvent`].
    ///
    /// # Safety
    /// As for [`Ring::read_cqe`].
    #[inline]
    pub(crate) unsafe fn read_event(&self, at: u32) -> IoEvent {
        match self.entries {
            Entries::Cqes(cqes) => {
                // SAFETY: `at` is in range, and published.
                let cqe = unsafe { *cqes.add(at as usize) };
                IoEvent { data: 0, obj: cqe.user_data, res: i64::from(cqe.res), res2: 0 }
            }
            // SAFETY: as above.
            Entries::Events(events) => unsafe { *events.add(at as usize) },
        }
    }
}
