//! Counters in Prometheus' text format, for the textfile collector of node_exporter.

use crate::observe::figures::counters;
use std::fmt::{self, Write as _};
use uringlet::stats::{Distribution, Snapshot};

/// Bounds of the histograms' buckets: powers of two of nanoseconds, from 256 ns to 34 s.
const POWERS: std::ops::RangeInclusive<u32> = 8..=35;

/// The labels of the figures.
pub struct Labels {
    pub program: String,
    pub pid: u32,
}

impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid=\"{}\",program=\"", self.pid)?;
        for c in self.program.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

/// The whole text; `workers` is the current number of workers.
pub fn text(stats: &Snapshot, in_flight: u64, workers: usize, labels: &Labels) -> String {
    let mut out = String::new();
    let mut plain = |name: &str, kind: &str, help: &str, value: u64| {
        let _ = writeln!(out, "# HELP uringlet_{name} {help}\n# TYPE uringlet_{name} {kind}");
        let _ = writeln!(out, "uringlet_{name}{{{labels}}} {value}");
    };
    for counter in counters(stats) {
        plain(&format!("{}_total", counter.name), "counter", counter.help, counter.value);
    }
    plain("in_flight", "gauge", "Requests in flight.", in_flight);
    plain("workers", "gauge", "Workers that exist.", workers as u64);
    plain("workers_max", "gauge", "The most workers that existed at a time.", stats.workers_max);
    histogram(&mut out, "submit_seconds", "Duration of submit calls.", &stats.submit, labels);
    let help = "From the beginning of a submit to the completion of each of its requests.";
    histogram(&mut out, "completion_seconds", help, &stats.completion, labels);
    out
}

fn histogram(out: &mut String, name: &str, help: &str, of: &Distribution, labels: &Labels) {
    let _ = writeln!(out, "# HELP uringlet_{name} {help}\n# TYPE uringlet_{name} histogram");
    for power in POWERS {
        let (bound, below) = ((1u64 << power) as f64 / 1e9, of.below(power));
        let _ = writeln!(out, "uringlet_{name}_bucket{{{labels},le=\"{bound}\"}} {below}");
    }
    let (count, sum) = (of.count(), of.sum_ns() as f64 / 1e9);
    let _ = writeln!(out, "uringlet_{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
    let _ = writeln!(out, "uringlet_{name}_sum{{{labels}}} {sum}");
    let _ = writeln!(out, "uringlet_{name}_count{{{labels}}} {count}");
}
