//! Durations in buckets: recorded with atomic additions, read as a distribution.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Each power of two has `1 << FINE_BITS` sub-buckets.
const FINE_BITS: u32 = 4;
const BUCKETS: usize = 64 << FINE_BITS;

/// A histogram with a relative error of at most 1/16, shared between processes.
#[repr(C)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    max: AtomicU64,
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.read().fmt(f)
    }
}

/// The bucket of a value. `floor_of` is its inverse: the smallest value of a bucket.
fn bucket(value: u64) -> usize {
    if value < 1 << FINE_BITS {
        return value as usize;
    }
    let power = value.ilog2();
    let fine = (value >> (power - FINE_BITS)) as usize & ((1 << FINE_BITS) - 1);
    ((power - FINE_BITS + 1) as usize) << FINE_BITS | fine
}

fn floor_of(bucket: usize) -> u64 {
    let (row, fine) = (bucket >> FINE_BITS, (bucket & ((1 << FINE_BITS) - 1)) as u64);
    if row == 0 { fine } else { (1 << FINE_BITS | fine).checked_shl(row as u32 - 1).unwrap_or(0) }
}

/// The largest value of a bucket.
fn top_of(bucket: usize) -> u64 {
    if bucket >= self::bucket(u64::MAX) { u64::MAX } else { floor_of(bucket + 1) - 1 }
}

impl Histogram {
    pub(crate) fn record(&self, ns: u64) {
        self.buckets[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        if ns > self.max.load(Ordering::Relaxed) {
            self.max.fetch_max(ns, Ordering::Relaxed);
        }
    }

    pub(super) fn read(&self) -> Distribution {
        Distribution {
            counts: self.buckets.iter().map(|b| b.load(Ordering::Relaxed)).collect(),
            max_ns: self.max.load(Ordering::Relaxed),
        }
    }
}

/// A distribution of durations; exact to 1/16.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Distribution {
    /// The count of each bucket; empty if nothing was recorded.
    counts: Vec<u64>,
    max_ns: u64,
}

impl fmt::Debug for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.latency().fmt(f)
    }
}

/// Some points of a distribution of durations, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Latency {
    /// The number of durations.
    pub count: u64,
    /// Half of the requests took at most this long.
    pub p50_ns: u64,
    /// 99% of the requests took at most this long.
    pub p99_ns: u64,
    /// 99.9% of the requests took at most this long.
    pub p999_ns: u64,
    /// The longest duration.
    pub max_ns: u64,
}

impl Distribution {
    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// Adds one duration.
    pub fn record(&mut self, ns: u64) {
        self.counts.resize(BUCKETS, 0);
        self.counts[bucket(ns)] += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds another distribution.
    pub(super) fn add(&mut self, other: &Self) {
        self.counts.resize(BUCKETS, 0);
        for (sum, n) in self.counts.iter_mut().zip(&other.counts) {
            *sum = sum.wrapping_add(*n);
        }
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// What was recorded since `earlier`, an earlier value of this distribution. The longest
    /// duration is exact to 1/16.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let before = earlier.counts.iter().copied().chain(std::iter::repeat(0));
        let counts: Vec<u64> = self
            .counts
            .iter()
            .zip(before)
            .map(|(now, before)| now.saturating_sub(before))
            .collect();
        let longest = counts.iter().rposition(|&n| n > 0);
        let max_ns = longest.map_or(0, |bucket| top_of(bucket).min(self.max_ns));
        Self { counts, max_ns }
    }

    /// The percentiles.
    pub fn latency(&self) -> Latency {
        let count = self.count();
        let at = |per_mille: u64| {
            let rank = (u128::from(count) * u128::from(per_mille)).div_ceil(1000).max(1);
            let mut seen = 0;
            let found = self.counts.iter().position(|&n| {
                seen += u128::from(n);
                seen >= rank
            });
            // The top of the bucket is used, because a percentile must not look better than it is.
            found.map_or(0, |bucket| top_of(bucket).min(self.max_ns))
        };
        Latency { count, p50_ns: at(500), p99_ns: at(990), p999_ns: at(999), max_ns: self.max_ns }
    }

    /// The number of durations below `2^power` nanoseconds. This number is exact.
    pub fn below(&self, power: u32) -> u64 {
        let end = bucket(1u64.checked_shl(power).unwrap_or(u64::MAX));
        self.counts.iter().take(end).fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// The sum of all durations, in nanoseconds. Each duration counts as the middle of its bucket,
    /// so the sum is exact to 1/32.
    pub fn sum_ns(&self) -> u128 {
        let middle = |bucket| u128::from(floor_of(bucket)).midpoint(u128::from(top_of(bucket)));
        let sums = self.counts.iter().enumerate().map(|(at, &n)| middle(at) * u128::from(n));
        sums.fold(0, u128::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::{BUCKETS, Distribution, bucket, floor_of, top_of};

    fn of(values: impl IntoIterator<Item = u64>) -> Distribution {
        let mut distribution = Distribution::default();
        values.into_iter().for_each(|ns| distribution.record(ns));
        distribution
    }

    #[test]
    fn buckets_are_contiguous_and_precise() {
        for value in (0..4096).chain([u64::MAX / 3, u64::MAX]) {
            let at = bucket(value);
            assert!(at < BUCKETS);
            assert!(floor_of(at) <= value && value <= top_of(at));
            assert!(value - floor_of(at) <= value / 16);
        }
        // Buckets beyond the last are never used, but a foreign process can write to them.
        assert!((0..BUCKETS).all(|at| top_of(at) >= floor_of(at)));
    }

    #[test]
    fn percentiles_are_never_below_the_truth() {
        let latency = of((1..=1000).map(|us| us * 1000)).latency();
        assert_eq!((latency.count, latency.max_ns), (1000, 1_000_000));
        assert!((500_000..540_000).contains(&latency.p50_ns));
        assert!((990_000..=1_000_000).contains(&latency.p99_ns));
    }

    #[test]
    fn an_interval_has_its_own_percentiles() {
        let earlier = of([1_000_000; 100]);
        let mut now = earlier.clone();
        assert_eq!(now.since(&earlier).latency().count, 0);
        assert_eq!(now.since(&earlier).latency().max_ns, 0);
        now.add(&of([1000; 10]));
        let latency = now.since(&earlier).latency();
        assert_eq!(latency.count, 10);
        assert!((1000..1100).contains(&latency.p99_ns) && (1000..1100).contains(&latency.max_ns));
        assert_eq!(now.since(&Distribution::default()), now);
    }

    #[test]
    fn powers_of_two_are_bounds_and_the_sum_is_close() {
        let distribution = of([0, 1023, 1024, 1025, 1 << 20]);
        let below = [0, 10, 11, 20, 21, 64].map(|power| distribution.below(power));
        assert_eq!(below, [1, 2, 4, 4, 5, 5]);
        let (sum, truth) =
            (distribution.sum_ns() as f64, f64::from(1023 + 1024 + 1025 + (1 << 20)));
        assert!((sum / truth - 1.0).abs() < 1.0 / 16.0, "{sum} {truth}");
    }

    #[test]
    fn wild_counts_are_no_panic() {
        let wild = Distribution { counts: vec![u64::MAX; BUCKETS], max_ns: u64::MAX };
        assert_eq!(wild.latency().count, u64::MAX);
        assert!(wild.sum_ns() > 0 && wild.below(20) == u64::MAX);
        let mut sum = wild.clone();
        sum.add(&wild);
        let _ = (sum.since(&wild).latency(), wild.since(&sum).latency());
    }
}
