//! `uringlet reproduce`: published experiments, run here, beside the published figures.
//!
//! An absolute figure says something about one machine. What travels is a ratio, so both sides of each comparison
//! come from one run, and the ratio is printed beside the published one.

mod affinity;
mod fd_pool;
mod published;

use anyhow::Result;
use clap::{Args, Subcommand};
use std::process::ExitCode;

const HELP: &str = "\
Examples:
  uringlet reproduce fd-pool --quick              a look, in some seconds
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
    FdPool(fd_pool::Arguments),
    Affinity(affinity::Options),
}

/// Runs the command.
///
/// # Errors
/// The scratch file cannot be made or filled, or the JSON file not be written.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.experiment {
        Experiment::FdPool(arguments) => fd_pool::run(arguments),
        Experiment::Affinity(options) => affinity::run(options),
    }
}
