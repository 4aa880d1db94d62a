//! What is known of a file: statx(2).
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::{CStr, CString};
use std::fs::Permissions;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use super::driver::Fs;
use super::handle::{File, outcome};
use super::op::Steps;
use super::wakers::Flights;
use crate::sqe::Sqe;
use crate::sys;

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
        self.file_type().is_file()
    }

    /// A directory.
    pub fn is_dir(&self) -> bool {
        self.file_type().is_dir()
    }

    /// A symbolic link, which was not followed.
    pub fn is_symlink(&self) -> bool {
        self.file_type().is_symlink()
    }

    /// What kind of file it is.
    pub fn file_type(&self) -> FileType {
        FileType(self.mode() & libc::S_IFMT)
    }

    /// The permissions, as the standard library has them.
    pub fn permissions(&self) -> Permissions {
        Permissions::from_mode(self.mode())
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
    pub fn nlink(&self) -> u64 {
        self.0.stx_nlink.into()
    }

    /// The device that a device's file stands for (`st_rdev`).
    pub fn rdev(&self) -> u64 {
        libc::makedev(self.0.stx_rdev_major, self.0.stx_rdev_minor)
    }

    /// Bytes that the file system would have read and written at a time.
    pub fn blksize(&self) -> u64 {
        self.0.stx_blksize.into()
    }

    /// Room that it takes, in units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        self.0.stx_blocks
    }

    /// When the contents were last changed.
    ///
    /// # Errors
    /// `InvalidData`: the time is none that the standard library can have.
    pub fn modified(&self) -> io::Result<SystemTime> {
        time(self.0.stx_mtime)
    }

    /// When contents, owner, permissions or names were last changed.
    ///
    /// # Errors
    /// As [`Metadata::modified`].
    pub fn changed(&self) -> io::Result<SystemTime> {
        time(self.0.stx_ctime)
    }

    /// When the contents were last read, as far as that is kept.
    ///
    /// # Errors
    /// As [`Metadata::modified`].
    pub fn accessed(&self) -> io::Result<SystemTime> {
        time(self.0.stx_atime)
    }

    /// When the file was made.
    ///
    /// # Errors
    /// As [`Metadata::modified`]. `Unsupported`: the file system does not keep it.
    pub fn created(&self) -> io::Result<SystemTime> {
        if self.0.stx_mask & libc::STATX_BTIME == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        time(self.0.stx_btime)
    }
}

/// What kind of file something is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileType(u32);

impl FileType {
    /// From the type of a directory's entry (readdir(3)); `None` if that is not known.
    pub(super) fn of_entry(kind: u8) -> Option<Self> {
        (kind != libc::DT_UNKNOWN).then_some(Self(u32::from(kind) << 12))
    }

    /// A regular file.
    pub fn is_file(&self) -> bool {
        self.0 == libc::S_IFREG
    }

    /// A directory.
    pub fn is_dir(&self) -> bool {
        self.0 == libc::S_IFDIR
    }

    /// A symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.0 == libc::S_IFLNK
    }

    /// A FIFO.
    pub fn is_fifo(&self) -> bool {
        self.0 == libc::S_IFIFO
    }

    /// A socket.
    pub fn is_socket(&self) -> bool {
        self.0 == libc::S_IFSOCK
    }

    /// A block device.
    pub fn is_block_device(&self) -> bool {
        self.0 == libc::S_IFBLK
    }

    /// A character device.
    pub fn is_char_device(&self) -> bool {
        self.0 == libc::S_IFCHR
    }
}

impl std::fmt::Debug for FileType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FileType({:o})", self.0)
    }
}

fn time(of: libc::statx_timestamp) -> io::Result<SystemTime> {
    let nanoseconds = Duration::from_nanos(of.tv_nsec.into());
    let whole = Duration::from_secs(of.tv_sec.unsigned_abs());
    let seconds = if of.tv_sec < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(whole)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(whole)
    };
    let at = seconds.and_then(|at| at.checked_add(nanoseconds));
    at.ok_or_else(|| io::ErrorKind::InvalidData.into())
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

/// What [`File::metadata`], [`metadata`](super::metadata()) and the like do.
#[derive(Debug)]
pub struct Stat {
    file: Option<File>,
    path: CString,
    flags: i32,
    home: OnceLock<Fs>,
    found: Found,
    is_known: bool,
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
        // SAFETY: the thread that asks has the operation, and no request of it is under way.
        Metadata(unsafe { *self.0.get() })
    }

    /// Asks for a name, relative to a directory, or for the descriptor itself with an empty one.
    pub(super) fn look(&self, fd: RawFd, name: &CStr, flags: i32) -> io::Result<Metadata> {
        let at = self.place() as u64;
        // SAFETY: a path that ends with a NUL, and a struct statx.
        let looked = unsafe { sys::statx(fd, name.as_ptr().cast(), flags as u32, MASK, at) };
        outcome(looked as i32).map(|_| self.get())
    }
}

pub(super) const MASK: u32 = libc::STATX_BASIC_STATS | libc::STATX_BTIME;

impl Stat {
    /// Of what a path leads to, relative to a directory if there is one.
    pub(super) fn new(file: Option<&File>, path: CString, flags: i32) -> Self {
        let (home, found) = (OnceLock::new(), Found::new());
        Self { file: file.cloned(), path, flags, home, found, is_known: false }
    }

    /// With what it is to find, if that is known.
    pub(super) fn with(mut self, known: Option<Metadata>) -> Self {
        if let Some(Metadata(known)) = known {
            (*self.found.0.get_mut(), self.is_known) = (known, true);
        }
        self
    }
}

// SAFETY: the path and the place for what is found are in the operation.
unsafe impl Steps for Stat {
    type Output = io::Result<Metadata>;

    fn home(&self) -> &OnceLock<Fs> {
        self.file.as_ref().map_or(&self.home, File::home)
    }

    fn flights(&self) -> Option<&Arc<Flights>> {
        self.file.as_ref().map(File::flights)
    }

    fn attempt(&mut self) -> Option<i32> {
        self.is_known.then_some(0)
    }

    fn request(&self) -> Sqe {
        let at = self.file.as_ref().map_or(libc::AT_FDCWD, File::number);
        Sqe::statx(at, &self.path, self.flags, MASK, self.found.place())
    }

    fn end(self, result: i32) -> io::Result<Metadata> {
        outcome(result).map(|_| self.found.get())
    }
}
