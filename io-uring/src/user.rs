//! Reading and writing what a program points to: checked first, so that a bad address is an error
//! and not a crash.
#![allow(unsafe_code)]

use std::ffi::CString;

use uringlet::front::memory::accessible;

/// Copies a value. `Err`: `-EFAULT`.
///
/// For types that any bytes make.
pub(crate) fn read<T: Copy>(at: usize) -> Result<T, i32> {
    if !accessible(at, size_of::<T>(), false) {
        return Err(-libc::EFAULT);
    }
    // SAFETY: readable, and plain old data by what this is called with.
    Ok(unsafe { (at as *const T).read_unaligned() })
}

/// Writes a value. `Err`: `-EFAULT`.
pub(crate) fn write<T: Copy>(at: usize, value: T) -> Result<(), i32> {
    if !accessible(at, size_of::<T>(), true) {
        return Err(-libc::EFAULT);
    }
    // SAFETY: writable, and the program's to have written.
    unsafe { (at as *mut T).write_unaligned(value) };
    Ok(())
}

/// Copies an array. For types that any bytes make.
pub(crate) fn read_array<T: Copy>(at: usize, count: usize, into: &mut Vec<T>) -> Result<(), i32> {
    into.clear();
    let bytes = count.checked_mul(size_of::<T>()).ok_or(-libc::EFAULT)?;
    if count > 0 && !accessible(at, bytes, false) {
        return Err(-libc::EFAULT);
    }
    into.try_reserve(count).map_err(|_| -libc::ENOMEM)?;
    for index in 0..count {
        // SAFETY: readable as far as `count`, and plain old data by what this is called with.
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

/// Copies a string that ends in NUL within `max` bytes; `too_long` is what a longer one gets.
pub(crate) fn string(at: usize, max: usize, too_long: i32) -> Result<CString, i32> {
    let mut bytes = Vec::new();
    while bytes.len() < max {
        match read::<u8>(at.wrapping_add(bytes.len()))? {
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
