//! Finds the object of a handle without following the handle.
//!
//! A handle is an address inside one reserved range of address space. The low bits of its page
//! number are the index of its entry. The handle is valid only if that entry holds the same
//! address. Any other address is refused before it is dereferenced. (Linux AIO keeps an id in the
//! context's ring header. Here the id is in the address: a forged handle makes the engine read
//! nothing.)
#![allow(unsafe_code)]

mod entry;
mod hazard;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

pub use self::entry::Pinned;
use self::entry::{OTHER, Pin, TableEntry, is_pinned};
pub use self::hazard::{Look, prepare_readers};
use crate::fallback_alloc::has_memory;
use crate::lazy_zeroed::Zeros;
use crate::sync::{Patience, lock};
use crate::sys::Mapping;

/// The bytes of a page of the table: the largest page size that kernels of this architecture use.
pub const PAGE: usize = OTHER;

/// Pages to reserve, powers of two, largest first: address space can be limited (RLIMIT_AS).
const PAGES: [usize; 3] = [1 << 16, 1 << 14, 1 << 11];

/// A reservation takes at most this part of the free address space, or is the smallest. What a
/// limit leaves is for the program, other front ends and the stacks of threads. Miri allocates what
/// others only reserve.
const PART: usize = if cfg!(miri) { 1 } else { 32 };

/// Bytes of address space that a reservation leaves free, beside its own entries.
const SPARE: usize = 256 * 1024;

/// A table of `T`s. Each has some pages of memory, whose address is its handle.
///
/// Threads share the values and take each other's out, so a value has to be `Send` and `Sync`:
///
/// ```compile_fail,E0277
/// uringlet::table::Table::<std::cell::Cell<u32>>::new().unwrap();
/// ```
///
/// ```compile_fail,E0277
/// uringlet::table::Table::<std::sync::MutexGuard<'static, u32>>::new().unwrap();
/// ```
#[derive(Debug)]
pub struct Table<T> {
    memory: Mapping,
    /// One entry for each page: the entry's index is the page number modulo the number of pages, so
    /// no two pages share one.
    entries: Zeros<TableEntry<T>>,
    /// The offset in bytes of the last entry. The number of entries is a power of two, so this
    /// value has all bits that an offset may have.
    mask: usize,
    /// For each entry, the number of readers that have not marked the handle in a hazard word.
    pins: Zeros<AtomicU32>,
    /// Which pages are in use.
    runs: Mutex<Runs>,
    /// No entry at this index or above was ever used.
    reached: AtomicUsize,
}

#[derive(Debug)]
struct Runs {
    used: Vec<bool>,
    /// No page before this one is free.
    hint: usize,
}

/// The result of taking a value out.
#[derive(Debug, PartialEq, Eq)]
pub enum Removed<T> {
    /// There was no value.
    Nothing,
    /// No thread uses the value any more.
    Value(Box<T>),
    /// The calling thread is a signal handler that has interrupted its own use of the value: the
    /// value is never freed.
    Kept,
}

/// Pages that only the holder uses: they are not in the table yet, or no longer.
#[derive(Debug)]
pub struct Pages {
    first: usize,
    count: usize,
    address: usize,
}

impl Pages {
    /// The address of the first page: the handle.
    pub fn address(&self) -> usize {
        self.address
    }

    /// The index of the first page in the table: the id.
    pub fn id(&self) -> u32 {
        self.first as u32
    }
}

impl<T: Send + Sync> Table<T> {
    /// The bytes that the table needs for each page of the reservation.
    const BYTES: usize = size_of::<TableEntry<T>>() + size_of::<AtomicU32>() + size_of::<bool>();

    /// Reserves address space.
    ///
    /// # Errors
    /// `-ENOMEM`: no address space, or no memory for the entries.
    pub fn new() -> Result<Self, i32> {
        let mut error = -libc::ENOMEM;
        let reserve = |bytes| Mapping::new(bytes, libc::PROT_NONE);
        let [.., least] = PAGES;
        for pages in PAGES {
            let room = pages * PAGE * if pages == least { 1 } else { PART };
            match reserve(room).map(drop).and_then(|()| reserve(pages * PAGE)) {
                // The reservation would leave no memory for the entries.
                Ok(_) if !has_memory(pages * Self::BYTES + SPARE) => {}
                Ok(memory) => {
                    let (entries, pins) = (Zeros::new(pages), Zeros::new(pages));
                    let runs = Mutex::new(Runs { used: vec![false; pages], hint: 0 });
                    let reached = AtomicUsize::new(0);
                    let mask = (pages - 1) * size_of::<TableEntry<T>>();
                    let table = Self { memory, entries, mask, pins, runs, reached };
                    table.entries[table.index(0)].refuse_null();
                    return Ok(table);
                }
                Err(errno) => error = errno,
            }
        }
        Err(error)
    }

    /// Allocates `bytes` of zeroed memory, in whole pages.
    ///
    /// # Errors
    /// `-EAGAIN` if not enough pages are free.
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
            // SAFETY: taken above, and seen by nobody.
            unsafe { self.free(pages) };
            return Err(ret as i32);
        }
        Ok(pages)
    }

    /// Frees pages.
    ///
    /// # Safety
    /// The pages are of this table. No value is published under their address, and nothing uses
    /// their memory any more.
    pub unsafe fn free(&self, pages: Pages) {
        let Pages { first, count, .. } = pages;
        self.memory.protect(first * PAGE, count * PAGE, libc::PROT_NONE);
        let mut runs = lock(&self.runs);
        runs.used[first..first + count].fill(false);
        runs.hint = runs.hint.min(first);
    }

    /// Publishes a value under the address of pages of this table. The value may own these pages.
    ///
    /// # Safety
    /// `handle` is the [address](Pages::address) of pages of this table that were not freed. No
    /// value is published under it, and nobody else publishes one. An earlier
    /// [removal](Table::remove) has returned.
    ///
    /// # Panics
    /// If `handle` is not the address of a page of this table.
    pub unsafe fn publish_at(&self, handle: usize, value: Box<T>) {
        let offset = handle.wrapping_sub(self.memory.base() as usize);
        let is_ours = offset < self.entries.len() * PAGE && offset.is_multiple_of(PAGE);
        assert!(is_ours, "an address of this table");
        let index = self.index(handle);
        self.reached.fetch_max(offset / PAGE + 1, Ordering::SeqCst);
        // SAFETY: the caller's contract.
        unsafe { self.entries[index].publish(handle, value) };
    }

    /// Calls `f` with every value. Allocates nothing: close(2) calls this, also from signal
    /// handlers.
    pub fn each(&self, mut f: impl FnMut(&T)) {
        (0..self.reached.load(Ordering::SeqCst)).for_each(|page| self.at_page(page, &mut f));
    }

    /// Calls `f` with the value that was published at pages with this [id](Pages::id), if there is
    /// one. Allocates nothing.
    pub fn with_id(&self, id: u32, f: impl FnOnce(&T)) {
        self.at_page(id as usize, f);
    }

    fn at_page(&self, page: usize, f: impl FnOnce(&T)) {
        let handle = self.memory.base() as usize + page * PAGE;
        if self.entries[self.index(handle)].handle() == handle
            && let Some(value) =
                self.entry(handle).get(self.count(handle), handle, hazard::light_fence)
        {
            f(&value);
        }
    }

    /// The index of a handle's entry.
    fn index(&self, handle: usize) -> usize {
        (handle / PAGE) & (self.entries.len() - 1)
    }

    /// The entry at [`Table::index`].
    #[inline]
    fn entry(&self, handle: usize) -> &TableEntry<T> {
        // The offset in bytes, with one shift for both the division and the size of an entry.
        let offset = (handle / (PAGE / size_of::<TableEntry<T>>())) & self.mask;
        // SAFETY: the mask leaves a multiple of an entry's size below that of all entries.
        unsafe { &*self.entries.as_ptr().byte_add(offset) }
    }

    /// The value of a handle. `None`: there is none, or it was removed.
    #[inline]
    pub fn get(&self, handle: usize) -> Option<Pinned<'_, T>> {
        // The two cases differ in the pin only, so both use the call at the end. A function that
        // returned the value in one case would make both cases pass it through memory.
        let pin = match hazard::free() {
            Some(word) => Pin::word(word, handle),
            None => self.count(handle),
        };
        self.entry(handle).get(pin, handle, hazard::light_fence)
    }

    /// As [`Table::get`], for a thread that has looked before and uses no value now. Makes no call
    /// that changes errno. A thread that has not looked before, or uses a value now, gets `None`,
    /// too.
    #[inline(always)]
    pub fn get_again(&self, handle: usize) -> Option<Pinned<'_, T>> {
        let word = hazard::free_again()?;
        self.entry(handle).get(Pin::word(word, handle), handle, hazard::light_fence)
    }

    /// A pin in the entry's count, for a thread that uses a value already, is ending, or must not
    /// allocate.
    #[cold]
    fn count(&self, handle: usize) -> Pin<'_> {
        Pin::count(&self.pins[self.index(handle)])
    }

    /// Takes a value out: from now on no thread finds it. `last` is called before waiting for the
    /// threads that still use it, to wake them.
    pub fn remove(&self, handle: usize, last: impl FnOnce(&T)) -> Removed<T> {
        let index = self.index(handle);
        let Some(value) = self.entries[index].take(handle) else { return Removed::Nothing };
        // SAFETY: from `publish_at`, and ours alone to free.
        last(unsafe { &*value });
        hazard::heavy_fence();
        // The threads that use the value are about to finish: none of them sleeps any more.
        let mut patience = Patience::default();
        while is_pinned(&self.pins[index], handle, hazard::words_of_others()) {
            patience.wait();
        }
        if hazard::is_mine(handle) {
            return Removed::Kept;
        }
        // SAFETY: as above, and no pin is left.
        Removed::Value(unsafe { Box::from_raw(value) })
    }
}

impl Runs {
    /// The first page of the first run of `count` free pages.
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
    use super::{PAGE, Removed, Table};

    #[test]
    fn only_a_live_handle_is_followed() {
        let table = Table::<u32>::new().unwrap();
        let pages = table.allocate(3 * PAGE).unwrap();
        let handle = pages.address();
        assert!(table.get(handle).is_none(), "not published yet");
        // SAFETY: pages of this table, published at once.
        unsafe { table.publish_at(handle, Box::new(7)) };
        assert_eq!(*table.get(handle).unwrap(), 7);
        for forged in [0, 1, handle + 8, handle + PAGE, handle - PAGE, usize::MAX, !0 << 63] {
            assert!(table.get(forged).is_none(), "{forged:#x}");
        }
        assert_eq!(table.remove(handle, |_| {}), Removed::Value(Box::new(7)));
        assert!(table.get(handle).is_none());
        assert_eq!(table.remove(handle, |_| {}), Removed::Nothing);
        // SAFETY: of this table, and nothing is published there.
        unsafe { table.free(pages) };
        let again = table.allocate(1).unwrap();
        assert_eq!(again.address(), handle);
        // SAFETY: as above.
        unsafe { table.free(again) };
    }

    #[test]
    fn every_page_has_a_handle_of_its_own() {
        let table = Table::<usize>::new().unwrap();
        let pages: Vec<_> = std::iter::from_fn(|| table.allocate(1).ok()).collect();
        assert_eq!(pages.len(), table.entries.len());
        for pages in &pages {
            // SAFETY: pages of this table, published at once.
            unsafe { table.publish_at(pages.address(), Box::new(pages.address())) };
        }
        assert!(pages.iter().all(|pages| *table.get(pages.address()).unwrap() == pages.address()));
        assert!(table.get(0).is_none(), "a null handle with all entries in use");
        for pages in &pages {
            let value = Box::new(pages.address());
            assert_eq!(table.remove(pages.address(), |_| {}), Removed::Value(value));
            assert!(
                table.get(pages.address() ^ PAGE).is_none_or(|value| *value != pages.address())
            );
        }
        assert!(pages.iter().all(|pages| table.get(pages.address()).is_none()));
        assert!(table.get(0).is_none() && table.get(PAGE).is_none(), "null, all entries empty");
        assert_eq!(table.allocate(1).err(), Some(-libc::EAGAIN));
        // SAFETY: of this table, and nothing is published there.
        pages.into_iter().for_each(|pages| unsafe { table.free(pages) });
    }

    #[test]
    fn removal_does_not_wait_for_the_look_that_it_has_interrupted() {
        let table = Table::<u32>::new().unwrap();
        let pages = table.allocate(1).unwrap();
        // SAFETY: pages of this table, published at once.
        unsafe { table.publish_at(pages.address(), Box::new(1)) };
        let pin = table.get(pages.address()).unwrap();
        assert_eq!(table.remove(pages.address(), |_| {}), Removed::Kept);
        assert_eq!(*pin, 1, "it stays, for the one who had it");
        // SAFETY: `remove` has left the value to the pin, and nothing uses the value after this.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(&*pin).cast_mut()) });
        drop(pin);
        // SAFETY: of this table, and nothing is published there.
        unsafe { table.free(pages) };
    }

    #[test]
    fn removal_waits_for_those_who_look() {
        let table = Table::<u32>::new().unwrap();
        let pages = table.allocate(1).unwrap();
        let handle = pages.address();
        // SAFETY: pages of this table, published at once.
        unsafe { table.publish_at(handle, Box::new(1)) };
        let (told, telling) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let pin = table.get(handle).unwrap();
            let remover = scope.spawn(|| table.remove(handle, |_| told.send(()).unwrap()));
            telling.recv().unwrap();
            assert!(table.get(handle).is_none(), "gone for newcomers");
            assert_eq!(*pin, 1, "and there for those who had it");
            drop(pin);
            assert_eq!(remover.join().unwrap(), Removed::Value(Box::new(1)));
        });
        // SAFETY: of this table, and nothing is published there.
        unsafe { table.free(pages) };
    }
}
