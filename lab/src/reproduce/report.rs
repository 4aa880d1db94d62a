//! The common part of the reproductions: rounds, ratios with their spread, claims.

use crate::bench::median;
use crate::report::{Axis, Bar, Bars, Cell, Figure, Group, Key, Scale, Section, Table, Tone};
use crate::size;
use serde::Serialize;
use std::fmt;

/// A ratio of two things that were measured in the same rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Median divided by median.
    pub ratio: f64,
    /// The lowest ratio of a single round.
    pub lowest: f64,
    /// The highest ratio of a single round.
    pub highest: f64,
}

impl Ratio {
    /// The ratio of figures in the order of the rounds. None without a round that has both.
    pub fn of(above: &[f64], below: &[f64]) -> Option<Self> {
        let rounds = || above.iter().zip(below).map(|(above, below)| above / below);
        Some(Self {
            ratio: median(above.to_vec())? / median(below.to_vec())?,
            lowest: rounds().reduce(f64::min)?,
            highest: rounds().reduce(f64::max)?,
        })
    }

    /// The lowest and the highest ratio, such as `0.98–1.03`.
    pub fn spread(&self) -> String {
        format!("{:.2}–{:.2}", self.lowest, self.highest)
    }
}

/// The goal for a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// At most this value.
    AtMost(f64),
    /// At least this value.
    AtLeast(f64),
    /// Exactly this value.
    Exactly(f64),
}

impl Goal {
    fn admits(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
            Self::Exactly(this) => value == this,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "≤ {most:.2}"),
            Self::AtLeast(least) => write!(f, "≥ {least:.2}"),
            Self::Exactly(this) => write!(f, "= {this:.2}"),
        }
    }
}

/// The kind of the figures of a [`Shown`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    #[default]
    Ratio,
    /// Percentage points.
    Points,
}

/// A claim, in figures.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Shown {
    /// The claim in words.
    pub what: String,
    /// The value here.
    pub measured: Option<f64>,
    /// Lowest and highest of single rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<(f64, f64)>,
    /// The published value.
    pub published: Option<f64>,
    /// The goal for the value here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal: Option<Goal>,
    #[serde(skip)]
    pub kind: Kind,
}

impl Shown {
    /// A claim with a goal, and without a published value.
    pub fn goal(what: impl Into<String>, measured: Option<Ratio>, goal: Goal) -> Self {
        Self {
            what: what.into(),
            measured: measured.map(|found| found.ratio),
            spread: measured.map(|found| (found.lowest, found.highest)),
            published: None,
            goal: Some(goal),
            ..Self::default()
        }
    }

    /// Is the goal reached? None without a goal or a figure.
    pub fn is_reached(&self) -> Option<bool> {
        let (goal, measured) = (self.goal?, self.measured?);
        Some(goal.admits(measured))
    }

    pub fn tone(&self) -> Tone {
        match self.is_reached() {
            Some(true) => Tone::Win,
            Some(false) => Tone::Loss,
            None => Tone::Plain,
        }
    }

    /// Whether the goal is reached, in words. A miss is within the rounds' spread if the best round
    /// reaches the goal.
    pub fn verdict(&self) -> &'static str {
        let (Some(goal), Some(measured)) = (self.goal, self.measured) else { return "-" };
        let (lowest, highest) = self.spread.unwrap_or((measured, measured));
        let by_the_best = match goal {
            Goal::AtMost(_) => goal.admits(lowest),
            Goal::AtLeast(_) => goal.admits(highest),
            Goal::Exactly(_) => false,
        };
        match (goal.admits(measured), by_the_best) {
            (true, _) => "reached",
            (false, true) => "missed, within the rounds' spread",
            (false, false) => "MISSED",
        }
    }
}

/// The number of threads with the word, such as `2 threads`.
pub fn threads(count: usize) -> String {
    format!("{count} {}", size::plural(count as u64, "thread"))
}

/// The measured and the published value.
pub fn columns(shown: &Shown) -> [String; 2] {
    let number = |value: Option<f64>| value.map_or_else(|| "-".into(), |v| format!("{v:.2}"));
    [number(shown.measured), number(shown.published)]
}

/// The section `What was to be shown`; columns for goals only if there is one.
pub fn shown(all: &[Shown]) -> Section {
    let goals = all.iter().any(|shown| shown.goal.is_some());
    let heads = ["", "measured", "published", "goal", ""];
    let heads = &heads[..if goals { 5 } else { 3 }];
    let mut table = Table::new("", heads.iter().copied(), 1..if goals { 4 } else { 3 });
    for shown in all {
        let [measured, published] = columns(shown);
        let mut row: Vec<Cell> = vec![shown.what.clone().into(), measured.into(), published.into()];
        if goals {
            row.push(shown.goal.map_or_else(|| "-".into(), |goal| goal.to_string()).into());
            row.push(Cell { text: shown.verdict().into(), tone: shown.tone() });
        }
        table.row(row);
    }
    let ratios = pairs("Measured and published ratios", all, Kind::Ratio);
    let points = pairs("Measured and published savings", all, Kind::Points);
    Section::new("What was to be shown").with_figures(ratios).with_figures(points).with_table(table)
}

/// Bars in pairs of published and measured values.
fn pairs(title: &str, all: &[Shown], kind: Kind) -> Option<Figure> {
    let groups: Vec<Group> = all
        .iter()
        .filter(|shown| shown.kind == kind && shown.published.is_some())
        .map(|shown| {
            let measured = Bar::one("measured", 0, shown.measured);
            let measured = Bar { tone: shown.tone(), spread: shown.spread, ..measured };
            let bars = vec![measured, Bar::one("published", 1, shown.published)];
            Group { label: shown.what.clone(), bars }
        })
        .collect();
    let (value, origin) = match kind {
        Kind::Ratio => (Axis::new("ratio", "1 is equal, log scale", Scale::Log), 1.0),
        Kind::Points => (Axis::new("CPU time saved", "percentage points", Scale::Linear), 0.0),
    };
    let keys = Key::measured_and_published();
    let category = "what was compared".into();
    let about = "Each comparison as measured here and as published. Whiskers reach from the lowest \
                 to the highest single round.";
    let bars = Bars { value, category, origin, keys, groups };
    (!bars.groups.is_empty()).then(|| Figure::bars(title, about, bars))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_of_medians_and_its_spread_of_rounds() {
        let found = Ratio::of(&[1.0, 4.0, 3.0], &[2.0, 2.0, 6.0]).unwrap();
        assert_eq!(found, Ratio { ratio: 1.5, lowest: 0.5, highest: 2.0 });
        assert_eq!(Ratio::of(&[], &[1.0]), None);
    }

    #[test]
    fn a_missed_goal_is_called_missed() {
        let found = |ratio, lowest, highest| Some(Ratio { ratio, lowest, highest });
        let verdict = |measured, goal| Shown::goal("", measured, goal).verdict();
        assert_eq!(verdict(found(1.1, 1.0, 1.2), Goal::AtMost(1.1)), "reached");
        assert_eq!(verdict(found(1.2, 1.15, 1.3), Goal::AtMost(1.1)), "MISSED");
        assert!(verdict(found(1.2, 1.0, 1.3), Goal::AtMost(1.1)).starts_with("missed, within"));
        assert_eq!(verdict(found(19.0, 18.0, 19.5), Goal::AtLeast(20.0)), "MISSED");
        assert_eq!(verdict(found(1.0, 1.0, 1.0), Goal::Exactly(1.0)), "reached");
        assert_eq!(verdict(found(0.99, 0.9, 1.0), Goal::Exactly(1.0)), "MISSED");
        assert_eq!(verdict(None, Goal::AtLeast(20.0)), "-");
    }
}
