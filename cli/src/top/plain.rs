//! Programs and contexts as lines, for scripts and without a terminal.

use super::columns::{CONTEXT, Column, Line, PROGRAM};
use super::programs::Program;
use serde::Serialize;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A line of `--json`.
#[derive(Serialize)]
struct Look<'a> {
    /// Seconds since 1970.
    time: f64,
    programs: &'a [Program],
}

pub fn json(programs: &[Program]) -> String {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    serde_json::to_string(&Look { time, programs }).expect("plain data") + "\n"
}

pub fn text(programs: &[Program], interval: Duration) -> String {
    let mut text = format!("uringlet top: {}, ", count(programs.len(), "program"));
    let _ = writeln!(text, "figures of {:.1} s", interval.as_secs_f64());
    if programs.is_empty() {
        let _ = writeln!(text, "{}", super::HOW_TO_START);
        return text;
    }
    let _ = writeln!(text, "{}", line(&PROGRAM, |column| column.head.into()));
    for program in programs {
        let cells = Line::from(program);
        let _ = writeln!(text, "{}", line(&PROGRAM, |column| (column.cell)(&cells)));
    }
    for program in programs.iter().filter(|program| !program.contexts.is_empty()) {
        let _ = writeln!(text, "\ncontexts of {} ({})", program.program, program.pid);
        let _ = writeln!(text, "{}", line(&CONTEXT, |column| column.head.into()));
        for context in &program.contexts {
            let cells = Line::from(context);
            let cells = line(&CONTEXT, |column| (column.cell)(&cells));
            let _ = writeln!(text, "{cells}\n        {}", context.engine);
        }
    }
    text
}

/// `1 program`, `3 programs`.
pub fn count(n: usize, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

fn line(columns: &[Column], cell: impl Fn(&Column) -> String) -> String {
    let cells = columns.iter().map(|column| {
        let (cell, width) = (cell(column), column.width);
        if column.is_text() { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
    });
    cells.collect::<Vec<_>>().join(" ").trim_end().to_owned()
}
