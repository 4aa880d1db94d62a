//! One entry of the table: found without a lock, and taken away only when nobody looks any more.
#![allow(unsafe_code)]

use std::ops::Deref;

use crate::sync::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// An entry: a value, or nothing.
#[derive(Debug)]
pub(super) struct Entry<T> {
    value: AtomicPtr<T>,
    /// Readers that had no word of their own to say so in.
    pins: AtomicU32,
}

/// A value of the table that stays as long as this is held.
#[derive(Debug)]
pub struct Pinned<'a, T> {
    _pin: Pin<'a>,
    value: &'a T,
}

/// What keeps a value: this thread's own word, or, if that is in use, the entry's count.
#[derive(Debug)]
struct Pin<'a>(Result<&'a AtomicUsize, &'a AtomicU32>);

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

impl<T> Entry<T> {
    #[cfg(loom)]
    fn new() -> Self {
        Self { value: AtomicPtr::new(std::ptr::null_mut()), pins: AtomicU32::new(0) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.value.load(Ordering::Relaxed).is_null()
    }

    /// From now on `value` can be found.
    pub(super) fn publish(&self, value: Box<T>) {
        self.value.store(Box::into_raw(value), Ordering::SeqCst);
    }

    /// The value. `word` is the caller's own, if it has one, to hold `handle` while it looks; `fence`
    /// orders its store before the look.
    #[inline]
    pub(super) fn get<'a>(
        &'a self,
        word: Option<&'a AtomicUsize>,
        handle: usize,
        fence: impl FnOnce(),
    ) -> Option<Pinned<'a, T>> {
        // The pin comes first, then the look: whoever takes the value away and looks for pins
        // after that either sees this one, or has been seen.
        let pin = match word {
            Some(word) if word.load(Ordering::Relaxed) == 0 => {
                word.store(handle, Ordering::Relaxed);
                Pin(Ok(word))
            }
            _ => {
                self.pins.fetch_add(1, Ordering::SeqCst);
                Pin(Err(&self.pins))
            }
        };
        fence();
        // SAFETY: null, or made from a box by `publish`, which is freed only after `take`, and
        // when no pin is left.
        let value = unsafe { self.value.load(Ordering::SeqCst).as_ref() }?;
        Some(Pinned { _pin: pin, value })
    }

    /// Takes the value out: nobody finds it from now on, and it is to be freed, from its box, when
    /// nobody [has](Self::is_pinned) it any more. Null if there is none.
    pub(super) fn take(&self) -> *mut T {
        self.value.swap(std::ptr::null_mut(), Ordering::SeqCst)
    }

    /// Does a reader have the value, in the count or in one of the words? To be asked after a fence that
    /// follows the [take](Self::take).
    pub(super) fn is_pinned<'a>(
        &self,
        handle: usize,
        mut words: impl Iterator<Item = &'a AtomicUsize>,
    ) -> bool {
        // Acquire: what the reader did with the value happened before it is freed.
        self.pins.load(Ordering::SeqCst) != 0
            || words.any(|word| word.load(Ordering::SeqCst) == handle)
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    //! Failure would look like: a value used after it was freed, or a reader that finds another
    //! context's value under a handle whose own one was alive.
    //!
    //! The fences stand for membarrier(2), which makes one of every compiler's fence.

    use std::ptr;

    use loom::sync::Arc;
    use loom::thread;

    use super::{AtomicUsize, Entry, Ordering};
    use crate::sync::{UnsafeCell, fence, yield_now};

    const HANDLE: usize = 4096;

    /// A value that notices its use after the end. (Its memory stays until the model is over.)
    struct Value {
        number: u32,
        alive: UnsafeCell<bool>,
    }

    struct World {
        entry: Entry<Value>,
        words: [AtomicUsize; 2],
    }

    impl World {
        fn new() -> Arc<Self> {
            let words = [AtomicUsize::new(0), AtomicUsize::new(0)];
            let world = Self { entry: Entry::new(), words };
            world.publish(1);
            Arc::new(world)
        }

        fn publish(&self, number: u32) {
            self.entry.publish(Box::new(Value { number, alive: UnsafeCell::new(true) }));
        }

        /// A lookup, by the thread that has word `at`; `None`: in the entry's count.
        fn look(&self, at: Option<usize>) -> Option<u32> {
            let word = at.map(|at| &self.words[at]);
            let found = self.entry.get(word, HANDLE, || fence(Ordering::SeqCst))?;
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
            let value = self.entry.take();
            if value.is_null() {
                return false;
            }
            fence(Ordering::SeqCst);
            while self.entry.is_pinned(HANDLE, self.words.iter()) {
                yield_now();
            }
            Self::end(value);
            true
        }

        fn close(&self) {
            let value = self.entry.take();
            if !ptr::eq(value, ptr::null()) {
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

    /// Canary: without looking for readers a value ends while it is used.
    #[test]
    #[should_panic]
    fn loom_canary_destroying_without_waiting_is_found() {
        loom::model(|| {
            let world = World::new();
            let other = Arc::clone(&world);
            let reader = thread::spawn(move || other.look(Some(0)));
            let value = world.entry.take();
            fence(Ordering::SeqCst);
            World::end(value);
            reader.join().unwrap();
        });
    }

    /// Canary: without a fence the reader's word is not seen in time.
    #[test]
    #[should_panic]
    fn loom_canary_a_reader_without_a_fence_is_not_seen() {
        loom::model(|| {
            let world = World::new();
            let other = Arc::clone(&world);
            let reader = thread::spawn(move || {
                if let Some(found) = other.entry.get(Some(&other.words[0]), HANDLE, || ()) {
                    // SAFETY: to be found wrong by loom.
                    found.alive.with(|alive| assert!(unsafe { *alive }));
                }
            });
            world.destroy();
            reader.join().unwrap();
        });
    }
}
