//! What a test says that cannot run here.

use std::fmt::Display;
use std::io::Write as _;

/// Past the capturing of a passed test's output: skipped must not look like passed.
pub fn skipped(name: &str, reason: impl Display) {
    // On a line of its own: the harness may be in the middle of one.
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {name}: {reason}");
}
