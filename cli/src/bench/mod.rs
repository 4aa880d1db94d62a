//! `uringlet bench`: uringlet's engines against the native interfaces, on the user's own disk.

mod comparison;
mod conclusion;
mod fio;
mod fio_json;
mod matrix;
mod report;
mod results;

use crate::machine::{Machine, Storage};
use crate::report::Outputs;
use crate::scratch::{Place, SMALLEST};
use crate::session::{self, STOP, Session};
use crate::size;
use anyhow::Result;
use clap::{Args, ValueEnum as _};
use matrix::{MOST_BUFFERS, Matrix, Progress, Settings};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use uringlet_lab::bench::{Engine, Manner, Workload, seconds};

/// The maximum of `--depth`: hardly any program has more requests in flight.
const DEEPEST: usize = 4096;
const LARGEST_BLOCK: u64 = 16 << 20;

const EXAMPLES: &str = include_str!("../../help/bench-examples.txt");

const METHOD: &str = include_str!("../../help/bench-method.txt");

const JOBS: &str = include_str!("../../help/bench-jobs.txt");

const STATUS: &str = "\
Exit status: 0 if something was measured, whatever came out; 1 if the benchmark failed or measured
nothing; 2 if it was refused, by the command or everywhere by the machine; 130 after Ctrl-C, 143
after SIGTERM.";

/// Compares uringlet with plain pread/pwrite, Linux AIO, io_uring and POSIX AIO on your disk, in
/// 90 seconds.
#[derive(Args)]
#[command(after_help = session::help(&[EXAMPLES, METHOD, JOBS, STATUS]))]
pub struct Arguments {
    /// fio's job files, which fio runs with each engine instead of the workloads
    #[arg(value_name = "JOB.fio",
          conflicts_with_all = ["file", "size", "bs", "depth", "submit", "workloads"])]
    jobs: Vec<PathBuf>,

    /// Only the job of this name; may be given several times
    #[arg(long, value_name = "NAME", requires = "jobs")]
    section: Vec<String>,

    /// Keep the jobs' files; without it, they are removed if no job says where its files are
    #[arg(long, requires = "jobs")]
    keep: bool,

    #[command(flatten)]
    place: Place,

    /// Block size of all workloads [default: named beside each workload]
    #[arg(long, value_parser = block_size, allow_hyphen_values = true)]
    bs: Option<u64>,

    /// Requests in flight [default: 1,32; with --full 1,8,32,74]
    #[arg(long, value_delimiter = ',', value_parser = depth, allow_hyphen_values = true)]
    depth: Vec<usize>,

    /// How requests are handed over [default: all and one; of direct ones event-loop, too]
    #[arg(long, value_delimiter = ',', value_enum)]
    submit: Vec<Manner>,

    /// What to compare [default: psync,libaio,io_uring,posixaio,uringlet:auto; with --full all]
    #[arg(long, value_delimiter = ',', value_enum)]
    engines: Vec<Engine>,

    /// What to run [default: all]
    #[arg(long, value_delimiter = ',', value_enum)]
    workloads: Vec<Workload>,

    /// How long each engine runs in a round: 50ms, 0.2, 2s; a job at most so long [default: 50ms]
    #[arg(long, value_name = "TIME", value_parser = seconds, allow_hyphen_values = true)]
    seconds: Option<f64>,

    /// Time for everything: rounds go on until each ratio is known to 3 %, or this time is used
    /// [default: 90s; with --full 10m]
    #[arg(long, value_name = "TIME", value_parser = seconds, allow_hyphen_values = true,
          conflicts_with_all = ["rounds", "jobs"])]
    budget: Option<f64>,

    /// Exactly this many rounds [default: until the result is certain; with job files 8]
    #[arg(long, value_parser = size::whole::<u32>(1..=1000),
          allow_hyphen_values = true)]
    rounds: Option<u32>,

    /// Seed of the random order in the rounds, to repeat a run [default: the time]
    #[arg(long, value_name = "NUMBER", value_parser = size::whole::<u64>(0..=u64::MAX),
          allow_hyphen_values = true, conflicts_with = "jobs")]
    seed: Option<u64>,

    /// The whole matrix: every engine and workload at depths 1, 8, 32 and 74
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
    size::whole(1..=DEEPEST as u64)(text)
}

impl Arguments {
    fn settings(&self, file_size: u64) -> Settings {
        let (depths, engines, budget) = match self.full {
            true => (&[1, 8, 32, 74][..], &Engine::ALL[..], 600.0),
            false => (&[1, 32][..], &Engine::DEFAULT[..], 90.0),
        };
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Settings {
            seconds: self.seconds.unwrap_or(0.05),
            rounds: self.rounds,
            budget: self.budget.unwrap_or(budget),
            seed: self.seed.unwrap_or(time.as_secs()),
            block: self.bs,
            file_size,
            depths: without_repeats(&self.depth, depths),
            submit: without_repeats(&self.submit, &[]),
            engines: without_repeats(&self.engines, engines),
            workloads: without_repeats(&self.workloads, Workload::value_variants()),
        }
    }

    /// Contradictions that the parsers of single values cannot see.
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
/// The scratch file cannot be made or filled, or an output cannot be written.
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
    if let Some(refusal) = arguments.budget.and_then(|budget| too_short(budget, &matrix)) {
        return Err(session::refusal(refusal));
    }
    let header = report::header(&machine, &storage, &scratch, &matrix);
    session.begin(&header)?;

    if session::fill(&scratch)? {
        let bar = session::progress(matrix.takes());
        matrix.measure(&scratch, &STOP, |progress| match progress {
            Progress::Run(cell) => {
                let (label, name) = (cell.workload.label(), cell.engine.name());
                let depth = matrix::depth_text(cell.depth, cell.submit);
                bar.set_position(bar.elapsed().as_millis() as u64);
                bar.set_message(format!("{label} · depth {depth} · {name}"));
            }
            Progress::Turn(matrix, line) => {
                report::so_far(matrix, line).inspect(|text| bar.println(text));
            }
        });
        bar.finish_and_clear();
    }
    matrix.results(&scratch.description, METHOD).end(session, header, &machine, &storage)
}

/// An error message, if the budget has no room for a round of each cell.
fn too_short(budget: f64, matrix: &Matrix) -> Option<String> {
    let least = matrix.least().as_secs_f64();
    (budget < least).then(|| {
        format!(
            "--budget {budget}: expected at least {:.0}s, for one round of each cell; or fewer \
             cells (--workloads, --depth, --engines)",
            least.ceil()
        )
    })
}

/// The given items, or else the defaults, each item once.
fn without_repeats<T: PartialEq + Copy>(given: &[T], default: &[T]) -> Vec<T> {
    let mut kept = Vec::new();
    for &item in if given.is_empty() { default } else { given } {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    kept
}
