//! Which process this is: notices a fork without a system call per request.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};

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

/// A number for this process: another one after a fork. 0 until [`enter`] was called in it.
#[inline(always)]
pub(crate) fn generation() -> u64 {
    word().load(Ordering::Relaxed)
}

/// The number of this process, made if it has none yet.
pub(crate) fn enter() -> u64 {
    let word = word();
    let now = word.load(Ordering::Acquire);
    if now != 0 {
        return now;
    }
    let new = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    match word.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            PID.store(sys::getpid(), Ordering::Relaxed);
            new
        }
        Err(other) => other,
    }
}

/// Is this a child that shares the memory, but not the descriptors (vfork(2)), of the process that contexts
/// belong to? One system call.
pub(crate) fn is_borrowed() -> bool {
    PID.load(Ordering::Relaxed) != sys::getpid()
}
