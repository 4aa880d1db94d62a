//! The columns of the tables of programs and contexts: heads, widths, texts, and sort keys.

use super::programs::{Context, Program};
use crate::observe::figures::Figures;
use crate::size;

/// What one line of a table shows: a program or a context.
pub struct Line<'a> {
    pid: u32,
    name: &'a str,
    /// Of a program: how many contexts it has. Of a context: the number that identifies it.
    context: usize,
    in_flight: u64,
    /// Of a program: the number of its workers. Of a context: 0.
    workers: usize,
    figures: &'a Figures,
}

impl<'a> From<&'a Program> for Line<'a> {
    fn from(of: &'a Program) -> Self {
        Self {
            pid: of.pid,
            name: &of.program,
            context: of.contexts.len(),
            in_flight: of.in_flight,
            workers: of.workers,
            figures: &of.interval,
        }
    }
}

impl<'a> From<&'a Context> for Line<'a> {
    fn from(of: &'a Context) -> Self {
        Self {
            pid: of.pid,
            name: &of.program,
            context: of.place,
            in_flight: of.in_flight,
            workers: 0,
            figures: &of.interval,
        }
    }
}

/// One column.
pub struct Column {
    pub head: &'static str,
    pub width: usize,
    /// If the terminal is too narrow, columns of the highest rank are hidden first.
    rank: u8,
    pub cell: fn(&Line) -> String,
    /// The value by which lines are sorted, the largest first; `None`: no sorting by this column.
    pub key: Option<fn(&Line) -> f64>,
}

impl Column {
    /// Is the column aligned to the left?
    pub fn is_text(&self) -> bool {
        self.head == NAME.head
    }
}

const fn column(
    head: &'static str,
    width: usize,
    rank: u8,
    cell: fn(&Line) -> String,
    key: Option<fn(&Line) -> f64>,
) -> Column {
    Column { head, width, rank, cell, key }
}

/// Makes the column for a field of `Figures`. Lines are sorted by the value of the field.
macro_rules! figure {
    ($head:literal, $width:literal, $rank:literal, $text:path, $($field:ident).+) => {
        column(
            $head,
            $width,
            $rank,
            |l| $text(l.figures.$($field).+),
            Some(|l| l.figures.$($field).+ as f64),
        )
    };
    ($head:literal, $width:literal, $rank:literal, latency $which:ident $field:ident) => {
        column(
            $head,
            $width,
            $rank,
            |l| l.figures.$which.text(l.figures.$which.$field),
            Some(|l| l.figures.$which.$field as f64),
        )
    };
}

fn bytes(rate: f64) -> String {
    size::long(rate as u64)
}

const PID: Column = column("PID", 7, 0, |l| l.pid.to_string(), Some(|l| -f64::from(l.pid)));
const NAME: Column = column("PROGRAM", 15, 1, |l| l.name.to_owned(), None);
const REQUESTS: Column = figure!("REQ/S", 6, 2, size::rate, requests_per_s);
const READ: Column = figure!("READ/S", 8, 5, bytes, bytes_read_per_s);
const WRITTEN: Column = figure!("WRITE/S", 8, 6, bytes, bytes_written_per_s);
const IN_FLIGHT: Column =
    column("INFL", 5, 3, |l| l.in_flight.to_string(), Some(|l| l.in_flight as f64));
const COMPLETION_99: Column = figure!("CPL 99%", 8, 4, latency completion p99_ns);
const COMPLETION_50: Column = figure!("CPL 50%", 8, 9, latency completion p50_ns);
const SUBMIT_50: Column = figure!("SUB 50%", 8, 12, latency submit p50_ns);
const SUBMIT_99: Column = figure!("SUB 99%", 8, 11, latency submit p99_ns);

/// The columns of the table of programs.
pub const PROGRAM: [Column; 14] = [
    PID,
    NAME,
    column("CTX", 4, 13, |l| l.context.to_string(), Some(|l| l.context as f64)),
    REQUESTS,
    READ,
    WRITTEN,
    IN_FLIGHT,
    figure!("HAND/S", 6, 7, size::rate, hand_overs_per_s),
    column("WORK", 4, 8, |l| l.workers.to_string(), Some(|l| l.workers as f64)),
    SUBMIT_50,
    SUBMIT_99,
    COMPLETION_50,
    COMPLETION_99,
    column("ERRORS", 6, 10, |l| l.figures.errors.to_string(), Some(|l| l.figures.errors as f64)),
];

/// The columns of the table of contexts. WAITER to KERNEL are the shares, in percent, of the
/// requests that each kind of thread, or the kernel, has executed.
pub const CONTEXT: [Column; 14] = [
    PID,
    column(NAME.head, 15, 10, |l| l.name.to_owned(), None),
    column("CTX", 4, 1, |l| l.context.to_string(), None),
    REQUESTS,
    IN_FLIGHT,
    column("WAITER", 6, 5, |l| share(l, 0), None),
    column("BATON", 5, 6, |l| share(l, 1), None),
    column("POOL", 5, 7, |l| share(l, 2), None),
    column("POLLER", 6, 13, |l| share(l, 3), None),
    column("KERNEL", 6, 8, |l| share(l, 4), None),
    SUBMIT_50,
    SUBMIT_99,
    COMPLETION_50,
    COMPLETION_99,
];

fn share(line: &Line, lane: usize) -> String {
    percent(line.figures.lanes.shares()[lane])
}

/// A share in percent as a text: `37%`, `<1%`, or `-` for zero.
pub fn percent(share: f64) -> String {
    match share {
        s if s <= 0.0 => "-".into(),
        s if s < 1.0 => "<1%".into(),
        s => format!("{s:.0}%"),
    }
}

/// The initial sort column.
pub const BUSIEST: &Column = &REQUESTS;

/// The columns that fit into `width`, with one space between them.
pub fn fitting(columns: &'static [Column], width: usize) -> Vec<&'static Column> {
    let mut by_rank: Vec<&Column> = columns.iter().collect();
    by_rank.sort_by_key(|column| column.rank);
    let mut room = width + 1;
    let fits = by_rank.iter().take_while(|column| {
        let fits = column.width < room;
        room = room.saturating_sub(column.width + 1);
        fits
    });
    let last = fits.last().map_or(0, |column| column.rank);
    columns.iter().filter(|column| column.rank <= last).collect()
}

/// Sorts the lines by the key of the column `by`, the largest first, then by pid and context.
pub fn sort<T>(lines: &mut [T], by: &Column)
where
    for<'a> Line<'a>: From<&'a T>,
{
    let key = |line: &T| {
        let line = Line::from(line);
        (by.key.map_or(0.0, |key| key(&line)), line.pid, line.context)
    };
    lines.sort_by(|a, b| {
        let (a, b) = (key(a), key(b));
        b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2)))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_important_columns_stay_on_a_narrow_terminal() {
        for columns in [&PROGRAM, &CONTEXT] {
            for width in 0..200 {
                let fitting = fitting(columns, width);
                let needed: usize = fitting.iter().map(|column| column.width + 1).sum();
                assert!(fitting.len() <= 1 || needed <= width + 1, "{width}");
            }
        }
        let heads = |width| fitting(&PROGRAM, width).iter().map(|c| c.head).collect::<Vec<_>>();
        assert_eq!(heads(50), ["PID", "PROGRAM", "REQ/S", "INFL", "CPL 99%"]);
        assert!(heads(80).contains(&"WORK"));
        assert_eq!(heads(130).len(), PROGRAM.len());
    }

    #[test]
    fn shares_are_short() {
        assert_eq!([0.0, 0.4, 1.0, 99.6, 100.0].map(percent), ["-", "<1%", "1%", "100%", "100%"]);
    }
}
