//! Writes of any range, also to files that are open for direct I/O.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::io;
use std::ptr;
use std::sync::{Arc, OnceLock};

use compio_buf::{BufResult, IoBuf, IoBufMut as _};

use super::driver::{Fs, Header};
use super::handle::{Alignment, File, outcome};
use super::op::{Op, Steps};
use super::pool::{Pool, PoolBuf};
use super::transfer::{Direction, Out, Span};
use super::wakers::Flights;
use super::whole::errno_of;
use super::worker::uninterrupted;
use super::worker::{Behind, call};
use crate::sqe::Sqe;
use crate::sys;

/// Bytes of one call, and of one that is copied before.
const PART: usize = 8 << 20;
const COPIED: usize = 1 << 20;

impl File {
    /// As [`File::write_all_at`], and to a file that is open for direct I/O from any memory, at any
    /// offset and of any length. The file is never longer than what was written.
    ///
    /// The pages of the file that the range covers go past the page cache. What is left at its two
    /// ends is written through a second descriptor of the file, which has no `O_DIRECT`: the kernel
    /// reads such a block, changes it and writes it back. One thread of the engine makes all calls,
    /// from front to back: one for each end within a page, and one for each 8 MiB between; from
    /// memory that is not aligned, which is copied, one for each MiB. [`File::sync_data`] brings
    /// all of it to the disk.
    ///
    /// The second descriptor is opened on first use, with the `O_SYNC` or `O_DSYNC` of the file. It
    /// is closed with the last handle, also by [`File::into_std`]: the record locks (fcntl(2)) that
    /// the process has on the file go then.
    ///
    /// Done with direct calls, an end would be read, changed and written here. That is one call
    /// more for each, and what others write into the block meanwhile would be lost. The last block
    /// would make the file too long, until a further call had cut it.
    ///
    /// # Beside other writes
    /// - Writes of this kind and buffered ones leave each other alone if they have no byte in
    ///   common, also within a block, and of whatever process.
    /// - Where several of this kind overlap, each byte is that of one of them. Parts of the range
    ///   may be of different ones.
    /// - A direct [`write_at`](File::write_at) is to be over before a byte of the same page is
    ///   written this way, and the other way round: the kernel does not keep them apart.
    ///
    /// This holds for file systems that do not let a buffered and a direct write of a file run at
    /// the same time: ext4, XFS, Btrfs and F2FS.
    ///
    /// **If the future is dropped after its first poll, the write may happen wholly, in part, or
    /// not at all.** A part is one from the front.
    ///
    /// ```
    /// use uringlet::fs::{BufResult, Direct, File};
    ///
    /// # async fn example(path: &std::path::Path) -> std::io::Result<()> {
    /// let mut options = File::options();
    /// let file = options.write(true).create(true).direct(Direct::Try).open(path).await?;
    /// let BufResult(result, _buffer) = file.write_range_at(vec![7; 10_000], 100).await;
    /// result?;
    /// assert_eq!(file.metadata().await?.len(), 10_100);
    /// # Ok(())
    /// # }
    /// # let folder = tempfile::tempdir()?;
    /// # pollster::block_on(example(&folder.path().join("file")))?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`File::write_all_at`]; a part may have been written. Of a direct file whose range is not
    /// aligned, also as open(2) of `/proc/thread-self/fd/N`, once for a file, and nothing was
    /// written then: `EACCES` if its permissions do not allow writing any more, and `ENOENT`
    /// without `/proc`. `EINVAL`: such a file is open for appending. `ENOMEM`: there is no memory
    /// for a copy.
    pub fn write_range_at<B: IoBuf + Send>(&self, buffer: B, offset: u64) -> Op<WriteRange<B>> {
        let (file, span) = (self.clone(), Span::new(offset));
        Op::new(WriteRange {
            file,
            span,
            buffer: UnsafeCell::new(buffer),
            header: Behind::nothing(),
        })
    }
}

/// What [`File::write_range_at`] does.
#[derive(Debug)]
pub struct WriteRange<B> {
    file: File,
    span: Span,
    buffer: UnsafeCell<B>,
    header: Behind,
}

impl<B> WriteRange<B> {
    /// Writes what is left, on a worker.
    fn write(&self) -> io::Result<()> {
        // SAFETY: set by `pin`; the caller is the worker.
        let header = unsafe { self.header.get() };
        let Alignment { memory, offset } = self.file.granules();
        // A page belongs to the page cache or to direct calls. Without direct I/O there is no end.
        let granule = if offset > 1 { offset.max(page_size()) } else { 1 };
        if !self.span.is_whole() && !self.span.is_aligned(granule) {
            // What refuses the ends refuses the rest: before a byte is written.
            self.file.buffered()?;
        }
        let mut copy = None;
        while !self.span.is_whole() {
            if header.is_stopped() {
                return Err(io::Error::from_raw_os_error(libc::ECANCELED));
            }
            let (address, length, offset) = self.span.left();
            let skipped = (offset % granule as u64) as usize;
            let is_end = skipped > 0 || length < granule;
            let is_aligned = address.is_multiple_of(memory as u64);
            let (fd, length) = if is_end {
                (self.file.buffered()?, length.min(granule - skipped))
            } else {
                let part = if is_aligned { PART } else { COPIED };
                (self.file.number(), length.min(part.max(granule)) / granule * granule)
            };
            let from = if is_end || is_aligned {
                address
            } else {
                copied(&mut copy, address as *const u8, length, memory)? as u64
            };
            // SAFETY: the buffer is the operation's, which is under way, or the copy.
            let written = uninterrupted(|| unsafe { sys::pwrite(fd, from, length, offset) });
            if outcome(written)? == 0 {
                break;
            }
            self.span.after(written);
        }
        Ok(())
    }
}

fn page_size() -> usize {
    // SAFETY: no memory is passed.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// A copy of bytes, in aligned memory that is taken once.
fn copied(
    copy: &mut Option<PoolBuf>,
    from: *const u8,
    length: usize,
    memory: usize,
) -> io::Result<*const u8> {
    if copy.is_none() {
        *copy = Pool::new(length, memory, 1)?.try_take();
    }
    let copy = copy.as_mut().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
    let into = copy.as_uninit();
    assert!(length <= into.len(), "parts do not grow");
    // SAFETY: as many bytes are there, and here: the caller's buffer, which nobody changes.
    unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr().cast(), length) };
    Ok(into.as_ptr().cast())
}

/// What the worker calls.
///
/// # Safety
/// The address of a `WriteRange<B>` whose request is under way.
unsafe extern "C" fn write<B>(operation: u64) -> i32 {
    // SAFETY: the caller's contract.
    let operation = unsafe { &*ptr::with_exposed_provenance::<WriteRange<B>>(operation as usize) };
    operation.write().map_or_else(|error| errno_of(&error), |()| 0)
}

// SAFETY: the buffer is in the operation, as in `FileTransfer`.
unsafe impl<B: IoBuf + Send> Steps for WriteRange<B> {
    type Output = BufResult<(), B>;

    fn home(&self) -> &OnceLock<Fs> {
        self.file.home()
    }

    fn flights(&self) -> Option<&Arc<Flights>> {
        Some(self.file.flights())
    }

    fn pin(&self, header: &Header) {
        self.header.set(header);
        // SAFETY: not out with the kernel yet.
        self.span.pin(Out::memory(unsafe { &mut *self.buffer.get() }));
    }

    fn request(&self) -> Sqe {
        call(write::<B>, self)
    }

    fn bytes(&self) -> u64 {
        self.span.bytes()
    }

    fn end(self, result: i32) -> BufResult<(), B> {
        BufResult(self.span.all(result, io::ErrorKind::WriteZero), self.buffer.into_inner())
    }
}
