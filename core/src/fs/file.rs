//! The operations of a file.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::{File as StdFile, FileTimes, Permissions};
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::FromRawFd as _;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use compio_buf::{IoBuf, IoBufMut};

use super::driver::Fs;
use super::handle::{File, outcome};
use super::metadata::Stat;
use super::op::{Op, Steps};
use super::options::{Open, OpenOptions};
use super::ranges::{Coalesce, ReadRanges};
use super::transfer::{Read, ReadExact, Write, WriteAll};
use super::vectored::{ReadVectored, WriteVectored};
use super::wakers::Flights;
use super::worker::OnWorker;
use crate::router::facts::Facts;
use crate::sqe::Sqe;

impl File {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// As open(2). `EINVAL`: the path contains a NUL.
    pub fn open(path: impl AsRef<Path>) -> Op<Open> {
        Self::options().read(true).open(path)
    }

    /// Opens a file for writing. The file is created if it does not exist, and truncated if it
    /// does.
    ///
    /// # Errors
    /// As [`File::open`].
    pub fn create(path: impl AsRef<Path>) -> Op<Open> {
        Self::options().write(true).create(true).truncate(true).open(path)
    }

    /// Creates a file, and opens it for reading and writing. The file must not exist.
    ///
    /// # Errors
    /// As [`File::open`]. `EEXIST`: the file exists.
    pub fn create_new(path: impl AsRef<Path>) -> Op<Open> {
        Self::options().read(true).write(true).create_new(true).open(path)
    }

    /// Options for opening a file in another way.
    pub fn options() -> OpenOptions {
        OpenOptions::default()
    }

    /// Reads from `offset` (bytes) into the buffer, from its beginning up to its capacity. Returns
    /// the number of bytes, 0 at the end of the file. The buffer's length is raised to that number
    /// if it is less.
    ///
    /// A read of at most [`inline_max`](super::FsBuilder::inline_max) bytes that are all in the
    /// page cache is executed by the first poll, with one system call. More than 2 GiB take several
    /// calls, one after the other; the first short one ends the read.
    ///
    /// # Errors
    /// As pread(2); the buffer is returned as well. `ECANCELED`: the read was cancelled.
    pub fn read_at<B: IoBufMut + Send>(&self, buffer: B, offset: u64) -> Op<Read<B>> {
        Op::new(Read::new(self, buffer, offset, 0))
    }

    /// As [`File::read_at`], until the buffer's capacity is full.
    ///
    /// # Errors
    /// As [`File::read_at`]. `UnexpectedEof`: the file ends before; the buffer has the bytes up to
    /// there.
    pub fn read_exact_at<B: IoBufMut + Send>(&self, buffer: B, offset: u64) -> Op<ReadExact<B>> {
        Op::new(ReadExact::new(self, buffer, offset, 0))
    }

    /// Reads several ranges at once, each of them whole; the chunks have the order of the ranges.
    /// Ranges that are close together are read as one, and the task is woken once. On a file that
    /// is open for direct I/O, ranges need no alignment: reads are widened to it, and their results
    /// cut.
    ///
    /// # Errors
    /// As [`File::read_at`]: the first error in the order of the file. `UnexpectedEof`: a range
    /// ends behind the file. `EINVAL`: a range ends before it begins, or behind 2^63 bytes.
    /// `ENOMEM`: there is no memory for a range.
    pub fn read_ranges(&self, ranges: &[Range<u64>], coalesce: Coalesce) -> ReadRanges {
        ReadRanges::new(self, ranges, coalesce)
    }

    /// As [`File::read_at`], into several buffers, one after the other (preadv(2)): at most 1,024.
    ///
    /// # Errors
    /// As [`File::read_at`]. `EINVAL`: there are more buffers.
    pub fn read_vectored_at<B: IoBufMut + Send>(
        &self,
        buffers: Vec<B>,
        offset: u64,
    ) -> Op<ReadVectored<B>> {
        Op::new(ReadVectored::new(self, buffers, offset))
    }

    /// As [`File::write_at`], of several buffers, one after the other (pwritev(2)): at most 1,024.
    ///
    /// # Errors
    /// As [`File::write_at`]. `EINVAL`: there are more buffers.
    pub fn write_vectored_at<B: IoBuf + Send>(
        &self,
        buffers: Vec<B>,
        offset: u64,
    ) -> Op<WriteVectored<B>> {
        Op::new(WriteVectored::new(self, buffers, offset))
    }

    /// Writes the buffer at `offset` (bytes). Returns the number of bytes written. The future is
    /// ready when the kernel has the bytes; [`File::sync_data`] brings them to the disk.
    ///
    /// **If the future is dropped after its first poll, the write may happen wholly, in part, or
    /// not at all.**
    ///
    /// # Errors
    /// As pwrite(2); the buffer is returned as well. `ECANCELED`: the write was cancelled.
    pub fn write_at<B: IoBuf + Send>(&self, buffer: B, offset: u64) -> Op<Write<B>> {
        Op::new(Write::new(self, buffer, offset, 0))
    }

    /// As [`File::write_at`], until everything is written.
    ///
    /// # Errors
    /// As [`File::write_at`]; `WriteZero` if the file takes no more. A part may have been written.
    pub fn write_all_at<B: IoBuf + Send>(&self, buffer: B, offset: u64) -> Op<WriteAll<B>> {
        Op::new(WriteAll::new(self, buffer, offset, 0))
    }

    /// Appends the buffer to the end of the file at that moment (`RWF_APPEND`, pwritev2(2)). The
    /// kernel does not return the offset.
    ///
    /// # Errors
    /// As [`File::write_at`]; `EOPNOTSUPP` before Linux 4.16.
    pub fn append<B: IoBuf + Send>(&self, buffer: B) -> Op<Write<B>> {
        Op::new(Write::new(self, buffer, 0, libc::RWF_APPEND))
    }

    /// Brings the file's data to the disk (fdatasync(2)): that of every write whose future was
    /// ready before this one is polled. Concurrent calls share one fdatasync(2).
    ///
    /// # Errors
    /// As fdatasync(2).
    pub fn sync_data(&self) -> Op<Control> {
        self.control(Sqe::fdatasync(self.number()))
    }

    /// As [`File::sync_data`], with all metadata (fsync(2)).
    ///
    /// # Errors
    /// As fsync(2).
    pub fn sync_all(&self) -> Op<Control> {
        self.control(Sqe::fsync(self.number()))
    }

    /// The file's kind, length, and so on (statx(2)).
    ///
    /// # Errors
    /// As statx(2).
    pub fn metadata(&self) -> Op<Stat> {
        Op::new(Stat::new(Some(self), CString::default(), libc::AT_EMPTY_PATH))
    }

    /// Another handle of the same file, like `clone`.
    ///
    /// # Errors
    /// None: the handles share the descriptor. Other libraries duplicate it, which may fail.
    pub async fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }

    /// Sets the file's permissions (fchmod(2)).
    ///
    /// # Errors
    /// As fchmod(2).
    pub fn set_permissions(&self, permissions: Permissions) -> Op<OnWorker<()>> {
        self.by_std(move |file| file.set_permissions(permissions))
    }

    /// Sets the times of the last read and change (futimens(3)).
    ///
    /// # Errors
    /// As futimens(3).
    pub fn set_times(&self, times: FileTimes) -> Op<OnWorker<()>> {
        self.by_std(move |file| file.set_times(times))
    }

    /// As [`File::set_times`], for the time of the last change.
    ///
    /// # Errors
    /// As [`File::set_times`].
    pub fn set_modified(&self, time: SystemTime) -> Op<OnWorker<()>> {
        self.set_times(FileTimes::new().set_modified(time))
    }

    /// Has a worker call a function of the standard library.
    fn by_std<T: Send + 'static>(
        &self,
        f: impl FnOnce(&StdFile) -> io::Result<T> + Send + 'static,
    ) -> Op<OnWorker<T>> {
        OnWorker::of(self, move |file| {
            // SAFETY: the file is open meanwhile, and is not closed by this.
            let std = ManuallyDrop::new(unsafe { StdFile::from_raw_fd(file.number()) });
            f(&std)
        })
    }

    /// Cuts the file to `length` bytes, or extends it with zeros (ftruncate(2)).
    ///
    /// # Errors
    /// As ftruncate(2).
    pub fn set_len(&self, length: u64) -> Op<Control> {
        self.control(Sqe::ftruncate(self.number(), length))
    }

    /// Allocates room on the disk for `length` bytes from `offset` on, and extends the file if
    /// needed (fallocate(2)).
    ///
    /// # Errors
    /// As fallocate(2).
    pub fn allocate(&self, offset: u64, length: u64) -> Op<Control> {
        self.control(Sqe::fallocate(self.number(), 0, offset, length))
    }

    /// Gives the room of `length` bytes from `offset` on back to the file system (fallocate(2)).
    /// Reads of these bytes return zeros then, and the file's length is unchanged.
    ///
    /// # Errors
    /// As fallocate(2). `EOPNOTSUPP`: the file system cannot.
    pub fn punch_hole(&self, offset: u64, length: u64) -> Op<Control> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        self.control(Sqe::fallocate(self.number(), mode as u32, offset, length))
    }

    /// Announces how the file will be used from `offset` on, for `length` bytes or, with 0, to its
    /// end (posix_fadvise(2)).
    ///
    /// # Errors
    /// As posix_fadvise(2).
    pub fn advise(&self, offset: u64, length: u64, advice: Advice) -> Op<Control> {
        // The length has 64 bits, and the field for it 32. So it goes into the field `addr`.
        let sqe = Sqe::fadvise(self.number(), offset, 0, advice as u32);
        self.control(Sqe { addr: length, ..sqe })
    }

    /// Closes the file in the background, and returns the error of close(2), for example that of a
    /// delayed write. If the future is dropped before its first poll, the file is closed as by any
    /// drop of the last handle.
    ///
    /// # Errors
    /// As close(2); the descriptor is closed in any case. `EBUSY`: there are other handles, or
    /// requests that have not ended. The file is closed after the last of them.
    pub fn close(self) -> Op<Close> {
        Op::new(Close { file: self })
    }

    fn control(&self, sqe: Sqe) -> Op<Control> {
        Op::new(Control { file: self.clone(), sqe })
    }
}

/// How a file will be used (posix_fadvise(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(i32)]
pub enum Advice {
    /// No particular pattern.
    Normal = libc::POSIX_FADV_NORMAL,
    /// The program reads from front to back: the kernel reads more ahead.
    Sequential = libc::POSIX_FADV_SEQUENTIAL,
    /// Random access: nothing is read ahead.
    Random = libc::POSIX_FADV_RANDOM,
    /// The data is needed soon: the kernel reads it into the page cache now.
    WillNeed = libc::POSIX_FADV_WILLNEED,
    /// The data is no longer needed: it may leave the page cache.
    DontNeed = libc::POSIX_FADV_DONTNEED,
    /// The data is used once.
    NoReuse = libc::POSIX_FADV_NOREUSE,
}

/// The operation of [`File::sync_data`], [`File::set_len`] and the like.
#[derive(Debug)]
pub struct Control {
    file: File,
    sqe: Sqe,
}

// SAFETY: the request passes no address.
unsafe impl Steps for Control {
    type Output = io::Result<()>;

    fn home(&self) -> &OnceLock<Fs> {
        self.file.home()
    }

    fn flights(&self) -> Option<&Arc<Flights>> {
        Some(self.file.flights())
    }

    fn request(&self) -> Sqe {
        self.sqe
    }

    fn end(self, result: i32) -> io::Result<()> {
        outcome(result).map(|_| ())
    }
}

/// The operation of [`File::close`].
#[derive(Debug)]
pub struct Close {
    file: File,
}

// SAFETY: the request passes no address.
unsafe impl Steps for Close {
    type Output = io::Result<()>;
    // A cancelled close would leave it unknown whether the descriptor was closed.
    const CANCELLABLE: bool = false;

    fn home(&self) -> &OnceLock<Fs> {
        self.file.home()
    }

    fn flights(&self) -> Option<&Arc<Flights>> {
        Some(self.file.flights())
    }

    fn prepare(&mut self) -> Result<(), i32> {
        if self.file.is_the_only_handle() { Ok(()) } else { Err(-libc::EBUSY) }
    }

    fn request(&self) -> Sqe {
        let fd = self.file.number();
        Facts::forget(&(fd..=fd));
        Sqe::close(fd)
    }

    fn after(&self, result: i32) -> Option<i32> {
        // The descriptor is closed, whatever close(2) returns.
        self.file.closed();
        Some(result)
    }

    fn end(self, result: i32) -> io::Result<()> {
        outcome(result).map(|_| ())
    }
}
