//! Deadlines of rings, by the thread that has those of the whole process.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use uringlet::front::{Armed, Expire};

use crate::sys;

/// A timer that was set.
pub(crate) type Timer = Armed;

struct Closure<F>(F);

impl<F: Fn() + Send + Sync> Expire for Closure<F> {
    fn expire(&self) {
        (self.0)();
    }
}

/// Has `call` called at `deadline` (nanoseconds of CLOCK_MONOTONIC), or a little later. It must not
/// block.
///
/// # Errors
/// `-EAGAIN`, `-ENOMEM`: the thread of all deadlines is not there and cannot be made.
pub(crate) fn set(deadline: u64, call: impl Fn() + Send + Sync + 'static) -> Result<Timer, i32> {
    let armed = Armed::new(instant(deadline), Arc::new(Closure(call)));
    armed.map_err(|error| -error.raw_os_error().unwrap_or(libc::EAGAIN))
}

/// The instant of a time. Times keep their order, as one pair is the measure of all.
fn instant(time: u64) -> Instant {
    static PAIR: OnceLock<(u64, Instant)> = OnceLock::new();
    let pair = || {
        let before = sys::now(libc::CLOCK_MONOTONIC);
        let instant = Instant::now();
        (sys::now(libc::CLOCK_MONOTONIC) - before, (before, instant))
    };
    // The closest of some: the thread may be preempted in between.
    let closest = || (0..8).map(|_| pair()).min_by_key(|&(apart, _)| apart).map(|(_, pair)| pair);
    let &(zero, instant) = PAIR.get_or_init(|| closest().unwrap_or((0, Instant::now())));
    match time.checked_sub(zero) {
        Some(later) => instant + Duration::from_nanos(later),
        None => instant,
    }
}
