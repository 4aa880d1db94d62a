//! Calls that the program makes by instructions of its own, not through a function: a seccomp(2)
//! filter has the kernel send SIGSYS for them, and its handler answers (`trap/signal.rs`). Where a
//! call can be replaced by a jump, there is no signal (`trap/jump.rs`).
//!
//! The filter names the program's own text, so that neither this library's calls nor those of a
//! program that is started later are meant. It stays until the process ends (seccomp(2)).
#![allow(unsafe_code)]

mod filter;
#[cfg(target_arch = "x86_64")]
mod jump;
mod signal;

pub(crate) use self::signal::mask_of_wait;

use std::ops::Range;
use std::sync::Mutex;
#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicBool, Ordering};

use uringlet::front;
use uringlet::front::env::{self, Trap};

use crate::sites;

uringlet::at_load!(at_load);

/// The program has not begun.
#[cfg(target_arch = "x86_64")]
static LOADING: AtomicBool = AtomicBool::new(false);

/// Text whose calls come as signals.
static COVERED: Mutex<Vec<Range<usize>>> = Mutex::new(Vec::new());

/// Before the program begins, it has one thread, and no ring.
extern "C" fn at_load() {
    if env::trap() == Trap::Never || crate::setup::steps_aside() {
        return;
    }
    // The C library's text is none of the program's.
    uringlet::front::syscall::find_next();
    if crate::sys::has_filters() {
        // Perhaps of the program that has started this one: it names text of that.
        signal::handle();
    }
    #[cfg(target_arch = "x86_64")]
    LOADING.store(true, Ordering::Relaxed);
    sites::look();
    #[cfg(target_arch = "x86_64")]
    LOADING.store(false, Ordering::Relaxed);
}

/// Do the calls of this text come as signals, from now on at the latest? `makes_calls`: some of
/// io_uring's were found there. `is_program`: it is the program's own, and no library's.
pub(crate) fn covers(text: &Range<usize>, makes_calls: bool, is_program: bool) -> bool {
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
    // The handler comes first: a signal without one ends the process.
    let is_covered = signal::handle() && filter::install(text);
    if is_covered {
        covered.push(text.clone());
        #[cfg(target_arch = "x86_64")]
        if LOADING.load(Ordering::Relaxed) && env::trap() != Trap::Signals {
            jump::patch(text);
        }
    }
    is_covered
}

/// The calls that come as signals, by their numbers.
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
            libc::SYS_io_uring_setup => crate::door::setup(a as u32, b) as isize,
            libc::SYS_io_uring_enter => {
                crate::door::enter(a as i32, b as u32, c as u32, d as u32, [e, f]) as isize
            }
            libc::SYS_io_uring_register => {
                crate::door::register(a as i32, b as u32, c, d as u32) as isize
            }
            libc::SYS_mmap => crate::syscall::map(a, b, c as i32, d as i32, e as i32, f as i64),
            _ => close(a as i32),
        }
    }
}

/// close(2) as the kernel has it: no thread is cancelled there.
fn close(fd: i32) -> isize {
    front::enter(|| {
        let _whole = front::Uncancelable::new();
        // The first definition: other drop-ins may have requests on the number, too.
        // SAFETY: the number is the program's to close.
        let closed = unsafe { libc::close(fd) };
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        if closed < 0 { -(errno as isize) } else { 0 }
    })
}
