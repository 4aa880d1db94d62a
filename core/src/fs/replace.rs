//! Replacing and copying files, by a worker of the engine.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use super::driver::Header;
use super::folder::open_directory_at;
use super::handle::outcome;
use super::metadata::Found;
use super::names::HERE;
use super::op::Op;
use super::transfer::Span;
use super::worker::{OnWorker, uninterrupted};
use crate::sys;

/// A new file in a directory, which will get the name of the file that it replaces. Dropping it
/// before the rename removes the file.
struct Staged<'a> {
    file: File,
    folder: &'a File,
    name: CString,
    is_kept: bool,
}

impl<'a> Staged<'a> {
    fn new(folder: &'a File) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        const NEW: i32 = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
        loop {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = CString::new(format!(".uringlet-{}-{number}", process::id()))?;
            let at = folder.as_raw_fd();
            // SAFETY: a path that ends with a NUL.
            let open = || unsafe { sys::call!(openat, at, name.as_ptr(), NEW, 0o666) };
            match outcome(uninterrupted(open)) {
                Ok(fd) => {
                    // SAFETY: the kernel has just opened this descriptor, and nothing else uses it.
                    let file = unsafe { File::from_raw_fd(fd as RawFd) };
                    return Ok(Self { file, folder, name, is_kept: false });
                }
                // A killed process with the same pid has left a file of this name. The next number
                // is tried.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Renames the file. A file that had the name is replaced.
    fn rename(&mut self, name: &CStr) -> io::Result<()> {
        let (at, own) = (self.folder.as_raw_fd(), self.name.as_ptr());
        // SAFETY: paths that end with a NUL.
        let renamed = unsafe { sys::call!(renameat2, at, own, at, name.as_ptr(), 0) };
        outcome(renamed as i32)?;
        self.is_kept = true;
        Ok(())
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            let (at, own) = (self.folder.as_raw_fd(), self.name.as_ptr());
            // SAFETY: a path that ends with a NUL.
            let _ = unsafe { sys::call!(unlinkat, at, own, 0) };
        }
    }
}

/// Replaces a file's content by these bytes. The path is relative to the directory `at`.
pub(super) fn replace_now(header: &Header, at: RawFd, path: &CStr, bytes: &Span) -> io::Result<()> {
    let errno = io::Error::from_raw_os_error;
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    let name = path.file_name().ok_or_else(|| errno(libc::EINVAL))?;
    let name = CString::new(name.as_bytes())?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder = open_directory_at(at, folder)?;
    let mut staged = Staged::new(&folder)?;
    match Found::new().look(folder.as_raw_fd(), &name, libc::AT_SYMLINK_NOFOLLOW) {
        Ok(old) if old.is_file() => staged.file.set_permissions(old.permissions())?,
        Ok(old) if old.is_dir() => return Err(errno(libc::EISDIR)),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    bytes.write_now(staged.file.as_raw_fd(), header)?;
    if !bytes.is_whole() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    staged.file.sync_all()?;
    if header.is_stopped() {
        return Err(errno(libc::ECANCELED));
    }
    staged.rename(&name)?;
    folder.sync_all()
}

/// Brings a directory to the disk (fsync(2) of the directory): earlier changes of its names survive
/// a crash then.
///
/// # Errors
/// As open(2) and fsync(2). `ENOTDIR`: it is no directory.
pub fn sync_dir(path: impl AsRef<Path>) -> Op<OnWorker<()>> {
    OnWorker::at([path.as_ref()], |_, [path]| open_directory_at(HERE, path)?.sync_all())
}

/// Copies the content of a file to another one, in place of the old content. The target gets the
/// permissions of the source, even if it existed before, and whatever the umask(2). A target that
/// is no regular file keeps its own permissions. Returns the number of bytes. A file that is copied
/// onto itself becomes empty.
///
/// The kernel copies where it can, and shares the blocks where the file system can
/// (copy_file_range(2)). If the future is dropped, the copy ends after the next 64 MiB.
///
/// # Errors
/// As open(2), fchmod(2), read(2) and write(2). A part may have been copied. `EINVAL`: the source
/// is no regular file, or a path contains a NUL.
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Op<OnWorker<u64>> {
    OnWorker::at([from.as_ref(), to.as_ref()], |header, [from, to]| copy_now(header, from, to))
}

fn copy_now(header: &Header, from: &Path, to: &Path) -> io::Result<u64> {
    /// The number of bytes that are copied between two checks whether the operation was stopped.
    const PART: u64 = 64 << 20;
    let source = File::open(from)?;
    let known = source.metadata()?;
    if !known.is_file() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mode = known.permissions().mode() & 0o7777;
    let mut options = OpenOptions::new();
    let target = options.write(true).create(true).truncate(true).mode(mode & 0o777).open(to)?;
    if target.metadata()?.is_file() {
        target.set_permissions(fs::Permissions::from_mode(mode))?;
    }
    let mut copied = 0;
    loop {
        // The standard library chooses the call for this pair of files.
        let part = io::copy(&mut (&source).take(PART), &mut &target)?;
        copied += part;
        if part < PART {
            return Ok(copied);
        }
        if header.is_stopped() {
            return Err(io::Error::from_raw_os_error(libc::ECANCELED));
        }
    }
}
