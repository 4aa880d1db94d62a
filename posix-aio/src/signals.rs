//! Would the C library have continued a sleep that a signal has ended?
#![allow(unsafe_code)]

use std::ffi::c_int;

/// Is there a signal handler, and do all handlers have SA_RESTART (sigaction(2))? The C library
/// sleeps in a call that the kernel restarts after such a handler, unless there is a timeout. Here,
/// the kernel's wait for direct requests is never restarted, and does not tell which handler ran.
/// If only some handlers have the flag, this returns false.
#[cold]
pub(crate) fn all_restart() -> bool {
    let mut handlers = (1..=libc::SIGRTMAX()).filter_map(handler_flags).peekable();
    handlers.peek().is_some() && handlers.all(|flags| flags & libc::SA_RESTART != 0)
}

/// The flags of a signal's handler.
fn handler_flags(signal: c_int) -> Option<c_int> {
    // SAFETY: zeros are valid for the structure's integers and its pointer.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks only; the two signals that are the C library's own are refused.
    let known = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) } == 0;
    let handled = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
    (known && handled).then_some(action.sa_flags)
}
