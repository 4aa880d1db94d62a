//! aio_cancel(3).
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use uringlet::front::{self, Patience, Uncancelable};

use crate::abi::{AIO_ALLDONE, AIO_CANCELED, AIO_NOTCANCELED, Aiocb};
use crate::state::{self, Process};

/// aio_cancel(3): cancels one request or, if `block` is null, all requests of a descriptor.
///
/// # Safety
/// As aio_cancel(3).
pub(crate) unsafe fn cancel(fd: c_int, block: *const Aiocb, nested: bool) -> Result<c_int, c_int> {
    if !front::is_open(fd) {
        return Err(libc::EBADF);
    }
    if front::has_parted() {
        // This thread has a descriptor table of its own: in the engine's threads, the number names
        // another file.
        return Err(libc::EINVAL);
    }
    // SAFETY: null, or a control block by the caller's contract.
    if unsafe { block.as_ref() }.is_some_and(|block| block.fildes != fd) {
        return Err(libc::EINVAL);
    }
    // SAFETY: as above.
    if unsafe { block.as_ref() }.is_some_and(is_inherited) {
        return Ok(AIO_ALLDONE);
    }
    let Some(process) = state::current() else { return Ok(AIO_ALLDONE) };
    let _whole = Uncancelable::new();
    if nested {
        // This signal handler has interrupted a function of this library: the thread may hold
        // locks.
        // SAFETY: as above.
        let over = unsafe { block.as_ref() }.is_some_and(|block| !is_in_progress(process, block));
        return Ok(if over { AIO_ALLDONE } else { AIO_NOTCANCELED });
    }
    if block.is_null() {
        return Ok(cancel_all(process, fd));
    }
    // SAFETY: as above.
    let block = unsafe { &*block };
    // The order of the checks matters: a request that ends between them is not refused, because it
    // was in progress in the first check.
    if !is_in_progress(process, block) && block.error.load(Ordering::Acquire) == libc::EINPROGRESS {
        // A copy of a control block: the request is unknown.
        return Err(libc::EINVAL);
    }
    Ok(cancel_one(process, block))
}

/// Was the request submitted by the parent of this process? Then nothing executes it here.
fn is_inherited(block: &Aiocb) -> bool {
    block.error.load(Ordering::Acquire) == libc::EINPROGRESS
        && state::is_inherited(
            block.owner.load(Ordering::Relaxed),
            std::ptr::from_ref(block).addr(),
        )
}

fn is_in_progress(process: &Process, block: &Aiocb) -> bool {
    block.error.load(Ordering::Acquire) == libc::EINPROGRESS
        && block.owner.load(Ordering::Relaxed) == process.mark(std::ptr::from_ref(block).addr())
}

fn cancel_all(process: &Process, fd: c_int) -> c_int {
    let withdrawn = process.withdraw(|ready| ready.fildes() == fd);
    for ready in &withdrawn {
        // SAFETY: withdrawn above, by this call alone.
        unsafe { process.complete_withdrawn(ready, -libc::ECANCELED) };
    }
    let found = process.instance.cancel_all_on(fd);
    match (withdrawn.len() + found.canceled, found.running) {
        (_, 1..) => AIO_NOTCANCELED,
        (0, 0) => AIO_ALLDONE,
        _ => AIO_CANCELED,
    }
}

fn cancel_one(process: &Process, block: &Aiocb) -> c_int {
    let address = std::ptr::from_ref(block) as u64;
    let mut patience = Patience::default();
    while is_in_progress(process, block) {
        let withdrawn = process.withdraw(|ready| ready.address() == address);
        if let Some(ready) = withdrawn.first() {
            // SAFETY: withdrawn above, by this call alone.
            unsafe { process.complete_withdrawn(ready, -libc::ECANCELED) };
            return AIO_CANCELED;
        }
        match process.instance.cancel(address) {
            Ok(()) => return AIO_CANCELED,
            Err(errno) if errno == -libc::EALREADY => return AIO_NOTCANCELED,
            // Another thread is submitting the request, or writing its result.
            Err(_) => patience.wait(),
        }
    }
    AIO_ALLDONE
}
