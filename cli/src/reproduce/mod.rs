//! `uringlet reproduce`: published experiments, run here, beside the published figures.
//!
//! An absolute figure says something about one machine. What travels is a ratio, so both sides of each comparison
//! come from one run, and the ratio is printed beside the published one.

mod affinity;
mod batch;
mod fd_pool;
mod inline;
mod lookup;
mod options;
mod published;
mod report;

use anyhow::Result;
use clap::{Args, Subcommand};
use std::process::ExitCode;

const HELP: &str = "\
Examples:
  uringlet reproduce lookup --quick               a look, in some seconds
  uringlet reproduce batch --threads 1,4          with these numbers of threads only
  uringlet reproduce fd-pool --json result.json   medians of three rounds, in about two minutes
  uringlet reproduce affinity --quick             placements, on as many CPUs as there are

Exit status: 0; 1 if it failed; 2 if it was refused; 130 after Ctrl-C.";

/// Runs a published experiment on your machine, and prints its figures beside the published ones.
#[derive(Args)]
#[command(after_help = HELP, after_long_help = HELP, arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Subcommand)]
enum Experiment {
    Lookup(lookup::Arguments),
    Batch(batch::Arguments),
    FdPool(fd_pool::Arguments),
    Affinity(affinity::Arguments),
    #[command(name = "uringlet")]
    Inline(inline::Arguments),
}

/// Runs the command.
///
/// # Errors
/// The scratch file cannot be made or filled, or the JSON file not be written.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.experiment {
        Experiment::Lookup(arguments) => lookup::run(arguments),
        Experiment::Batch(arguments) => batch::run(arguments),
        Experiment::FdPool(arguments) => fd_pool::run(arguments),
        Experiment::Affinity(arguments) => affinity::run(arguments),
        Experiment::Inline(arguments) => inline::run(arguments),
    }
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
