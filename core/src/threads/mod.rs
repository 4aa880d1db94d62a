//! The threads of this process: workers, poller, watchdog, timer, closer. Made when needed, gone
//! when idle. They know a context as a [`Tenant`](tenant::Tenant).
#![allow(unsafe_code)]

mod closer;
pub(crate) mod poller;
pub(crate) mod pool;
pub(crate) mod spawn;
mod stacks;
pub(crate) mod tenant;
pub(crate) mod timers;
pub(crate) mod watchdog;

use std::ops::Deref;
use std::sync::atomic::{AtomicPtr, Ordering};

use self::closer::Closer;
use self::poller::Poller;
use self::pool::WorkerPool;
use self::spawn::Spawner;
use self::tenant::Work;
use self::timers::Timers;
use self::watchdog::Watchdog;
use crate::cpus::CpuSet;
use crate::own;
use crate::process;
use crate::router::forget_threads;
use crate::sys;

/// What all contexts of this process share that are not placed, or placed on the same CPUs.
#[derive(Debug)]
pub(crate) struct Threads {
    generation: u64,
    spawner: Spawner,
    /// Made before it.
    next: *const Threads,
    pub(crate) pool: WorkerPool,
    /// For what may wait without end.
    pub(crate) patient: WorkerPool,
    pub(crate) poller: Poller,
    pub(crate) watchdog: Watchdog,
    /// Of the set that is not placed; the other ones' are not used.
    timers: Timers,
    /// As these.
    closer: Closer,
}

static CURRENT: AtomicPtr<Threads> = AtomicPtr::new(std::ptr::null_mut());

impl Threads {
    /// Those of this process. In the child of a fork that is a new set: the parent's threads do
    /// not exist there, and its locks may have been held; the old set is left alone.
    pub(crate) fn of_this_process() -> &'static Self {
        // Reads files: later, on another thread, their descriptors could have numbers that the
        // program has just closed, and still uses in a request.
        sys::cpus();
        Self::find(None)
    }

    /// Those of this process that run on these CPUs.
    pub(crate) fn on(cpus: &CpuSet) -> &'static Self {
        spawn::remember_free_cpus();
        Self::find(Some(cpus))
    }

    fn find(cpus: Option<&CpuSet>) -> &'static Self {
        let generation = process::enter();
        loop {
            let first = CURRENT.load(Ordering::Acquire);
            let mut at = first.cast_const();
            let mut is_first = true;
            // SAFETY: null, or a set that was leaked below.
            while let Some(threads) = unsafe { at.as_ref() } {
                if threads.generation == generation && threads.spawner.cpus() == cpus {
                    return threads;
                }
                is_first &= threads.generation != generation;
                at = threads.next;
            }
            let new =
                Box::into_raw(Box::new(Self::new(generation, Spawner::on(cpus.cloned()), first)));
            match CURRENT.compare_exchange(first, new, Ordering::AcqRel, Ordering::Relaxed) {
                // Leaked: threads and contexts refer to it as long as the process lives.
                Ok(_) if is_first => forget_threads(),
                Ok(_) => {}
                // SAFETY: made above and seen by nobody.
                Err(_) => drop(unsafe { Box::from_raw(new) }),
            }
        }
    }

    fn new(generation: u64, spawner: Spawner, next: *const Self) -> Self {
        own::close_elsewhere_by(closer::close_elsewhere);
        Self {
            generation,
            next,
            pool: WorkerPool::new(Work::Ends, spawner.clone()),
            patient: WorkerPool::new(Work::MayWait, spawner.clone()),
            poller: Poller::new(spawner.clone()),
            watchdog: Watchdog::new(spawner.clone()),
            timers: Timers::new(),
            closer: Closer::new(spawner.clone()),
            spawner,
        }
    }
}

#[cfg(test)]
impl Threads {
    /// Threads that never get a CPU.
    pub(crate) fn still() -> &'static Self {
        Box::leak(Box::new(Self::new(process::enter(), Spawner::still(), std::ptr::null())))
    }

    /// No thread of these can be made.
    pub(crate) fn refused() -> &'static Self {
        Box::leak(Box::new(Self::new(process::enter(), Spawner::refuses(), std::ptr::null())))
    }
}

// SAFETY: `next` points to a set that is never freed and can itself be shared; the rest is atomics
// and locks.
unsafe impl Send for Threads {}
// SAFETY: as above.
unsafe impl Sync for Threads {}

/// A context's threads, which its placement may change before the first request.
#[derive(Debug)]
pub(crate) struct ThreadsOf(AtomicPtr<Threads>);

impl ThreadsOf {
    pub(crate) fn new(threads: &'static Threads) -> Self {
        Self(AtomicPtr::new(std::ptr::from_ref(threads).cast_mut()))
    }

    pub(crate) fn get(&self) -> &'static Threads {
        // SAFETY: one that was leaked.
        unsafe { &*self.0.load(Ordering::Acquire) }
    }

    pub(crate) fn set(&self, threads: &'static Threads) {
        self.0.store(std::ptr::from_ref(threads).cast_mut(), Ordering::Release);
    }
}

impl Deref for ThreadsOf {
    type Target = Threads;

    #[inline(always)]
    fn deref(&self) -> &Threads {
        self.get()
    }
}
