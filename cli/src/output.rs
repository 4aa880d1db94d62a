//! The destination of an option's result; `-` is standard output.

use crate::report::{cannot_make, write_json};
use crate::session;
use anyhow::{Context as _, Result};
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use uringlet_lab::named;

/// Prints the text, and writes JSON if `--json` asks for it: to a file, or instead of the text.
///
/// # Errors
/// An output cannot be written.
pub fn write(to: Option<&Path>, json: &impl Serialize, text: &str) -> Result<()> {
    if to == Some(Path::new("-")) {
        let json = serde_json::to_string_pretty(json).context("--json")?;
        return session::say(&(json + "\n"));
    }
    // If a file cannot be written, the text is printed nevertheless.
    let written = to.map_or(Ok(()), |path| write_json(path, json));
    session::say(text)?;
    written
}

/// Opens a file that will be written repeatedly.
///
/// # Errors
/// The file cannot be made: a refusal.
pub fn open(option: &str, path: &Path) -> Result<Box<dyn Write>> {
    if path == Path::new("-") {
        return Ok(Box::new(std::io::stdout()));
    }
    let mut options = File::options();
    let made = named::open_to_write(options.write(true).create(true).truncate(true), path);
    Ok(Box::new(made.map_err(|error| cannot_make(option, path, &error))?))
}
