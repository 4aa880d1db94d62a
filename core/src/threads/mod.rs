//! The threads of this process: workers, poller, watchdog, timer, closer. They are made when
//! needed, and end when idle. They know a context as a [`Tenant`](tenant::Tenant).
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

/// The threads that several contexts of this process share: contexts that are not placed, or placed
/// on the same CPUs.
#[derive(Debug)]
pub(crate) struct Threads {
    spawner: Spawner,
    /// The next set, for other CPUs.
    next: OnceLock<Box<Threads>>,
    pub(crate) pool: WorkerPool,
    /// Workers for work that may wait without end.
    pub(crate) patient: WorkerPool,
    pub(crate) poller: Poller,
    pub(crate) watchdog: Watchdog,
    /// Contexts that threads of the program drive.
    pub(crate) loops: Loops,
    /// Only the set that is not placed uses its timers.
    timers: Timers,
    /// Only the set that is not placed uses its closer.
    closer: Closer,
}

/// The set that is not placed; the others are linked to it.
static THREADS: PerProcess<Threads> = PerProcess::new();

impl Threads {
    /// The threads of this process. The child of a fork gets a new set: the parent's threads do not
    /// exist there, and may have held locks. The old set is not touched.
    pub(crate) fn of_this_process() -> &'static Self {
        // This call reads files now. Later, on another thread, the files' descriptors could get
        // numbers that the program has just closed, and still uses in a request.
        sys::cpus();
        Self::first()
    }

    fn first() -> &'static Self {
        let make = || Ok::<_, Infallible>(Self::new(Spawner::on(None)));
        let Ok(threads) = THREADS.current_or_then(make, forget_threads);
        threads
    }

    /// As [`Threads::of_this_process`], if the set exists. Makes nothing.
    pub(crate) fn known() -> Option<&'static Self> {
        THREADS.current()
    }

    /// The set of threads that run on these CPUs.
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
    /// A set of threads that never get a CPU.
    pub(crate) fn still() -> &'static Self {
        Box::leak(Box::new(Self::new(Spawner::still())))
    }

    /// A set of threads that cannot be made.
    pub(crate) fn refused() -> &'static Self {
        Box::leak(Box::new(Self::new(Spawner::refuses())))
    }
}

/// A context's set of threads, which its placement may change before the first request.
#[derive(Debug)]
pub(crate) struct ThreadsOf(AtomicPtr<Threads>);

impl ThreadsOf {
    pub(crate) fn new(threads: &'static Threads) -> Self {
        Self(AtomicPtr::new(std::ptr::from_ref(threads).cast_mut()))
    }

    pub(crate) fn get(&self) -> &'static Threads {
        // SAFETY: the pointer was made from a `&'static Threads`.
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
