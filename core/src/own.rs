//! The numbers of the engine's own descriptors. A front end that sees a program close every number
//! does not close these.
//!
//! There is one bit for each number, on pages that the kernel zeroes in the child of a fork: a
//! child may close what it inherits. Where the kernel has no such pages (before 4.14), nothing is
//! noted.
#![allow(unsafe_code)]

use std::ops::RangeInclusive;
use std::os::fd::{IntoRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::process;
use crate::router::facts::Facts;
use crate::sys::{self, Mapping, Ret};

/// Numbers from here on are not noted.
const NUMBERS: usize = 1 << 20;
const WORDS: usize = NUMBERS / 64;

/// Descriptors are moved to numbers from this one on. It is below the initial size of every
/// process's table (64), so that the table need not grow. It is above the numbers that programs
/// choose by hand.
const FROM: RawFd = 40;

static BITS: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// No word at this index or above was ever used.
static REACHED: AtomicUsize = AtomicUsize::new(0);

/// The words of bits that were used so far; empty before the first note.
fn bits() -> &'static [AtomicU64] {
    let at = BITS.load(Ordering::Acquire);
    if at.is_null() {
        return &[];
    }
    // SAFETY: the mapping stays, and has at least this many words: zeros, or written as atomics.
    unsafe { std::slice::from_raw_parts(at, REACHED.load(Ordering::Acquire)) }
}

#[cold]
fn make_bits() -> bool {
    let Ok(made) = Mapping::new(WORDS * 8, libc::PROT_READ | libc::PROT_WRITE) else {
        return false;
    };
    if made.wipe_on_fork() != 0 {
        return false;
    }
    let (null, at) = (std::ptr::null_mut(), made.base().cast());
    if BITS.compare_exchange(null, at, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        // The page is never unmapped: other threads may have seen it.
        std::mem::forget(made);
    }
    true
}

/// Notes a descriptor as the engine's own.
pub(crate) fn note(fd: RawFd) {
    let Ok(number) = usize::try_from(fd) else { return };
    if number >= NUMBERS || BITS.load(Ordering::Acquire).is_null() && !make_bits() {
        return;
    }
    REACHED.fetch_max(number / 64 + 1, Ordering::AcqRel);
    bits()[number / 64].fetch_or(1 << (number % 64), Ordering::Relaxed);
}

/// Removes the note about one of the engine's own descriptors, which is about to be closed.
pub(crate) fn forget(fd: RawFd) {
    let word = usize::try_from(fd).ok().and_then(|number| bits().get(number / 64));
    if let Some(word) = word {
        word.fetch_and(!(1 << (fd as usize % 64)), Ordering::Relaxed);
    }
}

/// Is this number one of the engine's own descriptors, in this process?
pub(crate) fn is(fd: RawFd) -> bool {
    first_in(fd..=fd).is_some()
}

/// The lowest number in a range that is one of the engine's own descriptors, in this process.
/// `None` in a thread with a descriptor table of its own.
pub(crate) fn first_in(numbers: RangeInclusive<RawFd>) -> Option<RawFd> {
    if process::has_parted() {
        return None;
    }
    let (from, to) =
        (usize::try_from(*numbers.start()).ok()?, usize::try_from(*numbers.end()).ok()?);
    let words = bits().iter().enumerate().skip(from / 64);
    for (at, word) in words.take_while(|(at, _)| at * 64 <= to) {
        let mut word = word.load(Ordering::Relaxed);
        if at == from / 64 {
            word &= u64::MAX << (from % 64);
        }
        if word != 0 {
            let number = at * 64 + word.trailing_zeros() as usize;
            return (number <= to).then_some(number as RawFd);
        }
    }
    None
}

/// A new eventfd(2) for the engine, noted as its own, or the negative errno.
pub(crate) fn eventfd() -> Ret {
    out_of_the_way(sys::eventfd())
}

/// A new epoll(7) for the engine, noted as its own, or the negative errno.
pub(crate) fn epoll() -> Ret {
    out_of_the_way(sys::epoll_create())
}

/// Moves a new descriptor to a number that programs do not expect, and notes it.
fn out_of_the_way(mut fd: Ret) -> Ret {
    if fd < 0 {
        return fd;
    }
    // If no number from `FROM` on can be had, one from 3 on will do. A program may be about to open
    // its standard input, which has to get number 0.
    for from in [FROM, 3] {
        if fd < from as Ret {
            let moved = sys::duplicate(fd as RawFd, from);
            if moved >= 0 {
                sys::close(fd as RawFd);
                fd = moved;
            }
        }
    }
    note(fd as RawFd);
    fd
}

/// The function that closes a descriptor on a thread that may wait. It returns false if there is no
/// such thread.
static ELSEWHERE: OnceLock<fn(RawFd) -> bool> = OnceLock::new();

/// Sets the function that closes descriptors whose close may wait.
pub(crate) fn close_elsewhere_by(closer: fn(RawFd) -> bool) {
    let _ = ELSEWHERE.set(closer);
}

/// Duplicates one of the program's descriptors, notes the duplicate, and moves it to a number that
/// programs do not expect. `None`: no descriptor is free.
pub(crate) fn copy(fd: RawFd) -> Option<RawFd> {
    let copies = [FROM, 3].into_iter().map(|from| sys::duplicate(fd, from));
    let copy = copies.into_iter().find(|&copy| copy >= 0)? as RawFd;
    note(copy);
    Some(copy)
}

/// A duplicate of one of the program's descriptors. The thread that drops the last reference may
/// hold locks. So if the close may wait for a server, another thread makes it ([`close_copy`]).
#[derive(Debug)]
pub(crate) struct Copied(RawFd);

impl Copied {
    /// A duplicate of this descriptor. `None` if no descriptor is free.
    pub(crate) fn of(fd: RawFd) -> Option<Arc<Self>> {
        copy(fd).map(|copy| Arc::new(Self(copy)))
    }

    /// Takes over a descriptor that was made for the engine.
    pub(crate) fn adopt(fd: OwnedFd) -> Arc<Self> {
        let fd = fd.into_raw_fd();
        note(fd);
        Arc::new(Self(fd))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        close_copy(self.0);
    }
}

/// Copies of descriptors that the program is about to close, one for each number.
#[derive(Debug, Default)]
pub(crate) struct Copies(Vec<(RawFd, Arc<Copied>)>);

impl Copies {
    /// The duplicate of this descriptor, made if there is none yet.
    pub(crate) fn of(&mut self, fd: RawFd) -> Option<Arc<Copied>> {
        let known = self.0.iter().find(|&&(of, _)| of == fd).map(|(_, copy)| Arc::clone(copy));
        known.or_else(|| {
            let copy = Copied::of(fd)?;
            self.0.push((fd, Arc::clone(&copy)));
            Some(copy)
        })
    }

    /// All duplicates.
    pub(crate) fn into_all(self) -> impl Iterator<Item = Arc<Copied>> {
        self.0.into_iter().map(|(_, copy)| copy)
    }
}

/// Closes a duplicate of one of the program's descriptors. If close(2) may wait, for example for a
/// file server, another thread makes the call. If there is no such thread, the calling thread does.
pub(crate) fn close_copy(fd: RawFd) {
    Facts::forget(&(fd..=fd));
    // A file without a type exists only inside the kernel, such as an eventfd. close(2) of any
    // other file may wait for a server, a terminal or a peer.
    let may_wait = sys::stat(fd).is_ok_and(|stat| stat.kind != 0);
    let elsewhere = ELSEWHERE.get().filter(|_| may_wait);
    if !elsewhere.is_some_and(|close| close(fd)) {
        close(fd);
    }
}

/// Closes one of the engine's own descriptors.
pub(crate) fn close(fd: RawFd) {
    forget(fd);
    sys::close(fd);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{FROM, close, copy, eventfd, first_in, forget, is, note};

    #[test]
    fn own_descriptors_are_known_until_they_are_closed() {
        let (a, b) = (eventfd() as i32, eventfd() as i32);
        assert!(a >= 3 && b >= 3 && a != b);
        assert!(is(a) && is(b) && !is(-1));
        close(a);
        assert!(!is(a) && is(b));
        close(b);
        assert!(!is(b));
    }

    #[test]
    fn copies_are_out_of_the_way_of_numbers_that_programs_choose() {
        let fd = eventfd() as i32;
        let copy = copy(fd).expect("a descriptor");
        assert!(copy >= FROM && copy != fd && is(copy));
        [fd, copy].into_iter().for_each(close);
    }

    #[test]
    fn the_child_of_a_fork_has_none_of_them() {
        note(499_002);
        assert_eq!(first_in(499_000..=499_002), Some(499_002));
        // SAFETY: the child makes a call without locks or memory, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = if is(499_002) { 1 } else { 7 };
            // SAFETY: no memory is involved.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: a child of ours, and room for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 7);
        forget(499_002);
    }

    #[test]
    fn ranges_find_the_lowest() {
        // Numbers that no test opens.
        for fd in [500_000, 500_001, 500_063, 500_064, 510_000] {
            note(fd);
        }
        assert_eq!(first_in(499_990..=499_999), None);
        assert_eq!(first_in(499_990..=i32::MAX), Some(500_000));
        assert_eq!(first_in(500_001..=500_001), Some(500_001));
        assert_eq!(first_in(500_002..=500_062), None);
        assert_eq!(first_in(500_002..=500_063), Some(500_063));
        forget(500_063);
        assert_eq!(first_in(500_002..=500_064), Some(500_064));
        assert_eq!(first_in(500_065..=509_999), None);
        assert_eq!(first_in(510_001..=i32::MAX), None);
        [500_000, 500_001, 500_064, 510_000].into_iter().for_each(forget);
        assert_eq!(first_in(500_000..=i32::MAX), None);
        note(i32::MAX);
        assert!(!is(i32::MAX), "too high to be noted");
    }
}
