//! Reads the results of a run from its JSON: cells by their identity, each with its figures.

use crate::session::printable;
use crate::size;
use serde::Serialize;
use serde_json::{Map, Value};
use std::path::Path;
use strum::VariantArray as _;
use uringlet_lab::bench::{PERCENTILES, median};
use uringlet_lab::named;
use uringlet_lab::verdict::Sense;

/// The maximum size of a result in bytes. Real ones have a few megabytes at most.
const LONGEST: u64 = 256 << 20;

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, strum::Display, strum::VariantArray)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    #[strum(to_string = "requests per second")]
    RequestsPerSecond,
    #[strum(to_string = "MB/s")]
    MbPerSecond,
    #[strum(to_string = "CPU time per request, µs")]
    CpuUsPerRequest,
    #[strum(to_string = "latency, 99th percentile, µs")]
    P99Us,
    #[strum(to_string = "latency, 99.9th percentile, µs")]
    P999Us,
    #[strum(to_string = "mean latency, ms")]
    MeanLatencyMs,
    #[strum(to_string = "elapsed time, ms")]
    ElapsedMs,
    #[strum(to_string = "lookup, ns")]
    NsPerLookup,
    #[strum(to_string = "contended steps per request")]
    StepsPerRequest,
    #[strum(to_string = "submit per request, ns")]
    SubmitNsPerRequest,
}

impl Metric {
    /// Is more better, or less?
    pub fn sense(self) -> Sense {
        match self {
            Self::RequestsPerSecond | Self::MbPerSecond => Sense::More,
            Self::CpuUsPerRequest | Self::StepsPerRequest => Sense::Cheaper,
            _ => Sense::Less,
        }
    }

    /// The value of one round.
    fn of(self, round: &Value) -> Option<f64> {
        let latency = &round["latency"];
        let found = match self {
            Self::RequestsPerSecond => &round["iops"],
            Self::MbPerSecond => &round["mb_per_s"],
            Self::CpuUsPerRequest => &round["cpu_us_per_request"],
            Self::P99Us if round["p99_us"].is_number() => &round["p99_us"],
            Self::P99Us => {
                let at = PERCENTILES.iter().position(|percentile| *percentile == 99.0)?;
                &latency["complete_us_percentiles"][at]
            }
            Self::P999Us => &latency["complete_us_p999"],
            Self::MeanLatencyMs if round["mean_us"].is_number() => {
                return round["mean_us"].as_f64().map(|us| us / 1e3);
            }
            Self::MeanLatencyMs => &round["avg_latency_ms"],
            Self::ElapsedMs => &round["elapsed_ms"],
            Self::NsPerLookup => round,
            Self::StepsPerRequest => &round["steps_per_request"],
            Self::SubmitNsPerRequest => &round["submit_ns_per_request"],
        };
        found.as_f64()
    }
}

/// Rounds of one metric in one cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub rounds: usize,
    #[serde(skip)]
    pub values: Vec<f64>,
}

impl Measured {
    fn of(values: Vec<f64>) -> Option<Self> {
        Some(Self {
            min: values.iter().copied().reduce(f64::min)?,
            max: values.iter().copied().reduce(f64::max)?,
            rounds: values.len(),
            median: median(values.clone())?,
            values,
        })
    }
}

/// One cell: the figures for one combination of load and engine.
#[derive(Debug)]
pub struct Cell {
    /// The identity of the cell: `cold-read, 4k, depth 32, psync`.
    pub name: String,
    pub measured: Vec<(Metric, Measured)>,
}

/// What one file has: the results of a run.
#[derive(Debug)]
pub struct Run {
    /// `bench`, or `reproduce` and the name of an experiment.
    pub kind: String,
    pub whole: Value,
    pub cells: Vec<Cell>,
}

/// Keys of arrays of rounds in a cell.
const ROUNDS: [&str; 5] = ["figures", "rates", "timed", "runs", "ns"];

/// Keys of arrays of cells in an experiment's results, with a name for their cells. In the results
/// of bench, only `cells` is read: there, `jobs` has the form of fio's output.
const CELLS: [(&str, &str); 4] =
    [("cells", ""), ("lookups", "lookup"), ("paths", "path"), ("jobs", "job")];

impl Run {
    /// # Errors
    /// A text: the file cannot be read, is no JSON, or is JSON of something else.
    pub fn read(path: &Path) -> Result<Self, String> {
        let name = path.display();
        let text = named::read(path, LONGEST).map_err(|error| format!("{name}: {error}"))?;
        let mut whole: Value = serde_json::from_slice(&text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            let what = error.to_string();
            let what = what.split(" at line ").next().unwrap_or_default();
            format!("{name}:{line}:{column}: expected JSON: {what}")
        })?;
        make_printable(&mut whole);
        let expected =
            || format!("{name}: expected what --json of uringlet bench or reproduce writes");
        if !whole["machine"].is_object() || !whole["settings"].is_object() {
            return Err(expected());
        }
        let experiment = whole["experiment"].as_str();
        let kind = experiment.map_or("bench".to_owned(), |name| format!("reproduce {name}"));
        let used = CELLS.iter().filter(|(array, _)| experiment.is_some() || *array == "cells");
        let mut cells: Vec<Cell> = Vec::new();
        for (array, what) in used {
            for value in whole[*array].as_array().into_iter().flatten() {
                let Some(object) = value.as_object() else { continue };
                let mut cell = Cell { name: cell_name(what, object), measured: measured(value) };
                // A job file may have several jobs of one name.
                let same = cells.iter().filter(|other| other.name == cell.name).count();
                if same > 0 {
                    cell.name = format!("{} ({})", cell.name, same + 1);
                }
                cells.push(cell);
            }
        }
        if cells.is_empty() {
            return Err(expected());
        }
        Ok(Self { kind, whole, cells })
    }
}

/// Replaces control characters in texts, and removes fields with control characters in their names.
/// The file may come from an untrusted source, and its texts are printed to a terminal.
fn make_printable(value: &mut Value) {
    match value {
        Value::String(text) => *text = printable(text),
        Value::Array(values) => values.iter_mut().for_each(make_printable),
        Value::Object(fields) => {
            let steers = |name: &String| name.chars().any(char::is_control);
            fields.retain(|name, _| !steers(name));
            fields.values_mut().for_each(make_printable);
        }
        _ => {}
    }
}

/// The identity of a cell: all that was not measured.
fn cell_name(what: &str, cell: &Map<String, Value>) -> String {
    // `application` is the number of a CPU. It is no part of the identity, because another field
    // of the cell says where the application runs.
    let is_identity = |name: &str| {
        let others =
            ["not_measured", "is_baseline", "requests", "accepted", "application", "group"];
        !others.contains(&name)
            && !name.contains("median")
            && !name.ends_with("_min")
            && !name.ends_with("_max")
    };
    let mut parts: Vec<String> = Vec::new();
    parts.extend((!what.is_empty()).then(|| what.to_owned()));
    // The order is from the load to the engine: adjacent rows differ in the engine.
    let rank = |name: &str| match name {
        "workload" | "job" | "phase" => 0,
        "rw" | "cache" => 1,
        "block" => 2,
        "depth" => 3,
        "engine" | "road" | "structure" => 5,
        "pool" => 6,
        _ => 4,
    };
    let mut fields: Vec<_> = cell.iter().collect();
    fields.sort_by_key(|(name, _)| rank(name));
    for (name, value) in fields {
        match value {
            Value::String(text) if is_identity(name) => parts.push(text.clone()),
            Value::Number(number) if name == "block" => {
                parts.push(number.as_u64().map_or_else(|| number.to_string(), size::short));
            }
            Value::Number(number) if is_identity(name) => parts.push(format!("{name} {number}")),
            Value::Object(_) if name == "what" => parts.push(flat(value)),
            _ => {}
        }
    }
    parts.join(", ")
}

/// The leaves of a value, in order, with the names that lead to them.
fn flat(value: &Value) -> String {
    match value {
        Value::Object(object) => {
            let parts = object.iter().map(|(name, value)| format!("{name} {}", flat(value)));
            parts.collect::<Vec<_>>().join(" ")
        }
        Value::Array(array) => array.iter().map(flat).collect::<Vec<_>>().join(" "),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The figures of a cell; empty if it failed.
fn measured(cell: &Value) -> Vec<(Metric, Measured)> {
    if cell["not_measured"].is_string() {
        return Vec::new();
    }
    let rounds = ROUNDS.iter().filter_map(|name| cell[*name].as_array());
    // If several arrays have a metric, the first one of them counts. So a rate comes from `rates`,
    // and not from `timed`.
    let rounds: Vec<&Vec<Value>> = rounds.collect();
    let of = |metric: Metric| {
        let in_rounds = rounds.iter().find_map(|rounds| {
            Measured::of(rounds.iter().filter_map(|round| metric.of(round)).collect())
        });
        // bench measures latencies in one run beside the rounds, so the cell itself has them.
        let in_cell = || Measured::of(metric.of(cell).into_iter().collect());
        Some((metric, in_rounds.or_else(in_cell)?))
    };
    Metric::VARIANTS.iter().copied().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_cell_is_named_by_what_it_is() {
        let cell = json!({
            "workload": "cold-read", "block": 4096, "depth": 32, "engine": "psync", "figures": [],
            "not_measured": null, "iops_median": 3.5,
        });
        assert_eq!(cell_name("", cell.as_object().unwrap()), "cold-read, 4k, depth 32, psync");
        let placed = json!({ "what": { "free": { "rq_affinity": 1 } }, "application": 3 });
        assert_eq!(cell_name("", placed.as_object().unwrap()), "free rq_affinity 1");
    }

    #[test]
    fn a_file_of_somebody_elses_steers_no_terminal() {
        let mut value = json!({ "a\u{1b}[2J": 1, "b": ["x\u{1b}]52;c\u{7}", { "c": "\u{9b}m" }] });
        make_printable(&mut value);
        assert_eq!(value, json!({ "b": ["x\u{fffd}]52;c\u{fffd}", { "c": "\u{fffd}m" }] }));
    }

    #[test]
    fn rounds_have_a_spread_and_a_single_run_has_none() {
        let cell = json!({
            "figures": [{ "iops": 3.0 }, { "iops": 1.0 }, { "iops": 2.0 }],
            "latency": { "complete_us_p999": 7.0 },
        });
        let of = |values: &[f64]| Measured::of(values.to_vec()).unwrap();
        let (rate, tail) = (of(&[3.0, 1.0, 2.0]), of(&[7.0]));
        assert_eq!((rate.median, rate.min, rate.max, rate.rounds), (2.0, 1.0, 3.0, 3));
        assert_eq!(measured(&cell), [(Metric::RequestsPerSecond, rate), (Metric::P999Us, tail)]);
        assert!(measured(&json!({ "ns": [1.0], "not_measured": "refused" })).is_empty());
        let lookup = of(&[1.0, 2.0]);
        assert_eq!(measured(&json!({ "ns": [1.0, 2.0] })), [(Metric::NsPerLookup, lookup)]);
    }
}
