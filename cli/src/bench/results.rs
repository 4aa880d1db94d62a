//! How both kinds of bench end: with a document for people, JSON, and an exit status.

use super::conclusion::{self, Circumstances, Line};
use crate::machine::{Machine, Storage};
use crate::report::{Document, Header, NotMeasured, Record, Section};
use crate::session::{self, STOP, Session};
use anyhow::Result;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// What came out.
pub struct Results {
    /// What the JSON of this kind has beside the common keys.
    pub own: Value,
    pub settings: Value,
    pub cells: Value,
    pub lines: Vec<Line>,
    pub not_measured: Vec<NotMeasured>,
    pub around: Circumstances,
    pub sentences: Vec<String>,
    /// How it was measured.
    pub method: &'static str,
    pub sections: Vec<Section>,
    pub records: Vec<Record>,
    /// There is a figure.
    pub is_measured: bool,
    /// Without a figure: each cell was refused.
    pub is_refused: bool,
}

impl Results {
    /// Says and writes everything.
    ///
    /// # Errors
    /// An output cannot be written to.
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
