//! EPOLL_WAIT: events of an epoll.

use super::{Attempt, Tried};
use crate::sys;

/// The address for the events, and the number of events that it has room for.
#[derive(Debug)]
pub(crate) struct EpollWait {
    pub(crate) at: u64,
    pub(crate) most: i32,
}

impl Attempt for EpollWait {
    fn events(&self) -> i16 {
        libc::POLLIN
    }

    fn attempt(&self, fd: i32) -> Tried {
        match sys::epoll_events(fd, self.at, self.most) {
            0 => Tried::Waits,
            errno if errno == -libc::EINTR => Tried::Waits,
            result => Tried::Done(result),
        }
    }
}
