//! Submitting inline and handing over when blocked, against io_uring (io_uring RFC, 2022).
//!
//! io_uring tries a request, and has a worker repeat it if it would block. uringlet executes the
//! request, and if it blocks, another thread goes on with the other requests.

use super::cells::{self, Cell as _};
use super::options::Options;
use super::published::Uringlet;
use super::report::{self, Goal, Ratio, Shown};
use super::{Experiment, Measured, STATUS, Setup, ascending, may_write, number};
use crate::bench::{self, Engine, Figure, Load, Manner, Order, Trial, exclusion, median, plots};
use crate::machine::Storage;
use crate::report::{
    Document, Figure as Plotted, Group, Header, NotMeasured, Record, Section, Table,
};
use crate::scratch::{Place, Scratch};
use crate::session::{self, STOP, Session};
use crate::size;
use anyhow::Result;
use clap::Args;
use serde::Serialize;
use std::time::Duration;

/// Bytes of the file that are written to, as published.
const WINDOW: u64 = 10 << 20;
/// Bytes per request, as published.
const BLOCK: u64 = 1 << 10;
const DEPTH_MAX: usize = 4096;
/// The compared engines, and their names in the publication.
const WAYS: [(Engine, Option<&str>); 4] = [
    (Engine::IoUring, Some("io_uring-async-buffered")),
    (Engine::IoUringAsync, None),
    (Engine::OursWorkers, Some("uringlet")),
    (Engine::OursAuto, None),
];

const EXAMPLES: &str = include_str!("../../help/uringlet-examples.txt");

const METHOD: &str = include_str!("../../help/uringlet-method.txt");

#[derive(Args)]
#[command(after_help = session::help(&[EXAMPLES, METHOD, STATUS]))]
pub struct Arguments {
    /// Requests in flight
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32",
          value_parser = number(DEPTH_MAX), allow_hyphen_values = true)]
    depth: Vec<usize>,

    /// Seconds for each of the two runs of a cell and round [default: 0.5; with --quick 0.1]
    #[arg(long, value_parser = bench::seconds, allow_hyphen_values = true)]
    seconds: Option<f64>,
}

/// The values of one side of a line: the measured or the published side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Values {
    kiops: f64,
    lat_min_us: Option<f64>,
    lat_mean_us: Option<f64>,
    lat_max_us: Option<f64>,
    lat_stdev_us: Option<f64>,
    /// Rate divided by io_uring's.
    ratio: Option<f64>,
}

/// One engine at one depth.
#[derive(Serialize)]
struct Cell {
    depth: usize,
    engine: Engine,
    /// Runs for the rate.
    rates: Vec<Figure>,
    /// Runs for the latencies.
    timed: Vec<Figure>,
    not_measured: Option<String>,
    measured: Option<Values>,
    published: Option<Values>,
}

impl cells::Cell for Cell {
    /// The figures for the rate, and for the latencies.
    type Figure = [Figure; 2];

    fn name(&self) -> String {
        format!("depth {}, {}", self.depth, self.engine.name())
    }

    fn not_measured(&mut self) -> &mut Option<String> {
        &mut self.not_measured
    }

    fn push(&mut self, [rate, timed]: [Figure; 2]) {
        self.rates.push(rate);
        self.timed.push(timed);
    }
}

impl Cell {
    fn iops(&self) -> Vec<f64> {
        self.rates.iter().map(|figure| figure.iops).collect()
    }

    /// Medians of the rounds, without the ratio.
    fn median(&self) -> Option<Values> {
        if self.not_measured.is_some() {
            return None;
        }
        let of = |value: fn(&bench::LatencyFigure) -> f64| {
            median(
                self.timed
                    .iter()
                    .filter_map(|figure| Some(value(figure.latency.as_ref()?)))
                    .collect(),
            )
        };
        Some(Values {
            kiops: median(self.iops())? / 1e3,
            lat_min_us: of(|latency| latency.complete.min),
            lat_mean_us: of(|latency| latency.complete.mean),
            lat_max_us: of(|latency| latency.complete.max),
            lat_stdev_us: of(|latency| latency.complete.stdev),
            ratio: None,
        })
    }

    fn published(&self, table: &[Uringlet]) -> Option<Values> {
        let (_, mode) = WAYS.iter().find(|(engine, _)| *engine == self.engine)?;
        let line =
            table.iter().find(|line| line.iodepth == self.depth && Some(&*line.mode) == *mode)?;
        Some(Values {
            kiops: line.kiops,
            lat_min_us: Some(line.lat_min_ns / 1e3),
            lat_mean_us: Some(line.lat_avg_ns / 1e3),
            lat_max_us: Some(line.lat_max_ns / 1e3),
            lat_stdev_us: Some(line.lat_stdev_ns / 1e3),
            ratio: None,
        })
    }
}

#[derive(Serialize)]
struct Settings {
    quick: bool,
    rounds: u32,
    seconds: f64,
    depths: Vec<usize>,
    block: u64,
    window: u64,
}

/// All results.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    setup: Setup,
    settings: Settings,
    cells: Vec<Cell>,
    shown: Vec<Shown>,
    published: Vec<Uringlet>,
}

impl Experiment for Arguments {
    const NAME: &str = "uringlet";
    const CLAIM: &str = "executing inline and handing over what blocks beats io_uring";

    type Place = Place;

    fn run(&self, place: &Place, options: &Options, session: &mut Session<'_>) -> Result<Measured> {
        let (setup, scratch) = Setup::open::<Self>(place, options)?;
        may_write(&scratch)?;
        let quick = options.quick;
        let settings = Settings {
            quick,
            rounds: options.rounds(),
            seconds: self.seconds.unwrap_or(if quick { 0.1 } else { 0.5 }),
            depths: ascending(&self.depth),
            block: BLOCK,
            window: WINDOW.min(scratch.size),
        };
        let mut cells = all_cells(&settings, &scratch, &setup.storage);
        let runs = 2 * cells.len() as u32 * settings.rounds;
        let takes = Duration::from_secs_f64(f64::from(runs) * (settings.seconds + 0.1));
        let rounds = format!("{} of {} s per run, interleaved", settings.rounds, settings.seconds);
        let more = [("rounds", rounds), ("takes", session::about(takes))];
        let header = setup.begin(session, &more)?;
        if session::fill(&scratch)? {
            measure(&settings, &mut cells, &scratch);
        }
        let published = Uringlet::table();
        compare(&mut cells, &published);
        let report =
            Report { shown: shown(&cells), setup: setup.end(), settings, cells, published };
        Measured::new(report.document(header), &report, report.shown.clone())
    }
}

fn load(window: u64) -> Load {
    let order = Order::Random;
    Load { write: true, direct: false, order, window, block: BLOCK, fsync_every: None }
}

fn all_cells(settings: &Settings, scratch: &Scratch, storage: &Storage) -> Vec<Cell> {
    let excluded = exclusion(&load(settings.window), scratch, storage);
    let mut cells = Vec::new();
    for &depth in &settings.depths {
        cells.extend(WAYS.map(|(engine, _)| Cell {
            depth,
            engine,
            rates: Vec::new(),
            timed: Vec::new(),
            not_measured: excluded.clone().or_else(|| engine.probe(depth, None).err()),
            measured: None,
            published: None,
        }));
    }
    cells
}

fn measure(settings: &Settings, cells: &mut [Cell], scratch: &Scratch) {
    let bar = session::steps(cells.len() as u64 * u64::from(settings.rounds));
    let groups = vec![WAYS.len(); settings.depths.len()];
    cells::measure(cells, &groups, settings.rounds, &bar, |cell, round, index| {
        // One seed for a depth and round: all engines get the same offsets.
        let seed = u64::from(round) << 8 | (index / WAYS.len()) as u64;
        let run = |timed| {
            let trial = Trial {
                engine: cell.engine,
                pool: None,
                load: load(settings.window),
                depth: cell.depth,
                manner: Manner::AllInACall,
                seed,
                pattern: seed << 16 | (index as u64) << 1 | u64::from(timed),
                duration: Duration::from_secs_f64(settings.seconds),
                timed,
            };
            trial.run(scratch, &STOP)
        };
        Ok([run(false)?, run(true)?])
    });
    bar.finish_and_clear();
}

/// Fills in medians, published figures and the ratios of both.
fn compare(cells: &mut [Cell], table: &[Uringlet]) {
    for group in cells.chunk_by_mut(|left, right| left.depth == right.depth) {
        for cell in &mut *group {
            (cell.measured, cell.published) = (cell.median(), cell.published(table));
        }
        let rate = |values: Option<Values>| values.map(|values| values.kiops);
        let native = group.iter().find(|cell| cell.engine == Engine::IoUring);
        let measured = native.and_then(|cell| rate(cell.measured));
        let published = native.and_then(|cell| rate(cell.published));
        let divide = |values: &mut Option<Values>, by: Option<f64>| {
            if let Some(values) = values {
                values.ratio = by.map(|by| values.kiops / by);
            }
        };
        for cell in group {
            divide(&mut cell.measured, measured);
            divide(&mut cell.published, published);
        }
    }
}

/// A claim for each depth and each engine of uringlet: its rate is at least io_uring's.
fn shown(cells: &[Cell]) -> Vec<Shown> {
    let mut all = Vec::new();
    for group in cells.chunk_by(|left, right| left.depth == right.depth) {
        let native = group.iter().find(|cell| cell.engine == Engine::IoUring);
        for cell in group.iter().filter(|cell| !cell.engine.is_native()) {
            let ratio = native.and_then(|native| Ratio::of(&cell.iops(), &native.iops()));
            all.push(Shown {
                published: cell.published.and_then(|values| values.ratio),
                ..Shown::goal(format!("{} / io_uring", cell.name()), ratio, Goal::AtLeast(1.0))
            });
        }
    }
    all
}

impl Report {
    fn document(&self, header: Header) -> Document {
        let heads = ["kIOPS", "min", "mean", "max", "deviation", "ratio"];
        let heads = ["depth", "engine"].into_iter().chain(heads).chain(heads);
        let mut table =
            Table::new("", heads, 2..14).grouped(&[("", 2), ("measured", 6), ("published", 6)]);
        for cell in &self.cells {
            let sides = [cell.measured, cell.published].into_iter().flat_map(texts);
            let row = [cell.depth.to_string(), cell.engine.name().to_owned()];
            table.row(row.into_iter().chain(sides));
        }
        let missing = self.cells.iter().map(|cell| (cell.name(), cell.not_measured.as_ref()));
        let records = self.cells.iter().flat_map(|cell| {
            let record = |runs| {
                let record = Record::default().with("experiment", self.setup.experiment);
                let record = record.with("depth", cell.depth).with("engine", cell.engine.name());
                record.with("runs_for", runs)
            };
            let missing = cell.not_measured.as_deref();
            let mut records = record("rate").rounds(&cell.rates, missing);
            records.extend(record("latency").rounds(&cell.timed, missing));
            records
        });
        let sections = vec![
            Section::new("Random writes of 1k in 10 MiB, cached; latencies in µs")
                .with_figures(self.figures())
                .with_table(table),
            Section::not_measured(&NotMeasured::by_reason(missing)),
        ];
        self.setup.document(header, METHOD, sections, report::shown(&self.shown), records)
    }

    fn figures(&self) -> Vec<Plotted> {
        let measured = || self.cells.iter().filter(|cell| cell.not_measured.is_none());
        let rates = WAYS.iter().map(|(engine, _)| {
            let mine = measured().filter(|cell| cell.engine == *engine);
            plots::rates(*engine, mine.map(|cell| (cell.depth, &*cell.rates)))
        });
        let mut figures = vec![plots::rate_plot("Rate", rates.collect())];
        let groups = self.settings.depths.iter().map(|&depth| {
            let mine = self.cells.iter().filter(|cell| cell.depth == depth);
            let bars = mine.map(|cell| plots::cpu_bar(cell.engine, &cell.rates)).collect();
            Group { label: format!("{depth} in flight"), bars }
        });
        figures.push(plots::cpu_plot("CPU time", groups.collect()));
        for depth in &self.settings.depths {
            let mine = measured().filter(|cell| cell.depth == *depth && !cell.timed.is_empty());
            let curves = mine.map(|cell| {
                let latencies = cell.timed.iter().filter_map(|run| run.latency.as_ref());
                plots::percentiles(cell.engine, latencies.map(|l| &l.complete.percentiles))
            });
            let curves: Vec<_> = curves.collect();
            if !curves.is_empty() {
                let title = format!("Completion latency, {depth} in flight");
                figures.push(plots::percentile_plot(title, "completion latency", curves));
            }
        }
        figures
    }
}

fn texts(values: Option<Values>) -> [String; 6] {
    let text = |value: Option<f64>| value.map_or_else(|| "-".into(), size::digits);
    let Some(values) = values else { return [const { None }; 6].map(text) };
    let Values { kiops, lat_min_us, lat_mean_us, lat_max_us, lat_stdev_us, ratio } = values;
    let ratio = ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
    let [a, b, c, d, e] =
        [Some(kiops), lat_min_us, lat_mean_us, lat_max_us, lat_stdev_us].map(text);
    [a, b, c, d, e, ratio]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ratios_are_to_io_uring_at_the_same_depth() {
        let figure = |iops| Figure {
            requests: 1,
            seconds: 1.0,
            iops,
            cpu_us_per_request: 1.0,
            user_us_per_request: 0.5,
            latency: None,
            executed_by: None,
        };
        let mut cells = Vec::new();
        for depth in [1, 3] {
            for (at, (engine, _)) in WAYS.into_iter().enumerate() {
                cells.push(Cell {
                    depth,
                    engine,
                    rates: vec![figure(1000.0 * (at + 1) as f64)],
                    timed: Vec::new(),
                    not_measured: None,
                    measured: None,
                    published: None,
                });
            }
        }
        compare(&mut cells, &Uringlet::table());
        let workers = |depth| {
            let mut mine = cells.iter().filter(|cell| cell.depth == depth);
            mine.find(|cell| cell.engine == Engine::OursWorkers).unwrap()
        };
        assert_eq!(workers(1).measured.unwrap().ratio, Some(3.0));
        assert_eq!(workers(1).published.unwrap().ratio, Some(120.0 / 428.0));
        assert!(workers(3).published.is_none(), "nothing was published for depth 3");
        let shown = shown(&cells);
        assert_eq!(shown.len(), 4);
        assert!(shown.iter().all(|line| line.verdict() == "reached"));
    }
}
