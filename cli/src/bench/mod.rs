//! `uringlet bench`: uringlet's engines against the native interfaces, on the user's own disk.

mod fio;
mod fio_json;
mod matrix;
mod report;

use crate::machine::{Machine, Storage};
use crate::report::Outputs;
use crate::scratch::{Place, SMALLEST};
use crate::session::{self, STOP, Session};
use crate::size;
use anyhow::Result;
use clap::{Args, ValueEnum as _};
use matrix::{MOST_BUFFERS, Matrix, Settings};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use uringlet_lab::bench::{Engine, Workload, seconds};

/// More in flight than this says nothing about anybody's program.
const DEEPEST: usize = 4096;
const LARGEST_BLOCK: u64 = 16 << 20;

const EXAMPLES: &str = include_str!("../../help/bench-examples.txt");

const METHOD: &str = include_str!("../../help/bench-method.txt");

const JOBS: &str = include_str!("../../help/bench-jobs.txt");

const STATUS: &str = "\
Exit status: 0; 1 if the benchmark failed; 2 if it was refused; 130 after Ctrl-C.";

/// Compares uringlet with plain pread/pwrite, Linux AIO, io_uring and POSIX AIO on your disk, in
/// under 2 minutes.
#[derive(Args)]
#[command(after_help = session::help(&[EXAMPLES, METHOD, JOBS, STATUS]))]
pub struct Arguments {
    /// fio's job files, which fio runs with each engine instead of the workloads
    #[arg(value_name = "JOB.fio",
          conflicts_with_all = ["file", "size", "bs", "depth", "workloads"])]
    jobs: Vec<PathBuf>,

    /// Only the jobs of this name
    #[arg(long, value_name = "NAME", requires = "jobs")]
    section: Vec<String>,

    #[command(flatten)]
    place: Place,

    /// Block size of all workloads [default: as said at each]
    #[arg(long, value_parser = block_size, allow_hyphen_values = true)]
    bs: Option<u64>,

    /// Requests in flight [default: 1,32; with --full 1,8,32,74]
    #[arg(long, value_delimiter = ',', value_parser = depth, allow_hyphen_values = true)]
    depth: Vec<usize>,

    /// What to compare [default: psync,libaio,io_uring,posixaio,uringlet:auto; with --full all]
    #[arg(long, value_delimiter = ',', value_enum)]
    engines: Vec<Engine>,

    /// What to run [default: all]
    #[arg(long, value_delimiter = ',', value_enum)]
    workloads: Vec<Workload>,

    /// Seconds for each engine, line and round, at most so many for a job [default: 0.2; with
    /// --full 0.5]
    #[arg(long, value_parser = seconds, allow_hyphen_values = true)]
    seconds: Option<f64>,

    /// Rounds, over which the median is taken
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000),
          allow_hyphen_values = true)]
    rounds: u32,

    /// The whole matrix: every engine and workload at depths 1, 8, 32 and 74, about 10 minutes
    #[arg(long)]
    full: bool,

    #[command(flatten)]
    outputs: Outputs,

    #[command(flatten)]
    sandbox: crate::sandbox::Sandbox,
}

fn block_size(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    if bytes > LARGEST_BLOCK { Err("expected at most 16M".into()) } else { Ok(bytes) }
}

fn depth(text: &str) -> Result<usize, String> {
    let depth = text.trim().parse().ok().filter(|depth| (1..=DEEPEST).contains(depth));
    depth.ok_or_else(|| format!("expected a number from 1 to {DEEPEST}"))
}

impl Arguments {
    fn settings(&self, file_size: u64) -> Settings {
        let (depths, engines, seconds) = match self.full {
            true => (&[1, 8, 32, 74][..], &Engine::ALL[..], 0.5),
            false => (&[1, 32][..], &Engine::DEFAULT[..], 0.2),
        };
        Settings {
            seconds: self.seconds.unwrap_or(seconds),
            rounds: self.rounds,
            block: self.bs,
            file_size,
            depths: without_repeats(&self.depth, depths),
            engines: without_repeats(&self.engines, engines),
            workloads: without_repeats(&self.workloads, Workload::value_variants()),
        }
    }

    /// What the parsers of single values cannot see.
    fn contradiction(&self) -> Option<String> {
        let deepest = self.depth.iter().copied().max().unwrap_or(1) as u64;
        let bs = self.bs?;
        if bs * deepest > MOST_BUFFERS {
            let (bs, most) = (size::short(bs), size::short(MOST_BUFFERS));
            return Some(format!(
                "--bs {bs} with --depth {deepest}: expected at most {most} in flight"
            ));
        }
        let smallest = self.place.size.unwrap_or(SMALLEST);
        if bs > smallest {
            let (bs, size) = (size::short(bs), size::short(smallest));
            return Some(match self.place.size {
                Some(_) => format!("--bs {bs}: expected at most {size}, the --size"),
                None => format!("--bs {bs}: give a --size too, with room for some blocks"),
            });
        }
        None
    }
}

/// Runs the command.
///
/// # Errors
/// The scratch file cannot be made or filled, or the JSON file not be written.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if !arguments.jobs.is_empty() {
        return fio::run(arguments);
    }
    if let Some(contradiction) = arguments.contradiction() {
        return Err(session::refusal(contradiction));
    }
    let mut session = Session::new(&arguments.outputs, Some(arguments.place.as_ref()))?;
    arguments.sandbox.enter()?;
    let machine = Machine::look();
    let mut scratch = arguments.place.open()?;
    scratch.notices.extend(arguments.sandbox.notice());
    let storage = Storage::behind(&scratch.buffered)?;
    let mut matrix = Matrix::new(arguments.settings(scratch.size), &scratch, &storage);
    let header = report::header(&machine, &storage, &scratch, &matrix);
    session.begin(&header)?;

    if session::fill(&scratch)? {
        let bar = session::progress(matrix.steps());
        matrix.measure(&scratch, &STOP, |what| {
            bar.set_message(what);
            bar.inc(1);
        });
        bar.finish_and_clear();
    }
    let interrupted = STOP.load(Ordering::Relaxed);
    let report = report::Report::new(&machine, &storage, &scratch, &matrix, interrupted);
    let document = report.document(header, METHOD);
    session::say(&document.text())?;
    session.end(&report, &document)
}

/// What was given, or else the default, each item once.
fn without_repeats<T: PartialEq + Copy>(given: &[T], default: &[T]) -> Vec<T> {
    let mut kept = Vec::new();
    for &item in if given.is_empty() { default } else { given } {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    kept
}
