//! The C library's `syscall(2)`. Programs that make the calls of Linux AIO by number get the same
//! contexts as through libaio's functions. Other numbers go on to the next `syscall`.
//!
//! Rust's standard library and this library call this function, too, with numbers that it passes on
//! to the next `syscall`. The engine makes system calls by its own instructions (`sys.rs` in core).

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::Ordering;

use uringlet::front::syscall::{NEXT, failed, find_next};
use uringlet::front::{self, IoEvent};

use crate::abi::Iocb;
use crate::{EFAULT, EINVAL, descriptors, enter, events, handle};
use uringlet::front::memory::{accessible, accessible_now};

uringlet::at_load!(find_next);

/// syscall(2). Registers and stack are unchanged, so that a call can be passed on whatever the
/// number of its arguments.
///
/// # Safety
/// As the system call.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(not(miri), unsafe(no_mangle))]
pub unsafe extern "C" fn syscall(number: c_long) -> c_long {
    // The kernel uses the lower half of the number. r11 is a scratch register.
    std::arch::naked_asm!(
        "lea r11d, [rdi - {first}]",
        "cmp r11d, {last} - {first}",
        "jbe 2f",
        "cmp edi, {pgetevents}",
        "je 2f",
        "cmp edi, {close}",
        "je 2f",
        "cmp edi, {dup2}",
        "je 2f",
        "cmp edi, {dup3}",
        "je 2f",
        "cmp edi, {close_range}",
        "je 2f",
        "cmp edi, {unshare}",
        "je 2f",
        "cmp edi, {exit_group}",
        "je 2f",
        "cmp edi, {execve}",
        "je 2f",
        "cmp edi, {execveat}",
        "je 2f",
        "jmp qword ptr [rip + {next}]",
        "2: jmp {ours}",
        first = const libc::SYS_io_setup,
        last = const libc::SYS_io_cancel,
        pgetevents = const PGETEVENTS,
        close = const libc::SYS_close,
        dup2 = const libc::SYS_dup2,
        dup3 = const libc::SYS_dup3,
        close_range = const libc::SYS_close_range,
        unshare = const libc::SYS_unshare,
        exit_group = const libc::SYS_exit_group,
        execve = const libc::SYS_execve,
        execveat = const libc::SYS_execveat,
        next = sym NEXT,
        ours = sym ours,
    )
}

/// As on x86-64. x16 is a scratch register, which code of the linker may change during a call.
///
/// # Safety
/// As the system call.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[cfg_attr(not(miri), unsafe(no_mangle))]
pub unsafe extern "C" fn syscall(number: c_long) -> c_long {
    std::arch::naked_asm!(
        "cmp w0, #{last}",
        "b.ls 2f",
        "cmp w0, #{pgetevents}",
        "b.eq 2f",
        "cmp w0, #{close}",
        "b.eq 2f",
        "cmp w0, #{dup3}",
        "b.eq 2f",
        "cmp w0, #{close_range}",
        "b.eq 2f",
        "cmp w0, #{unshare}",
        "b.eq 2f",
        "cmp w0, #{exit_group}",
        "b.eq 2f",
        "cmp w0, #{execve}",
        "b.eq 2f",
        "cmp w0, #{execveat}",
        "b.eq 2f",
        "adrp x16, {next}",
        "ldr x16, [x16, :lo12:{next}]",
        "br x16",
        "2: b {ours}",
        // io_setup has the number 0, so no lower bound is needed.
        last = const libc::SYS_io_getevents,
        pgetevents = const PGETEVENTS,
        close = const libc::SYS_close,
        dup3 = const libc::SYS_dup3,
        close_range = const libc::SYS_close_range,
        unshare = const libc::SYS_unshare,
        exit_group = const libc::SYS_exit_group,
        execve = const libc::SYS_execve,
        execveat = const libc::SYS_execveat,
        next = sym NEXT,
        ours = sym ours,
    )
}

/// `SYS_io_pgetevents`, which the `libc` crate leaves out.
const PGETEVENTS: c_long = if cfg!(target_arch = "x86_64") { 333 } else { 292 };

/// Answers the calls that `syscall` does not pass on. A system call has at most six arguments;
/// arguments that the call does not use are ignored.
unsafe extern "C-unwind" fn ours(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: the caller's contract. The call itself sets errno if it fails.
    if let Some(answer) = unsafe { descriptors::by_number(number, [a, b, c]) } {
        return answer.into();
    }
    if leaves(number) {
        type Syscall =
            unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;
        enter(|| handle::before_leaving());
        // SAFETY: `NEXT` has the function that `find_next` found, or its stand-in, which takes the
        // same arguments.
        let next =
            unsafe { std::mem::transmute::<*mut c_void, Syscall>(NEXT.load(Ordering::Relaxed)) };
        // SAFETY: called with the arguments that our caller passed.
        return unsafe { next(number, a, b, c, d, e, f) };
    }
    // SAFETY: the caller's contract: as the call of that number.
    let answer = unsafe {
        match c_long::from(number as u32) {
            libc::SYS_io_setup => crate::_io_setup(a as c_int, b as *mut usize),
            libc::SYS_io_destroy => crate::_io_destroy(a),
            libc::SYS_io_submit => crate::_io_submit(a, b as c_long, c as *const *const Iocb),
            libc::SYS_io_cancel => crate::_io_cancel(a, b as *const Iocb, c as *mut IoEvent),
            libc::SYS_io_getevents => enter(|| get_events(a, b, c, d, e, None)),
            _ => enter(|| match mask_of(e, f) {
                Ok(mask) => get_events(a, b, c, d, e, mask),
                Err(errno) => errno,
            }),
        }
    };
    if answer < 0 { failed(answer.into()) } else { answer.into() }
}

/// Does this call end the process, or execute another program?
fn leaves(number: c_long) -> bool {
    matches!(
        c_long::from(number as u32),
        libc::SYS_exit_group | libc::SYS_execve | libc::SYS_execveat
    )
}

/// The kernel's io_getevents(2): unlike libaio's, it checks its arguments before it reads the ring.
///
/// # Safety
/// As io_getevents(2).
unsafe fn get_events(
    handle: usize,
    min: usize,
    nr: usize,
    events: usize,
    timeout: usize,
    mask: Option<u64>,
) -> c_int {
    if !is_timespec(timeout) {
        return EFAULT;
    }
    let Some(context) = handle::get(handle) else { return EINVAL };
    let (min, nr) = (min as i64, nr as i64);
    if min < 0 || min > nr {
        return EINVAL;
    }
    let (events, timeout) = (events as *mut IoEvent, timeout as *const libc::timespec);
    // SAFETY: the caller's contract.
    let got = unsafe { events::get_events(context, min, nr, events, timeout, mask) as c_int };
    match mask {
        // Pending signals that `mask` allows are handled even if the timeout is zero.
        Some(mask) if got == 0 && front::interrupted_under(mask) => -libc::EINTR,
        _ => got,
    }
}

fn is_timespec(timeout: usize) -> bool {
    timeout == 0 || accessible(timeout, size_of::<libc::timespec>(), false)
}

/// The signal mask of io_pgetevents(2). The call's last argument points to the mask's address and
/// size.
fn mask_of(timeout: usize, argument: usize) -> Result<Option<u64>, c_int> {
    /// `struct __aio_sigset` of linux/aio_abi.h.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Sigset {
        mask: *const u64,
        size: usize,
    }
    // The kernel reads the timeout before the mask.
    if !is_timespec(timeout) {
        return Err(EFAULT);
    }
    if argument == 0 {
        return Ok(None);
    }
    if !accessible_now(argument, size_of::<Sigset>(), false) {
        return Err(EFAULT);
    }
    // SAFETY: the bytes are readable, and any bytes are a valid `Sigset`.
    let Sigset { mask, size } = unsafe { (argument as *const Sigset).read_unaligned() };
    if mask.is_null() {
        return Ok(None);
    }
    if size != size_of::<u64>() {
        return Err(EINVAL);
    }
    if !accessible_now(mask as usize, size, false) {
        return Err(EFAULT);
    }
    // SAFETY: readable.
    Ok(Some(unsafe { mask.read_unaligned() }))
}
