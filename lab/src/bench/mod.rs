//! Loads, and the engines that execute them: uringlet's and the native interfaces. All asynchronous
//! engines run the same loop.

mod drive;
mod engine;
mod manner;
mod native;
mod ours;
pub mod outside;
pub mod plots;
mod stream;
mod trial;
mod workload;

use crate::size;

pub use drive::{
    BOUNDS_NS, Distribution, Figure, LatencyFigure, PERCENTILES, Queue, Request, Spread,
    SubmitFigure, cpu_time, keep_in_flight,
};
pub use engine::Engine;
pub use manner::Manner;
pub use native::Libaio;
pub use ours::Ours;
pub use trial::{Trial, exclusion, interleaved};
pub use workload::{Buffers, Job, Load, Operation, Order, Workload};

/// Reads a time from the command line, such as `0.2`, `200ms` or `2m`, and returns its seconds.
///
/// # Errors
/// The expected form.
pub fn seconds(text: &str) -> Result<f64, String> {
    let seconds = size::parse_duration(text)?.as_secs_f64();
    let allowed = (0.001..=3600.0).contains(&seconds);
    allowed.then_some(seconds).ok_or_else(|| "expected a time from 1ms to 1h".into())
}

/// The middle value, or the mean of the two in the middle.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0]), Some(3.0));
        assert_eq!(median(vec![9.0, 1.0, 3.0]), Some(3.0));
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), Some(2.5));
    }
}
