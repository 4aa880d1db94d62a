//! The threads of this process: workers, poller, watchdog, timer, closer. Made when needed, gone
//! when idle. They know a context as a [`Tenant`](tenant::Tenant).
#![allow(unsafe_code)]

mod closer;
pub(crate) mod loops;
pub(crate) mod poller;
pub(crate) mod pool;
pub(crate) mod spawn;
mod stacks;
pub(crate) mod tenant;
pub(crate) mod timers;
pub(crate) mod watchdog;

use std::convert::Infallible;
use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use self::closer::Closer;
use self::loops::Loops;
use self::poller::Poller;
use self::pool::WorkerPool;
use self::spawn::Spawner;
use self::tenant::Work;
use self::timers::Timers;
use self::watchdog::Watchdog;
use crate::cpus::CpuSet;
use crate::own;
use crate::process::PerProcess;
use crate::router::forget_threads;
use crate::sys;

/// What all contexts of this process share that are not placed, or placed on the same CPUs.
#[derive(Debug)]
pub(crate) struct Threads {
    spawner: Spawner,
    /// Made after it, for other CPUs.
    next: OnceLock<Box<Threads>>,
    pub(crate) pool: WorkerPool,
    /// For what may wait without end.
    pub(crate) patient: WorkerPool,
    pub(crate) poller: Poller,
    pub(crate) watchdog: Watchdog,
    /// Contexts that threads of the program drive.
    pub(crate) loops: Loops,
    /// Of the set that is not placed; the other ones' are not used.
    timers: Timers,
    /// As these.
    closer: Closer,
}

/// The set that is not placed; the others follow it.
static THREADS: PerProcess<Threads> = PerProcess::new();

impl Threads {
    /// The threads of this process. The child of a fork gets a new set: the parent's threads do not
    /// exist there, and locks of theirs may have been held. The old set is left alone.
    pub(crate) fn of_this_process() -> &'static Self {
        // Reads files: later, on another thread, their descriptors could have numbers that the
        // program has just closed, and still uses in a request.
        sys::cpus();
        Self::first()
    }

    fn first() -> &'static Self {
        let make = || Ok::<_, Infallible>(Self::new(Spawner::on(None)));
        let Ok(threads) = THREADS.current_or_then(make, forget_threads);
        threads
    }

    /// As [`Threads::of_this_process`], if there are any. Makes nothing.
    pub(crate) fn known() -> Option<&'static Self> {
        THREADS.current()
    }

    /// The threads of this process that run on these CPUs.
    pub(crate) fn on(cpus: &CpuSet) -> &'static Self {
        spawn::remember_free_cpus();
        let mut threads = Self::first();
        while threads.spawner.cpus() != Some(cpus) {
            let make = || Box::new(Self::new(Spawner::on(Some(cpus.clone()))));
            threads = threads.next.get_or_init(make);
        }
        threads
    }

    fn new(spawner: Spawner) -> Self {
        own::close_elsewhere_by(closer::close_elsewhere);
        Self {
            next: OnceLock::new(),
            pool: WorkerPool::new(Work::Ends, spawner.clone()),
            patient: WorkerPool::new(Work::MayWait, spawner.clone()),
            poller: Poller::new(spawner.clone()),
            watchdog: Watchdog::new(spawner.clone()),
            loops: Loops::default(),
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
        Box::leak(Box::new(Self::new(Spawner::still())))
    }

    /// No thread of these can be made.
    pub(crate) fn refused() -> &'static Self {
        Box::leak(Box::new(Self::new(Spawner::refuses())))
    }
}

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
