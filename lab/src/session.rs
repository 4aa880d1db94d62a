//! The common parts of every measurement: Ctrl-C, filling the scratch file, a progress bar, the
//! header, the outputs.

use crate::machine::{Machine, Storage};
pub use crate::refusal::{is_refusal, refusal};
use crate::report::{Document, Files, Header, Outputs};
use crate::scratch::Scratch;
use crate::size;
use anyhow::{Context as _, Result};
use comfy_table::{Attribute, Cell, CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fmt::{Display, Write as _};
use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::path::Path;
use std::process::{Child, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

/// Set by Ctrl-C; every loop checks it.
pub static STOP: AtomicBool = AtomicBool::new(false);

/// Exit status of a refused request; clap uses the same for wrong usage.
const REFUSED: u8 = 2;

/// Exit status after Ctrl-C, as in a shell.
pub const INTERRUPTED: u8 = 130;

/// The signal that has set [`STOP`]; 0 before.
static STOPPED_BY: AtomicI32 = AtomicI32::new(0);

/// The exit status of a measurement that a signal has ended, as in a shell.
fn stopped() -> u8 {
    match STOPPED_BY.load(Ordering::Relaxed) {
        0 => INTERRUPTED,
        signal => 128 + signal as u8,
    }
}

/// The first signal (Ctrl-C, SIGTERM, SIGHUP) ends the measurement normally, the second one ends
/// the process. The scratch file has no name any more, so the kernel frees it in both cases.
///
/// # Errors
/// The handler cannot be installed.
pub fn stop_on_ctrl_c() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle Ctrl-C")?;
    let watch = move || {
        for signal in signals.forever() {
            if STOPPED_BY.swap(signal, Ordering::Relaxed) != 0 {
                std::process::exit(128 + signal);
            }
            STOP.store(true, Ordering::Relaxed);
        }
    };
    let started = std::thread::Builder::new().spawn(watch);
    started.map(drop).context("cannot start the thread that handles Ctrl-C")
}

/// Waits until a child has ended. Calls `stop` once if Ctrl-C was pressed. Does not wait if the
/// kernel has no pidfds.
pub fn until_ended(child: &Child, stop: impl FnOnce(Pid)) {
    /// The interval of checks for Ctrl-C.
    const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    let id = Pid::from_child(child);
    let Ok(process) = pidfd_open(id, PidfdFlags::empty()) else { return };
    let ended = || poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&LOOK));
    let mut stop = Some(stop);
    while !ended().is_ok_and(|ended| ended > 0) {
        if STOP.load(Ordering::Relaxed)
            && let Some(stop) = stop.take()
        {
            stop(id);
        }
    }
}

/// The end of a help text. Lines of a paragraph are joined, except those of examples.
pub fn help(texts: &[&str]) -> String {
    let paragraphs = texts.iter().flat_map(|text| text.trim_end().split("\n\n"));
    let joined = paragraphs.map(|paragraph| match paragraph.starts_with("Examples:") {
        true => paragraph.to_owned(),
        false => paragraph.replace('\n', " "),
    });
    joined.collect::<Vec<_>>().join("\n\n")
}

/// Makes a foreign text safe for a terminal: control characters are replaced.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Standard output has the result in another format, so no text is printed.
static SILENT: AtomicBool = AtomicBool::new(false);

/// Prints to standard output, whose reader may have gone.
///
/// # Errors
/// Standard output cannot be written to.
pub fn say(text: &str) -> Result<()> {
    if SILENT.load(Ordering::Relaxed) {
        return Ok(());
    }
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write the result")
}

/// Prints to standard error. Errors are ignored, because the reader may have gone.
pub fn tell(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Exit status if the reader of standard output has gone, as in a shell after SIGPIPE.
const BROKEN_PIPE: u8 = 128 + libc::SIGPIPE as u8;

/// The exit status of a command; prints its failure.
pub fn exit(command: &str, result: Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        // SIGPIPE is ignored, so that a write fails, and the command can clean up and wait for its
        // program.
        if is_broken_pipe(&error) {
            return ExitCode::from(BROKEN_PIPE);
        }
        tell(format_args!("uringlet {command}: {error:#}"));
        if is_refusal(&error) { ExitCode::from(REFUSED) } else { ExitCode::FAILURE }
    })
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.root_cause().downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// A measurement's output, to standard output and to the files.
pub struct Session<'a> {
    outputs: &'a Outputs,
    /// The measured file.
    file: Option<&'a Path>,
    files: Option<Files>,
    /// The header that was printed first; later ones do not repeat its facts.
    first: Option<Header>,
}

impl<'a> Session<'a> {
    /// Has the first Ctrl-C end the measurement normally.
    ///
    /// # Errors
    /// The handler cannot be installed.
    pub fn new(outputs: &'a Outputs, file: Option<&'a Path>) -> Result<Self> {
        stop_on_ctrl_c()?;
        SILENT.store(outputs.replace_text(), Ordering::Relaxed);
        Ok(Self { outputs, file, files: None, first: None })
    }

    /// Opens the outputs, unless they are open, and prints the header without repeating facts of an
    /// earlier one.
    ///
    /// # Errors
    /// As [`Outputs::open`]; standard output cannot be written to.
    pub fn begin(&mut self, header: &Header) -> Result<()> {
        if self.files.is_none() {
            self.files = Some(self.outputs.open(self.file)?);
        }
        match &self.first {
            Some(first) => say(&header.beyond(first).text()),
            None => {
                self.first = Some(header.clone());
                say(&header.text())
            }
        }
    }

    /// Writes the files, and returns the exit status.
    ///
    /// # Errors
    /// A file cannot be written to.
    pub fn end(self, json: &impl Serialize, document: &Document) -> Result<ExitCode> {
        if let Some(files) = self.files {
            files.write(json, document)?;
        }
        if document.interrupted {
            let command = &document.header.command;
            tell(format_args!("uringlet {command}: interrupted; the figures are of what was run"));
            return Ok(ExitCode::from(stopped()));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Fills a scratch file, and leaves an existing one alone. False if it was interrupted.
///
/// # Errors
/// The file system is full, or fails.
pub fn fill(scratch: &Scratch) -> Result<bool> {
    if scratch.existing {
        return Ok(true);
    }
    let bar = bytes(scratch.size, "writing the scratch file");
    let result = scratch.fill(|done| {
        bar.set_position(done);
        !STOP.load(Ordering::Relaxed)
    });
    bar.finish_and_clear();
    match result {
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(false),
        other => other.map(|()| true).context("cannot fill the scratch file"),
    }
}

/// A progress bar for this many bytes.
pub fn bytes(total: u64, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(total).with_message(what);
    bar.set_style(style("{msg} {wide_bar} {bytes}/{total_bytes}"));
    bar
}

/// A progress bar for this many runs, with a message.
pub fn steps(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    bar.set_style(style("{pos}/{len} {wide_bar} {eta} left · {msg}"));
    bar
}

/// A progress bar for a time, in milliseconds, with a message.
pub fn progress(time: Duration) -> ProgressBar {
    let bar = ProgressBar::new(time.as_millis() as u64);
    bar.set_style(style("{wide_bar} at most {eta} left · {msg}"));
    bar
}

/// The exit status of a command without a figure.
pub fn nothing_measured(command: &str, refused: bool) -> ExitCode {
    let why = if refused { "all of it was refused" } else { "there is no figure" };
    tell(format_args!("uringlet {command}: nothing was measured: {why}"));
    if refused { ExitCode::from(REFUSED) } else { ExitCode::FAILURE }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates are constants")
}

/// The facts before the first measurement: `file` is the measured file, and `more` has lines of the
/// command's own.
pub fn header(
    command: &str,
    machine: &Machine,
    storage: &Storage,
    file: String,
    more: &[(&str, String)],
    notices: Vec<String>,
) -> Header {
    let mut facts = Vec::new();
    let mut fact = |name: &str, value: String| facts.push((name.to_owned(), value));
    fact("command", command_line());
    fact("host", machine.host.clone());
    fact("kernel", machine.kernel.clone());
    let kind = if machine.virtual_machine { ", virtual machine" } else { "" };
    fact("CPU", format!("{} × {}{kind}; load {:.2}", machine.cpus, machine.cpu, machine.load));
    let (memory, available) = (size::long(machine.memory), size::long(machine.memory_available));
    fact("memory", format!("{memory}, {available} available"));
    fact("file", file);
    let mut device = storage.device.clone();
    if !storage.device_facts.is_empty() {
        let _ = write!(device, " ({})", storage.device_facts.join(", "));
    }
    fact("storage", format!("{} on {device}", storage.file_system));
    if !storage.options.is_empty() {
        fact("options", storage.options.clone());
    }
    for (name, value) in more {
        fact(name, value.clone());
    }
    Header { command: command.into(), version: machine.version.into(), facts, notices }
}

/// The command line, quoted so that it can be typed again. A control character becomes U+FFFD.
fn command_line() -> String {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| printable(&word.to_string_lossy())).collect();
    let words = words.iter().map(|word| shlex::try_quote(word).unwrap_or(word.into()));
    ["uringlet".into()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

/// Notices that a reader should know before trusting a figure; `own` is about the measured files.
pub fn notices(machine: &Machine, storage: &Storage, own: &[String]) -> Vec<String> {
    let mut notices = own.to_vec();
    if machine.debug_build {
        notices
            .push("this is a debug build; its figures mean nothing (cargo run --release)".into());
    }
    if storage.is_memory() {
        notices.push(format!(
            "{} keeps files in memory: this says nothing about a disk (--file FOLDER for another \
             place)",
            storage.file_system
        ));
    }
    if machine.load > machine.cpus as f64 * 0.5 {
        notices.push("the machine is busy with something else; expect noise".into());
    }
    notices
}

/// An empty table with bold heads, if there are any; coloured only on a terminal.
pub fn table(heads: impl IntoIterator<Item = String>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let coloured = std::io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    if coloured {
        table.enforce_styling()
    } else {
        table.force_no_tty()
    };
    let heads = heads.into_iter().map(|head| Cell::new(head).add_attribute(Attribute::Bold));
    let heads: Vec<_> = heads.collect();
    if !heads.is_empty() {
        table.add_row(heads);
    }
    table
}

/// The width of the terminal of standard output.
pub fn terminal_width() -> Option<usize> {
    Table::new().width().map(usize::from)
}

/// The table's lines, the columns in `right` aligned to the right.
pub fn lines(table: &mut Table, right: &[usize]) -> String {
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if at == 0 { 2 } else { 0 }, 2));
        if right.contains(&at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// A rounded duration, such as `about 40 s` or `about 9 min`.
pub fn about(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s < 100.0 => format!("about {:.0} s", s.max(1.0)),
        s if s < 6000.0 => format!("about {:.0} min", (s / 60.0).ceil()),
        s => format!("about {:.1} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_told_as_people_do() {
        assert_eq!(about(Duration::from_millis(10)), "about 1 s");
        assert_eq!(about(Duration::from_secs(89)), "about 89 s");
        assert_eq!(about(Duration::from_secs(541)), "about 10 min");
        assert_eq!(about(Duration::from_secs(9000)), "about 2.5 h");
    }
}
