//! File systems side by side: mkfs, untar, make and clean, on images whose requests are placed.
//!
//! The publication placed the requests of a disk's queue, whatever thread had made them. Here
//! uringlet takes the place of that queue. Each image is a file that a context serves. The kernel
//! has a loop device on the image, and real programs use the file system on this device.

mod image;
mod mount;
mod report;
mod steps;
mod tree;

use super::published::FileSystem as Published;
use super::{Settings, one, published};
use crate::reproduce::cells::{self, keeps};
use crate::scratch::Scratch;
use crate::session;
use crate::size;
use image::{Part, Served};
use serde::Serialize;
use std::fs::File;
use std::time::Duration;
use steps::Step;
use tree::Shape;
use uringlet::{Builder, Context};

/// The approximate duration of a run.
const FULL: Duration = Duration::from_secs(3);
const QUICK: Duration = Duration::from_secs(1);

/// One run of all steps, with its file systems in parallel.
#[derive(Serialize)]
struct Run {
    /// Seconds of each step, in the order of [`Step::ALL`], on each file system.
    seconds: Vec<Vec<f64>>,
    served: Vec<Served>,
}

/// One placement.
#[derive(Serialize)]
struct Row {
    /// 1: on the CPU that serves the disk's interrupt; 0: free.
    queue_affinity: u8,
    completion_affinity: u8,
    rq_affinity: u8,
    #[serde(skip)]
    builder: Builder,
    runs: Vec<Run>,
    not_measured: Option<String>,
}

keeps!(Row, runs: Run, |row| format!("file systems, {}", row.title()));

/// All results.
#[derive(Serialize)]
pub struct FileSystems {
    side_by_side: usize,
    bytes_each: u64,
    rounds: u32,
    steps: [Step; 4],
    rows: Vec<Row>,
    measured: usize,
    not_measured: usize,
    published: Vec<Published>,
}

/// The approximate duration of the runs.
pub fn estimate(count: usize, settings: &Settings) -> Duration {
    let each = if settings.quick { QUICK } else { FULL };
    let placements = rows(&published::file_systems(), settings.interrupt).len();
    if count == 0 { Duration::ZERO } else { each * placements as u32 * settings.rounds }
}

impl FileSystems {
    /// Measures `count` file systems in parallel, on as many parts of the scratch file.
    pub fn measure(count: usize, settings: &Settings, scratch: &Scratch, direct: &File) -> Self {
        let published = published::file_systems();
        let shape = if settings.quick { Shape::QUICK } else { Shape::FULL };
        let bytes = scratch.size / count.max(1) as u64 / shape.room * shape.room;
        let mut this = Self {
            side_by_side: count,
            bytes_each: bytes,
            rounds: settings.rounds,
            steps: Step::ALL,
            rows: rows(&published, settings.interrupt),
            measured: 0,
            not_measured: 0,
            published,
        };
        let refused = if count == 0 {
            Some("--file-systems is 0".to_owned())
        } else if !scratch.writable {
            Some("they would overwrite the existing file (--allow-writes)".to_owned())
        } else if bytes == 0 {
            let (all, each) = (size::short(scratch.size), size::short(shape.room));
            Some(format!("--size {all}: expected at least {each} for each of {count} file systems"))
        } else {
            None
        };
        match refused {
            None => this.measure_all(shape, direct),
            Some(_) => this.rows.iter_mut().for_each(|row| row.not_measured.clone_from(&refused)),
        }
        this.measured = this.rows.iter().filter(|row| !row.runs.is_empty()).count();
        this.not_measured = this.rows.len() - this.measured;
        this
    }

    fn measure_all(&mut self, shape: Shape, direct: &File) {
        let packed = tree::pack(shape).map_err(|error| error.to_string());
        let tar = packed.and_then(|packed| steps::in_memory(&packed));
        let tar = tar.as_ref().map_err(String::clone);
        let parts: Vec<Part> = (0..self.side_by_side as u64)
            .map(|at| Part { offset: at * self.bytes_each, length: self.bytes_each })
            .collect();
        let bar = session::steps(self.rows.len() as u64 * u64::from(self.rounds));
        let groups = [self.rows.len()];
        cells::measure(&mut self.rows, &groups, self.rounds, &bar, |row, _, _| {
            tar.clone().and_then(|tar| run(&row.builder, direct, &parts, tar))
        });
        // A placement of which any run has failed has no figures.
        let failed = self.rows.iter_mut().filter(|row| row.not_measured.is_some());
        failed.for_each(|row| row.runs.clear());
        bar.finish_and_clear();
        for row in self.rows.iter_mut().filter(|row| row.runs.is_empty()) {
            row.not_measured.get_or_insert_with(|| "interrupted".into());
        }
    }
}

/// The published placements, on the CPUs of this machine.
fn rows(published: &[Published], interrupt: usize) -> Vec<Row> {
    let first = published.iter().filter(|line| line.phase == Step::Mkfs.into_str());
    let row = |line: &Published| {
        let mut builder = Context::builder().rq_affinity(line.rq_affinity);
        if line.queue_affinity == 1 {
            builder = builder.queue_affinity(one(interrupt));
        }
        if line.completion_affinity == 1 {
            builder = builder.completion_affinity(one(interrupt));
        }
        Row {
            queue_affinity: line.queue_affinity,
            completion_affinity: line.completion_affinity,
            rq_affinity: line.rq_affinity,
            builder,
            runs: Vec::new(),
            not_measured: None,
        }
    };
    first.map(row).collect()
}

/// All steps on all parts, from a thread with its own mounts.
fn run(builder: &Builder, file: &File, parts: &[Part], tar: &File) -> Result<Run, String> {
    let body = || {
        let folder = mount::own_namespace()?;
        let mut stages = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            stages.push(steps::Stage::new(&folder.at, at, file, *part, builder)?);
        }
        let mut seconds = Vec::new();
        for step in Step::ALL {
            if step != Step::Mkfs {
                stages.iter_mut().try_for_each(steps::Stage::mount)?;
            }
            seconds.push(steps::side_by_side(step, &stages, tar)?);
        }
        let served = stages.into_iter().map(steps::Stage::end).collect::<Result<_, _>>()?;
        Ok(Run { seconds, served })
    };
    let ended = std::thread::scope(|scope| scope.spawn(body).join());
    ended.unwrap_or_else(|_| Err("the measuring thread has panicked".into()))
}
