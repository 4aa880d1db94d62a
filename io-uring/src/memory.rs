//! The memory of a ring: this library's pages, and the program's mappings of the same pages. The
//! library's pages stay mapped as long as a thread may post completions.
//!
//! The program may write anything to this memory at any time. So the library accesses it by atomics
//! only, or copies it once. Every index is masked, and values that the program must not change are
//! kept elsewhere.
//!
//! A *place* in a queue is a value of its head or tail: a counter, whose low bits are the index.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use uringlet::front::memory::accessible_now;

use crate::abi::{
    CqOffsets, Cqe, OFF_BUFFERS, OFF_CQ_RING, OFF_SQ_RING, OFF_SQES, Params, SqOffsets, setup,
};
use crate::completions::Queue;
use crate::shared::journal::Record;
use crate::shared::page::Page;
use crate::sys;

const PAGE: usize = 4096;
const CQES: usize = 64;
const SQE: usize = 64;
/// The offset of the records of requests in flight (`shared/journal.rs`). In front of them are the
/// words of [`Page`].
const RECORDS: usize = 64;
const _: () = assert!(size_of::<Page>() <= RECORDS);

/// An entry as the program wrote it, in words.
pub(crate) type RawSqe = [u64; 8];

#[derive(Debug)]
pub(crate) struct Memory {
    rings: Mapped,
    sqes: Mapped,
    /// The words that processes sharing the ring exchange, and the records of requests in flight.
    beside: Mapped,
    sq_entries: u32,
    cq_entries: u32,
    /// The offset of the index array; 0 if there is none.
    array: usize,
    cqe_size: usize,
    sqe_size: usize,
    /// The program has provided the pages of both queues, and so mmap(2) of the ring fails.
    is_theirs: bool,
}

/// Shared zeroed pages, or the program's pages.
#[derive(Debug)]
pub(crate) struct Mapped {
    at: *mut u8,
    len: usize,
    /// The library does not unmap this memory.
    is_theirs: bool,
}

// SAFETY: shared memory, touched as atomics and by volatile copies.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    pub(crate) fn new(len: usize) -> Result<Self, i32> {
        let len = pages(len);
        Ok(Self { at: sys::map_shared(len)?, len, is_theirs: false })
    }

    /// Maps the program's pages again, because the program may unmap its own mapping. Private pages
    /// cannot be mapped again: then the program's mapping is used.
    fn of_program(at: u64, len: usize) -> Result<Self, i32> {
        let (at, len) = (at as usize, pages(len));
        if at == 0 || at.is_multiple_of(PAGE) && !accessible_now(at, len, true) {
            return Err(-libc::EFAULT);
        }
        if !at.is_multiple_of(PAGE) {
            return Err(-libc::EINVAL);
        }
        let theirs = at as *mut u8;
        // SAFETY: pages that are there; the kernel refuses those of private mappings.
        let mapped = match unsafe { sys::map_again(theirs, len, None) } {
            Ok(again) => Self { at: again as *mut u8, len, is_theirs: false },
            Err(_) => Self { at: theirs, len, is_theirs: true },
        };
        // The mapping may have been shorter than the memory that is needed.
        if !mapped.is_theirs && !accessible_now(mapped.at.addr(), len, true) {
            return Ok(Self { at: theirs, len, is_theirs: true });
        }
        Ok(mapped)
    }

    pub(crate) fn address(&self) -> usize {
        self.at.expose_provenance()
    }

    /// Maps the first `len` bytes of these pages for the program, as mmap(2) with these arguments.
    /// Returns the program's address, or a negative errno.
    ///
    /// # Safety
    /// As mmap(2).
    pub(crate) unsafe fn map(&self, at: usize, len: usize, prot: i32, flags: i32) -> isize {
        if len == 0 {
            return -(libc::EINVAL as isize);
        }
        if len > isize::MAX as usize {
            return -(libc::ENOMEM as isize);
        }
        if prot & libc::PROT_EXEC != 0 {
            return -(libc::EPERM as isize);
        }
        let fixed = (flags & libc::MAP_FIXED != 0).then_some(at);
        let len = pages(len);
        // SAFETY: pages of a shared mapping. The caller allows a mapping at a fixed address to be
        // replaced.
        let mapped = match unsafe { sys::map_again(self.at, len, fixed) } {
            Ok(mapped) => mapped,
            Err(errno) => return errno as isize,
        };
        if prot & (libc::PROT_READ | libc::PROT_WRITE) != libc::PROT_READ | libc::PROT_WRITE {
            // SAFETY: the mapping was made just now, for the caller.
            unsafe { sys::protect(mapped, len, prot) };
        }
        mapped as isize
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if !self.is_theirs {
            // SAFETY: a mapping of our own, which nobody uses any more.
            unsafe { sys::unmap(self.at, self.len) };
        }
    }
}

/// The words of the header, at the kernel's offsets.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(crate) enum Word {
    SqHead = 0,
    SqTail = 4,
    CqHead = 8,
    CqTail = 12,
    SqMask = 16,
    CqMask = 20,
    SqEntries = 24,
    CqEntries = 28,
    SqDropped = 32,
    SqFlags = 36,
    CqFlags = 40,
    CqOverflow = 44,
}

/// The memory of a ring, which io_uring_resize_rings(3) replaces. Earlier memory is kept until the
/// ring ends, because threads may be reading it.
#[derive(Debug)]
pub(crate) struct Current {
    now: AtomicPtr<Memory>,
    all: Mutex<Vec<Arc<Memory>>>,
}

impl Current {
    pub(crate) fn new(memory: Arc<Memory>) -> Self {
        let now = AtomicPtr::new(Arc::as_ptr(&memory).cast_mut());
        Self { now, all: Mutex::new(vec![memory]) }
    }

    fn all(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Memory>>> {
        self.all.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn share(&self) -> Arc<Memory> {
        self.all().last().map(Arc::clone).expect("one from the beginning on")
    }

    /// Earlier memory with these sizes, to be used again. A ring that is resized many times has
    /// memory for each pair of sizes at most twice.
    pub(crate) fn earlier(&self, sizes: (u32, u32)) -> Option<Arc<Memory>> {
        let all = self.all();
        let (_, earlier) = all.split_last()?;
        let fits = |one: &&Arc<Memory>| (one.sq_entries, one.cq_entries) == sizes && !one.is_theirs;
        earlier.iter().find(fits).map(Arc::clone)
    }

    /// Makes `memory` the ring's present memory. The ring's lock is held.
    pub(crate) fn replace(&self, memory: Arc<Memory>) {
        let now = Arc::as_ptr(&memory).cast_mut();
        let mut all = self.all();
        all.retain(|one| !Arc::ptr_eq(one, &memory));
        all.push(memory);
        drop(all);
        self.now.store(now, Ordering::Release);
    }
}

impl Deref for Current {
    type Target = Memory;

    #[inline]
    fn deref(&self) -> &Memory {
        // SAFETY: the list has the memory as long as `self` lives.
        unsafe { &*self.now.load(Ordering::Acquire) }
    }
}

/// The part of an offset that says what is mapped.
const OFFSETS: u64 = 0xf800_0000;

/// The group whose ring of buffers mmap(2) maps at this offset.
pub(crate) fn group_at(offset: u64) -> Option<u16> {
    (offset & OFFSETS == OFF_BUFFERS).then_some(((offset & !OFFSETS) >> 16) as u16)
}

fn pages(len: usize) -> usize {
    len.div_ceil(PAGE) * PAGE
}

impl Memory {
    /// Makes the memory for queues whose sizes are powers of two. With NO_MMAP, in the program's
    /// pages at the addresses in the parameters.
    pub(crate) fn new(params: &Params) -> Result<Self, i32> {
        let Params { sq_entries, cq_entries, flags, .. } = *params;
        let cqe_size = if flags & setup::CQE32 != 0 { 32 } else { 16 };
        let sqe_size = if flags & setup::SQE128 != 0 { 2 * SQE } else { SQE };
        let array = (CQES + cqe_size * cq_entries as usize).next_multiple_of(64);
        let has_array = flags & setup::NO_SQARRAY == 0;
        let end = if has_array { array + 4 * sq_entries as usize } else { array };
        let in_sqes = sqe_size * sq_entries as usize;
        let is_theirs = flags & setup::NO_MMAP != 0;
        let (rings, sqes) = if is_theirs {
            let rings = Mapped::of_program(params.cq_off.user_addr, end)?;
            // SAFETY: the header, in pages that the program has provided for the rings.
            unsafe { rings.at.write_bytes(0, CQES) };
            (rings, Mapped::of_program(params.sq_off.user_addr, in_sqes)?)
        } else {
            (Mapped::new(end)?, Mapped::new(in_sqes)?)
        };
        let beside = Mapped::new(RECORDS + size_of::<Record>() * cq_entries as usize)?;
        let array = if has_array { array } else { 0 };
        let memory = Self {
            rings,
            sqes,
            beside,
            sq_entries,
            cq_entries,
            array,
            cqe_size,
            sqe_size,
            is_theirs,
        };
        memory.word(Word::SqMask).store(sq_entries - 1, Ordering::Relaxed);
        memory.word(Word::CqMask).store(cq_entries - 1, Ordering::Relaxed);
        memory.word(Word::SqEntries).store(sq_entries, Ordering::Relaxed);
        memory.word(Word::CqEntries).store(cq_entries, Ordering::Relaxed);
        Ok(memory)
    }

    pub(crate) fn sq_entries(&self) -> u32 {
        self.sq_entries
    }

    pub(crate) fn cq_entries(&self) -> u32 {
        self.cq_entries
    }

    /// Copies entries, completions, and all words but masks and sizes from the memory that the ring
    /// had before a resize. Nobody else uses the new memory yet, and the ring's lock is held.
    ///
    /// # Errors
    /// `-EOVERFLOW`: the entries or the completions have no room here.
    pub(crate) fn take_over(&self, old: &Self) -> Result<(), i32> {
        let read = |word| old.word(word).load(Ordering::Acquire);
        let entries = (old.page().sq_head.load(Ordering::Acquire), read(Word::SqTail));
        let completions = (read(Word::CqHead), old.page().cq_tail.load(Ordering::Acquire));
        let is_too_long = |(head, tail): (u32, u32), room| tail.wrapping_sub(head) > room;
        if is_too_long(entries, self.sq_entries) || is_too_long(completions, self.cq_entries) {
            return Err(-libc::EOVERFLOW);
        }
        let places = |(head, tail): (u32, u32)| {
            (0..tail.wrapping_sub(head)).map(move |at| head.wrapping_add(at))
        };
        for place in places(entries) {
            let [from, to] = [old, self].map(|memory| memory.raw_entry(place));
            copy(from, to, self.sqe_size);
        }
        for place in places(completions) {
            let [from, to] = [old, self].map(|memory| memory.raw_cqe(place));
            copy(from, to, self.cqe_size);
        }
        for (word, value) in [
            (Word::SqHead, entries.0),
            (Word::SqTail, entries.1),
            (Word::CqHead, completions.0),
            (Word::CqTail, completions.1),
        ] {
            self.word(word).store(value, Ordering::Relaxed);
        }
        for word in [Word::SqDropped, Word::SqFlags, Word::CqFlags, Word::CqOverflow] {
            self.word(word).store(read(word), Ordering::Relaxed);
        }
        self.page().take_over(old.page());
        Ok(())
    }

    /// The bytes of the entry whose index belongs to this place.
    fn raw_entry(&self, place: u32) -> *mut u8 {
        self.sqes.at.wrapping_add((place & (self.sq_entries - 1)) as usize * self.sqe_size)
    }

    /// The bytes of the completion at this place.
    fn raw_cqe(&self, place: u32) -> *mut u8 {
        let place = (place & (self.cq_entries - 1)) as usize;
        self.rings.at.wrapping_add(CQES + place * self.cqe_size)
    }

    pub(crate) fn sq_offsets(&self) -> SqOffsets {
        SqOffsets {
            head: Word::SqHead as u32,
            tail: Word::SqTail as u32,
            ring_mask: Word::SqMask as u32,
            ring_entries: Word::SqEntries as u32,
            flags: Word::SqFlags as u32,
            dropped: Word::SqDropped as u32,
            array: self.array as u32,
            ..SqOffsets::default()
        }
    }

    pub(crate) fn cq_offsets() -> CqOffsets {
        CqOffsets {
            head: Word::CqHead as u32,
            tail: Word::CqTail as u32,
            ring_mask: Word::CqMask as u32,
            ring_entries: Word::CqEntries as u32,
            overflow: Word::CqOverflow as u32,
            cqes: CQES as u32,
            flags: Word::CqFlags as u32,
            ..CqOffsets::default()
        }
    }

    #[inline]
    pub(crate) fn word(&self, word: Word) -> &AtomicU32 {
        // SAFETY: aligned, inside the first page, and an atomic to everybody.
        unsafe { &*self.rings.at.add(word as usize).cast::<AtomicU32>() }
    }

    /// The words that processes sharing the ring exchange.
    #[inline]
    pub(crate) fn page(&self) -> &Page {
        // SAFETY: at the beginning of pages that were zeroed, and atomics to everybody.
        unsafe { &*self.beside.at.cast::<Page>() }
    }

    /// The records of requests in flight: one for each entry of the completion queue.
    pub(crate) fn records(&self) -> &[Record] {
        // SAFETY: the mapping has room for this number of records behind the page's words. They are
        // aligned, and atomics to everybody.
        unsafe {
            let first = self.beside.at.add(RECORDS).cast::<Record>();
            std::slice::from_raw_parts(first, self.cq_entries as usize)
        }
    }

    /// The entry at this place of the submission queue. `None`: the program's index for it is out
    /// of range.
    pub(crate) fn sqe(&self, place: u32) -> Option<RawSqe> {
        let entry = self.entry(place)?;
        // SAFETY: the address is an entry's. If the program writes at the same time, any values are
        // read.
        Some(unsafe { entry.read_volatile() })
    }

    /// The operation of the entry at this place.
    #[inline]
    pub(crate) fn opcode(&self, place: u32) -> Option<u8> {
        let entry = self.entry(place)?;
        // SAFETY: as above; its first byte.
        Some(unsafe { entry.cast::<u8>().read_volatile() })
    }

    #[inline]
    fn entry(&self, place: u32) -> Option<*const RawSqe> {
        let place = place & (self.sq_entries - 1);
        let index = if self.array == 0 {
            place
        } else {
            // SAFETY: the array has one word for each entry, and the words are atomics to us.
            let index =
                unsafe { &*self.rings.at.add(self.array).cast::<AtomicU32>().add(place as usize) };
            index.load(Ordering::Relaxed)
        };
        if index >= self.sq_entries {
            return None;
        }
        // SAFETY: the index is below the number of entries.
        Some(unsafe { self.sqes.at.add(index as usize * self.sqe_size).cast::<RawSqe>() })
    }

    /// Writes a completion to a place. Nobody reads it before the tail is published.
    pub(crate) fn write_cqe(&self, place: u32, cqe: &Cqe) {
        let at = self.raw_cqe(place).cast::<Cqe>();
        // SAFETY: inside the ring, because the place is masked. A program that reads a place before
        // it is published gets any value.
        unsafe {
            // Field by field, as the caller has just stored the fields. A wider load of the whole
            // completion would stall until these stores are done.
            (&raw mut (*at).user_data).write_volatile(cqe.user_data);
            (&raw mut (*at).res).write_volatile(cqe.res);
            (&raw mut (*at).flags).write_volatile(cqe.flags);
            if self.cqe_size > size_of::<Cqe>() {
                at.add(1).write_volatile(Cqe::default());
            }
        }
    }

    /// mmap(2) of the ring's descriptor. Returns the program's address, or a negative errno.
    ///
    /// # Safety
    /// As mmap(2) with these arguments.
    pub(crate) unsafe fn map(
        &self,
        at: usize,
        len: usize,
        prot: i32,
        flags: i32,
        offset: u64,
    ) -> isize {
        if self.is_theirs {
            return -(libc::ENOMEM as isize);
        }
        let pages = match offset & OFFSETS {
            OFF_SQ_RING | OFF_CQ_RING => &self.rings,
            OFF_SQES => &self.sqes,
            _ => return -(libc::ENOMEM as isize),
        };
        // SAFETY: the caller's contract.
        unsafe { pages.map(at, len, prot, flags) }
    }
}

/// Copies this number of bytes, a multiple of 8, from one entry or completion to another.
fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    for at in 0..bytes / 8 {
        // SAFETY: both have that size, and begin at a multiple of 8. If the program writes at the
        // same time, any values are read.
        unsafe {
            let word = from.cast::<u64>().add(at).read_volatile();
            to.cast::<u64>().add(at).write_volatile(word);
        }
    }
}

impl Queue for Memory {
    fn entries(&self) -> u32 {
        self.cq_entries
    }

    fn head(&self) -> u32 {
        self.word(Word::CqHead).load(Ordering::Acquire)
    }

    fn write(&self, place: u32, cqe: &Cqe) {
        self.write_cqe(place, cqe);
    }

    fn tail(&self) -> u32 {
        self.page().cq_tail.load(Ordering::Acquire)
    }

    fn seen_tail(&self) -> u32 {
        self.word(Word::CqTail).load(Ordering::Acquire)
    }

    fn publish(&self, tail: u32) {
        // The page's tail first: if this process is killed in between, the ring's next owner goes
        // on from that tail.
        self.page().cq_tail.store(tail, Ordering::Release);
        self.word(Word::CqTail).store(tail, Ordering::Release);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn memory(sizes: (u32, u32), flags: u32) -> Memory {
        let (sq_entries, cq_entries) = sizes;
        Memory::new(&Params { sq_entries, cq_entries, flags, ..Params::default() }).expect("memory")
    }

    /// Fills both queues from these places on. The last word of each entry and completion is its
    /// place.
    fn fill(memory: &Memory, (sq, cq): (u32, u32)) {
        let last = |at: *mut u8, size: usize| {
            // SAFETY: a place of that size.
            unsafe { at.cast::<u64>().add(size / 8 - 1).as_mut().expect("a place") }
        };
        for at in 0..memory.sq_entries {
            let place = sq.wrapping_add(at);
            *last(memory.raw_entry(place), memory.sqe_size) = place.into();
        }
        for at in 0..memory.cq_entries {
            let place = cq.wrapping_add(at);
            *last(memory.raw_cqe(place), memory.cqe_size) = place.into();
        }
        memory.page().sq_head.store(sq, Ordering::Relaxed);
        memory.word(Word::SqTail).store(sq.wrapping_add(memory.sq_entries), Ordering::Relaxed);
        memory.word(Word::CqHead).store(cq, Ordering::Relaxed);
        memory.publish(cq.wrapping_add(memory.cq_entries));
    }

    #[test]
    fn entries_and_completions_of_each_size_keep_their_places_in_other_queues() {
        for flags in
            [0, setup::NO_SQARRAY, setup::SQE128, setup::CQE32, setup::SQE128 | setup::CQE32]
        {
            let (sq, cq) = (u32::MAX - 1, u32::MAX - 4);
            let old = memory((4, 8), flags);
            fill(&old, (sq, cq));
            let new = memory((16, 32), flags);
            assert_eq!(new.take_over(&old), Ok(()));
            let words = [Word::SqHead, Word::SqTail, Word::CqHead, Word::CqTail];
            let seen = words.map(|word| new.word(word).load(Ordering::Relaxed));
            assert_eq!(seen, [sq, sq.wrapping_add(4), cq, cq.wrapping_add(8)], "{flags:x}");
            let last = |at: *mut u8, size: usize| {
                // SAFETY: a place of that size.
                unsafe { at.cast::<u64>().add(size / 8 - 1).read() }
            };
            for place in (0..4).map(|at| sq.wrapping_add(at)) {
                assert_eq!(last(new.raw_entry(place), new.sqe_size), place.into(), "{flags:x}");
            }
            for place in (0..8).map(|at| cq.wrapping_add(at)) {
                assert_eq!(last(new.raw_cqe(place), new.cqe_size), place.into(), "{flags:x}");
            }
            assert_eq!(memory((2, 8), flags).take_over(&old), Err(-libc::EOVERFLOW));
            assert_eq!(memory((4, 4), flags).take_over(&old), Err(-libc::EOVERFLOW));
        }
    }

    #[test]
    fn memory_that_was_replaced_stays_as_long_as_the_ring() {
        let current = Current::new(Arc::new(memory((4, 8), 0)));
        let first: &Memory = &current;
        current.replace(Arc::new(memory((8, 16), 0)));
        first.word(Word::SqTail).store(7, Ordering::Relaxed);
        assert_eq!((first.sq_entries(), current.sq_entries()), (4, 8));
        assert_eq!((current.share().sq_entries(), current.cq_entries()), (8, 16));
    }
}
