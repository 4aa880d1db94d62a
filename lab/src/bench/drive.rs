//! The one loop that every asynchronous engine runs, and its clocks.
//!
//! All engines use this loop, so that none has a better one. It keeps `depth` requests in flight,
//! sleeps until at least one is complete, takes all completions, and submits new requests in their
//! place. A [`Manner`] says how many requests a call hands over, and where the loop sleeps.
//!
//! Throughput and latency are measured in different runs. A run for throughput reads no clock per
//! request. With [`Manner::AllInACall`], it submits and waits in one call if the interface has such
//! a call (io_uring). A timed run submits, reads the clock, and waits.

#![allow(unsafe_code)]

use super::manner::{EventLoop, Manner};
use super::stream::Next;
use super::workload::{Job, Operation};
use hdrhistogram::Histogram;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use serde::Serialize;
use serde_with::with_prefix;
use std::io::Error;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A request, with the fields that the loop needs.
#[derive(Clone, Copy)]
pub struct Request {
    /// The file.
    pub fd: RawFd,
    /// The operation.
    pub operation: Operation,
    /// The buffer of the transfer; not used by an fsync.
    pub buffer: *mut [u8],
    /// The offset in the file.
    pub offset: u64,
    /// Returned with the completion; less than the depth.
    pub slot: usize,
}

/// An asynchronous interface, with the functions that the loop needs.
///
/// Dropping a queue waits for its requests in flight, because the buffers are freed afterwards.
pub trait Queue {
    /// Prepares a request for the next submission.
    ///
    /// # Safety
    /// The buffer stays valid and is not used until the slot was reaped or the queue dropped.
    unsafe fn prepare(&mut self, request: Request);

    /// Hands prepared requests over.
    ///
    /// # Errors
    /// The errors of the call.
    fn submit(&mut self) -> std::io::Result<()>;

    /// Sleeps until a request is complete. May return without one after a signal.
    ///
    /// # Errors
    /// The errors of the call.
    fn wait(&mut self) -> std::io::Result<()>;

    /// Submits and waits, in one call if there is one.
    ///
    /// # Errors
    /// The errors of the calls.
    #[inline]
    fn submit_and_wait(&mut self) -> std::io::Result<()> {
        self.submit()?;
        self.wait()
    }

    /// Takes all completions: slot, and count or negative errno.
    fn reap(&mut self, take: impl FnMut(usize, i64));

    /// An event loop whose eventfd the interface counts up at each completion. Called before the
    /// first request is prepared.
    ///
    /// # Errors
    /// The interface cannot do that, or refuses it.
    fn event_loop(&mut self) -> Result<EventLoop, String>;

    /// Looks for completions after the eventfd was counted up, without sleeping.
    ///
    /// # Errors
    /// The errors of the call.
    #[inline]
    fn collect(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Interruption by a signal (such as Ctrl-C) is no error: the loop continues.
pub fn unless_interrupted<T>(result: std::io::Result<T>) -> std::io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ok(()),
        other => other.map(drop),
    }
}

/// Runs a job.
///
/// # Errors
/// The first error.
pub fn keep_in_flight<Q: Queue>(queue: &mut Q, job: &mut Job<'_>) -> Result<Figure, String> {
    let failed = |error| format!("submitting or waiting failed: {error}");
    let event_loop = match job.manner {
        Manner::EventLoop => Some(queue.event_loop()?),
        Manner::AllInACall | Manner::OneInACall => None,
    };
    let mut free: Vec<usize> = (0..job.depth).collect();
    let mut latency = job.timed.then(|| Latency::new(job.depth));
    let mut going = true;
    let mut failure = None;
    let mut done = 0;
    let mut meter = job.meter();
    loop {
        while going && let Some(slot) = free.pop() {
            let Some(Next { operation, offset }) = job.next(slot) else {
                free.push(slot);
                going = false;
                break;
            };
            let (fd, buffer) = (job.fd, job.buffer(slot));
            // SAFETY: a slot is in `free` only while no request uses its buffer. The loop ends when
            // all slots are free. After an error, the caller drops the queue before the job.
            unsafe { queue.prepare(Request { fd, operation, buffer, offset, slot }) };
            if let Some(latency) = &mut latency {
                latency.prepared.push(slot);
            }
            if job.manner != Manner::AllInACall {
                submit(queue, &mut latency).map_err(failed)?;
            }
        }
        if free.len() == job.depth {
            break;
        }
        let waited = match (&event_loop, job.manner) {
            (Some(event_loop), _) => match event_loop.wait() {
                Ok(true) => queue.collect(),
                other => other.map(drop),
            },
            (None, Manner::AllInACall) if latency.is_none() => queue.submit_and_wait(),
            (None, Manner::AllInACall) => submit(queue, &mut latency).and_then(|()| queue.wait()),
            (None, _) => queue.wait(),
        };
        waited.map_err(failed)?;
        let reaped = latency.is_some().then(Instant::now);
        queue.reap(|slot, result| {
            free.push(slot);
            match job.check(slot, result) {
                Ok(Operation::Fsync) => {}
                Ok(Operation::Read | Operation::Write) => {
                    done += 1;
                    if let (Some(latency), Some(reaped)) = (&mut latency, reaped) {
                        latency.reaped(slot, reaped);
                    }
                }
                Err(error) => failure = Some(error),
            }
        });
        going = going && failure.is_none() && meter.goes_on(done);
    }
    failure.map_or_else(|| Ok(meter.stop(done, latency.as_ref())), Err)
}

/// Submits prepared requests, if there are any, and reads the clock if times are wanted.
#[inline]
fn submit<Q: Queue>(queue: &mut Q, latency: &mut Option<Latency>) -> std::io::Result<()> {
    match latency {
        None => queue.submit(),
        Some(latency) if latency.prepared.is_empty() => Ok(()),
        Some(latency) => {
            let begun = Instant::now();
            queue.submit()?;
            latency.submitted(begun);
            Ok(())
        }
    }
}

/// A text for a negative errno.
pub fn request_failed(errno: i64) -> String {
    let error = Error::from_raw_os_error(i32::try_from(-errno).unwrap_or(libc::EIO));
    let hint = match error.raw_os_error() {
        Some(libc::EINVAL) => "; the device may need larger blocks for direct I/O",
        _ => "",
    };
    format!("a request failed: {error}{hint}")
}

/// The figures of one engine in one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Reads and writes that completed in full.
    pub requests: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Requests per second.
    pub iops: f64,
    /// CPU time of all threads, user and system, kernel workers of this process included.
    pub cpu_us_per_request: f64,
    /// The user part of the CPU time.
    pub user_us_per_request: f64,
    /// Only a timed run has this figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<LatencyFigure>,
    /// The engines that uringlet chose, and the engines that were refused. `None`: a native engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executed_by: Option<String>,
}

/// The percentiles of every latency: the same as fio's.
pub const PERCENTILES: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];

/// Latencies by the caller's clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyFigure {
    /// Requests that were measured.
    pub samples: u64,
    /// `None` for a synchronous engine, which has no submit call.
    pub submit: Option<SubmitFigure>,
    /// From the end of the submit (for a synchronous engine: the start of the call) to the reap.
    #[serde(flatten, with = "complete_us")]
    pub complete: Distribution,
    /// From the start of the submit (for a synchronous engine: of the call) to the reap.
    pub total_us: Spread,
    /// The share of the requests between each of [`BOUNDS_NS`] and the bound before it. The last
    /// share is that of the requests above all bounds.
    #[serde(skip)]
    pub total_shares: [f64; BOUNDS_NS.len() + 1],
}

/// The distribution of times, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    pub mean: f64,
    /// 99.9th percentile.
    pub p999: f64,
    pub min: f64,
    pub max: f64,
    /// Standard deviation.
    pub stdev: f64,
    /// The value at each of [`PERCENTILES`].
    pub percentiles: [f64; PERCENTILES.len()],
}

impl Distribution {
    pub fn spread(&self) -> Spread {
        let Self { mean, min, max, stdev, .. } = *self;
        Spread { min, mean, max, stdev }
    }
}

with_prefix!(complete_us "complete_us_");
with_prefix!(us_per_call "us_per_call_");

/// The bounds of fio's latency classes, in nanoseconds.
pub const BOUNDS_NS: [u64; 31] = {
    let steps = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];
    let units = [1, 1_000, 1_000_000];
    let mut bounds = [2_000_000_000; 31];
    let mut at = 0;
    while at < 30 {
        bounds[at] = steps[at % 10] * units[at / 10];
        at += 1;
    }
    bounds
};

/// A summary of many times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    pub min: f64,
    pub mean: f64,
    pub max: f64,
    pub stdev: f64,
}

impl Spread {
    /// The summary of a sample; none for an empty one.
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Some(Self {
            min: values.iter().copied().reduce(f64::min)?,
            mean,
            max: values.iter().copied().reduce(f64::max)?,
            stdev: if values.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 },
        })
    }
}

/// The time that the caller spends in submit calls.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SubmitFigure {
    /// The total time in submit calls, divided by the requests.
    pub us_per_request_mean: f64,
    /// The times of the calls, whatever number of requests each handed over.
    #[serde(flatten, with = "us_per_call")]
    pub calls: Distribution,
    /// Requests per call.
    pub requests_per_call: f64,
}

/// Times of submit calls and completions. Nothing is allocated during the run.
pub struct Latency {
    calls: Times,
    completions: Times,
    /// For each request, the time from the start of its submit call to its reap.
    total: Sums,
    requests: u64,
    /// Slots of the next submit.
    prepared: Vec<usize>,
    /// The start and the end of each slot's submit call.
    since: Vec<(Instant, Instant)>,
}

impl Latency {
    /// Makes room for the times of `depth` slots.
    pub fn new(depth: usize) -> Self {
        let now = Instant::now();
        Self {
            calls: Times::new(),
            completions: Times::new(),
            total: Sums::default(),
            requests: 0,
            prepared: Vec::with_capacity(depth),
            since: vec![(now, now); depth],
        }
    }

    /// Records the submit call that began at `begun` and has just returned.
    #[inline]
    fn submitted(&mut self, begun: Instant) {
        let ended = Instant::now();
        self.calls.record(ended - begun);
        self.requests += self.prepared.len() as u64;
        for slot in self.prepared.drain(..) {
            self.since[slot] = (begun, ended);
        }
    }

    #[inline]
    fn reaped(&mut self, slot: usize, at: Instant) {
        let (begun, ended) = self.since[slot];
        self.completed(at - ended, at - begun);
    }

    /// Records the times of a request: the time after its submit call, and the whole time.
    #[inline]
    pub fn completed(&mut self, after: Duration, total: Duration) {
        self.completions.record(after);
        self.total.record(total);
    }

    /// The result.
    fn figure(&self) -> LatencyFigure {
        let submit = (self.requests > 0).then(|| SubmitFigure {
            us_per_request_mean: self.calls.sum.as_secs_f64() * 1e6 / self.requests as f64,
            calls: self.calls.distribution(),
            requests_per_call: self.requests as f64 / self.calls.histogram.len() as f64,
        });
        LatencyFigure {
            samples: self.total.count,
            submit,
            complete: self.completions.distribution(),
            total_us: self.total.summary(),
            total_shares: self.total.shares(),
        }
    }
}

/// A histogram of nanoseconds with three significant digits, and the exact sum.
struct Times {
    histogram: Histogram<u32>,
    sum: Duration,
}

impl Times {
    fn new() -> Self {
        let hour = 3_600_000_000_000;
        let histogram = Histogram::new_with_bounds(1, hour, 3).expect("the bounds are constants");
        Self { histogram, sum: Duration::ZERO }
    }

    #[inline]
    fn record(&mut self, time: Duration) {
        self.histogram.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1));
        self.sum += time;
    }

    fn distribution(&self) -> Distribution {
        let at = |percentile| self.histogram.value_at_percentile(percentile) as f64 / 1e3;
        Distribution {
            mean: self.sum.as_secs_f64() * 1e6 / self.histogram.len().max(1) as f64,
            p999: at(99.9),
            min: self.histogram.min() as f64 / 1e3,
            max: self.histogram.max() as f64 / 1e3,
            stdev: self.histogram.stdev() / 1e3,
            percentiles: PERCENTILES.map(at),
        }
    }
}

/// What a [`Spread`] is computed from, in microseconds. `counts` has the number of durations
/// between each of [`BOUNDS_NS`] and the bound before it, and at last the number of longer ones.
#[derive(Default)]
struct Sums {
    count: u64,
    min: f64,
    max: f64,
    sum: f64,
    squares: f64,
    counts: [u64; BOUNDS_NS.len() + 1],
}

impl Sums {
    #[inline]
    fn record(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let us = ns as f64 / 1e3;
        self.min = if self.count == 0 { us } else { self.min.min(us) };
        self.max = self.max.max(us);
        self.count += 1;
        self.sum += us;
        self.squares += us * us;
        self.counts[BOUNDS_NS.partition_point(|bound| *bound < ns)] += 1;
    }

    fn shares(&self) -> [f64; BOUNDS_NS.len() + 1] {
        self.counts.map(|count| count as f64 / self.count.max(1) as f64)
    }

    fn summary(&self) -> Spread {
        let count = self.count.max(1) as f64;
        let mean = self.sum / count;
        let stdev = (self.squares / count - mean * mean).max(0.0).sqrt();
        Spread { min: self.min, mean, max: self.max, stdev }
    }
}

/// Clock and CPU time of one run; reads the clock about once per millisecond, and at least once in
/// 64 requests.
pub struct Meter<'a> {
    start: Instant,
    /// User and system time at the start.
    cpu: [Duration; 2],
    duration: Duration,
    stop: &'a AtomicBool,
    next_look: u64,
}

impl<'a> Meter<'a> {
    /// Starts now.
    pub fn start(duration: Duration, stop: &'a AtomicBool) -> Self {
        Self { cpu: cpu_times(), start: Instant::now(), duration, stop, next_look: 1 }
    }

    /// False when the time is over, or the user has asked to stop.
    #[inline]
    pub fn goes_on(&mut self, done: u64) -> bool {
        done < self.next_look || self.look(done)
    }

    #[cold]
    fn look(&mut self, done: u64) -> bool {
        let elapsed = self.start.elapsed();
        let per_millisecond = done as f64 / (elapsed.as_secs_f64() * 1e3 + 1e-9);
        self.next_look = done + (per_millisecond as u64).clamp(1, 64);
        elapsed < self.duration && !self.stop.load(Ordering::Relaxed)
    }

    /// The figure of the run, for all completed requests.
    pub fn stop(self, requests: u64, latency: Option<&Latency>) -> Figure {
        let seconds = self.start.elapsed().as_secs_f64();
        let now = cpu_times();
        let per_request = |at: usize| {
            let time = now[at].saturating_sub(self.cpu[at]);
            time.as_secs_f64() * 1e6 / requests.max(1) as f64
        };
        let (user, system) = (per_request(0), per_request(1));
        Figure {
            requests,
            seconds,
            iops: requests as f64 / seconds,
            cpu_us_per_request: user + system,
            user_us_per_request: user,
            latency: latency.map(Latency::figure),
            executed_by: None,
        }
    }
}

/// CPU time of this process, user and system, all threads.
pub fn cpu_time() -> Duration {
    cpu_times().iter().sum()
}

/// User and system time.
fn cpu_times() -> [Duration; 2] {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("everybody may ask for their own");
    [usage.user_time(), usage.system_time()]
        .map(|time| Duration::from_micros(time.num_microseconds().cast_unsigned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn submit_time_is_shared_by_the_requests_of_a_call() {
        let mut latency = Latency::new(4);
        for slots in [&[0][..], &[1, 2, 3]] {
            latency.prepared.extend(slots);
            latency.submitted(Instant::now());
        }
        let us = Duration::from_micros;
        latency.completed(us(7), us(10));
        latency.completed(us(9), us(14));
        let figure = latency.figure();
        let total = Spread { min: 10.0, mean: 12.0, max: 14.0, stdev: 2.0 };
        assert_eq!(figure.total_us, total);
        let shares: Vec<f64> =
            figure.total_shares.into_iter().filter(|share| *share > 0.0).collect();
        assert_eq!((shares, figure.total_shares[12]), (vec![0.5, 0.5], 0.5), "10 µs and 14 µs");
        let submit = figure.submit.unwrap();
        assert_eq!((submit.requests_per_call, figure.complete.mean), (2.0, 8.0));
        assert!((submit.us_per_request_mean * 2.0 - submit.calls.mean).abs() < 1e-9);
        assert!(submit.calls.p999 <= submit.calls.max);
        assert!((figure.complete.p999 - 9.0).abs() < 0.02, "{figure:?}");
        let Spread { min, max, stdev, .. } = figure.complete.spread();
        let others = [min, max, stdev];
        for (found, expected) in others.into_iter().zip([7.0, 9.0, 1.0]) {
            assert!((found - expected).abs() < 0.02, "{figure:?}");
        }
    }

    #[test]
    fn a_spread_is_that_of_a_sample() {
        let found = Spread::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert_eq!((found.min, found.mean, found.max), (2.0, 5.0, 9.0));
        assert!((found.stdev - (32.0f64 / 7.0).sqrt()).abs() < 1e-9);
        assert_eq!((Spread::of(&[]), Spread::of(&[3.0]).unwrap().stdev), (None, 0.0));
    }

    #[test]
    fn without_a_submit_there_is_no_submit_time() {
        let mut latency = Latency::new(1);
        latency.completed(Duration::from_micros(1), Duration::from_micros(1));
        assert!(latency.figure().submit.is_none());
    }
}
