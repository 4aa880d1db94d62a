//! Many files at once: every result comes once, on every executor, with faults and when dropped.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use uringlet::fs::{self, Fs};

use crate::executors::Executor;
use crate::over::make_fifo;

/// Files of several lengths, a folder, and names that lead nowhere.
fn furnish(folder: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for at in 0..500 {
        let path = folder.join(at.to_string());
        if at % 50 != 3 {
            std::fs::write(&path, vec![at as u8; at * 37]).unwrap();
        }
        paths.push(path);
    }
    paths.push(folder.to_owned());
    paths.push("a\0b".into());
    paths.push("/proc/self/status".into());
    paths
}

/// The result of a read, without bytes that may change.
fn outcome(path: &Path, read: io::Result<Vec<u8>>) -> Result<Vec<u8>, io::ErrorKind> {
    let is_fixed = !path.starts_with("/proc");
    read.map(|bytes| if is_fixed { bytes } else { Vec::new() }).map_err(|error| error.kind())
}

#[test]
fn files_of_a_batch_are_those_of_std() {
    let folder = tempfile::tempdir().unwrap();
    let paths = furnish(folder.path());
    let expected: Vec<_> = paths.iter().map(|path| outcome(path, std::fs::read(path))).collect();
    Executor::each(|executor| {
        let (paths, expected) = (paths.clone(), expected.clone());
        executor.run(async move {
            let mut seen = BTreeSet::new();
            let mut files = fs::read_many(&paths);
            while let Some((number, read)) = files.next().await {
                assert!(seen.insert(number), "{number} came twice");
                assert!(outcome(&paths[number], read) == expected[number], "{number}");
            }
            assert_eq!(seen.len(), paths.len());
            assert!(files.next().await.is_none());
            let mut known = fs::metadata_many(&paths);
            while let Some((number, metadata)) = known.next().await {
                let other = std::fs::metadata(&paths[number]);
                assert!(seen.remove(&number));
                assert_eq!(metadata.map(|it| it.ino()).ok(), other.map(|it| ino(&it)).ok());
            }
            assert!(seen.is_empty());
        });
    });
    assert!(fs::read_many([""; 0]).wait_next().is_none());
}

/// One thread writes to the FIFOs of the batch, in their order, more than a pipe holds.
#[test]
fn a_batch_that_waits_reads_files_and_fifos_whole_whatever_it_opens_ahead() {
    let folder = tempfile::tempdir().unwrap();
    let content = |at: usize| vec![at as u8; 100_000];
    let is_fifo = |at: &usize| *at < 40 || at.is_multiple_of(5);
    let paths: Vec<_> = (0..120).map(|at| folder.path().join(at.to_string())).collect();
    for (at, path) in paths.iter().enumerate() {
        if is_fifo(&at) {
            make_fifo(path);
        } else {
            std::fs::write(path, content(at)).unwrap();
        }
    }
    let fifos: Vec<_> = (0..paths.len()).filter(is_fifo).collect();
    let names = paths.clone();
    let writer = std::thread::spawn(move || {
        fifos.iter().for_each(|&at| std::fs::write(&names[at], content(at)).unwrap());
    });
    let mut files = fs::read_many(&paths);
    let mut seen = BTreeSet::new();
    while let Some((number, read)) = files.wait_next() {
        assert!(read.unwrap() == content(number), "{number}");
        assert!(seen.insert(number));
    }
    assert_eq!(seen.len(), paths.len());
    writer.join().unwrap();
}

/// The largest number of files of a folder that were open at a time, according to inotify(7).
fn open_at_a_time(watch: std::fs::File) -> i32 {
    let (mut events, mut now, mut most) = (vec![0; 1 << 16], 0, 0);
    let length = io::Read::read(&mut { watch }, &mut events).unwrap();
    let mut rest = &events[..length];
    while let Some((head, after)) = rest.split_at_checked(16) {
        let word = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().unwrap());
        now += if word(4) == libc::IN_OPEN { 1 } else { -1 };
        most = most.max(now);
        rest = &after[word(12) as usize..];
    }
    assert_eq!(now, 0);
    most
}

/// Writes to a FIFO. The open, for writing alone, fails until a reader opens the FIFO, so this
/// function repeats the open.
fn write_to_waiting_reader(fifo: &std::path::Path) {
    use std::os::unix::fs::OpenOptionsExt as _;

    let mut options = std::fs::File::options();
    options.write(true).custom_flags(libc::O_NONBLOCK);
    loop {
        match options.open(fifo) {
            Ok(mut file) => return io::Write::write_all(&mut file, b"x").unwrap(),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENXIO)),
        }
        std::thread::yield_now();
    }
}

/// The batch runs in a child process, because the limit is the process's. The only worker sleeps in
/// its reads of FIFOs, and therefore begins to open the next files ahead.
#[test]
fn files_that_are_opened_ahead_leave_half_of_the_descriptors_to_others() {
    use std::os::fd::{AsRawFd as _, FromRawFd as _};

    const CHILD: &str = "URINGLET_TEST_LIMITED";
    let name = "batches::files_that_are_opened_ahead_leave_half_of_the_descriptors_to_others";
    if std::env::var_os(CHILD).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let status = child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").status();
        return assert!(status.unwrap().success());
    }
    let limit = libc::rlimit { rlim_cur: 200, rlim_max: 200 };
    // SAFETY: a live struct rlimit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    let fs = Fs::builder().in_flight(1).build().unwrap();
    let (place, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let fifos: Vec<_> = (0..16).map(|at| place.path().join(at.to_string())).collect();
    let files: Vec<_> = (0..16).map(|at| folder.path().join(at.to_string())).collect();
    fifos.iter().for_each(|path| make_fifo(path));
    files.iter().for_each(|path| std::fs::write(path, "x").unwrap());
    let mut taken = Vec::new();
    for (number, most) in [(0, 8), (100, 1)] {
        while taken.last().is_none_or(|file: &std::fs::File| file.as_raw_fd() < number) {
            taken.push(std::fs::File::open("/dev/null").unwrap());
        }
        // SAFETY: passes no address; the descriptor is new.
        let watch = unsafe { std::fs::File::from_raw_fd(libc::inotify_init1(libc::IN_CLOEXEC)) };
        let path = std::ffi::CString::new(folder.path().as_os_str().as_encoded_bytes()).unwrap();
        let events = libc::IN_OPEN | libc::IN_CLOSE;
        // SAFETY: a path that ends with a NUL.
        let added = unsafe { libc::inotify_add_watch(watch.as_raw_fd(), path.as_ptr(), events) };
        assert!(added > 0, "{}", io::Error::last_os_error());
        let names = fifos.clone();
        let writer = std::thread::spawn(move || {
            names.iter().for_each(|path| write_to_waiting_reader(path));
        });
        let mut results = fs::read_many(fifos.iter().chain(&files)).on(&fs);
        while let Some((number, read)) = results.wait_next() {
            assert!(read.is_ok(), "{number}: {read:?}");
        }
        writer.join().unwrap();
        assert_eq!(open_at_a_time(watch), most);
    }
}

fn ino(metadata: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(metadata)
}

/// The batch runs in a child process, which has not used the library before.
#[test]
fn a_batch_may_be_the_first_thing_that_a_process_does() {
    const CHILD: &str = "URINGLET_TEST_LIMITED";
    let name = "batches::a_batch_may_be_the_first_thing_that_a_process_does";
    if std::env::var_os(CHILD).is_some() {
        assert!(fs::read_many(["/proc/self/exe"]).wait_next().is_some());
        return;
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let status = child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").status();
    assert!(status.unwrap().success());
}

/// Directories in directories, with links between them.
fn plant(folder: &Path, depth: usize) {
    for at in 0..4 {
        std::fs::write(folder.join(format!("file-{at}")), "").unwrap();
        let below = folder.join(format!("folder-{at}"));
        std::fs::create_dir(&below).unwrap();
        if depth > 0 {
            plant(&below, depth - 1);
        }
    }
    std::os::unix::fs::symlink("..", folder.join("up")).unwrap();
}

fn all_in(folder: &Path, into: &mut BTreeSet<(PathBuf, u64)>) {
    for entry in folder.read_dir().unwrap() {
        let entry = entry.unwrap();
        let metadata = entry.metadata().unwrap();
        into.insert((entry.path(), metadata.len()));
        if metadata.is_dir() {
            all_in(&entry.path(), into);
        }
    }
}

#[test]
fn a_walk_sees_each_entry_once_and_follows_no_link() {
    let folder = tempfile::tempdir().unwrap();
    plant(folder.path(), 3);
    let mut expected = BTreeSet::new();
    all_in(folder.path(), &mut expected);
    Executor::each(|executor| {
        let (path, expected) = (folder.path().to_owned(), expected.clone());
        executor.run(async move {
            for with_metadata in [false, true] {
                let mut seen = BTreeSet::new();
                let mut entries =
                    if with_metadata { fs::walk_with_metadata(&path) } else { fs::walk(&path) };
                while let Some(entry) = entries.next().await {
                    let entry = entry.unwrap();
                    let metadata = entry.metadata().await.unwrap();
                    assert!(seen.insert((entry.path(), metadata.len())), "{entry:?} came twice");
                }
                assert!(seen == expected);
            }
        });
    });
    let mut none = fs::walk("/nothing/at/all");
    let error = none.wait_next().unwrap().unwrap_err();
    assert_eq!(error.path(), Path::new("/nothing/at/all"));
    assert_eq!(io::Error::from(error).raw_os_error(), Some(libc::ENOENT));
    assert!(none.wait_next().is_none());
}

#[test]
fn a_batch_that_is_dropped_leaves_nothing_in_flight() {
    let folder = tempfile::tempdir().unwrap();
    let paths = furnish(folder.path());
    let fs = Fs::builder().in_flight(3).build().unwrap();
    Executor::each(|executor| {
        let (paths, fs) = (paths.clone(), fs.clone());
        executor.run(async move {
            for taken in 0..100 {
                let mut files = fs::read_many(&paths).on(&fs);
                for _ in 0..taken * 5 {
                    assert!(files.next().await.is_some());
                }
            }
        });
    });
    while fs.in_flight() != (0, 0) {
        std::thread::yield_now();
    }
}

#[cfg(feature = "stream")]
#[test]
fn a_batch_is_a_stream() {
    use futures::StreamExt as _;

    let folder = tempfile::tempdir().unwrap();
    let paths = furnish(folder.path());
    Executor::each(|executor| {
        let paths = paths.clone();
        let count = executor.run(async move { fs::read_many(&paths).count().await });
        assert_eq!(count, 503);
    });
}

/// Some workers of the batch fail before they have run.
#[cfg(feature = "faulty")]
#[test]
fn every_file_of_a_batch_has_one_result_whatever_the_engine_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let paths = furnish(folder.path());
    let mut failed = 0;
    for seed in 0..20 {
        let faults = uringlet::Faults { eio: 300, ..uringlet::Faults::none(seed) };
        let fs = Fs::builder().faulty(faults).build().unwrap();
        let (mut files, mut seen) = (fs::read_many(&paths).on(&fs), BTreeSet::new());
        while let Some((number, read)) = files.wait_next() {
            assert!(seen.insert(number));
            failed += usize::from(read.is_err_and(|error| error.raw_os_error().is_some()));
        }
        assert_eq!(seen.len(), paths.len(), "seed {seed}");
    }
    assert!(failed > 20 * 12, "no fault was made: {failed}");
}
