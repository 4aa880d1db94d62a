//! The tables of the experiment, and its claims.

use super::job::Figure as Job;
use super::{JobWay, Settings, Setup, Structure};
use crate::bench::median;
use crate::report::{
    Axis, Document, Figure, Header, NotMeasured, Point, Record, Scale, Section, Series, Table,
};
use crate::reproduce::cells::{Cell as _, keeps};
use crate::reproduce::published::ContextLookup;
use crate::reproduce::report::{self, Goal, Ratio, Shown};
use crate::size;
use serde::Serialize;
use serde_json::json;

/// A lookup alone, in one structure.
#[derive(Debug, Serialize)]
pub struct LookupCell {
    pub threads: usize,
    pub contexts: usize,
    pub structure: Structure,
    /// Nanoseconds per lookup, of each round.
    pub ns: Vec<f64>,
    pub not_measured: Option<String>,
}

impl LookupCell {
    pub fn new(threads: usize, contexts: usize, structure: Structure) -> Self {
        Self { threads, contexts, structure, ns: Vec::new(), not_measured: None }
    }
}

keeps!(LookupCell, ns: f64, |cell| {
    let structure = JobWay::Ours(cell.structure).name();
    let contexts = size::plural(cell.contexts as u64, "context");
    format!("{structure}, {} {contexts}, {}", cell.contexts, report::threads(cell.threads))
});

/// The whole job on one engine.
#[derive(Debug, Serialize)]
pub struct JobCell {
    pub jobs: usize,
    #[serde(rename = "road")]
    pub way: JobWay,
    /// Requests of each thread.
    pub requests: u64,
    pub figures: Vec<Job>,
    pub not_measured: Option<String>,
}

impl JobCell {
    pub fn new(jobs: usize, way: JobWay, requests: u64) -> Self {
        Self { jobs, way, requests, figures: Vec::new(), not_measured: None }
    }

    fn elapsed(&self) -> Vec<f64> {
        self.figures.iter().map(|figure| figure.elapsed_ms).collect()
    }
}

keeps!(JobCell, figures: Job, |cell| {
    format!("{}, {}", report::threads(cell.jobs), cell.way.name())
});

/// All results.
#[derive(Serialize)]
pub struct Report {
    #[serde(flatten)]
    pub setup: Setup,
    pub settings: Settings,
    pub lookups: Vec<LookupCell>,
    pub jobs: Vec<JobCell>,
    pub shown: Vec<Shown>,
    pub published: Vec<ContextLookup>,
}

/// Figures of the rounds; empty for a missing cell.
fn ns(cells: &[LookupCell], threads: usize, contexts: usize, structure: Structure) -> Vec<f64> {
    let key = (threads, contexts, structure);
    let cell = cells.iter().find(|cell| (cell.threads, cell.contexts, cell.structure) == key);
    cell.map_or_else(Vec::new, |cell| cell.ns.clone())
}

fn elapsed(cells: &[JobCell], jobs: usize, way: JobWay) -> Vec<f64> {
    let cell = cells.iter().find(|cell| (cell.jobs, cell.way) == (jobs, way));
    cell.map_or_else(Vec::new, JobCell::elapsed)
}

/// The claims of the publication, and of uringlet.
pub fn shown(lookups: &[LookupCell], jobs: &[JobCell], cpus: usize) -> Vec<Shown> {
    use Structure::{List, Radix, Table};
    let mut all = Vec::new();
    for threads in lookups.chunk_by(|left, right| left.threads == right.threads) {
        let (first, last) = (&threads[0], &threads[threads.len() - 1]);
        let count = first.threads;
        let of = |contexts, structure| ns(lookups, count, contexts, structure);
        let by = report::threads(count);
        if first.contexts < last.contexts {
            all.push(Shown::goal(
                format!("{by}: a lookup among {} / {}, table", last.contexts, first.contexts),
                Ratio::of(&of(last.contexts, Table), &of(first.contexts, Table)),
                Goal::AtMost(1.1),
            ));
        }
        for group in threads.chunk_by(|left, right| left.contexts == right.contexts) {
            let contexts = group[0].contexts;
            let text = |other| format!("{by}: a lookup among {contexts}, table / {other}");
            let ratio = |other| Ratio::of(&of(contexts, Table), &of(contexts, other));
            if contexts == 1 {
                all.push(Shown::goal(text("list"), ratio(List), Goal::AtMost(1.0)));
            }
            all.push(Shown::goal(text("radix"), ratio(Radix), Goal::AtMost(1.0)));
        }
    }
    for group in jobs.chunk_by(|left, right| left.jobs == right.jobs) {
        let threads = group[0].jobs;
        let of = |way| elapsed(jobs, threads, way);
        if let Some((published, cores)) = ContextLookup::radix_to_list(threads, cpus) {
            let there = match cores {
                Some(cores) => format!(" (published: {cores} cores)"),
                None => String::new(),
            };
            let ratio = Ratio::of(&of(JobWay::Ours(Radix)), &of(JobWay::Ours(List)));
            all.push(Shown {
                what: format!("job of {threads}: radix / list{there}"),
                measured: ratio.map(|ratio| ratio.ratio),
                spread: ratio.map(|ratio| (ratio.lowest, ratio.highest)),
                published: Some(published),
                ..Shown::default()
            });
        }
        all.push(Shown::goal(
            format!("job of {threads}: table / libaio"),
            Ratio::of(&of(JobWay::Ours(Table)), &of(JobWay::Libaio)),
            Goal::AtMost(0.8),
        ));
    }
    all
}

fn figure(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), size::digits)
}

fn ratio(ratio: Option<Ratio>) -> [String; 2] {
    match ratio {
        Some(ratio) => [format!("{:.2}", ratio.ratio), ratio.spread()],
        None => ["-".into(), "-".into()],
    }
}

impl Report {
    pub fn document(&self, header: Header, method: &str) -> Document {
        let mut sections: Vec<Section> = Vec::new();
        for &threads in &self.settings.threads {
            let heading = format!("A lookup alone, by {}: ns", report::threads(threads));
            let section = Section::new(heading).with_figures([self.lookup_plot(threads)]);
            sections.push(section.with_table(self.lookup_table(threads)));
        }
        let job =
            "The whole job: 1 KiB at random in 256 KiB, half reads, half writes, one in flight";
        sections
            .push(Section::new(job).with_figures(self.job_plots()).with_table(self.job_table()));
        let lookups = self.lookups.iter().map(|cell| (cell.name(), cell.not_measured.as_ref()));
        let jobs = self.jobs.iter().map(|cell| (cell.name(), cell.not_measured.as_ref()));
        let missing = lookups.chain(jobs);
        sections.push(Section::not_measured(&NotMeasured::by_reason(missing)));
        let shown = report::shown(&self.shown);
        self.setup.document(header, method, sections, shown, self.records())
    }

    fn records(&self) -> Vec<Record> {
        let record =
            |part| Record::default().with("experiment", self.setup.experiment).with("part", part);
        let lookups = self.lookups.iter().flat_map(|cell| {
            let record = record("lookup").with("threads", cell.threads);
            let record =
                record.with("contexts", cell.contexts).with("structure", cell.structure.into_str());
            let ns = cell.ns.iter().map(|ns| json!({ "ns_per_lookup": ns }));
            record.rounds(ns, cell.not_measured.as_deref())
        });
        let jobs = self.jobs.iter().flat_map(|cell| {
            let record = record("job").with("threads", cell.jobs).with("road", cell.way.name());
            record.rounds(&cell.figures, cell.not_measured.as_deref())
        });
        lookups.chain(jobs).collect()
    }

    fn lookup_plot(&self, threads: usize) -> Figure {
        let series = Structure::ALL.into_iter().zip([1, 2, 4]).map(|(structure, style)| {
            let cells = self.lookups.iter();
            let mine = cells.filter(|cell| (cell.threads, cell.structure) == (threads, structure));
            let point = |cell: &LookupCell| Point::of(cell.contexts, cell.ns.clone());
            Series::new(structure.into_str(), style, mine.filter_map(point))
        });
        let x = Axis::new("contexts", "number, log scale", Scale::Log);
        let y = Axis::new("time of a lookup", "ns, log scale", Scale::Log);
        let about = "Less is better; flat is what the table is for. Lines join the medians, small \
                     dots are rounds.";
        let title = format!("A lookup, by {}", report::threads(threads));
        Figure::lines(title, about, (x, y), series)
    }

    fn job_plots(&self) -> [Figure; 2] {
        let series = |of: fn(&Job) -> f64| {
            let one = |(way, style): (JobWay, usize)| {
                let mine = self.jobs.iter().filter(move |cell| cell.way == way);
                let point =
                    |cell: &JobCell| Point::of(cell.jobs, cell.figures.iter().map(of).collect());
                Series::new(way.name(), style, mine.filter_map(point))
            };
            JobWay::ALL.into_iter().zip([0, 3, 1, 2, 4]).map(one).collect::<Vec<_>>()
        };
        let x = || Axis::new("threads, each with a context", "number, log scale", Scale::Log);
        let about = "Less is better. Lines join the medians, small dots are rounds.";
        let plot = |title, y, series| Figure::lines(title, about, (x(), y), series);
        let elapsed = Axis::new("elapsed time", "ms", Scale::Linear);
        let cpu = Axis::new("CPU time per request", "µs", Scale::Linear);
        [
            plot("The whole job: time", elapsed, series(|figure| figure.elapsed_ms)),
            plot("The whole job: CPU time", cpu, series(|figure| figure.cpu_us_per_request)),
        ]
    }

    fn lookup_table(&self, threads: usize) -> Table {
        let heads =
            ["contexts", "list", "radix", "table", "table/list", "rounds", "table/radix", "rounds"];
        let mut out = Table::new("", heads, 0..8);
        for &contexts in &self.settings.contexts {
            let [list, radix, table] =
                Structure::ALL.map(|structure| ns(&self.lookups, threads, contexts, structure));
            let ratios = [ratio(Ratio::of(&table, &list)), ratio(Ratio::of(&table, &radix))];
            let figures = [list, radix, table].map(|rounds| figure(median(rounds)));
            let row = std::iter::once(contexts.to_string()).chain(figures);
            out.row(row.chain(ratios.into_iter().flatten()));
        }
        out
    }

    fn job_table(&self) -> Table {
        let heads = ["threads", "", "ms", "CPU µs", "to libaio", "rounds", "to list", "published"];
        let mut out = Table::new("", heads, 2..8);
        for cell in &self.jobs {
            let of = |way| elapsed(&self.jobs, cell.jobs, way);
            let own = cell.elapsed();
            let cpu = cell.figures.iter().map(|figure| figure.cpu_us_per_request).collect();
            let [to_libaio, spread] = ratio(Ratio::of(&own, &of(JobWay::Libaio)));
            let ours = matches!(cell.way, JobWay::Ours(_));
            let list = Ratio::of(&own, &of(JobWay::Ours(Structure::List))).filter(|_| ours);
            let published = ContextLookup::radix_to_list(cell.jobs, self.setup.machine.cpus)
                .filter(|_| cell.way == JobWay::Ours(Structure::Radix));
            out.row([
                cell.jobs.to_string(),
                cell.way.name().to_owned(),
                figure(median(own)),
                figure(median(cpu)),
                to_libaio,
                spread,
                ratio(list)[0].clone(),
                published.map_or_else(|| "-".into(), |(ratio, _)| format!("{ratio:.2}")),
            ]);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lookups take 1 ns in the list, 2 ns in the radix tree and 3 ns in the table. The job takes
    /// 1 ms on the first engine of [`JobWay::ALL`], 2 ms on the second, and so on.
    fn cells() -> (Vec<LookupCell>, Vec<JobCell>) {
        let mut lookups = Vec::new();
        for contexts in [1, 512] {
            for (at, structure) in Structure::ALL.into_iter().enumerate() {
                let ns = vec![at as f64 + 1.0];
                lookups.push(LookupCell { ns, ..LookupCell::new(1, contexts, structure) });
            }
        }
        let mut jobs = Vec::new();
        for count in [1, 8, 512] {
            for (at, way) in JobWay::ALL.into_iter().enumerate() {
                let figure = Job { elapsed_ms: at as f64 + 1.0, cpu_us_per_request: 1.0 };
                jobs.push(JobCell { figures: vec![figure], ..JobCell::new(count, way, 1) });
            }
        }
        (lookups, jobs)
    }

    #[test]
    fn what_was_published_stands_beside_what_was_measured() {
        let (lookups, jobs) = cells();
        let all = shown(&lookups, &jobs, 2);
        let find = |what: &str| all.iter().find(|shown| shown.what.contains(what)).unwrap();
        assert_eq!(find("among 512 / 1, table").verdict(), "reached");
        assert_eq!(find("among 1, table / list").verdict(), "MISSED");
        assert_eq!(find("among 512, table / radix").measured, Some(1.5));
        let radix = find("job of 512: radix / list");
        assert_eq!(radix.measured, Some(4.0 / 3.0));
        assert!((radix.published.unwrap() - 0.604).abs() < 1e-3);
        assert!((find("job of 1: radix / list").published.unwrap() - 1.009).abs() < 1e-3);
        assert!(!all.iter().any(|shown| shown.what.contains("job of 8: radix")));
        assert_eq!(find("job of 8: table / libaio").measured, Some(2.5));
    }
}
