//! The output: tables, what could not be measured, a summary, and the same as JSON.

use super::conclusion::{self, Circumstances, Line, Words};
use super::fio_json;
use super::matrix::{self, Cell, Matrix, Settings};
use super::results::Results;
use crate::classes::Count;
use crate::machine::{Machine, Storage};
use crate::report::{
    Bar, Cell as TableCell, Figure, Group, Header, NotMeasured, Record, Section, Table,
};
use crate::scratch::Scratch;
use crate::{session, size};
use clap::ValueEnum as _;
use serde_json::{Value, json};
use uringlet_lab::bench::{Engine, LatencyFigure, Manner, PERCENTILES, Workload, plots};

/// The facts that are known before the first measurement.
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

impl Matrix {
    /// All results. `file` is a text about the file that was read and written.
    pub fn results(&self, file: &str, method: &'static str) -> Results {
        let lines: Vec<Line> = self.lines.iter().map(|line| self.one_line(line)).collect();
        let around = self.around();
        let sentences = conclusion::sentences(&lines, &around);
        let found = || lines.iter().filter_map(|line| line.comparison.as_ref());
        let mut own = fio_json::top(self.entries());
        own["file"] = file.into();
        own["summary"] = json!({
            // uringlet's side of the comparison.
            "engine": self.subject(),
            "rates": Count::of(found().map(|found| found.rate.class)),
            "cpu": Count::of(found().map(|found| found.cpu.class)),
            "outside": around.outside,
            "sentences": sentences,
        });
        let not_measured = self.not_measured();
        Results {
            own,
            settings: json!(self.settings),
            cells: self.cells().map(Cell::with_medians).collect(),
            lines,
            around,
            sentences,
            method,
            sections: self.sections(&not_measured),
            not_measured,
            records: self.records(),
            is_measured: self.cells().any(|cell| cell.iops().is_some()),
            is_refused: self.cells().all(|cell| cell.not_measured.is_some()),
        }
    }

    fn sections(&self, not_measured: &[NotMeasured]) -> Vec<Section> {
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
        sections.push(Section::not_measured(not_measured));
        let choices = self.choices();
        let cells: usize = choices.iter().map(|(_, cells)| cells).sum();
        let word = size::plural(cells as u64, "cell");
        let choice =
            |(choice, count): &(&str, usize)| format!("in {count} of {cells} {word}: {choice}");
        let heading = format!("{} has chosen", Engine::OursAuto.name());
        sections.push(Section::new(heading).with_notes(choices.iter().map(choice)));
        sections
    }

    /// The lines of the CSV file: one for each cell and round, and one for the latencies of a cell.
    fn records(&self) -> Vec<Record> {
        let of = |cell: &Cell| {
            let record = Record::default()
                .with("workload", cell.workload.name())
                .with("block", cell.block)
                .with("depth", cell.depth)
                .with("submit", cell.submit.name())
                .with("engine", cell.engine.name());
            let mut records = record.clone().rounds(&cell.figures, cell.not_measured.as_deref());
            if let Some(latency) = &cell.latency {
                records.extend(record.once("latencies", latency));
            }
            records
        };
        self.cells().flat_map(of).collect()
    }

    /// Lines of one workload.
    fn depths(&self, workload: Workload) -> impl Iterator<Item = &matrix::Line> {
        self.lines.iter().filter(move |line| line.workload == workload)
    }

    /// Workloads of which anything was measured.
    fn workloads(&self) -> impl Iterator<Item = Workload> {
        let measured =
            |line: &&matrix::Line| line.cells.iter().any(|cell| !cell.figures.is_empty());
        let has = move |workload: &Workload| self.depths(*workload).any(|line| measured(&line));
        self.settings.workloads.iter().copied().filter(has)
    }

    /// Bars for one or two depths, curves for more.
    fn rate_plots(&self) -> Vec<Figure> {
        let lines = |(workload, submit): (Workload, Manner)| {
            let series = self.settings.engines.iter().map(|&engine| {
                let same = |line: &&matrix::Line| line.shows(submit);
                let mine = self.depths(workload).filter(same).filter_map(|line| line.cell(engine));
                let measured = mine.filter(|cell| cell.iops().is_some());
                plots::rates(engine, measured.map(|cell| (cell.depth, &*cell.figures)))
            });
            let title = format!("{}, {}", self.settings.title(workload), submit.label());
            plots::rate_plot(title, series.collect())
        };
        let manners = |workload| {
            let has =
                move |submit: &Manner| self.depths(workload).any(|line| line.submit == *submit);
            let manners = Manner::value_variants().iter().copied().filter(has);
            manners.map(move |submit| (workload, submit))
        };
        let bars = |workload| {
            let groups = self.groups(workload, |cell| plots::rate_bar(cell.engine, &cell.figures));
            plots::rate_bars(self.settings.title(workload), groups)
        };
        match self.settings.depths.len() {
            ..=2 => self.workloads().map(bars).collect(),
            _ => self.workloads().flat_map(manners).map(lines).collect(),
        }
    }

    /// A group of bars for each depth and manner of submitting.
    fn groups(&self, workload: Workload, bar: impl Fn(&Cell) -> Bar) -> Vec<Group> {
        let group = |line: &matrix::Line| Group {
            label: line.in_flight_text(),
            bars: line.cells.iter().map(&bar).collect(),
        };
        self.depths(workload).map(group).collect()
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
            for line in self.depths(workload) {
                let found =
                    line.cells.iter().filter_map(|cell| Some((cell.engine, of(&cell.latency?)?)));
                let series: Vec<_> = found
                    .map(|(engine, curve)| plots::percentiles(engine, std::iter::once(&curve)))
                    .collect();
                if !series.is_empty() {
                    let title =
                        format!("{}, {}", self.settings.title(workload), line.in_flight_text());
                    figures.push(plots::percentile_plot(title, name, series));
                }
            }
        }
        figures
    }

    /// The choices of `auto`, each with its number of cells.
    fn choices(&self) -> Vec<(&str, usize)> {
        let mut list: Vec<(&str, usize)> = Vec::new();
        for cell in self.cells().filter(|cell| cell.engine == Engine::OursAuto) {
            let Some(choice) = cell.executed_by() else { continue };
            match list.iter_mut().find(|(known, _)| *known == choice) {
                Some((_, cells)) => *cells += 1,
                None => list.push((choice, 1)),
            }
        }
        list
    }

    /// Says how many cells of native engines got fewer rounds, because another native engine is
    /// faster.
    fn beaten(&self) -> Option<String> {
        let cells = self.cells().filter(|cell| cell.beaten_by.is_some()).count();
        (cells > 0).then(|| {
            let figures = size::plural(cells as u64, "figure");
            let are = if cells == 1 { "is" } else { "are" };
            format!(
                "{cells} {figures} of native engines {are} of fewer rounds: another native engine \
                 is faster by more than 5 %"
            )
        })
    }

    fn table(&self, engines: &[Engine], value: impl Fn(&Cell) -> Option<String>) -> Table {
        let names = engines.iter().map(|engine| engine.name());
        let heads = ["workload", "depth"].into_iter().chain(names);
        let mut table = Table::new("", heads, 1..2 + engines.len()).labelled(2);
        let mut previous = None;
        for line in &self.lines {
            let workload = line.workload;
            let found = |engine| line.cell(engine).and_then(&value);
            if engines.iter().all(|&engine| found(engine).is_none()) {
                continue;
            }
            let name = match previous.replace(workload) {
                Some(same) if same == workload => String::new(),
                _ => self.settings.title(workload),
            };
            let names = [TableCell::from(name), line.depth_text().into()];
            let values = engines.iter().map(|&engine| found(engine).unwrap_or_else(|| "-".into()));
            table.row(names.into_iter().chain(values.map(TableCell::from)));
        }
        table
    }

    /// One line of the matrix, as the conclusion shows it.
    fn one_line(&self, line: &matrix::Line) -> Line {
        let matrix::Line { workload, depth, submit, disturbed, .. } = line;
        let text = line.depth_text();
        let title = self.settings.title(*workload);
        let found = self.comparison(line);
        Line {
            keys: json!({
                "workload": workload, "depth": depth, "submit": submit, "disturbed": disturbed,
            }),
            name: format!("{title}, depth {text}"),
            bar: format!("{text} in flight"),
            columns: [title, text],
            comparison: found.map(|found| found.named(|engine| engine.name().to_owned())),
        }
    }

    fn around(&self) -> Circumstances {
        let natives = self.settings.engines.iter().filter(|engine| engine.is_native());
        let refused = natives.filter(|engine| {
            let mut mine = self.cells().filter(|cell| cell.engine == **engine).peekable();
            mine.peek().is_some() && mine.all(|cell| cell.not_measured.is_some())
        });
        let subject = self.subject().map_or("uringlet", Engine::name);
        Circumstances {
            subject: subject.into(),
            outside: self.usual_outside(),
            refused: refused.map(|engine| engine.name().to_owned()).collect(),
            disturbed: self.lines.iter().map(|line| line.disturbed).sum(),
            more: if self.settings.rounds.is_some() { "--rounds 20" } else { "--budget 5m" },
            words: Words {
                heads: ["workload", "depth"],
                title: format!("{subject} against the best native engine"),
                key: subject.into(),
                category: "workloads, by requests in flight",
                each: "line",
            },
        }
    }

    /// Reasons in the order of the table, each with what was not measured.
    fn not_measured(&self) -> Vec<NotMeasured> {
        NotMeasured::by_reason(self.cells().map(|cell| {
            let same = |other: &Cell| other.not_measured == cell.not_measured;
            let mut of_engine = self.cells().filter(|other| other.engine == cell.engine);
            let mut of_workload = self.cells().filter(|other| other.workload == cell.workload);
            let name = if of_engine.all(same) {
                cell.engine.name().to_owned()
            } else if of_workload.all(same) {
                cell.workload.label().to_owned()
            } else {
                let depth = matrix::depth_text(cell.depth, cell.submit);
                format!("{}, depth {depth}, {}", cell.workload.label(), cell.engine.name())
            };
            (name, cell.not_measured.as_ref())
        }))
    }
}

impl Cell {
    /// The cell as JSON, with the medians, the minimum and the maximum of its rounds.
    fn with_medians(&self) -> Value {
        let iops = || self.figures.iter().map(|figure| figure.iops);
        let mut value = json!(self);
        value["iops_median"] = json!(self.iops());
        value["iops_min"] = json!(iops().min_by(f64::total_cmp));
        value["iops_max"] = json!(iops().max_by(f64::total_cmp));
        value["cpu_us_per_request_median"] = json!(self.cpu_us());
        value
    }
}

/// The result of a line after its turn, while other lines wait for their turns.
pub fn so_far(matrix: &Matrix, line: &matrix::Line) -> Option<String> {
    let found = matrix.comparison(line)?;
    let title = matrix.settings.title(line.workload);
    let known = found.rate.interval.map_or_else(String::new, |one| format!(" ({})", one.text()));
    let (ratio, word, against) = (found.rate.ratio, found.rate.word, found.best_native.name());
    let depth = line.depth_text();
    Some(format!(
        "{title:<22} depth {depth:<18} {ratio:.2}×{known} against {against}: {word} so far"
    ))
}

fn submit_text(latency: LatencyFigure) -> Option<String> {
    let submit = latency.submit?;
    let (mean, p999) = (submit.us_per_request_mean, submit.calls.p999);
    Some(format!("{} / {}", size::digits(mean), size::digits(p999)))
}
