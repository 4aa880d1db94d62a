//! Errors: full disks, short transfers, truncated files, wakers that panic.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use uringlet::fs::{BufResult, File, Fs};

use crate::executors::Executor;
use crate::{file_of, pipe};

#[test]
fn a_full_disk_is_told_with_the_buffer() {
    Executor::each(|executor| {
        executor.run(async {
            let file = File::options().write(true).open("/dev/full").await.unwrap();
            for BufResult(result, buffer) in [
                file.write_at(vec![1u8; 100], 0).await.map(|_, buffer| ((), buffer)),
                file.write_all_at(vec![1u8; 100], 0).await,
            ] {
                assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
                assert_eq!(buffer, [1; 100]);
            }
        });
    });
}

/// The test runs in a child process, with a file system of its own: 64 KiB in memory.
#[test]
fn a_small_file_system_that_is_full_says_how_much_it_took_and_then_that() {
    use std::os::unix::process::CommandExt as _;
    const CHILD: &str = "URINGLET_TEST_LIMITED";
    let name = "faults::a_small_file_system_that_is_full_says_how_much_it_took_and_then_that";
    let Some(place) = std::env::var_os(CHILD) else {
        let folder = tempfile::tempdir().unwrap();
        let place = CString::new(folder.path().to_str().unwrap()).unwrap();
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--test-threads=1"]).env(CHILD, folder.path());
        let mount = move || {
            let done = |answer: i32| {
                if answer == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            };
            let (data, null) = (c"size=65536".as_ptr().cast(), std::ptr::null());
            // SAFETY: strings that end in NUL, or null; system calls only.
            unsafe {
                done(libc::unshare(libc::CLONE_NEWNS))
                    .or_else(|_| done(libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)))?;
                let private = libc::MS_REC | libc::MS_PRIVATE;
                done(libc::mount(null, c"/".as_ptr(), null, private, null.cast()))?;
                let tmpfs = c"tmpfs".as_ptr();
                done(libc::mount(tmpfs, place.as_ptr(), tmpfs, 0, data))
            }
        };
        // SAFETY: between fork and exec, the child only makes system calls.
        unsafe { command.pre_exec(mount) };
        match command.status() {
            Ok(status) => assert!(status.success()),
            Err(error) => crate::skipped(name, format!("no file system can be mounted: {error}")),
        }
        return;
    };
    let file = File::create(std::path::Path::new(&place).join("file")).wait().unwrap();
    let large = vec![7u8; 100_000];
    let (count, large) = file.write_at(large, 0).wait().unwrap();
    assert_eq!(count, 65_536);
    for executor in [Executor::TokioThreads, Executor::Pollster] {
        let (file, large) = (file.clone(), large.clone());
        executor.run(async move {
            let BufResult(result, large) = file.write_at(large, 65_536).await;
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
            let BufResult(result, large) = file.write_all_at(large, 0).await;
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
            assert_eq!(large, [7; 100_000]);
            file.sync_data().await.unwrap();
            assert_eq!(file.metadata().await.unwrap().len(), 65_536);
        });
    }
}

/// The test runs in a child process, because the limit is the process's.
#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_no_signal() {
    const CHILD: &str = "URINGLET_TEST_LIMITED";
    let name = "faults::a_limit_on_the_size_of_files_is_an_error_and_no_signal";
    if std::env::var_os(CHILD).is_none() {
        // The output goes through pipes, because the limit also holds for a log of the harness.
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--test-threads=1"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        return assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let limit = libc::rlimit { rlim_cur: 10_000, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a live struct rlimit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let file = File::create(&path).wait().unwrap();
    // The first write takes what there is room for, and the next one fails.
    let (count, _) = file.write_at(vec![1u8; 100], 9_950).wait().unwrap();
    assert_eq!(count, 50);
    for wait in [true, false] {
        let write = file.write_all_at(vec![2u8; 100], 9_950);
        let output = if wait { write.wait() } else { pollster::block_on(write) };
        let BufResult(result, buffer) = output;
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EFBIG));
        assert_eq!(buffer, [2; 100]);
    }
    assert_eq!(std::fs::read(&path).unwrap()[9_950..], [2; 50]);
}

#[test]
fn a_file_that_is_cut_meanwhile_gives_less_or_says_so() {
    const LENGTH: usize = 256 << 10;
    let (named, data) = file_of(LENGTH);
    let stops = Arc::new(AtomicBool::new(false));
    let (stopped, path) = (Arc::clone(&stops), named.path().to_owned());
    let copy = data.clone();
    let cutter = std::thread::spawn(move || {
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        while !stopped.load(Ordering::Relaxed) {
            file.set_len(1000).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &copy, 0).unwrap();
        }
    });
    let file = File::open(named.path()).wait().unwrap();
    let check = |buffer: &[u8], done: usize| {
        // Bytes that are truncated during the copy may be seen as zeros, page by page.
        let differs = buffer[..done].iter().zip(&data).any(|(&is, &was)| is != was && is != 0);
        assert!(!differs);
    };
    for round in 0..2000 {
        let length = if round % 2 == 0 { LENGTH } else { 20_000 };
        let read = file.read_exact_at(Vec::with_capacity(length), 0);
        let BufResult(result, buffer) =
            if round % 3 == 0 { read.forced_async() } else { read }.wait();
        match result {
            Ok(()) => assert_eq!(buffer.len(), length),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof),
        }
        check(&buffer, buffer.len());
        let (count, buffer) = file.read_at(vec![0; length], 0).wait().unwrap();
        assert!((1000..=length).contains(&count));
        check(&buffer, count);
    }
    stops.store(true, Ordering::Relaxed);
    cutter.join().unwrap();
}

#[cfg(feature = "faulty")]
#[test]
fn short_transfers_are_taken_up_again_and_errors_come_with_the_buffer() {
    use uringlet::Faults;
    const LENGTH: usize = 10_000;
    let mut failed = 0;
    for seed in 0..20 {
        let faults = Faults { held_us_max: 50, ..Faults::all(seed) };
        let fs = Fs::builder().inline_max(0).faulty(faults).build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let data: Vec<u8> = (0..LENGTH).map(|at| (at % 253) as u8).collect();
        std::fs::write(&path, []).unwrap();
        let options = File::options().read(true).write(true).clone();
        let mut tries = 0;
        let file = loop {
            match options.open(&path).on(&fs).wait() {
                Ok(file) => break file,
                Err(error) => failed += usize::from(error.raw_os_error().is_some()),
            }
            tries += 1;
            assert!(tries < 1000, "seed {seed}");
        };
        for round in 0..50 {
            let BufResult(result, buffer) = pollster::block_on(file.write_all_at(data.clone(), 0));
            assert!(buffer == data);
            if let Err(error) = result {
                let errno = error.raw_os_error();
                assert!(
                    matches!(errno, Some(libc::EIO | libc::EAGAIN)),
                    "{seed}, {round}: {error}"
                );
                failed += 1;
                continue;
            }
            assert!(std::fs::read(&path).unwrap() == data, "seed {seed}, {round}");
            let BufResult(result, buffer) =
                pollster::block_on(file.read_exact_at(vec![0; LENGTH], 0));
            match result {
                Ok(()) => assert!(buffer == data, "seed {seed}, {round}"),
                Err(error) => failed += usize::from(error.raw_os_error().is_some()),
            }
        }
    }
    assert!(failed > 0, "no fault was made");
}

/// A waker that calls the library, as a program's waker may. It runs on the thread that has ended
/// the request.
struct Meddler {
    fs: Fs,
    file: File,
    woken: AtomicUsize,
}

impl Wake for Meddler {
    fn wake(self: Arc<Self>) {
        // If the library called wakers with a lock held, these calls would deadlock.
        self.fs.in_flight();
        drop(self.file.read_at(vec![0u8; 10], 0).forced_async().submit());
        self.woken.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn wakers_are_called_under_no_lock_once_the_state_is_final() {
    let (named, data) = file_of(1000);
    let fs = Fs::builder().in_flight(2).build().unwrap();
    let file = File::open(named.path()).on(&fs).wait().unwrap();
    let once = || {
        let woken = AtomicUsize::new(0);
        let meddler = Arc::new(Meddler { fs: fs.clone(), file: file.clone(), woken });
        let waker = Waker::from(Arc::clone(&meddler));
        let mut context = Context::from_waker(&waker);
        let mut read = file.read_at(vec![0u8; 1000], 0).forced_async();
        let output = match Pin::new(&mut read).poll(&mut context) {
            Poll::Ready(output) => output,
            Poll::Pending => {
                while meddler.woken.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                match Pin::new(&mut read).poll(&mut context) {
                    Poll::Ready(output) => output,
                    Poll::Pending => panic!("woken, and not ready"),
                }
            }
        };
        assert_eq!(output.unwrap().1, data);
        assert!(meddler.woken.load(Ordering::SeqCst) <= 1);
    };
    // Once a thread's budget is used up, a poll defers its read: it wakes the task, although the
    // read is not ready. So each thread makes few reads.
    for _ in 0..20 {
        std::thread::scope(|scope| drop(scope.spawn(|| (0..10).for_each(|_| once()))));
    }
}

/// A waker that panics.
struct Panics(AtomicUsize);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("as this waker does");
    }
}

#[test]
fn a_waker_that_panics_does_not_take_the_engine_along() {
    let (reader, mut writer) = pipe();
    let file = File::from(reader);
    let panics = Arc::new(Panics(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&panics));
    let mut context = Context::from_waker(&waker);
    for _ in 0..2 {
        let before = panics.0.load(Ordering::SeqCst);
        let mut read = file.read_at([0u8; 1], 0);
        assert!(Pin::new(&mut read).poll(&mut context).is_pending());
        std::io::Write::write_all(&mut writer, b"x").unwrap();
        while panics.0.load(Ordering::SeqCst) == before {
            std::thread::yield_now();
        }
        let (count, buffer) = read.wait().unwrap();
        assert_eq!((count, buffer), (1, *b"x"));
    }
}

#[test]
fn a_runtime_is_shut_down_with_requests_in_flight() {
    let (reader, writer) = pipe();
    let file = File::from(reader);
    let kept = Arc::new(());
    for threads in [true, false] {
        let runtime = if threads {
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap()
        } else {
            tokio::runtime::Builder::new_current_thread().build().unwrap()
        };
        let polled = Arc::new(AtomicUsize::new(0));
        for _ in 0..100 {
            let (file, kept, polled) = (file.clone(), Arc::clone(&kept), Arc::clone(&polled));
            runtime.spawn(async move {
                let mut read = file.read_at(vec![0u8; 100], 0);
                std::future::poll_fn(|context| {
                    polled.fetch_add(1, Ordering::SeqCst);
                    Pin::new(&mut read).poll(context)
                })
                .await
                .unwrap();
                drop(kept);
            });
        }
        runtime.block_on(async {
            while polled.load(Ordering::SeqCst) < 100 {
                tokio::task::yield_now().await;
            }
        });
        drop(runtime);
        assert_eq!(Arc::strong_count(&kept), 1, "every task is gone");
    }
    // When the pipe's writer is closed, the reads that were not cancelled in time end, and release
    // the file.
    drop(writer);
    let mut file = file;
    while let Err(still) = file.into_std() {
        file = still;
        std::thread::yield_now();
    }
}
