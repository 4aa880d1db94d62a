//! The message of a test that cannot run here.

use std::fmt::Display;
use std::io::Write as _;

/// Prints the message even if the harness captures the output: a skipped test must not look like a
/// passed one.
pub fn skipped(name: &str, reason: impl Display) {
    // The message has a line of its own, as the harness may have printed half a line.
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {name}: {reason}");
}
