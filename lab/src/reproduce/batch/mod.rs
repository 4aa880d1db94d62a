//! Request slots taken 32 at a time, with one contended step, instead of one by one (Linux AIO,
//! 2011).
//!
//! The kernel took the context's lock once for each request of a submit. A submit knows its number
//! of requests, so it can take the lock once for 32. In uringlet, submitters contend for a word of
//! free slots instead: each attempt to change the word is a step.

mod job;
mod path;
mod report;

use self::job::{Job, Phase};
use self::report::{Cell, JobCell, PathCell, Report};
use super::cells::{self, Cell as _};
use super::options::Options;
use super::{
    Experiment, Measured, STATUS, Setup, ascending, errno, may_start_threads, may_write, number,
};
use crate::bench::{self, Load, Order, exclusion, interleaved};
use crate::machine::Storage;
use crate::scratch::{Place, Scratch};
use crate::session::{self, STOP, Session};
use anyhow::Result;
use clap::Args;
use serde::Serialize;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Requests per submit and per reap, as published.
const AT_A_TIME: usize = 32;
/// The compared values: slots per step.
const BATCHES: [usize; 2] = [1, 32];
/// Percentage points of all CPU time that were saved in the lock, mean of 3 runs, as published.
const PUBLISHED_POINTS: f64 = 0.56;
/// Requests of one submit that is too large, and the available room.
const TOO_MANY: (usize, u32) = (1000, 128);
const THREADS_MAX: usize = 64;

const EXAMPLES: &str = include_str!("../../../help/batch-examples.txt");

const METHOD: &str = include_str!("../../../help/batch-method.txt");

#[derive(Args)]
#[command(after_help = session::help(&[EXAMPLES, METHOD, STATUS]))]
pub struct Arguments {
    /// Threads that submit to the one context
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8",
          value_parser = number(THREADS_MAX), allow_hyphen_values = true)]
    threads: Vec<usize>,

    /// Seconds of the path alone for each cell and round [default: 0.5; with --quick 0.05]
    #[arg(long, value_parser = bench::seconds, allow_hyphen_values = true)]
    seconds: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
struct Settings {
    quick: bool,
    rounds: u32,
    seconds: f64,
    threads: Vec<usize>,
    batches: [usize; 2],
    requests_per_submit: usize,
    /// Bytes per request of the job.
    record: u64,
    /// Bytes that each phase of the job transfers.
    job_size: u64,
}

impl Experiment for Arguments {
    const NAME: &str = "batch";
    const CLAIM: &str = "32 request slots are taken with one contended step";

    type Place = Place;

    fn run(&self, place: &Place, options: &Options, session: &mut Session<'_>) -> Result<Measured> {
        may_start_threads()?;
        let (setup, scratch) = Setup::open::<Self>(place, options)?;
        may_write(&scratch)?;
        let quick = options.quick;
        let most = if quick { 16 << 20 } else { u64::MAX };
        let settings = Settings {
            quick,
            rounds: options.rounds(),
            seconds: self.seconds.unwrap_or(if quick { 0.05 } else { 0.5 }),
            threads: ascending(&self.threads),
            batches: BATCHES,
            requests_per_submit: AT_A_TIME,
            record: job::RECORD,
            job_size: scratch.size.min(most) / job::RECORD * job::RECORD,
        };
        let rounds =
            format!("{} of {} s of the path alone, interleaved", settings.rounds, settings.seconds);
        let more = [("rounds", rounds), ("takes", session::about(settings.takes()))];
        let header = setup.begin(session, &more)?;

        let mut paths = settings.path_cells();
        let mut jobs = settings.job_cells(&scratch, &setup.storage);
        settings.measure(&mut paths, &mut jobs, &scratch, setup.machine.cpus);
        let (count, room) = TOO_MANY;
        let too_many = BATCHES.map(|batch| report::TooMany::of(count, room, batch));
        let report = Report {
            shown: report::shown(&paths, &jobs, &too_many),
            setup: setup.end(),
            settings,
            paths,
            jobs,
            too_many,
            published_points: PUBLISHED_POINTS,
        };
        Measured::new(report.document(header, METHOD), &report, report.shown.clone())
    }
}

impl Settings {
    fn path_cells(&self) -> Vec<PathCell> {
        let cells = self
            .threads
            .iter()
            .flat_map(|&threads| BATCHES.map(|batch| Cell::new((), threads, batch, None)));
        cells.collect()
    }

    fn job_cells(&self, scratch: &Scratch, storage: &Storage) -> Vec<JobCell> {
        let load = Load {
            write: true,
            direct: true,
            order: Order::Sequential,
            window: self.job_size,
            block: job::RECORD,
            fsync_every: None,
        };
        let excluded = exclusion(&load, scratch, storage);
        let mut cells = Vec::new();
        for &threads in &self.threads {
            for phase in Phase::ALL {
                cells.extend(
                    BATCHES.map(|batch| Cell::new(phase, threads, batch, excluded.clone())),
                );
            }
        }
        cells
    }

    /// The time of all rounds, if each phase of the job transfers 300 MB/s.
    fn takes(&self) -> Duration {
        let cells = (self.threads.len() * BATCHES.len()) as f64;
        let job = 3.0 * self.job_size as f64 / 3e8;
        Duration::from_secs_f64(cells * (self.seconds + job) * f64::from(self.rounds))
    }

    fn measure(
        &self,
        paths: &mut [PathCell],
        jobs: &mut [JobCell],
        scratch: &Scratch,
        cpus: usize,
    ) {
        let rounds = self.rounds;
        let groups = vec![BATCHES.len(); self.threads.len()];
        let bar = session::steps(2 * paths.len() as u64 * u64::from(rounds));
        let duration = Duration::from_secs_f64(self.seconds);
        cells::measure(paths, &groups, rounds, &bar, |cell, _, _| {
            path::alone((cell.threads, cell.batch), duration, cpus, &STOP)
        });
        // For each number of threads: all phases with one batch size, then all with the other size.
        for (round, index) in interleaved(&groups, rounds) {
            let (threads, batch) =
                (self.threads[index / BATCHES.len()], BATCHES[index % BATCHES.len()]);
            bar.inc(1);
            for phase in Phase::ALL {
                let mark = u64::from(round) << 16 | index as u64;
                let key = (phase, threads, batch);
                let cell =
                    jobs.iter_mut().find(|cell| (cell.phase, cell.threads, cell.batch) == key);
                let cell = cell.expect("there is one for every phase");
                let Ok(file) = &scratch.direct else { continue };
                if STOP.load(Ordering::Relaxed) || cell.not_measured.is_some() {
                    continue;
                }
                bar.set_message(format!("round {} of {rounds} · {}", round + 1, cell.name()));
                let size = self.job_size;
                let empty = phase == Phase::Write && !scratch.existing;
                let emptied = if empty { scratch.empty(size) } else { Ok(()) };
                let job = Job { phase, threads, batch, file, size, mark };
                let result = emptied
                    .map_err(|error| format!("cannot allocate the file's space: {error}"))
                    .and_then(|()| job.run(cpus, &STOP));
                match result {
                    _ if STOP.load(Ordering::Relaxed) => {}
                    Ok(figure) => cell.push(figure),
                    Err(reason) => cell.not_measured = Some(reason),
                }
            }
        }
        bar.finish_and_clear();
    }
}
