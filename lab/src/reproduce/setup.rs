//! The start of an experiment: the machine, the measured file, and notices for the reader.

use super::Experiment;
use super::options::Options;
use crate::machine::{Machine, Storage};
use crate::report::{Document, Header, Record, Section};
use crate::scratch::{Place, Scratch};
use crate::session::{self, STOP, Session};
use anyhow::Result;
use serde::Serialize;
use std::sync::atomic::Ordering;

/// The part of a report that all experiments have.
#[derive(Serialize)]
pub struct Setup {
    pub experiment: &'static str,
    pub machine: Machine,
    pub storage: Storage,
    /// The file of [`Scratch`], as a text; `None` for an experiment that opens none.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    pub notices: Vec<String>,
    /// Ended by Ctrl-C: the figures are of the completed part.
    pub interrupted: bool,
    /// The measured file or folder, for people.
    #[serde(skip)]
    line: String,
}

impl Setup {
    /// The setup for work on `storage`. `line` is the file or folder in words, and `own` has the
    /// notices about it.
    pub fn new<E: Experiment>(
        storage: Storage,
        line: String,
        own: &[String],
        options: &Options,
    ) -> Self {
        let machine = Machine::look();
        let notices = options.notices(&machine, &storage, own);
        let experiment = E::NAME;
        Self { experiment, machine, storage, file: None, notices, interrupted: false, line }
    }

    /// The setup for work in the file of `place`, and that file.
    ///
    /// # Errors
    /// As [`Place::open`].
    pub fn open<E: Experiment>(place: &Place, options: &Options) -> Result<(Self, Scratch)> {
        let scratch = place.open()?;
        let storage = Storage::behind(&scratch.buffered)?;
        let setup = Self::new::<E>(storage, scratch.line(), &scratch.notices, options);
        Ok((Self { file: Some(scratch.description.clone()), ..setup }, scratch))
    }

    /// Begins the session; `more` has lines of the experiment's own.
    ///
    /// # Errors
    /// As [`Session::begin`].
    pub fn begin(&self, session: &mut Session<'_>, more: &[(&str, String)]) -> Result<Header> {
        let Self { experiment, machine, storage, line, notices, .. } = self;
        let name = format!("reproduce {experiment}");
        let header = session::header(&name, machine, storage, line.clone(), more, notices.clone());
        session.begin(&header)?;
        Ok(header)
    }

    /// The document of an experiment: its sections, its claims, and the records.
    pub fn document(
        &self,
        header: Header,
        method: &str,
        sections: Vec<Section>,
        summary: Section,
        records: impl IntoIterator<Item = Record>,
    ) -> Document {
        let (interrupted, method) = (self.interrupted, method.to_owned());
        let records = records.into_iter().collect();
        Document { header, interrupted, method, sections, summary, records, ..Document::default() }
    }

    /// Records whether Ctrl-C has ended the measurement. Called when the measurement is over.
    pub fn end(self) -> Self {
        Self { interrupted: STOP.load(Ordering::Relaxed), ..self }
    }
}
