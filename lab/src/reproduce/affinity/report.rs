//! The tables, with the published figures beside the measured ones.

use super::lists::ListCost;
use super::load::{Busiest, CpuTime, Run};
use super::published::{self, Row, Small};
use super::sites::{Letters, Placed};
use super::{Cell, FileSystems, Settings, Setup, What};
use crate::bench;
use crate::report::{
    Axis, Bar, Bars, Document, Figure, Group, Header, Key, NotMeasured, Point, Record, Scale,
    Section, Series, Table,
};
use crate::reproduce::report::{self as reproduced, Goal, Shown};
use crate::size;
use serde::Serialize;
use std::collections::BTreeMap;

pub const SMALL_FREE: &str = "free placement";
pub const SMALL_REMOTE: &str = "completion thread in another cell";
pub const SMALL_LOCAL: &str = "completion thread in the application's";

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

/// A throughput that differs from free placement's by at most this many percent counts as equal.
const ALIKE_PERCENT: f64 = 3.0;
/// The significance level of the sign test over a row's rounds: slower than free placement, or not.
/// The test's probability is multiplied by the number of compared rows (Bonferroni).
const BY_CHANCE: f64 = 0.05;
/// A CPU that is busy for this many percent of the time limits the run.
const BUSY_PERCENT: f64 = 90.0;

/// A row's throughput divided by free placement's, round by round.
#[derive(Clone, Copy, Debug, Serialize)]
struct Against {
    median: f64,
    least: f64,
    most: f64,
    rounds: usize,
    /// Rounds that were slower than free placement.
    slower: usize,
    /// Of the busiest CPUs of all runs, the one with the median busy time.
    busiest: Option<Busiest>,
}

impl Against {
    fn of(runs: &[Run], free: &[Run]) -> Option<Self> {
        let ratio = |(run, free): (&Run, &Run)| run.mb_per_s / free.mb_per_s;
        let ratios: Vec<f64> = runs.iter().zip(free).map(ratio).collect();
        let mut busiest: Vec<Busiest> = runs.iter().filter_map(|run| run.busiest).collect();
        busiest.sort_by(|left, right| left.busy.total_cmp(&right.busy));
        Some(Self {
            least: ratios.iter().copied().reduce(f64::min)?,
            most: ratios.iter().copied().reduce(f64::max)?,
            rounds: ratios.len(),
            slower: ratios.iter().filter(|&&ratio| ratio < 1.0).count(),
            median: bench::median(ratios)?,
            busiest: busiest.get(busiest.len() / 2).copied(),
        })
    }

    fn is_alike(&self) -> bool {
        (self.median - 1.0).abs() * 100.0 <= ALIKE_PERCENT
    }

    /// The number of slower rounds, and the lowest and the highest ratio, as a text.
    fn spread(&self) -> String {
        let Self { least, most, rounds, slower, .. } = *self;
        format!("slower in {slower} of {rounds} rounds ({least:.2} to {most:.2})")
    }

    /// The reason for a difference from free placement, for one of `rows` compared rows. `Err` if
    /// it is unknown.
    fn reason(&self, rows: usize) -> Result<String, &'static str> {
        if let Some(Busiest { cpu, busy }) = self.busiest.filter(|cpu| cpu.busy >= BUSY_PERCENT) {
            return Ok(format!("CPU {cpu} is busy for {busy:.0} % of the time"));
        }
        let by_chance = |agree| (sign_test(agree, self.rounds) * rows as f64).min(1.0);
        if by_chance(self.rounds) >= BY_CHANCE {
            return Err("too few rounds to tell a cause from the disk's own ups and downs");
        }
        let probability = by_chance(self.slower.max(self.rounds - self.slower));
        if probability < BY_CHANCE {
            return Err("no CPU is short: no reason found");
        }
        Ok(format!(
            "the disk's own ups and downs; one of {rows} rows agrees as much by chance in {:.0} % \
             of all cases",
            probability * 100.0
        ))
    }
}

/// The probability that at least `agree` of this many rounds agree, either way, if they are coin
/// tosses.
fn sign_test(agree: usize, rounds: usize) -> f64 {
    // The tail of the binomial distribution: each term is computed from the previous one.
    let mut term = 0.5f64.powi(rounds as i32);
    let mut tail = term;
    for more in 1..=rounds - agree {
        term *= (rounds - more + 1) as f64 / more as f64;
        tail += term;
    }
    (2.0 * tail).min(1.0)
}

/// All results.
#[derive(Serialize)]
pub struct Report {
    #[serde(flatten)]
    setup: Setup,
    settings: Settings,
    placements: Vec<Placed>,
    cells: Vec<Cell>,
    summaries: Vec<Option<Summary>>,
    /// Throughput of the large reads' rows against free placement's, by name.
    against_free: BTreeMap<String, Against>,
    /// The number of distinct placements on this machine, measured or not.
    distinct: usize,
    proved: usize,
    lists: Vec<ListCost>,
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

    /// The cells of a table's row.
    fn cells(&self, base: Option<f64>, expected: Option<(bool, bool)>) -> [String; 9] {
        let percent = |count| percent(count, self.requests);
        let proved = expected.map_or("", |sides| if self.proves(sides) { "yes" } else { "NO" });
        [
            size::digits(self.mb_per_s),
            ratio(self.mb_per_s, base),
            size::digits(self.avg_latency_ms),
            size::digits(self.stddev_latency_ms),
            percent(self.queue_local),
            percent(self.queue_remote),
            percent(self.completion_local),
            percent(self.completion_remote),
            proved.to_owned(),
        ]
    }

    /// Do the counters prove a placement? All requests have to be local, or all remote, as the
    /// placement says.
    fn proves(&self, (queue, completion): (bool, bool)) -> bool {
        let all = |local: bool| if local { (self.requests, 0) } else { (0, self.requests) };
        self.requests > 0
            && (self.queue_local, self.queue_remote) == all(queue)
            && (self.completion_local, self.completion_remote) == all(completion)
    }
}

fn dashes<const N: usize>() -> [String; N] {
    std::array::from_fn(|_| "-".into())
}

/// A rate, divided by another.
fn ratio(rate: f64, base: Option<f64>) -> String {
    base.map_or_else(|| "-".into(), |base| format!("{:.2}", rate / base))
}

/// `count` as a percentage of `all`.
fn percent(count: u64, all: u64) -> String {
    format!("{:.0} %", count as f64 / all.max(1) as f64 * 100.0)
}

/// The results of small reads, as cells of a table's row. The first cell is the share of requests
/// that completed in the submitter's NUMA node, cache or core; rate, ratio and CPU times follow.
fn small_cells(runs: &[Run], summary: Option<Summary>, base: Option<f64>) -> [String; 7] {
    let home = runs.iter().map(|run| run.completion_home).sum();
    let [home, rate, ratio] = summary.map_or_else(dashes, |summary| {
        let rate = summary.mb_per_s;
        [percent(home, summary.requests), size::digits(rate), ratio(rate, base)]
    });
    let time = |of: fn(&CpuTime) -> f64| {
        let times = runs.iter().filter_map(|run| run.time.as_ref().map(of));
        bench::median(times.collect()).map_or_else(|| "-".into(), |share| format!("{share:.1}"))
    };
    let [user, sys] = [time(|time| time.user), time(|time| time.sys)];
    [home, rate, ratio, user, sys, time(|time| time.iowait), time(|time| time.idle)]
}

/// The cycles of small reads, and their placement.
fn small_notes(way: &str, runs: &[Run], published: Option<&Small>) -> Vec<String> {
    let Some(run) = runs.first() else { return Vec::new() };
    let known = runs.iter().filter_map(|run| run.cycles.as_ref().ok().copied());
    let cycles = match (bench::median(known.collect()), &run.cycles) {
        (Some(cycles), _) => format!("{} CPU cycles a request", size::grouped(cycles as u64)),
        (None, Err(reason)) => format!("CPU cycles not counted ({reason})"),
        (None, Ok(_)) => String::new(),
    };
    let theirs = published.map_or(0.0, |row| row.cpu_cycles as f64 / 1e12);
    let sum = |of: fn(&Run) -> u64| runs.iter().map(of).sum::<u64>();
    let hand_overs = sum(|run| run.hand_overs) * 1000 / sum(|run| run.requests).max(1);
    let hand_overs = format!("{hand_overs} hand-overs between CPUs in 1,000 requests");
    let mut notes =
        vec![format!("{way}: {hand_overs}; {cycles}; published: {theirs:.2}e12 cycles in all")];
    if !run.placement.is_empty() {
        notes.push(format!("  {}", run.placement));
    }
    notes
}

impl Row {
    /// The cells of a table's row.
    fn cells(&self, base: Option<f64>) -> [String; 4] {
        let ms = |seconds: f64| size::digits(seconds * 1e3);
        let rate = self.mb_per_s;
        let (average, deviation) = (ms(self.avg_latency_s), ms(self.stddev_latency_s));
        [size::digits(rate), ratio(rate, base), average, deviation]
    }
}

impl Small {
    /// The cells of a table's row.
    fn cells(&self, base: Option<f64>) -> [String; 6] {
        let Self { mb_per_s: rate, user_percent, sys_percent, .. } = *self;
        let times = [user_percent, sys_percent, self.iowait_percent, self.idle_percent];
        let [user, sys, iowait, idle] = times.map(|percent| format!("{percent:.1}"));
        [size::digits(rate), ratio(rate, base), user, sys, iowait, idle]
    }
}

impl Report {
    pub fn new(
        setup: Setup,
        settings: Settings,
        placements: Vec<Placed>,
        cells: Vec<Cell>,
        lists: Vec<ListCost>,
        file_systems: FileSystems,
    ) -> Self {
        let summaries: Vec<_> = cells.iter().map(|cell| Summary::of(&cell.runs)).collect();
        let rows = cells.iter().zip(&summaries).filter_map(|(c, s)| Some((c.expected?, s)));
        let proved = rows.clone().filter(|(e, s)| s.is_some_and(|s| s.proves(*e))).count();
        let distinct = rows.count();
        let free = cells.iter().find(|cell| cell.what == What::Free { rq_affinity: 0 });
        let free = free.map_or(&[][..], |cell| &cell.runs);
        let large =
            |cell: &&Cell| !matches!(cell.what, What::Small(_) | What::Free { rq_affinity: 0 });
        let against = |cell: &Cell| Some((name(&cell.what), Against::of(&cell.runs, free)?));
        let against_free = cells.iter().filter(large).filter_map(against).collect();
        Self {
            setup,
            settings,
            placements,
            cells,
            summaries,
            against_free,
            distinct,
            proved,
            lists,
            file_systems,
            published_matrix: published::matrix(),
            published_small: published::small(),
        }
    }

    /// Did the counters prove every distinct placement on this machine?
    pub fn is_proved(&self) -> bool {
        self.proved == self.distinct
    }

    fn find(&self, what: &What) -> Option<(&Cell, Option<Summary>)> {
        let at = self.cells.iter().position(|cell| cell.what == *what)?;
        Some((&self.cells[at], self.summaries[at]))
    }

    pub fn document(&self, header: Header, method: &str) -> Document {
        let missing = self.cells.iter().map(|cell| (name(&cell.what), cell.not_measured.as_ref()));
        let records = self.cells.iter().flat_map(|cell| {
            let record = Record::default().with("experiment", self.setup.experiment);
            let record = record.with("row", name(&cell.what));
            record.rounds(&cell.runs, cell.not_measured.as_deref())
        });
        let records = records.chain(self.file_systems.records(self.setup.experiment));
        let missing = missing.chain(self.file_systems.reasons());
        let summary = reproduced::shown(&self.shown());
        let sections = vec![
            self.matrix(),
            self.small(),
            self.file_systems.section(),
            self.lists(),
            Section::not_measured(&NotMeasured::by_reason(missing)),
        ];
        self.setup.document(header, method, sections, summary, records)
    }

    /// MB/s of the 18 placements, divided by those of free placement.
    fn placements_plot(&self, whose: &str, ratio: impl Fn(Letters) -> Option<f64>) -> Figure {
        let bar = |placed: &Placed| {
            let value = ratio(placed.letters);
            Bar::one(format!("C {:?}", placed.letters.completion), 0, value)
        };
        let sites = |letters: Letters| (letters.application, letters.queue);
        let groups = self.placements.chunk_by(|a, b| sites(a.letters) == sites(b.letters));
        let groups = groups.map(|placed| {
            let (application, queue) = sites(placed[0].letters);
            let label = format!("A {application:?}, Q {queue:?}");
            Group { label, bars: placed.iter().map(bar).collect() }
        });
        let bars = Bars {
            value: Axis::new("MB/s ÷ free placement", "1 is equal, log scale", Scale::Log),
            category: "CPUs: application, queue, completion".into(),
            origin: 1.0,
            keys: vec![Key::new("ratio", 2, false)],
            groups: groups.collect(),
        };
        let about = "Throughput of each placement divided by that of free placement: ▲ is faster, \
                     ▼ slower. I serves the disk's interrupt, A is the application's CPU, X is in \
                     another cell.";
        Figure::bars(format!("Placements, {whose}"), about, bars)
    }

    fn placement_plots(&self) -> [Figure; 2] {
        let free = self.rate(0);
        let measured = |letters: Letters| {
            let mut placed = self.placements.iter().find(|placed| placed.letters == letters)?;
            if let Some(same) = placed.same_as {
                placed = self.placements.iter().find(|placed| placed.letters == same)?;
            }
            let (_, summary) = self.find(&What::Placed(placed.letters, placed.cpus?))?;
            Some(summary?.mb_per_s / free?)
        };
        let base = self.published_rate(0);
        let published = |letters: Letters| {
            let row = self.published_matrix.iter().find(|row| row.is(letters))?;
            Some(row.mb_per_s / base?)
        };
        [self.placements_plot("measured", measured), self.placements_plot("published", published)]
    }

    fn matrix(&self) -> Section {
        let sides = ["ratio", "avg ms", "dev ms"];
        let counters = ["Q local", "Q remote", "C local", "C remote", "proved"];
        let heads = ["A Q C", "CPUs", "MB/s"].into_iter().chain(sides).chain(counters);
        let mut out = Table::new("", heads.chain(["published MB/s"]).chain(sides), 2..15);
        let (base, published_base) = (self.rate(0), self.published_rate(0));
        let ours = |summary: Option<Summary>, expected| {
            summary.map_or_else(dashes, |summary| summary.cells(base, expected))
        };
        let theirs = |is: &dyn Fn(&Row) -> bool| {
            let row = self.published_matrix.iter().find(|row| is(row));
            row.map_or_else(dashes, |row| row.cells(published_base))
        };
        for placed in &self.placements {
            let (cpus, mine) = match (placed.cpus, placed.same_as) {
                (None, _) => ("too few cells".to_owned(), dashes()),
                (Some(_), Some(same)) => (format!("as {same}"), dashes()),
                (Some(cpus), None) => {
                    let found = self.find(&What::Placed(placed.letters, cpus));
                    let (cell, summary) = found.expect("each distinct placement is run");
                    let list = format!("{} {} {}", cpus.application, cpus.queue, cpus.completion);
                    (list, ours(summary, cell.expected))
                }
            };
            let row = [placed.letters.to_string(), cpus].into_iter().chain(mine);
            out.row(row.chain(theirs(&|row| row.is(placed.letters))));
        }
        for (cell, summary) in self.cells.iter().zip(&self.summaries) {
            let back = match cell.what {
                What::Free { rq_affinity } => Some(rq_affinity),
                What::Kernel { .. } => None,
                _ => continue,
            };
            let row = [name(&cell.what), "any".into()].into_iter().chain(ours(*summary, None));
            out.row(row.chain(theirs(&|row| back.is_some() && row.rq_affinity == back)));
        }
        let note = format!(
            "Placements: 18 published, {} distinct on this machine, {} of them proved by their \
             counters",
            self.distinct, self.proved
        );
        let unlike = self.against_free.iter().filter(|(_, against)| !against.is_alike());
        let reasons = unlike.map(|(row, against)| {
            let reason = against.reason(self.against_free.len()).unwrap_or_else(Into::into);
            format!(
                "{row}: {:.2} of free placement, {}: {reason}",
                against.median,
                against.spread()
            )
        });
        Section::new("Reads of 256 KiB, direct, 128 in flight")
            .with_figures(self.placement_plots())
            .with_table(out)
            .with_notes(std::iter::once(note).chain(reasons))
    }

    fn small(&self) -> Section {
        let sides = ["ratio", "user %", "sys %", "iowait %", "idle %"];
        let heads = ["", "C home", "MB/s"].into_iter().chain(sides);
        let mut out = Table::new("", heads.chain(["published MB/s"]).chain(sides), 1..14);
        let mut notes = Vec::new();
        let base = self.find(&What::Small(SMALL_FREE)).and_then(|(_, summary)| summary);
        let base = base.map(|summary| summary.mb_per_s);
        let published = |back| self.published_small.iter().find(|row| row.rq_affinity == back);
        let published_base = published(None).map(|row| row.mb_per_s);
        for (way, back) in [(SMALL_FREE, None), (SMALL_REMOTE, Some(0)), (SMALL_LOCAL, Some(1))] {
            let Some((cell, summary)) = self.find(&What::Small(way)) else { continue };
            let theirs = published(back);
            let row = std::iter::once(way.to_owned()).chain(small_cells(&cell.runs, summary, base));
            let published = theirs.map_or_else(dashes, |row| row.cells(published_base));
            out.row(row.chain(published));
            notes.extend(small_notes(way, &cell.runs, theirs));
        }
        Section::new("Reads of 4 KiB one after the other in 2 MiB, direct, 8 in flight")
            .with_table(out)
            .with_notes(notes)
    }

    /// MB/s of free placement with `rq_affinity` set to `back`.
    fn rate(&self, back: u8) -> Option<f64> {
        let (_, summary) = self.find(&What::Free { rq_affinity: back })?;
        Some(summary?.mb_per_s)
    }

    /// A figure of free placement with `rq_affinity` 1 divided by that with 0, round by round: the
    /// median.
    fn back_to_submitter(&self, of: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        let runs = |back| self.find(&What::Free { rq_affinity: back }).map(|(cell, _)| &cell.runs);
        let ratio = |(one, zero): (&Run, &Run)| Some(of(one)? / of(zero)?);
        let ratios = runs(1)?.iter().zip(runs(0)?).filter_map(ratio);
        bench::median(ratios.filter(|ratio| ratio.is_finite()).collect())
    }

    fn published_rate(&self, back: u8) -> Option<f64> {
        let row = self.published_matrix.iter().find(|row| row.rq_affinity == Some(back))?;
        Some(row.mb_per_s)
    }

    pub fn shown(&self) -> Vec<Shown> {
        let published = |of: &dyn Fn(u8) -> Option<f64>| Some(of(1)? / of(0)?);
        let sys_per_mb = |run: &Run| Some(run.time?.sys / run.mb_per_s);
        vec![
            Shown {
                what: "MB/s with rq_affinity 1 / with 0".into(),
                measured: self.back_to_submitter(|run| Some(run.mb_per_s)),
                published: published(&|back| self.published_rate(back)),
                ..Shown::default()
            },
            Shown {
                what: "system time for each MB with rq_affinity 1 / with 0".into(),
                measured: self.back_to_submitter(sys_per_mb),
                ..Shown::default()
            },
            Shown {
                what: "placements proved by their counters / distinct ones".into(),
                measured: (self.distinct > 0).then(|| self.proved as f64 / self.distinct as f64),
                goal: Some(Goal::Exactly(1.0)),
                ..Shown::default()
            },
            Shown {
                what: "placements within 3 % of free placement, or with a reason / all rows".into(),
                measured: self.explained(),
                goal: Some(Goal::Exactly(1.0)),
                ..Shown::default()
            },
        ]
    }

    fn explained(&self) -> Option<f64> {
        let rows = self.against_free.len();
        let explained = |against: &&Against| against.is_alike() || against.reason(rows).is_ok();
        (rows > 0)
            .then(|| self.against_free.values().filter(explained).count() as f64 / rows as f64)
    }

    fn lists(&self) -> Section {
        type Way = (&'static str, fn(&ListCost) -> f64);
        let ways: [Way; 3] = [
            ("completion list", |list| list.list_ns),
            ("behind a mutex, taken for each, as published", |list| list.mutex_per_item_ns),
            ("behind a mutex, taken once", |list| list.mutex_ns),
        ];
        let heads = ["producers"].into_iter().chain(ways.map(|(name, _)| name));
        let mut table = Table::new("", heads, 0..4);
        for list in &self.lists {
            let values = ways.iter().map(|(_, of)| format!("{:.1}", of(list)));
            table.row(std::iter::once(list.producers.to_string()).chain(values));
        }
        let series = ways.iter().zip([4, 1, 3]).map(|((name, of), style)| {
            let point =
                |list: &ListCost| Point { x: list.producers as f64, y: of(list), rounds: vec![] };
            Series::new(*name, style, self.lists.iter().map(point))
        });
        let x = Axis::new("producers", "threads, log scale", Scale::Log);
        let y = Axis::new("time to add one", "ns", Scale::Linear);
        let about = "Time to add one of 32; less is better.";
        let figure = Figure::lines("Completion lists", about, (x, y), series);
        let section =
            Section::new("Adding 32 to a completion list, ns each").with_figures([figure]);
        if self.lists.is_empty() { Section::default() } else { section.with_table(table) }
    }
}

#[cfg(test)]
mod tests {
    use super::{Against, Busiest, sign_test};

    #[test]
    fn coins_agree_as_often_as_the_binomial_distribution_says() {
        let near = |left: f64, right: f64| assert!((left - right).abs() < 1e-6, "{left}, {right}");
        near(sign_test(3, 3), 0.25);
        near(sign_test(2, 3), 1.0);
        near(sign_test(12, 15), 2.0 * 576.0 / 32768.0);
        near(sign_test(15, 15), 2.0 / 32768.0);
    }

    #[test]
    fn a_row_is_explained_by_a_busy_cpu_or_by_rounds_that_disagree() {
        let row = |rounds, slower, busy| Against {
            median: 0.9,
            least: 0.5,
            most: 1.2,
            rounds,
            slower,
            busiest: Some(Busiest { cpu: 3, busy }),
        };
        assert!(row(3, 3, 95.0).reason(10).unwrap().starts_with("CPU 3 is busy for 95 %"));
        assert!(row(3, 2, 20.0).reason(10).unwrap_err().starts_with("too few rounds"));
        assert!(row(15, 12, 20.0).reason(10).unwrap().contains("in 35 % of all cases"));
        assert!(row(15, 14, 20.0).reason(10).unwrap_err().ends_with("no reason found"));
        assert!(row(15, 1, 20.0).reason(10).is_err(), "quicker each time is no chance either");
    }
}
