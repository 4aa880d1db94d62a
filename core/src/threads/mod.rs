//! The threads of this process: workers, poller, watchdog, timer. Made when needed, gone when idle.
//! They know a context as a [`Tenant`].
#![allow(unsafe_code)]

pub(crate) mod poller;
pub(crate) mod pool;
mod stacks;
pub(crate) mod timers;
pub(crate) mod watchdog;

use std::fmt;
use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use self::poller::Poller;
use self::pool::{PoolEntry, WorkerPool};
use self::timers::Timers;
use self::watchdog::{Activity, Watchdog, Watched};
use crate::affinity::CpuSet;
use crate::board::Board;
use crate::process;
use crate::reserve::has_memory;
use crate::router::forget_syncs;
use crate::sys;

/// What the threads of a process ask of a context.
pub(crate) trait Tenant: Send + Sync + fmt::Debug {
    /// The requests of this context.
    fn board(&self) -> &Board;

    /// Its place among those that share the pool.
    fn entry(&self) -> &PoolEntry;

    /// The threads that serve it.
    fn threads(&self) -> &'static Threads;

    /// As many workers may serve it at a time.
    fn workers_max(&self) -> usize;

    /// What waits for workers, as requests that need one each.
    fn waiting(&self) -> usize;

    /// A worker is to take the baton, or to hand requests over.
    fn has_wishes(&self) -> bool;

    /// Something must not wait for the workers that are at work.
    fn is_urgent(&self) -> bool;

    /// There is something for a worker to do.
    fn needs_worker(&self) -> bool;

    /// A worker's turn: it executes some of its requests.
    fn serve(&self);

    /// How far each part of it is.
    fn words(&self) -> Vec<u64>;

    /// The watchdog looks at it, and gets somebody to come to what lies about.
    fn look(&self, watched: &mut Watched) -> Activity;

    /// There is no watchdog, and none can be made.
    fn is_unwatched(&self);
}

const STACK_BYTES: usize = 256 * 1024;
/// What a thread has to find beside its stack.
const THREAD_BYTES: usize = 256 * 1024;

/// What all contexts of this process share that are not placed, or placed on the same CPUs.
#[derive(Debug)]
pub(crate) struct Threads {
    generation: u64,
    /// Where its threads run; none if that is left to the scheduler.
    cpus: Option<CpuSet>,
    /// Made before it.
    next: *const Threads,
    pub(crate) pool: WorkerPool,
    pub(crate) poller: Poller,
    pub(crate) watchdog: Watchdog,
    /// Of the set that is not placed; the other ones' are not used.
    timers: Timers,
    /// Those that it makes never get a CPU.
    #[cfg(test)]
    still: bool,
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
        remember_free_cpus();
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
                if threads.generation == generation && threads.cpus.as_ref() == cpus {
                    return threads;
                }
                is_first &= threads.generation != generation;
                at = threads.next;
            }
            let new = Box::into_raw(Box::new(Self {
                generation,
                cpus: cpus.cloned(),
                next: first,
                pool: WorkerPool::new(),
                poller: Poller::new(),
                watchdog: Watchdog::new(),
                timers: Timers::new(),
                #[cfg(test)]
                still: false,
            }));
            match CURRENT.compare_exchange(first, new, Ordering::AcqRel, Ordering::Relaxed) {
                // Leaked: threads and contexts refer to it as long as the process lives.
                Ok(_) if is_first => forget_syncs(),
                Ok(_) => {}
                // SAFETY: made above and seen by nobody.
                Err(_) => drop(unsafe { Box::from_raw(new) }),
            }
        }
    }

    /// Starts one of its threads.
    pub(crate) fn spawn(
        &self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        #[cfg(test)]
        if self.still {
            return Ok(());
        }
        spawn_on(name, self.cpus.as_ref(), body)
    }
}

#[cfg(all(test, not(loom)))]
impl Threads {
    /// Threads that never get a CPU.
    pub(crate) fn still() -> &'static Self {
        Box::leak(Box::new(Self {
            generation: process::enter(),
            cpus: None,
            next: std::ptr::null(),
            pool: WorkerPool::new(),
            poller: Poller::new(),
            watchdog: Watchdog::new(),
            timers: Timers::new(),
            still: true,
        }))
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

/// Starts a thread of ours: the program's signals blocked, no real-time policy, a small stack,
/// named `uringlet-…`. A panic in it ends the process with a message: requests would be lost
/// otherwise.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    // The C library ends the process if a thread cannot have what it needs at its beginning.
    if !has_memory(STACK_BYTES + THREAD_BYTES) {
        return Err(std::io::ErrorKind::OutOfMemory.into());
    }
    let body = || {
        if sys::is_real_time() {
            // Inherited from the thread that makes it. It serves all threads of the program, and
            // may run for long.
            sys::leave_real_time();
        }
        body();
    };
    let mask = sys::block_signals();
    let name = format!("uringlet-{name}");
    let thread = stacks::start(name.clone(), Box::new(body), STACK_BYTES).or_else(|body| {
        // The thread-locals of the program take more than this stack has, or no thread can be had.
        let builder = std::thread::Builder::new().name(name).stack_size(STACK_BYTES);
        let whole = || {
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err() {
                std::process::abort();
            }
        };
        builder.spawn(whole).map(drop)
    });
    sys::restore_signals(mask);
    thread
}

/// The CPUs of threads that are not placed, once there are some that are.
static FREE: OnceLock<CpuSet> = OnceLock::new();

/// Threads inherit the CPUs of the thread that makes them, which may be a placed one from now on.
fn remember_free_cpus() {
    if FREE.get().is_none()
        && let Ok(words) = sys::affinity(std::process::id() as i32)
    {
        let _ = FREE.set(CpuSet::from_words(&words));
    }
}

/// As [`spawn`], on these CPUs. If none of them can be had any more, the thread runs anywhere.
pub(crate) fn spawn_on(
    name: &str,
    cpus: Option<&CpuSet>,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    let cpus = cpus.or(FREE.get()).cloned();
    spawn(name, move || {
        if let Some(cpus) = cpus
            && sys::set_affinity(cpus.words()) < 0
            && let Some(free) = FREE.get()
        {
            sys::set_affinity(free.words());
        }
        body();
    })
}
