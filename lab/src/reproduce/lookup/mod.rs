//! Finds the context of a handle in time that does not grow with the number of contexts (Linux AIO,
//! 2013).
//!
//! The kernel kept the contexts of a process in a list, tried a radix tree, and chose a table
//! indexed by an id. The three are measured alone, and in front of real contexts with a real job.

mod alone;
mod job;
mod report;
mod structures;

use self::alone::Alone;
use self::job::{Files, Job};
use self::report::{JobCell, LookupCell, Report};
use super::cells;
use super::options::Options;
use super::published::ContextLookup;
use super::{Experiment, Measured, STATUS, Setup, ascending, errno, may_start_threads, number};
use crate::bench;
use crate::machine::Storage;
use crate::scratch::Place;
use crate::session::{self, STOP, Session};
use crate::size;
use anyhow::{Context as _, Result};
use clap::Args;
use serde::{Serialize, Serializer};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The maximum number of contexts. Each takes a page of the table, which has twice as many pages if
/// address space is not limited.
const CONTEXTS_MAX: usize = 1 << 15;
/// The maximum number of threads of the job: few programs have more.
const JOBS_MAX: usize = 1024;

const EXAMPLES: &str = include_str!("../../../help/lookup-examples.txt");

const METHOD: &str = include_str!("../../../help/lookup-method.txt");

#[derive(Args)]
#[command(after_help = session::help(&[EXAMPLES, METHOD, STATUS]))]
pub struct Arguments {
    /// Contexts to look up one of
    #[arg(long, value_delimiter = ',', default_value = "1,8,64,512,4096",
          value_parser = number(CONTEXTS_MAX), allow_hyphen_values = true)]
    contexts: Vec<usize>,

    /// Threads of the job, each with its own context
    #[arg(long, value_delimiter = ',', default_value = "1,8,64,512",
          value_parser = number(JOBS_MAX), allow_hyphen_values = true)]
    jobs: Vec<usize>,

    /// Seconds for each lookup and round [default: 0.1; with --quick 0.01]
    #[arg(long, value_parser = bench::seconds, allow_hyphen_values = true)]
    seconds: Option<f64>,

    /// Loops of each of 512 jobs over its file; fewer jobs make as many requests in all [default:
    /// 10; with --quick 1]
    #[arg(long, value_parser = size::whole::<u64>(1..=10_000),
          allow_hyphen_values = true)]
    loops: Option<u64>,
}

/// The folder of the work, on the command line.
#[derive(Args)]
pub struct Folder {
    /// Where the files of the job are made; they have no names, and are gone afterwards
    #[arg(long, value_name = "PATH", default_value = ".")]
    folder: PathBuf,
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        &self.folder
    }
}

impl From<Place> for Folder {
    /// The folder of a file, or of a name that does not exist yet.
    fn from(place: Place) -> Self {
        let path = place.as_ref();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = if path.is_dir() { path } else { parent.unwrap_or(Path::new(".")) };
        Self { folder: folder.to_owned() }
    }
}

/// The structure in which a handle is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", const_into_str)]
enum Structure {
    List,
    Radix,
    Table,
}

impl Structure {
    const ALL: [Self; 3] = [Self::List, Self::Radix, Self::Table];
}

/// The engine that executes the job's requests: a native one, or uringlet, with the structure in
/// which it looks up its contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobWay {
    Psync,
    Libaio,
    Ours(Structure),
}

impl JobWay {
    const ALL: [Self; 5] = [
        Self::Psync,
        Self::Libaio,
        Self::Ours(Structure::List),
        Self::Ours(Structure::Radix),
        Self::Ours(Structure::Table),
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Psync => "psync",
            Self::Libaio => "libaio",
            Self::Ours(Structure::List) => "uringlet, list",
            Self::Ours(Structure::Radix) => "uringlet, radix",
            Self::Ours(Structure::Table) => "uringlet, table",
        }
    }
}

impl Serialize for JobWay {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[derive(Clone, Debug, Serialize)]
struct Settings {
    quick: bool,
    rounds: u32,
    seconds: f64,
    loops: u64,
    contexts: Vec<usize>,
    /// The numbers of threads that look up at the same time.
    threads: Vec<usize>,
    jobs: Vec<usize>,
    file_size: u64,
    block: u64,
}

impl Settings {
    fn new(arguments: &Arguments, options: &Options, cpus: usize) -> Self {
        let quick = options.quick;
        Self {
            quick,
            rounds: options.rounds(),
            seconds: arguments.seconds.unwrap_or(if quick { 0.01 } else { 0.1 }),
            loops: arguments.loops.unwrap_or(if quick { 1 } else { 10 }),
            contexts: ascending(&arguments.contexts),
            threads: vec![1, cpus.max(2)],
            jobs: ascending(&arguments.jobs),
            file_size: job::FILE,
            block: job::BLOCK,
        }
    }

    fn lookup_cells(&self) -> Vec<LookupCell> {
        let mut cells = Vec::new();
        for &threads in &self.threads {
            for &contexts in &self.contexts {
                cells.extend(Structure::ALL.map(|s| LookupCell::new(threads, contexts, s)));
            }
        }
        cells
    }

    fn job_cells(&self) -> Vec<JobCell> {
        let cells = self.jobs.iter().flat_map(|&jobs| {
            JobWay::ALL.map(|way| JobCell::new(jobs, way, job::requests(jobs, self.loops)))
        });
        cells.collect()
    }

    fn takes(&self) -> Duration {
        let lookups = self.threads.len() * self.contexts.len() * Structure::ALL.len();
        let jobs = (self.jobs.len() * JobWay::ALL.len()) as u32;
        let round = Duration::from_secs_f64(lookups as f64 * self.seconds)
            + job::estimate(self.loops) * jobs;
        round * self.rounds
    }
}

impl Experiment for Arguments {
    const NAME: &str = "lookup";
    const CLAIM: &str = "a context is found in the same time however many there are";

    type Place = Folder;

    fn run(
        &self,
        Folder { folder }: &Folder,
        options: &Options,
        session: &mut Session<'_>,
    ) -> Result<Measured> {
        may_start_threads()?;
        let most = self.jobs.iter().copied().max().unwrap_or(1);
        let files = format!("{most} files of 256 KiB in {}", folder.display());
        let failed = format!("cannot make {files}");
        let storage = File::open(folder).and_then(|folder| Storage::behind(&folder));
        let refused = |error| session::refusal(format_args!("--folder: {failed}: {error}"));
        let storage = storage.map_err(refused)?;
        let setup = Setup::new::<Self>(storage, files, &[], options);
        let settings = Settings::new(self, options, setup.machine.cpus);
        let rounds = format!(
            "{} of {} s per lookup, {} loops per job, interleaved",
            settings.rounds, settings.seconds, settings.loops
        );
        let more = [("rounds", rounds), ("takes", session::about(settings.takes()))];
        let header = setup.begin(session, &more)?;

        let (mut lookups, mut jobs) = (settings.lookup_cells(), settings.job_cells());
        let files = Files::create(folder, most, &STOP).context(failed)?;
        measure(&settings, &mut lookups, &mut jobs, &files);
        let report = Report {
            shown: report::shown(&lookups, &jobs, setup.machine.cpus),
            published: ContextLookup::table(),
            setup: setup.end(),
            settings,
            lookups,
            jobs,
        };
        Measured::new(report.document(header, METHOD), &report, report.shown.clone())
    }
}

fn measure(settings: &Settings, lookups: &mut [LookupCell], jobs: &mut [JobCell], files: &Files) {
    let rounds = settings.rounds;
    let bar = session::steps((lookups.len() + jobs.len()) as u64 * u64::from(rounds));
    let duration = Duration::from_secs_f64(settings.seconds);
    let groups = vec![Structure::ALL.len(); lookups.len() / Structure::ALL.len()];
    cells::measure(lookups, &groups, rounds, &bar, |cell, round, _| {
        let LookupCell { threads, contexts, structure, .. } = *cell;
        Alone { structure, contexts, threads, duration, seed: round.into() }.run(&STOP)
    });
    if STOP.load(Ordering::Relaxed) {
        return bar.finish_and_clear();
    }
    let groups = vec![JobWay::ALL.len(); jobs.len() / JobWay::ALL.len()];
    cells::measure(jobs, &groups, rounds, &bar, |cell, round, _| {
        let JobCell { way, jobs, requests, .. } = *cell;
        Job { way, jobs, requests, seed: round.into(), files }.run(&STOP)
    });
    bar.finish_and_clear();
}
