//! Buffers with an alignment, which return to their pool when dropped.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use compio_buf::{IoBuf, IoBufMut, SetLen};

use super::budget::{Awaited, Spent, Turns, awaited};
use crate::sync::lock;

/// Buffers of one size and alignment, as direct I/O needs them. A handle, cheap to clone.
///
/// A dropped buffer returns to its pool, also from a request that was cancelled or whose future was
/// dropped. The pool has one buffer from the beginning. Memory for another one is allocated when it
/// is first needed; if there is none, the pool uses the buffers that it has. All memory is freed
/// with the last handle and buffer.
#[derive(Clone)]
pub struct Pool(Arc<Shelf>);

struct Shelf {
    layout: Layout,
    count: usize,
    stock: Mutex<Stock>,
}

#[derive(Default)]
struct Stock {
    made: usize,
    free: Vec<Memory>,
    /// Waiting tasks, in the order in which they came. While there are any, no buffer is free.
    waiting: BTreeMap<u64, Waker>,
    /// Buffers for woken tasks, by their numbers in `waiting`.
    given: BTreeMap<u64, Memory>,
    last: u64,
}

/// A buffer's memory, allocated with the layout of its shelf.
struct Memory(NonNull<u8>);

// SAFETY: plain memory, which has one owner.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Pool {
    /// A pool of `count` buffers of `size` bytes, at addresses that are multiples of `align`.
    ///
    /// # Errors
    /// `EINVAL`: `size` is 0 or too large, or `align` is not a power of two. `ENOMEM`: there is no
    /// memory for the first buffer.
    pub fn new(size: usize, align: usize, count: usize) -> io::Result<Self> {
        let layout = Layout::from_size_align(size, align).ok().filter(|_| size > 0);
        let layout = layout.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        let pool = Self(Arc::new(Shelf { layout, count, stock: Mutex::default() }));
        if count > 0 && pool.try_take().is_none() {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        Ok(pool)
    }

    /// A buffer, if one is free, or there is memory for another one.
    pub fn try_take(&self) -> Option<PoolBuf> {
        let memory = self.0.get(&mut lock(&self.0.stock))?;
        Some(self.buffer(memory))
    }

    /// A buffer, as soon as one is free. Waiting tasks get theirs in the order in which they came.
    pub fn take(&self) -> Take {
        Take { pool: self.clone(), number: None, turns: Turns::default() }
    }

    fn buffer(&self, memory: Memory) -> PoolBuf {
        PoolBuf { memory, length: 0, pool: self.clone() }
    }
}

impl Shelf {
    /// A free buffer, or a new one.
    fn get(&self, stock: &mut Stock) -> Option<Memory> {
        if let Some(memory) = stock.free.pop() {
            return Some(memory);
        }
        if stock.made == self.count {
            return None;
        }
        // SAFETY: the size is not 0.
        let memory = NonNull::new(unsafe { alloc(self.layout) })?;
        stock.made += 1;
        Some(Memory(memory))
    }

    fn give_back(&self, memory: Memory) {
        let mut stock = lock(&self.stock);
        let Some((number, waker)) = stock.waiting.pop_first() else {
            return stock.free.push(memory);
        };
        stock.given.insert(number, memory);
        drop(stock);
        waker.wake();
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        let Ok(stock) = self.stock.get_mut() else { return };
        for Memory(at) in stock.free.drain(..) {
            // SAFETY: allocated with this layout. The buffer is free, so nothing uses it.
            unsafe { dealloc(at.as_ptr(), self.layout) };
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("size", &self.0.layout.size())
            .field("align", &self.0.layout.align())
            .field("count", &self.0.count)
            .finish_non_exhaustive()
    }
}

/// A future, from [`Pool::take`]. If the future is dropped, the next waiting task moves up.
#[derive(Debug)]
#[must_use = "a future does nothing until it is awaited"]
pub struct Take {
    pool: Pool,
    /// The number of this future among the waiting tasks.
    number: Option<u64>,
    turns: Turns,
}

awaited!(Take, PoolBuf);

impl Awaited for Take {
    fn poll_in_turn(&mut self, context: &mut Context<'_>, _: &mut Spent) -> Poll<PoolBuf> {
        let mut stock = lock(&self.pool.0.stock);
        let found = match self.number {
            Some(number) => stock.given.remove(&number),
            None => self.pool.0.get(&mut stock),
        };
        if let Some(memory) = found {
            drop(stock);
            self.number = None;
            return Poll::Ready(self.pool.buffer(memory));
        }
        let number = self.number.unwrap_or_else(|| {
            stock.last += 1;
            stock.last
        });
        let before = stock.waiting.insert(number, context.waker().clone());
        drop(stock);
        drop(before);
        self.number = Some(number);
        Poll::Pending
    }
}

impl Drop for Take {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut stock = lock(&self.pool.0.stock);
        let (waker, given) = (stock.waiting.remove(&number), stock.given.remove(&number));
        drop(stock);
        drop(waker);
        if let Some(memory) = given {
            self.pool.0.give_back(memory);
        }
    }
}

/// A buffer of a [`Pool`]. It has a length, 0 at first, and the pool's size as its capacity.
pub struct PoolBuf {
    memory: Memory,
    /// The number of initialized bytes, from the first on.
    length: usize,
    pool: Pool,
}

impl PoolBuf {
    /// The maximum length in bytes.
    pub fn capacity(&self) -> usize {
        self.pool.0.layout.size()
    }

    /// Sets the length to `length` bytes. New bytes are zeros.
    ///
    /// # Panics
    /// `length` is more than the capacity.
    pub fn resize(&mut self, length: usize) {
        assert!(length <= self.capacity(), "a pool's buffer does not grow");
        let new = length.saturating_sub(self.length);
        // SAFETY: the new bytes are within the memory, which the buffer owns.
        unsafe { self.memory.0.add(length - new).write_bytes(0, new) };
        self.length = length;
    }
}

impl Drop for PoolBuf {
    fn drop(&mut self) {
        self.pool.0.give_back(Memory(self.memory.0));
    }
}

impl Deref for PoolBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `length` bytes are initialised: by `resize`, or by the caller of `set_len`.
        unsafe { std::slice::from_raw_parts(self.memory.0.as_ptr(), self.length) }
    }
}

impl DerefMut for PoolBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the buffer has one owner.
        unsafe { std::slice::from_raw_parts_mut(self.memory.0.as_ptr(), self.length) }
    }
}

impl IoBuf for PoolBuf {
    fn as_init(&self) -> &[u8] {
        self
    }
}

impl SetLen for PoolBuf {
    unsafe fn set_len(&mut self, length: usize) {
        debug_assert!(length <= self.capacity(), "the caller's contract");
        self.length = length;
    }
}

impl IoBufMut for PoolBuf {
    fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        let at = self.memory.0.as_ptr().cast();
        // SAFETY: allocated with this size, and the buffer has one owner. Bytes behind its length
        // are not read before they are written. As for a `Vec`, the trait's callers leave the bytes
        // before its length initialised.
        unsafe { std::slice::from_raw_parts_mut(at, self.capacity()) }
    }
}

impl fmt::Debug for PoolBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuf")
            .field("len", &self.length)
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}
