//! Linux AIO: io_setup(2), io_submit(2), io_getevents(2), by raw system calls.
//!
//! Completions are read from the ring that the kernel shares with the process, if its layout is the
//! known one. A system call is made only to sleep.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::backend::{Backend, Eventfds, Harvested, Tell, nap};
use crate::config::EngineKind;
use crate::lazy_zeroed::{Zero, Zeros};
use crate::queue::SleepEnd;
use crate::request::{BATCH, Kind, Request, Requests};
use crate::sqe::{FSYNC_DATASYNC, opcode};
use crate::sys;
use crate::sys::aio::{FLAG_RESFD, IoEvent, Iocb, command};

/// The `data` of the poll that ends a sleep.
const WAKE: u64 = u64::MAX;

/// The header of the ring that the kernel shares with the process.
#[repr(C)]
struct RingHeader {
    id: u32,
    places: u32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: u32,
    compat_features: u32,
    incompat_features: u32,
    header_length: u32,
}

const MAGIC: u32 = 0xa10a_10a1;

/// A kernel AIO context.
#[derive(Debug)]
pub(super) struct LinuxAio {
    /// 0 once the context is destroyed.
    context: AtomicU64,
    room: usize,
    /// One for each slot; the kernel copies them at submit.
    iocbs: Zeros<UnsafeCell<Iocb>>,
    /// The number of places in the ring. The header has it, too, but the program can overwrite
    /// that.
    places: u32,
    /// The ring has the layout that this file knows, so completions are read from it directly.
    /// Otherwise io_getevents(2) collects them.
    mapped: bool,
    fds: Eventfds,
}

// SAFETY: an iocb is numbers only, and the default of each is 0.
unsafe impl Zero for UnsafeCell<Iocb> {
    fn zero() -> Self {
        Self::default()
    }
}

// SAFETY: an iocb is touched by the thread that holds its slot; the ring by the one reaper.
unsafe impl Sync for LinuxAio {}
// SAFETY: as above.
unsafe impl Send for LinuxAio {}

impl LinuxAio {
    /// Takes room for `wanted` requests out of the host's limit fs.aio-max-nr, or for fewer if less
    /// is left.
    ///
    /// # Errors
    /// The negative errno of io_setup(2).
    pub(super) fn new(slots: usize, mut wanted: usize) -> Result<Self, i32> {
        let context = loop {
            match sys::io_setup(wanted) {
                Err(errno) if errno == -libc::EAGAIN && wanted > 32 => {
                    wanted = (wanted / 4).max(32);
                }
                made => break made?,
            }
        };
        // SAFETY: the context's address is that of its ring, mapped readable and writable.
        let header = unsafe { &*(context as *const RingHeader) };
        let known = header.magic == MAGIC && header.incompat_features == 0;
        let mapped = known && header.header_length as usize == size_of::<RingHeader>();
        // The ring has more than twice the places that were asked for. The kernel's reserves for
        // each CPU hold fewer than half of them (fs/aio.c, get_reqs_available), and the poll that
        // ends a sleep needs one.
        let room = if known { slots.min(header.places as usize / 2 - 1) } else { wanted };
        // The memory of an iocb is touched only when its slot is used.
        let iocbs = Zeros::new(slots);
        Ok(Self {
            context: AtomicU64::new(context),
            room,
            iocbs,
            places: header.places,
            mapped,
            fds: Eventfds::new(),
        })
    }

    fn context(&self) -> u64 {
        self.context.load(Ordering::Relaxed)
    }

    /// The ring's header. Only the reaper calls this, and there is no reaper after
    /// [`Backend::close`].
    fn header(&self) -> &RingHeader {
        // SAFETY: mapped as long as the context exists.
        unsafe { &*(self.context() as *const RingHeader) }
    }

    /// Reads completions from the shared ring.
    fn read_ring(&self, done: &mut [Harvested]) -> usize {
        let header = self.header();
        let places = self.places;
        let within = |place: u32| if place < places { place } else { place % places };
        let mut head = within(header.head.load(Ordering::Relaxed));
        // Acquire: this thread sees the events that the kernel has written before the tail.
        let tail = within(header.tail.load(Ordering::Acquire));
        let mut n = 0;
        while head != tail && n < done.len() {
            // SAFETY: between head and tail lie valid events, which the kernel does not write to
            // before the head has passed them.
            let event = unsafe {
                let events = std::ptr::from_ref(header).add(1).cast::<IoEvent>();
                *events.add(head as usize)
            };
            head = if head + 1 >= places { 0 } else { head + 1 };
            n += self.take(event, &mut done[n]);
        }
        header.head.store(head, Ordering::Release);
        self.fds.after_harvest();
        n
    }

    /// Stores the completion of a request in `done`, and returns 1. Returns 0 for any other event.
    fn take(&self, event: IoEvent, done: &mut Harvested) -> usize {
        if event.data == WAKE {
            sys::eventfd_drain(self.fds.wake());
            self.fds.armed.store(false, Ordering::Relaxed);
            return 0;
        }
        // The program can write to the ring: an event that belongs to none of these requests is no
        // completion.
        let iocb = self.iocbs.get(event.data as usize);
        if iocb.is_none_or(|iocb| iocb.get().addr() as u64 != event.obj) {
            return 0;
        }
        *done = (event.data as u32, event.res as i32);
        1
    }

    fn get_events(
        &self,
        min: usize,
        timeout: Option<Duration>,
        mask: Option<u64>,
        done: &mut [Harvested],
    ) -> (usize, SleepEnd) {
        let mut events = [IoEvent::default(); 64];
        let most = events.len().min(done.len());
        let got = sys::io_pgetevents(
            self.context(),
            min.min(most),
            &mut events[..most],
            timeout,
            mask.as_ref(),
        );
        if got < 0 {
            let interrupted = got as i32 == -libc::EINTR;
            return (0, if interrupted { SleepEnd::Interrupted } else { nap() });
        }
        let mut n = 0;
        for &event in &events[..got as usize] {
            n += self.take(event, &mut done[n]);
        }
        self.fds.after_harvest();
        (n, if got == 0 { SleepEnd::TimedOut } else { SleepEnd::Again })
    }

    fn arm(&self) {
        let wake = self.fds.wake();
        if wake < 0 || self.fds.armed.swap(true, Ordering::Relaxed) {
            return;
        }
        let poll = Iocb {
            data: WAKE,
            opcode: command::POLL,
            fd: wake as u32,
            buf: libc::POLLIN as u64,
            ..Iocb::default()
        };
        let pointers = [&raw const poll];
        // SAFETY: one pointer to a filled iocb, which the kernel copies.
        if unsafe { sys::io_submit(self.context(), 1, pointers.as_ptr().cast()) } != 1 {
            self.fds.armed.store(false, Ordering::Relaxed);
        }
    }
}

fn fill(request: &Request, slot: u32) -> Iocb {
    let sqe = &request.sqe;
    let vector = matches!(sqe.opcode, opcode::READV | opcode::WRITEV);
    let command = match (request.kind, vector) {
        (Kind::Read, false) => command::PREAD,
        (Kind::Read, true) => command::PREADV,
        (Kind::Write, false) => command::PWRITE,
        (Kind::Write, true) => command::PWRITEV,
        _ if sqe.op_flags == FSYNC_DATASYNC => command::FDSYNC,
        _ => command::FSYNC,
    };
    let mut iocb = Iocb {
        data: u64::from(slot),
        opcode: command,
        fd: sqe.fd as u32,
        buf: sqe.addr,
        nbytes: u64::from(sqe.len),
        offset: sqe.off as i64,
        ..Iocb::default()
    };
    if request.kind == Kind::Sync {
        return iocb;
    }
    iocb.rw_flags = sqe.op_flags;
    // A vector that was not copied yet is read from the program's memory.
    if vector
        && let Some(copied) = &request.copied
        && !copied.iov.is_empty()
    {
        (iocb.buf, iocb.nbytes) = (copied.iov.as_ptr() as u64, copied.iov.len() as u64);
    }
    iocb
}

impl Backend for LinuxAio {
    fn kind(&self) -> EngineKind {
        EngineKind::LinuxAio
    }

    fn room(&self) -> usize {
        self.room
    }

    fn submits_at_once(&self) -> bool {
        true
    }

    fn counts_up(&self) -> bool {
        true
    }

    fn submit(&self, requests: Requests<'_>, tell: Tell, at_once: bool) -> (usize, i32) {
        let mut pointers = [std::ptr::null::<Iocb>(); BATCH];
        for ((slot, request), pointer) in requests.iter().zip(&mut pointers) {
            let mut iocb = fill(request, slot);
            if at_once && request.kind != Kind::Sync {
                iocb.rw_flags |= libc::RWF_NOWAIT as u32;
            }
            let is_watched = request.notify >= 0 && request.notify == tell.program;
            let eventfd = match () {
                () if is_watched => tell.program,
                () if tell.events => self.fds.events(),
                () => -1,
            };
            if eventfd >= 0 {
                (iocb.flags, iocb.resfd) = (FLAG_RESFD, eventfd as u32);
            }
            let place = self.iocbs[slot as usize].get();
            // SAFETY: the iocb of a slot belongs to the thread that holds the slot: this one.
            unsafe { *place = iocb };
            *pointer = place;
        }
        self.fds.before_submit();
        // SAFETY: as many pointers to filled iocbs, which the kernel copies; buffers are the
        // requests'.
        let ret =
            unsafe { sys::io_submit(self.context(), requests.len(), pointers.as_ptr().cast()) };
        match usize::try_from(ret) {
            Ok(0) => (0, -libc::EAGAIN),
            Ok(taken) => (taken, 0),
            Err(_) => (0, ret as i32),
        }
    }

    fn harvest(&self, done: &mut [Harvested]) -> usize {
        if self.mapped {
            return self.read_ring(done);
        }
        self.get_events(0, Some(Duration::ZERO), None, done).0
    }

    fn sleep(
        &self,
        min: usize,
        timeout: Option<Duration>,
        mask: Option<u64>,
        done: &mut [Harvested],
    ) -> (usize, SleepEnd) {
        self.arm();
        self.get_events(min, timeout, mask, done)
    }

    fn close(&self) {
        // The context is destroyed at once, and not when the last thread drops it: fs.aio-max-nr is
        // one number for the whole host. Only the poll of `wake_fd` can be in flight; this call
        // cancels it.
        let context = self.context.swap(0, Ordering::Relaxed);
        if context != 0 {
            sys::io_destroy(context);
        }
    }

    fn wake_fd(&self) -> RawFd {
        self.fds.wake()
    }

    fn events(&self) -> RawFd {
        self.fds.events()
    }
}

impl Drop for LinuxAio {
    fn drop(&mut self) {
        self.close();
    }
}
