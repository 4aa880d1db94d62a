//! The output of a run of job files: tables, what could not be measured, and JSON.

use super::output::{Figure, Job};
use super::{Cell, Row, Runs, Way};
use crate::bench::comparison::middle;
use crate::bench::conclusion::{self, Circumstances, Line, Words};
use crate::bench::results::Results;
use crate::machine::{Machine, Storage};
use crate::report::{
    Axis, Bar, Bars, Cell as TableCell, Figure as Plot, Group, Header, Key, NotMeasured, Record,
    Scale, Section, Table,
};
use crate::{session, size};
use serde::Serialize;
use serde_json::{Value, json};
use std::path::Path;
use uringlet_lab::bench::{median, outside};

/// The facts that are known before the first measurement.
pub fn header(
    machine: &Machine,
    storage: &Storage,
    runs: &Runs,
    folder: &Path,
    notices: Vec<String>,
) -> Header {
    let seconds =
        runs.settings.seconds.map_or_else(String::new, |s| format!(", at most {s} s a job"));
    let rounds = format!("{}, interleaved{seconds}", runs.settings.rounds);
    let fio = runs.fio.display().to_string();
    let more = [("jobs", runs.settings.files.join(", ")), ("fio", fio), ("rounds", rounds)];
    let file = format!("those of the jobs, in {}", folder.display());
    session::header("bench", machine, storage, file, &more, notices)
}

/// A cell with its medians.
#[derive(Serialize)]
struct Measured<'a> {
    job: &'a str,
    group: u64,
    #[serde(flatten)]
    load: Load,
    engine: &'a Way,
    figures: Vec<&'a Figure>,
    not_measured: Option<&'a str>,
    iops_median: Option<f64>,
    cpu_us_per_request_median: Option<f64>,
}

impl<'a> Measured<'a> {
    fn of((row, engine, cell): (&'a Row, &'a Way, &'a Cell)) -> Self {
        Self {
            job: &row.name,
            group: row.group,
            load: row.load(),
            engine,
            figures: cell.figures().collect(),
            not_measured: cell.not_measured.as_deref(),
            iops_median: cell.median(|figure| Some(figure.iops)),
            cpu_us_per_request_median: cell.median(|figure| Some(figure.cpu_us_per_request)),
        }
    }

    /// The lines of the CSV file: one for each round.
    fn records(&self) -> Vec<Record> {
        let record = Record::default()
            .with("job", self.job)
            .with("rw", &self.load.rw)
            .with("block", &self.load.block)
            .with("depth", self.load.depth)
            .with("threads", self.load.threads)
            .with("engine", self.engine.name());
        record.rounds(&self.figures, self.not_measured)
    }
}

impl Cell {
    fn median(&self, of: fn(&Figure) -> Option<f64>) -> Option<f64> {
        let values: Option<Vec<f64>> = self.figures().map(of).collect();
        median(values.filter(|_| self.not_measured.is_none())?)
    }
}

/// The load of a job.
#[derive(Serialize)]
struct Load {
    rw: String,
    #[serde(skip)]
    bs: String,
    /// Bytes, or the text of the option `bs` if it is not a single size.
    block: Value,
    depth: u64,
    threads: u64,
}

impl Load {
    fn of(job: Option<&Job>) -> Self {
        let option = |name: &str| Some(job?.options.get(name)?.as_str()?.to_owned());
        let number = |name: &str| option(name)?.parse().ok();
        let bs = option("bs").unwrap_or_else(|| "4k".into());
        Self {
            block: size::parse(&bs).map_or_else(|_| bs.clone().into(), Value::from),
            bs,
            rw: option("rw").unwrap_or_else(|| "read".into()),
            depth: number("iodepth").unwrap_or(1),
            threads: number("numjobs").unwrap_or(1),
        }
    }

    /// `randrw 4k, depth 8 × 4`.
    fn text(&self) -> String {
        let Self { rw, bs, depth, threads, .. } = self;
        let threads = if *threads == 1 { String::new() } else { format!(" × {threads}") };
        format!("{rw} {bs}, depth {depth}{threads}")
    }
}

impl Row {
    fn load(&self) -> Load {
        Load::of(self.cells.values().find_map(|cell| cell.jobs.first()))
    }
}

impl Runs {
    /// The indices of uringlet's ways in [`Runs::ways`].
    fn ours(&self) -> impl Iterator<Item = usize> {
        (0..self.ways.len()).filter(|&way| self.ways[way].ours.is_some())
    }

    /// The line of one of uringlet's ways in one job.
    fn line(&self, row: &Row, way: usize) -> Line {
        let (Row { name, group, .. }, ours) = (row, &self.ways[way]);
        let found = self.comparison(row, way);
        Line {
            keys: json!({ "job": name, "group": group, "engine": ours }),
            columns: [name.clone(), ours.name()],
            bar: ours.ioengine.clone(),
            name: format!("{name} through {}", ours.ioengine),
            comparison: found.map(|found| found.named(|at| self.ways[at].name())),
        }
    }

    /// Reasons, each with what was not measured.
    fn not_measured(&self) -> Vec<NotMeasured> {
        let refused = self.refused.iter().map(|(file, way, reason)| {
            let (name, path) = (self.ways[*way].name(), &self.settings.files[*file]);
            let name = if self.files.len() == 1 { name } else { format!("{path}, {name}") };
            (name, Some(reason))
        });
        let failed = self.cells().map(|(row, way, cell)| {
            (format!("{}, {}", row.name, way.name()), cell.not_measured.as_ref())
        });
        NotMeasured::by_reason(refused.chain(failed))
    }

    /// All results.
    pub fn results(&self, method: &'static str) -> Results {
        let lines = self.rows.iter().flat_map(|row| self.ours().map(|way| self.line(row, way)));
        let lines: Vec<Line> = lines.collect();
        let around = self.around();
        let sentences = conclusion::sentences(&lines, &around);
        let cells: Vec<Measured<'_>> = self.cells().map(Measured::of).collect();
        let not_measured = self.not_measured();
        Results {
            own: json!({
                "fio version": self.version,
                "jobs": self.entries(),
                "sentences": sentences,
            }),
            settings: json!(self.settings),
            cells: json!(cells),
            lines,
            around,
            sentences,
            method,
            sections: self.sections(&not_measured),
            not_measured,
            records: cells.iter().flat_map(Measured::records).collect(),
            is_measured: self.cells().any(|(_, _, cell)| cell.not_measured.is_none()),
            is_refused: true,
        }
    }

    /// The entries that fio itself has printed for each cell, in the median round.
    fn entries(&self) -> Vec<Value> {
        let of = |(_, way, cell): (&Row, &Way, &Cell)| {
            let job = middle(&cell.jobs, |job| job.figure.iops);
            let mut entries = job.map(|job| job.entries.clone()).unwrap_or_default();
            for entry in &mut entries {
                entry["uringlet"] = json!({ "engine": way });
            }
            entries
        };
        self.cells().flat_map(of).collect()
    }

    fn sections(&self, not_measured: &[NotMeasured]) -> Vec<Section> {
        let section = |heading: &str, value: &dyn Fn(&Cell) -> Option<String>| {
            Section::new(heading).with_table(self.table(value))
        };
        let digits = |value: Option<f64>| value.map(size::digits);
        let latency = |cell: &Cell| {
            let mean = size::digits(cell.median(|figure| Some(figure.mean_us))?);
            let p99 = digits(cell.median(|figure| figure.p99_us));
            Some(format!("{mean} / {}", p99.unwrap_or_else(|| "-".into())))
        };
        let mib = |cell: &Cell| {
            digits(cell.median(|figure| Some(figure.bytes_per_second / f64::from(1 << 20))))
        };
        let rate = |cell: &Cell| cell.median(|figure| Some(figure.iops));
        let cpu = |cell: &Cell| cell.median(|figure| Some(figure.cpu_us_per_request));
        let mut sections = vec![
            section("Requests per second", &|cell| rate(cell).map(size::rate))
                .with_figures(self.bars("Requests per second", "requests/s", &rate)),
            section("Throughput, MiB/s", &mib),
            section("CPU time per request, µs (user and system, as fio counts it)", &|cell| {
                digits(cpu(cell))
            })
            .with_figures(self.bars("CPU time per request", "µs", &cpu)),
            section("Latency from the submit on, µs: mean / 99th percentile", &latency),
        ];
        if self.cells().flat_map(|(_, _, cell)| cell.figures()).any(|figure| figure.errors > 0) {
            sections.push(section("Failed requests, all rounds", &|cell| {
                Some(cell.figures().map(|figure| figure.errors).sum::<u64>().to_string())
            }));
        }
        sections.push(Section::not_measured(not_measured));
        sections
    }

    /// A bar for each way in each job.
    fn bars(&self, name: &str, unit: &str, of: &dyn Fn(&Cell) -> Option<f64>) -> Option<Plot> {
        let groups = self.rows.iter().map(|row| Group {
            label: format!("{}: {}", row.name, row.load().text()),
            bars: self
                .ways
                .iter()
                .enumerate()
                .map(|(at, way)| Bar::one(way.name(), 0, row.cells.get(&at).and_then(of)))
                .collect(),
        });
        let bars = Bars {
            value: Axis::new(name, unit, Scale::Linear),
            category: "jobs, by engine".into(),
            origin: 0.0,
            keys: vec![Key::new("median of the rounds", 2, false)],
            groups: groups.collect(),
        };
        let about = format!("Median of the rounds, in {unit}, of each job with each engine.");
        (!bars.groups.is_empty()).then(|| Plot::bars(name, about, bars))
    }

    fn table(&self, value: &dyn Fn(&Cell) -> Option<String>) -> Table {
        let names = self.ways.iter().map(Way::name);
        let heads = ["job", "load"].map(str::to_owned).into_iter().chain(names);
        let mut table = Table::new("", heads, 2..2 + self.ways.len()).labelled(2);
        for row in &self.rows {
            let cells = (0..self.ways.len()).map(|way| {
                let found = row.cells.get(&way).and_then(value);
                TableCell::from(found.unwrap_or_else(|| "-".into()))
            });
            let names = [TableCell::from(row.name.as_str()), row.load().text().into()];
            table.row(names.into_iter().chain(cells));
        }
        table
    }

    fn around(&self) -> Circumstances {
        let ours = self.ours().next().map(|way| &self.ways[way]);
        let natives = self.ways.iter().enumerate().filter(|(_, way)| way.ours.is_none());
        let refused = natives.filter(|(at, _)| {
            let mut mine = self.rows.iter().filter_map(|row| row.cells.get(at)).peekable();
            // A run that was interrupted may have no cell of an engine.
            mine.peek().is_some() && mine.all(|cell| cell.not_measured.is_some())
        });
        Circumstances {
            subject: ours.and_then(|way| Some(way.ours?.1.name())).unwrap_or("uringlet").into(),
            outside: outside::usual(self.outside.iter().flatten()),
            refused: refused.map(|(_, way)| way.name()).collect(),
            disturbed: 0,
            more: "--rounds 20",
            words: Words {
                heads: ["job", "engine"],
                title: "uringlet in each job".into(),
                key: "uringlet".into(),
                category: "jobs, by interface",
                each: "job",
            },
        }
    }
}
