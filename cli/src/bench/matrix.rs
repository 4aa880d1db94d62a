//! All cells of the table: what can be measured, in which order, and the results.

use super::comparison::{Comparison, Side};
use crate::machine::Storage;
use crate::scratch::Scratch;
use crate::size;
use fastrand::Rng;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use uringlet_lab::bench::outside::{self, Look, Outside};
use uringlet_lab::bench::{
    Engine, Figure, LatencyFigure, Load, Manner, Trial, Workload, exclusion, median,
};
use uringlet_lab::verdict::{self, LEAST_ROUNDS};

/// Rounds of a line before the next line's turn: the fewest with which two engines can be compared.
const ROUNDS_PER_TURN: usize = 6;

/// The maximum number of bytes in flight.
pub const MOST_BUFFERS: u64 = 1 << 30;

/// The user's settings, with the defaults filled in.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// Seconds per cell and round.
    pub seconds: f64,
    /// A fixed number of rounds. None: until ratios are known, or the budget is used.
    pub rounds: Option<u32>,
    /// The total time in seconds.
    pub budget: f64,
    /// The seed of the order in the rounds.
    pub seed: u64,
    /// One block size for all workloads.
    pub block: Option<u64>,
    /// Bytes used of the file.
    pub file_size: u64,
    /// Requests in flight.
    pub depths: Vec<usize>,
    /// How requests are submitted, if the user chose that.
    pub submit: Vec<Manner>,
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

    /// `cached read 4k`.
    pub fn title(&self, workload: Workload) -> String {
        format!("{} {}", workload.label(), size::short(self.block(workload)))
    }

    /// How requests of a workload are submitted. At a depth of 1, all in a call is the same as one
    /// in a call.
    fn manners(&self, workload: Workload, depth: usize) -> Vec<Manner> {
        use Workload::{BufferedWrite, CachedRead, DirectRead, DirectWrite};
        let looped = matches!(workload, CachedRead | BufferedWrite | DirectRead | DirectWrite);
        let mut manners = match (&self.submit[..], looped) {
            ([], true) => vec![Manner::AllInACall, Manner::OneInACall, Manner::EventLoop],
            ([], false) => vec![Manner::AllInACall, Manner::OneInACall],
            (chosen, _) => chosen.to_vec(),
        };
        if depth == 1 && manners.contains(&Manner::OneInACall) {
            manners.retain(|&manner| manner != Manner::AllInACall);
        }
        manners
    }

    /// The requests of a workload.
    pub fn load(&self, workload: Workload) -> Load {
        workload.load(self.file_size, self.block(workload))
    }
}

/// One engine under one workload, at one depth, with one manner of submitting.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The load.
    pub workload: Workload,
    /// Bytes per request.
    pub block: u64,
    /// Requests in flight.
    pub depth: usize,
    /// How the requests are submitted.
    pub submit: Manner,
    /// The engine that executes the requests.
    pub engine: Engine,
    /// One figure for each round.
    pub figures: Vec<Figure>,
    /// This figure comes from a separate run before the rounds, because reading the clock costs as
    /// much as what is measured.
    pub latency: Option<LatencyFigure>,
    /// The reason why there are no (more) figures.
    pub not_measured: Option<String>,
    /// Another native engine that is faster than this cell's. This cell is then no candidate for
    /// the best, and gets no more rounds.
    pub beaten_by: Option<Engine>,
}

impl Cell {
    /// Is the cell measured in the next round?
    fn is_in_rounds(&self) -> bool {
        self.not_measured.is_none() && self.beaten_by.is_none()
    }

    /// Median of the rounds' requests per second; none if any round failed.
    pub fn iops(&self) -> Option<f64> {
        median(self.side()?.iops)
    }

    /// Median of the rounds' CPU time per request.
    pub fn cpu_us(&self) -> Option<f64> {
        median(self.side()?.cpu_us)
    }

    /// The figures for a comparison; none if any round failed.
    fn side(&self) -> Option<Side<Engine>> {
        let round = |figure: &Figure| (figure.iops, figure.cpu_us_per_request);
        let (iops, cpu_us) = self.figures.iter().map(round).unzip();
        let measured = self.not_measured.is_none() && !self.figures.is_empty();
        measured.then_some(Side { engine: self.engine, iops, cpu_us })
    }

    /// Requests in flight: a synchronous engine has one at any depth.
    pub fn in_flight(&self) -> usize {
        if self.engine.is_synchronous() { 1 } else { self.depth }
    }

    /// What executed uringlet's requests at the end of the last round.
    pub fn executed_by(&self) -> Option<&str> {
        self.figures.last()?.executed_by.as_deref()
    }
}

/// `32, one in a call`.
pub fn depth_text(depth: usize, submit: Manner) -> String {
    match (depth, submit) {
        (1, Manner::AllInACall | Manner::OneInACall) => depth.to_string(),
        _ => format!("{depth}, {}", submit.label()),
    }
}

/// All cells.
pub struct Matrix {
    /// What the user chose.
    pub settings: Settings,
    /// The lines, in the order of the table.
    pub lines: Vec<Line>,
}

/// One workload at one depth, with one manner of submitting. Each round runs the line's cells one
/// after the other.
pub struct Line {
    pub workload: Workload,
    pub depth: usize,
    pub submit: Manner,
    /// The cells, in the order of the engines.
    pub cells: Vec<Cell>,
    /// The CPU use of other processes and guests in each round.
    pub outside: Vec<Option<Outside>>,
    /// Rounds that were removed. Other processes and guests used more of the CPUs than usual then.
    pub disturbed: usize,
}

impl Matrix {
    /// All combinations. A cell that cannot be measured has the reason. An engine has no cell for a
    /// manner of submitting that it does not support.
    pub fn new(settings: Settings, scratch: &Scratch, storage: &Storage) -> Self {
        let deepest = settings.depths.iter().copied().max().unwrap_or(1);
        let refused: Vec<_> =
            settings.engines.iter().map(|&e| (e, e.probe(deepest, None).err())).collect();
        let mut lines = Vec::new();
        for &workload in &settings.workloads {
            let block = settings.block(workload);
            let excluded = exclusion(&settings.load(workload), scratch, storage);
            let manners =
                |&depth| settings.manners(workload, depth).into_iter().map(move |how| (depth, how));
            for (depth, submit) in settings.depths.iter().flat_map(manners) {
                let engines = refused.iter().filter(|(engine, _)| engine.takes(submit));
                let cells = engines.map(|(engine, refusal)| {
                    let in_flight = if engine.is_synchronous() { 1 } else { depth as u64 };
                    let too_much = (block * in_flight > MOST_BUFFERS).then(|| {
                        let most = size::short(MOST_BUFFERS);
                        format!(
                            "expected at most {most} in flight: a smaller --depth, or a smaller \
                             --bs"
                        )
                    });
                    Cell {
                        workload,
                        block,
                        depth,
                        submit,
                        engine: *engine,
                        figures: Vec::new(),
                        latency: None,
                        not_measured: refusal.clone().or_else(|| excluded.clone()).or(too_much),
                        beaten_by: None,
                    }
                });
                let cells: Vec<Cell> = cells.collect();
                if cells.is_empty() {
                    continue;
                }
                let outside = Vec::new();
                lines.push(Line { workload, depth, submit, cells, outside, disturbed: 0 });
            }
        }
        Self { settings, lines }
    }

    pub fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.lines.iter().flat_map(|line| &line.cells)
    }

    /// uringlet's engine for the comparison: `auto`, or else the first of its engines that was
    /// chosen.
    pub fn subject(&self) -> Option<Engine> {
        let engines = &self.settings.engines;
        let auto = engines.iter().find(|&&engine| engine == Engine::OursAuto);
        auto.or_else(|| engines.iter().find(|engine| !engine.is_native())).copied()
    }

    /// uringlet against the best native engine, if both sides have figures.
    pub fn comparison(&self, line: &Line) -> Option<Comparison<Engine>> {
        let subject = self.subject()?;
        let ours = line.cell(subject)?;
        let natives = line.cells.iter().filter(|cell| cell.engine.is_native());
        Comparison::of(ours.side()?, natives.filter_map(Cell::side))
    }

    /// The expected duration: the budget, or an estimate for a fixed number of rounds.
    pub fn takes(&self) -> Duration {
        match self.settings.rounds {
            None => self.least().max(Duration::from_secs_f64(self.settings.budget)),
            Some(rounds) => self.of_rounds(rounds),
        }
    }

    /// The shortest budget: each cell has at least one round.
    pub fn least(&self) -> Duration {
        self.of_rounds(1)
    }

    /// An estimate for this many rounds, plus one round for latencies.
    fn of_rounds(&self, rounds: u32) -> Duration {
        let cells = self.cells().filter(|cell| cell.not_measured.is_none()).count();
        let runs = cells as f64 * (f64::from(rounds) + 1.0);
        // Preparing and ending a run takes time, too.
        Duration::from_secs_f64(runs * (self.settings.seconds + 0.05))
    }

    /// Does a line have enough rounds? `enough` decides if their number is not fixed.
    fn is_done(&self, line: &Line, enough: fn(&Comparison<Engine>) -> bool) -> bool {
        let rounds = line.outside.len();
        match self.settings.rounds {
            _ if line.cells.iter().all(|cell| cell.not_measured.is_some()) => true,
            Some(wanted) => rounds >= wanted as usize,
            None => {
                rounds >= LEAST_ROUNDS && self.comparison(line).is_none_or(|found| enough(&found))
            }
        }
    }

    /// The lines that need more rounds: all lines whose class more rounds could change. If there
    /// are none, all lines whose ratio is not yet known precisely.
    fn open(&self) -> Vec<usize> {
        let open = |enough| -> Vec<usize> {
            (0..self.lines.len()).filter(|&at| !self.is_done(&self.lines[at], enough)).collect()
        };
        let unsettled = open(Comparison::is_settled);
        if unsettled.is_empty() { open(Comparison::is_known) } else { unsettled }
    }

    /// Runs rounds of the lines in turn, until no line needs more, the budget is used, or `stop` is
    /// set. `progress` is called before every run, and after every turn of a line.
    pub fn measure(
        &mut self,
        scratch: &Scratch,
        stop: &AtomicBool,
        mut progress: impl FnMut(Progress<'_>),
    ) {
        scratch.expect_random_reads();
        let begin = Instant::now();
        let deadline = begin + Duration::from_secs_f64(self.settings.budget);
        let goes_by_time = self.settings.rounds.is_none();
        let mut random = Rng::with_seed(self.settings.seed);
        for pass in 0.. {
            let open = self.open();
            if open.is_empty() {
                return;
            }
            for (turn, &at) in open.iter().enumerate() {
                let now = Instant::now();
                if goes_by_time && pass > 0 && now >= deadline {
                    return;
                }
                // Each line gets the same share of the time that is left.
                let share = deadline.saturating_duration_since(now) / (open.len() - turn) as u32;
                let first = usize::from(pass == 0);
                for round in 0..first + ROUNDS_PER_TURN {
                    let over = match goes_by_time {
                        true => round > first && now.elapsed() >= share,
                        false => self.is_done(&self.lines[at], Comparison::is_known),
                    };
                    if over || stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let (line, timed) = (&mut self.lines[at], round < first);
                    line.round(&self.settings, &mut random, timed, scratch, stop, &mut progress);
                }
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                self.lines[at].take_out_disturbed();
                if goes_by_time {
                    self.lines[at].leave_out_beaten();
                }
                progress(Progress::Turn(self, &self.lines[at]));
            }
        }
    }

    /// The share of the CPU time that other processes and guests used in the median round, 0 to 1.
    pub fn usual_outside(&self) -> f64 {
        outside::usual(self.lines.iter().flat_map(|line| line.outside.iter().flatten()))
    }
}

impl Line {
    /// The depth in the table: the number of requests in flight, and how they are submitted. At a
    /// depth of 1, only an event loop is named.
    pub fn depth_text(&self) -> String {
        depth_text(self.depth, self.submit)
    }

    /// `32 in flight, one in a call`.
    pub fn in_flight_text(&self) -> String {
        let text = self.depth_text();
        let (depth, submit) = text.split_at(text.find(',').unwrap_or(text.len()));
        format!("{depth} in flight{submit}")
    }

    /// Is this a point in the curve for the manner `submit`? A single request, one in a call, is
    /// also a point in the curve of all in a call.
    pub fn shows(&self, submit: Manner) -> bool {
        let alone = self.depth == 1 && self.submit == Manner::OneInACall;
        self.submit == submit || alone && submit == Manner::AllInACall
    }

    pub fn cell(&self, engine: Engine) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.engine == engine)
    }

    /// Runs each engine once, in a random order; a timed round is for latencies.
    fn round(
        &mut self,
        settings: &Settings,
        random: &mut Rng,
        timed: bool,
        scratch: &Scratch,
        stop: &AtomicBool,
        progress: &mut impl FnMut(Progress<'_>),
    ) {
        let mut order: Vec<usize> = (0..self.cells.len()).collect();
        order.retain(|&index| self.cells[index].is_in_rounds());
        random.shuffle(&mut order);
        // All engines get the same offsets.
        let seed = random.u64(..);
        let look = Look::now();
        let mut figures = Vec::new();
        for index in order {
            let cell = &self.cells[index];
            progress(Progress::Run(cell));
            let trial = Trial {
                engine: cell.engine,
                pool: None,
                load: settings.load(cell.workload),
                depth: cell.in_flight(),
                manner: cell.submit,
                seed,
                pattern: seed.wrapping_add(index as u64),
                duration: Duration::from_secs_f64(settings.seconds),
                timed,
            };
            let result = trial.run(scratch, stop);
            // A round without some of its engines does not count.
            if stop.load(Ordering::Relaxed) {
                return;
            }
            match result {
                Ok(figure) => figures.push((index, figure)),
                Err(reason) => self.cells[index].not_measured = Some(reason),
            }
        }
        if !timed {
            self.outside.push(look.elapsed());
        }
        for (index, figure) in figures {
            match timed {
                true => self.cells[index].latency = figure.latency,
                false => self.cells[index].figures.push(figure),
            }
        }
    }

    /// Removes disturbed rounds, or none if most rounds are disturbed.
    fn take_out_disturbed(&mut self) {
        let disturbed = outside::disturbed(&self.outside);
        let count = disturbed.iter().filter(|disturbed| **disturbed).count();
        if self.disturbed + count > self.outside.len() - count {
            return;
        }
        self.disturbed += count;
        let keep = || disturbed.iter().map(|disturbed| !disturbed);
        let mut kept = keep();
        self.outside.retain(|_| kept.next() == Some(true));
        for cell in &mut self.cells {
            let mut kept = keep();
            // A cell that failed or is beaten has fewer rounds, and is not compared.
            cell.figures.retain(|_| kept.next() != Some(false));
        }
    }

    /// A native engine gets no more rounds if another native engine beats it beyond the margin. The
    /// best candidates get the time.
    fn leave_out_beaten(&mut self) {
        let natives =
            self.cells.iter().filter(|cell| cell.engine.is_native() && cell.is_in_rounds());
        let sides: Vec<_> = natives.filter_map(Cell::side).collect();
        let rates: Vec<&[f64]> = sides.iter().map(|side| &*side.iops).collect();
        let Some((best, beaten)) = verdict::beaten(&rates) else { return };
        for cell in &mut self.cells {
            if beaten.iter().any(|&at| sides[at].engine == cell.engine) {
                cell.beaten_by = Some(sides[best].engine);
            }
        }
    }
}

/// The progress of a measurement.
pub enum Progress<'a> {
    /// The cell is run next.
    Run(&'a Cell),
    /// The line has had its turn.
    Turn(&'a Matrix, &'a Line),
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
            submit: Manner::OneInACall,
            engine,
            figures: iops.iter().map(figure).collect(),
            latency: None,
            not_measured: None,
            beaten_by: None,
        }
    }

    fn matrix(cells: Vec<Cell>) -> Matrix {
        let settings = Settings {
            seconds: 1.0,
            rounds: None,
            budget: 1.0,
            seed: 1,
            block: None,
            file_size: 1 << 20,
            depths: vec![1, 32],
            submit: Vec::new(),
            engines: vec![Engine::Psync, Engine::Libaio, Engine::OursAuto],
            workloads: vec![Workload::DirectRead],
        };
        let lines = cells.chunk_by(|left, right| left.depth == right.depth).map(|cells| Line {
            workload: cells[0].workload,
            depth: cells[0].depth,
            submit: Manner::OneInACall,
            cells: cells.to_vec(),
            outside: Vec::new(),
            disturbed: 0,
        });
        let lines = lines.collect();
        Matrix { settings, lines }
    }

    #[test]
    fn a_failed_cell_is_not_compared() {
        let mut matrix = matrix(vec![
            cell(Engine::Psync, 32, &[40.0; 10]),
            cell(Engine::Libaio, 32, &[99.0; 10]),
            cell(Engine::OursAuto, 32, &[20.0; 10]),
        ]);
        matrix.lines[0].cells[1].not_measured = Some("short".into());
        let found = matrix.comparison(&matrix.lines[0]).unwrap();
        assert_eq!((found.best_native, found.rate.word), (Engine::Psync, "slower"));
        matrix.lines[0].cells[2].not_measured = Some("refused".into());
        assert_eq!(matrix.comparison(&matrix.lines[0]), None);
    }

    #[test]
    fn depths_come_twice_and_in_an_event_loop_too() {
        let mut settings = matrix(Vec::new()).settings;
        let texts = |settings: &Settings, workload| -> Vec<String> {
            let of = |depth| {
                let manners = settings.manners(workload, depth).into_iter();
                manners.map(move |submit| depth_text(depth, submit))
            };
            [1, 32].into_iter().flat_map(of).collect()
        };
        let twice = ["1", "32, all in a call", "32, one in a call"];
        assert_eq!(texts(&settings, Workload::ColdRead), twice);
        let looped =
            ["1", "1, event loop", "32, all in a call", "32, one in a call", "32, event loop"];
        for workload in [Workload::CachedRead, Workload::DirectWrite] {
            assert_eq!(texts(&settings, workload), looped);
        }
        settings.submit = vec![Manner::AllInACall];
        assert_eq!(texts(&settings, Workload::DirectRead), ["1", "32, all in a call"]);
    }

    #[test]
    fn lines_are_done_when_their_ratio_is_known() {
        let steady = |engine, depth, iops| cell(engine, depth, &[iops; 10]);
        let mut matrix = matrix(vec![
            steady(Engine::Psync, 1, 10.0),
            steady(Engine::OursAuto, 1, 11.0),
            cell(Engine::Psync, 32, &[10.0, 20.0, 10.0, 20.0, 10.0, 20.0, 10.0, 20.0, 10.0, 20.0]),
            steady(Engine::OursAuto, 32, 11.0),
        ]);
        for line in &mut matrix.lines {
            line.outside = vec![None; 10];
        }
        let done = |matrix: &Matrix| {
            [0, 1].map(|at| matrix.is_done(&matrix.lines[at], Comparison::is_known))
        };
        assert_eq!(done(&matrix), [true, false]);
        matrix.settings.rounds = Some(10);
        assert_eq!(done(&matrix), [true, true]);
        matrix.settings.rounds = Some(11);
        assert_eq!(done(&matrix), [false, false]);
    }

    #[test]
    fn disturbed_rounds_are_taken_out_of_every_cell_unless_most_are() {
        let round = |others| Some(Outside { others, ..Outside::default() });
        let mut matrix = matrix(vec![
            cell(Engine::Psync, 1, &[1.0, 2.0, 3.0, 4.0]),
            cell(Engine::OursAuto, 1, &[1.0, 2.0, 3.0, 4.0]),
        ]);
        matrix.lines[0].outside = [0.0, 0.9, 0.0, 0.0].map(round).to_vec();
        matrix.lines[0].take_out_disturbed();
        for cell in matrix.cells() {
            assert_eq!(cell.figures.iter().map(|f| f.iops).collect::<Vec<_>>(), [1.0, 3.0, 4.0]);
        }
        assert_eq!((matrix.lines[0].disturbed, matrix.lines[0].outside.len()), (1, 3));
        matrix.lines[0].disturbed = 2;
        matrix.lines[0].outside[0] = round(0.9);
        matrix.lines[0].take_out_disturbed();
        assert_eq!(matrix.lines[0].outside.len(), 3, "then that is how the machine is");
    }

    #[test]
    fn a_line_whose_class_is_open_comes_before_one_that_is_clearly_faster() {
        let noise = |around: f64| -> Vec<f64> {
            (0..12).map(|round| around * (1.0 + 0.03 * f64::from(round))).collect()
        };
        let mut matrix = matrix(vec![
            cell(Engine::Psync, 1, &[10.0; 12]),
            cell(Engine::OursAuto, 1, &noise(30.0)),
            cell(Engine::Psync, 32, &[10.0; 12]),
            cell(Engine::OursAuto, 32, &noise(9.5)),
        ]);
        for line in &mut matrix.lines {
            line.outside = vec![None; 12];
        }
        assert_eq!(matrix.open(), [1]);
        matrix.lines[1].cells[1] = cell(Engine::OursAuto, 32, &[9.5; 12]);
        assert_eq!(matrix.open(), [0], "three times, but not yet known to 3 %");
        matrix.lines[0].cells[1] = cell(Engine::OursAuto, 1, &[30.0; 12]);
        assert!(matrix.open().is_empty());
    }

    #[test]
    fn a_native_engine_that_another_one_beats_has_no_more_rounds() {
        let mut matrix = matrix(vec![
            cell(Engine::Psync, 32, &[5.0, 6.0, 5.0, 6.0, 5.0, 6.0]),
            cell(Engine::Libaio, 32, &[9.0, 9.8, 9.0, 9.8, 9.0, 9.8]),
            cell(Engine::IoUring, 32, &[9.4; 6]),
            cell(Engine::OursAuto, 32, &[1.0; 6]),
        ]);
        matrix.lines[0].leave_out_beaten();
        let beaten: Vec<_> = matrix.cells().map(|cell| cell.beaten_by).collect();
        assert_eq!(beaten, [Some(Engine::IoUring), None, None, None]);
    }

    #[test]
    fn our_side_is_auto_or_the_first_of_ours() {
        let mut matrix = matrix(vec![cell(Engine::Psync, 1, &[10.0])]);
        assert_eq!(matrix.comparison(&matrix.lines[0]), None);
        matrix.settings.engines = vec![Engine::Psync, Engine::OursPosixAio, Engine::OursWorkers];
        assert_eq!(matrix.subject(), Some(Engine::OursPosixAio));
    }
}
