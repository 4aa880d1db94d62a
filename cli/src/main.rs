//! The `uringlet` command.
// `print!` and `eprint!` panic if the reader of the output has gone: `session::say` and
// `session::tell` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod bench;
mod check;
mod classes;
mod compare;
mod completions;
mod doctor;
#[cfg(test)]
mod documents;
mod embed;
mod manual;
mod observe;
mod output;
mod run;
#[cfg(test)]
#[path = "../tests/skip/mod.rs"]
mod skip;
mod top;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use uringlet_lab::{machine, report, reproduce, sandbox, scratch, session, size};

// `check` loads a drop-in into this command to ask the drop-in for an answer. With this note, the
// drop-in leaves the command's own io_uring calls to the kernel.
#[cfg(not(test))]
uringlet::note!();

const HELP: &str = include_str!("../help/uringlet.txt");

/// Asynchronous file I/O for Linux in user space.
#[derive(Parser)]
#[command(name = "uringlet", version = machine::VERSION, after_help = session::help(&[HELP]))]
#[command(arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Arguments),
    Check(check::Arguments),
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
        Command::Check(arguments) => ("check", check::run(&arguments)),
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
