//! Filling in and submitting entries.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use super::{RingAt, word};
use crate::abi::{enter, setup};

/// # Safety
/// As io_uring_get_sqe(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_get_sqe(ring: RingAt) -> *mut u8 {
    // SAFETY: the caller's contract.
    unsafe {
        let head = word((*ring.0).sq.khead).load(Ordering::Acquire);
        let (mask, entries) = (*(*ring.0).sq.kring_mask, *(*ring.0).sq.kring_entries);
        let next = (*ring.0).sq.sqe_tail.wrapping_add(1);
        if next.wrapping_sub(head) > entries {
            return null_mut();
        }
        let shift = u32::from(ring.has(setup::SQE128));
        let at = (((*ring.0).sq.sqe_tail & mask) << shift) as usize;
        (*ring.0).sq.sqe_tail = next;
        (*ring.0).sq.sqes.add(at * 64)
    }
}

/// # Safety
/// As io_uring_sqring_wait(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ___io_uring_sqring_wait(ring: RingAt) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { ring.enter(0, 0, enter::SQ_WAIT, [0, 8]) }
}

/// # Safety
/// As io_uring_submit(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_submit(ring: RingAt) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { ring.submit(0, false, [0, 8], 0) }
}

/// # Safety
/// As io_uring_submit_and_wait(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_submit_and_wait(ring: RingAt, min: c_uint) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { ring.submit(min, false, [0, 8], 0) }
}

/// # Safety
/// As io_uring_submit_and_get_events(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_submit_and_get_events(ring: RingAt) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { ring.submit(0, true, [0, 8], 0) }
}
