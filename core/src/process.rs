//! The identity of this process. Notices a fork without a system call per request. Notices threads
//! that have a descriptor table of their own, which the engine's threads do not share (unshare(2)).
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};

use crate::own::Copied;
use crate::sys::{self, Mapping};

/// The address of the process's number: a page that the kernel zeroes in the child of a fork.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// The last number that was given out; kept across a fork.
static LAST: AtomicU64 = AtomicU64::new(0);
/// The pid of the process that was last given a number by [`enter`].
static PID: AtomicI32 = AtomicI32::new(0);
/// Used in place of the page if it cannot be mapped, or if the kernel has no MADV_WIPEONFORK
/// (before 4.14).
static FALLBACK: AtomicU64 = AtomicU64::new(0);

extern "C" fn forget() {
    FALLBACK.store(0, Ordering::Relaxed);
}

#[inline(always)]
fn word() -> &'static AtomicU64 {
    // SAFETY: null, or a word that is never freed.
    match unsafe { WORD.load(Ordering::Acquire).as_ref() } {
        Some(word) => word,
        None => make_word(),
    }
}

#[cold]
fn make_word() -> &'static AtomicU64 {
    let page = Mapping::new(4096, libc::PROT_READ | libc::PROT_WRITE).ok();
    let word = match page.filter(|page| page.wipe_on_fork() == 0) {
        // The page is never unmapped: other threads may have seen it.
        Some(page) => std::mem::ManuallyDrop::new(page).base().cast::<AtomicU64>(),
        None => {
            // SAFETY: the handler is a plain function that stores one word.
            unsafe { libc::pthread_atfork(None, None, Some(forget)) };
            std::ptr::from_ref(&FALLBACK).cast_mut()
        }
    };
    // If several threads have made a word, all use the one that was stored first.
    let null = std::ptr::null_mut();
    let _ = WORD.compare_exchange(null, word, Ordering::AcqRel, Ordering::Acquire);
    // SAFETY: not null any more; a page of ours that stays mapped, or a static.
    unsafe { &*WORD.load(Ordering::Acquire) }
}

/// A bit in the word with the number: some thread of this process has a descriptor table of its
/// own.
const OWN_TABLE: u64 = 1 << 63;

/// A number for this process; the child of a fork has another one. 0 until [`enter`] was called. In
/// a thread with a descriptor table of its own: a number that no process has.
#[inline(always)]
pub(crate) fn generation() -> u64 {
    let word = word().load(Ordering::Relaxed);
    if word & OWN_TABLE == 0 { word } else { generation_here(word & !OWN_TABLE) }
}

#[cold]
fn generation_here(generation: u64) -> u64 {
    let (known, mut own_table) = TABLE.get();
    if known != generation {
        own_table = WITNESS.of(generation).is_some_and(|witness| !witness.is_here());
        TABLE.set((generation, own_table));
    }
    if own_table { OWN_TABLE } else { generation }
}

/// Does the calling thread have a descriptor table of its own?
pub(crate) fn has_parted() -> bool {
    generation() == OWN_TABLE
}

thread_local! {
    /// Does the calling thread have a descriptor table of its own, in the process with this number?
    static TABLE: Cell<(u64, bool)> = const { Cell::new((0, false)) };
}

/// A descriptor that is open in the table of the engine's threads, and closed in every table that a
/// thread has got for itself ([`part`]). That thread may start others, which share its table
/// without a call that the engine sees. In them, too, the descriptor is closed.
#[derive(Debug)]
struct Witness {
    copy: Arc<Copied>,
    identity: (u64, u64),
}

static WITNESS: PerProcess<Witness> = PerProcess::new();

impl Witness {
    fn is_here(&self) -> bool {
        sys::file_identity(self.copy.fd()) == Ok(self.identity)
    }

    /// Makes a witness.
    ///
    /// # Errors
    /// No descriptor is free.
    fn make() -> Result<Self, ()> {
        // A pipe: no other file has its identity, and no sandbox refuses it.
        let [reader, writer] = sys::pipe().map_err(drop)?;
        let copy = Copied::of(reader);
        [reader, writer].into_iter().for_each(|end| _ = sys::close(end));
        let copy = copy.ok_or(())?;
        let identity = sys::file_identity(copy.fd()).map_err(drop)?;
        Ok(Self { copy, identity })
    }
}

/// Would a new descriptor table separate the calling thread from the engine's threads? No if the
/// thread has a table of its own already. No if it is the process's only thread: threads that it
/// starts later share its table. Asks the kernel for the number of threads. If the kernel does not
/// say, other threads are assumed.
pub(crate) fn can_part() -> bool {
    !has_parted() && sys::threads() != Some(1)
}

/// Makes `call`, which gives the calling thread a descriptor table of its own unless it fails. The
/// engine's threads keep the old table. From then on the calling thread finds none of the process's
/// contexts, as in the child of a fork.
pub(crate) fn part(call: impl FnOnce() -> c_int) -> c_int {
    let generation = enter();
    let witness = WITNESS.current_or(Witness::make);
    let answer = call();
    if answer == 0 {
        if let Ok(witness) = witness {
            // The descriptor is closed in the new table only.
            sys::close(witness.copy.fd());
        }
        TABLE.set((generation, true));
        word().fetch_or(OWN_TABLE, Ordering::Release);
    }
    answer
}

/// The number of this process; made if there is none yet. Before that, the process decides
/// whether its system calls fill the return stack.
pub(crate) fn enter() -> u64 {
    let word = word();
    let now = word.load(Ordering::Acquire) & !OWN_TABLE;
    if now != 0 {
        return now;
    }
    sys::return_stack::decide();
    let new = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    match word.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            PID.store(sys::getpid(), Ordering::Relaxed);
            new
        }
        Err(other) => other & !OWN_TABLE,
    }
}

/// Is this process a child that shares the memory, but not the descriptors, of the process that
/// made the contexts (vfork(2))? One system call.
pub(crate) fn is_borrowed() -> bool {
    PID.load(Ordering::Relaxed) != sys::getpid()
}

/// A value that each process has for itself, made when it is first needed. It stays as long as the
/// process. The child of a fork makes its own, and does not touch its parent's: another thread may
/// have been changing it.
#[derive(Debug)]
pub struct PerProcess<T: 'static>(AtomicPtr<OfProcess<T>>);

#[derive(Debug)]
struct OfProcess<T: 'static> {
    generation: u64,
    value: T,
    /// The parent's value.
    inherited: Option<&'static Self>,
}

impl<T> PerProcess<T> {
    /// No process has a value yet.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// The value that was made last: by this process or, if it has none yet, by an ancestor.
    #[inline(always)]
    fn newest(&self) -> Option<&'static OfProcess<T>> {
        // SAFETY: null, or leaked by `of_or`.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    #[inline(always)]
    fn of(&self, generation: u64) -> Option<&'static T> {
        let newest = self.newest().filter(|newest| newest.generation == generation);
        newest.map(|newest| &newest.value)
    }

    /// The value of this process, if it has one. A thread with a descriptor table of its own gets
    /// none.
    #[inline(always)]
    pub fn current(&self) -> Option<&'static T> {
        self.of(generation())
    }
}

impl<T: Send + Sync> PerProcess<T> {
    /// The value of this process, made by `make` if it has none.
    ///
    /// # Errors
    /// The errors of `make`.
    pub fn current_or<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&'static T, E> {
        self.current_or_then(make, || {})
    }

    /// As [`current_or`](Self::current_or). Calls `then` once in each process, after the call of
    /// `make` whose value is used. Other threads may use the value before.
    ///
    /// # Errors
    /// The errors of `make`.
    pub fn current_or_then<E>(
        &self,
        make: impl FnOnce() -> Result<T, E>,
        then: impl FnOnce(),
    ) -> Result<&'static T, E> {
        self.of_or(enter(), make, then)
    }

    fn of_or<E>(
        &self,
        generation: u64,
        make: impl FnOnce() -> Result<T, E>,
        then: impl FnOnce(),
    ) -> Result<&'static T, E> {
        let inherited = self.newest();
        if let Some(current) = inherited.filter(|newest| newest.generation == generation) {
            return Ok(&current.value);
        }
        // There is no lock here: in the child of a fork, a thread that does not exist there may
        // hold it.
        let value = make()?;
        let seen = inherited.map_or(std::ptr::null_mut(), |of| std::ptr::from_ref(of).cast_mut());
        let new = Box::into_raw(Box::new(OfProcess { generation, value, inherited }));
        let current = match self.0.compare_exchange(seen, new, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => {
                then();
                new
            }
            Err(current) => {
                // SAFETY: made above and seen by no other thread.
                drop(unsafe { Box::from_raw(new) });
                current
            }
        };
        // SAFETY: made above and never freed, by this thread or by another one of this process.
        Ok(unsafe { &(*current).value })
    }

    /// The values of this process's ancestors, the parent's first.
    pub fn inherited(&self) -> impl Iterator<Item = &'static T> {
        let generation = generation();
        let all = std::iter::successors(self.newest(), |of| of.inherited);
        all.filter(move |of| of.generation != generation).map(|of| &of.value)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    static DROPPED: AtomicUsize = AtomicUsize::new(0);

    struct Value(u64);

    impl Drop for Value {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_process_makes_one_value_and_finds_its_parents() {
        const THREADS: usize = 8;
        static VALUES: PerProcess<Value> = PerProcess::new();
        assert!(VALUES.current().is_none() && VALUES.inherited().next().is_none());
        assert_eq!(VALUES.of_or(u64::MAX, || Err(5), || unreachable!()).err(), Some(5));
        let (made, kept) = (AtomicUsize::new(0), AtomicUsize::new(0));
        // Generations that no process has.
        let generations = [1 << 62, (1 << 62) + 1];
        for generation in generations {
            assert!(VALUES.of(generation).is_none());
            let barrier = Barrier::new(THREADS);
            let make = || {
                made.fetch_add(1, Ordering::Relaxed);
                Ok::<_, ()>(Value(generation))
            };
            let get = || {
                barrier.wait();
                let then = || _ = kept.fetch_add(1, Ordering::Relaxed);
                std::ptr::from_ref(VALUES.of_or(generation, make, then).unwrap()).addr()
            };
            let found: Vec<usize> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(get)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(found.iter().all(|&address| address == found[0]));
            assert_eq!(VALUES.of(generation).unwrap().0, generation);
        }
        assert_eq!(kept.into_inner(), generations.len());
        assert_eq!(DROPPED.load(Ordering::Relaxed), made.into_inner() - generations.len());
        let inherited: Vec<u64> = VALUES.inherited().map(|value| value.0).collect();
        assert_eq!(inherited, [generations[1], generations[0]]);
        // The value of this process is newer than those of the generations.
        let own = VALUES.current_or(|| Ok::<_, ()>(Value(generation()))).unwrap();
        assert_eq!(VALUES.current().unwrap().0, own.0);
        assert_eq!(VALUES.inherited().count(), 2);
    }
}
