//! What `run` and `top` show of a program's counters: totals, and the figures of an interval.

pub mod figures;
pub mod processes;

use crate::size;
use anyhow::{Result, ensure};
use std::path::Path;
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

/// Parses the number of a process.
///
/// # Errors
/// The expected form; clap adds the field and the value.
pub fn process_id(text: &str) -> Result<u32, String> {
    let id = text.trim().parse().ok().filter(|id| (1..=i32::MAX as u32).contains(id));
    id.ok_or_else(|| "expected a process id, a whole number from 1 on".into())
}

/// # Errors
/// /proc is not mounted, so nothing is known about processes.
pub fn need_proc() -> Result<()> {
    ensure!(Path::new("/proc/self").exists(), "/proc lists no processes, expected it mounted");
    Ok(())
}

/// The time of the next check. If it has passed already, the check is one interval from now.
pub fn next(due: Instant, interval: Duration) -> Instant {
    let (next, now) = (due + interval, Instant::now());
    if next > now { next } else { now + interval }
}
