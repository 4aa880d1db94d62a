//! The experiments without the rest of the `uringlet` command: `uringlet-lab lookup --quick`.

use clap::Parser;
use std::process::ExitCode;
use uringlet_lab::{machine, reproduce, session};

/// Runs published experiments, as `uringlet reproduce` does.
#[derive(Parser)]
#[command(name = "uringlet-lab", version = machine::VERSION)]
struct Lab {
    #[command(flatten)]
    arguments: reproduce::Arguments,
}

fn main() -> ExitCode {
    session::exit("reproduce", reproduce::run(&Lab::parse().arguments))
}
