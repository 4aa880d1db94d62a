//! Operations on names, and on whole files by name.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell, UnsafeCell};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use compio_buf::{BufResult, IoBuf};

use super::driver::Fs;
use super::handle::{descriptor, outcome};
use super::metadata::{Found, MASK, Stat};
use super::op::{Op, Steps};
use super::options::c_path;
use crate::sqe::Sqe;
use crate::sys::MAX_RW_COUNT;

/// What kind of file a path leads to, its length, and so on (statx(2)). Symbolic links are
/// followed.
///
/// # Errors
/// As statx(2). `EINVAL`: there is a NUL in the path.
pub fn metadata(path: impl AsRef<Path>) -> Op<Stat> {
    Op::new(Stat::named(c_path(path.as_ref())))
}

/// Gives a file another name, in place of what had that (rename(2)).
///
/// # Errors
/// As rename(2). `EINVAL`: there is a NUL in a path.
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Op<Name> {
    Name::op(c_path(from.as_ref()), |from| Ok(What::Rename(from, c_path(to.as_ref())?)))
}

/// Removes a name that is not a directory's (unlink(2)).
///
/// # Errors
/// As unlink(2). `EINVAL`: there is a NUL in the path.
pub fn remove_file(path: impl AsRef<Path>) -> Op<Name> {
    Name::op(c_path(path.as_ref()), |path| Ok(What::Remove(path)))
}

/// What [`rename`] and [`remove_file`] do.
#[derive(Debug)]
pub struct Name {
    what: Option<What>,
    fs: Option<Fs>,
}

#[derive(Debug)]
enum What {
    Rename(CString, CString),
    Remove(CString),
}

impl Name {
    fn op(path: io::Result<CString>, what: impl FnOnce(CString) -> io::Result<What>) -> Op<Self> {
        Op::new(Self { what: path.and_then(what).ok(), fs: None })
    }
}

// SAFETY: the paths are in the operation.
unsafe impl Steps for Name {
    type Output = io::Result<()>;

    fn fs(&self) -> Option<&Fs> {
        self.fs.as_ref()
    }

    fn adopt(&mut self, fs: &Fs) {
        self.fs = Some(fs.clone());
    }

    fn prepare(&mut self) -> Result<(), i32> {
        if self.what.is_some() { Ok(()) } else { Err(-libc::EINVAL) }
    }

    fn request(&self) -> Sqe {
        const HERE: i32 = libc::AT_FDCWD;
        match &self.what {
            Some(What::Rename(from, to)) => Sqe::renameat(HERE, from, HERE, to, 0),
            Some(What::Remove(path)) => Sqe::unlinkat(HERE, path, 0),
            None => Sqe::nop(),
        }
    }

    fn end(self, result: i32) -> io::Result<()> {
        outcome(result).map(|_| ())
    }
}

/// Makes a directory, and those that it is in (mkdir(2)). Those that are there stay as they are.
///
/// # Errors
/// As mkdir(2). `EEXIST`: something else has the name. `EINVAL`: there is a NUL in the path.
pub fn create_dir_all(path: impl AsRef<Path>) -> Op<MakeDirs> {
    let path = path.as_ref();
    // The deepest first.
    let above = path.ancestors().filter(|path| !path.as_os_str().is_empty());
    let paths: io::Result<Vec<_>> = above.map(c_path).collect();
    Op::new(MakeDirs {
        paths: paths.ok(),
        at: Cell::new(0),
        refused: Cell::new(0),
        found: Found::new(),
        fs: None,
    })
}

/// What [`create_dir_all`] does.
#[derive(Debug)]
pub struct MakeDirs {
    paths: Option<Vec<CString>>,
    /// The one that comes next.
    at: Cell<usize>,
    /// It could not be made, with this negative errno: is it a directory that is there?
    refused: Cell<i32>,
    found: Found,
    fs: Option<Fs>,
}

// SAFETY: the paths and the place for what is found are in the operation.
unsafe impl Steps for MakeDirs {
    type Output = io::Result<()>;

    fn fs(&self) -> Option<&Fs> {
        self.fs.as_ref()
    }

    fn adopt(&mut self, fs: &Fs) {
        self.fs = Some(fs.clone());
    }

    fn prepare(&mut self) -> Result<(), i32> {
        if self.paths.is_some() { Ok(()) } else { Err(-libc::EINVAL) }
    }

    fn request(&self) -> Sqe {
        let Some(path) = self.paths.as_ref().and_then(|paths| paths.get(self.at.get())) else {
            // The empty path, whose directory is there.
            return Sqe::nop();
        };
        if self.refused.get() != 0 {
            Sqe::statx(libc::AT_FDCWD, path, 0, MASK, self.found.place())
        } else {
            Sqe::mkdirat(libc::AT_FDCWD, path, 0o777)
        }
    }

    fn after(&self, result: i32) -> Option<i32> {
        let at = self.at.get();
        let refused = self.refused.get();
        if refused != 0 {
            let is_dir = result == 0 && self.found.get().is_dir();
            return Some(if is_dir { 0 } else { refused });
        }
        let above = self.paths.as_ref().is_some_and(|paths| at + 1 < paths.len());
        match -result {
            0 | libc::EEXIST if at > 0 => self.at.set(at - 1),
            // mkdir(2) says this of a read-only file system, of "/" and so on, too.
            libc::EEXIST | libc::EROFS | libc::EISDIR | libc::EACCES | libc::EPERM if at == 0 => {
                self.refused.set(result);
            }
            libc::ENOENT if above => self.at.set(at + 1),
            _ => return Some(result),
        }
        None
    }

    fn end(self, result: i32) -> io::Result<()> {
        outcome(result).map(|_| ())
    }
}

/// Brings a directory to the disk: names in it that were made, changed or removed before survive a
/// crash then (fsync(2) of the directory).
///
/// # Errors
/// As open(2) and fsync(2). `ENOTDIR`: it is none.
pub fn sync_dir(path: impl AsRef<Path>) -> Op<SyncDir> {
    Op::new(SyncDir { path: c_path(path.as_ref()).ok(), opened: RefCell::default(), fs: None })
}

/// What [`sync_dir`] does.
#[derive(Debug)]
pub struct SyncDir {
    path: Option<CString>,
    opened: RefCell<Option<OwnedFd>>,
    fs: Option<Fs>,
}

// SAFETY: the path is in the operation.
unsafe impl Steps for SyncDir {
    type Output = io::Result<()>;

    fn fs(&self) -> Option<&Fs> {
        self.fs.as_ref()
    }

    fn adopt(&mut self, fs: &Fs) {
        self.fs = Some(fs.clone());
    }

    fn prepare(&mut self) -> Result<(), i32> {
        if self.path.is_some() { Ok(()) } else { Err(-libc::EINVAL) }
    }

    fn request(&self) -> Sqe {
        match &*self.opened.borrow() {
            Some(directory) => Sqe::fsync(directory.as_raw_fd()),
            None => {
                let path = self.path.as_deref().unwrap_or_default();
                let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
                Sqe::openat(libc::AT_FDCWD, path, flags, 0)
            }
        }
    }

    fn after(&self, result: i32) -> Option<i32> {
        let mut opened = self.opened.borrow_mut();
        if opened.is_some() || result < 0 {
            return Some(result);
        }
        *opened = descriptor(result);
        None
    }

    fn end(self, result: i32) -> io::Result<()> {
        outcome(result).map(|_| ())
    }
}

/// Reads a whole file.
///
/// # Errors
/// As open(2) and read(2). `ENOMEM`: there is no memory for it. `EINVAL`: there is a NUL in the
/// path.
pub fn read(path: impl AsRef<Path>) -> Op<ReadFile> {
    Op::new(ReadFile {
        path: c_path(path.as_ref()).ok(),
        opened: RefCell::default(),
        step: Cell::new(Step::Open),
        found: Found::new(),
        data: UnsafeCell::default(),
        asked: Cell::new(0),
        fs: None,
    })
}

/// Where an operation on a whole file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Open,
    Look,
    Transfer,
}

/// What [`read()`] does.
#[derive(Debug)]
pub struct ReadFile {
    path: Option<CString>,
    opened: RefCell<Option<OwnedFd>>,
    step: Cell<Step>,
    found: Found,
    data: UnsafeCell<Vec<u8>>,
    /// Bytes of the read that is under way.
    asked: Cell<usize>,
    fs: Option<Fs>,
}

impl ReadFile {
    /// Room for so many bytes more; false if there is no memory.
    fn reserve(&self, bytes: u64) -> bool {
        // SAFETY: no request is under way that uses it.
        let data = unsafe { &mut *self.data.get() };
        let Ok(bytes) = usize::try_from(bytes) else { return false };
        data.try_reserve_exact(bytes).is_ok()
    }

    /// What is free of the buffer: address and length.
    fn spare(&self) -> (*mut u8, usize) {
        // SAFETY: as above.
        let spare = unsafe { &mut *self.data.get() }.spare_capacity_mut();
        (spare.as_mut_ptr().cast(), spare.len().min(MAX_RW_COUNT))
    }
}

// SAFETY: path, buffer and the place for what is found are in the operation.
unsafe impl Steps for ReadFile {
    type Output = io::Result<Vec<u8>>;

    fn fs(&self) -> Option<&Fs> {
        self.fs.as_ref()
    }

    fn adopt(&mut self, fs: &Fs) {
        self.fs = Some(fs.clone());
    }

    fn prepare(&mut self) -> Result<(), i32> {
        if self.path.is_some() { Ok(()) } else { Err(-libc::EINVAL) }
    }

    fn request(&self) -> Sqe {
        let opened = self.opened.borrow();
        let fd = opened.as_ref().map_or(-1, |opened| opened.as_raw_fd());
        match self.step.get() {
            Step::Open => {
                let path = self.path.as_deref().unwrap_or_default();
                Sqe::openat(libc::AT_FDCWD, path, libc::O_RDONLY | libc::O_CLOEXEC, 0)
            }
            Step::Look => Sqe::statx(fd, c"", libc::AT_EMPTY_PATH, MASK, self.found.place()),
            Step::Transfer => {
                let (address, length) = self.spare();
                self.asked.set(length);
                // SAFETY: as above.
                let offset = unsafe { (*self.data.get()).len() } as u64;
                Sqe::read(fd, std::ptr::slice_from_raw_parts_mut(address, length), offset)
            }
        }
    }

    fn bytes(&self) -> u64 {
        if self.step.get() == Step::Transfer { self.asked.get() as u64 } else { 0 }
    }

    fn after(&self, result: i32) -> Option<i32> {
        /// Of a file that does not tell its length, at first.
        const UNTOLD: u64 = 8192;
        if result < 0 {
            return Some(result);
        }
        match self.step.get() {
            Step::Open => {
                *self.opened.borrow_mut() = descriptor(result);
                self.step.set(Step::Look);
            }
            Step::Look => {
                let length = self.found.get().len();
                // One more than it has: a read that gives less has come to the end.
                let room = if length > 0 { length.saturating_add(1) } else { UNTOLD };
                if !self.reserve(room) {
                    return Some(-libc::ENOMEM);
                }
                self.step.set(Step::Transfer);
            }
            Step::Transfer => {
                let count = result as usize;
                // SAFETY: the request is over, and the kernel has written so many bytes.
                let length = unsafe {
                    let data = &mut *self.data.get();
                    data.set_len(data.len() + count);
                    data.len()
                };
                if count < self.asked.get() && (count == 0 || self.found.get().is_file()) {
                    return Some(0);
                }
                if self.spare().1 == 0 && !self.reserve((length as u64).max(UNTOLD)) {
                    return Some(-libc::ENOMEM);
                }
            }
        }
        None
    }

    fn end(self, result: i32) -> io::Result<Vec<u8>> {
        outcome(result).map(|_| self.data.into_inner())
    }
}

/// Makes a file of these bytes, in place of what it held. It is ready when the kernel has them all;
/// it does not bring them to the disk.
///
/// # Errors
/// As open(2) and write(2), beside the buffer. A part may have been written.
pub fn write<B: IoBuf + Send>(path: impl AsRef<Path>, buffer: B) -> Op<WriteFile<B>> {
    Op::new(WriteFile {
        path: c_path(path.as_ref()).ok(),
        opened: RefCell::default(),
        buffer: UnsafeCell::new(buffer),
        address: Cell::new(0),
        length: Cell::new(0),
        done: Cell::new(0),
        fs: None,
    })
}

/// What [`write()`] does.
#[derive(Debug)]
pub struct WriteFile<B> {
    path: Option<CString>,
    opened: RefCell<Option<OwnedFd>>,
    buffer: UnsafeCell<B>,
    /// The buffer's, asked of it once, in its final place.
    address: Cell<u64>,
    length: Cell<usize>,
    done: Cell<usize>,
    fs: Option<Fs>,
}

// SAFETY: the path is in the operation, and so is the buffer, as in `Write`.
unsafe impl<B: IoBuf + Send> Steps for WriteFile<B> {
    type Output = BufResult<(), B>;

    fn fs(&self) -> Option<&Fs> {
        self.fs.as_ref()
    }

    fn adopt(&mut self, fs: &Fs) {
        self.fs = Some(fs.clone());
    }

    fn prepare(&mut self) -> Result<(), i32> {
        if self.path.is_some() { Ok(()) } else { Err(-libc::EINVAL) }
    }

    fn settle(&self) {
        // SAFETY: not out with the kernel yet.
        let buffer = unsafe { &*self.buffer.get() }.as_init();
        self.address.set(buffer.as_ptr() as u64);
        self.length.set(buffer.len());
    }

    fn request(&self) -> Sqe {
        let opened = self.opened.borrow();
        let Some(opened) = &*opened else {
            let path = self.path.as_deref().unwrap_or_default();
            let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC;
            return Sqe::openat(libc::AT_FDCWD, path, flags, 0o666);
        };
        let done = self.done.get();
        let address = (self.address.get() + done as u64) as *const u8;
        let buffer = std::ptr::slice_from_raw_parts(address, self.bytes() as usize);
        Sqe::write(opened.as_raw_fd(), buffer, done as u64)
    }

    fn bytes(&self) -> u64 {
        match &*self.opened.borrow() {
            Some(_) => (self.length.get() - self.done.get()).min(MAX_RW_COUNT) as u64,
            None => 0,
        }
    }

    fn after(&self, result: i32) -> Option<i32> {
        if result < 0 {
            return Some(result);
        }
        let mut opened = self.opened.borrow_mut();
        if opened.is_none() {
            *opened = descriptor(result);
        } else if result == 0 {
            return Some(0);
        } else {
            self.done.set((self.done.get() + result as usize).min(self.length.get()));
        }
        (self.done.get() == self.length.get()).then_some(0)
    }

    fn end(self, result: i32) -> BufResult<(), B> {
        let is_whole = self.done.get() == self.length.get();
        let result = match outcome(result) {
            Ok(_) if !is_whole => Err(io::ErrorKind::WriteZero.into()),
            other => other.map(|_| ()),
        };
        BufResult(result, self.buffer.into_inner())
    }
}

/// Copies what a file holds, and its permissions, into another one, in place of what that held.
/// Gives the number of bytes. A file that is copied onto itself is empty then.
///
/// # Errors
/// As open(2), read(2) and write(2). A part may have been copied.
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Op<Copy> {
    let paths = c_path(from.as_ref()).and_then(|from| Ok((from, c_path(to.as_ref())?)));
    Op::new(Copy {
        paths: paths.ok(),
        source: RefCell::default(),
        target: RefCell::default(),
        step: Cell::new(CopyStep::OpenSource),
        found: Found::new(),
        part: UnsafeCell::default(),
        copied: Cell::new(0),
        fs: None,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyStep {
    OpenSource,
    Look,
    OpenTarget,
    Read,
    /// From here to there in the part that was read.
    Write(usize, usize),
}

/// What [`copy`] does.
#[derive(Debug)]
pub struct Copy {
    paths: Option<(CString, CString)>,
    source: RefCell<Option<OwnedFd>>,
    target: RefCell<Option<OwnedFd>>,
    step: Cell<CopyStep>,
    found: Found,
    part: UnsafeCell<Box<[u8]>>,
    copied: Cell<u64>,
    fs: Option<Fs>,
}

impl Copy {
    /// Bytes that are read at a time.
    const PART: usize = 256 << 10;

    /// Where the part begins.
    fn part(&self) -> *mut u8 {
        // SAFETY: a request may be under way: nothing but the address is taken.
        unsafe { (*self.part.get()).as_mut_ptr() }
    }
}

// SAFETY: paths, buffer and the place for what is found are in the operation.
unsafe impl Steps for Copy {
    type Output = io::Result<u64>;

    fn fs(&self) -> Option<&Fs> {
        self.fs.as_ref()
    }

    fn adopt(&mut self, fs: &Fs) {
        self.fs = Some(fs.clone());
    }

    fn prepare(&mut self) -> Result<(), i32> {
        if self.paths.is_some() { Ok(()) } else { Err(-libc::EINVAL) }
    }

    fn request(&self) -> Sqe {
        const HERE: i32 = libc::AT_FDCWD;
        let number = |of: &RefCell<Option<OwnedFd>>| {
            of.borrow().as_ref().map_or(-1, |descriptor| descriptor.as_raw_fd())
        };
        let Some((from, to)) = &self.paths else { return Sqe::nop() };
        match self.step.get() {
            CopyStep::OpenSource => Sqe::openat(HERE, from, libc::O_RDONLY | libc::O_CLOEXEC, 0),
            CopyStep::Look => {
                let found = self.found.place();
                Sqe::statx(number(&self.source), c"", libc::AT_EMPTY_PATH, MASK, found)
            }
            CopyStep::OpenTarget => {
                let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC;
                Sqe::openat(HERE, to, flags, self.found.get().mode() & 0o777)
            }
            CopyStep::Read => {
                let part = std::ptr::slice_from_raw_parts_mut(self.part(), Self::PART);
                Sqe::read(number(&self.source), part, self.copied.get())
            }
            CopyStep::Write(begin, end) => {
                let rest = self.part().wrapping_add(begin);
                let rest = std::ptr::slice_from_raw_parts(rest, end - begin);
                Sqe::write(number(&self.target), rest, self.copied.get())
            }
        }
    }

    fn bytes(&self) -> u64 {
        match self.step.get() {
            CopyStep::Read => Self::PART as u64,
            CopyStep::Write(begin, end) => (end - begin) as u64,
            _ => 0,
        }
    }

    fn after(&self, result: i32) -> Option<i32> {
        if result < 0 {
            return Some(result);
        }
        let count = result as usize;
        self.step.set(match self.step.get() {
            CopyStep::OpenSource => {
                *self.source.borrow_mut() = descriptor(result);
                CopyStep::Look
            }
            CopyStep::Look if !self.found.get().is_file() => return Some(-libc::EINVAL),
            CopyStep::Look => CopyStep::OpenTarget,
            CopyStep::OpenTarget => {
                *self.target.borrow_mut() = descriptor(result);
                // SAFETY: no request is under way.
                unsafe { *self.part.get() = vec![0; Self::PART].into() };
                CopyStep::Read
            }
            CopyStep::Read if count == 0 => return Some(0),
            CopyStep::Read => CopyStep::Write(0, count),
            CopyStep::Write(..) if count == 0 => return Some(-libc::EIO),
            CopyStep::Write(begin, end) => {
                self.copied.set(self.copied.get() + count as u64);
                if begin + count < end {
                    CopyStep::Write(begin + count, end)
                } else {
                    CopyStep::Read
                }
            }
        });
        None
    }

    fn end(self, result: i32) -> io::Result<u64> {
        outcome(result).map(|_| self.copied.get())
    }
}
