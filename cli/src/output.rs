//! Where an option has a result written to: `-` stands for standard output.

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
    let json = || anyhow::Ok(serde_json::to_string_pretty(json).context("--json")? + "\n");
    match to {
        Some(path) if path == Path::new("-") => return session::say(&json()?),
        Some(path) => {
            let cannot = || format!("--json: cannot write {}", path.display());
            std::fs::write(path, json()?).with_context(cannot)?;
        }
        None => {}
    }
    session::say(text)
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
