//! Operations on names.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::Permissions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::driver::Fs;
use super::handle::{File, outcome};
use super::metadata::Stat;
use super::op::{Op, Steps};
use super::wakers::Flights;
use super::worker::OnWorker;
use crate::sqe::Sqe;

pub(super) const HERE: i32 = libc::AT_FDCWD;

/// The metadata of the file at a path: its kind, length, and so on (statx(2)). Symbolic links are
/// followed.
///
/// # Errors
/// As statx(2). `EINVAL`: the path contains a NUL.
pub fn metadata(path: impl AsRef<Path>) -> Op<Stat> {
    Op::named([path.as_ref()], |[path]| Stat::new(None, path, 0))
}

/// As [`metadata`], of a symbolic link itself.
///
/// # Errors
/// As [`metadata`].
pub fn symlink_metadata(path: impl AsRef<Path>) -> Op<Stat> {
    Op::named([path.as_ref()], |[path]| Stat::new(None, path, libc::AT_SYMLINK_NOFOLLOW))
}

/// Does the path lead to anything?
///
/// # Errors
/// As statx(2), except `ENOENT`, which means no. `EINVAL`: the path contains a NUL.
pub fn try_exists(path: impl AsRef<Path>) -> Op<OnWorker<bool>> {
    OnWorker::at([path.as_ref()], |_, [path]| path.try_exists())
}

/// Renames a file. A file that had the new name is replaced (rename(2)).
///
/// # Errors
/// As rename(2). `EINVAL`: a path contains a NUL.
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Op<Name> {
    Op::named([from.as_ref(), to.as_ref()], |[from, to]| Name::new(None, from, Some((None, to)), 0))
}

/// Removes a name that is not a directory's (unlink(2)).
///
/// # Errors
/// As unlink(2). `EINVAL`: the path contains a NUL.
pub fn remove_file(path: impl AsRef<Path>) -> Op<Name> {
    Op::named([path.as_ref()], |[path]| Name::new(None, path, None, 0))
}

/// Removes an empty directory (rmdir(2)).
///
/// # Errors
/// As rmdir(2). `EINVAL`: the path contains a NUL.
pub fn remove_dir(path: impl AsRef<Path>) -> Op<Name> {
    Op::named([path.as_ref()], |[path]| Name::new(None, path, None, libc::AT_REMOVEDIR))
}

/// Removes a directory with its contents. Symbolic links are removed, not followed.
///
/// # Errors
/// As [`std::fs::remove_dir_all`]; a part may have been removed. `EINVAL`: there is a NUL in the
/// path.
pub fn remove_dir_all(path: impl AsRef<Path>) -> Op<OnWorker<()>> {
    OnWorker::at([path.as_ref()], |_, [path]| std::fs::remove_dir_all(path))
}

/// Gives a file a further name, in the same file system (link(2)).
///
/// # Errors
/// As link(2). `EINVAL`: a path contains a NUL.
pub fn hard_link(original: impl AsRef<Path>, link: impl AsRef<Path>) -> Op<OnWorker<()>> {
    OnWorker::at([original.as_ref(), link.as_ref()], |_, [original, link]| {
        std::fs::hard_link(original, link)
    })
}

/// Makes a symbolic link to `original`, which need not exist (symlink(2)).
///
/// # Errors
/// As symlink(2). `EINVAL`: a path contains a NUL.
pub fn symlink(original: impl AsRef<Path>, link: impl AsRef<Path>) -> Op<OnWorker<()>> {
    OnWorker::at([original.as_ref(), link.as_ref()], |_, [original, link]| {
        std::os::unix::fs::symlink(original, link)
    })
}

/// The target of a symbolic link (readlink(2)).
///
/// # Errors
/// As readlink(2). `EINVAL`: it is no symbolic link, or the path contains a NUL.
pub fn read_link(path: impl AsRef<Path>) -> Op<OnWorker<PathBuf>> {
    OnWorker::at([path.as_ref()], |_, [path]| std::fs::read_link(path))
}

/// The absolute path without symbolic links (realpath(3)).
///
/// # Errors
/// As realpath(3). `EINVAL`: the path contains a NUL.
pub fn canonicalize(path: impl AsRef<Path>) -> Op<OnWorker<PathBuf>> {
    OnWorker::at([path.as_ref()], |_, [path]| std::fs::canonicalize(path))
}

/// Sets the permissions of the file at a path (chmod(2)).
///
/// # Errors
/// As chmod(2). `EINVAL`: the path contains a NUL.
pub fn set_permissions(path: impl AsRef<Path>, permissions: Permissions) -> Op<OnWorker<()>> {
    OnWorker::at([path.as_ref()], |_, [path]| std::fs::set_permissions(path, permissions))
}

/// The operation of [`rename`], [`remove_file`] and [`remove_dir`].
#[derive(Debug)]
pub struct Name {
    dir: Option<File>,
    path: CString,
    /// The new name, in a directory; `None` removes the file.
    to: Option<(Option<File>, CString)>,
    flags: i32,
    home: OnceLock<Fs>,
}

impl Name {
    pub(super) fn new(
        dir: Option<&File>,
        path: CString,
        to: Option<(Option<&File>, CString)>,
        flags: i32,
    ) -> Self {
        let to = to.map(|(dir, path)| (dir.cloned(), path));
        Self { dir: dir.cloned(), path, to, flags, home: OnceLock::new() }
    }
}

// SAFETY: the paths are in the operation.
unsafe impl Steps for Name {
    type Output = io::Result<()>;

    fn home(&self) -> &OnceLock<Fs> {
        self.dir.as_ref().map_or(&self.home, File::home)
    }

    fn flights(&self) -> Option<&Arc<Flights>> {
        self.dir.as_ref().map(File::flights)
    }

    fn request(&self) -> Sqe {
        let at = |dir: &Option<File>| dir.as_ref().map_or(HERE, File::number);
        match &self.to {
            Some((dir, to)) => Sqe::renameat(at(&self.dir), &self.path, at(dir), to, 0),
            None => Sqe::unlinkat(at(&self.dir), &self.path, self.flags),
        }
    }

    fn end(self, result: i32) -> io::Result<()> {
        outcome(result).map(|_| ())
    }
}
