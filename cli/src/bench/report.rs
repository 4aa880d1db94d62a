//! What the user gets: tables, what could not be measured, a summary, and the same as JSON.

use super::fio_json;
use super::matrix::{Cell, Comparison, Extreme, Matrix, Settings, Summary};
use crate::machine::{Machine, Storage};
use crate::report::{
    Axis, Bar, Bars, Cell as TableCell, Document, Figure, Group, Header, Key, NotMeasured, Record,
    Scale, Section, Table, Tone,
};
use crate::scratch::Scratch;
use crate::{session, size};
use serde::Serialize;
use uringlet_lab::bench::{Engine, LatencyFigure, PERCENTILES, Workload, plots};

/// What is known before the first measurement.
pub fn header(machine: &Machine, storage: &Storage, scratch: &Scratch, matrix: &Matrix) -> Header {
    let Settings { rounds, seconds, .. } = matrix.settings;
    let rounds =
        format!("{rounds} of {seconds} s per engine, interleaved, and one more for latencies");
    let more = [("rounds", rounds), ("takes", session::about(matrix.estimate()))];
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
    summary: Option<Summary>,
    cells: Vec<Measured<'a>>,
    not_measured: Vec<NotMeasured>,
    #[serde(skip)]
    matrix: &'a Matrix,
}

/// One line of the table.
#[derive(Serialize)]
struct Line {
    workload: Workload,
    depth: usize,
    /// None if uringlet or every native engine has no figure.
    comparison: Option<Comparison<Engine>>,
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
        let mut lines = Vec::new();
        for &workload in &settings.workloads {
            for &depth in &settings.depths {
                let comparison = matrix.comparison(workload, depth);
                lines.push(Line { workload, depth, comparison });
            }
        }
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
        Self {
            fio: fio_json::top(matrix.entries()),
            machine,
            storage,
            file: scratch.description.clone(),
            notices: session::notices(machine, storage, &scratch.notices),
            settings,
            interrupted,
            lines,
            summary: matrix.summary(),
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
                    .with_figures(self.rate_plots())
                    .with_table(self.table(all, true, |cell| cell.iops().map(size::rate))),
                Section::new("CPU time per request, µs (all threads, user and system)")
                    .with_figures(self.cpu_plots())
                    .with_table(self.table(all, false, |cell| cell.cpu_us().map(size::digits))),
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
            let table = self.table(&submitting, false, |cell| submit_text(cell.latency?));
            sections.push(Section::new(heading).with_figures(plots).with_table(table));
        }
        let synchronous = all.iter().any(|engine| engine.is_synchronous());
        if synchronous && self.settings.depths.iter().any(|&depth| depth > 1) {
            let note = "* psync has one request in flight at any depth: its one figure again";
            sections[0].notes.push(note.into());
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
            summary: self.summary.as_ref().map_or_else(Section::default, |sum| self.sum_up(sum)),
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

    /// Cells of one workload and depth, a synchronous engine's at the depth that it has.
    fn cells(&self, workload: Workload) -> impl Iterator<Item = &Cell> {
        self.matrix.cells.iter().filter(move |cell| cell.workload == workload)
    }

    fn title(&self, workload: Workload) -> String {
        format!("{} {}", workload.label(), size::short(self.settings.block(workload)))
    }

    /// Workloads of which anything was measured.
    fn workloads(&self) -> impl Iterator<Item = Workload> {
        let measured =
            |workload: &Workload| self.cells(*workload).any(|cell| !cell.figures.is_empty());
        self.settings.workloads.iter().copied().filter(measured)
    }

    fn rate_plots(&self) -> Vec<Figure> {
        let plot = |workload| {
            let series = self.settings.engines.iter().map(|&engine| {
                let mine = self.cells(workload).filter(|cell| cell.engine == engine);
                let measured = mine.filter(|cell| cell.iops().is_some());
                plots::rates(engine, measured.map(|cell| (cell.depth, &*cell.figures)))
            });
            plots::rate_plot(self.title(workload), series.collect())
        };
        self.workloads().map(plot).collect()
    }

    fn cpu_plots(&self) -> Vec<Figure> {
        let plot = |workload| {
            let groups = self.settings.depths.iter().map(|&depth| {
                let mine = self.cells(workload).filter(|cell| cell.depth == depth);
                let bars = mine.map(|cell| plots::cpu_bar(cell.engine, &cell.figures)).collect();
                Group { label: format!("{depth} in flight"), bars }
            });
            plots::cpu_plot(self.title(workload), groups.collect())
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
                    let title = format!("{}, {depth} in flight", self.title(workload));
                    figures.push(plots::percentile_plot(title, name, series));
                }
            }
        }
        figures
    }

    /// A bar for each line of the table that has a ratio.
    fn ratio_plot(&self) -> Option<Figure> {
        let bar = |line: &Line| {
            let found = line.comparison?;
            let spread = (self.settings.rounds > 1).then_some((found.ratio_min, found.ratio_max));
            let tone = Tone::of_ratio(found.ratio);
            let label = format!("{} in flight", line.depth);
            Some(Bar { label, parts: vec![(0, found.ratio)], spread, tone })
        };
        let groups = self.lines.chunk_by(|left, right| left.workload == right.workload);
        let groups = groups.map(|lines| Group {
            label: self.title(lines[0].workload),
            bars: lines.iter().filter_map(bar).collect(),
        });
        let groups: Vec<Group> = groups.filter(|group| !group.bars.is_empty()).collect();
        if groups.is_empty() {
            return None;
        }
        let subject = self.matrix.subject()?;
        let keys = vec![Key::new(subject.name(), subject.style(), false)];
        let bars = Bars {
            value: Axis::new(
                "ratio to the best native engine",
                "1 is equal, log scale",
                Scale::Log,
            ),
            category: "workloads, by requests in flight".into(),
            origin: 1.0,
            keys,
            groups,
        };
        let about = "Requests per second divided by those of the best native engine of the same \
                     line; whiskers reach from the lowest to the highest single round. To the left \
                     of 1 (▼) uringlet is slower.";
        let title = format!("{} against the best native engine", subject.name());
        Some(Figure::bars(title, about, bars))
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

    fn sum_up(&self, summary: &Summary) -> Section {
        let Summary { engine, cells, first, geometric_mean, worst, worst_direct_cpu } = summary;
        let cell = |Extreme { ratio, workload, depth, against }: &Extreme| {
            format!(
                "{ratio:.2}: {}, depth {depth}, against {}",
                self.title(*workload),
                against.name()
            )
        };
        let mut table = Table::new("", ["", ""], 0..0);
        let cpu = worst_direct_cpu.as_ref().map_or_else(|| "not measured".into(), cell);
        for (name, value) in [
            ("geometric mean of the ratios", format!("{geometric_mean:.2}")),
            ("first (ratio 1.00 or more)", format!("in {first} of {cells} cells")),
            ("worst ratio", cell(worst)),
            ("worst ratio of CPU time when direct", cpu),
        ] {
            table.row([name.to_owned(), value]);
        }
        Section::new(format!("{} against the best native engine of each cell", engine.name()))
            .with_figures(self.ratio_plot())
            .with_table(table)
    }

    fn table(
        &self,
        engines: &[Engine],
        with_ratio: bool,
        value: impl Fn(&Cell) -> Option<String>,
    ) -> Table {
        let names = engines.iter().map(|engine| engine.name());
        let ratio = ["ratio", "rounds", "against"].into_iter().filter(|_| with_ratio);
        let heads = ["workload", "depth"].into_iter().chain(names).chain(ratio);
        let mut table = Table::new("", heads, 1..2 + engines.len() + usize::from(with_ratio));
        let mut previous = None;
        for line in &self.lines {
            let (workload, depth) = (line.workload, line.depth);
            let found = |engine| self.matrix.cell(workload, depth, engine).and_then(&value);
            if engines.iter().all(|&engine| found(engine).is_none()) {
                continue;
            }
            let name = match previous.replace(workload) {
                Some(same) if same == workload => String::new(),
                _ => self.title(workload),
            };
            let mut row = vec![TableCell::from(name), depth.to_string().into()];
            for &engine in engines {
                let again = engine.is_synchronous() && depth > 1;
                row.push(TableCell::from(match found(engine) {
                    Some(text) if again => format!("{text}*"),
                    Some(text) => text,
                    None => "-".into(),
                }));
            }
            if with_ratio {
                let found = line.comparison.as_ref().map(|found| (found, found.best_native.name()));
                row.extend(ratio_cells(found, self.settings.rounds));
            }
            table.row(row);
        }
        table
    }
}

fn submit_text(latency: LatencyFigure) -> Option<String> {
    let submit = latency.submit?;
    let (mean, p999) = (submit.us_per_request_mean, submit.calls.p999);
    Some(format!("{} / {}", size::digits(mean), size::digits(p999)))
}

/// Of a comparison with the engine of this name: ratio, lowest and highest of a round, and that
/// name.
pub fn ratio_cells<E>(
    found: Option<(&Comparison<E>, impl Into<String>)>,
    rounds: u32,
) -> [TableCell; 3] {
    let Some((found, against)) = found else { return ["-", "", ""].map(TableCell::from) };
    let ratio =
        TableCell { text: format!("{:.2}×", found.ratio), tone: Tone::of_ratio(found.ratio) };
    let rounds = match rounds {
        1 => String::new(),
        _ => format!("{:.2}–{:.2}", found.ratio_min, found.ratio_max),
    };
    [ratio, rounds.into(), TableCell::from(against)]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_as_plain_as_wins() {
        let cells = |ratio: f64, rounds| {
            let (ratio_min, ratio_max) = (ratio - 0.1, ratio + 0.1);
            let (engine, best_native) = (Engine::OursAuto, Engine::Libaio);
            let found =
                Comparison { engine, best_native, ratio, ratio_min, ratio_max, cpu_ratio: 1.0 };
            ratio_cells(Some((&found, best_native.name())), rounds)
        };
        let cell = |text: &str, tone| TableCell { text: text.into(), tone };
        let loss = [cell("0.93×", Tone::Loss), "0.83–1.03".into(), "libaio".into()];
        assert_eq!(cells(0.934, 3), loss);
        assert_eq!(cells(1.412, 3)[0], cell("1.41×", Tone::Win));
        assert_eq!(cells(1.0, 1)[..2], [cell("1.00×", Tone::Plain), "".into()]);
        assert_eq!(ratio_cells::<Engine>(None::<(_, &str)>, 3)[0], "-".into());
    }
}
