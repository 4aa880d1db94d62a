//! A lookup alone: contexts looked up in a shuffled order, by one thread and by several.

use super::structures::{Indexed, List, Lookup, Radix};
use super::{Structure, errno};
use fastrand::Rng;
use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use uringlet::table::PAGE;

/// The minimum number of handles in a thread's list. The list has the same length for all smaller
/// numbers of contexts, so that reading it costs the same.
const TURNS: usize = 4096;
/// Lookups between two readings of the clock: a reading then adds less than 0.1 ns to each lookup.
const BETWEEN_LOOKS: usize = 512;

/// One measurement.
pub struct Alone {
    /// The structure to search.
    pub structure: Structure,
    /// The number of contexts in it.
    pub contexts: usize,
    /// Threads that search at the same time.
    pub threads: usize,
    /// The duration.
    pub duration: Duration,
    /// The seed of the shuffled orders.
    pub seed: u64,
}

impl Alone {
    /// Nanoseconds per lookup: the median over the parts (`BETWEEN_LOOKS` lookups) of all threads.
    /// The median leaves out parts during which a thread had no CPU.
    ///
    /// # Errors
    /// The reason why there is no figure.
    pub fn run(&self, stop: &AtomicBool) -> Result<f64, String> {
        match self.structure {
            Structure::List => self.run_with(List::new().map_err(errno)?, stop),
            Structure::Radix => self.run_with(Radix::new().map_err(errno)?, stop),
            Structure::Table => self.run_with(Indexed::new().map_err(errno)?, stop),
        }
    }

    fn run_with(
        &self,
        mut lookup: impl Lookup<Arc<u64>>,
        stop: &AtomicBool,
    ) -> Result<f64, String> {
        let handles: Result<Vec<usize>, i32> =
            (0..self.contexts as u64).map(|number| lookup.add(Arc::new(number))).collect();
        let handles = handles.map_err(errno)?;
        let barrier = Barrier::new(self.threads);
        let (lookup, handles, barrier) = (&lookup, &*handles, &barrier);
        let threads = |thread| move || self.look(lookup, handles, thread, barrier, stop);
        let found: Vec<Option<Histogram<u64>>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..self.threads as u64).map(|thread| scope.spawn(threads(thread))).collect();
            threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
        });
        let mut parts = histogram();
        for found in found {
            let found = found.ok_or("a lookup gave another context")?;
            parts.add(found).expect("all have the same bounds");
        }
        Ok(parts.value_at_quantile(0.5) as f64 / BETWEEN_LOOKS as f64)
    }

    /// The work of one thread: nanoseconds for each part of the list. `None`: a lookup was wrong.
    fn look(
        &self,
        lookup: &impl Lookup<Arc<u64>>,
        handles: &[usize],
        thread: u64,
        barrier: &Barrier,
        stop: &AtomicBool,
    ) -> Option<Histogram<u64>> {
        // Only the address of the value is used, because reading the value is not part of a lookup.
        let place = |value: &Arc<u64>| std::ptr::from_ref(value) as usize;
        let lowest = *handles.iter().min()?;
        let handle_of = |turn: u32| lowest + turn as usize * PAGE;
        let turn_of = |handle: usize| u32::try_from((handle - lowest) / PAGE).ok();
        let mut turns: Vec<u32> = (0..TURNS.max(handles.len()))
            .map(|at| turn_of(handles[at % handles.len()]))
            .collect::<Option<_>>()?;
        Rng::with_seed(self.seed << 16 | thread).shuffle(&mut turns);
        let sum = |turns: &[u32]| {
            let places = turns.iter().map(|&turn| lookup.with(handle_of(turn), place).unwrap_or(0));
            places.fold(0, usize::wrapping_add)
        };
        // Each part of the list, and the expected sum of the addresses that its lookups find.
        let mut parts = Vec::new();
        for part in turns.chunks(BETWEEN_LOOKS) {
            for &turn in part.iter().take(8) {
                let number = lookup.with(handle_of(turn), |value| **value)?;
                (handles[number as usize] == handle_of(turn)).then_some(())?;
            }
            parts.push((part, sum(part)));
        }
        barrier.wait();
        let (mut times, mut right) = (histogram(), true);
        let begin = Instant::now();
        let mut before = Duration::ZERO;
        loop {
            for &(part, expected) in &parts {
                right &= sum(part) == expected;
                let now = begin.elapsed();
                if part.len() == BETWEEN_LOOKS {
                    times.saturating_record(u64::try_from((now - before).as_nanos()).ok()?);
                }
                before = now;
                if now >= self.duration || stop.load(Ordering::Relaxed) {
                    return right.then_some(times);
                }
            }
        }
    }
}

fn histogram() -> Histogram<u64> {
    let minute = 60_000_000_000;
    Histogram::new_with_bounds(1, minute, 3).expect("the bounds are constants")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_structure_gives_a_figure() {
        for structure in Structure::ALL {
            for (contexts, threads) in [(1, 1), (5, 2), (300, 3)] {
                let duration = Duration::from_millis(1);
                let alone = Alone { structure, contexts, threads, duration, seed: 7 };
                assert!(alone.run(&AtomicBool::new(false)).unwrap() > 0.0);
            }
        }
    }
}
