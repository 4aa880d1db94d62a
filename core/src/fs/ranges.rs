//! Many ranges of a file at once; ranges that are close together are read as one.

use std::collections::VecDeque;
use std::io;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use compio_buf::{BufResult, IntoInner as _, IoBuf as _, Slice};

use super::budget::{Awaited, HasTurns, Spent, Turns, awaited, in_turn};
use super::handle::{Alignment, File};
use super::op::Op;
use super::transfer::ReadExact;
use crate::process;
use crate::router::tuning::HIT_BYTES;
use crate::sync::lock;

/// Decides which ranges [`File::read_ranges`] reads as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalesce {
    /// The maximum number of bytes between two ranges. These bytes are read, and not used.
    pub gap: u64,
    /// The maximum number of bytes that are read as one. A longer range is still read whole.
    pub max: u64,
}

impl Default for Coalesce {
    /// Gaps of at most 4 KiB, and 1 MiB in all.
    fn default() -> Self {
        Self { gap: 4 << 10, max: 1 << 20 }
    }
}

/// The bytes of one range. Ranges that were read as one share their memory.
#[derive(Clone, Debug, Default)]
pub struct Chunk {
    data: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.data[self.range.clone()]
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// A future, from [`File::read_ranges`]. Dropping it has the effect of dropping an [`Op`].
#[derive(Debug)]
#[must_use = "a future does nothing until it is awaited"]
pub struct ReadRanges {
    file: File,
    ranges: Vec<Range<u64>>,
    coalesce: Coalesce,
    reads: Vec<Part>,
    gather: Option<Arc<Gather>>,
    is_background: bool,
    turns: Turns,
}

/// Ranges that are read as one.
#[derive(Debug)]
struct Part {
    /// The offset of the slice in the file.
    begin: u64,
    read: Op<ReadExact<Slice<Vec<u8>>>>,
    /// The indexes of these ranges in the caller's list.
    members: Vec<usize>,
}

impl Part {
    fn new(file: &File, range: &Range<u64>, members: Vec<usize>) -> io::Result<Self> {
        let Wide { buffer, begin, enough, granule } = Wide::of(file, range, Vec::new())?;
        let read = ReadExact::new(file, buffer, begin, 0).in_steps(enough, granule);
        Ok(Self { begin, read: Op::new(read), members })
    }
}

/// Memory for a range, and the range that is read: on a direct file, it is widened to the file's
/// alignment.
pub(super) struct Wide {
    pub(super) buffer: Slice<Vec<u8>>,
    /// The offset of the slice in the file.
    pub(super) begin: u64,
    /// Bytes of the slice, up to the end of the range.
    pub(super) enough: usize,
    granule: usize,
}

impl Wide {
    /// Makes memory for a range. The vector's memory is used again if it is large enough.
    pub(super) fn of(file: &File, range: &Range<u64>, mut buffer: Vec<u8>) -> io::Result<Self> {
        let errno = io::Error::from_raw_os_error;
        let Alignment { memory, offset: granule } = file.granules();
        let begin = range.start - range.start % granule as u64;
        let end = range.end.checked_next_multiple_of(granule as u64);
        // No file is so long that this overflows.
        let end = end.ok_or_else(|| errno(libc::EINVAL))?;
        let length = usize::try_from(end - begin).map_err(|_| errno(libc::EINVAL))?;
        let enough = usize::try_from(range.end - begin).map_err(|_| errno(libc::EINVAL))?;
        buffer.clear();
        let all = length.checked_add(memory - 1).ok_or_else(|| errno(libc::ENOMEM))?;
        buffer.try_reserve_exact(all).map_err(|_| errno(libc::ENOMEM))?;
        let address = buffer.as_ptr().addr();
        let skipped = address.next_multiple_of(memory) - address;
        buffer.resize(skipped, 0);
        let buffer = buffer.slice(skipped..skipped + length);
        Ok(Self { buffer, begin, enough, granule })
    }
}

/// Wakes the task when the last of several operations has ended.
#[derive(Debug)]
struct Gather {
    left: AtomicUsize,
    task: Mutex<Waker>,
}

impl Wake for Gather {
    fn wake(self: Arc<Self>) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let waker = lock(&self.task).clone();
            waker.wake();
        }
    }
}

impl ReadRanges {
    pub(super) fn new(file: &File, ranges: &[Range<u64>], coalesce: Coalesce) -> Self {
        let (reads, gather, turns) = (Vec::new(), None, Turns::default());
        let (file, ranges, is_background) = (file.clone(), ranges.to_vec(), false);
        Self { file, ranges, coalesce, reads, gather, is_background, turns }
    }

    /// Lets other operations go first: the reads of these ranges are
    /// [in the background](Op::background).
    pub fn background(mut self) -> Self {
        self.is_background = true;
        self
    }

    /// Begins to read. Ranges that are in memory are read now, up to a limit, because other tasks
    /// wait meanwhile.
    fn begin(&mut self, spent: &mut Spent) -> io::Result<()> {
        /// The maximum number of ranges that are read now. The others are handed over.
        const INLINE: u32 = 64;
        let invalid = |range: &Range<u64>| range.start > range.end || range.end > i64::MAX as u64;
        if self.ranges.iter().any(invalid) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        for (range, members) in self.parts() {
            let Part { begin, read, members } = Part::new(&self.file, &range, members)?;
            let is_inline = spent.hits < INLINE && spent.bytes < HIT_BYTES;
            let read = if is_inline { read } else { read.forced_async() };
            let read = if self.is_background { read.background() } else { read }.submit();
            read.spend(spent);
            self.reads.push(Part { begin, read, members });
        }
        Ok(())
    }

    /// The ranges to read as one, each with the numbers of the requested ranges in it.
    fn parts(&self) -> Vec<(Range<u64>, Vec<usize>)> {
        let mut order: Vec<usize> = (0..self.ranges.len()).collect();
        order.retain(|&at| !self.ranges[at].is_empty());
        order.sort_by_key(|&at| self.ranges[at].start);
        let mut parts: Vec<(Range<u64>, Vec<usize>)> = Vec::new();
        for at in order {
            let range = self.ranges[at].clone();
            if let Some((whole, members)) = parts.last_mut() {
                let end = whole.end.max(range.end);
                if range.start <= whole.end.saturating_add(self.coalesce.gap)
                    && end - whole.start <= self.coalesce.max
                {
                    whole.end = end;
                    members.push(at);
                    continue;
                }
            }
            parts.push((range, vec![at]));
        }
        parts
    }

    /// Blocks the calling thread until everything is read; needs no executor.
    ///
    /// # Errors
    /// As [`File::read_ranges`].
    pub fn wait(mut self) -> io::Result<Vec<Chunk>> {
        self.begin(&mut Spent::default())?;
        let reads = std::mem::take(&mut self.reads);
        self.chunks(reads.into_iter().map(|part| (part.begin, part.members, part.read.wait())))
    }

    /// The chunks as they become ready, each with the number of its range, instead of all at the
    /// end.
    ///
    /// ```
    /// use uringlet::fs::{Coalesce, File};
    ///
    /// # async fn example() -> std::io::Result<()> {
    /// let file = File::open("/proc/self/exe").await?;
    /// let mut chunks = file.read_ranges(&[0..4, 1000..2000], Coalesce::default()).each();
    /// while let Some((number, chunk)) = chunks.next().await {
    ///     println!("range {number}: {} bytes", chunk?.len());
    /// }
    /// # Ok(())
    /// # }
    /// # pollster::block_on(example())?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn each(self) -> RangeChunks {
        let ended = Mutex::default();
        let ready = Arc::new(Ready { ended, task: Mutex::new(Waker::noop().clone()) });
        let (parts, chunks) = (Vec::new(), VecDeque::new());
        RangeChunks { ranges: self, parts, chunks, ready, left: None, turns: Turns::default() }
    }

    fn chunks(
        &self,
        reads: impl Iterator<Item = (u64, Vec<usize>, BufResult<(), Slice<Vec<u8>>>)>,
    ) -> io::Result<Vec<Chunk>> {
        let mut chunks = vec![Chunk::default(); self.ranges.len()];
        for (begin, members, BufResult(result, buffer)) in reads {
            result?;
            self.cut(begin, members, buffer, |member, chunk| chunks[member] = chunk);
        }
        Ok(chunks)
    }

    /// Cuts a read into the chunks of its ranges.
    fn cut(
        &self,
        begin: u64,
        members: Vec<usize>,
        buffer: Slice<Vec<u8>>,
        mut give: impl FnMut(usize, Chunk),
    ) {
        let skipped = buffer.begin();
        let data = Arc::new(buffer.into_inner());
        for member in members {
            let Range { start, end } = self.ranges[member];
            let range = skipped + (start - begin) as usize..skipped + (end - begin) as usize;
            give(member, Chunk { data: Arc::clone(&data), range });
        }
    }
}

awaited!(ReadRanges, io::Result<Vec<Chunk>>);

impl Awaited for ReadRanges {
    fn poll_in_turn(&mut self, context: &mut Context<'_>, spent: &mut Spent) -> Poll<Self::Output> {
        let this = self;
        // In the child of a fork(2) no read of the parent ends. There `wait` fails at once.
        let is_inherited =
            this.file.fs().is_some_and(|fs| fs.generation() != process::generation());
        if is_inherited {
            if this.gather.is_none() {
                this.begin(spent)?;
            }
        } else if let Some(gather) = &this.gather {
            // The waker is stored first. Either the last read finds it, or this thread sees that
            // read's end.
            lock(&gather.task).clone_from(context.waker());
            if gather.left.load(Ordering::Acquire) > 0 {
                return Poll::Pending;
            }
        } else {
            this.begin(spent)?;
            // This poll itself counts as one more read. So the task is not woken before all reads
            // were polled.
            let left = AtomicUsize::new(this.reads.len() + 1);
            let task = Mutex::new(context.waker().clone());
            let gather = Arc::new(Gather { left, task });
            let waker = Waker::from(Arc::clone(&gather));
            let mut ended = 1;
            for part in &mut this.reads {
                let is_ended = part.read.is_ended(&waker);
                ended += usize::from(is_ended);
            }
            this.gather = Some(Arc::clone(&gather));
            if gather.left.fetch_sub(ended, Ordering::AcqRel) != ended {
                return Poll::Pending;
            }
        }
        let reads = std::mem::take(&mut this.reads);
        // All reads have ended, so no wait blocks.
        let chunks =
            this.chunks(reads.into_iter().map(|part| (part.begin, part.members, part.read.wait())));
        Poll::Ready(chunks)
    }
}

/// The chunks as they become ready, from [`ReadRanges::each`]. The feature `stream` makes it a
/// `Stream`.
#[derive(Debug)]
pub struct RangeChunks {
    ranges: ReadRanges,
    /// `None`: the part has ended.
    parts: Vec<Option<Part>>,
    chunks: VecDeque<(usize, io::Result<Chunk>)>,
    ready: Arc<Ready>,
    /// The number of parts that have not ended. `None`: no part has begun.
    left: Option<usize>,
    turns: Turns,
}

/// Parts that have ended, and the task to wake.
#[derive(Debug)]
struct Ready {
    ended: Mutex<Vec<usize>>,
    task: Mutex<Waker>,
}

struct PartEnds {
    at: usize,
    ready: Arc<Ready>,
}

impl Wake for PartEnds {
    fn wake(self: Arc<Self>) {
        lock(&self.ready.ended).push(self.at);
        let waker = lock(&self.ready.task).clone();
        waker.wake();
    }
}

impl HasTurns for RangeChunks {
    fn turns(&mut self) -> &mut Turns {
        &mut self.turns
    }
}

impl RangeChunks {
    /// The next chunk, with the number of its range; `None` after the last one. If the future is
    /// dropped, no chunk is lost.
    ///
    /// # Errors
    /// Each range has an error of its own: as [`File::read_ranges`].
    pub async fn next(&mut self) -> Option<(usize, io::Result<Chunk>)> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// Polls for the result of [`RangeChunks::next`]. If it is pending, the task is woken later.
    ///
    /// # Errors
    /// As [`RangeChunks::next`].
    pub fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<(usize, io::Result<Chunk>)>> {
        in_turn(self, context, |this, context, spent| {
            // The waker is stored first. Either a part finds it, or this thread sees the part's
            // end.
            lock(&this.ready.task).clone_from(context.waker());
            if this.left.is_none() {
                this.begin(spent);
            }
            if this.chunks.is_empty() {
                this.collect();
            }
            match this.chunks.pop_front() {
                Some(chunk) => Poll::Ready(Some(chunk)),
                None if this.left == Some(0) => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
    }

    /// Begins to read, and takes the chunks of parts that were in memory.
    fn begin(&mut self, spent: &mut Spent) {
        let begun = self.ranges.begin(spent);
        let reads = std::mem::take(&mut self.ranges.reads);
        self.left = Some(0);
        for (number, range) in self.ranges.ranges.iter().enumerate() {
            match &begun {
                Err(error) => self.chunks.push_back((number, Err(again(error)))),
                Ok(()) if range.is_empty() => self.chunks.push_back((number, Ok(Chunk::default()))),
                Ok(()) => {}
            }
        }
        if begun.is_err() {
            return;
        }
        self.left = Some(reads.len());
        for (at, mut part) in reads.into_iter().enumerate() {
            let ready = Arc::clone(&self.ready);
            if part.read.is_ended(&Waker::from(Arc::new(PartEnds { at, ready }))) {
                self.end(part);
                self.parts.push(None);
            } else {
                self.parts.push(Some(part));
            }
        }
    }

    /// Takes the parts that have ended.
    fn collect(&mut self) {
        let fs = self.ranges.file.fs();
        let ended = if fs.is_some_and(|fs| fs.generation() != process::generation()) {
            // In the child of a fork(2) no read of the parent ends. There `wait` fails at once.
            (0..self.parts.len()).collect()
        } else {
            std::mem::take(&mut *lock(&self.ready.ended))
        };
        for at in ended {
            if let Some(part) = self.parts[at].take() {
                self.end(part);
            }
        }
    }

    /// Takes the chunks of a part that has ended.
    fn end(&mut self, part: Part) {
        let Part { begin, read, members } = part;
        self.left = self.left.map(|left| left - 1);
        // The read has ended, so `wait` does not block.
        match read.wait() {
            BufResult(Ok(()), buffer) => {
                let chunks = &mut self.chunks;
                self.ranges.cut(begin, members, buffer, |member, chunk| {
                    chunks.push_back((member, Ok(chunk)));
                });
            }
            BufResult(Err(error), _) => {
                let errors = members.into_iter().map(|member| (member, Err(again(&error))));
                self.chunks.extend(errors);
            }
        }
    }
}

/// A copy of the error, for another range.
fn again(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}

#[cfg(feature = "stream")]
impl futures_core::Stream for RangeChunks {
    type Item = (usize, io::Result<Chunk>);

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Self::Item>> {
        RangeChunks::poll_next(self.get_mut(), context)
    }
}
