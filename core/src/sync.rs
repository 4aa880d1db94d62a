//! `std` or `loom`: the atomics, cells and locks of the modelled protocols.

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

/// A full fence right after an atomic exchange that has succeeded. On x86-64 the exchange itself is
/// one.
#[inline(always)]
pub(crate) fn fence_behind_exchange() {
    if cfg!(all(target_arch = "x86_64", not(any(loom, miri)))) {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The number of the calling thread: unique among living threads, and above 1.
pub(crate) fn this_thread() -> usize {
    #[cfg(loom)]
    {
        // In a model, each call gives another number, so that no sleep is taken for an earlier
        // sleep of the same thread.
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(2);
        NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }
    #[cfg(not(loom))]
    {
        thread_local! {
            static HERE: u64 = const { 0 };
        }
        HERE.with(|here| std::ptr::from_ref(here).addr())
    }
}

/// Locks a mutex whose critical sections cannot leave broken state: poison is ignored.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

#[cfg(loom)]
pub(crate) use lock as lock_counted;

#[cfg(not(loom))]
pub(crate) use counted::Count;
#[cfg(not(loom))]
pub use counted::{Guard, holds_lock, lock_counted};

/// Locks that a signal handler may need, and whether the interrupted thread holds one.
#[cfg(not(loom))]
mod counted {
    use std::cell::Cell;
    use std::ops::{Deref, DerefMut};
    use std::sync::{Mutex, MutexGuard};

    thread_local! {
        /// Locks that the thread holds or waits for.
        static HELD: Cell<u32> = const { Cell::new(0) };
    }

    /// Releases the lock when it is dropped.
    #[derive(Debug)]
    pub struct Guard<'a, T> {
        /// Dropped before the count is decremented.
        guard: MutexGuard<'a, T>,
        _count: Count,
    }

    /// Counts as a held lock while it lives. So a signal handler that interrupts its thread knows
    /// that it must not wait for a lock.
    #[derive(Debug)]
    pub(crate) struct Count(());

    impl Count {
        #[inline]
        pub(crate) fn new() -> Self {
            HELD.set(HELD.get() + 1);
            Self(())
        }
    }

    impl Drop for Count {
        fn drop(&mut self) {
            HELD.set(HELD.get() - 1);
        }
    }

    /// As [`lock`](super::lock), counted for [`holds_lock`].
    pub fn lock_counted<T>(mutex: &Mutex<T>) -> Guard<'_, T> {
        let _count = Count::new();
        Guard { guard: super::lock(mutex), _count }
    }

    /// Does the calling thread hold a counted lock, or wait for one?
    pub fn holds_lock() -> bool {
        HELD.get() != 0
    }

    impl<T> Deref for Guard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.guard
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.guard
        }
    }
}

/// Lets other threads finish: first it yields to threads that can run on this CPU. Then it sleeps,
/// in case a thread of a higher scheduling class has preempted one of them.
#[derive(Debug, Default)]
pub struct Patience(u32);

impl Patience {
    /// Yields the CPU; after many calls it sleeps for 50 µs.
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

/// A number other than 0 that is computed at its first use. Several threads may compute it at the
/// same time. None waits for another, which may not exist in the child of a fork.
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
