//! Where an option has a result written to: `-` stands for standard output.

use crate::report::write_json;
use crate::session;
use anyhow::{Context as _, Result};
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Says the text, and writes JSON where `--json` wants it: to a file, or instead of the text.
///
/// # Errors
/// One of them cannot be written.
pub fn write(to: Option<&Path>, json: &impl Serialize, text: &str) -> Result<()> {
    if to == Some(Path::new("-")) {
        let json = serde_json::to_string_pretty(json).context("--json")?;
        return session::say(&(json + "\n"));
    }
    // A file that cannot be written does not take the text away.
    let written = to.map_or(Ok(()), |path| write_json(path, json));
    session::say(text)?;
    written
}

/// What is going to be written to again and again.
///
/// # Errors
/// The file cannot be made.
pub fn open(option: &str, path: &Path) -> Result<Box<dyn Write>> {
    if path == Path::new("-") {
        return Ok(Box::new(std::io::stdout()));
    }
    let made = File::create(path);
    Ok(Box::new(made.with_context(|| format!("{option}: cannot make {}", path.display()))?))
}
