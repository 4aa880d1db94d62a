//! Checks addresses of the caller: a bad one gets `EFAULT` instead of a crash. For requests, the
//! kernel is asked once per page ([`accessible`]), so that a good address costs no system call.
//! Elsewhere the kernel is asked each time ([`accessible_now`]).

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::sys;

/// The smallest page size of any machine.
const PAGE: usize = 4096;

/// The pages that were last found to be accessible, by hash. They are assumed to stay accessible.
static KNOWN: [AtomicUsize; ENTRIES] = [const { AtomicUsize::new(0) }; ENTRIES];
const ENTRIES: usize = 4096;

/// Can `bytes` bytes at `address` be read (or written)? The memory is not changed.
#[inline]
pub fn accessible(address: usize, bytes: usize, write: bool) -> bool {
    is_known_to_be_accessible(address, bytes, write) || accessible_pages(address, bytes, write)
}

/// As [`accessible`], but asks the kernel about each page, because the memory may have been
/// unmapped.
pub fn accessible_now(address: usize, bytes: usize, write: bool) -> bool {
    all_pages(address, bytes, |place, _| ask(place, write))
}

/// As [`accessible`], for the usual case: the range is within one page or two that were asked about
/// before.
#[inline]
pub fn is_known_to_be_accessible(address: usize, bytes: usize, write: bool) -> bool {
    let page = address / PAGE;
    let within = address % PAGE + bytes;
    within <= 2 * PAGE && is_known(page, write) && (within <= PAGE || is_known(page + 1, write))
}

/// The table's value for a page: never 0.
#[inline]
fn known(page: usize, write: bool) -> usize {
    (page + 1) << 1 | usize::from(write)
}

/// The table's entry for a page.
#[inline]
fn entry(page: usize) -> &'static AtomicUsize {
    // Stacks are at round distances: the low bits alone would collide.
    let hash = (page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
    &KNOWN[hash as usize % ENTRIES]
}

#[inline]
fn is_known(page: usize, write: bool) -> bool {
    let seen = entry(page).load(Ordering::Relaxed);
    // A writable page is readable, too.
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
    if write { sys::byte_writable(place) } else { sys::byte_readable(place) }
}

/// Calls `is_there` for each page of a range, with an address in it and the page's number. True if
/// all of these calls return true.
fn all_pages(address: usize, bytes: usize, is_there: impl Fn(usize, usize) -> bool) -> bool {
    let Some(end) = address.checked_add(bytes.max(1)) else { return false };
    if address < PAGE || !sys::in_user_space(address as u64, bytes as u64) {
        return false;
    }
    let mut at = address;
    while at < end {
        let page = at / PAGE;
        if !is_there(at, page) {
            return false;
        }
        at = (page + 1) * PAGE;
    }
    true
}
