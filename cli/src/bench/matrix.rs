//! Every cell of the table: what can be measured, in which order, and what came out.

use crate::machine::Storage;
use crate::scratch::Scratch;
use crate::size;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use uringlet_lab::bench::{
    Engine, Figure, LatencyFigure, Load, Trial, Workload, exclusion, interleaved, median,
};

/// What preparing and ending a run takes beside its seconds, on a quick disk.
const OVERHEAD: f64 = 0.05;

/// Bytes in flight.
pub const MOST_BUFFERS: u64 = 1 << 30;

/// What the user chose, with the defaults filled in.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// Seconds per cell and round.
    pub seconds: f64,
    /// Number of rounds.
    pub rounds: u32,
    /// One block size for all workloads.
    pub block: Option<u64>,
    /// Bytes used of the file.
    pub file_size: u64,
    /// Requests in flight.
    pub depths: Vec<usize>,
    /// Engines, in the order of the table.
    pub engines: Vec<Engine>,
    /// Workloads, in the order of the table.
    pub workloads: Vec<Workload>,
}

impl Settings {
    /// Bytes per request.
    pub fn block(&self, workload: Workload) -> u64 {
        self.block.unwrap_or(workload.default_block())
    }

    /// Its requests.
    pub fn load(&self, workload: Workload) -> Load {
        workload.load(self.file_size, self.block(workload))
    }
}

/// One engine under one workload at one depth.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The load.
    pub workload: Workload,
    /// Bytes per request.
    pub block: u64,
    /// Requests in flight.
    pub depth: usize,
    /// Who executes them.
    pub engine: Engine,
    /// One for each round.
    pub figures: Vec<Figure>,
    /// From a run of its own, after the rounds: reading the clock costs what is measured here.
    pub latency: Option<LatencyFigure>,
    /// Why there are no (more) figures.
    pub not_measured: Option<String>,
}

impl Cell {
    /// Median of the rounds' requests per second; none if any round failed.
    pub fn iops(&self) -> Option<f64> {
        self.side()?.iops()
    }

    /// Median of the rounds' CPU time per request.
    pub fn cpu_us(&self) -> Option<f64> {
        self.side()?.cpu_us()
    }

    /// For a comparison; none if any round failed.
    fn side(&self) -> Option<Side<Engine>> {
        let of = |value: fn(&Figure) -> f64| self.figures.iter().map(value).collect();
        let (iops, cpu_us) = (of(|figure| figure.iops), of(|figure| figure.cpu_us_per_request));
        self.not_measured.is_none().then_some(Side { engine: self.engine, iops, cpu_us })
    }

    /// What uringlet had chosen at the end of the last round.
    pub fn executed_by(&self) -> Option<&str> {
        self.figures.last()?.executed_by.as_deref()
    }
}

/// What one engine did, in the order of the rounds.
pub struct Side<E> {
    pub engine: E,
    /// Requests per second.
    pub iops: Vec<f64>,
    /// CPU time per request.
    pub cpu_us: Vec<f64>,
}

impl<E> Side<E> {
    /// Median of the rounds' requests per second.
    pub fn iops(&self) -> Option<f64> {
        median(self.iops.clone())
    }

    /// Median of the rounds' CPU time per request.
    pub fn cpu_us(&self) -> Option<f64> {
        median(self.cpu_us.clone())
    }
}

/// uringlet against the best native engine of one line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison<E> {
    /// uringlet's side.
    pub engine: E,
    /// The best native one by its median.
    pub best_native: E,
    /// Median divided by median.
    pub ratio: f64,
    /// Lowest ratio of a single round.
    pub ratio_min: f64,
    /// Highest ratio of a single round.
    pub ratio_max: f64,
    /// CPU time per request, median divided by median.
    pub cpu_ratio: f64,
}

impl<E> Comparison<E> {
    /// If there are natives, and figures on both sides.
    pub fn of(ours: Side<E>, natives: impl Iterator<Item = Side<E>>) -> Option<Self> {
        let (best, theirs) = natives
            .filter_map(|side| side.iops().map(|iops| (side, iops)))
            .max_by(|(_, left), (_, right)| left.total_cmp(right))?;
        let rounds = ours.iops.iter().zip(&best.iops).map(|(our, their)| our / their);
        Some(Self {
            ratio: ours.iops()? / theirs,
            ratio_min: rounds.clone().fold(f64::INFINITY, f64::min),
            ratio_max: rounds.fold(0.0, f64::max),
            cpu_ratio: ours.cpu_us()? / best.cpu_us()?,
            engine: ours.engine,
            best_native: best.engine,
        })
    }

    /// The same with other words for the engines.
    pub fn named<N>(self, name: impl Fn(E) -> N) -> Comparison<N> {
        let Self { engine, best_native, ratio, ratio_min, ratio_max, cpu_ratio } = self;
        let (engine, best_native) = (name(engine), name(best_native));
        Comparison { engine, best_native, ratio, ratio_min, ratio_max, cpu_ratio }
    }

    /// The ratio as it is printed, to two decimals, is at least 1.00.
    pub fn is_first(&self) -> bool {
        (self.ratio * 100.0).round() >= 100.0
    }
}

/// All cells.
pub struct Matrix {
    /// What the user chose.
    pub settings: Settings,
    /// In the order of the table.
    pub cells: Vec<Cell>,
}

impl Matrix {
    /// Every combination, those that cannot work already marked with the reason.
    pub fn new(settings: Settings, scratch: &Scratch, storage: &Storage) -> Self {
        let deepest = settings.depths.iter().copied().max().unwrap_or(1);
        let refused: Vec<_> =
            settings.engines.iter().map(|&e| (e, e.probe(deepest, None).err())).collect();
        let mut cells = Vec::new();
        for &workload in &settings.workloads {
            let block = settings.block(workload);
            let excluded = exclusion(&settings.load(workload), scratch, storage);
            let mut measure = |depth, engine: Engine, refusal: &Option<String>| {
                let too_much = (block * depth as u64 > MOST_BUFFERS).then(|| {
                    let most = size::short(MOST_BUFFERS);
                    format!(
                        "expected at most {most} in flight: a smaller --depth, or a smaller --bs"
                    )
                });
                let not_measured = refusal.clone().or_else(|| excluded.clone()).or(too_much);
                cells.push(Cell {
                    workload,
                    block,
                    depth,
                    engine,
                    figures: Vec::new(),
                    latency: None,
                    not_measured,
                });
            };
            for (engine, refusal) in refused.iter().filter(|(engine, _)| engine.is_synchronous()) {
                measure(1, *engine, refusal);
            }
            for &depth in &settings.depths {
                for (engine, refusal) in refused.iter().filter(|(e, _)| !e.is_synchronous()) {
                    measure(depth, *engine, refusal);
                }
            }
        }
        Self { settings, cells }
    }

    /// Cells times rounds, without those that cannot work; the run for latencies is one more round.
    pub fn steps(&self) -> u64 {
        let cells = self.cells.iter().filter(|cell| cell.not_measured.is_none()).count();
        cells as u64 * (u64::from(self.settings.rounds) + 1)
    }

    /// How long it takes, about.
    pub fn estimate(&self) -> Duration {
        Duration::from_secs_f64(self.steps() as f64 * (self.settings.seconds + OVERHEAD))
    }

    /// The cell of one line; a synchronous engine has one for all lines of a workload.
    pub fn cell(&self, workload: Workload, depth: usize, engine: Engine) -> Option<&Cell> {
        self.cells.iter().find(|cell| {
            let depth_fits = cell.depth == depth || engine.is_synchronous();
            cell.workload == workload && depth_fits && cell.engine == engine
        })
    }

    /// uringlet's side of the comparison: `auto`, or else the first of its engines that was chosen.
    pub fn subject(&self) -> Option<Engine> {
        let engines = &self.settings.engines;
        let auto = engines.iter().find(|&&engine| engine == Engine::OursAuto);
        auto.or_else(|| engines.iter().find(|engine| !engine.is_native())).copied()
    }

    /// uringlet against the best native engine, if both sides have figures.
    pub fn comparison(&self, workload: Workload, depth: usize) -> Option<Comparison<Engine>> {
        let ours = self.cell(workload, depth, self.subject()?)?;
        let natives = self.settings.engines.iter().filter(|engine| engine.is_native());
        let natives = natives.filter_map(|&engine| self.cell(workload, depth, engine)?.side());
        Comparison::of(ours.side()?, natives)
    }

    /// Runs all rounds, and then once more for latencies. `progress` hears of every cell before it
    /// is run.
    pub fn measure(
        &mut self,
        scratch: &Scratch,
        stop: &AtomicBool,
        mut progress: impl FnMut(String),
    ) {
        scratch.expect_random_reads();
        let rounds = self.settings.rounds;
        let lines = self
            .cells
            .chunk_by(|left, right| (left.workload, left.depth) == (right.workload, right.depth));
        let lengths: Vec<usize> = lines.map(<[Cell]>::len).collect();
        for (round, index) in interleaved(&lengths, rounds + 1) {
            let Cell { workload, depth, engine, .. } = self.cells[index];
            if self.cells[index].not_measured.is_some() {
                continue;
            }
            let timed = round == rounds;
            let which =
                if timed { "latencies".into() } else { format!("round {} of {rounds}", round + 1) };
            let (label, name) = (workload.label(), engine.name());
            progress(format!("{which} · {label} · depth {depth} · {name}"));
            let seed = u64::from(round) << 32 | (depth as u64) << 8 | workload as u64;
            let trial = Trial {
                engine,
                pool: None,
                load: self.settings.load(workload),
                depth,
                seed,
                pattern: seed << 16 | index as u64,
                duration: Duration::from_secs_f64(self.settings.seconds),
                timed,
            };
            let result = trial.run(scratch, stop);
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let cell = &mut self.cells[index];
            match result {
                Ok(figure) if timed => cell.latency = figure.latency,
                Ok(figure) => cell.figures.push(figure),
                Err(reason) => cell.not_measured = Some(reason),
            }
        }
    }
}

/// The last lines of the report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// uringlet's side.
    pub engine: Engine,
    /// Workloads and depths at which both sides have a figure.
    pub cells: usize,
    /// Those of them with a ratio that is printed as 1.00 or more.
    pub first: usize,
    /// Geometric mean of the ratios.
    pub geometric_mean: f64,
    /// The lowest ratio.
    pub worst: Extreme,
    /// The highest ratio of CPU time per request among direct loads.
    pub worst_direct_cpu: Option<Extreme>,
}

/// One line's figure, and which line that is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Extreme {
    /// uringlet's figure divided by the other one.
    pub ratio: f64,
    /// The load.
    pub workload: Workload,
    /// Requests in flight.
    pub depth: usize,
    /// Compared with.
    pub against: Engine,
}

impl Matrix {
    /// Of all lines that have a comparison; none if no line has.
    pub fn summary(&self) -> Option<Summary> {
        let mut found = Vec::new();
        for &workload in &self.settings.workloads {
            for &depth in &self.settings.depths {
                found.extend(self.comparison(workload, depth).map(|c| (workload, depth, c)));
            }
        }
        let extreme =
            |of: fn(&Comparison<Engine>) -> f64,
             &(workload, depth, ref c): &(_, _, Comparison<Engine>)| {
                Extreme { ratio: of(c), workload, depth, against: c.best_native }
            };
        let ratios = || found.iter().map(|line| extreme(|c| c.ratio, line));
        let direct = found.iter().filter(|(workload, ..)| self.settings.load(*workload).direct);
        let by_ratio = |left: &Extreme, right: &Extreme| left.ratio.total_cmp(&right.ratio);
        Some(Summary {
            engine: self.subject()?,
            cells: found.len(),
            first: found.iter().filter(|(.., comparison)| comparison.is_first()).count(),
            geometric_mean: (ratios().map(|e| e.ratio.ln()).sum::<f64>() / found.len() as f64)
                .exp(),
            worst: ratios().min_by(by_ratio)?,
            worst_direct_cpu: direct.map(|line| extreme(|c| c.cpu_ratio, line)).max_by(by_ratio),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(engine: Engine, depth: usize, iops: &[f64]) -> Cell {
        let figure = |&iops| Figure {
            requests: 1,
            seconds: 1.0,
            iops,
            cpu_us_per_request: 30.0 / iops,
            user_us_per_request: 10.0 / iops,
            latency: None,
            executed_by: None,
        };
        Cell {
            workload: Workload::DirectRead,
            block: 4096,
            depth,
            engine,
            figures: iops.iter().map(figure).collect(),
            latency: None,
            not_measured: None,
        }
    }

    fn matrix(cells: Vec<Cell>) -> Matrix {
        let settings = Settings {
            seconds: 1.0,
            rounds: 3,
            block: None,
            file_size: 1 << 20,
            depths: vec![1, 32],
            engines: vec![Engine::Psync, Engine::Libaio, Engine::OursAuto],
            workloads: vec![Workload::DirectRead],
        };
        Matrix { settings, cells }
    }

    #[test]
    fn the_ratio_is_to_the_best_native_median() {
        let matrix = matrix(vec![
            cell(Engine::Psync, 1, &[10.0, 10.0, 1000.0]),
            cell(Engine::Libaio, 32, &[19.0, 20.0, 21.0]),
            cell(Engine::OursAuto, 32, &[19.0, 30.0, 42.0]),
        ]);
        let found = matrix.comparison(Workload::DirectRead, 32).unwrap();
        assert_eq!((found.best_native, found.ratio), (Engine::Libaio, 1.5));
        assert_eq!((found.ratio_min, found.ratio_max), (1.0, 2.0));
    }

    #[test]
    fn psync_counts_at_every_depth_and_failed_cells_at_none() {
        let mut cells = vec![
            cell(Engine::Psync, 1, &[40.0]),
            cell(Engine::Libaio, 32, &[99.0]),
            cell(Engine::OursAuto, 32, &[20.0]),
        ];
        cells[1].not_measured = Some("short".into());
        let mut matrix = matrix(cells);
        let found = matrix.comparison(Workload::DirectRead, 32).unwrap();
        assert_eq!((found.best_native, found.ratio), (Engine::Psync, 0.5));
        assert_eq!(matrix.comparison(Workload::DirectRead, 1), None);
        matrix.cells[2].not_measured = Some("refused".into());
        assert_eq!(matrix.comparison(Workload::DirectRead, 32), None);
    }

    #[test]
    fn the_summary_counts_what_is_printed_as_one_and_names_the_worst() {
        let matrix = matrix(vec![
            cell(Engine::Psync, 1, &[10.0]),
            cell(Engine::OursAuto, 1, &[9.96]),
            cell(Engine::Libaio, 32, &[20.0]),
            cell(Engine::OursAuto, 32, &[5.0]),
        ]);
        let summary = matrix.summary().unwrap();
        assert_eq!((summary.cells, summary.first), (2, 1));
        assert!((summary.geometric_mean - (0.996f64 * 0.25).sqrt()).abs() < 1e-9);
        assert_eq!((summary.worst.depth, summary.worst.against), (32, Engine::Libaio));
        assert_eq!(summary.worst_direct_cpu.unwrap().ratio, 4.0);
    }

    #[test]
    fn without_our_side_there_is_nothing_to_sum_up() {
        let mut matrix = matrix(vec![cell(Engine::Psync, 1, &[10.0])]);
        assert_eq!(matrix.summary(), None);
        matrix.settings.engines = vec![Engine::Psync, Engine::OursPosixAio, Engine::OursWorkers];
        assert_eq!(matrix.subject(), Some(Engine::OursPosixAio));
    }
}
