//! The tables, with the published figures beside the measured ones.

use super::load::{CpuTime, Run};
use super::published::{self, Row, Small};
use super::sites::Placed;
use super::{Cell, FileSystems, Settings, What};
use crate::bench;
use crate::machine::{Machine, Storage};
use crate::reproduce::report::not_measured;
use crate::scratch::Scratch;
use crate::{session, size};
use serde::Serialize;
use std::fmt::Write as _;
use uringlet::affinity::ListCost;

pub const SMALL_FREE: &str = "free placement";
pub const SMALL_REMOTE: &str = "completion thread in another cell";
pub const SMALL_LOCAL: &str = "completion thread in the application's";

/// A completion list's cost, in nanoseconds an item.
#[derive(Serialize)]
struct List {
    producers: usize,
    list_ns: f64,
    mutex_ns: f64,
    mutex_per_item_ns: f64,
}

/// Medians and sums of a row's rounds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Summary {
    mb_per_s: f64,
    avg_latency_ms: f64,
    stddev_latency_ms: f64,
    requests: u64,
    queue_local: u64,
    queue_remote: u64,
    completion_local: u64,
    completion_remote: u64,
    hand_overs: u64,
}

/// Everything that came out.
#[derive(Serialize)]
pub struct Report<'a> {
    experiment: &'static str,
    machine: &'a Machine,
    storage: &'a Storage,
    file: &'a str,
    notices: Vec<String>,
    settings: Settings,
    interrupted: bool,
    placements: Vec<Placed>,
    cells: Vec<Cell>,
    summaries: Vec<Option<Summary>>,
    /// Of the placements that were run.
    distinct: usize,
    proved: usize,
    lists: Vec<List>,
    file_systems: FileSystems,
    published_matrix: Vec<Row>,
    published_small: Vec<Small>,
}

/// A row in words.
pub fn name(what: &What) -> String {
    match what {
        What::Placed(letters, _) => letters.to_string(),
        What::Free { rq_affinity } => format!("free, rq_affinity {rq_affinity}"),
        What::Kernel { rq_affinity } => format!("free, the kernel's rq_affinity {rq_affinity}"),
        What::Small(name) => (*name).to_owned(),
    }
}

impl Summary {
    fn of(runs: &[Run]) -> Option<Self> {
        let median = |of: fn(&Run) -> f64| bench::median(runs.iter().map(of).collect());
        let sum = |of: fn(&Run) -> u64| runs.iter().map(of).sum();
        Some(Self {
            mb_per_s: median(|run| run.mb_per_s)?,
            avg_latency_ms: median(|run| run.avg_latency_ms)?,
            stddev_latency_ms: median(|run| run.stddev_latency_ms)?,
            requests: sum(|run| run.requests),
            queue_local: sum(|run| run.queue_local),
            queue_remote: sum(|run| run.queue_remote),
            completion_local: sum(|run| run.completion_local),
            completion_remote: sum(|run| run.completion_remote),
            hand_overs: sum(|run| run.hand_overs),
        })
    }

    /// All requests on the side that the placement says, and none on the other.
    fn proves(&self, (queue, completion): (bool, bool)) -> bool {
        let all = |local: bool| if local { (self.requests, 0) } else { (0, self.requests) };
        self.requests > 0
            && (self.queue_local, self.queue_remote) == all(queue)
            && (self.completion_local, self.completion_remote) == all(completion)
    }
}

impl<'a> Report<'a> {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        machine: &'a Machine,
        storage: &'a Storage,
        scratch: &'a Scratch,
        notices: Vec<String>,
        settings: Settings,
        interrupted: bool,
        placements: Vec<Placed>,
        cells: Vec<Cell>,
        lists: &[ListCost],
        file_systems: FileSystems,
    ) -> Self {
        let summaries: Vec<_> = cells.iter().map(|cell| Summary::of(&cell.runs)).collect();
        let rows = cells.iter().zip(&summaries).filter_map(|(c, s)| Some((c.expected?, s)));
        let proved = rows.clone().filter(|(e, s)| s.is_some_and(|s| s.proves(*e))).count();
        let distinct = rows.count();
        let list = |cost: &ListCost| List {
            producers: cost.producers,
            list_ns: cost.list_ns,
            mutex_ns: cost.mutex_ns,
            mutex_per_item_ns: cost.mutex_per_item_ns,
        };
        Self {
            experiment: "affinity",
            machine,
            storage,
            file: &scratch.description,
            notices,
            settings,
            interrupted,
            placements,
            cells,
            summaries,
            distinct,
            proved,
            lists: lists.iter().map(list).collect(),
            file_systems,
            published_matrix: published::matrix(),
            published_small: published::small(),
        }
    }

    /// Every placement that this machine has was proved.
    pub fn is_proved(&self) -> bool {
        self.proved == self.distinct
    }

    fn find(&self, what: &What) -> Option<(&Cell, Option<Summary>)> {
        let at = self.cells.iter().position(|cell| cell.what == *what)?;
        Some((&self.cells[at], self.summaries[at]))
    }

    pub fn text(&self) -> String {
        let mut text = self.matrix();
        text.push_str(&self.small());
        text.push_str(&self.file_systems.text());
        text.push_str(&self.shown());
        let cells = self.cells.iter();
        let cells =
            cells.filter_map(|cell| Some((name(&cell.what), cell.not_measured.as_deref()?)));
        text.push_str(&not_measured(cells.chain(self.file_systems.reasons())));
        text
    }

    fn matrix(&self) -> String {
        let mut text = "Reads of 256 KiB, direct, 128 in flight\n".to_owned();
        let heads = [
            "A Q C",
            "CPUs",
            "MB/s",
            "ratio",
            "avg ms",
            "dev ms",
            "Q local",
            "Q remote",
            "C local",
            "C remote",
            "proved",
            "published MB/s",
            "ratio",
            "avg ms",
            "dev ms",
        ];
        let mut out = session::table(heads.map(str::to_owned));
        let measured = self.find(&What::Free { rq_affinity: 0 }).and_then(|(_, summary)| summary);
        let published_base = self
            .published_matrix
            .iter()
            .find(|row| row.rq_affinity == Some(0))
            .map(|row| row.mb_per_s);
        let theirs = |row: Option<&Row>| -> [String; 4] {
            let Some(row) = row else { return [const { String::new() }; 4].map(|_| "-".into()) };
            let ratio =
                published_base.map_or("-".into(), |base| format!("{:.2}", row.mb_per_s / base));
            let ms = |seconds: f64| size::digits(seconds * 1e3);
            [size::digits(row.mb_per_s), ratio, ms(row.avg_latency_s), ms(row.stddev_latency_s)]
        };
        let ours = |summary: Option<Summary>, expected: Option<(bool, bool)>| -> Vec<String> {
            let Some(summary) = summary else { return vec!["-".into(); 9] };
            let ratio = measured
                .map_or("-".into(), |base| format!("{:.2}", summary.mb_per_s / base.mb_per_s));
            let percent = |count: u64| {
                format!("{:.0} %", count as f64 / summary.requests.max(1) as f64 * 100.0)
            };
            let proved = expected.map_or("", |e| if summary.proves(e) { "yes" } else { "NO" });
            vec![
                size::digits(summary.mb_per_s),
                ratio,
                size::digits(summary.avg_latency_ms),
                size::digits(summary.stddev_latency_ms),
                percent(summary.queue_local),
                percent(summary.queue_remote),
                percent(summary.completion_local),
                percent(summary.completion_remote),
                proved.to_owned(),
            ]
        };
        for placed in &self.placements {
            let row = theirs(self.published_matrix.iter().find(|row| row.is(placed.letters)));
            let (cpus, mine) = match (placed.cpus, placed.same_as) {
                (None, _) => ("too few cells".to_owned(), ours(None, None)),
                (Some(_), Some(same)) => (format!("as {same}"), ours(None, None)),
                (Some(cpus), None) => {
                    let found = self.find(&What::Placed(placed.letters, cpus));
                    let (cell, summary) = found.expect("each distinct placement is run");
                    let list = format!("{} {} {}", cpus.application, cpus.queue, cpus.completion);
                    (list, ours(summary, cell.expected))
                }
            };
            out.add_row([placed.letters.to_string(), cpus].into_iter().chain(mine).chain(row));
        }
        for cell in &self.cells {
            let back = match cell.what {
                What::Free { rq_affinity } => Some(rq_affinity),
                What::Kernel { .. } => None,
                _ => continue,
            };
            let (_, summary) = self.find(&cell.what).expect("it is one of them");
            let row =
                self.published_matrix.iter().find(|row| back.is_some() && row.rq_affinity == back);
            let heads = [name(&cell.what), "any".into()];
            out.add_row(heads.into_iter().chain(ours(summary, None)).chain(theirs(row)));
        }
        text.push_str(&session::lines(&mut out, 2..15));
        let _ = writeln!(
            text,
            "Placements: 18 published, {} distinct on this machine, {} of them proved by their counters\n",
            self.distinct, self.proved
        );
        text
    }

    fn small(&self) -> String {
        let mut text =
            "Reads of 4 KiB one after the other in 2 MiB, direct, 8 in flight\n".to_owned();
        let sides = ["MB/s", "ratio", "user %", "sys %", "iowait %", "idle %"];
        let heads = ["", "C home"]
            .into_iter()
            .chain(sides)
            .chain(["published MB/s"])
            .chain(sides.into_iter().skip(1));
        let mut out = session::table(heads.map(str::to_owned));
        let free = self.find(&What::Small(SMALL_FREE)).and_then(|(_, summary)| summary);
        let published_free = self.published_small.iter().find(|row| row.variant == "none");
        for (way, back) in [(SMALL_FREE, None), (SMALL_REMOTE, Some(0)), (SMALL_LOCAL, Some(1))] {
            let Some((cell, summary)) = self.find(&What::Small(way)) else { continue };
            let dash = || "-".to_owned();
            let mut row = vec![way.to_owned()];
            let home: u64 = cell.runs.iter().map(|run| run.completion_home).sum();
            row.push(summary.map_or_else(dash, |s| {
                format!("{:.0} %", home as f64 / s.requests.max(1) as f64 * 100.0)
            }));
            row.push(summary.map_or_else(dash, |s| size::digits(s.mb_per_s)));
            row.push(
                summary
                    .zip(free)
                    .map_or_else(dash, |(s, f)| format!("{:.2}", s.mb_per_s / f.mb_per_s)),
            );
            let times: Vec<CpuTime> = cell.runs.iter().filter_map(|run| run.time).collect();
            for of in [
                |t: &CpuTime| t.user,
                |t: &CpuTime| t.sys,
                |t: &CpuTime| t.iowait,
                |t: &CpuTime| t.idle,
            ] {
                row.push(
                    bench::median(times.iter().map(of).collect())
                        .map_or_else(dash, |v| format!("{v:.1}")),
                );
            }
            let theirs = self.published_small.iter().find(|row| row.rq_affinity == back);
            let ratio = theirs.zip(published_free).map(|(row, free)| row.mb_per_s / free.mb_per_s);
            row.push(theirs.map_or_else(dash, |row| size::digits(row.mb_per_s)));
            row.push(ratio.map_or_else(dash, |ratio| format!("{ratio:.2}")));
            for of in [
                |r: &Small| r.user_percent,
                |r: &Small| r.sys_percent,
                |r: &Small| r.iowait_percent,
                |r: &Small| r.idle_percent,
            ] {
                row.push(theirs.map_or_else(dash, |row| format!("{:.1}", of(row))));
            }
            out.add_row(row);
        }
        text.push_str(&session::lines(&mut out, 1..14));
        let runs = |way| self.find(&What::Small(way)).map_or(&[][..], |(cell, _)| &cell.runs[..]);
        for (way, variant, back) in [
            (SMALL_FREE, "none", None),
            (SMALL_REMOTE, "kthreads", Some(0)),
            (SMALL_LOCAL, "kthreads", Some(1)),
        ] {
            let Some(run) = runs(way).first() else { continue };
            let known =
                runs(way).iter().filter_map(|run| run.cycles.as_ref().ok().copied()).collect();
            let mut rows = self.published_small.iter();
            let theirs = rows.find(|row| row.variant == variant && row.rq_affinity == back);
            let cycles = match (bench::median(known), &run.cycles) {
                (Some(cycles), _) => {
                    format!("{} CPU cycles a request", size::grouped(cycles as u64))
                }
                (None, Err(reason)) => format!("CPU cycles not counted ({reason})"),
                (None, Ok(_)) => String::new(),
            };
            let theirs = theirs.map_or(0.0, |row| row.cpu_cycles as f64 / 1e12);
            let _ = writeln!(text, "  {way}: {cycles}; published: {theirs:.2}e12 in all");
            if !run.placement.is_empty() {
                let _ = writeln!(text, "    {}", run.placement);
            }
        }
        text.push('\n');
        text
    }

    fn shown(&self) -> String {
        let mut text = "What was to be shown\n".to_owned();
        let mut out = session::table(["", "measured", "published"].map(str::to_owned));
        let rate = |back: u8| {
            self.find(&What::Free { rq_affinity: back })
                .and_then(|(_, summary)| Some(summary?.mb_per_s))
        };
        let theirs = |back: u8| {
            self.published_matrix
                .iter()
                .find(|row| row.rq_affinity == Some(back))
                .map(|row| row.mb_per_s)
        };
        let ratio = |above: Option<f64>, below: Option<f64>| {
            above
                .zip(below)
                .map_or_else(|| "-".to_owned(), |(above, below)| format!("{:.3}", above / below))
        };
        out.add_row([
            "MB/s with rq_affinity 1 / with 0".to_owned(),
            ratio(rate(1), rate(0)),
            ratio(theirs(1), theirs(0)),
        ]);
        for list in &self.lists {
            out.add_row([
                format!("Adding 32 to a completion list, {} producers: ns each", list.producers),
                format!("{:.1}", list.list_ns),
                "-".into(),
            ]);
            out.add_row([
                "  a list behind a mutex, taken for each, as published: ns each".into(),
                format!("{:.1}", list.mutex_per_item_ns),
                "-".into(),
            ]);
            out.add_row([
                "  a list behind a mutex, taken once: ns each".into(),
                format!("{:.1}", list.mutex_ns),
                "-".into(),
            ]);
        }
        text.push_str(&session::lines(&mut out, 1..3));
        text
    }
}
