//! Results in the shape of fio's JSON, so that what reads fio's reads ours.
//!
//! The keys and units are fio's. One entry of `jobs` is one engine under one workload at one depth: counts, rates and CPU shares are those of the median round, latencies those of the run that is made for
//! them. What fio samples twice a second (`bw_min`, `iops_mean` and so on) is taken over the rounds. What fio's shape has no
//! place for is under `uringlet`.

#![allow(unsafe_code)]

use super::matrix::{Cell, Matrix};
use crate::size;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::time::{SystemTime, UNIX_EPOCH};
use uringlet_lab::bench::{BOUNDS_NS, Figure, LatencyFigure, Order, PERCENTILES, SubmitFigure};

/// What stands at the top, beside the command's own keys.
#[derive(Serialize)]
pub struct Top {
    #[serde(rename = "fio version")]
    version: String,
    timestamp: u64,
    timestamp_ms: u64,
    time: String,
    #[serde(rename = "global options")]
    global_options: Map<String, Value>,
    jobs: Vec<Value>,
}

impl Top {
    /// With this second as its time.
    pub fn new(jobs: Vec<Value>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            version: format!("uringlet-{}", crate::machine::VERSION),
            timestamp: now.as_secs(),
            timestamp_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            time: local_time(now.as_secs()),
            global_options: Map::new(),
            jobs,
        }
    }
}

/// One entry of `jobs`.
struct Entry<'a> {
    name: &'a str,
    group: usize,
    cell: &'a Cell,
    options: Map<String, Value>,
    write: bool,
}

impl Entry<'_> {
    /// In fio's shape.
    fn value(&self) -> Value {
        let Self { cell, write, .. } = self;
        let figure = &cell.figures[self.median()];
        let milliseconds = (figure.seconds * 1e3).round().max(1.0) as u64;
        let percent = |us: f64| us * figure.requests as f64 / 1e6 / figure.seconds * 100.0;
        let system = (figure.cpu_us_per_request - figure.user_us_per_request).max(0.0);
        let (read, written) = match write {
            true => (Side::default(), self.side()),
            false => (self.side(), Side::default()),
        };
        let mut options = self.options.clone();
        options.insert("ioengine".into(), cell.engine.name().into());
        options.insert("name".into(), self.name.into());
        json!({
            "jobname": self.name,
            "groupid": self.group,
            "error": 0,
            "eta": 0,
            "elapsed": figure.seconds.ceil() as u64,
            "job options": options,
            "read": read,
            "write": written,
            "trim": Side::default(),
            "sync": { "total_ios": 0, "lat_ns": Nanoseconds::default() },
            "job_runtime": milliseconds,
            "usr_cpu": percent(figure.user_us_per_request),
            "sys_cpu": percent(system),
            "latency_ns": self.shares(0),
            "latency_us": self.shares(1),
            "latency_ms": self.shares(2),
            "latency_depth": cell.depth,
            "latency_target": 0,
            "latency_percentile": 100.0,
            "latency_window": 0,
            "uringlet": {
                "engine": cell.engine,
                "executed_by": figure.executed_by,
                "rounds": cell.figures,
            },
        })
    }

    /// The round with the median rate; of an even number the slower one in the middle.
    fn median(&self) -> usize {
        let figures = &self.cell.figures;
        let mut order: Vec<usize> = (0..figures.len()).collect();
        order.sort_by(|&left, &right| figures[left].iops.total_cmp(&figures[right].iops));
        order[(order.len() - 1) / 2]
    }

    /// Percent of all requests up to each bound of one unit: ns, µs or ms.
    fn shares(&self, unit: usize) -> Map<String, Value> {
        let percent =
            |at: usize| self.cell.latency.map_or(0.0, |found| found.total_shares[at] * 100.0);
        let scale = 1000u64.pow(unit as u32);
        let last = if unit == 2 { BOUNDS_NS.len() } else { 10 * (unit + 1) };
        let mut found: Map<String, Value> = (10 * unit..last)
            .map(|at| ((BOUNDS_NS[at] / scale).to_string(), percent(at).into()))
            .collect();
        if unit == 2 {
            found.insert(">=2000".into(), percent(BOUNDS_NS.len()).into());
        }
        found
    }

    fn side(&self) -> Side {
        let Figure { requests, seconds, iops, .. } = self.cell.figures[self.median()];
        let block = self.cell.block;
        let bytes = requests * block;
        let rates: Vec<f64> = self.cell.figures.iter().map(|figure| figure.iops).collect();
        let all = Samples::of(&rates);
        let kib = block as f64 / 1024.0;
        let mut side = Side {
            io_bytes: bytes,
            io_kbytes: bytes >> 10,
            bw_bytes: (bytes as f64 / seconds) as u64,
            bw: (bytes as f64 / 1024.0 / seconds) as u64,
            iops,
            runtime: (seconds * 1e3).round().max(1.0) as u64,
            total_ios: requests,
            bw_min: (all.min * kib) as u64,
            bw_max: (all.max * kib) as u64,
            bw_agg: 100.0,
            bw_mean: all.mean * kib,
            bw_dev: all.deviation * kib,
            bw_samples: rates.len(),
            iops_min: all.min as u64,
            iops_max: all.max as u64,
            iops_mean: all.mean,
            iops_stddev: all.deviation,
            iops_samples: rates.len(),
            ..Side::default()
        };
        if let Some(latency) = &self.cell.latency {
            let submit = latency.submit.map(|submit| Nanoseconds::submit(&submit, latency.samples));
            side.slat_ns = submit.unwrap_or_default();
            side.clat_ns = Nanoseconds::complete(latency);
            side.lat_ns = Nanoseconds::total(latency);
        }
        side
    }
}

impl Matrix {
    /// One for each cell that has figures.
    pub fn entries(&self) -> Vec<Value> {
        let measured = |cell: &&Cell| cell.not_measured.is_none() && !cell.figures.is_empty();
        self.cells.iter().filter(measured).map(|cell| self.entry(cell)).collect()
    }

    fn entry(&self, cell: &Cell) -> Value {
        let load = self.settings.load(cell.workload);
        let rw = match (load.order, load.write) {
            (Order::Sequential, true) => "write",
            (Order::Sequential, false) => "read",
            (_, true) => "randwrite",
            (_, false) => "randread",
        };
        let options = [
            ("rw", rw.to_owned()),
            ("bs", size::short(load.block)),
            ("size", size::short(load.window)),
            ("iodepth", cell.depth.to_string()),
            ("numjobs", "1".to_owned()),
            ("direct", u8::from(load.direct).to_string()),
            ("fsync", load.fsync_every.unwrap_or(0).to_string()),
            ("time_based", "1".to_owned()),
            ("runtime", format!("{}ms", self.settings.seconds * 1e3)),
        ];
        let group = self.settings.workloads.iter().position(|w| *w == cell.workload).unwrap_or(0);
        let options =
            options.map(|(name, value)| (name.to_owned(), value.into())).into_iter().collect();
        Entry { name: &cell.workload.name(), group, cell, options, write: load.write }.value()
    }
}

/// The part of an entry that is about reads, or writes.
#[derive(Default, Serialize)]
struct Side {
    io_bytes: u64,
    io_kbytes: u64,
    bw_bytes: u64,
    bw: u64,
    iops: f64,
    runtime: u64,
    total_ios: u64,
    short_ios: u64,
    drop_ios: u64,
    slat_ns: Nanoseconds,
    clat_ns: Nanoseconds,
    lat_ns: Nanoseconds,
    bw_min: u64,
    bw_max: u64,
    bw_agg: f64,
    bw_mean: f64,
    bw_dev: f64,
    bw_samples: usize,
    iops_min: u64,
    iops_max: u64,
    iops_mean: f64,
    iops_stddev: f64,
    iops_samples: usize,
}

#[derive(Default, Serialize)]
struct Nanoseconds {
    min: u64,
    max: u64,
    mean: f64,
    stddev: f64,
    #[serde(rename = "N")]
    samples: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    percentile: Option<Map<String, Value>>,
}

impl Nanoseconds {
    /// Each request has waited for its submit call as long as that took.
    fn submit(submit: &SubmitFigure, samples: u64) -> Self {
        let [min, max, mean, stddev] = [
            submit.us_per_call_min,
            submit.us_per_call_max,
            submit.us_per_call_mean,
            submit.us_per_call_stdev,
        ];
        Self::of([min, max, mean, stddev], samples)
    }

    fn complete(latency: &LatencyFigure) -> Self {
        let values = PERCENTILES.iter().zip(latency.complete_us_percentiles);
        let percentile = values.map(|(at, us)| (format!("{at:.6}"), nanoseconds(us).into()));
        let [min, max, mean, stddev] = [
            latency.complete_us_min,
            latency.complete_us_max,
            latency.complete_us_mean,
            latency.complete_us_stdev,
        ];
        let all = Self::of([min, max, mean, stddev], latency.samples);
        Self { percentile: Some(percentile.collect()), ..all }
    }

    fn total(latency: &LatencyFigure) -> Self {
        let total = latency.total_us;
        Self::of([total.min, total.max, total.mean, total.stdev], latency.samples)
    }

    fn of([min, max, mean, stddev]: [f64; 4], samples: u64) -> Self {
        let (min, max) = (nanoseconds(min), nanoseconds(max));
        Self { min, max, mean: mean * 1e3, stddev: stddev * 1e3, samples, percentile: None }
    }
}

fn nanoseconds(us: f64) -> u64 {
    (us * 1e3).round() as u64
}

/// Rates of the rounds, summed up.
struct Samples {
    min: f64,
    max: f64,
    mean: f64,
    deviation: f64,
}

impl Samples {
    fn of(values: &[f64]) -> Self {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Self {
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(0.0, f64::max),
            mean,
            deviation: if values.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 },
        }
    }
}

/// `Sat Nov 21 17:48:12 2026`.
fn local_time(seconds: u64) -> String {
    let time = seconds.cast_signed();
    // ctime_r(3) writes 26 bytes.
    let mut text = [0u8; 32];
    // SAFETY: `time` lives through the call, and there is more room than is written to.
    unsafe { libc::ctime_r(&raw const time, text.as_mut_ptr().cast()) };
    let end = text.iter().position(|&byte| byte == 0 || byte == b'\n').unwrap_or(0);
    String::from_utf8_lossy(&text[..end]).into_owned()
}
