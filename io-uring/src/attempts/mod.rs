//! Operations that few programs use, each in a file of its own. They are tried without the lock of
//! a ring, as calls on sockets are, and again when their descriptors are ready.

use std::fmt;
use std::sync::Arc;

mod children;
mod commands;
mod epolls;
mod futexes;
mod sleepers;

pub(crate) use self::children::WaitChild;
pub(crate) use self::commands::Command;
pub(crate) use self::epolls::EpollWait;
pub(crate) use self::futexes::{FutexWait, FutexWake};
pub(crate) use self::sleepers::Sleeper;

/// What has become of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tried {
    /// The attempt has ended with this result.
    Done(i32),
    /// The request has to be tried again when its events have come.
    Waits,
    /// There is no way to make this call without waiting.
    Blocks,
    /// A separate thread has to wait for the request, in the [`sleeper`](Attempt::sleeper).
    Sleeps,
}

/// A call that can be made without waiting.
pub(crate) trait Attempt: fmt::Debug + Send + Sync {
    /// The events that the request waits for (poll(2)).
    fn events(&self) -> i16 {
        0
    }

    /// Does the kernel check the rights of the calling thread?
    fn is_judged(&self) -> bool {
        false
    }

    /// Makes the call, on this descriptor.
    fn attempt(&self, fd: i32) -> Tried;

    /// The wait that follows a try which returned [`Tried::Sleeps`].
    fn sleeper(self: Arc<Self>) -> Option<Arc<dyn Sleeper>> {
        None
    }
}
