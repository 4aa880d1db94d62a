//! The cost of a flooded context for quiet ones: cargo bench -p uringlet --bench fairness [--
//! FOLDER]
//!
//! A hundred threads with a context each read 4 KiB of cached data, or have a worker execute an
//! fsync. Each does so a hundred times in a window of a second, one request at a time. In every
//! second window there is also a context with 4,096 slow requests. These are opens of a FIFO that
//! nobody writes to, or reads of a file that is not cached. In further runs, eight plain threads
//! per CPU in a loop of pread(2) show the cost of cold reads without uringlet. With cold reads,
//! other runs confine the quiet threads to one CPU each time. That CPU may get the disk's
//! interrupts, which preempt threads of any priority. Prints p50 and p99 of the quiet requests,
//! from submit to reap, without and with the flood. The figures are medians of the rounds. The
//! last column is the ratio of the two p99.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use uringlet::affinity::Topology;
use uringlet::{Context, EngineKind, Sqe};

const ROUNDS: usize = 5;
const QUIET: usize = 100;
const FLOOD: u32 = 4096;
/// The number of requests of one quiet context in a window, and the time from one to the next.
const REQUESTS: usize = 100;
const PERIOD: Duration = Duration::from_millis(10);
const BLOCK: usize = 4096;
const COLD_BYTES: u64 = 1 << 30;
/// CPUs to which the quiet threads are confined in turn.
const CPUS: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Quiet {
    CachedRead,
    /// The wait has a deadline, so a worker executes the fsync, and not the waiter.
    Fsync,
}

#[derive(Clone, Copy, Debug)]
enum Flood {
    HungOpens,
    ColdReads,
    /// The same cold reads without uringlet.
    PlainThreads,
}

struct Scratch {
    folder: PathBuf,
    warm: File,
    cold: File,
    fifo: CString,
}

impl Scratch {
    fn new(folder: &Path) -> Self {
        let folder = folder.join(format!("fairness-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a folder");
        let file = |name: &str, bytes: u64| {
            let path = folder.join(name);
            let mut file = File::create(&path).expect("a file");
            let block = vec![7; 1 << 20];
            for _ in 0..bytes.div_ceil(1 << 20) {
                file.write_all(&block).expect("space");
            }
            file.sync_all().expect("written");
            File::options().read(true).write(true).open(&path).expect("the file")
        };
        let (warm, cold) = (file("warm", 1 << 20), file("cold", COLD_BYTES));
        let fifo = CString::new(folder.join("fifo").as_os_str().as_bytes()).unwrap();
        // SAFETY: a NUL-terminated path.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        Self { folder, warm, cold, fifo }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Offsets of blocks in the cold file.
struct Offsets(u64);

impl Offsets {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % (COLD_BYTES / BLOCK as u64) * BLOCK as u64
    }
}

/// Drops the file's pages from the cache, and disables read-ahead.
fn make_cold(file: &File) {
    let fd = file.as_raw_fd();
    // SAFETY: an open descriptor.
    unsafe { libc::posix_fadvise(fd, 0, 0, libc::POSIX_FADV_DONTNEED) };
    // SAFETY: as above.
    unsafe { libc::posix_fadvise(fd, 0, 0, libc::POSIX_FADV_RANDOM) };
}

/// Reads the cold file with eight threads per CPU until `stop` is set.
fn flood_plainly(scratch: &Scratch, begun: &Barrier, stop: &AtomicBool) {
    make_cold(&scratch.cold);
    let threads = 8 * std::thread::available_parallelism().map_or(1, usize::from) as u64;
    std::thread::scope(|scope| {
        for seed in 1..=threads {
            scope.spawn(move || {
                let (mut offsets, mut buffer) = (Offsets(seed), vec![0u8; BLOCK]);
                while !stop.load(Ordering::Relaxed) {
                    scratch.cold.read_exact_at(&mut buffer, offsets.next()).expect("the file");
                }
            });
        }
        begun.wait();
    });
}

/// Keeps 4,096 slow requests in flight until `stop` is set.
fn flood(scratch: &Scratch, kind: Flood, begun: &Barrier, stop: &AtomicBool) {
    let mut context =
        Context::builder().entries(FLOOD).engine(EngineKind::Workers).build().unwrap();
    let fd = scratch.cold.as_raw_fd();
    let mut buffers = vec![0u8; FLOOD as usize * BLOCK];
    let mut offsets = Offsets(1);
    let mut sqe = |at: u64| match kind {
        Flood::HungOpens => Sqe::openat(libc::AT_FDCWD, &scratch.fifo, libc::O_RDONLY, 0),
        _ => Sqe::read(fd, &mut buffers[at as usize * BLOCK..][..BLOCK], offsets.next()),
    };
    if matches!(kind, Flood::ColdReads) {
        make_cold(&scratch.cold);
    }
    for at in 0..u64::from(FLOOD) {
        // SAFETY: the buffers outlive the context's requests, which all end below.
        unsafe { context.push(sqe(at).user_data(at)).unwrap() };
    }
    context.submit().unwrap();
    begun.wait();
    while !stop.load(Ordering::Relaxed) {
        let _ = context.wait(1, Some(Duration::from_millis(20)));
        while let Some(cqe) = context.reap() {
            // SAFETY: as above.
            unsafe { context.push(sqe(cqe.user_data).user_data(cqe.user_data)).unwrap() };
        }
        let _ = context.submit();
    }
    if let Flood::HungOpens = kind {
        for at in 0..u64::from(FLOOD) {
            let _ = context.cancel(at);
        }
        // Opens both ends of the FIFO, which ends the opens that have started.
        let path = std::ffi::OsStr::from_bytes(scratch.fifo.as_bytes());
        let _both = File::options().read(true).write(true).open(path).unwrap();
        let left = context.destroy();
        // SAFETY: descriptors that these requests have opened.
        left.iter().filter(|cqe| cqe.res >= 0).for_each(|cqe| unsafe {
            libc::close(cqe.res);
        });
    } else {
        drop(context);
    }
}

fn stay_on(cpu: usize) {
    // SAFETY: an array of bits is valid when zeroed, and CPU_SET keeps to its length.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        set
    };
    // SAFETY: the set outlives the call.
    assert_eq!(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) }, 0);
}

/// One window: the latencies of all quiet requests, in nanoseconds, sorted. Their threads are
/// confined to `cpu`, if given.
fn window(scratch: &Scratch, quiet: Quiet, kind: Option<Flood>, cpu: Option<usize>) -> Vec<u64> {
    let stop = AtomicBool::new(false);
    let begun = Barrier::new(if kind.is_some() { QUIET + 1 } else { QUIET });
    std::thread::scope(|scope| {
        if let Some(kind) = kind {
            let (begun, stop) = (&begun, &stop);
            scope.spawn(move || match kind {
                Flood::PlainThreads => flood_plainly(scratch, begun, stop),
                kind => flood(scratch, kind, begun, stop),
            });
        }
        let threads: Vec<_> = (0..QUIET)
            .map(|number| {
                let begun = &begun;
                scope.spawn(move || {
                    cpu.into_iter().for_each(stay_on);
                    let mut context = Context::new(4).unwrap();
                    let mut buffer = vec![0u8; BLOCK];
                    let fd = scratch.warm.as_raw_fd();
                    begun.wait();
                    // The threads do not all start at the same moment.
                    let start = Instant::now() + PERIOD * number as u32 / QUIET as u32;
                    let mut took = Vec::with_capacity(REQUESTS);
                    for at in 0..REQUESTS {
                        let due = start + PERIOD * at as u32;
                        std::thread::sleep(due.saturating_duration_since(Instant::now()));
                        let (sqe, deadline) = match quiet {
                            Quiet::CachedRead => (Sqe::read(fd, &mut buffer[..], 0), None),
                            Quiet::Fsync => (Sqe::fsync(fd), Some(Duration::from_secs(60))),
                        };
                        let begin = Instant::now();
                        // SAFETY: the buffer stays until the completion was reaped.
                        unsafe { context.push(sqe).unwrap() };
                        context.submit().unwrap();
                        context.wait(1, deadline).unwrap();
                        let cqe = context.reap().expect("waited for");
                        assert!(cqe.res >= 0, "{}", cqe.res);
                        took.push(begin.elapsed().as_nanos() as u64);
                    }
                    took
                })
            })
            .collect();
        let mut all: Vec<u64> = threads.into_iter().flat_map(|one| one.join().unwrap()).collect();
        stop.store(true, Ordering::Relaxed);
        all.sort_unstable();
        all
    })
}

fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn main() {
    let folder = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let scratch = Scratch::new(Path::new(&folder.unwrap_or_else(|| ".".to_owned())));
    println!("{QUIET} quiet contexts, {ROUNDS} rounds, microseconds");
    println!(
        "{:<12} {:<13} {:<6} {:>9} {:>9} {:>9} {:>9} {:>7}",
        "quiet", "flood", "on", "p50", "p50+", "p99", "p99+", "ratio"
    );
    let row = |quiet, kind, cpu: Option<usize>| {
        let mut columns: [Vec<f64>; 4] = Default::default();
        for _ in 0..ROUNDS {
            for (at, flooded) in [None, Some(kind)].into_iter().enumerate() {
                let took = window(&scratch, quiet, flooded, cpu);
                let percentile = |p: usize| took[took.len() * p / 100] as f64 / 1000.0;
                columns[at].push(percentile(50));
                columns[2 + at].push(percentile(99));
            }
        }
        let [p50, p50_flooded, p99, p99_flooded] = columns.each_mut().map(|c| median(c));
        println!(
            "{:<12} {:<13} {:<6} {p50:>9.1} {p50_flooded:>9.1} \
             {p99:>9.1} {p99_flooded:>9.1} {:>7.2}",
            format!("{quiet:?}"),
            format!("{kind:?}"),
            cpu.map_or_else(|| "any".to_owned(), |cpu| format!("CPU {cpu}")),
            p99_flooded / p99
        );
    };
    for quiet in [Quiet::CachedRead, Quiet::Fsync] {
        for kind in [Flood::HungOpens, Flood::ColdReads, Flood::PlainThreads] {
            row(quiet, kind, None);
        }
    }
    for cpu in Topology::look().allowed().iter().take(CPUS) {
        row(Quiet::CachedRead, Flood::ColdReads, Some(cpu));
    }
}
