//! The C library's read(2), recv(2) and the like. They may take data that a poll waits for, before
//! the poll thread has looked. The kernel's polls are notified when data arrives. So the polls of
//! such a descriptor are checked before the read here.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use uringlet::front;
use uringlet::front::descriptors::Next;

use crate::service;

/// Exports functions that read from a descriptor, and finds the C library's definitions of them.
macro_rules! look_first {
    ($($name:ident $text:literal ($($argument:ident: $type:ty),*))*) => {
        $(
            /// # Safety
            /// As the function of this name.
            #[cfg_attr(not(miri), unsafe(no_mangle))]
            pub unsafe extern "C-unwind" fn $name(fd: c_int, $($argument: $type),*) -> isize {
                type Function = unsafe extern "C-unwind" fn(c_int, $($type),*) -> isize;
                if service::is_busy() {
                    front::enter(|| service::look(fd));
                }
                // SAFETY: the C library's function, with the arguments of the caller. It sets errno
                // itself.
                unsafe {
                    std::mem::transmute::<*mut c_void, Function>(next::$name.get())(
                        fd, $($argument),*
                    )
                }
            }
        )*

        #[allow(non_upper_case_globals, reason = "named as the functions")]
        mod next {
            use super::Next;

            $(pub(super) static $name: Next = Next::new($text);)*
        }

        extern "C" fn find_next() {
            $(next::$name.find();)*
        }
    };
}

look_first! {
    read c"read" (into: *mut c_void, count: usize)
    readv c"readv" (parts: *const libc::iovec, count: c_int)
    recv c"recv" (into: *mut c_void, count: usize, flags: c_int)
    recvmsg c"recvmsg" (message: *mut libc::msghdr, flags: c_int)
    recvfrom c"recvfrom" (
        into: *mut c_void, count: usize, flags: c_int, from: *mut c_void, size: *mut libc::socklen_t
    )
    // The functions that programs call if they were compiled with `_FORTIFY_SOURCE`.
    __read_chk c"__read_chk" (into: *mut c_void, count: usize, room: usize)
    __recv_chk c"__recv_chk" (into: *mut c_void, count: usize, room: usize, flags: c_int)
    __recvfrom_chk c"__recvfrom_chk" (
        into: *mut c_void,
        count: usize,
        room: usize,
        flags: c_int,
        from: *mut c_void,
        size: *mut libc::socklen_t
    )
}

uringlet::at_load!(find_next);
