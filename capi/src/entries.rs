//! The exported twins of the header's inline functions.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_short, c_uint, c_void};
use std::mem::MaybeUninit;

use uringlet::{Cqe, Sqe};

/// Functions that set an entry to `$made`, and leave its `user_data`.
macro_rules! preparations {
    ($($name:ident($($argument:ident: $type:ty),*) $made:expr;)*) => {
        $(
            /// # Safety
            /// `sqe` points to an entry. Addresses in the arguments are valid once it is submitted.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(sqe: *mut Sqe, $($argument: $type),*) {
                // SAFETY: an entry, by the caller's contract.
                unsafe { write_all_but_user_data(sqe, $made) };
            }
        )*
    };
}

/// # Safety
/// `at` is an entry, which may be uninitialized.
unsafe fn write_all_but_user_data(at: *mut Sqe, made: Sqe) {
    // SAFETY: an entry, by the caller's contract. `user_data` may be uninitialized: it is only
    // copied, as `MaybeUninit`.
    unsafe {
        let user_data = (&raw mut (*at).user_data).cast::<MaybeUninit<u64>>();
        let before = user_data.read();
        at.write(made);
        user_data.write(before);
    }
}

fn bytes(at: *const c_void, len: usize) -> *const [u8] {
    std::ptr::slice_from_raw_parts(at.cast(), len)
}

fn vectors(at: *const libc::iovec, n: c_uint) -> *const [libc::iovec] {
    std::ptr::slice_from_raw_parts(at, n as usize)
}

/// An entry with the address of a path, which is not read here: the submit reads it.
fn with_path(sqe: Sqe, path: *const c_char) -> Sqe {
    Sqe { addr: path as u64, ..sqe }
}

/// A placeholder for a path.
const NONE: &CStr = c"";

preparations! {
    _uringlet_prep_nop() Sqe::nop();
    _uringlet_prep_read(fd: c_int, buf: *mut c_void, len: usize, off: u64)
        Sqe::read(fd, bytes(buf, len).cast_mut(), off);
    _uringlet_prep_write(fd: c_int, buf: *const c_void, len: usize, off: u64)
        Sqe::write(fd, bytes(buf, len), off);
    _uringlet_prep_readv(fd: c_int, iov: *const libc::iovec, n: c_uint, off: u64)
        Sqe::readv(fd, vectors(iov, n), off);
    _uringlet_prep_writev(fd: c_int, iov: *const libc::iovec, n: c_uint, off: u64)
        Sqe::writev(fd, vectors(iov, n), off);
    _uringlet_prep_fsync(fd: c_int) Sqe::fsync(fd);
    _uringlet_prep_fdatasync(fd: c_int) Sqe::fdatasync(fd);
    _uringlet_prep_fsync_flags(fd: c_int, flags: c_uint)
        Sqe { op_flags: flags, ..Sqe::fsync(fd) };
    _uringlet_prep_sync_file_range(fd: c_int, off: u64, len: u32, flags: c_uint)
        Sqe::sync_file_range(fd, off, len, flags);
    _uringlet_prep_fallocate(fd: c_int, mode: c_int, off: u64, len: u64)
        Sqe::fallocate(fd, mode as u32, off, len);
    _uringlet_prep_ftruncate(fd: c_int, len: u64) Sqe::ftruncate(fd, len);
    _uringlet_prep_fadvise(fd: c_int, off: u64, len: u32, advice: c_int)
        Sqe::fadvise(fd, off, len, advice as u32);
    _uringlet_prep_openat(dirfd: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t)
        with_path(Sqe::openat(dirfd, NONE, flags, mode), path);
    _uringlet_prep_close(fd: c_int) Sqe::close(fd);
    _uringlet_prep_statx(
        dirfd: c_int, path: *const c_char, flags: c_int, mask: c_uint, out: *mut libc::statx
    ) with_path(Sqe::statx(dirfd, NONE, flags, mask, out), path);
    _uringlet_prep_unlinkat(dirfd: c_int, path: *const c_char, flags: c_int)
        with_path(Sqe::unlinkat(dirfd, NONE, flags), path);
    _uringlet_prep_renameat(
        old_dirfd: c_int, old_path: *const c_char, new_dirfd: c_int, new_path: *const c_char,
        flags: c_uint
    ) Sqe {
        off: new_path as u64,
        ..with_path(Sqe::renameat(old_dirfd, NONE, new_dirfd, NONE, flags), old_path)
    };
    _uringlet_prep_mkdirat(dirfd: c_int, path: *const c_char, mode: libc::mode_t)
        with_path(Sqe::mkdirat(dirfd, NONE, mode), path);
    _uringlet_prep_poll_add(fd: c_int, events: c_short) Sqe::poll_add(fd, events);
}

/// # Safety
/// `sqe` is an entry.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _uringlet_sqe_set_data(sqe: *mut Sqe, data: *mut c_void) {
    // SAFETY: the caller's contract.
    unsafe { (*sqe).user_data = data as u64 };
}

/// # Safety
/// `sqe` is an entry.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _uringlet_sqe_set_data64(sqe: *mut Sqe, data: u64) {
    // SAFETY: the caller's contract.
    unsafe { (*sqe).user_data = data };
}

/// # Safety
/// `sqe` is an entry.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _uringlet_sqe_set_rw_flags(sqe: *mut Sqe, flags: c_int) {
    // SAFETY: the caller's contract.
    unsafe { sqe.write(sqe.read().rw_flags(flags)) };
}

/// # Safety
/// `cqe` is a completion.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _uringlet_cqe_get_data(cqe: *const Cqe) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { (*cqe).user_data as *mut c_void }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Miri checks that uninitialized memory is not read as a number.
    #[test]
    fn entries_are_prepared_where_nothing_was_written() {
        let mut sqe = MaybeUninit::<Sqe>::uninit();
        // SAFETY: room for an entry, all of which is written in the end.
        let sqe = unsafe {
            _uringlet_prep_fsync(sqe.as_mut_ptr(), 3);
            _uringlet_sqe_set_data64(sqe.as_mut_ptr(), 7);
            sqe.assume_init()
        };
        assert_eq!(sqe, Sqe::fsync(3).user_data(7));
    }
}
