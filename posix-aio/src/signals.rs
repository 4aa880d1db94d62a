//! Whether a sleep that a signal has ended is one that the C library would have gone on with.
#![allow(unsafe_code)]

use std::ffi::c_int;

/// Every handler of the program's asks for SA_RESTART (sigaction(2)), and there is one. The C
/// library sleeps in a call that the kernel then restarts, unless there is a timeout; the kernel's
/// wait for direct requests it never restarts, and it does not say which handler ran. Where only
/// some ask for it, nothing can be said.
#[cold]
pub(crate) fn all_restart() -> bool {
    let mut handlers = (1..=libc::SIGRTMAX()).filter_map(handler_flags).peekable();
    handlers.peek().is_some() && handlers.all(|flags| flags & libc::SA_RESTART != 0)
}

/// The flags of the handler that a signal has.
fn handler_flags(signal: c_int) -> Option<c_int> {
    // SAFETY: integers and a null pointer.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks only; the two signals that are the C library's own are refused.
    let known = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) } == 0;
    let handled = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
    (known && handled).then_some(action.sa_flags)
}
