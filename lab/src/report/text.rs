//! A document on a terminal.

use super::svg::wrapped;
use super::{Cell, Document, Header, Record, Section, Table, Tone};
use crate::session;
use comfy_table::{Attribute, Cell as TableCell, Color};
use std::fmt::Write as _;

impl Header {
    pub fn text(&self) -> String {
        let mut text = format!("uringlet {} {}\n", self.version, self.command);
        for (name, value) in &self.facts {
            let _ = writeln!(text, "  {name:<9}{value}");
        }
        for notice in &self.notices {
            let _ = writeln!(text, "notice: {notice}");
        }
        text.push('\n');
        text
    }
}

impl Document {
    /// Everything but the header, which was printed before. Empty if the run was interrupted before
    /// the first figure.
    pub fn text(&self) -> String {
        if self.interrupted && !self.records.iter().any(Record::has_figures) {
            return String::new();
        }
        let all = self.sections.iter().chain([&self.summary]);
        let texts = all.filter(|section| !section.is_empty()).map(Section::text);
        let conclusion = self.conclusion.iter().map(|text| wrapped(text, WIDEST).join("\n") + "\n");
        let texts = texts.chain([conclusion.collect()]);
        texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
    }
}

impl Section {
    fn text(&self) -> String {
        if self.tables.is_empty() && self.notes.is_empty() {
            return String::new();
        }
        let mut text = format!("{}\n", self.heading);
        for table in &self.tables {
            text.push_str(&table.text());
        }
        for note in &self.notes {
            text.push_str(&folded(note));
        }
        text
    }
}

/// A line below a table. If it is too long, it is wrapped. Each part keeps the line's indentation,
/// with two more spaces from the second part on.
fn folded(note: &str) -> String {
    if note.chars().count() + 2 <= WIDEST {
        return format!("  {note}\n");
    }
    let inside = 2 + note.len() - note.trim_start().len();
    let lines = wrapped(note, WIDEST - inside - 2);
    let line = |(at, line): (usize, &String)| {
        let inside = if at > 0 { inside + 2 } else { inside };
        format!("{:inside$}{line}\n", "")
    };
    lines.iter().enumerate().map(line).collect()
}

/// The maximum width of a text in characters. A part of a table is wider if its labels and one
/// group of columns need more.
const WIDEST: usize = 100;
/// Texts in a table are folded if they have more characters than this.
const LONGEST: usize = 60;

impl Table {
    /// The table. If it is too wide, it is split into parts, each with the columns that identify a
    /// line.
    pub fn text(&self) -> String {
        let labels = match self.groups.first() {
            Some((_, span)) => *span,
            None => self.labels.min(self.heads.len()),
        };
        let width = |columns: &[usize]| {
            let text = self.part(columns);
            text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
        };
        let widest = session::terminal_width().map_or(WIDEST, |width| width.clamp(60, WIDEST));
        let mut parts: Vec<Vec<usize>> = vec![(0..labels).collect()];
        // The columns of one group stay together.
        let spans = self.groups.iter().skip(1).map(|(_, span)| *span);
        let spans = spans.chain(std::iter::repeat(1));
        let mut first = labels;
        for span in spans {
            let columns = first..(first + span).min(self.heads.len());
            if columns.is_empty() {
                break;
            }
            first = columns.end;
            let mut part = parts.last().cloned().unwrap_or_default();
            let is_first = part.len() == labels;
            part.extend(columns.clone());
            if !is_first && width(&part) > widest {
                parts.push((0..labels).chain(columns).collect());
            } else {
                parts.pop();
                parts.push(part);
            }
        }
        parts.iter().map(|part| self.part(part)).collect::<Vec<_>>().join("\n")
    }

    /// Some of the table's columns.
    fn part(&self, columns: &[usize]) -> String {
        let bold = |head: &String| TableCell::new(head).add_attribute(Attribute::Bold);
        let groups = self.groups.iter().flat_map(|(text, span)| {
            std::iter::once(text.clone()).chain(std::iter::repeat_n(String::new(), span - 1))
        });
        let groups: Vec<String> = groups.collect();
        let groups = columns.iter().map(|&at| groups.get(at).cloned().unwrap_or_default());
        let heads = || columns.iter().map(|&at| &self.heads[at]);
        let mut out = if self.groups.is_empty() {
            session::table(self.has_heads().then(heads).into_iter().flatten().cloned())
        } else {
            let mut out = session::table(groups);
            out.add_row(heads().map(bold));
            out
        };
        for row in &self.rows {
            out.add_row(columns.iter().filter_map(|&at| row.get(at)).map(cell));
        }
        let right = columns.iter().enumerate().filter(|(_, at)| self.right.contains(at));
        session::lines(&mut out, &right.map(|(at, _)| at).collect::<Vec<_>>())
    }
}

fn cell(Cell { text, tone }: &Cell) -> TableCell {
    let cell = match text.chars().count() > LONGEST {
        true => TableCell::new(wrapped(text, LONGEST).join("\n")),
        false => TableCell::new(text),
    };
    match tone {
        Tone::Plain => cell,
        Tone::Win => cell.add_attribute(Attribute::Bold).fg(Color::Green),
        Tone::Loss => cell.add_attribute(Attribute::Bold).fg(Color::Red),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_as_plain_as_wins() {
        let bold = |text: &str| TableCell::new(text).add_attribute(Attribute::Bold);
        let of = |tone| cell(&Cell { text: "x".into(), tone });
        assert!(of(Tone::Loss) == bold("x").fg(Color::Red));
        assert!(of(Tone::Win) == bold("x").fg(Color::Green));
        assert!(of(Tone::Plain) == TableCell::new("x"));
    }

    #[test]
    fn long_notes_and_long_cells_are_folded() {
        let words = "word ".repeat(60);
        let mut table = Table::new("", ["", "value"], 1..2);
        table.row([words.trim(), "1"]);
        let section = Section::new("x").with_table(table).with_notes([words.trim()]);
        let text = section.text();
        assert!(text.lines().all(|line| line.chars().count() <= WIDEST), "{text}");
        assert_eq!(text.matches("word").count(), 120);
        assert_eq!(folded("short"), "  short\n");
    }

    #[test]
    fn a_table_that_is_too_wide_is_parted_and_each_part_has_its_labels() {
        let heads = (0..12).map(|at| format!("column {at:02}"));
        let mut table = Table::new("", ["name".to_owned()].into_iter().chain(heads), 1..13);
        table.row((0..13).map(|at| format!("value {at:02}")));
        let text = table.text();
        assert!(text.lines().all(|line| line.chars().count() <= WIDEST), "{text}");
        assert_eq!((text.matches("value 00").count(), text.matches("column 11").count()), (2, 1));
        let grouped = table.grouped(&[("", 1), ("measured", 6), ("published", 6)]).text();
        let heads = grouped.lines().find(|line| line.contains("published")).unwrap();
        assert!(
            !heads.contains("measured") && grouped.matches("value 00").count() == 2,
            "{grouped}"
        );
    }

    #[test]
    fn the_summary_is_last_and_empty_sections_are_left_out() {
        let mut table = Table::new("", ["a", "b"], 1..2);
        table.row(["x", "1"]);
        let document = Document {
            sections: vec![Section::new("First").with_table(table), Section::new("Nothing")],
            summary: Section::new("Sum").with_notes(["well done"]),
            ..Document::default()
        };
        assert_eq!(document.text(), "First\n  a  b\n  x  1\n\nSum\n  well done\n");
        assert_eq!(Document { interrupted: true, ..document }.text(), "");
    }
}
