//! The three calls, as every door makes them: `errno` stays, and the thread is not cancelled in the
//! midst of one.
#![allow(unsafe_code)]

use uringlet::front::{self, Uncancelable};

fn whole<T>(body: impl FnOnce() -> T) -> T {
    front::enter(|| {
        let _whole = Uncancelable::new();
        body()
    })
}

/// io_uring_setup(2): a descriptor, or a negative errno.
///
/// # Safety
/// As the call.
pub(crate) unsafe fn setup(entries: u32, params: usize) -> i32 {
    // SAFETY: the caller's contract.
    whole(|| unsafe { crate::setup::setup(entries, params) })
}

/// io_uring_enter(2): entries submitted, or a negative errno.
///
/// # Safety
/// As the call.
pub(crate) unsafe fn enter(fd: i32, count: u32, min: u32, flags: u32, arg: [usize; 2]) -> i32 {
    // SAFETY: the caller's contract.
    whole(|| unsafe { crate::enter::enter(fd, count, min, flags, arg) })
}

/// io_uring_register(2): a result, or a negative errno.
///
/// # Safety
/// As the call.
pub(crate) unsafe fn register(fd: i32, opcode: u32, arg: usize, count: u32) -> i32 {
    // SAFETY: the caller's contract.
    whole(|| unsafe { crate::register::register(fd, opcode, arg, count) })
}
