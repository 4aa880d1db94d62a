//! The whole job: many threads, each with a context of its own, one request in flight.

#![allow(unsafe_code)]

use super::structures::{Indexed, List, Lookup, Radix};
use super::{JobWay, Structure, errno};
use crate::bench::{Buffers, Libaio, Operation, Queue, Request, cpu_time};
use fastrand::Rng;
use serde::Serialize;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, RwLock};
use std::time::{Duration, Instant};
use uringlet::front::{DirectCompletions, Entry, Instance, Waited};
use uringlet::{Context, Sqe};

/// Bytes of each thread's file, as published.
pub const FILE: u64 = 256 << 10;
/// Bytes per request, as published.
pub const BLOCK: u64 = 1 << 10;
/// Requests between two checks whether the user has asked to stop.
const BETWEEN_LOOKS: u64 = 64;

/// The figures of one engine in one round.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figure {
    /// From the moment at which the threads may begin until the last has ended.
    pub elapsed_ms: f64,
    /// CPU time of all threads, divided by the requests.
    pub cpu_us_per_request: f64,
}

/// The files of the threads, without names: nothing is left behind in any case.
pub struct Files(Vec<File>);

impl Files {
    /// Makes this many files in `folder`, or fewer if `stop` is set.
    ///
    /// # Errors
    /// There is no permission, no space, or no free descriptor.
    pub fn create(folder: &Path, count: usize, stop: &AtomicBool) -> std::io::Result<Self> {
        let mut blocks = Buffers::new((FILE / BLOCK) as usize, BLOCK as usize, 1);
        let mut content = Vec::new();
        let goes_on = |_: &u64| !stop.load(Ordering::Relaxed);
        let files = (0..count as u64).take_while(goes_on).map(|thread| {
            let file = tempfile::tempfile_in(folder)?;
            content.clear();
            for block in 0..FILE / BLOCK {
                stamp(blocks.slot_mut(block as usize), thread, block);
                content.extend_from_slice(blocks.slot_mut(block as usize));
            }
            file.write_all_at(&content, 0)?;
            Ok(file)
        });
        let files = files.collect::<std::io::Result<_>>()?;
        Ok(Self(files))
    }
}

/// Writes the number of a block's thread and the number of the block into the block.
fn stamp(block: &mut [u8], thread: u64, number: u64) {
    block[..8].copy_from_slice(&(thread << 32 | number).to_ne_bytes());
}

fn is_stamped(block: &[u8], thread: u64, number: u64) -> bool {
    block[..8] == (thread << 32 | number).to_ne_bytes()
}

/// One measurement.
pub struct Job<'a> {
    /// The engine that executes the requests.
    pub way: JobWay,
    /// The number of threads, and of contexts.
    pub jobs: usize,
    /// Requests of each thread.
    pub requests: u64,
    /// The seed of the offsets: the same for all engines of a round.
    pub seed: u64,
    /// One file for each thread.
    pub files: &'a Files,
}

/// Executes one request, and returns its bytes or its negative errno. `Err` means that submitting
/// the request or waiting for it has failed.
trait Do {
    fn one(&mut self, sqe: Sqe, request: Request) -> Result<i64, String>;
}

impl Job<'_> {
    /// Runs the job.
    ///
    /// # Errors
    /// The first error.
    pub fn run(&self, stop: &AtomicBool) -> Result<Figure, String> {
        match self.way {
            JobWay::Psync => self.run_threads((0..self.jobs).map(|_| Ok(Psync)), stop),
            JobWay::Libaio => {
                self.run_threads((0..self.jobs).map(|_| Libaio::new(1).map(Native)), stop)
            }
            JobWay::Ours(Structure::List) => self.run_ours(List::new().map_err(errno)?, stop),
            JobWay::Ours(Structure::Radix) => self.run_ours(Radix::new().map_err(errno)?, stop),
            JobWay::Ours(Structure::Table) => self.run_ours(Indexed::new().map_err(errno)?, stop),
        }
    }

    fn run_ours(
        &self,
        mut lookup: impl Lookup<Arc<Instance>>,
        stop: &AtomicBool,
    ) -> Result<Figure, String> {
        let mut handles = Vec::with_capacity(self.jobs);
        for _ in 0..self.jobs {
            let context = Instance::new(&Context::builder().entries(1))
                .map_err(|error| format!("no context: {error}"))?;
            handles.push(lookup.add(context).map_err(errno)?);
        }
        let lookup = &lookup;
        self.run_threads(handles.iter().map(|&handle| Ok(Ours { lookup, handle })), stop)
    }

    fn run_threads<D: Do + Send>(
        &self,
        doers: impl Iterator<Item = Result<D, String>>,
        stop: &AtomicBool,
    ) -> Result<Figure, String> {
        let doers: Vec<D> = doers.collect::<Result<_, _>>()?;
        let may_begin = RwLock::new(false);
        let all_done = Barrier::new(self.jobs);
        let (begin, cpu, ended) = std::thread::scope(|scope| {
            let mut gate = may_begin.write().expect("nobody panics with it");
            let mut threads = Vec::with_capacity(self.jobs);
            for (number, mut doer) in doers.into_iter().enumerate() {
                let (may_begin, all_done) = (&may_begin, &all_done);
                let mut buffer = Buffers::new(1, BLOCK as usize, number as u64);
                let body = move || {
                    if !may_begin.read().is_ok_and(|may| *may) {
                        return (Ok(()), None);
                    }
                    let result = self.run_one(number, &mut doer, &mut buffer, stop);
                    let last = all_done.wait().is_leader();
                    let end = last.then(|| (Instant::now(), cpu_time()));
                    // The time in which a context ends is not part of the job. The buffer is
                    // dropped after the context.
                    drop(doer);
                    drop(buffer);
                    (result, end)
                };
                match std::thread::Builder::new().spawn_scoped(scope, body) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => return Err(format!("no thread {}: {error}", number + 1)),
                }
            }
            *gate = true;
            let (begin, cpu) = (Instant::now(), cpu_time());
            drop(gate);
            let ended: Vec<_> =
                threads.into_iter().map(|t| t.join().expect("it does not panic")).collect();
            Ok((begin, cpu, ended))
        })?;
        let (end, cpu_end) = ended.iter().find_map(|(_, end)| *end).expect("one of them is last");
        let (elapsed, cpu) = (end - begin, cpu_end.saturating_sub(cpu));
        ended.into_iter().try_for_each(|(result, _)| result)?;
        let requests = self.jobs as u64 * self.requests;
        Ok(Figure {
            elapsed_ms: elapsed.as_secs_f64() * 1e3,
            cpu_us_per_request: cpu.as_secs_f64() * 1e6 / requests as f64,
        })
    }

    /// The work of one thread: half reads, half writes, at random.
    fn run_one(
        &self,
        thread: usize,
        doer: &mut impl Do,
        buffer: &mut Buffers,
        stop: &AtomicBool,
    ) -> Result<(), String> {
        let fd = self.files.0[thread].as_raw_fd();
        let thread = thread as u64;
        let mut random = Rng::with_seed(self.seed << 16 | thread);
        for done in 0..self.requests {
            if done % BETWEEN_LOOKS == 0 && stop.load(Ordering::Relaxed) {
                break;
            }
            let chosen = random.u64(..);
            let number = (chosen >> 8) % (FILE / BLOCK);
            let offset = number * BLOCK;
            let operation = if chosen & 1 == 0 { Operation::Read } else { Operation::Write };
            let block = buffer.slot(0);
            let sqe = match operation {
                Operation::Write => {
                    stamp(buffer.slot_mut(0), thread, number);
                    Sqe::write(fd, block, offset)
                }
                _ => Sqe::read(fd, block, offset),
            };
            let request = Request { fd, operation, buffer: block, offset, slot: 0 };
            match doer.one(sqe, request)? {
                count if count == BLOCK as i64 => {}
                other => return Err(format!("a request gave {other}, expected {BLOCK}")),
            }
            if !is_stamped(buffer.slot_mut(0), thread, number) {
                return Err(format!("wrong data at offset {offset}"));
            }
        }
        Ok(())
    }
}

/// A context of uringlet behind a handle. Each call looks the handle up.
struct Ours<'a, L: Lookup<Arc<Instance>>> {
    lookup: &'a L,
    handle: usize,
}

impl<L: Lookup<Arc<Instance>>> Drop for Ours<'_, L> {
    fn drop(&mut self) {
        self.lookup.with(self.handle, |context| context.close());
    }
}

impl<L: Lookup<Arc<Instance>>> Do for Ours<'_, L> {
    #[inline]
    fn one(&mut self, sqe: Sqe, _: Request) -> Result<i64, String> {
        let gone = || "the context was not found".to_owned();
        let entries = [Entry { sqe, data: 0, notify: -1 }];
        // SAFETY: the buffer is not touched until the completion below, and outlives the context,
        // which is closed with `self` and waits for what is in flight.
        let submit = |context: &Arc<Instance>| unsafe { context.submit(&entries) };
        let submitted = self.lookup.with(self.handle, submit).ok_or_else(gone)?;
        if submitted.accepted != 1 {
            return Err(errno(submitted.refused));
        }
        let mut result = None;
        loop {
            let wait = |context: &Arc<Instance>| {
                let mut sink = |_, _, res| result = Some(res);
                let waited =
                    context.wait(1, 1, None, None, &mut DirectCompletions::new(1, &mut sink));
                if result.is_none() {
                    context.reap(1, |cqe| result = Some(i64::from(cqe.res)));
                }
                waited
            };
            let waited = self.lookup.with(self.handle, wait).ok_or_else(gone)?;
            match (result, waited) {
                (Some(result), _) => return Ok(result),
                (None, Waited::Gone) => return Err(gone()),
                (None, _) => {}
            }
        }
    }
}

/// The kernel's own Linux AIO.
struct Native(Libaio);

impl Do for Native {
    #[inline]
    fn one(&mut self, _: Sqe, request: Request) -> Result<i64, String> {
        let failed = |error| format!("submitting or waiting failed: {error}");
        // SAFETY: the buffer is not touched until the completion below, and outlives the queue,
        // which waits for what is in flight when it is dropped.
        unsafe { self.0.prepare(request) };
        self.0.submit().map_err(failed)?;
        let mut result = None;
        while result.is_none() {
            self.0.wait().map_err(failed)?;
            self.0.reap(|_, found| result = Some(found));
        }
        Ok(result.expect("the loop ends with one"))
    }
}

/// Plain pread and pwrite: the fastest possible.
struct Psync;

impl Do for Psync {
    #[inline]
    fn one(&mut self, _: Sqe, request: Request) -> Result<i64, String> {
        let Request { fd, operation, buffer, offset, .. } = request;
        let (start, len, offset) = (buffer.cast(), buffer.len(), offset.cast_signed());
        // SAFETY: the buffer is the caller's, and as long as given.
        let count = unsafe {
            match operation {
                Operation::Write => libc::pwrite(fd, start, len, offset),
                _ => libc::pread(fd, start, len, offset),
            }
        };
        if count < 0 { Err(std::io::Error::last_os_error().to_string()) } else { Ok(count as i64) }
    }
}

/// The number of requests of each of `jobs` threads. Together they make as many requests as 512
/// threads that make `loops` requests for each block of a file.
pub fn requests(jobs: usize, loops: u64) -> u64 {
    (512 * (FILE / BLOCK) * loops).div_ceil(jobs as u64)
}

/// The approximate maximum duration of one cell, with 1.5 µs for each request.
pub fn estimate(loops: u64) -> Duration {
    Duration::from_nanos(512 * (FILE / BLOCK) * loops * 1500)
}
