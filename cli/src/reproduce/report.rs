//! What the reproductions have in common: rounds, ratios with their spread, what was to be shown.

use crate::bench::median;
use crate::session;
use serde::Serialize;
use std::fmt::Write as _;

/// A ratio of two things that were measured in the same rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Median divided by median.
    pub ratio: f64,
    /// The lowest of a single round.
    pub lowest: f64,
    /// The highest of a single round.
    pub highest: f64,
}

impl Ratio {
    /// Of figures in the order of the rounds. None without a round that has both.
    pub fn of(above: &[f64], below: &[f64]) -> Option<Self> {
        let rounds = || above.iter().zip(below).map(|(above, below)| above / below);
        Some(Self {
            ratio: median(above.to_vec())? / median(below.to_vec())?,
            lowest: rounds().reduce(f64::min)?,
            highest: rounds().reduce(f64::max)?,
        })
    }

    /// `0.98–1.03`.
    pub fn spread(&self) -> String {
        format!("{:.2}–{:.2}", self.lowest, self.highest)
    }
}

/// What a ratio is to be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
    /// This, and nothing else.
    Exactly(f64),
}

/// Something that was to be shown, in figures.
#[derive(Debug, Default, Serialize)]
pub struct Shown {
    /// In words.
    pub what: String,
    /// Here.
    pub measured: Option<f64>,
    /// Lowest and highest of single rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<(f64, f64)>,
    /// There.
    pub published: Option<f64>,
    /// What it is to be here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal: Option<Goal>,
}

impl Shown {
    /// With a goal, and nothing published.
    pub fn goal(what: impl Into<String>, measured: Option<Ratio>, goal: Goal) -> Self {
        Self {
            what: what.into(),
            measured: measured.map(|found| found.ratio),
            spread: measured.map(|found| (found.lowest, found.highest)),
            published: None,
            goal: Some(goal),
        }
    }

    /// Whether the goal is reached; by some rounds and not by others: within noise.
    pub fn verdict(&self) -> &'static str {
        let (Some(goal), Some(measured)) = (self.goal, self.measured) else { return "-" };
        let (lowest, highest) = self.spread.unwrap_or((measured, measured));
        let (reached, by_the_best) = match goal {
            Goal::AtMost(most) => (measured <= most, lowest <= most),
            Goal::AtLeast(least) => (measured >= least, highest >= least),
            Goal::Exactly(this) => (measured == this, false),
        };
        match (reached, by_the_best) {
            (true, _) => "reached",
            (false, true) => "missed, within the rounds' spread",
            (false, false) => "MISSED",
        }
    }
}

/// `1 thread`, `2 threads`.
pub fn threads(count: usize) -> String {
    if count == 1 { "1 thread".into() } else { format!("{count} threads") }
}

/// The section `What was to be shown`; columns for goals only if there is one.
pub fn shown(all: &[Shown]) -> String {
    let number = |value: Option<f64>| value.map_or_else(|| "-".into(), |v| format!("{v:.2}"));
    let goals = all.iter().any(|shown| shown.goal.is_some());
    let heads = ["", "measured", "published", "goal", ""];
    let mut out =
        session::table(heads[..if goals { 5 } else { 3 }].iter().map(|head| (*head).to_owned()));
    for shown in all {
        let mut row = vec![shown.what.clone(), number(shown.measured), number(shown.published)];
        if goals {
            row.push(match shown.goal {
                Some(Goal::AtMost(most)) => format!("≤ {most:.2}"),
                Some(Goal::AtLeast(least)) => format!("≥ {least:.2}"),
                Some(Goal::Exactly(this)) => format!("= {this:.2}"),
                None => "-".into(),
            });
            row.push(shown.verdict().into());
        }
        out.add_row(row);
    }
    format!("What was to be shown\n{}", session::lines(&mut out, 1..if goals { 4 } else { 3 }))
}

/// The section `Not measured`, what has the same reason on one line. Empty if all was.
pub fn not_measured<'a>(cells: impl Iterator<Item = (String, &'a str)>) -> String {
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for (what, reason) in cells {
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, list)) => list.push(what),
            None => reasons.push((reason, vec![what])),
        }
    }
    let mut text = String::new();
    if !reasons.is_empty() {
        text.push_str("\nNot measured\n");
    }
    for (reason, what) in reasons {
        let _ = writeln!(text, "  {}: {reason}", what.join("; "));
    }
    text
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
