//! Functions of the C library that close a descriptor without a visible call of close(2): those of
//! streams and folders. `see_streams_end!` makes them, for
//! [`see_descriptors_end!`](crate::see_descriptors_end).
#![allow(unsafe_code)]

use std::ffi::c_void;

use super::descriptors::{Before, Next, before_close, before_replace};
use crate::errno::kept;

/// What a function ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedObject {
    /// A `FILE`, with its descriptor.
    Stream,
    /// A `FILE` gets another file, which may have the same descriptor number.
    Reopened,
    /// A `DIR`, with its descriptor.
    Folder,
}

/// Calls `before` for the descriptor of a stream or folder, and returns the definition that the
/// call is passed on to.
///
/// # Safety
/// `object` is a `FILE` or `DIR` of the program's, as `ended` says.
pub unsafe fn pass_on(
    ended: EndedObject,
    object: usize,
    before: Before,
    next: &'static Next,
) -> *mut c_void {
    kept(|| {
        // SAFETY: the caller's contract. Both look up a number; a stream without one has -1.
        let fd = unsafe {
            match ended {
                EndedObject::Folder => libc::dirfd(object as *mut libc::DIR),
                EndedObject::Stream | EndedObject::Reopened => {
                    libc::fileno(object as *mut libc::FILE)
                }
            }
        };
        match ended {
            EndedObject::Reopened => before_replace(fd, before),
            EndedObject::Stream | EndedObject::Folder => before_close(fd, fd, before),
        }
        next.get()
    })
}

/// Exports fclose(3), pclose(3), freopen(3) and closedir(3), which call a
/// [`Before`](crate::front::descriptors::Before) first. They are cancellation points.
#[doc(hidden)]
#[macro_export]
macro_rules! see_streams_end {
    ($before:path) => {
        $crate::see_streams_end!($before: fclose(stream), c"fclose", stream, Stream);
        $crate::see_streams_end!($before: pclose(stream), c"pclose", stream, Stream);
        $crate::see_streams_end!($before: closedir(folder), c"closedir", folder, Folder);
        $crate::see_streams_end!(
            $before: freopen(path, mode, stream), c"freopen", stream, Reopened
        );
        $crate::see_streams_end!(
            $before: freopen64(path, mode, stream), c"freopen64", stream, Reopened
        );
    };
    ($before:path: $name:ident($($arg:ident),*), $text:literal, $object:ident, $ended:ident) => {
        /// # Safety
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: usize),*) -> usize {
            static NEXT: $crate::front::descriptors::Next =
                $crate::front::descriptors::Next::new($text);
            type Function =
                unsafe extern "C-unwind" fn($($crate::see_streams_end!(@ $arg)),*) -> usize;
            let ended = $crate::front::streams::EndedObject::$ended;
            // SAFETY: as the caller called us.
            let next = unsafe {
                $crate::front::streams::pass_on(ended, $object, $before, &NEXT)
            };
            // errno is left as the C library's function sets it.
            // SAFETY: that function gets the arguments of our caller, under the caller's contract.
            // Arguments and result are words in registers.
            unsafe {
                ::std::mem::transmute::<*mut ::std::ffi::c_void, Function>(next)($($arg),*)
            }
        }
    };
    (@ $arg:ident) => { usize };
}
