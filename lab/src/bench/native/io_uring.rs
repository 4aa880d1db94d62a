//! io_uring through the `io-uring` crate.

#![allow(unsafe_code)]

use crate::bench::drive::{Queue, Request, unless_interrupted};
use crate::bench::manner::EventLoop;
use crate::bench::workload::Operation;
use crate::machine::sysctl;
use io_uring::{opcode, squeue, types};
use std::io::Error;
use std::os::fd::AsRawFd as _;

/// A ring of the kernel, used directly.
pub struct IoUring {
    ring: io_uring::IoUring,
    in_flight: usize,
    /// The flags of every entry.
    flags: squeue::Flags,
}

impl IoUring {
    /// The fastest setup that this kernel supports. First choice: the kernel completes requests in
    /// the waiting call (`DEFER_TASKRUN`). Second: completing them does not interrupt the thread
    /// (`COOP_TASKRUN`). Third: no flags.
    ///
    /// # Errors
    /// The reason of the kernel's refusal.
    pub fn new(depth: usize) -> Result<Self, String> {
        let entries = u32::try_from(depth).map_err(|error| error.to_string())?;
        let own_wait = || {
            let mut builder = io_uring::IoUring::builder();
            builder.setup_single_issuer().setup_defer_taskrun().build(entries)
        };
        let cooperative = || io_uring::IoUring::builder().setup_coop_taskrun().build(entries);
        let unknown = |error: &Error| error.raw_os_error() == Some(libc::EINVAL);
        let mut made = own_wait();
        if made.as_ref().is_err_and(unknown) {
            made = cooperative();
        }
        if made.as_ref().is_err_and(unknown) {
            made = io_uring::IoUring::new(entries);
        }
        match made {
            Ok(ring) => Ok(Self { ring, in_flight: 0, flags: squeue::Flags::empty() }),
            Err(error) => {
                let setting = sysctl("kernel/io_uring_disabled");
                let cause = match (error.raw_os_error(), setting.as_deref()) {
                    (Some(libc::EPERM), Some(level @ ("1" | "2"))) => {
                        format!(" (kernel.io_uring_disabled = {level})")
                    }
                    (Some(libc::EPERM | libc::EACCES), _) => " (a sandbox: seccomp or LSM)".into(),
                    (Some(libc::ENOSYS), _) => " (no io_uring in this kernel, or a sandbox)".into(),
                    (Some(libc::ENOMEM), _) => " (the limit of locked memory, ulimit -l)".into(),
                    _ => String::new(),
                };
                Err(format!("io_uring_setup refused: {error}{cause}"))
            }
        }
    }
}

impl IoUring {
    /// Has the kernel's workers execute every request, without trying it first (`IOSQE_ASYNC`).
    #[must_use]
    pub fn on_workers(mut self) -> Self {
        self.flags = squeue::Flags::ASYNC;
        self
    }
}

impl Queue for IoUring {
    #[inline]
    unsafe fn prepare(&mut self, request: Request) {
        let Request { fd, operation, buffer, offset, slot } = request;
        let (start, len) = (buffer.cast::<u8>(), buffer.len() as u32);
        let fd = types::Fd(fd);
        let entry = match operation {
            Operation::Read => opcode::Read::new(fd, start, len).offset(offset).build(),
            Operation::Write => opcode::Write::new(fd, start, len).offset(offset).build(),
            Operation::Fsync => opcode::Fsync::new(fd).build(),
        };
        let entry = entry.flags(self.flags).user_data(slot as u64);
        // SAFETY: the caller keeps the buffer until the slot comes back; drop waits for it.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "a ring of `depth` entries refused one of `depth` requests");
        self.in_flight += 1;
    }

    #[inline]
    fn submit(&mut self) -> std::io::Result<()> {
        unless_interrupted(self.ring.submit())
    }

    #[inline]
    fn wait(&mut self) -> std::io::Result<()> {
        self.submit_and_wait()
    }

    /// One system call.
    #[inline]
    fn submit_and_wait(&mut self) -> std::io::Result<()> {
        unless_interrupted(self.ring.submit_and_wait(1))
    }

    #[inline]
    fn reap(&mut self, mut take: impl FnMut(usize, i64)) {
        for cqe in self.ring.completion() {
            self.in_flight -= 1;
            take(cqe.user_data() as usize, i64::from(cqe.result()));
        }
    }

    /// Replaces the ring by one without flags. With `DEFER_TASKRUN`, requests complete only during
    /// a system call, so [`collect`](Queue::collect) would have to make a call.
    fn event_loop(&mut self) -> Result<EventLoop, String> {
        let event_loop = EventLoop::new()?;
        let entries = self.ring.params().sq_entries();
        let made = io_uring::IoUring::new(entries).and_then(|ring| {
            ring.submitter().register_eventfd(event_loop.eventfd().as_raw_fd())?;
            Ok(ring)
        });
        self.ring = made.map_err(|error| format!("no ring with an eventfd: {error}"))?;
        Ok(event_loop)
    }
}

impl Drop for IoUring {
    /// Waits for all requests, because they use the buffers. Closing a ring does not wait for them.
    fn drop(&mut self) {
        while self.in_flight > 0 {
            match self.submit_and_wait() {
                Ok(()) => self.reap(|_, _| ()),
                // Waiting is no longer possible, and the kernel may still write to the buffers.
                Err(_) => std::process::abort(),
            }
        }
    }
}
