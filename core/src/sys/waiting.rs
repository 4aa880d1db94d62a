//! Waiting: for descriptors, for words in memory, for a time.

use std::os::fd::RawFd;
use std::time::Duration;

use super::Ret;

pub(crate) fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

/// ppoll(2); the signal mask changes only if one (8 bytes) is given.
pub(crate) fn ppoll(
    fds: &mut [libc::pollfd],
    timeout: Option<Duration>,
    sigmask: Option<&u64>,
) -> Ret {
    let mut time = timeout.map(timespec);
    let time = time.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    let mask = sigmask.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: all three point to live objects of the kernel's layouts, or are null.
    unsafe { call!(ppoll, fds.as_mut_ptr(), fds.len(), time, mask, 8) }
}

/// What ended a [`futex_wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FutexEnd {
    /// A wake, a changed word, or a spurious wake-up: the caller checks again.
    Again,
    /// The timeout has passed.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// Sleeps while `word` is `expected`, at most `timeout` (futex(2), private). With `restarts` and no
/// timeout, a signal handler with SA_RESTART does not end the sleep.
#[cfg(not(loom))]
pub(crate) fn futex_wait(
    word: &std::sync::atomic::AtomicU32,
    expected: u32,
    timeout: Option<Duration>,
    restarts: bool,
) -> FutexEnd {
    /// A year, in place of no timeout. Without a timeout, the kernel restarts the call after a
    /// handler with SA_RESTART.
    const FAR: Duration = Duration::from_secs(365 * 24 * 3600);
    let time = timespec(timeout.unwrap_or(FAR));
    let for_ever = restarts && timeout.is_none();
    let time = if for_ever { std::ptr::null() } else { &raw const time };
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: `word` outlives the call; the timespec does too.
    let ret = unsafe { call!(futex, word.as_ptr(), op, expected, time) };
    match -ret as i32 {
        libc::ETIMEDOUT => FutexEnd::TimedOut,
        libc::EINTR => FutexEnd::Interrupted,
        _ => FutexEnd::Again,
    }
}

/// Wakes at most `n` sleepers of the word at `address`.
#[cfg(not(loom))]
pub(crate) fn futex_wake(address: usize, n: i32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel compares the address with where threads sleep, and touches no memory.
    unsafe { call!(futex, address, op, n) };
}

/// A new eventfd(2): close-on-exec, nonblocking.
pub(crate) fn eventfd() -> Ret {
    // SAFETY: no memory is passed.
    unsafe { call!(eventfd2, 0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }
}

/// A new epoll(7), or the negative errno.
pub(crate) fn epoll_create() -> Ret {
    // SAFETY: no memory is passed.
    unsafe { call!(epoll_create1, libc::EPOLL_CLOEXEC) }
}

fn epoll_ctl(epoll: RawFd, op: i32, fd: RawFd, events: u32, token: u64) -> Ret {
    let mut event = libc::epoll_event { events, u64: token };
    // SAFETY: the event lives across the call.
    unsafe { call!(epoll_ctl, epoll, op, fd, &raw mut event) }
}

/// Registers a descriptor: 0, or a negative errno.
pub(crate) fn epoll_add(epoll: RawFd, fd: RawFd, events: u32, token: u64) -> Ret {
    epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, events, token)
}

/// As [`epoll_add`], for a descriptor that may already be registered. `is_known`: it probably is.
pub(crate) fn epoll_set(epoll: RawFd, fd: RawFd, events: u32, token: u64, is_known: bool) -> Ret {
    let (add, change) = (libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD);
    let (first, second) = if is_known { (change, add) } else { (add, change) };
    match epoll_ctl(epoll, first, fd, events, token) {
        errno if [-(libc::EEXIST as Ret), -(libc::ENOENT as Ret)].contains(&errno) => {
            epoll_ctl(epoll, second, fd, events, token)
        }
        answer => answer,
    }
}

/// The events that poll(2) reports at once for a file without a poll method, as are files on disks,
/// folders and /dev/null.
pub(crate) const ALWAYS_READY: i16 =
    libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM;

/// Does a file without a poll method never have one of these events? The kernel then refuses the
/// poll. The file is not asked, nor its server. `None`: there is no room for a descriptor, with
/// which the kernel is asked.
pub(crate) fn never_has(fd: RawFd, events: i16) -> Option<bool> {
    if events & ALWAYS_READY != 0 {
        return Some(false);
    }
    let epoll = RawFd::try_from(epoll_create()).ok().filter(|&epoll| epoll >= 0)?;
    // An epoll that watches nothing answers ENOENT, or EPERM if the file has no poll method.
    let answer = epoll_ctl(epoll, libc::EPOLL_CTL_MOD, fd, 0, 0);
    super::close(epoll);
    Some(answer == -(libc::EPERM as Ret))
}

/// Ends a registration.
pub(crate) fn epoll_del(epoll: RawFd, fd: RawFd) {
    epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
}

/// Is this descriptor an epoll(7)? Only an epoll answers `ENOENT` to the removal of a file that it
/// does not watch. `other`: such a file, which can be waited for.
pub(crate) fn is_epoll(fd: RawFd, other: RawFd) -> bool {
    epoll_ctl(fd, libc::EPOLL_CTL_DEL, other, 0, 0) == -(libc::ENOENT as Ret)
}

/// Waits for events: returns their number, or a negative errno. The time is rounded up to
/// milliseconds.
pub(crate) fn epoll_wait(
    epoll: RawFd,
    events: &mut [libc::epoll_event],
    timeout: Option<Duration>,
) -> Ret {
    let time = timeout.map_or(-1, |time| time.as_micros().div_ceil(1000) as i32);
    // SAFETY: the events live across the call; there is no signal mask.
    unsafe { call!(epoll_pwait, epoll, events.as_mut_ptr(), events.len(), time, 0, 8) }
}

/// Adds `n` to an eventfd. Returns 8, or a negative errno.
pub(crate) fn eventfd_add(fd: RawFd, n: u64) -> Ret {
    // SAFETY: the eight bytes live across the call.
    unsafe { call!(write, fd, &raw const n, 8) }
}

/// Reads an eventfd of the engine's, and ignores its count.
pub(crate) fn eventfd_drain(fd: RawFd) {
    eventfd_take(fd);
}

/// As [`eventfd_drain`], but returns the count.
pub(crate) fn eventfd_take(fd: RawFd) -> u64 {
    let mut n = 0u64;
    // SAFETY: the eight bytes live across the call; the descriptor is non-blocking.
    unsafe { call!(read, fd, &raw mut n, 8) };
    n
}

/// Is this descriptor an eventfd, a file without a name? Costs a readlink.
pub(crate) fn is_eventfd(fd: RawFd) -> bool {
    const NAME: &[u8] = b"anon_inode:[eventfd]";
    // The folder of `/proc/self` is empty once the first thread of the process has ended.
    const FOLDER: &[u8] = b"/proc/thread-self/fd/";
    let mut path = [0; FOLDER.len() + 11];
    path[..FOLDER.len()].copy_from_slice(FOLDER);
    let digits = fd.to_string();
    path[FOLDER.len()..][..digits.len()].copy_from_slice(digits.as_bytes());
    let mut link = [0u8; 32];
    // SAFETY: `path` is NUL-terminated, `link` is writable for its whole length.
    let ret =
        unsafe { call!(readlinkat, libc::AT_FDCWD, path.as_ptr(), link.as_mut_ptr(), link.len()) };
    // Without /proc it cannot be checked: the descriptor counts as an eventfd.
    ret < 0 || &link[..ret as usize] == NAME
}

/// Sleeps for this time, or until a signal handler has run.
pub(crate) fn nap(time: Duration) {
    let time = timespec(time);
    // SAFETY: the timespec lives across the call.
    unsafe { call!(nanosleep, &raw const time, 0) };
}
