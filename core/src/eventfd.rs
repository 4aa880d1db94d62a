//! Eventfds that front ends make for themselves. Also counts up the program's eventfds without
//! blocking: a write that would exceed the counter's maximum waits for a reader.
//!
//! The kernel itself counts an eventfd up, for a completion of Linux AIO or io_uring. That can set
//! the counter to its maximum, 2^64 - 1, which poll(2) reports as POLLERR. A write(2) can set it to
//! 2^64 - 2 at most.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::descriptor;
use crate::process;
use crate::router::facts::Facts;
use crate::router::tuning::PREEMPTED_LOOKS;
use crate::sync::Patience;
use crate::sys;

thread_local! {
    static COUNTED: Cell<Counted> = const { Cell::new(Counted::NONE) };
}

/// Eventfds that a thread has counted up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    fds: [RawFd; Self::NOTED],
    /// The number of eventfds: it may exceed the number that is noted.
    count: usize,
}

impl Counted {
    const NOTED: usize = 4;
    pub(crate) const NONE: Self = Self { fds: [-1; Self::NOTED], count: 0 };

    /// The eventfds that the calling thread has counted up since the last call of this function.
    pub(crate) fn take() -> Self {
        COUNTED.replace(Self::NONE)
    }

    fn note(fd: RawFd) {
        let mut all = COUNTED.get();
        if !all.has(fd) {
            if let Some(place) = all.fds.get_mut(all.count) {
                *place = fd;
            }
            all.count += 1;
            COUNTED.set(all);
        }
    }

    pub(crate) fn has(&self, fd: RawFd) -> bool {
        self.fds[..self.count.min(Self::NOTED)].contains(&fd)
    }

    /// Has the thread counted up more eventfds than are noted?
    pub(crate) fn is_partial(&self) -> bool {
        self.count > Self::NOTED
    }
}

/// An eventfd(2) that does not block. Dropping it closes it.
#[derive(Debug)]
pub struct Eventfd(OwnedFd);

impl Eventfd {
    /// An eventfd with the count 0.
    ///
    /// # Errors
    /// As eventfd(2).
    pub fn new() -> io::Result<Self> {
        let fd = sys::eventfd();
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(-fd as i32));
        }
        is_kept(fd as RawFd);
        // SAFETY: the descriptor was opened just now, and nobody else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
    }

    /// Adds one to the counter.
    pub fn count_up(&self) {
        sys::eventfd_add(self.as_raw_fd(), 1);
    }

    /// Sets the counter to 0, and returns its old value.
    pub fn take(&self) -> u64 {
        sys::eventfd_take(self.as_raw_fd())
    }
}

impl From<OwnedFd> for Eventfd {
    /// An eventfd that does not block.
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl Drop for Eventfd {
    fn drop(&mut self) {
        // Another file may get the number.
        Facts::forget(&(self.as_raw_fd()..=self.as_raw_fd()));
    }
}

impl AsFd for Eventfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Eventfd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// An eventfd of the program that threads of the engine count up, until the program closes it.
#[derive(Debug)]
pub(crate) struct ProgramEventfd {
    /// The eventfd; -1 before it was made, and after the call of `end`.
    fd: AtomicI32,
    /// The number of threads that are counting it up.
    counting: AtomicU32,
}

impl ProgramEventfd {
    pub(crate) const fn new() -> Self {
        Self { fd: AtomicI32::new(-1), counting: AtomicU32::new(0) }
    }

    pub(crate) fn set(&self, fd: RawFd) {
        self.fd.store(fd, Ordering::SeqCst);
    }

    /// The eventfd, or -1.
    #[inline]
    pub(crate) fn fd(&self) -> RawFd {
        self.fd.load(Ordering::Relaxed)
    }

    /// Adds one to the eventfd, unless it is being closed.
    pub(crate) fn count_up(&self) {
        // Either this thread sees the -1 of `end`, or the thread in `end` sees that this one is
        // counting.
        self.counting.fetch_add(1, Ordering::SeqCst);
        let fd = self.fd.load(Ordering::SeqCst);
        if fd >= 0 {
            sys::eventfd_add(fd, 1);
        }
        self.counting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits until no thread counts the eventfd up any more. False: a thread is still doing so, and
    /// makes no progress. A signal handler may have interrupted that thread, and called this
    /// function.
    pub(crate) fn end(&self) -> bool {
        self.fd.store(-1, Ordering::SeqCst);
        let mut patience = Patience::default();
        (0..PREEMPTED_LOOKS / 5).any(|_| {
            let is_over = self.counting.load(Ordering::SeqCst) == 0;
            if !is_over {
                patience.wait();
            }
            is_over
        })
    }
}

fn seems_to_block(fd: RawFd) -> bool {
    sys::status_flags(fd) as i32 & libc::O_NONBLOCK == 0
}

/// Remembers an eventfd that does not block, so that the kernel is not asked each time. The engine
/// owns the descriptor, so its number names no other file as long as completions use it.
pub(crate) fn is_kept(fd: RawFd) {
    Facts::forget(&(fd..=fd));
    if !seems_to_block(fd) {
        let _ = descriptor::fresh(fd);
    }
}

/// May a write to this eventfd block?
pub(crate) fn blocks(fd: RawFd) -> bool {
    match Facts::noted(fd) {
        Some(facts) => !facts.seems_nonblocking(),
        None => seems_to_block(fd),
    }
}

/// Adds `n` to an eventfd, or as much as fits without blocking.
pub(crate) fn count_up(fd: RawFd, n: u32) {
    if blocks(fd) {
        let _turn = EventfdTurn::take();
        // The kernel does not say how much one write may add, but it says whether 1 fits.
        if (0..n).take_while(|_| is_writable(fd)).filter(|_| sys::eventfd_add(fd, 1) > 0).count()
            > 0
        {
            Counted::note(fd);
        }
        return;
    }
    let added = sys::eventfd_add(fd, u64::from(n));
    if added == -(libc::EAGAIN as sys::Ret) {
        let _fitted = (1..n).take_while(|_| sys::eventfd_add(fd, 1) > 0).count();
    }
    if added > 0 {
        Counted::note(fd);
    }
}

/// Can 1 be written to this eventfd without blocking?
fn is_writable(fd: RawFd) -> bool {
    let mut poll = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
    sys::ppoll(&mut poll, Some(Duration::ZERO), None) == 1 && poll[0].revents == libc::POLLOUT
}

/// The number of the process in which a thread has the [`EventfdTurn`]; 0 if no thread has it. By
/// this number, the child of a fork knows that it need not wait for a thread of its parent.
static TURN: AtomicU64 = AtomicU64::new(0);

/// The right to look at an eventfd and write to it. Without this right, two threads could find that
/// 1 fits, and one of them would block.
#[derive(Debug)]
struct EventfdTurn;

impl EventfdTurn {
    fn take() -> Self {
        // `me` is never 0, even if no context was made yet.
        let me = process::enter();
        let mut patience = Patience::default();
        loop {
            let now = TURN.load(Ordering::Relaxed);
            let swap = || TURN.compare_exchange(now, me, Ordering::Acquire, Ordering::Relaxed);
            if now != me && swap().is_ok() {
                return Self;
            }
            patience.wait();
        }
    }
}

impl Drop for EventfdTurn {
    fn drop(&mut self) {
        TURN.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code)]

    use std::os::fd::AsRawFd as _;

    use super::{Counted, Eventfd, ProgramEventfd, count_up, is_kept};
    use crate::own::Copied;
    use crate::router::facts::Facts;
    use crate::sys;

    /// The maximum count that a write can reach.
    const FULL: u64 = u64::MAX - 1;

    /// The counter of an eventfd after `n` was added to `before`.
    fn counted(flags: i32, before: u64, n: u32) -> u64 {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, flags) };
        assert!(sys::eventfd_add(fd, before) > 0);
        count_up(fd, n);
        let mut value = 0u64;
        // SAFETY: the eight bytes live across the call.
        assert_eq!(unsafe { libc::read(fd, (&raw mut value).cast(), 8) }, 8);
        sys::close(fd);
        value
    }

    #[test]
    fn a_programs_eventfd_is_left_alone_after_its_end() {
        for _ in 0..if cfg!(miri) { 5 } else { 500 } {
            let (told, eventfd) = (ProgramEventfd::new(), Eventfd::new().unwrap());
            told.count_up();
            told.set(eventfd.as_raw_fd());
            std::thread::scope(|scope| {
                scope.spawn(|| (0..20).for_each(|_| told.count_up()));
                assert!(told.end());
                eventfd.take();
                told.count_up();
                assert_eq!(eventfd.take(), 0);
            });
            assert_eq!((eventfd.take(), told.fd()), (0, -1));
        }
    }

    #[test]
    fn an_eventfd_counts_as_far_as_it_goes_and_never_blocks() {
        for flags in [0, libc::EFD_NONBLOCK] {
            assert_eq!(counted(flags, 1, 1), 2);
            assert_eq!(counted(flags, 1, 70), 71);
            assert_eq!(counted(flags, FULL - 3, 3), FULL);
            assert_eq!(counted(flags, FULL - 3, 4), FULL);
            assert_eq!(counted(flags, FULL - 1, 40), FULL);
            assert_eq!(counted(flags, FULL, 1), FULL);
        }
        // A descriptor that is not open, and one that is no eventfd.
        count_up(-1, 1);
        count_up(900_000, 3);
    }

    #[test]
    fn an_eventfd_that_is_kept_is_asked_about_once_and_forgotten_with_its_number() {
        for (flags, other) in [(0, libc::EFD_NONBLOCK), (libc::EFD_NONBLOCK, 0)] {
            let known = |fd| Facts::noted(fd).map(Facts::seems_nonblocking);
            // SAFETY: no memory is passed.
            let fds = [flags, other].map(|flags| unsafe { libc::eventfd(0, flags) });
            // The second duplicate most often gets the number of the first one.
            for (fd, flags) in fds.into_iter().zip([flags, other]) {
                let copy = Copied::of(fd).unwrap();
                is_kept(copy.fd());
                count_up(copy.fd(), 1);
                assert_eq!(known(copy.fd()), (flags != 0).then_some(true));
            }
            fds.into_iter().for_each(|fd| _ = sys::close(fd));
        }
    }

    #[test]
    fn a_thread_knows_all_eventfds_that_it_has_counted_up_or_that_there_are_more() {
        for flags in [0, libc::EFD_NONBLOCK] {
            // SAFETY: no memory is passed.
            let fds = [(); 5].map(|()| unsafe { libc::eventfd(0, flags) });
            Counted::take();
            fds[..4].iter().chain(&fds[..2]).for_each(|&fd| count_up(fd, 1));
            let all = Counted::take();
            assert_eq!(fds.map(|fd| all.has(fd)), [true, true, true, true, false]);
            assert!(!all.is_partial());
            fds.iter().for_each(|&fd| count_up(fd, 2));
            let all = Counted::take();
            assert!(all.is_partial() && fds[..4].iter().all(|&fd| all.has(fd)));
            assert!(!Counted::take().has(fds[0]), "since it was last asked");
            fds.into_iter().for_each(|fd| _ = sys::close(fd));
        }
    }

    #[test]
    fn threads_that_share_the_last_place_do_not_block() {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, 0) };
        for _ in 0..500 {
            assert!(sys::eventfd_add(fd, FULL - 1) > 0);
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| count_up(fd, 1));
                }
            });
            let mut value = 0u64;
            // SAFETY: the eight bytes live across the call.
            assert_eq!(unsafe { libc::read(fd, (&raw mut value).cast(), 8) }, 8);
            assert_eq!(value, FULL);
        }
        sys::close(fd);
    }
}
