//! Raw system calls: inline instructions, so that no libc symbol that a drop-in or a preload might
//! export lies between the engine and the kernel, `errno` stays the caller's, and no call is a
//! pthread cancellation point.
//!
//! A result is a count or a negative errno, as the kernel gives it.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::time::Duration;

/// A count, or a negative errno.
pub(crate) type Ret = isize;

/// The kernel's bound for one transfer, in bytes (read(2)).
pub(crate) const MAX_RW_COUNT: usize = 0x7fff_f000;

/// Does a range lie in the part of the address space that programs have, if they do not ask for
/// larger addresses than usual? (The kernel's documents x86/x86_64/mm and arch/arm64/memory.)
#[inline]
pub const fn in_user_space(address: u64, bytes: u64) -> bool {
    let (end, begin) = if cfg!(target_arch = "aarch64") {
        // The top byte is ignored: programs may keep a tag there.
        (1 << 48, address & ((1 << 56) - 1))
    } else {
        ((1 << 47) - 4096, address)
    };
    begin <= end && bytes <= end - begin
}

pub(crate) mod aio;
#[cfg(miri)]
pub(crate) mod miri;

#[cfg(not(miri))]
macro_rules! call {
    ($nr:ident $(, $arg:expr)*) => {
        syscalls::raw_syscall!(syscalls::Sysno::$nr $(, $arg)*) as $crate::sys::Ret
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

#[inline(always)]
pub(crate) unsafe fn pread(fd: RawFd, buf: u64, len: usize, offset: u64) -> Ret {
    // SAFETY: the kernel checks descriptor and buffer; the caller owns the buffer until this
    // returns.
    unsafe { call!(pread64, fd, buf, len, offset) }
}

#[inline(always)]
pub(crate) unsafe fn pwrite(fd: RawFd, buf: u64, len: usize, offset: u64) -> Ret {
    // SAFETY: as for pread.
    unsafe { call!(pwrite64, fd, buf, len, offset) }
}

/// preadv2(2): `offset` `u64::MAX` is the file position.
pub(crate) unsafe fn preadv2(
    fd: RawFd,
    iov: *const libc::iovec,
    n: usize,
    offset: u64,
    flags: u32,
) -> Ret {
    // The kernel takes the offset in two halves; on 64-bit machines the high one is ignored.
    // SAFETY: the kernel checks every address; the caller owns iovecs and buffers until this
    // returns.
    unsafe { call!(preadv2, fd, iov, n, offset, 0, flags) }
}

/// pwritev2(2): `offset` `u64::MAX` is the file position.
pub(crate) unsafe fn pwritev2(
    fd: RawFd,
    iov: *const libc::iovec,
    n: usize,
    offset: u64,
    flags: u32,
) -> Ret {
    // SAFETY: as for preadv2.
    unsafe { call!(pwritev2, fd, iov, n, offset, 0, flags) }
}

/// A read from a socket, or a write to it, that does not wait (recvmsg(2), sendmsg(2)): older than
/// `RWF_NOWAIT`, and allowed in more places. `-ENOTSOCK` for anything else.
///
/// # Safety
/// As for [`preadv2`].
pub(crate) unsafe fn transfer_now(fd: RawFd, write: bool, iov: &mut [libc::iovec]) -> Ret {
    // SAFETY: integers and null pointers.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (iov.as_mut_ptr(), iov.len() as _);
    // SAFETY: the message lives across the call; the rest is the caller's.
    unsafe {
        match write {
            true => call!(sendmsg, fd, &raw mut message, libc::MSG_DONTWAIT),
            false => call!(recvmsg, fd, &raw mut message, libc::MSG_DONTWAIT),
        }
    }
}

/// As [`preadv2`], without flags by the calls before it, which exist, and are allowed, in more
/// places.
pub(crate) unsafe fn preadv(
    fd: RawFd,
    iov: *const libc::iovec,
    n: usize,
    offset: u64,
    flags: u32,
) -> Ret {
    // SAFETY: as for preadv2.
    unsafe {
        match (flags, offset) {
            (0, u64::MAX) => call!(readv, fd, iov, n),
            (0, _) => call!(preadv, fd, iov, n, offset, 0),
            _ => preadv2(fd, iov, n, offset, flags),
        }
    }
}

/// As [`pwritev2`], without flags by the calls before it.
pub(crate) unsafe fn pwritev(
    fd: RawFd,
    iov: *const libc::iovec,
    n: usize,
    offset: u64,
    flags: u32,
) -> Ret {
    // SAFETY: as for preadv2.
    unsafe {
        match (flags, offset) {
            (0, u64::MAX) => call!(writev, fd, iov, n),
            (0, _) => call!(pwritev, fd, iov, n, offset, 0),
            _ => pwritev2(fd, iov, n, offset, flags),
        }
    }
}

pub(crate) fn fadvise(fd: RawFd, offset: u64, len: u64, advice: u32) -> Ret {
    // SAFETY: no memory is passed.
    unsafe { call!(fadvise64, fd, offset, len, advice) }
}

pub(crate) fn close(fd: RawFd) -> Ret {
    // SAFETY: closing is what the caller asked for; descriptors are plain numbers here.
    unsafe { call!(close, fd) }
}

pub(crate) fn close_range(first: u32, last: u32, flags: i32) -> Ret {
    // SAFETY: as for close.
    unsafe { call!(close_range, first, last, flags) }
}

pub(crate) unsafe fn statx(dir: RawFd, path: *const u8, flags: u32, mask: u32, out: u64) -> Ret {
    // SAFETY: the caller passes a NUL-terminated path; the kernel checks `out`.
    unsafe { call!(statx, dir, path, flags, mask, out) }
}

/// Is there a lock of the file that this one is refused by (fcntl(2), `F_OFD_GETLK`)? It is put in
/// the place of this one.
pub(crate) fn blocking_lock(fd: RawFd, lock: &mut libc::flock) -> Ret {
    // SAFETY: the structure lives across the call, which fills it in.
    unsafe { call!(fcntl, fd, libc::F_OFD_GETLK, std::ptr::from_mut(lock)) }
}

/// fcntl(F_GETFL): access mode and status flags, or `-EBADF`.
pub(crate) fn status_flags(fd: RawFd) -> Ret {
    // SAFETY: no memory is passed.
    unsafe { call!(fcntl, fd, libc::F_GETFL, 0) }
}

/// What the kernel has in memory of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStat {
    /// The file type bits of `st_mode`.
    pub(crate) kind: u32,
    pub(crate) size: u64,
    /// Device and inode.
    pub(crate) identity: (u64, u64),
    /// A number of the mounted file system that no other one gets: other than 0, if the kernel has
    /// one.
    pub(crate) mount: u64,
}

/// statx(2) of an open file as the kernel has it in memory (`AT_STATX_DONT_SYNC`): the server of a
/// file system that hangs is not asked. Where statx(2) is refused or not known (before 4.11),
/// fstat(2), which may ask it.
///
/// # Errors
/// The negative errno.
pub(crate) fn stat(fd: RawFd) -> Result<FileStat, Ret> {
    /// Linux 6.8. A mount's older number is used again.
    const STATX_MNT_ID_UNIQUE: u32 = 0x4000;
    let mut found = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let mask = libc::STATX_TYPE | libc::STATX_SIZE | libc::STATX_INO | STATX_MNT_ID_UNIQUE;
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: an empty path, and a writable struct statx.
    let ret = unsafe { call!(statx, fd, c"".as_ptr(), flags, mask, found.as_mut_ptr()) };
    if ret == -(libc::EBADF as Ret) {
        return Err(ret);
    }
    if ret < 0 {
        return fstat(fd);
    }
    // SAFETY: integers, zeroed, and the kernel has filled them in.
    let found = unsafe { found.assume_init() };
    let device = libc::makedev(found.stx_dev_major, found.stx_dev_minor);
    let mount = match found.stx_mask & STATX_MNT_ID_UNIQUE {
        0 if found.stx_dev_major != 0 => 1 << 62 | device,
        // The number of a file system without a device, which another one gets after it.
        0 => 0,
        _ => found.stx_mnt_id,
    };
    Ok(FileStat {
        kind: u32::from(found.stx_mode) & libc::S_IFMT,
        size: found.stx_size,
        identity: (device, found.stx_ino),
        mount,
    })
}

#[cold]
fn fstat(fd: RawFd) -> Result<FileStat, Ret> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: `stat` is a writable struct stat.
    let ret = unsafe { call!(fstat, fd, stat.as_mut_ptr()) };
    if ret < 0 {
        return Err(ret);
    }
    // SAFETY: zeroed is a valid struct stat, and the kernel has filled it in.
    let stat = unsafe { stat.assume_init() };
    let (kind, size) = (stat.st_mode & libc::S_IFMT, stat.st_size as u64);
    Ok(FileStat { kind, size, identity: (stat.st_dev, stat.st_ino), mount: 0 })
}

/// The size of a regular file; `None` of anything else.
pub(crate) fn file_size(fd: RawFd) -> Option<u64> {
    stat(fd).ok().filter(|stat| stat.kind == libc::S_IFREG).map(|stat| stat.size)
}

/// Does the file take reads that are not to wait (`RWF_NOWAIT`)? Asked with one far behind its end,
/// which has nothing to read: the answer is the kernel's, and no file system of the network or of
/// user space takes them.
pub(crate) fn takes_nowait(fd: RawFd) -> bool {
    /// No file system has larger files.
    const FAR: u64 = i64::MAX as u64 - 4096;
    let mut byte = 0u8;
    let iov = [libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
    // SAFETY: one iovec of one byte, both live across the call.
    unsafe { preadv2(fd, iov.as_ptr(), 1, FAR, libc::RWF_NOWAIT as u32) == 0 }
}

/// `f_type` of the file's file system, which is asked for it, and may have to wait for a server
/// (fstatfs(2)).
fn file_system(fd: RawFd) -> Option<u32> {
    // SAFETY: plain old data.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `found` is as large as the call writes.
    let told = unsafe { call!(fstatfs, fd, &raw mut found) } == 0;
    told.then_some(found.f_type as u32)
}

/// Is it on one of the kernel's own file systems, on a device or in memory, which no server can
/// hold up? May have to wait for that server. Not those of the network or of user space, nor any
/// that is not known here.
pub(crate) fn is_local(fd: RawFd) -> bool {
    /// ext2 to 4, XFS, Btrfs, F2FS, tmpfs and devtmpfs, ramfs, hugetlbfs, overlayfs (whose upper
    /// layer is one of these), SquashFS, EROFS, ZFS, bcachefs, JFS, NILFS, FAT, exFAT, NTFS3, ISO
    /// 9660, UDF: linux/magic.h and the file systems' own headers.
    const LOCAL: [u32; 19] = [
        0xef53,
        0x5846_5342,
        0x9123_683e,
        0xf2f5_2010,
        0x0102_1994,
        0x8584_58f6,
        0x9584_58f6,
        0x794c_7630,
        0x7371_7368,
        0xe0f5_e1e2,
        0x2fc1_2fc1,
        0xca45_1a4e,
        0x3153_464a,
        0x3434,
        0x4d44,
        0x2011_bab0,
        0x7366_746e,
        0x9660,
        0x1501_3346,
    ];
    file_system(fd).is_some_and(|kind| LOCAL.contains(&kind))
}

/// Is it a file of a file system that keeps files in memory only, so that fsync(2) does nothing?
pub(crate) fn lives_in_memory(fd: RawFd) -> bool {
    const RAMFS_MAGIC: u32 = 0x8584_58f6;
    file_system(fd).is_some_and(|kind| [libc::TMPFS_MAGIC as u32, RAMFS_MAGIC].contains(&kind))
}

/// Does lseek(2) know where it is?
pub(crate) fn has_offsets(fd: RawFd) -> bool {
    // SAFETY: no memory is passed, and nothing moves.
    unsafe { call!(lseek, fd, 0, libc::SEEK_CUR) >= 0 }
}

pub(crate) fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

/// ppoll(2) without a change of the signal mask unless one (8 bytes) is given.
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
    /// A wake, a changed word, or nothing at all: look again.
    Again,
    /// The timeout.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// Sleeps while `word` is `expected`, at most `timeout` (futex(2), private). With `restarts` and no
/// timeout, a handler with SA_RESTART does not end it.
#[cfg(not(loom))]
pub(crate) fn futex_wait(
    word: &std::sync::atomic::AtomicU32,
    expected: u32,
    timeout: Option<Duration>,
    restarts: bool,
) -> FutexEnd {
    /// Without a timeout the call would be taken up again after a handler with SA_RESTART.
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

/// Wakes at most `n` sleepers of the word at `address`, if there is one.
#[cfg(not(loom))]
pub(crate) fn futex_wake(address: usize, n: i32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the address is only compared with those that threads sleep at; memory is not touched.
    unsafe { call!(futex, address, op, n) };
}

/// A new eventfd(2): close-on-exec, non-blocking.
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

/// As [`epoll_add`], for one that may be registered already. `is_known`: it probably is.
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

/// Ends a registration.
pub(crate) fn epoll_del(epoll: RawFd, fd: RawFd) {
    epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
}

/// Waits for events: how many, or a negative errno. The time is rounded up to milliseconds.
pub(crate) fn epoll_wait(
    epoll: RawFd,
    events: &mut [libc::epoll_event],
    timeout: Option<Duration>,
) -> Ret {
    let time = timeout.map_or(-1, |time| time.as_micros().div_ceil(1000) as i32);
    // SAFETY: the events live across the call; there is no signal mask.
    unsafe { call!(epoll_pwait, epoll, events.as_mut_ptr(), events.len(), time, 0, 8) }
}

/// Adds `n` to an eventfd: 8, or a negative errno.
pub(crate) fn eventfd_add(fd: RawFd, n: u64) -> Ret {
    // SAFETY: the eight bytes live across the call.
    unsafe { call!(write, fd, &raw const n, 8) }
}

/// Takes what an eventfd of ours has counted.
pub(crate) fn eventfd_drain(fd: RawFd) {
    let mut n = 0u64;
    // SAFETY: the eight bytes live across the call; the descriptor is non-blocking.
    unsafe { call!(read, fd, &raw mut n, 8) };
}

/// io_setup(2): the context, or a negative errno.
pub(crate) fn io_setup(events: usize) -> Result<u64, i32> {
    let mut context = 0u64;
    // SAFETY: `context` is 0, as the call demands, and lives through it.
    let ret = unsafe { call!(io_setup, events, &raw mut context) };
    if ret < 0 { Err(ret as i32) } else { Ok(context) }
}

/// io_destroy(2).
pub(crate) fn io_destroy(context: u64) -> Ret {
    // SAFETY: the kernel checks the number.
    unsafe { call!(io_destroy, context) }
}

/// io_submit(2).
///
/// # Safety
/// `iocbs` points to `n` pointers to iocbs whose buffers are theirs until they complete.
pub(crate) unsafe fn io_submit(context: u64, n: usize, iocbs: *const u64) -> Ret {
    // SAFETY: the caller's contract.
    unsafe { call!(io_submit, context, n, iocbs) }
}

/// io_pgetevents(2).
pub(crate) fn io_pgetevents(
    context: u64,
    min: usize,
    events: &mut [aio::IoEvent],
    timeout: Option<Duration>,
    mask: Option<&u64>,
) -> Ret {
    let time = timeout.map(timespec);
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let (n, events) = (events.len(), events.as_mut_ptr());
    let Some(mask) = mask else {
        // SAFETY: room for `n` events, and a timespec or null.
        return unsafe { call!(io_getevents, context, min, n, events, time) };
    };
    let set = (std::ptr::from_ref(mask), size_of::<u64>());
    // SAFETY: as above; `set` is the mask's address and size.
    unsafe { call!(io_pgetevents, context, min, n, events, time, &raw const set) }
}

/// Is there an eventfd behind this descriptor, a file without a name? Costs a readlink.
pub(crate) fn is_eventfd(fd: RawFd) -> bool {
    const NAME: &[u8] = b"anon_inode:[eventfd]";
    let mut path = *b"/proc/self/fd/0000000000\0";
    let digits = fd.to_string();
    path[14..14 + digits.len()].copy_from_slice(digits.as_bytes());
    path[14 + digits.len()] = 0;
    let mut link = [0u8; 32];
    // SAFETY: `path` is NUL-terminated, `link` is writable for its whole length.
    let ret =
        unsafe { call!(readlinkat, libc::AT_FDCWD, path.as_ptr(), link.as_mut_ptr(), link.len()) };
    // Without /proc nobody can tell: believe the caller.
    ret < 0 || &link[..ret as usize] == NAME
}

/// The C library's own signals: SIGCANCEL, and SIGSETXID, with which setuid(2) and its like reach
/// every thread. A thread that blocks the second one keeps such a call from returning.
const C_LIBRARYS_SIGNALS: u64 = 1 << (32 - 1) | 1 << (33 - 1);

/// A filter of the program's, or of a drop-in, sends this for a call (seccomp(2)). A thread that
/// blocks it then ends the process.
const OF_FILTERS: u64 = 1 << (libc::SIGSYS - 1);

/// Blocks every signal of the calling thread that programs may use, and returns the old mask.
pub(crate) fn block_signals() -> u64 {
    let (all, mut old) = (!(C_LIBRARYS_SIGNALS | OF_FILTERS), 0u64);
    // SAFETY: both masks are eight bytes, the kernel's sigset size.
    unsafe { call!(rt_sigprocmask, libc::SIG_SETMASK, &raw const all, &raw mut old, 8) };
    old
}

/// Lets the calling thread be interrupted by a signal.
pub(crate) fn unblock_signal(signal: i32) {
    let mask = 1u64 << (signal - 1);
    // SAFETY: the mask is eight bytes.
    unsafe { call!(rt_sigprocmask, libc::SIG_UNBLOCK, &raw const mask, 0, 8) };
}

/// The kernel's number of the calling thread.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: no memory is passed.
    unsafe { call!(gettid) as u32 }
}

/// Queues a signal for a process (rt_sigqueueinfo(2)).
///
/// # Safety
/// `info` can be read.
pub(crate) unsafe fn queue_signal(pid: i32, signo: i32, info: *const libc::siginfo_t) -> Ret {
    // SAFETY: the caller's contract; the kernel copies it.
    unsafe { call!(rt_sigqueueinfo, pid, signo, info) }
}

/// Puts a mask from [`block_signals`] back.
pub(crate) fn restore_signals(mask: u64) {
    // SAFETY: the mask is eight bytes.
    unsafe { call!(rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, 0, 8) };
}

/// While it lives, the calling thread is not cancelled (pthread_cancel(3)): around what calls
/// functions of the C library at which that could happen. It would unwind frames that do not expect
/// it.
#[derive(Debug)]
pub struct Uncancelable(i32, PhantomData<*const ()>);

impl Uncancelable {
    /// For the calling thread.
    pub fn new() -> Self {
        Self(Self::exchange(1), PhantomData)
    }

    /// 0 is `PTHREAD_CANCEL_ENABLE`, 1 `PTHREAD_CANCEL_DISABLE`; gives what it was.
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

/// Names the calling thread (PR_SET_NAME); the kernel cuts a long name short.
pub(crate) fn name_thread(name: &std::ffi::CStr) {
    // SAFETY: a name that ends in NUL.
    unsafe { call!(prctl, libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}

/// What the kernel says of the calling thread (getrusage(2)).
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadUse {
    /// How often it has slept: voluntary switches.
    pub(crate) sleeps: i64,
    /// How often it was preempted.
    pub(crate) preemptions: i64,
    /// Its CPU time in microseconds.
    pub(crate) cpu_us: u64,
}

/// `None` if that is refused.
pub(crate) fn use_of_this_thread() -> Option<ThreadUse> {
    // SAFETY: plain old data.
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

/// A memfd_create(2) of this size, which nobody can change any more, for the same user only; or the
/// negative errno.
pub(crate) fn sealed_memfd(name: &std::ffi::CStr, size: usize) -> Ret {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a NUL-terminated name.
    let make = |flags: u32| unsafe { call!(memfd_create, name.as_ptr(), flags) };
    // Where that flag is not known (before 6.3), no setting refuses those without it.
    let fd = match make(flags | libc::MFD_NOEXEC_SEAL) {
        refused if refused == -(libc::EINVAL as Ret) => make(flags),
        fd => fd,
    };
    if fd < 0 {
        return fd;
    }
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: no memory is passed; the descriptor is new.
    let calls = unsafe {
        [
            call!(ftruncate, fd, size),
            call!(fchmod, fd, 0o600),
            call!(fcntl, fd, libc::F_ADD_SEALS, seals),
        ]
    };
    match calls.into_iter().find(|&ret| ret < 0) {
        Some(refused) => {
            close(fd as RawFd);
            refused
        }
        None => fd,
    }
}

/// A memfd whose size nobody can change.
pub(crate) fn is_sealed(fd: RawFd) -> bool {
    let size = (libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) as Ret;
    // SAFETY: no memory is passed.
    let seals = unsafe { call!(fcntl, fd, libc::F_GET_SEALS, 0) };
    seals >= 0 && seals & size == size
}

/// Is the calling thread allowed this I/O priority (ioprio_set(2))?
pub(crate) fn may_use_priority(priority: i16) -> bool {
    const PROCESS: i32 = 1;
    // The kernel looks at the right before it looks for the process, and no process has this
    // number. SAFETY: no memory is passed.
    let ret = unsafe { call!(ioprio_set, PROCESS, i32::MAX, i32::from(priority as u16)) };
    ret != -(libc::EPERM as Ret)
}

/// Sleeps so long, or until a signal handler has run.
pub(crate) fn nap(time: Duration) {
    let time = timespec(time);
    // SAFETY: the timespec lives across the call.
    unsafe { call!(nanosleep, &raw const time, 0) };
}

/// Runs `body` so that a write in it raises neither SIGPIPE nor SIGXFSZ: it only fails.
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

/// Is there a limit on the size of files (RLIMIT_FSIZE)?
pub(crate) fn has_file_limit() -> bool {
    let mut limit = [u64::MAX; 2];
    // SAFETY: room for the two numbers of a rlimit64.
    unsafe { call!(prlimit64, 0, libc::RLIMIT_FSIZE, 0, limit.as_mut_ptr()) };
    limit[0] != u64::MAX
}

/// The two ends of a pipe(2), for reading and for writing; or the negative errno.
pub(crate) fn pipe() -> Result<[RawFd; 2], i32> {
    let mut ends = [-1; 2];
    // SAFETY: room for two descriptors.
    let ret = unsafe { call!(pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) };
    if ret < 0 { Err(ret as i32) } else { Ok(ends) }
}

/// How many threads this process has, if /proc says so.
pub(crate) fn threads() -> Option<u32> {
    // SAFETY: integers.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let (path, mask) = (c"/proc/self/task".as_ptr().cast(), libc::STATX_NLINK);
    // SAFETY: a path that ends in NUL, and room for what is found.
    let ret = unsafe { statx(libc::AT_FDCWD, path, 0, mask, (&raw mut found) as u64) };
    // One link from above, one from itself, and one from each thread.
    if ret == 0 { found.stx_nlink.checked_sub(2).filter(|&threads| threads > 0) } else { None }
}

/// Another descriptor for the same open file, close-on-exec, with the lowest free number not below
/// `from`.
pub(crate) fn duplicate(fd: RawFd, from: RawFd) -> Ret {
    // SAFETY: passes no address.
    unsafe { call!(fcntl, fd, libc::F_DUPFD_CLOEXEC, from) }
}

/// Device and inode of an open file, or the negative errno of fstat(2).
pub(crate) fn file_identity(fd: RawFd) -> Result<(u64, u64), i32> {
    stat(fd).map(|stat| stat.identity).map_err(|errno| errno as i32)
}

/// The aligned words with the first and the last of the eight bytes at `address`: a page has all of
/// a word. `None` if they would lie beyond the end of memory.
fn ends_of_eight(address: usize) -> Option<impl Iterator<Item = usize>> {
    /// The least that any machine maps at a time.
    const PAGE: usize = 4096;
    let (first, last) = (address & !3, address.checked_add(7)? & !3);
    Some([first, last].into_iter().take(1 + usize::from(first / PAGE != last / PAGE)))
}

/// Can eight bytes be read at `address`? Asked of the kernel without touching them ourselves:
/// rt_sigprocmask(2) reads a set before it refuses to change the mask in a way that there is not.
/// Of the calls that every sandbox permits, it takes the least time.
pub(crate) fn readable(address: usize) -> bool {
    const NO_WAY: i32 = -1;
    // SAFETY: the kernel checks the address, and changes nothing.
    let ret = unsafe { call!(rt_sigprocmask, NO_WAY, address, 0, 8) };
    address != 0 && ret != -(libc::EFAULT as Ret)
}

/// Can eight bytes be written at `address`? Asked of the kernel, which changes nothing there:
/// futex(2) adds 0.
pub(crate) fn writable(address: usize) -> bool {
    let op = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
    let add_0 = libc::FUTEX_OP(libc::FUTEX_OP_ADD, 0, libc::FUTEX_OP_CMP_EQ, 0);
    let nobodys = 0_u32;
    let is_writable = |word: usize| {
        // SAFETY: the kernel checks the address and adds 0 atomically. A thread that sleeps there
        // and is woken for nothing has to look again anyway; nobody sleeps at the other word.
        unsafe { call!(futex, &raw const nobodys, op, 0, 0, word, add_0) >= 0 }
    };
    ends_of_eight(address).is_some_and(|mut words| words.all(is_writable))
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
/// CPUs is there.
#[cfg(not(loom))]
pub(crate) fn set_affinity(words: &[u64]) -> Ret {
    // SAFETY: `words` is readable for the length passed.
    unsafe { call!(sched_setaffinity, 0, words.len() * 8, words.as_ptr()) }
}

/// Has the calling thread a real-time policy (sched(7))?
pub(crate) fn is_real_time() -> bool {
    // SAFETY: no memory is passed.
    let policy = unsafe { call!(sched_getscheduler, 0) } as i32 & !libc::SCHED_RESET_ON_FORK;
    [libc::SCHED_FIFO, libc::SCHED_RR, libc::SCHED_DEADLINE].contains(&policy)
}

/// Gives the calling thread the usual policy, SCHED_OTHER.
pub(crate) fn leave_real_time() {
    // SAFETY: integers: priority 0, and what only musl has.
    let priority: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the parameters live across the call.
    unsafe { call!(sched_setscheduler, 0, libc::SCHED_OTHER, &raw const priority) };
}

const MEMBARRIER_PRIVATE_EXPEDITED: i32 = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

/// Prepares the process for [`membarrier`]. False if that is refused.
pub(crate) fn membarrier_register() -> bool {
    // SAFETY: no memory is passed.
    unsafe { call!(membarrier, MEMBARRIER_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 }
}

/// A full fence on every running thread of the process (membarrier(2)). False if refused.
pub(crate) fn membarrier() -> bool {
    // SAFETY: no memory is passed.
    unsafe { call!(membarrier, MEMBARRIER_PRIVATE_EXPEDITED, 0, 0) == 0 }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
const CACHE_LINE: usize = 64;

/// A clock for durations: the time-stamp counter where there is one, else nanoseconds.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has the instruction; it touches no memory.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    monotonic_ns()
}

/// [`ticks`] in a microsecond: measured once, in 50 microseconds.
#[cfg(not(loom))]
pub(crate) fn ticks_per_us() -> u64 {
    static RATE: crate::sync::OnceNumber = crate::sync::OnceNumber::new();
    RATE.get(|| {
        let (begin, ns) = (ticks(), monotonic_ns());
        loop {
            let passed = monotonic_ns() - ns;
            if passed > 50_000 {
                return (ticks().wrapping_sub(begin) * 1000 / passed).max(1);
            }
            std::hint::spin_loop();
        }
    })
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

/// Asks for the lines of something that this CPU is about to write to. A hint, which changes
/// nothing.
#[inline(always)]
pub(crate) fn prefetch<T>(what: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in (0..size_of::<T>()).step_by(CACHE_LINE) {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: inside of `T`; and the instruction reads and writes nothing, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(std::ptr::from_ref(what).byte_add(line).cast()) }
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = what;
}

/// As [`prefetch`], for `len` bytes of a program's that are at `address`, if they are anywhere.
#[inline(always)]
pub(crate) fn prefetch_buffer(address: u64, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in (0..len).step_by(CACHE_LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction reads and writes nothing, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.wrapping_add(line as u64) as *const i8) }
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = (address, len);
}

/// CLOCK_MONOTONIC in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a writable timespec. libc's version runs in the vDSO.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Addresses far below those that the kernel chooses, for mappings of ours. A program may unmap the
/// buffer of a request that is under way. The next mapping of that size would lie there, and be
/// written to.
mod far {
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Where they begin; 0 as long as that is not known.
    static FIRST: AtomicUsize = AtomicUsize::new(0);
    static GIVEN_OUT: AtomicUsize = AtomicUsize::new(0);

    /// Addresses, unless somebody else has them. Each is given out once before the first comes
    /// again.
    pub(super) fn addresses(len: usize, choose: impl FnOnce() -> Option<usize>) -> usize {
        let mut first = FIRST.load(Ordering::Relaxed);
        if first == 0 {
            // As far as there is room for on this machine: a terabyte where addresses have 47 bits.
            let Some(usual) = choose() else { return 0 };
            first = (usual - usual / 128) & !0xffff;
            FIRST.store(first, Ordering::Relaxed);
        }
        let given_out = GIVEN_OUT.fetch_add(len.next_multiple_of(4096), Ordering::Relaxed);
        first + given_out % (first / 256) / 4096 * 4096
    }
}

/// An anonymous private mapping, zeroed, given back on drop. It does not lie where the program has,
/// or had, memory.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: *mut u8,
    len: usize,
}

// SAFETY: the mapping is plain memory; who may touch which byte is the owner's affair.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Maps the first `len` bytes of a file, shared with all who have mapped it; or gives the negative
/// errno.
pub(crate) fn map_shared(fd: RawFd, len: usize, prot: i32) -> Result<*mut u8, i32> {
    // SAFETY: a new mapping where the kernel chooses.
    let ret = unsafe { call!(mmap, 0, len, prot, libc::MAP_SHARED, fd, 0) };
    if (-4095..0).contains(&ret) { Err(ret as i32) } else { Ok(ret as *mut u8) }
}

impl Mapping {
    /// Maps `len` bytes, or gives the negative errno.
    pub(crate) fn new(len: usize, prot: i32) -> Result<Self, i32> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping, near an address or where the kernel chooses, over
        // nothing that is there.
        let map = |near: usize| unsafe { call!(mmap, near, len, prot, flags, -1isize, 0) };
        let at = |ret: Ret| (!(-4095..0).contains(&ret)).then_some(ret as *mut u8);
        let usual = || Some(Self { base: at(map(0))?, len }.base.addr());
        let mut tries = 4;
        loop {
            let near = far::addresses(len, usual);
            let ret = map(near);
            let Some(base) = at(ret) else { return Err(ret as i32) };
            let mapping = Self { base, len };
            tries -= 1;
            // Somebody else has that. The kernel rounds up to its pages.
            if tries == 0 || base.addr().wrapping_sub(near) < 1 << 16 {
                return Ok(mapping);
            }
        }
    }

    /// Where it begins; it stays.
    pub(crate) fn leak(self) -> *mut u8 {
        std::mem::ManuallyDrop::new(self).base
    }

    /// One that was leaked.
    ///
    /// # Safety
    /// It has this length, and nobody else takes it back.
    pub(crate) unsafe fn of(base: *mut u8, len: usize) -> Self {
        Self { base, len }
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Makes pages inside usable or unusable: mprotect(2), and the contents go when `prot` is none.
    pub(crate) fn protect(&self, offset: usize, len: usize, prot: i32) -> Ret {
        debug_assert!(offset + len <= self.len);
        // SAFETY: the range lies inside this mapping.
        let at = unsafe { self.base.add(offset) };
        if prot == libc::PROT_NONE {
            // SAFETY: as above; the owner has no reference left into the range.
            unsafe { call!(madvise, at, len, libc::MADV_DONTNEED) };
        }
        // SAFETY: as above.
        unsafe { call!(mprotect, at, len, prot) }
    }

    /// The kernel zeroes the mapping in the child of a fork.
    pub(crate) fn wipe_on_fork(&self) -> Ret {
        // SAFETY: the range is this mapping.
        unsafe { call!(madvise, self.base, self.len, libc::MADV_WIPEONFORK) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody but the owner hands out pointers into it, and the owner is gone.
        unsafe { call!(munmap, self.base, self.len) };
    }
}
