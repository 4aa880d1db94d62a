//! What the user gets: a header, two tables, what could not be measured, and the same as JSON.

use super::matrix::{Cell, Comparison, Matrix, Settings};
use super::workload::Workload;
use crate::machine::{Machine, Storage};
use crate::scratch::Scratch;
use crate::size;
use comfy_table::{Attribute, Cell as TableCell, CellAlignment, Color, Table, presets};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::IsTerminal as _;

/// Differences below this are not worth a colour.
const EVEN: f64 = 0.005;

/// What is known before the first measurement.
pub fn header(
    machine: &Machine,
    storage: &Storage,
    scratch: &Scratch,
    settings: &Settings,
) -> String {
    let mut text = format!("uringlet {} bench\n", machine.version);
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<9}{value}");
    };
    line("kernel", machine.kernel.clone());
    let kind = if machine.virtual_machine { ", virtual machine" } else { "" };
    line("CPU", format!("{} × {}{kind}; load {:.2}", machine.cpus, machine.cpu, machine.load));
    let (memory, available) = (size::long(machine.memory), size::long(machine.memory_available));
    line("memory", format!("{memory}, {available} available"));
    line("file", format!("{}, {}", scratch.description, size::long(scratch.size)));
    let mut device = storage.device.clone();
    if !storage.device_facts.is_empty() {
        let _ = write!(device, " ({})", storage.device_facts.join(", "));
    }
    line("storage", format!("{} on {device}", storage.file_system));
    if !storage.options.is_empty() {
        line("options", storage.options.clone());
    }
    let (rounds, seconds) = (settings.rounds, settings.seconds);
    line("rounds", format!("{rounds} of {seconds} s per engine, interleaved"));
    for notice in notices(machine, storage, scratch) {
        let _ = writeln!(text, "notice: {notice}");
    }
    text.push('\n');
    text
}

fn notices(machine: &Machine, storage: &Storage, scratch: &Scratch) -> Vec<String> {
    let mut notices = scratch.notices.clone();
    if machine.debug_build {
        notices
            .push("this is a debug build; its figures mean nothing (cargo run --release)".into());
    }
    if storage.is_memory() {
        notices.push(format!(
            "{} keeps files in memory: this says nothing about a disk (--file FOLDER for another place)",
            storage.file_system
        ));
    }
    if machine.load > machine.cpus as f64 * 0.5 {
        notices.push("the machine is busy with something else; expect noise".into());
    }
    notices
}

/// Everything that came out.
#[derive(Serialize)]
pub struct Report<'a> {
    machine: &'a Machine,
    storage: &'a Storage,
    file: String,
    notices: Vec<String>,
    settings: &'a Settings,
    interrupted: bool,
    lines: Vec<Line>,
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
    /// None if workers or every native engine has no figure.
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
struct NotMeasured {
    what: Vec<String>,
    reason: String,
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
            machine,
            storage,
            file: scratch.description.clone(),
            notices: notices(machine, storage, scratch),
            settings,
            interrupted,
            lines,
            cells: cells.collect(),
            not_measured: not_measured(matrix),
            matrix,
        }
    }

    /// For people: the tables and what is missing.
    pub fn text(&self) -> String {
        let mut text = String::from("Requests per second\n");
        text.push_str(&self.table(true, |cell| cell.iops().map(size::rate)));
        text.push_str("\nCPU time per request, µs (all threads, user and system)\n");
        text.push_str(&self.table(false, |cell| cell.cpu_us().map(size::digits)));
        let synchronous = self.settings.engines.iter().any(|engine| engine.is_synchronous());
        if synchronous && self.settings.depths.iter().any(|&depth| depth > 1) {
            text.push_str(
                "\n* psync has one request in flight at any depth: its one figure again\n",
            );
        }
        if !self.not_measured.is_empty() {
            text.push_str("\nNot measured\n");
        }
        for missing in &self.not_measured {
            let _ = writeln!(text, "  {}: {}", missing.what.join("; "), missing.reason);
        }
        text
    }

    fn table(&self, with_ratio: bool, value: impl Fn(&Cell) -> Option<String>) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let coloured = std::io::stdout().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        if coloured {
            table.enforce_styling()
        } else {
            table.force_no_tty()
        };
        let mut heads = vec!["workload".to_owned(), "depth".to_owned()];
        heads.extend(self.settings.engines.iter().map(|engine| engine.name().to_owned()));
        if with_ratio {
            heads.extend(["ratio", "rounds", "against"].map(str::to_owned));
        }
        table.add_row(heads.into_iter().map(|h| TableCell::new(h).add_attribute(Attribute::Bold)));
        let mut previous = None;
        for line in &self.lines {
            let (workload, depth) = (line.workload, line.depth);
            let found = |engine| self.matrix.cell(workload, depth, engine).and_then(&value);
            if self.settings.engines.iter().all(|&engine| found(engine).is_none()) {
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
            for &engine in &self.settings.engines {
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
        let right = 1..2 + self.settings.engines.len() + usize::from(with_ratio);
        for (at, column) in table.column_iter_mut().enumerate() {
            column.set_padding((if at == 0 { 2 } else { 0 }, 2));
            if right.contains(&at) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
    }
}

fn ratio_cells(comparison: Option<Comparison>, rounds: u32) -> [TableCell; 3] {
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
    use super::super::engine::Engine;
    use super::*;

    fn ratio(ratio: f64) -> TableCell {
        let found = Comparison {
            best_native: Engine::Libaio,
            ratio,
            ratio_min: ratio - 0.1,
            ratio_max: ratio + 0.1,
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
