//! Reads past the page cache, so many in flight, from a thread on a CPU of its own.

#![allow(unsafe_code)]

use super::cycles::Cycles;
use crate::bench::Spread;
use serde::Serialize;
use std::fs::{File, read_to_string};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use uringlet::affinity::Topology;
use uringlet::stats::Snapshot;
use uringlet::{Builder, Context, Sqe};

/// What is read.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Reads {
    /// Bytes a request.
    pub block: usize,
    /// From the beginning of the file, over and over.
    pub window: u64,
    /// In flight.
    pub depth: usize,
}

/// What came out of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    pub requests: u64,
    /// Millions of bytes.
    pub mb_per_s: f64,
    pub avg_latency_ms: f64,
    pub stddev_latency_ms: f64,
    pub queue_local: u64,
    pub queue_remote: u64,
    pub completion_local: u64,
    pub completion_remote: u64,
    /// Completed in the cell of the thread that had submitted.
    pub completion_home: u64,
    pub completion_away: u64,
    /// Of a request from one CPU to another.
    pub hand_overs: u64,
    /// The whole machine's, while it ran.
    pub time: Option<CpuTime>,
    /// The CPU with the least time to spare.
    pub busiest: Option<Busiest>,
    /// CPU cycles of the whole machine for each request, or why they are not known.
    pub cycles: Result<f64, String>,
    /// What has become of the placement, in words.
    pub placement: String,
}

/// Shares of all CPUs' time, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CpuTime {
    pub user: f64,
    pub sys: f64,
    pub iowait: f64,
    pub idle: f64,
}

/// A CPU, and the share of its time in percent that was not idle.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Busiest {
    pub cpu: usize,
    pub busy: f64,
}

/// Runs on `cpu`, or anywhere.
///
/// # Errors
/// Why there is no figure.
pub fn run(
    builder: &Builder,
    file: &File,
    reads: Reads,
    cpu: Option<usize>,
    duration: Duration,
    stop: &AtomicBool,
) -> Result<Run, String> {
    let body = || {
        if let Some(cpu) = cpu {
            confine(cpu)?;
        }
        measure(builder, file, reads, duration, stop)
    };
    let ended = std::thread::scope(|scope| scope.spawn(body).join());
    ended.unwrap_or_else(|_| Err("the measuring thread has panicked".into()))
}

/// Has the calling thread run on one CPU only.
fn confine(cpu: usize) -> Result<(), String> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let done = rustix::thread::sched_setaffinity(None, &set);
    done.map_err(|error| format!("cannot run on CPU {cpu}: {error}"))
}

fn measure(
    builder: &Builder,
    file: &File,
    reads: Reads,
    duration: Duration,
    stop: &AtomicBool,
) -> Result<Run, String> {
    let Reads { block, window, depth } = reads;
    let entries = u32::try_from(depth).map_err(|error| error.to_string())?;
    let builder = builder.clone().entries(entries).stats(true).cell_stats(true);
    let mut memory = vec![0u8; block * depth + 4096];
    let aligned = memory.as_ptr().align_offset(4096);
    let buffers: Vec<*mut [u8]> =
        memory[aligned..].chunks_exact_mut(block).take(depth).map(std::ptr::from_mut).collect();
    let mut context = builder.build().map_err(|error| format!("no context: {error}"))?;
    let blocks = window / block as u64;
    let mut submitted = vec![Instant::now(); depth];
    let (mut next, mut in_flight) = (0u64, 0usize);
    let mut latencies = Vec::new();
    let mut failed = None;
    let mut free: Vec<usize> = (0..depth).collect();
    let online = Topology::read(std::path::Path::new("/")).online().clone();
    let cycles = Cycles::start(&online);
    let before = cpu_times();
    let begin = Instant::now();
    let mut done = 0u64;
    loop {
        let goes_on =
            failed.is_none() && begin.elapsed() < duration && !stop.load(Ordering::Relaxed);
        if goes_on {
            let now = Instant::now();
            for slot in free.drain(..) {
                let offset = next % blocks * block as u64;
                next += 1;
                submitted[slot] = now;
                let read =
                    Sqe::read(file.as_raw_fd(), buffers[slot], offset).user_data(slot as u64);
                // SAFETY: the memory outlives the context, and a slot's buffer has one request at a time.
                unsafe { context.push(read) }.map_err(|full| format!("{full}"))?;
                in_flight += 1;
            }
            context.submit().map_err(|error| format!("submit failed: {error}"))?;
        } else if in_flight == 0 {
            break;
        }
        match context.wait(1, None) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            other => drop(other.map_err(|error| format!("wait failed: {error}"))?),
        }
        let now = Instant::now();
        while let Some(cqe) = context.reap() {
            let slot = cqe.user_data as usize;
            in_flight -= 1;
            free.push(slot);
            match cqe.result() {
                Ok(count) if count as usize == block => {
                    done += 1;
                    latencies.push((now - submitted[slot]).as_secs_f64() * 1e3);
                }
                Ok(count) => failed = Some(format!("a read of {block} bytes gave {count}")),
                Err(error) => failed = Some(format!("a read failed: {error}")),
            }
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let cycles = cycles.and_then(|mut cycles| Ok(cycles.count()? as f64 / done.max(1) as f64));
    let times = before.zip(cpu_times());
    let time = times.as_ref().and_then(|(before, after)| share(&before.0, &after.0));
    let busiest = times.and_then(|(before, after)| busiest(&before, &after));
    if let Some(failed) = failed {
        return Err(failed);
    }
    let mb_per_s = (done * block as u64) as f64 / 1e6 / seconds;
    Ok(Run { cycles, time, busiest, ..figure(&context, done, mb_per_s, &latencies) })
}

fn figure(context: &Context, requests: u64, mb_per_s: f64, latencies: &[f64]) -> Run {
    let latency = Spread::of(latencies).unwrap_or_default();
    let stats: Snapshot = context.stats().unwrap_or_default();
    Run {
        requests,
        mb_per_s,
        avg_latency_ms: latency.mean,
        stddev_latency_ms: latency.stdev,
        queue_local: stats.submissions_local,
        queue_remote: stats.submissions_remote,
        completion_local: stats.completions_local,
        completion_remote: stats.completions_remote,
        completion_home: stats.completions_home,
        completion_away: stats.completions_away,
        hand_overs: stats.cpu_handovers,
        time: None,
        busiest: None,
        cycles: Err(String::new()),
        placement: context.placement().map_or_else(String::new, ToString::to_string),
    }
}

/// The times of all CPUs together, and of each with its number.
type Times = (Vec<u64>, Vec<(usize, Vec<u64>)>);

/// From /proc/stat (proc_stat(5)), in ticks.
fn cpu_times() -> Option<Times> {
    parse_times(&read_to_string("/proc/stat").ok()?)
}

fn parse_times(text: &str) -> Option<Times> {
    let mut lines = text.lines().map_while(|line| {
        let (name, times) = line.strip_prefix("cpu")?.split_once(' ')?;
        let times = times.split_whitespace().map_while(|field| field.parse().ok());
        Some((name, times.collect::<Vec<u64>>()))
    });
    let (_, all) = lines.next().filter(|(name, all)| name.is_empty() && all.len() >= 8)?;
    let each = lines.filter_map(|(name, times)| Some((name.parse().ok()?, times)));
    Some((all, each.collect()))
}

fn busiest((_, before): &Times, (_, after): &Times) -> Option<Busiest> {
    let busy = before.iter().zip(after).filter_map(|((cpu, before), (_, after))| {
        let time = share(before, after)?;
        Some(Busiest { cpu: *cpu, busy: 100.0 - time.idle - time.iowait })
    });
    busy.max_by(|left, right| left.busy.total_cmp(&right.busy))
}

fn share(before: &[u64], after: &[u64]) -> Option<CpuTime> {
    // user, nice, system, idle, iowait, irq, softirq, steal; guests' time is part of the first two.
    let spent: Vec<u64> = before
        .iter()
        .zip(after)
        .take(8)
        .map(|(before, after)| after.saturating_sub(*before))
        .collect();
    let all: u64 = spent.iter().sum();
    let percent = |times: &[usize]| {
        times.iter().map(|&at| spent[at]).sum::<u64>() as f64 / all as f64 * 100.0
    };
    (all > 0).then(|| CpuTime {
        user: percent(&[0, 1]),
        sys: percent(&[2, 5, 6]),
        iowait: percent(&[4]),
        idle: percent(&[3]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_time_are_of_all_cpus_together() {
        let times = |text| parse_times(text).unwrap();
        let before = times(
            "cpu  10 0 10 100 10 0 0 0 5 0\ncpu0 0 0 0 0 0 0 0 0\ncpu3 0 0 0 0 0 0 0 0\nintr 7",
        );
        let after =
            times("cpu  20 10 20 140 30 5 5 0 9 0\ncpu0 1 0 1 2 0 0 0 0\ncpu3 2 0 1 1 0 0 0 0");
        let time = share(&before.0, &after.0).unwrap();
        assert_eq!(time, CpuTime { user: 20.0, sys: 20.0, iowait: 20.0, idle: 40.0 });
        assert_eq!(share(&before.0, &before.0), None);
        assert_eq!(busiest(&before, &after), Some(Busiest { cpu: 3, busy: 75.0 }));
        assert!(parse_times("intr 1 2").is_none());
    }
}
