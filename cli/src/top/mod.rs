//! `uringlet top`: shows what the observed programs are doing, live.

mod columns;
pub mod find;
mod keys;
mod plain;
mod programs;
mod screen;

use self::columns::Column;
use self::find::{Finder, Unseen};
use self::programs::{Program, Programs};
use crate::{observe, output, session, size};
use anyhow::{Context as _, Result};
use clap::Args;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const HELP: &str = include_str!("../../help/top.txt");

/// Printed if there is nothing to show.
const HOW_TO_START: &str =
    "no program is observed: start one with `uringlet run --stats` or `uringlet run --observe`";

/// Shows what the programs that run on uringlet are doing: requests, lanes, latencies.
#[derive(Args)]
#[command(after_help = session::help(&[HELP]))]
pub struct Arguments {
    /// Only the program that the process PID belongs to
    #[arg(value_name = "PID", value_parser = observe::process_id,
          allow_negative_numbers = true)]
    pid: Option<u32>,

    /// Also programs of other users, as far as you may look at them (root may)
    #[arg(long, conflicts_with = "pid")]
    all: bool,

    /// Time between two snapshots: 500ms, 1s, 2m
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = observe::interval,
          allow_hyphen_values = true)]
    interval: Duration,

    /// Write one snapshot as lines, no terminal needed
    #[arg(long, conflicts_with = "batch")]
    once: bool,

    /// Write this many snapshots as lines
    #[arg(long, value_name = "N", value_parser = size::whole::<u64>(1..=u64::MAX),
          allow_hyphen_values = true)]
    batch: Option<u64>,

    /// Write each snapshot as an object in a line to this file (- for standard output); without
    /// --once or --batch until it is interrupted
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// /proc cannot be read, or the terminal or standard output not written to.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let is_plain = arguments.once || arguments.batch.is_some() || arguments.json.is_some();
    let has_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if !is_plain && !has_terminal {
        let reason = "this is not a terminal; --once, --batch N and --json need none";
        return Err(session::refusal(reason));
    }
    let finder = Finder::new(arguments.all || arguments.pid.is_some());
    let mut programs = Programs::new(finder, arguments.pid);
    observe::need_proc()?;
    let first = programs.look().context("cannot read /proc")?;
    if let Some(pid) = arguments.pid.filter(|_| first.is_empty()) {
        return Err(session::refusal(refusal(pid, programs.finder().why_not(pid))));
    }
    if is_plain {
        lines(arguments, &mut programs)
    } else {
        screen::run(programs, first, arguments.pid, arguments.interval)
    }
}

fn refusal(pid: u32, why: Unseen) -> String {
    match why {
        Unseen::NoSuchProcess => format!("PID is {pid}, expected a process that runs"),
        Unseen::NotPermitted => {
            format!("process {pid} is another user's, or protected: only root may look at it")
        }
        Unseen::OtherVersion => {
            format!("process {pid} counts as another version of uringlet does: use that one's top")
        }
        Unseen::NotObserved => format!(
            "process {pid} ({}) is not observed: start the program with `uringlet run --stats` or \
             `uringlet run --observe`",
            observe::processes::name(pid)
        ),
    }
}

fn lines(arguments: &Arguments, programs: &mut Programs) -> Result<ExitCode> {
    session::stop_on_ctrl_c()?;
    let looks = if arguments.once { Some(1) } else { arguments.batch };
    let json = arguments.json.as_deref();
    let mut to = json.map(|path| output::Repeated::open("--json", path)).transpose()?;
    to.as_ref().map_or(Ok(()), output::Repeated::begin).context("--json")?;
    let mut due = Instant::now();
    let mut look = 0;
    while looks.is_none_or(|looks| look < looks) {
        due = observe::next(due, arguments.interval);
        if !sleep_until(due) {
            return Ok(ExitCode::from(session::INTERRUPTED));
        }
        let mut now = programs.look().context("cannot read /proc")?;
        if arguments.pid.is_some() && now.is_empty() {
            // The program has ended.
            break;
        }
        sort(&mut now, columns::BUSIEST);
        match (json, &mut to) {
            (Some(path), Some(to)) => to
                .write_all(plain::json(&now).as_bytes())
                .and_then(|()| to.flush())
                .with_context(|| format!("--json: cannot write {}", path.display()))?,
            _ => session::say(&plain::text(&now, arguments.interval))?,
        }
        look += 1;
    }
    Ok(ExitCode::SUCCESS)
}

/// Sorts programs and contexts, the largest first.
fn sort(programs: &mut [Program], by: &Column) {
    columns::sort(programs, by);
    programs.iter_mut().for_each(|program| columns::sort(&mut program.contexts, by));
}

/// Returns false if a signal has interrupted the sleep.
fn sleep_until(due: Instant) -> bool {
    const SLICE: Duration = Duration::from_millis(50);
    while !session::STOP.load(Ordering::Relaxed) {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(SLICE));
    }
    false
}
