//! Replacing and copying files, by a worker of the engine.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use super::driver::Header;
use super::op::Op;
use super::transfer::Span;
use super::worker::OnWorker;

/// A new file beside the one that it is to replace. Dropped, it is removed.
struct Staged {
    file: File,
    path: PathBuf,
    is_kept: bool,
}

impl Staged {
    fn new(folder: &Path) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!(".uringlet-{}-{number}", process::id()));
            match File::options().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok(Self { file, path, is_kept: false }),
                // Of a process that was killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Replaces a file by one of these bytes.
pub(super) fn replace_now(header: &Header, path: &CStr, bytes: &Span) -> io::Result<()> {
    let errno = io::Error::from_raw_os_error;
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    if path.file_name().is_none() {
        return Err(errno(libc::EINVAL));
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let directory = open_directory(folder)?;
    let mut staged = Staged::new(folder)?;
    match fs::symlink_metadata(path) {
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
    fs::rename(&staged.path, path)?;
    staged.is_kept = true;
    directory.sync_all()
}

fn open_directory(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(path)
}

/// Brings a directory to the disk: names in it that were made, changed or removed before survive a
/// crash then (fsync(2) of the directory).
///
/// # Errors
/// As open(2) and fsync(2). `ENOTDIR`: it is none.
pub fn sync_dir(path: impl AsRef<Path>) -> Op<OnWorker<()>> {
    OnWorker::at([path.as_ref()], |_, [path]| open_directory(path)?.sync_all())
}

/// Copies what a file holds into another one, in place of what that held. The other one gets the
/// first one's permissions, whatever umask(2) says, and also if it was there. What is no regular
/// file keeps its own. Gives the number of bytes. A file that is copied onto itself is empty then.
///
/// The kernel copies where it can, and shares the blocks where the file system can
/// (copy_file_range(2)). One that is dropped ends after the next 64 MiB.
///
/// # Errors
/// As open(2), fchmod(2), read(2) and write(2). A part may have been copied. `EINVAL`: the first
/// one is no regular file, or there is a NUL in a path.
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Op<OnWorker<u64>> {
    OnWorker::at([from.as_ref(), to.as_ref()], |header, [from, to]| copy_now(header, from, to))
}

fn copy_now(header: &Header, from: &Path, to: &Path) -> io::Result<u64> {
    /// Bytes that are copied before it is looked whether somebody waits.
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
        // The standard library finds the call that this pair of files takes.
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
