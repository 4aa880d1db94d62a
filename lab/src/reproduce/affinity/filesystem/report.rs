//! The table of the steps, with the published figures beside the measured ones.

use super::image::Served;
use super::steps::Step;
use super::{FileSystems, Row, Run};
use crate::bench::Spread;
use crate::report::{Axis, Bar, Bars, Figure, Group, Key, Record, Scale, Section, Table};
use crate::reproduce::affinity::published::FileSystem as Published;
use crate::size;
use std::collections::BTreeMap;

/// Seconds of a step, over file systems and rounds.
fn times(row: &Row, step: Step) -> Option<Spread> {
    let at = Step::ALL.iter().position(|other| *other == step)?;
    let all: Vec<f64> = row.runs.iter().flat_map(|run| run.seconds[at].clone()).collect();
    Spread::of(&all)
}

impl Row {
    /// The title: the settings of queue, completions and rq_affinity.
    pub fn title(&self) -> String {
        format!("Q C rq {}", self.digits())
    }

    fn digits(&self) -> String {
        let Self { queue_affinity, completion_affinity, rq_affinity, .. } = self;
        format!("{queue_affinity} {completion_affinity} {rq_affinity}")
    }

    fn is(&self, line: &Published) -> bool {
        (self.queue_affinity, self.completion_affinity, self.rq_affinity)
            == (line.queue_affinity, line.completion_affinity, line.rq_affinity)
    }
}

impl FileSystems {
    /// Figures and the table, if anything was measured. A note for each measured placement has the
    /// counts of uringlet's contexts.
    pub fn section(&self) -> Section {
        let Self { side_by_side, rows, measured, .. } = self;
        let mut section = Section::new(format!(
            "mkfs, untar, make and clean on {side_by_side} file systems side by side: s"
        ));
        if *measured > 0 {
            section = section.with_figures(self.figures()).with_table(self.table());
        }
        section.notes.push(format!(
            "Placements: {} published, {measured} of them measured, {} not",
            rows.len(),
            self.not_measured
        ));
        for row in rows.iter().filter(|row| !row.runs.is_empty()) {
            let served = || row.runs.iter().flat_map(|run| &run.served);
            let sum = |of: fn(&Served) -> u64, what: &str| {
                let sum = served().map(of).sum();
                format!("{} {}", size::grouped(sum), size::plural(sum, what))
            };
            let share = |local: fn(&Served) -> u64, remote: fn(&Served) -> u64| {
                let local: u64 = served().map(local).sum();
                let all = local + served().map(remote).sum::<u64>();
                format!("{:.0} %", local as f64 / all.max(1) as f64 * 100.0)
            };
            section.notes.push(format!(
                "{}: {}, {}, {}; {} handed over, {} completed locally; {}",
                row.title(),
                sum(|s| s.reads, "read"),
                sum(|s| s.writes, "write"),
                sum(|s| s.fsyncs, "fsync"),
                share(|s| s.queue_local, |s| s.queue_remote),
                share(|s| s.completion_local, |s| s.completion_remote),
                served().next().map_or("", |served| &served.placement),
            ));
        }
        section
    }

    /// A line for each placement and round: seconds of the steps, means over the file systems.
    pub fn records(&self, experiment: &'static str) -> impl Iterator<Item = Record> {
        self.rows.iter().flat_map(move |row| {
            let record = Record::default().with("experiment", experiment);
            let record = record.with("row", format!("file systems, {}", row.title()));
            let round = |run: &Run| -> BTreeMap<String, f64> {
                let mean = |all: &Vec<f64>| all.iter().sum::<f64>() / all.len().max(1) as f64;
                let steps = Step::ALL.iter().zip(&run.seconds);
                steps.map(|(step, all)| (format!("{}_s", step.into_str()), mean(all))).collect()
            };
            record.rounds(row.runs.iter().map(round), row.not_measured.as_deref())
        })
    }

    /// For each step, its time compared with that of free placement, measured and published.
    fn figures(&self) -> Vec<Figure> {
        let figure = |step: &Step| {
            let base = self.rows.first().and_then(|row| times(row, *step));
            let lines = || self.published.iter().filter(|line| line.phase == step.into_str());
            let published_base = lines().next().map(|line| line.avg_s);
            let groups = self.rows.iter().map(|row| {
                let own = times(row, *step);
                let own = own.zip(base.as_ref()).map(|(own, base)| own.mean / base.mean);
                let line = lines().find(|line| row.is(line));
                let there = line.zip(published_base).map(|(line, base)| line.avg_s / base);
                let bars = vec![Bar::one("measured", 0, own), Bar::one("published", 1, there)];
                Group { label: row.title(), bars }
            });
            let bars = Bars {
                value: Axis::new(
                    "time ÷ that of the first row",
                    "1 is equal, log scale",
                    Scale::Log,
                ),
                category: "placements".into(),
                origin: 1.0,
                keys: Key::measured_and_published(),
                groups: groups.collect(),
            };
            let about = "Mean time of a step divided by that with the placement of the first row; \
                         less is better.";
            Figure::bars(format!("File systems: {}", step.into_str()), about, bars)
        };
        Step::ALL.iter().map(figure).collect()
    }

    /// What was not measured, with reasons.
    pub fn reasons(&self) -> impl Iterator<Item = (String, Option<&String>)> {
        let named = |row: &Row| format!("file systems, {}", row.title());
        self.rows.iter().map(move |row| (named(row), row.not_measured.as_ref()))
    }

    fn table(&self) -> Table {
        let sides = ["min", "avg", "max", "dev", "ratio"];
        let heads = ["step", "Q C rq"].into_iter().chain(sides);
        let heads = heads.chain(["published min"]).chain(sides.into_iter().skip(1));
        let mut out = Table::new("", heads, 2..12);
        for step in Step::ALL {
            let base = self.rows.first().and_then(|row| times(row, step));
            let lines = || self.published.iter().filter(|line| line.phase == step.into_str());
            let published_base = lines().next().map_or(f64::NAN, |line| line.avg_s);
            for row in &self.rows {
                let mut cells = vec![step.into_str().to_owned(), row.digits()];
                match times(row, step) {
                    Some(Spread { min, mean: avg, max, stdev }) => {
                        cells.extend([min, avg, max, stdev].map(size::digits));
                        cells.push(
                            base.as_ref().map_or("-".into(), |b| format!("{:.2}", avg / b.mean)),
                        );
                    }
                    None => cells.extend([const { String::new() }; 5].map(|_| "-".into())),
                }
                if let Some(line) = lines().find(|line| row.is(line)) {
                    cells.extend(
                        [line.min_s, line.avg_s, line.max_s, line.stddev_s].map(size::digits),
                    );
                    cells.push(format!("{:.2}", line.avg_s / published_base));
                }
                out.row(cells);
            }
        }
        out
    }
}
