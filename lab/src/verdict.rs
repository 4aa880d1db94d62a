//! The significance of a difference: an interval over rounds, and the class that follows from it.
//!
//! Rounds of two sides are compared by their ratio. Rounds that were run together are paired: the
//! interval is that of the Hodges-Lehmann estimate, by the exact distribution of Wilcoxon's signed
//! ranks. Rounds of two runs are not paired: the interval is that of the shift between two samples,
//! by the distribution of Mann and Whitney's U. (Hollander, Wolfe, Chicken: Nonparametric
//! Statistical Methods, sections 3.3 and 4.3.)
//!
//! Neither interval assumes a distribution of the noise. Rounds are repeated until the interval is
//! narrow ([`Interval::is_known`]), whatever the ratio is. [`Interval::is_settled`] only says which
//! ratios get rounds first. Stopping at a welcome verdict would find differences where there are
//! none.

use crate::bench::median;
use serde::Serialize;
use std::f64::consts::LN_2;

/// A ratio is known if its whole interval is at most twice this wide, on a logarithmic scale.
pub const PRECISION: f64 = 0.03;
/// A smaller difference does not count. The margin is wider than [`PRECISION`], so that an error of
/// that size does not move a ratio of 1 beyond the margin.
pub const MARGIN: f64 = 0.05;
/// The probability that an interval misses the true value, both sides together.
const MISSES: f64 = 0.05;
/// Rounds are repeated until there are at least this many paired rounds, if the time suffices.
pub const LEAST_ROUNDS: usize = 10;
/// Distributions are exact for samples up to this size, and normal beyond.
const EXACT: usize = 50;

/// The interval of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    pub low: f64,
    /// The estimate.
    pub ratio: f64,
    pub high: f64,
}

/// The class of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    Better,
    /// The ratio is known, and at most [`MARGIN`] from 1.
    Level,
    Worse,
    /// The interval is too wide for any other class.
    Unknown,
}

/// Whether more or less is better, and the word for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sense {
    /// The larger value is better: a rate.
    More,
    /// The smaller value is better: a time.
    Less,
    /// The smaller value is better, and a change is called cheaper or dearer: a cost, such as CPU
    /// time.
    Cheaper,
}

impl Class {
    /// The class in the words of the measured quantity.
    pub fn word(self, sense: Sense) -> &'static str {
        match (self, sense) {
            (Self::Better, Sense::Cheaper) => "cheaper",
            (Self::Worse, Sense::Cheaper) => "dearer",
            (Self::Better, _) => "faster",
            (Self::Worse, _) => "slower",
            (Self::Level, _) => "level",
            (Self::Unknown, _) => "unknown",
        }
    }
}

impl Interval {
    /// The interval of `ours` divided by `theirs`, round by round; none with too few rounds.
    pub fn paired(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        one_of(ours, theirs, 1)
    }

    /// The interval of `ours` divided by the best of `others`, and the index of the best. The best
    /// is the side to which `ours` has the lowest ratio. Each end is the lowest among all sides.
    ///
    /// The lowest of several upper ends is too low by chance. To allow for that, each of `others`
    /// gets an equal part of the probability that the upper end misses the true value.
    pub fn to_the_best(ours: &[f64], others: &[&[f64]]) -> Option<(usize, Self)> {
        let all = others.iter().map(|theirs| one_of(ours, theirs, others.len()));
        let all: Vec<Self> = all.collect::<Option<_>>()?;
        let (best, found) =
            all.iter().enumerate().min_by(|(_, a), (_, b)| a.ratio.total_cmp(&b.ratio))?;
        let least = |of: fn(&Self) -> f64| all.iter().map(of).fold(f64::INFINITY, f64::min);
        Some((best, Self { low: least(|one| one.low), high: least(|one| one.high), ..*found }))
    }

    /// The interval of `b` divided by `a`, which were not run together; none with too few rounds.
    pub fn unpaired(a: &[f64], b: &[f64]) -> Option<Self> {
        let (a, b) = (logs(a)?, logs(b)?);
        let mut shifts: Vec<f64> = b.iter().flat_map(|b| a.iter().map(move |a| b - a)).collect();
        let skipped = skipped_of(MISSES / 2.0, || mann_whitney(a.len(), b.len()))?;
        shifts.sort_by(f64::total_cmp);
        Some(Self::of_sorted(&shifts, skipped, skipped))
    }

    /// The interval of sorted logarithms, without the `low` lowest and the `high` highest ones.
    fn of_sorted(sorted: &[f64], low: usize, high: usize) -> Self {
        let last = sorted.len() - 1;
        let middle = f64::midpoint(sorted[last / 2], sorted[sorted.len() / 2]);
        Self {
            low: sorted[low.min(last / 2)].exp(),
            ratio: middle.exp(),
            high: sorted[last - high.min(last / 2)].exp(),
        }
    }

    /// Is the whole interval at most twice [`PRECISION`] wide, on a logarithmic scale?
    pub fn is_known(&self) -> bool {
        self.width() <= 2.0 * PRECISION.ln_1p()
    }

    /// Is the ratio known, or is it clear whether it is above or below 1? The latter is clear if
    /// the interval is at most half as wide as the ratio's distance from 1.
    pub fn is_settled(&self) -> bool {
        self.is_known() || self.width() <= self.ratio.ln().abs() / 2.0
    }

    fn width(&self) -> f64 {
        (self.high / self.low).ln()
    }

    /// The class of the ratio, if `sense` says what is better.
    pub fn class(&self, sense: Sense) -> Class {
        let is_near = self.ratio.ln().abs() <= MARGIN.ln_1p();
        let (more, less) = match sense {
            Sense::More => (Class::Better, Class::Worse),
            Sense::Less | Sense::Cheaper => (Class::Worse, Class::Better),
        };
        match self {
            _ if is_near && self.is_known() => Class::Level,
            one if one.low > 1.0 && !is_near => more,
            one if one.high < 1.0 && !is_near => less,
            _ => Class::Unknown,
        }
    }

    /// The ends of the interval, such as `0.93–1.15`.
    pub fn text(&self) -> String {
        format!("{:.2}–{:.2}", self.low, self.high)
    }
}

/// The class of a ratio whose interval may be unknown.
pub fn class(interval: Option<&Interval>, sense: Sense) -> Class {
    interval.map_or(Class::Unknown, |interval| interval.class(sense))
}

/// The best side by the medians, and the sides that it beats by more than [`MARGIN`], by the
/// interval over paired rounds. `None` without sides.
pub fn beaten(sides: &[&[f64]]) -> Option<(usize, Vec<usize>)> {
    let middle = |side: &[f64]| median(side.to_vec()).unwrap_or(0.0);
    let best = (0..sides.len()).max_by(|&a, &b| middle(sides[a]).total_cmp(&middle(sides[b])))?;
    let is_beaten = |at: &usize| {
        Interval::paired(sides[best], sides[*at]).is_some_and(|found| found.low > 1.0 + MARGIN)
    };
    Some((best, (0..sides.len()).filter(is_beaten).collect()))
}

/// The interval of paired rounds. Its upper end misses the true value with only a part of the usual
/// probability: divided by `many`, the number of sides that are compared.
fn one_of(ours: &[f64], theirs: &[f64], many: usize) -> Option<Interval> {
    if ours.len() != theirs.len() {
        return None;
    }
    let (ours, theirs) = (logs(ours)?, logs(theirs)?);
    let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(our, their)| our - their).collect();
    let count = ratios.len();
    let distribution = || signed_ranks(count);
    let low = skipped_of(MISSES / 2.0, distribution)?;
    let high = skipped_of(MISSES / 2.0 / many as f64, distribution)?;
    // Walsh's averages.
    let averages = (0..count).flat_map(|a| (a..count).map(move |b| (a, b)));
    let mut averages: Vec<f64> =
        averages.map(|(a, b)| f64::midpoint(ratios[a], ratios[b])).collect();
    averages.sort_by(f64::total_cmp);
    Some(Interval::of_sorted(&averages, low, high))
}

/// Returns `None` if a value has no logarithm.
fn logs(values: &[f64]) -> Option<Vec<f64>> {
    let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    (!logs.is_empty() && logs.iter().all(|log| log.is_finite())).then_some(logs)
}

/// A statistic's distribution.
enum Distribution {
    /// For each value of the statistic, from 0 on, the logarithm of the number of ways to get it.
    /// Then the logarithm of the number of all ways.
    Exact(Vec<f64>, f64),
    Normal {
        mean: f64,
        deviation: f64,
    },
}

/// The number of values of a sorted list that are outside of the interval at one end. The statistic
/// is at most that number with at most this probability. None if even 0 is more probable.
fn skipped_of(probability: f64, distribution: impl Fn() -> Distribution) -> Option<usize> {
    match distribution() {
        Distribution::Exact(ways, all) => {
            let mut sum = 0.0;
            let below = ways.iter().take_while(|ways| {
                sum += (*ways - all).exp();
                sum <= probability
            });
            below.count().checked_sub(1)
        }
        Distribution::Normal { mean, deviation } => {
            let bound = mean + deviation * quantile(probability) - 0.5;
            (bound >= 0.0).then_some(bound as usize)
        }
    }
}

/// The distribution of sums of the ranks 1 to `count`, each included or not.
fn signed_ranks(count: usize) -> Distribution {
    let n = count as f64;
    if count > EXACT {
        let variance = n * (n + 1.0) * (2.0 * n + 1.0) / 24.0;
        return Distribution::Normal { mean: n * (n + 1.0) / 4.0, deviation: variance.sqrt() };
    }
    let mut ways = vec![0.0f64; count * (count + 1) / 2 + 1];
    ways[0] = 1.0;
    for rank in 1..=count {
        for sum in (rank..ways.len()).rev() {
            ways[sum] += ways[sum - rank];
        }
    }
    Distribution::Exact(ways.iter().map(|ways| ways.ln()).collect(), n * LN_2)
}

/// The distribution of U: the number of pairs, with one value of each sample, in which the value of
/// the second sample is lower.
fn mann_whitney(a: usize, b: usize) -> Distribution {
    let (m, n) = (a as f64, b as f64);
    if a > EXACT || b > EXACT {
        let variance = m * n * (m + n + 1.0) / 12.0;
        return Distribution::Normal { mean: m * n / 2.0, deviation: variance.sqrt() };
    }
    // `ways[k][u]`: the number of ways to choose k of the values so far, with the statistic u.
    let mut ways = vec![vec![0.0f64; a * b + 1]; a + 1];
    ways[0][0] = 1.0;
    for value in 1..=a + b {
        for taken in (1..=value.min(a)).rev() {
            // The number of earlier values that belong to the other sample.
            let before = value - taken;
            for u in (before..=a * b).rev() {
                ways[taken][u] += ways[taken - 1][u - before];
            }
        }
    }
    let all: f64 = ways[a].iter().sum();
    Distribution::Exact(ways[a].iter().map(|ways| ways.ln()).collect(), all.ln())
}

/// The quantile of the standard normal distribution, below its middle, to 4.5e-4 (Abramowitz and
/// Stegun, 26.2.23).
fn quantile(probability: f64) -> f64 {
    let t = (-2.0 * probability.ln()).sqrt();
    let above = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    -(t - above / (1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    #[test]
    fn limits_are_those_of_the_tables() {
        // Hollander, Wolfe, Chicken, tables A.4 and A.6.
        let of = |count, probability| skipped_of(probability, || signed_ranks(count));
        assert_eq!([5, 6, 10, 20].map(|n| of(n, 0.025)), [None, Some(0), Some(8), Some(52)]);
        assert_eq!(of(10, 0.005), Some(3));
        let of = |a, b| skipped_of(0.025, || mann_whitney(a, b));
        assert_eq!([of(3, 3), of(4, 4), of(5, 5), of(8, 10)], [None, Some(0), Some(2), Some(17)]);
        let exact = skipped_of(0.025, || signed_ranks(EXACT));
        let (n, deviation) = (EXACT as f64, (EXACT as f64 * 51.0 * 101.0 / 24.0).sqrt());
        let normal = Distribution::Normal { mean: n * (n + 1.0) / 4.0, deviation };
        let normal = skipped_of(0.025, || match normal {
            Distribution::Normal { mean, deviation } => Distribution::Normal { mean, deviation },
            Distribution::Exact(..) => unreachable!(),
        });
        assert!(exact.unwrap().abs_diff(normal.unwrap()) <= 3, "{exact:?}, {normal:?}");
    }

    #[test]
    fn classes_follow_from_the_interval() {
        let class = |low, ratio, high| Interval { low, ratio, high }.class(Sense::More);
        assert_eq!(class(1.3, 1.4, 1.6), Class::Better);
        assert_eq!(class(0.7, 0.8, 0.9), Class::Worse);
        assert_eq!(class(0.99, 1.0, 1.02), Class::Level);
        assert_eq!(class(1.01, 1.02, 1.025), Class::Level, "less than the margin");
        assert_eq!(class(0.75, 0.95, 1.15), Class::Unknown);
        assert_eq!(class(0.9, 1.0, 1.1), Class::Unknown);
        let cost = Interval { low: 0.7, ratio: 0.8, high: 0.9 }.class(Sense::Cheaper);
        assert_eq!(cost.word(Sense::Cheaper), "cheaper");
        assert_eq!(Interval::paired(&[1.0; 5], &[1.0; 5]), None, "too few");
        assert_eq!(Interval::paired(&[1.0; 9], &[0.0; 9]), None, "no ratio");
        let same = Interval::paired(&[3.0; 6], &[2.0; 6]).unwrap();
        assert!(
            (same.ratio - 1.5).abs() < 1e-9 && (same.low, same.high) == (same.ratio, same.ratio)
        );
    }

    /// The rate of one engine in a round, with the noise of a machine.
    type Noise = fn(&mut Rng) -> f64;

    fn normal(random: &mut Rng) -> f64 {
        (0..12).map(|_| random.f64()).sum::<f64>() - 6.0
    }

    fn even(random: &mut Rng) -> f64 {
        (0.05 * normal(random)).exp()
    }

    /// One round in eight has lost a third of its time.
    fn with_outliers(random: &mut Rng) -> f64 {
        let hit = if random.u8(..8) == 0 { 0.67 } else { 1.0 };
        hit * (0.03 * normal(random)).exp()
    }

    /// One of two rates at random: as for a thread on one of two CPUs.
    fn two_ways(random: &mut Rng) -> f64 {
        if random.bool() { 1.08 } else { 0.93 }
    }

    /// Rounds as in `bench`: more while the ratio is unknown, and without engines that another one
    /// beats. Our engine has this ratio to each of the `others` engines.
    fn bench(random: &mut Rng, noise: Noise, others: usize, ratio: f64) -> Class {
        let mut ours = Vec::new();
        let mut theirs = vec![Vec::new(); others];
        loop {
            for _ in 0..6 {
                // The machine's speed drifts, the same for all of a round.
                let drift = 1.0 + 0.02 * ours.len() as f64;
                ours.push(ratio * drift * noise(random));
                theirs.iter_mut().for_each(|side| side.push(drift * noise(random)));
            }
            let sides: Vec<&[f64]> = theirs.iter().map(Vec::as_slice).collect();
            for at in beaten(&sides).unwrap().1.into_iter().rev() {
                theirs.remove(at);
            }
            let sides: Vec<&[f64]> = theirs.iter().map(Vec::as_slice).collect();
            let found = Interval::to_the_best(&ours, &sides).map(|(_, found)| found);
            let known = ours.len() >= LEAST_ROUNDS && found.is_some_and(|found| found.is_known());
            if known || ours.len() >= 40 {
                return class(found.as_ref(), Sense::More);
            }
        }
    }

    fn share(noise: Noise, others: usize, ratio: f64, is_meant: fn(Class) -> bool) -> f64 {
        const RUNS: usize = 150;
        let mut random = Rng::with_seed(7 + others as u64);
        let found = (0..RUNS).map(|_| bench(&mut random, noise, others, ratio));
        found.filter(|class| is_meant(*class)).count() as f64 / RUNS as f64
    }

    const NOISES: [Noise; 3] = [even, with_outliers, two_ways];

    #[test]
    fn the_same_under_two_names_is_called_different_in_one_of_twenty_at_most() {
        for noise in NOISES {
            let differs = |class| matches!(class, Class::Better | Class::Worse);
            let found = [1, 4].map(|others| share(noise, others, 1.0, differs));
            assert!(found.iter().all(|share| *share <= 0.05), "{found:?}");
        }
    }

    #[test]
    fn a_tenth_more_is_found_and_never_turned_round() {
        for noise in [even, with_outliers] {
            let found = share(noise, 1, 1.1, |class| class == Class::Better);
            assert!(found >= 0.95, "{found}");
            assert_eq!(share(noise, 4, 0.9, |class| class == Class::Better), 0.0);
            let found = share(noise, 4, 0.9, |class| class == Class::Worse);
            assert!(found >= 0.95, "{found}");
        }
    }

    #[test]
    fn the_best_beats_what_is_slower_by_more_than_the_margin_in_six_rounds() {
        let (slow, near) = ([5.0, 6.0, 5.0, 6.0, 5.0, 6.0], [9.0, 9.8, 9.0, 9.8, 9.0, 9.8]);
        assert_eq!(beaten(&[&slow, &[9.5; 6], &near]), Some((1, vec![0])));
        assert_eq!(beaten(&[&slow[..5], &[9.4; 5]]), Some((1, vec![])), "too few rounds");
        assert_eq!(beaten(&[]), None);
    }

    #[test]
    fn two_runs_are_compared_without_pairs() {
        let a = [10.0, 10.05, 9.95, 10.1, 9.9];
        let found = |b: &[f64]| class(Interval::unpaired(&a, b).as_ref(), Sense::More);
        assert_eq!(found(&a.map(|value| value * 1.2)), Class::Better);
        assert_eq!(found(&a.map(|value| value * 0.8)), Class::Worse);
        assert_eq!(found(&a), Class::Level);
        assert_eq!(found(&[9.0, 11.0, 10.0, 8.0, 12.0]), Class::Unknown);
        assert_eq!(found(&[20.0; 3]), Class::Better);
        assert_eq!(found(&[20.0; 1]), Class::Unknown, "too few");
    }
}
