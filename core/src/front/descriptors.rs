//! The calls that close descriptors, for drop-ins that export them. Before a number is closed,
//! requests that still wait for it are handled.
//!
//! The kernel's AIO holds the file for its requests; here a request has a number only. A program
//! that closes all descriptors must not close the engine's own. A thread that gets a descriptor
//! table of its own is noticed, too: its numbers name other files than in the engine's threads.
//! `see_descriptors_end` makes the functions.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_long, c_uint, c_void};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::errno::{kept as enter, refuse};
use crate::{own, process, sys};

/// What a drop-in does before descriptors in this range are closed.
pub type Before = fn(&RangeInclusive<c_int>, Ends);

/// What a drop-in does after a call that duplicates a descriptor. The arguments are the descriptor
/// and its duplicate, which is negative if the call failed.
pub type Duplicated = fn(c_int, c_int);

/// A [`Duplicated`] that does nothing.
pub fn no_matter(_: c_int, _: c_int) {}

/// How a number stops naming a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The number is closed.
    Closed,
    /// Another file takes the number in the same moment (dup2(2)).
    Replaced,
}

/// The next definition of a C function after this library's. It is found once: when the library is
/// loaded ([`at_load!`](crate::at_load)), or else on first use. A search in the child of a fork
/// could hang: a thread of the parent may have held the loader's lock.
#[derive(Debug)]
pub struct Next(AtomicPtr<c_void>, &'static CStr);

static CLOSE: Next = Next::new(c"close");
static DUP2: Next = Next::new(c"dup2");
static DUP3: Next = Next::new(c"dup3");
static CLOSE_RANGE: Next = Next::new(c"close_range");
static CLOSEFROM: Next = Next::new(c"closefrom");
static UNSHARE: Next = Next::new(c"unshare");

/// Finds the definitions that the functions here call.
pub extern "C" fn find_next() {
    for next in [&CLOSE, &DUP2, &DUP3, &CLOSE_RANGE, &CLOSEFROM, &UNSHARE] {
        next.find();
    }
}

impl Next {
    /// For the function of this name, whose definition is not found yet.
    pub const fn new(name: &'static CStr) -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()), name)
    }

    /// Looks the function up now.
    pub fn find(&self) {
        self.look();
    }

    /// The function's address; null if there is none.
    pub(super) fn look(&self) -> *mut c_void {
        let mut next = self.0.load(Ordering::Relaxed);
        if next.is_null() {
            // SAFETY: a NUL-terminated name.
            next = unsafe { libc::dlsym(libc::RTLD_NEXT, self.1.as_ptr()) };
            self.0.store(next, Ordering::Relaxed);
        }
        next
    }

    /// The address of a function that every C library has.
    pub fn get(&self) -> *mut c_void {
        let next = self.look();
        assert!(!next.is_null(), "the C library has {:?}", self.1);
        next
    }
}

pub(super) fn before_close(first: c_int, last: c_int, before: Before) {
    if first >= 0 {
        before(&(first..=last), Ends::Closed);
    }
}

pub(super) fn before_replace(fd: c_int, before: Before) {
    if fd >= 0 {
        before(&(fd..=fd), Ends::Replaced);
    }
}

/// close(2), after `before`. A cancellation point (pthreads(7)): no lock of the engine is held in
/// the call, so the thread may end there.
///
/// # Safety
/// As close(2).
pub unsafe fn close(fd: c_int, before: Before) -> c_int {
    type Close = unsafe extern "C-unwind" fn(c_int) -> c_int;
    if own::is(fd) {
        // The program has not opened this descriptor.
        return refuse(libc::EBADF);
    }
    let next = enter(|| {
        before_close(fd, fd, before);
        CLOSE.get()
    });
    // SAFETY: the C library's close(2), called as its caller called us. errno is what it sets.
    unsafe { std::mem::transmute::<*mut c_void, Close>(next)(fd) }
}

/// # Safety
/// As dup2(2).
pub unsafe fn dup2(fd: c_int, onto: c_int, before: Before, duplicated: Duplicated) -> c_int {
    type Dup2 = unsafe extern "C" fn(c_int, c_int) -> c_int;
    if own::is(onto) {
        return refuse(libc::EBUSY);
    }
    let next = enter(|| {
        if fd != onto {
            before_replace(onto, before);
        }
        DUP2.get()
    });
    // SAFETY: the C library's dup2(2), called as its caller called us.
    let other = unsafe { std::mem::transmute::<*mut c_void, Dup2>(next)(fd, onto) };
    if fd != onto {
        enter(|| duplicated(fd, other));
    }
    other
}

/// # Safety
/// As dup3(2).
pub unsafe fn dup3(
    fd: c_int,
    onto: c_int,
    flags: c_int,
    before: Before,
    duplicated: Duplicated,
) -> c_int {
    type Dup3 = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    if own::is(onto) {
        return refuse(libc::EBUSY);
    }
    let next = enter(|| {
        before_replace(onto, before);
        DUP3.get()
    });
    // SAFETY: the C library's dup3(2), called as its caller called us.
    let other = unsafe { std::mem::transmute::<*mut c_void, Dup3>(next)(fd, onto, flags) };
    enter(|| duplicated(fd, other));
    other
}

/// close_range(2) that leaves out the engine's own descriptors.
///
/// # Safety
/// As close_range(2).
pub unsafe fn close_range(first: c_uint, last: c_uint, flags: c_int, before: Before) -> c_int {
    type CloseRange = unsafe extern "C" fn(c_uint, c_uint, c_int) -> c_int;
    let unshares = flags as c_uint & libc::CLOSE_RANGE_UNSHARE != 0 && process::can_part();
    // With `CLOSE_RANGE_UNSHARE` the thread leaves its table to the engine's threads: nothing in
    // that table is closed.
    let closes = first <= last && flags as c_uint & libc::CLOSE_RANGE_CLOEXEC == 0 && !unshares;
    let next = enter(|| {
        if closes {
            before_close(number(first), number(last), before);
        }
        CLOSE_RANGE.look()
    });
    let call = |first, last| {
        if next.is_null() {
            // glibc before 2.34 does not have the function.
            let ret = sys::close_range(first, last, flags) as c_int;
            return if ret < 0 { refuse(-ret) } else { ret };
        }
        // SAFETY: the C library's close_range(2).
        unsafe { std::mem::transmute::<*mut c_void, CloseRange>(next)(first, last, flags) }
    };
    if unshares {
        return process::part(|| call(first, last));
    }
    let mut from = first;
    while closes
        && from <= last
        && let Some(own) = own::first_in(number(from)..=number(last))
    {
        let own = own as c_uint;
        if own > from {
            let ret = call(from, own - 1);
            if ret != 0 {
                return ret;
            }
        }
        if own == last {
            return 0;
        }
        from = own + 1;
    }
    call(from, last)
}

/// A number above the maximum descriptor counts as the maximum.
fn number(fd: c_uint) -> c_int {
    c_int::try_from(fd).unwrap_or(c_int::MAX)
}

/// A thread has called unshare(2), to get namespaces, a root or a working directory of its own.
static UNSHARED: AtomicBool = AtomicBool::new(false);

/// Has a thread of this process namespaces, a root or a working directory of its own (unshare(2))?
pub fn has_unshared() -> bool {
    UNSHARED.load(Ordering::Relaxed)
}

/// unshare(2). Notes a thread that gets a descriptor table, namespaces, a root or a working
/// directory of its own.
///
/// # Safety
/// As unshare(2).
pub unsafe fn unshare(flags: c_int) -> c_int {
    type Unshare = unsafe extern "C" fn(c_int) -> c_int;
    let next = enter(|| UNSHARE.get());
    // SAFETY: the C library's unshare(2), called as its caller called us. errno is what it sets.
    let call = || unsafe { std::mem::transmute::<*mut c_void, Unshare>(next)(flags) };
    if flags & !(libc::CLONE_FILES | libc::CLONE_SYSVSEM) != 0 {
        UNSHARED.store(true, Ordering::Relaxed);
    }
    let parts = flags & libc::CLONE_FILES != 0 && process::can_part();
    if parts { process::part(call) } else { call() }
}

/// # Safety
/// As closefrom(3).
pub unsafe fn closefrom(first: c_int, before: Before) {
    type CloseFrom = unsafe extern "C" fn(c_int);
    let first = first.max(0);
    // SAFETY: as the caller called us.
    if unsafe { close_range(first as c_uint, c_uint::MAX, 0, before) } == 0 {
        return;
    }
    // close_range(2) is refused, or the kernel is old.
    if own::first_in(first..=c_int::MAX).is_none() {
        let next = enter(|| CLOSEFROM.get());
        // SAFETY: the C library's closefrom(3), called as its caller called us.
        unsafe { std::mem::transmute::<*mut c_void, CloseFrom>(next)(first) };
        return;
    }
    let open: Vec<c_int> = enter(|| {
        let folder = std::fs::read_dir("/proc/thread-self/fd").into_iter().flatten().flatten();
        let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        folder.filter_map(number).collect()
    });
    for fd in open.into_iter().filter(|&fd| fd >= first) {
        // SAFETY: the caller's contract. For a number that is not open any more, such as the
        // folder's own, close(2) only fails.
        unsafe { close(fd, before) };
    }
}

/// The calls of this file by their numbers, for drop-ins that export syscall(2). `None`: another
/// number.
///
/// # Safety
/// As the call of that number.
pub unsafe fn by_number(
    number: c_long,
    [a, b, c]: [usize; 3],
    before: Before,
    duplicated: Duplicated,
) -> Option<c_int> {
    // SAFETY: the caller's contract. The kernel looks at the lower half of a number.
    let answer = unsafe {
        match c_long::from(number as u32) {
            libc::SYS_close => close(a as c_int, before),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => dup2(a as c_int, b as c_int, before, duplicated),
            libc::SYS_dup3 => dup3(a as c_int, b as c_int, c as c_int, before, duplicated),
            libc::SYS_close_range => close_range(a as c_uint, b as c_uint, c as c_int, before),
            libc::SYS_unshare => unshare(a as c_int),
            _ => return None,
        }
    };
    Some(answer)
}

/// Lets the loader call an `extern "C" fn()` when it has loaded a drop-in.
#[doc(hidden)]
#[macro_export]
macro_rules! at_load {
    ($function:expr) => {
        const _: () = {
            #[cfg_attr(miri, allow(dead_code))]
            #[cfg_attr(not(miri), used, unsafe(link_section = ".init_array"))]
            static INIT: extern "C" fn() = $function;
        };
    };
}

/// Exports close(2), dup2(2), dup3(2), close_range(2) and closefrom(3), and all that
/// [`see_streams_end!`](crate::see_streams_end) exports. All of these call a
/// [`Before`](crate::front::descriptors::Before) first. Exports unshare(2), too. For use once in a
/// drop-in.
#[doc(hidden)]
#[macro_export]
macro_rules! see_descriptors_end {
    ($before:path) => {
        $crate::see_descriptors_end!($before, $crate::front::descriptors::no_matter);
    };
    ($before:path, $duplicated:path) => {
        $crate::at_load!($crate::front::descriptors::find_next);
        $crate::see_streams_end!($before);

        /// # Safety
        /// As close(2).
        #[cfg_attr(not(miri), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn close(fd: ::std::ffi::c_int) -> ::std::ffi::c_int {
            // SAFETY: as the caller called us.
            unsafe { $crate::front::descriptors::close(fd, $before) }
        }

        /// # Safety
        /// As dup2(2).
        #[cfg_attr(not(miri), unsafe(no_mangle))]
        pub unsafe extern "C" fn dup2(
            fd: ::std::ffi::c_int,
            onto: ::std::ffi::c_int,
        ) -> ::std::ffi::c_int {
            // SAFETY: as the caller called us.
            unsafe { $crate::front::descriptors::dup2(fd, onto, $before, $duplicated) }
        }

        /// # Safety
        /// As dup3(2).
        #[cfg_attr(not(miri), unsafe(no_mangle))]
        pub unsafe extern "C" fn dup3(
            fd: ::std::ffi::c_int,
            onto: ::std::ffi::c_int,
            flags: ::std::ffi::c_int,
        ) -> ::std::ffi::c_int {
            // SAFETY: as the caller called us.
            unsafe { $crate::front::descriptors::dup3(fd, onto, flags, $before, $duplicated) }
        }

        /// # Safety
        /// As close_range(2).
        #[cfg_attr(not(miri), unsafe(no_mangle))]
        pub unsafe extern "C" fn close_range(
            first: ::std::ffi::c_uint,
            last: ::std::ffi::c_uint,
            flags: ::std::ffi::c_int,
        ) -> ::std::ffi::c_int {
            // SAFETY: as the caller called us.
            unsafe { $crate::front::descriptors::close_range(first, last, flags, $before) }
        }

        /// # Safety
        /// As closefrom(3).
        #[cfg_attr(not(miri), unsafe(no_mangle))]
        pub unsafe extern "C" fn closefrom(first: ::std::ffi::c_int) {
            // SAFETY: as the caller called us.
            unsafe { $crate::front::descriptors::closefrom(first, $before) }
        }

        /// # Safety
        /// As unshare(2).
        #[cfg_attr(not(miri), unsafe(no_mangle))]
        pub unsafe extern "C" fn unshare(flags: ::std::ffi::c_int) -> ::std::ffi::c_int {
            // SAFETY: as the caller called us.
            unsafe { $crate::front::descriptors::unshare(flags) }
        }
    };
}
