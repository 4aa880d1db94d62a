//! All experiments, one after the other, with their results in one table.

use super::options::Options;
use super::report::columns;
use super::{Experiment, Measured, STATUS, affinity, batch, fd_pool, inline, lookup};
use crate::machine::{Machine, Storage};
use crate::report::{Cell, Document, Header, Record, Section, Table, Tone};
use crate::scratch::Place;
use crate::session::{self, STOP, Session};
use anyhow::{Context as _, Result};
use clap::{Args, Command};
use serde::Serialize;
use serde_json::Value;
use std::fs::File;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

const EXAMPLES: &str = include_str!("../../help/all-examples.txt");

const METHOD: &str = include_str!("../../help/all-method.txt");

/// Runs the five experiments one after the other, and sums up.
#[derive(Args)]
#[command(after_help = session::help(&[EXAMPLES, METHOD, STATUS]))]
pub struct Arguments {
    #[command(flatten)]
    place: Place,

    #[command(flatten)]
    options: Options,
}

/// The result of one experiment.
#[derive(Serialize)]
struct Run {
    name: &'static str,
    claim: &'static str,
    outcome: &'static str,
    /// The reason why it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The output of the experiment itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<Value>,
    #[serde(skip)]
    measured: Option<Box<Measured>>,
}

/// All results.
#[derive(Serialize)]
struct Report<'a> {
    experiment: &'static str,
    machine: &'a Machine,
    interrupted: bool,
    experiments: Vec<Run>,
}

/// Runs the experiments.
///
/// # Errors
/// An output cannot be created or written to.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut session = Session::new(&arguments.options.outputs, Some(arguments.place.as_ref()))?;
    arguments.options.sandbox.enter()?;
    let machine = Machine::look();
    let header = arguments.header(&machine)?;
    session.begin(&header)?;
    let experiments = vec![
        arguments.run_one::<lookup::Arguments>(&mut session)?,
        arguments.run_one::<batch::Arguments>(&mut session)?,
        arguments.run_one::<fd_pool::Arguments>(&mut session)?,
        arguments.run_one::<affinity::Arguments>(&mut session)?,
        arguments.run_one::<inline::Arguments>(&mut session)?,
    ];
    let interrupted = STOP.load(Ordering::Relaxed);
    let mut report = Report { experiment: "all", machine: &machine, interrupted, experiments };
    let document = report.document(header);
    session::say(&document.text())?;
    let failed = report.experiments.iter().any(Run::has_failed);
    let status = session.end(&report, &document)?;
    Ok(if failed && !interrupted { ExitCode::FAILURE } else { status })
}

impl Arguments {
    /// The header of all experiments, with the facts about their common folder.
    fn header(&self, machine: &Machine) -> Result<Header> {
        let path = self.place.as_ref();
        let found = if path.exists() { path } else { path.parent().unwrap_or(path) };
        let found = if found.as_os_str().is_empty() { Path::new(".") } else { found };
        let storage = File::open(found).and_then(|file| Storage::behind(&file));
        let storage = storage.with_context(|| format!("--file {}", path.display()))?;
        let notices = self.options.notices(machine, &storage, &[]);
        let takes = if self.options.quick { "less than 3 min" } else { "about 10 min" };
        let rounds = format!("{} of each experiment", self.options.rounds());
        let more = [("rounds", rounds), ("takes", takes.to_owned())];
        let file =
            std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string();
        Ok(session::header("reproduce all", machine, &storage, file, &more, notices))
    }

    /// Runs one experiment, with the common options.
    fn run_one<E: Experiment>(&self, session: &mut Session<'_>) -> Result<Run> {
        let run = |outcome, reason| Run {
            name: E::NAME,
            claim: E::CLAIM,
            outcome,
            reason,
            report: None,
            measured: None,
        };
        if STOP.load(Ordering::Relaxed) {
            return Ok(run("not run", Some("interrupted before it began".into())));
        }
        let place = E::Place::from(self.place.clone());
        let found = defaults::<E>().run(&place, &self.options, session);
        let run = match found {
            Ok(mut measured) => {
                let report = std::mem::take(&mut measured.json);
                session::say(&format!("{}\n", measured.document.text()))?;
                Run {
                    report: Some(report),
                    measured: Some(Box::new(measured)),
                    ..run("measured", None)
                }
            }
            Err(error) => {
                let outcome = if session::is_refusal(&error) { "refused" } else { "failed" };
                run(outcome, Some(format!("{error:#}")))
            }
        };
        if let Some(reason) = &run.reason {
            session::say(&format!("{} {}: {reason}\n\n", run.name, run.outcome))?;
        }
        Ok(run)
    }
}

/// The defaults of the command line.
fn defaults<A: Args>() -> A {
    let command = A::augment_args(Command::new("").no_binary_name(true));
    let matches = command.try_get_matches_from([""; 0]).and_then(|m| A::from_arg_matches(&m));
    matches.expect("no experiment has an argument without a default")
}

impl Run {
    fn has_failed(&self) -> bool {
        let disproved = self.measured.as_ref().is_some_and(|measured| !measured.proved);
        self.outcome == "failed" || disproved
    }

    /// Lines of the summary: the claim with the number of goals reached, and the figures for which
    /// there is a published value.
    fn rows(&self, table: &mut Table) {
        let claim = || [self.name, self.claim].map(Cell::from);
        let dashes = ["-", "-"].map(Cell::from);
        let Some(measured) = &self.measured else {
            let reason = self.reason.as_deref().unwrap_or_default();
            let verdict = Cell { text: format!("{}: {reason}", self.outcome), tone: Tone::Plain };
            return table.row(claim().into_iter().chain(dashes).chain([verdict]));
        };
        let goals: Vec<bool> = measured.shown.iter().filter_map(|s| s.is_reached()).collect();
        let reached = goals.iter().filter(|reached| **reached).count();
        let (text, tone) = match goals.len() {
            0 => ("no goal was set".to_owned(), Tone::Plain),
            all if all == reached => (format!("{reached} of {all} goals reached"), Tone::Win),
            all => {
                (format!("{reached} of {all} goals reached, {} MISSED", all - reached), Tone::Loss)
            }
        };
        table.row(claim().into_iter().chain(dashes).chain([Cell { text, tone }]));
        for shown in measured.shown.iter().filter(|shown| shown.published.is_some()) {
            let names = ["".to_owned(), format!("  {}", shown.what)];
            let values = columns(shown);
            let verdict = Cell { text: shown.verdict().into(), tone: shown.tone() };
            let cells = names.into_iter().chain(values).map(Cell::from);
            table.row(cells.chain([verdict]));
        }
    }
}

impl Report<'_> {
    fn document(&mut self, header: Header) -> Document {
        let heads = ["experiment", "what was to be shown", "measured", "published", "verdict"];
        let mut table = Table::new("", heads, 2..4);
        for run in &self.experiments {
            run.rows(&mut table);
        }
        let count = |outcome| self.experiments.iter().filter(|run| run.outcome == outcome).count();
        let counts = ["measured", "refused", "failed", "not run"].map(|name| (name, count(name)));
        let counts = counts.into_iter().filter(|(_, count)| *count > 0);
        let counts: Vec<String> = counts.map(|(name, count)| format!("{count} {name}")).collect();
        let summary = Section::new("All experiments").with_table(table).with_notes([format!(
            "Of {} experiments: {}",
            self.experiments.len(),
            counts.join(", ")
        )]);
        let (mut parts, mut records) = (Vec::new(), Vec::new());
        for run in &mut self.experiments {
            match &mut run.measured {
                Some(measured) => {
                    records.append(&mut measured.document.records);
                    parts.push(std::mem::take(&mut measured.document));
                }
                None => {
                    let reason = run.reason.clone().unwrap_or_default();
                    let record = Record::default().with("experiment", run.name);
                    records.extend(record.rounds([0u8; 0], Some(&reason)));
                }
            }
        }
        Document {
            header,
            interrupted: self.interrupted,
            method: METHOD.into(),
            summary,
            parts,
            records,
            ..Document::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Given;
    use super::*;

    #[test]
    fn every_experiment_has_defaults() {
        fn is_named<E: Experiment>() -> &'static str {
            let given: Given<E> = defaults();
            assert_eq!(given.place.as_ref(), Path::new("."), "{}", E::NAME);
            assert_eq!(given.options.rounds(), 3, "{}", E::NAME);
            E::NAME
        }
        let names = [
            is_named::<lookup::Arguments>(),
            is_named::<batch::Arguments>(),
            is_named::<fd_pool::Arguments>(),
            is_named::<affinity::Arguments>(),
            is_named::<inline::Arguments>(),
        ];
        assert_eq!(names, ["lookup", "batch", "fd-pool", "affinity", "uringlet"]);
    }

    #[test]
    fn what_could_not_be_run_is_in_the_sum_with_its_reason() {
        let run = Run {
            name: "affinity",
            claim: "placed",
            outcome: "refused",
            reason: Some("it is kept in memory".into()),
            report: None,
            measured: None,
        };
        let machine = Machine::look();
        let experiments = vec![run];
        let mut report =
            Report { experiment: "all", machine: &machine, interrupted: false, experiments };
        let document = report.document(Header::default());
        let text = document.text();
        assert!(text.contains("refused: it is kept in memory"), "{text}");
        assert!(text.contains("Of 1 experiments: 1 refused"), "{text}");
        assert_eq!(document.records.len(), 1);
        assert!(!report.experiments[0].has_failed());
    }
}
