//! The requests of a job, and their order.

use super::workload::{Load, Operation};
use fastrand::Rng;

/// One request, without its buffer.
#[derive(Clone, Copy, Debug)]
pub struct Next {
    pub operation: Operation,
    pub offset: u64,
}

/// The requests of one job.
pub struct Stream {
    operation: Operation,
    offsets: Offsets,
    /// An fsync after this many writes.
    fsync_every: Option<u32>,
    /// Writes since the last fsync.
    unsynced: u32,
}

impl Stream {
    /// The requests of a load, which end when there are no more offsets.
    pub fn new(load: &Load, seed: u64) -> Self {
        let operation = if load.write { Operation::Write } else { Operation::Read };
        let (offsets, fsync_every) = (load.offsets(seed), load.fsync_every);
        Self { operation, offsets, fsync_every, unsynced: 0 }
    }

    /// The next request, if there is one.
    #[inline]
    pub fn next(&mut self) -> Option<Next> {
        if self.fsync_every == Some(self.unsynced) {
            self.unsynced = 0;
            return Some(Next { operation: Operation::Fsync, offset: 0 });
        }
        self.unsynced += u32::from(self.fsync_every.is_some());
        Some(Next { operation: self.operation, offset: self.offsets.next()? })
    }
}

/// The offsets of a job's requests, multiples of the block size.
pub enum Offsets {
    /// Uniformly random, without end.
    Random {
        /// The source of random numbers.
        random: Rng,
        /// Number of blocks to choose from.
        blocks: u64,
        /// Bytes per block.
        block: u64,
    },
    /// The blocks one after the other, without end.
    Sequential {
        /// Number of the next block.
        next: u64,
        /// Number of blocks.
        blocks: u64,
        /// Bytes per block.
        block: u64,
    },
    /// Each block at most once.
    Once(std::vec::IntoIter<u64>),
}

impl Offsets {
    /// All blocks in random order. If there are more than `most`, one random block of each of
    /// `most` equal parts.
    pub fn once(blocks: u64, block: u64, most: u64, random: &mut Rng) -> Self {
        let count = blocks.min(most);
        let start = |part: u64| (u128::from(part) * u128::from(blocks) / u128::from(count)) as u64;
        let mut list: Vec<u64> = (0..count)
            .map(|part| (start(part) + random.u64(0..start(part + 1) - start(part))) * block)
            .collect();
        random.shuffle(&mut list);
        Self::Once(list.into_iter())
    }

    /// The next offset, if there is one.
    #[inline]
    pub fn next(&mut self) -> Option<u64> {
        match self {
            Self::Random { random, blocks, block } => Some(random.u64(0..*blocks) * *block),
            Self::Sequential { next, blocks, block } => {
                let this = *next;
                *next = if this + 1 == *blocks { 0 } else { this + 1 };
                Some(this * *block)
            }
            Self::Once(list) => list.next(),
        }
    }
}
