//! Starts the engine's threads: with their signals, scheduling policy, stack and CPUs. A placed
//! thread is confined to the CPUs of a context's placement.

use std::sync::OnceLock;

use super::stacks;
use crate::cpus::CpuSet;
use crate::fallback_alloc::has_memory;
use crate::sys;

const STACK_BYTES: usize = 256 * 1024;
/// The memory that a thread needs beside its stack.
const THREAD_BYTES: usize = 256 * 1024;

/// Makes the threads of one set (`Threads`).
#[derive(Clone, Debug)]
pub(crate) struct Spawner {
    /// The CPUs of the thread; `None` if the scheduler chooses.
    cpus: Option<CpuSet>,
    /// For tests: threads are not started, as if they never got a CPU.
    #[cfg(test)]
    still: bool,
    /// For tests: no thread can be made.
    #[cfg(test)]
    refuses: bool,
}

impl Spawner {
    pub(super) fn on(cpus: Option<CpuSet>) -> Self {
        Self {
            cpus,
            #[cfg(test)]
            still: false,
            #[cfg(test)]
            refuses: false,
        }
    }

    #[cfg(test)]
    pub(super) fn still() -> Self {
        Self { cpus: None, still: true, refuses: false }
    }

    #[cfg(test)]
    pub(super) fn refuses() -> Self {
        Self { cpus: None, still: false, refuses: true }
    }

    pub(super) fn cpus(&self) -> Option<&CpuSet> {
        self.cpus.as_ref()
    }

    /// Starts a thread.
    pub(super) fn spawn(
        &self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        #[cfg(test)]
        if self.still {
            return Ok(());
        }
        #[cfg(test)]
        if self.refuses {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        spawn_on(name, self.cpus(), body)
    }
}

/// Starts an engine thread: the program's signals blocked, no real-time policy, a small stack,
/// named `uringlet-…`. A panic in it ends the process with a message, because requests would be
/// lost otherwise.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    // The C library ends the process if a new thread cannot have the memory that it needs.
    if !has_memory(STACK_BYTES + THREAD_BYTES) {
        return Err(std::io::ErrorKind::OutOfMemory.into());
    }
    let body = || {
        if sys::is_real_time() {
            // The policy is inherited from the calling thread. The new thread serves all threads of
            // the program, and may run for long.
            sys::leave_real_time();
        }
        body();
    };
    let mask = sys::block_signals();
    let name = format!("uringlet-{name}");
    let thread = stacks::start(name.clone(), Box::new(body), STACK_BYTES).or_else(|body| {
        // `start` has failed: the program's thread-locals need more than this stack has, or no
        // thread can be made.
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

/// The CPUs of threads that are not placed, once some threads are placed.
static FREE: OnceLock<CpuSet> = OnceLock::new();

/// Remembers the CPUs of threads that are not placed. Threads inherit the CPUs of the thread that
/// creates them, which may be a placed one from now on.
pub(super) fn remember_free_cpus() {
    if FREE.get().is_none()
        && let Ok(words) = sys::affinity(std::process::id() as i32)
    {
        let _ = FREE.set(CpuSet::from_words(&words));
    }
}

/// As [`spawn`], on these CPUs. If none of them is available any more, the thread runs anywhere.
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
