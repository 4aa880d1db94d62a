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

/// The maximum number of bytes of one call, and of one copy to aligned memory.
const PART: usize = 8 << 20;
const COPIED: usize = 1 << 20;

impl File {
    /// As [`File::write_all_at`]. A file that is open for direct I/O can be written from any
    /// memory, at any offset, with any length. The file never grows beyond the end of the range.
    ///
    /// Whole pages of the range bypass the page cache. The parts at its two ends are written
    /// through a second descriptor of the file without `O_DIRECT`. For each of these parts, the
    /// kernel reads a block, changes it and writes it back. One thread of the engine makes all
    /// calls, from front to back. There is one call for each end within a page, and one for each 8
    /// MiB between. Unaligned memory is copied, with one call for each MiB. [`File::sync_data`]
    /// brings all of it to the disk.
    ///
    /// The second descriptor is opened on first use, with the `O_SYNC` or `O_DSYNC` of the file. It
    /// is closed with the last handle, also by [`File::into_std`]. The close releases the record
    /// locks (fcntl(2)) that the process has on the file.
    ///
    /// Without that descriptor, this crate would have to read, change and write each end with
    /// direct calls. That is one more call for each end, and concurrent writes to the block would
    /// be lost. The last block would make the file too long, until a further call had cut it.
    ///
    /// # Beside other writes
    /// - A write of this kind and a buffered write of any process leave each other's bytes alone if
    ///   they have no byte in common. Both may be in the same block.
    /// - Where several writes of this kind overlap, each byte comes from one of them. Different
    ///   bytes may come from different writes.
    /// - A direct [`write_at`](File::write_at) and a write of this kind must not write to the same
    ///   page at the same time. The kernel does not keep them apart.
    ///
    /// These rules hold for ext4, XFS, Btrfs and F2FS. Such file systems do not let a buffered and
    /// a direct write of a file run at the same time.
    ///
    /// **If the future is dropped after its first poll, the write may happen wholly, in part, or
    /// not at all.** If it happens in part, that is the front part.
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
    /// As [`File::write_all_at`]; a part may have been written. A write that opens the second
    /// descriptor also has the errors of open(2) of `/proc/thread-self/fd/N`, before anything is
    /// written. `EACCES`: the file's permissions do not allow writing any more. `ENOENT`: there is
    /// no `/proc`. `EINVAL`: a direct file is open for appending. `ENOMEM`: there is no memory for
    /// a copy.
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

/// The operation of [`File::write_range_at`].
#[derive(Debug)]
pub struct WriteRange<B> {
    file: File,
    span: Span,
    buffer: UnsafeCell<B>,
    header: Behind,
}

impl<B> WriteRange<B> {
    /// Writes the remaining bytes, on a worker.
    fn write(&self) -> io::Result<()> {
        // SAFETY: `pin` has set the header; the caller is the worker.
        let header = unsafe { self.header.get() };
        let Alignment { memory, offset } = self.file.granules();
        // A page is written either through the page cache or by direct calls. Without direct I/O
        // (granule 1), no part needs the second descriptor.
        let granule = if offset > 1 { offset.max(page_size()) } else { 1 };
        if !self.span.is_whole() && !self.span.is_aligned(granule) {
            // An error of the second descriptor fails the whole write, before a byte is written.
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
            // SAFETY: the memory is that of the copy, or of the buffer, which the operation owns
            // while its request is under way.
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

/// Copies bytes to aligned memory, which is allocated once.
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
    // SAFETY: both have `length` bytes and do not overlap. Nothing changes the caller's buffer.
    unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr().cast(), length) };
    Ok(into.as_ptr().cast())
}

/// The function that the worker calls.
///
/// # Safety
/// `operation` is the address of a `WriteRange<B>` whose request is under way.
unsafe extern "C" fn write<B>(operation: u64) -> i32 {
    // SAFETY: the caller's contract.
    let operation = unsafe { &*ptr::with_exposed_provenance::<WriteRange<B>>(operation as usize) };
    operation.write().map_or_else(|error| errno_of(&error), |()| 0)
}

// SAFETY: the operation owns the buffer, as in `FileTransfer`.
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
        // SAFETY: no request has the buffer's address yet, so nothing else uses the buffer.
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
