//! Reading completions, and waiting for them.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};

use super::{EINVAL, RingAt, address};
use crate::abi::{self, Cqe, GetEventsArg, Timespec, enter, setup};

/// The parameters of a wait.
struct Wait {
    submit: u32,
    min: u32,
    flags: u32,
    arg: [usize; 2],
    has_timeout: bool,
}

unsafe fn get_cqe(ring: RingAt, out: *mut *mut Cqe, wait: &Wait) -> c_int {
    let (mut submit, mut looped) = (wait.submit, false);
    loop {
        let mut flags = wait.flags;
        // SAFETY: the callers' contract.
        let cqe = unsafe { ring.peek() };
        // If `peek` has found no completion, one that comes now is left to the next round.
        // SAFETY: as above.
        let ready = if cqe.is_null() { 0 } else { unsafe { ring.ready() } };
        let mut error = 0;
        let mut needs = false;
        if cqe.is_null() && wait.min == 0 && submit == 0 {
            // SAFETY: as above.
            let flush = unsafe { ring.needs_flush() || ring.has(setup::IOPOLL) };
            if looped || !flush {
                error = -libc::EAGAIN;
            } else {
                needs = true;
                flags |= enter::GETEVENTS;
            }
        }
        if wait.min > ready {
            flags |= enter::GETEVENTS;
            needs = true;
        }
        // SAFETY: as above.
        needs |= unsafe { ring.needs_enter(submit, &mut flags) };
        if !needs || looped && wait.has_timeout {
            if looped && cqe.is_null() && error == 0 {
                error = -libc::ETIME;
            }
            // SAFETY: a place for the answer, by the callers' contract.
            unsafe { out.write(cqe) };
            return error;
        }
        // SAFETY: as above.
        let answer = unsafe { ring.enter(submit, wait.min, flags, wait.arg) };
        if answer < 0 {
            // SAFETY: as above.
            unsafe { out.write(ring.peek()) };
            return answer;
        }
        submit = submit.saturating_sub(answer as u32);
        // SAFETY: as above.
        let cqe = unsafe { ring.peek() };
        if !cqe.is_null() && wait.min <= 1 {
            // SAFETY: as above.
            unsafe { out.write(cqe) };
            return 0;
        }
        looped = true;
    }
}

/// # Safety
/// As io_uring_wait_cqe(3). The ring was made, as everywhere here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ___io_uring_get_cqe(
    ring: RingAt,
    out: *mut *mut Cqe,
    submit: c_uint,
    min: c_uint,
    mask: *const c_void,
) -> c_int {
    let arg = [address(mask), 8];
    let wait = Wait { submit, min, flags: 0, arg, has_timeout: false };
    // SAFETY: the caller's contract.
    unsafe { get_cqe(ring, out, &wait) }
}

/// # Safety
/// As io_uring_peek_batch_cqe(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_peek_batch_cqe(
    ring: RingAt,
    out: *mut *mut Cqe,
    count: c_uint,
) -> c_uint {
    // SAFETY: the caller's contract.
    unsafe {
        let put = |at: u32, cqe| out.add(at as usize).write(cqe);
        let found = ring.peek_some(count, put);
        if found > 0 || !ring.needs_flush() {
            return found;
        }
        ring.enter(0, 0, enter::GETEVENTS, [0, 8]);
        ring.peek_some(count, put)
    }
}

/// # Safety
/// As io_uring_get_events(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_get_events(ring: RingAt) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { ring.enter(0, 0, enter::GETEVENTS, [0, 8]) }
}

/// The timeout of a wait, and the time (in microseconds) after which one completion is enough.
type Times = (*const Timespec, Option<u32>);

/// Waits for `min` completions, with a timeout or without. `submits`: entries are submitted first,
/// and their number is returned.
unsafe fn wait_with_time(
    ring: RingAt,
    out: *mut *mut Cqe,
    (submits, min): (bool, u32),
    (time, min_wait): Times,
    mask: *const c_void,
) -> c_int {
    let needed = min_wait.map_or(abi::FEATURE_EXT_ARG, |_| abi::FEATURE_MIN_TIMEOUT);
    let is_plain = time.is_null() && min_wait.is_none();
    // SAFETY: the callers' contract.
    unsafe {
        if !is_plain && !ring.has_feature(needed) {
            return EINVAL;
        }
        let submit = if submits { ring.flush() } else { 0 };
        let ext = GetEventsArg {
            sigmask: address(mask) as u64,
            sigmask_sz: 8,
            min_wait_usec: min_wait.unwrap_or(0),
            ts: address(time) as u64,
        };
        let (flags, arg) = match is_plain {
            true => (0, [address(mask), 8]),
            false => (enter::EXT_ARG, [address(&raw const ext), size_of::<GetEventsArg>()]),
        };
        let wait = Wait { submit, min, flags, arg, has_timeout: !time.is_null() };
        let answer = get_cqe(ring, out, &wait);
        if answer < 0 { answer } else { submit as c_int }
    }
}

/// The size of `struct io_uring_reg_wait`.
const REGION_WAIT: usize = 64;

/// # Safety
/// As io_uring_submit_and_wait_reg(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_submit_and_wait_reg(
    ring: RingAt,
    out: *mut *mut Cqe,
    min: c_uint,
    index: c_int,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        if !ring.has_feature(abi::FEATURE_EXT_ARG) {
            return EINVAL;
        }
        // Any index is passed on, as an offset that io_uring_enter(2) checks.
        let offset = (index as usize).wrapping_mul(REGION_WAIT);
        let flags = enter::EXT_ARG | enter::EXT_ARG_REG;
        let arg = [offset, REGION_WAIT];
        let wait = Wait { submit: ring.flush(), min, flags, arg, has_timeout: true };
        get_cqe(ring, out, &wait)
    }
}

/// Functions that wait with a timeout.
macro_rules! waits {
    ($($name:ident($submits:literal $(, $min_wait:ident)?);)*) => {
        $(
            /// # Safety
            /// As the function of liburing.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                ring: RingAt,
                out: *mut *mut Cqe,
                min: c_uint,
                time: *const Timespec,
                $($min_wait: c_uint,)?
                mask: *const c_void,
            ) -> c_int {
                let times = (time, None$(.or(Some($min_wait)))?);
                // SAFETY: the caller's contract.
                unsafe { wait_with_time(ring, out, ($submits, min), times, mask) }
            }
        )*
    };
}

waits! {
    _io_uring_wait_cqes(false);
    _io_uring_wait_cqes_min_timeout(false, min_wait);
    _io_uring_submit_and_wait_timeout(true);
    _io_uring_submit_and_wait_min_timeout(true, min_wait);
}

/// # Safety
/// As io_uring_wait_cqe_timeout(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_wait_cqe_timeout(
    ring: RingAt,
    out: *mut *mut Cqe,
    time: *const Timespec,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { _io_uring_wait_cqes(ring, out, 1, time, std::ptr::null()) }
}
