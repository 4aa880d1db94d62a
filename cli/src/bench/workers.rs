//! uringlet's side: a `Context` used as any application would.

#![allow(unsafe_code)]

use super::engine::Queue;
use std::os::fd::RawFd;
use uringlet::{Context, Sqe};

/// A context with room for `depth` requests.
pub struct Workers(Context);

impl Workers {
    /// # Errors
    /// Why the context could not be made.
    pub fn new(depth: usize) -> Result<Self, String> {
        let entries = u32::try_from(depth).map_err(|error| error.to_string())?;
        let context = Context::builder().entries(entries).build();
        context.map(Self).map_err(|error| format!("no context: {error}"))
    }
}

impl Queue for Workers {
    #[inline]
    unsafe fn prepare(
        &mut self,
        fd: RawFd,
        write: bool,
        buffer: *mut [u8],
        offset: u64,
        slot: usize,
    ) {
        let sqe =
            if write { Sqe::write(fd, buffer, offset) } else { Sqe::read(fd, buffer, offset) };
        // SAFETY: the caller keeps the buffer until the slot comes back; dropping the context
        // waits for what is in flight.
        let pushed = unsafe { self.0.push(sqe.user_data(slot as u64)) };
        assert!(pushed.is_ok(), "a context of `depth` entries refused one of `depth` requests");
    }

    #[inline]
    fn submit_and_wait(&mut self) -> std::io::Result<()> {
        self.0.submit()?;
        match self.0.wait(1, None) {
            Ok(_) => Ok(()),
            // A signal (Ctrl-C, for one): the loop comes back.
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    #[inline]
    fn reap(&mut self, mut take: impl FnMut(usize, i64)) {
        while let Some(cqe) = self.0.reap() {
            take(cqe.user_data as usize, i64::from(cqe.res));
        }
    }
}
