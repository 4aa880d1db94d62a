//! Every cell of the table: what can be measured, in which order, and what came out.

use super::engine::{Engine, Figure};
use super::workload::{Buffers, Job, Workload};
use crate::machine::Storage;
use crate::scratch::Scratch;
use serde::Serialize;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A file of which more than this part stays in the cache is not cold.
const STILL_COLD: f64 = 0.05;
/// A window of which less than this part is in the cache is not cached.
const STILL_CACHED: f64 = 0.99;

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
    /// Why there are no (more) figures.
    pub not_measured: Option<String>,
}

impl Cell {
    /// Median of the rounds' requests per second; none if any round failed.
    pub fn iops(&self) -> Option<f64> {
        self.median(|figure| figure.iops)
    }

    /// Median of the rounds' CPU time per request.
    pub fn cpu_us(&self) -> Option<f64> {
        self.median(|figure| figure.cpu_us_per_request)
    }

    fn median(&self, of: impl Fn(&Figure) -> f64) -> Option<f64> {
        if self.not_measured.is_some() {
            return None;
        }
        median(self.figures.iter().map(of).collect())
    }
}

/// The middle value, or the mean of the two in the middle.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// workers against the best native engine of one line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The best native one by its median.
    pub best_native: Engine,
    /// Median divided by median.
    pub ratio: f64,
    /// Lowest ratio of a single round.
    pub ratio_min: f64,
    /// Highest ratio of a single round.
    pub ratio_max: f64,
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
            settings.engines.iter().map(|&engine| (engine, engine.probe(deepest).err())).collect();
        let mut cells = Vec::new();
        for &workload in &settings.workloads {
            let block = settings.block(workload);
            let excluded = exclusion(workload, scratch, storage);
            let mut measure = |depth, engine: Engine, refusal: &Option<String>| {
                let not_measured = refusal.clone().or_else(|| excluded.clone());
                let figures = Vec::new();
                cells.push(Cell { workload, block, depth, engine, figures, not_measured });
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

    /// Cells times rounds, without those that cannot work.
    pub fn steps(&self) -> u64 {
        let cells = self.cells.iter().filter(|cell| cell.not_measured.is_none()).count();
        cells as u64 * u64::from(self.settings.rounds)
    }

    /// The cell of one line; a synchronous engine has one for all lines of a workload.
    pub fn cell(&self, workload: Workload, depth: usize, engine: Engine) -> Option<&Cell> {
        self.cells.iter().find(|cell| {
            let depth_fits = cell.depth == depth || engine.is_synchronous();
            cell.workload == workload && depth_fits && cell.engine == engine
        })
    }

    /// workers against the best native engine, if both sides have figures.
    pub fn comparison(&self, workload: Workload, depth: usize) -> Option<Comparison> {
        let ours = self.cell(workload, depth, Engine::Workers)?;
        let natives = self.settings.engines.iter().filter(|engine| engine.is_native());
        let natives = natives.filter_map(|&engine| self.cell(workload, depth, engine));
        let (best, theirs) = natives
            .filter_map(|cell| Some((cell, cell.iops()?)))
            .max_by(|(_, left), (_, right)| left.total_cmp(right))?;
        let rounds =
            ours.figures.iter().zip(&best.figures).map(|(our, their)| our.iops / their.iops);
        Some(Comparison {
            best_native: best.engine,
            ratio: ours.iops()? / theirs,
            ratio_min: rounds.clone().fold(f64::INFINITY, f64::min),
            ratio_max: rounds.fold(0.0, f64::max),
        })
    }

    /// Runs all rounds. `progress` hears of every cell before it is run.
    pub fn measure(
        &mut self,
        scratch: &Scratch,
        stop: &AtomicBool,
        mut progress: impl FnMut(String),
    ) {
        // Without the advice, read-ahead turns a random read into many.
        let _ = scratch.advise(libc::POSIX_FADV_RANDOM);
        let rounds = self.settings.rounds;
        for round in 0..rounds {
            let mut start = 0;
            while start < self.cells.len() {
                let line = |cell: &Cell| (cell.workload, cell.depth);
                let this = line(&self.cells[start]);
                let len = self.cells[start..].iter().take_while(|cell| line(cell) == this).count();
                for turn in 0..len {
                    let index = start + (turn + round as usize) % len;
                    if self.cells[index].not_measured.is_some() {
                        continue;
                    }
                    let (workload, depth) = this;
                    let engine = self.cells[index].engine.name();
                    progress(format!(
                        "round {} of {rounds} · {} · depth {depth} · {engine}",
                        round + 1,
                        workload.label()
                    ));
                    let result = self.run_cell(index, round, scratch, stop);
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    match result {
                        Ok(figure) => self.cells[index].figures.push(figure),
                        Err(reason) => self.cells[index].not_measured = Some(reason),
                    }
                }
                start += len;
            }
        }
    }

    fn run_cell(
        &self,
        index: usize,
        round: u32,
        scratch: &Scratch,
        stop: &AtomicBool,
    ) -> Result<Figure, String> {
        let Cell { workload, block, depth, engine, .. } = self.cells[index];
        prepare(workload, scratch, stop)?;
        let file = match &scratch.direct {
            Ok(direct) if workload.is_direct() => direct,
            _ => &scratch.buffered,
        };
        // The same seed for every engine of a line and round: all get the same requests.
        let seed = u64::from(round) << 32 | (depth as u64) << 8 | workload as u64;
        // Other bytes in every cell, so that a write that was not done cannot look like one.
        let pattern = seed << 16 | index as u64;
        let block_len = usize::try_from(block).expect("a block size is at most 16M");
        let figure = engine.run(&mut Job {
            fd: file.as_raw_fd(),
            write: workload.writes(),
            block: block_len,
            depth,
            offsets: workload.offsets(scratch.size, block, seed),
            buffers: Buffers::new(depth, block_len, pattern),
            last: vec![None; depth],
            duration: Duration::from_secs_f64(self.settings.seconds),
            stop,
        })?;
        if workload.writes() {
            // The next engine shall not find this one's write-back under way.
            file.sync_data().map_err(|error| format!("fdatasync failed: {error}"))?;
        }
        if figure.requests == 0 { Err("no request was made".into()) } else { Ok(figure) }
    }
}

/// Brings the cache into the state that the workload is about.
fn prepare(workload: Workload, scratch: &Scratch, stop: &AtomicBool) -> Result<(), String> {
    let failed = |what: &str, error: std::io::Error| format!("{what} failed: {error}");
    match workload {
        Workload::CachedRead | Workload::BufferedWrite => {
            let mut chunk = vec![0u8; 1 << 20];
            let window = workload.window(scratch.size);
            let mut done = 0;
            while done < window && !stop.load(Ordering::Relaxed) {
                match scratch.buffered.read_at(&mut chunk, done) {
                    Ok(0) => break,
                    Ok(count) => done += count as u64,
                    Err(error) => return Err(failed("reading the file into the cache", error)),
                }
            }
        }
        Workload::ColdRead | Workload::DirectRead | Workload::DirectWrite => {
            scratch.drop_cache().map_err(|error| failed("dropping the file's cache", error))?;
        }
    }
    let share = |bytes| {
        let share = scratch.cached_share(bytes).map_err(|error| failed("asking mincore", error));
        share.map(|share| (share, format!("{:.0} %", share * 100.0)))
    };
    match workload {
        Workload::CachedRead => {
            let (found, percent) = share(workload.window(scratch.size))?;
            if found < STILL_CACHED && !stop.load(Ordering::Relaxed) {
                return Err(format!(
                    "memory is short: only {percent} of what was just read is cached"
                ));
            }
        }
        Workload::ColdRead => {
            let (found, percent) = share(scratch.size)?;
            if found > STILL_COLD {
                return Err(format!(
                    "not cold: {percent} of the file stayed in the cache after POSIX_FADV_DONTNEED \
                     (or the file is not yours, and the kernel does not tell)"
                ));
            }
        }
        _ => {}
    }
    Ok(())
}

/// Why a workload has no meaning here, or is not allowed.
fn exclusion(workload: Workload, scratch: &Scratch, storage: &Storage) -> Option<String> {
    if workload.writes() && !scratch.writable {
        return Some("an existing file is not written to without --allow-writes".into());
    }
    if storage.is_memory() && workload == Workload::ColdRead {
        return Some(format!("{} has no cold state", storage.file_system));
    }
    if storage.is_memory() && workload.is_direct() {
        return Some(format!("{} has no device to go to directly", storage.file_system));
    }
    if workload.is_direct() {
        return scratch.direct.as_ref().err().cloned();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(engine: Engine, depth: usize, iops: &[f64]) -> Cell {
        let figure = |&iops| Figure { requests: 1, seconds: 1.0, iops, cpu_us_per_request: 1.0 };
        Cell {
            workload: Workload::ColdRead,
            block: 4096,
            depth,
            engine,
            figures: iops.iter().map(figure).collect(),
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
            engines: vec![Engine::Psync, Engine::Libaio, Engine::Workers],
            workloads: vec![Workload::ColdRead],
        };
        Matrix { settings, cells }
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0]), Some(3.0));
        assert_eq!(median(vec![9.0, 1.0, 3.0]), Some(3.0));
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), Some(2.5));
    }

    #[test]
    fn the_ratio_is_to_the_best_native_median() {
        let matrix = matrix(vec![
            cell(Engine::Psync, 1, &[10.0, 10.0, 1000.0]),
            cell(Engine::Libaio, 32, &[19.0, 20.0, 21.0]),
            cell(Engine::Workers, 32, &[19.0, 30.0, 42.0]),
        ]);
        let found = matrix.comparison(Workload::ColdRead, 32).unwrap();
        assert_eq!((found.best_native, found.ratio), (Engine::Libaio, 1.5));
        assert_eq!((found.ratio_min, found.ratio_max), (1.0, 2.0));
    }

    #[test]
    fn psync_counts_at_every_depth_and_failed_cells_at_none() {
        let mut cells = vec![
            cell(Engine::Psync, 1, &[40.0]),
            cell(Engine::Libaio, 32, &[99.0]),
            cell(Engine::Workers, 32, &[20.0]),
        ];
        cells[1].not_measured = Some("short".into());
        let mut matrix = matrix(cells);
        let found = matrix.comparison(Workload::ColdRead, 32).unwrap();
        assert_eq!((found.best_native, found.ratio), (Engine::Psync, 0.5));
        assert_eq!(matrix.comparison(Workload::ColdRead, 1), None);
        matrix.cells[2].not_measured = Some("refused".into());
        assert_eq!(matrix.comparison(Workload::ColdRead, 32), None);
    }
}
