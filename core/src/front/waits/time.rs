//! How long a call may wait, as the program has passed it.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::time::Duration;

use crate::front::memory::accessible_now;

/// The time that a call may take.
#[derive(Clone, Copy, Debug)]
pub(super) enum Time {
    Milliseconds(c_int),
    /// The address of a timespec.
    Spec(usize),
    /// The address of a timeval, which gets the remaining time.
    Val(usize),
}

/// A time that the program's call refuses.
pub(super) struct WrongTime;

impl Time {
    /// The time, or `None` without a timeout.
    ///
    /// # Safety
    /// The address is null or that of a time; it is checked to be accessible.
    pub(super) unsafe fn read(self) -> Result<Option<Duration>, WrongTime> {
        let (at, unit) = match self {
            Self::Milliseconds(ms) => {
                return Ok(u64::try_from(ms).ok().map(Duration::from_millis));
            }
            Self::Spec(at) => (at, 1),
            Self::Val(at) => (at, 1000),
        };
        if at == 0 {
            return Ok(None);
        }
        if !accessible_now(at, 16, false) {
            return Err(WrongTime);
        }
        // SAFETY: the time is readable. A timespec and a timeval are two numbers of eight bytes
        // each.
        let [seconds, parts] = unsafe { (at as *const [i64; 2]).read_unaligned() };
        let nanoseconds = u32::try_from(parts.saturating_mul(unit)).map_err(|_| WrongTime)?;
        let seconds = u64::try_from(seconds).map_err(|_| WrongTime)?;
        if nanoseconds >= 1_000_000_000 {
            return Err(WrongTime);
        }
        Ok(Some(Duration::new(seconds, nanoseconds)))
    }

    /// Writes the time that is left at the end of the call, as select(2) does.
    ///
    /// # Safety
    /// As [`Time::read`], which has not refused it.
    pub(super) unsafe fn tell(self, left: Option<Duration>) {
        if let (Self::Val(at), Some(left)) = (self, left)
            && at != 0
        {
            let left = [left.as_secs() as i64, i64::from(left.subsec_micros())];
            // SAFETY: the caller's contract: select(2) writes there, too.
            unsafe { (at as *mut [i64; 2]).write_unaligned(left) };
        }
    }
}
