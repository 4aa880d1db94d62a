//! Counters and histograms of what contexts do: nothing is counted unless somebody asked, and
//! then in memory that another process can read.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// "urnglet" and a version of the layout below.
const MAGIC: u64 = u64::from_le_bytes(*b"urnglet\x01");

/// Sub-buckets of each power of two.
const FINE_BITS: u32 = 4;
const BUCKETS: usize = 64 << FINE_BITS;

/// A histogram with a relative error of at most 1/16, shared between processes.
#[repr(C)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    max: AtomicU64,
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.latency().fmt(f)
    }
}

/// The bucket of a value, and the other way round the smallest value of a bucket.
fn bucket(value: u64) -> usize {
    if value < 1 << FINE_BITS {
        return value as usize;
    }
    let power = value.ilog2();
    let fine = (value >> (power - FINE_BITS)) as usize & ((1 << FINE_BITS) - 1);
    ((power - FINE_BITS + 1) as usize) << FINE_BITS | fine
}

fn floor_of(bucket: usize) -> u64 {
    let (row, fine) = (bucket >> FINE_BITS, (bucket & ((1 << FINE_BITS) - 1)) as u64);
    if row == 0 { fine } else { (1 << FINE_BITS | fine) << (row - 1) }
}

impl Histogram {
    pub(crate) fn record(&self, ns: u64) {
        self.buckets[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        if ns > self.max.load(Ordering::Relaxed) {
            self.max.fetch_max(ns, Ordering::Relaxed);
        }
    }

    fn latency(&self) -> Latency {
        let counts: Vec<u64> = self.buckets.iter().map(|b| b.load(Ordering::Relaxed)).collect();
        let count: u64 = counts.iter().sum();
        let max_ns = self.max.load(Ordering::Relaxed);
        let at = |per_mille: u64| {
            let rank = (count * per_mille).div_ceil(1000).max(1);
            let mut seen = 0;
            let found = counts.iter().position(|n| {
                seen += n;
                seen >= rank
            });
            // The top of the bucket: a percentile is not made to look better than it is.
            found.map_or(0, |bucket| (floor_of(bucket + 1) - 1).min(max_ns))
        };
        Latency { count, p50_ns: at(500), p99_ns: at(990), p999_ns: at(999), max_ns }
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of one or more contexts, in memory that may be shared between processes.
        #[repr(C)]
        #[derive(Debug)]
        pub(crate) struct Counters {
            magic: AtomicU64,
            $(pub(crate) $name: AtomicU64,)*
            pub(crate) submit: Histogram,
            pub(crate) completion: Histogram,
        }

        /// The counters at one moment.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Snapshot {
            $($(#[$doc])* pub $name: u64,)*
            /// Duration of submit calls.
            pub submit: Latency,
            /// From the beginning of a submit to the completion of each of its requests.
            pub completion: Latency,
        }

        impl Counters {
            fn snapshot(&self) -> Snapshot {
                Snapshot {
                    $($name: self.$name.load(Ordering::Relaxed),)*
                    submit: self.submit.latency(),
                    completion: self.completion.latency(),
                }
            }
        }
    };
}

counters! {
    /// Contexts made.
    contexts,
    /// Completed reads.
    reads,
    /// Completed writes.
    writes,
    /// Completed fsyncs, fdatasyncs and sync_file_ranges.
    fsyncs,
    /// Completed polls.
    polls,
    /// Completed requests of any other kind.
    others,
    /// Of all these: cancelled before they were executed.
    canceled,
    /// Of all these: completed with another error.
    errors,
    /// Bytes that reads have transferred.
    bytes_read,
    /// Bytes that writes have transferred.
    bytes_written,
    /// Requests executed by a thread of the program, while it waited.
    by_waiter,
    /// Requests executed by a worker that held the baton.
    by_worker,
    /// Requests executed by a worker of their own.
    by_pool,
    /// Requests completed by the poller.
    by_poller,
    /// Requests executed by the kernel, or by the C library's threads.
    by_kernel,
    /// Of all these: executed by a holder that had lost the baton when it was done.
    after_losing_baton,
    /// Times that a worker was woken or made.
    wakeups,
    /// Times that the baton was taken from a blocked holder.
    handovers,
    /// The most workers that existed at a time.
    workers_max,
    /// Of a placed context: requests executed, or handed to the kernel, in the submitter's cell.
    submissions_local,
    /// The same in another cell.
    submissions_remote,
    /// Of a placed context: requests completed in the cell that serves the disk's interrupt (where that is not
    /// known, that has executed them).
    completions_local,
    /// The same in another cell.
    completions_remote,
    /// Of a placed context: requests completed in the submitter's cell.
    completions_home,
    /// The same in another cell.
    completions_away,
    /// Of a placed context: times that a request went from one CPU to another.
    cpu_handovers,
}

/// A distribution of durations, in nanoseconds; percentiles are exact to 1/16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Latency {
    /// How many were recorded.
    pub count: u64,
    /// Half of them took at most this long.
    pub p50_ns: u64,
    /// 99% of them took at most this long.
    pub p99_ns: u64,
    /// 99.9% of them took at most this long.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Snapshot {
    /// Completed requests of all kinds.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes + self.fsyncs + self.polls + self.others
    }
}

impl Counters {
    /// For one process.
    pub(crate) fn private() -> Box<Self> {
        // SAFETY: all zeroes are valid atomics.
        unsafe { Box::new_zeroed().assume_init() }
    }

    pub(crate) fn read(&self) -> Snapshot {
        self.snapshot()
    }
}

/// Counters in a file: one process makes it, others map it by its path.
#[derive(Debug)]
pub struct Region {
    counters: &'static Counters,
}

impl Region {
    /// Makes the file (or empties it) and maps it. It stays mapped while the process lives.
    ///
    /// # Errors
    /// Those of open(2), ftruncate(2) and mmap(2).
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        file.set_len(size_of::<Counters>() as u64)?;
        let counters = map(&file)?;
        counters.magic.store(MAGIC, Ordering::Release);
        Ok(Self { counters })
    }

    /// Maps a file that [`Region::create`] has made.
    ///
    /// # Errors
    /// Those of open(2) and mmap(2); `InvalidData` if the file is none of ours.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "not a statistics file");
        if file.metadata()?.len() != size_of::<Counters>() as u64 {
            return Err(wrong());
        }
        let counters = map(&file)?;
        if counters.magic.load(Ordering::Acquire) != MAGIC {
            return Err(wrong());
        }
        Ok(Self { counters })
    }

    /// The counters now.
    pub fn snapshot(&self) -> Snapshot {
        self.counters.snapshot()
    }
}

fn map(file: &File) -> io::Result<&'static Counters> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new shared mapping of a file that is long enough.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<Counters>(),
            protection,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: mapped for ever, page-aligned, as long as Counters, which any bytes are valid for.
    Ok(unsafe { &*at.cast::<Counters>() })
}

static PUBLISHED: AtomicPtr<Counters> = AtomicPtr::new(std::ptr::null_mut());

/// Has every context of this process, from now on, count into a file that another process made with
/// [`Region::create`]. The first call wins.
///
/// # Errors
/// As [`Region::open`].
pub fn publish_to(path: &Path) -> io::Result<()> {
    let region = Region::open(path)?;
    let counters = std::ptr::from_ref(region.counters).cast_mut();
    let none = std::ptr::null_mut();
    // Should another have been first, it stays.
    let _ = PUBLISHED.compare_exchange(none, counters, Ordering::AcqRel, Ordering::Relaxed);
    Ok(())
}

/// Where the contexts of this process count, if somebody asked.
pub(crate) fn published() -> Option<&'static Counters> {
    // SAFETY: null, or mapped for ever.
    unsafe { PUBLISHED.load(Ordering::Acquire).as_ref() }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{BUCKETS, Counters, Region, bucket, floor_of};
    use std::sync::atomic::Ordering;

    #[test]
    fn buckets_are_contiguous_and_precise() {
        for value in (0..4096).chain([u64::MAX / 3, u64::MAX]) {
            let at = bucket(value);
            assert!(at < BUCKETS);
            assert!(floor_of(at) <= value);
            assert!(value - floor_of(at) <= value / 16);
        }
    }

    #[test]
    fn percentiles_are_never_below_the_truth() {
        let counters = Counters::private();
        (1..=1000).for_each(|ns| counters.submit.record(ns * 1000));
        let latency = counters.read().submit;
        assert_eq!((latency.count, latency.max_ns), (1000, 1_000_000));
        assert!((500_000..540_000).contains(&latency.p50_ns));
        assert!((990_000..=1_000_000).contains(&latency.p99_ns));
    }

    #[test]
    fn a_region_is_seen_through_both_mappings() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(Region::open(file.path()).is_err());
        let reader = Region::create(file.path()).unwrap();
        let writer = Region::open(file.path()).unwrap();
        writer.counters.reads.fetch_add(3, Ordering::Relaxed);
        assert_eq!(reader.snapshot().requests(), 3);
    }
}
