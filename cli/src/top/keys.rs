//! Waits for keys, on a terminal that may be closed.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::Result;
use std::time::Duration;

/// Waits for a key, a signal, or the timeout. False: the terminal was closed; every later read from
/// it returns nothing.
///
/// # Errors
/// The errors of poll(2).
pub fn wait(time: Duration) -> Result<bool> {
    let input = std::io::stdin();
    let mut polled = [PollFd::new(&input, PollFlags::IN)];
    match poll(&mut polled, Timespec::try_from(time).ok().as_ref()) {
        Err(Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
        Ok(_) => {
            let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
            Ok(!polled[0].revents().intersects(gone))
        }
    }
}
