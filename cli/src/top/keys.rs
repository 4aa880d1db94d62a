//! Waiting for keys, on a terminal that may go away.
#![allow(unsafe_code)]

use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

/// Waits for a key, a signal, or the end of the time. False: the terminal was hung up; whoever reads from it then
/// gets nothing, for ever.
///
/// # Errors
/// Those of poll(2).
pub fn wait(time: Duration) -> Result<bool> {
    let mut stdin = libc::pollfd { fd: libc::STDIN_FILENO, events: libc::POLLIN, revents: 0 };
    let milliseconds = i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one pollfd.
    let found = unsafe { libc::poll(&raw mut stdin, 1, milliseconds) };
    match found {
        -1 => match Error::last_os_error() {
            error if error.kind() == ErrorKind::Interrupted => Ok(true),
            error => Err(error),
        },
        _ => Ok(stdin.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) == 0),
    }
}
