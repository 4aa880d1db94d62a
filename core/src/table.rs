//! From a handle to what stands behind it, without following the handle.
//!
//! A handle is an address inside one reserved stretch of address space; its page number there is
//! the index of its entry. Anything outside, unaligned or without an entry is refused before it
//! is dereferenced. (Idea: Linux AIO, 2013, an id in the context's ring header; here the id is
//! the address, which a forged handle cannot make us read.)
#![allow(unsafe_code)]

mod entry;
mod hazard;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use self::entry::Entry;
pub use self::entry::Pinned;
pub use self::hazard::Look;
use crate::front::has_memory;
use crate::sync::lock;
use crate::sys::Mapping;

/// Bytes per entry: memory is handed out in pages.
pub const PAGE: usize = 4096;

/// Pages reserved, largest first: address space can be limited (RLIMIT_AS).
const PAGES: [usize; 3] = [1 << 16, 1 << 14, 1 << 11];

/// Bytes of address space that a reservation leaves to others, beside what its entries take.
const SPARE: usize = 256 * 1024;

/// A table of `T`s, each with some pages of memory whose address is its handle.
#[derive(Debug)]
pub struct Table<T> {
    memory: Mapping,
    entries: Box<[Entry<T>]>,
    /// Which pages are in use.
    runs: Mutex<Runs>,
    /// No entry at or beyond this one was ever used.
    reached: AtomicUsize,
}

#[derive(Debug)]
struct Runs {
    used: Vec<bool>,
    /// No page before this one is free.
    hint: usize,
}

/// Pages that are in nobody's hands but the holder's: not in the table yet, or any more.
#[derive(Debug)]
pub struct Pages {
    first: usize,
    count: usize,
    address: usize,
}

impl Pages {
    /// Where they begin: the handle.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Their index in the table: the id.
    pub fn id(&self) -> u32 {
        self.first as u32
    }
}

impl<T> Table<T> {
    /// Reserves address space.
    ///
    /// # Errors
    /// `-ENOMEM`.
    pub fn new() -> Result<Self, i32> {
        let mut error = -libc::ENOMEM;
        for pages in PAGES {
            match Mapping::new(pages * PAGE, libc::PROT_NONE) {
                // So long that nothing would be left for the entries.
                Ok(_) if !has_memory(pages * (size_of::<Entry<T>>() + 1) + SPARE) => {}
                Ok(memory) => {
                    // SAFETY: zero is a null pointer and no pins.
                    let entries = unsafe { Box::new_zeroed_slice(pages).assume_init() };
                    let runs = Runs { used: vec![false; pages], hint: 0 };
                    let reached = AtomicUsize::new(0);
                    return Ok(Self { memory, entries, runs: Mutex::new(runs), reached });
                }
                Err(errno) => error = errno,
            }
        }
        Err(error)
    }

    /// Takes `bytes` of zeroed memory, at a page.
    ///
    /// # Errors
    /// `-EAGAIN` if none is free.
    pub fn allocate(&self, bytes: usize) -> Result<Pages, i32> {
        let count = bytes.div_ceil(PAGE).max(1);
        let mut runs = lock(&self.runs);
        let first = runs.find(count).ok_or(-libc::EAGAIN)?;
        runs.used[first..first + count].fill(true);
        if first == runs.hint {
            runs.hint += count;
        }
        drop(runs);
        let address = self.memory.base() as usize + first * PAGE;
        let pages = Pages { first, count, address };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let ret = self.memory.protect(first * PAGE, count * PAGE, protection);
        if ret < 0 {
            self.free(pages);
            return Err(ret as i32);
        }
        Ok(pages)
    }

    /// Gives memory back.
    pub fn free(&self, pages: Pages) {
        let Pages { first, count, .. } = pages;
        self.memory.protect(first * PAGE, count * PAGE, libc::PROT_NONE);
        let mut runs = lock(&self.runs);
        runs.used[first..first + count].fill(false);
        runs.hint = runs.hint.min(first);
    }

    /// Makes a value findable under the address of pages of this table, which it may own.
    ///
    /// # Panics
    /// If `handle` is no address of this table's.
    pub fn publish_at(&self, handle: usize, value: Box<T>) {
        let index = self.index(handle).expect("an address of this table");
        self.reached.fetch_max(index + 1, Ordering::SeqCst);
        self.entries[index].publish(value);
    }

    /// Calls `f` with every value.
    pub fn each(&self, mut f: impl FnMut(&T)) {
        for index in 0..self.reached.load(Ordering::SeqCst) {
            if self.entries[index].is_empty() {
                continue;
            }
            let handle = self.memory.base() as usize + index * PAGE;
            if let Some(value) = self.get(handle) {
                f(&value);
            }
        }
    }

    #[inline]
    fn index(&self, handle: usize) -> Option<usize> {
        // Turned, a page number: an address within a page, or outside, is larger than any.
        let offset = handle.wrapping_sub(self.memory.base() as usize);
        let page = offset.rotate_right(PAGE.trailing_zeros());
        (page < self.entries.len()).then_some(page)
    }

    /// The value under a handle. `None`: there is none, or none any more.
    #[inline]
    pub fn get(&self, handle: usize) -> Option<Pinned<'_, T>> {
        let entry = &self.entries[self.index(handle)?];
        entry.get(hazard::mine().map(|hazard| &*hazard.handle), handle, hazard::light_fence)
    }

    /// Takes a value out: from now on nobody finds it. `last` is called before waiting for the
    /// threads that are still looking at it, to send them away.
    pub fn remove(&self, handle: usize, last: impl FnOnce(&T)) -> Option<Box<T>> {
        let entry = &self.entries[self.index(handle)?];
        let value = entry.take();
        if value.is_null() {
            return None;
        }
        // SAFETY: from `publish_at`, and ours alone to free.
        last(unsafe { &*value });
        hazard::heavy_fence();
        let mut rounds = 0;
        while entry.is_pinned(handle, hazard::words()) {
            // They are on their way out: none of them sleeps any more.
            rounds += 1;
            if rounds < 100 {
                std::thread::yield_now();
            } else {
                crate::sys::nap(std::time::Duration::from_micros(50));
            }
        }
        // SAFETY: as above, and no pin is left.
        Some(unsafe { Box::from_raw(value) })
    }
}

impl Runs {
    /// The first page of the first `count` free ones in a row.
    fn find(&self, count: usize) -> Option<usize> {
        let mut length = 0;
        for (at, &taken) in self.used.iter().enumerate().skip(self.hint) {
            length = if taken { 0 } else { length + 1 };
            if length == count {
                return Some(at + 1 - count);
            }
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{PAGE, Table};

    #[test]
    fn only_a_live_handle_is_followed() {
        let table = Table::<u32>::new().unwrap();
        let pages = table.allocate(3 * PAGE).unwrap();
        let handle = pages.address();
        assert!(table.get(handle).is_none(), "not published yet");
        table.publish_at(handle, Box::new(7));
        assert_eq!(*table.get(handle).unwrap(), 7);
        for forged in [0, 1, handle + 8, handle + PAGE, handle - PAGE, usize::MAX, !0 << 63] {
            assert!(table.get(forged).is_none(), "{forged:#x}");
        }
        assert_eq!(table.remove(handle, |_| {}), Some(Box::new(7)));
        assert!(table.get(handle).is_none() && table.remove(handle, |_| {}).is_none());
        table.free(pages);
        let again = table.allocate(1).unwrap();
        assert_eq!(again.address(), handle);
        table.free(again);
    }

    #[test]
    fn removal_waits_for_those_who_look() {
        let table = Table::<u32>::new().unwrap();
        let pages = table.allocate(1).unwrap();
        let handle = pages.address();
        table.publish_at(handle, Box::new(1));
        let (told, telling) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let pin = table.get(handle).unwrap();
            let remover = scope.spawn(|| table.remove(handle, |_| told.send(()).unwrap()));
            telling.recv().unwrap();
            assert!(table.get(handle).is_none(), "gone for newcomers");
            assert_eq!(*pin, 1, "and there for those who had it");
            drop(pin);
            assert_eq!(remover.join().unwrap(), Some(Box::new(1)));
        });
        table.free(pages);
    }
}
