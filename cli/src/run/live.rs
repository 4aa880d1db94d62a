//! What `run` prints about the program while it runs: lines, JSON, Prometheus' text format.

use super::prometheus::{self, Labels};
use crate::observe;
use crate::observe::figures::{self, Figures};
use crate::observe::processes;
use crate::output;
use crate::session;
use crate::size;
use anyhow::{Context as _, Error, Result};
use clap::{Args, ValueHint};
use serde::Serialize;
use serde_json::Value;
use std::fs::Permissions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use uringlet::stats::{Region, Snapshot};

/// Options of `uringlet run`.
#[derive(Args)]
pub struct Options {
    /// Print a line every TIME while the program runs (to standard error): 500ms, 1s, 2m
    #[arg(long, value_name = "TIME", value_parser = observe::interval,
          allow_hyphen_values = true)]
    stats_interval: Option<Duration>,

    /// Write the counters at the program's exit as JSON to FILE (- for standard output)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    stats_json: Option<PathBuf>,

    /// Write the counters at the program's exit in Prometheus' text format to FILE (- for standard
    /// output)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    stats_prometheus: Option<PathBuf>,
}

impl Options {
    /// Does any option need counters?
    pub fn any(&self) -> bool {
        self.stats_interval.is_some()
            || self.stats_json.is_some()
            || self.stats_prometheus.is_some()
    }

    pub fn interval(&self) -> Option<Duration> {
        self.stats_interval
    }
}

/// One line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    /// Seconds since 1970.
    time: f64,
    elapsed_s: f64,
    program: &'a str,
    pid: u32,
    /// The program has ended.
    ended: bool,
    in_flight: u64,
    workers: usize,
    /// The figures since the previous line, or the start.
    interval: &'a Figures,
    totals: Value,
}

/// The counters of one run, read repeatedly.
pub struct Live<'a> {
    region: &'a Region,
    labels: Labels,
    begin: Instant,
    previous: (Instant, Snapshot),
    /// Lines are printed at this interval.
    prints: Option<Duration>,
    json: Option<output::Repeated>,
    json_path: PathBuf,
    prometheus: Option<Exposition>,
    problems: Vec<Error>,
}

impl<'a> Live<'a> {
    /// Opens the outputs, so that a wrong path is refused before the program starts.
    ///
    /// # Errors
    /// A file cannot be made.
    pub fn open(options: &Options, region: &'a Region, program: &str) -> Result<Self> {
        let json = options.stats_json.as_deref();
        let json = json.map(|path| output::Repeated::open("--stats-json", path));
        let now = Instant::now();
        let mut live = Self {
            region,
            labels: Labels { program: program.to_owned(), pid: 0 },
            begin: now,
            previous: (now, region.snapshot()),
            prints: options.stats_interval,
            json: json.transpose()?,
            json_path: options.stats_json.clone().unwrap_or_default(),
            prometheus: options.stats_prometheus.as_deref().map(Exposition::new).transpose()?,
            problems: Vec::new(),
        };
        if let Some(exposition) = &mut live.prometheus {
            let text = prometheus::text(&live.previous.1, 0, 0, &live.labels);
            let written = exposition.write(false, &text);
            written.map_err(|error| session::refusal(format_args!("{error:#}")))?;
        }
        live.json.as_ref().map_or(Ok(()), output::Repeated::begin).context("--stats-json")?;
        Ok(live)
    }

    /// Notes that the program was started: the first interval begins.
    pub fn started(&mut self, pid: u32) {
        self.labels.pid = pid;
        self.begin = Instant::now();
        self.previous.0 = self.begin;
    }

    /// Writes the figures of an interval that has ended.
    pub fn tick(&mut self) {
        self.look(false);
    }

    /// Writes the last figures, after the program's end. Returns the errors of the outputs.
    pub fn end(mut self) -> Vec<Error> {
        self.look(true);
        self.problems
    }

    fn look(&mut self, ended: bool) {
        let (now, stats) = (Instant::now(), self.region.snapshot());
        let contexts = self.region.contexts();
        let in_flight = contexts.iter().fold(0u64, |sum, one| sum.saturating_add(one.in_flight));
        let workers = processes::workers(&contexts);
        let (then, before) = &self.previous;
        let figures = Figures::between(before, &stats, now - *then);
        let elapsed_s = (now - self.begin).as_secs_f64();
        if let Some(interval) = self.prints.filter(|_| !ended) {
            let text = line(interval, elapsed_s, &figures, in_flight, workers);
            // Standard error may be closed.
            let _ = std::io::stderr().write_all(text.as_bytes());
        }
        if let Some(json) = &mut self.json {
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let line = Line {
                time: time.as_secs_f64(),
                elapsed_s,
                program: &self.labels.program,
                pid: self.labels.pid,
                ended,
                in_flight,
                workers,
                interval: &figures,
                totals: figures::totals(&stats),
            };
            let text = serde_json::to_string(&line).expect("plain data") + "\n";
            let written = json.write_all(text.as_bytes()).and_then(|()| json.flush());
            if let Err(error) = written {
                // A reader that has gone needs no message.
                if error.kind() != ErrorKind::BrokenPipe {
                    let path = self.json_path.display();
                    let what = format!("--stats-json: cannot write {path}");
                    self.problems.push(Error::new(error).context(what));
                }
                self.json = None;
            }
        }
        if let Some(exposition) = &mut self.prometheus {
            let text = prometheus::text(&stats, in_flight, workers, &self.labels);
            if let Err(error) = exposition.write(ended, &text) {
                self.problems.push(error);
                self.prometheus = None;
            }
        }
        self.previous = (now, stats);
    }
}

/// The figures of an interval, in a line.
fn line(
    interval: Duration,
    elapsed_s: f64,
    of: &Figures,
    in_flight: u64,
    workers: usize,
) -> String {
    let bytes = |rate: f64| size::long(rate as u64);
    let latency = |of: &observe::figures::Percentiles| {
        format!("p50 {} p99 {}", of.text(of.p50_ns), of.text(of.p99_ns))
    };
    // With two digits, the lines of short intervals show different times, too.
    let digits = if interval < Duration::from_secs(1) { 2 } else { 1 };
    format!(
        "uringlet: {elapsed_s:.digits$} s: {} req/s, read {}/s, written {}/s, {in_flight} in \
         flight, {} hand-overs/s, {workers} {}, submit {}, completion {}, {} {}\n",
        size::rate(of.requests_per_s),
        bytes(of.bytes_read_per_s),
        bytes(of.bytes_written_per_s),
        size::rate(of.hand_overs_per_s),
        size::plural(workers as u64, "worker"),
        latency(&of.submit),
        latency(&of.completion),
        of.errors,
        size::plural(of.errors, "error"),
    )
}

/// The destination of `--stats-prometheus`. A file is replaced as a whole: no reader finds half of
/// it.
enum Exposition {
    /// Figures are written once, at the end: a stream cannot replace earlier figures by later ones.
    StandardOutput,
    File {
        path: PathBuf,
        folder: PathBuf,
    },
}

impl Exposition {
    fn new(path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::StandardOutput);
        }
        // The target of a link is replaced, not the link.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if path.exists() && !path.is_file() {
            return Err(session::refusal(format_args!(
                "--stats-prometheus is {}, expected a regular file, or -",
                path.display()
            )));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).to_owned();
        Ok(Self::File { path, folder })
    }

    fn write(&mut self, ended: bool, text: &str) -> Result<()> {
        let Self::File { path, folder } = self else {
            return if ended { session::say(text) } else { Ok(()) };
        };
        let replace = || -> std::io::Result<()> {
            let mut builder = tempfile::Builder::new();
            // The reader (the textfile collector of node_exporter) may run as another user.
            builder.prefix(".uringlet-").permissions(Permissions::from_mode(0o644));
            let mut file = builder.tempfile_in(folder)?;
            file.write_all(text.as_bytes())?;
            file.persist(&path)?;
            Ok(())
        };
        replace().with_context(|| format!("--stats-prometheus: cannot write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_short_intervals_have_different_times() {
        let figures = Figures::between(&Snapshot::default(), &Snapshot::default(), Duration::MAX);
        let time = |ms, elapsed_s| {
            let text = line(Duration::from_millis(ms), elapsed_s, &figures, 0, 1);
            assert!(text.contains(" 1 worker, ") && text.ends_with(" 0 errors\n"), "{text}");
            text.split(" s:").next().unwrap().to_owned()
        };
        let times = [0.0501, 0.1002, 0.1503].map(|elapsed_s| time(50, elapsed_s));
        assert_eq!(times, ["uringlet: 0.05", "uringlet: 0.10", "uringlet: 0.15"]);
        assert_eq!(time(1000, 2.0003), "uringlet: 2.0");
    }
}
