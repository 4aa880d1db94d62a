//! Files: transfers, facts about an open file, and new descriptors.

use std::ffi::CStr;
use std::os::fd::RawFd;

use super::Ret;

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

/// preadv2(2); `offset` `u64::MAX` is the file position.
pub(crate) unsafe fn preadv2(
    fd: RawFd,
    iov: *const libc::iovec,
    n: usize,
    offset: u64,
    flags: u32,
) -> Ret {
    // The kernel takes the offset in two halves; on 64-bit machines it ignores the high one.
    // SAFETY: the kernel checks every address; the caller owns iovecs and buffers until this
    // returns.
    unsafe { call!(preadv2, fd, iov, n, offset, 0, flags) }
}

/// pwritev2(2); `offset` `u64::MAX` is the file position.
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

/// A read from or write to a socket that does not wait (recvmsg(2), sendmsg(2)). These calls are
/// older than `RWF_NOWAIT`, and allowed in more sandboxes. `-ENOTSOCK` for other files.
///
/// # Safety
/// As for [`preadv2`].
pub(crate) unsafe fn transfer_now(fd: RawFd, write: bool, iov: &mut [libc::iovec]) -> Ret {
    // SAFETY: zeros are valid: the structure has integers and pointers only.
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

/// As [`preadv2`]. Without flags it uses the older calls, which more kernels have, and more
/// sandboxes allow.
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

/// As [`pwritev2`]. Without flags it uses the older calls.
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

/// `how`: a `struct open_how`.
pub(crate) fn openat2(dir: RawFd, path: &CStr, how: &[u64; 3]) -> Ret {
    // SAFETY: a path that ends in NUL, and a struct open_how.
    unsafe { call!(openat2, dir, path.as_ptr(), how.as_ptr(), size_of_val(how)) }
}

/// The first bytes of a file, as many as `bytes` takes. Does not wait for the writer of a FIFO.
/// `None`: the file cannot be read.
pub(crate) fn read_start<'a>(path: &CStr, bytes: &'a mut [u8]) -> Option<&'a [u8]> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    // SAFETY: a path that ends in NUL.
    let fd = unsafe { call!(openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) };
    let fd = RawFd::try_from(fd).ok().filter(|&fd| fd >= 0)?;
    // SAFETY: the buffer is borrowed across the call.
    let read = unsafe { pread(fd, bytes.as_mut_ptr() as u64, bytes.len(), 0) };
    close(fd);
    bytes.get(..usize::try_from(read).ok()?)
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

/// Asks for a lock of the file that conflicts with `lock` (fcntl(2), `F_OFD_GETLK`). The kernel
/// writes that lock to `lock`, or the type `F_UNLCK` if there is none.
pub(crate) fn blocking_lock(fd: RawFd, lock: &mut libc::flock) -> Ret {
    // SAFETY: the structure lives across the call, which fills it in.
    unsafe { call!(fcntl, fd, libc::F_OFD_GETLK, std::ptr::from_mut(lock)) }
}

/// fcntl(F_GETFL): access mode and status flags, or `-EBADF`.
pub(crate) fn status_flags(fd: RawFd) -> Ret {
    // SAFETY: no memory is passed.
    unsafe { call!(fcntl, fd, libc::F_GETFL, 0) }
}

/// fcntl(F_SETFL).
pub(crate) fn set_status_flags(fd: RawFd, flags: i32) -> Ret {
    // SAFETY: no memory is passed.
    unsafe { call!(fcntl, fd, libc::F_SETFL, flags) }
}

/// What the kernel has in memory about an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStat {
    /// The file type bits of `st_mode`.
    pub(crate) kind: u32,
    pub(crate) size: u64,
    /// Device and inode.
    pub(crate) identity: (u64, u64),
    /// A number of the mount that is not used again. Before Linux 6.8, a number made of the file
    /// system's device, or 0 if it has no device or statx(2) is refused.
    pub(crate) mount: u64,
}

/// statx(2) of an open file, with what the kernel has in memory (`AT_STATX_DONT_SYNC`): a hanging
/// file server is not asked. If statx(2) is refused or missing (before 4.11), this uses fstat(2),
/// which may ask the server.
///
/// # Errors
/// The negative errno.
pub(crate) fn stat(fd: RawFd) -> Result<FileStat, Ret> {
    /// New in Linux 6.8: a mount number that is not used again, unlike that of `STATX_MNT_ID`.
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
        // The number of a file system without a device may later be that of another file system.
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

/// The size of a regular file; `None` for other files.
pub(crate) fn file_size(fd: RawFd) -> Option<u64> {
    stat(fd).ok().filter(|stat| stat.kind == libc::S_IFREG).map(|stat| stat.size)
}

/// Does the file support `RWF_NOWAIT`? The call tries a read far beyond the file's end, which reads
/// nothing. The kernel itself answers; network file systems and FUSE do not support the flag.
pub(crate) fn takes_nowait(fd: RawFd) -> bool {
    /// No file system has larger files.
    const FAR: u64 = i64::MAX as u64 - 4096;
    let mut byte = 0u8;
    let iov = [libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
    // SAFETY: one iovec of one byte, both live across the call.
    unsafe { preadv2(fd, iov.as_ptr(), 1, FAR, libc::RWF_NOWAIT as u32) == 0 }
}

/// `f_type` of the file's file system (fstatfs(2)). The call may wait for a server.
fn file_system(fd: RawFd) -> Option<u32> {
    // SAFETY: zeros are valid: the structure has integers only.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `found` is as large as the call writes.
    let told = unsafe { call!(fstatfs, fd, &raw mut found) } == 0;
    told.then_some(found.f_type as u32)
}

/// Does an open for writing copy the file first, as overlayfs does with files of a lower layer?
/// Also true if the kernel does not tell. The file is on a local file system.
pub(crate) fn copies_at_open(fd: RawFd) -> bool {
    file_system(fd).is_none_or(|kind| kind == libc::OVERLAYFS_SUPER_MAGIC as u32)
}

/// Is the file on a local file system, on a device or in memory, which no server can hold up? The
/// check itself may wait for a server. Network file systems and FUSE are not local, nor are file
/// systems that are not in this list.
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

/// Does the file system keep files in memory only, so that fsync(2) does nothing?
pub(crate) fn lives_in_memory(fd: RawFd) -> bool {
    const RAMFS_MAGIC: u32 = 0x8584_58f6;
    file_system(fd).is_some_and(|kind| [libc::TMPFS_MAGIC as u32, RAMFS_MAGIC].contains(&kind))
}

/// Moves the file position by this number of bytes, and returns the new one (lseek(2)).
pub(crate) fn move_position(fd: RawFd, by: i64) -> Option<u64> {
    // SAFETY: no memory is passed.
    u64::try_from(unsafe { call!(lseek, fd, by, libc::SEEK_CUR) }).ok()
}

/// Does lseek(2) work on the file?
pub(crate) fn has_offsets(fd: RawFd) -> bool {
    move_position(fd, 0).is_some()
}

/// Makes a memfd of `size` bytes (memfd_create(2)). Nobody can change its size, and only the same
/// user can open it. Returns the descriptor, or the negative errno.
pub(crate) fn sealed_memfd(name: &std::ffi::CStr, size: usize) -> Ret {
    // Beyond this limit, ftruncate(2) sends SIGXFSZ, which ends the process.
    if limit_of(libc::RLIMIT_FSIZE.into()) < size as u64 {
        return -(libc::EFBIG as Ret);
    }
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a NUL-terminated name.
    let make = |flags: u32| unsafe { call!(memfd_create, name.as_ptr(), flags) };
    // If the flag is unknown (before Linux 6.3), memfds are made without it. The setting
    // vm.memfd_noexec, which may refuse them, came with the flag.
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

/// Is this a memfd whose size nobody can change?
pub(crate) fn is_sealed(fd: RawFd) -> bool {
    let size = (libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) as Ret;
    // SAFETY: no memory is passed.
    let seals = unsafe { call!(fcntl, fd, libc::F_GET_SEALS, 0) };
    seals >= 0 && seals & size == size
}

/// Is there a limit on the size of files (RLIMIT_FSIZE)?
pub(crate) fn has_file_limit() -> bool {
    limit_of(libc::RLIMIT_FSIZE.into()) != u64::MAX
}

/// No file gets this number or a higher one (RLIMIT_NOFILE).
pub(crate) fn descriptor_limit() -> u64 {
    limit_of(libc::RLIMIT_NOFILE.into())
}

/// A limit of the process (getrlimit(2)); `u64::MAX` if there is none, or it is unknown.
fn limit_of(resource: i64) -> u64 {
    let mut limit = [u64::MAX; 2];
    // SAFETY: room for the two numbers of a rlimit64.
    unsafe { call!(prlimit64, 0, resource, 0, limit.as_mut_ptr()) };
    limit[0]
}

/// The two ends of a pipe(2), for reading and for writing; or the negative errno.
pub(crate) fn pipe() -> Result<[RawFd; 2], i32> {
    let mut ends = [-1; 2];
    // SAFETY: room for two descriptors.
    let ret = unsafe { call!(pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) };
    if ret < 0 { Err(ret as i32) } else { Ok(ends) }
}

/// A duplicate of a descriptor, close-on-exec, with the lowest free number not below `from`.
pub(crate) fn duplicate(fd: RawFd, from: RawFd) -> Ret {
    // SAFETY: passes no address.
    unsafe { call!(fcntl, fd, libc::F_DUPFD_CLOEXEC, from) }
}

/// Device and inode of an open file, or the negative errno of fstat(2).
pub(crate) fn file_identity(fd: RawFd) -> Result<(u64, u64), i32> {
    stat(fd).map(|stat| stat.identity).map_err(|errno| errno as i32)
}
