//! The C library's `syscall(2)`, as drop-ins export it: calls that a drop-in does not answer itself
//! go to the next definition.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::errno::refuse;

/// The definition that calls are passed on to. Until the library has been loaded, it is `plain`:
/// the system call instruction itself. It stays `plain` if no other library defines the function. A
/// call does not look the definition up: that may allocate, and an allocator may itself make system
/// calls.
pub static NEXT: AtomicPtr<c_void> = AtomicPtr::new(plain as *const () as *mut c_void);

/// Finds [`NEXT`]; for [`at_load!`](crate::at_load).
pub extern "C" fn find_next() {
    // SAFETY: a NUL-terminated name.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"syscall".as_ptr()) };
    if !next.is_null() {
        NEXT.store(next, Ordering::Relaxed);
    }
}

/// syscall(2), made here. The number is the function's first argument, so the sixth argument of the
/// call is on the stack. The kernel takes the fourth in r10, a function in rcx.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn plain(number: c_long) -> c_long {
    std::arch::naked_asm!(
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 2f",
        "ret",
        "2: mov rdi, rax",
        "jmp {failed}",
        failed = sym failed,
    )
}

/// syscall(2), made here.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn plain(number: c_long) -> c_long {
    std::arch::naked_asm!(
        "mov x8, x0",
        "mov x0, x1",
        "mov x1, x2",
        "mov x2, x3",
        "mov x3, x4",
        "mov x4, x5",
        "mov x5, x6",
        "svc #0",
        "cmn x0, #4095",
        "b.cs 2f",
        "ret",
        "2: b {failed}",
        failed = sym failed,
    )
}

/// Returns an error as the C library does: -1, and `errno`.
pub extern "C" fn failed(answer: c_long) -> c_long {
    refuse(-answer as c_int).into()
}
