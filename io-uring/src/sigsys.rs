//! Signal sets for waits. SIGSYS is left out if this library may use it (`trap`). If a thread
//! blocks SIGSYS, a trapped call ends the process.
#![allow(unsafe_code)]

use uringlet::front::env::{self, Trap};
use uringlet::front::memory::accessible_now;
use uringlet::front::waits::SignalSet;

/// May this library use SIGSYS, now or later? Then no thread may block the signal.
#[inline]
pub(crate) fn may_trap() -> bool {
    env::trap() != Trap::Never
}

/// The kernel's form of a set, without SIGSYS if this library may use that signal.
pub(crate) fn mask_of_wait(set: u64) -> u64 {
    if may_trap() { set & !(1 << (libc::SIGSYS - 1)) } else { set }
}

/// The address of the set to pass to a waiting function of the C library. It is that of a copy in
/// `place` without SIGSYS, if this library may use that signal. Otherwise it is `set`. The function
/// refuses a set that cannot be read.
///
/// # Safety
/// `set` is null or the address of a set, as the function requires.
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
