//! The end of operations: cancelled opens, drained files, an `Fs` that is shut down.
#![allow(unsafe_code)]

use std::future::Future as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use futures::future::Either;
use uringlet::fs::{self, BufResult, File, Fs};

use crate::executors::Executor;
use crate::{file_of, pipe};

/// A time limit that only an operation that hangs exceeds.
const LONG: Duration = Duration::from_secs(600);

pub fn make_fifo(path: &Path) {
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a name that ends with a NUL.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
}

/// The number of this process's descriptors (`fd`), or of its threads (`task`).
fn count(what: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count()
}

/// The test runs in a child process, where nothing else makes descriptors and threads.
#[test]
fn ten_thousand_cancelled_opens_of_fifos_leave_no_thread_and_no_descriptor() {
    const CHILD: &str = "URINGLET_TEST_LIMITED";
    const TOGETHER: usize = 100;
    let name = "over::ten_thousand_cancelled_opens_of_fifos_leave_no_thread_and_no_descriptor";
    if std::env::var_os(CHILD).is_none() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let status = child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").status();
        return assert!(status.unwrap().success());
    }
    let folder = tempfile::tempdir().unwrap();
    // Each FIFO has only readers or only writers, so no open finds the other side.
    let fifos = ["readers", "writers"].map(|name| folder.path().join(name));
    fifos.iter().for_each(|fifo| make_fifo(fifo));
    let (descriptors, threads) = (count("fd"), count("task"));
    let fs = Fs::builder().build().unwrap();
    for round in 0..10_000 / TOGETHER {
        let opens = (0..TOGETHER).map(|at| {
            let mut options = File::options();
            options.read(round % 2 == 0).write(round % 2 == 1);
            let open = options.open(&fifos[round % 2]).on(&fs).submit();
            if at % 3 == 0 {
                Either::Left(open.timeout(Duration::from_micros(at as u64 * 50)))
            } else {
                Either::Right(open)
            }
        });
        for (at, open) in opens.collect::<Vec<_>>().into_iter().enumerate() {
            match open {
                Either::Right(open) if at % 2 == 0 => drop(open),
                Either::Right(open) => {
                    let error = open.cancel().wait().unwrap_err();
                    assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
                }
                Either::Left(open) => {
                    let error = open.wait().unwrap_err().into_op().wait().unwrap_err();
                    assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
                }
            }
        }
        if round % 10 == 0 {
            while fs.in_flight() != (0, 0) {
                std::thread::yield_now();
            }
        }
    }
    fs.shutdown(LONG).wait().unwrap();
    drop(fs);
    // Idle workers end after a while, and so does the thread for deadlines.
    while count("fd") > descriptors || count("task") > threads {
        std::thread::yield_now();
    }
}

#[test]
fn an_open_of_a_fifo_ends_when_it_is_given_up_or_when_its_other_side_comes() {
    let folder = tempfile::tempdir().unwrap();
    // A cancelled open may still be the other side of its FIFO for a moment, so each part of the
    // test has a new FIFO.
    let new_fifo = |name: String| {
        let fifo = folder.path().join(name);
        make_fifo(&fifo);
        fifo
    };
    Executor::each(|executor| {
        let [late, dropped, fifo] = [0, 1, 2].map(|at| new_fifo(format!("{executor:?}{at}")));
        executor.run(async move {
            let late = File::open(&late).timeout(Duration::from_millis(5)).await.unwrap_err();
            let error = late.into_op().await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
            drop(fs::read(&dropped).submit());
            drop(fs::write(&dropped, vec![1]).submit());
            let (writer, reader) = (File::create(&fifo).submit(), File::open(&fifo).submit());
            let (writer, reader) = (writer.await.unwrap(), reader.await.unwrap());
            let BufResult(result, _) = writer.write_all_at(b"through".to_vec(), 0).await;
            result.unwrap();
            let BufResult(result, buffer) = reader.read_at(vec![0; 7], 0).await;
            assert_eq!((result.unwrap(), &buffer[..]), (7, &b"through"[..]));
        });
    });
}

#[test]
fn a_file_is_drained_when_its_operations_are_over_however_they_ended() {
    let (named, _) = file_of(0);
    let path = named.path().to_owned();
    Executor::each(|executor| {
        let path = path.clone();
        executor.run(async move {
            let file = File::create(&path).await.unwrap();
            file.drain(Duration::ZERO).await.unwrap();
            let alive = Arc::new(());
            for at in 0..50u64 {
                let write = file.write_all_at(vec![at as u8; 10_000], at * 10_000);
                match at % 3 {
                    0 => write.detach(),
                    1 => drop(write.submit()),
                    _ => drop(write.submit().cancel()),
                }
                drop(
                    file.set_permissions(std::fs::metadata(&path).unwrap().permissions()).submit(),
                );
            }
            file.drain(LONG).await.unwrap();
            let kept = file.write_at(vec![7; 10], 0).submit();
            // The drain waits until this write has ended. Its result need not be taken.
            file.drain(LONG).await.unwrap();
            drop(alive);
            assert_eq!(kept.await.unwrap().0, 10);
            let now = std::fs::read(&path).unwrap();
            for at in (0..50).step_by(3) {
                let part = &now[at * 10_000 + 10..][..9_990];
                assert!(part.iter().all(|&byte| byte == at as u8), "{at}");
            }
            assert!(file.into_std().is_ok(), "every operation has let go of the file");
        });
    });
}

#[test]
fn what_never_ends_is_waited_for_only_so_long() {
    let (reader, writer) = pipe();
    let fs = Fs::builder().build().unwrap();
    let (named, _) = file_of(100);
    let regular = File::open(named.path()).on(&fs).wait().unwrap();
    let file = File::from(reader);
    let mut read = file.read_at(vec![0; 10], 0).on(&fs);
    assert!(Pin::new(&mut read).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let short = Duration::from_millis(10);
    Executor::each(|executor| {
        let (file, fs, regular) = (file.clone(), fs.clone(), regular.clone());
        executor.run(async move {
            let error = file.drain(short).await.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
            // The drain of another file of the same `Fs` does not wait for the read of the pipe.
            regular.drain(LONG).await.unwrap();
            fs.drain().timeout(LONG).await.unwrap();
        });
    });
    let error = fs.shutdown(short).wait().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    // No operation begins any more, whether its data is in memory or not.
    for read in [regular.read_at(vec![0; 10], 0), regular.read_at(vec![0; 10], 0).forced_async()] {
        let BufResult(result, buffer) = read.wait();
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ESHUTDOWN));
        assert_eq!(buffer, [0; 10]);
    }
    // The read that had begun still ends when the pipe's writer is closed.
    drop(writer);
    fs.shutdown(LONG).wait().unwrap();
    assert_eq!(read.wait().unwrap().0, 0);
}

#[test]
fn a_large_detached_write_is_whole_after_a_shutdown() {
    const LENGTH: usize = 200 << 20;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large");
    let own = Fs::builder().build().unwrap();
    fs::write(&path, vec![1u8; LENGTH]).on(&own).detach();
    own.drain().timeout(LONG).wait().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), LENGTH as u64);
    own.shutdown(LONG).wait().unwrap();
}

/// An operation may end at the very moment at which it is detached.
#[test]
fn a_detached_operation_counts_once_whenever_it_ends() {
    let (named, _) = file_of(100);
    let fs = Fs::builder().build().unwrap();
    let file = File::open(named.path()).on(&fs).wait().unwrap();
    for round in 0..20_000 {
        let read = file.read_at([0u8; 1], 0).forced_async().submit();
        for _ in 0..round % 50 * 20 {
            std::hint::spin_loop();
        }
        read.detach();
    }
    fs.drain().timeout(LONG).wait().unwrap();
    file.drain(LONG).wait().unwrap();
    // If a counter had fallen below zero, these calls would fail or never return.
    file.read_at([0u8; 1], 0).forced_async().detach();
    fs.drain().timeout(LONG).wait().unwrap();
    fs.shutdown(LONG).wait().unwrap();
}

/// The engine delays requests at random, and operations end in every way.
#[cfg(feature = "faulty")]
#[test]
fn a_shutdown_ends_after_a_storm_with_faults() {
    for seed in 0..10 {
        let (named, data) = file_of(1 << 20);
        let data = Arc::new(data);
        let faults = uringlet::Faults::reordering(seed);
        let fs = Fs::builder().in_flight(1 + seed as u32 * 5).faulty(faults).build().unwrap();
        let file = File::open(named.path()).on(&fs).wait().unwrap();
        let alive = crate::storms::Alive::default();
        for number in 0..500 {
            let one = crate::storms::one(file.clone(), number, Arc::clone(&data), alive.clone());
            pollster::block_on(one);
        }
        pollster::block_on(fs.shutdown(LONG)).unwrap();
        assert_eq!(alive.count(), 0, "seed {seed}");
        let mut file = file;
        while let Err(still) = file.into_std() {
            // A thread that has ended an operation may still hold the file for a moment.
            file = still;
            std::thread::yield_now();
        }
    }
}
