//! The file of a benchmark: an anonymous scratch file, or one that the user named.
//!
//! A scratch file loses its name as soon as it is open twice (buffered and direct). So it is freed
//! with the last close, even after a panic, Ctrl-C or SIGKILL.

#![allow(unsafe_code)]

use crate::{refusal, size};
use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use memmap2::MmapOptions;
use rustix::fs::Advice;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The size of a scratch file by default, in bytes, if there is room.
pub const DEFAULT_SIZE: u64 = 256 << 20;
/// A file of fewer bytes says nothing about a disk.
const SMALLEST_DEFAULT: u64 = 16 << 20;
/// Without `--size`, at most this many bytes of an existing file are used.
const LARGEST_EXISTING: u64 = 4 << 30;
/// The smallest `--size`, in bytes.
pub const SMALLEST: u64 = 1 << 20;

/// The file of a benchmark, on the command line.
#[derive(Args, Clone)]
pub struct Place {
    /// A folder or a new name for the scratch file, or an existing file or block device to read
    /// [default: .]
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,

    /// Let the write workloads OVERWRITE DATA in an existing --file
    #[arg(long, requires = "file")]
    pub allow_writes: bool,

    /// Bytes of the scratch file, or of the existing file to be used [default: 256M, less if space
    /// is short]
    #[arg(long, value_parser = file_size, allow_hyphen_values = true)]
    pub size: Option<u64>,
}

impl AsRef<Path> for Place {
    /// The path that the user named, or the working folder.
    fn as_ref(&self) -> &Path {
        self.file.as_deref().unwrap_or(Path::new("."))
    }
}

impl Place {
    /// Opens or makes the file.
    ///
    /// # Errors
    /// A refusal, with the reason of [`Scratch::open`]: the named file cannot be used.
    pub fn open(&self) -> Result<Scratch> {
        let opened = Scratch::open(self.as_ref(), self.size, self.allow_writes);
        opened.map_err(|error| refusal::refusal(format_args!("{error:#}")))
    }
}

fn file_size(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    if bytes < SMALLEST { Err("expected at least 1M".into()) } else { Ok(bytes) }
}

/// A file that is open twice: through the page cache, and past it.
pub struct Scratch {
    /// The file, open through the page cache.
    pub buffered: File,
    /// The file, open past the page cache, or the reason why that is refused.
    pub direct: Result<File, String>,
    /// Bytes to use, from the beginning on.
    pub size: u64,
    /// The name of an existing file, or the folder of a scratch file, as a text.
    pub description: String,
    /// The user's own file, which has to be handled with care.
    pub existing: bool,
    /// Writing is allowed.
    pub writable: bool,
    /// Notices for the user, such as that only a part of the file is used.
    pub notices: Vec<String>,
}

impl Scratch {
    /// Opens the file at `path`, or makes a scratch file there. If `path` is a folder, the scratch
    /// file is in this folder.
    ///
    /// # Errors
    /// A text: no permission, no space, or the wrong kind of file.
    pub fn open(path: &Path, size: Option<u64>, allow_writes: bool) -> Result<Self> {
        match path.metadata() {
            Ok(found) if found.is_dir() => Self::create(path, None, size),
            Ok(_) => Self::existing(path, size, allow_writes),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
                Self::create(parent.unwrap_or(Path::new(".")), Some(path), size)
            }
            Err(error) => Err(error).with_context(|| format!("--file {}", path.display())),
        }
    }

    fn existing(path: &Path, size: Option<u64>, allow_writes: bool) -> Result<Self> {
        let name = path.display();
        let kind = path.metadata()?.file_type();
        ensure!(
            kind.is_file() || kind.is_block_device(),
            "--file {name}: expected a regular file, a block device or a folder"
        );
        let open = |flags| {
            OpenOptions::new().read(true).write(allow_writes).custom_flags(flags).open(path)
        };
        let mut buffered = open(0).with_context(|| format!("cannot open {name}"))?;
        let length = buffered.seek(SeekFrom::End(0)).with_context(|| name.to_string())?;
        ensure!(length >= SMALLEST, "--file {name}: it has {length} bytes, expected at least 1M");
        let size = match size {
            Some(size) if size > length => bail!(
                "--size {}: expected at most {length}, the length of {name}",
                size::short(size)
            ),
            Some(size) => size,
            None => length.min(LARGEST_EXISTING),
        };
        let mut notices = Vec::new();
        if size < length {
            notices.push(format!("only the first {} of the file are used", size::long(size)));
        }
        let metadata = buffered.metadata()?;
        if kind.is_file() && metadata.blocks() * 512 < length {
            notices.push("the file is sparse: reading its holes touches no device".into());
        }
        Ok(Self {
            direct: open(libc::O_DIRECT).map_err(|e| refused_direct(&e)),
            buffered,
            size,
            description: format!("{name} (existing)"),
            existing: true,
            writable: allow_writes,
            notices,
        })
    }

    fn create(folder: &Path, path: Option<&Path>, size: Option<u64>) -> Result<Self> {
        let mut notices = Vec::new();
        let size = fit(size, free_bytes(folder)?, &mut notices)
            .with_context(|| format!("no scratch file in {}", absolute(folder).display()))?;
        let named = match path {
            Some(path) => {
                let mut options = OpenOptions::new();
                let file = options.read(true).write(true).create_new(true).open(path);
                let file = file.with_context(|| format!("cannot make {}", path.display()))?;
                let path = tempfile::TempPath::try_from_path(absolute(path))?;
                tempfile::NamedTempFile::from_parts(file, path)
            }
            None => {
                let mut builder = tempfile::Builder::new();
                builder.prefix(".uringlet-bench-").tempfile_in(folder).with_context(|| {
                    format!("cannot make a scratch file in {}", absolute(folder).display())
                })?
            }
        };
        let direct = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_DIRECT)
            .open(named.path())
            .map_err(|e| refused_direct(&e));
        // From here on the file has no name.
        let buffered = named.into_file();
        Ok(Self {
            buffered,
            direct,
            size,
            description: format!("scratch file in {}", absolute(folder).display()),
            existing: false,
            writable: true,
            notices,
        })
    }

    /// The description and the size of the file, as a line for people.
    pub fn line(&self) -> String {
        format!("{}, {}", self.description, size::long(self.size))
    }

    /// The number of descriptors of this process that are open on the file, those of this
    /// `Scratch` included.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn descriptors(&self) -> std::io::Result<usize> {
        let own = self.buffered.metadata()?;
        let same = |entry: std::io::Result<std::fs::DirEntry>| {
            // One entry is the descriptor of the listed folder, which is another file.
            let found = entry.and_then(|entry| std::fs::metadata(entry.path()));
            found.is_ok_and(|found| (found.dev(), found.ino()) == (own.dev(), own.ino()))
        };
        Ok(std::fs::read_dir("/proc/self/fd")?.map(same).filter(|same| *same).count())
    }

    /// Fills a scratch file with incompressible data, and writes it to the device. `go_on` gets the
    /// number of bytes written so far. If it returns false, the filling stops.
    ///
    /// # Errors
    /// The file system is full, or fails; `Interrupted` if `go_on` has returned false.
    pub fn fill(&self, mut go_on: impl FnMut(u64) -> bool) -> std::io::Result<()> {
        let mut random = fastrand::Rng::with_seed(1);
        let mut chunk = vec![0u8; 1 << 20];
        let mut at = 0;
        while at < self.size {
            if !go_on(at) {
                return Err(ErrorKind::Interrupted.into());
            }
            random.fill(&mut chunk);
            let len = chunk.len().min(usize::try_from(self.size - at).unwrap_or(usize::MAX));
            self.buffered.write_all_at(&chunk[..len], at)?;
            at += len as u64;
        }
        self.buffered.sync_all()
    }

    /// Drops the content, and allocates `size` bytes of unwritten space.
    ///
    /// # Errors
    /// The file system is full, or cannot allocate in advance.
    pub fn empty(&self, size: u64) -> std::io::Result<()> {
        self.buffered.set_len(0)?;
        // SAFETY: no memory is involved; the descriptor is open.
        match unsafe { libc::posix_fallocate(self.buffered.as_raw_fd(), 0, size.cast_signed()) } {
            0 => self.buffered.sync_all(),
            errno => Err(Error::from_raw_os_error(errno)),
        }
    }

    /// Writes dirty pages to the device, and drops the file from the page cache.
    ///
    /// # Errors
    /// The device failed, or the kernel refuses the advice.
    pub fn drop_cache(&self) -> std::io::Result<()> {
        self.buffered.sync_all()?;
        self.advise(Advice::DontNeed)
    }

    /// posix_fadvise(2) for the whole file.
    fn advise(&self, advice: Advice) -> std::io::Result<()> {
        Ok(rustix::fs::fadvise(&self.buffered, 0, None, advice)?)
    }

    /// Turns read-ahead off, so that the kernel reads only what is asked for. An error is ignored:
    /// the rates of random reads are then lower.
    pub fn expect_random_reads(&self) {
        let _ = self.advise(Advice::Random);
    }

    /// The share of the first `len` bytes that is in the page cache: 0 to 1 (mincore(2)). `len` is
    /// at least 1.
    ///
    /// # Errors
    /// The file cannot be mapped.
    pub fn cached_share(&self, len: u64) -> std::io::Result<f64> {
        let len = usize::try_from(len).map_err(|_| ErrorKind::FileTooLarge)?;
        let map = MmapOptions::new().len(len).map_raw_read_only(&self.buffered)?;
        let mut pages = vec![0u8; len.div_ceil(page_size())];
        let (start, into) = (map.as_mut_ptr().cast(), pages.as_mut_ptr());
        // SAFETY: `start` is that of a mapping of `len` bytes, `into` has a byte for each page.
        if unsafe { libc::mincore(start, len, into) } != 0 {
            return Err(Error::last_os_error());
        }
        let cached = pages.iter().filter(|&&page| page & 1 == 1).count();
        Ok(cached as f64 / pages.len() as f64)
    }
}

/// A size that fits into the free space: the user's size, or a default that may be smaller.
fn fit(wish: Option<u64>, free: u64, notices: &mut Vec<String>) -> Result<u64> {
    match wish {
        Some(size) if size > free => bail!(
            "--size {}: expected at most {}, the free space",
            size::short(size),
            size::long(free)
        ),
        Some(size) => Ok(size),
        None if DEFAULT_SIZE <= free / 2 => Ok(DEFAULT_SIZE),
        None => {
            // Half of the free space is left to others.
            let size = free / 2 / SMALLEST_DEFAULT * SMALLEST_DEFAULT;
            ensure!(
                size > 0,
                "only {} are free, and the smallest useful scratch file has {}; \
                 try --file FOLDER, or --size",
                size::long(free),
                size::long(SMALLEST_DEFAULT)
            );
            let (small, free) = (size::long(size), size::long(free));
            notices
                .push(format!("space is short ({free} free): the scratch file has {small} only"));
            Ok(size)
        }
    }
}

/// The free space for users on the file system of a folder.
///
/// # Errors
/// The folder does not exist.
pub fn free_bytes(folder: &Path) -> Result<u64> {
    let found = rustix::fs::statvfs(folder).with_context(|| folder.display().to_string())?;
    Ok(found.f_bavail * found.f_frsize)
}

fn refused_direct(error: &Error) -> String {
    match error.raw_os_error() {
        Some(libc::EINVAL) => "the file system refuses O_DIRECT (EINVAL)".into(),
        _ => format!("opening with O_DIRECT failed: {error}"),
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Bytes in a page of memory.
pub fn page_size() -> usize {
    rustix::param::page_size()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_disk_gets_a_smaller_file_or_a_clear_error() {
        let mut notices = Vec::new();
        assert_eq!(fit(None, 1 << 40, &mut notices).unwrap(), DEFAULT_SIZE);
        assert!(notices.is_empty());
        assert_eq!(fit(None, 100 << 20, &mut notices).unwrap(), 48 << 20);
        assert!(notices[0].contains("48.0 MiB"), "{notices:?}");
        let error = fit(None, 20 << 20, &mut notices).unwrap_err().to_string();
        assert!(error.contains("20.0 MiB are free"), "{error}");
        let error = fit(Some(1 << 30), 1 << 20, &mut notices).unwrap_err().to_string();
        assert!(error.contains("--size 1G") && error.contains("1.00 MiB"), "{error}");
    }

    #[test]
    fn a_scratch_file_has_no_name_and_the_right_length() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().to_owned(), folder.path().join("named")] {
            let scratch = Scratch::open(&path, Some(SMALLEST + 512), false).unwrap();
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
            assert_eq!(scratch.descriptors().unwrap(), 1 + usize::from(scratch.direct.is_ok()));
            scratch.fill(|_| true).unwrap();
            assert_eq!(scratch.buffered.metadata().unwrap().len(), SMALLEST + 512);
            assert_eq!(scratch.cached_share(scratch.size).unwrap(), 1.0);
        }
    }

    #[test]
    fn an_existing_file_is_opened_read_only_and_kept() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![7u8; 2 << 20]).unwrap();
        let scratch = Scratch::open(file.path(), Some(SMALLEST), false).unwrap();
        assert!(scratch.existing && !scratch.writable);
        assert!(scratch.buffered.write_at(b"x", 0).is_err());
        assert!(scratch.notices[0].contains("first 1.00 MiB"), "{:?}", scratch.notices);
        drop(scratch);
        assert_eq!(std::fs::read(file.path()).unwrap(), vec![7u8; 2 << 20]);
        let error = Scratch::open(file.path(), Some(3 << 20), false).err().unwrap().to_string();
        assert!(error.contains("--size 3M"), "{error}");
    }
}
