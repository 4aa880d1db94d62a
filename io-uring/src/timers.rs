//! Deadlines of rings and of the polls of all rings, by the process's thread for deadlines.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use uringlet::front::{Armed, Expire};

use crate::sys;

/// A timer that was set.
pub(crate) type Timer = Armed;

/// What is notified when its timer is due: a ring, or the service that watches the polls of all
/// rings.
pub(crate) trait Expires: Send + Sync {
    /// The timer with this key is due.
    fn on_timer(self: Arc<Self>, key: u64);
}

/// The key of a timer, and what is notified when the timer is due.
struct Keyed {
    of: Arc<dyn Expires>,
    key: u64,
}

impl Expire for Keyed {
    fn expire(&self) {
        Arc::clone(&self.of).on_timer(self.key);
    }
}

/// Calls [`Expires::on_timer`] at `deadline` (nanoseconds of CLOCK_MONOTONIC), or a little later.
/// The callee must not block.
///
/// # Errors
/// `-EAGAIN`, `-ENOMEM`: the thread for deadlines does not exist and cannot be made.
pub(crate) fn set(deadline: u64, of: Arc<dyn Expires>, key: u64) -> Result<Timer, i32> {
    let armed = Armed::new(instant(deadline), Arc::new(Keyed { of, key }));
    armed.map_err(|error| -error.raw_os_error().unwrap_or(libc::EAGAIN))
}

/// The `Instant` of a time. One pair of a time and an `Instant` is the reference for all times, so
/// that they keep their order.
fn instant(time: u64) -> Instant {
    static PAIR: OnceLock<(u64, Instant)> = OnceLock::new();
    let pair = || {
        let before = sys::now(libc::CLOCK_MONOTONIC);
        let instant = Instant::now();
        (sys::now(libc::CLOCK_MONOTONIC) - before, (before, instant))
    };
    // The closest of several pairs: the thread may be preempted in between.
    let closest = || (0..8).map(|_| pair()).min_by_key(|&(apart, _)| apart).map(|(_, pair)| pair);
    let &(zero, instant) = PAIR.get_or_init(|| closest().unwrap_or((0, Instant::now())));
    match time.checked_sub(zero) {
        Some(later) => instant + Duration::from_nanos(later),
        None => instant,
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Sends the keys of due timers, with the times.
    struct Told(Mutex<Sender<(u64, u64)>>);

    impl Expires for Told {
        fn on_timer(self: Arc<Self>, key: u64) {
            let now = sys::now(libc::CLOCK_MONOTONIC);
            let _ = self.0.lock().expect("whole").send((key, now));
        }
    }

    #[test]
    fn timers_are_called_once_and_not_before_their_times() {
        const STEP: u64 = 1_000_000;
        let (sender, receiver) = channel();
        let begin = sys::now(libc::CLOCK_MONOTONIC);
        for number in 0..4 {
            let of = Arc::new(Told(Mutex::new(sender.clone())));
            set(begin + number * STEP, of, number).expect("a thread");
        }
        let gone = set(u64::MAX - 1, Arc::new(Told(Mutex::new(sender))), 4).expect("a thread");
        let mut called: Vec<(u64, u64)> = receiver.iter().take(4).collect();
        assert!(gone.disarm());
        // The channel ends when no timer is left.
        called.extend(receiver);
        called.sort_unstable();
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
