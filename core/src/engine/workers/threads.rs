//! The threads of this process: workers, poller, watchdog. Made when needed, gone when idle.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::poller::Poller;
use super::pool::Pool;
use super::stacks;
use super::watchdog::Watchdog;
use crate::affinity::CpuSet;
use crate::front::has_memory;
use crate::process;
use crate::sync::OnceNumber;
use crate::sys;
#[cfg(all(test, not(loom)))]
use {super::Workers, crate::instance::Instance};

/// The most workers of a process.
pub(crate) const WORKERS_MAX: usize = 64;
/// A thread with nothing to do for this long ends.
pub(crate) const RETIRE_AFTER: Duration = Duration::from_secs(2);

const STACK_BYTES: usize = 256 * 1024;
/// What a thread has to find beside its stack.
const THREAD_BYTES: usize = 256 * 1024;

/// What all contexts of this process share that are not placed, or placed on the same CPUs.
#[derive(Debug)]
pub(super) struct Threads {
    generation: u64,
    /// Where its threads run; none if that is left to the scheduler.
    cpus: Option<CpuSet>,
    /// Made before it.
    next: *const Threads,
    pub(super) pool: Pool,
    pub(super) poller: Poller,
    pub(super) watchdog: Watchdog,
    pub(super) busy: Busy,
    /// Fsyncs under way.
    pub(super) syncing: AtomicUsize,
    /// Those that it makes never get a CPU.
    #[cfg(test)]
    still: bool,
}

static CURRENT: AtomicPtr<Threads> = AtomicPtr::new(std::ptr::null_mut());

impl Threads {
    /// Those of this process. In the child of a fork that is a new set: the parent's threads do
    /// not exist there, and its locks may have been held; the old set is left alone.
    pub(super) fn of_this_process() -> &'static Self {
        // Reads files: later, on another thread, their descriptors could have numbers that the program has
        // just closed, and still uses in a request.
        cpus();
        Self::find(None)
    }

    /// Those of this process that run on these CPUs.
    pub(super) fn on(cpus: &CpuSet) -> &'static Self {
        remember_free_cpus();
        Self::find(Some(cpus))
    }

    fn find(cpus: Option<&CpuSet>) -> &'static Self {
        let generation = process::enter();
        loop {
            let first = CURRENT.load(Ordering::Acquire);
            let mut at = first.cast_const();
            // SAFETY: null, or a set that was leaked below.
            while let Some(threads) = unsafe { at.as_ref() } {
                if threads.generation == generation && threads.cpus.as_ref() == cpus {
                    return threads;
                }
                at = threads.next;
            }
            let new = Box::into_raw(Box::new(Self {
                generation,
                cpus: cpus.cloned(),
                next: first,
                pool: Pool::new(),
                poller: Poller::new(),
                watchdog: Watchdog::new(),
                busy: Busy::new(),
                syncing: AtomicUsize::new(0),
                #[cfg(test)]
                still: false,
            }));
            match CURRENT.compare_exchange(first, new, Ordering::AcqRel, Ordering::Relaxed) {
                // Leaked: threads and contexts refer to it as long as the process lives.
                Ok(_) => {}
                // SAFETY: made above and seen by nobody.
                Err(_) => drop(unsafe { Box::from_raw(new) }),
            }
        }
    }

    /// Starts one of its threads.
    pub(super) fn spawn(
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

/// For tests, of a context without requests: no worker, poller or watchdog comes to it, as if they never got a CPU. What
/// happens is what the threads of the test do.
#[cfg(all(test, not(loom)))]
pub(crate) fn leave_alone(instance: &Instance) {
    let workers = Workers::of(instance);
    let threads = Box::leak(Box::new(Threads {
        generation: process::enter(),
        cpus: None,
        next: std::ptr::null(),
        pool: Pool::new(),
        poller: Poller::new(),
        watchdog: Watchdog::new(),
        busy: Busy::new(),
        syncing: AtomicUsize::new(0),
        still: true,
    }));
    workers.threads.set(threads);
    workers.harvesters.set(threads);
}

// SAFETY: `next` points to a set that is never freed and can itself be shared; the rest is atomics and locks.
unsafe impl Send for Threads {}
// SAFETY: as above.
unsafe impl Sync for Threads {}

/// A context's threads, which its placement may change before the first request.
#[derive(Debug)]
pub(super) struct ThreadsOf(AtomicPtr<Threads>);

impl ThreadsOf {
    pub(super) fn new(threads: &'static Threads) -> Self {
        Self(AtomicPtr::new(std::ptr::from_ref(threads).cast_mut()))
    }

    pub(super) fn get(&self) -> &'static Threads {
        // SAFETY: one that was leaked.
        unsafe { &*self.0.load(Ordering::Acquire) }
    }

    pub(super) fn set(&self, threads: &'static Threads) {
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

/// How many contexts keep a CPU busy each, in spans of time: two words of `span << 16 | count`.
#[derive(Debug)]
pub(super) struct Busy([AtomicU64; 2]);

impl Busy {
    /// A span is 2^16 microseconds.
    const SPAN_SHIFT: u32 = 16;

    pub(super) fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 2])
    }

    /// The span that a time lies in.
    pub(super) fn span(us: u64) -> u64 {
        us >> Self::SPAN_SHIFT
    }

    /// A context says that it is busy, once in a span.
    pub(super) fn add(&self, span: u64) {
        let word = &self.0[span as usize % 2];
        let now = word.load(Ordering::Relaxed);
        let count = if now >> 16 == span & (u64::MAX >> 16) { now & 0xffff } else { 0 };
        // A lost count is found again in the next span.
        word.store(span << 16 | (count + 1).min(0xffff), Ordering::Relaxed);
    }

    /// Busy contexts in a span or the one before, whichever are more.
    pub(super) fn count(&self, span: u64) -> usize {
        let count = |span: u64| {
            let word = self.0[span as usize % 2].load(Ordering::Relaxed);
            if word >> 16 == span & (u64::MAX >> 16) { word & 0xffff } else { 0 }
        };
        count(span).max(count(span.wrapping_sub(1))) as usize
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

/// CPUs that this process may use.
pub(in crate::engine) fn cpus() -> usize {
    static CPUS: OnceNumber = OnceNumber::new();
    let count = || {
        let _whole = sys::Uncancelable::new();
        std::thread::available_parallelism().map_or(1, usize::from) as u64
    };
    CPUS.get(count) as usize
}
