//! Operations with a deadline.

use std::future::Future;
use std::io::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use uringlet::fs::{BufResult, File, Fs};

use crate::executors::Executor;
use crate::limits::Count;
use crate::{file_of, pipe};

const SHORT: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_read_of_an_empty_pipe_times_out_with_its_buffer_on_every_executor_and_without_one() {
    let (reader, mut writer) = pipe();
    let file = File::from(reader);
    Executor::each(|executor| {
        let file = file.clone();
        executor.run(async move {
            let begin = Instant::now();
            let read = file.read_at(vec![7u8; 4], 0).timeout(SHORT);
            let elapsed = read.await.unwrap_err();
            assert!(begin.elapsed() >= SHORT);
            assert_eq!((elapsed.errno(), elapsed.to_string().contains("timed out")), (110, true));
            let BufResult(result, buffer) = elapsed.into_op().await;
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
            assert_eq!(buffer, [7; 4]);
        });
    });
    let begin = Instant::now();
    let elapsed = file.read_at(vec![7u8; 4], 0).deadline(begin + SHORT).wait().unwrap_err();
    assert!(begin.elapsed() >= SHORT);
    assert_eq!(elapsed.into_op().wait().1, [7; 4]);
    // The reads that timed out take none of these bytes.
    writer.write_all(b"abcd").unwrap();
    let (count, buffer) = file.read_at(vec![0u8; 4], 0).timeout(LONG).wait().unwrap().unwrap();
    assert_eq!((count, &buffer[..]), (4, &b"abcd"[..]));
    let error: std::io::Error = file.read_at([0u8; 1], 0).timeout(SHORT).wait().unwrap_err().into();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
}

#[test]
fn what_ends_in_time_has_its_own_outcome() {
    let (named, data) = file_of(100_000);
    Executor::each(|executor| {
        let (path, data) = (named.path().to_owned(), data.clone());
        executor.run(async move {
            let file = File::open(path).timeout(LONG).await.unwrap().unwrap();
            for inline in [true, false] {
                for time in [LONG, Duration::MAX] {
                    let read = file.read_exact_at(vec![0u8; 5000], 10_000);
                    let read = if inline { read } else { read.forced_async() };
                    let ((), buffer) = read.timeout(time).await.unwrap().unwrap();
                    assert_eq!(buffer, data[10_000..15_000]);
                }
            }
        });
    });
}

#[test]
fn what_is_begun_too_late_is_not_begun() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let now = Instant::now();
    assert!(File::create(&path).deadline(now).wait().is_err());
    assert!(File::create(&path).timeout(Duration::ZERO).wait().is_err());
    assert!(pollster::block_on(File::create(&path).deadline(now)).is_err());
    let submitted = File::create(&path).timeout(Duration::ZERO).submit();
    assert!(submitted.wait().is_err());
    assert!(!path.exists());
}

/// The first read is in the engine; the second one is queued, because `in_flight` is 1.
#[test]
fn what_stands_in_line_is_left_undone_and_the_task_is_woken_once() {
    let (reader, mut writer) = pipe();
    let fs = Fs::builder().in_flight(1).build().unwrap();
    let file = File::from(reader);
    let first = file.read_at([0u8; 1], 0).on(&fs).submit();
    let (old, new) = (Arc::new(Count::default()), Arc::new(Count::default()));
    let mut second = file.read_at([5u8; 1], 0).timeout(SHORT).submit();
    let mut poll = |count: &Arc<Count>| {
        let waker = Waker::from(Arc::clone(count));
        Pin::new(&mut second).poll(&mut Context::from_waker(&waker))
    };
    let mut output = poll(&old);
    if output.is_pending() {
        // The task is polled with another waker, as after a move to another executor. The deadline
        // may be over already.
        output = poll(&new);
    }
    let has_moved = output.is_pending();
    if has_moved {
        while new.0.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        output = poll(&new);
    }
    let Poll::Ready(Err(elapsed)) = output else { panic!("the time is over") };
    assert!(!has_moved || old.0.load(Ordering::SeqCst) == 0);
    assert_eq!(fs.in_flight(), (1, 0));
    let BufResult(result, buffer) = elapsed.into_op().wait();
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
    assert_eq!(buffer, [5]);
    writer.write_all(b"ab").unwrap();
    assert_eq!(first.wait().unwrap(), (1, *b"a"));
    assert!(old.0.load(Ordering::SeqCst) + new.0.load(Ordering::SeqCst) <= 1);
}

#[test]
fn deadlines_that_meet_the_end_of_their_operation_lose_nothing() {
    let (named, data) = file_of(1 << 20);
    let fs = Fs::builder().in_flight(4).build().unwrap();
    let file = File::open(named.path()).on(&fs).wait().unwrap();
    let alive = Arc::new(());
    let late = Arc::new(AtomicUsize::new(0));
    Executor::each(|executor| {
        let (file, data, alive, late) =
            (file.clone(), data.clone(), Arc::clone(&alive), Arc::clone(&late));
        executor.run(async move {
            for round in 0..400u64 {
                let reads = (0..8u64).map(|at| {
                    let (file, alive, late) = (file.clone(), Arc::clone(&alive), late.clone());
                    let data = &data;
                    async move {
                        let offset = (round * 811 + at * 4096) % 1_000_000;
                        let read = file.read_at(vec![1u8; 512], offset).forced_async();
                        let output = read.timeout(Duration::from_micros(round % 80)).await;
                        let output = match output {
                            Ok(output) => output,
                            Err(elapsed) => {
                                late.fetch_add(1, Ordering::Relaxed);
                                if at % 2 == 0 {
                                    return drop((elapsed, alive));
                                }
                                elapsed.into_op().await
                            }
                        };
                        match output {
                            BufResult(Ok(count), buffer) => {
                                assert_eq!(buffer[..count], data[offset as usize..][..count]);
                            }
                            BufResult(Err(error), buffer) => {
                                assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
                                assert_eq!(buffer, [1; 512]);
                            }
                        }
                    }
                });
                futures::future::join_all(reads).await;
            }
        });
    });
    assert!(late.load(Ordering::Relaxed) > 0, "no deadline was missed");
    assert_eq!(Arc::strong_count(&alive), 1);
    while fs.in_flight() != (0, 0) {
        std::thread::yield_now();
    }
}

/// The test runs in a child process, which has no other deadlines.
#[test]
fn the_thread_of_the_deadlines_is_one_and_ends_when_there_are_none() {
    const CHILD: &str = "URINGLET_TEST_LIMITED";
    let name = "deadlines::the_thread_of_the_deadlines_is_one_and_ends_when_there_are_none";
    if std::env::var_os(CHILD).is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--test-threads=1"])
            .env(CHILD, "1")
            .status();
        return assert!(status.unwrap().success());
    }
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| {
            // A thread that has just ended has no name.
            std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
        });
        names.filter(|name| name.starts_with("uringlet-timer")).count()
    };
    let (reader, _writer) = pipe();
    let file = File::from(reader);
    let mut context = Context::from_waker(Waker::noop());
    assert_eq!(threads(), 0);
    for _ in 0..2 {
        let mut reads: Vec<_> = (0..100).map(|_| file.read_at([0u8; 1], 0).timeout(LONG)).collect();
        for read in &mut reads {
            assert!(Pin::new(read).poll(&mut context).is_pending());
        }
        // A new thread has its name only after it has set the name itself.
        while threads() == 0 {
            std::thread::yield_now();
        }
        assert_eq!(threads(), 1);
        drop(reads);
        while threads() > 0 {
            std::thread::yield_now();
        }
    }
}
