//! The end of a benchmark, of workloads or of job files: prints the results, writes the outputs,
//! and returns the exit status.

use super::conclusion::{self, Circumstances, Line};
use crate::machine::{Machine, Storage};
use crate::report::{Document, Header, NotMeasured, Record, Section};
use crate::session::{self, STOP, Session};
use anyhow::Result;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// The results of a bench.
pub struct Results {
    /// The JSON keys that differ between a benchmark of workloads and one of job files.
    pub own: Value,
    pub settings: Value,
    pub cells: Value,
    pub lines: Vec<Line>,
    pub not_measured: Vec<NotMeasured>,
    pub around: Circumstances,
    pub sentences: Vec<String>,
    /// The method of measuring.
    pub method: &'static str,
    pub sections: Vec<Section>,
    pub records: Vec<Record>,
    /// Is there a figure?
    pub is_measured: bool,
    /// If there is no figure: was each cell refused?
    pub is_refused: bool,
}

impl Results {
    /// Prints and writes all results.
    ///
    /// # Errors
    /// An output cannot be written.
    pub fn end(
        self,
        session: Session<'_>,
        header: Header,
        machine: &Machine,
        storage: &Storage,
    ) -> Result<ExitCode> {
        let interrupted = STOP.load(Ordering::Relaxed);
        let mut json = self.own;
        for (key, value) in [
            ("machine", json!(machine)),
            ("storage", json!(storage)),
            ("notices", json!(header.notices)),
            ("settings", self.settings),
            ("interrupted", json!(interrupted)),
            ("lines", json!(self.lines)),
            ("cells", self.cells),
            ("not_measured", json!(self.not_measured)),
        ] {
            json[key] = value;
        }
        let document = Document {
            header,
            interrupted,
            method: self.method.into(),
            sections: self.sections,
            conclusion: self.sentences,
            summary: conclusion::section(&self.lines, &self.around),
            records: self.records,
            ..Document::default()
        };
        session::say(&document.text())?;
        let status = session.end(&json, &document)?;
        if interrupted || self.is_measured {
            return Ok(status);
        }
        Ok(session::nothing_measured("bench", self.is_refused))
    }
}
