//! Results in the shape of fio's JSON, for programs that read fio's.
//!
//! The keys and units are fio's. One entry of `jobs` is one engine under one workload, at one
//! depth, with one manner of submitting. Counts, rates and CPU shares are those of the median
//! round. Latencies are those of the separate run that measures them. Values that fio samples twice
//! a second (`bw_min`, `iops_mean` and so on) are taken over the rounds. Anything without a place
//! in fio's shape is under `uringlet`.

#![allow(unsafe_code)]

use super::comparison::middle;
use super::matrix::{Cell, Matrix};
use crate::size;
use serde_json::{Map, Value, json};
use std::time::{SystemTime, UNIX_EPOCH};
use uringlet_lab::bench::{BOUNDS_NS, Figure, Manner, Order, PERCENTILES, Spread};

/// The keys of the top level, beside the command's own. The timestamp is the present time.
pub fn top(jobs: Vec<Value>) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "fio version": format!("uringlet-{}", crate::machine::VERSION),
        "timestamp": now.as_secs(),
        "timestamp_ms": u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
        "time": local_time(now.as_secs()),
        "global options": {},
        "jobs": jobs,
    })
}

impl Cell {
    fn middle(&self) -> &Figure {
        middle(&self.figures, |figure| figure.iops).expect("it has figures")
    }

    /// The percentage of the requests in each of fio's latency classes of one unit (0: ns, 1: µs,
    /// 2: ms). The key of a class is its upper bound; the last class is `>=2000`.
    fn shares(&self, unit: usize) -> Map<String, Value> {
        let percent = |at: usize| self.latency.map_or(0.0, |found| found.total_shares[at] * 100.0);
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

    /// The results of one direction. `does` is false if the cell has no requests in this direction.
    fn fio_side(&self, does: bool) -> Value {
        let none = nanoseconds(Spread::default(), 0);
        let mut side = json!({ "slat_ns": none, "clat_ns": none, "lat_ns": none });
        if let Some(found) = self.latency.as_ref().filter(|_| does) {
            let of = |values| nanoseconds(values, found.samples);
            if let Some(submit) = found.submit {
                // Each request has waited for the whole of its submit call.
                side["slat_ns"] = of(submit.calls.spread());
            }
            side["clat_ns"] = of(found.complete.spread());
            let percentiles = PERCENTILES.iter().zip(found.complete.percentiles);
            let percentiles = percentiles.map(|(at, us)| (format!("{at:.6}"), whole(us * 1e3)));
            side["clat_ns"]["percentile"] = Value::Object(percentiles.collect());
            side["lat_ns"] = of(found.total_us);
        }
        let rates: Vec<f64> = self.figures.iter().map(|figure| figure.iops).collect();
        let Spread { min, max, mean, stdev } =
            Spread::of(&rates).filter(|_| does).unwrap_or_default();
        let (iops, seconds, ios) = match self.middle() {
            figure if does => (figure.iops, figure.seconds, figure.requests),
            _ => (0.0, 0.0, 0),
        };
        let (samples, kib) = (if does { rates.len() } else { 0 }, self.block as f64 / 1024.0);
        let bytes = ios * self.block;
        let own = json!({
            "io_bytes": bytes,
            "io_kbytes": bytes >> 10,
            "bw_bytes": whole(iops * self.block as f64),
            "bw": whole(iops * kib),
            "iops": iops,
            "runtime": if does { milliseconds(seconds) } else { 0 },
            "total_ios": ios,
            "short_ios": 0,
            "drop_ios": 0,
            "bw_min": whole(min * kib),
            "bw_max": whole(max * kib),
            "bw_agg": if does { 100.0 } else { 0.0 },
            "bw_mean": mean * kib,
            "bw_dev": stdev * kib,
            "bw_samples": samples,
            "iops_min": whole(min),
            "iops_max": whole(max),
            "iops_mean": mean,
            "iops_stddev": stdev,
            "iops_samples": samples,
        });
        let fields = side.as_object_mut().expect("it was made as one");
        fields.extend(own.as_object().cloned().unwrap_or_default());
        side
    }
}

impl Matrix {
    /// One entry for each cell with figures.
    pub fn entries(&self) -> Vec<Value> {
        let measured = |cell: &&Cell| cell.not_measured.is_none() && !cell.figures.is_empty();
        self.cells().filter(measured).map(|cell| self.entry(cell)).collect()
    }

    fn entry(&self, cell: &Cell) -> Value {
        let load = self.settings.load(cell.workload);
        let rw = match (load.order, load.write) {
            (Order::Sequential, true) => "write",
            (Order::Sequential, false) => "read",
            (_, true) => "randwrite",
            (_, false) => "randread",
        };
        let all = cell.submit == Manner::AllInACall;
        let options = [
            ("rw", rw.to_owned()),
            ("bs", size::short(load.block)),
            ("size", size::short(load.window)),
            ("iodepth", cell.in_flight().to_string()),
            ("iodepth_batch", if all { cell.in_flight() } else { 1 }.to_string()),
            ("numjobs", "1".to_owned()),
            ("direct", u8::from(load.direct).to_string()),
            ("fsync", load.fsync_every.unwrap_or(0).to_string()),
            ("time_based", "1".to_owned()),
            ("runtime", format!("{}ms", self.settings.seconds * 1e3)),
            ("ioengine", cell.engine.name().to_owned()),
            ("name", cell.workload.name()),
        ];
        let options = options.map(|(name, value)| (name.to_owned(), Value::from(value)));
        let figure = cell.middle();
        let percent = |us: f64| us * figure.requests as f64 / 1e6 / figure.seconds * 100.0;
        let system = (figure.cpu_us_per_request - figure.user_us_per_request).max(0.0);
        json!({
            "jobname": cell.workload.name(),
            "groupid": self.settings.workloads.iter().position(|w| *w == cell.workload),
            "error": 0,
            "eta": 0,
            "elapsed": figure.seconds.ceil() as u64,
            "job options": options.into_iter().collect::<Map<_, _>>(),
            "read": cell.fio_side(!load.write),
            "write": cell.fio_side(load.write),
            "trim": cell.fio_side(false),
            "sync": { "total_ios": 0, "lat_ns": nanoseconds(Spread::default(), 0) },
            "job_runtime": milliseconds(figure.seconds),
            "usr_cpu": percent(figure.user_us_per_request),
            "sys_cpu": percent(system),
            "latency_ns": cell.shares(0),
            "latency_us": cell.shares(1),
            "latency_ms": cell.shares(2),
            "latency_depth": cell.in_flight(),
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
}

/// The JSON of a distribution: its microseconds become nanoseconds.
fn nanoseconds(us: Spread, samples: u64) -> Value {
    let [min, max, mean, deviation] = [us.min, us.max, us.mean, us.stdev].map(|us| us * 1e3);
    json!({ "min": whole(min), "max": whole(max), "mean": mean, "stddev": deviation, "N": samples })
}

fn whole(value: f64) -> Value {
    (value.round() as u64).into()
}

fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1e3).round().max(1.0) as u64
}

/// `Sat Nov 21 17:48:12 2026`.
fn local_time(seconds: u64) -> String {
    let time = seconds.cast_signed();
    // ctime_r(3) writes 26 bytes.
    let mut text = [0u8; 32];
    // SAFETY: `time` lives through the call, and `text` has more room than the call writes to.
    unsafe { libc::ctime_r(&raw const time, text.as_mut_ptr().cast()) };
    let end = text.iter().position(|&byte| byte == 0 || byte == b'\n').unwrap_or(0);
    String::from_utf8_lossy(&text[..end]).into_owned()
}
