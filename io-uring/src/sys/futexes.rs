//! futex(2) and futex_waitv(2) for words of the program's, and for our own.

use std::sync::atomic::AtomicU32;

use syscalls::Sysno;

const FUTEX_PRIVATE: i32 = libc::FUTEX_PRIVATE_FLAG;
/// The futex has 32 bits, and is of this process (`FUTEX2_SIZE_U32`, `FUTEX2_PRIVATE`).
const OWN: u32 = 2 | 128;

/// `struct futex_waitv`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct FutexWaitV {
    pub(crate) value: u64,
    pub(crate) word: u64,
    pub(crate) flags: u32,
    pub(crate) reserved: u32,
}

impl FutexWaitV {
    /// Waits while a word of ours is 0.
    pub(crate) fn own(word: &AtomicU32) -> Self {
        Self { value: 0, word: word.as_ptr().expose_provenance() as u64, flags: OWN, reserved: 0 }
    }
}

/// futex_waitv(2): the index of a word that was woken, or a negative errno.
pub(crate) fn wait_any(all: &[FutexWaitV], may_wait: bool) -> i32 {
    let past = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let time = if may_wait { std::ptr::null() } else { &raw const past };
    let clock = libc::CLOCK_MONOTONIC;
    // SAFETY: a list, and a time or none. The kernel checks the words' addresses.
    unsafe { call!(futex_waitv, all.as_ptr(), all.len(), 0, time, clock) as i32 }
}

/// futex(FUTEX_WAKE_BITSET): how many were woken, or a negative errno.
pub(crate) fn wake(word: u64, count: u32, mask: u32, is_private: bool) -> i32 {
    let op = libc::FUTEX_WAKE_BITSET | if is_private { FUTEX_PRIVATE } else { 0 };
    // SAFETY: the address is only compared.
    unsafe { call!(futex, word, op, count, 0, 0, mask) as i32 }
}

/// As [`wake`] for a count of 0, which futex(2) takes for 1: 0, or a negative errno.
pub(crate) fn wake_none(word: u64, mask: u32, is_private: bool) -> i32 {
    if mask == 0 {
        return -libc::EINVAL;
    }
    let op = libc::FUTEX_REQUEUE | if is_private { FUTEX_PRIVATE } else { 0 };
    // SAFETY: the address is only compared: no waiter is moved to it.
    unsafe { call!(futex, word, op, 0, 0, word, 0) as i32 }
}

pub(crate) fn wake_own(word: &AtomicU32) {
    wake(word.as_ptr().expose_provenance() as u64, 1, u32::MAX, true);
}

/// Does a thread wait at this word of ours? The call moves such a thread to the same word, where
/// the thread keeps waiting.
pub(crate) fn has_waiter(word: &AtomicU32) -> bool {
    let op = libc::FUTEX_CMP_REQUEUE | FUTEX_PRIVATE;
    // SAFETY: a word of ours, which is 0.
    unsafe { call!(futex, word.as_ptr(), op, 0, 1, word.as_ptr(), 0) as i32 > 0 }
}
