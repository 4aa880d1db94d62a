//! Sets of signals under which a thread waits, without SIGSYS where that may be this library's: a
//! thread that blocks it would be ended by it.
#![allow(unsafe_code)]

use uringlet::front::env::{self, Trap};
use uringlet::front::memory::accessible_now;
use uringlet::front::waits::SignalSet;

/// SIGSYS may be this library's, now or later: no thread may block it.
#[inline]
pub(crate) fn may_trap() -> bool {
    env::trap() != Trap::Never
}

/// The kernel's form of a set, without SIGSYS if that may be this library's.
pub(crate) fn mask_of_wait(set: u64) -> u64 {
    if may_trap() { set & !(1 << (libc::SIGSYS - 1)) } else { set }
}

/// A set under which the program has a function of the C library wait: the same, or one in `place`
/// without SIGSYS, if that may be this library's. What cannot be read is refused by the function.
///
/// # Safety
/// As the function: null, or a set.
pub(crate) unsafe fn set_of_wait(set: usize, place: &mut SignalSet) -> usize {
    if set == 0 || !may_trap() || !accessible_now(set, size_of::<u64>(), false) {
        return set;
    }
    // SAFETY: readable. The kernel looks at the first eight bytes.
    let theirs = unsafe { (set as *const u64).read_unaligned() };
    if theirs == mask_of_wait(theirs) {
        return set;
    }
    place[0] = mask_of_wait(theirs);
    place.as_ptr().expose_provenance()
}
