//! One entry of the table: found without a lock, and removed only when no thread uses it any more.
#![allow(unsafe_code)]

use std::ops::Deref;

use crate::lazy_zeroed::Zero;
use crate::sync::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// A handle that differs in this bit leads to another entry.
pub(super) const OTHER: usize = if cfg!(target_arch = "aarch64") { 65_536 } else { 4096 };

/// An entry: a value and its handle, or nothing.
#[derive(Debug)]
pub(super) struct TableEntry<T> {
    /// The value's handle; 0 or a handle of another entry if this one is empty. A reader uses the
    /// value only if this is the handle that it looks up.
    handle: AtomicUsize,
    value: AtomicPtr<T>,
}

/// A value of the table, which is not freed before this is dropped.
#[derive(Debug)]
pub struct Pinned<'a, T> {
    _pin: Pin<'a>,
    value: &'a T,
}

/// Marks a value as in use until it is dropped: in this thread's own word or, if that is in use, in
/// a count beside the entry.
#[derive(Debug)]
pub(super) struct Pin<'a>(Result<&'a AtomicUsize, &'a AtomicU32>);

impl<'a> Pin<'a> {
    /// Marks `handle` as in use in the thread's own word, which is 0.
    #[inline]
    pub(super) fn word(word: &'a AtomicUsize, handle: usize) -> Self {
        // Release: a thread that sees this handle in place of an earlier one knows that the earlier
        // value is no longer used.
        word.store(handle, Ordering::Release);
        Self(Ok(word))
    }

    /// Marks the value as in use in the entry's count.
    pub(super) fn count(pins: &'a AtomicU32) -> Self {
        pins.fetch_add(1, Ordering::SeqCst);
        Self(Err(pins))
    }
}

impl<T> Deref for Pinned<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.value
    }
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        match self.0 {
            Ok(word) => word.store(0, Ordering::Release),
            Err(pins) => {
                pins.fetch_sub(1, Ordering::Release);
            }
        }
    }
}

// SAFETY: zero is no handle, and a null pointer.
unsafe impl<T> Zero for TableEntry<T> {
    fn zero() -> Self {
        Self { handle: AtomicUsize::new(0), value: AtomicPtr::new(std::ptr::null_mut()) }
    }
}

impl<T> TableEntry<T> {
    /// The handle of the entry's value. Of an empty entry: 0, or a handle that leads to another
    /// entry.
    pub(super) fn handle(&self) -> usize {
        self.handle.load(Ordering::Relaxed)
    }

    /// The null handle leads to this entry. This call ensures that the handle does not match while
    /// the entry is empty.
    pub(super) fn refuse_null(&self) {
        self.handle.store(OTHER, Ordering::Relaxed);
    }

    /// Publishes `value`: from now on it is found under `handle`.
    ///
    /// # Safety
    /// `handle` is not 0, and leads here. The entry is empty, nobody else fills it, and the value
    /// that was taken out before was freed.
    pub(super) unsafe fn publish(&self, handle: usize, value: Box<T>) {
        self.value.store(Box::into_raw(value), Ordering::Relaxed);
        self.handle.store(handle, Ordering::SeqCst);
    }

    /// The value under `handle`. `pin` marks it as in use; `fence` orders that before the load.
    #[inline]
    pub(super) fn get<'a>(
        &'a self,
        pin: Pin<'a>,
        handle: usize,
        fence: impl FnOnce(),
    ) -> Option<Pinned<'a, T>> {
        // The pin comes first, then the load. A thread that takes the value away, and checks the
        // pins after that, either sees this pin, or this thread sees its change.
        fence();
        if self.handle.load(Ordering::SeqCst) != handle {
            return None;
        }
        // SAFETY: `publish` made the value from a box, before it stored the handle that this thread
        // has just seen. (An earlier value was taken out and freed before that.) The value is freed
        // only after `take`, and when no pin is left.
        let value = unsafe { &*self.value.load(Ordering::Relaxed) };
        Some(Pinned { _pin: pin, value })
    }

    /// Takes the value under `handle` out: no thread finds it from now on. The caller frees the
    /// value, as a box, when no thread [uses](is_pinned) it any more. Until then the entry must not
    /// be filled again. `None`: there is no value under `handle`.
    pub(super) fn take(&self, handle: usize) -> Option<*mut T> {
        // By the contract of `publish`, the entry is filled again only after this value was freed.
        // So this still is the value of the handle.
        let (success, failure) = (Ordering::SeqCst, Ordering::Relaxed);
        self.handle.compare_exchange(handle, handle ^ OTHER, success, failure).ok()?;
        Some(self.value.load(Ordering::Relaxed))
    }
}

/// Does a reader use the value of a handle, by the entry's count or by one of the words? Call it
/// after a fence that follows the [take](TableEntry::take).
pub(super) fn is_pinned<'a>(
    pins: &AtomicU32,
    handle: usize,
    mut words: impl Iterator<Item = &'a AtomicUsize>,
) -> bool {
    // Acquire: the reader's use of the value happened before it is freed.
    pins.load(Ordering::SeqCst) != 0 || words.any(|word| word.load(Ordering::SeqCst) == handle)
}

#[cfg(all(test, loom))]
mod loom_models {
    //! A failure would be: a value used after it was freed, or a reader that finds another
    //! context's value under a handle whose own value was alive.
    //!
    //! The fences stand for membarrier(2), which turns every compiler fence into a full one.

    use loom::sync::Arc;
    use loom::thread;

    use super::{AtomicU32, AtomicUsize, Ordering, Pin, TableEntry, is_pinned};
    use crate::lazy_zeroed::Zero as _;
    use crate::sync::{UnsafeCell, fence, yield_now};

    const HANDLE: usize = 4096;

    /// A value that notices a use after its end. (Its memory stays until the model ends.)
    struct Value {
        number: u32,
        alive: UnsafeCell<bool>,
    }

    struct World {
        entry: TableEntry<Value>,
        pins: AtomicU32,
        words: [AtomicUsize; 2],
    }

    impl World {
        fn new() -> Arc<Self> {
            let words = [AtomicUsize::new(0), AtomicUsize::new(0)];
            let world = Self { entry: TableEntry::zero(), pins: AtomicU32::new(0), words };
            world.publish(1);
            Arc::new(world)
        }

        fn publish(&self, number: u32) {
            let value = Box::new(Value { number, alive: UnsafeCell::new(true) });
            // SAFETY: at first, or after `destroy`.
            unsafe { self.entry.publish(HANDLE, value) };
        }

        /// A lookup, by the thread with the word `at`; `None`: with the entry's count.
        fn look(&self, at: Option<usize>) -> Option<u32> {
            let pin = match at {
                Some(at) => Pin::word(&self.words[at], HANDLE),
                None => Pin::count(&self.pins),
            };
            let found = self.entry.get(pin, HANDLE, || fence(Ordering::SeqCst))?;
            // SAFETY: the value is pinned; loom fails the model if it is ended meanwhile.
            found.alive.with(|alive| assert!(unsafe { *alive }, "used after its end"));
            Some(found.number)
        }

        fn end(value: *mut Value) {
            // SAFETY: taken out by the caller, and by nobody else.
            let value = unsafe { Box::from_raw(value) };
            // SAFETY: nobody has it any more; loom fails the model otherwise.
            value.alive.with_mut(|alive| unsafe { *alive = false });
        }

        /// Destroys the value. False: it was destroyed already.
        fn destroy(&self) -> bool {
            let Some(value) = self.entry.take(HANDLE) else { return false };
            fence(Ordering::SeqCst);
            while is_pinned(&self.pins, HANDLE, self.words.iter()) {
                yield_now();
            }
            Self::end(value);
            true
        }

        fn close(&self) {
            if let Some(value) = self.entry.take(HANDLE) {
                Self::end(value);
            }
        }
    }

    #[test]
    fn loom_a_lookup_never_meets_a_destroyed_value() {
        for at in [Some(0), None] {
            loom::model(move || {
                let world = World::new();
                let other = Arc::clone(&world);
                let reader = thread::spawn(move || other.look(at));
                assert!(world.destroy());
                // The id is used again.
                world.publish(2);
                assert!(matches!(reader.join().unwrap(), None | Some(1 | 2)));
                assert_eq!(world.look(Some(1)), Some(2));
                world.close();
            });
        }
    }

    #[test]
    fn loom_a_reader_that_has_moved_on_is_done() {
        loom::model(|| {
            let world = World::new();
            let other = Arc::clone(&world);
            let reader = thread::spawn(move || {
                other.look(Some(0));
                // Another entry, without a value.
                let next = TableEntry::<Value>::zero();
                let pin = Pin::word(&other.words[0], 2 * HANDLE);
                assert!(next.get(pin, 2 * HANDLE, || fence(Ordering::SeqCst)).is_none());
            });
            assert!(world.destroy());
            reader.join().unwrap();
        });
    }

    #[test]
    fn loom_a_value_is_destroyed_once() {
        loom::model(|| {
            let world = World::new();
            let other = Arc::clone(&world);
            let destroyer = thread::spawn(move || other.destroy());
            let other = Arc::clone(&world);
            let reader = thread::spawn(move || other.look(Some(0)));
            let here = world.destroy();
            assert!(here ^ destroyer.join().unwrap(), "destroyed twice or never");
            assert!(matches!(reader.join().unwrap(), None | Some(1)));
        });
    }

    /// Canary: without a check for readers, a value is freed while it is used.
    #[test]
    #[should_panic]
    fn loom_canary_destroying_without_waiting_is_found() {
        loom::model(|| {
            let world = World::new();
            let other = Arc::clone(&world);
            let reader = thread::spawn(move || other.look(Some(0)));
            let value = world.entry.take(HANDLE).unwrap();
            fence(Ordering::SeqCst);
            World::end(value);
            reader.join().unwrap();
        });
    }

    /// Canary: without a fence, the reader's word is not seen in time.
    #[test]
    #[should_panic]
    fn loom_canary_a_reader_without_a_fence_is_not_seen() {
        loom::model(|| {
            let world = World::new();
            let other = Arc::clone(&world);
            let reader = thread::spawn(move || {
                let pin = Pin::word(&other.words[0], HANDLE);
                if let Some(found) = other.entry.get(pin, HANDLE, || ()) {
                    // SAFETY: none, on purpose: loom has to find that this use is wrong.
                    found.alive.with(|alive| assert!(unsafe { *alive }));
                }
            });
            world.destroy();
            reader.join().unwrap();
        });
    }
}
