//! A pool of duplicated descriptors makes the C library's POSIX AIO parallel (QEMU, 2008).
//!
//! The C library executes the requests of one descriptor one after the other. If several duplicates
//! have a request each, the C library uses a thread for each duplicate.

use super::cells::{self, keeps};
use super::options::Options;
use super::published::FdPool;
use super::report::{self, Shown};
use super::{Experiment, Measured, STATUS, Setup, may_write};
use crate::bench::{self, Engine, Figure, Load, Manner, Order, Trial, exclusion, plots};
use crate::machine::Storage;
use crate::report::{
    Axis, Bar, Bars, Document, Figure as Plotted, Group, Header, Key, NotMeasured, Record, Scale,
    Section, Series, Table as Lines,
};
use crate::scratch::{Place, Scratch};
use crate::session::{self, STOP, Session};
use crate::size;
use anyhow::Result;
use clap::Args;
use serde::Serialize;
use std::time::Duration;

/// Requests in flight, as published.
const DEPTH: usize = 74;
/// Bytes per request, as published.
const BLOCK: u64 = 16 << 10;
/// Seconds that a run takes beside its measured seconds, on a quick disk.
const OVERHEAD: f64 = 0.1;

const EXAMPLES: &str = include_str!("../../help/fd-pool-examples.txt");

const METHOD: &str = include_str!("../../help/fd-pool-method.txt");

#[derive(Args)]
#[command(after_help = session::help(&[EXAMPLES, METHOD, STATUS]))]
pub struct Arguments {
    /// Seconds for each cell and round [default: 1; with --quick 0.2]
    #[arg(long, value_parser = bench::seconds, allow_hyphen_values = true)]
    seconds: Option<f64>,
}

/// One way to execute the requests, and its name in the publication.
struct PoolWay {
    engine: Engine,
    pool: Option<usize>,
    published: Option<&'static str>,
}

/// All ways to execute the requests, in the order of each table's rows.
const WAYS: [PoolWay; 9] = [
    PoolWay { engine: Engine::Psync, pool: None, published: None },
    PoolWay { engine: Engine::Posixaio, pool: None, published: None },
    PoolWay { engine: Engine::OursPosixAio, pool: Some(1), published: Some("posix-aio") },
    PoolWay { engine: Engine::OursPosixAio, pool: Some(16), published: Some("posix-aio") },
    PoolWay { engine: Engine::OursPosixAio, pool: Some(64), published: Some("posix-aio") },
    PoolWay { engine: Engine::Libaio, pool: None, published: Some("linux-aio") },
    PoolWay { engine: Engine::IoUring, pool: None, published: None },
    PoolWay { engine: Engine::OursWorkers, pool: None, published: None },
    PoolWay { engine: Engine::OursAuto, pool: None, published: None },
];

/// One of the four tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Table {
    /// As in the publication: `randwrite` or `write`.
    workload: &'static str,
    /// `off` (direct) or `on`.
    cache: &'static str,
}

const TABLES: [Table; 4] = [
    Table { workload: "randwrite", cache: "off" },
    Table { workload: "write", cache: "off" },
    Table { workload: "randwrite", cache: "on" },
    Table { workload: "write", cache: "on" },
];

impl Table {
    fn is_direct(self) -> bool {
        self.cache == "off"
    }

    fn label(self) -> String {
        let order = if self.workload == "write" { "Sequential" } else { "Random" };
        let cache = if self.is_direct() { "direct" } else { "cached" };
        format!("{order} writes of 16k, {cache}")
    }

    fn load(self, size: u64) -> Load {
        Load {
            write: true,
            direct: self.is_direct(),
            order: if self.workload == "write" { Order::Sequential } else { Order::Random },
            window: size,
            block: BLOCK,
            fsync_every: None,
        }
    }

    /// The engine and the pool of the baseline: ratios are divided by their throughput.
    fn baseline(self) -> (Engine, Option<usize>) {
        if self.is_direct() { (Engine::Libaio, None) } else { (Engine::OursPosixAio, Some(1)) }
    }
}

/// The values of one side of a line: the measured or the published side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Values {
    /// Throughput, in millions of bytes per second.
    mb_per_s: f64,
    /// Mean submission latency; none without a submit.
    submit_us: Option<f64>,
    /// Mean completion latency.
    complete_ms: f64,
    /// Throughput divided by that of the table's baseline.
    ratio: Option<f64>,
}

/// One engine in one table.
#[derive(Serialize)]
struct Cell {
    #[serde(flatten)]
    table: Table,
    engine: Engine,
    pool: Option<usize>,
    is_baseline: bool,
    figures: Vec<Figure>,
    not_measured: Option<String>,
    measured: Option<Values>,
    published: Option<Values>,
}

keeps!(Cell, figures: Figure, |cell| format!("{} · {}", cell.table.label(), cell.way()));

impl Cell {
    fn way(&self) -> String {
        match self.pool {
            Some(pool) => format!("{}, pool of {pool}", self.engine.name()),
            None => self.engine.name().to_owned(),
        }
    }

    /// Medians of the rounds, without the ratio.
    fn median(&self) -> Option<Values> {
        if self.not_measured.is_some() {
            return None;
        }
        let of = |value: fn(&Figure) -> Option<f64>| {
            bench::median(self.figures.iter().filter_map(value).collect())
        };
        Some(Values {
            mb_per_s: of(|figure| Some(figure.iops * BLOCK as f64 / 1e6))?,
            submit_us: of(|figure| Some(figure.latency?.submit?.us_per_request_mean)),
            complete_ms: of(|figure| Some(figure.latency?.complete.mean / 1e3))?,
            ratio: None,
        })
    }
}

#[derive(Serialize)]
struct Settings {
    quick: bool,
    rounds: u32,
    seconds: f64,
    depth: usize,
    block: u64,
    file_size: u64,
}

/// All results.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    setup: Setup,
    settings: Settings,
    cells: Vec<Cell>,
    /// Lines of the publication without a counterpart here.
    published_only: Vec<FdPool>,
    shown: Vec<Shown>,
    /// Descriptors open on the file after the last run, minus those before the first.
    descriptors_left_open: Option<usize>,
}

impl Experiment for Arguments {
    const NAME: &str = "fd-pool";
    const CLAIM: &str = "a pool of 64 descriptors lets POSIX AIO keep up with Linux AIO";

    type Place = Place;

    fn run(&self, place: &Place, options: &Options, session: &mut Session<'_>) -> Result<Measured> {
        let (setup, scratch) = Setup::open::<Self>(place, options)?;
        may_write(&scratch)?;
        let quick = options.quick;
        let settings = Settings {
            quick,
            rounds: options.rounds(),
            seconds: self.seconds.unwrap_or(if quick { 0.2 } else { 1.0 }),
            depth: DEPTH,
            block: BLOCK,
            file_size: scratch.size,
        };
        let mut cells = all_cells(&scratch, &setup.storage);
        let steps = cells.len() as u64 * u64::from(settings.rounds);
        let takes = Duration::from_secs_f64(steps as f64 * (settings.seconds + OVERHEAD));
        let rounds = format!("{} of {} s per cell, interleaved", settings.rounds, settings.seconds);
        let more = [("rounds", rounds), ("takes", session::about(takes))];
        let header = setup.begin(session, &more)?;
        let before = scratch.descriptors().ok();
        if session::fill(&scratch)? {
            measure(&mut cells, &settings, &scratch, steps);
        }
        let after = scratch.descriptors().ok();

        let table = FdPool::table();
        compare(&mut cells, &table);
        let published_only = table.into_iter().filter(|line| !has_counterpart(&cells, line));
        let report = Report {
            setup: setup.end(),
            settings,
            shown: shown(&cells),
            published_only: published_only.collect(),
            cells,
            descriptors_left_open: before
                .zip(after)
                .map(|(before, after)| after - before.min(after)),
        };
        Measured::new(report.document(header), &report, report.shown.clone())
    }
}

/// All combinations; impossible ones are marked with the reason.
fn all_cells(scratch: &Scratch, storage: &Storage) -> Vec<Cell> {
    let refusals = WAYS.map(|way| way.engine.probe(DEPTH, way.pool).err());
    let mut cells = Vec::new();
    for table in TABLES {
        let excluded = exclusion(&table.load(scratch.size), scratch, storage);
        for (PoolWay { engine, pool, .. }, refusal) in WAYS.iter().zip(&refusals) {
            cells.push(Cell {
                table,
                engine: *engine,
                pool: *pool,
                is_baseline: table.baseline() == (*engine, *pool),
                figures: Vec::new(),
                not_measured: refusal.clone().or_else(|| excluded.clone()),
                measured: None,
                published: None,
            });
        }
    }
    cells
}

fn measure(cells: &mut [Cell], settings: &Settings, scratch: &Scratch, steps: u64) {
    let bar = session::steps(steps);
    let groups = [WAYS.len(); TABLES.len()];
    cells::measure(cells, &groups, settings.rounds, &bar, |cell, round, index| {
        // One seed for a table and round: all engines get the same offsets.
        let seed = u64::from(round) << 8 | (index / WAYS.len()) as u64;
        let trial = Trial {
            engine: cell.engine,
            pool: cell.pool,
            load: cell.table.load(settings.file_size),
            depth: DEPTH,
            manner: Manner::AllInACall,
            seed,
            pattern: seed << 16 | index as u64,
            duration: Duration::from_secs_f64(settings.seconds),
            timed: true,
        };
        trial.run(scratch, &STOP)
    });
    bar.finish_and_clear();
}

fn corresponds(cell: &Cell, line: &FdPool) -> bool {
    let way = WAYS.iter().find(|way| (way.engine, way.pool) == (cell.engine, cell.pool));
    (cell.table.workload, cell.table.cache) == (&*line.workload, &*line.cache)
        && way.and_then(|way| way.published) == Some(&*line.path)
        && cell.pool == line.pool
}

fn has_counterpart(cells: &[Cell], line: &FdPool) -> bool {
    cells.iter().any(|cell| corresponds(cell, line))
}

/// Fills in medians, published figures and the ratios of both.
fn compare(cells: &mut [Cell], published: &[FdPool]) {
    for cell in &mut *cells {
        cell.measured = cell.median();
        let line = published.iter().find(|line| corresponds(cell, line));
        cell.published = line.map(|line| Values {
            mb_per_s: line.mb_per_s,
            submit_us: Some(line.submit_us),
            complete_ms: line.complete_ms,
            ratio: None,
        });
    }
    for group in cells.chunk_by_mut(|left, right| left.table == right.table) {
        let baseline = group.iter().find(|cell| cell.is_baseline);
        let measured = baseline.and_then(|cell| cell.measured).map(|found| found.mb_per_s);
        let published = baseline.and_then(|cell| cell.published).map(|found| found.mb_per_s);
        let divide = |values: &mut Option<Values>, by: Option<f64>| {
            if let Some(values) = values {
                values.ratio = by.map(|by| values.mb_per_s / by);
            }
        };
        for cell in group {
            divide(&mut cell.measured, measured);
            divide(&mut cell.published, published);
        }
    }
}

/// The publication's statements in words, with figures of both sides.
fn shown(cells: &[Cell]) -> Vec<Shown> {
    let mut all = Vec::new();
    for table in TABLES.into_iter().filter(|table| table.is_direct()) {
        let find = |engine, pool| {
            cells.iter().find(|c| (c.table, c.engine, c.pool) == (table, engine, pool))
        };
        let pool = |size| find(Engine::OursPosixAio, Some(size));
        let claims = [
            ("a pool of 64 / a pool of 1", pool(64), pool(1)),
            ("a pool of 64 / a pool of 16", pool(64), pool(16)),
            ("a pool of 64 / Linux AIO", pool(64), find(Engine::Libaio, None)),
        ];
        for (what, above, below) in claims {
            let Some((above, below)) = above.zip(below) else { continue };
            let ratio = |above: Option<Values>, below: Option<Values>| {
                Some(above?.mb_per_s / below?.mb_per_s)
            };
            all.push(Shown {
                what: format!("{}: {what}", table.label()),
                measured: ratio(above.measured, below.measured),
                published: ratio(above.published, below.published),
                ..Shown::default()
            });
        }
    }
    all
}

impl Report {
    fn document(&self, header: Header) -> Document {
        let mut sections: Vec<Section> = TABLES.iter().map(|table| self.section(*table)).collect();
        if let Some(last) = sections.last_mut() {
            last.notes.push("In parentheses: published only.".into());
        }
        let missing = self.cells.iter().map(|cell| {
            let name = format!("{}: {}", cell.table.label(), cell.way());
            (name, cell.not_measured.as_ref())
        });
        sections.push(Section::not_measured(&NotMeasured::by_reason(missing)));
        let left = match self.descriptors_left_open {
            Some(left) => left.to_string(),
            None => "unknown (no /proc)".into(),
        };
        let left = format!("Descriptors of the file left open by the engines: {left}");
        let records = self.cells.iter().flat_map(|cell| {
            let pool = cell.pool.map_or_else(String::new, |pool| pool.to_string());
            let record = Record::default().with("experiment", self.setup.experiment);
            let record = record.with("workload", cell.table.workload);
            let record = record.with("cache", cell.table.cache).with("engine", cell.engine.name());
            record.with("pool", pool).rounds(&cell.figures, cell.not_measured.as_deref())
        });
        let summary = report::shown(&self.shown).with_notes([left]);
        self.setup.document(header, METHOD, sections, summary, records)
    }

    fn section(&self, table: Table) -> Section {
        let mine = || self.cells.iter().filter(|cell| cell.table == table);
        let baseline = mine().find(|cell| cell.is_baseline);
        let name = baseline.map_or_else(String::new, Cell::way);
        let heads = ["MB/s", "submit µs", "complete ms", "ratio"];
        let heads = ["engine"].into_iter().chain(heads).chain(heads);
        let mut out =
            Lines::new("", heads, 1..9).grouped(&[("", 1), ("measured", 4), ("published", 4)]);
        for cell in mine() {
            let sides = [cell.measured, cell.published].into_iter().flat_map(texts);
            out.row(std::iter::once(cell.way()).chain(sides));
        }
        for line in &self.published_only {
            if (&*line.workload, &*line.cache) != (table.workload, table.cache) {
                continue;
            }
            let baseline = baseline.and_then(|cell| cell.published);
            let values = Values {
                mb_per_s: line.mb_per_s,
                submit_us: Some(line.submit_us),
                complete_ms: line.complete_ms,
                ratio: baseline.map(|baseline| line.mb_per_s / baseline.mb_per_s),
            };
            let sides = [None, Some(values)].into_iter().flat_map(texts);
            out.row(std::iter::once(format!("({})", line.name())).chain(sides));
        }
        Section::new(format!("{}; ratio to {name}", table.label()))
            .with_figures(self.figures(table))
            .with_table(out)
    }

    fn figures(&self, table: Table) -> Vec<Plotted> {
        let mine = || self.cells.iter().filter(|cell| cell.table == table);
        if mine().all(|cell| cell.measured.is_none()) {
            return Vec::new();
        }
        let label = table.label();
        let bars = |value, origin, keys, groups| {
            let category = "engines, 74 in flight (psync: 1)".into();
            Bars { value, category, origin, keys, groups }
        };
        let pairs = mine().map(|cell| {
            let ratio = |values: Option<Values>| values.and_then(|values| values.ratio);
            let mut bars = vec![Bar::one("measured", 0, ratio(cell.measured))];
            bars.extend(ratio(cell.published).map(|ratio| Bar::one("published", 1, Some(ratio))));
            Group { label: cell.way(), bars }
        });
        let one = |of: fn(&Values) -> Option<f64>| {
            let group = |cell: &Cell| {
                let value = cell.measured.as_ref().and_then(of);
                Group { label: cell.way(), bars: vec![Bar::one("", 0, value)] }
            };
            mine().map(group).collect::<Vec<_>>()
        };
        let ratio = Axis::new("ratio of MB/s to the baseline", "1 is equal, log scale", Scale::Log);
        let submit = Axis::new("submit time per request", "µs", Scale::Linear);
        let rate = Axis::new("throughput", "MB/s", Scale::Linear);
        let curves =
            mine().filter(|cell| cell.not_measured.is_none()).zip(0..).map(|(cell, style)| {
                let latencies = cell.figures.iter().filter_map(|run| run.latency.as_ref());
                let curve = plots::percentiles(
                    cell.engine,
                    latencies.map(|latency| &latency.complete.percentiles),
                );
                Series { name: cell.way(), style, ..curve }
            });
        vec![
            Plotted::bars(
                format!("{label}: throughput"),
                "Medians of the rounds; more is better.",
                bars(rate, 0.0, vec![Key::new("measured", 2, false)], one(|v| Some(v.mb_per_s))),
            ),
            Plotted::bars(
                format!("{label}: measured and published"),
                "Throughput divided by that of the baseline of the same side.",
                bars(ratio, 1.0, Key::measured_and_published(), pairs.collect()),
            ),
            Plotted::bars(
                format!("{label}: submit"),
                "Time in submit calls by the caller's clock, divided by the requests; less is \
                 better.",
                bars(submit, 0.0, vec![Key::new("measured", 2, false)], one(|v| v.submit_us)),
            ),
            plots::percentile_plot(
                format!("{label}: completion latency"),
                "completion latency",
                curves.collect(),
            ),
        ]
    }
}

fn texts(values: Option<Values>) -> [String; 4] {
    let none = || "-".to_owned();
    let Some(values) = values else { return [none(), none(), none(), none()] };
    [
        size::digits(values.mb_per_s),
        values.submit_us.map_or_else(none, size::digits),
        milliseconds(values.complete_ms),
        values.ratio.map_or_else(none, |ratio| format!("{ratio:.2}")),
    ]
}

/// A number of milliseconds with three digits; below 1, in whole microseconds.
fn milliseconds(value: f64) -> String {
    if value < 1.0 { format!("{value:.3}") } else { size::digits(value) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Distribution;

    /// All cells of a machine on which the engine at `at` in [`WAYS`] executes `100 + at` requests
    /// a second.
    fn measured() -> Vec<Cell> {
        let mut cells = Vec::new();
        for table in TABLES {
            for (at, way) in WAYS.iter().enumerate() {
                cells.push(Cell {
                    table,
                    engine: way.engine,
                    pool: way.pool,
                    is_baseline: table.baseline() == (way.engine, way.pool),
                    figures: vec![Figure {
                        requests: 1,
                        seconds: 1.0,
                        iops: 100.0 + at as f64,
                        cpu_us_per_request: 1.0,
                        user_us_per_request: 0.5,
                        latency: Some(bench::LatencyFigure {
                            samples: 1,
                            submit: None,
                            complete: Distribution { mean: 2000.0, ..Distribution::default() },
                            total_us: Default::default(),
                            total_shares: Default::default(),
                        }),
                        executed_by: None,
                    }],
                    not_measured: None,
                    measured: None,
                    published: None,
                });
            }
        }
        compare(&mut cells, &FdPool::table());
        cells
    }

    #[test]
    fn every_published_line_but_two_kinds_has_a_counterpart() {
        let cells = measured();
        let table = FdPool::table();
        let alone: Vec<_> = table.iter().filter(|line| !has_counterpart(&cells, line)).collect();
        assert_eq!(alone.len(), 4);
        assert!(alone.iter().all(|l| ["baremetal", "posix-aio-patched"].contains(&&*l.path)));
        assert_eq!(cells.iter().filter(|cell| cell.published.is_some()).count(), 10);
    }

    #[test]
    fn both_ratios_are_to_the_same_baseline() {
        let cells = measured();
        for group in cells.chunk_by(|left, right| left.table == right.table) {
            let baseline = group.iter().find(|cell| cell.is_baseline).unwrap();
            assert_eq!(baseline.measured.unwrap().ratio, Some(1.0));
            assert_eq!(baseline.published.unwrap().ratio, Some(1.0));
        }
        let shown = shown(&cells);
        assert_eq!(shown.len(), 6);
        assert!((shown[0].published.unwrap() - 51.1 / 4.7).abs() < 1e-9);
        assert!((shown[2].measured.unwrap() - 104.0 / 105.0).abs() < 1e-9);
        assert_eq!(cells[0].measured.unwrap().complete_ms, 2.0);
    }
}
