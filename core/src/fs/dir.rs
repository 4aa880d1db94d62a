//! Directories that are opened once, and names relative to them.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use compio_buf::IoBuf;

use super::driver::Header;
use super::file::Control;
use super::folder::{ReadDir, open_directory_at, open_listing};
use super::handle::{File, outcome};
use super::metadata::{Found, Stat};
use super::names::{HERE, Name};
use super::op::Op;
use super::options::{Open, OpenOptions};
use super::whole::{ReadFile, WriteFile};
use super::worker::OnWorker;
use super::worker::uninterrupted;
use crate::sys;

/// An open directory. The paths of its methods are relative to it. A handle, cheap to clone.
///
/// It stays the same directory if it is renamed or moved, and its own path is not resolved again
/// (openat(2)). It is no sandbox: `..`, absolute paths and symbolic links lead out of it. Method
/// names are those of the crate `cap-std`, except three of the standard library: `Dir::open`,
/// [`open_file`](Dir::open_file) and [`open_file_with`](Dir::open_file_with). Only
/// [`replace`](Dir::replace) is of this crate.
///
/// ```
/// use uringlet::fs::Dir;
///
/// # async fn example(path: &std::path::Path) -> std::io::Result<()> {
/// let dir = Dir::open(path).await?;
/// dir.write("draft", b"text").await.0?;
/// dir.rename("draft", &dir, "letter").await?;
/// // The name survives a crash from here on.
/// dir.sync_all().await?;
/// // A crash leaves the old or the new content.
/// dir.replace("letter", "other text").await.0?;
/// assert_eq!(dir.read_to_string("letter").await?, "other text");
/// # Ok(())
/// # }
/// # let folder = tempfile::tempdir()?;
/// # pollster::block_on(example(folder.path()))?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Every method with a path: `EINVAL` if the path contains a NUL, or if the parent of this process
/// has opened the directory (fork(2)).
#[derive(Clone, Debug)]
pub struct Dir(File);

impl Dir {
    /// Opens a directory.
    ///
    /// # Errors
    /// As open(2). `ENOTDIR`: it is no directory. `EINVAL`: the path contains a NUL.
    pub fn open(path: impl AsRef<Path>) -> Op<OnWorker<Self>> {
        OnWorker::at([path.as_ref()], |header, [path]| Self::open_now(header, HERE, path))
    }

    /// Opens a directory relative to this one.
    ///
    /// # Errors
    /// As openat(2). `ENOTDIR`: it is no directory.
    pub fn open_dir(&self, path: impl AsRef<Path>) -> Op<OnWorker<Self>> {
        let dir = self.0.clone();
        let op = OnWorker::at([path.as_ref()], move |header, [path]| {
            Self::open_now(header, dir.number(), path)
        });
        match self.0.fs() {
            Some(fs) => op.on(fs),
            None => op,
        }
    }

    /// Opens a directory, on a worker.
    fn open_now(header: &Header, at: RawFd, path: &Path) -> io::Result<Self> {
        let opened = File::from_std(open_directory_at(at, path)?);
        let _ = opened.home().set(header.fs().clone());
        Ok(Self(opened))
    }

    /// Opens a file in this directory for reading.
    ///
    /// # Errors
    /// As [`File::open`].
    pub fn open_file(&self, path: impl AsRef<Path>) -> Op<Open> {
        self.open_file_with(path, File::options().read(true))
    }

    /// Opens a file in this directory for writing. The file is created if it does not exist, and
    /// truncated if it does.
    ///
    /// # Errors
    /// As [`File::open`].
    pub fn create(&self, path: impl AsRef<Path>) -> Op<Open> {
        self.open_file_with(path, File::options().write(true).create(true).truncate(true))
    }

    /// Opens a file in this directory with options.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn open_file_with(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Op<Open> {
        options.open_in(Some(&self.0), path.as_ref())
    }

    /// Reads a whole file in this directory.
    ///
    /// # Errors
    /// As [`read()`](super::read()).
    pub fn read(&self, path: impl AsRef<Path>) -> Op<ReadFile<Vec<u8>>> {
        Op::named([path.as_ref()], |[path]| ReadFile::new(Some(&self.0), path))
    }

    /// As [`Dir::read`], as text.
    ///
    /// # Errors
    /// As [`read_to_string`](super::read_to_string).
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Op<ReadFile<String>> {
        Op::named([path.as_ref()], |[path]| ReadFile::new(Some(&self.0), path))
    }

    /// Writes a whole file in this directory, in place of its old content.
    ///
    /// # Errors
    /// As [`write()`](super::write()).
    pub fn write<B: IoBuf + Send>(&self, path: impl AsRef<Path>, buffer: B) -> Op<WriteFile<B>> {
        Op::named([path.as_ref()], |[path]| WriteFile::new(Some(&self.0), path, buffer, false))
    }

    /// Writes a whole file in this directory, so that a crash leaves the old or the new content.
    ///
    /// # Errors
    /// As [`replace`](super::replace).
    pub fn replace<B: IoBuf + Send>(&self, path: impl AsRef<Path>, buffer: B) -> Op<WriteFile<B>> {
        Op::named([path.as_ref()], |[path]| WriteFile::new(Some(&self.0), path, buffer, true))
    }

    /// Does the path lead to anything in this directory?
    ///
    /// # Errors
    /// As [`try_exists`](super::try_exists).
    pub fn try_exists(&self, path: impl AsRef<Path>) -> Op<OnWorker<bool>> {
        self.call([path.as_ref()], |at, [path]| match Found::new().look(at, path, 0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            found => found.map(|_| true),
        })
    }

    /// Makes a directory in this one (mkdirat(2)).
    ///
    /// # Errors
    /// As mkdirat(2).
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Op<OnWorker<()>> {
        self.call([path.as_ref()], |at, [path]| {
            // SAFETY: a path that ends with a NUL.
            done(|| unsafe { sys::call!(mkdirat, at, path.as_ptr(), 0o777) })
        })
    }

    /// The metadata of a file in this directory (statx(2)). Symbolic links are followed.
    ///
    /// # Errors
    /// As statx(2).
    pub fn metadata(&self, path: impl AsRef<Path>) -> Op<Stat> {
        Op::named([path.as_ref()], |[path]| Stat::new(Some(&self.0), path, 0))
    }

    /// As [`Dir::metadata`], of a symbolic link itself.
    ///
    /// # Errors
    /// As [`Dir::metadata`].
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Op<Stat> {
        let flags = libc::AT_SYMLINK_NOFOLLOW;
        Op::named([path.as_ref()], |[path]| Stat::new(Some(&self.0), path, flags))
    }

    /// The metadata of the directory itself.
    ///
    /// # Errors
    /// As statx(2).
    pub fn dir_metadata(&self) -> Op<Stat> {
        self.0.metadata()
    }

    /// Renames a file in this directory, to a name in this directory or another one. A file that
    /// had that name is replaced (renameat(2)).
    ///
    /// # Errors
    /// As renameat(2).
    pub fn rename(&self, from: impl AsRef<Path>, to_dir: &Self, to: impl AsRef<Path>) -> Op<Name> {
        Op::named([from.as_ref(), to.as_ref()], |[from, to]| {
            Name::new(Some(&self.0), from, Some((Some(&to_dir.0), to)), 0)
        })
    }

    /// Removes a name in this directory that is not a directory's (unlinkat(2)).
    ///
    /// # Errors
    /// As unlinkat(2).
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Op<Name> {
        Op::named([path.as_ref()], |[path]| Name::new(Some(&self.0), path, None, 0))
    }

    /// Removes an empty directory in this one (unlinkat(2)).
    ///
    /// # Errors
    /// As unlinkat(2).
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Op<Name> {
        let flags = libc::AT_REMOVEDIR;
        Op::named([path.as_ref()], |[path]| Name::new(Some(&self.0), path, None, flags))
    }

    /// Gives a file in this directory a further name, in this directory or another one (linkat(2)).
    ///
    /// # Errors
    /// As linkat(2).
    pub fn hard_link(
        &self,
        original: impl AsRef<Path>,
        to_dir: &Self,
        link: impl AsRef<Path>,
    ) -> Op<OnWorker<()>> {
        let to_dir = to_dir.clone();
        self.call([original.as_ref(), link.as_ref()], move |at, [original, link]| {
            let to = to_dir.0.number();
            // SAFETY: paths that end with a NUL.
            done(|| unsafe { sys::call!(linkat, at, original.as_ptr(), to, link.as_ptr(), 0) })
        })
    }

    /// Makes a symbolic link in this directory to `original`, which need not exist (symlinkat(2)).
    ///
    /// # Errors
    /// As symlinkat(2).
    pub fn symlink(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Op<OnWorker<()>> {
        self.call([original.as_ref(), link.as_ref()], |at, [original, link]| {
            // SAFETY: paths that end with a NUL.
            done(|| unsafe { sys::call!(symlinkat, original.as_ptr(), at, link.as_ptr()) })
        })
    }

    /// The target of a symbolic link in this directory (readlinkat(2)).
    ///
    /// # Errors
    /// As readlinkat(2). `EINVAL`: it is no symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Op<OnWorker<PathBuf>> {
        self.call([path.as_ref()], |at, [path]| {
            let mut room = vec![0; libc::PATH_MAX as usize];
            let (into, length) = (room.as_mut_ptr(), room.len());
            // SAFETY: a path that ends with a NUL, and this much memory.
            let read = || unsafe { sys::call!(readlinkat, at, path.as_ptr(), into, length) };
            let count = outcome(uninterrupted(read))?;
            room.truncate(count as usize);
            Ok(OsString::from_vec(room).into())
        })
    }

    /// The entries of a directory in this one; `.` is this directory. Paths of the entries are
    /// relative to this directory.
    ///
    /// # Errors
    /// As [`read_dir`](super::read_dir()).
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Op<OnWorker<ReadDir>> {
        open_listing(Some(&self.0), path.as_ref(), false)
    }

    /// Brings the directory to the disk (fsync(2)): earlier changes of its names survive a crash
    /// then.
    ///
    /// # Errors
    /// As fsync(2).
    pub fn sync_all(&self) -> Op<Control> {
        self.0.sync_all()
    }

    /// Has a worker call a function with the descriptor and the paths.
    fn call<T: Send + 'static, const N: usize>(
        &self,
        paths: [&Path; N],
        f: impl FnOnce(RawFd, [&CStr; N]) -> io::Result<T> + Send + 'static,
    ) -> Op<OnWorker<T>> {
        let paths = paths.map(|path| CString::new(path.as_os_str().as_bytes()));
        let is_sound = paths.iter().all(Result::is_ok);
        let paths = paths.map(Result::unwrap_or_default);
        let mut op = OnWorker::of(&self.0, move |dir| {
            f(dir.number(), paths.each_ref().map(|path| path.as_c_str()))
        });
        op.is_sound = is_sound;
        op
    }
}

/// Makes a call that has no result.
fn done(call: impl FnMut() -> sys::Ret) -> io::Result<()> {
    outcome(uninterrupted(call)).map(|_| ())
}

impl From<OwnedFd> for Dir {
    /// Takes over an open directory.
    fn from(descriptor: OwnedFd) -> Self {
        Self(descriptor.into())
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Dir {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
