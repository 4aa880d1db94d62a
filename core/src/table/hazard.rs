//! Hazard pointers: each thread has a word with the handle that the thread uses. Readers of the
//! table write to a cache line of their own. Only a thread that takes a value away pays for
//! checking all words.
//!
//! A reader's store and the load after it must not be reordered. A compiler fence orders them for
//! the compiler. The thread that takes a value away orders them for the CPU, by membarrier(2). If
//! membarrier(2) is refused, readers use a full fence.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, compiler_fence, fence};

use crossbeam_utils::CachePadded;

use super::entry::Pin;
use crate::sync::OnceNumber;
use crate::sys;

/// The word of one thread. Never freed; after the thread ends, another one uses it.
#[derive(Debug)]
pub(super) struct Hazard {
    pub(super) handle: CachePadded<AtomicUsize>,
    taken: AtomicBool,
    next: AtomicPtr<Hazard>,
}

static ALL: AtomicPtr<Hazard> = AtomicPtr::new(std::ptr::null_mut());
/// Readers need a full fence: membarrier(2) is not registered yet, or is refused.
static FENCE: AtomicBool = AtomicBool::new(true);
/// Readers may have looked a value up without a fence. Once true, it stays true.
static LIGHT: AtomicBool = AtomicBool::new(false);

thread_local! {
    static MINE: Cell<Option<&'static Hazard>> = const { Cell::new(None) };
    static RETURN: Return = const { Return };
}

/// Gives the word back when the thread ends.
struct Return;

impl Drop for Return {
    fn drop(&mut self) {
        if let Some(hazard) = MINE.take() {
            hazard.taken.store(false, Ordering::Release);
        }
    }
}

/// This thread's word. `None` while the thread ends.
#[inline]
fn mine() -> Option<&'static Hazard> {
    match MINE.get() {
        Some(hazard) => Some(hazard),
        None => claim(),
    }
}

/// Lets the process's readers do without a fence, if the kernel allows it. A drop-in calls this
/// when it is loaded ([`at_load!`](crate::at_load)). With one thread this is immediate. Later it
/// takes some milliseconds, because the kernel waits until every CPU has switched (membarrier(2)).
/// Without an earlier call, the first reader makes it.
pub extern "C" fn prepare_readers() {
    static REGISTERED: OnceNumber = OnceNumber::new();
    REGISTERED.get(|| {
        // Several threads may run this at once, and a sandbox may refuse the system call to some of
        // them. So only a success is stored: no refusal can undo it.
        if sys::membarrier_register() {
            LIGHT.store(true, Ordering::SeqCst);
            FENCE.store(false, Ordering::SeqCst);
        }
        1
    });
}

#[cold]
fn claim() -> Option<&'static Hazard> {
    RETURN.try_with(|_| ()).ok()?;
    prepare_readers();
    let mut at = ALL.load(Ordering::Acquire);
    // SAFETY: null, or a word that was leaked below.
    while let Some(hazard) = unsafe { at.as_ref() } {
        if !hazard.taken.swap(true, Ordering::AcqRel) {
            MINE.set(Some(hazard));
            return Some(hazard);
        }
        at = hazard.next.load(Ordering::Acquire);
    }
    let hazard: &'static Hazard = Box::leak(Box::new(Hazard {
        handle: CachePadded::new(AtomicUsize::new(0)),
        taken: AtomicBool::new(true),
        next: AtomicPtr::new(std::ptr::null_mut()),
    }));
    let pointer = std::ptr::from_ref(hazard).cast_mut();
    let mut first = ALL.load(Ordering::Relaxed);
    loop {
        hazard.next.store(first, Ordering::Relaxed);
        match ALL.compare_exchange(first, pointer, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => first = now,
        }
    }
    MINE.set(Some(hazard));
    Some(hazard)
}

/// This thread's word, if it uses no handle now.
#[inline]
pub(super) fn free() -> Option<&'static AtomicUsize> {
    mine().map(|hazard| &*hazard.handle).filter(|word| word.load(Ordering::Relaxed) == 0)
}

/// As [`free`], for a thread that has a word already. Makes no call that changes errno.
#[inline]
pub(super) fn free_again() -> Option<&'static AtomicUsize> {
    MINE.get().map(|hazard| &*hazard.handle).filter(|word| word.load(Ordering::Relaxed) == 0)
}

/// The fence between a reader's store to its word and its load from the table.
#[inline]
pub(super) fn light_fence() {
    // Acquire: a removing thread that finds `LIGHT` false does not call membarrier(2). A reader
    // that makes no fence sees such a removal.
    if FENCE.load(Ordering::Acquire) {
        full_fence();
    }
    compiler_fence(Ordering::SeqCst);
}

/// A full fence in a function of its own, so that the usual case without it has no jump.
#[cold]
fn full_fence() {
    fence(Ordering::SeqCst);
}

/// The fence between taking a value away and checking for its readers.
pub(super) fn heavy_fence() {
    fence(Ordering::SeqCst);
    if LIGHT.load(Ordering::SeqCst) && !sys::membarrier() {
        // The call was registered, and is refused now (a seccomp filter that came later). After the
        // nap, the words of readers without a fence are visible. More such readers may come
        // meanwhile, so each removal naps.
        FENCE.store(true, Ordering::SeqCst);
        sys::nap(std::time::Duration::from_millis(10));
    }
}

fn all() -> impl Iterator<Item = &'static Hazard> {
    // SAFETY: null, or a word that is never freed.
    let at = |at: &AtomicPtr<Hazard>| unsafe { at.load(Ordering::Acquire).as_ref() };
    std::iter::successors(at(&ALL), move |hazard| at(&hazard.next))
}

/// The words of all other threads.
pub(super) fn words_of_others() -> impl Iterator<Item = &'static AtomicUsize> {
    let mine = MINE.get();
    let is_mine = move |hazard: &&Hazard| mine.is_some_and(|mine| std::ptr::eq(mine, *hazard));
    all().filter(move |hazard| !is_mine(hazard)).map(|hazard| &*hazard.handle)
}

/// Does this thread use this handle?
pub(super) fn is_mine(handle: usize) -> bool {
    MINE.get().is_some_and(|mine| mine.handle.load(Ordering::Relaxed) == handle)
}

/// Marks that this thread uses a handle, as [`Table::get`](super::Table::get) does, while the mark
/// lives. For benchmarks of other structures, which measure them against the table.
#[derive(Debug)]
pub struct Look {
    _pin: Option<Pin<'static>>,
}

impl Look {
    /// Marks `handle` as in use. Does nothing for 0, or if this thread uses another handle.
    #[inline]
    pub fn at(handle: usize) -> Self {
        // The handle 0 cannot mark a word as in use: 0 means that the word is free.
        let pin = free().filter(|_| handle != 0).map(|word| Pin::word(word, handle));
        light_fence();
        Self { _pin: pin }
    }
}
