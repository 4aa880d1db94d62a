//! Operations on whole files, by name. A worker makes all calls for a small file in one operation.
//! A read needs no worker if the kernel has the file in memory.
#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::ffi::{CStr, CString};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::path::Path;
use std::ptr;
use std::sync::{Arc, OnceLock};

use compio_buf::{BufResult, IoBuf};

use super::driver::{Fs, Header};
use super::handle::{File, Opened, outcome};
use super::metadata::{Found, Metadata};
use super::names::HERE;
use super::op::{Op, Steps};
use super::replace::replace_now;
use super::transfer::{Direction, Out, Span};
use super::wakers::Flights;
use super::worker::{Behind, call, uninterrupted};
use crate::paths;
use crate::sqe::Sqe;
use crate::sys::{self, MAX_RW_COUNT};

/// Flags of a file that is read, and of a file that is written anew.
const READ: i32 = libc::O_RDONLY | libc::O_CLOEXEC;
const REPLACE: i32 = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC;
/// The maximum size in bytes of a file that a worker transfers for [`read()`] or [`write()`].
/// Larger files are transferred by requests, whose bytes count as in flight.
const SMALL: usize = 256 << 10;
/// The length in bytes of the first read of a file that reports no length, as in /proc.
const UNTOLD: u64 = 8192;

/// Opens a file, on a worker: a descriptor, or a negative errno. An open of a FIFO ends with
/// `ECANCELED` when the operation is cancelled.
pub(super) fn open_now(header: &Header, at: RawFd, path: &CStr, flags: i32, mode: u32) -> i32 {
    // SAFETY: a path that ends with a NUL.
    header.interruptibly(|| unsafe { sys::call!(openat, at, path.as_ptr(), flags, mode) })
}

/// The negative errno of an error.
pub(super) fn errno_of(error: &io::Error) -> i32 {
    -error.raw_os_error().unwrap_or(libc::EIO)
}

/// The type into which a file is read: bytes, or text.
pub trait Contents: Sized + Send + 'static {
    /// Makes the output from a file's bytes.
    ///
    /// # Errors
    /// `InvalidData`: the bytes are not UTF-8.
    fn from_bytes(bytes: Vec<u8>) -> io::Result<Self>;
}

impl Contents for Vec<u8> {
    fn from_bytes(bytes: Vec<u8>) -> io::Result<Self> {
        Ok(bytes)
    }
}

impl Contents for String {
    fn from_bytes(bytes: Vec<u8>) -> io::Result<Self> {
        Self::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

/// Reads a whole file. A file of at most 256 KiB is opened, read and closed by one thread of the
/// engine, in one go. If the kernel has the file in memory, the first poll does all this itself.
/// The file must then be no longer than reads that are tried there (`inline_max` of the builder).
///
/// # Errors
/// As open(2) and read(2). `ENOMEM`: there is no memory for the content. `EINVAL`: there is a NUL
/// in the path.
pub fn read(path: impl AsRef<Path>) -> Op<ReadFile<Vec<u8>>> {
    Op::named([path.as_ref()], |[path]| ReadFile::new(None, path))
}

/// As [`read()`], as text.
///
/// # Errors
/// As [`read()`]. `InvalidData`: the file is not UTF-8.
pub fn read_to_string(path: impl AsRef<Path>) -> Op<ReadFile<String>> {
    Op::named([path.as_ref()], |[path]| ReadFile::new(None, path))
}

/// Bytes that a file is read into.
#[derive(Debug, Default)]
struct Data(Vec<u8>);

impl Data {
    /// Allocates room for this many more bytes; `ENOMEM` if there is no memory.
    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        let bytes = usize::try_from(bytes).ok();
        let is_there = bytes.is_some_and(|bytes| self.0.try_reserve_exact(bytes).is_ok());
        if is_there { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ENOMEM)) }
    }

    /// Allocates room for a file with this metadata: one byte more than its length. A read that
    /// returns less has reached the end.
    fn reserve_for(&mut self, found: Metadata) -> io::Result<()> {
        let length = found.len();
        self.reserve(if length > 0 { length.saturating_add(1) } else { UNTOLD })
    }

    /// The free room: address and length.
    fn spare(&mut self) -> (*mut u8, usize) {
        let spare = self.0.spare_capacity_mut();
        (spare.as_mut_ptr().cast(), spare.len().min(MAX_RW_COUNT))
    }

    /// Adds the `count` bytes that a read of `asked` bytes has written to [`Data::spare`]. Returns
    /// whether the file is at its end. If not, there is room for more.
    ///
    /// # Safety
    /// `count` bytes were written there.
    unsafe fn add(&mut self, count: usize, asked: usize, is_file: bool) -> io::Result<bool> {
        let length = self.0.len() + count;
        // SAFETY: the caller's contract.
        unsafe { self.0.set_len(length) };
        if count < asked && (count == 0 || is_file) {
            return Ok(true);
        }
        if self.spare().1 == 0 {
            self.reserve((length as u64).max(UNTOLD))?;
        }
        Ok(false)
    }

    /// Reads the rest of a file, on a worker.
    fn fill(&mut self, header: &Header, fd: RawFd, is_file: bool) -> io::Result<()> {
        loop {
            let (address, asked) = self.spare();
            // SAFETY: `asked` bytes are free at `address`.
            let read = uninterrupted(|| unsafe { sys::call!(read, fd, address, asked) });
            let count = outcome(read)? as usize;
            // SAFETY: the kernel has written `count` bytes there.
            if unsafe { self.add(count, asked, is_file) }? {
                return Ok(());
            }
            if header.is_stopped() {
                return Err(io::Error::from_raw_os_error(libc::ECANCELED));
            }
        }
    }
}

/// The directory that a path is relative to.
fn at(dir: &Option<File>) -> RawFd {
    dir.as_ref().map_or(HERE, File::number)
}

/// An open file, and its metadata.
pub(super) type Looked = (OwnedFd, Metadata);

/// Opens a file, and reads its metadata.
fn look(header: &Header, at: RawFd, path: &CStr, found: &Found) -> io::Result<Looked> {
    let opened = Opened::default();
    let result = open_now(header, at, path, READ, 0);
    outcome(result)?;
    opened.adopt(result);
    let known = found.look(opened.number(), c"", libc::AT_EMPTY_PATH)?;
    let descriptor = opened.into_inner().ok_or(io::ErrorKind::Other)?;
    Ok((descriptor, known))
}

/// Opens a file that [`read_now`] reads later, and has the kernel bring its beginning to memory.
///
/// # Errors
/// As open(2). `Unsupported`: it is no regular file. The open of a FIFO would wait for its writer.
/// That writer may itself wait for a read of another FIFO that is open here already.
pub(super) fn look_ahead(header: &Header, path: &CStr) -> io::Result<Looked> {
    let found = Found::new();
    if !found.look(HERE, path, 0)?.is_file() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let looked = look(header, HERE, path, &found)?;
    sys::fadvise(looked.0.as_raw_fd(), 0, SMALL as u64, libc::POSIX_FADV_WILLNEED as u32);
    Ok(looked)
}

/// Reads a whole file of any length, on a worker.
pub(super) fn read_now(
    header: &Header,
    path: &CStr,
    looked: Option<Looked>,
) -> io::Result<Vec<u8>> {
    let looked = looked.map_or_else(|| look(header, HERE, path, &Found::new()), Ok);
    let (descriptor, found) = looked?;
    let mut data = Data::default();
    data.reserve_for(found)?;
    data.fill(header, descriptor.as_raw_fd(), found.is_file())?;
    Ok(data.0)
}

/// The operation of [`read()`] and [`read_to_string`].
#[derive(Debug)]
pub struct ReadFile<T> {
    dir: Option<File>,
    path: CString,
    header: Behind,
    opened: Opened,
    found: Found,
    data: UnsafeCell<Data>,
    /// The length in bytes of the last read request; 0 before the first one.
    asked: Cell<usize>,
    home: OnceLock<Fs>,
    kind: PhantomData<fn() -> T>,
}

impl<T> ReadFile<T> {
    pub(super) fn new(dir: Option<&File>, path: CString) -> Self {
        Self {
            dir: dir.cloned(),
            path,
            header: Behind::nothing(),
            opened: Opened::default(),
            found: Found::new(),
            data: UnsafeCell::default(),
            asked: Cell::new(0),
            home: OnceLock::new(),
            kind: PhantomData,
        }
    }

    /// Reads the file, if the kernel has its path and all of its bytes in memory. The file must be
    /// no longer than reads that are tried (`inline_max`).
    fn read_at_once(&mut self, inline_max: usize) -> Option<()> {
        let opened = Opened::default();
        opened.adopt(paths::open(at(&self.dir), &self.path, &[READ as u64, 0, 0])?);
        let fd = opened.number();
        let found = self.found.look(fd, c"", libc::AT_EMPTY_PATH).ok()?;
        let length = usize::try_from(found.len()).ok()?;
        if !found.is_file() || !(1..=inline_max).contains(&length) {
            return None;
        }
        let mut data = Data::default();
        data.reserve_for(found).ok()?;
        let (address, asked) = data.spare();
        let iov = [libc::iovec { iov_base: address.cast(), iov_len: asked }];
        // SAFETY: one vector, which names free room of `data`.
        let read = unsafe { sys::preadv2(fd, iov.as_ptr(), 1, 0, libc::RWF_NOWAIT as u32) };
        if usize::try_from(read).ok()? != length {
            return None;
        }
        // SAFETY: the kernel has written `length` bytes there.
        let is_whole = unsafe { data.add(length, asked, true) };
        *self.data.get_mut() = data;
        is_whole.ok().filter(|&is_whole| is_whole).map(|_| ())
    }

    /// Opens the file, and reads it if it is small. True: it was read completely.
    fn begin(&self) -> io::Result<bool> {
        // SAFETY: set by `pin`; the caller is the worker.
        let header = unsafe { self.header.get() };
        let (descriptor, found) = look(header, at(&self.dir), &self.path, &self.found)?;
        // SAFETY: only this worker uses the operation now, and no transfer is under way.
        let data = unsafe { &mut *self.data.get() };
        data.reserve_for(found)?;
        if found.is_file() && found.len() <= SMALL as u64 {
            data.fill(header, descriptor.as_raw_fd(), true)?;
            return Ok(true);
        }
        self.opened.put(descriptor);
        Ok(false)
    }
}

/// The function that the worker calls: it opens the file, and reads it if it is small. Returns 0 if
/// the whole file was read. Returns 1 if requests have to read the file, or a negative errno.
///
/// # Safety
/// The address of a `ReadFile<T>` whose request is under way.
unsafe extern "C" fn begin_read<T>(operation: u64) -> i32 {
    // SAFETY: the caller's contract.
    let operation = unsafe { &*ptr::with_exposed_provenance::<ReadFile<T>>(operation as usize) };
    operation.begin().map_or_else(|error| errno_of(&error), |is_whole| i32::from(!is_whole))
}

// SAFETY: the operation owns the path, the buffer and the struct statx, and stays in its slot.
unsafe impl<T: Contents> Steps for ReadFile<T> {
    type Output = io::Result<T>;

    fn home(&self) -> &OnceLock<Fs> {
        self.dir.as_ref().map_or(&self.home, File::home)
    }

    fn flights(&self) -> Option<&Arc<Flights>> {
        self.dir.as_ref().map(File::flights)
    }

    fn attempt(&mut self) -> Option<i32> {
        let inline_max = self.home().get()?.inline_max();
        self.read_at_once(inline_max).map(|()| 0)
    }

    fn pin(&self, header: &Header) {
        self.header.set(header);
    }

    fn request(&self) -> Sqe {
        match self.opened.number() {
            -1 => call(begin_read::<T>, self),
            fd => {
                // SAFETY: the caller owns the operation, and no request of it is under way.
                let data = unsafe { &mut *self.data.get() };
                let (address, length) = data.spare();
                self.asked.set(length);
                let offset = data.0.len() as u64;
                Sqe::read(fd, ptr::slice_from_raw_parts_mut(address, length), offset)
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.asked.get() as u64
    }

    fn after(&self, result: i32) -> Option<i32> {
        if result < 0 {
            return Some(result);
        }
        let asked = self.asked.get();
        if asked == 0 {
            // The worker has opened the file. 0: it has also read all of it.
            return (result == 0).then_some(0);
        }
        let is_file = self.found.get().is_file();
        // SAFETY: the request is over, and the kernel has written this many bytes.
        match unsafe { (*self.data.get()).add(result as usize, asked, is_file) } {
            Ok(is_whole) => is_whole.then_some(0),
            Err(error) => Some(errno_of(&error)),
        }
    }

    fn end(self, result: i32) -> io::Result<T> {
        outcome(result)?;
        T::from_bytes(self.data.into_inner().0)
    }
}

/// Writes a file with these bytes, in place of its old content. The future is ready when the kernel
/// has all of them. They may not be on the disk then: [`replace`] brings them there.
///
/// # Errors
/// As open(2) and write(2); the buffer is returned as well. A part may have been written.
pub fn write<B: IoBuf + Send>(path: impl AsRef<Path>, buffer: B) -> Op<WriteFile<B>> {
    Op::named([path.as_ref()], |[path]| WriteFile::new(None, path, buffer, false))
}

/// Writes a file with these bytes, so that a crash leaves the old or the new content. A new file is
/// written beside it, brought to the disk, and renamed (rename(2)); then the folder is brought to
/// the disk. The new file has the permissions of the old one, if there is one. A symbolic link of
/// that name is itself replaced.
///
/// **If the future is dropped after its first poll, the file is replaced or not**, and nothing is
/// left beside it. A process that is killed meanwhile may leave a file named `.uringlet-…`.
///
/// ```
/// use uringlet::fs;
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("settings");
/// fs::replace(&path, "colour = blue").wait().0?;
/// assert_eq!(std::fs::read_to_string(&path)?, "colour = blue");
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// As open(2), write(2), fsync(2) and rename(2); the buffer is returned as well. If the folder's
/// fsync(2) fails, the file was replaced, but a crash may undo that. `EINVAL`: the path has no file
/// name, or contains a NUL. `ECANCELED`: the operation was cancelled, and the file not replaced.
pub fn replace<B: IoBuf + Send>(path: impl AsRef<Path>, buffer: B) -> Op<WriteFile<B>> {
    Op::named([path.as_ref()], |[path]| WriteFile::new(None, path, buffer, true))
}

/// The operation of [`write()`] and [`replace`].
#[derive(Debug)]
pub struct WriteFile<B> {
    dir: Option<File>,
    path: CString,
    header: Behind,
    opened: Opened,
    buffer: UnsafeCell<B>,
    span: Span,
    replaces: bool,
    /// The worker has opened the file, and written it if it is small.
    is_begun: Cell<bool>,
    home: OnceLock<Fs>,
}

impl<B> WriteFile<B> {
    pub(super) fn new(dir: Option<&File>, path: CString, buffer: B, replaces: bool) -> Self {
        let (opened, home) = (Opened::default(), OnceLock::new());
        let (header, buffer) = (Behind::nothing(), UnsafeCell::new(buffer));
        let (span, is_begun) = (Span::new(0), Cell::new(false));
        let dir = dir.cloned();
        Self { dir, path, header, opened, buffer, span, replaces, is_begun, home }
    }

    /// Replaces the file, or opens it and writes it if it is small. True: no request follows.
    fn begin(&self) -> io::Result<bool> {
        // SAFETY: set by `pin`; the caller is the worker.
        let header = unsafe { self.header.get() };
        if self.replaces {
            replace_now(header, at(&self.dir), &self.path, &self.span)?;
            return Ok(true);
        }
        let (opened, is_small) = (Opened::default(), self.span.bytes() <= SMALL as u64);
        let opened = if is_small { &opened } else { &self.opened };
        let result = open_now(header, at(&self.dir), &self.path, REPLACE, 0o666);
        outcome(result)?;
        opened.adopt(result);
        if is_small {
            self.span.write_now(opened.number(), header)?;
        }
        Ok(is_small)
    }
}

/// The function that the worker calls: it replaces the file, or opens it, and writes it if the
/// content is small. Returns 0 if everything was written. Returns 1 if requests have to write it,
/// or a negative errno.
///
/// # Safety
/// The address of a `WriteFile<B>` whose request is under way.
unsafe extern "C" fn begin_write<B>(operation: u64) -> i32 {
    // SAFETY: the caller's contract.
    let operation = unsafe { &*ptr::with_exposed_provenance::<WriteFile<B>>(operation as usize) };
    operation.begin().map_or_else(|error| errno_of(&error), |is_over| i32::from(!is_over))
}

// SAFETY: the operation owns the path and, as in `FileTransfer`, the buffer.
unsafe impl<B: IoBuf + Send> Steps for WriteFile<B> {
    type Output = BufResult<(), B>;

    fn home(&self) -> &OnceLock<Fs> {
        self.dir.as_ref().map_or(&self.home, File::home)
    }

    fn flights(&self) -> Option<&Arc<Flights>> {
        self.dir.as_ref().map(File::flights)
    }

    fn pin(&self, header: &Header) {
        self.header.set(header);
        // SAFETY: no request has the buffer's address yet, so nothing else uses the buffer.
        self.span.pin(Out::memory(unsafe { &mut *self.buffer.get() }));
    }

    fn request(&self) -> Sqe {
        let (address, length, offset) = self.span.left();
        match self.opened.number() {
            -1 => call(begin_write::<B>, self),
            fd => <Out as Direction<B>>::request(fd, address, length, offset),
        }
    }

    fn bytes(&self) -> u64 {
        self.span.bytes()
    }

    fn after(&self, result: i32) -> Option<i32> {
        if self.is_begun.replace(true) || result < 0 {
            return self.span.after(result);
        }
        (result == 0).then_some(0)
    }

    fn end(self, result: i32) -> BufResult<(), B> {
        BufResult(self.span.all(result, io::ErrorKind::WriteZero), self.buffer.into_inner())
    }
}
