//! A file with a position, for code that reads and writes streams.

use std::future::Future;
use std::io::{self, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use compio_buf::BufResult;

use super::handle::File;
use super::metadata::Stat;
use super::op::Op;
use super::transfer::{Read, Write};

/// A [`File`] with a position of its own, and a buffer: tokio's `AsyncRead`, `AsyncBufRead`,
/// `AsyncWrite` and `AsyncSeek` with the feature `tokio`, those of `futures-io` with that feature.
///
/// A read takes as much of the file into the buffer as that has room for, and gives parts of it; it
/// does not see what others change meanwhile. If its future is dropped, nothing is lost: the next
/// read goes on with it.
///
/// A write is ready when the kernel has the bytes, and an error is its own. At most as many bytes
/// as the buffer has room for go at once, each time to the engine: small writes are better put into
/// a `BufWriter`. **A write whose future was dropped goes on.** Should the next write be one of the
/// same bytes, then it is that one; anything else comes behind what was written, or gets its error.
///
/// For files with offsets, not for pipes and sockets.
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
    /// What was read, from `start` on.
    buffer: Vec<u8>,
    start: u64,
    doing: Doing,
    /// Where tokio wants to seek to.
    wish: Option<SeekFrom>,
}

/// What is under way, for the last caller or for one that is gone.
#[derive(Debug)]
enum Doing {
    Nothing,
    Reading(Op<Read<Vec<u8>>>, u64),
    Writing(Op<Write<Vec<u8>>>),
    /// So far from the end.
    Seeking(Box<Op<Stat>>, i64),
}

impl Cursor {
    /// At the beginning of the file, with a buffer for `capacity` bytes, at least one. Reads of up
    /// to 64 KiB are tried on the polling thread.
    pub fn new(file: File, capacity: usize) -> Self {
        Self {
            file,
            position: 0,
            capacity: capacity.max(1),
            buffer: Vec::new(),
            start: 0,
            doing: Doing::Nothing,
            wish: None,
        }
    }

    /// Where the next byte is read, or written, in bytes from the beginning of the file.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Goes to another position. A write whose future was dropped goes where it was to go.
    pub fn set_position(&mut self, position: u64) {
        if matches!(self.doing, Doing::Writing(_)) {
            // It would move the position when it has ended. Its outcome is nobody's.
            self.doing = Doing::Nothing;
        }
        self.position = position;
        self.wish = None;
    }

    /// The file.
    pub fn get_ref(&self) -> &File {
        &self.file
    }

    /// The file; what is buffered is forgotten.
    pub fn into_inner(self) -> File {
        self.file
    }

    /// What is buffered, from the position on.
    fn buffered(&self) -> &[u8] {
        let at = self.position.checked_sub(self.start).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| self.buffer.get(at..)).unwrap_or(&[])
    }

    /// A write of somebody who is gone ends, and moves the position.
    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Doing::Writing(write) = &mut self.doing else { return Poll::Ready(Ok(())) };
        let BufResult(result, buffer) = ready!(Pin::new(write).poll(context));
        self.doing = Doing::Nothing;
        self.has_written(result, buffer).map_ok(|_| ())
    }

    fn has_written(
        &mut self,
        result: io::Result<usize>,
        mut buffer: Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        // What was read may be what was written over.
        buffer.clear();
        self.buffer = buffer;
        if let Ok(count) = result {
            self.position += count as u64;
        }
        Poll::Ready(result)
    }

    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_written(context))?;
        while self.buffered().is_empty() {
            let (read, from) = match &mut self.doing {
                Doing::Reading(read, from) => (read, *from),
                _ => {
                    let mut buffer = std::mem::take(&mut self.buffer);
                    buffer.clear();
                    buffer.reserve_exact(self.capacity);
                    let read = self.file.read_at(buffer, self.position);
                    self.doing = Doing::Reading(read, self.position);
                    continue;
                }
            };
            if from != self.position {
                // For somebody who is gone, from elsewhere.
                self.doing = Doing::Nothing;
                continue;
            }
            let BufResult(result, buffer) = ready!(Pin::new(read).poll(context));
            self.doing = Doing::Nothing;
            (self.buffer, self.start) = (buffer, from);
            if result? == 0 {
                self.buffer.clear();
                break;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn consume(&mut self, count: usize) {
        self.position += count.min(self.buffered().len()) as u64;
    }

    /// Gives some bytes to `take`, which gives how many it has taken.
    fn poll_take(
        &mut self,
        context: &mut Context<'_>,
        take: impl FnOnce(&[u8]) -> usize,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_fill(context))?;
        let count = take(self.buffered());
        self.consume(count);
        Poll::Ready(Ok(count))
    }

    fn poll_put(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            if let Doing::Writing(write) = &mut self.doing {
                let BufResult(result, buffer) = ready!(Pin::new(write).poll(context));
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
            // A read is forgotten: what it finds is about to be written over.
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.clear();
            buffer.extend_from_slice(&bytes[..bytes.len().min(self.capacity)]);
            self.doing = Doing::Writing(self.file.write_at(buffer, self.position));
        }
    }

    fn poll_seek_to(&mut self, context: &mut Context<'_>, to: SeekFrom) -> Poll<io::Result<u64>> {
        ready!(self.poll_written(context))?;
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => {
                let stat = match &mut self.doing {
                    Doing::Seeking(stat, known) if *known == by => stat,
                    other => {
                        *other = Doing::Seeking(Box::new(self.file.metadata()), by);
                        return self.poll_seek_to(context, to);
                    }
                };
                let metadata = ready!(Pin::new(stat).poll(context));
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
        if let Self::Writing(write) = self {
            write.release();
        }
    }
}

/// What tokio and `futures-io` have alike; `$close` is as a flush: the file stays open.
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
                    ready!(this.poll_fill(context))?;
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
                    self.poll_put(context, bytes)
                }

                fn poll_flush(
                    mut self: Pin<&mut Self>,
                    context: &mut Context<'_>,
                ) -> Poll<io::Result<()>> {
                    self.poll_written(context)
                }

                fn $close(
                    mut self: Pin<&mut Self>,
                    context: &mut Context<'_>,
                ) -> Poll<io::Result<()>> {
                    self.poll_written(context)
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
        if into.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let take = |bytes: &[u8]| {
            let count = bytes.len().min(into.remaining());
            into.put_slice(&bytes[..count]);
            count
        };
        self.poll_take(context, take).map_ok(|_| ())
    }
}

#[cfg(feature = "futures-io")]
impl futures_io::AsyncRead for Cursor {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if into.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.poll_take(context, |bytes| {
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
        let Some(to) = self.wish else { return Poll::Ready(Ok(self.position)) };
        let output = ready!(self.poll_seek_to(context, to));
        self.wish = None;
        Poll::Ready(output)
    }
}

#[cfg(feature = "futures-io")]
impl futures_io::AsyncSeek for Cursor {
    fn poll_seek(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: SeekFrom,
    ) -> Poll<io::Result<u64>> {
        self.poll_seek_to(context, to)
    }
}
