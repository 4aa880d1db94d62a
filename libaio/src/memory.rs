//! Is the caller's memory there? Asked of the kernel once per page, so that a bad address gets
//! `EFAULT` and not a crash, and a good one costs no system call.

use std::sync::atomic::{AtomicUsize, Ordering};

use uringlet::front;
use uringlet::table::PAGE;

/// Pages remembered: by hash, the last one asked about. A page that was accessible is believed to
/// stay so.
static KNOWN: [AtomicUsize; ENTRIES] = [const { AtomicUsize::new(0) }; ENTRIES];
const ENTRIES: usize = 4096;

/// Can `bytes` at `address` be read (or written)? Asking about a new page for writing overwrites
/// eight bytes in it, within the given range.
#[inline]
pub(crate) fn accessible(address: usize, bytes: usize, write: bool) -> bool {
    let Some(end) = address.checked_add(bytes.max(1)) else { return false };
    if address < PAGE || end >= 1 << 47 {
        return false;
    }
    let mut at = address;
    while at < end {
        let page = at / PAGE;
        let known = page << 1 | usize::from(write);
        // Stacks lie far apart at round distances: the low bits alone would collide.
        let hash = (page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        let entry = &KNOWN[hash as usize % ENTRIES];
        let seen = entry.load(Ordering::Relaxed);
        if seen != known && seen != known | 1 {
            let place = at.min(end.saturating_sub(8).max(address));
            if !(if write { front::writable(place) } else { front::readable(place) }) {
                return false;
            }
            entry.store(known, Ordering::Relaxed);
        }
        at = (page + 1) * PAGE;
    }
    true
}
