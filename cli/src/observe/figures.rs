//! Counters as rates, shares and percentiles, for people and for programs.

use crate::size;
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;
use uringlet::stats::{Distribution, Latency, Snapshot};

/// What happened in an interval.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    pub seconds: f64,
    pub requests_per_s: f64,
    pub bytes_read_per_s: f64,
    pub bytes_written_per_s: f64,
    pub hand_overs_per_s: f64,
    pub wake_ups_per_s: f64,
    pub errors: u64,
    pub canceled: u64,
    pub lanes: Lanes,
    pub submit: Percentiles,
    pub completion: Percentiles,
}

/// The number of requests, by what executed them: a kind of thread, or the kernel.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Lanes {
    pub waiter: u64,
    pub worker: u64,
    pub pool: u64,
    pub poller: u64,
    pub kernel: u64,
}

/// Some points of a distribution, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Percentiles {
    pub count: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    pub max_ns: u64,
}

impl Figures {
    /// The figures of the interval between two snapshots. `time` is its length.
    pub fn between(earlier: &Snapshot, now: &Snapshot, time: Duration) -> Self {
        let what = now.since(earlier);
        let seconds = time.as_secs_f64();
        let rate = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        Self {
            seconds,
            requests_per_s: rate(what.requests()),
            bytes_read_per_s: rate(what.bytes_read),
            bytes_written_per_s: rate(what.bytes_written),
            hand_overs_per_s: rate(what.handovers),
            wake_ups_per_s: rate(what.wakeups),
            errors: what.errors,
            canceled: what.canceled,
            lanes: Lanes::of(&what),
            submit: Percentiles::of(&what.submit),
            completion: Percentiles::of(&what.completion),
        }
    }
}

impl Lanes {
    fn of(stats: &Snapshot) -> Self {
        Self {
            waiter: stats.by_waiter,
            worker: stats.by_worker,
            pool: stats.by_pool,
            poller: stats.by_poller,
            kernel: stats.by_kernel,
        }
    }

    /// The fields as percentages of their sum, in their order.
    pub fn shares(&self) -> [f64; 5] {
        let parts = [self.waiter, self.worker, self.pool, self.poller, self.kernel];
        let parts = parts.map(|part| part as f64);
        let total: f64 = parts.iter().sum();
        parts.map(|part| if total > 0.0 { part * 100.0 / total } else { 0.0 })
    }
}

impl Percentiles {
    pub fn of(distribution: &Distribution) -> Self {
        let Latency { count, p50_ns, p99_ns, p999_ns, max_ns, .. } = distribution.latency();
        Self { count, p50_ns, p99_ns, p999_ns, max_ns }
    }

    /// `-` if nothing was recorded.
    pub fn text(&self, ns: u64) -> String {
        if self.count == 0 { "-".into() } else { size::nanoseconds(ns) }
    }
}

/// The name, the description and the value of one counter.
pub struct Counter {
    pub name: &'static str,
    pub help: &'static str,
    pub value: u64,
}

/// A list of every counter: its name, the field of a snapshot, and its description.
macro_rules! counters {
    ($($name:ident $field:ident $help:literal,)*) => {
        /// Every counter that only grows.
        pub fn counters(stats: &Snapshot) -> Vec<Counter> {
            vec![$(Counter { name: stringify!($name), help: $help, value: stats.$field }),*]
        }
    };
}

counters! {
    contexts contexts "Contexts made.",
    submitted submitted "Requests accepted by a submit.",
    reads reads "Completed reads.",
    writes writes "Completed writes.",
    fsyncs fsyncs "Completed fsyncs, fdatasyncs and sync_file_ranges.",
    polls polls "Completed polls.",
    others others "Completed requests of any other kind.",
    canceled canceled "Requests cancelled before they were executed.",
    errors errors "Requests completed with an error.",
    read_bytes bytes_read "Bytes transferred by reads.",
    written_bytes bytes_written "Bytes transferred by writes.",
    by_waiter by_waiter "Requests executed by a waiting thread.",
    by_worker by_worker "Requests executed by a worker with the baton.",
    by_pool by_pool "Requests executed by a worker without the baton.",
    by_poller by_poller "Requests completed by the poller.",
    by_kernel by_kernel "Requests executed by the kernel.",
    after_losing_baton after_losing_baton "Requests whose executor had lost the baton.",
    wake_ups wakeups "Times that a worker was woken or made.",
    hand_overs handovers "Times that the baton was taken from a blocked holder.",
    calls_beside calls_beside "Times that a worker was called to execute beside a waiter.",
    beside_busy beside_busy "Of these: it found its CPU busy, and left.",
    beside_idle beside_idle "Of these: it had too little to do, or was sent away, and left.",
    reads_ahead reads_ahead "Cached reads whose pages were asked for before a wait.",
    syncs_together syncs_together "Fsyncs done by one call with others of their descriptor.",
    submissions_local submissions_local "Placed requests executed in the submitter's cell.",
    submissions_remote submissions_remote "Placed requests executed in another cell.",
    completions_local completions_local "Placed requests completed in the interrupt's cell.",
    completions_remote completions_remote "Placed requests completed outside the interrupt's cell.",
    completions_home completions_home "Placed requests completed in the submitter's cell.",
    completions_away completions_away "Placed requests completed outside the submitter's cell.",
    cpu_hand_overs cpu_handovers "Times that a placed request went from one CPU to another.",
}

/// All counters and distributions since the program's start, as JSON.
pub fn totals(stats: &Snapshot) -> Value {
    let mut all = json!({ "requests": stats.requests() });
    for counter in counters(stats) {
        all[counter.name] = counter.value.into();
    }
    all["workers_max"] = stats.workers_max.into();
    all["submit"] = json!(Percentiles::of(&stats.submit));
    all["completion"] = json!(Percentiles::of(&stats.completion));
    all
}
