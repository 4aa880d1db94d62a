//! Measures the cells of a table, one after the other in each round.

use crate::bench::interleaved;
use crate::session::STOP;
use indicatif::ProgressBar;
use std::sync::atomic::Ordering;

/// A cell of a table: its name, and its results.
pub trait Cell {
    /// The figure of one round.
    type Figure;

    fn name(&self) -> String;

    /// The reason why there are no (more) figures.
    fn not_measured(&mut self) -> &mut Option<String>;

    fn push(&mut self, figure: Self::Figure);
}

/// Measures every cell once in each round, until Ctrl-C. `groups` has the number of cells of each
/// group, whose order [`interleaved`] changes. A failed cell is not tried again. `run` gets the
/// round and the index of the cell.
pub fn measure<C: Cell>(
    cells: &mut [C],
    groups: &[usize],
    rounds: u32,
    bar: &ProgressBar,
    mut run: impl FnMut(&C, u32, usize) -> Result<C::Figure, String>,
) {
    for (round, index) in interleaved(groups, rounds) {
        bar.inc(1);
        let cell = &mut cells[index];
        if cell.not_measured().is_some() {
            continue;
        }
        bar.set_message(format!("round {} of {rounds} · {}", round + 1, cell.name()));
        let result = run(cell, round, index);
        if STOP.load(Ordering::Relaxed) {
            return;
        }
        match result {
            Ok(figure) => cell.push(figure),
            Err(reason) => *cell.not_measured() = Some(reason),
        }
    }
}

/// Implements [`Cell`] for a type with the fields `not_measured` and `$figures`, a list. The
/// expression `$name` gives the cell's name.
macro_rules! keeps {
    ($cell:ty, $figures:ident: $figure:ty, |$this:ident| $name:expr) => {
        impl $crate::reproduce::cells::Cell for $cell {
            type Figure = $figure;

            fn name(&self) -> String {
                let $this = self;
                $name
            }

            fn not_measured(&mut self) -> &mut Option<String> {
                &mut self.not_measured
            }

            fn push(&mut self, figure: $figure) {
                self.$figures.push(figure);
            }
        }
    };
}
pub(crate) use keeps;
