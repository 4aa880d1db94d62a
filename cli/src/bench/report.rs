//! What the user gets: tables, what could not be measured, a summary, and the same as JSON.

use super::conclusion::{self, Circumstances, Count, Line, Words};
use super::fio_json;
use super::matrix::{self, Cell, Matrix, Settings};
use crate::machine::{Machine, Storage};
use crate::report::{
    Bar, Cell as TableCell, Document, Figure, Group, Header, NotMeasured, Record, Section, Table,
};
use crate::scratch::Scratch;
use crate::{session, size};
use serde::Serialize;
use serde_json::json;
use uringlet_lab::bench::{Engine, LatencyFigure, PERCENTILES, Workload, plots};

/// What is known before the first measurement.
pub fn header(machine: &Machine, storage: &Storage, scratch: &Scratch, matrix: &Matrix) -> Header {
    let Settings { rounds, seconds, .. } = matrix.settings;
    let rounds = rounds.map_or_else(|| "until known".into(), |rounds| rounds.to_string());
    let rounds =
        format!("{rounds}, {seconds} s per engine, in random order; one more for latencies");
    let about = session::about(matrix.takes());
    let takes = match matrix.settings.rounds {
        None => about.replace("about", "at most"),
        Some(_) => about,
    };
    let more = [("rounds", rounds), ("takes", takes)];
    let notices = session::notices(machine, storage, &scratch.notices);
    session::header("bench", machine, storage, scratch.line(), &more, notices)
}

/// Everything that came out.
#[derive(Serialize)]
pub struct Report<'a> {
    #[serde(flatten)]
    fio: serde_json::Value,
    machine: &'a Machine,
    storage: &'a Storage,
    file: String,
    notices: Vec<String>,
    settings: &'a Settings,
    interrupted: bool,
    lines: Vec<Line>,
    summary: Summary,
    cells: Vec<Measured<'a>>,
    not_measured: Vec<NotMeasured>,
    #[serde(skip)]
    matrix: &'a Matrix,
}

/// What came out of all lines.
#[derive(Serialize)]
struct Summary {
    /// uringlet's side.
    engine: Option<Engine>,
    rates: Count,
    cpu: Count,
    /// What others had of the CPU time in the middle round, 0 to 1.
    outside: f64,
    sentences: Vec<String>,
}

/// A cell with its medians.
#[derive(Serialize)]
struct Measured<'a> {
    #[serde(flatten)]
    cell: &'a Cell,
    iops_median: Option<f64>,
    iops_min: Option<f64>,
    iops_max: Option<f64>,
    cpu_us_per_request_median: Option<f64>,
}

impl<'a> Report<'a> {
    /// Gathers it.
    pub fn new(
        machine: &'a Machine,
        storage: &'a Storage,
        scratch: &Scratch,
        matrix: &'a Matrix,
        interrupted: bool,
    ) -> Self {
        let settings = &matrix.settings;
        let lines: Vec<Line> = matrix.lines.iter().map(|line| one_line(matrix, line)).collect();
        let cells = matrix.cells.iter().map(|cell| {
            let iops = || cell.figures.iter().map(|figure| figure.iops);
            Measured {
                cell,
                iops_median: cell.iops(),
                iops_min: iops().min_by(f64::total_cmp),
                iops_max: iops().max_by(f64::total_cmp),
                cpu_us_per_request_median: cell.cpu_us(),
            }
        });
        let found = || lines.iter().filter_map(|line| line.comparison.as_ref());
        let summary = Summary {
            engine: matrix.subject(),
            rates: Count::of(found().map(|found| &found.rate)),
            cpu: Count::of(found().map(|found| &found.cpu)),
            outside: matrix.usual_outside(),
            sentences: conclusion::sentences(&lines, &around(matrix)),
        };
        Self {
            fio: fio_json::top(matrix.entries()),
            machine,
            storage,
            file: scratch.description.clone(),
            notices: session::notices(machine, storage, &scratch.notices),
            settings,
            interrupted,
            lines,
            summary,
            cells: cells.collect(),
            not_measured: not_measured(matrix),
            matrix,
        }
    }

    /// For people.
    pub fn document(&self, header: Header, method: &str) -> Document {
        let all = &self.settings.engines[..];
        let mut sections =
            vec![
                Section::new("Requests per second")
                    .with_notes(self.beaten())
                    .with_figures(self.rate_plots())
                    .with_table(self.table(all, |cell| cell.iops().map(size::rate))),
                Section::new("CPU time per request, µs (all threads, user and system)")
                    .with_figures(self.cpu_plots())
                    .with_table(self.table(all, |cell| cell.cpu_us().map(size::digits))),
                Section::new("Completion latency").with_figures(self.latency_plots(
                    |latency| Some(latency.complete.percentiles),
                    "completion latency",
                )),
            ];
        let submitting: Vec<Engine> =
            all.iter().copied().filter(|engine| !engine.is_synchronous()).collect();
        if !submitting.is_empty() {
            let heading = "Submit by the caller's clock, µs: \
                           mean per request / 99.9th percentile of the calls";
            let plots = self.latency_plots(
                |latency| Some(latency.submit?.calls.percentiles),
                "time of a submit call",
            );
            let table = self.table(&submitting, |cell| submit_text(cell.latency?));
            sections.push(Section::new(heading).with_figures(plots).with_table(table));
        }
        sections.push(Section::not_measured(&self.not_measured));
        let choices = self.choices();
        let cells: usize = choices.iter().map(|(_, cells)| cells).sum();
        let choice =
            |(choice, count): &(&str, usize)| format!("in {count} of {cells} cells: {choice}");
        let heading = format!("{} has chosen", Engine::OursAuto.name());
        sections.push(Section::new(heading).with_notes(choices.iter().map(choice)));
        Document {
            header,
            interrupted: self.interrupted,
            method: method.into(),
            sections,
            conclusion: self.summary.sentences.clone(),
            summary: conclusion::section(&self.lines, &around(self.matrix)),
            parts: Vec::new(),
            records: self.records(),
        }
    }

    /// A line for each cell and round, and one for the latencies of a cell.
    fn records(&self) -> Vec<Record> {
        let of = |cell: &Cell| {
            let record = Record::default()
                .with("workload", cell.workload.name())
                .with("block", cell.block)
                .with("depth", cell.depth)
                .with("engine", cell.engine.name());
            let mut records = record.clone().rounds(&cell.figures, cell.not_measured.as_deref());
            if let Some(latency) = &cell.latency {
                records.extend(record.once("latencies", latency));
            }
            records
        };
        self.matrix.cells.iter().flat_map(of).collect()
    }

    /// Cells of one workload.
    fn cells(&self, workload: Workload) -> impl Iterator<Item = &Cell> {
        self.matrix.cells.iter().filter(move |cell| cell.workload == workload)
    }

    /// Workloads of which anything was measured.
    fn workloads(&self) -> impl Iterator<Item = Workload> {
        let measured =
            |workload: &Workload| self.cells(*workload).any(|cell| !cell.figures.is_empty());
        self.settings.workloads.iter().copied().filter(measured)
    }

    /// Bars of two depths, lines of more.
    fn rate_plots(&self) -> Vec<Figure> {
        let lines = |workload| {
            let series = self.settings.engines.iter().map(|&engine| {
                let mine = self.cells(workload).filter(|cell| cell.engine == engine);
                let measured = mine.filter(|cell| cell.iops().is_some());
                plots::rates(engine, measured.map(|cell| (cell.depth, &*cell.figures)))
            });
            plots::rate_plot(self.settings.title(workload), series.collect())
        };
        let bars = |workload| {
            let groups = self.groups(workload, |cell| plots::rate_bar(cell.engine, &cell.figures));
            plots::rate_bars(self.settings.title(workload), groups)
        };
        match self.settings.depths.len() {
            ..=2 => self.workloads().map(bars).collect(),
            _ => self.workloads().map(lines).collect(),
        }
    }

    /// A group of bars for each depth.
    fn groups(&self, workload: Workload, bar: impl Fn(&Cell) -> Bar) -> Vec<Group> {
        let group = |&depth: &usize| {
            let mine = self.cells(workload).filter(|cell| cell.depth == depth);
            Group { label: format!("{depth} in flight"), bars: mine.map(&bar).collect() }
        };
        self.settings.depths.iter().map(group).collect()
    }

    fn cpu_plots(&self) -> Vec<Figure> {
        let plot = |workload| {
            let groups = self.groups(workload, |cell| plots::cpu_bar(cell.engine, &cell.figures));
            plots::cpu_plot(self.settings.title(workload), groups)
        };
        self.workloads().map(plot).collect()
    }

    fn latency_plots(
        &self,
        of: impl Fn(&LatencyFigure) -> Option<[f64; PERCENTILES.len()]>,
        name: &str,
    ) -> Vec<Figure> {
        let mut figures = Vec::new();
        for workload in self.workloads() {
            for &depth in &self.settings.depths {
                let found = self.settings.engines.iter().filter_map(|&engine| {
                    let latency = self.matrix.cell(workload, depth, engine)?.latency?;
                    Some((engine, of(&latency)?))
                });
                let series: Vec<_> = found
                    .map(|(engine, curve)| plots::percentiles(engine, std::iter::once(&curve)))
                    .collect();
                if !series.is_empty() {
                    let title = format!("{}, {depth} in flight", self.settings.title(workload));
                    figures.push(plots::percentile_plot(title, name, series));
                }
            }
        }
        figures
    }

    /// What `auto` has chosen, and in how many cells.
    fn choices(&self) -> Vec<(&str, usize)> {
        let mut list: Vec<(&str, usize)> = Vec::new();
        for cell in self.matrix.cells.iter().filter(|cell| cell.engine == Engine::OursAuto) {
            let Some(choice) = cell.executed_by() else { continue };
            match list.iter_mut().find(|(known, _)| *known == choice) {
                Some((_, cells)) => *cells += 1,
                None => list.push((choice, 1)),
            }
        }
        list
    }

    /// Says that native engines have left the rounds.
    fn beaten(&self) -> Option<String> {
        let cells = self.matrix.cells.iter().filter(|cell| cell.beaten_by.is_some()).count();
        (cells > 0).then(|| {
            format!(
                "{cells} figures of native engines are of fewer rounds: another native engine is \
                 faster by more than 5 %"
            )
        })
    }

    fn table(&self, engines: &[Engine], value: impl Fn(&Cell) -> Option<String>) -> Table {
        let names = engines.iter().map(|engine| engine.name());
        let heads = ["workload", "depth"].into_iter().chain(names);
        let mut table = Table::new("", heads, 1..2 + engines.len()).labelled(2);
        let mut previous = None;
        for line in &self.matrix.lines {
            let (workload, depth) = (line.workload, line.depth);
            let found = |engine| self.matrix.cell(workload, depth, engine).and_then(&value);
            if engines.iter().all(|&engine| found(engine).is_none()) {
                continue;
            }
            let name = match previous.replace(workload) {
                Some(same) if same == workload => String::new(),
                _ => self.settings.title(workload),
            };
            let names = [TableCell::from(name), depth.to_string().into()];
            let values = engines.iter().map(|&engine| found(engine).unwrap_or_else(|| "-".into()));
            table.row(names.into_iter().chain(values.map(TableCell::from)));
        }
        table
    }
}

/// A line in words.
fn one_line(matrix: &Matrix, line: &matrix::Line) -> Line {
    let matrix::Line { workload, depth, disturbed, .. } = line;
    let title = matrix.settings.title(*workload);
    let found = matrix.comparison(line);
    Line {
        keys: json!({ "workload": workload, "depth": depth, "disturbed": disturbed }),
        name: format!("{title}, depth {depth}"),
        columns: [title, depth.to_string()],
        bar: format!("{depth} in flight"),
        comparison: found.map(|found| found.named(|engine| engine.name().to_owned())),
    }
}

fn around(matrix: &Matrix) -> Circumstances {
    let natives = matrix.settings.engines.iter().filter(|engine| engine.is_native());
    let refused = natives.filter(|engine| {
        let mut mine = matrix.cells.iter().filter(|cell| cell.engine == **engine);
        mine.all(|cell| cell.not_measured.is_some())
    });
    let subject = matrix.subject().map_or("uringlet", Engine::name);
    Circumstances {
        subject: subject.into(),
        outside: matrix.usual_outside(),
        refused: refused.map(|engine| engine.name().to_owned()).collect(),
        disturbed: matrix.lines.iter().map(|line| line.disturbed).sum(),
        more: if matrix.settings.rounds.is_some() { "--rounds 20" } else { "--budget 5m" },
        words: Words {
            heads: ["workload", "depth"],
            title: format!("{subject} against the best native engine"),
            key: subject.into(),
            category: "workloads, by requests in flight",
            each: "line",
        },
    }
}

/// A line that has had its turn, while the others wait for theirs.
pub fn so_far(matrix: &Matrix, line: &matrix::Line) -> Option<String> {
    let found = matrix.comparison(line)?;
    let title = matrix.settings.title(line.workload);
    let known = found.rate.interval.map_or_else(String::new, |one| format!(" ({})", one.text()));
    let (ratio, word, against) = (found.rate.ratio, found.rate.word(), found.best_native.name());
    let depth = line.depth;
    Some(format!(
        "{title:<22} depth {depth:<3} {ratio:.2}×{known} against {against}: {word} so far"
    ))
}

fn submit_text(latency: LatencyFigure) -> Option<String> {
    let submit = latency.submit?;
    let (mean, p999) = (submit.us_per_request_mean, submit.calls.p999);
    Some(format!("{} / {}", size::digits(mean), size::digits(p999)))
}

/// Reasons in the order of the table, each with everything that it is the reason for.
fn not_measured(matrix: &Matrix) -> Vec<NotMeasured> {
    NotMeasured::by_reason(matrix.cells.iter().map(|cell| {
        let same = |other: &Cell| other.not_measured == cell.not_measured;
        let mut of_engine = matrix.cells.iter().filter(|other| other.engine == cell.engine);
        let mut of_workload = matrix.cells.iter().filter(|other| other.workload == cell.workload);
        let name = if of_engine.all(same) {
            cell.engine.name().to_owned()
        } else if of_workload.all(same) {
            cell.workload.label().to_owned()
        } else {
            format!("{}, depth {}, {}", cell.workload.label(), cell.depth, cell.engine.name())
        };
        (name, cell.not_measured.as_ref())
    }))
}
