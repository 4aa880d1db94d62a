//! What the user gets: tables, what could not be measured, a summary, and the same as JSON.

use super::drive::LatencyFigure;
use super::engine::Engine;
use super::fio_json::Top;
use super::matrix::{Cell, Comparison, Extreme, Matrix, Settings, Summary};
use super::workload::Workload;
use crate::machine::{Machine, Storage};
use crate::scratch::Scratch;
use crate::{session, size};
use comfy_table::{Attribute, Cell as TableCell, Color};
use serde::Serialize;
use std::fmt::Write as _;

/// Differences below this are not worth a colour.
const EVEN: f64 = 0.005;

/// What is known before the first measurement.
pub fn header(machine: &Machine, storage: &Storage, scratch: &Scratch, matrix: &Matrix) -> String {
    let Settings { rounds, seconds, .. } = matrix.settings;
    let rounds =
        format!("{rounds} of {seconds} s per engine, interleaved, and one more for latencies");
    let more = [("rounds", rounds), ("takes", session::about(matrix.estimate()))];
    let notices = session::notices(machine, storage, &scratch.notices);
    session::header("bench", machine, storage, scratch.line(), &more, &notices)
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
    comparison: Option<Comparison>,
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

/// A reason, and the cells that it is about.
#[derive(Serialize)]
pub struct NotMeasured {
    what: Vec<String>,
    reason: String,
}

impl NotMeasured {
    /// For people.
    pub fn line(&self) -> String {
        format!("{}: {}", self.what.join("; "), self.reason)
    }
}

/// Things and the reason for each, turned round: every reason once, in order.
pub fn by_reason(all: impl Iterator<Item = (String, String)>) -> Vec<NotMeasured> {
    let mut list: Vec<NotMeasured> = Vec::new();
    for (name, reason) in all {
        match list.iter_mut().find(|known| known.reason == reason) {
            Some(known) if known.what.contains(&name) => {}
            Some(known) => known.what.push(name),
            None => list.push(NotMeasured { what: vec![name], reason }),
        }
    }
    list
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
            fio: Top::new(serde_json::Map::new(), matrix.entries()),
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

    /// For people: the tables, what is missing, and the sum.
    pub fn text(&self) -> String {
        let all = &self.settings.engines[..];
        let mut text = String::from("Requests per second\n");
        text.push_str(&self.table(all, true, |cell| cell.iops().map(size::rate)));
        text.push_str("\nCPU time per request, µs (all threads, user and system)\n");
        text.push_str(&self.table(all, false, |cell| cell.cpu_us().map(size::digits)));
        let submitting: Vec<Engine> =
            all.iter().copied().filter(|engine| !engine.is_synchronous()).collect();
        if !submitting.is_empty() {
            text.push_str(
                "\nSubmit by the caller's clock, µs: mean per request / 99.9th percentile of the calls\n",
            );
            text.push_str(&self.table(&submitting, false, |cell| submit_text(cell.latency?)));
        }
        let synchronous = all.iter().any(|engine| engine.is_synchronous());
        if synchronous && self.settings.depths.iter().any(|&depth| depth > 1) {
            text.push_str(
                "\n* psync has one request in flight at any depth: its one figure again\n",
            );
        }
        if !self.not_measured.is_empty() {
            text.push_str("\nNot measured\n");
        }
        for missing in &self.not_measured {
            let _ = writeln!(text, "  {}", missing.line());
        }
        let choices = self.choices();
        if !choices.is_empty() {
            let _ = writeln!(text, "\n{} has chosen", Engine::OursAuto.name());
        }
        let all: usize = choices.iter().map(|(_, cells)| cells).sum();
        for (choice, cells) in choices {
            let _ = writeln!(text, "  in {cells} of {all} cells: {choice}");
        }
        if let Some(summary) = &self.summary {
            text.push_str(&self.summary_text(summary));
        }
        text
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

    fn summary_text(&self, summary: &Summary) -> String {
        let Summary { engine, cells, first, geometric_mean, worst, worst_direct_cpu } = summary;
        let cell = |Extreme { ratio, workload, depth, against }: &Extreme| {
            let (block, against) = (size::short(self.settings.block(*workload)), against.name());
            format!("{ratio:.2}: {} {block}, depth {depth}, against {against}", workload.label())
        };
        let cpu = worst_direct_cpu.as_ref().map_or_else(|| "not measured".into(), cell);
        format!(
            "\n{} against the best native engine of each cell\n  \
             geometric mean of the ratios         {geometric_mean:.2}\n  \
             first (ratio 1.00 or more)           in {first} of {cells} cells\n  \
             worst ratio                          {}\n  \
             worst ratio of CPU time when direct  {cpu}\n",
            engine.name(),
            cell(worst),
        )
    }

    fn table(
        &self,
        engines: &[Engine],
        with_ratio: bool,
        value: impl Fn(&Cell) -> Option<String>,
    ) -> String {
        let mut heads = vec!["workload".to_owned(), "depth".to_owned()];
        heads.extend(engines.iter().map(|engine| engine.name().to_owned()));
        if with_ratio {
            heads.extend(["ratio", "rounds", "against"].map(str::to_owned));
        }
        let mut table = session::table(heads);
        let mut previous = None;
        for line in &self.lines {
            let (workload, depth) = (line.workload, line.depth);
            let found = |engine| self.matrix.cell(workload, depth, engine).and_then(&value);
            if engines.iter().all(|&engine| found(engine).is_none()) {
                continue;
            }
            let name = match previous.replace(workload) {
                Some(same) if same == workload => String::new(),
                _ => {
                    let block = self.settings.block(workload);
                    format!("{} {}", workload.label(), size::short(block))
                }
            };
            let mut row = vec![TableCell::new(name), TableCell::new(depth)];
            for &engine in engines {
                let again = engine.is_synchronous() && depth > 1;
                row.push(TableCell::new(match found(engine) {
                    Some(text) if again => format!("{text}*"),
                    Some(text) => text,
                    None => "-".into(),
                }));
            }
            if with_ratio {
                row.extend(ratio_cells(line.comparison, self.settings.rounds));
            }
            table.add_row(row);
        }
        session::lines(&mut table, 1..2 + engines.len() + usize::from(with_ratio))
    }
}

pub fn submit_text(latency: LatencyFigure) -> Option<String> {
    let submit = latency.submit?;
    let (mean, p999) = (submit.us_per_request_mean, submit.us_per_call_p999);
    Some(format!("{} / {}", size::digits(mean), size::digits(p999)))
}

pub fn ratio_cells(comparison: Option<Comparison>, rounds: u32) -> [TableCell; 3] {
    let Some(found) = comparison else { return ["-", "", ""].map(TableCell::new) };
    let ratio = TableCell::new(format!("{:.2}×", found.ratio)).add_attribute(Attribute::Bold);
    let ratio = match found.ratio {
        r if r < 1.0 - EVEN => ratio.fg(Color::Red),
        r if r > 1.0 + EVEN => ratio.fg(Color::Green),
        _ => ratio,
    };
    let rounds = match rounds {
        1 => String::new(),
        _ => format!("{:.2}–{:.2}", found.ratio_min, found.ratio_max),
    };
    [ratio, TableCell::new(rounds), TableCell::new(found.best_native.name())]
}

/// Reasons in the order of the table, each with everything that it is the reason for.
fn not_measured(matrix: &Matrix) -> Vec<NotMeasured> {
    let mut list: Vec<(String, Vec<&Cell>)> = Vec::new();
    for cell in &matrix.cells {
        let Some(reason) = &cell.not_measured else { continue };
        match list.iter_mut().find(|(known, _)| known == reason) {
            Some((_, cells)) => cells.push(cell),
            None => list.push((reason.clone(), vec![cell])),
        }
    }
    let name = |(reason, cells): (String, Vec<&Cell>)| {
        let all = |same: &dyn Fn(&Cell) -> bool| {
            matrix
                .cells
                .iter()
                .filter(|cell| same(cell))
                .all(|cell| cells.iter().any(|other| std::ptr::eq(*other, cell)))
        };
        let mut what: Vec<String> = Vec::new();
        for cell in &cells {
            let name = if all(&|other| other.engine == cell.engine) {
                cell.engine.name().to_owned()
            } else if all(&|other| other.workload == cell.workload) {
                cell.workload.label().to_owned()
            } else {
                format!("{}, depth {}, {}", cell.workload.label(), cell.depth, cell.engine.name())
            };
            if !what.contains(&name) {
                what.push(name);
            }
        }
        NotMeasured { what, reason }
    };
    list.into_iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(ratio: f64) -> TableCell {
        let found = Comparison {
            engine: Engine::OursAuto,
            best_native: Engine::Libaio,
            ratio,
            ratio_min: ratio - 0.1,
            ratio_max: ratio + 0.1,
            cpu_ratio: 1.0,
        };
        let [cell, rounds, against] = ratio_cells(Some(found), 3);
        assert_eq!(rounds.content(), format!("{:.2}–{:.2}", ratio - 0.1, ratio + 0.1));
        assert_eq!(against.content(), "libaio");
        assert_eq!(ratio_cells(Some(found), 1)[1].content(), "");
        cell
    }

    #[test]
    fn losses_are_as_plain_as_wins() {
        let bold = |text: &str| TableCell::new(text).add_attribute(Attribute::Bold);
        assert!(ratio(0.934) == bold("0.93×").fg(Color::Red));
        assert!(ratio(1.412) == bold("1.41×").fg(Color::Green));
        assert!(ratio(1.0) == bold("1.00×"));
        assert!(ratio_cells(None, 3)[0].content() == "-");
    }
}
