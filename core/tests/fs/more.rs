//! Pools of buffers, ranges, and transfers that are too large for one call or for the memory.
#![allow(clippy::single_range_in_vec_init, unsafe_code)]

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use uringlet::fs::{BufResult, Coalesce, Direct, File, Fs, IoBuf, Pool};

use crate::executors::Executor;
use crate::{file_of, pipe, skipped};

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_pool_lends_so_many_buffers_in_order_and_gets_them_back() {
    for (size, align) in [(0, 1), (1, 3), (usize::MAX, 1)] {
        assert!(Pool::new(size, align, 1).is_err());
    }
    let pool = Pool::new(1000, 512, 2).unwrap();
    let (first, second) = (pool.try_take().unwrap(), pool.try_take().unwrap());
    assert!(pool.try_take().is_none());
    assert_eq!((first.as_ptr() as usize % 512, first.len(), first.capacity()), (0, 0, 1000));
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut context = Context::from_waker(&waker);
    let mut waiting: Vec<_> = (0..3).map(|_| pool.take()).collect();
    for take in &mut waiting {
        assert!(Pin::new(take).poll(&mut context).is_pending());
    }
    drop(first);
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    assert!(pool.try_take().is_none(), "it is the first one's who waits");
    assert!(Pin::new(&mut waiting[1]).poll(&mut context).is_pending());
    // The first future has the buffer. When this future is dropped, the next one gets the buffer.
    drop(waiting.remove(0));
    let Poll::Ready(mut third) = Pin::new(&mut waiting[0]).poll(&mut context) else { panic!() };
    third.resize(10);
    third.copy_from_slice(b"0123456789");
    drop(second);
    let Poll::Ready(fourth) = Pin::new(&mut waiting[1]).poll(&mut context) else { panic!() };
    drop((waiting, pool, third, fourth));
}

#[test]
fn a_pools_buffers_come_back_from_requests_that_were_dropped() {
    let (reader, writer) = pipe();
    let (stream, pool) = (File::from(reader), Pool::new(512, 512, 4).unwrap());
    let fs = Fs::builder().in_flight(2).build().unwrap();
    for _ in 0..4 {
        drop(stream.read_at(pool.try_take().unwrap(), 0).on(&fs).submit());
    }
    drop(writer);
    // A dropped read that had begun ends, and returns its buffer, when the pipe's writer is closed.
    let taken: Vec<_> = (0..4).map(|_| pollster::block_on(pool.take())).collect();
    assert!(pool.try_take().is_none());
    drop(taken);
}

#[test]
fn a_pools_buffers_are_good_for_direct_io() {
    let (named, data) = file_of(1 << 20);
    let file = File::options().read(true).direct(Direct::Require).open(named.path()).wait();
    let Ok(file) = file else {
        return skipped("a_pools_buffers_are_good_for_direct_io", "no direct I/O here");
    };
    let alignment = file.alignment().unwrap();
    let size = alignment.offset.max(4096);
    let pool = Pool::new(size, alignment.memory.max(alignment.offset), 8).unwrap();
    Executor::each(|executor| {
        let (pool, file, data) = (pool.clone(), file.clone(), data.clone());
        executor.run(async move {
            for at in 0..50 {
                let read = file.read_at(pool.take().await, (at * size) as u64);
                let (count, buffer) = read.await.unwrap();
                assert_eq!(count, size);
                assert!(buffer[..] == data[at * size..][..size]);
            }
        });
    });
}

#[test]
fn ranges_are_read_whole_in_their_order_and_together_where_they_are_close() {
    let (named, data) = file_of(100_000);
    let file = File::open(named.path()).wait().unwrap();
    let ranges = [50_000..60_000, 10..20, 0..15, 99_999..100_000, 30..30, 25..40];
    let check = |chunks: Vec<uringlet::fs::Chunk>, ranges: &[std::ops::Range<u64>]| {
        assert_eq!(chunks.len(), ranges.len());
        for (chunk, range) in chunks.iter().zip(ranges) {
            assert_eq!(chunk[..], data[range.start as usize..range.end as usize]);
        }
    };
    let apart = Coalesce { gap: 0, max: 0 };
    for coalesce in [Coalesce::default(), apart, Coalesce { gap: u64::MAX, max: u64::MAX }] {
        check(file.read_ranges(&ranges, coalesce).wait().unwrap(), &ranges);
        let read = file.read_ranges(&ranges, coalesce);
        check(pollster::block_on(read).unwrap(), &ranges);
    }
    let many: Vec<_> = (0..1000u64).map(|at| at * 97..at * 97 + 50).collect();
    check(pollster::block_on(file.read_ranges(&many, apart)).unwrap(), &many);
    assert!(file.read_ranges(&[], apart).wait().unwrap().is_empty());
    assert!(pollster::block_on(file.read_ranges(&[], apart)).unwrap().is_empty());
    let error = file.read_ranges(&[0..10, 99_000..100_001], apart).wait().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    let backwards = std::ops::Range { start: 10, end: 9 };
    for bad in [backwards, 0..u64::MAX] {
        let error = file.read_ranges(&[bad], apart).wait().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}

#[test]
fn ranges_of_a_direct_file_are_widened_read_and_cut() {
    const LENGTH: u64 = 100_001;
    let (named, data) = file_of(LENGTH as usize);
    let file = File::options().read(true).direct(Direct::Require).open(named.path()).wait();
    let Ok(file) = file else {
        let name = "ranges_of_a_direct_file_are_widened_read_and_cut";
        return skipped(name, "no direct I/O here");
    };
    let apart = Coalesce { gap: 0, max: 0 };
    // Ranges within a block or across several, from the beginning of the file to its unaligned end.
    let bounds = [0, 1, 10, 511, 512, 4095, 4096, 4097, 65_536, LENGTH - 1, LENGTH];
    let all = bounds.iter().flat_map(|&start| bounds.map(|end| start..end));
    let ranges: Vec<_> = all.filter(|range| range.start <= range.end).collect();
    for coalesce in [apart, Coalesce::default(), Coalesce { gap: u64::MAX, max: u64::MAX }] {
        let read = |ranges: &[std::ops::Range<u64>]| {
            pollster::block_on(file.read_ranges(ranges, coalesce))
        };
        for (chunk, range) in read(&ranges).unwrap().iter().zip(&ranges) {
            assert!(chunk[..] == data[range.start as usize..range.end as usize], "{range:?}");
        }
        for behind in [LENGTH - 1..LENGTH + 1, 0..2 * LENGTH, LENGTH..LENGTH + 1, 1 << 40..1 << 41]
        {
            let behind = behind.start..behind.end.min(behind.start + (1 << 30));
            let error = read(std::slice::from_ref(&behind)).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{behind:?}");
        }
    }
}

#[test]
fn what_there_is_no_memory_for_is_an_error() {
    let errno = |error: std::io::Error| error.raw_os_error();
    let file = File::open("/proc/self/exe").wait().unwrap();
    for range in [100..1u64 << 50, 0..i64::MAX as u64, 1..1 << 62] {
        let read = file.read_ranges(&[0..4, range], Coalesce::default());
        assert_eq!(errno(read.wait().unwrap_err()), Some(libc::ENOMEM));
    }
    for (size, align) in [(4096, 1 << 50), (1 << 50, 4096), (1 << 60, 1)] {
        assert_eq!(errno(Pool::new(size, align, 1).unwrap_err()), Some(libc::ENOMEM));
    }
    #[cfg(feature = "tokio")]
    for capacity in [1 << 50, usize::MAX] {
        let mut cursor = uringlet::fs::Cursor::new(file.clone(), capacity);
        let mut into = [0; 4];
        let read = tokio::io::AsyncReadExt::read(&mut cursor, &mut into);
        assert_eq!(errno(pollster::block_on(read).unwrap_err()), Some(libc::ENOMEM));
    }
}

#[test]
fn a_task_that_reads_ranges_is_woken_once_and_may_go_at_any_time() {
    let (named, data) = file_of(1 << 20);
    let fs = Fs::builder().inline_max(0).build().unwrap();
    let file = File::open(named.path()).on(&fs).wait().unwrap();
    let ranges: Vec<_> = (0..200u64).map(|at| at * 5000..at * 5000 + 1000).collect();
    for round in 0..100 {
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut read = file.read_ranges(&ranges, Coalesce { gap: 0, max: 0 });
        let mut poll = || Pin::new(&mut read).poll(&mut Context::from_waker(&waker));
        let output = match poll() {
            Poll::Ready(output) => output,
            Poll::Pending if round % 5 == 0 => continue,
            Poll::Pending => {
                while count.0.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                match poll() {
                    Poll::Ready(output) => output,
                    Poll::Pending => panic!("woken too early"),
                }
            }
        };
        for (chunk, range) in output.unwrap().iter().zip(&ranges) {
            assert!(chunk[..] == data[range.start as usize..range.end as usize]);
        }
        assert!(count.0.load(Ordering::SeqCst) <= 1);
    }
}

/// Zeros in pages that are never touched: they take no memory.
struct Zeros(std::ptr::NonNull<u8>, usize);

// SAFETY: the value owns its mapping, which any thread may use.
unsafe impl Send for Zeros {}

impl Zeros {
    fn new(length: usize) -> Self {
        let (protection, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(std::ptr::NonNull::new(at.cast()).unwrap(), length)
    }
}

impl Drop for Zeros {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nothing uses the mapping any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), self.1) };
    }
}

impl IoBuf for Zeros {
    fn as_init(&self) -> &[u8] {
        // SAFETY: this number of bytes is mapped.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.1) }
    }
}

/// One call moves 0x7ffff000 bytes at most (write(2)).
#[test]
fn a_write_of_more_than_two_gib_is_whole() {
    let length = (2 << 30) + 4096;
    let file = File::options().write(true).open("/dev/null").wait().unwrap();
    let BufResult(written, zeros) = file.write_at(Zeros::new(length), 0).wait();
    assert_eq!(written.unwrap(), length);
    let BufResult(written, _) = file.write_all_at(zeros, 0).wait();
    written.unwrap();
}

/// Offsets end at 2^63 - 1.
#[test]
fn what_was_written_before_a_failure_is_counted() {
    let one_call = 0x7fff_f000_usize;
    let file = File::options().write(true).open("/dev/null").wait().unwrap();
    let offset = i64::MAX as u64 - one_call as u64;
    let BufResult(written, zeros) = file.write_at(Zeros::new(one_call + 4096), offset).wait();
    assert_eq!(written.unwrap(), one_call);
    let BufResult(written, _) = file.write_all_at(zeros, offset).wait();
    assert_eq!(written.unwrap_err().raw_os_error(), Some(libc::EINVAL));
}
