//! A drop-in `libaio.so.1`: programs written for Linux AIO do their I/O through uringlet.
//!
//! The functions have a leading underscore here; `build.rs` has the linker make the real names and
//! versions. Wrong arguments get libaio's negative errno. README.md in this crate's folder lists
//! the differences from the original.
#![allow(unsafe_code)]

mod abi;
mod descriptors;
mod events;
mod handle;
mod submit;
mod syscall;
mod users;

use std::ffi::c_int;

use uringlet::front::{self, IoEvent, enter, enter_whole};

use crate::abi::Iocb;
use uringlet::front::memory::accessible_now;

/// When memory is short, this library must not end the program that has loaded it.
#[global_allocator]
static MEMORY: front::Reserve = front::Reserve::new();

uringlet::see_process_leave!(crate::handle::before_leaving);
uringlet::see_waits!(front::waits::NoHooks);
uringlet::at_load!(front::env::read);
uringlet::note!();

const EINVAL: c_int = -libc::EINVAL;
const EFAULT: c_int = -libc::EFAULT;

/// # Safety
/// As io_setup(2); `handle` is checked to be accessible.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_setup(entries: c_int, handle: *mut usize) -> c_int {
    enter_whole(|| {
        let address = handle as usize;
        if !front::readable(address) {
            return EFAULT;
        }
        // SAFETY: readable, and an io_context_t by the caller's contract.
        if unsafe { handle.read_unaligned() } != 0 || entries == 0 {
            return EINVAL;
        }
        if !front::writable(address) {
            return EFAULT;
        }
        let created = handle::create(entries as u32);
        // SAFETY: writable.
        unsafe { handle.write_unaligned(created.unwrap_or(0)) };
        created.err().unwrap_or(0)
    })
}

/// # Safety
/// As io_destroy(2): the buffers of requests in flight stay valid until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_destroy(handle: usize) -> c_int {
    enter_whole(|| if handle::destroy(handle) { 0 } else { EINVAL })
}

/// # Safety
/// As io_submit(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_submit(
    handle: usize,
    count: libc::c_long,
    iocbs: *const *const Iocb,
) -> c_int {
    // SAFETY: the caller's contract.
    if count == 1 && unsafe { submit::submit_fast(handle, iocbs) } {
        return 1;
    }
    // SAFETY: as above.
    unsafe { submit_any(handle, count, iocbs) }
}

/// # Safety
/// As io_submit(2).
#[inline(never)]
unsafe fn submit_any(handle: usize, count: libc::c_long, iocbs: *const *const Iocb) -> c_int {
    enter(|| {
        let Some(context) = handle::get(handle) else { return EINVAL };
        let Ok(count) = usize::try_from(count) else { return EINVAL };
        // SAFETY: the caller's contract.
        unsafe { submit::submit(&context, count, iocbs) as c_int }
    })
}

/// # Safety
/// As io_cancel(2); the iocb is not read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_cancel(
    handle: usize,
    iocb: *const Iocb,
    _event: *mut IoEvent,
) -> c_int {
    enter(|| {
        if !accessible_now(iocb as usize, size_of::<Iocb>(), false) {
            return EFAULT;
        }
        let Some(context) = handle::get(handle) else { return EINVAL };
        match context.instance.cancel(iocb as u64) {
            // The event comes through the ring, as in the kernel since 4.18.
            Ok(()) => -libc::EINPROGRESS,
            Err(_) => EINVAL,
        }
    })
}

/// # Safety
/// As io_getevents(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_getevents(
    handle: usize,
    min_nr: libc::c_long,
    nr: libc::c_long,
    events: *mut IoEvent,
    timeout: *const libc::timespec,
) -> c_int {
    // SAFETY: the caller's contract.
    if min_nr == 1 && nr >= 1 && unsafe { events::get_fast(handle, nr == 1, events, timeout) } {
        return 1;
    }
    // SAFETY: as above.
    unsafe { get_any_events(handle, min_nr, nr, events, timeout) }
}

/// # Safety
/// As io_getevents(2).
#[inline(never)]
unsafe fn get_any_events(
    handle: usize,
    min_nr: libc::c_long,
    nr: libc::c_long,
    events: *mut IoEvent,
    timeout: *const libc::timespec,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's contract.
        let without = || unsafe { events::without_context(handle, timeout) };
        let Some(context) = handle::get(handle) else { return without() };
        // SAFETY: the caller's contract.
        unsafe { events::get_events(context, min_nr, nr, events, timeout, None) as c_int }
    })
}

/// # Safety
/// As io_pgetevents(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_pgetevents(
    handle: usize,
    min_nr: libc::c_long,
    nr: libc::c_long,
    events: *mut IoEvent,
    timeout: *const libc::timespec,
    sigmask: *const u64,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's contract.
        let without = || unsafe { events::without_context(handle, timeout) };
        let Some(context) = handle::get(handle) else { return without() };
        let mask = if sigmask.is_null() {
            None
        } else if accessible_now(sigmask as usize, 8, false) {
            // SAFETY: readable; the kernel's part of a sigset_t is its first eight bytes.
            Some(unsafe { sigmask.read_unaligned() })
        } else {
            return EFAULT;
        };
        // SAFETY: the caller's contract.
        unsafe { events::get_events(context, min_nr, nr, events, timeout, mask) as c_int }
    })
}

/// # Safety
/// As io_queue_init(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_queue_init(entries: c_int, handle: *mut usize) -> c_int {
    if entries <= 0 {
        return EINVAL;
    }
    if !enter(|| front::writable(handle as usize)) {
        return EFAULT;
    }
    // SAFETY: writable, and an io_context_t by the caller's contract. This contract is also that of
    // `_io_setup`.
    unsafe {
        handle.write_unaligned(0);
        _io_setup(entries, handle)
    }
}

/// # Safety
/// As io_destroy(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_queue_release(handle: usize) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { _io_destroy(handle) }
}

/// The function that `data` of an iocb points to for [`_io_queue_run`] (`io_callback_t`). It may
/// end its thread.
type Callback = unsafe extern "C-unwind" fn(
    handle: usize,
    iocb: *mut Iocb,
    res: libc::c_long,
    res2: libc::c_long,
);

/// # Safety
/// As io_queue_run(3): the `data` of every request that completes is a function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _io_queue_run(handle: usize) -> c_int {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        let mut event = IoEvent::default();
        // SAFETY: one event, and a timespec.
        let ret = unsafe { _io_getevents(handle, 0, 1, &raw mut event, &raw const now) };
        if ret <= 0 {
            return ret;
        }
        // SAFETY: a function by the caller's contract; the cast is from its address. It may do
        // anything, so it runs outside of `enter`, and this frame has nothing to drop.
        unsafe {
            let callback: Callback = std::mem::transmute(event.data as usize);
            callback(handle, event.obj as *mut Iocb, event.res as _, event.res2 as _);
        }
    }
}

/// # Safety
/// As io_queue_wait(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_queue_wait(handle: usize, timeout: *const libc::timespec) -> c_int {
    // SAFETY: for 0 events, no event is written. The timeout is as the caller's contract says.
    unsafe { _io_getevents(handle, 0, 0, std::ptr::null_mut(), timeout) }
}

/// # Safety
/// As io_cancel(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_cancel_0_1(handle: usize, iocb: *const Iocb) -> c_int {
    let mut event = IoEvent::default();
    // SAFETY: the caller's contract.
    unsafe { _io_cancel(handle, iocb, &raw mut event) }
}

/// # Safety
/// As io_getevents(2), with a minimum of 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_getevents_0_1(
    handle: usize,
    nr: libc::c_long,
    events: *mut IoEvent,
    timeout: *const libc::timespec,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { _io_getevents(handle, 1, nr, events, timeout) }
}

/// # Safety
/// As io_queue_wait(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_queue_wait_0_1(
    handle: usize,
    timeout: *const libc::timespec,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { _io_queue_wait(handle, timeout) }
}

// The old versions of three names, for programs linked before 2002.
std::arch::global_asm!(
    ".symver _io_cancel_0_1, io_cancel@LIBAIO_0.1",
    ".symver _io_getevents_0_1, io_getevents@LIBAIO_0.1",
    ".symver _io_queue_wait_0_1, io_queue_wait@LIBAIO_0.1",
);
