//! `uringlet check`: are the drop-ins loaded, and do they answer?

pub mod answer;
mod loader;
mod process;

use self::answer::Answer;
use crate::embed;
use crate::observe;
use crate::run::library::{self, DropIn};
use crate::run::program;
use crate::sandbox::Sandbox;
use crate::session;
use anyhow::{Error, Result};
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

const HELP: &str = include_str!("../../help/check.txt");

/// Says whether the drop-ins are loaded into a program or process, and answer.
#[derive(Args)]
#[command(after_help = session::help(&[HELP]))]
pub struct Arguments {
    /// Check one drop-in only
    #[arg(long, value_enum, value_name = "INTERFACE")]
    only: Option<DropIn>,

    #[command(flatten)]
    sandbox: Sandbox,

    /// The process
    #[arg(value_name = "PID", value_parser = observe::process_id, allow_negative_numbers = true,
          required_unless_present_any = ["program", "answer"],
          conflicts_with_all = ["program", "forbid"])]
    pid: Option<u32>,

    /// The program; arguments behind it make no difference
    #[arg(last = true, value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    program: Vec<OsString>,

    /// Set if this command starts itself with this drop-in preloaded, to ask it for an answer
    #[arg(long, hide = true, value_enum)]
    answer: Option<DropIn>,
}

/// Runs the command.
///
/// # Errors
/// The program or process does not exist, or must not be inspected.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(drop_in) = arguments.answer {
        return answer::ask(drop_in);
    }
    let asked = DropIn::ALL.into_iter().filter(|&one| arguments.only.is_none_or(|o| o == one));
    match (arguments.pid, arguments.program.first()) {
        (Some(pid), _) => process::check(pid, arguments.only),
        (None, Some(name)) => {
            let path = std::env::var_os("PATH");
            let file = program::resolve(name, path.as_deref()).map_err(session::refusal)?;
            check(&file, asked, &arguments.sandbox)
        }
        (None, None) => unreachable!("clap requires one"),
    }
}

fn check(
    program: &Path,
    asked: impl Iterator<Item = DropIn>,
    sandbox: &Sandbox,
) -> Result<ExitCode> {
    let mut text = String::new();
    let mut all = true;
    for drop_in in asked {
        let (fine, said) = look(program, drop_in, sandbox)?;
        all &= fine;
        let _ = writeln!(text, "{}: {said}", drop_in.file_name());
    }
    session::say(&text)?;
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Does a program get a drop-in that answers? Also returns a text with the findings.
fn look(program: &Path, drop_in: DropIn, sandbox: &Sandbox) -> Result<(bool, String)> {
    let found =
        match program::check(program).map_err(Error::msg).and_then(|()| library::find(drop_in)) {
            Ok(found) => found,
            Err(error) => return Ok((false, format!("NOT loaded: {error:#}"))),
        };
    let place = match embed::is_passing(&found) {
        true => format!("memory, as {}", found.display()),
        false => found.display().to_string(),
    };
    let bound = match loader::trace(program, &found)? {
        Ok(bound) if bound.is_empty() => {
            "none of its functions yet; what it loads later may".to_owned()
        }
        Ok(bound) => bound.join(", "),
        Err(reason) => return Ok((false, format!("NOT loaded from {place}: {reason}"))),
    };
    let (fine, answers) = match answer::of(drop_in, &found, sandbox)? {
        Answer::NotAsked => (true, " (not asked for an answer)".to_owned()),
        Answer::Given(said) if said.is_empty() => (true, ", and answers".to_owned()),
        Answer::Given(said) => (true, format!(", and answers\n  rings: {said}")),
        Answer::Missing(reason) => (false, format!(", and does NOT answer: {reason}")),
    };
    Ok((fine, format!("loaded from {place}{answers}\n  binds {bound}")))
}
