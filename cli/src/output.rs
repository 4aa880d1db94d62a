//! The destination of an option's result; `-` is standard output.

use crate::report::{cannot_make, write_json};
use crate::session;
use anyhow::{Context as _, Result};
use serde::Serialize;
use std::fs::File;
use std::io::{self, Write};
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

/// A file that is written repeatedly; without one, standard output.
pub struct Repeated(Option<File>);

impl Repeated {
    /// Opens a file. Its contents stay until [`begin`](Self::begin).
    ///
    /// # Errors
    /// The file cannot be made: a refusal.
    pub fn open(option: &str, path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self(None));
        }
        let made = named::open_to_write(File::options().write(true).create(true), path);
        Ok(Self(Some(made.map_err(|error| cannot_make(option, path, &error))?)))
    }

    /// Nothing is refused any more: earlier contents of a regular file are dropped.
    ///
    /// # Errors
    /// The file cannot be emptied.
    pub fn begin(&self) -> io::Result<()> {
        match &self.0 {
            Some(file) if file.metadata()?.is_file() => file.set_len(0),
            _ => Ok(()),
        }
    }
}

impl Write for Repeated {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.as_mut().map_or_else(|| io::stdout().write(bytes), |file| file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.as_mut().map_or_else(|| io::stdout().flush(), |file| file.flush())
    }
}
