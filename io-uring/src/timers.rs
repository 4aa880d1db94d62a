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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn timers_are_called_once_and_not_before_their_times() {
        const STEP: u64 = 1_000_000;
        let (sender, receiver) = channel();
        let begin = sys::now(libc::CLOCK_MONOTONIC);
        for number in 0..4 {
            let sender = Mutex::new(sender.clone());
            let call = move || {
                let now = sys::now(libc::CLOCK_MONOTONIC);
                let _ = sender.lock().expect("whole").send((number, now));
            };
            set(begin + number * STEP, call).expect("a thread");
        }
        drop(sender);
        let gone = set(u64::MAX - 1, || unreachable!("it is disarmed")).expect("a thread");
        // The channel ends when the last one was called.
        let mut called: Vec<(u64, u64)> = receiver.iter().collect();
        called.sort_unstable();
        assert!(gone.disarm());
        assert_eq!(called.len(), 4);
        for (at, (number, now)) in (0..).zip(called) {
            assert!(number == at && now >= begin + number * STEP, "{number} at {now}");
        }
    }

    #[test]
    fn times_keep_their_order_and_their_distances() {
        let now = sys::now(libc::CLOCK_MONOTONIC);
        assert!(instant(0) <= instant(now) && instant(now) < instant(u64::MAX - 1));
        assert_eq!(instant(now + 1) - instant(now), Duration::from_nanos(1));
    }
}
