//! Which process this is: notices a fork without a system call per request.
#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys::Mapping;

/// One word in a page that the kernel zeroes in the child of a fork.
struct Page(Mapping);

impl Page {
    fn word(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped writable for ever, aligned, and only used as this atomic.
        unsafe { &*self.0.base().cast::<AtomicU64>() }
    }
}

static PAGE: OnceLock<Option<Page>> = OnceLock::new();
/// The newest generation handed out; survives a fork.
static LAST: AtomicU64 = AtomicU64::new(0);
/// Stands in for the page where the kernel has no MADV_WIPEONFORK (before 4.14).
static FALLBACK: AtomicU64 = AtomicU64::new(0);

extern "C" fn forget() {
    FALLBACK.store(0, Ordering::Relaxed);
}

fn page() -> Option<Page> {
    let page = Mapping::new(4096, libc::PROT_READ | libc::PROT_WRITE).ok();
    let page = page.filter(|page| page.wipe_on_fork() == 0);
    if page.is_none() {
        // SAFETY: the handler is a plain function that stores one word.
        unsafe { libc::pthread_atfork(None, None, Some(forget)) };
    }
    page.map(Page)
}

fn word() -> &'static AtomicU64 {
    PAGE.get_or_init(page).as_ref().map_or(&FALLBACK, Page::word)
}

/// A number for this process: another one after a fork. 0 until [`enter`] was called in it.
#[inline]
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
        Ok(_) => new,
        Err(other) => other,
    }
}
