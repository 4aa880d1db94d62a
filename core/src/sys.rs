//! Raw system calls as inline instructions. So no libc symbol that a drop-in or a preload might
//! export is between the engine and the kernel. `errno` is preserved, and no call is a pthread
//! cancellation point.
//!
//! A result is a count or a negative errno, as from the kernel.
#![allow(unsafe_code)]

/// A count, or a negative errno.
pub(crate) type Ret = isize;

/// The kernel's maximum for one transfer, in bytes (read(2)).
pub(crate) const MAX_RW_COUNT: usize = 0x7fff_f000;

/// The maximum number of iovecs that the kernel copies without allocating memory (`UIO_FASTIOV`).
pub(crate) const IOVECS_KEPT: u32 = 8;

#[cfg(not(miri))]
macro_rules! call {
    ($nr:ident $(, $arg:expr)*) => {
        $crate::sys::return_stack::after_call(
            syscalls::raw_syscall!(syscalls::Sysno::$nr $(, $arg)*) as $crate::sys::Ret
        )
    };
}
#[cfg(miri)]
macro_rules! call {
    ($nr:ident $(, $arg:expr)*) => {
        $crate::sys::miri::call(
            syscalls::Sysno::$nr,
            &[$($crate::sys::miri::Argument::word($arg)),*],
        )
    };
}
#[cfg(not(loom))]
pub(crate) use call;

pub(crate) mod aio;
mod files;
mod memory;
#[cfg(miri)]
pub(crate) mod miri;
pub(crate) mod return_stack;
mod threads;
mod waiting;

pub(crate) use self::aio::{io_destroy, io_pgetevents, io_setup, io_submit};
pub use self::memory::*;
pub use self::threads::*;
pub(crate) use self::{files::*, waiting::*};

/// A clock for durations: the time-stamp counter if there is one, else nanoseconds.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has the instruction; it touches no memory.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    monotonic_ns()
}

/// Spins until `found` is true, for this many ticks at most. Returns the last answer.
pub(crate) fn spin_until(longest: u64, mut found: impl FnMut() -> bool) -> bool {
    let begin = ticks();
    loop {
        let found = found();
        if found || ticks().wrapping_sub(begin) > longest {
            return found;
        }
        std::hint::spin_loop();
    }
}

/// The number of [`ticks`] in a microsecond: measured once, which takes 60 microseconds.
#[cfg(not(loom))]
pub(crate) fn ticks_per_us() -> u64 {
    static RATE: crate::sync::OnceNumber = crate::sync::OnceNumber::new();
    let measure = || {
        let (begin, ns) = (ticks(), monotonic_ns());
        loop {
            let passed = monotonic_ns() - ns;
            if passed > 20_000 {
                return (ticks().wrapping_sub(begin) * 1000 / passed).max(1);
            }
            std::hint::spin_loop();
        }
    };
    // A thread that is stopped between the two clocks measures too much, and never too little.
    RATE.get(|| (0..3).map(|_| measure()).min().expect("three of them"))
}

/// CPUs that this process may use. The first call reads files.
#[cfg(not(loom))]
pub(crate) fn cpus() -> usize {
    static CPUS: crate::sync::OnceNumber = crate::sync::OnceNumber::new();
    let count = || {
        let _whole = Uncancelable::new();
        std::thread::available_parallelism().map_or(1, usize::from) as u64
    };
    CPUS.get(count) as usize
}

/// CLOCK_MONOTONIC in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a writable timespec. libc's version runs in the vDSO.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
