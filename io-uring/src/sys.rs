//! System calls. Most are made by this library's own instructions, so that no exported function of
//! a drop-in is called. A result is a count or a negative errno.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, c_int};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use syscalls::Sysno;
use uringlet::front::{self, timespec};

macro_rules! call {
    ($nr:ident $(, $arg:expr)*) => {
        uringlet::front::after_call(syscalls::raw_syscall!(Sysno::$nr $(, $arg)*) as isize)
    };
}

pub(crate) mod futexes;
pub(crate) mod sockets;

/// New zeroed pages (MAP_SHARED), which no other process has yet.
pub(crate) fn map_shared(len: usize) -> Result<*mut u8, i32> {
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping where the kernel chooses.
    let ret = unsafe { call!(mmap, 0, len, prot, flags, -1isize, 0) };
    if (-4095..0).contains(&ret) { Err(ret as i32) } else { Ok(ret as *mut u8) }
}

/// A second mapping of the first `len` bytes of shared pages, at the address `fixed` if there is
/// one.
///
/// # Safety
/// `from` is the start of a shared mapping of at least `len` bytes. With `fixed`, the old mapping
/// at that address may be replaced.
pub(crate) unsafe fn map_again(
    from: *mut u8,
    len: usize,
    fixed: Option<usize>,
) -> Result<usize, i32> {
    let flags = libc::MREMAP_MAYMOVE | fixed.map_or(0, |_| libc::MREMAP_FIXED);
    // An old length of 0 keeps the old mapping (mremap(2)).
    // SAFETY: the caller's contract.
    let ret = unsafe { call!(mremap, from, 0, len, flags, fixed.unwrap_or(0)) };
    if (-4095..0).contains(&ret) { Err(ret as i32) } else { Ok(ret as usize) }
}

/// # Safety
/// Nothing needs the memory there.
pub(crate) unsafe fn unmap(at: *mut u8, len: usize) -> i32 {
    // SAFETY: the caller's contract.
    unsafe { call!(munmap, at, len) as i32 }
}

/// # Safety
/// As mmap(2).
pub(crate) unsafe fn mmap(
    at: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> isize {
    // SAFETY: the caller's contract.
    unsafe { call!(mmap, at, len, prot, flags, fd, offset) }
}

/// # Safety
/// As mprotect(2), for pages of the program's.
pub(crate) unsafe fn protect(at: usize, len: usize, prot: c_int) -> i32 {
    // SAFETY: the caller's contract.
    unsafe { call!(mprotect, at, len, prot) as i32 }
}

/// # Safety
/// As madvise(2).
pub(crate) unsafe fn madvise(at: u64, len: u64, advice: u32) -> i32 {
    // SAFETY: the caller's contract.
    unsafe { call!(madvise, at, len, advice) as i32 }
}

/// mincore(2): are all pages of a range mapped? Asked in pieces.
pub(crate) fn is_mapped(at: u64, len: u64) -> bool {
    const PIECE: u64 = 1024 * 4096;
    let mut seen = [0u8; 1024];
    let (mut from, end) = (at & !4095, at.saturating_add(len));
    while from < end {
        let piece = (end - from).min(PIECE);
        // SAFETY: a byte for each page of the piece.
        if unsafe { call!(mincore, from, piece, seen.as_mut_ptr()) } < 0 {
            return false;
        }
        from += piece;
    }
    true
}

/// Does the process have only one thread? Read from `/proc/self/stat` (proc(5)), by this library's
/// own calls.
pub(crate) fn is_alone() -> bool {
    /// The field with the number of threads, counted after the name, which ends with the last
    /// parenthesis.
    const THREADS: usize = 17;
    let fd = open(c"/proc/self/stat", libc::O_RDONLY);
    if fd < 0 {
        return false;
    }
    let mut text = [0u8; 1024];
    // SAFETY: the array has room for as many bytes.
    let len = unsafe { call!(read, fd, text.as_mut_ptr(), text.len()) };
    close(fd);
    let Some(text) = usize::try_from(len).ok().and_then(|len| text.get(..len)) else {
        return false;
    };
    let Some(name_end) = text.iter().rposition(|&byte| byte == b')') else { return false };
    let mut fields = text[name_end + 1..].split(|&byte| byte == b' ').skip(1);
    fields.nth(THREADS) == Some(b"1")
}

fn open(path: &CStr, flags: c_int) -> i32 {
    // SAFETY: a path.
    unsafe { call!(openat, libc::AT_FDCWD, path.as_ptr(), flags | libc::O_CLOEXEC) as i32 }
}

/// `/proc/thread-self/mem` (proc(5)): the process's own memory, writable whatever its pages allow.
pub(crate) struct OwnMemory(i32);

impl OwnMemory {
    pub(crate) fn open() -> Option<Self> {
        let fd = open(c"/proc/thread-self/mem", libc::O_RDWR);
        (fd >= 0).then(|| Self(fd))
    }

    /// # Safety
    /// Nobody reads or executes the memory meanwhile, and the new bytes are valid there.
    pub(crate) unsafe fn write(&self, at: usize, bytes: &[u8]) -> bool {
        // SAFETY: the caller's contract.
        let written = unsafe { call!(pwrite64, self.0, bytes.as_ptr(), bytes.len(), at) };
        written == bytes.len() as isize
    }
}

impl Drop for OwnMemory {
    fn drop(&mut self) {
        close(self.0);
    }
}

pub(crate) fn eventfd() -> i32 {
    // SAFETY: no memory is passed.
    unsafe { call!(eventfd2, 0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) as i32 }
}

/// The value of a line of `/proc/thread-self/fdinfo` for this descriptor. The line begins with
/// `name`.
fn told_of<T: std::str::FromStr>(fd: i32, name: &str) -> Option<T> {
    let text = std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{fd}")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

/// The kernel's id of an eventfd. `None`: the descriptor is no eventfd, or /proc is not readable.
pub(crate) fn eventfd_id(fd: i32) -> Option<u64> {
    told_of(fd, "eventfd-id:")
}

/// The process of a pidfd. `None`: the descriptor is no pidfd, the process was reaped, or /proc is
/// not readable. Also if /proc is of another PID namespace, in which processes have other numbers.
pub(crate) fn process_of(fd: i32) -> Option<i32> {
    told_of(fd, "Pid:").filter(|&process| process > 0 && proc_shows_our_namespace())
}

/// Does /proc show the PIDs of this process's namespace? After unshare(1) with `--pid` alone, it
/// shows those of the namespace before, under which other processes are found.
pub(crate) fn proc_shows_our_namespace() -> bool {
    let own = std::fs::read_link("/proc/self").ok();
    own.and_then(|own| own.to_str()?.parse().ok()) == Some(std::process::id())
}

/// Adds 1 to a nonblocking eventfd.
pub(crate) fn eventfd_set(fd: i32) {
    let one = 1u64;
    // SAFETY: eight bytes that live through the call.
    unsafe { call!(write, fd, &raw const one, 8) };
}

/// Sets the count of a nonblocking eventfd to 0, by reading it.
pub(crate) fn eventfd_clear(fd: i32) {
    let mut n = 0u64;
    // SAFETY: as above.
    unsafe { call!(read, fd, &raw mut n, 8) };
}

/// preadv2(2) or pwritev2(2); the offset -1 is the file position.
pub(crate) fn transfer(
    fd: i32,
    write: bool,
    parts: &[libc::iovec],
    offset: u64,
    flags: u32,
) -> i32 {
    let (at, count) = (parts.as_ptr(), parts.len());
    // SAFETY: the kernel checks the buffers, which are the program's.
    unsafe {
        if write {
            call!(pwritev2, fd, at, count, offset, 0, flags) as i32
        } else {
            call!(preadv2, fd, at, count, offset, 0, flags) as i32
        }
    }
}

pub(crate) fn close(fd: i32) -> i32 {
    // SAFETY: a number that the caller is to close.
    unsafe { call!(close, fd) as i32 }
}

/// fcntl(F_GETFD): is this descriptor open?
pub(crate) fn is_open(fd: i32) -> bool {
    // SAFETY: no memory is passed.
    unsafe { call!(fcntl, fd, libc::F_GETFD, 0) >= 0 }
}

/// Do these numbers name one open file? If kcmp(2) is refused or missing: are they of one inode,
/// with the same flags? No server is asked.
pub(crate) fn is_same_file(a: i32, b: i32) -> bool {
    const KCMP_FILE: usize = 0;
    let process = std::process::id();
    // SAFETY: numbers only.
    let order = unsafe { call!(kcmp, process, process, KCMP_FILE, a, b) };
    if order >= 0 {
        return order == 0;
    }
    let of = |fd| {
        // SAFETY: integers, for which zeroes are valid.
        let mut found: libc::statx = unsafe { std::mem::zeroed() };
        let flags = (libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC) as u32;
        let out = (&raw mut found).addr() as u64;
        let answer = files::statx(fd, c"", flags, libc::STATX_INO, out);
        let device = (found.stx_dev_major, found.stx_dev_minor);
        (answer == 0).then_some((device, found.stx_ino, status_flags(fd)))
    };
    of(a).is_some_and(|file| of(b) == Some(file))
}

/// fcntl(2): its result, or a negative errno.
///
/// # Safety
/// As fcntl(2).
pub(crate) unsafe fn fcntl(fd: i32, command: c_int, argument: usize) -> i32 {
    // SAFETY: the caller's contract.
    unsafe { call!(fcntl, fd, command, argument) as i32 }
}

/// fcntl(F_GETFL): the flags, or a negative errno.
pub(crate) fn status_flags(fd: i32) -> i32 {
    // SAFETY: no memory is passed.
    unsafe { call!(fcntl, fd, libc::F_GETFL, 0) as i32 }
}

/// Is this number that of a file that is open for writes (or reads)?
pub(crate) fn is_open_for(fd: i32, write: bool) -> bool {
    let flags = status_flags(fd);
    let one = if write { libc::O_WRONLY } else { libc::O_RDONLY };
    flags >= 0
        && flags & libc::O_PATH == 0
        && [one, libc::O_RDWR].contains(&(flags & libc::O_ACCMODE))
}

/// A duplicate of a descriptor, with the lowest free number.
pub(crate) fn duplicate(fd: i32, cloexec: bool) -> i32 {
    let command = if cloexec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    // SAFETY: no memory is passed.
    unsafe { call!(fcntl, fd, command, 0) as i32 }
}

/// dup3(2): the number names the file of `by`, and is closed when a program is executed.
pub(crate) fn replace(fd: i32, by: i32) -> i32 {
    // SAFETY: a number that the caller is to close.
    unsafe { call!(dup3, by, fd, libc::O_CLOEXEC) as i32 }
}

pub(crate) fn epoll_create() -> i32 {
    // SAFETY: no memory is passed.
    unsafe { call!(epoll_create1, libc::EPOLL_CLOEXEC) as i32 }
}

/// epoll_wait(2) into the program's memory, without waiting.
pub(crate) fn epoll_events(epoll: i32, at: u64, most: i32) -> i32 {
    // SAFETY: the kernel checks the address, which is the program's.
    unsafe { call!(epoll_pwait, epoll, at, most, 0, 0, 8) as i32 }
}

/// pipe2(2): the end to read from and the end to write to, or a negative errno.
pub(crate) fn pipe(flags: u32) -> Result<[i32; 2], i32> {
    let mut ends = [-1; 2];
    // SAFETY: a place for two numbers.
    let answer = unsafe { call!(pipe2, ends.as_mut_ptr(), flags) as i32 };
    if answer < 0 { Err(answer) } else { Ok(ends) }
}

pub(crate) fn epoll_ctl(epoll: i32, op: c_int, fd: i32, events: u32, data: u64) -> i32 {
    let mut event = libc::epoll_event { events, u64: data };
    // SAFETY: the event lives through the call.
    unsafe { call!(epoll_ctl, epoll, op, fd, &raw mut event) as i32 }
}

/// epoll_wait(2) without waiting.
pub(crate) fn epoll_wait_now(epoll: i32, events: &mut [libc::epoll_event]) -> i32 {
    // SAFETY: room for as many events.
    unsafe { call!(epoll_pwait, epoll, events.as_mut_ptr(), events.len(), 0, 0, 8) as i32 }
}

/// Is this descriptor a socket? One system call.
pub(crate) fn is_socket(fd: i32) -> bool {
    kind(fd) == libc::S_IFSOCK
}

/// Is the file of a kind that is always ready?
pub(crate) fn is_always_ready(fd: i32) -> bool {
    [libc::S_IFREG, libc::S_IFDIR, libc::S_IFBLK].contains(&kind(fd))
}

/// Is it an eventfd, or another file to which the kernel gives no kind?
pub(crate) fn is_anonymous(fd: i32) -> bool {
    kind(fd) == 0
}

/// Do flags like RWF_SYNC mean nothing for the file? The kernel's io_uring ignores the flags then.
/// preadv2(2) may refuse them, because the file has only read(2) and write(2).
pub(crate) fn ignores_flags(fd: i32) -> bool {
    [0, libc::S_IFCHR].contains(&kind(fd))
}

/// The errno of io_uring for a write with RWF_NOWAIT that pwritev2(2) refuses with `EOPNOTSUPP`. It
/// is `-EAGAIN` if the file supports the flag for reads.
pub(crate) fn refused_write(fd: i32) -> i32 {
    /// Behind the end of each file.
    const END: u64 = i64::MAX as u64 - 1;
    let mut byte = 0u8;
    let part = [libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
    let read = transfer(fd, false, &part, END, libc::RWF_NOWAIT as u32);
    if is_always_ready(fd) && read != -libc::EOPNOTSUPP { -libc::EAGAIN } else { -libc::EOPNOTSUPP }
}

/// The kind of a file (`S_IFMT`), or 0. A file server is not asked.
pub(crate) fn kind(fd: i32) -> u32 {
    // SAFETY: integers, for which zeroes are valid.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let (path, place) = (c"".as_ptr(), &raw mut found);
    // SAFETY: an empty path, and a place for the answer.
    let answer = unsafe { call!(statx, fd, path, flags, libc::STATX_TYPE, place) as i32 };
    if answer != -libc::ENOSYS && answer != -libc::EPERM {
        return if answer == 0 { u32::from(found.stx_mode) & libc::S_IFMT } else { 0 };
    }
    // SAFETY: as above.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a place for the answer.
    let answer = unsafe { libc::fstat(fd, &raw mut stat) };
    if answer == 0 { stat.st_mode & libc::S_IFMT } else { 0 }
}

/// poll(2) of one descriptor, for a time in nanoseconds or without end. Returns its events, or a
/// negative errno.
pub(crate) fn poll(fd: i32, events: i16, nanoseconds: Option<u64>) -> i32 {
    let mut set = libc::pollfd { fd, events, revents: 0 };
    let time = nanoseconds.map(|ns| timespec(Duration::from_nanos(ns)));
    let at = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: one descriptor, and a time or none.
    let ret = unsafe { call!(ppoll, &raw mut set, 1, at, 0, 8) };
    match (ret, set.revents) {
        (ret, _) if ret < 0 => ret as i32,
        (_, revents) if revents & libc::POLLNVAL != 0 => -libc::EBADF,
        (_, revents) => i32::from(revents as u16),
    }
}

/// As [`poll`], without waiting. Repeated after a signal.
pub(crate) fn poll_now(fd: i32, events: i16) -> i32 {
    loop {
        match poll(fd, events, Some(0)) {
            errno if errno == -libc::EINTR => {}
            answer => return answer,
        }
    }
}

/// The present time of a clock, in nanoseconds.
pub(crate) fn now(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the time.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The deadline in nanoseconds of CLOCK_MONOTONIC, for a time of `clock`. A relative time begins
/// now.
pub(crate) fn deadline(time: u64, clock: libc::clockid_t, absolute: bool) -> u64 {
    let left = if absolute { time.saturating_sub(now(clock)) } else { time };
    now(libc::CLOCK_MONOTONIC).saturating_add(left).min(u64::MAX - 1)
}

thread_local! {
    /// The process's generation when the thread's id was asked for, and that id. A child process
    /// has another generation.
    static THREAD: Cell<(u64, i32)> = const { Cell::new((0, 0)) };
}

/// The id of the calling thread. Asked for once: every call on a ring with
/// `IORING_SETUP_SINGLE_ISSUER` needs it. In the child of a vfork(2), the id is its parent's.
#[inline]
pub(crate) fn thread_id() -> i32 {
    match THREAD.get() {
        (known, id) if known != 0 && known == front::generation() => id,
        _ => ask_thread_id(),
    }
}

#[cold]
fn ask_thread_id() -> i32 {
    // SAFETY: the call takes no arguments.
    let id = unsafe { call!(gettid) as i32 };
    // In a thread with a descriptor table of its own, the generation is the same number in every
    // process. So the id is not kept: a child process would take it for its own.
    if !front::has_parted() {
        THREAD.set((front::generation(), id));
    }
    id
}

/// io_uring_setup(2) of the kernel.
///
/// # Safety
/// As the call.
pub(crate) unsafe fn io_uring_setup(entries: u32, params: usize) -> i32 {
    // SAFETY: the caller's contract.
    unsafe { call!(io_uring_setup, entries, params) as i32 }
}

/// io_uring_enter(2) of the kernel.
///
/// # Safety
/// As the call.
pub(crate) unsafe fn io_uring_enter(fd: i32, n: u32, min: u32, flags: u32, arg: [usize; 2]) -> i32 {
    // SAFETY: the caller's contract.
    unsafe { call!(io_uring_enter, fd, n, min, flags, arg[0], arg[1]) as i32 }
}

/// io_uring_register(2) of the kernel.
///
/// # Safety
/// As the call.
pub(crate) unsafe fn io_uring_register(fd: i32, opcode: u32, arg: usize, n: u32) -> i32 {
    // SAFETY: the caller's contract.
    unsafe { call!(io_uring_register, fd, opcode, arg, n) as i32 }
}

/// The calls that a worker makes, each as its manual page says. The kernel checks every address of
/// the program's.
pub(crate) mod files {
    use super::{CStr, Sysno};

    pub(crate) fn openat(dir: i32, path: &CStr, flags: u32, mode: u32) -> i32 {
        // SAFETY: a path that ends in NUL.
        unsafe { call!(openat, dir, path.as_ptr(), flags, mode) as i32 }
    }

    pub(crate) fn openat2(dir: i32, path: &CStr, how: &[u64; 3]) -> i32 {
        // SAFETY: a path that ends in NUL, and a struct open_how.
        unsafe { call!(openat2, dir, path.as_ptr(), how.as_ptr(), 24) as i32 }
    }

    pub(crate) fn statx(dir: i32, path: &CStr, flags: u32, mask: u32, out: u64) -> i32 {
        // SAFETY: a path that ends in NUL.
        unsafe { call!(statx, dir, path.as_ptr(), flags, mask, out) as i32 }
    }

    pub(crate) fn unlinkat(dir: i32, path: &CStr, flags: u32) -> i32 {
        // SAFETY: a path that ends in NUL.
        unsafe { call!(unlinkat, dir, path.as_ptr(), flags) as i32 }
    }

    pub(crate) fn renameat2(from: (i32, &CStr), to: (i32, &CStr), flags: u32) -> i32 {
        // SAFETY: paths that end in NUL.
        unsafe { call!(renameat2, from.0, from.1.as_ptr(), to.0, to.1.as_ptr(), flags) as i32 }
    }

    pub(crate) fn linkat(from: (i32, &CStr), to: (i32, &CStr), flags: u32) -> i32 {
        // SAFETY: paths that end in NUL.
        unsafe { call!(linkat, from.0, from.1.as_ptr(), to.0, to.1.as_ptr(), flags) as i32 }
    }

    pub(crate) fn symlinkat(target: &CStr, dir: i32, path: &CStr) -> i32 {
        // SAFETY: paths that end in NUL.
        unsafe { call!(symlinkat, target.as_ptr(), dir, path.as_ptr()) as i32 }
    }

    pub(crate) fn mkdirat(dir: i32, path: &CStr, mode: u32) -> i32 {
        // SAFETY: a path that ends in NUL.
        unsafe { call!(mkdirat, dir, path.as_ptr(), mode) as i32 }
    }

    pub(crate) fn setxattr(path: &CStr, name: &CStr, value: &[u8], flags: u32) -> i32 {
        let (path, name) = (path.as_ptr(), name.as_ptr());
        // SAFETY: strings that end in NUL, and bytes.
        unsafe { call!(setxattr, path, name, value.as_ptr(), value.len(), flags) as i32 }
    }

    pub(crate) fn fsetxattr(fd: i32, name: &CStr, value: &[u8], flags: u32) -> i32 {
        let name = name.as_ptr();
        // SAFETY: a string that ends in NUL, and bytes.
        unsafe { call!(fsetxattr, fd, name, value.as_ptr(), value.len(), flags) as i32 }
    }

    pub(crate) fn getxattr(path: &CStr, name: &CStr, value: u64, len: u32) -> i32 {
        // SAFETY: strings that end in NUL.
        unsafe { call!(getxattr, path.as_ptr(), name.as_ptr(), value, len) as i32 }
    }

    pub(crate) fn fgetxattr(fd: i32, name: &CStr, value: u64, len: u32) -> i32 {
        // SAFETY: a string that ends in NUL.
        unsafe { call!(fgetxattr, fd, name.as_ptr(), value, len) as i32 }
    }

    /// An offset of -1 means none.
    pub(crate) fn splice(from: (i32, i64), to: (i32, i64), len: u32, flags: u32) -> i32 {
        let (mut offset_in, mut offset_out) = (from.1, to.1);
        let at =
            |offset: &mut i64| if *offset == -1 { 0 } else { std::ptr::from_mut(offset) as usize };
        let (a, b) = (at(&mut offset_in), at(&mut offset_out));
        // SAFETY: offsets that live through the call, or none.
        unsafe { call!(splice, from.0, a, to.0, b, len, flags) as i32 }
    }

    pub(crate) fn tee(from: i32, to: i32, len: u32, flags: u32) -> i32 {
        // SAFETY: no memory is passed.
        unsafe { call!(tee, from, to, len, flags) as i32 }
    }
}

/// seccomp(2): sets a filter for all threads. Returns 0 or a negative errno: `-ESRCH` if one of the
/// threads cannot have the filter.
pub(crate) fn set_filter(program: &libc::sock_fprog) -> i32 {
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    let program = std::ptr::from_ref(program);
    // SAFETY: a program that is live across the call, which copies it.
    let set = unsafe { call!(seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, program) as i32 };
    if set > 0 { -libc::ESRCH } else { set }
}

/// Does this process have filters of seccomp(2)?
pub(crate) fn has_filters() -> bool {
    // SAFETY: numbers only.
    unsafe { call!(prctl, libc::PR_GET_SECCOMP, 0, 0, 0, 0) == 2 }
}

/// prctl(2): from now on, no program that this process starts gains privileges.
pub(crate) fn gain_no_privileges() -> bool {
    // SAFETY: numbers only.
    unsafe { call!(prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 }
}

/// Does the kernel set up rings for this process? A ring of no entries is asked for, which is
/// EINVAL. Where a filter or a setting refuses rings, the call has another errno.
///
/// No ring is made. The kernel takes a closed ring down some time later, and interrupts its maker
/// for that: a wait of the program's, such as epoll_wait(2), would end with EINTR.
pub(crate) fn has_io_uring() -> bool {
    let mut params = crate::abi::Params::default();
    // SAFETY: parameters of our own.
    unsafe { io_uring_setup(0, (&raw mut params).expose_provenance()) == -libc::EINVAL }
}

/// The number of this process's group.
pub(crate) fn process_group() -> i32 {
    // SAFETY: only numbers are passed.
    unsafe { call!(getpgid, 0) as i32 }
}

/// waitid(2). Returns the two parts of `siginfo_t` that the call fills. The second part begins with
/// the PID of the child, which is 0 if no child has changed its state.
pub(crate) fn wait_child((kind, id): (i32, i32), options: i32) -> Result<[[i32; 3]; 2], i32> {
    let mut info = [0i32; 32];
    // SAFETY: room for a `siginfo_t`, which has 128 bytes.
    let answer = unsafe { call!(waitid, kind, id, info.as_mut_ptr(), options, 0) as i32 };
    let part = |at: usize| [info[at], info[at + 1], info[at + 2]];
    if answer < 0 { Err(answer) } else { Ok([part(0), part(4)]) }
}

/// kill(2) with no signal: is there a process with this PID, of whatever user?
pub(crate) fn is_process(pid: i32) -> bool {
    // SAFETY: numbers only, and nothing is sent.
    unsafe { call!(kill, pid, 0) as i32 != -libc::ESRCH }
}

/// futex(2), for threads of all processes that share the word: sleeps while the word is `expected`.
/// Returns `-ETIMEDOUT`, `-EINTR`, or another value, after which the caller checks again. With a
/// signal mask, the thread sleeps in ppoll(2) for at most a millisecond, because futex(2) takes no
/// mask.
pub(crate) fn sleep_while(
    word: &AtomicU32,
    expected: u32,
    time: Duration,
    mask: Option<u64>,
) -> i32 {
    let mut time = timespec(match mask {
        Some(_) => time.min(Duration::from_millis(1)),
        None => time,
    });
    // SAFETY: the word, the time and the mask are live across the call.
    unsafe {
        match mask {
            Some(mask) => {
                let none = std::ptr::null::<libc::pollfd>();
                match call!(ppoll, none, 0, &raw mut time, &raw const mask, 8) as i32 {
                    0 => -libc::ETIMEDOUT,
                    errno => errno,
                }
            }
            None => call!(futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &raw const time) as i32,
        }
    }
}

/// Wakes all threads that sleep on a word.
pub(crate) fn wake_all(word: &AtomicU32) {
    // SAFETY: the address is only compared.
    unsafe { call!(futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
