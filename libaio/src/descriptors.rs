//! The calls that end the life of a descriptor number: requests that still wait for it come first.
//!
//! The kernel's AIO holds the file for its requests; here a number is all there is.

use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::{enter, handle};

/// The next definition of a C function, found once.
struct Next(AtomicPtr<libc::c_void>, &'static CStr);

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()), name)
    }

    fn get(&self) -> *mut libc::c_void {
        let mut next = self.0.load(Ordering::Relaxed);
        if next.is_null() {
            // SAFETY: a NUL-terminated name.
            next = unsafe { libc::dlsym(libc::RTLD_NEXT, self.1.as_ptr()) };
            self.0.store(next, Ordering::Relaxed);
        }
        assert!(!next.is_null(), "the C library has {:?}", self.1);
        next
    }
}

/// # Safety
/// As close(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    type Close = unsafe extern "C" fn(c_int) -> c_int;
    static NEXT: Next = Next::new(c"close");
    let next = enter(|| {
        handle::before_close(fd);
        NEXT.get()
    });
    // SAFETY: the C library's close(2), called as its caller called us. errno is its own.
    unsafe { std::mem::transmute::<*mut libc::c_void, Close>(next)(fd) }
}

/// # Safety
/// As dup2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(fd: c_int, onto: c_int) -> c_int {
    type Dup2 = unsafe extern "C" fn(c_int, c_int) -> c_int;
    static NEXT: Next = Next::new(c"dup2");
    let next = enter(|| {
        if fd != onto {
            handle::before_close(onto);
        }
        NEXT.get()
    });
    // SAFETY: the C library's dup2(2), called as its caller called us.
    unsafe { std::mem::transmute::<*mut libc::c_void, Dup2>(next)(fd, onto) }
}

/// # Safety
/// As dup3(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(fd: c_int, onto: c_int, flags: c_int) -> c_int {
    type Dup3 = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    static NEXT: Next = Next::new(c"dup3");
    let next = enter(|| {
        handle::before_close(onto);
        NEXT.get()
    });
    // SAFETY: the C library's dup3(2), called as its caller called us.
    unsafe { std::mem::transmute::<*mut libc::c_void, Dup3>(next)(fd, onto, flags) }
}
