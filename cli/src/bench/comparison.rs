//! Compares one of uringlet's engines with the native engines: those of the kernel and the C
//! library, without uringlet. Native engines with another number of rounds are left out.

use serde::Serialize;
use uringlet_lab::bench::median;
use uringlet_lab::verdict::{Class, Interval, Sense, class};

/// The figures of one engine, in the order of the rounds.
pub struct Side<E> {
    pub engine: E,
    /// Requests per second.
    pub iops: Vec<f64>,
    /// CPU time per request.
    pub cpu_us: Vec<f64>,
}

/// The round with the median rate; with an even number, the slower one of the middle two.
pub fn middle<T>(rounds: &[T], rate: impl Fn(&T) -> f64) -> Option<&T> {
    let mut order: Vec<&T> = rounds.iter().collect();
    order.sort_by(|left, right| rate(left).total_cmp(&rate(right)));
    order.get(order.len().checked_sub(1)? / 2).copied()
}

/// uringlet against the best native engine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison<E> {
    /// uringlet's side.
    pub engine: E,
    pub best_native: E,
    /// The number of common rounds.
    pub rounds: usize,
    /// uringlet's requests per second, divided by the native engine's, with a 95 % interval. After
    /// too few rounds there is no interval.
    #[serde(flatten)]
    pub rate: Ratio,
    /// uringlet's CPU time per request, divided by the native engine's.
    pub cpu: Ratio,
}

/// uringlet's figure divided by the native one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    pub ratio: f64,
    #[serde(skip)]
    pub interval: Option<Interval>,
    low: Option<f64>,
    high: Option<f64>,
    #[serde(skip)]
    pub class: Class,
    /// The class as a word, such as `faster` or `cheaper`.
    #[serde(rename = "class")]
    pub word: &'static str,
}

impl Ratio {
    /// `medians` is the ratio of the two medians. It is used if there is no interval.
    fn new(interval: Option<Interval>, medians: f64, sense: Sense) -> Self {
        let class = class(interval.as_ref(), sense);
        Self {
            ratio: interval.map_or(medians, |found| found.ratio),
            interval,
            low: interval.map(|found| found.low),
            high: interval.map(|found| found.high),
            class,
            word: class.word(sense),
        }
    }
}

impl<E> Comparison<E> {
    /// The comparison with the best native engine. `None` if there are no figures, or if no native
    /// engine has the same number of rounds.
    pub fn of(ours: Side<E>, natives: impl Iterator<Item = Side<E>>) -> Option<Self> {
        let mut natives: Vec<Side<E>> =
            natives.filter(|side| side.iops.len() == ours.iops.len()).collect();
        let rates: Vec<&[f64]> = natives.iter().map(|side| &*side.iops).collect();
        let found = Interval::to_the_best(&ours.iops, &rates);
        let middle = |values: &[f64]| median(values.to_vec());
        let by_median = || {
            let rates = rates.iter().map(|rate| middle(rate)).enumerate();
            let best = rates
                .max_by(|(_, a), (_, b)| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
            best.map(|(at, _)| at)
        };
        let at = found.map(|(at, _)| at).or_else(by_median)?;
        let best = natives.swap_remove(at);
        let medians = |ours: &[f64], theirs: &[f64]| Some(middle(ours)? / middle(theirs)?);
        let rate = medians(&ours.iops, &best.iops)?;
        let cpu = medians(&ours.cpu_us, &best.cpu_us)?;
        Some(Self {
            rounds: ours.iops.len(),
            rate: Ratio::new(found.map(|(_, found)| found), rate, Sense::More),
            cpu: Ratio::new(Interval::paired(&ours.cpu_us, &best.cpu_us), cpu, Sense::Cheaper),
            engine: ours.engine,
            best_native: best.engine,
        })
    }

    /// This comparison, with other names for its engines.
    pub fn named<N>(self, name: impl Fn(E) -> N) -> Comparison<N> {
        let Self { engine, best_native, rounds, rate, cpu } = self;
        Comparison { engine: name(engine), best_native: name(best_native), rounds, rate, cpu }
    }

    /// Is the ratio of the rates known so well that no more rounds are needed?
    pub fn is_known(&self) -> bool {
        self.rate.interval.is_some_and(|found| found.is_known())
    }

    /// Would more rounds leave the class as it is?
    pub fn is_settled(&self) -> bool {
        self.rate.interval.is_some_and(|found| found.is_settled())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(engine: &'static str, iops: &[f64], cpu: f64) -> Side<&'static str> {
        Side { engine, iops: iops.to_vec(), cpu_us: vec![cpu; iops.len()] }
    }

    #[test]
    fn the_best_native_is_that_of_the_rounds_and_not_of_one() {
        let ours = || side("ours", &[20.0; 20], 3.0);
        let mut lucky = [10.0; 20];
        lucky[9] = 1000.0;
        let natives = || [side("lucky", &lucky, 1.0), side("good", &[16.0; 20], 2.0)].into_iter();
        let found = Comparison::of(ours(), natives()).unwrap();
        assert_eq!((found.best_native, found.rate.word), ("good", "faster"));
        assert!((found.rate.ratio - 1.25).abs() < 1e-9 && (found.cpu.ratio - 1.5).abs() < 1e-9);
        assert_eq!(found.cpu.word, "dearer");
    }

    #[test]
    fn few_rounds_have_a_ratio_and_no_verdict() {
        let natives = [side("a", &[10.0; 3], 1.0), side("short", &[99.0; 2], 1.0)].into_iter();
        let found = Comparison::of(side("ours", &[20.0; 3], 1.0), natives).unwrap();
        assert_eq!((found.best_native, found.rate.ratio, found.rate.word), ("a", 2.0, "unknown"));
        assert!(!found.is_known());
        assert!(Comparison::of(side("ours", &[1.0], 1.0), std::iter::empty()).is_none());
    }
}
