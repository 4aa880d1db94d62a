//! What can be asked of a file.
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
    /// As open(2). `EINVAL`: there is a NUL in the path.
    pub fn open(path: impl AsRef<Path>) -> Op<Open> {
        Self::options().read(true).open(path)
    }

    /// Opens a file for writing, made if it is not there, and emptied if it is.
    ///
    /// # Errors
    /// As [`File::open`].
    pub fn create(path: impl AsRef<Path>) -> Op<Open> {
        Self::options().write(true).create(true).truncate(true).open(path)
    }

    /// Makes a file, and opens it for reading and writing. It must not be there.
    ///
    /// # Errors
    /// As [`File::open`]. `EEXIST`: it is there.
    pub fn create_new(path: impl AsRef<Path>) -> Op<Open> {
        Self::options().read(true).write(true).create_new(true).open(path)
    }

    /// Options for opening a file in another way.
    pub fn options() -> OpenOptions {
        OpenOptions::default()
    }

    /// Reads from `offset` bytes on into the buffer, from its beginning, as far as its capacity
    /// goes. Gives the number of bytes, 0 at the end of the file. A length that is less is raised
    /// to that number.
    ///
    /// A read of at most [`inline_max`](super::FsBuilder::inline_max) bytes that are all in the
    /// page cache is done by the first poll, with one system call. More than 2 GiB take several
    /// calls, one after the other; they end with the first that is short.
    ///
    /// # Errors
    /// As pread(2), beside the buffer. `ECANCELED`: it was cancelled.
    pub fn read_at<B: IoBufMut + Send>(&self, buffer: B, offset: u64) -> Op<Read<B>> {
        Op::new(Read::new(self, buffer, offset, 0))
    }

    /// As [`File::read_at`], until the buffer's capacity is full.
    ///
    /// # Errors
    /// As [`File::read_at`]; `UnexpectedEof` if the file ends before, beside the buffer with what
    /// there was.
    pub fn read_exact_at<B: IoBufMut + Send>(&self, buffer: B, offset: u64) -> Op<ReadExact<B>> {
        Op::new(ReadExact::new(self, buffer, offset, 0))
    }

    /// Reads several ranges at once, each of them whole; the chunks come in the order of the
    /// ranges. Ranges close together are read as one, and the task is woken once. On a file that is
    /// open for direct I/O, ranges need no alignment: what is read is widened to it, and cut.
    ///
    /// # Errors
    /// As [`File::read_at`]: the first one in the order of the file. `UnexpectedEof`: a range ends
    /// behind the file. `EINVAL`: a range ends before it begins, or behind 2^63 bytes. `ENOMEM`:
    /// there is no memory for a range.
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

    /// Writes the buffer's bytes to `offset` bytes on. Gives how many were written. It is ready
    /// when the kernel has the bytes; [`File::sync_data`] brings them to the disk.
    ///
    /// **If the future is dropped after its first poll, the write may happen wholly, in part, or
    /// not at all.**
    ///
    /// # Errors
    /// As pwrite(2), beside the buffer. `ECANCELED`: it was cancelled.
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

    /// Writes the buffer's bytes to the end of the file, wherever that is by then (`RWF_APPEND`,
    /// pwritev2(2)). Where they went to the kernel does not tell.
    ///
    /// # Errors
    /// As [`File::write_at`]; `EOPNOTSUPP` before Linux 4.16.
    pub fn append<B: IoBuf + Send>(&self, buffer: B) -> Op<Write<B>> {
        Op::new(Write::new(self, buffer, 0, libc::RWF_APPEND))
    }

    /// Brings the file's data to the disk (fdatasync(2)): that of every write whose future was
    /// ready before this one is polled. Calls that are made at the same time are shared.
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

    /// What kind of file it is, its length, and so on (statx(2)).
    ///
    /// # Errors
    /// As statx(2).
    pub fn metadata(&self) -> Op<Stat> {
        Op::new(Stat::new(Some(self), CString::default(), libc::AT_EMPTY_PATH))
    }

    /// Another handle of the file, as by its clone.
    ///
    /// # Errors
    /// None: those of other libraries make another descriptor, which may fail.
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

    /// Sets when the file was last read and changed (futimens(3)).
    ///
    /// # Errors
    /// As futimens(3).
    pub fn set_times(&self, times: FileTimes) -> Op<OnWorker<()>> {
        self.by_std(move |file| file.set_times(times))
    }

    /// As [`File::set_times`], when it was last changed.
    ///
    /// # Errors
    /// As [`File::set_times`].
    pub fn set_modified(&self, time: SystemTime) -> Op<OnWorker<()>> {
        self.set_times(FileTimes::new().set_modified(time))
    }

    /// What the standard library does with a file, by a worker.
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

    /// Gives the file room on the disk for `length` bytes from `offset` on, and extends it if need
    /// be (fallocate(2)).
    ///
    /// # Errors
    /// As fallocate(2).
    pub fn allocate(&self, offset: u64, length: u64) -> Op<Control> {
        self.control(Sqe::fallocate(self.number(), 0, offset, length))
    }

    /// Gives the room of `length` bytes from `offset` on back to the file system: they are zeros
    /// then, and the file is as long as before (fallocate(2)).
    ///
    /// # Errors
    /// As fallocate(2). `EOPNOTSUPP`: the file system cannot.
    pub fn punch_hole(&self, offset: u64, length: u64) -> Op<Control> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        self.control(Sqe::fallocate(self.number(), mode as u32, offset, length))
    }

    /// Says how the file will be used from `offset` on, for `length` bytes, or, with 0, to its end
    /// (posix_fadvise(2)).
    ///
    /// # Errors
    /// As posix_fadvise(2). A length above `u32::MAX` is taken as 0.
    pub fn advise(&self, offset: u64, length: u64, advice: Advice) -> Op<Control> {
        let length = u32::try_from(length).unwrap_or(0);
        self.control(Sqe::fadvise(self.number(), offset, length, advice as u32))
    }

    /// Closes the file in the background, and tells of the error (close(2)): that of a write that
    /// the file system had put off, say. Dropped before it was polled, it closes the file like any
    /// drop of the last handle.
    ///
    /// # Errors
    /// As close(2); the descriptor is closed whatever it says. `EBUSY`: there are other handles, or
    /// requests that have not ended. It is closed after the last of them.
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
    /// In no particular way.
    Normal = libc::POSIX_FADV_NORMAL,
    /// From front to back: more is read ahead.
    Sequential = libc::POSIX_FADV_SEQUENTIAL,
    /// Here and there: nothing is read ahead.
    Random = libc::POSIX_FADV_RANDOM,
    /// Soon: it is read into the page cache now.
    WillNeed = libc::POSIX_FADV_WILLNEED,
    /// No more: it may leave the page cache.
    DontNeed = libc::POSIX_FADV_DONTNEED,
    /// Once.
    NoReuse = libc::POSIX_FADV_NOREUSE,
}

/// What [`File::sync_data`], [`File::set_len`] and the like do.
#[derive(Debug)]
pub struct Control {
    file: File,
    sqe: Sqe,
}

// SAFETY: the request has no memory.
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

/// What [`File::close`] does.
#[derive(Debug)]
pub struct Close {
    file: File,
}

// SAFETY: the request has no memory.
unsafe impl Steps for Close {
    type Output = io::Result<()>;
    // Whether the descriptor was closed would not be known.
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
        // Whatever it says (close(2)).
        self.file.closed();
        Some(result)
    }

    fn end(self, result: i32) -> io::Result<()> {
        outcome(result).map(|_| ())
    }
}
