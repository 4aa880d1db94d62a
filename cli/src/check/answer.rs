//! Has a drop-in read from a file, for this command itself, and looks whether it has counted that.

use crate::run::library::DropIn;
use crate::sandbox::Sandbox;
use crate::session::STOP;
use anyhow::{Context as _, Error, Result};
use clap::ValueEnum as _;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;
use uringlet::stats::Region;
use uringlet_lab::bench::{Engine, Job, Workload};

/// Known to everybody, and a program.
const READ: &str = "/proc/self/exe";
/// Bytes that are read of it.
const BLOCK: u64 = 4096;

/// What became of the question.
pub enum Answer {
    /// This command cannot ask the drop-in.
    NotAsked,
    Given,
    /// None, for this reason.
    Missing(String),
}

/// Starts this command under a drop-in, in the sandbox, and has it ask.
pub fn of(drop_in: DropIn, library: &Path, sandbox: &Sandbox) -> Result<Answer> {
    if asking(drop_in).is_none() {
        return Ok(Answer::NotAsked);
    }
    let region = Region::create().context("cannot make the memory that collects the counters")?;
    let own = std::env::current_exe().context("cannot find the uringlet executable")?;
    let value = drop_in.to_possible_value().expect("none is hidden");
    let mut command = Command::new(own);
    command.args(["check", "--answer", value.get_name()]).env("LD_PRELOAD", library);
    for variable in ["ENGINE", "QUEUE_AFFINITY", "COMPLETION_AFFINITY", "RQ_AFFINITY", "SPARE_CPUS"]
    {
        command.env_remove(format!("URINGLET_{variable}"));
    }
    command.env("URINGLET_STATS", region.path());
    sandbox.lock_in(&mut command)?;
    let output = command.output().context("cannot start this command once more")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Ok(Answer::Missing(format!("{} ({})", said.trim(), output.status)));
    }
    Ok(match region.snapshot().reads {
        1 => Answer::Given,
        reads => Answer::Missing(format!("it has counted {reads} reads, not 1")),
    })
}

/// Asks a drop-in by one read, whoever answers.
pub fn ask(drop_in: DropIn) -> Result<ExitCode> {
    let engine = asking(drop_in).context("this command cannot ask it")?;
    let file = File::open(READ).context(READ)?;
    let load = Workload::CachedRead.load(BLOCK, BLOCK);
    // Without any time, it is over after the first read.
    let time = (Duration::ZERO, false);
    let mut job = Job::new(file.as_raw_fd(), &load, 1, (0, 0), time, &STOP);
    engine.run(None, &mut job).map_err(Error::msg)?;
    Ok(ExitCode::SUCCESS)
}

/// The engine of `bench` whose calls a drop-in answers. None answers those of this command's
/// io_uring: they are instructions of its own. A static command preloads nothing.
fn asking(drop_in: DropIn) -> Option<Engine> {
    match drop_in {
        _ if cfg!(target_feature = "crt-static") => None,
        DropIn::Libaio => Some(Engine::Libaio),
        DropIn::PosixAio => Some(Engine::Posixaio),
        DropIn::IoUring => None,
    }
}
