//! uringlet's side: a `Context`, used as in any application.

#![allow(unsafe_code)]

use super::drive::{Queue, Request, unless_interrupted};
use super::manner::EventLoop;
use super::workload::Operation;
use uringlet::{Builder, Context, Sqe};

/// A context with room for `depth` requests.
pub struct Ours(Context);

impl Ours {
    /// # Errors
    /// The reason why the context could not be made.
    pub fn new(builder: Builder, depth: usize) -> Result<Self, String> {
        let entries = u32::try_from(depth).map_err(|error| error.to_string())?;
        let made = builder.entries(entries).build();
        made.map(Self).map_err(|error| format!("no context: {error}"))
    }

    pub fn context(&self) -> &Context {
        &self.0
    }
}

impl Queue for Ours {
    #[inline]
    unsafe fn prepare(&mut self, request: Request) {
        let Request { fd, operation, buffer, offset, slot } = request;
        let sqe = match operation {
            Operation::Read => Sqe::read(fd, buffer, offset),
            Operation::Write => Sqe::write(fd, buffer, offset),
            Operation::Fsync => Sqe::fsync(fd),
        };
        // SAFETY: the caller keeps the buffer until the slot comes back; dropping the context
        // waits for what is in flight.
        let pushed = unsafe { self.0.push(sqe.user_data(slot as u64)) };
        assert!(pushed.is_ok(), "a context of `depth` entries refused one of `depth` requests");
    }

    #[inline]
    fn submit(&mut self) -> std::io::Result<()> {
        self.0.submit().map(drop)
    }

    #[inline]
    fn wait(&mut self) -> std::io::Result<()> {
        unless_interrupted(self.0.wait(1, None))
    }

    #[inline]
    fn reap(&mut self, mut take: impl FnMut(usize, i64)) {
        while let Some(cqe) = self.0.reap() {
            take(cqe.user_data as usize, i64::from(cqe.res));
        }
    }

    fn event_loop(&mut self) -> Result<EventLoop, String> {
        let eventfd = self.0.eventfd().and_then(|eventfd| eventfd.try_clone_to_owned());
        EventLoop::watching(eventfd.map_err(|error| format!("no eventfd: {error}"))?)
    }
}
