//! Reading and writing memory of the program's. The kernel is asked first, so that a bad address is
//! an error and not a crash. It is asked each time, except by [`read_known`].
#![allow(unsafe_code)]

use std::ffi::CString;

use uringlet::front::memory::{accessible, accessible_now};

use crate::abi::{
    BufferRing, BufferStatus, GetEventsArg, Params, RsrcRegister, RsrcUpdate, SyncCancel, Timespec,
};
use crate::sys::futexes::FutexWaitV;

/// A type for which any bytes are a valid value.
///
/// # Safety
/// All bytes are a value of it, and it has no padding.
pub(crate) unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($type:ty),*) => {
        $(
            // SAFETY: numbers, or made of numbers without padding, as the kernel has them.
            unsafe impl Plain for $type {}
        )*
    };
}

plain!(u8, u16, u32, i32, u64, libc::iovec, Params, Timespec, GetEventsArg);
plain!(FutexWaitV, RsrcRegister, RsrcUpdate, SyncCancel, BufferRing, BufferStatus);

// SAFETY: any bytes are valid elements, and an array has no padding between its elements.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Copies a value. `Err`: `-EFAULT`.
pub(crate) fn read<T: Plain>(at: usize) -> Result<T, i32> {
    if !accessible_now(at, size_of::<T>(), false) {
        return Err(-libc::EFAULT);
    }
    // SAFETY: readable, and any bytes make a value.
    Ok(unsafe { (at as *const T).read_unaligned() })
}

/// As [`read`], but a page that was accessible once is assumed to stay so, without a system call.
pub(crate) fn read_known<T: Plain>(at: usize) -> Result<T, i32> {
    if accessible(at, size_of::<T>(), false) {
        // SAFETY: the memory was readable at the last check, and any bytes make a value.
        Ok(unsafe { (at as *const T).read_unaligned() })
    } else {
        Err(-libc::EFAULT)
    }
}

/// Writes a value. `Err`: `-EFAULT`.
///
/// # Safety
/// The program has named the place for an answer: nothing of this library's lies there.
pub(crate) unsafe fn write<T: Plain>(at: usize, value: T) -> Result<(), i32> {
    if !accessible_now(at, size_of::<T>(), true) {
        return Err(-libc::EFAULT);
    }
    // SAFETY: writable, and the program's, by the caller's contract.
    unsafe { (at as *mut T).write_unaligned(value) };
    Ok(())
}

/// Copies an array.
pub(crate) fn read_array<T: Plain>(at: usize, count: usize, into: &mut Vec<T>) -> Result<(), i32> {
    into.clear();
    let bytes = count.checked_mul(size_of::<T>()).ok_or(-libc::EFAULT)?;
    if count > 0 && !accessible_now(at, bytes, false) {
        return Err(-libc::EFAULT);
    }
    into.try_reserve(count).map_err(|_| -libc::ENOMEM)?;
    for index in 0..count {
        // SAFETY: readable as far as `count`, and any bytes make a value.
        into.push(unsafe { (at as *const T).add(index).read_unaligned() });
    }
    Ok(())
}

/// Copies bytes.
pub(crate) fn read_bytes(at: usize, len: usize) -> Result<Vec<u8>, i32> {
    let mut bytes = Vec::new();
    read_array(at, len, &mut bytes)?;
    Ok(bytes)
}

/// Copies a string that ends with NUL within `max` bytes; `too_long` is the error for a longer one.
pub(crate) fn string(at: usize, max: usize, too_long: i32) -> Result<CString, i32> {
    /// The smallest page size of any machine.
    const PAGE: usize = 4096;
    let mut bytes = Vec::new();
    while bytes.len() < max {
        let next = at.wrapping_add(bytes.len());
        if (bytes.is_empty() || next.is_multiple_of(PAGE)) && !accessible_now(next, 1, false) {
            return Err(-libc::EFAULT);
        }
        // SAFETY: a byte of a page that is readable.
        match unsafe { (next as *const u8).read() } {
            0 => return Ok(CString::new(bytes).unwrap_or_default()),
            byte => bytes.push(byte),
        }
    }
    Err(too_long)
}

/// A path.
pub(crate) fn path(at: u64) -> Result<CString, i32> {
    string(at as usize, libc::PATH_MAX as usize, -libc::ENAMETOOLONG)
}
