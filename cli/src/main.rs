//! The `uringlet` command.
// They panic where nobody reads any more: `session::say` and `session::tell` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod bench;
mod compare;
mod completions;
mod doctor;
#[cfg(test)]
mod documents;
mod manual;
mod observe;
mod run;
#[cfg(test)]
#[path = "../tests/skip/mod.rs"]
mod skip;
mod top;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use uringlet_lab::{machine, report, reproduce, sandbox, scratch, session, size};

const HELP: &str = "\
Examples:
  uringlet bench                          what uringlet is worth on the disk under this folder
  uringlet bench --full --json all.json   the same for every engine at every depth
  uringlet bench jobs/uringlet.fio        a job file of fio's, done by each engine in turn
  uringlet compare old.json new.json      what has changed between two runs, beyond noise
  uringlet doctor                         what this machine and sandbox allow, and why not
  uringlet reproduce fd-pool --quick      a published experiment, here, beside the published figures
  uringlet run --stats -- fio job.fio     run a program written for libaio on it, unchanged
  uringlet top                            what the programs started so are doing, live
  uringlet run --forbid docker -- ./app   as in a container, where io_uring is refused";

/// Asynchronous file I/O for Linux in user space.
#[derive(Parser)]
#[command(name = "uringlet", version = machine::VERSION, after_help = HELP, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Arguments),
    Bench(bench::Arguments),
    Compare(compare::Arguments),
    Doctor(doctor::Arguments),
    Reproduce(reproduce::Arguments),
    Man(manual::Arguments),
    Completions(completions::Arguments),
    Top(top::Arguments),
}

fn main() -> ExitCode {
    let (name, result) = match Cli::parse().command {
        Command::Run(arguments) => ("run", run::run(&arguments)),
        Command::Bench(arguments) => ("bench", bench::run(&arguments)),
        Command::Compare(arguments) => ("compare", compare::run(&arguments)),
        Command::Doctor(arguments) => ("doctor", doctor::run(&arguments)),
        Command::Reproduce(arguments) => ("reproduce", reproduce::run(&arguments)),
        Command::Man(arguments) => ("man", manual::run(&arguments)),
        Command::Completions(arguments) => ("completions", completions::run(&arguments)),
        Command::Top(arguments) => ("top", top::run(&arguments)),
    };
    session::exit(name, result)
}
