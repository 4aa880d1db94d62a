//! URING_CMD: commands to sockets.

use super::{Attempt, Tried};
use crate::sys::sockets;

/// A command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    /// Bytes that can be received.
    Readable,
    /// Bytes that are yet to be sent.
    Unsent,
    /// Reads an option. The fields are its level and name, the address for the value, and the room
    /// there.
    GetOption([i32; 2], u64, u32),
    SetOption([i32; 2], u64, u32),
    /// A command that is not served.
    Other,
}

impl Attempt for Command {
    fn is_judged(&self) -> bool {
        matches!(self, Self::SetOption(..))
    }

    fn attempt(&self, fd: i32) -> Tried {
        Tried::Done(self.run(fd))
    }
}

impl Command {
    fn run(&self, fd: i32) -> i32 {
        let is_of_internet = match sockets::option(fd, libc::SO_DOMAIN) {
            Ok(domain) => [libc::AF_INET, libc::AF_INET6].contains(&domain),
            Err(errno) if errno == -libc::EBADF => return errno,
            Err(_) => return -libc::EOPNOTSUPP,
        };
        match *self {
            // Other sockets have no such queue, or do not show it.
            Self::Readable if is_of_internet => sockets::readable(fd),
            Self::Unsent if is_of_internet => sockets::queued_to_send(fd),
            Self::GetOption([level, _], ..) if level != libc::SOL_SOCKET => -libc::EOPNOTSUPP,
            Self::GetOption([level, which], at, len) => {
                sockets::get_option(fd, (level, which), at, len)
            }
            Self::SetOption([level, which], at, len) => {
                sockets::set_option(fd, (level, which), at, len)
            }
            Self::Readable | Self::Unsent | Self::Other => -libc::EOPNOTSUPP,
        }
    }
}
