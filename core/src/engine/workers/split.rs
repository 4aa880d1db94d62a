//! A large cached read that is done in parts: who has which part, and who is the last.
//!
//! One at a time in a context. The parts that are left lie between the two ends in one word, `use << 32 | back << 16 | front`, and whoever takes
//! one moves an end; who has taken one may look what the read is, as that stays until all parts are done. Whoever ends the last part has the request.

use crate::sqe::Sqe;
use crate::sync::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

const FRONT: u64 = 1;
const BACK: u64 = 1 << 16;
const USE: u64 = 1 << 32;
/// Parts of one read at most.
const PARTS_MAX: usize = 16;
/// Smaller ones are not worth the way to another CPU.
pub(crate) const PART_MIN: u32 = 128 << 10;
/// Parts begin so many bytes apart, or several times that.
const GRAIN: u32 = 64 << 10;

/// What is left of a read, and how its parts have ended.
#[derive(Debug)]
pub(crate) struct Split {
    word: AtomicU64,
    in_use: AtomicBool,
    undone: AtomicU32,
    slot: AtomicU32,
    fd: AtomicI32,
    len: AtomicU32,
    address: AtomicU64,
    offset: AtomicU64,
    results: [AtomicI32; PARTS_MAX],
}

/// One part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The slot of the whole read.
    pub(crate) slot: u32,
    /// A read of this part.
    pub(crate) sqe: Sqe,
    number: usize,
}

/// Where a part is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Front,
    Back,
}

/// The first part that is left, and the one behind the last.
fn ends(word: u64) -> (u32, u32) {
    ((word & 0xffff) as u32, (word >> 16 & 0xffff) as u32)
}

/// How long parts are, and how many.
fn parts(len: u32) -> (u32, u32) {
    let even = len.div_ceil(PARTS_MAX as u32).max(PART_MIN);
    let each = even.div_ceil(GRAIN).saturating_mul(GRAIN);
    (each, len.div_ceil(each))
}

impl Split {
    pub(crate) fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            in_use: AtomicBool::new(false),
            undone: AtomicU32::new(0),
            slot: AtomicU32::new(0),
            fd: AtomicI32::new(0),
            len: AtomicU32::new(0),
            address: AtomicU64::new(0),
            offset: AtomicU64::new(0),
            results: std::array::from_fn(|_| AtomicI32::new(0)),
        }
    }

    /// Parts that nobody has taken.
    #[inline]
    pub(crate) fn left(&self) -> usize {
        let (front, back) = ends(self.word.load(Ordering::Relaxed));
        (back - front) as usize
    }

    /// Offers the parts of a started read at an offset. False: it has only one, or another read is being done so.
    pub(crate) fn begin(&self, slot: u32, sqe: &Sqe) -> bool {
        let (_, count) = parts(sqe.len);
        if count < 2 || self.in_use.swap(true, Ordering::Acquire) {
            return false;
        }
        self.undone.store(count, Ordering::Relaxed);
        self.slot.store(slot, Ordering::Relaxed);
        self.fd.store(sqe.fd, Ordering::Relaxed);
        self.len.store(sqe.len, Ordering::Relaxed);
        self.address.store(sqe.addr, Ordering::Relaxed);
        self.offset.store(sqe.off, Ordering::Relaxed);
        let last = self.word.load(Ordering::Relaxed) & !(USE - 1);
        let all = last.wrapping_add(USE) | (u64::from(count) * BACK);
        // Release: all of the above, for whoever takes one.
        self.word.store(all, Ordering::Release);
        true
    }

    /// Takes a part, if there is one left: from the front, or from the back. Where two threads keep to an end each, each writes to
    /// the same half of a buffer that is used again, which its CPU has in its cache.
    pub(crate) fn take(&self, end: End) -> Option<Part> {
        let mut now = self.word.load(Ordering::Relaxed);
        loop {
            let (front, back) = ends(now);
            if front == back {
                return None;
            }
            let (number, step) = match end {
                End::Front => (front, FRONT),
                End::Back => (back - 1, BACK.wrapping_neg()),
            };
            // Acquire: what the read is.
            match self.word.compare_exchange_weak(
                now,
                now.wrapping_add(step),
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(self.part(number)),
                Err(changed) => now = changed,
            }
        }
    }

    fn part(&self, number: u32) -> Part {
        let len = self.len.load(Ordering::Relaxed);
        let (each, _) = parts(len);
        let begin = number * each;
        let sqe = Sqe {
            opcode: crate::sqe::opcode::READ,
            fd: self.fd.load(Ordering::Relaxed),
            addr: self.address.load(Ordering::Relaxed).wrapping_add(begin.into()),
            off: self.offset.load(Ordering::Relaxed).wrapping_add(begin.into()),
            len: each.min(len - begin),
            ..Sqe::default()
        };
        Part { slot: self.slot.load(Ordering::Relaxed), sqe, number: number as usize }
    }

    /// A part has ended. True for the last one: the request is the caller's, and nobody else is at it.
    #[must_use]
    pub(crate) fn end(&self, part: &Part, result: i32) -> bool {
        self.results[part.number].store(result, Ordering::Relaxed);
        // Release and acquire: the last one sees what all have read and stored.
        self.undone.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// A read is being done so.
    #[inline]
    pub(crate) fn is_in_use(&self) -> bool {
        self.in_use.load(Ordering::Acquire)
    }

    /// Another read can be done so: said by the caller of the last [`Split::end`], who is through with it.
    pub(crate) fn leave(&self) {
        self.in_use.store(false, Ordering::Release);
    }

    /// What the whole read gives, as if it had been done in order: for the caller of the last [`Split::end`].
    pub(crate) fn result(&self) -> i32 {
        let len = self.len.load(Ordering::Relaxed);
        let (each, count) = parts(len);
        let mut total = 0;
        for number in 0..count {
            let expected = each.min(len - number * each);
            match self.results[number as usize].load(Ordering::Relaxed) {
                error if error < 0 && total == 0 => {
                    total = error;
                    break;
                }
                error if error < 0 => break,
                read => {
                    total += read;
                    if (read as u32) < expected {
                        break;
                    }
                }
            }
        }
        total
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{End, GRAIN, PART_MIN, PARTS_MAX, Split, parts};
    use crate::Sqe;

    const MIB: u32 = 1 << 20;

    fn read(len: u32) -> Sqe {
        Sqe {
            opcode: crate::sqe::opcode::READ,
            fd: 7,
            addr: 1 << 20,
            off: 5,
            len,
            ..Sqe::default()
        }
    }

    #[test]
    fn parts_cover_the_read_without_overlap() {
        for len in [2 * PART_MIN, 2 * PART_MIN + 1, MIB - 1, MIB, 5 * MIB + 3, 0x7fff_f000] {
            let split = Split::new();
            assert!(split.begin(3, &read(len)));
            assert!(!split.begin(4, &read(len)), "it is in use");
            let (each, count) = parts(len);
            assert!(
                each % GRAIN == 0 && count as usize <= PARTS_MAX && split.left() == count as usize
            );
            let mut covered = 0u64;
            while let Some(part) = split.take(End::Front) {
                assert_eq!((part.slot, part.sqe.fd), (3, 7));
                assert_eq!(part.sqe.addr, (1 << 20) + covered);
                assert_eq!(part.sqe.off, 5 + covered);
                covered += u64::from(part.sqe.len);
            }
            assert_eq!(covered, u64::from(len));
        }
        assert!(!Split::new().begin(0, &read(PART_MIN)), "one part");
    }

    #[test]
    fn the_result_is_that_of_reading_in_order() {
        let (full, short) = (PART_MIN as i32, 100);
        for (results, expected) in [
            ([full, full, full, full], 4 * full),
            ([full, short, full, 0], full + short),
            ([full, 0, full, full], full),
            ([0, 0, 0, 0], 0),
            ([-5, full, full, full], -5),
            ([full, -5, full, full], full),
            ([full, full, short, -5], 2 * full + short),
        ] {
            let split = Split::new();
            assert!(split.begin(0, &read(4 * PART_MIN)));
            let ends = [End::Back, End::Front, End::Front, End::Back];
            let parts = ends.map(|end| split.take(end).unwrap());
            assert_eq!(parts.map(|part| part.number), [3, 0, 1, 2]);
            assert_eq!(split.take(End::Back), None);
            for (at, part) in parts.iter().enumerate() {
                assert_eq!(split.end(part, results[part.number]), at == 3);
            }
            assert_eq!(split.result(), expected, "{results:?}");
            split.leave();
            assert!(split.begin(1, &read(2 * PART_MIN)), "free again");
        }
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    //! Failure would look like: a part that is read twice or never, one of another read, or a read that nobody or two threads end.

    use super::{End, PART_MIN, Part, Split};
    use crate::sqe::Sqe;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::thread;

    fn read(fd: i32) -> Sqe {
        Sqe { fd, len: 2 * PART_MIN, ..Sqe::default() }
    }

    struct Model {
        split: Split,
        done: [AtomicU32; 2],
        finished: AtomicU32,
    }

    impl Model {
        /// Does one part, and ends the read if that was the last.
        fn one(&self, take: impl Fn(&Split) -> Option<Part>) -> bool {
            let Some(part) = take(&self.split) else { return false };
            assert_eq!(part.slot as i32, part.sqe.fd, "of two reads");
            self.done[part.slot as usize].fetch_add(1, Ordering::Relaxed);
            if self.split.end(&part, PART_MIN as i32) {
                assert_eq!(
                    self.done[part.slot as usize].load(Ordering::Relaxed),
                    2,
                    "not all parts"
                );
                assert_eq!(self.split.result(), 2 * PART_MIN as i32);
                self.finished.fetch_add(1, Ordering::Relaxed);
                self.split.leave();
            }
            true
        }
    }

    /// One thread does two reads, another one helps, and takes its parts so.
    fn two_reads(take: fn(&Split) -> Option<Part>) {
        loom::model(move || {
            let model = Arc::new(Model {
                split: Split::new(),
                done: [AtomicU32::new(0), AtomicU32::new(0)],
                finished: AtomicU32::new(0),
            });
            let other = Arc::clone(&model);
            let helper = thread::spawn(move || while other.one(take) {});
            let mut begun = 0;
            for slot in 0..2 {
                begun += u32::from(model.split.begin(slot, &read(slot as i32)));
                while model.one(|split| split.take(End::Front)) {}
            }
            helper.join().unwrap();
            assert_eq!(model.finished.load(Ordering::Relaxed), begun);
        });
    }

    #[test]
    fn loom_every_part_is_read_once_and_one_thread_ends_the_read() {
        two_reads(|split| split.take(End::Back));
    }

    /// Canary: a helper that looks what the read is before it has taken a part of it.
    #[test]
    #[should_panic(expected = "of two reads")]
    fn loom_canary_looking_before_taking_meets_two_reads() {
        two_reads(|split| {
            let left = split.left() as u32;
            let before = (left > 0).then(|| split.part(left - 1))?;
            split.take(End::Back).map(|part| Part { slot: before.slot, ..part })
        });
    }
}
