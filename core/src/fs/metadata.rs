//! Metadata of a file: statx(2).
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
use crate::paths;
use crate::sqe::Sqe;
use crate::sys;

/// The metadata of a file, from [`File::metadata`] and [`metadata`](super::metadata()).
#[derive(Clone, Copy)]
pub struct Metadata(libc::statx);

impl Metadata {
    /// The length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.0.stx_size
    }

    /// Is it a regular file?
    pub fn is_file(&self) -> bool {
        self.file_type().is_file()
    }

    /// Is it a directory?
    pub fn is_dir(&self) -> bool {
        self.file_type().is_dir()
    }

    /// Is it a symbolic link, which was not followed?
    pub fn is_symlink(&self) -> bool {
        self.file_type().is_symlink()
    }

    /// The kind of file.
    pub fn file_type(&self) -> FileType {
        FileType(self.mode() & libc::S_IFMT)
    }

    /// The permissions, as the standard library's type.
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

    /// The number of the file's names.
    pub fn nlink(&self) -> u64 {
        self.0.stx_nlink.into()
    }

    /// The device number of a device file (`st_rdev`).
    pub fn rdev(&self) -> u64 {
        libc::makedev(self.0.stx_rdev_major, self.0.stx_rdev_minor)
    }

    /// The preferred block size for I/O, in bytes.
    pub fn blksize(&self) -> u64 {
        self.0.stx_blksize.into()
    }

    /// The room that the file takes, in units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        self.0.stx_blocks
    }

    /// The time of the last change of the contents.
    ///
    /// # Errors
    /// `InvalidData`: the standard library cannot represent the time.
    pub fn modified(&self) -> io::Result<SystemTime> {
        time(self.0.stx_mtime)
    }

    /// The time of the last change of contents, owner, permissions or names.
    ///
    /// # Errors
    /// As [`Metadata::modified`].
    pub fn changed(&self) -> io::Result<SystemTime> {
        time(self.0.stx_ctime)
    }

    /// The time of the last read of the contents. A file system may not record every read.
    ///
    /// # Errors
    /// As [`Metadata::modified`].
    pub fn accessed(&self) -> io::Result<SystemTime> {
        time(self.0.stx_atime)
    }

    /// The time when the file was created.
    ///
    /// # Errors
    /// As [`Metadata::modified`]. `Unsupported`: the file system does not record it.
    pub fn created(&self) -> io::Result<SystemTime> {
        if self.0.stx_mask & libc::STATX_BTIME == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        time(self.0.stx_btime)
    }
}

/// The kind of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileType(u32);

impl FileType {
    /// From the type in a directory entry (readdir(3)); `None` if that is unknown.
    pub(super) fn of_entry(kind: u8) -> Option<Self> {
        (kind != libc::DT_UNKNOWN).then_some(Self(u32::from(kind) << 12))
    }

    /// Is it a regular file?
    pub fn is_file(&self) -> bool {
        self.0 == libc::S_IFREG
    }

    /// Is it a directory?
    pub fn is_dir(&self) -> bool {
        self.0 == libc::S_IFDIR
    }

    /// Is it a symbolic link?
    pub fn is_symlink(&self) -> bool {
        self.0 == libc::S_IFLNK
    }

    /// Is it a FIFO?
    pub fn is_fifo(&self) -> bool {
        self.0 == libc::S_IFIFO
    }

    /// Is it a socket?
    pub fn is_socket(&self) -> bool {
        self.0 == libc::S_IFSOCK
    }

    /// Is it a block device?
    pub fn is_block_device(&self) -> bool {
        self.0 == libc::S_IFBLK
    }

    /// Is it a character device?
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

/// The operation of [`File::metadata`], [`metadata`](super::metadata()) and the like.
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
        // SAFETY: all fields are integers, which may be zero.
        Self(UnsafeCell::new(unsafe { std::mem::zeroed() }))
    }

    pub(super) fn place(&self) -> *mut libc::statx {
        self.0.get()
    }

    pub(super) fn get(&self) -> Metadata {
        // SAFETY: the calling thread owns the operation, and no request of it is under way.
        Metadata(unsafe { *self.0.get() })
    }

    /// Calls statx(2) for a name relative to a directory or, with an empty name, for the descriptor
    /// itself.
    pub(super) fn look(&self, fd: RawFd, name: &CStr, flags: i32) -> io::Result<Metadata> {
        let at = self.place() as u64;
        // SAFETY: a path that ends with a NUL, and a struct statx.
        let looked = unsafe { sys::statx(fd, name.as_ptr().cast(), flags as u32, MASK, at) };
        outcome(looked as i32).map(|_| self.get())
    }
}

pub(super) const MASK: u32 = libc::STATX_BASIC_STATS | libc::STATX_BTIME;

impl Stat {
    /// The operation for a path, relative to the directory `file` if there is one. With
    /// `AT_EMPTY_PATH` and an empty path, the operation is for `file` itself.
    pub(super) fn new(file: Option<&File>, path: CString, flags: i32) -> Self {
        let (home, found) = (OnceLock::new(), Found::new());
        Self { file: file.cloned(), path, flags, home, found, is_known: false }
    }

    /// Gives the operation a known result, if there is one, which is returned at once.
    pub(super) fn with(mut self, known: Option<Metadata>) -> Self {
        if let Some(Metadata(known)) = known {
            (*self.found.0.get_mut(), self.is_known) = (known, true);
        }
        self
    }
}

// SAFETY: the operation owns the path and the struct statx, and stays in its slot.
unsafe impl Steps for Stat {
    type Output = io::Result<Metadata>;

    fn home(&self) -> &OnceLock<Fs> {
        self.file.as_ref().map_or(&self.home, File::home)
    }

    fn flights(&self) -> Option<&Arc<Flights>> {
        self.file.as_ref().map(File::flights)
    }

    fn attempt(&mut self) -> Option<i32> {
        if self.is_known {
            return Some(0);
        }
        let fd = self.file.as_ref().filter(|_| self.path.is_empty())?.number();
        // SAFETY: the operation has a struct statx.
        unsafe { paths::stat(fd, self.flags, MASK, self.found.place() as u64) }
    }

    fn request(&self) -> Sqe {
        let at = self.file.as_ref().map_or(libc::AT_FDCWD, File::number);
        Sqe::statx(at, &self.path, self.flags, MASK, self.found.place())
    }

    fn end(self, result: i32) -> io::Result<Metadata> {
        outcome(result).map(|_| self.found.get())
    }
}
