//! Opening a file.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::CString;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use super::driver::{Fs, Header};
use super::handle::{File, Opened};
use super::names::HERE;
use super::op::{Op, Steps};
use super::wakers::Flights;
use super::whole::open_now;
use super::worker::{Behind, call};
use crate::paths;
use crate::sqe::Sqe;

/// Whether reads and writes bypass the page cache (`O_DIRECT`, open(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Direct {
    /// Transfers use the page cache.
    #[default]
    Off,
    /// Transfers bypass the page cache if the file system can; [`File::alignment`] is `Some` then.
    Try,
    /// Transfers bypass the page cache; opening fails with `EINVAL` if the file system cannot.
    Require,
}

/// How to open a file; the names are those of [`std::fs::OpenOptions`].
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    mode: Option<u32>,
    custom_flags: i32,
    direct: Direct,
}

impl OpenOptions {
    /// Options without an access mode, as from [`File::options`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens for reading.
    pub fn read(&mut self, on: bool) -> &mut Self {
        self.read = on;
        self
    }

    /// Opens for writing.
    pub fn write(&mut self, on: bool) -> &mut Self {
        self.write = on;
        self
    }

    /// Opens for appending: writes go to the end, whatever their offset (`O_APPEND`).
    pub fn append(&mut self, on: bool) -> &mut Self {
        self.append = on;
        self
    }

    /// Truncates the file.
    pub fn truncate(&mut self, on: bool) -> &mut Self {
        self.truncate = on;
        self
    }

    /// Creates the file if it does not exist.
    pub fn create(&mut self, on: bool) -> &mut Self {
        self.create = on;
        self
    }

    /// Creates the file, and fails with `EEXIST` if it exists.
    pub fn create_new(&mut self, on: bool) -> &mut Self {
        self.create_new = on;
        self
    }

    /// Permissions of a new file, less the process's umask(2); 0o666 by default.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = Some(mode);
        self
    }

    /// Further `O_*` flags. Those of the access mode are ignored.
    pub fn custom_flags(&mut self, flags: i32) -> &mut Self {
        self.custom_flags = flags;
        self
    }

    /// Chooses whether reads and writes bypass the page cache. If they do, buffers, offsets and
    /// lengths have to be [aligned](File::alignment), or the kernel answers `EINVAL`; a
    /// [`Pool`](super::Pool) has such buffers. [`File::read_ranges`], [`File::write_range_at`] and
    /// a `Cursor` take ranges of any alignment.
    pub fn direct(&mut self, direct: Direct) -> &mut Self {
        self.direct = direct;
        self
    }

    /// Opens the file.
    ///
    /// # Errors
    /// As open(2). `EINVAL`: no access mode was chosen, an option needs another access mode, or the
    /// path contains a NUL.
    pub fn open(&self, path: impl AsRef<Path>) -> Op<Open> {
        self.open_in(None, path.as_ref())
    }

    /// As [`OpenOptions::open`], relative to a directory if there is one.
    pub(super) fn open_in(&self, dir: Option<&File>, path: &Path) -> Op<Open> {
        let access = match (self.read, self.write, self.append) {
            (true, false, false) => Some(libc::O_RDONLY),
            (false, true, false) => Some(libc::O_WRONLY),
            (true, true, false) => Some(libc::O_RDWR),
            (false, _, true) => Some(libc::O_WRONLY | libc::O_APPEND),
            (true, _, true) => Some(libc::O_RDWR | libc::O_APPEND),
            (false, false, false) => None,
        };
        let makes = self.create || self.create_new;
        let writes = self.write || self.append;
        let is_sound = (!(makes || self.truncate) || writes) && !(self.truncate && self.append);
        let mut flags = libc::O_CLOEXEC | self.custom_flags & !libc::O_ACCMODE;
        for (on, flag) in [
            (self.truncate && !self.create_new, libc::O_TRUNC),
            (makes, libc::O_CREAT),
            (self.create_new, libc::O_EXCL),
            (self.direct != Direct::Off, libc::O_DIRECT),
        ] {
            flags |= if on { flag } else { 0 };
        }
        let mut open = Op::named([path], |[path]| Open {
            dir: dir.cloned(),
            path,
            flags: Cell::new(flags | access.unwrap_or_default()),
            mode: self.mode.unwrap_or(0o666),
            direct: self.direct,
            home: dir.map_or_else(OnceLock::new, |dir| dir.home().clone()),
            header: Behind::nothing(),
            opened: Opened::default(),
        });
        open.is_sound &= is_sound && access.is_some();
        open
    }
}

/// The operation of [`File::open`] and [`OpenOptions::open`].
#[derive(Debug)]
pub struct Open {
    dir: Option<File>,
    path: CString,
    flags: Cell<i32>,
    mode: u32,
    direct: Direct,
    home: OnceLock<Fs>,
    header: Behind,
    /// Holds the descriptor as soon as there is one: an operation that was dropped closes it.
    opened: Opened,
}

impl Open {
    /// The `struct open_how` of an open that makes no file.
    fn how(&self) -> [u64; 3] {
        [self.flags.get() as u64, 0, 0]
    }
}

/// The function that the worker calls.
///
/// # Safety
/// `operation` is the address of an `Open` whose request is under way.
unsafe extern "C" fn open(operation: u64) -> i32 {
    // SAFETY: the caller's contract.
    let operation = unsafe { &*std::ptr::with_exposed_provenance::<Open>(operation as usize) };
    // SAFETY: `pin` has set the header; the caller is the worker.
    let header = unsafe { operation.header.get() };
    let at = operation.dir.as_ref().map_or(HERE, File::number);
    let result = open_now(header, at, &operation.path, operation.flags.get(), operation.mode);
    if paths::is_open_tried(&operation.how()) {
        paths::was_opened(result);
    }
    result
}

// SAFETY: the request has the address of the operation alone, which owns the path.
unsafe impl Steps for Open {
    type Output = io::Result<File>;

    fn home(&self) -> &OnceLock<Fs> {
        &self.home
    }

    fn flights(&self) -> Option<&Arc<Flights>> {
        self.dir.as_ref().map(File::flights)
    }

    fn attempt(&mut self) -> Option<i32> {
        let at = self.dir.as_ref().map_or(HERE, File::number);
        let fd = paths::open(at, &self.path, &self.how())?;
        self.opened.adopt(fd);
        Some(fd)
    }

    fn pin(&self, header: &Header) {
        self.header.set(header);
    }

    fn request(&self) -> Sqe {
        call(open, self)
    }

    fn after(&self, result: i32) -> Option<i32> {
        let flags = self.flags.get();
        let is_direct = flags & libc::O_DIRECT != 0;
        if result == -libc::EINVAL && self.direct == Direct::Try && is_direct {
            // The file system has no direct I/O. The refused open may have created the file, so the
            // next one must not fail because the file exists (`O_EXCL`).
            self.flags.set(flags & !libc::O_DIRECT & !libc::O_EXCL);
            return None;
        }
        self.opened.adopt(result);
        Some(result)
    }

    fn end(self, result: i32) -> io::Result<File> {
        let is_direct = self.flags.get() & libc::O_DIRECT != 0;
        match self.opened.into_inner() {
            Some(descriptor) => Ok(File::new(descriptor, self.home, is_direct)),
            None if result < 0 => Err(io::Error::from_raw_os_error(-result)),
            None => Err(io::ErrorKind::Other.into()),
        }
    }
}
