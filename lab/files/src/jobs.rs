//! The jobs that are measured, and the sides of each comparison.

use std::fs::File as StdFile;
use std::io::Write as _;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use anyhow::{Context as _, Result};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use object_store::local::LocalFileSystem;
use object_store::{ObjectStore, path::Path as Location};
use tokio::runtime::{Builder, Runtime};
use uringlet::fs::{self, Coalesce, Direct, File};

use crate::measure::{Side, compare};

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_multi_thread().enable_all().build()?)
}

/// Drops the pages of a file from the page cache. The caller has written them to the disk before.
fn drop_cache(path: &Path) -> Result<()> {
    let file = StdFile::open(path)?;
    // SAFETY: the arguments are integers; no memory is passed.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    Ok(())
}

fn made(path: &Path, bytes: usize) -> Result<()> {
    let mut file = StdFile::create(path)?;
    let mut part = vec![0; bytes.min(1 << 20)];
    for _ in 0..bytes / part.len() {
        part.fill_with(|| fastrand::u8(..));
        file.write_all(&part)?;
    }
    Ok(file.sync_all()?)
}

/// Reads whole files with this many threads. Each thread takes the next file in the list.
fn by_threads(paths: &[PathBuf], threads: usize) -> Result<u64> {
    let (next, sum) = (AtomicUsize::new(0), AtomicU64::new(0));
    let work = || -> Result<()> {
        while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
            sum.fetch_add(std::fs::read(path)?.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        all.into_iter().try_for_each(|one| one.join().expect("no panic"))
    })?;
    Ok(sum.into_inner())
}

pub fn small(folder: &Path, rounds: usize) -> Result<()> {
    let mut paths = Vec::new();
    for directory in 0..100 {
        let directory = folder.join(directory.to_string());
        std::fs::create_dir(&directory)?;
        for file in 0..100 {
            paths.push(directory.join(file.to_string()));
            std::fs::write(&paths[paths.len() - 1], [7; 4096])?;
        }
    }
    // SAFETY: no arguments.
    unsafe { libc::sync() };
    let runtime = runtime()?;
    let ours = || {
        runtime.block_on(async {
            let (mut files, mut sum) = (fs::read_many(&paths), 0);
            while let Some((_, bytes)) = files.next().await {
                sum += bytes?.len() as u64;
            }
            Ok(sum)
        })
    };
    let theirs = || {
        runtime.block_on(async {
            let reads = paths.iter().map(|path| tokio::spawn(tokio::fs::read(path.clone())));
            let reads = stream::iter(reads).buffer_unordered(64);
            let sum = reads.map(|read| anyhow::Ok(read??.len() as u64));
            sum.try_fold(0, async |all, one| Ok(all + one)).await
        })
    };
    let sides = || {
        vec![
            Side::new("uringlet::fs::read_many", ours),
            Side::new("tokio::fs::read, 64", theirs),
            Side::new("16 threads, std", || by_threads(&paths, 16)),
        ]
    };
    compare("10,000 files of 4 KiB, cached", rounds, || Ok(()), sides())?;
    let cold = || paths.iter().try_for_each(|path| drop_cache(path));
    compare("10,000 files of 4 KiB, cold", rounds, cold, sides())
}

pub fn copy(folder: &Path, rounds: usize) -> Result<()> {
    let [from, to] = ["from", "to"].map(|name| folder.join(name));
    made(&from, 1 << 30)?;
    let runtime = runtime()?;
    let sides = vec![
        Side::new("uringlet::fs::copy", || {
            Ok(runtime.block_on(async { fs::copy(&from, &to).await })?)
        }),
        Side::new("std::fs::copy", || Ok(std::fs::copy(&from, &to)?)),
        Side::new("tokio::fs::copy", || Ok(runtime.block_on(tokio::fs::copy(&from, &to))?)),
    ];
    let prepare = || {
        // Removes the copy, so that its pages are not written to the disk during the next run.
        let _ = std::fs::remove_file(&to);
        StdFile::open(&from)?.sync_all().context("sync")
    };
    compare("a copy of 1 GiB, from the page cache", rounds, prepare, sides)
}

pub fn ranges(folder: &Path, rounds: usize) -> Result<()> {
    const LENGTH: u64 = 16 << 10;
    const COUNT: u64 = 4000;
    let path = folder.join("file");
    made(&path, (2 * COUNT * LENGTH) as usize)?;
    let runtime = runtime()?;
    let file = runtime
        .block_on(async { File::options().read(true).direct(Direct::Require).open(&path).await })?;
    let mut places: Vec<u64> = (0..2 * COUNT - 1).collect();
    fastrand::shuffle(&mut places);
    places.truncate(COUNT as usize);
    let shifted = |by: u64| -> Vec<Range<u64>> {
        places.iter().map(|place| place * LENGTH + by..(place + 1) * LENGTH + by).collect()
    };
    let read = |ranges: Vec<Range<u64>>| {
        let (file, runtime) = (&file, &runtime);
        move || {
            let apart = Coalesce { gap: 0, max: 0 };
            let chunks = runtime.block_on(async { file.read_ranges(&ranges, apart).await })?;
            Ok(chunks.iter().map(|chunk| chunk.len() as u64).sum())
        }
    };
    let sides =
        vec![Side::new("not aligned", read(shifted(777))), Side::new("aligned", read(shifted(0)))];
    compare("4,000 ranges of 16 KiB, direct", rounds, || Ok(()), sides)
}

pub fn walk(folder: &Path, rounds: usize) -> Result<()> {
    for outer in 0..10 {
        for inner in 0..100 {
            let directory = folder.join(format!("{outer}/{inner}"));
            std::fs::create_dir_all(&directory)?;
            for file in 0..99 {
                StdFile::create(directory.join(file.to_string()))?;
            }
        }
    }
    let cpus = std::thread::available_parallelism()?.get();
    let runtime = runtime()?;
    let ours = || {
        runtime.block_on(async {
            let (mut entries, mut sum) = (fs::walk_with_metadata(folder), 0);
            while let Some(entry) = entries.next().await {
                sum += 1 + u64::from(entry?.metadata().await?.is_dir());
            }
            Ok(sum)
        })
    };
    let by_jwalk = || {
        let mut sum = 0;
        let kept = jwalk::WalkDirGeneric::<((), Option<bool>)>::new(folder)
            .skip_hidden(false)
            .min_depth(1)
            .parallelism(jwalk::Parallelism::RayonNewPool(cpus))
            .process_read_dir(|_, _, (), children| {
                for child in children.iter_mut().flatten() {
                    child.client_state = child.metadata().ok().map(|known| known.is_dir());
                }
            });
        for entry in kept {
            sum += 1 + u64::from(entry?.client_state.context("metadata")?);
        }
        Ok(sum)
    };
    let by_ignore = || {
        let (sum, failed) = (AtomicU64::new(0), AtomicUsize::new(0));
        let mut walk = ignore::WalkBuilder::new(folder);
        walk.standard_filters(false).threads(cpus).build_parallel().run(|| {
            Box::new(|entry| {
                match entry.and_then(|entry| Ok((entry.depth(), entry.metadata()?.is_dir()))) {
                    Ok((0, _)) => {}
                    Ok((_, is_dir)) => {
                        sum.fetch_add(1 + u64::from(is_dir), Ordering::Relaxed);
                    }
                    Err(_) => {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
                ignore::WalkState::Continue
            })
        });
        anyhow::ensure!(failed.into_inner() == 0, "ignore has failed");
        Ok(sum.into_inner())
    };
    let sides = vec![
        Side::new("walk_with_metadata", ours),
        Side::new("jwalk", by_jwalk),
        Side::new("ignore, parallel", by_ignore),
    ];
    compare("100,000 entries with metadata", rounds, || Ok(()), sides)
}

pub fn objects(folder: &Path, rounds: usize) -> Result<()> {
    const LENGTH: u64 = 16 << 10;
    const CALLS: usize = 64;
    let path = folder.join("object");
    made(&path, 512 << 20)?;
    let location = Location::from("object");
    let blocks = (512 << 20) / LENGTH;
    let calls: Vec<Vec<Range<u64>>> = (0..CALLS)
        .map(|_| {
            let mut places: Vec<u64> = (0..64).map(|_| fastrand::u64(..blocks)).collect();
            places.sort_unstable();
            places.into_iter().map(|at| at * LENGTH..(at + 1) * LENGTH).collect()
        })
        .collect();
    let runtime = runtime()?;
    let read = |store: Arc<dyn ObjectStore>| {
        let (runtime, calls, location) = (&runtime, &calls, &location);
        move || {
            runtime.block_on(async {
                let reads = calls.iter().cloned().map(|ranges| {
                    let (store, location) = (Arc::clone(&store), location.clone());
                    tokio::spawn(async move { store.get_ranges(&location, &ranges).await })
                });
                let reads = stream::iter(reads).buffer_unordered(16);
                let lengths = reads.map(|read| {
                    anyhow::Ok(read??.iter().map(|bytes| bytes.len() as u64).sum::<u64>())
                });
                lengths.try_fold(0, async |all, one| Ok(all + one)).await
            })
        }
    };
    let ours: Arc<dyn ObjectStore> = Arc::new(uringlet_store::Store::new(folder)?);
    let local: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new_with_prefix(folder)?);
    let sides = || {
        vec![
            Side::new("on uringlet::fs", read(Arc::clone(&ours))),
            Side::new("LocalFileSystem", read(Arc::clone(&local))),
        ]
    };
    compare("get_ranges, cached", rounds, || Ok(()), sides())?;
    compare("get_ranges, cold", rounds, || drop_cache(&path), sides())
}
