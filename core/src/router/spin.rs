//! How long a thread spins for more work before it sleeps: longer if that has paid lately.

use std::sync::atomic::{AtomicU64, Ordering};

/// A learned time in ticks; 0 if spinning has not paid.
#[derive(Debug)]
pub(crate) struct Spin(AtomicU64);

impl Spin {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The number of ticks to spin.
    #[inline]
    pub(crate) fn budget(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// A thread has spun for up to `budget` ticks. If work has come meanwhile, the next thread
    /// spins a little longer, up to `longest`. Otherwise the next thread spins half as long.
    pub(crate) fn learn(&self, budget: u64, paid: bool, longest: u64) {
        let next = if paid { (budget + budget / 4).min(longest) } else { budget / 2 };
        self.0.store(next, Ordering::Relaxed);
    }

    /// A thread had to be woken. Had it spun for this many ticks, it would still have been awake.
    /// So the next thread spins at least that long.
    pub(crate) fn would_have_paid(&self, ticks: u64) {
        self.0.fetch_max(ticks, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Spin;

    #[test]
    fn spinning_that_pays_grows_and_that_in_vain_ends() {
        let spin = Spin::new();
        assert_eq!(spin.budget(), 0);
        spin.would_have_paid(100);
        spin.learn(spin.budget(), true, 1000);
        assert_eq!(spin.budget(), 125);
        (0..100).for_each(|_| spin.learn(spin.budget(), true, 1000));
        assert_eq!(spin.budget(), 1000);
        (0..10).for_each(|_| spin.learn(spin.budget(), false, 1000));
        assert_eq!(spin.budget(), 0);
    }
}
