//! A document on a terminal.

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
    /// Everything but the header, which was printed before. Empty if it was interrupted before the
    /// first figure.
    pub fn text(&self) -> String {
        if self.interrupted && !self.records.iter().any(Record::has_figures) {
            return String::new();
        }
        let all = self.sections.iter().chain([&self.summary]);
        let texts = all.filter(|section| !section.is_empty()).map(Section::text);
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
            let _ = writeln!(text, "  {note}");
        }
        text
    }
}

impl Table {
    pub fn text(&self) -> String {
        let bold = |head: &String| TableCell::new(head).add_attribute(Attribute::Bold);
        let groups = self.groups.iter().flat_map(|(text, span)| {
            std::iter::once(text.clone()).chain(std::iter::repeat_n(String::new(), span - 1))
        });
        let mut out = if self.groups.is_empty() {
            session::table(self.has_heads().then_some(&self.heads).into_iter().flatten().cloned())
        } else {
            let mut out = session::table(groups);
            out.add_row(self.heads.iter().map(bold));
            out
        };
        for row in &self.rows {
            out.add_row(row.iter().map(cell));
        }
        session::lines(&mut out, self.right.clone())
    }
}

fn cell(Cell { text, tone }: &Cell) -> TableCell {
    let cell = TableCell::new(text);
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
        let of = |ratio: f64| cell(&Cell { text: "x".into(), tone: Tone::of_ratio(ratio) });
        assert!(of(0.934) == bold("x").fg(Color::Red));
        assert!(of(1.412) == bold("x").fg(Color::Green));
        assert!(of(1.001) == TableCell::new("x"));
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
