//! Zeroed arrays that cost neither time nor memory before they are used: a process may have
//! thousands of idle contexts.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::ptr::NonNull;

use crate::sync::{AtomicU32, AtomicU64, UnsafeCell};
use crate::sys::Mapping;

/// Arrays of this many bytes or more get pages of their own, which the kernel zeroes when they are
/// touched.
const MAPPED_FROM: usize = 2048;

/// A type whose array can be made of zero bytes.
///
/// # Safety
/// Zero bytes are a valid value, equal to [`Zero::zero`]. Dropping a value in place frees all that
/// it owns, because its memory may be unmapped next.
pub(crate) unsafe trait Zero: Sized {
    fn zero() -> Self;
}

// SAFETY: an atomic has its number's layout, so zero bytes are the number 0.
unsafe impl Zero for AtomicU64 {
    fn zero() -> Self {
        Self::new(0)
    }
}

// SAFETY: as above.
unsafe impl Zero for AtomicU32 {
    fn zero() -> Self {
        Self::new(0)
    }
}

// SAFETY: a cell has its content's layout.
unsafe impl<T: Zero> Zero for UnsafeCell<T> {
    fn zero() -> Self {
        Self::new(T::zero())
    }
}

// SAFETY: zero bytes are the number 0.
unsafe impl Zero for u32 {
    fn zero() -> Self {
        0
    }
}

/// An array whose values are all zero at first.
#[derive(Debug)]
pub(crate) struct Zeros<T> {
    values: NonNull<[T]>,
    memory: Backing,
}

#[derive(Debug)]
enum Backing {
    /// `values` is from a box.
    Heap,
    /// `values` is in this mapping.
    Mapped { _mapping: Mapping },
}

// SAFETY: a `Zeros` owns its values, as a box does.
unsafe impl<T: Send> Send for Zeros<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Zeros<T> {}

impl<T: Zero> Zeros<T> {
    /// An array of `count` zeros.
    pub(crate) fn new(count: usize) -> Self {
        if size_of::<T>() * count >= MAPPED_FROM && !cfg!(any(loom, miri)) {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            if let Ok(mapping) = Mapping::new(size_of::<T>() * count, protection) {
                let first = NonNull::new(mapping.base().cast::<T>()).expect("not at address 0");
                let values = NonNull::slice_from_raw_parts(first, count);
                return Self { values, memory: Backing::Mapped { _mapping: mapping } };
            }
        }
        let values: Box<[T]> = (0..count).map(|_| T::zero()).collect();
        let values = NonNull::new(Box::into_raw(values)).expect("a box is not null");
        Self { values, memory: Backing::Heap }
    }
}

impl<T> Zeros<T> {
    /// The address of the array, for code that uses raw pointers.
    pub(crate) fn first(&self) -> *mut T {
        self.values.as_ptr().cast()
    }
}

impl<T> Deref for Zeros<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the values are in a box, or in a page-aligned mapping of their size, where zero
        // bytes are values (`Zero`). There is no mutable reference to them.
        unsafe { self.values.as_ref() }
    }
}

impl<T> Drop for Zeros<T> {
    fn drop(&mut self) {
        match self.memory {
            // SAFETY: `new` has made the array from a box, and nobody uses it after this drop.
            Backing::Heap => drop(unsafe { Box::from_raw(self.values.as_ptr()) }),
            // SAFETY: the values are valid, and nobody uses them any more. The mapping is dropped
            // afterwards.
            Backing::Mapped { .. } => unsafe { self.values.drop_in_place() },
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{MAPPED_FROM, Zeros};
    use crate::sync::{AtomicU64, Ordering};

    #[test]
    fn arrays_of_every_size_are_zero_and_can_be_written() {
        let many = if cfg!(miri) { 1000 } else { 100_000 };
        for count in [0, 1, MAPPED_FROM / 8 - 1, MAPPED_FROM / 8, many] {
            let zeros = Zeros::<AtomicU64>::new(count);
            assert_eq!(zeros.len(), count);
            for number in zeros.iter() {
                assert_eq!(number.fetch_add(1, Ordering::Relaxed), 0);
            }
            assert!(zeros.iter().all(|number| number.load(Ordering::Relaxed) == 1));
        }
    }
}
