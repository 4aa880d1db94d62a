//! The report of a measurement, as figures and tables, and its output formats.
//!
//! A command makes a [`Document`]. The formats are a terminal's text (`text`), a page (`html`, with
//! plots from `svg`), and lines for a spreadsheet (`records`).

mod html;
mod outputs;
mod records;
mod scale;
mod svg;
mod text;

pub use outputs::{Files, Outputs, cannot_make, write_json};
pub use records::Record;
pub use scale::{Axis, Scale};
pub use svg::wrapped;

use serde::Serialize;
use std::ops::Range;

/// The facts that are known before the first measurement.
#[derive(Clone, Debug, Default)]
pub struct Header {
    /// The command's name, such as `bench` or `reproduce lookup`.
    pub command: String,
    /// uringlet's version.
    pub version: String,
    /// Machine, storage, method: name and value.
    pub facts: Vec<(String, String)>,
    /// Notices that a reader should know before trusting a figure.
    pub notices: Vec<String>,
}

impl Header {
    /// This header without the facts and notices that `other` has. The facts `CPU` and `memory` are
    /// left out whatever their values in `other`, because load and free memory always vary.
    pub fn beyond(&self, other: &Self) -> Self {
        let known = |(name, value): &(String, String)| {
            let same = other.facts.iter().find(|(other, _)| other == name);
            same.is_some_and(|(_, other)| other == value || ["CPU", "memory"].contains(&&**name))
        };
        let mut own = self.clone();
        own.facts.retain(|fact| !known(fact));
        own.notices.retain(|notice| !other.notices.contains(notice));
        own
    }
}

/// All results.
#[derive(Debug, Default)]
pub struct Document {
    pub header: Header,
    /// Ended by Ctrl-C: the figures are of the completed part.
    pub interrupted: bool,
    /// The results in sentences, for readers who read nothing else.
    pub conclusion: Vec<String>,
    /// The method of measuring, in paragraphs.
    pub method: String,
    /// Details, in the order of reading.
    pub sections: Vec<Section>,
    /// The summary. A page begins with it, and a terminal's text ends with it, so that it stays
    /// visible.
    pub summary: Section,
    /// Documents that this one summarizes.
    pub parts: Vec<Document>,
    /// A line of the spreadsheet for each table cell and round.
    pub records: Vec<Record>,
}

/// Figures and tables on one subject.
#[derive(Debug, Default)]
pub struct Section {
    pub heading: String,
    /// The figures are on pages only.
    pub figures: Vec<Figure>,
    pub tables: Vec<Table>,
    /// Lines below the tables.
    pub notes: Vec<String>,
}

impl Section {
    pub fn new(heading: impl Into<String>) -> Self {
        Self { heading: heading.into(), ..Self::default() }
    }

    pub fn with_figures(mut self, figures: impl IntoIterator<Item = Figure>) -> Self {
        self.figures.extend(figures);
        self
    }

    pub fn with_table(mut self, table: Table) -> Self {
        self.tables.push(table);
        self
    }

    pub fn with_notes<T: Into<String>>(mut self, notes: impl IntoIterator<Item = T>) -> Self {
        self.notes.extend(notes.into_iter().map(Into::into));
        self
    }

    pub fn is_empty(&self) -> bool {
        self.figures.is_empty() && self.tables.is_empty() && self.notes.is_empty()
    }

    /// The section `Not measured`, with a line for each reason. Empty if everything was measured.
    pub fn not_measured(list: &[NotMeasured]) -> Self {
        let lines = list
            .iter()
            .map(|NotMeasured { what, reason }| format!("{}: {reason}", what.join("; ")));
        Self::new("Not measured").with_notes(lines)
    }
}

/// A reason, with everything that was not measured because of it.
#[derive(Serialize)]
pub struct NotMeasured {
    what: Vec<String>,
    reason: String,
}

impl NotMeasured {
    /// Groups names by reason. Each reason appears once, in order. Names without a reason are left
    /// out.
    pub fn by_reason<'a>(all: impl Iterator<Item = (String, Option<&'a String>)>) -> Vec<Self> {
        let mut list: Vec<Self> = Vec::new();
        for (name, reason) in all {
            let Some(reason) = reason else { continue };
            match list.iter_mut().find(|known| known.reason == *reason) {
                Some(known) if known.what.contains(&name) => {}
                Some(known) => known.what.push(name),
                None => list.push(Self { what: vec![name], reason: reason.clone() }),
            }
        }
        list
    }
}

/// The result of a comparison, shown by sign and colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Plain,
    /// Better than the other side.
    Win,
    /// Worse.
    Loss,
}

impl Tone {
    /// A sign that can be read without colours.
    pub fn sign(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Win => "▲",
            Self::Loss => "▼",
        }
    }
}

/// A table's cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    pub text: String,
    pub tone: Tone,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), tone: Tone::Plain }
    }
}

/// A table; the first header line may span columns.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// A caption, if no heading describes the table.
    pub caption: String,
    /// The line above the heads: each text, and the number of columns that it spans. May be empty.
    pub groups: Vec<(String, usize)>,
    pub heads: Vec<String>,
    pub rows: Vec<Vec<Cell>>,
    /// Columns that are aligned to the right.
    pub right: Range<usize>,
    /// The number of leading columns that identify a line: if a table is too wide, each part
    /// repeats them.
    pub labels: usize,
}

impl Table {
    pub fn new<T: Into<String>>(
        caption: impl Into<String>,
        heads: impl IntoIterator<Item = T>,
        right: Range<usize>,
    ) -> Self {
        let heads = heads.into_iter().map(Into::into).collect();
        let labels = right.start.max(1);
        Self { caption: caption.into(), heads, right, labels, ..Self::default() }
    }

    /// Sets the number of leading columns that identify a line.
    pub fn labelled(mut self, labels: usize) -> Self {
        self.labels = labels;
        self
    }

    pub fn grouped(mut self, groups: &[(&str, usize)]) -> Self {
        self.groups = groups.iter().map(|(text, span)| ((*text).to_owned(), *span)).collect();
        self
    }

    /// Does any column have a head? Without heads, the first cell of a line is its name.
    fn has_heads(&self) -> bool {
        self.heads.iter().any(|head| !head.is_empty())
    }

    pub fn row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }
}

/// A plot, and a description in words.
#[derive(Clone, Debug)]
pub struct Figure {
    pub title: String,
    /// How to read the plot, in a sentence.
    pub about: String,
    pub plot: Plot,
    /// The main plot: as large as the page.
    pub headline: bool,
}

#[derive(Clone, Debug)]
pub enum Plot {
    Lines(Lines),
    Bars(Bars),
}

/// A plot of lines: values over a number.
#[derive(Clone, Debug)]
pub struct Lines {
    pub x: Axis,
    pub y: Axis,
    pub series: Vec<Series>,
}

/// A line of a plot, which is about one subject.
#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    /// The number of its colour, marker and dashes. A subject has the same number in all plots of a
    /// page.
    pub style: usize,
    pub points: Vec<Point>,
}

#[derive(Clone, Debug)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    /// The values of which `y` is the median; empty if it is no median.
    pub rounds: Vec<f64>,
}

impl Point {
    /// The median of some rounds; none without a round.
    pub fn of(x: usize, rounds: Vec<f64>) -> Option<Self> {
        Some(Self { x: x as f64, y: crate::bench::median(rounds.clone())?, rounds })
    }
}

/// A plot of bars: values of named things.
#[derive(Clone, Debug)]
pub struct Bars {
    pub value: Axis,
    /// A text that says what the groups are.
    pub category: String,
    /// The value at which bars begin; also drawn as a line.
    pub origin: f64,
    pub keys: Vec<Key>,
    pub groups: Vec<Group>,
}

/// The meaning of a part of a bar: an entry of the legend.
#[derive(Clone, Debug)]
pub struct Key {
    pub name: String,
    pub style: usize,
    pub striped: bool,
}

impl Key {
    pub fn new(name: impl Into<String>, style: usize, striped: bool) -> Self {
        Self { name: name.into(), style, striped }
    }

    /// The keys for measured and published values.
    pub fn measured_and_published() -> Vec<Self> {
        vec![Self::new("measured", 2, false), Self::new("published", 1, true)]
    }
}

#[derive(Clone, Debug)]
pub struct Group {
    pub label: String,
    pub bars: Vec<Bar>,
}

#[derive(Clone, Debug, Default)]
pub struct Bar {
    pub label: String,
    /// The parts, one after the other: the number of the key, and the length. Empty if the value
    /// was not measured.
    pub parts: Vec<(usize, f64)>,
    /// The ends of the whisker, such as the lowest and the highest value of a round.
    pub spread: Option<(f64, f64)>,
    pub tone: Tone,
}

impl Bar {
    /// A bar of one part; empty without a value.
    pub fn one(label: impl Into<String>, key: usize, value: Option<f64>) -> Self {
        let parts = value.map(|value| (key, value)).into_iter().collect();
        Self { label: label.into(), parts, ..Self::default() }
    }
}

impl Series {
    pub fn new(
        name: impl Into<String>,
        style: usize,
        points: impl IntoIterator<Item = Point>,
    ) -> Self {
        Self { name: name.into(), style, points: points.into_iter().collect() }
    }
}

impl Figure {
    pub fn lines(
        title: impl Into<String>,
        about: impl Into<String>,
        (x, y): (Axis, Axis),
        series: impl IntoIterator<Item = Series>,
    ) -> Self {
        let series = series.into_iter().collect();
        Self::new(title, about, Plot::Lines(Lines { x, y, series }))
    }

    pub fn bars(title: impl Into<String>, about: impl Into<String>, bars: Bars) -> Self {
        Self::new(title, about, Plot::Bars(bars))
    }

    fn new(title: impl Into<String>, about: impl Into<String>, plot: Plot) -> Self {
        Self { title: title.into(), about: about.into(), plot, headline: false }
    }

    /// Makes this plot the main plot.
    pub fn as_headline(mut self) -> Self {
        self.headline = true;
        self
    }

    /// The plot's values.
    pub fn table(&self) -> Table {
        match &self.plot {
            Plot::Lines(lines) => lines.table(&self.title),
            Plot::Bars(bars) => bars.table(&self.title),
        }
    }
}

fn number(value: Option<f64>) -> Cell {
    value.map_or_else(|| "-".into(), |value| scale::exact(value).into())
}

impl Lines {
    fn table(&self, title: &str) -> Table {
        let mut xs: Vec<f64> =
            self.series.iter().flat_map(|s| s.points.iter().map(|p| p.x)).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        let heads =
            std::iter::once(self.x.label()).chain(self.series.iter().map(|s| s.name.clone()));
        let mut table =
            Table::new(format!("{title}: {}", self.y.label()), heads, 0..1 + self.series.len());
        for x in xs {
            let of = |series: &Series| series.points.iter().find(|point| point.x == x).map(|p| p.y);
            let values = self.series.iter().map(|series| number(of(series)));
            table.row(std::iter::once(Cell::from(scale::plain(x))).chain(values));
        }
        table
    }
}

impl Bars {
    fn table(&self, title: &str) -> Table {
        let keys = self.keys.iter().map(|key| key.name.clone());
        let heads = [self.category.clone(), String::new()].into_iter().chain(keys);
        let caption = format!("{title}: {}", self.value.label());
        let mut table = Table::new(caption, heads, 2..2 + self.keys.len());
        for group in &self.groups {
            for bar in &group.bars {
                let of = |at| bar.parts.iter().find(|(key, _)| *key == at).map(|(_, value)| *value);
                let values = (0..self.keys.len()).map(|at| match of(at) {
                    value if self.keys.len() > 1 => number(value),
                    value => Cell { tone: bar.tone, ..number(value) },
                });
                let names = [Cell::from(group.label.clone()), bar.label.clone().into()];
                table.row(names.into_iter().chain(values));
            }
        }
        table
    }
}
