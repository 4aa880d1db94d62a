//! Restores and sets `errno` in the functions of a drop-in.
#![allow(unsafe_code)]

use std::ffi::c_int;

/// Runs `body`, and restores the program's `errno`. A panic in it aborts with its message, as in
/// every `extern "C"` function of Rust: continuing could lose or repeat a completion.
#[inline(always)]
pub fn kept<T>(body: impl FnOnce() -> T) -> T {
    struct Errno {
        at: *mut c_int,
        was: c_int,
    }
    impl Drop for Errno {
        #[inline(always)]
        fn drop(&mut self) {
            // SAFETY: as below, on the same thread.
            unsafe { *self.at = self.was };
        }
    }
    // SAFETY: the thread's errno is always there, and stays where it is.
    let _errno = unsafe {
        let at = libc::__errno_location();
        Errno { at, was: *at }
    };
    body()
}

/// Sets the thread's `errno`.
#[inline]
pub fn set_errno(errno: c_int) {
    // SAFETY: the thread's errno is always there.
    unsafe { *libc::__errno_location() = errno };
}

/// Returns an error as the C library does: -1, and `errno`.
pub fn refuse(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}
