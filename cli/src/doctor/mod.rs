//! `uringlet doctor`: what this machine and sandbox allow, and why not.

mod report;

use crate::machine::Storage;
use crate::sandbox::Sandbox;
use crate::session;
use anyhow::{Context as _, Result};
use clap::Args;
use report::{FileSystem, Report};
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use uringlet::probe::Probe;

/// Looked at when no folder is named; those behind the first only if they can be written to.
const DEFAULTS: [&str; 3] = [".", "/tmp", "/dev/shm"];

const HELP: &str = include_str!("../../help/doctor.txt");

/// Shows which engines this machine and sandbox allow, why not, and what the file systems can do.
#[derive(Args)]
#[command(after_help = session::help(&[HELP]))]
pub struct Arguments {
    /// Write JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    sandbox: Sandbox,

    /// Folders whose file systems are tried [default: . and, if they are others, /tmp and
    /// /dev/shm]
    #[arg(value_name = "DIR")]
    folders: Vec<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// The sandbox cannot be entered, or nobody takes the report.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    arguments.sandbox.enter()?;
    let probe = Probe::look();
    let file_systems = match &arguments.folders[..] {
        [] => at_hand(&probe),
        named => {
            let tried: Result<_> = named.iter().map(|path| look(&probe, path)).collect();
            tried.map_err(|error| session::refusal(format_args!("{error:#}")))?
        }
    };
    let report = Report { probe: &probe, sandbox: &arguments.sandbox, file_systems };
    let text = if arguments.json {
        serde_json::to_string_pretty(&report.json()).context("--json")? + "\n"
    } else {
        report.text()
    };
    session::say(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn look(probe: &Probe, path: &Path) -> Result<FileSystem> {
    let folder = probe.folder(path).with_context(|| path.display().to_string())?;
    // A folder may be writable and not readable: then its type stays unknown.
    let storage = File::open(path).and_then(|file| Storage::behind(&file)).unwrap_or_default();
    Ok(FileSystem { folder, storage })
}

/// One folder of each file system. What cannot be looked at is left out.
fn at_hand(probe: &Probe) -> Vec<FileSystem> {
    let mut seen = Vec::new();
    let mut found = Vec::new();
    for (at, path) in DEFAULTS.iter().map(Path::new).enumerate() {
        let Ok(device) = path.metadata().map(|data| data.dev()) else { continue };
        if seen.contains(&device) {
            continue;
        }
        if let Ok(file_system) = look(probe, path)
            && (at == 0 || file_system.folder.scratch.works())
        {
            seen.push(device);
            found.push(file_system);
        }
    }
    found
}
