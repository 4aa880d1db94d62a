//! io_uring(7), through the `io-uring` crate.
//!
//! Any thread may hand over and another may sleep, so the ring is not bound to one issuer. The
//! kernel finishes a request in the thread that has handed it over. To interrupt that thread for
//! each request costs as much as all other work on the request. Mostly the thread sleeps for its
//! requests anyway. So the kernel does not interrupt it (`IORING_SETUP_COOP_TASKRUN`). If the
//! thread computes instead, other threads that look for completions interrupt it.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, opcode as op, squeue, types};

use super::backend::{Backend, Eventfds, Harvested, Tell, nap};
use crate::config::EngineKind;
use crate::own;
use crate::queue::SleepEnd;
use crate::request::{Kind, Request, Requests};
use crate::router::tuning::TICK;
use crate::sqe::{FSYNC_DATASYNC, opcode};
use crate::sync::{lock, this_thread};
use crate::sys;

/// The maximum number of entries of a submission queue; more are submitted in several steps.
const ENTRIES_MAX: usize = 1024;

/// `IORING_ENTER_GETEVENTS` of the kernel's header.
const GETEVENTS: u32 = 1;

/// The user_data of the poll that ends a sleep.
const WAKE: u64 = u64::MAX;

/// An io_uring instance.
pub(super) struct Uring {
    ring: IoUring,
    /// The right to write to the submission queue.
    submission: Mutex<()>,
    room: usize,
    fds: Eventfds,
    /// An eventfd signals completions.
    told: AtomicBool,
    /// The kernel does not interrupt the thread that has handed over, so other threads have to.
    cooperates: bool,
    /// The thread that hands over, as [`this_thread`], [`NOBODY`] or [`SEVERAL`].
    issuer: AtomicUsize,
}

/// `NOBODY`: no thread has handed over yet; `SEVERAL`: more than one have.
const NOBODY: usize = 0;
const SEVERAL: usize = 1;

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uring").field("room", &self.room).field("fds", &self.fds).finish()
    }
}

fn errno(error: &std::io::Error) -> i32 {
    -error.raw_os_error().unwrap_or(libc::EIO)
}

impl Uring {
    /// # Errors
    /// The negative errno of io_uring_setup(2) or eventfd(2).
    pub(super) fn new(slots: usize) -> Result<Self, i32> {
        let entries = (slots + 1).min(ENTRIES_MAX) as u32;
        // The ring has place for one completion more than there are slots: that of the poll that
        // ends a sleep.
        let completions =
            (slots as u32 + 1).next_power_of_two().max(2 * entries.next_power_of_two());
        let make = |cooperates| {
            let mut builder = IoUring::builder();
            builder.setup_cqsize(completions).setup_clamp();
            if cooperates {
                builder.setup_coop_taskrun().setup_taskrun_flag();
            }
            builder.build(entries).map_err(|error| errno(&error))
        };
        let mut cooperates = sys::membarrier_register();
        let mut made = make(cooperates);
        if cooperates && made.as_ref().is_err_and(|&errno| errno == -libc::EINVAL) {
            // The kernel is older than Linux 5.19.
            cooperates = false;
            made = make(false);
        }
        let ring = made?;
        if !ring.params().is_feature_ext_arg() {
            // The kernel is older than Linux 5.11: the wait has no timeout.
            return Err(-libc::ENOSYS);
        }
        own::note(ring.as_raw_fd());
        let room = slots.min(ring.params().cq_entries() as usize - 1);
        let (told, issuer) = (AtomicBool::new(false), AtomicUsize::new(NOBODY));
        let (submission, fds) = (Mutex::new(()), Eventfds::new());
        Ok(Self { ring, submission, room, fds, told, cooperates, issuer })
    }

    /// Puts one entry into the submission queue. False: there is no room.
    fn push(&self, _writer: &MutexGuard<'_, ()>, entry: &squeue::Entry) -> bool {
        // SAFETY: the guard says that nobody else writes to the queue.
        let mut queue = unsafe { self.ring.submission_shared() };
        // SAFETY: the entry's buffers are the request's until its completion.
        unsafe { queue.push(entry) }.is_ok()
    }

    /// Has the kernel taken everything in the submission queue?
    fn is_handed_over(&self, _writer: &MutexGuard<'_, ()>) -> bool {
        // SAFETY: the guard says that nobody else writes to the queue.
        unsafe { self.ring.submission_shared() }.is_empty()
    }

    fn arm(&self) {
        let wake = self.fds.wake();
        if wake < 0 || self.fds.armed.swap(true, Ordering::Relaxed) {
            return;
        }
        if self.cooperates {
            self.issue();
        }
        let entry = op::PollAdd::new(types::Fd(wake), libc::POLLIN as u32).build();
        let writer = lock(&self.submission);
        let pushed = self.push(&writer, &entry.user_data(WAKE));
        drop(writer);
        // This call only submits: a call that submits and sleeps would hide that a signal ended the
        // sleep.
        if !pushed || self.ring.submit().is_err() {
            self.fds.armed.store(false, Ordering::Relaxed);
        }
    }

    fn tell(&self) {
        if !self.told.swap(true, Ordering::AcqRel) {
            let fd = self.fds.events();
            if fd < 0 || self.ring.submitter().register_eventfd(fd).is_err() {
                // Without these signals, the watchdog finds the completions.
                self.told.store(false, Ordering::Release);
            }
        }
    }

    /// The calling thread hands requests over. Another thread may have been the only one to do so,
    /// and may sleep without a limit. That thread is woken, and from then on sleeps for a tick at
    /// most. The reason: the kernel does not interrupt the calling thread to finish its requests.
    fn issue(&self) {
        let now = this_thread();
        let before = self.issuer.load(Ordering::Relaxed);
        if before == now || before == SEVERAL {
            return;
        }
        let first = self.issuer.compare_exchange(NOBODY, now, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_err() && self.issuer.swap(SEVERAL, Ordering::Relaxed) != SEVERAL {
            sys::eventfd_add(self.fds.wake(), 1);
        }
    }

    /// Has the calling thread handed over all requests? It then finishes them when it enters the
    /// kernel.
    fn is_issuer(&self) -> bool {
        self.issuer.load(Ordering::Relaxed) == this_thread()
    }

    /// Finishes requests whose I/O is done, and which only wait for their thread.
    fn finish_issued(&self) {
        if self.is_issuer() {
            // SAFETY: no argument, and nothing is waited for.
            let _ = unsafe { self.ring.submitter().enter::<()>(0, 0, GETEVENTS, None) };
        } else {
            // Interrupts all running threads, which finish such requests before they go on.
            sys::membarrier();
        }
    }

    /// Are there requests that wait for their thread to finish them? A hint: if several threads
    /// hand over, one may clear the flag of another.
    fn has_unfinished(&self) -> bool {
        let writer = self.submission.try_lock();
        // SAFETY: the guard says that nobody else writes to the queue.
        writer.is_ok_and(|_writer| unsafe { self.ring.submission_shared() }.taskrun())
    }

    fn read_ring(&self, done: &mut [Harvested]) -> usize {
        // SAFETY: the caller is the one reaper, and only the reaper reads this queue.
        let mut queue = unsafe { self.ring.completion_shared() };
        let mut n = 0;
        while n < done.len()
            && let Some(entry) = queue.next()
        {
            if entry.user_data() == WAKE {
                sys::eventfd_drain(self.fds.wake());
                self.fds.armed.store(false, Ordering::Relaxed);
                continue;
            }
            done[n] = (entry.user_data() as u32, entry.result());
            n += 1;
        }
        self.fds.after_harvest();
        n
    }
}

fn entry(request: &Request) -> squeue::Entry {
    let sqe = &request.sqe;
    let fd = types::Fd(sqe.fd);
    let flags = sqe.op_flags as i32;
    let (address, len) = (sqe.addr as *mut u8, sqe.len);
    match (request.kind, sqe.opcode, &request.copied) {
        (Kind::Sync, _, _) if sqe.op_flags == FSYNC_DATASYNC => {
            op::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build()
        }
        (Kind::Sync, _, _) => op::Fsync::new(fd).build(),
        (_, opcode::READV, Some(copied)) => {
            let (iov, n) = (copied.iov.as_ptr(), copied.iov.len() as u32);
            op::Readv::new(fd, iov, n).offset(sqe.off).rw_flags(flags).build()
        }
        (_, opcode::WRITEV, Some(copied)) => {
            let (iov, n) = (copied.iov.as_ptr(), copied.iov.len() as u32);
            op::Writev::new(fd, iov, n).offset(sqe.off).rw_flags(flags).build()
        }
        (Kind::Write, ..) => {
            op::Write::new(fd, address, len).offset(sqe.off).rw_flags(flags).build()
        }
        _ => op::Read::new(fd, address, len).offset(sqe.off).rw_flags(flags).build(),
    }
}

impl Backend for Uring {
    fn kind(&self) -> EngineKind {
        EngineKind::IoUring
    }

    fn room(&self) -> usize {
        self.room
    }

    fn submit(&self, requests: Requests<'_>, tell: Tell, _at_once: bool) -> (usize, i32) {
        if tell.events {
            self.tell();
        }
        if self.cooperates {
            self.issue();
        }
        let mut pushed = 0;
        let writer = lock(&self.submission);
        for (slot, request) in requests.iter() {
            let entry = entry(request).user_data(u64::from(slot));
            // Once the entry is in the queue, another thread's call may hand it over.
            self.fds.before_submit();
            if !self.push(&writer, &entry) {
                break;
            }
            pushed += 1;
        }
        drop(writer);
        // The kernel takes the entries now or, if it refuses for the moment, at the next call.
        // After a malformed request, it posts the completion, and takes no later entry in this
        // call.
        for _ in 0..2 * ENTRIES_MAX {
            match self.ring.submit() {
                Ok(_) if self.is_handed_over(&lock(&self.submission)) => break,
                Ok(_) => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN | libc::EBUSY) => std::thread::yield_now(),
                    _ => break,
                },
            }
        }
        if pushed == 0 { (0, -libc::EAGAIN) } else { (pushed, 0) }
    }

    fn untell(&self) {
        // Otherwise the poller would be woken for every completion that a waiter collects.
        if self.told.load(Ordering::Relaxed) && self.told.swap(false, Ordering::AcqRel) {
            let _ = self.ring.submitter().unregister_eventfd();
        }
    }

    fn keeps_back(&self) -> bool {
        // If the queue is locked, another thread is handing over.
        self.submission.try_lock().map_or(true, |writer| !self.is_handed_over(&writer))
    }

    fn harvest(&self, done: &mut [Harvested]) -> usize {
        let n = self.read_ring(done);
        if n > 0 || !self.cooperates || !self.has_unfinished() {
            return n;
        }
        self.finish_issued();
        self.read_ring(done)
    }

    fn sleep(
        &self,
        min: usize,
        timeout: Option<Duration>,
        mask: Option<u64>,
        _: &mut [Harvested],
    ) -> (usize, SleepEnd) {
        self.arm();
        // If another thread has handed over, and computes, it has to be interrupted. So this thread
        // sleeps for at most a tick.
        let looks_again = self.cooperates && !self.is_issuer();
        let timeout =
            if looks_again { Some(timeout.map_or(TICK, |t| t.min(TICK))) } else { timeout };
        let time = timeout.map(Timespec::from);
        // SAFETY: an empty set is valid; the kernel's part of it is the first eight bytes.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        let mut args = SubmitArgs::new();
        if let Some(mask) = mask {
            // SAFETY: the set is longer than the mask.
            unsafe { (&raw mut set).cast::<u64>().write(mask) };
            args = args.sigmask(&set);
        }
        if let Some(time) = &time {
            args = args.timespec(time);
        }
        let end = match self.ring.submitter().submit_with_args(min, &args) {
            Ok(_) => SleepEnd::Again,
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME) => SleepEnd::TimedOut,
                Some(libc::EINTR) => SleepEnd::Interrupted,
                _ => nap(),
            },
        };
        if looks_again && end == SleepEnd::TimedOut {
            self.finish_issued();
        }
        (0, end)
    }

    fn wake_fd(&self) -> RawFd {
        self.fds.wake()
    }

    fn events(&self) -> RawFd {
        self.fds.events()
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // The ring closes its descriptor.
        own::forget(self.ring.as_raw_fd());
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests;
