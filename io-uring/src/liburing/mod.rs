//! liburing's functions (liburing.h, and their manual pages), over rings of this library or of the
//! kernel. They use a ring's memory, and make the same calls as the original.
//!
//! None of these functions sets errno: errors are negative errnos.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::abi::{
    CQE_SKIP, CQE_WIDE, Cqe, Params, Uring, enter, register::USE_REGISTERED_RING, setup, sq,
};

mod buffers;
mod in_memory;
mod register;
mod set_up;
mod submit;
mod wait;

/// Bits of `int_flags`. REG_RING: the ring's descriptor was registered. REG_REG_RING: its index is
/// also used in io_uring_register(2). APP_MEM: the program has provided the ring's memory.
/// NO_IOWAIT: waits do not count as waits for I/O.
const REG_RING: u8 = 1;

const REG_REG_RING: u8 = 2;

const APP_MEM: u8 = 4;

const NO_IOWAIT: u8 = 8;

const EINVAL: c_int = -libc::EINVAL;

/// A word that the program, or a thread that executes its requests, may change.
///
/// # Safety
/// `at` is the address of such a word.
unsafe fn word<'a>(at: *mut u32) -> &'a AtomicU32 {
    // SAFETY: the caller's contract.
    unsafe { AtomicU32::from_ptr(at) }
}

/// A ring of the program's (`struct io_uring`).
///
/// One thread may submit while another one reaps, so there is no reference to the whole structure.
/// Each field is read or written by itself.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct RingAt(*mut Uring);

/// The address of memory, for a call that makes a pointer of the address again.
fn address<T>(of: *const T) -> usize {
    of.expose_provenance()
}

impl RingAt {
    unsafe fn has(self, flag: u32) -> bool {
        // SAFETY: a ring that was made, by the callers' contract.
        unsafe { (*self.0).flags & flag != 0 }
    }

    /// Is this bit of `int_flags` set?
    unsafe fn has_registered(self, flag: u8) -> bool {
        // SAFETY: as above.
        unsafe { (*self.0).int_flags & flag != 0 }
    }

    unsafe fn has_feature(self, feature: u32) -> bool {
        // SAFETY: as above.
        unsafe { (*self.0).features & feature != 0 }
    }

    unsafe fn kernel_flags(self) -> u32 {
        // SAFETY: a ring that was made, by the callers' contract.
        unsafe { word((*self.0).sq.kflags) }.load(Ordering::Relaxed)
    }

    unsafe fn enter(self, count: u32, min: u32, flags: u32, arg: [usize; 2]) -> c_int {
        // SAFETY: the callers' contract.
        unsafe {
            let bits = (*self.0).int_flags;
            let by_index = if bits & REG_RING != 0 { enter::REGISTERED_RING } else { 0 };
            let no_iowait = if bits & NO_IOWAIT != 0 { enter::NO_IOWAIT } else { 0 };
            let more = by_index | no_iowait;
            crate::enter::enter((*self.0).enter_ring_fd, count, min, flags | more, arg)
        }
    }

    unsafe fn register(self, opcode: u32, arg: usize, count: u32) -> c_int {
        // SAFETY: the callers' contract.
        unsafe {
            let (fd, more) = if self.has_registered(REG_REG_RING) {
                ((*self.0).enter_ring_fd, USE_REGISTERED_RING)
            } else {
                ((*self.0).ring_fd, 0)
            };
            crate::register::register(fd, opcode | more, arg, count)
        }
    }

    /// Publishes the entries that were filled in. Returns the number of entries that were not taken
    /// from the queue yet.
    unsafe fn flush(self) -> u32 {
        // SAFETY: a ring that was made, by the callers' contract.
        unsafe {
            let tail = (*self.0).sq.sqe_tail;
            if (*self.0).sq.sqe_head != tail {
                (*self.0).sq.sqe_head = tail;
                word((*self.0).sq.ktail).store(tail, Ordering::Release);
            }
            tail.wrapping_sub(word((*self.0).sq.khead).load(Ordering::Acquire))
        }
    }

    unsafe fn ready(self) -> u32 {
        // SAFETY: a ring that was made, by the callers' contract.
        unsafe {
            let tail = word((*self.0).cq.ktail).load(Ordering::Acquire);
            tail.wrapping_sub(word((*self.0).cq.khead).load(Ordering::Relaxed))
        }
    }

    unsafe fn cqe(self, at: u32) -> *mut Cqe {
        // SAFETY: a ring that was made, by the callers' contract; the index is masked.
        unsafe {
            let shift = u32::from(self.has(setup::CQE32));
            let mask = *(*self.0).cq.kring_mask;
            (*self.0).cq.cqes.cast::<Cqe>().add(((at & mask) << shift) as usize)
        }
    }

    /// The first completion, or null. The original skips completions of its own timeouts, which it
    /// needs on kernels without EXT_ARG. There are none here.
    unsafe fn peek(self) -> *mut Cqe {
        let mut first = null_mut();
        // SAFETY: a ring that was made, by the callers' contract.
        unsafe { self.peek_some(1, |_, cqe| first = cqe) };
        first
    }

    /// Passes up to `count` completions to `take`, numbered from 0. Returns how many it has passed.
    unsafe fn peek_some(self, count: u32, mut take: impl FnMut(u32, *mut Cqe)) -> u32 {
        // SAFETY: a ring that was made, by the callers' contract.
        unsafe {
            let khead = word((*self.0).cq.khead);
            let (head, ready) = (khead.load(Ordering::Relaxed), self.ready());
            let (is_mixed, mut at, mut taken) = (self.has(setup::CQE_MIXED), 0, 0);
            while at < ready && taken < count {
                let cqe = self.cqe(head.wrapping_add(at));
                let flags = if is_mixed { (*cqe).flags } else { 0 };
                if flags & CQE_SKIP != 0 {
                    // The program marks only completions as seen, so this place is marked here.
                    // That has to wait while a completion is in front of it.
                    if taken > 0 {
                        break;
                    }
                    khead.fetch_add(1, Ordering::Release);
                } else {
                    take(taken, cqe);
                    taken += 1;
                }
                at += 1 + u32::from(flags & CQE_WIDE != 0);
            }
            taken
        }
    }

    unsafe fn needs_flush(self) -> bool {
        // SAFETY: as above.
        unsafe { self.kernel_flags() & (sq::CQ_OVERFLOW | sq::TASKRUN) != 0 }
    }

    /// Is a call of io_uring_enter(2) needed, so that the new entries are submitted?
    unsafe fn needs_enter(self, count: u32, flags: &mut u32) -> bool {
        if count == 0 {
            return false;
        }
        // SAFETY: as above.
        if !unsafe { self.has(setup::SQPOLL) } {
            return true;
        }
        // The tail is written before the flag is read. The kernel's thread for SQPOLL sets the flag
        // before it reads the tail.
        std::sync::atomic::fence(Ordering::SeqCst);
        // SAFETY: as above.
        let needs = unsafe { self.kernel_flags() & sq::NEED_WAKEUP != 0 };
        if needs {
            *flags |= enter::SQ_WAKEUP;
        }
        needs
    }

    /// Submits the entries that were filled in, and waits.
    unsafe fn submit(self, min: u32, gets_events: bool, arg: [usize; 2], more: u32) -> c_int {
        // SAFETY: the callers' contract.
        unsafe {
            let count = self.flush();
            let mut flags = more;
            let gets = gets_events || min > 0 || self.has(setup::IOPOLL) || self.needs_flush();
            if self.needs_enter(count, &mut flags) || gets {
                if gets {
                    flags |= enter::GETEVENTS;
                }
                return self.enter(count, min, flags, arg);
            }
            count as c_int
        }
    }
}

fn keep_errno(call: impl FnOnce() -> c_int) -> c_int {
    uringlet::front::enter(|| {
        if call() == 0 {
            return 0;
        }
        -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
    })
}

/// # Safety
/// As io_uring_enter2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_enter2(
    fd: c_uint,
    count: c_uint,
    min: c_uint,
    flags: c_uint,
    arg: *const c_void,
    size: usize,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { crate::enter::enter(fd as c_int, count, min, flags, [address(arg), size]) }
}

/// # Safety
/// As io_uring_enter(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_enter(
    fd: c_uint,
    count: c_uint,
    min: c_uint,
    flags: c_uint,
    mask: *const c_void,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { crate::enter::enter(fd as c_int, count, min, flags, [address(mask), 8]) }
}

/// # Safety
/// As io_uring_setup(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_setup(entries: c_uint, params: *mut Params) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { crate::setup::setup(entries, address(params)) }
}

/// # Safety
/// As io_uring_register(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_register(
    fd: c_uint,
    opcode: c_uint,
    arg: *const c_void,
    count: c_uint,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { crate::register::register(fd as c_int, opcode, address(arg), count) }
}

/// The version of liburing that these functions implement.
const VERSION: (c_int, c_int) = (2, 15);

/// As io_uring_major_version(3).
#[unsafe(no_mangle)]
pub extern "C" fn _io_uring_major_version() -> c_int {
    VERSION.0
}

/// As io_uring_minor_version(3).
#[unsafe(no_mangle)]
pub extern "C" fn _io_uring_minor_version() -> c_int {
    VERSION.1
}

/// As io_uring_check_version(3): is the library older than this version?
#[unsafe(no_mangle)]
pub extern "C" fn _io_uring_check_version(major: c_int, minor: c_int) -> bool {
    (major, minor) > VERSION
}

#[cfg(test)]
mod tests;
