//! `std` or `loom`: the atomics, cells and locks that the modelled protocols are written against.

#[cfg(not(loom))]
mod imp {
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(crate) use std::sync::{Mutex, MutexGuard};
    pub(crate) use std::thread::yield_now;

    /// A cell with loom's closure interface, so that one text serves both builds.
    #[derive(Debug)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        #[inline(always)]
        pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        #[inline(always)]
        pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

#[cfg(loom)]
mod imp {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(crate) use loom::sync::{Mutex, MutexGuard};
    pub(crate) use loom::thread::yield_now;
}

pub(crate) use imp::*;

/// A full fence right behind an atomic exchange that has succeeded. On x86-64 that instruction has
/// been one.
#[inline(always)]
pub(crate) fn fence_behind_exchange() {
    if cfg!(all(target_arch = "x86_64", not(any(loom, miri)))) {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// Locks a mutex whose critical sections cannot leave broken state behind: poison is ignored.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// Lets others run who are about to be done: at first those that can run on this CPU, then, should
/// one have been preempted by a thread of a higher class, whoever there is.
#[derive(Debug, Default)]
pub struct Patience(u32);

impl Patience {
    /// Yields the CPU, or, after having done so many times, sleeps for 50 µs.
    #[cold]
    pub fn wait(&mut self) {
        #[cfg(not(loom))]
        if self.0 >= 100 {
            return std::thread::sleep(std::time::Duration::from_micros(50));
        }
        self.0 += 1;
        yield_now();
    }
}

/// A number other than 0 that is found out once, or by several threads at the same time: nobody
/// waits for another, since after a fork that other may not exist in the child.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct OnceNumber(AtomicU64);

#[cfg(not(loom))]
impl OnceNumber {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[inline]
    pub(crate) fn get(&self, find: impl FnOnce() -> u64) -> u64 {
        match self.0.load(Ordering::Relaxed) {
            0 => {
                let found = find();
                self.0.store(found, Ordering::Relaxed);
                found
            }
            known => known,
        }
    }
}
