//! The submit path of one context, timed call by call, and the path alone: requests that are not
//! executed.

#![allow(unsafe_code)]

use super::AT_A_TIME;
use crate::bench::cpu_time;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use uringlet::front::{DirectCompletions, Entry, Instance, SubmitSteps, Submitted};
use uringlet::{Context, EngineKind, Sqe};

/// The submits of one thread, or of several.
pub struct Submits {
    /// Nanoseconds of each call that accepted [`AT_A_TIME`] requests.
    calls: Histogram<u64>,
    time: Duration,
    steps: SubmitSteps,
    requests: u64,
}

/// The result of the submits.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figure {
    /// Requests accepted.
    pub requests: u64,
    /// Contended steps to get a request's slot: attempts, failed ones included.
    pub steps_per_request: f64,
    /// Batches that were pushed to the engine. Announcing a batch takes further contended steps,
    /// which `steps_per_request` does not count.
    pub hand_overs_per_request: f64,
    /// The time of the median call, divided by its requests. The median leaves out calls during
    /// which the thread had no CPU.
    pub submit_ns_per_request: f64,
    /// The time of all calls, divided by all requests.
    pub submit_ns_per_request_mean: f64,
    /// The time of the median call multiplied by the number of calls, as a share of the time of all
    /// CPUs.
    pub submit_share: f64,
    /// CPU time of the process, as a share of the time of all CPUs.
    pub cpu_share: f64,
    /// Wall-clock seconds.
    pub seconds: f64,
}

impl Submits {
    pub fn new() -> Self {
        let second = 1_000_000_000;
        let calls = Histogram::new_with_bounds(1, second, 3).expect("the bounds are constants");
        Self { calls, time: Duration::ZERO, steps: SubmitSteps::default(), requests: 0 }
    }

    /// Submits, with slots taken `batch` at a time.
    ///
    /// # Safety
    /// As for [`Instance::submit`].
    #[inline]
    pub unsafe fn submit(
        &mut self,
        instance: &Arc<Instance>,
        entries: &[Entry],
        batch: usize,
    ) -> Submitted {
        let begin = Instant::now();
        // SAFETY: the caller's contract.
        let submitted = unsafe { instance.submit_measured(entries, batch, &mut self.steps) };
        let time = begin.elapsed();
        self.time += time;
        self.requests += submitted.accepted as u64;
        if submitted.accepted == AT_A_TIME {
            self.calls.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        }
        submitted
    }

    fn add(&mut self, other: &Self) {
        self.calls.add(&other.calls).expect("all have the same bounds");
        self.time += other.time;
        self.steps.slots += other.steps.slots;
        self.steps.hand_overs += other.steps.hand_overs;
        self.requests += other.requests;
    }

    /// The figure of a run that took `elapsed`, and `cpu` of CPU time, on this many CPUs.
    fn figure(&self, elapsed: Duration, cpu: Duration, cpus: usize) -> Figure {
        let requests = self.requests.max(1) as f64;
        let all = elapsed.as_secs_f64() * cpus as f64;
        let submit_ns = self.calls.value_at_quantile(0.5) as f64 / AT_A_TIME as f64;
        Figure {
            requests: self.requests,
            steps_per_request: self.steps.slots as f64 / requests,
            hand_overs_per_request: self.steps.hand_overs as f64 / requests,
            submit_ns_per_request: submit_ns,
            submit_ns_per_request_mean: self.time.as_secs_f64() * 1e9 / requests,
            submit_share: submit_ns * requests / 1e9 / all,
            cpu_share: cpu.as_secs_f64() / all,
            seconds: elapsed.as_secs_f64(),
        }
    }
}

/// Waits for `count` completions, of any thread's requests, and takes them: `user_data` and result.
/// False: the context has ended.
pub fn take(instance: &Arc<Instance>, count: u32, mut each: impl FnMut(u64, i64)) -> bool {
    let mut taken = 0;
    while taken < count {
        let mut sink = |_, user_data, res| each(user_data, res);
        let mut taker = DirectCompletions::new(count - taken, &mut sink);
        if instance.wait(count - taken, count - taken, None, None, &mut taker)
            == uringlet::front::Waited::Gone
        {
            return false;
        }
        taken += taker.taken();
        taken += instance.reap(count - taken, |cqe| each(cqe.user_data, i64::from(cqe.res)));
    }
    true
}

/// Has this many threads submit at the same time, and returns the result of all on this many CPUs.
///
/// # Errors
/// An error of any thread.
pub fn together(
    threads: usize,
    cpus: usize,
    submit: impl Fn() -> Result<Submits, String> + Sync,
) -> Result<Figure, String> {
    let barrier = Barrier::new(threads + 1);
    let body = || {
        barrier.wait();
        submit()
    };
    let (elapsed, cpu, results) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(body)).collect();
        let (cpu, begin) = (cpu_time(), Instant::now());
        barrier.wait();
        let results: Vec<_> =
            threads.into_iter().map(|t| t.join().expect("it does not panic")).collect();
        (begin.elapsed(), cpu_time().saturating_sub(cpu), results)
    });
    let mut all = Submits::new();
    for result in results {
        all.add(&result?);
    }
    Ok(all.figure(elapsed, cpu, cpus))
}

/// The path alone: `threads` threads submit to one context, 32 requests at a time, which the engine
/// `null` completes at once.
pub fn alone(
    (threads, batch): (usize, usize),
    duration: Duration,
    cpus: usize,
    stop: &AtomicBool,
) -> Result<Figure, String> {
    let builder = Context::builder().engine(EngineKind::Null);
    // So much room that a submit always finds enough.
    let instance = Instance::new(&builder.entries((threads * 2 * AT_A_TIME) as u32))
        .map_err(|error| format!("no context: {error}"))?;
    together(threads, cpus, || {
        let entries = [Entry { sqe: Sqe::nop(), data: 0, notify: -1 }; AT_A_TIME];
        let mut submits = Submits::new();
        let begin = Instant::now();
        while begin.elapsed() < duration && !stop.load(Ordering::Relaxed) {
            let mut left = &entries[..];
            while !left.is_empty() {
                // SAFETY: a nop has no addresses.
                let submitted = unsafe { submits.submit(&instance, left, batch) };
                let refused = submitted.refused;
                if refused != 0 && refused != -libc::EAGAIN {
                    return Err(super::errno(refused));
                }
                left = &left[submitted.accepted..];
            }
            if !take(&instance, AT_A_TIME as u32, |_, _| {}) {
                return Err("the context is gone".into());
            }
        }
        Ok(submits)
    })
}

/// Submits `count` requests to a context with room for `room`, and reaps all after each submit.
/// Returns how many requests each submit accepts.
///
/// # Errors
/// A submit accepted none.
pub fn fill_up(count: usize, room: u32, batch: usize) -> Result<Vec<usize>, String> {
    let builder = Context::builder().engine(EngineKind::Null).entries(room);
    let instance = Instance::new(&builder).map_err(|error| format!("no context: {error}"))?;
    let entries = vec![Entry { sqe: Sqe::nop(), data: 0, notify: -1 }; count];
    let mut left = &entries[..];
    let mut accepted = Vec::new();
    while !left.is_empty() {
        let mut steps = SubmitSteps::default();
        // SAFETY: a nop has no addresses.
        let submitted = unsafe { instance.submit_measured(left, batch, &mut steps) };
        if submitted.accepted == 0 {
            return Err(super::errno(submitted.refused));
        }
        accepted.push(submitted.accepted);
        left = &left[submitted.accepted..];
        while instance.reap(u32::MAX, |_| {}) > 0 {}
    }
    Ok(accepted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_saves_steps() {
        let stop = AtomicBool::new(false);
        let steps = |batch| {
            let figure = alone((1, batch), Duration::from_millis(2), 1, &stop).unwrap();
            assert!(figure.requests > 0 && figure.submit_ns_per_request > 0.0);
            (figure.steps_per_request, figure.hand_overs_per_request)
        };
        let (slots, hand_overs) = steps(1);
        assert!(slots >= 1.0 && hand_overs == 1.0, "{slots}, {hand_overs}");
        let (slots, hand_overs) = steps(32);
        assert!(
            (1.0 / 32.0..0.5).contains(&slots) && hand_overs == 1.0 / 32.0,
            "{slots}, {hand_overs}"
        );
    }

    #[test]
    fn a_submit_is_accepted_up_to_the_room() {
        for batch in [1, 5, 32] {
            let accepted = fill_up(1000, 128, batch).unwrap();
            assert_eq!(accepted, [128, 128, 128, 128, 128, 128, 128, 104]);
        }
    }
}
