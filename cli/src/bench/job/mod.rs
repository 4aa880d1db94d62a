//! `uringlet bench JOB.fio`: fio's job files, each engine in turn doing what they say.

mod ini;
mod layout;
mod options;
mod plan;
mod report;
mod value;

use super::drive::{Done, Figure, LatencyFigure, Outcome};
use super::engine::Engine;
use super::matrix::{Comparison, MOST_BUFFERS, Side, subject};
use super::trial::{interleaved, together};
use super::workload::Job;
use super::{Arguments, without_repeats};
use crate::machine::{Machine, Storage};
use crate::session::{self, INTERRUPTED, STOP, Session};
use crate::{REFUSED, size};
use anyhow::Result;
use options::Spec;
use plan::{Open, Plan, Stage};
use serde::Serialize;
use std::fs::File;
use std::io::Error;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What the user chose, with the defaults filled in.
#[derive(Clone, Debug, Serialize)]
struct Settings {
    /// Job files.
    files: Vec<String>,
    /// Those sections only.
    sections: Vec<String>,
    /// At most so long for each job.
    seconds: Option<f64>,
    rounds: u32,
    engines: Vec<Engine>,
}

/// What an engine did in a row, in the order of the rounds.
struct Cell {
    row: usize,
    engine: Engine,
    figures: Vec<Figure>,
    /// Reads and writes of each round.
    done: Vec<Done>,
    /// Of a run of its own.
    latency: Option<LatencyFigure>,
    /// The same, of reads and of writes.
    sides: [Option<LatencyFigure>; 2],
    not_measured: Option<String>,
}

impl Cell {
    fn side(&self) -> Option<Side<'_>> {
        let side = Side { engine: self.engine, figures: &self.figures };
        self.not_measured.is_none().then_some(side)
    }
}

/// All of them: for each row one per engine.
struct Runs {
    settings: Settings,
    plan: Plan,
    cells: Vec<Cell>,
}

impl Runs {
    fn new(settings: Settings, plan: Plan) -> Self {
        let deepest = plan.specs.iter().map(|spec| spec.iodepth).max().unwrap_or(1);
        let mut cells = Vec::new();
        for stage in &plan.stages {
            for row in stage.rows.clone() {
                cells.extend(
                    settings.engines.iter().map(|&engine| Cell {
                        row,
                        engine,
                        figures: Vec::new(),
                        done: Vec::new(),
                        latency: None,
                        sides: [None; 2],
                        not_measured: engine
                            .probe(deepest, None)
                            .err()
                            .or_else(|| too_much(&plan, stage, engine)),
                    }),
                );
            }
        }
        Self { settings, plan, cells }
    }

    fn cell(&self, row: usize, engine: Engine) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.row == row && cell.engine == engine)
    }

    fn cell_mut(&mut self, row: usize, engine: Engine) -> &mut Cell {
        let found = self.cells.iter_mut().find(|cell| cell.row == row && cell.engine == engine);
        found.expect("there is one for each row and engine")
    }

    fn comparison(&self, row: usize) -> Option<Comparison> {
        let engines = &self.settings.engines;
        let ours = self.cell(row, subject(engines)?)?.side()?;
        let natives = engines.iter().filter(|engine| engine.is_native());
        Comparison::of(ours, natives.filter_map(|&engine| self.cell(row, engine)?.side()))
    }

    /// Stages times engines times rounds; the run for latencies is one more round.
    fn steps(&self) -> u64 {
        let runs = self.plan.stages.len() * self.settings.engines.len();
        runs as u64 * (u64::from(self.settings.rounds) + 1)
    }

    /// How long it takes at most, if every job has an end by the clock.
    fn estimate(&self) -> Option<Duration> {
        let rounds = (self.settings.rounds + 1) * self.settings.engines.len() as u32;
        let stage = |stage: &Stage| -> Option<Duration> {
            let lengths = stage.threads.iter().map(|thread| {
                let spec = &self.plan.specs[thread.spec];
                Some(self.limit(spec)? + spec.ramp_time.unwrap_or_default())
            });
            lengths.collect::<Option<Vec<_>>>()?.into_iter().max()
        };
        let all = self.plan.stages.iter().map(stage).collect::<Option<Vec<_>>>()?;
        Some(all.into_iter().sum::<Duration>() * rounds)
    }

    /// `runtime`, but no longer than the user says.
    fn limit(&self, spec: &Spec) -> Option<Duration> {
        let most = self.settings.seconds.map(Duration::from_secs_f64);
        spec.runtime.into_iter().chain(most).min()
    }

    /// Runs all rounds, and then once more for latencies. `progress` hears of every stage before it is run.
    fn measure(&mut self, mut progress: impl FnMut(String)) {
        let rounds = self.settings.rounds;
        let engines = self.settings.engines.clone();
        let lengths = vec![engines.len(); self.plan.stages.len()];
        for (round, index) in interleaved(&lengths, rounds + 1) {
            let (stage, engine) = (index / engines.len(), engines[index % engines.len()]);
            let rows = self.plan.stages[stage].rows.clone();
            if rows.clone().any(|row| self.cell_mut(row, engine).not_measured.is_some()) {
                progress(String::new());
                continue;
            }
            let timed = round == rounds;
            let which =
                if timed { "latencies".into() } else { format!("round {} of {rounds}", round + 1) };
            let names: Vec<_> = self.plan.rows[rows.clone()].iter().map(|row| &*row.name).collect();
            progress(format!("{which} · {} · {}", names.join(", "), engine.name()));
            let result = self.run(stage, engine, (round, index), timed);
            if STOP.load(Ordering::Relaxed) {
                return;
            }
            match result {
                Ok(outcomes) => {
                    for (row, outcome) in rows.zip(outcomes) {
                        self.cell_mut(row, engine).take(&outcome, timed);
                    }
                }
                Err(reason) => {
                    for row in rows {
                        self.cell_mut(row, engine).not_measured = Some(reason.clone());
                    }
                }
            }
        }
    }

    /// One engine does a stage, once. Gives an outcome for each row.
    fn run(
        &self,
        stage: usize,
        engine: Engine,
        (round, index): (u32, usize),
        timed: bool,
    ) -> Result<Vec<Outcome>, String> {
        let stage = &self.plan.stages[stage];
        let spec = |thread: &plan::Thread| &self.plan.specs[thread.spec];
        let opened = stage.threads.iter().map(|thread| Open::of(thread, spec(thread)));
        let opened = opened.collect::<Result<Vec<_>, _>>()?;
        for (thread, open) in stage.threads.iter().zip(&opened) {
            prepare(spec(thread), open)?;
        }
        let mut jobs = Vec::with_capacity(opened.len());
        for (number, (thread, open)) in stage.threads.iter().zip(&opened).enumerate() {
            let spec = spec(thread);
            let depth = if engine.is_synchronous() { 1 } else { spec.iodepth };
            let stream = thread.stream(spec, |path| open.fd(path), u64::from(round));
            let pattern = u64::from(round) << 48 | (index as u64) << 16 | number as u64;
            let low = spec.iodepth_low.unwrap_or(spec.iodepth);
            let refill = spec.iodepth_batch_complete_min.max(spec.iodepth.saturating_sub(low));
            let mut job = Job::of(stream, spec.bs, depth, pattern, &STOP);
            job.batch = spec.iodepth_batch;
            job.refill = refill.clamp(1, depth);
            job.duration = self.limit(spec).unwrap_or(Duration::MAX);
            job.ramp = spec.ramp_time;
            job.timed = timed;
            if spec.end_fsync {
                job.end_fsync = open.files().map(|(path, _)| open.fd(path)).collect();
            }
            job.alone = stage.is_alone(number, &self.plan.specs);
            jobs.push(job);
        }
        let outcomes = together(engine, jobs)?;
        for (thread, open) in stage.threads.iter().zip(&opened) {
            // The next engine shall not find this one's write-back under way.
            for (_, file) in open.files().filter(|_| spec(thread).rw.writes) {
                file.sync_data().map_err(|error| format!("fdatasync failed: {error}"))?;
            }
        }
        if outcomes.iter().any(|outcome| outcome.done.all() == 0) {
            return Err("a job made no request".into());
        }
        Ok(self.by_row(stage, outcomes))
    }

    /// Outcomes of threads put together to those of rows, each with its share of the CPU time of all.
    fn by_row(&self, stage: &Stage, outcomes: Vec<Outcome>) -> Vec<Outcome> {
        let mut rows: Vec<Option<Outcome>> = stage.rows.clone().map(|_| None).collect();
        let all: u64 = outcomes.iter().map(|outcome| outcome.done.all()).sum();
        let cpu = outcomes.iter().map(|outcome| outcome.cpu).reduce(super::drive::CpuTime::max);
        for (thread, outcome) in stage.threads.iter().zip(outcomes) {
            let of = |row: &usize| self.plan.rows[*row].specs.contains(&thread.spec);
            let row = stage.rows.clone().position(|row| of(&row)).expect("each section has a row");
            rows[row] = Some(match rows[row].take() {
                Some(row) => row.and(outcome),
                None => outcome,
            });
        }
        let share = |mut row: Outcome| {
            let share = row.done.all() as f64 / all as f64;
            row.cpu = cpu.map_or(row.cpu, |cpu| cpu.share(share));
            row
        };
        rows.into_iter().flatten().map(share).collect()
    }
}

impl Cell {
    fn take(&mut self, outcome: &Outcome, timed: bool) {
        let figure = outcome.figure();
        if timed {
            self.latency = figure.latency;
            self.sides = outcome.latency.as_ref().map_or([None; 2], |latency| latency.sides());
        } else {
            self.figures.push(figure);
            self.done.push(outcome.done);
        }
    }
}

/// Brings the cache into the state that the job is to find.
fn prepare(spec: &Spec, open: &Open) -> Result<(), String> {
    for (path, file) in open.files() {
        let failed = |what, error: Error| format!("{what} {} failed: {error}", path.display());
        if spec.invalidate {
            // Not the job's own descriptor: a direct one may refuse the advice.
            let buffered = File::open(path).map_err(|error| failed("opening", error))?;
            buffered.sync_all().map_err(|error| failed("syncing", error))?;
            crate::scratch::advise(&buffered, libc::POSIX_FADV_DONTNEED)
                .map_err(|error| failed("dropping the cache of", error))?;
        }
        if spec.fadvise_hint && !spec.direct {
            let order =
                if spec.rw.random { libc::POSIX_FADV_RANDOM } else { libc::POSIX_FADV_SEQUENTIAL };
            // A hint; fio goes on without it, too.
            let _ = crate::scratch::advise(file, order);
        }
    }
    Ok(())
}

/// Why there is not enough memory for a stage.
fn too_much(plan: &Plan, stage: &Stage, engine: Engine) -> Option<String> {
    let bytes = |thread: &plan::Thread| {
        let spec = &plan.specs[thread.spec];
        let depth = if engine.is_synchronous() { 1 } else { spec.iodepth as u64 };
        spec.bs * depth * if spec.rw.reads && spec.rw.writes { 2 } else { 1 }
    };
    let all: u64 = stage.threads.iter().map(bytes).sum();
    let most = size::short(MOST_BUFFERS);
    (all > MOST_BUFFERS).then(|| {
        format!("buffers of {} for all jobs together: expected at most {most}", size::long(all))
    })
}

impl Stage {
    /// No other thread writes to one of its files, and if it writes itself, no other one uses them.
    fn is_alone(&self, number: usize, specs: &[Spec]) -> bool {
        let own = &self.threads[number];
        let others = self.threads.iter().enumerate().filter(|(other, _)| *other != number);
        let shared = |other: &plan::Thread| {
            other.regions.iter().any(|region| own.regions.iter().any(|own| own.path == region.path))
        };
        !others.map(|(_, other)| other).any(|other| specs[other.spec].rw.writes && shared(other))
    }
}

/// Reads the job files.
fn read(arguments: &Arguments, notices: &mut Vec<String>) -> Result<Vec<Spec>, Vec<String>> {
    let mut specs: Vec<Spec> = Vec::new();
    let mut errors = Vec::new();
    for path in &arguments.jobs {
        let name = path.display();
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => {
                errors.push(format!("{name}: {error}"));
                continue;
            }
        };
        let variable = |name: &str| std::env::var(name).ok();
        let sections = match ini::parse(path, &text, variable) {
            Ok(sections) => sections,
            Err(found) => {
                errors.extend(found);
                continue;
            }
        };
        if sections.is_empty() {
            errors.push(format!("{name}: expected a [SECTION] beside [global]"));
        }
        let mut waits = !specs.is_empty();
        let chosen = &arguments.section;
        for section in sections.iter().filter(|s| chosen.is_empty() || chosen.contains(&s.name)) {
            match Spec::read(section, arguments.lenient, notices) {
                // A file waits for the one before it.
                Ok(spec) => specs.push(Spec { stonewall: spec.stonewall || waits, ..spec }),
                Err(found) => errors.extend(found),
            }
            waits = false;
        }
    }
    for section in &arguments.section {
        if errors.is_empty() && !specs.iter().any(|spec| &spec.name == section) {
            errors.push(format!("--section {section}: expected the name of a section"));
        }
    }
    if errors.is_empty() { Ok(specs) } else { Err(once(errors)) }
}

/// Each line once, in order.
fn once(lines: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    lines.into_iter().filter(|line| seen.insert(line.clone())).collect()
}

/// What differs from a run of the same file by fio, where it can matter.
fn differences(plan: &Plan, seconds: Option<f64>) -> Vec<String> {
    let mut notices = Vec::new();
    let mut engines: Vec<&str> =
        plan.specs.iter().filter_map(|spec| spec.ioengine.as_deref()).collect();
    engines.sort_unstable();
    engines.dedup();
    if !engines.is_empty() {
        notices.push(format!(
            "ioengine={} selects nothing here: what is compared is what --engines says",
            engines.join(", ")
        ));
    }
    let together = plan.stages.iter().any(|stage| stage.threads.len() > 1);
    if together && plan.specs.iter().any(|spec| !spec.thread) {
        notices.push(
            "jobs are threads of one process, as with fio's thread=1: they share the C library's POSIX AIO \
             and uringlet's workers"
                .into(),
        );
    }
    if plan.specs.iter().any(|spec| spec.rw.writes && !spec.rw.reads && !spec.overwrite) {
        notices.push(
            "files are filled before the first run, as with fio's overwrite=1, so that every engine and \
             round finds the same"
                .into(),
        );
    }
    let cut = |spec: &Spec| {
        let seconds = Duration::from_secs_f64(seconds.unwrap_or(f64::from(u32::MAX)));
        spec.runtime.is_none_or(|runtime| runtime > seconds)
    };
    if let Some(seconds) = seconds
        && plan.specs.iter().any(cut)
    {
        notices.push(format!("--seconds {seconds}: jobs that take longer are cut off there"));
    }
    notices
}

/// Runs the job files.
///
/// # Errors
/// The files cannot be laid out, or the JSON file not be written.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let refused = |errors: Vec<String>| {
        for error in errors {
            session::tell(format_args!("uringlet bench: {error}"));
        }
        Ok(ExitCode::from(REFUSED))
    };
    let mut notices = Vec::new();
    let plan = read(arguments, &mut notices).and_then(|specs| Plan::new(specs, layout::len));
    let plan = match plan {
        Ok(plan) => plan,
        Err(errors) => return refused(errors),
    };
    let errors = layout::refusals(&plan, arguments.place.allow_writes);
    if !errors.is_empty() {
        return refused(errors);
    }
    let defaults = if arguments.full { &Engine::ALL[..] } else { &Engine::DEFAULT[..] };
    let settings = Settings {
        files: arguments.jobs.iter().map(|path| path.display().to_string()).collect(),
        sections: arguments.section.clone(),
        seconds: arguments.seconds,
        rounds: arguments.rounds,
        engines: without_repeats(&arguments.engines, defaults),
    };
    let mut session = Session::new(&arguments.outputs, None)?;
    arguments.sandbox.enter()?;
    crate::scratch::raise_descriptor_limit();
    notices.extend(differences(&plan, settings.seconds));
    notices.extend(arguments.sandbox.notice());
    let machine = Machine::look();
    let Some(laid) = layout::lay_out(&plan)? else {
        session::tell(format_args!("uringlet bench: interrupted"));
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let storage = plan.files.keys().next().map(File::open).transpose()?;
    let storage = storage.map(|file| Storage::behind(&file)).transpose()?.unwrap_or_default();
    let mut runs = Runs::new(settings, plan);
    let notices = session::notices(&machine, &storage, &once(notices));
    let header = report::header(&machine, &storage, &runs, &laid, notices.clone());
    session.begin(&header)?;

    let bar = session::progress(runs.steps());
    runs.measure(|what| {
        bar.set_message(what);
        bar.inc(1);
    });
    bar.finish_and_clear();
    layout::unlink(&runs.plan, &laid);

    let interrupted = STOP.load(Ordering::Relaxed);
    let report = report::Report::new(&machine, &storage, &runs, notices, interrupted);
    let document = report.document(header, super::JOBS);
    session::say(&document.text())?;
    session.end(&report, &document)
}
