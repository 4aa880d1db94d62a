//! The tables of the experiment, and its claims.

use super::job::Phase;
use super::path::{Figure, fill_up};
use super::{BATCHES, PUBLISHED_POINTS, Settings, Setup};
use crate::bench::median;
use crate::report::{
    Axis, Document, Figure as Plotted, Header, NotMeasured, Point, Record, Scale, Section, Series,
    Table,
};
use crate::reproduce::cells::{Cell as _, keeps};
use crate::reproduce::report::{self, Goal, Kind, Ratio, Shown, threads};
use crate::size;
use serde::Serialize;

/// A batch size, and a number of threads. `P` is [`Phase`] for the job, `()` for the submit alone.
#[derive(Debug, Serialize)]
pub struct Cell<P> {
    pub phase: P,
    pub threads: usize,
    /// Slots per step.
    pub batch: usize,
    pub figures: Vec<Figure>,
    pub not_measured: Option<String>,
}

/// A cell of the submit path alone.
pub type PathCell = Cell<()>;
/// A cell of a phase of the job.
pub type JobCell = Cell<Phase>;

impl<P> Cell<P> {
    pub fn new(phase: P, threads: usize, batch: usize, not_measured: Option<String>) -> Self {
        Self { phase, threads, batch, figures: Vec::new(), not_measured }
    }

    fn rounds(&self, of: impl Fn(&Figure) -> f64) -> Vec<f64> {
        self.figures.iter().map(of).collect()
    }

    fn text(&self, of: impl Fn(&Figure) -> f64, text: impl Fn(f64) -> String) -> String {
        median(self.rounds(of)).map_or_else(|| "-".into(), text)
    }

    fn sizes(&self) -> String {
        format!("{}, batch {}", threads(self.threads), self.batch)
    }
}

keeps!(PathCell, figures: Figure, |cell| format!("path alone, {}", cell.sizes()));
keeps!(JobCell, figures: Figure, |cell| format!("{}, {}", cell.phase.into_str(), cell.sizes()));

/// A submit of more requests than there is room for.
#[derive(Debug, Serialize)]
pub struct TooMany {
    requests: usize,
    room: u32,
    batch: usize,
    /// The number of requests that each submit has accepted.
    accepted: Vec<usize>,
    not_measured: Option<String>,
}

impl TooMany {
    pub fn of(requests: usize, room: u32, batch: usize) -> Self {
        let (accepted, not_measured) = match fill_up(requests, room, batch) {
            Ok(accepted) => (accepted, None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        Self { requests, room, batch, accepted, not_measured }
    }
}

/// All results.
#[derive(Serialize)]
pub struct Report {
    #[serde(flatten)]
    pub setup: Setup,
    pub settings: Settings,
    pub paths: Vec<PathCell>,
    pub jobs: Vec<JobCell>,
    pub too_many: [TooMany; 2],
    pub shown: Vec<Shown>,
    /// Percentage points of CPU time saved.
    pub published_points: f64,
}

/// For each number of threads, the figure with slots taken one by one divided by that with batches.
/// The cells of both figures are neighbours.
fn ratios<P>(
    cells: &[Cell<P>],
    of: impl Fn(&Figure) -> f64 + Copy,
) -> impl Iterator<Item = (&Cell<P>, Option<Ratio>)> {
    cells.chunks(BATCHES.len()).filter_map(move |pair| match pair {
        [one, many] => Some((one, Ratio::of(&one.rounds(of), &many.rounds(of)))),
        _ => None,
    })
}

fn steps(figure: &Figure) -> f64 {
    figure.steps_per_request
}

fn ns(figure: &Figure) -> f64 {
    figure.submit_ns_per_request
}

/// The claims of the publication, and of uringlet.
pub fn shown(paths: &[PathCell], jobs: &[JobCell], too_many: &[TooMany]) -> Vec<Shown> {
    let mut all = Vec::new();
    for (cell, ratio) in ratios(paths, steps) {
        let what = format!("path alone, {}: steps per request, 1 / 32", threads(cell.threads));
        all.push(Shown::goal(what, ratio, Goal::AtLeast(20.0)));
    }
    for (cell, ratio) in ratios(paths, ns) {
        let what = format!("path alone, {}: submit ns per request, 1 / 32", threads(cell.threads));
        let goal = (cell.threads == 4).then_some(Goal::AtLeast(1.5));
        all.push(Shown { goal, ..Shown::goal(what, ratio, Goal::AtLeast(1.5)) });
    }
    for (cell, ratio) in ratios(jobs, ns).filter(|(cell, _)| cell.threads == 4) {
        let name = cell.phase.into_str();
        let what = format!("{name}, {}: submit ns per request, 1 / 32", threads(cell.threads));
        all.push(Shown::goal(what, ratio, Goal::AtLeast(1.5)));
    }
    for pair in jobs.chunks(BATCHES.len()).filter(|pair| pair[0].threads == 1) {
        let points = |cell: &JobCell| median(cell.rounds(|figure| figure.submit_share * 100.0));
        all.push(Shown {
            what: format!(
                "{}, 1 thread: percentage points of CPU time saved in submit (published: in the \
                 lock)",
                pair[0].phase.into_str()
            ),
            measured: points(&pair[0]).zip(points(&pair[1])).map(|(one, many)| one - many),
            published: Some(PUBLISHED_POINTS),
            kind: Kind::Points,
            ..Shown::default()
        });
    }
    for TooMany { requests, room, batch, accepted, .. } in too_many {
        let first = accepted.first().map(|&first| first as f64 / f64::from(*room));
        let what = format!("a submit of {requests}, batch {batch}: accepted / the room for {room}");
        let goal = Some(Goal::Exactly(1.0));
        all.push(Shown { what, measured: first, goal, ..Shown::default() });
    }
    all
}

impl Report {
    pub fn document(&self, header: Header, method: &str) -> Document {
        let paths = self.paths.iter().map(|cell| (cell.name(), cell.not_measured.as_ref()));
        let jobs = self.jobs.iter().map(|cell| (cell.name(), cell.not_measured.as_ref()));
        let too_many = self
            .too_many
            .iter()
            .map(|cell| (format!("a submit of {}", cell.requests), cell.not_measured.as_ref()));
        let missing = paths.chain(jobs).chain(too_many);
        let accepted =
            self.too_many.iter().map(|TooMany { requests, room, batch, accepted, .. }| {
                let word = size::plural(*requests as u64, "request");
                let sizes = format!("{requests} {word}, room for {room}, batch {batch}");
                format!("{sizes}: submits took over {accepted:?}")
            });
        let sections = vec![
            Section::new("The submit path alone, 32 requests per submit to one context")
                .with_figures(self.path_plots())
                .with_table(self.path_table()),
            Section::new("The published job: 8 KiB, direct, sequential, 32 requests per submit")
                .with_figures(self.job_plots())
                .with_table(self.job_table()),
            Section::new("Submits that are too large").with_notes(accepted),
            Section::not_measured(&NotMeasured::by_reason(missing)),
        ];
        let shown = report::shown(&self.shown);
        self.setup.document(header, method, sections, shown, self.records())
    }

    fn records(&self) -> Vec<Record> {
        fn all<P>(cells: &[Cell<P>], part: impl Fn(&P) -> &'static str) -> Vec<Record> {
            let of = |cell: &Cell<P>| {
                let record = Record::default().with("experiment", "batch");
                let record = record.with("part", part(&cell.phase)).with("threads", cell.threads);
                let record = record.with("batch", cell.batch);
                record.rounds(&cell.figures, cell.not_measured.as_deref())
            };
            cells.iter().flat_map(of).collect()
        }
        let mut records = all(&self.paths, |()| "path alone");
        records.extend(all(&self.jobs, |phase| phase.into_str()));
        records
    }

    fn path_table(&self) -> Table {
        let heads = ["threads", "batch", "steps/request", "submit ns/request", "1 / 32", "rounds"];
        let mut out = Table::new("", heads, 0..6);
        for (cell, ratio) in self.paths.iter().zip(with_gaps(ratios(&self.paths, ns))) {
            out.row([
                cell.threads.to_string(),
                cell.batch.to_string(),
                cell.text(steps, |steps| format!("{steps:.3}")),
                cell.text(ns, size::digits),
                ratio.map_or_else(String::new, |ratio| format!("{:.2}", ratio.ratio)),
                ratio.map_or_else(String::new, |ratio| ratio.spread()),
            ]);
        }
        out
    }

    fn job_table(&self) -> Table {
        let percent = |share: f64| format!("{:.1}%", share * 100.0);
        let heads = [
            "",
            "threads",
            "batch",
            "MB/s",
            "steps/request",
            "submit ns/request",
            "in submit",
            "CPU",
        ];
        let mut out = Table::new("", heads, 1..8);
        for cell in &self.jobs {
            out.row([
                cell.phase.into_str().to_owned(),
                cell.threads.to_string(),
                cell.batch.to_string(),
                cell.text(|figure| self.mb_per_s(figure), size::digits),
                cell.text(steps, |steps| format!("{steps:.3}")),
                cell.text(ns, size::digits),
                cell.text(|figure| figure.submit_share, percent),
                cell.text(|figure| figure.cpu_share, percent),
            ]);
        }
        out
    }

    fn mb_per_s(&self, figure: &Figure) -> f64 {
        figure.requests as f64 * self.settings.record as f64 / figure.seconds / 1e6
    }

    fn path_plots(&self) -> [Plotted; 2] {
        let about = "Slots taken one by one and 32 at a time. Less is better; lines join the \
                     medians, small dots are rounds.";
        let plot = |title, y, of| lines(title, about, y, |batch| points(&self.paths, batch, of));
        let contended = Axis::new("contended steps per request", "number, log scale", Scale::Log);
        let time = Axis::new("submit time per request", "ns, log scale", Scale::Log);
        [
            plot("The path alone: steps", contended, steps as fn(&Figure) -> f64),
            plot("The path alone: time", time, ns),
        ]
    }

    fn job_plots(&self) -> Vec<Plotted> {
        let measured = |phase: &Phase| {
            self.jobs.iter().any(|cell| cell.phase == *phase && !cell.figures.is_empty())
        };
        let plot = |phase: Phase| {
            let y = Axis::new("submit time per request", "ns, log scale", Scale::Log);
            let mine = self.jobs.iter().filter(|cell| cell.phase == phase);
            let mine: Vec<&JobCell> = mine.collect();
            let title = format!("The published job: {}", phase.into_str());
            let about = "Slots taken one by one and 32 at a time; less is better.";
            lines(title, about, y, |batch| points(mine.iter().copied(), batch, ns))
        };
        Phase::ALL.into_iter().filter(measured).map(plot).collect()
    }
}

/// A line for each batch size, over the number of threads.
fn lines(
    title: impl Into<String>,
    about: &str,
    y: Axis,
    points: impl Fn(usize) -> Vec<Point>,
) -> Plotted {
    let x = Axis::new("submitting threads", "number, log scale", Scale::Log);
    let one = |(batch, style)| Series::new(format!("batch {batch}"), style, points(batch));
    Plotted::lines(title, about, (x, y), BATCHES.into_iter().zip([1, 2]).map(one))
}

fn points<'a, P: 'a>(
    cells: impl IntoIterator<Item = &'a Cell<P>>,
    batch: usize,
    of: fn(&Figure) -> f64,
) -> Vec<Point> {
    let mine = cells.into_iter().filter(|cell| cell.batch == batch);
    mine.filter_map(|cell| Point::of(cell.threads, cell.rounds(of))).collect()
}

/// Puts `None` before each ratio, so that the ratio is on the second of the pair's two lines.
fn with_gaps<'a, P: 'a>(
    ratios: impl Iterator<Item = (&'a Cell<P>, Option<Ratio>)>,
) -> impl Iterator<Item = Option<Ratio>> {
    ratios.flat_map(|(_, ratio)| [None, ratio])
}
