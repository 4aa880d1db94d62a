//! Plots of engines' figures, the same for every command.

use super::drive::{Figure as Run, PERCENTILES};
use super::engine::Engine;
use super::median;
use crate::report::{Axis, Bar, Bars, Figure, Group, Key, Point, Scale, Series};

impl Engine {
    /// The engine's colour and marker in every plot.
    pub fn style(self) -> usize {
        Self::ALL.iter().position(|engine| *engine == self).unwrap_or(Self::ALL.len())
    }
}

/// A line of medians over depths, with the rounds as points.
pub fn rates<'a>(engine: Engine, depths: impl IntoIterator<Item = (usize, &'a [Run])>) -> Series {
    let point = |(depth, runs): (usize, &[Run])| {
        Point::of(depth, runs.iter().map(|run| run.iops).collect())
    };
    Series::new(engine.name(), engine.style(), depths.into_iter().filter_map(point))
}

/// The median rate; empty without a round. From four rounds on, a whisker holds the middle half of
/// the rounds.
pub fn rate_bar(engine: Engine, runs: &[Run]) -> Bar {
    let mut rates: Vec<f64> = runs.iter().map(|run| run.iops).collect();
    rates.sort_by(f64::total_cmp);
    let last = rates.len().saturating_sub(1);
    let quarter = |at: usize| rates.get(last * at / 4).copied();
    let spread = quarter(1).zip(quarter(3)).filter(|_| rates.len() > 3);
    Bar { spread, ..Bar::one(engine.name(), 0, median(rates)) }
}

/// Bars of rates, for a measurement with too few depths to draw a line.
pub fn rate_bars(title: impl Into<String>, groups: Vec<Group>) -> Figure {
    let bars = Bars {
        value: Axis::new("rate", "requests/s", Scale::Linear),
        category: "engines, by requests in flight".into(),
        origin: 0.0,
        keys: vec![Key::new("median of the rounds", 2, false)],
        groups,
    };
    let about = "Requests per second, median of the rounds; whiskers hold the middle half of the \
                 rounds. More is better.";
    Figure::bars(title, about, bars)
}

/// Requests per second over depth.
pub fn rate_plot(title: impl Into<String>, series: Vec<Series>) -> Figure {
    let x = Axis::new("in flight", "requests", Scale::Log);
    let y = Axis::new("rate", "requests/s", Scale::Linear);
    let about = "Requests per second over requests in flight, higher is better. Lines join the \
                 medians, small dots are single rounds.";
    Figure::lines(title, about, (x, y), series)
}

/// A latency curve: at each of [`PERCENTILES`], the median of the values of the runs.
pub fn percentiles<'a>(
    engine: Engine,
    runs: impl Iterator<Item = &'a [f64; PERCENTILES.len()]> + Clone,
) -> Series {
    let point = |(at, percentile): (usize, &f64)| {
        let y = median(runs.clone().map(|run| run[at]).collect())?;
        Some(Point { x: *percentile, y, rounds: Vec::new() })
    };
    let points = PERCENTILES.iter().enumerate().filter_map(point);
    Series::new(engine.name(), engine.style(), points)
}

/// Latency curves; `of` says which latency.
pub fn percentile_plot(title: impl Into<String>, of: &str, series: Vec<Series>) -> Figure {
    let x = Axis::new("percentile", "%, each further nine equally far", Scale::Percentile);
    let y = Axis::new(of, "µs, log scale", Scale::Log);
    let about = "That part of the requests or calls took no longer than this; lower is better.";
    Figure::lines(title, about, (x, y), series)
}

/// User and system time per request; none without a run.
pub fn cpu_bar(engine: Engine, runs: &[Run]) -> Bar {
    let of = |value: fn(&Run) -> f64| median(runs.iter().map(value).collect());
    let user = of(|run| run.user_us_per_request);
    let system = of(|run| (run.cpu_us_per_request - run.user_us_per_request).max(0.0));
    let parts =
        user.zip(system).map_or_else(Vec::new, |(user, system)| vec![(0, user), (1, system)]);
    Bar { label: engine.name().into(), parts, ..Bar::default() }
}

/// Bars of user and system time.
pub fn cpu_plot(title: impl Into<String>, groups: Vec<Group>) -> Figure {
    let bars = Bars {
        value: Axis::new("CPU time per request", "µs", Scale::Linear),
        category: "engines, by requests in flight".into(),
        origin: 0.0,
        keys: vec![Key::new("user", 2, false), Key::new("system", 1, true)],
        groups,
    };
    let about = "CPU time of all threads for one request, user and system time one after the \
                 other; less is better.";
    Figure::bars(title, about, bars)
}
