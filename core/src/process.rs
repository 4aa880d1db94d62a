//! Which process this is: notices a fork without a system call per request, and threads that have
//! parted from the table of descriptors that the engine's threads share with the rest of the
//! process (unshare(2)).
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};

use crate::own::Copied;
use crate::sys::{self, Mapping};

/// Where the number stands: a page that the kernel zeroes in the child of a fork.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// The newest number handed out; survives a fork.
static LAST: AtomicU64 = AtomicU64::new(0);
/// The process that [`enter`] was last called in.
static PID: AtomicI32 = AtomicI32::new(0);
/// Stands in for the page where the kernel has no MADV_WIPEONFORK (before 4.14).
static FALLBACK: AtomicU64 = AtomicU64::new(0);

extern "C" fn forget() {
    FALLBACK.store(0, Ordering::Relaxed);
}

#[inline(always)]
fn word() -> &'static AtomicU64 {
    // SAFETY: null, or a word that stays for ever.
    match unsafe { WORD.load(Ordering::Acquire).as_ref() } {
        Some(word) => word,
        None => make_word(),
    }
}

#[cold]
fn make_word() -> &'static AtomicU64 {
    let page = Mapping::new(4096, libc::PROT_READ | libc::PROT_WRITE).ok();
    let word = match page.filter(|page| page.wipe_on_fork() == 0) {
        // Never unmapped: other threads may have seen it.
        Some(page) => std::mem::ManuallyDrop::new(page).base().cast::<AtomicU64>(),
        None => {
            // SAFETY: the handler is a plain function that stores one word.
            unsafe { libc::pthread_atfork(None, None, Some(forget)) };
            std::ptr::from_ref(&FALLBACK).cast_mut()
        }
    };
    // Whoever was first has made the one that counts.
    let null = std::ptr::null_mut();
    let _ = WORD.compare_exchange(null, word, Ordering::AcqRel, Ordering::Acquire);
    // SAFETY: not null any more; a page of ours that stays mapped, or a static.
    unsafe { &*WORD.load(Ordering::Acquire) }
}

/// In the word beside the number: some thread of this process has a table of descriptors of its
/// own.
const PARTED: u64 = 1 << 63;

/// A number for this process: another one after a fork. 0 until [`enter`] was called in it. For a
/// thread that has a table of descriptors of its own, a number that nothing has.
#[inline(always)]
pub(crate) fn generation() -> u64 {
    let word = word().load(Ordering::Relaxed);
    if word & PARTED == 0 { word } else { generation_here(word & !PARTED) }
}

#[cold]
fn generation_here(generation: u64) -> u64 {
    let (known, mut parted) = TABLE.get();
    if known != generation {
        parted = witness(generation).is_some_and(|witness| !witness.is_here());
        TABLE.set((generation, parted));
    }
    if parted { PARTED } else { generation }
}

/// Has the calling thread a table of descriptors of its own?
pub(crate) fn has_parted() -> bool {
    generation() == PARTED
}

thread_local! {
    /// Whether the calling thread has parted, in the process with this number.
    static TABLE: Cell<(u64, bool)> = const { Cell::new((0, false)) };
}

/// A descriptor that is open in the table which the engine's threads share, and closed in those
/// that threads have for themselves: their threads in turn have the same, and call nothing that
/// could be seen.
#[derive(Debug)]
struct Witness {
    generation: u64,
    copy: Arc<Copied>,
    identity: (u64, u64),
}

static WITNESS: AtomicPtr<Witness> = AtomicPtr::new(std::ptr::null_mut());

impl Witness {
    fn is_here(&self) -> bool {
        sys::file_identity(self.copy.fd()) == Ok(self.identity)
    }
}

/// The one of the process with this number, if it has one.
fn witness(generation: u64) -> Option<&'static Witness> {
    // SAFETY: null, or leaked below.
    let witness = unsafe { WITNESS.load(Ordering::Acquire).as_ref() };
    witness.filter(|witness| witness.generation == generation)
}

/// As [`witness`], made if there is none. `None`: there is no descriptor to be had.
fn witness_or_new(generation: u64) -> Option<&'static Witness> {
    loop {
        let seen = WITNESS.load(Ordering::Acquire);
        if let Some(witness) = witness(generation) {
            return Some(witness);
        }
        // A pipe: no other file has its identity, and no sandbox refuses it.
        let [reader, writer] = sys::pipe().ok()?;
        let copy = Copied::of(reader);
        [reader, writer].into_iter().for_each(|end| _ = sys::close(end));
        let copy = copy?;
        let identity = sys::file_identity(copy.fd()).ok()?;
        let new = Box::into_raw(Box::new(Witness { generation, copy, identity }));
        if WITNESS.compare_exchange(seen, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: made above and seen by nobody.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

/// Would a table of its own part the calling thread from others? A single thread takes the table
/// along, for the threads that it makes later. Asks the kernel; where it does not tell, there are
/// others.
pub(crate) fn can_part() -> bool {
    !has_parted() && sys::threads() != Some(1)
}

/// Makes `call`, which gives the calling thread a table of descriptors of its own unless it fails.
/// The engine's threads keep the other one: from then on the thread is a stranger here, as is the
/// child of a fork.
pub(crate) fn part(call: impl FnOnce() -> c_int) -> c_int {
    let generation = enter();
    let witness = witness_or_new(generation);
    let answer = call();
    if answer == 0 {
        if let Some(witness) = witness {
            // In the new table only.
            sys::close(witness.copy.fd());
        }
        TABLE.set((generation, true));
        word().fetch_or(PARTED, Ordering::Release);
    }
    answer
}

/// The number of this process, made if it has none yet.
pub(crate) fn enter() -> u64 {
    let word = word();
    let now = word.load(Ordering::Acquire) & !PARTED;
    if now != 0 {
        return now;
    }
    let new = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    match word.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            PID.store(sys::getpid(), Ordering::Relaxed);
            new
        }
        Err(other) => other & !PARTED,
    }
}

/// Is this a child that shares the memory, but not the descriptors (vfork(2)), of the process that
/// contexts belong to? One system call.
pub(crate) fn is_borrowed() -> bool {
    PID.load(Ordering::Relaxed) != sys::getpid()
}
