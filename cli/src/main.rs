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

use anyhow::Context as _;
use clap::error::{ContextKind, ErrorKind};
use clap::{CommandFactory as _, Parser, Subcommand};
use std::io::Write as _;
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
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return usage(&error),
    };
    let (name, result) = match command {
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

/// Prints a help text, the version, or what is wrong with the arguments. Returns the exit status.
fn usage(error: &clap::Error) -> ExitCode {
    // Without the flush, the text would be written only at the exit, and nobody would see an error.
    let printed = error.print().and_then(|()| std::io::stdout().flush());
    if error.kind() == ErrorKind::InvalidSubcommand && error.get(ContextKind::Usage).is_some() {
        session::tell(format_args!("\n  [commands: {}]", commands(error)));
    }
    if error.use_stderr() {
        return ExitCode::from(error.exit_code() as u8);
    }
    let printed = printed.context("cannot write the text");
    session::exit("help", printed.map(|()| ExitCode::SUCCESS))
}

/// The names of the commands that are possible in place of the wrong one.
fn commands(error: &clap::Error) -> String {
    let usage = error.get(ContextKind::Usage).map(ToString::to_string).unwrap_or_default();
    let all = Cli::command();
    let names = usage.split_whitespace().skip_while(|word| *word != "uringlet").skip(1);
    let command = names.map_while(|name| all.find_subcommand(name)).last().unwrap_or(&all);
    command.get_subcommands().map(clap::Command::get_name).collect::<Vec<_>>().join(", ")
}
