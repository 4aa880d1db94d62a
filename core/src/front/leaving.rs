//! The calls by which a process exits, executes another program, or starts a process, for drop-ins
//! that export them. Before each, submitted requests that do not sleep are executed.
//! `see_process_leave!` makes the functions.
//!
//! Signal handlers and the child of a vfork(2) may call these functions. The functions may return
//! twice, and take any number of arguments. So registers and stack are passed on unchanged.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use super::descriptors::Next;
use crate::errno::{kept, refuse};

/// What a drop-in does before one of these calls. It must be safe in signal handlers.
pub type BeforeLeaving = extern "C" fn();

/// Calls `before`, and returns the definition that the call is passed on to. errno is preserved.
pub fn pass_on(before: BeforeLeaving, next: &Next) -> *mut c_void {
    kept(|| {
        before();
        let next = next.look();
        if next.is_null() { missing as *const () as *mut c_void } else { next }
    })
}

/// Called in place of a function that this C library does not have.
extern "C" fn missing() -> c_int {
    refuse(libc::ENOSYS)
}

/// Registers `before`, which is called when the process ends by exit(3) or by a return from `main`.
/// It runs before handlers and destructors that the program has registered earlier.
pub fn at_exit(before: BeforeLeaving) {
    // SAFETY: the function is in a library that stays loaded.
    unsafe { libc::atexit(before) };
}

/// Exports functions of the C library, each of which calls a
/// [`BeforeLeaving`](crate::front::leaving::BeforeLeaving) first. For use once in a drop-in.
#[doc(hidden)]
#[macro_export]
macro_rules! see_process_leave {
    ($before:path) => {
        $crate::see_process_leave! {
            $before: _exit _Exit quick_exit fork _Fork vfork daemon forkpty clone system popen
            posix_spawn posix_spawnp execl execle execlp execv execve execvp execvpe execveat
            fexecve
        }
    };
    ($before:path: $($name:ident)*) => { $(
        const _: () = {
            static NEXT: $crate::front::descriptors::Next =
                match ::std::ffi::CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes(),
                ) {
                    Ok(name) => $crate::front::descriptors::Next::new(name),
                    Err(_) => unreachable!(),
                };

            extern "C" fn find_next() {
                NEXT.find();
            }

            $crate::at_load!(find_next);

            extern "C" fn pass_on() -> *mut ::std::ffi::c_void {
                $crate::front::leaving::pass_on($before, &NEXT)
            }

            /// The C library's function of this name. r11 is a scratch register.
            #[cfg(target_arch = "x86_64")]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name() {
                ::std::arch::naked_asm!(
                    "push rdi",
                    "push rsi",
                    "push rdx",
                    "push rcx",
                    "push r8",
                    "push r9",
                    "push rax",
                    "call {pass_on}",
                    "mov r11, rax",
                    "pop rax",
                    "pop r9",
                    "pop r8",
                    "pop rcx",
                    "pop rdx",
                    "pop rsi",
                    "pop rdi",
                    "jmp r11",
                    pass_on = sym pass_on,
                )
            }

            /// As on x86-64. x16 is a scratch register of the linker, which calls may change.
            #[cfg(target_arch = "aarch64")]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name() {
                ::std::arch::naked_asm!(
                    "stp x29, x30, [sp, #-80]!",
                    "mov x29, sp",
                    "stp x0, x1, [sp, #16]",
                    "stp x2, x3, [sp, #32]",
                    "stp x4, x5, [sp, #48]",
                    "stp x6, x7, [sp, #64]",
                    "bl {pass_on}",
                    "mov x16, x0",
                    "ldp x0, x1, [sp, #16]",
                    "ldp x2, x3, [sp, #32]",
                    "ldp x4, x5, [sp, #48]",
                    "ldp x6, x7, [sp, #64]",
                    "ldp x29, x30, [sp], #80",
                    "br x16",
                    pass_on = sym pass_on,
                )
            }
        };
    )* };
}
