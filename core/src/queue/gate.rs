//! A lock for a few instructions: one atomic step to lock, a store to unlock.
//!
//! It is for critical sections without a system call. There is little contention, because usually
//! one thread reaps a context. A thread that finds the lock held yields its CPU until the lock is
//! free. After many yields, it sleeps for 50 µs at a time.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};

use crate::sync::{AtomicU32, Ordering, Patience, UnsafeCell};

#[derive(Debug)]
pub(super) struct Gate<T> {
    closed: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one thread at a time, through `Inside`.
unsafe impl<T: Send> Send for Gate<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Gate<T> {}

/// The gate closed by this thread: access to the value until it is dropped.
#[derive(Debug)]
pub(super) struct Inside<'a, T>(&'a Gate<T>);

impl<T> Gate<T> {
    pub(super) fn new(value: T) -> Self {
        Self { closed: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub(super) fn enter(&self) -> Inside<'_, T> {
        // Acquire: this thread sees what the previous holder has written.
        while self.closed.swap(1, Ordering::Acquire) != 0 {
            let mut patience = Patience::default();
            while self.closed.load(Ordering::Relaxed) != 0 {
                patience.wait();
            }
        }
        Inside(self)
    }
}

impl<T> Drop for Inside<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.closed.store(0, Ordering::Release);
    }
}

impl<T> Deref for Inside<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this thread has closed the gate, so no other thread reaches the value.
        self.0.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for Inside<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `self` is borrowed mutably.
        self.0.value.with_mut(|value| unsafe { &mut *value })
    }
}
