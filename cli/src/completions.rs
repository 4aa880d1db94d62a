//! `uringlet completions`: lets a shell complete the command's arguments.

use crate::{Cli, session};
use anyhow::Result;
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use std::process::ExitCode;

const HELP: &str = include_str!("../help/completions.txt");

/// Prints a script with which a shell completes commands, options and values.
#[derive(Args)]
#[command(after_help = session::help(&[HELP]))]
pub struct Arguments {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Runs the command.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut command = Cli::command();
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "uringlet", &mut script);
    session::say(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
