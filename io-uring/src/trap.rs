//! System calls that the program makes by its own instructions, not through a function. They become
//! jumps (`trap/jump.rs`). If one cannot be replaced, a seccomp(2) filter has the kernel send
//! SIGSYS for it, and its handler answers (`trap/signal.rs`).
//!
//! The filter names the addresses of one text. So it does not apply to this library's calls.
//! Programs that this one starts inherit it: their calls at these addresses are trapped, too. It
//! stays until the process ends (seccomp(2)). Text that is mapped later is not in it. If all calls
//! of a text are jumps, the text needs no filter.
#![allow(unsafe_code)]

mod filter;
#[cfg(target_arch = "x86_64")]
mod jump;
#[cfg(target_arch = "x86_64")]
mod registers;
mod signal;

use std::ops::Range;
use std::sync::Mutex;

use uringlet::front;
use uringlet::front::env::{self, Trap};

use crate::sites;

uringlet::at_load!(at_load);

/// Ranges of code whose calls reach the library.
static COVERED: Mutex<Vec<Range<usize>>> = Mutex::new(Vec::new());

/// Redirects calls before the program begins, while it has one thread and no ring. Only the program
/// itself is searched, because a search through all libraries takes longer than most programs run.
/// Programs of distributions do not set rings up by their own instructions. If a ring is set up
/// through a function, the libraries are searched then.
extern "C" fn at_load() {
    sites::covered_by(covers);
    if env::trap() == Trap::Never || crate::setup::steps_aside() {
        return;
    }
    // Finds the C library's syscall(2). Its address tells which text is the C library's, and that
    // text is not searched.
    uringlet::front::syscall::find_next();
    if crate::sys::has_filters() {
        // The program that has started this one may have set a filter. Then calls at the addresses
        // that it names send SIGSYS here, too.
        signal::handle();
    }
    sites::look_at_program();
}

/// Makes the calls in this range of code reach the library, if `URINGLET_TRAP` asks for it. False:
/// they do not reach it. `makes_calls`: some of io_uring's calls were found there. `is_program`:
/// the code is the program's own, and no library's.
///
/// # Safety
/// The text is a loaded segment, can be read, and stays.
pub(crate) unsafe fn covers(text: &Range<usize>, makes_calls: bool, is_program: bool) -> bool {
    let wanted = match env::trap() {
        Trap::Never => false,
        Trap::Auto | Trap::Signals => makes_calls,
        Trap::Always => makes_calls || is_program,
    };
    if !wanted {
        return false;
    }
    let mut covered = front::lock(&COVERED);
    if covered.contains(text) {
        return true;
    }
    // SAFETY: the caller's contract.
    let is_covered = unsafe { comes_here(text) };
    if is_covered {
        covered.push(text.clone());
    }
    is_covered
}

/// Replaces the calls of a text by jumps. Calls that cannot be replaced come as signals. If signals
/// are needed and not possible, nothing is replaced: otherwise only a part of a ring's calls would
/// reach this library.
///
/// # Safety
/// As [`covers`].
#[cfg(target_arch = "x86_64")]
unsafe fn comes_here(text: &Range<usize>) -> bool {
    if env::trap() == Trap::Signals {
        return traps(text);
    }
    // SAFETY: the caller's contract.
    let jumps = unsafe { jump::Jumps::find(text) };
    if jumps.are_all && env::trap() == Trap::Auto {
        return jumps.write() || traps(text);
    }
    traps(text) && {
        jumps.write();
        true
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn comes_here(text: &Range<usize>) -> bool {
    traps(text)
}

/// Makes the kernel send a signal for each call of a text. False: that is not possible.
fn traps(text: &Range<usize>) -> bool {
    // The handler is installed first: a signal without one ends the process.
    let is_set = signal::handle() && filter::install(text);
    if is_set {
        env::filtered();
    }
    is_set
}

/// The numbers of the calls that the filter and the jumps redirect, besides mmap(2).
const CALLS: [i64; 4] = [
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_close,
];

/// Makes a call for the program: its result, or a negative errno.
///
/// # Safety
/// As the call.
unsafe fn make(number: i64, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the caller's contract.
    unsafe {
        match number {
            libc::SYS_io_uring_setup => crate::setup::setup(a as u32, b) as isize,
            libc::SYS_io_uring_enter => {
                crate::enter::enter(a as i32, b as u32, c as u32, d as u32, [e, f]) as isize
            }
            libc::SYS_io_uring_register => {
                crate::register::register(a as i32, b as u32, c, d as u32) as isize
            }
            libc::SYS_mmap => crate::syscall::map(a, b, c as i32, d as i32, e as i32, f as i64),
            _ => close(a as i32),
        }
    }
}

/// close(2) as in the kernel: it is no cancellation point.
fn close(fd: i32) -> isize {
    front::enter_whole(|| {
        // Calls the first definition, because other drop-ins may have requests on the number, too.
        // SAFETY: the number is the program's to close.
        let closed = unsafe { libc::close(fd) };
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        if closed < 0 { -(errno as isize) } else { 0 }
    })
}
