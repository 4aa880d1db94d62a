//! A file: its descriptor, and what was learned about it.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use compio_buf::{IoBuf, IoBufMut};

use super::driver::Fs;
use super::metadata::Stat;
use super::op::{Op, Steps};
use super::options::{Open, OpenOptions};
use super::ranges::{Coalesce, ReadRanges};
use super::transfer::{Read, ReadExact, Write, WriteAll};
use crate::router::facts::Facts;
use crate::sqe::Sqe;
use crate::sys;

/// An open file for positional reads and writes, on any executor. A handle, cheap to clone.
///
/// The descriptor is closed after the last handle is dropped and the last request has ended.
/// [`File::close`] does it in the background, and tells of the error.
#[derive(Clone)]
pub struct File(Arc<Inner>);

struct Inner {
    descriptor: ManuallyDrop<OwnedFd>,
    /// A request has closed it.
    is_closed: AtomicBool,
    fs: OnceLock<Fs>,
    /// One of [`way`].
    way: AtomicU8,
    alignment: Option<Alignment>,
}

/// How reads are tried that are not to sleep.
mod way {
    /// With `RWF_NOWAIT`, until the file refuses that.
    pub(super) const NOWAIT: u8 = 0;
    /// As they are: the file is in memory.
    pub(super) const PLAIN: u8 = 1;
    /// Not at all.
    pub(super) const NEVER: u8 = 2;
}

/// What direct reads and writes of a file have to be multiples of, in bytes (statx(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Addresses of buffers.
    pub memory: usize,
    /// Offsets and lengths.
    pub offset: usize,
}

/// This kernel or a sandbox refuses preadv2(2).
static IS_REFUSED: AtomicBool = AtomicBool::new(false);

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

    /// Options for opening a file in another way.
    pub fn options() -> OpenOptions {
        OpenOptions::default()
    }

    /// Takes over a file that is open already. Direct I/O set on it later is not noticed, and its
    /// reads then sleep on the polling thread.
    pub fn from_std(file: std::fs::File) -> Self {
        let is_direct = sys::status_flags(file.as_raw_fd()) & libc::O_DIRECT as isize != 0;
        let alignment = if is_direct { alignment(file.as_raw_fd()) } else { None };
        let way = if is_direct { way::NEVER } else { way::NOWAIT };
        Self::new(file.into(), None, way, alignment)
    }

    /// Gives the file back.
    ///
    /// # Errors
    /// This handle: there are others, or requests of this one have not ended.
    pub fn into_std(self) -> Result<std::fs::File, Self> {
        let mut inner = Arc::try_unwrap(self.0).map_err(Self)?;
        *inner.is_closed.get_mut() = true;
        // SAFETY: taken once: what drops `inner` leaves it alone from here on.
        Ok(unsafe { ManuallyDrop::take(&mut inner.descriptor) }.into())
    }

    fn new(descriptor: OwnedFd, fs: Option<Fs>, way: u8, alignment: Option<Alignment>) -> Self {
        Self(Arc::new(Inner {
            descriptor: ManuallyDrop::new(descriptor),
            is_closed: AtomicBool::new(false),
            fs: fs.map(OnceLock::from).unwrap_or_default(),
            way: AtomicU8::new(way),
            alignment,
        }))
    }

    /// One that was just opened.
    pub(super) fn opened(descriptor: OwnedFd, fs: Option<Fs>, is_direct: bool) -> Self {
        let alignment = if is_direct { alignment(descriptor.as_raw_fd()) } else { None };
        Self::new(descriptor, fs, if is_direct { way::NEVER } else { way::NOWAIT }, alignment)
    }

    /// Reads from `offset` bytes on into the buffer, from its beginning, as far as its capacity
    /// goes. Gives the number of bytes, 0 at the end of the file. A length that is less is raised
    /// to that number.
    ///
    /// A read of at most [`inline_max`](super::FsBuilder::inline_max) bytes that are all in the
    /// page cache is done by the first poll, with one system call.
    ///
    /// # Errors
    /// As pread(2), beside the buffer. `ECANCELED`: it was cancelled.
    pub fn read_at<B: IoBufMut + Send>(&self, buffer: B, offset: u64) -> Op<Read<B>> {
        Op::new(Read::new(self, buffer, offset))
    }

    /// As [`File::read_at`], until the buffer's capacity is full.
    ///
    /// # Errors
    /// As [`File::read_at`]; `UnexpectedEof` if the file ends before, beside the buffer with what
    /// there was.
    pub fn read_exact_at<B: IoBufMut + Send>(&self, buffer: B, offset: u64) -> Op<ReadExact<B>> {
        Op::new(ReadExact::new(self, buffer, offset))
    }

    /// Reads several ranges at once, each of them whole; the chunks come in the order of the
    /// ranges. Those that lie close together are read as one, and the task is woken once.
    ///
    /// # Errors
    /// As [`File::read_at`]: the first one in the order of the file. `UnexpectedEof`: a range ends
    /// behind the file. `EINVAL`: a range ends before it begins, or behind 2^63 bytes.
    pub fn read_ranges(&self, ranges: &[Range<u64>], coalesce: Coalesce) -> ReadRanges {
        ReadRanges::new(self, ranges, coalesce)
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
        Op::new(Write::new(self, buffer, offset))
    }

    /// As [`File::write_at`], until everything is written.
    ///
    /// # Errors
    /// As [`File::write_at`]; `WriteZero` if the file takes no more. A part may have been written.
    pub fn write_all_at<B: IoBuf + Send>(&self, buffer: B, offset: u64) -> Op<WriteAll<B>> {
        Op::new(WriteAll::new(self, buffer, offset))
    }

    /// Writes the buffer's bytes to the end of the file, wherever that is by then (`RWF_APPEND`,
    /// pwritev2(2)). Where they went to the kernel does not tell.
    ///
    /// # Errors
    /// As [`File::write_at`]; `EOPNOTSUPP` before Linux 4.16.
    pub fn append<B: IoBuf + Send>(&self, buffer: B) -> Op<Write<B>> {
        Op::new(Write::append(self, buffer))
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
        Op::new(Stat::of(self))
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

    /// What direct reads and writes have to be multiples of; `None` if the file was not opened for
    /// direct I/O.
    pub fn alignment(&self) -> Option<Alignment> {
        self.0.alignment
    }

    fn control(&self, sqe: Sqe) -> Op<Control> {
        Op::new(Control { file: self.clone(), sqe })
    }

    #[inline]
    pub(super) fn fs(&self) -> Option<&Fs> {
        self.0.fs.get()
    }

    pub(super) fn adopt(&self, fs: &Fs) {
        // Another thread may have been first: with the same one.
        let _ = self.0.fs.set(fs.clone());
    }

    #[inline]
    pub(super) fn number(&self) -> RawFd {
        self.0.descriptor.as_raw_fd()
    }

    /// Reads if that is known not to sleep. Whatever else there is to say, a read that may sleep
    /// says.
    ///
    /// # Safety
    /// `length` bytes at `address` can be written to.
    #[inline]
    pub(super) unsafe fn read_now(&self, address: u64, length: usize, offset: u64) -> Option<i32> {
        let known = self.0.way.load(Ordering::Relaxed);
        if known == way::NEVER
            || length > self.fs()?.inline_max()
            || offset > i64::MAX as u64
            || IS_REFUSED.load(Ordering::Relaxed)
        {
            return None;
        }
        if known == way::PLAIN {
            // SAFETY: the caller's contract.
            let read = unsafe { sys::pread(self.number(), address, length, offset) };
            return i32::try_from(read).ok().filter(|&read| read >= 0);
        }
        let iov = [libc::iovec { iov_base: address as *mut _, iov_len: length }];
        let nowait = libc::RWF_NOWAIT as u32;
        // SAFETY: one vector, and the caller's contract.
        let read = unsafe { sys::preadv2(self.number(), iov.as_ptr(), 1, offset, nowait) };
        match read {
            read if read >= 0 => self.whole(read as usize, length, offset),
            errno => {
                self.learn(-errno as i32);
                None
            }
        }
    }

    /// A read that did not sleep gave this much: is that all that one that may sleep would give?
    #[inline]
    fn whole(&self, read: usize, length: usize, offset: u64) -> Option<i32> {
        // Less can be the end of the file, or that the rest is not in memory. Some kernels say 0
        // for the latter (Linux 5.9 and 5.10); files without a size are asked again.
        let is_whole = read == length
            || sys::file_size(self.number())
                .is_some_and(|size| size > 0 && offset.saturating_add(read as u64) >= size);
        (is_whole && length > 0).then_some(read as i32)
    }

    /// How `RWF_NOWAIT` was refused says how the next read is to be tried.
    #[cold]
    fn learn(&self, errno: i32) {
        match errno {
            libc::EOPNOTSUPP => {
                let in_memory = sys::lives_in_memory(self.number());
                let way = if in_memory { way::PLAIN } else { way::NEVER };
                self.0.way.store(way, Ordering::Relaxed);
            }
            libc::ENOSYS | libc::EPERM => IS_REFUSED.store(true, Ordering::Relaxed),
            // Not in memory, or wrong altogether.
            _ => {}
        }
    }
}

/// Says what direct I/O on a file has to be aligned to. Where the kernel does not tell (before
/// Linux 6.1): 4,096 bytes, more than what any disk asks for.
fn alignment(fd: RawFd) -> Option<Alignment> {
    /// `STATX_DIOALIGN`, Linux 6.1.
    const DIOALIGN: u32 = 0x2000;
    let mut found = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let at = found.as_mut_ptr() as u64;
    // SAFETY: an empty path, and a writable struct statx.
    let told = unsafe {
        sys::statx(fd, c"".as_ptr().cast(), libc::AT_EMPTY_PATH as u32, DIOALIGN, at) == 0
    };
    // SAFETY: integers, zeroed, and filled in by the kernel.
    let found = unsafe { found.assume_init() };
    let (memory, offset) = (found.stx_dio_mem_align as usize, found.stx_dio_offset_align as usize);
    if told && found.stx_mask & DIOALIGN != 0 && memory > 0 && offset > 0 {
        return Some(Alignment { memory, offset });
    }
    Some(Alignment { memory: 4096, offset: 4096 })
}

/// How a file will be used (posix_fadvise(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl From<std::fs::File> for File {
    fn from(file: std::fs::File) -> Self {
        Self::from_std(file)
    }
}

impl TryFrom<File> for std::fs::File {
    type Error = File;

    /// As [`File::into_std`].
    fn try_from(file: File) -> Result<Self, File> {
        file.into_std()
    }
}

impl From<OwnedFd> for File {
    fn from(descriptor: OwnedFd) -> Self {
        Self::from_std(descriptor.into())
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.descriptor.as_fd()
    }
}

impl AsRawFd for File {
    fn as_raw_fd(&self) -> RawFd {
        self.number()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("fd", &self.number()).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !*self.is_closed.get_mut() {
            let fd = self.descriptor.as_raw_fd();
            Facts::forget(&(fd..=fd));
            // SAFETY: dropped once, and used by nobody any more.
            unsafe { ManuallyDrop::drop(&mut self.descriptor) };
        }
    }
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

    fn fs(&self) -> Option<&Fs> {
        self.file.fs()
    }

    fn adopt(&mut self, fs: &Fs) {
        self.file.adopt(fs);
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

    fn fs(&self) -> Option<&Fs> {
        self.file.fs()
    }

    fn adopt(&mut self, fs: &Fs) {
        self.file.adopt(fs);
    }

    fn prepare(&mut self) -> Result<(), i32> {
        match Arc::get_mut(&mut self.file.0) {
            Some(_) => Ok(()),
            None => Err(-libc::EBUSY),
        }
    }

    fn request(&self) -> Sqe {
        let fd = self.file.number();
        Facts::forget(&(fd..=fd));
        Sqe::close(fd)
    }

    fn after(&self, result: i32) -> Option<i32> {
        // Whatever it says (close(2)).
        self.file.0.is_closed.store(true, Ordering::Relaxed);
        Some(result)
    }

    fn end(self, result: i32) -> io::Result<()> {
        outcome(result).map(|_| ())
    }
}

/// A result as a count, or as an error.
pub(super) fn outcome(result: i32) -> io::Result<u32> {
    u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

/// The descriptor that a request has opened.
pub(super) fn descriptor(result: i32) -> Option<OwnedFd> {
    // SAFETY: the kernel has just given it, for this request alone.
    (result >= 0).then(|| unsafe { OwnedFd::from_raw_fd(result) })
}
