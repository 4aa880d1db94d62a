//! The memory of a ring: this library's pages, which stay until nobody posts any more, and the
//! program's mappings of the same pages.
//!
//! The program may write anything to it at any time. So it is only accessed by atomics, or copied
//! once. Every index is masked, and values that the program must not change are kept elsewhere.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

use uringlet::front::memory::accessible_now;

use crate::abi::{CqOffsets, Cqe, OFF_CQ_RING, OFF_SQ_RING, OFF_SQES, Params, SqOffsets, setup};
use crate::completions::Queue;
use crate::shared::journal::Record;
use crate::shared::page::Page;
use crate::sys;

const PAGE: usize = 4096;
const CQES: usize = 64;
const SQE: usize = 64;
/// The offset of the journal's records, after the page's words.
const RECORDS: usize = 64;
const _: () = assert!(size_of::<Page>() <= RECORDS);

/// An entry as the program wrote it, in words.
pub(crate) type RawSqe = [u64; 8];

#[derive(Debug)]
pub(crate) struct Memory {
    rings: Mapped,
    sqes: Mapped,
    /// The words that processes sharing the ring exchange.
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

// SAFETY: shared memory, touched as atomics and by volatile copies.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// Shared zeroed pages, or the program's pages.
#[derive(Debug)]
struct Mapped {
    at: *mut u8,
    len: usize,
    /// The library does not unmap this memory.
    is_theirs: bool,
}

impl Mapped {
    fn new(len: usize) -> Result<Self, i32> {
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
        // SAFETY: pages that are there; those of private mappings are refused.
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
            // SAFETY: the first page, which the program has for this.
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

    /// The records of requests in flight, by number: as many as the completion queue has places.
    pub(crate) fn records(&self) -> &[Record] {
        // SAFETY: the mapping has room for as many behind the page's words, aligned as those; they
        // are atomics to everybody.
        unsafe {
            let first = self.beside.at.add(RECORDS).cast::<Record>();
            std::slice::from_raw_parts(first, self.cq_entries as usize)
        }
    }

    /// The entry at this place of the submission queue. `None`: the program's index for it is out
    /// of range.
    pub(crate) fn sqe(&self, place: u32) -> Option<RawSqe> {
        let entry = self.entry(place)?;
        // SAFETY: an entry. The program may write at the same time: then the words are any.
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
            // SAFETY: the array has as many words, which are atomics to us.
            let index =
                unsafe { &*self.rings.at.add(self.array).cast::<AtomicU32>().add(place as usize) };
            index.load(Ordering::Relaxed)
        };
        if index >= self.sq_entries {
            return None;
        }
        // SAFETY: the index was compared.
        Some(unsafe { self.sqes.at.add(index as usize * self.sqe_size).cast::<RawSqe>() })
    }

    /// Writes a completion to a place. Nobody reads it before the tail is published.
    pub(crate) fn write_cqe(&self, place: u32, cqe: &Cqe) {
        let place = (place & (self.cq_entries - 1)) as usize;
        // SAFETY: inside the ring, which has as many places; the program's reads of a place that
        // is not published are its own affair.
        unsafe {
            let at = self.rings.at.add(CQES + place * self.cqe_size).cast::<Cqe>();
            // Field by field, as they were made: a copy of the whole would wait for its parts.
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
        /// The part of the offset that the kernel uses.
        const MASK: u64 = 0xf800_0000;
        if self.is_theirs {
            return -(libc::ENOMEM as isize);
        }
        let (from, whole) = match offset & MASK {
            OFF_SQ_RING | OFF_CQ_RING => (self.rings.at, self.rings.len),
            OFF_SQES => (self.sqes.at, self.sqes.len),
            _ => return -(libc::ENOMEM as isize),
        };
        if len == 0 || len > whole {
            return -(libc::EINVAL as isize);
        }
        let fixed = (flags & libc::MAP_FIXED != 0).then_some(at);
        let len = pages(len);
        // SAFETY: pages of a shared mapping; what lies at a fixed address is the caller's to give.
        let mapped = match unsafe { sys::map_again(from, len, fixed) } {
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

impl Queue for Memory {
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
        // The page's tail first: a process that adopts the ring uses it.
        self.page().cq_tail.store(tail, Ordering::Release);
        self.word(Word::CqTail).store(tail, Ordering::Release);
    }
}
