//! What is known of a file: statx(2).
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::CString;
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use super::driver::Fs;
use super::handle::{File, outcome};
use super::op::Steps;
use crate::sqe::Sqe;

/// What [`File::metadata`] and [`metadata`](super::metadata()) find.
#[derive(Clone, Copy)]
pub struct Metadata(libc::statx);

impl Metadata {
    /// The length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.0.stx_size
    }

    /// A regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == libc::S_IFREG
    }

    /// A directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }

    fn kind(&self) -> u32 {
        self.mode() & libc::S_IFMT
    }

    /// Type and permissions (`st_mode`, inode(7)).
    pub fn mode(&self) -> u32 {
        u32::from(self.0.stx_mode)
    }

    /// The owner.
    pub fn uid(&self) -> u32 {
        self.0.stx_uid
    }

    /// The group.
    pub fn gid(&self) -> u32 {
        self.0.stx_gid
    }

    /// The number of the inode.
    pub fn ino(&self) -> u64 {
        self.0.stx_ino
    }

    /// The device of the file system.
    pub fn dev(&self) -> u64 {
        libc::makedev(self.0.stx_dev_major, self.0.stx_dev_minor)
    }

    /// Names that the file has.
    pub fn nlink(&self) -> u32 {
        self.0.stx_nlink
    }

    /// The device that a device's file stands for (`st_rdev`).
    pub fn rdev(&self) -> u64 {
        libc::makedev(self.0.stx_rdev_major, self.0.stx_rdev_minor)
    }

    /// Bytes that the file system would have read and written at a time.
    pub fn blksize(&self) -> u32 {
        self.0.stx_blksize
    }

    /// Room that it takes, in units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        self.0.stx_blocks
    }

    /// When the contents were last changed.
    pub fn modified(&self) -> SystemTime {
        time(self.0.stx_mtime)
    }

    /// When contents, owner, permissions or names were last changed.
    pub fn changed(&self) -> SystemTime {
        time(self.0.stx_ctime)
    }

    /// When the contents were last read, as far as that is kept.
    pub fn accessed(&self) -> SystemTime {
        time(self.0.stx_atime)
    }

    /// When the file was made, where the file system keeps that.
    pub fn created(&self) -> Option<SystemTime> {
        (self.0.stx_mask & libc::STATX_BTIME != 0).then(|| time(self.0.stx_btime))
    }
}

fn time(of: libc::statx_timestamp) -> SystemTime {
    let nanoseconds = Duration::from_nanos(of.tv_nsec.into());
    let whole = Duration::from_secs(of.tv_sec.unsigned_abs());
    let seconds = if of.tv_sec < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(whole)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(whole)
    };
    seconds.and_then(|at| at.checked_add(nanoseconds)).unwrap_or(SystemTime::UNIX_EPOCH)
}

impl std::fmt::Debug for Metadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metadata")
            .field("mode", &format_args!("{:o}", self.mode()))
            .field("len", &self.len())
            .field("ino", &self.ino())
            .finish_non_exhaustive()
    }
}

/// What [`File::metadata`] and [`metadata`](super::metadata()) do.
#[derive(Debug)]
pub struct Stat {
    file: Option<File>,
    path: CString,
    home: OnceLock<Fs>,
    found: Found,
}

/// A struct statx that the kernel fills in.
#[derive(Debug)]
pub(super) struct Found(UnsafeCell<libc::statx>);

impl Found {
    pub(super) fn new() -> Self {
        // SAFETY: integers.
        Self(UnsafeCell::new(unsafe { std::mem::zeroed() }))
    }

    pub(super) fn place(&self) -> *mut libc::statx {
        self.0.get()
    }

    pub(super) fn get(&self) -> Metadata {
        // SAFETY: whoever asks has the operation, and no request of it is under way.
        Metadata(unsafe { *self.0.get() })
    }
}

pub(super) const MASK: u32 = libc::STATX_BASIC_STATS | libc::STATX_BTIME;

impl Stat {
    /// Of a file, or of what a path leads to.
    pub(super) fn new(file: Option<&File>, path: CString) -> Self {
        Self { file: file.cloned(), path, home: OnceLock::new(), found: Found::new() }
    }
}

// SAFETY: the path and the place for what is found are in the operation.
unsafe impl Steps for Stat {
    type Output = io::Result<Metadata>;

    fn home(&self) -> &OnceLock<Fs> {
        self.file.as_ref().map_or(&self.home, File::home)
    }

    fn request(&self) -> Sqe {
        let (fd, flags) = match &self.file {
            Some(file) => (file.number(), libc::AT_EMPTY_PATH),
            None => (libc::AT_FDCWD, 0),
        };
        Sqe::statx(fd, &self.path, flags, MASK, self.found.place())
    }

    fn end(self, result: i32) -> io::Result<Metadata> {
        outcome(result).map(|_| self.found.get())
    }
}
