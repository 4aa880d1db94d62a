//! Which requests a job makes, in which order, and when it has made them all.

use super::workload::{Load, Operation};
use std::os::fd::RawFd;

/// One request, without its buffer.
#[derive(Clone, Copy, Debug)]
pub struct Next {
    pub fd: RawFd,
    pub operation: Operation,
    pub offset: u64,
}

/// What the requests do.
pub enum Mix {
    /// All the same.
    Only(Operation),
    /// Reads, so many percent of them, and writes.
    Percent { reads: u64, random: Random },
}

/// A file of a stream.
pub struct Target {
    pub fd: RawFd,
    /// Of the first byte that is used.
    pub start: u64,
    /// Counted from `start`.
    pub offsets: Offsets,
    /// Of writes, if they go their own way.
    pub write_offsets: Option<Offsets>,
}

/// When a stream ends: after so many passes of so many requests, or so many in all. Each pass begins where the first one did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub passes: u64,
    pub requests: u64,
    pub total: u64,
}

impl Extent {
    /// No end.
    pub const ENDLESS: Self = Self { passes: 1, requests: u64::MAX, total: u64::MAX };
}

/// The requests of one thread.
pub struct Stream {
    targets: Vec<Target>,
    /// Whose turn it is.
    turn: usize,
    mix: Mix,
    extent: Extent,
    /// Of this pass.
    left: u64,
    /// A sync after so many writes.
    sync: Option<(u32, Operation)>,
    /// Writes since the last sync, and the file that the last one went to.
    unsynced: u32,
    written: RawFd,
}

impl Stream {
    /// Requests to `targets` in turn, with a sync after so many writes.
    pub fn new(
        targets: Vec<Target>,
        mix: Mix,
        extent: Extent,
        sync: Option<(u32, Operation)>,
    ) -> Self {
        let written = targets[0].fd;
        let left = extent.requests.min(extent.total);
        Self { targets, turn: 0, mix, extent, left, sync, unsynced: 0, written }
    }

    /// Those of a load, as long as somebody asks.
    pub fn endless(fd: RawFd, load: &Load, seed: u64) -> Self {
        let operation = if load.write { Operation::Write } else { Operation::Read };
        let offsets = load.offsets(seed);
        let target = Target { fd, start: 0, offsets, write_offsets: None };
        let sync = load.fsync_every.map(|every| (every, Operation::Fsync));
        Self::new(vec![target], Mix::Only(operation), Extent::ENDLESS, sync)
    }

    /// Both reads and writes.
    pub fn is_mixed(&self) -> bool {
        matches!(self.mix, Mix::Percent { .. })
    }

    /// The next one, if there is one.
    #[inline]
    pub fn next(&mut self) -> Option<Next> {
        if self.left == 0 && !self.next_pass() {
            return None;
        }
        if let Some((every, operation)) = self.sync
            && self.unsynced == every
        {
            self.unsynced = 0;
            return Some(Next { fd: self.written, operation, offset: 0 });
        }
        let operation = match &mut self.mix {
            Mix::Only(operation) => *operation,
            Mix::Percent { reads, random } => {
                if random.below(100) < *reads {
                    Operation::Read
                } else {
                    Operation::Write
                }
            }
        };
        let target = &mut self.targets[self.turn];
        let offsets = match &mut target.write_offsets {
            Some(offsets) if operation == Operation::Write => offsets,
            _ => &mut target.offsets,
        };
        let (fd, offset) = (target.fd, target.start + offsets.next()?);
        if operation == Operation::Write && self.sync.is_some() {
            self.unsynced += 1;
            self.written = fd;
        }
        self.left -= 1;
        self.turn = if self.turn + 1 == self.targets.len() { 0 } else { self.turn + 1 };
        Some(Next { fd, operation, offset })
    }

    #[cold]
    fn next_pass(&mut self) -> bool {
        self.extent.total -= self.extent.requests.min(self.extent.total);
        if self.extent.passes <= 1 || self.extent.total == 0 {
            return false;
        }
        self.extent.passes -= 1;
        self.left = self.extent.requests.min(self.extent.total);
        self.turn = 0;
        for target in &mut self.targets {
            target.offsets.rewind();
            if let Some(offsets) = &mut target.write_offsets {
                offsets.rewind();
            }
        }
        true
    }
}

/// The offsets of a cell's requests, multiples of the block size.
pub enum Offsets {
    /// Uniformly random, without end.
    Random {
        /// The source.
        random: Random,
        /// Number of blocks to choose from.
        blocks: u64,
        /// Bytes per block.
        block: u64,
    },
    /// One after the other, without end.
    Sequential {
        /// Number of the next block.
        next: u64,
        /// Number of blocks.
        blocks: u64,
        /// Bytes per block.
        block: u64,
    },
    /// Each at most once.
    Once(std::vec::IntoIter<u64>),
    /// All of them in random order, then all in another one, without end.
    Permuted {
        /// The order.
        permutation: Permutation,
        /// Position in it.
        next: u64,
        /// Bytes per block.
        block: u64,
    },
}

impl Offsets {
    /// All blocks in random order; of more than `most`, one random block out of each of `most` equal parts.
    pub fn once(blocks: u64, block: u64, most: u64, random: &mut Random) -> Self {
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
            Self::Random { random, blocks, block } => Some(random.below(*blocks) * *block),
            Self::Sequential { next, blocks, block } => {
                let this = *next;
                *next = if this + 1 == *blocks { 0 } else { this + 1 };
                Some(this * *block)
            }
            Self::Once(list) => list.next(),
            Self::Permuted { permutation, next, block } => {
                if *next == permutation.count {
                    *next = 0;
                    permutation.reorder();
                }
                let this = permutation.at(*next);
                *next += 1;
                Some(this * *block)
            }
        }
    }

    /// From the first one on again; random ones in another order.
    fn rewind(&mut self) {
        match self {
            Self::Sequential { next, .. } => *next = 0,
            Self::Permuted { permutation, next, .. } => {
                *next = 0;
                permutation.reorder();
            }
            Self::Random { .. } | Self::Once(_) => {}
        }
    }
}

/// The numbers below `count` in a random order that needs no memory: mixed within the next power of two, and
/// again until the result is below `count`.
pub struct Permutation {
    count: u64,
    mask: u64,
    shift: u32,
    keys: [u64; 4],
    random: Random,
}

impl Permutation {
    /// Of `count` numbers, at least 1.
    pub fn new(count: u64, seed: u64) -> Self {
        let bits = u64::BITS - (count - 1).leading_zeros();
        let mask = u64::MAX.checked_shr(u64::BITS - bits).unwrap_or(0);
        let random = Random::new(seed);
        let mut new = Self { count, mask, shift: bits.div_ceil(2), keys: [0; 4], random };
        new.reorder();
        new
    }

    fn reorder(&mut self) {
        self.keys = std::array::from_fn(|_| self.random.next());
    }

    /// The number at a position below `count`.
    #[inline]
    pub fn at(&self, position: u64) -> u64 {
        let mut number = position;
        loop {
            // Each step can be undone, so no two numbers become one.
            for key in self.keys {
                number = number.wrapping_add(key) & self.mask;
                number = number.wrapping_mul(key | 1) & self.mask;
                number ^= number >> self.shift;
            }
            if number < self.count {
                return number;
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_has_every_number_once_and_another_order_each_time() {
        for count in [1, 2, 3, 64, 100, 1025] {
            let mut permutation = Permutation::new(count, 7);
            let mut orders = Vec::new();
            for _ in 0..2 {
                let order: Vec<u64> = (0..count).map(|at| permutation.at(at)).collect();
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..count));
                assert!(count < 64 || !order.is_sorted());
                orders.push(order);
                permutation.reorder();
            }
            assert!(count < 64 || orders[0] != orders[1]);
        }
    }

    fn targets(files: i32) -> Vec<Target> {
        let offsets = || Offsets::Sequential { next: 0, blocks: 4, block: 10 };
        let target = |fd| Target { fd, start: 100, offsets: offsets(), write_offsets: None };
        (0..files).map(target).collect()
    }

    #[test]
    fn files_take_turns_and_every_pass_begins_where_the_first_did() {
        let extent = Extent { passes: 2, requests: 3, total: 5 };
        let mut stream = Stream::new(targets(2), Mix::Only(Operation::Read), extent, None);
        let found: Vec<_> =
            std::iter::from_fn(|| stream.next()).map(|next| (next.fd, next.offset)).collect();
        assert_eq!(found, [(0, 100), (1, 100), (0, 110), (0, 100), (1, 100)]);
    }

    #[test]
    fn reads_and_writes_come_as_often_as_is_said() {
        let extent = Extent { requests: 10_000, ..Extent::ENDLESS };
        let mix = Mix::Percent { reads: 70, random: Random::new(1) };
        let mut stream = Stream::new(targets(1), mix, extent, Some((1, Operation::Fdatasync)));
        let (mut reads, mut writes) = (0, 0);
        let mut last = Operation::Read;
        while let Some(Next { operation, .. }) = stream.next() {
            assert_eq!(last == Operation::Write, operation == Operation::Fdatasync);
            reads += u64::from(operation == Operation::Read);
            writes += u64::from(operation == Operation::Write);
            last = operation;
        }
        assert_eq!(reads + writes, 10_000);
        assert!((6_800..7_200).contains(&reads), "{reads}");
    }
}
