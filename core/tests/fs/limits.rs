//! The limits on operations in flight, the queue (line) of other operations, and the cost of a hit:
//! a read that its first poll executes.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::Future;
use std::io::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use uringlet::fs::{self, File, Fs, Op, Operation};

use crate::{file_of, pipe, skipped};

/// The system's allocator, with the calls of each thread counted.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does the work, and keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Default)]
pub(crate) struct Count(pub(crate) AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A file in memory that the first poll reads, if this kernel and file system allow it.
pub(crate) fn hot(name: &str) -> Option<(tempfile::NamedTempFile, File)> {
    let (named, _) = file_of(64 << 10);
    let file = File::open(named.path()).wait().unwrap();
    file.read_exact_at(vec![0; 64 << 10], 0).wait().unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let is_hit = Pin::new(&mut file.read_at([0u8; 512], 0)).poll(&mut context).is_ready();
    if !is_hit {
        skipped(name, "this file system does not take reads that must not sleep");
    }
    is_hit.then_some((named, file))
}

#[test]
fn a_hit_allocates_nothing_and_wakes_nobody() {
    let Some((_named, file)) = hot("a_hit_allocates_nothing_and_wakes_nobody") else { return };
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut context = Context::from_waker(&waker);
    let mut buffer = vec![0u8; 4096];
    let mut hits = 0;
    for at in 0..100u64 {
        let before = ALLOCATIONS.get();
        let mut read = file.read_at(buffer, at * 512);
        let Poll::Ready(output) = Pin::new(&mut read).poll(&mut context) else {
            // The page has left memory, or the read was deferred.
            (_, buffer) = read.wait().unwrap();
            continue;
        };
        drop(read);
        (_, buffer) = output.unwrap();
        assert_eq!(ALLOCATIONS.get(), before);
        hits += 1;
    }
    assert!(hits > 0);
    assert_eq!(count.0.load(Ordering::Relaxed), 100 - hits);
}

#[test]
fn a_loop_of_hits_lets_others_run() {
    const READS: usize = 10_000;
    let Some((_named, file)) = hot("a_loop_of_hits_lets_others_run") else { return };
    let done = AtomicUsize::new(0);
    let mut task = Box::pin(async {
        for at in 0..READS {
            file.read_at([0u8; 16], at as u64).await.unwrap();
            done.fetch_add(1, Ordering::Relaxed);
        }
    });
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let (mut polls, mut before) = (0, 0);
    while task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        let now = done.load(Ordering::Relaxed);
        assert!(now - before <= 200, "{} reads in one poll", now - before);
        (before, polls) = (now, polls + 1);
        while count.0.load(Ordering::Relaxed) < polls {
            std::thread::yield_now();
        }
    }
    assert!(polls >= READS / 200, "{polls} polls");
}

/// All reads are in one task, whose executor runs others only when the task is pending.
#[test]
fn many_hits_in_one_task_let_others_run() {
    const READS: usize = 10_000;
    let Some((_named, file)) = hot("many_hits_in_one_task_let_others_run") else { return };
    let done = AtomicUsize::new(0);
    let mut task = Box::pin(async {
        let mut reads: FuturesUnordered<_> =
            (0..READS).map(|at| file.read_at([0u8; 16], at as u64)).collect();
        while let Some(output) = reads.next().await {
            output.unwrap();
            done.fetch_add(1, Ordering::Relaxed);
        }
    });
    let (mut polls, mut before) = (0, 0);
    while task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        let now = done.load(Ordering::Relaxed);
        assert!(now - before <= 300, "{} reads in one poll", now - before);
        (before, polls) = (now, polls + 1);
    }
    assert!(polls >= READS / 300, "{polls} polls");
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn a_hundred_thousand_are_in_flight_within_a_kilobyte_each() {
    const ALL: usize = 100_000;
    /// The engine checks all requests that wait for one pipe, so it is given few.
    const IN_FLIGHT: usize = 256;
    let (reader, mut writer) = pipe();
    let fs = Fs::builder().in_flight(IN_FLIGHT as u32).build().unwrap();
    let file = File::from(reader);
    let before = resident();
    let reads: Vec<_> = (0..ALL).map(|_| file.read_at([0u8; 1], 0).on(&fs).submit()).collect();
    let (in_flight, in_line) = fs.in_flight();
    assert!(in_flight <= IN_FLIGHT && in_flight + in_line == ALL, "{in_flight} and {in_line}");
    let grown = resident().saturating_sub(before);
    if std::env::var_os("ASAN_OPTIONS").is_some() {
        let name = "a_hundred_thousand_are_in_flight_within_a_kilobyte_each";
        skipped(name, "the memory is not counted: a sanitizer surrounds each allocation");
    } else {
        assert!(grown < ALL * 1024, "{grown} bytes");
    }
    let feeder = std::thread::spawn(move || writer.write_all(&vec![7u8; ALL]).unwrap());
    for read in reads {
        assert_eq!(pollster::block_on(read).unwrap(), (1, [7]));
    }
    feeder.join().unwrap();
}

#[test]
fn limits_hold_and_what_stands_in_line_goes_in_order() {
    let (reader, mut writer) = pipe();
    let fs = Fs::builder().in_flight(4).bytes_in_flight(3000).build().unwrap();
    let file = File::from(reader);
    let small: Vec<_> = (0..10).map(|_| file.read_at([0u8; 1], 0).on(&fs).submit()).collect();
    assert_eq!(fs.in_flight(), (4, 6));
    // Withdrawn operations leave the line, also from its middle.
    let mut small = small;
    drop(small.remove(7));
    assert_eq!(fs.in_flight(), (4, 5));
    writer.write_all(b"012345678").unwrap();
    let found: Vec<u8> = small.into_iter().map(|read| read.wait().unwrap().1[0]).collect();
    assert_eq!(found, b"012345678");
    // A request counts as in flight until its slot is free, a little after it has ended.
    while fs.in_flight() != (0, 0) {
        std::thread::yield_now();
    }
    // The limit counts bytes: the read that reaches the limit is still executed, and later reads
    // are queued.
    let large: Vec<_> = (0..5).map(|_| file.read_at([0u8; 1200], 0).submit()).collect();
    assert_eq!(fs.in_flight(), (3, 2));
    for read in large {
        writer.write_all(b"x").unwrap();
        assert_eq!(read.wait().unwrap().0, 1);
    }
    while fs.in_flight() != (0, 0) {
        std::thread::yield_now();
    }
    let larger = file.read_at(vec![0u8; 5000], 0).submit();
    let other = file.read_at([0u8; 1], 0).submit();
    assert_eq!(fs.in_flight(), (1, 1), "{larger:?}");
    writer.write_all(b"ab").unwrap();
    assert_eq!(larger.wait().unwrap().0, 2);
    writer.write_all(b"c").unwrap();
    assert_eq!(other.wait().unwrap().1, *b"c");
}

/// The operation ends within a minute, or the test fails.
pub(crate) fn in_time<O: Operation>(what: &str, operation: Op<O>) -> O::Output {
    operation.timeout(Duration::from_secs(60)).wait().unwrap_or_else(|_| panic!("{what} is stuck"))
}

#[test]
fn requests_of_every_size_go_beside_one_that_never_ends() {
    const LIMIT: usize = 10_000;
    let (reader, _writer) = pipe();
    let fs = Fs::builder().bytes_in_flight(LIMIT as u64).inline_max(0).build().unwrap();
    let _never = File::from(reader).read_at([0u8; 16], 0).on(&fs).submit();
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("file"), folder.path().join("other"));
    for size in [0, 1, LIMIT - 16, LIMIT - 15, LIMIT, LIMIT + 1, 100 * LIMIT] {
        let data = vec![7u8; size];
        let what = |operation: &str| format!("{operation} of {size} bytes");
        in_time(&what("write"), fs::write(&path, data.clone()).on(&fs)).unwrap();
        assert_eq!(in_time(&what("read"), fs::read(&path).on(&fs)).unwrap(), data);
        let copied = in_time(&what("copy"), fs::copy(&path, &other).on(&fs)).unwrap();
        assert_eq!(copied, size as u64);
        let file = in_time("open", File::open(&path).on(&fs)).unwrap();
        // Several reads come at once, each of which may be larger than the limit.
        let reads: Vec<_> = (0..3).map(|_| file.read_exact_at(vec![0; size], 0).submit()).collect();
        for read in reads {
            assert_eq!(in_time(&what("read"), read).unwrap().1, data);
        }
    }
    assert_eq!(in_time("metadata", fs::metadata(&path).on(&fs)).unwrap().len(), 100 * LIMIT as u64);
}

#[test]
fn a_request_that_is_withdrawn_passes_the_next_one_on() {
    const LIMIT: usize = 1000;
    let (named, data) = file_of(LIMIT);
    for withdrawn in [1, 2, 200] {
        let (reader, _writer) = pipe();
        let fs = Fs::builder().bytes_in_flight(LIMIT as u64).inline_max(0).build().unwrap();
        let file = File::open(named.path()).on(&fs).wait().unwrap();
        while fs.in_flight() != (0, 0) {
            std::thread::yield_now();
        }
        // No operation with bytes has room until this read ends.
        let full = File::from(reader).read_at(vec![0u8; LIMIT], 0).on(&fs).submit();
        let large: Vec<_> =
            (0..withdrawn).map(|_| file.read_at(vec![0; 2 * LIMIT], 0).submit()).collect();
        let behind = fs::metadata(named.path()).on(&fs).submit();
        assert_eq!(fs.in_flight(), (1, withdrawn + 1));
        drop(large);
        assert_eq!(in_time("metadata", behind).unwrap().len(), LIMIT as u64);
        let read = file.read_exact_at(vec![0; LIMIT], 0).submit();
        drop(full);
        assert_eq!(in_time("read", read).unwrap().1, data);
    }
}

#[test]
fn appends_stand_in_line_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let fs = Fs::builder().in_flight(1).build().unwrap();
    let file = File::create(&path).on(&fs).wait().unwrap();
    let appends: Vec<_> = (0..1000u32).map(|at| file.append(at.to_ne_bytes()).submit()).collect();
    for append in appends {
        assert_eq!(append.wait().unwrap().0, 4);
    }
    let expected: Vec<u8> = (0..1000u32).flat_map(u32::to_ne_bytes).collect();
    assert_eq!(std::fs::read(&path).unwrap(), expected);
}
