//! An engine without system calls: a thread that fills buffers. So Miri can execute everything else
//! of this module, from the first poll to the end of a request, while operations are dropped.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::board::Sink;
use crate::config::EngineKind;
use crate::front::WaitCondition;
use crate::instance::{Choice, ChosenLane, Entry, Submitted, Waited};
use crate::queue::IoEvent;
use crate::sqe::opcode;
use crate::sync::lock;

/// What a read finds at an offset.
pub(super) fn byte_at(offset: u64) -> u8 {
    (offset % 251) as u8
}

#[derive(Debug)]
pub(super) struct Fake {
    sink: Box<dyn Sink>,
    queue: Mutex<VecDeque<Entry>>,
    is_closed: AtomicBool,
    room: usize,
}

impl Fake {
    /// With room for so many requests. Its thread ends when it is closed.
    pub(super) fn new(sink: Box<dyn Sink>, room: usize) -> Arc<Self> {
        let (queue, is_closed) = (Mutex::default(), AtomicBool::new(false));
        let fake = Arc::new(Self { sink, queue, is_closed, room });
        let its = Arc::clone(&fake);
        std::thread::spawn(move || its.run());
        fake
    }

    fn run(&self) {
        loop {
            let several: Vec<Entry> = {
                let mut queue = lock(&self.queue);
                let count = queue.len().min(3);
                queue.drain(..count).collect()
            };
            match &several[..] {
                [] if self.is_closed.load(Ordering::SeqCst) => return,
                [] => std::thread::yield_now(),
                several => self.sink.together(&mut || several.iter().for_each(|one| self.end(one))),
            }
        }
    }

    fn end(&self, entry: &Entry) {
        let sqe = &entry.sqe;
        // Every other transfer is a short one.
        let most = if sqe.off.is_multiple_of(2) { sqe.len } else { sqe.len.div_ceil(2) };
        let result = match sqe.opcode {
            opcode::READ => {
                for at in 0..u64::from(most) {
                    // SAFETY: the operation's buffer, until its result is there.
                    unsafe { *((sqe.addr + at) as *mut u8) = byte_at(sqe.off + at) };
                }
                most as i32
            }
            opcode::WRITE => {
                for at in 0..u64::from(most) {
                    // SAFETY: as above.
                    assert_eq!(unsafe { *((sqe.addr + at) as *const u8) }, byte_at(sqe.off + at));
                }
                most as i32
            }
            _ => 0,
        };
        self.complete(entry, result);
    }

    fn complete(&self, entry: &Entry, result: i32) {
        let obj = entry.sqe.user_data;
        self.sink.complete(&IoEvent { data: 0, obj, res: i64::from(result), res2: 0 });
        self.sink.released();
    }

    /// # Safety
    /// As that of an instance.
    pub(super) unsafe fn submit(&self, entries: &[Entry]) -> Submitted {
        let mut queue = lock(&self.queue);
        let accepted = entries.len().min(self.room - queue.len().min(self.room));
        queue.extend(&entries[..accepted]);
        let refused = if accepted < entries.len() { -libc::EAGAIN } else { 0 };
        Submitted { accepted, refused }
    }

    pub(super) fn cancel(&self, user_data: u64) -> Result<(), i32> {
        let mut queue = lock(&self.queue);
        let found = queue.iter().position(|entry| entry.sqe.user_data == user_data);
        let entry = found.and_then(|at| queue.remove(at)).ok_or(-libc::EALREADY)?;
        drop(queue);
        self.complete(&entry, -libc::ECANCELED);
        Ok(())
    }

    pub(super) fn wait_for(&self, what: &WaitCondition<'_>, _: Option<Duration>) -> Waited {
        while (what.missing)() > 0 {
            std::thread::yield_now();
        }
        Waited::Enough
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    pub(super) fn choice(&self) -> Choice {
        Choice { engine: EngineKind::Null, kernel: None, refusals: Vec::new() }
    }

    pub(super) fn explain(&self, _: i32, _: bool) -> Result<ChosenLane, i32> {
        Err(-libc::EBADF)
    }
}

mod tests {
    use std::future::Future as _;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    use compio_buf::{BufResult, IoBuf, IoBufMut, SetLen};

    use super::byte_at;
    use crate::fs::driver::Fs;
    use crate::fs::handle::File;
    use crate::fs::ranges::Coalesce;

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

    /// A buffer that is inside of the operation itself, and counted.
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
        fn as_uninit(&mut self) -> &mut [std::mem::MaybeUninit<u8>] {
            IoBufMut::as_uninit(&mut self.0[..])
        }
    }

    fn file(in_flight: u32, room: usize) -> (Fs, File) {
        let fs = Fs::fake(in_flight, room);
        let null = std::fs::File::open("/dev/null").unwrap();
        (fs.clone(), File::opened(null.into(), Some(fs), true))
    }

    /// Waits until nothing is in flight: the slots are gone then, or about to go.
    fn drain(fs: &Fs) {
        while fs.in_flight() != (0, 0) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn transfers_are_made_whole_by_requests_that_are_short() {
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
        let rounds = if cfg!(miri) { 24 } else { 20_000 };
        let alive = Arc::new(AtomicUsize::new(0));
        // Room for all, places that are short, and a line.
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
                // On another thread than the one that has polled it.
                std::thread::scope(|scope| _ = scope.spawn(move || drop(polled)));
            }
            drain(&fs);
        }
        while alive.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
    }
}
