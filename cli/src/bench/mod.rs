//! `uringlet bench`: the workers engine against the kernel's own interfaces, on the user's own disk.

mod engine;
mod matrix;
mod native;
mod report;
mod workers;
mod workload;

pub use workload::Random;

use crate::machine::{Machine, Storage};
use crate::scratch::{SMALLEST, Scratch};
use crate::{REFUSED, size};
use anyhow::{Context as _, Result};
use clap::Args;
use engine::Engine;
use indicatif::{ProgressBar, ProgressStyle};
use matrix::{Matrix, Settings};
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use workload::Workload;

/// Set by Ctrl-C; every loop looks at it.
static STOP: AtomicBool = AtomicBool::new(false);

/// Exit status after Ctrl-C, as a shell has it.
const INTERRUPTED: u8 = 130;

/// More in flight than this says nothing about anybody's program.
const DEEPEST: usize = 4096;
const LARGEST_BLOCK: u64 = 16 << 20;
const MOST_BUFFERS: u64 = 1 << 30;

const HELP: &str = "\
Examples:
  uringlet bench                                  everything, in a scratch file in this folder
  uringlet bench --file /mnt/data                 the same in another folder
  uringlet bench --file disk.img                  reads of an existing file; it is not written to
  uringlet bench --workloads cold-read --depth 1,8,64 --seconds 2 --rounds 5
  uringlet bench --bs 64k --size 1G --json result.json
  uringlet bench --forbid io_uring                what is left where io_uring is refused

How it compares: the engines take turns within each round, each round in another order; the figures \
are medians over the rounds. The ratio is workers divided by the best native engine of the same line; \
the column beside it has the lowest and highest ratio of a single round. Below 1.00 uringlet is slower. \
psync has one request in flight at any depth, so it is measured once and counts on every line.

Exit status: 0; 1 if the benchmark failed; 2 if it was refused; 130 after Ctrl-C.";

/// Compares uringlet with plain pread/pwrite, Linux AIO and io_uring on your disk, in under 2 minutes.
#[derive(Args)]
#[command(after_help = HELP, after_long_help = HELP)]
pub struct Arguments {
    /// A folder for the scratch file, or an existing file or block device to read [default: .]
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,

    /// Let the write workloads OVERWRITE DATA in an existing --file
    #[arg(long, requires = "file")]
    allow_writes: bool,

    /// Bytes of the scratch file, or of the existing file to be used [default: 256M, less if space is short]
    #[arg(long, value_parser = file_size, allow_hyphen_values = true)]
    size: Option<u64>,

    /// Block size of all workloads [default: 4k, for buffered writes 1k, for direct ones 16k]
    #[arg(long, value_parser = block_size, allow_hyphen_values = true)]
    bs: Option<u64>,

    /// Requests in flight
    #[arg(long, value_delimiter = ',', default_value = "1,32", value_parser = depth, allow_hyphen_values = true)]
    depth: Vec<usize>,

    /// What to compare
    #[arg(
        long,
        value_delimiter = ',',
        value_enum,
        default_value = "psync,libaio,io_uring,workers"
    )]
    engines: Vec<Engine>,

    /// What to run
    #[arg(
        long,
        value_delimiter = ',',
        value_enum,
        default_value = "cached-read,cold-read,buffered-write,direct-read,direct-write"
    )]
    workloads: Vec<Workload>,

    /// Seconds for each engine, line and round
    #[arg(long, default_value = "0.4", value_parser = seconds, allow_hyphen_values = true)]
    seconds: f64,

    /// Rounds, over which the median is taken
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000), allow_hyphen_values = true)]
    rounds: u32,

    /// Write everything, each round's figures included, to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    #[command(flatten)]
    sandbox: crate::sandbox::Sandbox,
}

fn file_size(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    if bytes < SMALLEST { Err("expected at least 1M".into()) } else { Ok(bytes) }
}

fn block_size(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    if bytes > LARGEST_BLOCK { Err("expected at most 16M".into()) } else { Ok(bytes) }
}

fn depth(text: &str) -> Result<usize, String> {
    let depth = text.trim().parse().ok().filter(|depth| (1..=DEEPEST).contains(depth));
    depth.ok_or_else(|| format!("expected a number from 1 to {DEEPEST}"))
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.001..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds from 0.001 to 3600".into())
}

impl Arguments {
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
        let smallest = self.size.unwrap_or(SMALLEST);
        if bs > smallest {
            let (bs, size) = (size::short(bs), size::short(smallest));
            return Some(match self.size {
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
    if let Some(contradiction) = arguments.contradiction() {
        eprintln!("uringlet bench: {contradiction}");
        return Ok(ExitCode::from(REFUSED));
    }
    stop_on_ctrl_c()?;
    arguments.sandbox.enter(Some("bench"))?;
    let machine = Machine::look();
    let path = arguments.file.clone().unwrap_or_else(|| PathBuf::from("."));
    let scratch = Scratch::open(&path, arguments.size, arguments.allow_writes)?;
    let storage = Storage::behind(&scratch.buffered)?;
    // Opened before the work, so that two minutes are not lost to a wrong path.
    let json = arguments.json.as_ref().map(|path| {
        File::create(path).with_context(|| format!("--json: cannot make {}", path.display()))
    });
    let json = json.transpose()?;
    let settings = Settings {
        seconds: arguments.seconds,
        rounds: arguments.rounds,
        block: arguments.bs,
        file_size: scratch.size,
        depths: without_repeats(&arguments.depth),
        engines: without_repeats(&arguments.engines),
        workloads: without_repeats(&arguments.workloads),
    };
    say(&report::header(&machine, &storage, &scratch, &settings))?;

    if !scratch.existing {
        match fill(&scratch) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                eprintln!("uringlet bench: interrupted");
                return Ok(ExitCode::from(INTERRUPTED));
            }
            other => other.context("cannot fill the scratch file")?,
        }
    }
    let mut matrix = Matrix::new(settings, &scratch, &storage);
    let bar = ProgressBar::new(matrix.steps());
    bar.set_style(style("{pos}/{len} {wide_bar} {eta} left · {msg}"));
    matrix.measure(&scratch, &STOP, |what| {
        bar.set_message(what);
        bar.inc(1);
    });
    bar.finish_and_clear();

    let interrupted = STOP.load(Ordering::Relaxed);
    let report = report::Report::new(&machine, &storage, &scratch, &matrix, interrupted);
    say(&report.text())?;
    if let Some(json) = json {
        serde_json::to_writer_pretty(&json, &report).context("--json: cannot write")?;
    }
    if interrupted {
        eprintln!("uringlet bench: interrupted; the figures are of the rounds that were run");
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(ExitCode::SUCCESS)
}

/// To standard output, where somebody may have stopped reading.
fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write the result")
}

/// The first signal ends the measurement in order, the second one ends the process: the scratch file has no
/// name any more, so the kernel frees it either way.
fn stop_on_ctrl_c() -> Result<()> {
    ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(INTERRUPTED));
        }
    })
    .context("cannot handle Ctrl-C")
}

fn fill(scratch: &Scratch) -> std::io::Result<()> {
    let bar = ProgressBar::new(scratch.size);
    bar.set_style(style("writing the scratch file {wide_bar} {bytes}/{total_bytes}"));
    let result = scratch.fill(|done| {
        bar.set_position(done);
        !STOP.load(Ordering::Relaxed)
    });
    bar.finish_and_clear();
    result
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates are constants")
}

fn without_repeats<T: PartialEq + Copy>(list: &[T]) -> Vec<T> {
    let mut kept = Vec::new();
    for &item in list {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    kept
}
