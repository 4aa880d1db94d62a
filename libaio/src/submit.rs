//! From iocb to Sqe, with the checks that io_submit makes before it accepts a request.
#![allow(unsafe_code)]

use uringlet::Sqe;
use uringlet::front::{self, Descriptor, Place};

use crate::abi::{self, Iocb};
use crate::handle::AioContext;
use crate::memory::accessible;

/// io_submit(2): the number of requests accepted, or a negative errno if it is none.
///
/// # Safety
/// As io_submit(2): `iocbs` names `count` pointers; what they point to, and buffers, as documented there.
#[inline]
pub(crate) unsafe fn submit(context: &AioContext, count: usize, iocbs: *const *const Iocb) -> i64 {
    let fill = |at: usize, place: Place<'_>| {
        let pointer = iocbs.wrapping_add(at);
        if !accessible(pointer as usize, size_of::<usize>(), false) {
            return Err(-libc::EFAULT);
        }
        // SAFETY: readable, and a pointer by the caller's contract.
        let iocb = unsafe { pointer.read_unaligned() };
        if !accessible(iocb as usize, size_of::<Iocb>(), false) {
            return Err(-libc::EFAULT);
        }
        // SAFETY: readable, an iocb by the caller's contract, and packed: at any address.
        translate(context, unsafe { &*iocb }, place)
    };
    // SAFETY: the caller's contract.
    let submitted = unsafe { context.instance.submit_with(count, fill) };
    if submitted.accepted > 0 { submitted.accepted as i64 } else { i64::from(submitted.refused) }
}

#[inline(always)]
fn translate(context: &AioContext, iocb: &Iocb, place: Place<'_>) -> Result<(), i32> {
    if iocb.reserved2 != 0 || iocb.nbytes > isize::MAX as u64 {
        return Err(-libc::EINVAL);
    }
    let fd = iocb.fildes as i32;
    let descriptor = Descriptor::known(fd)?;
    let mut notify = -1;
    if iocb.flags & abi::FLAG_RESFD != 0 {
        notify = iocb.resfd as i32;
        Descriptor::known(notify)?;
        if !context.is_eventfd(notify) {
            return Err(-libc::EINVAL);
        }
    }
    let sqe = match iocb.opcode {
        abi::CMD_PREAD | abi::CMD_PREADV | abi::CMD_PWRITE | abi::CMD_PWRITEV => {
            transfer(iocb, fd, descriptor)?
        }
        abi::CMD_FSYNC | abi::CMD_FDSYNC => {
            let unused = iocb.buf | iocb.nbytes | iocb.offset as u64 | u64::from(iocb.rw_flags);
            if unused != 0 || !descriptor.may_sync() {
                return Err(-libc::EINVAL);
            }
            if iocb.opcode == abi::CMD_FSYNC { Sqe::fsync(fd) } else { Sqe::fdatasync(fd) }
        }
        abi::CMD_POLL => {
            let events = u16::try_from(iocb.buf).map_err(|_| -libc::EINVAL)?;
            if (iocb.nbytes | iocb.offset as u64 | u64::from(iocb.rw_flags)) != 0 {
                return Err(-libc::EINVAL);
            }
            Sqe::poll_add(fd, events as i16)
        }
        _ => return Err(-libc::EINVAL),
    };
    *place.sqe = sqe.user_data(std::ptr::from_ref(iocb) as u64);
    (*place.data, *place.notify) = (iocb.data, notify);
    Ok(())
}

#[inline(always)]
fn transfer(iocb: &Iocb, fd: i32, descriptor: Descriptor) -> Result<Sqe, i32> {
    let write = matches!(iocb.opcode, abi::CMD_PWRITE | abi::CMD_PWRITEV);
    if iocb.rw_flags & !abi::RWF_KNOWN != 0 {
        return Err(-libc::EOPNOTSUPP);
    }
    const BOTH: u32 = abi::RWF_APPEND | abi::RWF_NOAPPEND;
    if iocb.rw_flags & BOTH == BOTH {
        return Err(-libc::EINVAL);
    }
    if iocb.flags & abi::FLAG_IOPRIO != 0 {
        check_priority(iocb.reqprio)?;
    }
    if !(if write { descriptor.may_write() } else { descriptor.may_read() }) {
        return Err(-libc::EBADF);
    }
    let vectored = matches!(iocb.opcode, abi::CMD_PREADV | abi::CMD_PWRITEV);
    let offset = if descriptor.is_seekable() {
        // Transfers are cut to this before anything else is looked at (read(2)).
        const MAX_RW_COUNT: u64 = 0x7fff_f000;
        let bytes = if vectored { 0 } else { iocb.nbytes.min(MAX_RW_COUNT) as i64 };
        if iocb.offset < 0 || iocb.offset.checked_add(bytes).is_none() {
            return Err(-libc::EINVAL);
        }
        iocb.offset as u64
    } else {
        // A stream has no offsets, and any is accepted.
        0
    };
    let length = usize::try_from(iocb.nbytes).map_err(|_| -libc::EINVAL)?;
    if vectored {
        if length > 1024 {
            return Err(-libc::EINVAL);
        }
        let address = usize::try_from(iocb.buf).map_err(|_| -libc::EFAULT)?;
        if length > 0 && !accessible(address, length * size_of::<libc::iovec>(), false) {
            return Err(-libc::EFAULT);
        }
        let within = |at: usize| {
            // SAFETY: readable, and an array of iovecs by the caller's contract.
            let iovec = unsafe { (address as *const libc::iovec).add(at).read_unaligned() };
            in_user_space(iovec.iov_base as u64, iovec.iov_len as u64)
        };
        if !(0..length).all(within) {
            return Err(-libc::EFAULT);
        }
        let iovecs = std::ptr::slice_from_raw_parts(address as *const libc::iovec, length);
        let sqe =
            if write { Sqe::writev(fd, iovecs, offset) } else { Sqe::readv(fd, iovecs, offset) };
        return Ok(sqe.rw_flags(iocb.rw_flags as i32));
    }
    if !in_user_space(iocb.buf, iocb.nbytes) {
        return Err(-libc::EFAULT);
    }
    let address = iocb.buf as *mut u8;
    let sqe = if write {
        Sqe::write(fd, std::ptr::slice_from_raw_parts(address, length), offset)
    } else {
        Sqe::read(fd, std::ptr::slice_from_raw_parts_mut(address, length), offset)
    };
    Ok(sqe.rw_flags(iocb.rw_flags as i32))
}

/// The range lies in the half of the address space that programs have.
#[inline]
fn in_user_space(address: u64, bytes: u64) -> bool {
    const END: u64 = (1 << 47) - 4096;
    address.checked_add(bytes.min(1 << 31)).is_some_and(|end| end <= END)
}

/// A class and level of ioprio_set(2), which this thread may use.
#[cold]
fn check_priority(priority: i16) -> Result<(), i32> {
    const REALTIME: u16 = 1;
    let (class, level) = (priority as u16 >> 13, priority & 0x1fff);
    match (class, level) {
        (0, 0) | (2..=3, _) => Ok(()),
        (REALTIME, _) if front::may_use_priority(priority) => Ok(()),
        (REALTIME, _) => Err(-libc::EPERM),
        _ => Err(-libc::EINVAL),
    }
}
