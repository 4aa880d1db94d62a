//! `uringlet doctor`: what this machine and sandbox allow, and why they refuse the rest.

mod program;
mod report;
mod words;

use crate::machine::Storage;
use crate::sandbox::Sandbox;
use crate::{output, session};
use anyhow::{Context as _, Result};
use clap::Args;
use clap::builder::PossibleValuesParser;
use report::{FileSystem, Report};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use uringlet::EngineKind;
use uringlet::probe::{Answer, Probe};

/// The folders to inspect if none is named. The second and third are inspected only if they are on
/// another file system, and a scratch file can be written there.
const DEFAULTS: [&str; 3] = [".", "/tmp", "/dev/shm"];

const HELP: &str = include_str!("../../help/doctor.txt");

/// Shows which engines this machine and sandbox allow, why not, and what the file systems can do.
#[derive(Args)]
#[command(after_help = session::help(&[HELP]))]
pub struct Arguments {
    /// Write JSON to this file (- for standard output, instead of the text)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// End with status 3 unless this engine is available; may be given several times
    #[arg(long, value_name = "ENGINE",
          value_parser = PossibleValuesParser::new(EngineKind::ALL.map(EngineKind::name)))]
    require: Vec<String>,

    #[command(flatten)]
    sandbox: Sandbox,

    /// Folders whose file systems are tried [default: . and, if they are others, /tmp and
    /// /dev/shm]
    #[arg(value_name = "DIR")]
    folders: Vec<PathBuf>,

    /// Report only whether uringlet can serve this program's I/O, and how (put `--` before it)
    #[arg(last = true, value_name = "PROGRAM", conflicts_with_all = ["folders", "require"])]
    program: Vec<OsString>,
}

/// Exit status if a required engine is not available, or the program cannot be reached.
const MISSING: u8 = 3;

/// Runs the command.
///
/// # Errors
/// The sandbox cannot be entered, or the report cannot be written.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(name) = arguments.program.first() {
        let mut found = program::look(name)?;
        arguments.sandbox.enter()?;
        found.say_whose_rings(&Probe::look());
        let mut json = serde_json::to_value(&found)?;
        json["verdict"] = found.verdict().into();
        output::write(arguments.json.as_deref(), &json, &found.text())?;
        return Ok(if found.is_reached() { ExitCode::SUCCESS } else { ExitCode::from(MISSING) });
    }
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
    output::write(arguments.json.as_deref(), &report.json(), &report.text())?;
    let mut status = ExitCode::SUCCESS;
    for name in &arguments.require {
        let engine = probe.engines.iter().find(|engine| engine.kind.name() == name);
        // An engine that the probe does not list is never refused.
        if let Some(refusal) = engine.and_then(|engine| engine.refusal.as_ref()) {
            session::tell(format_args!("uringlet doctor: --require {name}: {refusal}"));
            status = ExitCode::from(MISSING);
        }
    }
    Ok(status)
}

fn look(probe: &Probe, path: &Path) -> Result<FileSystem> {
    let mut folder = probe.folder(path).with_context(|| path.display().to_string())?;
    if let Answer::Refused(refusal) = &mut folder.scratch
        && refusal.errno == libc::EACCES
        && accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_err()
    {
        refusal.words = "this folder cannot be entered".into();
    }
    // A folder may be writable and not readable: then the type of its storage is unknown.
    let storage = File::open(path).and_then(|file| Storage::behind(&file)).unwrap_or_default();
    Ok(FileSystem { folder, storage })
}

/// The folders of [`DEFAULTS`] that can be inspected, one for each file system.
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
