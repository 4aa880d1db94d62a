//! What this process was started with, for the program that `run` starts. A function that the
//! loader calls before the Rust runtime notes it, because the runtime ignores SIGPIPE and opens
//! closed standard descriptors. The function itself changes two more signals:
//!
//! - SIGCHLD is not ignored any more. Otherwise the kernel would keep no exit status of a child
//!   (wait(2)).
//! - SIGXFSZ is ignored, so that a limit on the size of files is an error (RLIMIT_FSIZE).

#![allow(unsafe_code)]

use libc::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

const SIGNALS: [c_int; 3] = [libc::SIGPIPE, libc::SIGCHLD, libc::SIGXFSZ];

static IS_IGNORED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];
static IS_CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

extern "C" fn note() {
    for (signal, ignored) in SIGNALS.into_iter().zip(&IS_IGNORED) {
        ignored.store(is_ignored(signal), Ordering::Relaxed);
    }
    set(libc::SIGCHLD, libc::SIG_DFL);
    set(libc::SIGXFSZ, libc::SIG_IGN);
    for (fd, closed) in IS_CLOSED.iter().enumerate() {
        // SAFETY: fcntl(2) takes numbers.
        let flags = unsafe { libc::fcntl(fd as c_int, libc::F_GETFD) };
        closed.store(flags < 0, Ordering::Relaxed);
    }
}

/// Gives the calling process, which is about to execute a program, the signals and the standard
/// descriptors that this command was started with. Makes async-signal-safe calls only: signal(2)
/// and close(2).
pub fn restore() {
    for (signal, ignored) in SIGNALS.into_iter().zip(&IS_IGNORED) {
        let ignored = ignored.load(Ordering::Relaxed);
        set(signal, if ignored { libc::SIG_IGN } else { libc::SIG_DFL });
    }
    for (fd, closed) in IS_CLOSED.iter().enumerate() {
        if closed.load(Ordering::Relaxed) {
            // SAFETY: the program was to start without this descriptor, and has not begun.
            unsafe { libc::close(fd as c_int) };
        }
    }
}

fn is_ignored(signal: c_int) -> bool {
    // SAFETY: integers and pointers, which may be zero.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes to the structure.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    asked == 0 && action.sa_sigaction == libc::SIG_IGN
}

fn set(signal: c_int, handler: libc::sighandler_t) {
    // SAFETY: no function is installed as a handler.
    unsafe { libc::signal(signal, handler) };
}
