//! Operations that are dropped at every poll and in every state, on every executor.
//!
//! `URINGLET_STORM` is the number of operations, 100,000 by default.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use uringlet::fs::buf::{IoBuf, IoBufMut, SetLen};
use uringlet::fs::{File, Fs, Op, Operation};

use crate::executors::{ALL, Executor};
use crate::file_of;

/// The number of live buffers.
#[derive(Clone, Default)]
pub(crate) struct Alive(Arc<AtomicUsize>);

impl Alive {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A buffer that is counted, and filled with a pattern when it is dropped. If a request still used
/// the memory, the address sanitizer would report the request.
struct Counted {
    bytes: Box<[u8]>,
    alive: Alive,
}

impl Counted {
    fn new(length: usize, alive: &Alive) -> Self {
        alive.0.fetch_add(1, Ordering::Relaxed);
        Self { bytes: vec![0xA5; length].into(), alive: alive.clone() }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.bytes.fill(0xDD);
        self.alive.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl IoBuf for Counted {
    fn as_init(&self) -> &[u8] {
        &self.bytes
    }
}

#[allow(unsafe_code)]
impl SetLen for Counted {
    unsafe fn set_len(&mut self, length: usize) {
        assert!(length <= self.bytes.len());
    }
}

impl IoBufMut for Counted {
    fn as_uninit(&mut self) -> &mut [std::mem::MaybeUninit<u8>] {
        IoBufMut::as_uninit(&mut *self.bytes)
    }
}

/// Polls an operation `polls` times, at least once, and then drops it. Ends earlier if the
/// operation ends.
struct Abandon<O: Operation> {
    operation: Option<Op<O>>,
    polls: u32,
}

impl<O: Operation> Future for Abandon<O> {
    type Output = Option<O::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(operation) = &mut self.operation else { return Poll::Ready(None) };
        if let Poll::Ready(output) = Pin::new(operation).poll(context) {
            self.operation = None;
            return Poll::Ready(Some(output));
        }
        if self.polls <= 1 {
            self.operation = None;
            return Poll::Ready(None);
        }
        self.polls -= 1;
        // Wakes the task at once, so that it polls again before the operation has ended.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

fn storm() -> usize {
    let told = std::env::var("URINGLET_STORM").ok();
    told.map_or(100_000, |told| told.parse().expect("URINGLET_STORM is a number"))
}

/// One operation, whose kind and end `number` chooses.
pub(crate) async fn one(file: File, number: usize, data: Arc<Vec<u8>>, alive: Alive) {
    const LENGTH: usize = 1024;
    let offset = number * 67 % (data.len() - LENGTH);
    let expected = &data[offset..][..LENGTH];
    let buffer = Counted::new(LENGTH, &alive);
    let read = file.read_at(buffer, offset as u64);
    let read = if number.is_multiple_of(3) { read } else { read.forced_async() };
    let read = if number.is_multiple_of(5) { read.background() } else { read };
    let check = |output: uringlet::fs::BufResult<usize, Counted>| {
        let uringlet::fs::BufResult(result, buffer) = output;
        match result {
            Ok(count) => assert!(count == LENGTH && *buffer.bytes == *expected),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
                assert!(buffer.bytes.iter().all(|&byte| byte == 0xA5));
            }
        }
    };
    match number % 11 {
        0 => drop(read),
        1 => drop(read.submit()),
        2..=4 => {
            let polls = number as u32 % 11 - 1;
            if let Some(output) = (Abandon { operation: Some(read), polls }).await {
                check(output);
            }
        }
        5 => check(read.cancel().await),
        6 => check(read.submit().cancel().await),
        7 => read.detach(),
        // The time limit expires before the read ends, afterwards, or at the same moment. A late
        // read is dropped, or awaited after all.
        8 | 9 => {
            let time = Duration::from_micros(number as u64 / 11 % 50);
            match read.timeout(time).await {
                Ok(output) => check(output),
                Err(late) if number.is_multiple_of(2) => check(late.into_op().await),
                Err(late) => drop(late),
            }
        }
        _ => check(read.await),
    }
}

fn run(executor: Executor, fs: &Fs, operations: usize) {
    let (named, data) = file_of(1 << 20);
    let (data, alive) = (Arc::new(data), Alive::default());
    let file = File::open(named.path()).on(fs).wait().unwrap();
    let (count, all) = (alive.clone(), file.clone());
    executor.run(async move {
        const TOGETHER: usize = 64;
        for begin in (0..operations).step_by(TOGETHER) {
            let these = (begin..(begin + TOGETHER).min(operations))
                .map(|number| one(all.clone(), number, Arc::clone(&data), count.clone()));
            futures::future::join_all(these).await;
        }
    });
    // Dropped operations end by themselves. The last request to end releases the file, and no
    // buffer leaks.
    let mut file = file;
    while let Err(still) = file.into_std() {
        file = still;
        std::thread::yield_now();
    }
    while alive.count() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn operations_dropped_in_every_state_leave_nothing_behind_on_any_executor() {
    let each = storm() / ALL.len() / 2;
    // One `Fs` has room for all operations. The other has room for three, so most are queued.
    let wide = Fs::builder().build().unwrap();
    let narrow = Fs::builder().in_flight(3).bytes_in_flight(2048).build().unwrap();
    Executor::each(|executor| {
        run(executor, &wide, each);
        run(executor, &narrow, each);
    });
    for fs in [wide, narrow] {
        while fs.in_flight() != (0, 0) {
            std::thread::yield_now();
        }
    }
}

#[test]
fn operations_are_dropped_on_other_threads_than_they_were_polled_on() {
    let fs = Fs::builder().in_flight(5).build().unwrap();
    let (named, _) = file_of(1 << 20);
    let file = File::open(named.path()).on(&fs).wait().unwrap();
    let alive = Alive::default();
    let (sender, receiver) = std::sync::mpsc::sync_channel::<Op<_>>(64);
    let dropper = std::thread::spawn(move || {
        for (number, operation) in receiver.into_iter().enumerate() {
            match number % 3 {
                0 => drop(operation),
                1 => drop(operation.cancel()),
                _ => drop(operation.wait()),
            }
        }
    });
    for number in 0..storm() / 10 {
        let read = file.read_at(Counted::new(512, &alive), number as u64 % 1000).forced_async();
        sender.send(read.submit()).unwrap();
    }
    drop(sender);
    dropper.join().unwrap();
    while alive.count() > 0 {
        std::thread::yield_now();
    }
}
