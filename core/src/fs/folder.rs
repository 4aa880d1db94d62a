//! Directories: making and reading them.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fmt;
use std::fs::File as StdFile;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::budget::{Awaited as _, HasTurns, Turns, in_turn};
use super::driver::Fs;
use super::handle::{File, Opened, outcome};
use super::metadata::{FileType, Found, Metadata, Stat};
use super::names::HERE;
use super::op::Op;
use super::worker::{OnWorker, uninterrupted};
use crate::sys;

/// Makes a directory (mkdir(2)).
///
/// # Errors
/// As mkdir(2). `EINVAL`: the path contains a NUL.
pub fn create_dir(path: impl AsRef<Path>) -> Op<OnWorker<()>> {
    DirBuilder::new().create(path)
}

/// Makes a directory and its missing parents (mkdir(2)). Existing directories are unchanged.
///
/// # Errors
/// As mkdir(2). `EEXIST`: something else has the name. `EINVAL`: the path contains a NUL.
pub fn create_dir_all(path: impl AsRef<Path>) -> Op<OnWorker<()>> {
    DirBuilder::new().recursive(true).create(path)
}

/// How to make a directory; the names are those of [`std::fs::DirBuilder`].
#[derive(Clone, Debug)]
pub struct DirBuilder {
    recursive: bool,
    mode: u32,
}

impl Default for DirBuilder {
    fn default() -> Self {
        Self { recursive: false, mode: 0o777 }
    }
}

impl DirBuilder {
    /// Creates one directory, whose parent exists.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes missing parents as well, and accepts an existing directory.
    pub fn recursive(&mut self, on: bool) -> &mut Self {
        self.recursive = on;
        self
    }

    /// Permissions, less the process's umask(2); 0o777 by default.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode;
        self
    }

    /// Makes the directory.
    ///
    /// # Errors
    /// As [`create_dir`] and [`create_dir_all`].
    pub fn create(&self, path: impl AsRef<Path>) -> Op<OnWorker<()>> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(self.recursive).mode(self.mode);
        OnWorker::at([path.as_ref()], move |_, [path]| builder.create(path))
    }
}

/// Opens a directory, to read its entries.
///
/// ```
/// use uringlet::fs;
///
/// # async fn example(path: &std::path::Path) -> std::io::Result<()> {
/// let mut entries = fs::read_dir(path).await?;
/// while let Some(entry) = entries.next_entry().await? {
///     println!("{}", entry.path().display());
/// }
/// # Ok(())
/// # }
/// # pollster::block_on(example(std::path::Path::new(".")))?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// As open(2) and getdents64(2). `ENOTDIR`: it is no directory. `EINVAL`: the path contains a NUL.
pub fn read_dir(path: impl AsRef<Path>) -> Op<OnWorker<ReadDir>> {
    open_listing(None, path.as_ref(), false)
}

/// As [`read_dir`], with the [metadata](DirEntry::metadata) of every entry. The thread that reads
/// the names reads the metadata, too: no entry needs an operation of its own.
///
/// # Errors
/// As [`read_dir`].
pub fn read_dir_with_metadata(path: impl AsRef<Path>) -> Op<OnWorker<ReadDir>> {
    open_listing(None, path.as_ref(), true)
}

/// Opens a directory, relative to another one if there is one, and reads its first entries.
pub(super) fn open_listing(
    dir: Option<&File>,
    path: &Path,
    with_metadata: bool,
) -> Op<OnWorker<ReadDir>> {
    let own = dir.cloned();
    let op = OnWorker::at([path], move |header, [path]| {
        let mut listing = Listing::open(own, path, with_metadata)?;
        let entries = listing.next()?.into();
        let fs = header.fs().clone();
        Ok(ReadDir { entries, listing: Some(listing), reading: None, fs, turns: Turns::default() })
    });
    match dir.and_then(File::fs) {
        Some(fs) => op.on(fs),
        None => op,
    }
}

/// Opens a directory, on a worker.
pub(super) fn open_directory_at(at: RawFd, path: &Path) -> io::Result<StdFile> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let opened = Opened::default();
    // SAFETY: a path that ends with a NUL.
    let open = || unsafe { sys::call!(openat, at, path.as_ptr(), flags) };
    let result = uninterrupted(open);
    outcome(result)?;
    opened.adopt(result);
    opened.into_inner().map(StdFile::from).ok_or_else(|| io::ErrorKind::Other.into())
}

/// An open directory whose entries are read.
pub(super) struct Listing {
    directory: StdFile,
    /// The directory that the path is relative to.
    dir: Option<File>,
    path: Arc<PathBuf>,
    with_metadata: bool,
    buffer: Vec<u8>,
}

impl Listing {
    pub(super) fn open(dir: Option<File>, path: &Path, with_metadata: bool) -> io::Result<Self> {
        let directory = open_directory_at(dir.as_ref().map_or(HERE, File::number), path)?;
        let path = Arc::new(path.to_path_buf());
        Ok(Self { directory, dir, path, with_metadata, buffer: Vec::new() })
    }

    /// The next entries, on a worker; none at the end.
    pub(super) fn next(&mut self) -> io::Result<Vec<DirEntry>> {
        /// The size of the buffer in bytes, for some thousand entries.
        const ROOM: usize = 32 << 10;
        self.buffer.resize(ROOM, 0);
        let mut entries = Vec::new();
        // The first entries may be `.` and `..` alone.
        while entries.is_empty() {
            let (fd, into) = (self.directory.as_raw_fd(), self.buffer.as_mut_ptr());
            // SAFETY: the buffer has this many bytes.
            let read = uninterrupted(|| unsafe { sys::call!(getdents64, fd, into, ROOM) });
            let count = outcome(read)? as usize;
            if count == 0 {
                break;
            }
            self.add(count, &mut entries)?;
        }
        Ok(entries)
    }

    /// Parses the entries that the kernel has written (`struct linux_dirent64`, getdents64(2)):
    /// inode, offset, length, type, and the name with its NUL.
    fn add(&self, count: usize, entries: &mut Vec<DirEntry>) -> io::Result<()> {
        const NAME: usize = 19;
        let found = Found::new();
        let mut rest = &self.buffer[..count];
        while let Some((head, _)) = rest.split_at_checked(NAME) {
            let number = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| head[at + i]));
            let length = usize::from(u16::from_ne_bytes([head[16], head[17]]));
            let entry = rest.get(NAME..length).ok_or(io::ErrorKind::InvalidData)?;
            let name = CStr::from_bytes_until_nul(entry);
            let name = name.map_err(|_| io::ErrorKind::InvalidData)?;
            rest = &rest[length..];
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let metadata = if self.with_metadata {
                let fd = self.directory.as_raw_fd();
                match found.look(fd, name, libc::AT_SYMLINK_NOFOLLOW) {
                    Ok(known) => Some(known),
                    // The entry was removed meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    // `DirEntry::metadata` asks again.
                    Err(_) => None,
                }
            } else {
                None
            };
            let kind = metadata.map(|known| known.file_type());
            entries.push(DirEntry {
                dir: self.dir.clone(),
                folder: Arc::clone(&self.path),
                name: OsStr::from_bytes(name.to_bytes()).to_owned(),
                ino: number(0),
                kind: kind.or_else(|| FileType::of_entry(head[18])),
                metadata,
            });
        }
        Ok(())
    }
}

/// A directory, and the entries that were read last.
type ReadPart = (Listing, Vec<DirEntry>);

/// The entries of a directory, in no particular order, without `.` and `..`.
pub struct ReadDir {
    entries: VecDeque<DirEntry>,
    listing: Option<Listing>,
    reading: Option<Op<OnWorker<ReadPart>>>,
    fs: Fs,
    turns: Turns,
}

impl HasTurns for ReadDir {
    fn turns(&mut self) -> &mut Turns {
        &mut self.turns
    }
}

impl ReadDir {
    /// The next entry; `None` after the last one. If the future is dropped, no entry is lost.
    ///
    /// # Errors
    /// As getdents64(2). After an error there are no more entries.
    pub async fn next_entry(&mut self) -> io::Result<Option<DirEntry>> {
        std::future::poll_fn(|context| self.poll_next_entry(context)).await
    }

    /// Polls for the result of [`ReadDir::next_entry`]. If it is pending, the task is woken later.
    ///
    /// # Errors
    /// As [`ReadDir::next_entry`].
    pub fn poll_next_entry(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Option<DirEntry>>> {
        in_turn(self, context, |this, context, spent| {
            loop {
                if let Some(entry) = this.entries.pop_front() {
                    return Poll::Ready(Ok(Some(entry)));
                }
                if let Some(mut listing) = this.listing.take() {
                    let read = move |_: &_| listing.next().map(|entries| (listing, entries));
                    this.reading = Some(OnWorker::op(read).on(&this.fs));
                }
                let Some(reading) = &mut this.reading else { return Poll::Ready(Ok(None)) };
                let read = ready!(reading.poll_in_turn(context, spent));
                this.reading = None;
                let (listing, entries) = read?;
                if entries.is_empty() {
                    return Poll::Ready(Ok(None));
                }
                (this.listing, this.entries) = (Some(listing), entries.into());
            }
        })
    }
}

impl fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadDir").field("read", &self.entries.len()).finish_non_exhaustive()
    }
}

/// An entry of a directory.
#[derive(Clone)]
pub struct DirEntry {
    dir: Option<File>,
    folder: Arc<PathBuf>,
    name: OsString,
    ino: u64,
    kind: Option<FileType>,
    metadata: Option<Metadata>,
}

impl DirEntry {
    /// The path: that of the directory, as it was opened, and the name.
    pub fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// The name.
    pub fn file_name(&self) -> OsString {
        self.name.clone()
    }

    /// The number of the inode.
    pub fn ino(&self) -> u64 {
        self.ino
    }

    /// The metadata of the entry; a symbolic link is not followed. Ready at once if the directory
    /// was read [with metadata](read_dir_with_metadata).
    ///
    /// # Errors
    /// As statx(2) of the entry's path.
    pub fn metadata(&self) -> Op<Stat> {
        let path = CString::new(self.path().into_os_string().into_vec()).unwrap_or_default();
        Op::new(Stat::new(self.dir.as_ref(), path, libc::AT_SYMLINK_NOFOLLOW).with(self.metadata))
    }

    /// The kind of file; a symbolic link is not followed. Most file systems return it with the
    /// name.
    ///
    /// # Errors
    /// As [`DirEntry::metadata`].
    pub async fn file_type(&self) -> io::Result<FileType> {
        match self.kind {
            Some(kind) => Ok(kind),
            None => self.metadata().await.map(|known| known.file_type()),
        }
    }

    /// The kind of file, if it is known without another call.
    pub(super) fn known_type(&self) -> Option<FileType> {
        self.kind
    }
}

impl fmt::Debug for DirEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DirEntry").field(&self.path()).finish()
    }
}
