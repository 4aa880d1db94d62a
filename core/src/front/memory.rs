//! Is the caller's memory there? A bad address gets `EFAULT` and not a crash. On the way of every
//! request the kernel is asked once per page ([`accessible`]), so that a good one costs no system
//! call; elsewhere it is asked each time ([`accessible_now`]).

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::front;
use crate::sys;

/// The least that any machine maps at a time.
const PAGE: usize = 4096;

/// Pages remembered: by hash, the last one asked about. A page that was accessible is believed to
/// stay so.
static KNOWN: [AtomicUsize; ENTRIES] = [const { AtomicUsize::new(0) }; ENTRIES];
const ENTRIES: usize = 4096;

/// Can `bytes` at `address` be read (or written)? Asking changes nothing there.
#[inline]
pub fn accessible(address: usize, bytes: usize, write: bool) -> bool {
    is_known_to_be_accessible(address, bytes, write) || accessible_pages(address, bytes, write)
}

/// As [`accessible`], of pages that may be gone since they were last asked about: a system call for
/// each.
pub fn accessible_now(address: usize, bytes: usize, write: bool) -> bool {
    all_pages(address, bytes, |place, _| ask(place, write))
}

/// As [`accessible`] in the usual case: within one page or two, and asked about before.
#[inline]
pub fn is_known_to_be_accessible(address: usize, bytes: usize, write: bool) -> bool {
    let page = address / PAGE;
    let within = address % PAGE + bytes;
    within <= 2 * PAGE && is_known(page, write) && (within <= PAGE || is_known(page + 1, write))
}

/// What stands in the table for a page: never 0.
#[inline]
fn known(page: usize, write: bool) -> usize {
    (page + 1) << 1 | usize::from(write)
}

/// Where it stands whether a page is accessible.
#[inline]
fn entry(page: usize) -> &'static AtomicUsize {
    // Stacks lie far apart at round distances: the low bits alone would collide.
    let hash = (page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
    &KNOWN[hash as usize % ENTRIES]
}

#[inline]
fn is_known(page: usize, write: bool) -> bool {
    let seen = entry(page).load(Ordering::Relaxed);
    // A page that could be written to can be read, too.
    seen | usize::from(!write) == known(page, write) | usize::from(!write)
}

#[inline(never)]
fn accessible_pages(address: usize, bytes: usize, write: bool) -> bool {
    all_pages(address, bytes, |place, page| {
        let is_there = is_known(page, write) || ask(place, write);
        if is_there {
            entry(page).store(known(page, write), Ordering::Relaxed);
        }
        is_there
    })
}

fn ask(place: usize, write: bool) -> bool {
    if write { front::writable(place) } else { front::readable(place) }
}

/// Is `is_there` true of a place in each page of a range, and of the page's number?
fn all_pages(address: usize, bytes: usize, is_there: impl Fn(usize, usize) -> bool) -> bool {
    let Some(end) = address.checked_add(bytes.max(1)) else { return false };
    if address < PAGE || !sys::in_user_space(address as u64, bytes as u64) {
        return false;
    }
    let mut at = address;
    while at < end {
        let page = at / PAGE;
        if !is_there(at.min(end.saturating_sub(8).max(address)), page) {
            return false;
        }
        at = (page + 1) * PAGE;
    }
    true
}
