//! Awaited operations from the first poll to the last drop, while operations are dropped. Miri runs
//! these on the whole engine (`ci/miri.sh`), with short transfers now and then.
#![allow(unsafe_code)]

use std::future::Future as _;
use std::io::Write as _;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use compio_buf::{BufResult, IoBuf, IoBufMut, SetLen};

use super::driver::Fs;
use super::handle::File;
use super::pool::Pool;
use super::ranges::Coalesce;

/// The byte in the file at an offset.
fn byte_at(offset: u64) -> u8 {
    (offset % 251) as u8
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// A buffer inside the operation itself; its drops are counted.
struct Inline([u8; 5], Arc<AtomicUsize>);

impl Inline {
    fn new(alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Ordering::Relaxed);
        Self([0xA5; 5], Arc::clone(alive))
    }
}

impl Drop for Inline {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Release);
    }
}

impl IoBuf for Inline {
    fn as_init(&self) -> &[u8] {
        &self.0
    }
}

impl SetLen for Inline {
    unsafe fn set_len(&mut self, length: usize) {
        assert!(length <= 5);
    }
}

impl IoBufMut for Inline {
    fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        IoBufMut::as_uninit(&mut self.0[..])
    }
}

/// A file whose reads are never tried on the polling thread, with room for this many requests in
/// the engine.
fn file(in_flight: u32, room: u32) -> (Fs, File) {
    let fs = Fs::builder().in_flight(in_flight).of_places(room).unwrap();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&(0..64).map(byte_at).collect::<Vec<u8>>()).unwrap();
    (fs.clone(), File::new(file.into(), fs.into(), true))
}

/// Waits until nothing is in flight. The slots are freed then, or soon after.
fn drain(fs: &Fs) {
    while fs.in_flight() != (0, 0) {
        std::thread::yield_now();
    }
}

#[test]
fn transfers_are_made_whole() {
    let (fs, file) = file(4, 4);
    for offset in 0..4u64 {
        let expected: Vec<u8> = (offset..offset + 20).map(byte_at).collect();
        let BufResult(result, buffer) = block_on(file.read_exact_at(vec![0; 20], offset));
        result.unwrap();
        assert_eq!(buffer, expected);
        let BufResult(result, _) = file.write_all_at(expected, offset).wait();
        result.unwrap();
    }
    let chunks = block_on(file.read_ranges(&[10..20, 0..5, 30..31], Coalesce::default()));
    assert_eq!(chunks.unwrap()[1][..], [0, 1, 2, 3, 4]);
    drain(&fs);
}

#[test]
fn operations_are_dropped_in_every_state() {
    let rounds = if cfg!(miri) { 8 } else { 5_000 };
    let alive = Arc::new(AtomicUsize::new(0));
    // There is room for all requests, or for few, or for one only.
    for (in_flight, room) in [(8, 8), (8, 1), (1, 1)] {
        let (fs, file) = file(in_flight, room);
        let mut context = Context::from_waker(Waker::noop());
        for round in 0..rounds {
            let read = || file.read_exact_at(Inline::new(&alive), round % 7);
            let mut polled = read();
            let is_over = Pin::new(&mut polled).poll(&mut context).is_ready();
            let (awaited, cancelled, detached, waited) =
                (read().submit(), read().submit(), read(), read());
            drop(read().submit());
            drop(read());
            detached.detach();
            let check = |BufResult(result, buffer): BufResult<(), Inline>| match result {
                Ok(()) => {
                    let expected: Vec<u8> = (0..5).map(|at| byte_at(round % 7 + at)).collect();
                    assert_eq!(buffer.0[..], expected);
                }
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ECANCELED)),
            };
            check(block_on(cancelled.cancel()));
            check(block_on(awaited));
            check(waited.wait());
            let _ = is_over || Pin::new(&mut polled).poll(&mut context).is_ready();
            // The future is dropped by a thread that has not polled it.
            std::thread::scope(|scope| _ = scope.spawn(move || drop(polled)));
        }
        drain(&fs);
    }
    while alive.load(Ordering::Acquire) > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_pools_buffer_shows_what_was_written_and_zeros() {
    let pool = Pool::new(16, 8, 1).unwrap();
    for round in 0..2 {
        let mut buffer = pool.try_take().unwrap();
        assert!(buffer.is_empty());
        buffer.as_uninit().fill(MaybeUninit::uninit());
        buffer.resize(5);
        assert_eq!(buffer[..], [0; 5]);
        buffer.copy_from_slice(b"12345");
        buffer.as_uninit()[5..].fill(MaybeUninit::new(7 + round));
        // SAFETY: the first eight bytes were written.
        unsafe { buffer.advance_to(8) };
        buffer.resize(10);
        assert_eq!(
            buffer[..],
            [b'1', b'2', b'3', b'4', b'5', 7 + round, 7 + round, 7 + round, 0, 0]
        );
        buffer.resize(2);
        buffer.resize(3);
        assert_eq!(buffer[..], *b"12\0");
        buffer.as_uninit()[3..].fill(MaybeUninit::uninit());
        assert_eq!(buffer.as_uninit().len(), 16);
        buffer.resize(16);
        assert_eq!(buffer[3..], [0; 13]);
    }
}

#[test]
fn a_detached_operation_is_waited_for() {
    let (fs, file) = file(1, 1);
    for round in 0..4u8 {
        for at in 0..20 {
            file.write_all_at([round; 7], 100 * at).detach();
        }
        if round % 2 == 0 {
            fs.drain().wait()
        } else {
            block_on(fs.drain())
        }
        for at in 0..20 {
            let BufResult(result, buffer) = file.read_exact_at([9; 7], 100 * at).wait();
            result.unwrap();
            assert_eq!(buffer, [round; 7]);
        }
    }
}
