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

/// Starts this command under a drop-in, in the sandbox. The inner error: why it does not answer;
/// none if it cannot be asked.
pub fn of(
    drop_in: DropIn,
    library: &Path,
    sandbox: &Sandbox,
) -> Result<Option<Result<(), String>>> {
    if asks(drop_in).is_none() {
        return Ok(None);
    }
    let region = Region::create().context("cannot make the memory that collects the counters")?;
    let own = std::env::current_exe().context("cannot find the uringlet executable")?;
    let value = drop_in.to_possible_value().expect("none is hidden");
    let mut command = Command::new(own);
    command.args(["check", "--answer", value.get_name()]).env("LD_PRELOAD", library);
    for variable in ["ENGINE", "QUEUE_AFFINITY", "COMPLETION_AFFINITY", "RQ_AFFINITY"] {
        command.env_remove(format!("URINGLET_{variable}"));
    }
    command.env("URINGLET_STATS", region.path());
    sandbox.lock_in(&mut command)?;
    let output = command.output().context("cannot start this command once more")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Ok(Some(Err(format!("{} ({})", said.trim(), output.status))));
    }
    let reads = region.snapshot().reads;
    let counted = || format!("it has counted {reads} reads, not 1");
    Ok(Some((reads == 1).then_some(()).ok_or_else(counted)))
}

/// Asks a drop-in by one read, whoever answers.
pub fn ask(drop_in: DropIn) -> Result<ExitCode> {
    let engine = asks(drop_in).context("this command cannot ask it")?;
    let file = File::open(READ).context(READ)?;
    let load = Workload::CachedRead.load(BLOCK, BLOCK);
    // Without any time, it is over after the first read.
    let time = (Duration::ZERO, false);
    let mut job = Job::new(file.as_raw_fd(), &load, 1, (0, 0), time, &STOP);
    engine.run(None, &mut job).map_err(Error::msg)?;
    Ok(ExitCode::SUCCESS)
}

/// Who makes a drop-in's calls. Nobody those of io_uring: that drop-in serves no program that has
/// io_uring's system calls as instructions of its own, as this command does.
fn asks(drop_in: DropIn) -> Option<Engine> {
    match drop_in {
        DropIn::Libaio => Some(Engine::Libaio),
        DropIn::PosixAio => Some(Engine::Posixaio),
        DropIn::IoUring => None,
    }
}
