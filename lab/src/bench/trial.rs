//! One engine under one load, once: prepares the cache, runs, and cleans up.

use super::drive::Figure;
use super::engine::Engine;
use super::manner::Manner;
use super::workload::{Job, Load, Order};
use crate::machine::Storage;
use crate::scratch::Scratch;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// If more than this share of a file is in the cache, it is not cold.
const STILL_COLD: f64 = 0.05;
/// If less than this share of a window is in the cache, it is not cached.
const STILL_CACHED: f64 = 0.99;

/// The parameters of a trial.
pub struct Trial {
    /// The engine that executes it.
    pub engine: Engine,
    /// The number of duplicates of the descriptor that uringlet's engine `posix_aio` makes.
    pub pool: Option<usize>,
    /// The requests of the trial.
    pub load: Load,
    /// Requests in flight.
    pub depth: usize,
    /// How requests are handed over.
    pub manner: Manner,
    /// The seed of the offsets: the same for all engines that a round compares.
    pub seed: u64,
    /// The seed of the written data: different in every trial, so that a missing write is detected.
    pub pattern: u64,
    /// The duration.
    pub duration: Duration,
    /// Measure latencies, too.
    pub timed: bool,
}

impl Trial {
    /// Runs the trial.
    ///
    /// # Errors
    /// The reason why there is no figure.
    pub fn run(&self, scratch: &Scratch, stop: &AtomicBool) -> Result<Figure, String> {
        prepare(&self.load, scratch, stop)?;
        let file = match &scratch.direct {
            Ok(direct) if self.load.direct => direct,
            _ => &scratch.buffered,
        };
        let mut job = Job::new(
            file.as_raw_fd(),
            &self.load,
            self.depth,
            (self.seed, self.pattern),
            (self.duration, self.timed),
            stop,
        );
        job.manner = self.manner;
        let figure = self.engine.run(self.pool, &mut job)?;
        if self.load.write {
            // The write-back of this engine's data must end before the next engine runs.
            file.sync_data().map_err(|error| format!("fdatasync failed: {error}"))?;
        }
        if figure.requests == 0 { Err("no request was made".into()) } else { Ok(figure) }
    }
}

/// Brings the cache into the state that the load needs.
fn prepare(load: &Load, scratch: &Scratch, stop: &AtomicBool) -> Result<(), String> {
    let failed = |what: &str, error: std::io::Error| format!("{what} failed: {error}");
    let cold = load.order == Order::Once;
    if load.direct || cold {
        scratch.drop_cache().map_err(|error| failed("dropping the file's cache", error))?;
    } else if scratch.writable && scratch.cached_share(load.window).is_ok_and(|part| part >= 1.0) {
        // mincore(2) is correct only for users who own the file, or may write to it.
        return Ok(());
    } else {
        let mut chunk = vec![0u8; 1 << 20];
        let mut done = 0;
        while done < load.window && !stop.load(Ordering::Relaxed) {
            match scratch.buffered.read_at(&mut chunk, done) {
                Ok(0) => break,
                Ok(count) => done += count as u64,
                Err(error) => return Err(failed("reading the file into the cache", error)),
            }
        }
    }
    let share = |bytes| {
        let share = scratch.cached_share(bytes).map_err(|error| failed("asking mincore", error));
        share.map(|share| (share, format!("{:.0} %", share * 100.0)))
    };
    if cold {
        let (found, percent) = share(scratch.size)?;
        if found > STILL_COLD {
            return Err(format!(
                "not cold: {percent} of the file stayed in the cache after POSIX_FADV_DONTNEED \
                 (or the file is not yours, and the kernel does not tell)"
            ));
        }
    } else if !load.direct && !load.write {
        let (found, percent) = share(load.window)?;
        if found < STILL_CACHED && !stop.load(Ordering::Relaxed) {
            return Err(format!("memory is short: only {percent} of what was just read is cached"));
        }
    }
    Ok(())
}

/// The reason why a load has no meaning here, or is not allowed.
pub fn exclusion(load: &Load, scratch: &Scratch, storage: &Storage) -> Option<String> {
    if load.write && !scratch.writable {
        return Some("an existing file is not written to without --allow-writes".into());
    }
    if storage.is_memory() && load.order == Order::Once {
        return Some(format!("{} has no cold state", storage.file_system));
    }
    if storage.is_memory() && load.direct {
        return Some(format!("{} has no device to go to directly", storage.file_system));
    }
    if load.direct {
        return scratch.direct.as_ref().err().cloned();
    }
    None
}

/// The order in which the members of groups run, such as the cells of a table. Returns for each run
/// its round and the index of its member. `lengths` has the number of members of each group. The
/// indices of a group are consecutive.
///
/// Every second round runs each group in the opposite order. Every two rounds, each group begins
/// with its next member. So no member always runs after the same member, whose load may have
/// changed the machine's state.
pub fn interleaved(lengths: &[usize], rounds: u32) -> Vec<(u32, usize)> {
    let mut turns = Vec::new();
    for round in 0..rounds {
        let (first, backwards) = (round as usize / 2, round % 2 == 1);
        let mut start = 0;
        for &length in lengths {
            turns.extend((0..length).map(|at| {
                let at = if backwards { length - 1 - at } else { at };
                (round, start + (at + first) % length)
            }));
            start += length;
        }
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_has_everybody_and_nobody_always_follows_the_same() {
        let turns = interleaved(&[2, 3], 4);
        let members = |round| -> Vec<usize> {
            turns.iter().filter(|(of, _)| *of == round).map(|(_, member)| *member).collect()
        };
        assert_eq!(members(0), [0, 1, 2, 3, 4]);
        assert_eq!(members(1), [1, 0, 4, 3, 2]);
        assert_eq!(members(2), [1, 0, 3, 4, 2]);
        assert_eq!(members(3), [0, 1, 2, 4, 3]);
    }
}
