//! Each operation once, with its errors.

use std::os::fd::AsRawFd as _;

use uringlet::EngineKind;
use uringlet::fs::{self, Advice, BufResult, Direct, File, Fs};

use crate::executors::Executor;
use crate::file_of;

#[tokio::test]
async fn a_file_is_read_where_it_is_asked_for() {
    let (named, data) = file_of(100_000);
    let file = File::open(named.path()).await.unwrap();
    let (count, buffer) = file.read_at(vec![0u8; 4096], 8192).await.unwrap();
    assert_eq!((count, &buffer[..]), (4096, &data[8192..8192 + 4096]));
    // Reads up to the end of the file, and after it.
    let (count, buffer) = file.read_at(Vec::with_capacity(4096), 99_000).await.unwrap();
    assert_eq!((count, &buffer[..]), (1000, &data[99_000..]));
    let (count, buffer) = file.read_at(vec![1u8; 10], 100_000).await.unwrap();
    assert_eq!((count, &buffer[..]), (0, &[1u8; 10][..]));
    // This read is longer than the reads which the polling thread tries itself.
    let (count, buffer) = file.read_at(Vec::with_capacity(1 << 20), 1).await.unwrap();
    assert_eq!((count, &buffer[..]), (99_999, &data[1..]));
}

#[test]
fn a_file_is_read_on_every_executor_and_without_one() {
    let (named, data) = file_of(50_000);
    Executor::each(|executor| {
        let (path, data) = (named.path().to_owned(), data.clone());
        executor.run(async move {
            let file = File::open(path).await.unwrap();
            for inline in [true, false] {
                let read = file.read_exact_at([0u8; 5000], 10_000);
                let read = if inline { read } else { read.forced_async() };
                let ((), buffer) = read.await.unwrap();
                assert_eq!(buffer[..], data[10_000..15_000]);
            }
        });
    });
    let file = File::open(named.path()).wait().unwrap();
    for inline in [true, false] {
        let read = file.read_exact_at([0u8; 5000], 10_000);
        let read = if inline { read } else { read.forced_async() };
        let ((), buffer) = read.wait().unwrap();
        assert_eq!(buffer[..], data[10_000..15_000]);
    }
}

#[test]
fn an_operation_can_be_begun_before_it_is_awaited() {
    let (named, data) = file_of(50_000);
    let file = File::open(named.path()).submit().wait().unwrap();
    let reads: Vec<_> = (0..100)
        .map(|at| file.read_exact_at(vec![0u8; 500], at * 500).forced_async().submit())
        .collect();
    for (at, read) in reads.into_iter().enumerate() {
        let ((), buffer) = pollster::block_on(read).unwrap();
        assert_eq!(buffer[..], data[at * 500..][..500]);
    }
}

#[test]
fn an_error_comes_with_the_buffer() {
    let (named, _) = file_of(100);
    let file = File::open(named.path()).wait().unwrap();
    let BufResult(result, buffer) = file.write_at(vec![7u8; 9], 0).wait();
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EBADF));
    assert_eq!(buffer, [7; 9]);
    let BufResult(result, buffer) = file.read_exact_at(Vec::with_capacity(101), 0).wait();
    assert_eq!(result.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    assert_eq!(buffer.len(), 100);
    // The kernel takes these offsets as negative. The last one does not mean the file position.
    for offset in [1 << 63, u64::MAX] {
        let BufResult(result, buffer) = file.read_at(vec![7u8; 9], offset).wait();
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert_eq!(buffer, [7; 9]);
    }
    let error = File::open("/none/such").wait().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    let error = File::open("a\0b").wait().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
}

#[test]
fn what_is_written_is_there_when_the_future_is_ready() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    Executor::each(|executor| {
        let path = path.clone();
        executor.run(async move {
            let file = File::options().read(true).write(true).create(true).truncate(true).clone();
            let file = file.open(&path).await.unwrap();
            let (count, buffer) = file.write_at(b"0123456789".to_vec(), 5).await.unwrap();
            assert_eq!((count, &buffer[..]), (10, &b"0123456789"[..]));
            assert_eq!(std::fs::read(&path).unwrap(), b"\0\0\0\0\x000123456789");
            file.write_all_at([b'x'; 3], 1).await.unwrap();
            file.append("end".to_owned()).await.unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"\0xxx\x000123456789end");
            file.sync_data().await.unwrap();
            file.sync_all().await.unwrap();
            file.set_len(4).await.unwrap();
            file.allocate(0, 10).await.unwrap();
            file.advise(0, 0, Advice::Random).await.unwrap();
            // The kernel takes this length as negative. With its upper bits cut off, it would be 0.
            let error = file.advise(0, 1 << 63, Advice::Normal).await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
            let metadata = file.metadata().await.unwrap();
            assert!(metadata.is_file() && !metadata.is_dir());
            assert_eq!(metadata.len(), 10);
            assert!(metadata.modified().unwrap().elapsed().unwrap().as_secs() < 3600);
            file.close().await.unwrap();
        });
    });
}

#[test]
fn close_closes_and_says_if_others_have_the_file() {
    let (named, data) = file_of(100);
    let file = File::open(named.path()).wait().unwrap();
    let number = file.as_raw_fd();
    let other = file.clone();
    assert_eq!(file.close().wait().unwrap_err().raw_os_error(), Some(libc::EBUSY));
    assert_eq!(other.read_at(vec![0; 100], 0).wait().unwrap().1, data);
    other.close().wait().unwrap();
    // The descriptor's number may name another test's file now, but not this one.
    let now = std::fs::read_link(format!("/proc/self/fd/{number}"));
    assert!(now.is_err() || now.unwrap() != named.path());
    // A close that is not polled closes the file, too.
    let file = File::open(named.path()).wait().unwrap();
    let number = file.as_raw_fd();
    drop(file.close());
    let now = std::fs::read_link(format!("/proc/self/fd/{number}"));
    assert!(now.is_err() || now.unwrap() != named.path());
}

#[test]
fn files_come_from_the_standard_library_and_go_back() {
    let (named, data) = file_of(100);
    let file = File::from(std::fs::File::open(named.path()).unwrap());
    assert_eq!(file.read_at(vec![0; 100], 0).wait().unwrap().1, data);
    let other = file.clone();
    let file = file.into_std().expect_err("there is another one");
    drop(other);
    let file = file.into_std().expect("this is the only one");
    assert_eq!(file.metadata().unwrap().len(), 100);
}

#[test]
fn names_are_made_changed_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("a/b/c")).wait().unwrap();
    fs::create_dir_all(at("a/b/c")).wait().unwrap();
    fs::create_dir_all("/").wait().unwrap();
    fs::create_dir_all("").wait().unwrap();
    assert!(fs::metadata(at("a/b/c")).wait().unwrap().is_dir());
    let BufResult(result, buffer) = fs::write(at("a/file"), b"some bytes".to_vec()).wait();
    assert!(result.is_ok() && buffer == b"some bytes");
    assert_eq!(fs::read(at("a/file")).wait().unwrap(), b"some bytes");
    let error = fs::create_dir_all(at("a/file/d")).wait().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTDIR));
    let error = fs::create_dir_all(at("a/file")).wait().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
    fs::rename(at("a/file"), at("a/b/other")).wait().unwrap();
    fs::sync_dir(at("a/b")).wait().unwrap();
    let error = fs::sync_dir(at("a/b/other")).wait().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTDIR));
    let error = fs::metadata(at("a/file")).wait().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    fs::remove_file(at("a/b/other")).wait().unwrap();
    assert!(!at("a/b/other").exists());
    for error in [
        fs::metadata("a\0").wait().unwrap_err(),
        fs::rename("a", "b\0").wait().unwrap_err(),
        fs::create_dir_all("b\0").wait().unwrap_err(),
    ] {
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}

#[test]
fn whole_files_of_any_length_are_read_written_and_copied() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("file"), folder.path().join("other"));
    for length in [0, 1, 4096, 100_000, 3 << 20] {
        let data: Vec<u8> = (0..length).map(|at| (at / 5 % 249) as u8).collect();
        fs::write(&path, data.clone()).wait().unwrap();
        assert!(fs::read(&path).wait().unwrap() == data);
        assert_eq!(fs::copy(&path, &other).wait().unwrap(), length as u64);
        assert!(std::fs::read(&other).unwrap() == data);
    }
    // This file reports no length.
    let read = fs::read("/proc/self/maps").wait().unwrap();
    assert!(!read.is_empty());
    assert_eq!(fs::read(folder.path()).wait().unwrap_err().raw_os_error(), Some(libc::EISDIR));
    let error = fs::copy(folder.path(), &other).wait().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
}

#[test]
fn direct_io_is_tried_or_required_and_says_its_alignment() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let open = |direct| {
        let options = File::options().read(true).write(true).create(true).direct(direct).clone();
        options.open(&path).wait()
    };
    let tried = open(Direct::Try).unwrap();
    let required = open(Direct::Require);
    match (tried.alignment(), required) {
        (Some(alignment), Ok(file)) => {
            assert!(alignment.memory.is_power_of_two() && alignment.offset.is_power_of_two());
            assert_eq!(file.alignment(), Some(alignment));
        }
        (None, Err(error)) => assert_eq!(error.raw_os_error(), Some(libc::EINVAL)),
        other => panic!("{other:?}"),
    }
    assert_eq!(open(Direct::Off).unwrap().alignment(), None);
    for options in [
        File::options(),
        File::options().create(true).read(true).clone(),
        File::options().append(true).truncate(true).clone(),
    ] {
        let error = options.open(&path).wait().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{options:?}");
    }
}

#[test]
fn an_operation_that_is_cancelled_gives_its_buffer_back() {
    let (named, data) = file_of(4096);
    let file = File::open(named.path()).wait().unwrap();
    // The operation has not begun.
    let BufResult(result, buffer) = file.read_at(vec![7u8; 4096], 0).cancel().wait();
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
    assert_eq!(buffer, [7; 4096]);
    // The operation has begun, and may have ended.
    for _ in 0..100 {
        let read = file.read_at(vec![7u8; 4096], 0).forced_async().submit();
        let BufResult(result, buffer) = read.cancel().wait();
        match result {
            Ok(count) => assert!(count == 4096 && buffer == data),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
                assert_eq!(buffer, [7; 4096]);
            }
        }
    }
}

#[test]
fn what_is_detached_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let file = File::create(&path).wait().unwrap();
    for at in 0..100u64 {
        file.write_all_at(at.to_ne_bytes(), at * 8).detach();
    }
    // The file can be taken out when no operation uses it any more.
    let mut file = file;
    let file = loop {
        match file.into_std() {
            Ok(file) => break file,
            Err(still) => file = still,
        }
        std::thread::yield_now();
    };
    drop(file);
    let written: Vec<u8> = (0..100u64).flat_map(u64::to_ne_bytes).collect();
    assert_eq!(std::fs::read(&path).unwrap(), written);
}

#[test]
fn an_instance_of_ones_own_is_dropped_with_requests_in_flight() {
    let (named, _) = file_of(1 << 20);
    let error = Fs::builder().in_flight(0).build().err().unwrap();
    let text = error.to_string();
    assert!(["in_flight", "0", "1", "32768"].iter().all(|part| text.contains(part)), "{text}");
    for engine in [EngineKind::Auto, EngineKind::Workers] {
        for _ in 0..20 {
            let own = Fs::builder().engine(engine).threads(2).in_flight(3).build().unwrap();
            let file = File::open(named.path()).on(&own).wait().unwrap();
            let reads: Vec<_> = (0..20)
                .map(|at| file.read_at(vec![0u8; 1000], at * 500).forced_async().submit())
                .collect();
            drop((own, file));
            drop(reads);
        }
    }
}
