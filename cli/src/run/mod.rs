//! `uringlet run`: starts a program with the drop-ins preloaded.

mod inherited;
pub mod library;
mod live;
mod placement;
mod print_env;
pub mod program;
mod prometheus;
mod seen;
mod signals;
mod summary;

use self::library::DropIn;
use self::live::Live;
use self::seen::Watch;
use crate::sandbox::Sandbox;
use crate::session;
use anyhow::{Context as _, Result};
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueHint};
use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use uringlet::EngineKind;
use uringlet::stats::ProcessId;

/// Read by the drop-ins: the engine of every context.
const ENGINE: &str = "URINGLET_ENGINE";
/// Read by the drop-ins: the engine null was asked for, so they print no warning.
const NULL_MEANT: &str = "URINGLET_NULL_MEANT";
/// Read by the drop-in for io_uring: whether it serves the calls that the program makes by its own
/// system call instructions.
const TRAP: &str = "URINGLET_TRAP";
/// Read by the drop-in for io_uring: whether it leaves rings to a kernel that has io_uring.
const IO_URING: &str = "URINGLET_IO_URING";
/// Read by the drop-ins: the memory to count into, shared by the program and its children.
const STATS: &str = "URINGLET_STATS";
/// With this value of [`STATS`], a process counts into its own memory, which `uringlet top` finds.
const STATS_OWN: &str = "auto";

/// The interval at which `run` looks for processes without a drop-in. It stops looking as soon as a
/// program has used a drop-in.
const LOOK: Duration = Duration::from_millis(500);

const HELP: &str = include_str!("../../help/run.txt");

/// Starts a program, unchanged: its calls of libaio, POSIX AIO and io_uring go to uringlet.
#[derive(Args)]
#[command(after_help = session::help(&[HELP]))]
pub struct Arguments {
    /// Print at the program's exit what went through uringlet, and how (to standard error)
    #[arg(long)]
    stats: bool,

    #[command(flatten)]
    live: live::Options,

    /// Let `uringlet top` show the program; it counts, and no figures are printed
    #[arg(long)]
    observe: bool,

    /// What executes the requests. null MOVES NO DATA: it completes each request with 0, and shows
    /// what uringlet itself costs
    #[arg(long, default_value = EngineKind::default().name(),
          value_parser = PossibleValuesParser::new(EngineKind::ALL.map(EngineKind::name)))]
    engine: String,

    /// Confirm --engine null, which moves no data
    #[arg(long)]
    yes: bool,

    /// Serve the calls of one interface only
    #[arg(long, value_enum, value_name = "INTERFACE")]
    only: Option<DropIn>,

    /// Serve io_uring calls that a program makes by instructions of its own (fio, static liburing).
    /// Jumps are written in their place. Where one cannot be, a filter makes signals of the calls,
    /// and the program gains no privileges then. auto: where such instructions are found; signals:
    /// likewise, without jumps; always: a filter for the whole program
    #[arg(long, value_name = "WHEN", default_value = "auto",
          value_parser = PossibleValuesParser::new(["auto", "signals", "never", "always"]))]
    trap: String,

    /// Serve rings of io_uring where the kernel refuses them, or always
    #[arg(long, value_name = "WHEN", default_value = "if-refused",
          value_parser = PossibleValuesParser::new(["if-refused", "always"]))]
    io_uring: String,

    #[command(flatten)]
    placement: placement::CpuOptions,

    #[command(flatten)]
    sandbox: Sandbox,

    /// Run nothing: print the variables that would be set, for a service file or a shell
    #[arg(long, value_enum, value_name = "FORMAT", num_args = 0..=1, require_equals = true,
          default_missing_value = "systemd",
          conflicts_with_all = ["program", "stats", "forbid", "stats_interval", "stats_json",
                                "stats_prometheus"])]
    print_env: Option<print_env::Format>,

    /// The program and its arguments (put `--` in front of it)
    #[arg(required_unless_present = "print_env", trailing_var_arg = true, value_name = "PROGRAM",
          value_hint = ValueHint::CommandWithArguments)]
    program: Vec<OsString>,
}

/// Runs the command; the exit code is the program's.
///
/// # Errors
/// A drop-in is missing, or the program could not be started.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(format) = arguments.print_env {
        return print_environment(arguments, format);
    }
    let (name, rest) = arguments.program.split_first().expect("clap requires one");
    let null = arguments.engine == EngineKind::Null.name();
    if null && !arguments.yes && std::env::var_os(ENGINE).is_none_or(|name| name != "null") {
        return Err(session::refusal(
            "--engine null: expected --yes too, since it MOVES NO DATA: every request completes \
             with 0",
        ));
    }
    let path = std::env::var_os("PATH");
    let file = program::resolve(name, path.as_deref()).map_err(session::refusal)?;
    program::check(&file).map_err(session::refusal)?;
    let mut command = Command::new(&file);
    command.arg0(name).args(rest);
    serve(&mut command, arguments)?;
    arguments.sandbox.lock_in(&mut command)?;
    let counts = arguments.stats || arguments.live.any();
    let mut watch = match Watch::new(counts) {
        Ok(watch) => Some(watch),
        // The program does not need the memory.
        Err(_) if !counts => None,
        Err(error) => {
            let what = "cannot make the memory that collects the counters";
            return Err(anyhow::Error::new(error).context(what));
        }
    };
    watch.iter().for_each(|watch| watch.tell(&mut command));
    if let Some(watch) = watch.as_mut().filter(|_| counts) {
        return with_stats(command, arguments, watch);
    }
    let started = Cell::new(0);
    let status = signals::run_to_the_end(
        &mut command,
        |pid| started.set(pid),
        Some(LOOK),
        || watch.iter_mut().for_each(|watch| watch.look(started.get())),
    );
    let status = status.with_context(|| format!("cannot start {}", file.display()))?;
    seen::say(watch.and_then(|watch| watch.verdict(&file, status)));
    Ok(signals::end_as(status))
}

/// Sets a program up as the arguments say. Returns the drop-ins.
fn serve(command: &mut Command, arguments: &Arguments) -> Result<Vec<PathBuf>> {
    arguments.placement.check().map_err(session::refusal)?;
    let served =
        DropIn::ALL.into_iter().filter(|&one| arguments.only.is_none_or(|only| only == one));
    let libraries = served.map(library::find).collect::<Result<Vec<_>>>()?;
    preload(command, &libraries, &arguments.engine);
    if arguments.only.is_none_or(|only| only == DropIn::IoUring) {
        command.env(TRAP, &arguments.trap).env(IO_URING, &arguments.io_uring);
    }
    if arguments.engine == EngineKind::Null.name() {
        session::tell("uringlet run: --engine null moves no data");
        command.env(NULL_MEANT, "1");
    } else {
        command.env_remove(NULL_MEANT);
    }
    arguments.placement.set(command);
    if arguments.observe {
        command.env(STATS, STATS_OWN);
    }
    Ok(libraries)
}

fn print_environment(arguments: &Arguments, format: print_env::Format) -> Result<ExitCode> {
    let mut command = Command::new("");
    let libraries = serve(&mut command, arguments)?;
    // The service must not get the libraries that this shell preloads.
    command.env("LD_PRELOAD", library::preload(&libraries, None));
    print_env::print(&command, &libraries, format)
}

/// Sets a program up for these drop-ins and this engine.
pub fn preload(command: &mut Command, libraries: &[PathBuf], engine: &str) {
    let existing = std::env::var_os("LD_PRELOAD");
    command.env("LD_PRELOAD", library::preload(libraries, existing)).env(ENGINE, engine);
}

fn with_stats(mut command: Command, arguments: &Arguments, watch: &mut Watch) -> Result<ExitCode> {
    let region = watch.region();
    command.env(STATS, region.path());
    let name = Path::new(&arguments.program[0]).file_name().unwrap_or(&arguments.program[0]);
    let live = RefCell::new(Live::open(&arguments.live, &region, &name.to_string_lossy())?);
    let id = Cell::new(0);
    let started = |pid| {
        id.set(pid);
        region.set_program(ProcessId::of(pid).unwrap_or_default());
        live.borrow_mut().started(pid);
    };
    let interval = arguments.live.interval();
    let tick = || {
        if interval.is_some() {
            live.borrow_mut().tick();
        }
        watch.look(id.get());
    };
    let often = interval.or(Some(LOOK));
    let status = signals::run_to_the_end(&mut command, started, often, tick)
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    let problems = live.into_inner().end();
    let file = PathBuf::from(command.get_program());
    let nothing = watch.verdict(&file, status);
    if nothing.is_none() && arguments.stats {
        // Standard error may be closed; the program's exit status matters more.
        let text = summary::text(&region.snapshot(), watch.filters(), watch.refusals());
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
    seen::say(nothing);
    problems.iter().for_each(|problem| session::tell(format_args!("uringlet run: {problem:#}")));
    let fails = status.success() && !problems.is_empty();
    Ok(if fails { ExitCode::FAILURE } else { signals::end_as(status) })
}
