//! A file with a position, through tokio's traits and those of `futures-io`.

use std::future::Future;
use std::io::SeekFrom;
use std::pin::pin;
use std::task::{Context, Waker};

use uringlet::fs::{Cursor, File, Fs, FsBuilder};

use crate::executors::Executor;
use crate::file_of;

/// A cursor on a file. With `is_handed_over`, the engine executes its operations, and the polling
/// thread does not try them first.
fn cursor(path: &std::path::Path, capacity: usize, is_handed_over: bool) -> Cursor {
    let inline_max = if is_handed_over { 0 } else { 64 << 10 };
    cursor_of(path, capacity, Fs::builder().inline_max(inline_max))
}

/// A cursor with delayed transfers: the first poll of a transfer finds it under way. Without the
/// delay, a worker that spins on another CPU would end it before that poll.
#[cfg(all(feature = "tokio", feature = "faulty"))]
fn slow_cursor(path: &std::path::Path, capacity: usize) -> Cursor {
    let held = uringlet::Faults { held: 1000, held_us_max: 1000, ..uringlet::Faults::none(7) };
    cursor_of(path, capacity, Fs::builder().inline_max(0).faulty(held))
}

fn cursor_of(path: &std::path::Path, capacity: usize, fs: FsBuilder) -> Cursor {
    let fs = fs.build().unwrap();
    let file = File::options().read(true).write(true).open(path).on(&fs).wait().unwrap();
    Cursor::new(file, capacity)
}

/// Polls a future once, and drops it.
fn poll_once(future: impl Future) -> bool {
    pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[cfg(feature = "tokio")]
mod with_tokio {
    use tokio::io::{
        AsyncBufReadExt as _, AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _,
    };

    use super::*;

    #[test]
    fn a_file_is_copied_on_every_executor() {
        let (named, data) = file_of(300_000);
        Executor::each(|executor| {
            for (capacity, is_handed_over) in [(1, false), (1000, true), (64 << 10, false)] {
                if capacity == 1 && executor != Executor::Pollster {
                    continue;
                }
                let other = tempfile::NamedTempFile::new().unwrap();
                let from = cursor(named.path(), capacity, is_handed_over);
                let to = cursor(other.path(), 50_000, is_handed_over);
                let (mut from, mut to) = (from, to);
                let length = if capacity == 1 { 3000 } else { data.len() as u64 };
                let count = executor.run(async move {
                    let count = tokio::io::copy(&mut (&mut from).take(length), &mut to).await;
                    to.flush().await.unwrap();
                    assert_eq!(to.position(), length);
                    count.unwrap()
                });
                assert_eq!(count, length);
                let found = std::fs::read(other.path()).unwrap();
                assert!(found == data[..length as usize]);
            }
        });
    }

    #[test]
    fn lines_are_found_with_seeks_between() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let text: Vec<String> =
            (0..5000).map(|at| format!("line {at} {}", "x".repeat(at % 90))).collect();
        std::fs::write(named.path(), text.join("\n")).unwrap();
        for is_handed_over in [false, true] {
            let mut cursor = cursor(named.path(), 512, is_handed_over);
            let text = text.clone();
            Executor::TokioCurrent.run(async move {
                let mut line = String::new();
                for expected in &text[..700] {
                    line.clear();
                    cursor.read_line(&mut line).await.unwrap();
                    assert_eq!(line.trim_end_matches('\n'), expected);
                }
                let here = cursor.stream_position().await.unwrap();
                assert_eq!(here, cursor.position());
                let end = cursor.seek(SeekFrom::End(0)).await.unwrap();
                assert_eq!(cursor.read(&mut [0; 10]).await.unwrap(), 0);
                let last = text[4999].len() as i64;
                cursor.seek(SeekFrom::End(-last)).await.unwrap();
                line.clear();
                cursor.read_to_string(&mut line).await.unwrap();
                assert_eq!((&line, cursor.position()), (&text[4999], end));
                cursor.seek(SeekFrom::Start(here)).await.unwrap();
                let mut lines = cursor.lines();
                for expected in &text[700..] {
                    assert_eq!(lines.next_line().await.unwrap().as_ref(), Some(expected));
                }
                assert_eq!(lines.next_line().await.unwrap(), None);
                let mut cursor = lines.into_inner();
                for to in [SeekFrom::Current(-1 << 40), SeekFrom::Start(1 << 63)] {
                    let error = cursor.seek(to).await.unwrap_err();
                    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
                    assert_eq!(cursor.position(), end);
                }
            });
        }
    }

    #[test]
    fn reads_and_writes_see_each_other() {
        let (named, data) = file_of(10_000);
        for is_handed_over in [false, true] {
            let mut cursor = cursor(named.path(), 4096, is_handed_over);
            let expected = data.clone();
            let found = Executor::TokioThreads.run(async move {
                let mut head = [0; 100];
                cursor.read_exact(&mut head).await.unwrap();
                assert_eq!(head, expected[..100]);
                cursor.write_all(&[0xEE; 50]).await.unwrap();
                cursor.read_exact(&mut head).await.unwrap();
                assert_eq!(head, expected[150..250]);
                cursor.seek(SeekFrom::Current(-150)).await.unwrap();
                cursor.read_exact(&mut head).await.unwrap();
                head
            });
            assert_eq!((found[..50].to_vec(), &found[50..]), (vec![0xEE; 50], &data[150..200]));
            std::fs::write(named.path(), &data).unwrap();
        }
    }

    /// Now and then, the test drops a future after its first poll.
    #[cfg(feature = "faulty")]
    #[test]
    fn reads_that_are_dropped_lose_nothing() {
        let (named, data) = file_of(100_000);
        let mut cursor = slow_cursor(named.path(), 777);
        let mut found = Vec::new();
        let mut dropped = 0;
        Executor::Smol.run(async move {
            for round in 0.. {
                let before = cursor.position();
                let mut part = [0; 300];
                if round % 3 == 0 && !poll_once(cursor.fill_buf()) {
                    assert_eq!(cursor.position(), before);
                    dropped += 1;
                    if round % 2 == 0 {
                        // The cursor goes back to bytes that were read for a dropped future.
                        let back = before.saturating_sub(5);
                        assert_eq!(cursor.seek(SeekFrom::Start(back)).await.unwrap(), back);
                        cursor.read_exact(&mut [0; 5][..(before - back) as usize]).await.unwrap();
                    }
                }
                let count = cursor.read(&mut part).await.unwrap();
                if count == 0 {
                    break;
                }
                found.extend_from_slice(&part[..count]);
            }
            assert!(found == data);
            assert!(dropped > 0);
        });
    }

    #[cfg(feature = "faulty")]
    #[test]
    fn writes_that_are_dropped_go_on_and_one_of_the_same_bytes_is_that_one() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let mut cursor = slow_cursor(named.path(), 4096);
        let mut expected = Vec::new();
        let mut dropped = 0;
        Executor::LocalPool.run(async move {
            for round in 0..300u32 {
                let bytes = [round as u8; 100];
                if !poll_once(cursor.write(&bytes)) {
                    dropped += 1;
                    if round % 3 == 0 {
                        // Other bytes are written, after those of the dropped write.
                        expected.extend_from_slice(&bytes);
                        let others = [round as u8 ^ 0x80; 30];
                        cursor.write_all(&others).await.unwrap();
                        expected.extend_from_slice(&others);
                        continue;
                    }
                    cursor.write_all(&bytes).await.unwrap();
                }
                expected.extend_from_slice(&bytes);
            }
            assert!(dropped > 0);
            assert_eq!(cursor.position(), expected.len() as u64);
            assert!(std::fs::read(named.path()).unwrap() == expected);
            // A write that is dropped with its cursor goes on, too.
            let write = poll_once(cursor.write(b"the end"));
            let file = cursor.get_ref().clone();
            drop((write, cursor));
            let mut file = file;
            while let Err(still) = file.into_std() {
                file = still;
                std::thread::yield_now();
            }
            expected.extend_from_slice(b"the end");
            assert!(std::fs::read(named.path()).unwrap() == expected);
        });
    }

    #[test]
    fn an_error_is_that_of_its_own_write() {
        let file = File::options().write(true).open("/dev/full").wait().unwrap();
        let mut cursor = Cursor::new(file, 100);
        pollster::block_on(async {
            for _ in 0..3 {
                let error = cursor.write(b"abc").await.unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
                cursor.flush().await.unwrap();
            }
            // The error of a dropped write is returned by the next call.
            while poll_once(cursor.write(b"abc")) {}
            assert_eq!(cursor.flush().await.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
            cursor.flush().await.unwrap();
        });
    }
}

#[cfg(feature = "futures-io")]
mod with_futures {
    use super::*;
    use futures::io::{
        AsyncBufReadExt as _, AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _,
    };

    #[test]
    fn positions_that_no_file_reaches_are_refused() {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [7; 8192]).unwrap();
        for direct in [uringlet::fs::Direct::Off, uringlet::fs::Direct::Try] {
            let mut options = File::options();
            let file = options.read(true).write(true).direct(direct).open(&path).wait().unwrap();
            let mut cursor = Cursor::new(file, 100);
            for position in [1 << 63, u64::MAX - 4095, u64::MAX - 5, u64::MAX] {
                cursor.set_position(position);
                let error = pollster::block_on(cursor.read(&mut [0; 10])).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{direct:?}, {position:x}");
                let error = pollster::block_on(cursor.write(&[0; 10])).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{direct:?}, {position:x}");
                assert_eq!(cursor.position(), position);
            }
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 8192);
        }
    }

    #[test]
    fn a_file_is_copied_read_by_lines_and_sought_in() {
        let (named, data) = file_of(100_000);
        Executor::each(|executor| {
            for is_handed_over in [false, true] {
                let other = tempfile::NamedTempFile::new().unwrap();
                let mut from = cursor(named.path(), 5000, is_handed_over);
                let mut to = cursor(other.path(), 7000, is_handed_over);
                let lines = data.split(|&byte| byte == b'\n').count();
                let data = data.clone();
                executor.run(async move {
                    futures::io::copy(&mut from, &mut to).await.unwrap();
                    to.close().await.unwrap();
                    let mut found = Vec::new();
                    to.seek(SeekFrom::End(-1000)).await.unwrap();
                    to.read_to_end(&mut found).await.unwrap();
                    assert_eq!(found, data[99_000..]);
                    from.seek(SeekFrom::Start(0)).await.unwrap();
                    let mut line = Vec::new();
                    let mut count = 0;
                    while from.read_until(b'\n', &mut line).await.unwrap() > 0 {
                        count += 1;
                        line.clear();
                    }
                    assert_eq!(count, lines);
                });
                assert!(std::fs::read(other.path()).unwrap() == std::fs::read(&named).unwrap());
            }
        });
    }
}
