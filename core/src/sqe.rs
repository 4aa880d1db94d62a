//! Submission entry: 64 bytes in io_uring's layout. All operations are built in the same way.
//!
//! A constructor takes the required arguments; methods add the rest (`user_data`, `rw_flags`).
//! Nothing is checked here: a malformed entry completes with `-EINVAL`, as in io_uring.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, RawFd};

/// Operation codes, with io_uring's numbers (`enum io_uring_op`).
pub mod opcode {
    #![allow(missing_docs)]
    pub const NOP: u8 = 0;
    pub const READV: u8 = 1;
    pub const WRITEV: u8 = 2;
    pub const FSYNC: u8 = 3;
    pub const POLL_ADD: u8 = 6;
    pub const SYNC_FILE_RANGE: u8 = 8;
    pub const FALLOCATE: u8 = 17;
    pub const OPENAT: u8 = 18;
    pub const CLOSE: u8 = 19;
    pub const STATX: u8 = 21;
    pub const READ: u8 = 22;
    pub const WRITE: u8 = 23;
    pub const FADVISE: u8 = 24;
    pub const RENAMEAT: u8 = 35;
    pub const UNLINKAT: u8 = 36;
    pub const MKDIRAT: u8 = 37;
    pub const FTRUNCATE: u8 = 55;
}

/// Flag in [`Sqe::op_flags`]: the fsync leaves metadata out (`IORING_FSYNC_DATASYNC`).
pub const FSYNC_DATASYNC: u32 = 1;

/// The offset that means "the file position" (read(2) instead of pread(2)).
pub const FILE_POSITION: u64 = u64::MAX;

/// One request, laid out as `struct io_uring_sqe` (io_uring_enter(2)).
///
/// Buffers are raw pointers: the code that pushes the entry keeps them valid until its
/// [`Cqe`](crate::Cqe) was reaped. Everything else (iovec arrays, paths) is copied at submit.
///
/// Constructors take a number (`RawFd`), a `BorrowedFd`, or anything with a descriptor. An entry
/// does not keep the descriptor open: the number has to name the file until the completion was
/// reaped.
///
/// ```
/// use std::os::fd::AsFd as _;
/// use uringlet::{Context, FILE_POSITION, Sqe};
///
/// let file = std::fs::File::open("/proc/self/exe")?;
/// let mut head = [0u8; 4];
/// let read = Sqe::read(file.as_fd(), &mut head[..], 0).user_data(1);
/// assert_eq!((read.len, read.user_data), (4, 1));
/// let mut context = Context::new(2)?;
/// // SAFETY: `head` outlives its request, and a sync has no buffers.
/// unsafe {
///     context.push(read)?;
///     context.push(Sqe::fdatasync(file.as_fd()).user_data(2))?;
/// }
/// assert_eq!(context.submit()?, 2);
/// context.wait(2, None)?;
/// assert_eq!(std::iter::from_fn(|| context.reap()).count(), 2);
/// assert_eq!(&head, b"\x7fELF");
/// assert_eq!(Sqe::read(3, &mut head[..], FILE_POSITION).off, u64::MAX);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sqe {
    /// A constant of [`opcode`].
    pub opcode: u8,
    /// `IOSQE_*`: none is supported; a value other than 0 completes with `-EINVAL`.
    pub flags: u8,
    /// Priority: of the reads (or writes) that wait for one stream, those with smaller numbers go
    /// first. Elsewhere accepted and ignored.
    pub ioprio: u16,
    /// The descriptor, or the directory descriptor of the `*at` operations.
    pub fd: RawFd,
    /// Offset in bytes ([`FILE_POSITION`] for the file position), or a second address.
    pub off: u64,
    /// Address of the buffer, the iovec array or the path; the length of a fallocate.
    pub addr: u64,
    /// Length in bytes, number of iovecs, or mode.
    pub len: u32,
    /// Flags of the operation: `RWF_*`, `O_*`, `AT_*`, advice, or the poll events.
    pub op_flags: u32,
    /// Returned in the completion.
    pub user_data: u64,
    /// Registered buffer: not supported, must be 0.
    pub buf_index: u16,
    /// Registered credentials: not supported, must be 0.
    pub personality: u16,
    /// Registered file slot: not supported, must be 0.
    pub file_index: i32,
    /// Unused, must be 0.
    pub addr3: u64,
    /// Unused, must be 0.
    pub pad: u64,
}

impl Sqe {
    const fn new(opcode: u8, fd: RawFd) -> Self {
        Self {
            opcode,
            flags: 0,
            ioprio: 0,
            fd,
            off: 0,
            addr: 0,
            len: 0,
            op_flags: 0,
            user_data: 0,
            buf_index: 0,
            personality: 0,
            file_index: 0,
            addr3: 0,
            pad: 0,
        }
    }

    fn transfer(opcode: u8, fd: RawFd, addr: u64, len: usize, offset: u64) -> Self {
        // A transfer is at most MAX_RW_COUNT (read(2)): a longer slice is a short transfer.
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        Self { addr, len, off: offset, ..Self::new(opcode, fd) }
    }

    /// Completes with 0 without doing anything.
    pub const fn nop() -> Self {
        Self::new(opcode::NOP, -1)
    }

    /// pread(2) into `buf` from `offset` (bytes), or read(2) with [`FILE_POSITION`]. Result: bytes
    /// read.
    pub fn read(fd: impl AsRawFd, buf: *mut [u8], offset: u64) -> Self {
        Self::transfer(opcode::READ, fd.as_raw_fd(), buf.cast::<u8>() as u64, buf.len(), offset)
    }

    /// pwrite(2) of `buf` at `offset` (bytes), or write(2) with [`FILE_POSITION`]. Result: bytes
    /// written.
    pub fn write(fd: impl AsRawFd, buf: *const [u8], offset: u64) -> Self {
        Self::transfer(opcode::WRITE, fd.as_raw_fd(), buf.cast::<u8>() as u64, buf.len(), offset)
    }

    /// preadv2(2). The iovec array is copied at submit. Result: bytes read.
    pub fn readv(fd: impl AsRawFd, iov: *const [libc::iovec], offset: u64) -> Self {
        Self::transfer(opcode::READV, fd.as_raw_fd(), iov.cast::<u8>() as u64, iov.len(), offset)
    }

    /// pwritev2(2). The iovec array is copied at submit. Result: bytes written.
    pub fn writev(fd: impl AsRawFd, iov: *const [libc::iovec], offset: u64) -> Self {
        Self::transfer(opcode::WRITEV, fd.as_raw_fd(), iov.cast::<u8>() as u64, iov.len(), offset)
    }

    /// fsync(2). Covers every write to the file that completed before the fsync was submitted.
    pub fn fsync(fd: impl AsRawFd) -> Self {
        Self::new(opcode::FSYNC, fd.as_raw_fd())
    }

    /// fdatasync(2).
    pub fn fdatasync(fd: impl AsRawFd) -> Self {
        Self { op_flags: FSYNC_DATASYNC, ..Self::new(opcode::FSYNC, fd.as_raw_fd()) }
    }

    /// sync_file_range(2) over `len` bytes from `offset`, with `SYNC_FILE_RANGE_*` flags.
    pub fn sync_file_range(fd: impl AsRawFd, offset: u64, len: u32, flags: u32) -> Self {
        Self {
            off: offset,
            len,
            op_flags: flags,
            ..Self::new(opcode::SYNC_FILE_RANGE, fd.as_raw_fd())
        }
    }

    /// fallocate(2) with `FALLOC_FL_*` mode.
    pub fn fallocate(fd: impl AsRawFd, mode: u32, offset: u64, len: u64) -> Self {
        Self { off: offset, addr: len, len: mode, ..Self::new(opcode::FALLOCATE, fd.as_raw_fd()) }
    }

    /// ftruncate(2) to `len` bytes.
    pub fn ftruncate(fd: impl AsRawFd, len: u64) -> Self {
        Self { off: len, ..Self::new(opcode::FTRUNCATE, fd.as_raw_fd()) }
    }

    /// posix_fadvise(2) with `POSIX_FADV_*` advice over `len` bytes (0: to the end).
    pub fn fadvise(fd: impl AsRawFd, offset: u64, len: u32, advice: u32) -> Self {
        Self { off: offset, len, op_flags: advice, ..Self::new(opcode::FADVISE, fd.as_raw_fd()) }
    }

    /// openat(2). Result: the new descriptor. The path is copied at submit.
    pub fn openat(dirfd: impl AsRawFd, path: &CStr, flags: i32, mode: u32) -> Self {
        let path = path.as_ptr() as u64;
        Self {
            addr: path,
            len: mode,
            op_flags: flags as u32,
            ..Self::new(opcode::OPENAT, dirfd.as_raw_fd())
        }
    }

    /// close(2).
    pub fn close(fd: impl AsRawFd) -> Self {
        Self::new(opcode::CLOSE, fd.as_raw_fd())
    }

    /// statx(2) into `out`, with `AT_*` flags and a `STATX_*` mask. The path is copied at submit.
    pub fn statx(
        dirfd: impl AsRawFd,
        path: &CStr,
        flags: i32,
        mask: u32,
        out: *mut libc::statx,
    ) -> Self {
        Self {
            addr: path.as_ptr() as u64,
            off: out as u64,
            len: mask,
            op_flags: flags as u32,
            ..Self::new(opcode::STATX, dirfd.as_raw_fd())
        }
    }

    /// unlinkat(2) with `AT_REMOVEDIR` or 0. The path is copied at submit.
    pub fn unlinkat(dirfd: impl AsRawFd, path: &CStr, flags: i32) -> Self {
        Self {
            addr: path.as_ptr() as u64,
            op_flags: flags as u32,
            ..Self::new(opcode::UNLINKAT, dirfd.as_raw_fd())
        }
    }

    /// renameat2(2) with `RENAME_*` flags. Both paths are copied at submit.
    pub fn renameat(
        from_dir: impl AsRawFd,
        from: &CStr,
        to_dir: impl AsRawFd,
        to: &CStr,
        flags: u32,
    ) -> Self {
        Self {
            addr: from.as_ptr() as u64,
            off: to.as_ptr() as u64,
            len: to_dir.as_raw_fd() as u32,
            op_flags: flags,
            ..Self::new(opcode::RENAMEAT, from_dir.as_raw_fd())
        }
    }

    /// mkdirat(2). The path is copied at submit.
    pub fn mkdirat(dirfd: impl AsRawFd, path: &CStr, mode: u32) -> Self {
        Self {
            addr: path.as_ptr() as u64,
            len: mode,
            ..Self::new(opcode::MKDIRAT, dirfd.as_raw_fd())
        }
    }

    /// Waits once until one of `events` occurs (`POLLIN` …, poll(2)). Result: the mask of the
    /// events that occurred. `-EINVAL`: the file is always ready, and none of `events` says so.
    pub fn poll_add(fd: impl AsRawFd, events: i16) -> Self {
        Self { op_flags: events as u16 as u32, ..Self::new(opcode::POLL_ADD, fd.as_raw_fd()) }
    }

    /// The value that the completion returns.
    #[must_use]
    pub const fn user_data(self, user_data: u64) -> Self {
        Self { user_data, ..self }
    }

    /// `RWF_*` flags of a read or write (preadv2(2)). An unknown one completes with `-EOPNOTSUPP`.
    #[must_use]
    pub const fn rw_flags(self, flags: i32) -> Self {
        Self { op_flags: flags as u32, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::{Sqe, opcode};
    use std::mem::{align_of, offset_of, size_of};

    #[test]
    fn layout_is_io_uring_sqe() {
        assert_eq!((size_of::<Sqe>(), align_of::<Sqe>()), (64, 8));
        let offsets = [
            (offset_of!(Sqe, opcode), 0),
            (offset_of!(Sqe, flags), 1),
            (offset_of!(Sqe, ioprio), 2),
            (offset_of!(Sqe, fd), 4),
            (offset_of!(Sqe, off), 8),
            (offset_of!(Sqe, addr), 16),
            (offset_of!(Sqe, len), 24),
            (offset_of!(Sqe, op_flags), 28),
            (offset_of!(Sqe, user_data), 32),
            (offset_of!(Sqe, buf_index), 40),
            (offset_of!(Sqe, personality), 42),
            (offset_of!(Sqe, file_index), 44),
            (offset_of!(Sqe, addr3), 48),
            (offset_of!(Sqe, pad), 56),
        ];
        for (found, expected) in offsets {
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn builders_fill_the_fields_that_io_uring_reads() {
        let mut buf = [0u8; 16];
        let at = buf.as_ptr() as u64;
        let sqe = Sqe::read(3, &mut buf[..], 512).user_data(9).rw_flags(libc::RWF_NOWAIT);
        assert_eq!((sqe.opcode, sqe.fd, sqe.addr, sqe.len), (opcode::READ, 3, at, 16));
        assert_eq!((sqe.off, sqe.user_data, sqe.op_flags), (512, 9, libc::RWF_NOWAIT as u32));
        let sqe = Sqe::fallocate(4, 1, 2, 3);
        assert_eq!((sqe.len, sqe.off, sqe.addr), (1, 2, 3));
        let sqe = Sqe::renameat(5, c"a", 6, c"b", 0);
        assert_eq!((sqe.fd, sqe.len), (5, 6));
    }
}
