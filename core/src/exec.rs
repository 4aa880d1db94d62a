//! Executes ONE request synchronously. Only this file handles EINTR, short transfers and errno.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::time::Duration;

use crate::request::{CopiedIn, Iovec, Kind, Request};
use crate::sqe::{FILE_POSITION, FSYNC_DATASYNC, Sqe, opcode};
use crate::sys::{self, MAX_RW_COUNT, Ret, call};

/// The most iovecs of one request (`IOV_MAX`, readv(2)).
pub(crate) const IOV_MAX: usize = 1024;

/// The kind of an operation. Refuses everything that io_uring refuses with `-EINVAL`.
#[inline]
pub(crate) fn kind(sqe: &Sqe) -> Kind {
    // All these fields are 0 in a usual request: one comparison tests them together.
    let unused = u64::from(sqe.flags) | sqe.addr3 | sqe.pad;
    let unregistered = sqe.buf_index | sqe.personality;
    if unused | u64::from(unregistered) | u64::from(sqe.file_index as u32) != 0 {
        return Kind::Invalid;
    }
    // Reads and writes have a `match` of their own. One `match` for all operations would be a jump
    // through a table.
    match sqe.opcode {
        opcode::READ => Kind::Read,
        opcode::WRITE => Kind::Write,
        _ => kind_of_rest(sqe),
    }
}

#[inline(never)]
fn kind_of_rest(sqe: &Sqe) -> Kind {
    let idle = |fields: &[u64]| fields.iter().all(|&field| field == 0);
    let (off, addr, len, flags) = (sqe.off, sqe.addr, u64::from(sqe.len), u64::from(sqe.op_flags));
    let (kind, ok) = match sqe.opcode {
        opcode::READV => (Kind::Read, true),
        opcode::WRITEV => (Kind::Write, true),
        opcode::NOP => (Kind::Quick, idle(&[flags])),
        opcode::FADVISE => (Kind::Quick, true),
        opcode::FSYNC => {
            let known = sqe.op_flags & !FSYNC_DATASYNC == 0;
            (Kind::Sync, known && idle(&[off, addr, len]))
        }
        opcode::SYNC_FILE_RANGE => (Kind::Sync, idle(&[addr])),
        opcode::POLL_ADD => (Kind::Poll, idle(&[off, addr, len])),
        opcode::FALLOCATE => (Kind::Other, idle(&[flags])),
        opcode::FTRUNCATE => (Kind::Other, idle(&[addr, len, flags])),
        opcode::OPENAT => (Kind::Other, idle(&[off])),
        opcode::CLOSE => (Kind::Other, idle(&[off, addr, len, flags])),
        opcode::STATX | opcode::RENAMEAT => (Kind::Other, true),
        opcode::UNLINKAT => (Kind::Other, idle(&[off, len])),
        opcode::MKDIRAT => (Kind::Other, idle(&[off, flags])),
        _ => (Kind::Invalid, true),
    };
    if ok { kind } else { Kind::Invalid }
}

/// The operation code of a function that a worker calls for a front end, because the function may
/// sleep.
pub const CALL: u8 = 0xff;

/// The function that a [`CALL`] calls; `addr` of the entry is the function, `off` its argument.
/// Returns the result.
pub type CallFunction = unsafe extern "C" fn(u64) -> i32;

/// The kind of a request that may be a [`CALL`]. Entries of programs never are.
pub(crate) fn accept_call(kind: Kind, sqe: &Sqe) -> Kind {
    if sqe.opcode == CALL { Kind::Other } else { kind }
}

/// Copies iovec arrays and paths from the caller's memory, which the caller may reuse after submit.
/// A bad address, length or count is refused with a negative errno.
///
/// # Safety
/// The addresses in the entry are readable, or are where nothing is ever mapped.
#[inline]
pub(crate) unsafe fn copy_in(request: &mut Request) -> Result<(), i32> {
    if matches!(request.sqe.opcode, opcode::READ | opcode::WRITE) {
        return Ok(());
    }
    // SAFETY: the caller's contract.
    unsafe { copy_in_more(request) }
}

/// Does the entry name a vector of buffers?
#[inline(always)]
pub(crate) fn is_vector(sqe: &Sqe) -> bool {
    matches!(sqe.opcode, opcode::READV | opcode::WRITEV)
}

#[inline(never)]
unsafe fn copy_in_more(request: &mut Request) -> Result<(), i32> {
    let sqe = request.sqe;
    let (vector, path, path2) = match sqe.opcode {
        _ if is_vector(&sqe) => (true, false, false),
        opcode::OPENAT | opcode::STATX | opcode::UNLINKAT | opcode::MKDIRAT => (false, true, false),
        opcode::RENAMEAT => (false, true, true),
        _ => return Ok(()),
    };
    let copied = request.copied.get_or_insert_with(Box::<CopiedIn>::default);
    if vector {
        let n = sqe.len as usize;
        if n > IOV_MAX {
            return Err(-libc::EINVAL);
        }
        if n > 0 && !plausible(sqe.addr) {
            return Err(-libc::EFAULT);
        }
        copied.iov.clear();
        if n > 0 {
            // SAFETY: the caller answers for `n` readable iovecs at a plausible address.
            let iov = unsafe { std::slice::from_raw_parts(sqe.addr as *const Iovec, n) };
            copied.iov.extend_from_slice(iov);
        }
        let mut total = 0usize;
        for part in &copied.iov {
            total = total.saturating_add(part.iov_len);
            if part.iov_len > isize::MAX as usize || total > isize::MAX as usize {
                return Err(-libc::EINVAL);
            }
        }
        if total == 0 {
            // The request transfers nothing: it is executed as a plain transfer of zero bytes.
            request.sqe.len = 0;
            copied.iov.clear();
        }
    }
    if path {
        // SAFETY: the caller answers for a NUL-terminated path at a plausible address.
        unsafe { copy_path(sqe.addr, &mut copied.path) }?;
    }
    if path2 {
        // SAFETY: as above.
        unsafe { copy_path(sqe.off, &mut copied.path2) }?;
    }
    Ok(())
}

unsafe fn copy_path(address: u64, into: &mut Vec<u8>) -> Result<(), i32> {
    if !plausible(address) {
        return Err(-libc::EFAULT);
    }
    // SAFETY: the caller answers for a NUL-terminated string at a plausible address.
    let path = unsafe { std::ffi::CStr::from_ptr(address as *const libc::c_char) };
    if path.to_bytes().len() >= libc::PATH_MAX as usize {
        return Err(-libc::ENAMETOOLONG);
    }
    into.clear();
    into.extend_from_slice(path.to_bytes_with_nul());
    Ok(())
}

/// Can the address be the program's? The first page (a null pointer and its fields) and the
/// kernel's half of the addresses cannot.
pub(crate) fn plausible(address: u64) -> bool {
    address >= 0x1000 && sys::in_user_space(address, 1)
}

/// How a read or write is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The flags and the offset of the request apply.
    Plain,
    /// The descriptor is a pipe, socket or terminal: the offset is ignored and the call must not
    /// sleep (`RWF_NOWAIT`).
    StreamNoWait,
    /// As above, but the call may sleep.
    Stream,
}

/// Executes a request and gives its result: a count or a negative errno.
///
/// # Safety
/// The data buffers belong to the request (at any address: the kernel checks it), and [`copy_in`]
/// has run.
#[inline(always)]
pub(crate) unsafe fn execute(request: &mut Request, mode: Mode) -> i32 {
    let sqe = &request.sqe;
    if request.refused != 0 {
        return request.refused.into();
    }
    if mode == Mode::Plain && sqe.op_flags == 0 && sqe.off != FILE_POSITION {
        match sqe.opcode {
            opcode::READ => {
                // SAFETY: the kernel checks the buffer, which is the request's.
                return unsafe { read(sqe) };
            }
            opcode::WRITE => {
                // SAFETY: as above.
                return unsafe { write(sqe) };
            }
            _ => {}
        }
    }
    // SAFETY: the caller's contract.
    unsafe { execute_rest(request, mode) }
}

/// Reads at an offset.
///
/// # Safety
/// As for [`execute`]; it is a read at an offset, without flags.
#[inline(always)]
pub(crate) unsafe fn read(sqe: &Sqe) -> i32 {
    // SAFETY: the kernel checks the buffer.
    unsafe { positional(sqe, false, |a, n, o| sys::pread(sqe.fd, a, n, o)) }
}

/// Writes at an offset.
///
/// # Safety
/// As for [`execute`]; it is a write at an offset, without flags.
#[inline(always)]
pub(crate) unsafe fn write(sqe: &Sqe) -> i32 {
    // SAFETY: the kernel checks the buffer.
    unsafe { positional(sqe, true, |a, n, o| sys::pwrite(sqe.fd, a, n, o)) }
}

/// Writes a vector. The vector is not copied: the kernel reads the program's memory.
///
/// # Safety
/// As for [`execute`]; it is a write without flags.
pub(crate) unsafe fn write_vector(sqe: &Sqe) -> i32 {
    let (iov, count) = (sqe.addr as *const Iovec, sqe.len as usize);
    // SAFETY: the kernel checks the vector and the buffers, which are the request's.
    uninterrupted(|| unsafe { sys::pwritev(sqe.fd, iov, count, sqe.off, 0) })
}

/// The result of a read that must not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tried {
    /// The read is complete, or the file ends after it.
    Done(i32),
    /// A part was not in memory.
    WouldWait,
    /// The read failed: a read that may wait reports the error.
    Failed,
    /// This file, kernel or sandbox does not support RWF_NOWAIT, or the read is malformed.
    Impossible,
}

/// As [`write`](fn@write), at the file position.
///
/// # Safety
/// As for [`execute`]; it is a write without flags.
pub(crate) unsafe fn write_at_position(sqe: &Sqe) -> i32 {
    let iov = Iovec { iov_base: sqe.addr as *mut _, iov_len: sqe.len as usize };
    // SAFETY: the kernel checks the buffer.
    uninterrupted(|| unsafe { sys::pwritev(sqe.fd, &raw const iov, 1, FILE_POSITION, 0) })
}

/// Reads what is in memory, and starts reading what is not (since Linux 5.10). At the file
/// position, a read that would wait leaves the position where it was.
///
/// # Safety
/// As for [`execute`]; it is a read without flags. The iovec array of a vector is not copied: the
/// kernel reads it in the program's memory.
pub(crate) unsafe fn try_read(sqe: &Sqe) -> Tried {
    if is_vector(sqe) {
        // SAFETY: the caller's contract.
        return unsafe { try_read_into(sqe, sqe.addr as *const _, sqe.len as usize) };
    }
    let iov = Iovec { iov_base: sqe.addr as *mut _, iov_len: sqe.len as usize };
    // SAFETY: the caller's contract.
    unsafe { try_read_into(sqe, &raw const iov, 1) }
}

/// As [`try_read`], for every kind of read. A read that moves the file position or has flags cannot
/// be tried.
///
/// # Safety
/// As for [`execute`]; it is a read.
pub(crate) unsafe fn try_request(request: &Request) -> Tried {
    let sqe = &request.sqe;
    if sqe.op_flags != 0 || sqe.off == FILE_POSITION {
        return Tried::Impossible;
    }
    match (sqe.opcode, &request.copied) {
        // SAFETY: the caller's contract.
        (opcode::READV, Some(copied)) => unsafe {
            try_read_into(sqe, copied.iov.as_ptr(), copied.iov.len())
        },
        // SAFETY: as above.
        (opcode::READ, _) if sqe.len > 0 => unsafe { try_read(sqe) },
        _ => Tried::Impossible,
    }
}

/// # Safety
/// As for [`try_read`], with a vector of this number of buffers. The vector need not be readable.
unsafe fn try_read_into(sqe: &Sqe, iov: *const Iovec, count: usize) -> Tried {
    let flags = libc::RWF_NOWAIT as u32;
    // SAFETY: the kernel checks the vector and the buffers, which are the request's.
    let result = unsafe { sys::preadv2(sqe.fd, iov, count, sqe.off, flags) };
    #[cfg(test)]
    let result = if sqe.off < ABSENT_FROM.get() { result } else { -(libc::EAGAIN as Ret) };
    let read = match result {
        n if n >= 0 => n as usize,
        n if n == -(libc::EAGAIN as Ret) => return Tried::WouldWait,
        n if is_not_taken(n) => return Tried::Impossible,
        _ => return Tried::Failed,
    };
    // SAFETY: the kernel has just read the vector.
    let part = |at| unsafe { iov.add(at).read_unaligned().iov_len };
    let len = (0..count).map(part).fold(0, usize::saturating_add).min(MAX_RW_COUNT);
    // A short count does not tell missing pages from the end of the file. (Nor does a 0 with Linux
    // 5.9 and 5.10.)
    let ends = |end: u64| sys::file_size(sqe.fd).is_some_and(|size| end >= size);
    let is_done = read == len
        || match sqe.off {
            FILE_POSITION => match sys::move_position(sqe.fd, 0) {
                Some(end) => ends(end) || sys::move_position(sqe.fd, -(read as i64)).is_none(),
                // The number is a stream's by now. What was read is gone from there.
                None => true,
            },
            offset => ends(offset.saturating_add(read as u64)),
        };
    if is_done { Tried::Done(read as i32) } else { Tried::WouldWait }
}

#[cfg(test)]
thread_local! {
    /// For tests: pages from this offset on are not in memory, for reads that this thread tries.
    pub(crate) static ABSENT_FROM: std::cell::Cell<u64> = const { std::cell::Cell::new(u64::MAX) };
}

/// Reads repeat pread until the buffer is full, the file ends, or an error occurs. Writes call
/// pwrite once: a partial write may have met a limit (RLIMIT_FSIZE), and then writing the rest
/// would raise a signal.
#[inline(always)]
unsafe fn positional(sqe: &Sqe, write: bool, call: impl Fn(u64, usize, u64) -> Ret) -> i32 {
    let len = (sqe.len as usize).min(MAX_RW_COUNT);
    let mut done = 0;
    loop {
        match call(sqe.addr + done as u64, len - done, sqe.off.wrapping_add(done as u64)) {
            n if n == -(libc::EINTR as Ret) => {}
            n if !write && n > 0 && done + (n as usize) < len => done += n as usize,
            n => return finish(done, n),
        }
    }
}

/// The result of a transfer whose last call gave `last` after `done` bytes. A partial transfer is a
/// success, as in read(2) and write(2).
#[inline(always)]
fn finish(done: usize, last: Ret) -> i32 {
    if last >= 0 {
        (done + last as usize) as i32
    } else if done > 0 {
        done as i32
    } else {
        last as i32
    }
}

fn uninterrupted(mut call: impl FnMut() -> Ret) -> i32 {
    loop {
        let ret = call();
        if ret != -(libc::EINTR as Ret) {
            return ret as i32;
        }
    }
}

#[inline(never)]
unsafe fn execute_rest(request: &mut Request, mode: Mode) -> i32 {
    let Request { sqe, copied, kind, .. } = request;
    let sqe: &Sqe = sqe;
    let kind = *kind;
    if matches!(kind, Kind::Read | Kind::Write) {
        let mut one = [Iovec { iov_base: sqe.addr as *mut _, iov_len: sqe.len as usize }];
        let iov = match (sqe.opcode, copied) {
            (opcode::READV | opcode::WRITEV, Some(copied)) => &mut copied.iov[..],
            _ => &mut one[..],
        };
        // SAFETY: the iovecs are ours; the kernel checks the buffers, which are the request's.
        return unsafe { vectored(sqe.fd, kind == Kind::Write, iov, sqe, mode) };
    }
    let (fd, off, len, flags) = (sqe.fd, sqe.off, sqe.len, sqe.op_flags);
    let copied = || copied.as_deref().expect("paths are copied at submit");
    let path = || copied().path.as_ptr();
    // SAFETY: the copied paths end in NUL; the kernel checks all other addresses, which are the
    // request's. The program answers for the file that the descriptor names.
    let repeated = || unsafe {
        match sqe.opcode {
            opcode::FSYNC if flags == FSYNC_DATASYNC => call!(fdatasync, fd),
            opcode::FSYNC => call!(fsync, fd),
            opcode::SYNC_FILE_RANGE => call!(sync_file_range, fd, off, len, flags),
            opcode::FALLOCATE => call!(fallocate, fd, len, off, sqe.addr),
            opcode::FTRUNCATE => call!(ftruncate, fd, off),
            // `addr` is a length of 64 bits here.
            opcode::FADVISE if sqe.addr != 0 => call!(fadvise64, fd, off, sqe.addr, flags),
            opcode::FADVISE => call!(fadvise64, fd, off, len, flags),
            opcode::OPENAT => call!(openat, fd, path(), flags, len),
            opcode::STATX => call!(statx, fd, path(), flags, len, off),
            opcode::UNLINKAT => call!(unlinkat, fd, path(), flags),
            opcode::RENAMEAT => {
                call!(renameat2, fd, path(), len as RawFd, copied().path2.as_ptr(), flags)
            }
            opcode::MKDIRAT => call!(mkdirat, fd, path(), len),
            _ => -(libc::EINVAL as Ret),
        }
    };
    match (kind, sqe.opcode) {
        (Kind::Invalid, _) => -libc::EINVAL,
        (_, opcode::NOP) => 0,
        // close(2) releases the descriptor even if it fails: EINTR is not repeated.
        (_, opcode::CLOSE) => sys::close(fd) as i32,
        (_, opcode::POLL_ADD) => poll(fd, flags),
        (_, CALL) => {
            // SAFETY: only front ends make a `CALL` (`accept_call`): they pass a function of this
            // type.
            let call = unsafe { std::mem::transmute::<usize, CallFunction>(sqe.addr as usize) };
            // SAFETY: the front end answers for the call with this argument.
            unsafe { call(sqe.off) }
        }
        _ => uninterrupted(repeated),
    }
}

/// poll(2) of one descriptor, until one of the events occurs. `-EINVAL`: none of them ever does.
fn poll(fd: RawFd, events: u32) -> i32 {
    /// How long to wait before the kernel is asked again whether the events can occur.
    const A_WHILE: Duration = Duration::from_millis(100);
    if fd < 0 {
        return -libc::EBADF;
    }
    let mut set = [libc::pollfd { fd, events: events as i16, revents: 0 }];
    let ret = loop {
        let time = match sys::never_has(fd, events as i16) {
            Some(true) => return -libc::EINVAL,
            Some(false) => None,
            None => Some(A_WHILE),
        };
        let ret = uninterrupted(|| sys::ppoll(&mut set, time, None));
        if ret != 0 {
            break ret;
        }
    };
    match (ret, set[0].revents) {
        (ret, _) if ret < 0 => ret,
        (_, revents) if revents & libc::POLLNVAL != 0 => -libc::EBADF,
        (_, revents) => i32::from(revents),
    }
}

/// Advances the write by `result` bytes that a stream has taken. True if the stream has taken at
/// least one byte, and at least one byte is left to be written.
pub(crate) fn advance(request: &mut Request, result: i32) -> bool {
    let Ok(written) = u32::try_from(result) else { return false };
    let Request { sqe, copied, partial, .. } = request;
    let left = match (sqe.opcode, copied) {
        (opcode::WRITEV, Some(copied)) => {
            skip(&mut copied.iov, written as usize);
            copied.iov.iter().any(|part| part.iov_len > 0)
        }
        _ => {
            sqe.addr += u64::from(written);
            sqe.len -= written;
            sqe.len > 0
        }
    };
    if left {
        *partial = partial.saturating_add(written);
    }
    left && written > 0
}

/// Drops the first `bytes` bytes that the iovecs cover.
fn skip(iov: &mut [Iovec], mut bytes: usize) {
    for part in iov {
        let step = bytes.min(part.iov_len);
        part.iov_base = part.iov_base.cast::<u8>().wrapping_add(step).cast();
        part.iov_len -= step;
        bytes -= step;
    }
}

/// Is this result the error of a file, kernel or sandbox that does not support RWF_NOWAIT?
fn is_not_taken(ret: Ret) -> bool {
    [libc::EOPNOTSUPP, libc::EINVAL, libc::ENOSYS, libc::EPERM].contains(&(-ret as i32))
}

/// preadv2 or pwritev2, with the same rules as [`positional`]. A transfer on a stream is not
/// continued after a part.
unsafe fn vectored(fd: RawFd, write: bool, iov: &mut [Iovec], sqe: &Sqe, mode: Mode) -> i32 {
    let stream = mode != Mode::Plain;
    let nowait = if mode == Mode::StreamNoWait { libc::RWF_NOWAIT as u32 } else { 0 };
    let flags = sqe.op_flags | nowait;
    // The file position moves with every call, and a read of a stream returns what is there. So
    // only a read with an offset of its own continues where it stopped.
    let repeat =
        !write && !stream && sqe.off != FILE_POSITION && flags & libc::RWF_NOWAIT as u32 == 0;
    let mut offset = if stream { FILE_POSITION } else { sqe.off };
    let total: usize = iov.iter().map(|part| part.iov_len).sum::<usize>().min(MAX_RW_COUNT);
    let mut done = 0;
    loop {
        // SAFETY: the kernel checks the buffers, which are the request's.
        let ret = unsafe {
            if write {
                sys::pwritev(fd, iov.as_ptr(), iov.len(), offset, flags)
            } else {
                sys::preadv(fd, iov.as_ptr(), iov.len(), offset, flags)
            }
        };
        match ret {
            n if n == -(libc::EINTR as Ret) => {}
            n if nowait != 0 && sqe.op_flags == 0 && is_not_taken(n) => {
                // SAFETY: as above.
                match unsafe { sys::transfer_now(fd, write, iov) } {
                    other if other == -(libc::EINTR as Ret) => {}
                    other if other == -(libc::ENOTSOCK as Ret) => return n as i32,
                    other => return other as i32,
                }
            }
            n if n > 0 && repeat && done + (n as usize) < total => {
                done += n as usize;
                offset = offset.wrapping_add(n as u64);
                skip(iov, n as usize);
            }
            n => return finish(done, n),
        }
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::{Tried, try_read};
    use crate::Sqe;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_read_that_does_not_wait_tells_the_end_of_a_file_from_what_is_not_there() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 1000], 0).unwrap();
        let mut buffer = [0u8; 4096];
        let mut read = |fd, len, offset| {
            // SAFETY: a live buffer.
            unsafe { try_read(&Sqe::read(fd, &raw mut buffer[..len], offset)) }
        };
        let fd = file.as_raw_fd();
        if read(fd, 1000, 0) == Tried::Impossible {
            let name = "a_read_that_does_not_wait_tells_the_end_of_a_file_from_what_is_not_there";
            return crate::skipped(name, "not asked of this file system");
        }
        assert_eq!(read(fd, 1000, 0), Tried::Done(1000));
        assert_eq!(read(fd, 4096, 0), Tried::Done(1000));
        assert_eq!(read(fd, 4096, 900), Tried::Done(100));
        assert_eq!(read(fd, 4096, 1000), Tried::Done(0));
        assert_eq!(read(fd, 4096, 1 << 40), Tried::Done(0));
        assert_eq!(read(fd, 0, 0), Tried::Done(0));
        // Errors are left to a read that may wait.
        assert_eq!(read(fd, 4096, u64::MAX - 1), Tried::Impossible);
        assert_eq!(read(-1, 4096, 0), Tried::Failed);
        let (reader, _writer) = std::io::pipe().unwrap();
        assert_eq!(read(reader.as_raw_fd(), 1, 0), Tried::Failed);
        drop(file);
    }
}
