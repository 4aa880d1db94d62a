//! The workloads, and one run of an engine under a workload: its requests and their buffers.

#![allow(unsafe_code)]

use super::drive::{Meter, request_failed};
use super::manner::Manner;
use super::stream::{Next, Offsets, Stream};
use crate::scratch::page_size;
use clap::ValueEnum;
use fastrand::Rng;
use memmap2::{MmapMut, MmapRaw};
use serde::Serialize;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Bytes of the file to which the buffered write workloads write. They stay in the page cache. The
/// number is that of `jobs/uringlet.fio`.
const WRITE_WINDOW: u64 = 10 << 20;
/// Bytes of the file that the cached reads use: more than the CPU's caches hold, and quick to read
/// in.
const CACHED_WINDOW: u64 = 128 << 20;
/// A run of cold reads reads at most this many blocks, each once: enough for two million IOPS over
/// half a second.
const COLD_BLOCKS: u64 = 1 << 20;

/// Writes between two fsyncs of the workload with fsyncs.
const FSYNC_EVERY: u32 = 32;

/// One kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Buffered random writes (1k) in a 10 MiB window
    BufferedWrite,
    /// Buffered random reads (4k) that find their page in the cache
    CachedRead,
    /// Buffered random reads (4k) after the file's cache was dropped; no block twice
    ColdRead,
    /// Buffered random reads (1M) that find their pages in the cache
    LargeCachedRead,
    /// Random reads (16k) past the page cache
    DirectRead,
    /// Random writes (16k) past the page cache
    DirectWrite,
    /// Writes (16k) past the page cache, one after the other from the beginning on
    SequentialDirectWrite,
    /// Buffered random writes (4k) in a 10 MiB window, an fsync after every 32
    FsyncWrite,
}

impl Workload {
    /// Bytes per request by default.
    pub fn default_block(self) -> u64 {
        match self {
            Self::BufferedWrite => 1 << 10,
            Self::CachedRead | Self::ColdRead | Self::FsyncWrite => 4 << 10,
            Self::LargeCachedRead => 1 << 20,
            Self::DirectRead | Self::DirectWrite | Self::SequentialDirectWrite => 16 << 10,
        }
    }

    /// The name on the command line: `cold-read`.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The name in the table: `cold read`.
    pub fn label(self) -> &'static str {
        match self {
            Self::BufferedWrite => "buffered write",
            Self::CachedRead => "cached read",
            Self::ColdRead => "cold read",
            Self::LargeCachedRead => "large cached read",
            Self::DirectRead => "direct read",
            Self::DirectWrite => "direct write",
            Self::SequentialDirectWrite => "seq. direct write",
            Self::FsyncWrite => "write with fsync",
        }
    }

    /// The workload's requests, in the first `size` bytes of a file.
    pub fn load(self, size: u64, block: u64) -> Load {
        let load = Load {
            write: false,
            direct: false,
            order: Order::Random,
            window: size,
            block,
            fsync_every: None,
        };
        match self {
            Self::BufferedWrite => Load { write: true, window: size.min(WRITE_WINDOW), ..load },
            Self::CachedRead | Self::LargeCachedRead => {
                Load { window: size.min(CACHED_WINDOW), ..load }
            }
            Self::ColdRead => Load { order: Order::Once, ..load },
            Self::DirectRead => Load { direct: true, ..load },
            Self::DirectWrite => Load { direct: true, write: true, ..load },
            Self::SequentialDirectWrite => {
                Load { direct: true, write: true, order: Order::Sequential, ..load }
            }
            Self::FsyncWrite => Load {
                write: true,
                window: size.min(WRITE_WINDOW),
                fsync_every: Some(FSYNC_EVERY),
                ..load
            },
        }
    }
}

/// The common properties of the requests of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Writes, not reads.
    pub write: bool,
    /// The load bypasses the page cache.
    pub direct: bool,
    /// The order of the offsets.
    pub order: Order,
    /// The bytes from the beginning of the file that the requests use.
    pub window: u64,
    /// Bytes per request.
    pub block: u64,
    /// An fsync after this many writes.
    pub fsync_every: Option<u32>,
}

/// The order of offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Uniformly random.
    Random,
    /// From the beginning to the end, again and again.
    Sequential,
    /// Random, each at most once, of a file that is not in the cache.
    Once,
}

impl Load {
    /// The offsets of the requests of a run, in order.
    pub fn offsets(&self, seed: u64) -> Offsets {
        let block = self.block;
        // A block larger than the window, which the command line allows, still counts as one block.
        let blocks = (self.window / block).max(1);
        let mut random = Rng::with_seed(seed);
        match self.order {
            Order::Random => Offsets::Random { random, blocks, block },
            Order::Sequential => Offsets::Sequential { next: 0, blocks, block },
            Order::Once => Offsets::once(blocks, block, COLD_BLOCKS, &mut random),
        }
    }
}

/// Page-aligned memory, one block for each slot.
pub struct Buffers {
    memory: MmapRaw,
    block: usize,
    stride: usize,
}

impl Buffers {
    /// `slots` blocks, all filled with the same random bytes.
    pub fn new(slots: usize, block: usize, seed: u64) -> Self {
        let stride = block.next_multiple_of(page_size());
        let mut memory = MmapMut::map_anon(stride * slots).expect("there is memory");
        for slot in memory.chunks_exact_mut(stride) {
            Rng::with_seed(seed).fill(&mut slot[..block]);
        }
        Self { memory: memory.into(), block, stride }
    }

    /// The block of a slot, for the kernel.
    #[inline]
    pub fn slot(&self, slot: usize) -> *mut [u8] {
        assert!(slot < self.memory.len() / self.stride);
        // SAFETY: the slot lies inside the mapping, as just checked.
        let start = unsafe { self.memory.as_mut_ptr().add(slot * self.stride) };
        std::ptr::slice_from_raw_parts_mut(start, self.block)
    }

    /// The block of a slot while no request uses it.
    pub fn slot_mut(&mut self, slot: usize) -> &mut [u8] {
        // SAFETY: initialised memory inside the mapping. `&mut self` excludes other uses in this
        // process. The caller has no request of the slot in flight.
        unsafe { &mut *self.slot(slot) }
    }
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// pread(2).
    Read,
    /// pwrite(2).
    Write,
    /// fsync(2).
    Fsync,
}

/// One run of one engine under one load, with everything that the engine needs.
pub struct Job<'a> {
    /// The file.
    pub fd: RawFd,
    /// Bytes per request.
    pub block: usize,
    /// Requests in flight.
    pub depth: usize,
    /// How requests are handed over.
    pub manner: Manner,
    /// The duration.
    pub duration: Duration,
    /// Measure latencies, too.
    pub timed: bool,
    /// The user has asked to stop.
    pub stop: &'a AtomicBool,
    stream: Stream,
    buffers: Buffers,
    /// The operation of each slot's request.
    operations: Vec<Operation>,
    /// The offset of each slot's last transfer.
    last: Vec<Option<u64>>,
}

impl<'a> Job<'a> {
    /// A job with `depth` requests in flight under `load`, all handed over in one call. The same
    /// `seed` gives the same offsets, another `pattern` other data.
    pub fn new(
        fd: RawFd,
        load: &Load,
        depth: usize,
        (seed, pattern): (u64, u64),
        (duration, timed): (Duration, bool),
        stop: &'a AtomicBool,
    ) -> Self {
        let block = usize::try_from(load.block).expect("a block size is at most 16M");
        Self {
            fd,
            block,
            depth,
            manner: Manner::AllInACall,
            duration,
            timed,
            stop,
            stream: Stream::new(load, seed),
            buffers: Buffers::new(depth, block, pattern),
            operations: vec![Operation::Read; depth],
            last: vec![None; depth],
        }
    }

    /// Starts the clock.
    pub fn meter(&self) -> Meter<'a> {
        Meter::start(self.duration, self.stop)
    }

    /// The next request, for `slot`; none if there are no more.
    #[inline]
    pub fn next(&mut self, slot: usize) -> Option<Next> {
        let next = self.stream.next()?;
        self.operations[slot] = next.operation;
        if next.operation != Operation::Fsync {
            self.last[slot] = Some(next.offset);
        }
        Some(next)
    }

    /// The buffer of a slot's request.
    #[inline]
    pub fn buffer(&self, slot: usize) -> *mut [u8] {
        self.buffers.slot(slot)
    }

    /// Checks a slot's result, which is bytes or a negative errno. Returns the request's operation.
    ///
    /// # Errors
    /// A text: the request failed or was short.
    #[inline]
    pub fn check(&self, slot: usize, result: i64) -> Result<Operation, String> {
        let operation = self.operations[slot];
        let expected = match operation {
            Operation::Read | Operation::Write => self.block,
            Operation::Fsync => 0,
        };
        match result {
            _ if result == expected as i64 => Ok(operation),
            0.. => Err(format!("short: {result} of {expected} bytes")),
            errno => Err(request_failed(errno)),
        }
    }

    /// Compares each slot's buffer with the block of the file that its last request has read or
    /// written.
    ///
    /// # Errors
    /// The block that differs.
    pub fn compare_with_the_file(&mut self) -> Result<(), String> {
        let mut expected = Buffers::new(1, self.block, 0);
        for slot in 0..self.depth {
            let Some(offset) = self.last[slot] else { continue };
            let into = expected.slot_mut(0);
            // SAFETY: `into` is exclusively ours and as long as given.
            let count = unsafe {
                libc::pread(self.fd, into.as_mut_ptr().cast(), into.len(), offset.cast_signed())
            };
            if count != self.block.cast_signed() || self.buffers.slot_mut(slot) != into {
                return Err(format!(
                    "wrong data: the block at offset {offset} differs from the file's"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn all(mut offsets: Offsets) -> Vec<u64> {
        std::iter::from_fn(|| offsets.next()).collect()
    }

    #[test]
    fn cold_offsets_touch_every_block_once_and_in_random_order() {
        let list = all(Workload::ColdRead.load(1 << 20, 4096).offsets(3));
        assert_eq!(list.len(), 256);
        assert_eq!(list.iter().collect::<HashSet<_>>().len(), 256);
        assert!(list.iter().all(|offset| offset.is_multiple_of(4096) && *offset < 1 << 20));
        assert!(!list.is_sorted());
        assert_ne!(list, all(Workload::ColdRead.load(1 << 20, 4096).offsets(4)));
    }

    #[test]
    fn cold_offsets_of_a_huge_file_are_spread_and_not_repeated() {
        let list = all(Offsets::once(1000 << 30, 4096, 1000, &mut Rng::with_seed(5)));
        assert_eq!(list.iter().collect::<HashSet<_>>().len(), 1000);
        let parts: HashSet<u64> = list.iter().map(|offset| offset / 4096 / (1 << 30)).collect();
        assert_eq!(parts.len(), 1000);
    }

    #[test]
    fn endless_offsets_stay_in_the_window() {
        let mut offsets = Workload::BufferedWrite.load(1 << 30, 1024).offsets(3);
        for _ in 0..10_000 {
            let offset = offsets.next().unwrap();
            assert!(offset + 1024 <= WRITE_WINDOW && offset.is_multiple_of(1024));
        }
    }

    #[test]
    fn sequential_offsets_begin_again_at_the_end() {
        let load = Workload::SequentialDirectWrite.load(40 << 10, 16 << 10);
        let mut offsets = load.offsets(3);
        let found: Vec<_> = (0..4).map(|_| offsets.next().unwrap() >> 10).collect();
        assert_eq!(found, [0, 16, 0, 16]);
    }

    #[test]
    fn an_fsync_follows_every_32_writes_and_does_not_count() {
        let stop = AtomicBool::new(false);
        let load = Workload::FsyncWrite.load(1 << 20, 4096);
        let mut job = Job::new(0, &load, 1, (1, 2), (Duration::ZERO, false), &stop);
        for at in 1..=99 {
            let operation = job.next(0).unwrap().operation;
            let (expected, result) =
                if at % 33 == 0 { (Operation::Fsync, 0) } else { (Operation::Write, 4096) };
            assert_eq!(operation, expected, "{at}");
            assert_eq!(job.check(0, result), Ok(expected));
            assert!(job.check(0, -5).is_err() && job.check(0, 7).is_err());
        }
    }

    #[test]
    fn buffers_are_page_aligned_and_apart() {
        let mut buffers = Buffers::new(3, 1000, 1);
        assert_eq!(buffers.slot(1).cast::<u8>() as usize % page_size(), 0);
        buffers.slot_mut(0).fill(1);
        buffers.slot_mut(1).fill(2);
        assert!(buffers.slot_mut(0).iter().all(|&byte| byte == 1));
        let third = buffers.slot_mut(2).to_vec();
        assert_eq!(Buffers::new(1, 1000, 1).slot_mut(0), third);
    }
}
