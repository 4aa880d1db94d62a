//! What is measured: the workloads, where their requests go, and what one cell needs to run.

#![allow(unsafe_code)]

use crate::scratch::page_size;
use clap::ValueEnum;
use serde::Serialize;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The window of the write workload that stays in the page cache, as in the job that uringlet is judged by.
const WRITE_WINDOW: u64 = 10 << 20;
/// The window of the cached reads: larger than the CPU's caches, quick to read in.
const CACHED_WINDOW: u64 = 128 << 20;
/// A cold cell reads each of at most so many blocks once: enough for two million IOPS over half a second.
const COLD_BLOCKS: u64 = 1 << 20;

/// One kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Buffered random reads (4k) that find their page in the cache
    CachedRead,
    /// Buffered random reads (4k) after the file's cache was dropped; no block twice
    ColdRead,
    /// Buffered random writes (1k) in a 10 MiB window
    BufferedWrite,
    /// Random reads (16k) past the page cache
    DirectRead,
    /// Random writes (16k) past the page cache
    DirectWrite,
}

impl Workload {
    /// Bytes per request, unless the user says otherwise.
    pub fn default_block(self) -> u64 {
        match self {
            Self::CachedRead | Self::ColdRead => 4 << 10,
            Self::BufferedWrite => 1 << 10,
            Self::DirectRead | Self::DirectWrite => 16 << 10,
        }
    }

    /// In the table: `cold read`.
    pub fn label(self) -> &'static str {
        match self {
            Self::CachedRead => "cached read",
            Self::ColdRead => "cold read",
            Self::BufferedWrite => "buffered write",
            Self::DirectRead => "direct read",
            Self::DirectWrite => "direct write",
        }
    }

    /// Changes the file.
    pub fn writes(self) -> bool {
        matches!(self, Self::BufferedWrite | Self::DirectWrite)
    }

    /// Goes past the page cache.
    pub fn is_direct(self) -> bool {
        matches!(self, Self::DirectRead | Self::DirectWrite)
    }

    /// Bytes from the beginning of the file within which requests fall.
    pub fn window(self, size: u64) -> u64 {
        match self {
            Self::CachedRead => size.min(CACHED_WINDOW),
            Self::BufferedWrite => size.min(WRITE_WINDOW),
            _ => size,
        }
    }

    /// Where the requests of one cell go, in order.
    pub fn offsets(self, size: u64, block: u64, seed: u64) -> Offsets {
        let blocks = self.window(size) / block;
        let mut random = Random::new(seed);
        match self {
            Self::ColdRead => Offsets::once(blocks, block, COLD_BLOCKS, &mut random),
            _ => Offsets::Endless { random, blocks, block },
        }
    }
}

/// The offsets of a cell's requests, multiples of the block size.
pub enum Offsets {
    /// Uniformly random, without end.
    Endless {
        /// The source.
        random: Random,
        /// Number of blocks to choose from.
        blocks: u64,
        /// Bytes per block.
        block: u64,
    },
    /// Each at most once.
    Once(std::vec::IntoIter<u64>),
}

impl Offsets {
    /// All blocks in random order; of more than `most`, one random block out of each of `most` equal parts.
    fn once(blocks: u64, block: u64, most: u64, random: &mut Random) -> Self {
        let count = blocks.min(most);
        let start = |part: u64| (u128::from(part) * u128::from(blocks) / u128::from(count)) as u64;
        let mut list: Vec<u64> = (0..count)
            .map(|part| (start(part) + random.below(start(part + 1) - start(part))) * block)
            .collect();
        for last in (1..list.len()).rev() {
            list.swap(last, random.below(last as u64 + 1) as usize);
        }
        Self::Once(list.into_iter())
    }

    /// The next one, if there is one.
    #[inline]
    pub fn next(&mut self) -> Option<u64> {
        match self {
            Self::Endless { random, blocks, block } => Some(random.below(*blocks) * *block),
            Self::Once(list) => list.next(),
        }
    }
}

/// Steele's SplitMix64: small, quick, and good enough to choose blocks.
pub struct Random(u64);

impl Random {
    /// The same seed gives the same sequence.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// Page-aligned memory, one block for each slot.
pub struct Buffers {
    memory: NonNull<u8>,
    layout: Layout,
    block: usize,
    stride: usize,
}

impl Buffers {
    /// `slots` blocks, all filled with the same random bytes.
    pub fn new(slots: usize, block: usize, seed: u64) -> Self {
        let stride = block.next_multiple_of(page_size());
        let layout =
            Layout::from_size_align(stride * slots, page_size()).expect("sizes are bounded");
        // SAFETY: the arguments are checked to be non-zero, so the layout is.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        let mut buffers = Self { memory, layout, block, stride };
        for slot in 0..slots {
            let mut random = Random::new(seed);
            for part in buffers.slot_mut(slot).chunks_mut(8) {
                part.copy_from_slice(&random.next().to_ne_bytes()[..part.len()]);
            }
        }
        buffers
    }

    /// The block of a slot, for the kernel.
    #[inline]
    pub fn slot(&self, slot: usize) -> *mut [u8] {
        assert!(slot < self.layout.size() / self.stride);
        // SAFETY: the slot lies inside the allocation, as just checked.
        let start = unsafe { self.memory.as_ptr().add(slot * self.stride) };
        std::ptr::slice_from_raw_parts_mut(start, self.block)
    }

    /// The block of a slot while no request uses it.
    pub fn slot_mut(&mut self, slot: usize) -> &mut [u8] {
        // SAFETY: initialised (zeroed) memory inside our allocation; `&mut self` keeps others of
        // this process away, and a cell ends with nothing in flight.
        unsafe { &mut *self.slot(slot) }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) }
    }
}

/// One cell of the table in one round: everything that an engine needs to run it.
pub struct Job<'a> {
    /// The file, buffered or direct.
    pub fd: RawFd,
    /// Writes, not reads.
    pub write: bool,
    /// Bytes per request.
    pub block: usize,
    /// Requests in flight.
    pub depth: usize,
    /// Where they go.
    pub offsets: Offsets,
    /// `depth` blocks.
    pub buffers: Buffers,
    /// The last offset that each slot was used for.
    pub last: Vec<Option<u64>>,
    /// How long.
    pub duration: Duration,
    /// The user wants us to stop.
    pub stop: &'a AtomicBool,
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
        let list = all(Workload::ColdRead.offsets(1 << 20, 4096, 3));
        assert_eq!(list.len(), 256);
        assert_eq!(list.iter().collect::<HashSet<_>>().len(), 256);
        assert!(list.iter().all(|offset| offset.is_multiple_of(4096) && *offset < 1 << 20));
        assert!(!list.is_sorted());
        assert_ne!(list, all(Workload::ColdRead.offsets(1 << 20, 4096, 4)));
    }

    #[test]
    fn cold_offsets_of_a_huge_file_are_spread_and_not_repeated() {
        let list = all(Offsets::once(1000 << 30, 4096, 1000, &mut Random::new(5)));
        assert_eq!(list.iter().collect::<HashSet<_>>().len(), 1000);
        let parts: HashSet<u64> = list.iter().map(|offset| offset / 4096 / (1 << 30)).collect();
        assert_eq!(parts.len(), 1000);
    }

    #[test]
    fn endless_offsets_stay_in_the_window() {
        let mut offsets = Workload::BufferedWrite.offsets(1 << 30, 1024, 3);
        for _ in 0..10_000 {
            let offset = offsets.next().unwrap();
            assert!(offset + 1024 <= WRITE_WINDOW && offset.is_multiple_of(1024));
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
