//! `uringlet compare`: what has changed between two runs of a benchmark, and what is only noise.

mod read;

use crate::classes::{Count, interval_text, tone};
use crate::report::{Cell, Document, Section, Table};
use crate::{output, session, size};
use anyhow::Result;
use clap::Args;
use read::{Measured, Metric, Run};
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use strum::VariantArray as _;
use uringlet_lab::verdict::{Class, Interval, class};

const HELP: &str = include_str!("../../help/compare.txt");

/// Says what has changed between two runs of bench or reproduce, and whether that is more than
/// noise.
#[derive(Args)]
#[command(after_help = session::help(&[HELP]))]
pub struct Arguments {
    /// JSON of the run before
    #[arg(value_name = "A.json")]
    a: PathBuf,

    /// JSON of the run after
    #[arg(value_name = "B.json")]
    b: PathBuf,

    /// Show only what is better or worse
    #[arg(long)]
    changed: bool,

    /// End with status 1 if something is worse beyond noise
    #[arg(long)]
    fail_on_regression: bool,

    /// Write the comparison to this file (- for standard output, instead of the text)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A metric of a cell that both files have.
#[derive(Serialize)]
struct Change {
    cell: String,
    metric: Metric,
    a: Measured,
    b: Measured,
    /// B divided by A; none if A is zero.
    ratio: Option<f64>,
    /// The 95 % interval of the ratio; none with too few rounds.
    interval: Option<Interval>,
    verdict: Class,
}

/// All results of the comparison.
#[derive(Serialize)]
struct Report {
    kind: String,
    a: String,
    b: String,
    notices: Vec<String>,
    changes: Vec<Change>,
    only_in_a: Vec<String>,
    only_in_b: Vec<String>,
    summary: Vec<(Metric, Count)>,
}

/// Runs the command.
///
/// # Errors
/// The output cannot be written.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let a = Run::read(&arguments.a).map_err(session::refusal)?;
    let b = Run::read(&arguments.b).map_err(session::refusal)?;
    if a.kind != b.kind {
        let (first, second) = (arguments.a.display(), arguments.b.display());
        return Err(session::refusal(format_args!(
            "{second}: expected a result of uringlet {}, as {first} is; it is one of uringlet {}",
            a.kind, b.kind
        )));
    }
    let report = Report::new(arguments, &a, &b);
    output::write(arguments.json.as_deref(), &report, &report.text(arguments.changed))?;
    let worse = report.changes.iter().any(|change| change.verdict == Class::Worse);
    Ok(if worse && arguments.fail_on_regression { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl Report {
    fn new(arguments: &Arguments, a: &Run, b: &Run) -> Self {
        let mut changes = Vec::new();
        for cell in &a.cells {
            let Some(other) = b.cells.iter().find(|other| other.name == cell.name) else {
                continue;
            };
            for (metric, a) in &cell.measured {
                let metric = *metric;
                let Some((_, b)) = other.measured.iter().find(|(same, _)| *same == metric) else {
                    continue;
                };
                let interval = Interval::unpaired(&a.values, &b.values);
                let medians = || (a.median != 0.0).then(|| b.median / a.median);
                let ratio = interval.map(|found| found.ratio).or_else(medians);
                let verdict = class(interval.as_ref(), metric.sense());
                let (cell, a, b) = (cell.name.clone(), a.clone(), b.clone());
                changes.push(Change { cell, metric, a, b, ratio, interval, verdict });
            }
        }
        let summary = Metric::VARIANTS.iter().filter_map(|&metric| {
            let mine = changes.iter().filter(|change| change.metric == metric);
            let count = Count::of(mine.map(|change| change.verdict));
            (count != Count::default()).then_some((metric, count))
        });
        Self {
            kind: a.kind.clone(),
            a: arguments.a.display().to_string(),
            b: arguments.b.display().to_string(),
            notices: differences(&a.whole, &b.whole),
            summary: summary.collect(),
            only_in_a: only_in(a, b),
            only_in_b: only_in(b, a),
            changes,
        }
    }

    fn text(&self, changed_only: bool) -> String {
        let mut text = format!("uringlet {}, A: {}, B: {}\n", self.kind, self.a, self.b);
        for notice in &self.notices {
            let _ = writeln!(text, "notice: {notice}");
        }
        let section = |(metric, _): &(Metric, Count)| {
            let beyond = |change: &&Change| {
                !changed_only || matches!(change.verdict, Class::Better | Class::Worse)
            };
            let lines = self.changes.iter().filter(|change| change.metric == *metric);
            let lines: Vec<&Change> = lines.filter(beyond).collect();
            let section = Section::new(capital(&metric.to_string()));
            if lines.is_empty() { section } else { section.with_table(table(*metric, &lines)) }
        };
        let mut sections: Vec<Section> = self.summary.iter().map(section).collect();
        for (which, cells) in [("A", &self.only_in_a), ("B", &self.only_in_b)] {
            sections.push(Section::new(format!("Only in {which}")).with_notes(cells.clone()));
        }
        let heads = ["", "better", "worse", "level", "unknown"];
        let mut counts = Table::new("", heads, 1..5);
        for (metric, Count { better, worse, level, unknown }) in &self.summary {
            let numbers = [better, worse, level, unknown].map(ToString::to_string);
            counts.row(std::iter::once(metric.to_string()).chain(numbers));
        }
        let (a, b) = (self.only_in_a.len(), self.only_in_b.len());
        let alone = format!("cells only in A: {a}, only in B: {b}");
        let summary = Section::new("Summary").with_table(counts).with_notes([alone]);
        let document = Document { sections, summary, ..Document::default() };
        format!("{text}\n{}", document.text())
    }
}

fn table(metric: Metric, lines: &[&Change]) -> Table {
    let mut table = Table::new("", ["cell", "A", "B", "B / A", "95 %", "verdict"], 1..4);
    let value = |measured: &Measured| match metric {
        Metric::RequestsPerSecond => size::rate(measured.median),
        _ => size::digits(measured.median),
    };
    for change in lines {
        let ratio = change.ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}×"));
        let tone = tone(change.verdict);
        let interval = interval_text(change.interval);
        let texts = [change.cell.clone(), value(&change.a), value(&change.b), ratio, interval];
        let verdict = Cell { text: change.verdict.word(metric.sense()).into(), tone };
        table.row(texts.map(Cell::from).into_iter().chain([verdict]));
    }
    table
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Cells with figures in one run only.
fn only_in(one: &Run, other: &Run) -> Vec<String> {
    let has = |run: &Run, name: &str| {
        run.cells.iter().any(|cell| cell.name == name && !cell.measured.is_empty())
    };
    let names = one.cells.iter().map(|cell| &cell.name);
    names.filter(|name| has(one, name) && !has(other, name)).cloned().collect()
}

/// Notices: what differs in the machine, the storage and the settings, and which run was
/// interrupted. Values that always vary are left out.
fn differences(a: &Value, b: &Value) -> Vec<String> {
    let mut notices = Vec::new();
    for part in ["machine", "storage", "settings"] {
        let names = [a, b].into_iter().filter_map(|run| run[part].as_object());
        let mut names: Vec<&String> = names.flat_map(|object| object.keys()).collect();
        names.sort_unstable();
        names.dedup();
        for name in names
            .into_iter()
            .filter(|name| !["load", "memory_available", "seed"].contains(&&***name))
        {
            let (first, second) = (&a[part][name], &b[part][name]);
            if first != second {
                notices.push(format!(
                    "{part} differs in {name}: A {}, B {}",
                    short(first),
                    short(second)
                ));
            }
        }
    }
    for (name, run) in [("A", a), ("B", b)] {
        if run["interrupted"] == true {
            notices.push(format!("{name} was interrupted"));
        }
    }
    notices
}

fn short(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "nothing".into(),
        other => other.to_string(),
    }
}
