//! Reads past the page cache, with a constant number in flight. The thread that makes them may be
//! confined to one CPU.

use super::cycles::Cycles;
use crate::bench::{Figure, Job, Load, Ours, keep_in_flight};
use crate::machine::{Ticks, cpu_ticks, ticks_between};
use serde::Serialize;
use std::fs::{File, read_to_string};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use uringlet::Builder;
use uringlet::affinity::Topology;
use uringlet::stats::Snapshot;

/// The result of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    pub requests: u64,
    /// Millions of bytes per second.
    pub mb_per_s: f64,
    pub avg_latency_ms: f64,
    pub stddev_latency_ms: f64,
    pub queue_local: u64,
    pub queue_remote: u64,
    pub completion_local: u64,
    pub completion_remote: u64,
    /// Completed in the submitting thread's cell (its NUMA node, cache or core).
    pub completion_home: u64,
    pub completion_away: u64,
    /// How many times a request went from one CPU to another.
    pub hand_overs: u64,
    /// The whole machine's CPU time during the run.
    pub time: Option<CpuTime>,
    /// The CPU with the least idle time.
    pub busiest: Option<Busiest>,
    /// CPU cycles of the whole machine for each request, or the reason why they are unknown.
    pub cycles: Result<f64, String>,
    /// A text for the placement in effect.
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

/// A CPU, and the percentage of its time that was not idle.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Busiest {
    pub cpu: usize,
    pub busy: f64,
}

/// Runs a load's reads, this many at a time, on `cpu` or anywhere.
///
/// # Errors
/// The reason why there is no figure.
pub fn run(
    builder: &Builder,
    file: &File,
    reads: (&Load, usize),
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

/// Confines the calling thread to one CPU.
fn confine(cpu: usize) -> Result<(), String> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let done = rustix::thread::sched_setaffinity(None, &set);
    done.map_err(|error| format!("cannot run on CPU {cpu}: {error}"))
}

fn measure(
    builder: &Builder,
    file: &File,
    (load, depth): (&Load, usize),
    duration: Duration,
    stop: &AtomicBool,
) -> Result<Run, String> {
    let mut ours = Ours::new(builder.clone().stats(true).cell_stats(true), depth)?;
    let mut job = Job::new(file.as_raw_fd(), load, depth, (0, 0), (duration, true), stop);
    let cycles = Cycles::start(Topology::read(Path::new("/")).online());
    let before = cpu_times();
    let Figure { requests, iops, latency, .. } = keep_in_flight(&mut ours, &mut job)?;
    let cycles = cycles.and_then(|mut cycles| Ok(cycles.count()? as f64 / requests.max(1) as f64));
    let times = before.zip(cpu_times());
    let context = ours.context();
    let stats: Snapshot = context.stats().unwrap_or_default();
    let latency = latency.map(|latency| latency.total_us).unwrap_or_default();
    Ok(Run {
        requests,
        mb_per_s: iops * load.block as f64 / 1e6,
        avg_latency_ms: latency.mean / 1e3,
        stddev_latency_ms: latency.stdev / 1e3,
        queue_local: stats.submissions_local,
        queue_remote: stats.submissions_remote,
        completion_local: stats.completions_local,
        completion_remote: stats.completions_remote,
        completion_home: stats.completions_home,
        completion_away: stats.completions_away,
        hand_overs: stats.cpu_handovers,
        time: times.as_ref().and_then(|(before, after)| share(&before.0, &after.0)),
        busiest: times.and_then(|(before, after)| busiest(&before, &after)),
        cycles,
        placement: context.placement().map_or_else(String::new, ToString::to_string),
    })
}

/// The times of all CPUs together, and of each with its number.
type Times = (Ticks, Vec<(usize, Ticks)>);

/// The CPU times of /proc/stat (proc_stat(5)), in ticks.
fn cpu_times() -> Option<Times> {
    parse_times(&read_to_string("/proc/stat").ok()?)
}

fn parse_times(text: &str) -> Option<Times> {
    let mut lines = cpu_ticks(text);
    let (_, all) = lines.next().filter(|(number, _)| number.is_empty())?;
    let each = lines.filter_map(|(number, ticks)| Some((number.parse().ok()?, ticks)));
    Some((all, each.collect()))
}

fn busiest((_, before): &Times, (_, after): &Times) -> Option<Busiest> {
    let busy = before.iter().zip(after).filter_map(|((cpu, before), (_, after))| {
        let time = share(before, after)?;
        Some(Busiest { cpu: *cpu, busy: 100.0 - time.idle - time.iowait })
    });
    busy.max_by(|left, right| left.busy.total_cmp(&right.busy))
}

fn share(before: &Ticks, after: &Ticks) -> Option<CpuTime> {
    let spent = ticks_between(before, after);
    let all: u64 = spent.iter().sum();
    let percent = |ticks: u64| ticks as f64 / all as f64 * 100.0;
    let [user, nice, system, idle, iowait, irq, softirq, _steal] = spent;
    (all > 0).then(|| CpuTime {
        user: percent(user + nice),
        sys: percent(system + irq + softirq),
        iowait: percent(iowait),
        idle: percent(idle),
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
