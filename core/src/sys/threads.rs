//! Threads and processes: signals, names, priorities, CPUs.

use std::marker::PhantomData;
use std::time::Duration;

use super::{Ret, statx, timespec};

/// The C library's own signals, from 32 to the last before `SIGRTMIN`: two of glibc, three of musl.
/// With the last one, setuid(2) and its like reach every thread. If a thread blocks it, such a call
/// does not return.
const C_LIBRARYS_SIGNALS: u64 = (if cfg!(target_env = "musl") { 0b111 } else { 0b11 }) << (32 - 1);

/// A seccomp filter of the program's or a drop-in's sends this signal for a call (seccomp(2)). If
/// the thread blocks it, the process ends.
const OF_FILTERS: u64 = 1 << (libc::SIGSYS - 1);

/// Blocks every signal of the calling thread that programs may use, and returns the old mask.
pub(crate) fn block_signals() -> u64 {
    let (all, mut old) = (!(C_LIBRARYS_SIGNALS | OF_FILTERS), 0u64);
    // SAFETY: both masks are eight bytes, the kernel's sigset size.
    unsafe { call!(rt_sigprocmask, libc::SIG_SETMASK, &raw const all, &raw mut old, 8) };
    old
}

/// Unblocks one signal in the calling thread.
pub(crate) fn unblock_signal(signal: i32) {
    let mask = 1u64 << (signal - 1);
    // SAFETY: the mask is eight bytes.
    unsafe { call!(rt_sigprocmask, libc::SIG_UNBLOCK, &raw const mask, 0, 8) };
}

/// The kernel's id of the calling thread.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: no memory is passed.
    unsafe { call!(gettid) as u32 }
}

/// Queues a signal for a process (rt_sigqueueinfo(2)).
///
/// # Safety
/// `info` can be read.
pub(crate) unsafe fn queue_signal(pid: i32, signo: i32, info: *const libc::siginfo_t) -> Ret {
    // SAFETY: `info` can be read by the caller's contract; the kernel copies it.
    unsafe { call!(rt_sigqueueinfo, pid, signo, info) }
}

/// Restores a mask from [`block_signals`].
pub(crate) fn restore_signals(mask: u64) {
    // SAFETY: the mask is eight bytes.
    unsafe { call!(rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, 0, 8) };
}

/// While this value lives, the calling thread cannot be cancelled (pthread_cancel(3)). It is used
/// around functions of the C library that are cancellation points. A cancellation would unwind
/// frames that do not expect it.
#[derive(Debug)]
pub struct Uncancelable(i32, PhantomData<*const ()>);

impl Uncancelable {
    /// Disables cancellation of the calling thread.
    pub fn new() -> Self {
        Self(Self::exchange(1), PhantomData)
    }

    /// 0 is `PTHREAD_CANCEL_ENABLE`, 1 `PTHREAD_CANCEL_DISABLE`; returns the old state.
    fn exchange(state: i32) -> i32 {
        unsafe extern "C" {
            fn pthread_setcancelstate(state: i32, old: *mut i32) -> i32;
        }
        if cfg!(miri) {
            return 0;
        }
        let mut old = 0;
        // SAFETY: a known state, and a place for the old one (pthread_setcancelstate(3)).
        unsafe { pthread_setcancelstate(state, &raw mut old) };
        old
    }
}

impl Default for Uncancelable {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Uncancelable {
    fn drop(&mut self) {
        Self::exchange(self.0);
    }
}

/// Names the calling thread (PR_SET_NAME); the kernel truncates a long name.
pub(crate) fn name_thread(name: &std::ffi::CStr) {
    // SAFETY: a name that ends in NUL.
    unsafe { call!(prctl, libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}

/// The kernel's counts for the calling thread (getrusage(2)).
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadUse {
    /// How often the thread has slept: voluntary context switches.
    pub(crate) sleeps: i64,
    /// How often the thread was preempted.
    pub(crate) preemptions: i64,
    /// The thread's CPU time in microseconds.
    pub(crate) cpu_us: u64,
}

/// The counts of the calling thread; `None` if they are refused.
pub(crate) fn use_of_this_thread() -> Option<ThreadUse> {
    // SAFETY: zeros are valid: the structure has integers only.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is as large as the call writes.
    let ret = unsafe { call!(getrusage, libc::RUSAGE_THREAD, &raw mut usage) };
    let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    (ret == 0).then_some(ThreadUse {
        sleeps: usage.ru_nvcsw,
        preemptions: usage.ru_nivcsw,
        cpu_us: us(usage.ru_utime) + us(usage.ru_stime),
    })
}

/// getpid(2).
pub(crate) fn getpid() -> i32 {
    // SAFETY: no memory is passed.
    unsafe { call!(getpid) as i32 }
}

/// Is there a process with this pid (kill(2))?
pub(crate) fn has_process(pid: u32) -> bool {
    // SAFETY: no memory is passed, and no signal is sent.
    unsafe { call!(kill, pid, 0) != -(libc::ESRCH as Ret) }
}

/// Does the kernel answer this errno if the calling thread asks for the I/O priority
/// (ioprio_set(2))? `EPERM`: it is not allowed. `EINVAL`: there is no such priority.
pub(crate) fn is_priority_refused(priority: u16, errno: i32) -> bool {
    const PROCESS: i32 = 1;
    // The kernel checks the priority before it looks for the process, and no process has this
    // number. SAFETY: no memory is passed.
    let ret = unsafe { call!(ioprio_set, PROCESS, i32::MAX, i32::from(priority)) };
    ret == -(errno as Ret)
}

/// Runs `body` so that a write in it raises neither SIGPIPE nor SIGXFSZ: the write only fails.
pub(crate) fn without_write_signals<T>(body: impl FnOnce() -> T) -> T {
    let bit = |signal: i32| 1u64 << (signal - 1);
    let quiet = bit(libc::SIGPIPE) | bit(libc::SIGXFSZ);
    let pending = || {
        let mut set = 0u64;
        // SAFETY: the set is eight bytes.
        unsafe { call!(rt_sigpending, &raw mut set, 8) };
        set & quiet
    };
    let mut old = 0u64;
    // SAFETY: both masks are eight bytes, the kernel's sigset size.
    unsafe { call!(rt_sigprocmask, libc::SIG_BLOCK, &raw const quiet, &raw mut old, 8) };
    let before = pending();
    let result = body();
    let raised = pending() & !before;
    if raised != 0 {
        let now = timespec(Duration::ZERO);
        // SAFETY: the set is eight bytes, the timespec lives across the call; nothing else is
        // written.
        unsafe { call!(rt_sigtimedwait, &raw const raised, 0, &raw const now, 8) };
    }
    restore_signals(old);
    result
}

/// The number of threads of this process; `None` if /proc does not tell.
pub(crate) fn threads() -> Option<u32> {
    // SAFETY: zeros are valid: the structure has integers only.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let (path, mask) = (c"/proc/self/task".as_ptr().cast(), libc::STATX_NLINK);
    // SAFETY: a path that ends in NUL, and room for what is found.
    let ret = unsafe { statx(libc::AT_FDCWD, path, 0, mask, (&raw mut found) as u64) };
    // One link from the folder above, one from the folder itself, and one from each thread.
    if ret == 0 { found.stx_nlink.checked_sub(2).filter(|&threads| threads > 0) } else { None }
}

/// The CPU that the calling thread runs on, at this moment.
#[cfg(not(loom))]
#[inline]
pub(crate) fn cpu() -> usize {
    if cfg!(miri) {
        return 0;
    }
    // SAFETY: takes nothing; libc's version runs in the vDSO or reads the thread's rseq area.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// sched_getaffinity(2) of a thread (0: the calling one): 64 CPUs a word, or a negative errno.
#[cfg(not(loom))]
pub(crate) fn affinity(thread: i32) -> Result<Vec<u64>, i32> {
    // The kernel refuses a mask that is shorter than its own.
    let mut words = vec![0u64; crate::cpus::CPUS_MAX / 64];
    // SAFETY: `words` is writable for the length passed.
    let ret = unsafe { call!(sched_getaffinity, thread, words.len() * 8, words.as_mut_ptr()) };
    if ret < 0 {
        return Err(ret as i32);
    }
    words.truncate((ret as usize).div_ceil(8));
    Ok(words)
}

/// sched_setaffinity(2) of the calling thread. 0, or a negative errno: `-EINVAL` if none of the
/// CPUs is available.
#[cfg(not(loom))]
pub(crate) fn set_affinity(words: &[u64]) -> Ret {
    // SAFETY: `words` is readable for the length passed.
    unsafe { call!(sched_setaffinity, 0, words.len() * 8, words.as_ptr()) }
}

/// Is a seccomp filter in force for the calling thread (PR_GET_SECCOMP of prctl(2))?
pub(crate) fn is_filtered() -> bool {
    // SAFETY: only numbers are passed.
    unsafe { call!(prctl, libc::PR_GET_SECCOMP, 0, 0, 0, 0) as i32 > 0 }
}

/// Gives the calling thread the shortest time slices that Linux has. Threads that it starts do not
/// inherit them. With shorter slices than others, a thread has an earlier deadline, so it runs soon
/// after it is woken, also on the CPU of a busy thread. Its share of the CPU stays the same
/// (sched_setattr(2), Linux 6.12). Earlier kernels ignore the slice. A thread of another policy
/// than the usual one, or of a higher priority, is left alone.
///
/// This was measured for the thread that waits for polls of rings, with 3,000 reads of a pipe
/// through a ring whose program was busy. Without the slice, 30 of them took longer than 0.9 ms,
/// and with it one did. Workers are slower with it: fsyncs at depth 8 had 0.83 of their rate, and
/// so had cold reads at depth 32. The thread of timeouts gains nothing.
pub(crate) fn shorten_slices() {
    const NANOSECONDS: u64 = 100_000;
    /// The threads that it starts do not inherit the slice, nor a higher priority.
    const SCHED_FLAG_RESET_ON_FORK: u64 = 1;
    /// `struct sched_attr`, in its first version.
    #[derive(Default)]
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let mut attributes = Attributes::default();
    let (at, len) = (&raw mut attributes, size_of::<Attributes>());
    // SAFETY: a place for the attributes of this thread, and the size of that place.
    let known = unsafe { call!(sched_getattr, 0, at, len, 0) };
    if known < 0 || attributes.policy != libc::SCHED_OTHER as u32 || attributes.nice < 0 {
        return;
    }
    (attributes.size, attributes.runtime) = (len as u32, NANOSECONDS);
    attributes.flags |= SCHED_FLAG_RESET_ON_FORK;
    // SAFETY: attributes that live through the call.
    unsafe { call!(sched_setattr, 0, &raw const attributes, 0) };
}

/// Does the calling thread have a real-time policy (sched(7))?
pub(crate) fn is_real_time() -> bool {
    // SAFETY: no memory is passed.
    let policy = unsafe { call!(sched_getscheduler, 0) } as i32 & !libc::SCHED_RESET_ON_FORK;
    [libc::SCHED_FIFO, libc::SCHED_RR, libc::SCHED_DEADLINE].contains(&policy)
}

/// Gives the calling thread the normal policy, SCHED_OTHER.
pub(crate) fn leave_real_time() {
    // SAFETY: zeros are valid: the fields are integers (musl has more of them than glibc).
    let priority: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the parameters live across the call.
    unsafe { call!(sched_setscheduler, 0, libc::SCHED_OTHER, &raw const priority) };
}

const MEMBARRIER_PRIVATE_EXPEDITED: i32 = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

/// Prepares the process for [`membarrier`]. False if it is refused.
pub(crate) fn membarrier_register() -> bool {
    // SAFETY: no memory is passed.
    unsafe { call!(membarrier, MEMBARRIER_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 }
}

/// A full fence on every running thread of the process (membarrier(2)). False if it is refused.
pub(crate) fn membarrier() -> bool {
    // SAFETY: no memory is passed.
    unsafe { call!(membarrier, MEMBARRIER_PRIVATE_EXPEDITED, 0, 0) == 0 }
}
