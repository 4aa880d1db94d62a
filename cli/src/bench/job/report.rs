//! What the user gets of a job run: tables, what could not be measured, and JSON in fio's shape with more beside it.

use super::layout::Laid;
use super::options::Spec;
use super::{Cell, Runs, Settings};
use crate::bench::drive::{Done, Figure, LatencyFigure};
use crate::bench::engine::Engine;
use crate::bench::fio_json::{Entry, Top};
use crate::bench::matrix::{Comparison, subject};
use crate::bench::report::{ratio_cells, submit_text};
use crate::machine::{Machine, Storage};
use crate::report::{Cell as TableCell, Document, Header, NotMeasured, Record, Section, Table};
use crate::{session, size};
use serde::Serialize;
use serde_json::{Map, Value};

/// What is known before the first measurement.
pub fn header(
    machine: &Machine,
    storage: &Storage,
    runs: &Runs,
    laid: &Laid,
    notices: Vec<String>,
) -> Header {
    let rounds = format!("{}, interleaved, and one more for latencies", runs.settings.rounds);
    let mut more = vec![("jobs", runs.settings.files.join(", ")), ("rounds", rounds)];
    if let Some(estimate) = runs.estimate() {
        more.push(("takes", format!("at most {}", session::about(estimate))));
    }
    session::header("bench", machine, storage, files(runs, laid), &more, notices)
}

/// `3 files, 12.0 MiB, from ./a.0.0 on; 3 of them made here and kept`.
fn files(runs: &Runs, laid: &Laid) -> String {
    let files = &runs.plan.files;
    let bytes = size::long(files.values().map(|needed| needed.len).sum());
    let first = files.keys().next().map(|path| path.display().to_string()).unwrap_or_default();
    let what = match files.len() {
        1 => format!("{first}, {bytes}"),
        count => format!("{count} files, {bytes} in all, the first is {first}"),
    };
    let kept = files.values().filter(|needed| !needed.unlink).count() > 0;
    match laid.made() {
        0 => what,
        made => format!("{what}; {made} made for this{}", if kept { ", and kept" } else { "" }),
    }
}

/// Everything that came out.
#[derive(Serialize)]
pub struct Report<'a> {
    #[serde(flatten)]
    fio: Top,
    machine: &'a Machine,
    storage: &'a Storage,
    file: String,
    notices: Vec<String>,
    settings: &'a Settings,
    interrupted: bool,
    lines: Vec<Line<'a>>,
    cells: Vec<Measured<'a>>,
    not_measured: Vec<NotMeasured>,
    #[serde(skip)]
    runs: &'a Runs,
}

/// One line of the tables.
#[derive(Serialize)]
struct Line<'a> {
    job: &'a str,
    group: usize,
    /// None if uringlet or every native engine has no figure.
    comparison: Option<Comparison>,
}

/// A cell with its medians.
#[derive(Serialize)]
struct Measured<'a> {
    job: &'a str,
    group: usize,
    rw: String,
    block: u64,
    depth: usize,
    threads: u64,
    engine: Engine,
    figures: Vec<Round<'a>>,
    latency: Option<LatencyFigure>,
    not_measured: Option<&'a str>,
    iops_median: Option<f64>,
    cpu_us_per_request_median: Option<f64>,
}

#[derive(Serialize)]
struct Round<'a> {
    reads: u64,
    writes: u64,
    #[serde(flatten)]
    figure: &'a Figure,
}

impl<'a> Report<'a> {
    /// Gathers it.
    pub fn new(
        machine: &'a Machine,
        storage: &'a Storage,
        runs: &'a Runs,
        notices: Vec<String>,
        interrupted: bool,
    ) -> Self {
        let rows = &runs.plan.rows;
        let lines = rows.iter().enumerate().map(|(at, row)| Line {
            job: &row.name,
            group: row.group,
            comparison: runs.comparison(at),
        });
        let measured = |cell: &'a Cell| {
            let row = &rows[cell.row];
            let spec = runs.spec(cell.row);
            let round = |(figure, done): (&'a Figure, &Done)| Round {
                reads: done.reads,
                writes: done.writes,
                figure,
            };
            let side = cell.side();
            Measured {
                job: &row.name,
                group: row.group,
                rw: rw(spec),
                block: spec.bs,
                depth: spec.iodepth,
                threads: runs.plan.threads(cell.row),
                engine: cell.engine,
                figures: cell.figures.iter().zip(&cell.done).map(round).collect(),
                latency: cell.latency,
                not_measured: cell.not_measured.as_deref(),
                iops_median: side.and_then(|side| side.iops()),
                cpu_us_per_request_median: side.and_then(|side| side.cpu_us()),
            }
        };
        Self {
            fio: Top::new(global_options(&runs.plan.specs), entries(runs)),
            machine,
            storage,
            file: files_line(runs),
            notices,
            settings: &runs.settings,
            interrupted,
            lines: lines.collect(),
            cells: runs.cells.iter().map(measured).collect(),
            not_measured: not_measured(runs),
            runs,
        }
    }

    /// For people.
    pub fn document(&self, header: Header, method: &str) -> Document {
        let all = &self.settings.engines[..];
        let section = |heading: &str, table| Section::new(heading).with_table(table);
        let latency = |cell: &Cell| cell.latency.filter(|_| cell.not_measured.is_none());
        let mut sections = vec![
            section(
                "Requests per second",
                self.table(all, true, |cell| Some(size::rate(cell.side()?.iops()?))),
            ),
            section(
                "Throughput, MiB/s",
                self.table(all, false, |cell| {
                    let bytes = cell.side()?.iops()? * self.runs.spec(cell.row).bs as f64;
                    Some(size::digits(bytes / f64::from(1 << 20)))
                }),
            ),
            section(
                "CPU time per request, µs (all threads, user and system; of jobs that run together, the mean)",
                self.table(all, false, |cell| Some(size::digits(cell.side()?.cpu_us()?))),
            ),
            section(
                "Latency from the submit on by the caller's clock, µs: mean / 99.9th percentile",
                self.table(all, false, |cell| {
                    let found = latency(cell)?;
                    let (mean, p999) = (found.complete_us_mean, found.complete_us_p999);
                    Some(format!("{} / {}", size::digits(mean), size::digits(p999)))
                }),
            ),
        ];
        let submitting: Vec<Engine> =
            all.iter().copied().filter(|engine| !engine.is_synchronous()).collect();
        if !submitting.is_empty() {
            sections.push(section(
                "Submit by the caller's clock, µs: mean per request / 99.9th percentile of the calls",
                self.table(&submitting, false, |cell| submit_text(latency(cell)?)),
            ));
        }
        sections.push(Section::not_measured(&self.not_measured));
        Document {
            header,
            interrupted: self.interrupted,
            method: method.into(),
            sections,
            summary: Section::default(),
            parts: Vec::new(),
            records: self.records(),
        }
    }

    /// A line for each cell and round, and one for the latencies of a cell.
    fn records(&self) -> Vec<Record> {
        let of = |cell: &Cell| {
            let spec = self.runs.spec(cell.row);
            let record = Record::default()
                .with("job", self.runs.plan.rows[cell.row].name.as_str())
                .with("rw", rw(spec))
                .with("block", spec.bs)
                .with("depth", spec.iodepth)
                .with("threads", self.runs.plan.threads(cell.row))
                .with("engine", cell.engine.name());
            let mut records = record.clone().rounds(&cell.figures, cell.not_measured.as_deref());
            if let Some(latency) = &cell.latency {
                records.extend(record.once("latencies", latency));
            }
            records
        };
        self.runs.cells.iter().flat_map(of).collect()
    }

    fn table(
        &self,
        engines: &[Engine],
        with_ratio: bool,
        value: impl Fn(&Cell) -> Option<String>,
    ) -> Table {
        let mut heads = vec!["job".to_owned(), "load".to_owned()];
        heads.extend(engines.iter().map(|engine| engine.name().to_owned()));
        let with_ratio = with_ratio && subject(&self.settings.engines).is_some();
        if with_ratio {
            heads.extend(["ratio", "rounds", "against"].map(str::to_owned));
        }
        let right = 2..2 + engines.len() + usize::from(with_ratio);
        let mut table = Table::new("", heads, right);
        for (at, line) in self.lines.iter().enumerate() {
            let mut row = vec![TableCell::from(line.job), TableCell::from(self.load(at))];
            for &engine in engines {
                let found = self.runs.cell(at, engine).and_then(&value);
                row.push(TableCell::from(found.unwrap_or_else(|| "-".into())));
            }
            if with_ratio {
                row.extend(ratio_cells(line.comparison, self.settings.rounds));
            }
            table.row(row);
        }
        table
    }

    /// `randrw 4k, depth 8 × 4`.
    fn load(&self, row: usize) -> String {
        let spec = self.runs.spec(row);
        let threads = match self.runs.plan.threads(row) {
            1 => String::new(),
            threads => format!(" × {threads}"),
        };
        format!("{} {}, depth {}{threads}", rw(spec), size::short(spec.bs), spec.iodepth)
    }
}

impl Runs {
    /// The first section of a row, which fio takes for all of it.
    fn spec(&self, row: usize) -> &Spec {
        &self.plan.specs[self.plan.rows[row].specs[0]]
    }
}

/// As fio calls it.
fn rw(spec: &Spec) -> String {
    let what = match (spec.rw.reads, spec.rw.writes) {
        (true, true) => "rw",
        (true, false) => "read",
        _ => "write",
    };
    format!("{}{what}", if spec.rw.random { "rand" } else { "" })
}

fn files_line(runs: &Runs) -> String {
    let names = runs.plan.files.keys().map(|path| path.display().to_string());
    names.collect::<Vec<_>>().join(", ")
}

/// Options of global sections that all jobs have.
fn global_options(specs: &[Spec]) -> Map<String, Value> {
    let of = |spec: &Spec| options(spec, true);
    let Some(first) = specs.first().map(of) else { return Map::new() };
    let everywhere =
        |name: &str, value: &Value| specs.iter().all(|spec| of(spec).get(name) == Some(value));
    first.into_iter().filter(|(name, value)| everywhere(name, value)).collect()
}

fn options(spec: &Spec, global: bool) -> Map<String, Value> {
    let chosen = spec.own.iter().filter(|entry| entry.global == global);
    chosen.map(|e| (e.name.clone(), e.value.clone().unwrap_or_else(|| "1".into()).into())).collect()
}

/// One for each engine and job that has figures.
fn entries(runs: &Runs) -> Vec<Value> {
    let entry = |cell: &Cell| {
        if cell.not_measured.is_some() || cell.figures.is_empty() {
            return None;
        }
        let row = &runs.plan.rows[cell.row];
        let spec = runs.spec(cell.row);
        let mut options = options(spec, false);
        // What readers look for in every entry, as it is.
        let mut set = |name: &str, value: String| options.insert(name.into(), value.into());
        set("rw", rw(spec));
        set("bs", size::short(spec.bs));
        set("iodepth", spec.iodepth.to_string());
        set("numjobs", runs.plan.threads(cell.row).to_string());
        set("direct", u8::from(spec.direct).to_string());
        let value = Entry {
            name: &row.name,
            group: row.group,
            engine: cell.engine,
            options,
            block: spec.bs,
            threads: runs.plan.threads(cell.row),
            depth: spec.iodepth,
            figures: &cell.figures,
            done: &cell.done,
            latency: cell.sides,
        };
        Some(value.value())
    };
    runs.cells.iter().filter_map(entry).collect()
}

/// Reasons, and what each is the reason for.
fn not_measured(runs: &Runs) -> Vec<NotMeasured> {
    let of = |cell: &Cell| {
        let everywhere = |other: &&Cell| other.engine == cell.engine;
        let same = |other: &Cell| other.not_measured == cell.not_measured;
        let name = if runs.cells.iter().filter(everywhere).all(same) {
            cell.engine.name().to_owned()
        } else {
            format!("{}, {}", runs.plan.rows[cell.row].name, cell.engine.name())
        };
        Some((name, cell.not_measured.clone()?))
    };
    NotMeasured::by_reason(runs.cells.iter().filter_map(of))
}
