//! `uringlet reproduce`: published experiments, run here, beside the published figures.
//!
//! An absolute figure says something about one machine. What travels is a ratio, so both sides of each comparison
//! come from one run, and the ratio is printed beside the published one.

mod affinity;
mod all;
mod batch;
mod fd_pool;
mod inline;
mod lookup;
mod options;
mod published;
mod report;

use self::options::Options;
use self::report::Shown;
use crate::REFUSED;
use crate::report::Document;
use crate::scratch::{Place, Scratch};
use crate::session::{self, Session};
use anyhow::Result;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;
use std::path::Path;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  uringlet reproduce all --quick                  all five, in less than three minutes
  uringlet reproduce all --html report.html       with plots, as a page
  uringlet reproduce lookup --quick               a look, in some seconds
  uringlet reproduce batch --threads 1,4          with these numbers of threads only
  uringlet reproduce fd-pool --csv rounds.csv     medians of three rounds, in about two minutes
  uringlet reproduce affinity --quick             placements, on as many CPUs as there are
  uringlet reproduce uringlet --forbid io_uring   what is left where io_uring is refused";

const STATUS: &str = "Exit status: 0; 1 if it failed; 2 if it was refused; 130 after Ctrl-C.";

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
    Lookup(lookup::Arguments),
    Batch(batch::Arguments),
    FdPool(fd_pool::Arguments),
    Affinity(affinity::Arguments),
    #[command(name = "uringlet")]
    Inline(inline::Arguments),
}

/// A published experiment, with its arguments.
trait Experiment: Args {
    /// On the command line.
    const NAME: &str;

    /// What was to be shown, in a few words.
    const CLAIM: &str;

    /// The options that all have.
    fn options(&self) -> &Options;

    /// The file that it works on, if the user has named one.
    fn file(&self) -> Option<&Path>;

    /// Takes over what was said for all.
    fn adopt(&mut self, place: &Place, options: &Options);

    /// Measures, after [`Session::begin`].
    ///
    /// # Errors
    /// The scratch file cannot be made or filled; an output cannot be made.
    fn run(&self, session: &mut Session<'_>) -> Result<Outcome>;
}

/// How an experiment has ended.
enum Outcome {
    /// It has no meaning here, or must not be run.
    Refused(String),
    Measured(Box<Measured>),
}

/// What came out.
struct Measured {
    document: Document,
    /// Everything, for programs.
    json: Value,
    shown: Vec<Shown>,
    /// What must be so on any machine is so.
    proved: bool,
}

impl Outcome {
    fn measured(
        document: Document,
        report: &impl Serialize,
        shown: Vec<Shown>,
        proved: bool,
    ) -> Result<Self> {
        let json = serde_json::to_value(report)?;
        Ok(Self::Measured(Box::new(Measured { document, json, shown, proved })))
    }
}

/// Runs the command.
///
/// # Errors
/// As [`Experiment::run`]; an output cannot be written to.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.command {
        Command::All(arguments) => all::run(arguments),
        Command::Lookup(experiment) => run_one(experiment),
        Command::Batch(experiment) => run_one(experiment),
        Command::FdPool(experiment) => run_one(experiment),
        Command::Affinity(experiment) => run_one(experiment),
        Command::Inline(experiment) => run_one(experiment),
    }
}

fn run_one<E: Experiment>(experiment: &E) -> Result<ExitCode> {
    let Options { outputs, sandbox, .. } = experiment.options();
    let mut session = Session::new(outputs, experiment.file())?;
    sandbox.enter()?;
    match experiment.run(&mut session)? {
        Outcome::Refused(reason) => {
            eprintln!("uringlet reproduce {}: {reason}", E::NAME);
            Ok(ExitCode::from(REFUSED))
        }
        Outcome::Measured(measured) => {
            let Measured { document, json, proved, .. } = *measured;
            session::say(&document.text())?;
            let status = session.end(&json, &document)?;
            let failed = !proved && !document.interrupted;
            Ok(if failed { ExitCode::FAILURE } else { status })
        }
    }
}

/// Of an experiment that must not write to the user's file.
fn only_writes(scratch: &Scratch) -> Outcome {
    Outcome::Refused(format!(
        "--file {}: this experiment writes; expected a folder, or an existing file with --allow-writes",
        scratch.description
    ))
}

/// Why threads cannot be started, if they cannot.
fn no_threads() -> Option<String> {
    let error = std::thread::Builder::new().spawn(|| {}).err()?;
    Some(format!("no thread can be started here: {error}"))
}

/// A parser of numbers from 1 to `most`.
fn number(most: usize) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync {
    move |text| {
        let number = text.trim().parse().ok().filter(|number| (1..=most).contains(number));
        number.ok_or_else(|| format!("expected a number from 1 to {most}"))
    }
}

fn ascending(given: &[usize]) -> Vec<usize> {
    let mut list = given.to_vec();
    list.sort_unstable();
    list.dedup();
    list
}

/// A negative errno, in words.
fn errno(errno: i32) -> String {
    std::io::Error::from_raw_os_error(-errno).to_string()
}
