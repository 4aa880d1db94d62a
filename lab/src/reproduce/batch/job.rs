//! The published job: one or more threads write a file past the page cache, read it and write it
//! again. All submit to one context.

#![allow(unsafe_code)]

use super::path::{Figure, Submits, take, together};
use super::{AT_A_TIME, errno};
use crate::bench::Buffers;
use serde::Serialize;
use std::fs::File;
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use uringlet::front::{Entry, Instance};
use uringlet::{Context, Sqe};

/// Bytes per request, as published.
pub const RECORD: u64 = 8 << 10;
/// Requests in flight, as published; more if the threads need more.
pub const DEPTH: usize = 128;

/// The phases of the job, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", const_into_str)]
pub enum Phase {
    Write,
    Read,
    Rewrite,
}

impl Phase {
    pub const ALL: [Self; 3] = [Self::Write, Self::Read, Self::Rewrite];
}

/// Requests in flight with this many threads.
pub fn depth(threads: usize) -> usize {
    DEPTH.max(threads * AT_A_TIME)
}

/// One phase.
pub struct Job<'a> {
    pub phase: Phase,
    /// The number of threads that submit to the one context.
    pub threads: usize,
    /// Slots taken at a time.
    pub batch: usize,
    /// Open for direct I/O.
    pub file: &'a File,
    /// Bytes from the beginning of the file, a multiple of the record.
    pub size: u64,
    /// A number in every record: written by this phase, or for [`Phase::Read`] by the phase before.
    pub mark: u64,
}

/// The data that the threads share.
struct Shared<'a> {
    instance: Arc<Instance>,
    fd: RawFd,
    /// The next record that no thread has taken.
    next: AtomicU64,
    buffers: Buffers,
    /// Buffers that no request uses.
    free: Mutex<Vec<u32>>,
    failure: Mutex<Option<String>>,
    failed: AtomicBool,
    stop: &'a AtomicBool,
}

impl Shared<'_> {
    fn fail(&self, reason: String) {
        self.failed.store(true, Ordering::Relaxed);
        self.failure.lock().expect("nobody panics with it").get_or_insert(reason);
    }

    /// The first 8 bytes of a buffer, for the mark and the number of its record.
    fn stamp(&self, buffer: u32) -> *mut u64 {
        self.buffers.slot(buffer as usize).cast()
    }
}

impl Job<'_> {
    /// Runs the phase.
    ///
    /// # Errors
    /// The first error.
    pub fn run(&self, cpus: usize, stop: &AtomicBool) -> Result<Figure, String> {
        let depth = depth(self.threads);
        let instance = Instance::new(&Context::builder().entries(depth as u32))
            .map_err(|error| format!("no context: {error}"))?;
        let shared = Shared {
            instance,
            fd: self.file.as_raw_fd(),
            next: AtomicU64::new(0),
            buffers: Buffers::new(depth, RECORD as usize, self.mark),
            free: Mutex::new((0..depth as u32).collect()),
            failure: Mutex::new(None),
            failed: AtomicBool::new(false),
            stop,
        };
        let figure = together(self.threads, cpus, || Ok(self.submit_and_take(&shared)));
        // If the context failed, requests may be in flight: `close` waits for them. The buffers are
        // dropped afterwards.
        shared.instance.close();
        if self.phase != Phase::Read {
            // The write-back of this job's data must end before the next job runs.
            self.file.sync_data().map_err(|error| format!("fdatasync failed: {error}"))?;
        }
        match shared.failure.into_inner().expect("nobody panics with it") {
            Some(failure) => Err(failure),
            None => figure,
        }
    }

    /// The work of one thread: keeps its share of the requests in flight. It takes one completion
    /// for each request that it submits. The completions may be those of other threads' requests.
    fn submit_and_take(&self, shared: &Shared<'_>) -> Submits {
        let records = self.size / RECORD;
        let most = depth(self.threads) / self.threads / AT_A_TIME * AT_A_TIME;
        let mut submits = Submits::new();
        let mut entries = Vec::with_capacity(AT_A_TIME);
        let mut freed: Vec<u32> = Vec::with_capacity(AT_A_TIME);
        // Requests submitted for which no completion was taken.
        let mut debt = 0;
        loop {
            while debt + AT_A_TIME <= most
                && !shared.failed.load(Ordering::Relaxed)
                && !shared.stop.load(Ordering::Relaxed)
            {
                let first = shared.next.fetch_add(AT_A_TIME as u64, Ordering::Relaxed);
                if first >= records {
                    break;
                }
                entries.clear();
                // With this batch, the debts of all threads are at most the number of buffers. A
                // thread gives buffers back before it lowers its debt. So enough buffers are free.
                let mut free = shared.free.lock().expect("nobody panics with it");
                for record in first..records.min(first + AT_A_TIME as u64) {
                    let buffer = free.pop().expect("as many buffers as requests");
                    entries.push(self.entry(shared, buffer, record));
                }
                drop(free);
                debt += self.submit(shared, &mut submits, &entries);
            }
            if debt == 0 {
                return submits;
            }
            let count = debt.min(AT_A_TIME);
            let there = take(&shared.instance, count as u32, |data, result| {
                let (buffer, record) = (data as u32, data >> 32);
                freed.push(buffer);
                if let Err(reason) = self.check(shared, buffer, record, result) {
                    shared.fail(reason);
                }
            });
            if !there {
                shared.fail("the context is gone".into());
                return submits;
            }
            shared.free.lock().expect("nobody panics with it").append(&mut freed);
            debt -= count;
        }
    }

    fn entry(&self, shared: &Shared<'_>, buffer: u32, record: u64) -> Entry {
        let (block, offset) = (shared.buffers.slot(buffer as usize), record * RECORD);
        let sqe = match self.phase {
            Phase::Read => Sqe::read(shared.fd, block, offset),
            Phase::Write | Phase::Rewrite => {
                // SAFETY: the buffer is page-aligned and a record long. No request uses it, because
                // it was on the list of free buffers.
                unsafe { shared.stamp(buffer).write(self.mark << 32 | record) };
                Sqe::write(shared.fd, block, offset)
            }
        };
        Entry { sqe: sqe.user_data(record << 32 | u64::from(buffer)), data: 0, notify: -1 }
    }

    /// Submits all entries, and returns the number accepted.
    fn submit(&self, shared: &Shared<'_>, submits: &mut Submits, entries: &[Entry]) -> usize {
        let mut done = 0;
        while done < entries.len() {
            // SAFETY: nothing else uses a request's buffer before its completion is taken. The
            // buffers outlive the context.
            let submitted =
                unsafe { submits.submit(&shared.instance, &entries[done..], self.batch) };
            done += submitted.accepted;
            match submitted.refused {
                0 => {}
                // Another thread has taken a completion, and is about to free its slot.
                errno if errno == -libc::EAGAIN => std::thread::yield_now(),
                refused => {
                    shared.fail(errno(refused));
                    break;
                }
            }
        }
        done
    }

    fn check(
        &self,
        shared: &Shared<'_>,
        buffer: u32,
        record: u64,
        result: i64,
    ) -> Result<(), String> {
        match result {
            ..0 => return Err(format!("a request failed: {}", errno(result as i32))),
            short if short != RECORD as i64 => {
                return Err(format!("short: {short} of {RECORD} bytes"));
            }
            _ => {}
        }
        // SAFETY: the buffer is page-aligned and a record long, and its request is complete.
        let stamp = unsafe { shared.stamp(buffer).read() };
        if stamp != self.mark << 32 | record {
            return Err(format!("wrong data in record {record}"));
        }
        Ok(())
    }
}
