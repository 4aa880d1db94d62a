//! From control block to Sqe, with the checks that aio_read(3) and the like make before they accept
//! a request.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use uringlet::Sqe;
use uringlet::front::{IoEvent, TOLD_OTHERWISE};

use crate::abi::{self, Aiocb};
use crate::member::Member;
use crate::request::{Operation, Ready};
use crate::{complete, notify, reentry, state};

/// [`Aiocb::owner`] of a deferred request: a signal handler that has interrupted a function of this
/// library has submitted it.
pub(crate) const DEFERRED: u64 = 2;

/// Starts a request. `nested`: this is a signal handler that has interrupted a function of this
/// library. `Err` has the errno if the request is not accepted.
///
/// # Safety
/// As aio_read(3): the block and its buffer belong to the request until it has ended.
#[inline]
pub(crate) unsafe fn start(
    block: *mut Aiocb,
    operation: Operation,
    member: Member,
    nested: bool,
) -> Result<(), c_int> {
    // There is no reference to the whole block: the program may have left fields uninitialized, and
    // other threads read the error code.
    // SAFETY: a control block by the caller's contract, and nobody else's yet.
    let (value, owner, error) = unsafe { (&(*block).value, &(*block).owner, &(*block).error) };
    let is_sync = matches!(operation, Operation::Sync | Operation::DataSync);
    // SAFETY: as above.
    if !is_sync && !(0..=abi::PRIO_DELTA_MAX).contains(unsafe { &(*block).reqprio }) {
        value.store(-1, Ordering::Relaxed);
        error.store(libc::EINVAL, Ordering::Release);
        return Err(libc::EINVAL);
    }
    // SAFETY: as above.
    unsafe {
        if is_sync {
            (*block).reqprio = 0;
        }
        (*block).lio_opcode = operation.opcode();
    }
    if nested {
        // SAFETY: as above.
        return unsafe { defer(block, member) };
    }
    let process = state::current_or_new()?;
    value.store(-1, Ordering::Relaxed);
    owner.store(process.mark(block.addr()), Ordering::Relaxed);
    error.store(libc::EINPROGRESS, Ordering::Relaxed);
    // SAFETY: as above.
    match unsafe { translate(block, operation, member) } {
        Ok(ready) => {
            if let Err(errno) = process.start(ready) {
                // The block was not accepted, so it is the program's again.
                error.store(errno, Ordering::Release);
                return Err(errno);
            }
        }
        Err(errno) => {
            let (data, obj) = (member.word(), block as u64);
            // SAFETY: the block is in progress, and only we end it.
            unsafe { complete::complete(&IoEvent { data, obj, res: i64::from(-errno), res2: 0 }) };
        }
    }
    Ok(())
}

/// Makes the engine's request from a control block. From here to the kernel's system call, no field
/// of the block is written.
///
/// # Safety
/// The control block is in progress.
#[inline]
unsafe fn translate(
    block: *const Aiocb,
    operation: Operation,
    member: Member,
) -> Result<Ready, c_int> {
    // SAFETY: the caller's contract.
    let (fd, priority) = unsafe { ((*block).fildes, (*block).reqprio) };
    let transfer = || {
        // SAFETY: as above; a transfer has these fields.
        let (buf, nbytes, offset) = unsafe { ((*block).buf, (*block).nbytes, (*block).offset) };
        // As in pread(2), the offset is checked first.
        let offset = u64::try_from(offset).map_err(|_| libc::EINVAL)?;
        // No buffer is longer than `isize::MAX`, so a greater length is an error. If the length
        // were cut to the maximum, the call would transfer bytes instead.
        let fits = isize::try_from(nbytes).is_ok();
        let buffer = std::ptr::slice_from_raw_parts_mut(buf.cast::<u8>(), nbytes);
        if fits { Ok((buffer, offset)) } else { Err(libc::EFAULT) }
    };
    let mut sqe = match operation {
        Operation::Read => {
            let (buffer, offset) = transfer()?;
            Sqe::read(fd, buffer, offset)
        }
        Operation::Write => {
            let (buffer, offset) = transfer()?;
            Sqe::write(fd, buffer.cast_const(), offset)
        }
        Operation::Sync => Sqe::fsync(fd),
        Operation::DataSync => Sqe::fdatasync(fd),
        Operation::Unknown(_) => return Err(libc::EINVAL),
    };
    // SAFETY: as above.
    let told = member.tells() || unsafe { notify::tells(&raw const (*block).sigevent) };
    let notify = if told { TOLD_OTHERWISE } else { -1 };
    (sqe.user_data, sqe.ioprio) = (block as u64, priority as u16);
    Ok(Ready { sqe, data: member.word(), notify })
}

/// Has the request submitted when the interrupted thread leaves the library, because the thread may
/// hold any lock now. POSIX does not require that a signal handler can submit requests
/// (signal-safety(7)). But handlers of some programs do, and the C library's locks allow it.
///
/// # Safety
/// As [`start`].
#[cold]
unsafe fn defer(block: *mut Aiocb, member: Member) -> Result<(), c_int> {
    if !member.is_none() {
        return Err(libc::EAGAIN);
    }
    // SAFETY: the caller's contract.
    let (value, owner, error) = unsafe { (&(*block).value, &(*block).owner, &(*block).error) };
    let before = (value.load(Ordering::Relaxed), error.load(Ordering::Relaxed));
    value.store(-1, Ordering::Relaxed);
    owner.store(DEFERRED, Ordering::Relaxed);
    error.store(libc::EINPROGRESS, Ordering::Relaxed);
    if reentry::defer(block) {
        return Ok(());
    }
    value.store(before.0, Ordering::Relaxed);
    error.store(before.1, Ordering::Relaxed);
    Err(libc::EAGAIN)
}

/// Submits a request that a signal handler has deferred.
///
/// # Safety
/// As [`start`]; the block was deferred.
pub(crate) unsafe fn start_deferred(block: *mut Aiocb) {
    // SAFETY: the caller's contract.
    let opcode = unsafe { (*block).lio_opcode };
    // SAFETY: as above.
    if let Err(errno) = unsafe { start(block, Operation::of(opcode), Member::none(), false) } {
        let res = i64::from(-errno);
        // SAFETY: in progress since it was deferred, and `start` has not accepted it.
        unsafe { complete::complete(&IoEvent { data: 0, obj: block as u64, res, res2: 0 }) };
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use super::*;

    /// For Miri: fields that an operation does not use may be uninitialized.
    #[test]
    fn fields_that_are_not_used_need_not_be_written() {
        let mut block = MaybeUninit::<Aiocb>::uninit();
        let at = block.as_mut_ptr();
        // SAFETY: room for a control block; the fields of an fsync are written.
        let ready = unsafe {
            ((*at).fildes, (*at).reqprio) = (3, 0);
            (*at).sigevent.notify = libc::SIGEV_NONE;
            translate(at, Operation::Sync, Member::none())
        };
        assert!(ready.is_ok_and(|ready| ready.is_sync() && ready.fildes() == 3));
    }
}
