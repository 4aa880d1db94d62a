//! `uringlet reproduce`: published experiments, run here, beside the published figures.
//!
//! An absolute figure depends on one machine, and a ratio less so. So both sides of each comparison
//! come from one run, and the ratio is printed beside the published one.

mod affinity;
mod all;
mod batch;
mod cells;
mod fd_pool;
mod inline;
mod lookup;
mod options;
mod published;
mod report;
mod setup;

use self::options::Options;
use self::report::Shown;
use self::setup::Setup;
use crate::report::Document;
use crate::scratch::{Place, Scratch};
use crate::session::{self, Session};
use crate::size;
use anyhow::Result;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;
use std::path::Path;
use std::process::ExitCode;

const EXAMPLES: &str = include_str!("../../help/reproduce-examples.txt");

const STATUS: &str =
    "Exit status: 0; 1 if it failed; 2 if it was refused; 130 after Ctrl-C, 143 after
SIGTERM.";

/// Runs a published experiment on your machine, and prints its figures beside the published ones.
#[derive(Args)]
#[command(after_help = session::help(&[EXAMPLES, STATUS]), arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    All(all::Arguments),
    /// From a handle to its context by list, radix tree and table: the lookup alone, and a whole
    /// job (Linux AIO, 2013).
    Lookup(Given<lookup::Arguments>),
    /// Request slots taken 32 at a time against one by one, for 1 to 8 submitting threads (Linux
    /// AIO, 2011).
    Batch(Given<batch::Arguments>),
    /// POSIX AIO with 1, 16 and 64 duplicates of a descriptor, against Linux AIO and the others
    /// (QEMU, 2008).
    FdPool(Given<fd_pool::Arguments>),
    /// Submissions and completions placed on CPUs apart from each other, proved by counters (Linux
    /// block layer, 2008).
    Affinity(Given<affinity::Arguments>),
    /// Executing inline and handing over what blocks, against io_uring, at depths 1 to 32 (io_uring
    /// RFC, 2022).
    #[command(name = "uringlet")]
    Inline(Given<inline::Arguments>),
}

/// A published experiment, with its own arguments.
trait Experiment: Args {
    /// The name on the command line.
    const NAME: &str;

    /// The claim, in a few words.
    const CLAIM: &str;

    /// The options that name the file or the folder of its work. `reproduce all` converts its own
    /// [`Place`] to them.
    type Place: Args + AsRef<Path> + From<Place>;

    /// Begins the session ([`Setup::begin`]), and measures.
    ///
    /// # Errors
    /// A refusal: the experiment has no meaning here, or must not run. The scratch file cannot be
    /// made or filled, or an output cannot be created.
    fn run(
        &self,
        place: &Self::Place,
        options: &Options,
        session: &mut Session<'_>,
    ) -> Result<Measured>;
}

/// All arguments of an experiment.
#[derive(Args)]
struct Given<E: Experiment> {
    #[command(flatten)]
    place: E::Place,

    #[command(flatten)]
    experiment: E,

    #[command(flatten)]
    options: Options,
}

/// The result of an experiment.
struct Measured {
    document: Document,
    /// All results, for programs.
    json: Value,
    shown: Vec<Shown>,
    /// False if a check has failed that has to succeed on any machine. The exit status is then 1.
    proved: bool,
}

impl Measured {
    fn new(document: Document, report: &impl Serialize, shown: Vec<Shown>) -> Result<Self> {
        let json = serde_json::to_value(report)?;
        Ok(Self { document, json, shown, proved: true })
    }
}

/// Runs the command.
///
/// # Errors
/// A scratch file cannot be made or filled, or an output cannot be created or written to.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.command {
        Command::All(arguments) => all::run(arguments),
        Command::Lookup(given) => run_one(given),
        Command::Batch(given) => run_one(given),
        Command::FdPool(given) => run_one(given),
        Command::Affinity(given) => run_one(given),
        Command::Inline(given) => run_one(given),
    }
}

fn run_one<E: Experiment>(given: &Given<E>) -> Result<ExitCode> {
    let Given { place, experiment, options } = given;
    let mut session = Session::new(&options.outputs, Some(place.as_ref()))?;
    options.sandbox.enter()?;
    let measured = experiment.run(place, options, &mut session)?;
    let Measured { document, json, proved, .. } = measured;
    session::say(&document.text())?;
    let status = session.end(&json, &document)?;
    let failed = !proved && !document.interrupted;
    Ok(if failed { ExitCode::FAILURE } else { status })
}

/// Refuses an experiment that writes, if it must not write to the user's file.
fn may_write(scratch: &Scratch) -> Result<()> {
    if scratch.writable {
        return Ok(());
    }
    Err(session::refusal(format_args!(
        "--file {}: this experiment writes; expected a folder, or an existing file with \
         --allow-writes",
        scratch.description
    )))
}

/// Refuses an experiment that needs threads, if none can be started.
fn may_start_threads() -> Result<()> {
    let started = std::thread::Builder::new().spawn(|| {}).map(drop);
    let reason = |error| format!("no thread can be started here: {error}");
    started.map_err(|error| session::refusal(reason(error)))
}

/// A parser of numbers from 1 to `most`.
fn number(most: usize) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync {
    size::whole(1..=most as u64)
}

fn ascending(given: &[usize]) -> Vec<usize> {
    let mut list = given.to_vec();
    list.sort_unstable();
    list.dedup();
    list
}

/// A text for a negative errno.
fn errno(errno: i32) -> String {
    std::io::Error::from_raw_os_error(-errno).to_string()
}
