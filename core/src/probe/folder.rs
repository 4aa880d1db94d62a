//! The abilities of a folder's file system, tried on nameless scratch files.

use std::fmt;
use std::fs::{File, OpenOptions, remove_file};
use std::io::{Error, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::cause::{Cause, Refusal, find};
use super::facts::MachineFacts;
use super::tries::{self, Buffer, Refused, TriedBatch};
use super::{ExpectedLanes, Probe};
use crate::sys;

/// Direct reads submitted at once.
const READS: usize = 32;
/// Bytes of each read.
const BLOCK: usize = 16 * 1024;
/// The number of batches: the quickest counts.
const ROUNDS: usize = 5;
/// Alignments of direct transfers that are tried, in bytes.
const ALIGNMENTS: [u32; 2] = [512, 4096];

/// Whether requests of one kind work here.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// Such requests work.
    Works,
    /// The call was refused.
    Refused(Refusal),
    /// The step could not be tried, because this earlier step failed.
    Untried(&'static str),
}

impl Answer {
    /// Do requests of this kind work here?
    pub fn works(&self) -> bool {
        matches!(self, Self::Works)
    }

    /// The refusal, if there was one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Works => f.write_str("yes"),
            Self::Refused(refusal) => write!(f, "no ({refusal})"),
            Self::Untried(what) => write!(f, "not tried: {what} does not work"),
        }
    }
}

/// Does io_submit(2) return before direct reads are done?
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Asynchrony {
    /// io_submit(2) returned before all reads were complete, in at most half of the whole time.
    Asynchronous(Timing),
    /// All reads were complete when io_submit(2) returned. It took at least half as long as the
    /// reads one after the other.
    Synchronous(Timing),
    /// The times do not tell: the device is too quick, or the machine too busy.
    Unclear(Timing),
    /// The reads failed.
    Refused(Refusal),
    /// The step could not be tried, because this earlier step failed.
    Untried(&'static str),
}

impl Asynchrony {
    /// The verdict in one word: `asynchronous`, `synchronous`, `unclear`, `untried`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Asynchronous(_) => "asynchronous",
            Self::Synchronous(_) => "synchronous",
            Self::Unclear(_) => "unclear",
            Self::Refused(_) | Self::Untried(_) => "untried",
        }
    }

    /// The figures behind the verdict.
    pub fn timing(&self) -> Option<Timing> {
        match self {
            Self::Asynchronous(timing) | Self::Synchronous(timing) | Self::Unclear(timing) => {
                Some(*timing)
            }
            Self::Refused(_) | Self::Untried(_) => None,
        }
    }
}

impl fmt::Display for Asynchrony {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => write!(f, "not tried ({refusal})"),
            Self::Untried(what) => write!(f, "not tried: {what} does not work"),
            _ => f.write_str(self.name()),
        }
    }
}

/// A batch of direct reads, submitted with one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timing {
    /// Reads in the batch.
    pub reads: u32,
    /// The reads that were complete when io_submit(2) returned.
    pub done_at_return: u32,
    /// Nanoseconds that io_submit(2) took.
    pub submit_ns: u64,
    /// Nanoseconds from the start of io_submit(2) until the last read was complete.
    pub total_ns: u64,
    /// Nanoseconds of one of these reads alone, with pread(2).
    pub single_ns: u64,
}

/// The findings about a folder's file system.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Folder {
    /// The folder, as it was named.
    pub path: PathBuf,
    /// Number of the device of the folder (`st_dev` of stat(2)).
    pub device: u64,
    /// Could a scratch file be made and written to?
    pub scratch: Answer,
    /// RWF_NOWAIT for buffered reads (preadv2(2)).
    pub nowait_read: Answer,
    /// RWF_NOWAIT for buffered writes in place (pwritev2(2)).
    pub nowait_write: Answer,
    /// O_DIRECT (open(2)), and transfers with it.
    pub direct: Answer,
    /// The smallest alignment in bytes with which direct transfers work: 512 or 4096.
    pub direct_alignment: Option<u32>,
    /// Is Linux AIO truly asynchronous for direct reads?
    pub asynchrony: Asynchrony,
    /// The lanes to which `auto` would send requests at first.
    pub lanes: ExpectedLanes,
}

impl Folder {
    /// Tries the folder out.
    pub(super) fn look(path: &Path, probe: &Probe) -> std::io::Result<Self> {
        let metadata = path.metadata()?;
        if !metadata.is_dir() {
            return Err(ErrorKind::NotADirectory.into());
        }
        let facts = &probe.facts;
        let (scratch, nowait_read, nowait_write) = buffered(path, facts);
        let (direct, direct_alignment, asynchrony) = match &scratch {
            Answer::Works => direct(path, facts),
            _ => (Answer::Untried(SCRATCH), None, Asynchrony::Untried(SCRATCH)),
        };
        let lanes = ExpectedLanes::choose(probe, &nowait_read, &direct, &asynchrony);
        Ok(Self {
            path: path.to_owned(),
            device: metadata.dev(),
            scratch,
            nowait_read,
            nowait_write,
            direct,
            direct_alignment,
            asynchrony,
            lanes,
        })
    }
}

/// The step that the other trials need.
const SCRATCH: &str = "making a scratch file";
const DIRECT: &str = "direct I/O";

/// Makes a scratch file and tries RWF_NOWAIT on pages in the cache.
fn buffered(path: &Path, facts: &MachineFacts) -> (Answer, Answer, Answer) {
    let untried = Answer::Untried(SCRATCH);
    let mut bytes = vec![1; 4096];
    let made = scratch_file(path, 0).map_err(|error| ("open", error)).and_then(|file| {
        file.write_all_at(&bytes, 0).map(|()| file).map_err(|error| ("pwrite", error))
    });
    let file = match made {
        Ok(file) => file,
        Err((call, error)) => {
            return (Answer::Refused(file_refusal(call, &error, facts)), untried.clone(), untried);
        }
    };
    let fd = file.as_raw_fd();
    let read = nowait(facts, |flags| tries::read(fd, &mut bytes, flags));
    let write = nowait(facts, |flags| tries::write(fd, &bytes, flags));
    (Answer::Works, read, write)
}

/// Makes the same call without and with RWF_NOWAIT. EAGAIN means that the file system supports the
/// flag.
fn nowait(facts: &MachineFacts, mut call: impl FnMut(i32) -> Result<usize, Refused>) -> Answer {
    if let Err((name, errno)) = call(0) {
        return Answer::Refused(find(name, errno, facts));
    }
    match call(libc::RWF_NOWAIT) {
        Ok(_) | Err((_, libc::EAGAIN)) => Answer::Works,
        Err((call, errno)) if facts.is_older_than((4, 14)) => Answer::Refused(Refusal {
            call,
            errno,
            cause: Cause::Kernel,
            words: format!("the kernel, {}, is older than 4.14", facts.release),
        }),
        Err((call, errno)) => Answer::Refused(Refusal {
            call,
            errno,
            cause: Cause::FileSystem,
            words: "the file system does not know RWF_NOWAIT here".into(),
        }),
    }
}

/// Opens another scratch file with O_DIRECT, fills it and reads from it.
fn direct(path: &Path, facts: &MachineFacts) -> (Answer, Option<u32>, Asynchrony) {
    let refused = |refusal| (Answer::Refused(refusal), None, Asynchrony::Untried(DIRECT));
    let file = match scratch_file(path, libc::O_DIRECT) {
        Ok(file) => file,
        Err(error) => return refused(file_refusal("open", &error, facts)),
    };
    let mut buffer = match Buffer::new(READS * BLOCK) {
        Ok(buffer) => buffer,
        Err((call, errno)) => return refused(find(call, errno, facts)),
    };
    buffer.bytes().fill(1);
    // The file gets data first, because a read of a hole touches no device.
    if let Err(error) = file.write_all_at(buffer.bytes(), 0).and_then(|()| file.sync_data()) {
        return refused(file_refusal("pwrite", &error, facts));
    }
    let fd = file.as_raw_fd();
    let alignment = ALIGNMENTS.into_iter().find(|&bytes| {
        let len = bytes as usize;
        tries::read_at(fd, &mut buffer, len, len, u64::from(bytes)) == Ok(len)
    });
    let asynchrony = match asynchrony(fd, &mut buffer) {
        Ok(verdict) => verdict,
        Err((call, errno)) => Asynchrony::Refused(find(call, errno, facts)),
    };
    (Answer::Works, alignment, asynchrony)
}

fn asynchrony(fd: i32, buffer: &mut Buffer) -> Result<Asynchrony, Refused> {
    let mut single_ns = u64::MAX;
    let mut best: Option<TriedBatch> = None;
    for round in 0..ROUNDS {
        let begin = sys::monotonic_ns();
        tries::read_at(fd, buffer, 0, BLOCK, (round * BLOCK) as u64)?;
        single_ns = single_ns.min(sys::monotonic_ns() - begin);
        let batch = tries::read_batch(fd, buffer, READS, BLOCK)?;
        if best.is_none_or(|best| batch.total_ns < best.total_ns) {
            best = Some(batch);
        }
    }
    Ok(match best {
        Some(batch) => verdict(batch, single_ns),
        None => Asynchrony::Untried(DIRECT),
    })
}

fn verdict(batch: TriedBatch, single_ns: u64) -> Asynchrony {
    let TriedBatch { submit_ns, total_ns, done_at_return, reads } = batch;
    let timing = Timing { reads, done_at_return, submit_ns, total_ns, single_ns };
    let all_done = done_at_return == reads;
    if !all_done && submit_ns <= total_ns / 2 {
        return Asynchrony::Asynchronous(timing);
    }
    // A quick device may be done by the end of a long submission. So completed reads alone prove
    // nothing.
    if all_done && submit_ns >= single_ns.saturating_mul(u64::from(reads)) / 2 {
        return Asynchrony::Synchronous(timing);
    }
    Asynchrony::Unclear(timing)
}

/// The refusal, with its cause, of an open or a write of a scratch file.
fn file_refusal(call: &'static str, error: &Error, facts: &MachineFacts) -> Refusal {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    let (cause, words) = match errno {
        libc::EINVAL if call == "open" => {
            (Cause::FileSystem, "the file system does not know O_DIRECT")
        }
        libc::EROFS => (Cause::Permission, "the file system is read-only"),
        libc::EACCES | libc::EPERM => (Cause::Permission, "this folder cannot be written to"),
        libc::ENOSPC | libc::EDQUOT => (Cause::FileSystem, "the file system or the quota is full"),
        libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOSYS => {
            return find(call, errno, facts);
        }
        _ => (Cause::FileSystem, "the file system refuses it"),
    };
    Refusal { call, errno, cause, words: words.into() }
}

/// A file in the folder that has no name, or no longer has one.
fn scratch_file(folder: &Path, flags: i32) -> std::io::Result<File> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    if let Ok(file) = options.clone().custom_flags(libc::O_TMPFILE | flags).open(folder) {
        return Ok(file);
    }
    // Not every file system has O_TMPFILE.
    options.create_new(true).custom_flags(flags);
    let mut tries_left = 100;
    loop {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!(".uringlet-probe-{}-{count}", std::process::id());
        let path = folder.join(name);
        let file = options.open(&path);
        match &file {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && tries_left > 0 => {
                tries_left -= 1;
                continue;
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            // A refused O_DIRECT may leave the file behind, too (open(2), BUGS).
            _ => drop(remove_file(&path)),
        }
        return file;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(submit_ns: u64, total_ns: u64, done_at_return: u32) -> TriedBatch {
        TriedBatch { submit_ns, total_ns, done_at_return, reads: 32 }
    }

    #[test]
    fn the_verdict_is_only_as_sure_as_the_numbers() {
        let name = |batch, single_ns| verdict(batch, single_ns).name();
        // A disk: 100 µs each, and submitting is quick.
        assert_eq!(name(batch(60_000, 900_000, 0), 100_000), "asynchronous");
        // The data was copied from memory, one read after the other, inside the call.
        assert_eq!(name(batch(64_000, 65_000, 32), 2_100), "synchronous");
        // The device is done when the last read is submitted.
        assert_eq!(name(batch(60_000, 62_000, 32), 20_000), "unclear");
        // Some reads are not complete, but submitting took most of the time.
        assert_eq!(name(batch(800_000, 900_000, 20), 100_000), "unclear");
    }

    #[test]
    fn a_scratch_file_leaves_no_name_behind() {
        let folder = tempfile::tempdir().unwrap();
        for flags in [0, libc::O_DIRECT] {
            // If O_DIRECT is refused, no file may be left.
            let file = scratch_file(folder.path(), flags);
            assert!(file.is_ok() || flags != 0);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
        let error = scratch_file(&folder.path().join("none"), 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_file_is_no_folder() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Probe::look().folder(file.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotADirectory);
    }
}
