//! The one loop that every engine runs, its clock, and the choice of the engine.
//!
//! The asynchronous engines share the loop so that no side has a better one: keep `depth`
//! requests in flight, sleep until at least one is complete, take all that are, put new ones in their place.

#![allow(unsafe_code)]

use super::native::{IoUring, Libaio, psync};
use super::workers::Workers;
use super::workload::Job;
use clap::ValueEnum;
use serde::Serialize;
use std::io::Error;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A way to get requests executed; the words are those of fio where fio has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// Plain pread and pwrite, one after the other
    Psync,
    /// Linux AIO: io_submit, io_getevents
    Libaio,
    /// Linux io_uring
    #[value(name = "io_uring")]
    IoUring,
    /// uringlet's workers
    Workers,
}

impl Engine {
    /// As on the command line and in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Psync => "psync",
            Self::Libaio => "libaio",
            Self::IoUring => "io_uring",
            Self::Workers => "workers",
        }
    }

    /// Has only one request in flight, whatever the depth.
    pub fn is_synchronous(self) -> bool {
        self == Self::Psync
    }

    /// What uringlet is compared with.
    pub fn is_native(self) -> bool {
        self != Self::Workers
    }

    /// Tries to set it up for `depth` requests.
    ///
    /// # Errors
    /// Why it cannot be used here.
    pub fn probe(self, depth: usize) -> Result<(), String> {
        match self {
            Self::Psync => Ok(()),
            Self::Libaio => Libaio::new(depth).map(drop),
            Self::IoUring => IoUring::new(depth).map(drop),
            Self::Workers => Workers::new(depth).map(drop),
        }
    }

    /// Runs one cell, and looks afterwards whether the last requests did what they said.
    ///
    /// # Errors
    /// What failed first. A request that fails or is short is never counted.
    pub fn run(self, job: &mut Job<'_>) -> Result<Figure, String> {
        let figure = match self {
            Self::Psync => psync(job)?,
            Self::Libaio => keep_in_flight(&mut Libaio::new(job.depth)?, job)?,
            Self::IoUring => keep_in_flight(&mut IoUring::new(job.depth)?, job)?,
            Self::Workers => keep_in_flight(&mut Workers::new(job.depth)?, job)?,
        };
        compare_with_the_file(job)?;
        Ok(figure)
    }
}

/// An asynchronous interface, as narrow as the loop needs it.
///
/// Dropping it waits for what is in flight: the buffers are freed afterwards.
pub trait Queue {
    /// Puts a request together for the next submission; `slot` comes back with its completion.
    ///
    /// # Safety
    /// The buffer stays valid and untouched until the slot was reaped or the queue dropped.
    unsafe fn prepare(
        &mut self,
        fd: RawFd,
        write: bool,
        buffer: *mut [u8],
        offset: u64,
        slot: usize,
    );

    /// Submits what was prepared and sleeps until a request is complete.
    ///
    /// # Errors
    /// Those of the system call.
    fn submit_and_wait(&mut self) -> std::io::Result<()>;

    /// Takes all completions: slot, and count or negative errno.
    fn reap(&mut self, take: impl FnMut(usize, i64));
}

fn keep_in_flight<Q: Queue>(queue: &mut Q, job: &mut Job<'_>) -> Result<Figure, String> {
    let mut free: Vec<usize> = (0..job.depth).collect();
    let mut going = true;
    let mut failure = None;
    let mut done = 0;
    let mut meter = Meter::start(job.duration, job.stop);
    loop {
        while going && let Some(slot) = free.pop() {
            let Some(offset) = job.offsets.next() else {
                free.push(slot);
                going = false;
                break;
            };
            job.last[slot] = Some(offset);
            // SAFETY: a slot is in `free` only while no request uses its buffer; the loop ends
            // when all are, and on the early return the caller drops the queue before the job.
            unsafe { queue.prepare(job.fd, job.write, job.buffers.slot(slot), offset, slot) };
        }
        if free.len() == job.depth {
            break;
        }
        queue
            .submit_and_wait()
            .map_err(|error| format!("submitting or waiting failed: {error}"))?;
        queue.reap(|slot, result| {
            free.push(slot);
            match check(result, job.block) {
                Ok(()) => done += 1,
                Err(error) => failure = Some(error),
            }
        });
        going = going && failure.is_none() && meter.goes_on(done);
    }
    match failure {
        Some(failure) => Err(failure),
        None => Ok(meter.stop(done)),
    }
}

/// A result as every engine gives it: bytes, or a negative errno.
pub fn check(result: i64, block: usize) -> Result<(), String> {
    match result {
        _ if result == block as i64 => Ok(()),
        0.. => Err(format!("short: {result} of {block} bytes")),
        errno => {
            let error = Error::from_raw_os_error(i32::try_from(-errno).unwrap_or(libc::EIO));
            let hint = match error.raw_os_error() {
                Some(libc::EINVAL) => "; the device may need larger blocks for direct I/O",
                _ => "",
            };
            Err(format!("a request failed: {error}{hint}"))
        }
    }
}

/// The file must hold what the buffers hold: what was last read into each, or written from it.
fn compare_with_the_file(job: &mut Job<'_>) -> Result<(), String> {
    let mut expected = super::workload::Buffers::new(1, job.block, 0);
    for slot in 0..job.depth {
        let Some(offset) = job.last[slot] else { continue };
        let into = expected.slot_mut(0);
        // SAFETY: `into` is exclusively ours and as long as given.
        let count = unsafe {
            libc::pread(job.fd, into.as_mut_ptr().cast(), into.len(), offset.cast_signed())
        };
        if count != job.block.cast_signed() || job.buffers.slot_mut(slot) != into {
            return Err(format!(
                "wrong data: the block at offset {offset} differs from the file's"
            ));
        }
    }
    Ok(())
}

/// What one engine did in one round of one cell.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Requests that completed in full.
    pub requests: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Requests per second.
    pub iops: f64,
    /// CPU time of all threads, user and system, kernel workers of this process included.
    pub cpu_us_per_request: f64,
}

/// Clock and CPU time of one cell; looks at the clock about once per millisecond.
pub struct Meter<'a> {
    start: Instant,
    cpu: Duration,
    duration: Duration,
    stop: &'a AtomicBool,
    next_look: u64,
}

impl<'a> Meter<'a> {
    /// Starts now.
    pub fn start(duration: Duration, stop: &'a AtomicBool) -> Self {
        Self { cpu: cpu_time(), start: Instant::now(), duration, stop, next_look: 1 }
    }

    /// False when the time is over, or the user wants us to stop.
    #[inline]
    pub fn goes_on(&mut self, done: u64) -> bool {
        done < self.next_look || self.look(done)
    }

    #[cold]
    fn look(&mut self, done: u64) -> bool {
        let elapsed = self.start.elapsed();
        let per_millisecond = done as f64 / (elapsed.as_secs_f64() * 1e3 + 1e-9);
        self.next_look = done + (per_millisecond as u64).clamp(1, 64);
        elapsed < self.duration && !self.stop.load(Ordering::Relaxed)
    }

    /// The figure, with everything that is complete.
    pub fn stop(self, requests: u64) -> Figure {
        let seconds = self.start.elapsed().as_secs_f64();
        let cpu = cpu_time().saturating_sub(self.cpu);
        Figure {
            requests,
            seconds,
            iops: requests as f64 / seconds,
            cpu_us_per_request: cpu.as_secs_f64() * 1e6 / requests.max(1) as f64,
        }
    }
}

fn cpu_time() -> Duration {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is room for one rusage; RUSAGE_SELF covers all threads of the process.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    // SAFETY: zeroed is a valid rusage (integers), and getrusage fills it in.
    let usage = unsafe { usage.assume_init() };
    let time = |t: libc::timeval| {
        Duration::from_micros(t.tv_sec.cast_unsigned() * 1_000_000 + t.tv_usec.cast_unsigned())
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}
