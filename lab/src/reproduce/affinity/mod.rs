//! The CPUs of submissions and completions matter on machines with many caches (Linux block layer,
//! 2008).
//!
//! Three CPUs are chosen independently: one runs the application, one hands requests over to the
//! kernel, and one completes requests. Each row of the tables has counters, which show whether the
//! requests ran where they should. The counters distinguish cells, not the CPUs in a cell. A cell
//! is a NUMA node, the CPUs with a common cache, a core, or the whole machine.

mod cycles;
mod filesystem;
mod lists;
mod load;
mod published;
mod report;
mod sites;

use super::cells::{self, keeps};
use super::options::Options;
use super::{Experiment, Measured, Setup, may_start_threads};
use crate::bench::{self, Load, Order};
use crate::scratch::{Place, Scratch};
use crate::session::{self, STOP, Session};
use crate::size;
use anyhow::Result;
use clap::Args;
use filesystem::FileSystems;
use lists::{ListCost, compare_lists};
use load::Run;
use report::Report;
use serde::Serialize;
use sites::{Cpus, Letters, placements};
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;
use uringlet::affinity::{Affinity, CpuSet, Device, Topology};
use uringlet::{Builder, Context};

/// For the 18 placements (the matrix): requests in flight, and bytes of each request, as published.
const LARGE: (usize, u64) = (128, 256 << 10);
/// For the measurement of small reads: requests in flight, bytes of each request, and bytes of the
/// range of the file, as published.
const SMALL: (usize, u64, u64) = (8, 4 << 10, 2 << 20);
/// Seconds that a run takes beside its measured seconds.
const OVERHEAD: f64 = 0.15;

const EXAMPLES: &str = include_str!("../../../help/affinity-examples.txt");

const METHOD: &str = include_str!("../../../help/affinity-method.txt");

const STATUS: &str = "Exit status: 0; 1 if it failed, or a placement was not proved; 2 if it was \
                      refused; 130 after Ctrl-C.";

#[derive(Args)]
#[command(after_help = session::help(&[EXAMPLES, METHOD, STATUS]))]
pub struct Arguments {
    /// Seconds for each row and round [default: 1; with --quick 0.2]
    #[arg(long, value_parser = bench::seconds, allow_hyphen_values = true)]
    seconds: Option<f64>,

    /// Also run free placement with each value of the kernel's own switch (queue/rq_affinity of
    /// the disk), which is CHANGED meanwhile and put back; needs root
    #[arg(long)]
    kernel_switch: bool,

    /// File systems side by side; 0 leaves this part out
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = size::whole::<u8>(0..=8), allow_hyphen_values = true)]
    file_systems: u8,
}

/// The subject of one table row.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum What {
    /// One of the 18 placements.
    Placed(Letters, Cpus),
    /// The scheduler chooses the CPUs. uringlet's `rq_affinity` has this value.
    Free { rq_affinity: u8 },
    /// The scheduler chooses the CPUs. The disk's `queue/rq_affinity` has this value.
    Kernel { rq_affinity: u8 },
    /// Small reads, by name.
    Small(&'static str),
}

/// One row of a table.
#[derive(Serialize)]
struct Cell {
    what: What,
    #[serde(skip)]
    builder: Builder,
    /// The load, and the number of reads in flight.
    #[serde(skip)]
    reads: (Load, usize),
    /// The CPU that the application is confined to.
    application: Option<usize>,
    /// The values that the counters should show: queue local, completion local.
    expected: Option<(bool, bool)>,
    runs: Vec<Run>,
    not_measured: Option<String>,
}

keeps!(Cell, runs: Run, |cell| report::name(&cell.what));

#[derive(Serialize)]
struct Settings {
    quick: bool,
    rounds: u32,
    seconds: f64,
    file_size: u64,
    /// The kind of the cells on this machine, such as NUMA nodes.
    cell: String,
    cells: Vec<String>,
    /// The CPU that serves the disk's interrupt.
    interrupt: usize,
}

impl Experiment for Arguments {
    const NAME: &str = "affinity";
    const CLAIM: &str = "submissions and completions run on the CPUs that they are placed on";

    type Place = Place;

    fn run(&self, place: &Place, options: &Options, session: &mut Session<'_>) -> Result<Measured> {
        may_start_threads()?;
        let (mut setup, scratch) = Setup::open::<Self>(place, options)?;
        let direct = disk(&scratch, &setup).map_err(session::refusal)?;
        let topology = Topology::look();
        let device = Device::behind(&scratch.buffered.metadata()?);
        let cells_here = topology.cells().iter().map(|cell| cell.and(topology.allowed()));
        let cells_here: Vec<CpuSet> = cells_here.filter(|cell| !cell.is_empty()).collect();
        let interrupt = interrupt(&topology, &device, &mut setup.notices);
        let quick = options.quick;
        let settings = Settings {
            quick,
            rounds: options.rounds(),
            seconds: self.seconds.unwrap_or(if quick { 0.2 } else { 1.0 }),
            file_size: scratch.size,
            cell: topology.cell_kind().to_string(),
            cells: cells_here.iter().map(ToString::to_string).collect(),
            interrupt,
        };
        let placements = placements(&cells_here, interrupt);
        let mut cells = all_cells(&placements, scratch.size, self.kernel_switch);
        let steps = cells.len() as u64 * u64::from(settings.rounds);
        let takes = Duration::from_secs_f64(steps as f64 * (settings.seconds + OVERHEAD));
        let takes = takes + filesystem::estimate(self.file_systems.into(), &settings);
        let rounds = format!("{} of {} s per row, interleaved", settings.rounds, settings.seconds);
        let list = settings.cells.join(" | ");
        let here = format!("{list} ({}); interrupt on CPU {interrupt}", settings.cell);
        let more = [("cells", here), ("rounds", rounds), ("takes", session::about(takes))];
        let header = setup.begin(session, &more)?;
        if session::fill(&scratch)? {
            let switch = Switch::of(device.as_ref().ok());
            measure(&mut cells, &settings, &scratch, direct, &switch, steps);
        }
        let lists = lists(Duration::from_secs_f64(settings.seconds.min(0.3)));
        let file_systems =
            FileSystems::measure(self.file_systems.into(), &settings, &scratch, direct);
        let setup = setup.end();
        let report = Report::new(setup, settings, placements, cells, lists, file_systems);
        let document = report.document(header, METHOD);
        let measured = Measured::new(document, &report, report.shown())?;
        Ok(Measured { proved: report.is_proved(), ..measured })
    }
}

/// The scratch file, open past the page cache, or the reason why it cannot be used.
fn disk<'a>(scratch: &'a Scratch, setup: &Setup) -> Result<&'a File, String> {
    let direct = match &scratch.direct {
        Ok(_) if setup.storage.is_memory() => Err("it is kept in memory"),
        direct => direct.as_ref().map_err(String::as_str),
    };
    let file = &scratch.description;
    let direct = direct.map_err(|reason| format!("--file {file}: {reason}; expected a disk"))?;
    let smallest = LARGE.1.max(SMALL.2);
    if scratch.size < smallest {
        return Err(format!("--size: expected at least {}", size::short(smallest)));
    }
    Ok(direct)
}

/// The cost of completion lists, for 1, 2 and 4 producers.
fn lists(each: Duration) -> Vec<ListCost> {
    let go_on = |_: &usize| !STOP.load(Ordering::Relaxed);
    [1, 2, 4].into_iter().filter(go_on).map(|producers| compare_lists(producers, each)).collect()
}

/// The CPU for the letter I ([`sites::Site`]): a CPU that serves the disk's interrupts, or else the
/// first CPU.
fn interrupt(
    topology: &Topology,
    device: &Result<Device, String>,
    notices: &mut Vec<String>,
) -> usize {
    let first = topology.allowed().first().unwrap_or(0);
    let none = |reason: &str| {
        format!(
            "no interrupt is known ({reason}): CPU {first} stands in for it, and completions \
             count as local on the CPU that has handed them over"
        )
    };
    match device {
        Err(reason) => {
            notices.push(none(reason));
            first
        }
        Ok(device) => {
            let found = device.interrupts.and(topology.allowed());
            let cells =
                topology.cells().iter().filter(|cell| cell.meets(&device.interrupts)).count();
            if cells > 1 {
                notices.push(format!(
                    "the disk's interrupts are served in {cells} cells, each near the CPU that \
                     hands over: completions are local there, whatever the row says"
                ));
            }
            found.first().unwrap_or_else(|| {
                notices.push(none(&device.notes.join(", ")));
                first
            })
        }
    }
}

fn one(cpu: usize) -> Affinity {
    Affinity::Cpus([cpu].into_iter().collect())
}

/// All rows to run: each distinct placement once, free placement, and small reads.
fn all_cells(placements: &[sites::Placed], size: u64, kernel: bool) -> Vec<Cell> {
    let (write, direct, order, fsync_every) = (false, true, Order::Sequential, None);
    let load = |window, block| Load { write, direct, order, window, block, fsync_every };
    let large = (load(size / LARGE.1 * LARGE.1, LARGE.1), LARGE.0);
    let small = (load(SMALL.2, SMALL.1), SMALL.0);
    let cell = |what, builder, reads| Cell {
        what,
        builder,
        reads,
        application: None,
        expected: None,
        runs: Vec::new(),
        not_measured: None,
    };
    let mut cells = Vec::new();
    for placed in placements.iter().filter(|placed| placed.same_as.is_none()) {
        let Some(cpus) = placed.cpus else { continue };
        let builder = Context::builder().queue_affinity(one(cpus.queue));
        let builder = builder.completion_affinity(one(cpus.completion));
        cells.push(Cell {
            application: Some(cpus.application),
            expected: Some((placed.queue_local, placed.completion_local)),
            ..cell(What::Placed(placed.letters, cpus), builder, large)
        });
    }
    for rq_affinity in 0..=2 {
        let builder = Context::builder().rq_affinity(rq_affinity);
        cells.push(cell(What::Free { rq_affinity }, builder, large));
    }
    for rq_affinity in (0..=2).filter(|_| kernel) {
        cells.push(cell(What::Kernel { rq_affinity }, Context::builder(), large));
    }
    cells.push(cell(What::Small(report::SMALL_FREE), Context::builder(), small));
    let ways =
        [(report::SMALL_REMOTE, Affinity::OtherCell), (report::SMALL_LOCAL, Affinity::Application)];
    for (name, completion) in ways {
        let builder = Context::builder().completion_affinity(completion);
        // `Application` and `OtherCell` depend on the cell of the first submit. The application
        // stays in that cell, because it is confined to one CPU.
        let application =
            placements.iter().find_map(|placed| placed.cpus).map(|cpus| cpus.application);
        cells.push(Cell { application, ..cell(What::Small(name), builder, small) });
    }
    cells
}

fn measure(
    cells: &mut [Cell],
    settings: &Settings,
    scratch: &Scratch,
    direct: &File,
    switch: &Switch,
    steps: u64,
) {
    let bar = session::steps(steps);
    let duration = Duration::from_secs_f64(settings.seconds);
    let groups = [cells.len()];
    cells::measure(cells, &groups, settings.rounds, &bar, |cell, _, _| {
        let run = || {
            scratch
                .drop_cache()
                .map_err(|error| format!("dropping the file's cache failed: {error}"))?;
            let (load, depth) = &cell.reads;
            let reads = (load, *depth);
            load::run(&cell.builder, direct, reads, cell.application, duration, &STOP)
        };
        match cell.what {
            What::Kernel { rq_affinity } => switch.set(rq_affinity).and_then(|_before| run()),
            _ => run(),
        }
    });
    bar.finish_and_clear();
}

/// The paths of `queue/rq_affinity` for each disk of the file: the kernel's own switch.
struct Switch(Vec<PathBuf>);

/// The earlier values of the kernel's switches, which are restored when this is dropped.
struct Before<'a>(Vec<(&'a PathBuf, String)>);

impl Switch {
    fn of(device: Option<&Device>) -> Self {
        let path = |disk: &String| PathBuf::from(format!("/sys/block/{disk}/queue/rq_affinity"));
        Self(device.map_or_else(Vec::new, |device| device.disks.iter().map(path).collect()))
    }

    fn set(&self, value: u8) -> Result<Before<'_>, String> {
        if self.0.is_empty() {
            return Err("no disk is known behind the file".into());
        }
        let mut before = Before(Vec::new());
        for path in &self.0 {
            let failed = |error: std::io::Error| format!("{}: {error}", path.display());
            let found = std::fs::read_to_string(path).map_err(failed)?;
            std::fs::write(path, value.to_string()).map_err(failed)?;
            before.0.push((path, found));
        }
        Ok(before)
    }
}

impl Drop for Before<'_> {
    fn drop(&mut self) {
        for (path, value) in &self.0 {
            if let Err(error) = std::fs::write(path, value.trim()) {
                session::tell(format_args!(
                    "uringlet reproduce affinity: {} is not back at {}: {error}",
                    path.display(),
                    value.trim()
                ));
            }
        }
    }
}
