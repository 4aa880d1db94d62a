//! Many files at once, with a few threads for all of them. Results are returned as they become
//! ready.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::fmt;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use super::budget::{HasTurns, Spent, Turns, in_turn};
use super::drain::block_on;
use super::driver::{Fs, Header};
use super::folder::{DirEntry, Listing};
use super::metadata::{Found, Metadata};
use super::names::HERE;
use super::op::Op;
use super::wakers;
use super::whole::{Looked, look_ahead, read_now};
use super::worker::OnWorker;
use crate::process;
use crate::sync::lock;
use crate::sys;

/// The number of units (files or directories) that a worker takes at a time.
const PART: usize = 16;
/// The number of files that a worker opens at a time if reads wait for the device. The kernel reads
/// all of them ahead before the worker reads the first. The device then has more requests than
/// there are workers, and it can join those of neighbouring files.
const AT_ONCE: usize = 8;
/// The maximum number of workers of one batch, if each mostly waits for a device.
const WORKERS: usize = 32;
/// Workers end once results of this many bytes wait to be taken.
const AHEAD: u64 = 64 << 20;
const SIZE: u64 = 4 << 10;

/// Reads many whole files. Each is opened, read and closed by one thread. A few threads do it for
/// all of them: as many as there are CPUs (at least two). If they wait for the device, there are up
/// to 32. Each thread has at most 8 files open, and only one while half of RLIMIT_NOFILE is in use.
///
/// The results come as they become ready, each with the number of its path:
///
/// ```
/// use uringlet::fs;
///
/// # async fn example(paths: &[std::path::PathBuf]) {
/// let mut files = fs::read_many(paths);
/// while let Some((number, file)) = files.next().await {
///     match file {
///         Ok(bytes) => println!("{}: {} bytes", paths[number].display(), bytes.len()),
///         Err(error) => println!("{}: {error}", paths[number].display()),
///     }
/// }
/// # }
/// # pollster::block_on(example(&["/proc/self/exe".into(), "/nothing".into()]));
/// ```
///
/// # Errors
/// Each file has a result of its own: as [`read()`](super::read()).
pub fn read_many(
    paths: impl IntoIterator<Item: AsRef<Path>>,
) -> Many<(usize, io::Result<Vec<u8>>)> {
    let weight = |(_, result): &(usize, io::Result<Vec<u8>>)| {
        SIZE + result.as_ref().map_or(0, |bytes| bytes.len() as u64)
    };
    Many::of_paths(paths, weight, Some(look_ahead), read_now)
}

/// The metadata of many files, as from [`metadata`](super::metadata()), each with the number of its
/// path.
///
/// # Errors
/// Each path has a result of its own: as [`metadata`](super::metadata()).
pub fn metadata_many(
    paths: impl IntoIterator<Item: AsRef<Path>>,
) -> Many<(usize, io::Result<Metadata>)> {
    Many::of_paths(paths, |_| SIZE, None, |_, path, _| Found::new().look(HERE, path, 0))
}

/// Everything in a directory and in the directories below it, in no particular order; symbolic
/// links are not followed. Several threads read directories.
///
/// ```
/// use uringlet::fs;
///
/// # async fn example(path: &std::path::Path) -> std::io::Result<()> {
/// let mut entries = fs::walk(path);
/// while let Some(entry) = entries.next().await {
///     println!("{}", entry?.path().display());
/// }
/// # Ok(())
/// # }
/// # pollster::block_on(example(std::path::Path::new("src/fs")))?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// A directory that cannot be read is an error among the entries; the walk goes on.
pub fn walk(path: impl AsRef<Path>) -> Many<Result<DirEntry, WalkError>> {
    Many::of_tree(path.as_ref(), false)
}

/// As [`walk`], with the [metadata](DirEntry::metadata) of every entry.
///
/// # Errors
/// As [`walk`].
pub fn walk_with_metadata(path: impl AsRef<Path>) -> Many<Result<DirEntry, WalkError>> {
    Many::of_tree(path.as_ref(), true)
}

/// A directory that could not be read.
#[derive(Debug)]
pub struct WalkError {
    path: PathBuf,
    error: io::Error,
}

impl WalkError {
    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for WalkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.error)
    }
}

impl std::error::Error for WalkError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<WalkError> for io::Error {
    fn from(error: WalkError) -> Self {
        error.error
    }
}

/// One file or directory of a batch.
struct BatchUnit {
    path: PathBuf,
    number: usize,
    looked: Option<Looked>,
}

impl BatchUnit {
    fn new(path: PathBuf, number: usize) -> Self {
        Self { path, number, looked: None }
    }

    fn name(&self) -> io::Result<CString> {
        let path = CString::new(self.path.as_os_str().as_bytes());
        path.map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
    }
}

/// Prepares a unit before it is worked on.
type BatchAhead = fn(&Header, &CStr) -> io::Result<Looked>;
type BatchWork<T> = dyn Fn(BatchUnit, &Header, &mut BatchSink<'_, T>) + Send + Sync;

/// What the workers of a batch do with each unit.
struct BatchPlan<T> {
    ahead: Option<BatchAhead>,
    work: Box<BatchWork<T>>,
    /// Makes the result of a unit that no worker has taken, from the error of a worker.
    fail: fn(BatchUnit, io::Error) -> T,
    weight: fn(&T) -> u64,
}

struct BatchShared<T> {
    plan: BatchPlan<T>,
    state: Mutex<BatchState<T>>,
}

struct BatchState<T> {
    /// Units that no worker has taken; the next one is at the end.
    todo: Vec<BatchUnit>,
    done: VecDeque<T>,
    /// The size in bytes of the finished results that nobody has taken.
    weight: u64,
    /// The number of workers up to which further ones are started.
    wanted: usize,
    task: Option<Waker>,
}

/// The receiver of a worker's results.
struct BatchSink<'a, T> {
    shared: &'a BatchShared<T>,
    items: Vec<T>,
    more: Vec<BatchUnit>,
}

impl<T> BatchSink<'_, T> {
    /// Hands the worker's results and new units over, and wakes the task.
    fn flush(&mut self) {
        if self.items.is_empty() && self.more.is_empty() {
            return;
        }
        let mut state = lock(&self.shared.state);
        state.weight += self.items.iter().map(self.shared.plan.weight).sum::<u64>();
        state.done.extend(self.items.drain(..));
        state.todo.append(&mut self.more);
        let task = state.task.take();
        drop(state);
        task.into_iter().for_each(wakers::wake);
    }
}

impl<T> BatchPlan<T> {
    /// Prepares the units that are worked on next, in the order of the work: from the last unit to
    /// the first.
    fn look_ahead(&self, header: &Header, units: &mut [BatchUnit]) {
        let Some(ahead) = self.ahead else { return };
        // The upper half of the descriptor numbers is left to other workers, and to the program.
        let half = sys::descriptor_limit() / 2;
        for unit in units.iter_mut().rev() {
            let looked = unit.name().and_then(|name| ahead(header, &name)).ok();
            unit.looked = looked.filter(|(file, _)| (file.as_raw_fd() as u64) < half);
            if unit.looked.is_none() {
                // The files that are open now are read before further ones are opened.
                return;
            }
        }
    }
}

impl<T> BatchShared<T> {
    /// A worker's main loop. It ends if no unit is left, if results of `AHEAD` bytes wait to be
    /// taken, or if the worker's operation is stopped.
    fn run(&self, header: &Header) {
        let mut waits = false;
        loop {
            let mut state = lock(&self.state);
            if header.is_stopped() || state.weight >= AHEAD {
                return;
            }
            let rest = state.todo.len() - state.todo.len().min(PART);
            let mut units = state.todo.split_off(rest);
            drop(state);
            if units.is_empty() {
                return;
            }
            let (count, before) = (units.len(), sys::use_of_this_thread());
            let mut sink = BatchSink { shared: self, items: Vec::new(), more: Vec::new() };
            let at_once = if waits { AT_ONCE } else { 1 };
            while !units.is_empty() {
                let first = units.len().saturating_sub(at_once);
                if waits {
                    self.plan.look_ahead(header, &mut units[first..]);
                }
                for unit in units.drain(first..).rev() {
                    (self.plan.work)(unit, header, &mut sink);
                }
            }
            sink.flush();
            let slept = match (before, sys::use_of_this_thread()) {
                (Some(before), Some(now)) => now.sleeps - before.sleeps,
                _ => 0,
            };
            // A worker that waits for the device reads ahead. It begins to read ahead if it slept
            // more than once for each two units. With reading ahead, few reads sleep, so it goes
            // on as long as any sleeps.
            waits = if waits { slept > 0 } else { slept as usize * 2 > count };
            if waits {
                // This worker waits for the device, so others may start.
                let mut state = lock(&self.state);
                state.wanted = state.wanted.max((state.wanted + 1).min(WORKERS));
            }
        }
    }
}

/// The results of many operations as they become ready, from [`read_many`], [`metadata_many`] and
/// [`walk`]. With the feature `stream` this is a `Stream`. Nothing happens before the first poll.
/// If this is dropped, the operations that it has begun end soon.
pub struct Many<T> {
    shared: Arc<BatchShared<T>>,
    workers: Vec<Op<OnWorker<()>>>,
    home: Option<Fs>,
    is_background: bool,
    generation: u64,
    turns: Turns,
}

impl<T> HasTurns for Many<T> {
    fn turns(&mut self) -> &mut Turns {
        &mut self.turns
    }
}

impl<T: Send + 'static> Many<T> {
    fn new(todo: Vec<BatchUnit>, plan: BatchPlan<T>) -> Self {
        let (done, wanted) = (VecDeque::new(), sys::cpus().max(2));
        let state = Mutex::new(BatchState { todo, done, weight: 0, wanted, task: None });
        Self {
            shared: Arc::new(BatchShared { plan, state }),
            workers: Vec::new(),
            home: None,
            is_background: false,
            // If this is the process's first call of the library, `enter` numbers the process.
            generation: process::enter(),
            turns: Turns::default(),
        }
    }

    /// Sends the batch's operations to `fs`, and not to the process's `Fs`.
    #[must_use]
    pub fn on(mut self, fs: &Fs) -> Self {
        self.home = Some(fs.clone());
        self
    }

    /// Lets other operations go first, as [`Op::background`]: the workers of the batch are
    /// operations in the background.
    #[must_use]
    pub fn background(mut self) -> Self {
        self.is_background = true;
        self
    }

    /// The next result; `None` after the last one. If the future is dropped, no result is lost.
    pub async fn next(&mut self) -> Option<T> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// Polls for the result of [`Many::next`]. If it is pending, the task is woken later.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        in_turn(self, context, Self::poll_now)
    }

    /// As [`Many::next`]; blocks the calling thread, and needs no executor.
    pub fn wait_next(&mut self) -> Option<T> {
        block_on(|context| self.poll_now(context, &mut Spent::default()))
    }

    fn poll_now(&mut self, context: &mut Context<'_>, _: &mut Spent) -> Poll<Option<T>> {
        if self.generation != process::generation() {
            // In the child of a fork(2): the workers are threads of the parent.
            return Poll::Ready(None);
        }
        loop {
            if let Some(item) = self.take(context.waker()) {
                return Poll::Ready(Some(item));
            }
            let failed = self.reap(context.waker());
            let mut state = lock(&self.shared.state);
            if !state.done.is_empty() {
                continue;
            }
            if let Some(error) = failed
                && let Some(unit) = state.todo.pop()
            {
                drop(state);
                return Poll::Ready(Some((self.shared.plan.fail)(unit, error)));
            }
            if !state.todo.is_empty() && self.workers.len() < state.wanted {
                drop(state);
                self.start();
                continue;
            }
            let is_over = state.todo.is_empty() && self.workers.is_empty();
            return if is_over { Poll::Ready(None) } else { Poll::Pending };
        }
    }

    /// Takes a finished result. If there is room for further results, one more worker may start.
    fn take(&mut self, task: &Waker) -> Option<T> {
        let mut state = lock(&self.shared.state);
        let item = state.done.pop_front();
        let Some(item) = item else {
            state.task = Some(task.clone());
            return None;
        };
        state.weight -= (self.shared.plan.weight)(&item);
        let may_go = state.weight < AHEAD / 2 && self.workers.len() < state.wanted;
        let is_worth_it = may_go && state.todo.len() > self.workers.len() * PART;
        drop(state);
        if is_worth_it {
            self.start();
        }
        Some(item)
    }

    /// Starts one more worker.
    fn start(&mut self) {
        let shared = Arc::clone(&self.shared);
        let op = OnWorker::op(move |header| {
            shared.run(header);
            Ok(())
        });
        let op = if let Some(fs) = &self.home { op.on(fs) } else { op };
        let op = if self.is_background { op.background() } else { op };
        self.workers.push(op.submit());
    }

    /// Drops workers that have ended. Returns the error of a worker that has failed.
    fn reap(&mut self, task: &Waker) -> Option<io::Error> {
        let mut failed = None;
        for at in (0..self.workers.len()).rev() {
            if self.workers[at].is_ended(task) {
                // The worker has ended, so `wait` does not block.
                failed = self.workers.swap_remove(at).wait().err().or(failed);
            }
        }
        failed
    }
}

impl<R: Send + 'static> Many<(usize, io::Result<R>)> {
    fn of_paths(
        paths: impl IntoIterator<Item: AsRef<Path>>,
        weight: fn(&(usize, io::Result<R>)) -> u64,
        ahead: Option<BatchAhead>,
        f: fn(&Header, &CStr, Option<Looked>) -> io::Result<R>,
    ) -> Self {
        let units = paths.into_iter().enumerate();
        let unit = |(number, path): (usize, _)| BatchUnit::new(path, number);
        let owned = units.map(|(number, path)| (number, path.as_ref().to_path_buf()));
        let mut todo: Vec<_> = owned.map(unit).collect();
        todo.reverse();
        let work = move |mut unit: BatchUnit, header: &Header, sink: &mut BatchSink<'_, _>| {
            let looked = unit.looked.take();
            let result = unit.name().and_then(|path| f(header, &path, looked));
            sink.items.push((unit.number, result));
        };
        let fail = |unit: BatchUnit, error| (unit.number, Err(error));
        Self::new(todo, BatchPlan { ahead, work: Box::new(work), fail, weight })
    }
}

impl Many<Result<DirEntry, WalkError>> {
    fn of_tree(path: &Path, with_metadata: bool) -> Self {
        let fail = |unit: BatchUnit, error| Err(WalkError { path: unit.path, error });
        let work = move |unit: BatchUnit, header: &Header, sink: &mut BatchSink<'_, _>| {
            if let Err(error) = list(&unit.path, with_metadata, header, sink) {
                sink.items.push(fail(unit, error));
            }
        };
        let todo = vec![BatchUnit::new(path.to_owned(), 0)];
        Self::new(todo, BatchPlan { ahead: None, work: Box::new(work), fail, weight: |_| SIZE })
    }
}

/// Reads a directory. The directories in it become units of the batch.
fn list(
    path: &Path,
    with_metadata: bool,
    header: &Header,
    sink: &mut BatchSink<'_, Result<DirEntry, WalkError>>,
) -> io::Result<()> {
    let mut listing = Listing::open(None, path, with_metadata)?;
    while !header.is_stopped() {
        let entries = listing.next()?;
        if entries.is_empty() {
            break;
        }
        for entry in entries {
            let kind = match entry.known_type() {
                Some(kind) => kind.is_dir(),
                None => std::fs::symlink_metadata(entry.path()).is_ok_and(|known| known.is_dir()),
            };
            if kind {
                sink.more.push(BatchUnit::new(entry.path(), 0));
            }
            sink.items.push(Ok(entry));
        }
        sink.flush();
    }
    Ok(())
}

#[cfg(feature = "stream")]
impl<T: Send + 'static> futures_core::Stream for Many<T> {
    type Item = T;

    fn poll_next(self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        Many::poll_next(self.get_mut(), context)
    }
}

impl<T> Unpin for Many<T> {}

impl<T> fmt::Debug for Many<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Many").field("workers", &self.workers.len()).finish_non_exhaustive()
    }
}
