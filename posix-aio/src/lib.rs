//! A drop-in for the C library's POSIX AIO (aio(7)): programs do their I/O through uringlet.
//!
//! The functions have a leading underscore here; `build.rs` has the linker make the real names and
//! the default versions. README.md in this crate's folder lists the differences from the original.
#![allow(unsafe_code)]

mod abi;
mod cancel;
mod complete;
mod list;
mod member;
mod notify;
mod reentry;
mod request;
mod signals;
mod state;
mod submit;
mod suspend;

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use uringlet::front;
use uringlet::front::descriptors::Next;
use uringlet::front::waits::{Descriptors, Hooks};

use crate::abi::{Aiocb, Sigevent};
use crate::member::Member;
use crate::request::Operation;
use crate::submit::start;
use crate::suspend::Ended;

uringlet::see_descriptors_end!(crate::state::before_close);
uringlet::see_process_leave!(crate::state::before_leaving);
uringlet::see_waits!(LoopHooks);

/// When memory is short, this library must not end the program that has loaded it.
#[global_allocator]
static MEMORY: front::Reserve = front::Reserve::new();

uringlet::at_load!(front::env::read);
uringlet::note!();

/// As [`reentry::enter`].
#[inline(always)]
fn enter(body: impl FnOnce(bool) -> Result<c_int, c_int>) -> c_int {
    // SAFETY: each block was passed to aio_read(3) or the like, and its request has not completed.
    reentry::enter(body, |block| unsafe { submit::start_deferred(block) })
}

/// What this library does around calls that wait for descriptors, such as poll(2). A thread that
/// completes requests in such a call counts as inside this library ([`reentry`]). A signal that
/// notifies of a request ends the thread's sleep.
struct LoopHooks;

impl Hooks for LoopHooks {
    type Watch = ();

    const SIGNALS: bool = true;

    unsafe fn begin(_: Option<&Descriptors>) {}

    fn end((): (), _: bool) {}

    fn outside(collect: &mut dyn FnMut()) {
        enter(|nested| {
            if !nested {
                collect();
            }
            Ok(0)
        });
    }
}

/// # Safety
/// As aio_read(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _aio_read(block: *mut Aiocb) -> c_int {
    enter(|nested| {
        // SAFETY: the caller's contract.
        unsafe { start(block, Operation::Read, Member::none(), nested) }.map(|()| 0)
    })
}

/// # Safety
/// As aio_write(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _aio_write(block: *mut Aiocb) -> c_int {
    enter(|nested| {
        // SAFETY: the caller's contract.
        unsafe { start(block, Operation::Write, Member::none(), nested) }.map(|()| 0)
    })
}

/// # Safety
/// As aio_fsync(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _aio_fsync(op: c_int, block: *mut Aiocb) -> c_int {
    enter(|nested| {
        let operation = match op {
            libc::O_SYNC => Operation::Sync,
            libc::O_DSYNC => Operation::DataSync,
            _ => return Err(libc::EINVAL),
        };
        // SAFETY: a control block by the caller's contract.
        if !front::is_open(unsafe { (*block).fildes }) {
            return Err(libc::EBADF);
        }
        // SAFETY: the caller's contract.
        unsafe { start(block, operation, Member::none(), nested) }.map(|()| 0)
    })
}

/// # Safety
/// As aio_error(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _aio_error(block: *const Aiocb) -> c_int {
    // SAFETY: a control block by the caller's contract.
    let error = unsafe { (*block).error.load(Ordering::Acquire) };
    if error != libc::EINPROGRESS {
        return error;
    }
    enter(|nested| {
        // SAFETY: as above.
        Ok(if nested { error } else { unsafe { suspend::look(block) } })
    })
}

/// # Safety
/// As aio_return(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _aio_return(block: *mut Aiocb) -> isize {
    // SAFETY: a control block by the caller's contract.
    unsafe { (*block).value.load(Ordering::Relaxed) }
}

unsafe extern "C-unwind" {
    /// pthread_testcancel(3): does not return if the thread is cancelled.
    fn pthread_testcancel();
}

/// aio_suspend(3) is a cancellation point, as in the C library. [`pthread_cancel`] wakes the
/// waiters, and each of them checks whether it is cancelled. During this check the thread holds no
/// lock, and this frame has nothing to drop.
///
/// # Safety
/// As aio_suspend(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _aio_suspend(
    list: *const *const Aiocb,
    count: c_int,
    timeout: *const libc::timespec,
) -> c_int {
    // SAFETY: the caller's contract.
    let deadline = unsafe { suspend::deadline(timeout) };
    loop {
        // The count is read first, so that either pthread_testcancel(3) or the wait sees a cancel.
        let cancels = state::cancels();
        // SAFETY: a thread of the program calls this, and may be cancelled here.
        unsafe { pthread_testcancel() };
        let mut disturbed = false;
        let answer = enter(|nested| {
            // SAFETY: the caller's contract.
            match unsafe { suspend::suspend(list, count, deadline, cancels, nested) } {
                Ended::Answer(answer) => answer,
                Ended::Disturbed => {
                    disturbed = true;
                    Ok(0)
                }
            }
        });
        if !disturbed {
            return answer;
        }
    }
}

static PTHREAD_CANCEL: Next = Next::new(c"pthread_cancel");

extern "C" fn find_next() {
    PTHREAD_CANCEL.find();
}

uringlet::at_load!(find_next);

/// pthread_cancel(3). Also wakes the threads in aio_suspend(3), so that they check whether they are
/// cancelled. A thread that cancels itself may end in this call.
///
/// # Safety
/// As pthread_cancel(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_cancel(thread: libc::pthread_t) -> c_int {
    type Cancel = unsafe extern "C-unwind" fn(libc::pthread_t) -> c_int;
    // SAFETY: the C library's pthread_cancel(3), with the argument that our caller passed.
    let answer =
        unsafe { std::mem::transmute::<*mut c_void, Cancel>(PTHREAD_CANCEL.get())(thread) };
    front::enter(state::disturb);
    answer
}

/// # Safety
/// As aio_cancel(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _aio_cancel(fd: c_int, block: *mut Aiocb) -> c_int {
    enter(|nested| {
        // SAFETY: the caller's contract.
        unsafe { cancel::cancel(fd, block, nested) }
    })
}

/// # Safety
/// As lio_listio(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _lio_listio(
    mode: c_int,
    list: *const *mut Aiocb,
    count: c_int,
    event: *const Sigevent,
) -> c_int {
    enter(|nested| {
        // SAFETY: the caller's contract.
        unsafe { list::listio(mode, list, count, event, false, nested) }
    })
}

/// lio_listio(3), as programs from before glibc 2.4 know it.
///
/// # Safety
/// As lio_listio(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _lio_listio_2_2_5(
    mode: c_int,
    list: *const *mut Aiocb,
    count: c_int,
    event: *const Sigevent,
) -> c_int {
    enter(|nested| {
        // SAFETY: the caller's contract.
        unsafe { list::listio(mode, list, count, event, true, nested) }
    })
}

/// Advice on the number of threads and requests, which is not needed here.
///
/// # Safety
/// As aio_init(3); the structure is not read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _aio_init(_: *const c_void) {}

/// An old version of a name and of its 64-bit variant, if it has one.
macro_rules! old_version {
    ($function:literal, $name:literal, $version:literal) => {
        std::arch::global_asm!(
            concat!(".symver ", $function, ", ", $name, "@", $version),
            concat!(".symver ", $function, ", ", $name, "64@", $version),
        );
    };
    ($function:literal, $name:literal, $version:literal, no twin) => {
        std::arch::global_asm!(concat!(".symver ", $function, ", ", $name, "@", $version));
    };
}

// For programs linked before glibc 2.34.
old_version!("_aio_read", "aio_read", "GLIBC_2.2.5");
old_version!("_aio_write", "aio_write", "GLIBC_2.2.5");
old_version!("_aio_fsync", "aio_fsync", "GLIBC_2.2.5");
old_version!("_aio_error", "aio_error", "GLIBC_2.2.5");
old_version!("_aio_return", "aio_return", "GLIBC_2.2.5");
old_version!("_aio_suspend", "aio_suspend", "GLIBC_2.2.5");
old_version!("_aio_cancel", "aio_cancel", "GLIBC_2.2.5");
old_version!("_aio_init", "aio_init", "GLIBC_2.2.5", no twin);
old_version!("_lio_listio", "lio_listio", "GLIBC_2.4");
old_version!("_lio_listio_2_2_5", "lio_listio", "GLIBC_2.2.5");
