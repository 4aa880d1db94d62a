//! What a job file makes fio do: which threads run together, on which parts of which files, and how many requests each makes.

use super::options::Spec;
use super::value::Amount;
use crate::bench::stream::{Extent, Mix, Offsets, Permutation, Random, Stream, Target};
use crate::bench::workload::Operation;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd as _, RawFd};
use std::path::{Path, PathBuf};

/// Files of all threads, each named for itself: more than any process may open.
const MOST_FILES: u64 = 1 << 20;

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    pub path: PathBuf,
    pub start: u64,
    /// Whole blocks.
    pub blocks: u64,
}

/// One of the threads of a section.
pub struct Thread {
    /// Which section.
    pub spec: usize,
    pub regions: Vec<Region>,
    pub extent: Extent,
    seed: u64,
}

/// A line of the report: the threads of a section, or of a group.
#[derive(Debug)]
pub struct Row {
    pub name: String,
    pub group: usize,
    /// The sections.
    pub specs: Vec<usize>,
}

/// What runs at the same time.
#[derive(Default)]
pub struct Stage {
    pub threads: Vec<Thread>,
    /// Numbers of rows.
    pub rows: std::ops::Range<usize>,
}

/// What is known of a file before anything is done.
pub struct Needed {
    /// Bytes that it has to have.
    pub len: u64,
    /// The job file names it, and the first line that does.
    pub named: Option<String>,
    /// A section that writes to it.
    pub written_by: Option<String>,
    pub unlink: bool,
}

/// All of it.
pub struct Plan {
    pub specs: Vec<Spec>,
    pub rows: Vec<Row>,
    pub stages: Vec<Stage>,
    pub files: BTreeMap<PathBuf, Needed>,
}

impl Plan {
    /// From sections that are understood; `len` knows the files that exist.
    ///
    /// # Errors
    /// The sections that cannot be run, in words.
    pub fn new(specs: Vec<Spec>, len: impl Fn(&Path) -> Option<u64>) -> Result<Self, Vec<String>> {
        let mut plan = Self { specs, rows: Vec::new(), stages: Vec::new(), files: BTreeMap::new() };
        let mut errors = Vec::new();
        let mut group = 0;
        let mut files = 0;
        for index in 0..plan.specs.len() {
            let spec = plan.specs[index].clone();
            files += spec.numjobs * spec.nrfiles;
            if files > MOST_FILES {
                let (at, name) = (&spec.at, &spec.name);
                errors.push(format!(
                    "{at}: [{name}]: numjobs={} nrfiles={}: expected at most {MOST_FILES} files in all jobs",
                    spec.numjobs, spec.nrfiles
                ));
                break;
            }
            let first = plan.stages.is_empty();
            if first || spec.stonewall {
                let next = plan.rows.len();
                plan.stages.push(Stage { threads: Vec::new(), rows: next..next });
            }
            group += usize::from(!first && (spec.stonewall || spec.new_group));
            plan.report_in_a_row(index, &spec, group);
            for number in 0..spec.numjobs {
                match plan.thread(index, &spec, number, &len) {
                    Ok(thread) => {
                        plan.stages.last_mut().expect("one was pushed").threads.push(thread)
                    }
                    Err(error) => {
                        errors.push(format!("{}: [{}]: {error}", spec.at, spec.name));
                        break;
                    }
                }
            }
        }
        if errors.is_empty() { Ok(plan) } else { Err(errors) }
    }

    /// In a row of its own, or, if it says so, with the section before it in the same group.
    fn report_in_a_row(&mut self, index: usize, spec: &Spec, group: usize) {
        match self.rows.last_mut().filter(|row| row.group == group && spec.group_reporting) {
            Some(row) => row.specs.push(index),
            None => self.rows.push(Row { name: spec.name.clone(), group, specs: vec![index] }),
        }
        self.stages.last_mut().expect("one was pushed").rows.end = self.rows.len();
    }

    fn thread(
        &mut self,
        index: usize,
        spec: &Spec,
        number: u64,
        len: &impl Fn(&Path) -> Option<u64>,
    ) -> Result<Thread, String> {
        let paths = paths(spec, number);
        let count = paths.len() as u64;
        let mut regions = Vec::new();
        // Bytes of a pass, all files together.
        let mut pass = 0;
        for path in paths {
            let existing = len(&path);
            let of_existing = |amount| match (amount, existing) {
                (Amount::Bytes(bytes), _) => Ok(bytes),
                (Amount::Percent(percent), Some(len)) => {
                    Ok((u128::from(len) * u128::from(percent) / 100) as u64)
                }
                (Amount::Percent(_), None) => Err(format!(
                    "a part of {} is unknown: expected a size in bytes",
                    path.display()
                )),
            };
            let start = spec.offset_increment.saturating_mul(number);
            let start = of_existing(spec.offset)?.saturating_add(start);
            let size = spec.size.map(|size| match size {
                Amount::Bytes(bytes) => Ok(bytes / count),
                percent => of_existing(percent),
            });
            let (used, within) = match (size.transpose()?, spec.filesize, existing) {
                (Some(size), None, _) => (size, size),
                (size, Some(filesize), _) => {
                    let room = filesize.saturating_sub(start);
                    (size.unwrap_or(room).min(room), room)
                }
                (None, None, Some(len)) => (len.saturating_sub(start), len.saturating_sub(start)),
                (None, None, None) => {
                    let name = path.display();
                    return Err(format!(
                        "{name} does not exist: expected a size to lay it out with"
                    ));
                }
            };
            if used == 0 {
                return Err(format!("offset: expected less than the end of {}", path.display()));
            }
            if used < spec.bs {
                return Err(format!("bs={}: expected at most {used}, the size", spec.bs));
            }
            self.need(index, spec, &path, start.saturating_add(within));
            pass = used.saturating_add(pass);
            regions.push(Region { path, start, blocks: within / spec.bs });
        }
        // Whole blocks of every file, or as many as it takes where something is left of the files at the end: where they are
        // larger, where reads and writes go through them apart from each other, or where blocks repeat.
        let apart = spec.rw.reads && spec.rw.writes && !spec.rw.random;
        let whole = match apart || spec.rw.random && spec.norandommap {
            true => u64::MAX,
            false => regions.iter().map(|region| region.blocks).sum(),
        };
        let blocks_of_a_pass = pass.div_ceil(spec.bs).min(whole);
        let extent = extent(spec, pass, blocks_of_a_pass);
        let seed = spec.randseed << 32 ^ (index as u64) << 16 ^ number;
        Ok(Thread { spec: index, regions, extent, seed })
    }

    fn need(&mut self, index: usize, spec: &Spec, path: &Path, len: u64) {
        let needed = self.files.entry(path.to_owned()).or_insert(Needed {
            len: 0,
            named: None,
            written_by: None,
            unlink: false,
        });
        needed.len = needed.len.max(len);
        needed.unlink |= spec.unlink;
        if let (Some((_, at)), None) = (&spec.filename, &needed.named) {
            needed.named = Some(at.to_string());
        }
        if self.specs[index].rw.writes && needed.written_by.is_none() {
            needed.written_by = Some(spec.name.clone());
        }
    }

    /// Threads of a row.
    pub fn threads(&self, row: usize) -> u64 {
        self.rows[row].specs.iter().map(|&spec| self.specs[spec].numjobs).sum()
    }
}

impl Thread {
    /// The requests, on files that are open; `again` is another number for another order.
    pub fn stream(&self, spec: &Spec, open: impl Fn(&Path) -> RawFd, again: u64) -> Stream {
        let seed = if spec.randrepeat { self.seed } else { self.seed ^ again << 48 };
        let mut random = Random::new(seed);
        let mut targets = Vec::new();
        for region in &self.regions {
            let (blocks, block) = (region.blocks, spec.bs);
            let sequential = || Offsets::Sequential { next: 0, blocks, block };
            let offsets = match (spec.rw.random, spec.norandommap) {
                (false, _) => sequential(),
                (true, true) => {
                    Offsets::Random { random: Random::new(random.next()), blocks, block }
                }
                (true, false) => {
                    let permutation = Permutation::new(blocks, random.next());
                    Offsets::Permuted { permutation, next: 0, block }
                }
            };
            let mixed = spec.rw.reads && spec.rw.writes && !spec.rw.random;
            let write_offsets = mixed.then(sequential);
            targets.push(Target {
                fd: open(&region.path),
                start: region.start,
                offsets,
                write_offsets,
            });
        }
        let mix = match (spec.rw.reads, spec.rw.writes) {
            (true, true) => Mix::Percent { reads: spec.rwmixread, random },
            (true, false) => Mix::Only(Operation::Read),
            _ => Mix::Only(Operation::Write),
        };
        let sync = match (spec.fsync, spec.fdatasync) {
            (0, 0) => None,
            (0, every) => Some((every, Operation::Fdatasync)),
            (every, _) => Some((every, Operation::Fsync)),
        };
        Stream::new(targets, mix, self.extent, sync)
    }
}

/// Passes and requests, from the bytes and blocks of one pass over the region.
fn extent(spec: &Spec, pass: u64, blocks: u64) -> Extent {
    if spec.time_based {
        return Extent::ENDLESS;
    }
    let most = spec.number_ios.unwrap_or(u64::MAX);
    let loops = spec.loops;
    let of =
        |passes, requests: u64| Extent { passes, requests: requests.min(most), total: u64::MAX };
    // Bytes are counted over all passes, the last request of all is the one that may be too many.
    let by_bytes = |bytes: u64| Extent {
        total: loops.saturating_mul(bytes).div_ceil(spec.bs),
        ..of(loops, bytes.div_ceil(spec.bs))
    };
    match spec.io_size {
        Some(bytes) if bytes < pass && bytes.div_ceil(spec.bs) < blocks => by_bytes(bytes),
        // As often over the region as it takes; with loops, whole passes only.
        Some(bytes) if bytes > pass && loops == 1 => of(1, bytes.div_ceil(spec.bs)),
        Some(bytes) if bytes > pass => of(loops.max(bytes.div_ceil(blocks * spec.bs)), blocks),
        _ if pass.div_ceil(spec.bs) == blocks => by_bytes(pass),
        _ => of(loops, blocks),
    }
}

/// `filename`, at its colons; or a name made of the job's, the thread's number and the file's.
fn paths(spec: &Spec, number: u64) -> Vec<PathBuf> {
    let names = match &spec.filename {
        Some((names, _)) => split(names),
        None => {
            let job = spec.filename_format.replace("$jobname", &spec.name);
            let job = job.replace("$jobnum", &number.to_string());
            (0..spec.nrfiles).map(|file| job.replace("$filenum", &file.to_string())).collect()
        }
    };
    let inside = |name: String| match &spec.directory {
        Some(folder) => folder.join(name),
        None => PathBuf::from(name),
    };
    names.into_iter().map(inside).collect()
}

/// At colons without a backslash before them.
fn split(names: &str) -> Vec<String> {
    let escaped = names.replace("\\:", "\0");
    escaped.split(':').filter(|name| !name.is_empty()).map(|name| name.replace('\0', ":")).collect()
}

/// The files of a thread, open.
pub struct Open(Vec<(PathBuf, File)>);

impl Open {
    /// Opens the files of a thread.
    ///
    /// # Errors
    /// Which one cannot be opened, in words.
    pub fn of(thread: &Thread, spec: &Spec) -> Result<Self, String> {
        let mut files: Vec<(PathBuf, File)> = Vec::new();
        for region in &thread.regions {
            files.push((region.path.clone(), super::layout::open(&region.path, spec)?));
        }
        Ok(Self(files))
    }

    pub fn files(&self) -> impl Iterator<Item = (&Path, &File)> {
        self.0.iter().map(|(path, file)| (path.as_path(), file))
    }

    pub fn fd(&self, path: &Path) -> RawFd {
        let found = self.files().find(|(other, _)| *other == path);
        found.expect("every region's file was opened").1.as_raw_fd()
    }
}
