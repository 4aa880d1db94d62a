//! What a front end (another ABI on top of the engine) needs beyond [`Context`](crate::Context).
//! The interface is not stable.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::time::Duration;

pub mod descriptors;
pub mod env;
pub mod leaving;
pub mod memory;
pub mod note;
pub mod seen;
pub mod sites;
pub mod streams;
pub mod syscall;
pub mod waits;

pub use self::descriptors::Ends;
pub use crate::board::{DirectCompletions, Sink};
pub use crate::errno::{kept as enter, refuse, set_errno};
pub use crate::eventfd::Eventfd;
pub use crate::exec::{CALL, CallFunction};
pub use crate::fallback_alloc::{Reserve, context_bytes, has_memory};
pub use crate::instance::cancel::{Canceled, InFlight};
pub use crate::instance::fast::Transfer;
pub use crate::instance::submit::{Entry, Place, SubmitSteps, Submitted, TOLD_OTHERWISE};
pub use crate::instance::wait::{Alongside, WaitCondition, Waited};
pub use crate::instance::{Instance, RingMemory};
pub use crate::process::PerProcess;
pub use crate::queue::Concern;
pub use crate::sync::{Guard, Patience, holds_lock, lock, lock_counted};
pub use crate::sys::aio::IoEvent;
pub use crate::sys::return_stack::after_call;
pub use crate::sys::{Uncancelable, in_user_space, ticks};
pub use crate::threads::timers::{Armed, Expire};
pub use crate::word::handover::Handover;
pub use crate::word::readiness::Readiness;

use crate::descriptor::{self, InTurn};
use crate::router::facts::{Facts, FileKind, Fresh};
use crate::sqe::{FILE_POSITION, Sqe};
use crate::{eventfd, exec, own, paths, process, sys, threads};

/// What is remembered of a descriptor number, which may stand for another file now: hints. Hints
/// are enough to accept a usual request, because the call that executes the request reports any
/// error. Any other answer needs a [`Descriptor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hints(Facts);

impl Hints {
    /// The hints about a descriptor; asks the kernel if there are none.
    ///
    /// # Errors
    /// `-EBADF`: there were no hints, and the descriptor is not open.
    #[inline]
    pub fn known(fd: i32) -> Result<Self, i32> {
        descriptor::known(fd).map(Self)
    }

    /// Was the descriptor open for reads (or writes)?
    #[inline]
    pub fn seems_open_for(self, write: bool) -> bool {
        self.0.seems_open_for(write)
    }

    /// Was the descriptor a socket when it was last asked about?
    pub fn seems_socket(self) -> bool {
        self.0.seems_socket()
    }

    /// Did fsync(2) support this kind of file?
    #[inline]
    pub fn seems_to_sync(self) -> bool {
        self.0.seems_to_sync()
    }
}

/// What the kernel has just answered about a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor(Fresh);

impl Descriptor {
    /// Asks the kernel about a descriptor.
    ///
    /// # Errors
    /// `-EBADF`: the descriptor is not open, or was opened with `O_PATH`.
    pub fn fresh(fd: i32) -> Result<Self, i32> {
        descriptor::fresh(fd).map(Self)
    }

    /// Is the descriptor open for reads (or writes)?
    pub fn is_open_for(self, write: bool) -> bool {
        self.0.is_open_for(write)
    }

    /// Does fsync(2) support this kind of file?
    pub fn may_sync(self) -> bool {
        self.0.may_sync()
    }

    /// Is it a file of a local file system? Then no server can hold up a call on it.
    pub fn is_local(self) -> bool {
        self.0.facts().is_local()
    }

    /// Does the file have offsets?
    pub fn is_seekable(self) -> bool {
        self.0.kind() == FileKind::Seekable
    }
}

/// As far as is remembered: is the descriptor open for reads (or writes), and do these usually not
/// wait, so that [`Instance::try_now`] tries them? Makes no system call.
pub fn is_tried(fd: i32, write: bool) -> bool {
    Facts::noted(fd).is_some_and(|facts| facts.is_tried(write))
}

/// Is an open with this `struct open_how` (openat2(2)) one that [`open_at_once`] tries?
pub fn is_open_tried(how: &[u64; 3]) -> bool {
    paths::is_open_tried(how)
}

/// Opens a regular file or a folder of a local file system, if the kernel knows the path without
/// asking a device or a server. `None`: the open may wait, or has an error, or makes a file.
pub fn open_at_once(dir: i32, path: &CStr, how: &[u64; 3]) -> Option<i32> {
    paths::open(dir, path, how)
}

/// Called after a worker has made an open that [`open_at_once`] tries. Learns whether the file
/// system of the opened file is a local one.
pub fn open_was_made(fd: i32) {
    paths::was_opened(fd);
}

/// May poll(2) of this descriptor wait, because it asks a file server that may not answer? Uses
/// what is remembered; the first call makes a system call or more.
pub fn poll_may_wait(fd: i32) -> bool {
    descriptor::poll_may_wait(fd)
}

/// Forgets what is known about descriptor numbers, which are about to get other files.
pub fn forget_descriptors(fds: &RangeInclusive<i32>) {
    Facts::forget(fds);
    descriptor::some_end();
}

/// Is this process the child of a vfork(2), which works in its parent's memory? One system call.
pub fn is_borrowed() -> bool {
    process::is_borrowed()
}

/// Does the calling thread have a descriptor table of its own (unshare(2)), apart from the engine's
/// threads?
pub fn has_parted() -> bool {
    process::has_parted()
}

/// Is this number a descriptor of the engine's own, which the program must not close? No system
/// call.
pub fn is_own_descriptor(fd: i32) -> bool {
    own::is(fd)
}

/// The engine's own descriptor with the lowest number in a range.
pub fn own_descriptor_in(numbers: RangeInclusive<i32>) -> Option<i32> {
    own::first_in(numbers)
}

/// A descriptor of the engine's own: close(2) and the like of the program do not close it. The last
/// clone closes it when dropped, on another thread if close(2) may wait.
#[derive(Clone, Debug)]
pub struct OwnDescriptor(std::sync::Arc<own::Copied>);

impl OwnDescriptor {
    /// Is this the last clone? Then dropping it closes the descriptor.
    pub fn is_only(&self) -> bool {
        std::sync::Arc::strong_count(&self.0) == 1
    }

    /// A duplicate of the program's descriptor with this number. `None`: it is not open, or no
    /// descriptor is free.
    pub fn duplicate(fd: i32) -> Option<Self> {
        own::Copied::of(fd).map(Self)
    }

    /// Takes over a descriptor.
    pub fn adopt(fd: OwnedFd) -> Self {
        Self(own::Copied::adopt(fd))
    }

    /// The descriptor's number.
    pub fn number(&self) -> i32 {
        self.0.fd()
    }

    /// The descriptor's number, for a caller that passes it to [`adopt`](Self::adopt) later.
    pub fn into_number(self) -> i32 {
        let number = self.number();
        if let Some(copied) = std::sync::Arc::into_inner(self.0) {
            std::mem::forget(copied);
        }
        number
    }
}

/// Counts up an eventfd by one, which never blocks.
pub fn count_up(eventfd: i32) {
    eventfd::count_up(eventfd, 1);
}

/// Starts an engine thread. It blocks the program's signals, has no real-time policy and a small
/// stack, and is named `uringlet-…`. A panic in it ends the process.
///
/// # Errors
/// No thread can be made.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    threads::spawn::spawn(name, body)
}

/// From now on, the calling thread runs soon after it is woken, also if its CPU is busy. This is
/// for a thread that mostly waits. Nothing is done under a seccomp filter: some filters end a
/// process for such a call.
pub fn run_soon() {
    if !sys::is_filtered() {
        sys::shorten_slices();
    }
}

/// Is this descriptor an eventfd? One system call, if it `was_one` when last asked; else up to two.
/// In the same turn (iteration) of an event loop, a known eventfd costs none. What was an eventfd
/// may be another nameless file by now (timerfd, epoll): such a file refuses a write of eight
/// bytes.
///
/// # Errors
/// `-EBADF`: the descriptor is not open.
pub fn is_eventfd(fd: i32, was_one: bool) -> Result<bool, i32> {
    match LAST_EVENTFD.with(|last| last.ask(fd, || ask_eventfd(fd, was_one))) {
        Err(NO_EVENTFD) => Ok(false),
        asked => asked.map(|()| true),
    }
}

thread_local! {
    static LAST_EVENTFD: InTurn<()> = const { InTurn::new() };
}

const NO_EVENTFD: i32 = 0;

fn ask_eventfd(fd: i32, was_one: bool) -> Result<(), i32> {
    let stat = sys::stat(fd).map_err(|errno| errno as i32)?;
    // Nameless files have no type.
    if stat.kind == 0 && (was_one || sys::is_eventfd(fd)) { Ok(()) } else { Err(NO_EVENTFD) }
}

/// Asks again about the eventfd of the last turn, for the new turn of the calling thread's event
/// loop. Called before the thread sleeps.
pub(crate) fn ask_ahead() {
    LAST_EVENTFD.with(|last| last.ask_ahead(|fd| ask_eventfd(fd, true)));
}

/// Does this entry name a vector of buffers, which is copied when it is submitted?
#[inline]
pub fn has_vector(sqe: &Sqe) -> bool {
    exec::is_vector(sqe)
}

/// Is this descriptor open? One system call.
pub fn is_open(fd: i32) -> bool {
    sys::status_flags(fd) >= 0
}

/// Unblocks all signals in the calling thread. One system call.
pub fn unblock_signals() {
    sys::restore_signals(0);
}

/// Queues a signal for this process, if the queue has room (rt_sigqueueinfo(2)).
pub fn queue_signal(signo: i32, info: &libc::siginfo_t) {
    // SAFETY: `info` is a reference, and so readable during the call.
    unsafe { sys::queue_signal(sys::getpid(), signo, info) };
}

/// Can eight bytes be read at this address? A system call for each page; the memory is not touched.
pub fn readable(address: usize) -> bool {
    sys::readable(address)
}

/// Can eight bytes be written at this address? A system call for each page; the memory is not
/// changed.
pub fn writable(address: usize) -> bool {
    sys::writable(address)
}

/// The events that occur at once on a file without a poll method (poll(2)).
pub const ALWAYS_READY: i16 = sys::ALWAYS_READY;

/// Is this a poll that the kernel refuses with `-EINVAL`: for events that never occur on the file,
/// because it has no poll method? A few system calls, unless the file may be ready at once.
pub fn never_has(fd: i32, events: i16) -> bool {
    sys::never_has(fd, events) == Some(true)
}

/// Does preadv2(2) know this flag, which any file takes? Three system calls. `None`: no descriptor
/// is free, with which the kernel is asked.
#[cold]
pub fn knows_transfer_flag(flag: u32) -> Option<bool> {
    let mut count = 0u64;
    let iovec = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: size_of::<u64>() };
    let eventfd = i32::try_from(sys::eventfd()).ok().filter(|&eventfd| eventfd >= 0)?;
    // SAFETY: one iovec, with eight bytes that live across the call.
    let answer = unsafe { sys::preadv(eventfd, &raw const iovec, 1, FILE_POSITION, flag) };
    sys::close(eventfd);
    Some(answer != -(libc::EOPNOTSUPP as isize))
}

/// Checks an I/O priority of a request: a class and level of ioprio_set(2), which the calling
/// thread may use. A priority without a class has no level, but may have hints in other bits (since
/// Linux 6.5). One system call for a real-time class or for hints without a class, and none else.
///
/// # Errors
/// `-EINVAL`: the class does not exist. `-EPERM`: a real-time class that is not allowed.
#[cold]
pub fn check_priority(priority: u16) -> Result<(), i32> {
    const REALTIME: u16 = 1;
    let is_refused = |errno| sys::is_priority_refused(priority, errno);
    match priority >> 13 {
        2..=3 => Ok(()),
        0 if priority == 0 || !is_refused(libc::EINVAL) => Ok(()),
        REALTIME if !is_refused(libc::EPERM) => Ok(()),
        REALTIME => Err(-libc::EPERM),
        _ => Err(-libc::EINVAL),
    }
}

/// A timespec as a duration. `None`: it is negative.
pub fn duration(time: libc::timespec) -> Option<Duration> {
    let total = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    let total = u128::try_from(total).ok()?;
    Some(Duration::from_nanos(u64::try_from(total).unwrap_or(u64::MAX)))
}

/// A duration as a timespec.
pub fn timespec(time: Duration) -> libc::timespec {
    sys::timespec(time)
}

/// Runs the handler of a pending signal that this mask does not block. True if there was such a
/// signal. One system call.
pub fn interrupted_under(mask: u64) -> bool {
    sys::ppoll(&mut [], Some(Duration::ZERO), Some(&mask)) == -libc::EINTR as isize
}

/// As [`enter`], for calls that may open files or sleep. The thread cannot be cancelled meanwhile
/// (pthread_cancel(3)).
#[inline(always)]
pub fn enter_whole<T>(body: impl FnOnce() -> T) -> T {
    enter(|| {
        let _whole = Uncancelable::new();
        body()
    })
}

/// A number for this process. The child of a fork has another one: 0, until it makes a context of
/// its own.
#[inline]
pub fn generation() -> u64 {
    process::generation()
}

/// Returns the [`generation`] of this process, which is made if there is none.
pub fn enter_process() -> u64 {
    process::enter()
}
