//! `uringlet bench JOB.fio`: fio runs its job file with each engine in turn.
//!
//! A native engine is one of fio's. uringlet's drop-ins replace two of them, libaio and posixaio.

mod file;
mod output;
mod report;

use self::file::JobFile;
use self::output::{Figure, Job};
use super::comparison::{Comparison, Side};
use super::{Arguments, without_repeats};
use crate::machine::{Machine, Storage};
use crate::run::library::{self, DropIn};
use crate::run::program;
use crate::session::{self, STOP, Session};
use anyhow::{Context as _, Result};
use fastrand::Rng;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Signal, kill_process};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Output};
use std::sync::atomic::Ordering;
use uringlet_lab::bench::Engine;
use uringlet_lab::bench::outside::{Look, Outside};

const INSTALL: &str = "expected fio, which runs job files; install it with your system's package \
                       manager (apt install fio, dnf install fio, pacman -S fio)";

/// The user's settings, with the defaults filled in.
#[derive(Serialize)]
struct Settings {
    /// Job files.
    files: Vec<String>,
    /// The jobs to run; empty: all.
    sections: Vec<String>,
    /// The maximum time for each job.
    seconds: Option<f64>,
    rounds: u32,
    engines: Vec<String>,
}

/// A way to run a job file: a native engine of fio's, or a drop-in in the place of one.
#[derive(Clone, Debug, PartialEq)]
struct Way {
    /// fio's engine.
    ioengine: String,
    /// The drop-in that replaces the engine, and uringlet's engine.
    ours: Option<(DropIn, Engine)>,
}

/// The drop-ins, each with the engine of fio's that it replaces. fio's io_uring engine is left out,
/// because it makes system calls by its own instructions.
const OF_FIO: [(DropIn, &str); 2] = [(DropIn::Libaio, "libaio"), (DropIn::PosixAio, "posixaio")];

impl Way {
    /// The ways for the engines in `chosen`. A native engine has one way. An engine of uringlet's
    /// has a way for each drop-in. The engines in `own`, which the job files name, are native, too.
    fn all(chosen: &[Engine], own: Vec<String>) -> Vec<Self> {
        let of = |ioengine: &str, ours| Self { ioengine: ioengine.to_owned(), ours };
        let mut ways = Vec::new();
        for &engine in chosen {
            ways.extend(match engine.is_native() {
                true => vec![of(engine.name(), None)],
                false => OF_FIO.map(|(drop_in, name)| of(name, Some((drop_in, engine)))).to_vec(),
            });
        }
        let natives = ways.iter().filter(|way| way.ours.is_none()).count();
        for ioengine in own {
            let way = Self { ioengine, ours: None };
            if !ways.contains(&way) {
                ways.insert(natives, way);
            }
        }
        ways
    }

    /// A name such as `libaio` or `uringlet:auto (libaio)`.
    fn name(&self) -> String {
        match self.ours {
            None => self.ioengine.clone(),
            Some((_, engine)) => format!("{} ({})", engine.name(), self.ioengine),
        }
    }
}

impl Serialize for Way {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name())
    }
}

/// A job: a line of the tables.
struct Row {
    file: usize,
    name: String,
    group: u64,
    /// The cells, each with the index of its way in [`Runs::ways`].
    cells: BTreeMap<usize, Cell>,
}

/// One job with one engine.
#[derive(Default)]
struct Cell {
    /// The results in the order of the rounds.
    jobs: Vec<Job>,
    not_measured: Option<String>,
}

impl Cell {
    fn figures(&self) -> impl Iterator<Item = &Figure> {
        self.jobs.iter().map(|job| &job.figure)
    }

    fn side(&self, way: usize) -> Option<Side<usize>> {
        let round = |figure: &Figure| (figure.iops, figure.cpu_us_per_request);
        let (iops, cpu_us) = self.figures().map(round).unzip();
        self.not_measured.is_none().then_some(Side { engine: way, iops, cpu_us })
    }
}

/// All results, and the combinations of job file and way that fio could not run.
struct Runs {
    fio: PathBuf,
    /// The folder in which fio runs.
    folder: PathBuf,
    settings: Settings,
    files: Vec<JobFile>,
    ways: Vec<Way>,
    rows: Vec<Row>,
    /// The index of a file, the index of a way in which fio cannot run it, and the reason.
    refused: Vec<(usize, usize, String)>,
    /// fio's version.
    version: String,
    /// The CPU use of other processes and guests in each round.
    outside: Vec<Option<Outside>>,
}

impl Runs {
    /// Every cell, with its job and way.
    fn cells(&self) -> impl Iterator<Item = (&Row, &Way, &Cell)> {
        self.rows.iter().flat_map(move |row| {
            row.cells.iter().map(move |(way, cell)| (row, &self.ways[*way], cell))
        })
    }

    /// One of uringlet's ways against the best native one.
    fn comparison(&self, row: &Row, way: usize) -> Option<Comparison<usize>> {
        let natives = row.cells.iter().filter(|(way, _)| self.ways[**way].ours.is_none());
        let natives = natives.filter_map(|(way, cell)| cell.side(*way));
        Comparison::of(row.cells.get(&way)?.side(way)?, natives)
    }

    /// Runs all rounds. `progress` is called before every run.
    fn measure(&mut self, mut progress: impl FnMut(String)) {
        let (rounds, ways) = (self.settings.rounds, self.ways.len());
        let mut random = Rng::new();
        for round in 0..rounds {
            let look = Look::now();
            for file in 0..self.files.len() {
                let mut order: Vec<usize> = (0..ways).collect();
                order.retain(|way| !self.refused.iter().any(|(f, w, _)| (f, w) == (&file, way)));
                random.shuffle(&mut order);
                for way in order {
                    let (name, path) = (self.ways[way].name(), &self.settings.files[file]);
                    progress(format!("round {} of {rounds} · {path} · {name}", round + 1));
                    let result = self.run(file, way);
                    if STOP.load(Ordering::Relaxed) {
                        return;
                    }
                    match result {
                        Ok(jobs) => jobs.into_iter().for_each(|job| self.take(file, way, job)),
                        Err(reason) => self.refused.push((file, way, reason)),
                    }
                }
            }
            self.outside.push(look.elapsed());
        }
    }

    /// Runs fio on one file, in one way.
    fn run(&mut self, file: usize, way: usize) -> Result<Vec<Job>, String> {
        let Way { ioengine, ours } = &self.ways[way];
        let mut command = Command::new(&self.fio);
        command.args(["--output-format=json+", "--eta=never"]);
        command.current_dir(&self.folder);
        command.args(self.settings.sections.iter().map(|name| format!("--section={name}")));
        if let Some((drop_in, engine)) = ours {
            let kind = engine.kind().expect("it is one of uringlet's");
            let library = library::find(*drop_in).map_err(|error| format!("{error:#}"))?;
            crate::run::preload(&mut command, &[library], kind.name());
        }
        let text = self.files[file].with(ioengine, self.settings.seconds);
        let said = said(&mut command, &text).map_err(|error| format!("cannot run fio: {error}"))?;
        let found = output::read(&said)?;
        self.version = found.version;
        Ok(found.jobs)
    }

    fn take(&mut self, file: usize, way: usize, job: Job) {
        let known = self
            .rows
            .iter()
            .position(|row| (row.file, &row.name, row.group) == (file, &job.name, job.group));
        let at = known.unwrap_or_else(|| {
            let (name, group, cells) = (job.name.clone(), job.group, BTreeMap::new());
            self.rows.push(Row { file, name, group, cells });
            self.rows.len() - 1
        });
        let cell = self.rows[at].cells.entry(way).or_default();
        match &job.failure {
            Some(failure) => cell.not_measured = Some(failure.clone()),
            None => cell.jobs.push(job),
        }
    }
}

/// fio's output for a job file. After Ctrl-C, fio gets SIGINT, and not SIGKILL. So it can remove
/// the files of jobs with unlink=1 before it ends.
fn said(fio: &mut Command, job: &str) -> io::Result<Output> {
    // The output goes to memory. A full pipe would block fio. If fio was killed, a job that is left
    // could keep the pipe open, and block this command.
    let file = || io::Result::Ok(File::from(memfd_create("uringlet-fio", MemfdFlags::CLOEXEC)?));
    let (mut input, stdout, stderr) = (file()?, file()?, file()?);
    input.write_all(job.as_bytes())?;
    input.rewind()?;
    fio.arg("-").stdin(input).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
    let mut child = fio.spawn()?;
    session::until_ended(&child, |process| {
        let _ = kill_process(process, Signal::INT);
    });
    let status = child.wait()?;
    let all = |mut file: File| {
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).map(|_| bytes)
    };
    Ok(Output { status, stdout: all(stdout)?, stderr: all(stderr)? })
}

/// A notice, if there are jobs with threads: fio does not count all of their CPU time.
fn difference(files: &[JobFile]) -> Option<String> {
    files.iter().any(|file| file.says("thread")).then(|| {
        "of jobs with thread=1, fio counts the CPU time of its own threads only, and not that of \
         the C library's or uringlet's; compare CPU time without it"
            .into()
    })
}

/// An error message, if the user has chosen a section that is in no job file.
fn unknown_section(arguments: &Arguments, files: &[JobFile]) -> Option<String> {
    let mut chosen = arguments.section.iter();
    let unknown = chosen.find(|name| !files.iter().any(|file| file.has(name)))?;
    let names: Vec<String> = files.iter().flat_map(JobFile::names).collect();
    Some(format!("--section {unknown}: expected the name of a section: {}", names.join(", ")))
}

/// Runs the command with job files.
///
/// # Errors
/// An output cannot be made or written to.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let path = std::env::var_os("PATH");
    let fio = program::resolve(OsStr::new("fio"), path.as_deref());
    let fio = fio.map_err(|refusal| session::refusal(format_args!("{refusal}: {INSTALL}")))?;
    program::check(&fio).map_err(session::refusal)?;
    let files = arguments.jobs.iter().map(|path| JobFile::read(path, &arguments.section));
    let files: Vec<JobFile> = files.collect::<Result<_, _>>().map_err(session::refusal)?;
    if let Some(unknown) = unknown_section(arguments, &files) {
        return Err(session::refusal(unknown));
    }
    let harms: Vec<String> = files.iter().flat_map(JobFile::harms).collect();
    if !arguments.place.allow_writes && !harms.is_empty() {
        return Err(session::refusal(harms.join("\nuringlet bench: ")));
    }
    let mut session = Session::new(&arguments.outputs, None)?;
    arguments.sandbox.enter()?;
    let machine = Machine::look();
    // If no job says where its files are, they go into a new folder. Without --keep, the folder is
    // removed at the end.
    let placeless = files.iter().all(JobFile::is_placeless);
    let own = placeless.then(|| tempfile::Builder::new().prefix("uringlet-").tempdir());
    let mut own = own.transpose().context("cannot make a folder for the jobs' files")?;
    if arguments.keep
        && let Some(folder) = &mut own
    {
        folder.disable_cleanup(true);
    }
    let folder = own.as_ref().map_or_else(|| files[0].folder(), |own| own.path().to_owned());
    let runs_in = if own.is_some() { folder.clone() } else { ".".into() };
    let storage = File::open(&folder).and_then(|folder| Storage::behind(&folder));
    let storage = storage.with_context(|| folder.display().to_string())?;
    let defaults = if arguments.full { &Engine::ALL[..] } else { &Engine::DEFAULT[..] };
    let named = match arguments.engines.is_empty() {
        true => files.iter().flat_map(JobFile::engines).collect(),
        false => Vec::new(),
    };
    let ways = Way::all(&without_repeats(&arguments.engines, defaults), named);
    // With fewer rounds, the comparison with the best of five engines has no interval, and so no
    // verdict.
    let rounds = arguments.rounds.unwrap_or(8);
    let settings = Settings {
        files: arguments.jobs.iter().map(|path| path.display().to_string()).collect(),
        sections: arguments.section.clone(),
        seconds: arguments.seconds,
        rounds,
        engines: ways.iter().map(Way::name).collect(),
    };
    let kept = (arguments.keep && own.is_some())
        .then(|| format!("the jobs' files stay in {}", folder.display()));
    let notices = [difference(&files), arguments.sandbox.notice(), kept];
    let notices: Vec<String> = notices.into_iter().flatten().collect();
    let notices = session::notices(&machine, &storage, &notices);
    let (rows, refused, version, outside) = Default::default();
    let mut runs =
        Runs { fio, folder: runs_in, settings, files, ways, rows, refused, version, outside };
    let header = report::header(&machine, &storage, &runs, &folder, notices);
    session.begin(&header)?;

    let steps = runs.files.len() * runs.ways.len() * rounds as usize;
    let bar = session::steps(steps as u64);
    runs.measure(|what| {
        bar.set_message(what);
        bar.inc(1);
    });
    bar.finish_and_clear();

    runs.results(super::JOBS).end(session, header, &machine, &storage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_of_a_job_is_one_more_native_one() {
        let own = vec!["sync".to_owned(), "libaio".to_owned()];
        let ways = Way::all(&[Engine::Libaio, Engine::OursAuto], own);
        let names: Vec<_> = ways.iter().map(Way::name).collect();
        let expected = ["libaio", "sync", "uringlet:auto (libaio)", "uringlet:auto (posixaio)"];
        assert_eq!(names, expected);
    }
}
