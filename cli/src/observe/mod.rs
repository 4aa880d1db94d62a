//! What `run` and `top` show of a program's counters: totals, and the figures of an interval.

pub mod figures;
pub mod processes;

use crate::size;
use std::time::{Duration, Instant};

/// Parses a time such as `1s`, `500ms`, `0.5` or `2m`: from 50 ms to an hour.
///
/// # Errors
/// The expected form; clap adds the field and the value.
pub fn interval(text: &str) -> Result<Duration, String> {
    let time = size::parse_duration(text)?;
    let allowed = Duration::from_millis(50)..=Duration::from_secs(3600);
    if allowed.contains(&time) { Ok(time) } else { Err("expected a time from 50ms to 1h".into()) }
}

/// The time of the next check. If it has passed already, the check is one interval from now.
pub fn next(due: Instant, interval: Duration) -> Instant {
    let (next, now) = (due + interval, Instant::now());
    if next > now { next } else { now + interval }
}
