//! A file with a position, for code that reads and writes streams.

use std::io::{self, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use compio_buf::{BufResult, IntoInner as _, Slice};

use super::any_range::WriteRange;
use super::budget::{Awaited as _, HasTurns, Spent, Turns, in_turn};
use super::handle::File;
use super::metadata::Stat;
use super::op::Op;
use super::ranges::Wide;
use super::transfer::{Read, Write};

/// A [`File`] with a position of its own, and a buffer. With the feature `tokio`, a cursor has
/// tokio's `AsyncRead`, `AsyncBufRead`, `AsyncWrite` and `AsyncSeek`. With the feature
/// `futures-io`, it has the traits of that crate.
///
/// A read fills the buffer from the file, and later reads take their bytes from the buffer. So they
/// do not see later changes of the file. If a read's future is dropped, nothing is lost: the next
/// read takes over the dropped one.
///
/// A write is ready when the kernel has the bytes, or when the write has failed. Each write goes to
/// the engine, with at most as many bytes as the buffer's capacity: use a `BufWriter` for small
/// writes. **A write whose future was dropped goes on.** If the next write begins with the same
/// bytes, it takes over the dropped write. Any other write begins after the dropped write has
/// ended, or returns the error of the dropped write.
///
/// A cursor is for files with offsets, not for pipes and sockets. On a file that is open for direct
/// I/O, reads are widened to its alignment, and writes are those of [`File::write_range_at`].
///
/// ```
/// # #[cfg(feature = "tokio")]
/// # fn main() -> std::io::Result<()> {
/// use tokio::io::AsyncBufReadExt as _;
/// use uringlet::fs::{Cursor, File};
///
/// async fn count_lines(path: &str) -> std::io::Result<usize> {
///     let mut lines = Cursor::new(File::open(path).await?, 64 << 10).lines();
///     let mut count = 0;
///     while lines.next_line().await?.is_some() {
///         count += 1;
///     }
///     Ok(count)
/// }
/// # assert!(pollster::block_on(count_lines("/etc/passwd"))? > 0);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "tokio"))]
/// # fn main() {}
/// ```
#[derive(Debug)]
pub struct Cursor {
    file: File,
    position: u64,
    capacity: usize,
    /// The bytes that were read, from `start` on.
    buffer: Vec<u8>,
    start: u64,
    doing: Doing,
    /// The target of a seek that was started by tokio's `start_seek`, until it is complete.
    wish: Option<SeekFrom>,
    turns: Turns,
}

impl HasTurns for Cursor {
    fn turns(&mut self) -> &mut Turns {
        &mut self.turns
    }
}

/// The operation under way, for the last caller or for one whose future was dropped.
#[derive(Debug)]
enum Doing {
    Nothing,
    /// A read, the position for which it was begun, and the offset in the file of its slice.
    Reading(Op<Read<Slice<Vec<u8>>>>, u64, u64),
    Writing(Writing),
    /// A seek relative to the end.
    Seeking(Box<Op<Stat>>, i64),
}

#[derive(Debug)]
enum Writing {
    Once(Op<Write<Vec<u8>>>),
    /// A write to a direct file.
    Range(Op<WriteRange<Vec<u8>>>),
}

impl Writing {
    fn new(file: &File, buffer: Vec<u8>, position: u64) -> Self {
        match file.alignment() {
            None => Self::Once(file.write_at(buffer, position)),
            Some(_) => Self::Range(file.write_range_at(buffer, position)),
        }
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
        spent: &mut Spent,
    ) -> Poll<BufResult<usize, Vec<u8>>> {
        match self {
            Self::Once(write) => write.poll_in_turn(context, spent),
            Self::Range(write) => write.poll_in_turn(context, spent).map(|written| {
                let BufResult(result, buffer) = written;
                BufResult(result.map(|()| buffer.len()), buffer)
            }),
        }
    }
}

impl Cursor {
    /// A cursor at the beginning of the file, with a buffer for `capacity` bytes, at least one.
    /// Reads of up to 64 KiB are tried on the polling thread. If there is no memory for the buffer,
    /// reads fail with `ENOMEM`.
    pub fn new(file: File, capacity: usize) -> Self {
        Self {
            file,
            position: 0,
            capacity: capacity.max(1),
            buffer: Vec::new(),
            start: 0,
            doing: Doing::Nothing,
            wish: None,
            turns: Turns::default(),
        }
    }

    /// The position of the next read or write, in bytes from the beginning of the file.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Sets the position. A write whose future was dropped keeps its own position.
    pub fn set_position(&mut self, position: u64) {
        if matches!(self.doing, Doing::Writing(_)) {
            // At its end, the write would move the new position. Nobody waits for its result.
            self.doing = Doing::Nothing;
        }
        self.position = position;
        self.wish = None;
    }

    /// The file.
    pub fn get_ref(&self) -> &File {
        &self.file
    }

    /// Returns the file; buffered bytes are dropped.
    pub fn into_inner(self) -> File {
        self.file
    }

    /// The buffered bytes from the position on.
    fn buffered(&self) -> &[u8] {
        let at = self.position.checked_sub(self.start).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| self.buffer.get(at..)).unwrap_or(&[])
    }

    /// Completes an earlier write whose future was dropped. Moves the position by its bytes.
    fn poll_written(
        &mut self,
        context: &mut Context<'_>,
        spent: &mut Spent,
    ) -> Poll<io::Result<()>> {
        let Doing::Writing(write) = &mut self.doing else { return Poll::Ready(Ok(())) };
        let BufResult(result, buffer) = ready!(write.poll(context, spent));
        self.doing = Doing::Nothing;
        self.has_written(result, buffer).map_ok(|_| ())
    }

    fn has_written(
        &mut self,
        result: io::Result<usize>,
        mut buffer: Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        // The write may have overwritten bytes that were read, so these are dropped.
        buffer.clear();
        self.buffer = buffer;
        if let Ok(count) = result {
            self.position += count as u64;
        }
        Poll::Ready(result)
    }

    fn poll_fill(&mut self, context: &mut Context<'_>, spent: &mut Spent) -> Poll<io::Result<()>> {
        ready!(self.poll_written(context, spent))?;
        while self.buffered().is_empty() {
            let (read, from) = match &mut self.doing {
                Doing::Reading(read, from, begin) => (read, (*from, *begin)),
                _ => {
                    let position = self.position;
                    let range = position..position.saturating_add(self.capacity as u64);
                    let wide = Wide::of(&self.file, &range, std::mem::take(&mut self.buffer))?;
                    let read = self.file.read_at(wide.buffer, wide.begin);
                    self.doing = Doing::Reading(read, position, wide.begin);
                    continue;
                }
            };
            let (from, begin) = from;
            if from != self.position {
                // A future was dropped, and this read begins at another position.
                self.doing = Doing::Nothing;
                continue;
            }
            let BufResult(result, buffer) = ready!(read.poll_in_turn(context, spent));
            self.doing = Doing::Nothing;
            let skipped = buffer.begin() + (from - begin) as usize;
            self.buffer = buffer.into_inner();
            let count = result.inspect_err(|_| self.buffer.clear())?;
            // Reads skip no bytes, except on a file with an alignment.
            self.buffer.drain(..skipped.min(self.buffer.len()));
            self.start = from;
            if count as u64 <= from - begin {
                self.buffer.clear();
                break;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn consume(&mut self, count: usize) {
        self.position += count.min(self.buffered().len()) as u64;
    }

    /// Passes buffered bytes to `take`, which returns the number taken. If the caller's buffer
    /// `is_full`, no bytes are read.
    fn poll_take(
        &mut self,
        context: &mut Context<'_>,
        is_full: bool,
        take: impl FnOnce(&[u8]) -> usize,
    ) -> Poll<io::Result<usize>> {
        in_turn(self, context, |this, context, spent| {
            if !is_full {
                ready!(this.poll_fill(context, spent))?;
            }
            let count = take(this.buffered());
            this.consume(count);
            spent.bytes = spent.bytes.max(u32::try_from(count).unwrap_or(u32::MAX));
            Poll::Ready(Ok(count))
        })
    }

    fn poll_put(
        &mut self,
        context: &mut Context<'_>,
        spent: &mut Spent,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            if let Doing::Writing(write) = &mut self.doing {
                let BufResult(result, buffer) = ready!(write.poll(context, spent));
                self.doing = Doing::Nothing;
                let is_this = bytes.starts_with(&buffer);
                let written = ready!(self.has_written(result, buffer));
                match written {
                    Ok(_) if !is_this => {}
                    other => return Poll::Ready(other),
                }
            }
            if bytes.is_empty() {
                return Poll::Ready(Ok(0));
            }
            // The new value of `doing` ends a read that is under way: the write may change the
            // bytes that the read returns.
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.clear();
            buffer.extend_from_slice(&bytes[..bytes.len().min(self.capacity)]);
            self.doing = Doing::Writing(Writing::new(&self.file, buffer, self.position));
        }
    }

    fn poll_seek_to(
        &mut self,
        context: &mut Context<'_>,
        spent: &mut Spent,
        to: SeekFrom,
    ) -> Poll<io::Result<u64>> {
        ready!(self.poll_written(context, spent))?;
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => {
                let stat = match &mut self.doing {
                    Doing::Seeking(stat, known) if *known == by => stat,
                    other => {
                        *other = Doing::Seeking(Box::new(self.file.metadata()), by);
                        return self.poll_seek_to(context, spent, to);
                    }
                };
                let metadata = ready!(stat.poll_in_turn(context, spent));
                self.doing = Doing::Nothing;
                metadata?.len().checked_add_signed(by)
            }
        };
        let position = position.filter(|&position| position <= i64::MAX as u64);
        self.position = position.ok_or_else(invalid)?;
        Poll::Ready(Ok(self.position))
    }
}

impl Drop for Doing {
    /// A write that was begun goes on.
    fn drop(&mut self) {
        match self {
            Self::Writing(Writing::Once(write)) => write.release(),
            Self::Writing(Writing::Range(write)) => write.release(),
            _ => {}
        }
    }
}

/// The common part of tokio's and `futures-io`'s traits. `$close` flushes: the file stays open.
macro_rules! buffered_stream {
    ($of:path, $close:ident) => {
        const _: () = {
            use $of as of;

            impl of::AsyncBufRead for Cursor {
                fn poll_fill_buf(
                    self: Pin<&mut Self>,
                    context: &mut Context<'_>,
                ) -> Poll<io::Result<&[u8]>> {
                    let this = self.get_mut();
                    ready!(in_turn(this, context, Cursor::poll_fill))?;
                    Poll::Ready(Ok(this.buffered()))
                }

                fn consume(self: Pin<&mut Self>, count: usize) {
                    Cursor::consume(self.get_mut(), count);
                }
            }

            impl of::AsyncWrite for Cursor {
                fn poll_write(
                    mut self: Pin<&mut Self>,
                    context: &mut Context<'_>,
                    bytes: &[u8],
                ) -> Poll<io::Result<usize>> {
                    in_turn(&mut *self, context, |this, context, spent| {
                        this.poll_put(context, spent, bytes)
                    })
                }

                fn poll_flush(
                    mut self: Pin<&mut Self>,
                    context: &mut Context<'_>,
                ) -> Poll<io::Result<()>> {
                    in_turn(&mut *self, context, Cursor::poll_written)
                }

                fn $close(
                    mut self: Pin<&mut Self>,
                    context: &mut Context<'_>,
                ) -> Poll<io::Result<()>> {
                    in_turn(&mut *self, context, Cursor::poll_written)
                }
            }
        };
    };
}

#[cfg(feature = "tokio")]
buffered_stream!(tokio::io, poll_shutdown);
#[cfg(feature = "futures-io")]
buffered_stream!(futures_io, poll_close);

#[cfg(feature = "tokio")]
impl tokio::io::AsyncRead for Cursor {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let is_empty = into.remaining() == 0;
        let take = |bytes: &[u8]| {
            let count = bytes.len().min(into.remaining());
            into.put_slice(&bytes[..count]);
            count
        };
        self.poll_take(context, is_empty, take).map_ok(|_| ())
    }
}

#[cfg(feature = "futures-io")]
impl futures_io::AsyncRead for Cursor {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_take(context, into.is_empty(), |bytes| {
            let count = bytes.len().min(into.len());
            into[..count].copy_from_slice(&bytes[..count]);
            count
        })
    }
}

#[cfg(feature = "tokio")]
impl tokio::io::AsyncSeek for Cursor {
    fn start_seek(mut self: Pin<&mut Self>, to: SeekFrom) -> io::Result<()> {
        self.wish = Some(to);
        Ok(())
    }

    fn poll_complete(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        in_turn(&mut *self, context, |this, context, spent| {
            let Some(to) = this.wish else { return Poll::Ready(Ok(this.position)) };
            let output = ready!(this.poll_seek_to(context, spent, to));
            this.wish = None;
            Poll::Ready(output)
        })
    }
}

#[cfg(feature = "futures-io")]
impl futures_io::AsyncSeek for Cursor {
    fn poll_seek(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: SeekFrom,
    ) -> Poll<io::Result<u64>> {
        in_turn(&mut *self, context, |this, context, spent| this.poll_seek_to(context, spent, to))
    }
}
