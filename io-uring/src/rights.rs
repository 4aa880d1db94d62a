//! Threads with rights of their own (credentials(7), user_namespaces(7), landlock(7), seccomp(2)).
//!
//! A name is resolved with the rights of the thread that does it, and a worker has the rights of
//! the process. Some calls may change the rights of one thread only. From the first such call on,
//! the submitting thread executes requests that depend on rights, inside io_uring_enter(2).
#![allow(unsafe_code)]

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use uringlet::front;
use uringlet::front::descriptors::Next;

/// Some thread may have other rights than the rest. Set before the call that changes them. The
/// assembly code of this library's `syscall` also sets it.
pub(crate) static DIFFER: AtomicBool = AtomicBool::new(false);

/// May this thread have other rights than the engine's?
#[inline]
pub(crate) fn may_differ() -> bool {
    DIFFER.load(Ordering::Relaxed) || front::descriptors::has_unshared()
}

static SETFSUID: Next = Next::new(c"setfsuid");
static SETFSGID: Next = Next::new(c"setfsgid");
static CAPSET: Next = Next::new(c"capset");
static SETNS: Next = Next::new(c"setns");
static PRCTL: Next = Next::new(c"prctl");

uringlet::at_load!(find_next);

extern "C" fn find_next() {
    for next in [&SETFSUID, &SETFSGID, &CAPSET, &SETNS, &PRCTL] {
        next.find();
    }
}

/// A C library function that changes the rights of the calling thread, if `$when` is true.
macro_rules! changes_rights {
    ($next:ident, $name:ident($($arg:ident: $type:ty),*), $when:expr) => {
        /// # Safety
        /// As the C library's.
        #[cfg_attr(not(miri), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            type Function = unsafe extern "C" fn($($type),*) -> c_int;
            if $when {
                DIFFER.store(true, Ordering::Relaxed);
            }
            let next = front::enter(|| $next.get());
            // SAFETY: the C library's function, with the arguments of the caller. It sets errno
            // itself.
            unsafe { std::mem::transmute::<*mut c_void, Function>(next)($($arg),*) }
        }
    };
}

changes_rights!(SETFSUID, setfsuid(id: u32), true);
changes_rights!(SETFSGID, setfsgid(id: u32), true);
changes_rights!(CAPSET, capset(header: usize, data: usize), true);
changes_rights!(SETNS, setns(fd: c_int, kind: c_int), true);
// The C library's function takes a varying number of arguments, and passes five on.
changes_rights!(
    PRCTL,
    prctl(what: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong),
    [
        libc::PR_SET_SECCOMP,
        libc::PR_CAPBSET_DROP,
        libc::PR_SET_SECUREBITS,
        libc::PR_CAP_AMBIENT,
    ]
    .contains(&what)
);
