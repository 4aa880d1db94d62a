//! The classes of many comparisons: how many there are of each, and texts for a table.

use crate::report::Tone;
use serde::Serialize;
use uringlet_lab::verdict::{Class, Interval};

/// The number of comparisons of each class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    pub better: usize,
    pub worse: usize,
    pub level: usize,
    pub unknown: usize,
}

impl Count {
    pub fn of(classes: impl Iterator<Item = Class>) -> Self {
        let mut count = Self::default();
        for class in classes {
            match class {
                Class::Better => count.better += 1,
                Class::Worse => count.worse += 1,
                Class::Level => count.level += 1,
                Class::Unknown => count.unknown += 1,
            }
        }
        count
    }

    pub fn all(&self) -> usize {
        self.better + self.worse + self.level + self.unknown
    }
}

/// How a table shows a class: better and worse stand out, level and unknown are plain.
pub fn tone(class: Class) -> Tone {
    match class {
        Class::Better => Tone::Win,
        Class::Worse => Tone::Loss,
        Class::Level | Class::Unknown => Tone::Plain,
    }
}

/// A text such as `0.93–1.15`, or why there is no interval.
pub fn interval_text(interval: Option<Interval>) -> String {
    interval.map_or_else(|| "few rounds".into(), |found| found.text())
}
