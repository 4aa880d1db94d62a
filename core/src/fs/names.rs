//! Operations on names, and on whole files by name.
#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::OnceLock;

use compio_buf::{BufResult, IoBuf};

use super::driver::Fs;
use super::handle::{Opened, outcome};
use super::metadata::{Found, MASK, Stat};
use super::op::{Op, Steps};
use super::transfer::{Direction, Out, Span};
use crate::exec::{CALL, CallFunction};
use crate::sqe::Sqe;
use crate::sys::{self, MAX_RW_COUNT, Ret};

const HERE: i32 = libc::AT_FDCWD;
/// For a file that is read, and for one that is made anew.
const READ: i32 = libc::O_RDONLY | libc::O_CLOEXEC;
const REPLACE: i32 = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC;

/// What kind of file a path leads to, its length, and so on (statx(2)). Symbolic links are
/// followed.
///
/// # Errors
/// As statx(2). `EINVAL`: there is a NUL in the path.
pub fn metadata(path: impl AsRef<Path>) -> Op<Stat> {
    Op::named([path.as_ref()], |[path]| Stat::new(None, path))
}

/// Gives a file another name, in place of what had that (rename(2)).
///
/// # Errors
/// As rename(2). `EINVAL`: there is a NUL in a path.
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Op<Name> {
    Op::named([from.as_ref(), to.as_ref()], |[from, to]| Name::new(from, Some(to)))
}

/// Removes a name that is not a directory's (unlink(2)).
///
/// # Errors
/// As unlink(2). `EINVAL`: there is a NUL in the path.
pub fn remove_file(path: impl AsRef<Path>) -> Op<Name> {
    Op::named([path.as_ref()], |[path]| Name::new(path, None))
}

/// What [`rename`] and [`remove_file`] do.
#[derive(Debug)]
pub struct Name {
    path: CString,
    /// It gets this one; without, it is removed.
    to: Option<CString>,
    home: OnceLock<Fs>,
}

impl Name {
    fn new(path: CString, to: Option<CString>) -> Self {
        Self { path, to, home: OnceLock::new() }
    }
}

// SAFETY: the paths are in the operation.
unsafe impl Steps for Name {
    type Output = io::Result<()>;

    fn home(&self) -> &OnceLock<Fs> {
        &self.home
    }

    fn request(&self) -> Sqe {
        match &self.to {
            Some(to) => Sqe::renameat(HERE, &self.path, HERE, to, 0),
            None => Sqe::unlinkat(HERE, &self.path, 0),
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
    // The deepest first. With a NUL in one of them, the whole path has it, and is refused below.
    let above = path.ancestors().filter(|path| !path.as_os_str().is_empty());
    let paths = above.filter_map(|path| CString::new(path.as_os_str().as_bytes()).ok()).collect();
    Op::named([path], |_| MakeDirs {
        paths,
        at: Cell::new(0),
        is_descending: Cell::new(false),
        refused: Cell::new(0),
        found: Found::new(),
        home: OnceLock::new(),
    })
}

/// What [`create_dir_all`] does. It goes up the path until a directory is there or can be made, and
/// from there down, once: so it ends, whatever the file system answers.
#[derive(Debug)]
pub struct MakeDirs {
    paths: Vec<CString>,
    /// The one that comes next.
    at: Cell<usize>,
    /// A directory was there or was made: what is next lies in it.
    is_descending: Cell<bool>,
    /// The next one could not be made, with this negative errno: is it a directory that is there?
    refused: Cell<i32>,
    found: Found,
    home: OnceLock<Fs>,
}

// SAFETY: the paths and the place for what is found are in the operation.
unsafe impl Steps for MakeDirs {
    type Output = io::Result<()>;

    fn home(&self) -> &OnceLock<Fs> {
        &self.home
    }

    fn request(&self) -> Sqe {
        let Some(path) = self.paths.get(self.at.get()) else {
            // The empty path, whose directory is there.
            return Sqe::nop();
        };
        if self.refused.get() != 0 {
            Sqe::statx(HERE, path, 0, MASK, self.found.place())
        } else {
            Sqe::mkdirat(HERE, path, 0o777)
        }
    }

    fn after(&self, result: i32) -> Option<i32> {
        let at = self.at.get();
        let refused = self.refused.replace(0);
        let is_there = result == 0 && (refused == 0 || self.found.get().is_dir());
        if is_there && at == 0 {
            return Some(0);
        }
        if is_there {
            self.is_descending.set(true);
            self.at.set(at - 1);
        } else if refused != 0 {
            return Some(refused);
        } else if result == -libc::ENOENT && !self.is_descending.get() && at + 1 < self.paths.len()
        {
            self.at.set(at + 1);
        } else {
            // mkdir(2) says so of a directory that is there, too: EEXIST, EROFS, EISDIR, EACCES.
            self.refused.set(result);
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
    let (opened, home) = (Opened::default(), OnceLock::new());
    Op::named([path.as_ref()], |[path]| SyncDir { path, opened, home })
}

/// What [`sync_dir`] does.
#[derive(Debug)]
pub struct SyncDir {
    path: CString,
    opened: Opened,
    home: OnceLock<Fs>,
}

// SAFETY: the path is in the operation.
unsafe impl Steps for SyncDir {
    type Output = io::Result<()>;

    fn home(&self) -> &OnceLock<Fs> {
        &self.home
    }

    fn request(&self) -> Sqe {
        match self.opened.number() {
            -1 => Sqe::openat(HERE, &self.path, READ | libc::O_DIRECTORY, 0),
            directory => Sqe::fsync(directory),
        }
    }

    fn after(&self, result: i32) -> Option<i32> {
        if self.opened.number() >= 0 || result < 0 {
            return Some(result);
        }
        self.opened.take(result);
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
    Op::named([path.as_ref()], |[path]| ReadFile {
        path,
        opened: Opened::default(),
        step: Cell::new(Step::Open),
        found: Found::new(),
        data: UnsafeCell::default(),
        asked: Cell::new(0),
        home: OnceLock::new(),
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
    path: CString,
    opened: Opened,
    step: Cell<Step>,
    found: Found,
    data: UnsafeCell<Vec<u8>>,
    /// Bytes of the read that is under way.
    asked: Cell<usize>,
    home: OnceLock<Fs>,
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

    fn home(&self) -> &OnceLock<Fs> {
        &self.home
    }

    fn request(&self) -> Sqe {
        let fd = self.opened.number();
        match self.step.get() {
            Step::Open => Sqe::openat(HERE, &self.path, READ, 0),
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
                self.opened.take(result);
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
    Op::named([path.as_ref()], |[path]| WriteFile {
        path,
        opened: Opened::default(),
        buffer: UnsafeCell::new(buffer),
        span: Span::new(0),
        home: OnceLock::new(),
    })
}

/// What [`write()`] does.
#[derive(Debug)]
pub struct WriteFile<B> {
    path: CString,
    opened: Opened,
    buffer: UnsafeCell<B>,
    span: Span,
    home: OnceLock<Fs>,
}

// SAFETY: the path is in the operation, and so is the buffer, as in `FileTransfer`.
unsafe impl<B: IoBuf + Send> Steps for WriteFile<B> {
    type Output = BufResult<(), B>;

    fn home(&self) -> &OnceLock<Fs> {
        &self.home
    }

    fn settle(&self) {
        // SAFETY: not out with the kernel yet.
        self.span.settle(Out::memory(unsafe { &mut *self.buffer.get() }));
    }

    fn request(&self) -> Sqe {
        let (address, length, offset) = self.span.left();
        match self.opened.number() {
            -1 => Sqe::openat(HERE, &self.path, REPLACE, 0o666),
            fd => <Out as Direction<B>>::request(fd, address, length, offset),
        }
    }

    fn bytes(&self) -> u64 {
        if self.opened.number() < 0 { 0 } else { self.span.bytes() }
    }

    fn after(&self, result: i32) -> Option<i32> {
        if self.opened.number() >= 0 || result < 0 {
            return self.span.after(result);
        }
        self.opened.take(result);
        self.span.is_whole().then_some(0)
    }

    fn end(self, result: i32) -> BufResult<(), B> {
        BufResult(self.span.all(result, io::ErrorKind::WriteZero), self.buffer.into_inner())
    }
}

/// Copies what a file holds into another one, in place of what that held, and gives it the first
/// one's permissions, whatever umask(2) says and whether it was there or not. What is no regular
/// file keeps its own. Gives the number of bytes. A file that is copied onto itself is empty then.
///
/// # Errors
/// As open(2), fchmod(2), read(2) and write(2). A part may have been copied. `EINVAL`: the first
/// one is no regular file, or there is a NUL in a path.
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Op<Copy> {
    Op::named([from.as_ref(), to.as_ref()], |[from, to]| Copy {
        from,
        to,
        source: Opened::default(),
        target: Opened::default(),
        step: Cell::new(CopyStep::OpenSource),
        found: Found::new(),
        part: UnsafeCell::default(),
        copied: Cell::new(0),
        home: OnceLock::new(),
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyStep {
    OpenSource,
    Look,
    OpenTarget,
    SetMode,
    Read,
    /// From here to there in the part that was read.
    Write(usize, usize),
}

/// What [`copy`] does.
#[derive(Debug)]
pub struct Copy {
    from: CString,
    to: CString,
    source: Opened,
    target: Opened,
    step: Cell<CopyStep>,
    found: Found,
    part: UnsafeCell<Box<[u8]>>,
    copied: Cell<u64>,
    home: OnceLock<Fs>,
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

/// Gives a regular file these permissions: descriptor, and from bit 32 on the mode. There is no
/// request for it, so a worker calls this.
unsafe extern "C" fn set_mode(of: u64) -> i32 {
    let (fd, mode) = (of as u32 as i32, (of >> 32) as u32);
    let found = Found::new();
    let (none, at) = (c"".as_ptr().cast(), found.place() as u64);
    // SAFETY: an empty path, and a struct statx. The descriptor is the operation's.
    unsafe {
        let looked = sys::statx(fd, none, libc::AT_EMPTY_PATH as u32, libc::STATX_TYPE, at);
        if looked != 0 || !found.get().is_file() {
            return looked as i32;
        }
        sys::call!(fchmod, fd, mode) as i32
    }
}

// SAFETY: paths, buffer and the place for what is found are in the operation, and so are the
// descriptors that `set_mode` is called with.
unsafe impl Steps for Copy {
    type Output = io::Result<u64>;

    fn home(&self) -> &OnceLock<Fs> {
        &self.home
    }

    fn request(&self) -> Sqe {
        let (source, target) = (self.source.number(), self.target.number());
        match self.step.get() {
            CopyStep::OpenSource => Sqe::openat(HERE, &self.from, READ, 0),
            CopyStep::Look => {
                Sqe::statx(source, c"", libc::AT_EMPTY_PATH, MASK, self.found.place())
            }
            CopyStep::OpenTarget => {
                Sqe::openat(HERE, &self.to, REPLACE, self.found.get().mode() & 0o777)
            }
            CopyStep::SetMode => {
                let mode = self.found.get().mode() & 0o7777;
                let (call, of): (CallFunction, _) =
                    (set_mode, u64::from(mode) << 32 | target as u64);
                Sqe { opcode: CALL, addr: call as usize as u64, off: of, ..Sqe::nop() }
            }
            CopyStep::Read => {
                let part = std::ptr::slice_from_raw_parts_mut(self.part(), Self::PART);
                Sqe::read(source, part, self.copied.get())
            }
            CopyStep::Write(begin, end) => {
                let rest = self.part().wrapping_add(begin);
                let rest = std::ptr::slice_from_raw_parts(rest, end - begin);
                Sqe::write(target, rest, self.copied.get())
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
                self.source.take(result);
                CopyStep::Look
            }
            CopyStep::Look if !self.found.get().is_file() => return Some(-libc::EINVAL),
            CopyStep::Look => CopyStep::OpenTarget,
            CopyStep::OpenTarget => {
                self.target.take(result);
                // SAFETY: no request is under way.
                unsafe { *self.part.get() = vec![0; Self::PART].into() };
                CopyStep::SetMode
            }
            CopyStep::SetMode => CopyStep::Read,
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
