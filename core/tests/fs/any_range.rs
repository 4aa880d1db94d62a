//! Writes of any range to files that are open for direct I/O.
#![allow(clippy::single_range_in_vec_init, unsafe_code)]

use std::path::Path;

use futures::future::join_all;
use uringlet::fs::{BufResult, Coalesce, Direct, File, Fs};

use crate::executors::Executor;
use crate::skipped;

/// A direct file of this name. `None`, with a message, if the file system has no direct I/O.
fn direct(path: &Path, test: &str) -> Option<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true).direct(Direct::Require);
    match options.open(path).wait() {
        Ok(file) => Some(file),
        Err(error) => {
            skipped(test, format!("no direct I/O here: {error}"));
            None
        }
    }
}

/// Pseudo-random numbers, the same each time.
fn numbers(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    }
}

#[test]
fn any_range_of_a_direct_file_is_written_and_its_length_is_exact() {
    let name = "any_range_of_a_direct_file_is_written_and_its_length_is_exact";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    if direct(&path, name).is_none() {
        return;
    }
    Executor::each(|executor| {
        let path = path.clone();
        executor.run(async move {
            let file = direct(&path, name).unwrap();
            let (mut model, mut number) = (Vec::new(), numbers(executor as u64 + 1));
            let bounds = [0, 1, 511, 512, 513, 4095, 4096, 4097, 8192, 12_345, 65_536, 70_000];
            for round in 0..100 {
                let begin = bounds[number(bounds.len())] + number(2) * number(5000);
                let length = bounds[number(bounds.len())] + number(2) * number(5000);
                // The data begins at any address, aligned or not.
                let skipped = number(3) * number(700);
                let data: Vec<u8> = (0..skipped + length).map(|at| (at + round) as u8).collect();
                let slice = uringlet::fs::buf::IoBuf::slice(data, skipped..);
                let BufResult(result, slice) = file.write_range_at(slice, begin as u64).await;
                result.unwrap();
                if length > 0 {
                    model.resize(model.len().max(begin + length), 0);
                    model[begin..begin + length].copy_from_slice(&slice);
                }
                let now = std::fs::read(&path).unwrap();
                assert_eq!(now.len(), model.len(), "{begin} + {length}");
                assert!(now == model, "{begin} + {length}");
                let whole = file.read_ranges(&[0..model.len() as u64], Coalesce::default());
                assert!(whole.await.unwrap()[0][..] == model, "{begin} + {length}, read directly");
            }
            file.sync_data().await.unwrap();
            file.close().await.unwrap();
        });
    });
}

/// Ranges that share blocks but no byte, all at once, through one handle and through several.
#[test]
fn writes_that_share_a_block_leave_each_other_alone() {
    let name = "writes_that_share_a_block_leave_each_other_alone";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    if direct(&path, name).is_none() {
        return;
    }
    Executor::each(|executor| {
        let path = path.clone();
        executor.run(async move {
            let (one, mut number) = (direct(&path, name).unwrap(), numbers(7));
            let mut options = File::options();
            let other = options.write(true).direct(Direct::Require).open(&path).await.unwrap();
            let files = [one.clone(), one, other];
            for round in 0..8u8 {
                let (mut at, mut writes, mut model) = (0, Vec::new(), Vec::new());
                while writes.len() < 60 {
                    let length = 1 + [number(100), number(3000), number(20_000)][number(3)];
                    let data =
                        vec![round.wrapping_mul(61).wrapping_add(writes.len() as u8); length];
                    model.extend_from_slice(&data);
                    writes.push(files[number(3)].write_range_at(data, at).submit());
                    at += length as u64;
                }
                // The last writes are awaited first.
                writes.reverse();
                for BufResult(result, _) in join_all(writes).await {
                    result.unwrap();
                }
                let now = std::fs::read(&path).unwrap();
                assert!(now[..model.len()] == model, "{executor:?}, {round}");
                files[0].set_len(0).await.unwrap();
            }
        });
    });
}

/// A write that overlaps others, or is dropped or cancelled, changes its own bytes only.
#[test]
fn each_byte_of_writes_that_overlap_is_that_of_one_of_them() {
    const LENGTH: usize = 40_000;
    let name = "each_byte_of_writes_that_overlap_is_that_of_one_of_them";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    if direct(&path, name).is_none() {
        return;
    }
    let own = Fs::builder().in_flight(5).build().unwrap();
    Executor::each(|executor| {
        let (path, own) = (path.clone(), own.clone());
        executor.run(async move {
            let mut options = File::options();
            options.read(true).write(true).direct(Direct::Require);
            let file = options.open(&path).on(&own).await.unwrap();
            let mut number = numbers(3);
            for round in 0..10 {
                // The bytes that are allowed at each offset.
                let mut legal = vec![vec![0u8]; LENGTH];
                file.write_range_at(vec![0; LENGTH], 0).await.0.unwrap();
                let mut kept = Vec::new();
                for byte in 1..12u8 {
                    let begin = number(LENGTH);
                    let length = number(LENGTH - begin);
                    legal[begin..begin + length].iter_mut().for_each(|legal| legal.push(byte));
                    let write = file.write_range_at(vec![byte; length], begin as u64).submit();
                    match number(4) {
                        0 => drop(write),
                        1 => match write.cancel().await.0 {
                            Ok(()) => {}
                            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ECANCELED)),
                        },
                        _ => kept.push(write),
                    }
                }
                for BufResult(result, _) in join_all(kept).await {
                    result.unwrap();
                }
                while own.in_flight() != (0, 0) {
                    std::thread::yield_now();
                }
                let now = std::fs::read(&path).unwrap();
                assert_eq!(now.len(), LENGTH);
                let bad = now.iter().zip(&legal).position(|(byte, legal)| !legal.contains(byte));
                assert_eq!(bad, None, "{executor:?}, {round}");
            }
        });
    });
}

#[test]
fn a_range_that_cannot_be_written_says_why_and_gives_the_buffer_back() {
    let name = "a_range_that_cannot_be_written_says_why_and_gives_the_buffer_back";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let Some(file) = direct(&path, name) else { return };
    let errno = |file: &File, offset| {
        let BufResult(result, buffer) = file.write_range_at(vec![1; 5000], offset).wait();
        assert_eq!(buffer.len(), 5000);
        result.map_err(|error| error.raw_os_error().unwrap())
    };
    assert_eq!(errno(&file, 1 << 63), Err(libc::EINVAL));
    assert_eq!(errno(&file, u64::MAX), Err(libc::EINVAL));
    assert_eq!(errno(&file, 3), Ok(()));
    let open = |options: &mut uringlet::fs::OpenOptions| {
        options.direct(Direct::Require).open(&path).wait().unwrap()
    };
    let before = std::fs::read(&path).unwrap();
    assert_eq!(before.len(), 5003);
    // The range begins within a block, ends within one, or both.
    for offset in [0, 3, 4096, 8192 - 5000, 8192] {
        assert_eq!(errno(&open(File::options().append(true)), offset), Err(libc::EINVAL));
        assert_eq!(errno(&open(File::options().read(true)), offset), Err(libc::EBADF));
        assert!(std::fs::read(&path).unwrap() == before, "{offset}");
    }
    // Without direct I/O, a write of any range is a plain write.
    let plain = File::create(&path).wait().unwrap();
    assert_eq!(errno(&plain, 7), Ok(()));
    assert_eq!(std::fs::read(&path).unwrap().len(), 5007);
}

/// The flags of the process's descriptors of a file (proc_pid_fd(5), fcntl(2)).
fn flags_of(path: &Path) -> Vec<i32> {
    let mut flags = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        if std::fs::read_link(entry.path()).is_ok_and(|found| found == path) {
            let number = entry.file_name().into_string().unwrap().parse().unwrap();
            // SAFETY: no memory is passed.
            flags.push(unsafe { libc::fcntl(number, libc::F_GETFL) });
        }
    }
    flags
}

/// The two ends of a range are written with the same `O_SYNC` or `O_DSYNC` as its middle.
#[test]
fn ends_of_a_file_that_is_open_for_synchronous_writes_are_written_so() {
    let name = "ends_of_a_file_that_is_open_for_synchronous_writes_are_written_so";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join("file");
    if direct(&path, name).is_none() {
        return;
    }
    for wanted in [0, libc::O_DSYNC, libc::O_SYNC] {
        let mut options = File::options();
        options.write(true).direct(Direct::Require).custom_flags(wanted);
        let file = options.open(&path).wait().unwrap();
        assert_eq!(flags_of(&path).len(), 1);
        file.write_range_at(vec![1; 10_000], 5).wait().0.unwrap();
        let flags = flags_of(&path);
        assert_eq!(flags.iter().filter(|flags| *flags & libc::O_DIRECT == 0).count(), 1);
        assert!(flags.iter().all(|flags| flags & libc::O_SYNC == wanted), "{flags:x?}, {wanted:x}");
    }
}

/// Does a process or another open file have a lock (fcntl(2)) on the file's first byte? If `set` is
/// given, a command of fcntl(2), this function takes the lock with it and returns true.
fn is_locked(other: &std::fs::File, set: Option<libc::c_int>) -> bool {
    use std::os::fd::AsRawFd as _;
    // SAFETY: all fields are integers, which may be zero.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_len) = (libc::F_WRLCK as i16, 1);
    let call = set.unwrap_or(libc::F_OFD_GETLK);
    // SAFETY: one struct flock.
    assert_eq!(unsafe { libc::fcntl(other.as_raw_fd(), call, &raw mut lock) }, 0);
    lock.l_type != libc::F_UNLCK as i16
}

/// A write must not close a descriptor of the file: that would release the process's record locks
/// (fcntl(2)).
#[test]
fn record_locks_stay_while_threads_write_ranges_for_the_first_time() {
    let name = "record_locks_stay_while_threads_write_ranges_for_the_first_time";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    if direct(&path, name).is_none() {
        return;
    }
    let [own, other] = [(); 2].map(|()| std::fs::File::options().write(true).open(&path).unwrap());
    for _ in 0..200 {
        let file = File::options().write(true).direct(Direct::Require).open(&path).wait().unwrap();
        assert!(is_locked(&own, Some(libc::F_SETLK)));
        let write = |at| file.write_range_at(vec![1; 9], at).submit();
        let writes: Vec<_> = (0..8).map(write).collect();
        for write in writes {
            write.wait().0.unwrap();
        }
        assert!(is_locked(&other, None));
        drop(file);
        assert!(!is_locked(&other, None), "as the documentation has it");
    }
}

#[cfg(feature = "faulty")]
#[test]
fn a_range_that_the_engine_refuses_is_not_written() {
    let name = "a_range_that_the_engine_refuses_is_not_written";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    if direct(&path, name).is_none() {
        return;
    }
    let (mut failed, mut made) = (0, 0);
    for seed in 0..50 {
        let faults = uringlet::Faults { eio: 500, ..uringlet::Faults::none(seed) };
        let own = Fs::builder().faulty(faults).build().unwrap();
        let before = std::fs::read(&path).unwrap();
        let open = File::options().write(true).direct(Direct::Require).open(&path).on(&own);
        let Ok(file) = open.wait() else { continue };
        match file.write_range_at(vec![seed as u8; 9000], 100).wait().0 {
            Ok(()) => made += 1,
            Err(_) => {
                failed += 1;
                assert!(std::fs::read(&path).unwrap() == before);
            }
        }
    }
    assert!(failed > 0 && made > 0, "{failed}, {made}");
}

#[cfg(feature = "tokio")]
#[test]
fn a_cursor_writes_to_a_direct_file_at_any_position() {
    use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};

    let name = "a_cursor_writes_to_a_direct_file_at_any_position";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    if direct(&path, name).is_none() {
        return;
    }
    Executor::each(|executor| {
        let path = path.clone();
        let all = executor.run(async move {
            let mut cursor = uringlet::fs::Cursor::new(direct(&path, name).unwrap(), 10_000);
            let mut model = Vec::new();
            for length in [1, 100, 4096, 5000, 9999, 10_000, 30_001] {
                let data: Vec<u8> = (0..length).map(|at| (at + length) as u8).collect();
                cursor.write_all(&data).await?;
                model.extend_from_slice(&data);
            }
            cursor.seek(std::io::SeekFrom::Start(4000)).await?;
            cursor.write_all(&[0xAA; 200]).await?;
            model[4000..4200].fill(0xAA);
            cursor.rewind().await?;
            let mut all = Vec::new();
            cursor.read_to_end(&mut all).await?;
            assert!(all == model && std::fs::read(&path)? == model);
            Ok::<_, std::io::Error>(all.len())
        });
        assert_eq!(all.unwrap(), 59_197);
    });
}
