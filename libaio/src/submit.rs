//! From iocb to Sqe, with the checks that io_submit makes before it accepts a request.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::OnceLock;

use uringlet::Sqe;
use uringlet::front::{self, Descriptor, Hints, Place, Transfer};

use crate::abi::{self, Iocb};
use crate::handle::{self, AioContext};
use uringlet::front::memory::{accessible, accessible_now, is_known_to_be_accessible};

/// Transfers are cut to this length before any other check (read(2)).
const MAX_RW_COUNT: u64 = 0x7fff_f000;

/// The most iovecs of one request.
const VECTOR_MAX: usize = 1024;

/// io_submit(2): the number of requests accepted, or a negative errno if none was.
///
/// # Safety
/// As io_submit(2): `iocbs` has `count` pointers; they, and buffers, are as documented there.
#[inline]
pub(crate) unsafe fn submit(context: &AioContext, count: usize, iocbs: *const *const Iocb) -> i64 {
    let instance = &context.instance;
    let eventfd = Cell::new(-1);
    let single = match count {
        // SAFETY: the caller's contract.
        1 => unsafe {
            instance.submit_single(|place| fill(context, iocbs, place, &eventfd), check_vector)
        },
        _ => None,
    };
    let submitted = single.unwrap_or_else(|| {
        let fill = |at, Place { sqe, data, notify }: Place<'_>| {
            let place = Place { sqe: &mut *sqe, data, notify };
            // SAFETY: the caller's contract.
            unsafe { fill(context, iocbs.wrapping_add(at), place, &eventfd) }?;
            if front::has_vector(sqe) { check_vector(sqe) } else { Ok(()) }
        };
        // SAFETY: as above.
        unsafe { instance.submit_with(count, fill) }
    });
    if submitted.accepted > 0 { submitted.accepted as i64 } else { i64::from(submitted.refused) }
}

/// As [`submit`], for one request that can take the fast path. False: nothing was done. errno is
/// preserved.
///
/// # Safety
/// As for [`submit`].
#[inline(always)]
pub(crate) unsafe fn submit_fast(handle: usize, iocbs: *const *const Iocb) -> bool {
    /// Requests of this many bytes or more do not take the fast path. Usual buffers are much
    /// shorter.
    const BYTES: u64 = 1 << 30;
    let readable = |at, bytes| is_known_to_be_accessible(at, bytes, false);
    let Some(context) = handle::get_again(handle) else { return false };
    if !readable(iocbs as usize, size_of::<usize>()) {
        return false;
    }
    // SAFETY: readable, and a pointer by the caller's contract.
    let at = unsafe { iocbs.read_unaligned() };
    if !readable(at as usize, size_of::<Iocb>()) {
        return false;
    }
    // SAFETY: readable, an iocb by the caller's contract, and packed: at any address.
    let iocb = unsafe { &*at };
    let special = u64::from(iocb.flags | iocb.rw_flags) | iocb.reserved2;
    let known = iocb.opcode == abi::CMD_PREAD || iocb.opcode == abi::CMD_PWRITE;
    // Negative offsets are large as unsigned numbers, so the check below refuses them, too.
    let offset = iocb.offset as u64;
    let short = iocb.nbytes < BYTES && offset < i64::MAX as u64 - BYTES;
    if special != 0 || !known || !short || !in_user_space(iocb.buf, iocb.nbytes) {
        return false;
    }
    let transfer = Transfer {
        fd: iocb.fildes as i32,
        is_write: iocb.opcode == abi::CMD_PWRITE,
        address: iocb.buf,
        length: iocb.nbytes as u32,
        offset,
        user_data: at as u64,
        data: iocb.data,
    };
    context.user.uses(transfer.fd);
    // SAFETY: the caller's contract.
    unsafe { context.instance.submit_fast(&transfer) }
}

/// Fills `place` with the request of the iocb to which `*pointer` points. `eventfd` is the number
/// that this call of io_submit(2) has found to be an eventfd.
///
/// # Safety
/// As for [`submit`].
#[inline(always)]
unsafe fn fill(
    context: &AioContext,
    pointer: *const *const Iocb,
    place: Place<'_>,
    eventfd: &Cell<i32>,
) -> Result<(), i32> {
    if !accessible(pointer as usize, size_of::<usize>(), false) {
        return Err(-libc::EFAULT);
    }
    // SAFETY: readable, and a pointer by the caller's contract.
    let iocb = unsafe { pointer.read_unaligned() };
    if !accessible(iocb as usize, size_of::<Iocb>(), false) {
        return Err(-libc::EFAULT);
    }
    // SAFETY: readable, an iocb by the caller's contract, and packed: at any address.
    translate(context, unsafe { &*iocb }, place, eventfd)
}

#[inline(always)]
fn translate(
    context: &AioContext,
    iocb: &Iocb,
    place: Place<'_>,
    eventfd: &Cell<i32>,
) -> Result<(), i32> {
    if iocb.reserved2 != 0 || iocb.nbytes > isize::MAX as u64 {
        return Err(-libc::EINVAL);
    }
    let fd = iocb.fildes as i32;
    let hints = Hints::known(fd)?;
    context.user.uses(fd);
    let tells = iocb.flags & abi::FLAG_RESFD != 0;
    let notify = if tells { check_eventfd(context, iocb.resfd as i32, eventfd)? } else { -1 };
    // A read or write of one buffer is usual. Other operations have a function of their own, which
    // is not inlined.
    let sqe = match iocb.opcode {
        abi::CMD_PREAD | abi::CMD_PWRITE => plain(iocb, fd, hints)?,
        _ => other(iocb, fd, hints)?,
    };
    *place.sqe = sqe.user_data(std::ptr::from_ref(iocb) as u64);
    (*place.data, *place.notify) = (iocb.data, notify);
    Ok(())
}

/// Checks that `fd` is an eventfd, because the library later writes eight bytes to it. A call of
/// io_submit(2) asks the kernel once for several requests with the same eventfd.
#[inline(never)]
fn check_eventfd(context: &AioContext, fd: i32, found: &Cell<i32>) -> Result<i32, i32> {
    if found.get() != fd || fd < 0 {
        context.check_eventfd(fd)?;
        context.user.uses(fd);
        found.set(fd);
    }
    Ok(fd)
}

/// A transfer with one buffer.
#[inline(always)]
fn plain(iocb: &Iocb, fd: i32, hints: Hints) -> Result<Sqe, i32> {
    let write = iocb.opcode == abi::CMD_PWRITE;
    let most = iocb.nbytes.min(MAX_RW_COUNT);
    let is_there = in_user_space(iocb.buf, iocb.nbytes);
    let bytes = || if is_there { Ok(most) } else { Err(-libc::EFAULT) };
    let offset = offset(iocb, hints, write, most, bytes)?;
    if !is_there {
        return Err(-libc::EFAULT);
    }
    let length = usize::try_from(iocb.nbytes).map_err(|_| -libc::EINVAL)?;
    let address = iocb.buf as *mut u8;
    let sqe = if write {
        Sqe::write(fd, std::ptr::slice_from_raw_parts(address, length), offset)
    } else {
        Sqe::read(fd, std::ptr::slice_from_raw_parts_mut(address, length), offset)
    };
    Ok(sqe.rw_flags(iocb.rw_flags as i32))
}

#[inline(never)]
fn other(iocb: &Iocb, fd: i32, hints: Hints) -> Result<Sqe, i32> {
    match iocb.opcode {
        abi::CMD_PREADV | abi::CMD_PWRITEV => vectored(iocb, fd, hints),
        abi::CMD_FSYNC | abi::CMD_FDSYNC => {
            let unused = iocb.buf | iocb.nbytes | iocb.offset as u64 | u64::from(iocb.rw_flags);
            let may_sync = || Descriptor::fresh(fd).map(Descriptor::may_sync);
            if unused != 0 || !hints.seems_to_sync() && !may_sync()? {
                return Err(-libc::EINVAL);
            }
            Ok(if iocb.opcode == abi::CMD_FSYNC { Sqe::fsync(fd) } else { Sqe::fdatasync(fd) })
        }
        abi::CMD_POLL => {
            let events = u16::try_from(iocb.buf).map_err(|_| -libc::EINVAL)? as i16;
            let unused = iocb.nbytes | iocb.offset as u64 | u64::from(iocb.rw_flags);
            if unused != 0 || front::never_has(fd, events) {
                return Err(-libc::EINVAL);
            }
            Ok(Sqe::poll_add(fd, events))
        }
        _ => Err(-libc::EINVAL),
    }
}

fn vectored(iocb: &Iocb, fd: i32, hints: Hints) -> Result<Sqe, i32> {
    let write = iocb.opcode == abi::CMD_PWRITEV;
    // The kernel takes 32 bits of the number.
    let length = iocb.nbytes as u32 as usize;
    let iovecs = std::ptr::slice_from_raw_parts(iocb.buf as *const libc::iovec, length);
    let bytes = || bytes_of(iocb.buf as usize, length);
    let offset = offset(iocb, hints, write, MAX_RW_COUNT, bytes)?;
    if length > VECTOR_MAX {
        return Err(-libc::EINVAL);
    }
    let sqe = if write { Sqe::writev(fd, iovecs, offset) } else { Sqe::readv(fd, iovecs, offset) };
    Ok(sqe.rw_flags(iocb.rw_flags as i32))
}

/// Checks an array of iovecs before the library copies it. This is not called if the kernel reads
/// the array itself, because the kernel then makes the same checks.
#[inline(never)]
fn check_vector(sqe: &Sqe) -> Result<(), i32> {
    bytes_of(sqe.addr as usize, sqe.len as usize).map(|_| ())
}

/// Checks an array of iovecs as the kernel does. Returns the number of bytes in all.
fn bytes_of(address: usize, length: usize) -> Result<u64, i32> {
    const IOVEC: usize = size_of::<libc::iovec>();
    if length > VECTOR_MAX {
        return Err(-libc::EINVAL);
    }
    if length == 0 {
        return Ok(0);
    }
    if !front::in_user_space(address as u64, (length * IOVEC) as u64) {
        return Err(-libc::EFAULT);
    }
    let is_whole = accessible_now(address, length * IOVEC, false);
    let part = |at: usize| {
        let place = address + at * IOVEC;
        if !is_whole && !accessible_now(place, IOVEC, false) {
            return Err(-libc::EFAULT);
        }
        // SAFETY: readable, and an array of iovecs by the caller's contract.
        Ok(unsafe { (place as *const libc::iovec).read_unaligned() })
    };
    // The kernel first reads all lengths, up to one that is wrong or cannot be read.
    for at in 0..length {
        if part(at)?.iov_len > isize::MAX as usize {
            return Err(-libc::EINVAL);
        }
    }
    let mut total = 0;
    for at in 0..length {
        let part = part(at)?;
        let bytes = part.iov_len as u64;
        // A single buffer is cut before its address is checked.
        let checked = if length == 1 { bytes.min(MAX_RW_COUNT) } else { bytes };
        if !front::in_user_space(part.iov_base as u64, checked) {
            return Err(-libc::EFAULT);
        }
        total += bytes.min(MAX_RW_COUNT - total);
    }
    Ok(total)
}

/// Makes the checks that come before the check of a transfer's memory, and returns the offset. A
/// stream ignores its offset, which has to be in range all the same. The transfer has at most
/// `most` bytes. If that matters, `bytes` checks the memory and counts.
#[inline(always)]
fn offset(
    iocb: &Iocb,
    hints: Hints,
    write: bool,
    most: u64,
    bytes: impl FnOnce() -> Result<u64, i32>,
) -> Result<u64, i32> {
    if iocb.rw_flags != 0 {
        check_flags(iocb.rw_flags)?;
    }
    if iocb.flags & abi::FLAG_IOPRIO != 0 {
        front::check_priority(iocb.reqprio as u16)?;
    }
    let is_usual = hints.seems_open_for(write) && in_range(iocb, most);
    if is_usual { Ok(iocb.offset as u64) } else { unusual_offset(iocb, write, bytes) }
}

#[inline(always)]
fn in_range(iocb: &Iocb, bytes: u64) -> bool {
    iocb.offset >= 0 && iocb.offset.checked_add(bytes as i64).is_some()
}

/// Refuses or accepts an unusual offset, after asking the kernel about the file that the
/// descriptor's number names now.
#[cold]
fn unusual_offset(
    iocb: &Iocb,
    write: bool,
    bytes: impl FnOnce() -> Result<u64, i32>,
) -> Result<u64, i32> {
    let descriptor = Descriptor::fresh(iocb.fildes as i32)?;
    if !descriptor.is_open_for(write) {
        return Err(-libc::EBADF);
    }
    if in_range(iocb, bytes()?) { Ok(iocb.offset as u64) } else { Err(-libc::EINVAL) }
}

#[cold]
fn check_flags(flags: u32) -> Result<(), i32> {
    const BOTH: u32 = abi::RWF_APPEND | abi::RWF_NOAPPEND;
    static KNOWS_NOSIGNAL: OnceLock<bool> = OnceLock::new();
    let is_quiet = flags & abi::RWF_NOSIGNAL != 0;
    let asked = || {
        let answer = front::knows_transfer_flag(abi::RWF_NOSIGNAL)?;
        Some(*KNOWS_NOSIGNAL.get_or_init(|| answer))
    };
    // If the kernel cannot be asked now, the transfer itself has the answer.
    let knows = || KNOWS_NOSIGNAL.get().copied().or_else(asked).unwrap_or(true);
    match () {
        () if flags & !abi::RWF_KNOWN != 0 || is_quiet && !knows() => Err(-libc::EOPNOTSUPP),
        () if flags & BOTH == BOTH => Err(-libc::EINVAL),
        () => Ok(()),
    }
}

/// Is the range in the part of the address space that programs have?
#[inline]
fn in_user_space(address: u64, bytes: u64) -> bool {
    front::in_user_space(address, bytes.min(MAX_RW_COUNT))
}
