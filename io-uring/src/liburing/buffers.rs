//! Rings of buffers that a program provides: making, registering and reading them.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use super::{RingAt, address};
use crate::abi::{BufferRing, BufferStatus, register};
use crate::sys;

/// The size of a ring of buffers.
fn size(entries: c_uint) -> usize {
    16 * entries as usize
}

/// # Safety
/// As io_uring_register_buf_ring(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_register_buf_ring(
    ring: RingAt,
    at: *mut BufferRing,
    flags: c_uint,
) -> c_int {
    // SAFETY: the caller's contract: the caller has filled in the structure at `at`.
    unsafe {
        if flags != 0 {
            (*at).flags |= flags as u16;
        }
        ring.register(register::PBUF_RING, address(at), 1)
    }
}

/// # Safety
/// As io_uring_unregister_buf_ring(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_unregister_buf_ring(ring: RingAt, group: c_int) -> c_int {
    let gone = BufferRing { group: group as u16, ..BufferRing::default() };
    // SAFETY: the caller's contract.
    unsafe { ring.register(register::UNREGISTER_PBUF_RING, address(&raw const gone), 1) }
}

/// # Safety
/// As io_uring_setup_buf_ring(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_setup_buf_ring(
    ring: RingAt,
    entries: c_uint,
    group: c_int,
    flags: c_uint,
    error: *mut c_int,
) -> *mut c_void {
    let (prot, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_ANONYMOUS);
    // SAFETY: new pages; a place for the error, by the caller's contract.
    unsafe {
        let at = sys::mmap(0, size(entries), prot, kind | libc::MAP_PRIVATE, -1, 0);
        if (-4095..0).contains(&at) {
            error.write(at as c_int);
            return null_mut();
        }
        let (at, group, flags) = (at as u64, group as u16, flags as u16);
        let made = BufferRing { at, entries, group, flags, ..BufferRing::default() };
        let answer = ring.register(register::PBUF_RING, address(&raw const made), 1);
        error.write(answer);
        if answer < 0 {
            sys::unmap(at as *mut u8, size(entries));
            return null_mut();
        }
        at as *mut c_void
    }
}

/// # Safety
/// As io_uring_free_buf_ring(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_free_buf_ring(
    ring: RingAt,
    at: *mut c_void,
    entries: c_uint,
    group: c_int,
) -> c_int {
    // SAFETY: the caller's contract: `_io_uring_setup_buf_ring` has mapped the pages.
    unsafe {
        let answer = _io_uring_unregister_buf_ring(ring, group);
        if answer >= 0 {
            sys::unmap(at.cast(), size(entries));
        }
        answer
    }
}

/// # Safety
/// As io_uring_buf_ring_head(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_buf_ring_head(
    ring: RingAt,
    group: c_int,
    head: *mut u16,
) -> c_int {
    let mut status = BufferStatus { group: group as u32, ..BufferStatus::default() };
    // SAFETY: the caller's contract: a place for the head.
    unsafe {
        let answer = ring.register(register::PBUF_STATUS, address(&raw mut status), 1);
        if answer >= 0 {
            head.write(status.head as u16);
        }
        answer.min(0)
    }
}
