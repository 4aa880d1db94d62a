//! A tokio runtime that drives an `Fs`: its threads hand requests to the kernel and collect
//! completions.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use uringlet::EngineKind;
use uringlet::fs::{self, Advice, BufResult, Direct, File, Fs};

use crate::fork::{in_child, is_invalid};
use crate::storms::{Alive, one};
use crate::{file_of, skipped};

fn runtimes() -> [Runtime; 2] {
    let mut threads = Builder::new_multi_thread();
    threads.worker_threads(2);
    [Builder::new_current_thread(), threads].map(|mut one| one.enable_all().build().unwrap())
}

/// An `Fs` that the runtime drives. `None`, with a message, if io_uring is refused here.
fn driven(name: &str, runtime: &Runtime) -> Option<Fs> {
    let fs = Fs::builder().build().unwrap();
    let is_driven = runtime.block_on(async { fs.drive_on_tokio() });
    if !is_driven {
        skipped(name, "io_uring is refused here");
    }
    is_driven.then_some(fs)
}

#[test]
fn reads_of_a_driven_one_are_those_of_the_file() {
    for runtime in runtimes() {
        let Some(fs) = driven("reads_of_a_driven_one", &runtime) else { return };
        let (named, data) = file_of(1 << 20);
        let data = Arc::new(data);
        for direct in [Direct::Off, Direct::Try] {
            let (fs, data, path) = (fs.clone(), Arc::clone(&data), named.path().to_owned());
            runtime.block_on(async move {
                let open = File::options().read(true).direct(direct).open(path);
                let file = open.on(&fs).await.unwrap();
                let pool = fs::Pool::new(4096, 4096, 16).unwrap();
                let read = |at: usize| {
                    let (file, pool, data) = (file.clone(), pool.clone(), Arc::clone(&data));
                    async move {
                        let offset = at * 37 % 256 * 4096;
                        let buffer = pool.take().await;
                        let read = file.read_exact_at(buffer, offset as u64).forced_async();
                        let ((), buffer) = read.await.unwrap();
                        assert_eq!(buffer[..], data[offset..offset + 4096]);
                    }
                };
                let all: Vec<_> = (0..1000).map(|at| tokio::spawn(read(at))).collect();
                for one in all {
                    one.await.unwrap();
                }
            });
        }
        let file = File::open(named.path()).on(&fs).wait().unwrap();
        runtime.block_on(drives(&file));
        assert_eq!(fs.choice().kernel, Some(EngineKind::IoUring));
    }
}

/// Waits until the runtime drives the file's `Fs`.
async fn drives(file: &File) {
    let comes = async {
        while !goes_to_ring(file) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), comes).await.expect("it comes again");
}

fn goes_to_ring(file: &File) -> bool {
    file.explain().unwrap().to_string().contains("an event loop hands small reads to its ring")
}

#[test]
fn a_runtime_that_does_not_come_is_helped_out() {
    for runtime in runtimes() {
        let Some(fs) = driven("a_runtime_that_does_not_come", &runtime) else { return };
        let (named, data) = file_of(100_000);
        let file = File::open(named.path()).on(&fs).wait().unwrap();
        runtime.block_on(async {
            for at in 0..20 {
                // Blocks the thread that would drive the `Fs`.
                let read = file.read_exact_at(vec![0u8; 1000], at * 1000).forced_async();
                let ((), buffer) = pollster::block_on(read).unwrap();
                assert_eq!(buffer[..], data[at as usize * 1000..][..1000]);
                // The runtime drives the `Fs` again.
                drives(&file).await;
                let read = file.read_exact_at(vec![0u8; 1000], at * 1000).forced_async();
                let ((), buffer) = read.await.unwrap();
                assert_eq!(buffer[..], data[at as usize * 1000..][..1000]);
            }
        });
    }
}

#[test]
fn a_runtime_that_ends_leaves_its_requests_to_threads() {
    for runtime in runtimes() {
        let Some(fs) = driven("a_runtime_that_ends", &runtime) else { return };
        let (named, data) = file_of(100_000);
        let file = File::open(named.path()).on(&fs).wait().unwrap();
        let reads = runtime.block_on(async {
            let read = |at: u64| file.read_exact_at(vec![0u8; 1000], at * 1000).forced_async();
            (0..100).map(|at| read(at).submit()).collect::<Vec<_>>()
        });
        drop(runtime);
        for (at, read) in reads.into_iter().enumerate() {
            let ((), buffer) = pollster::block_on(read).unwrap();
            assert_eq!(buffer[..], data[at * 1000..][..1000]);
        }
        let read = file.read_exact_at(vec![0u8; 7], 7).forced_async();
        let ((), buffer) = pollster::block_on(read).unwrap();
        assert_eq!(buffer[..], data[7..14]);
        // Another runtime may drive the `Fs`.
        let next = Builder::new_current_thread().enable_io().build().unwrap();
        assert!(next.block_on(async { fs.drive_on_tokio() }));
    }
}

/// The pages of a read may arrive after the thread that has handed the read over has ended.
#[test]
fn reads_outlive_the_thread_that_has_handed_them_over() {
    let (named, data) = file_of(4 << 20);
    let cold = std::fs::File::open(named.path()).unwrap();
    cold.sync_all().unwrap();
    for _ in 0..20 {
        let fs = Fs::builder().build().unwrap();
        let file = File::open(named.path()).on(&fs).wait().unwrap();
        file.advise(0, 0, Advice::Random).wait().unwrap();
        assert_eq!(forget_pages(&cold), 0);
        let (is_driven, reads) = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let runtime = Builder::new_current_thread().enable_io().build().unwrap();
                runtime.block_on(async {
                    let is_driven = fs.drive_on_tokio();
                    let read =
                        |at: u64| file.read_exact_at(vec![0u8; 4096], at << 16).forced_async();
                    let reads: Vec<_> = (0..64).map(|at| read(at).submit()).collect();
                    // The driving task runs now, and hands the reads over.
                    tokio::task::yield_now().await;
                    (is_driven, reads)
                })
            });
            thread.join().unwrap()
        });
        if !is_driven {
            return skipped("reads_outlive_the_thread", "io_uring is refused here");
        }
        for (at, read) in reads.into_iter().enumerate() {
            let ((), buffer) = pollster::block_on(read).unwrap();
            assert_eq!(buffer[..], data[at << 16..][..4096]);
        }
    }
}

/// Drops the file's pages from memory.
#[allow(unsafe_code)]
fn forget_pages(file: &std::fs::File) -> i32 {
    use std::os::fd::AsRawFd as _;
    // SAFETY: numbers only.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) }
}

#[test]
fn a_child_has_nothing_of_what_its_parent_drives_and_drives_its_own() {
    let [runtime, _] = runtimes();
    let Some(fs) = driven("a_child_of_one_that_drives", &runtime) else { return };
    let (named, data) = file_of(100_000);
    let file = File::open(named.path()).on(&fs).wait().unwrap();
    let read = |at: u64| file.read_exact_at(vec![0u8; 1000], at * 1000).forced_async();
    let in_flight: Vec<_> =
        runtime.block_on(async { (0..50).map(|at| read(at).submit()).collect() });
    let status = in_child(|| {
        let runtime = Builder::new_current_thread().enable_io().build().ok()?;
        let drives = |fs: &Fs| runtime.block_on(async { fs.drive_on_tokio() });
        if !is_invalid(&read(1).wait()) || drives(&fs) {
            return Some(1);
        }
        let own = Fs::builder().build().ok()?;
        if !drives(&own) {
            return Some(2);
        }
        let file = File::open(named.path()).on(&own).wait().ok()?;
        let read = file.read_exact_at(vec![0u8; 10], 10).forced_async();
        let BufResult(result, buffer) = runtime.block_on(read);
        (result.is_ok() && buffer[..] == data[10..20]).then_some(100)
    });
    assert_eq!(status, 100);
    for (at, read) in in_flight.into_iter().enumerate() {
        let ((), buffer) = runtime.block_on(read).unwrap();
        assert_eq!(buffer[..], data[at * 1000..][..1000]);
    }
}

#[test]
fn one_runtime_drives_at_a_time_and_ends_with_what_it_drives() {
    for runtime in runtimes() {
        let Some(fs) = driven("one_runtime_drives_at_a_time", &runtime) else { return };
        runtime.block_on(async {
            assert!(!fs.drive_on_tokio());
            drop(fs);
            // The driving task finds that the `Fs` is gone, and ends.
            let gone = async {
                while tokio::runtime::Handle::current().metrics().num_alive_tasks() > 0 {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_secs(30), gone).await.expect("its task ends");
        });
    }
}

#[test]
fn what_has_no_ring_is_not_driven() {
    let [runtime, _] = runtimes();
    let fs = Fs::builder().engine(EngineKind::Workers).build().unwrap();
    assert!(!runtime.block_on(async { fs.drive_on_tokio() }));
}

#[test]
#[should_panic(expected = "reactor")]
fn outside_of_a_runtime_it_panics() {
    fs::drive_on_tokio();
}

/// Operations that are dropped, cancelled and late, on an io_uring that a runtime drives.
#[test]
fn a_storm_on_a_driven_one_loses_nothing() {
    for runtime in runtimes() {
        let Some(fs) = driven("a_storm_on_a_driven_one", &runtime) else { return };
        let (named, data) = file_of(1 << 20);
        let (data, alive) = (Arc::new(data), Alive::default());
        let file = File::open(named.path()).on(&fs).wait().unwrap();
        let all = async {
            let mut tasks = std::collections::VecDeque::new();
            for number in 0..20_000 {
                let one = one(file.clone(), number, Arc::clone(&data), alive.clone());
                tasks.push_back(tokio::spawn(one));
                if tasks.len() > 64 {
                    tasks.pop_front().unwrap().await.unwrap();
                }
            }
            for task in tasks {
                task.await.unwrap();
            }
            // Dropped or detached operations end by themselves.
            let gone = async {
                while alive.count() > 0 {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_secs(30), gone).await.expect("buffers come back");
        };
        runtime.block_on(all);
        // A request counts as in flight until its slot is free, a little after its buffer.
        while fs.in_flight() != (0, 0) {
            std::thread::yield_now();
        }
    }
}
