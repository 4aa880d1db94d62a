//! An allocator for drop-ins: the C library's, with a reserve for small allocations when it fails.
//!
//! Rust ends the process when there is no memory. A library must not do that to the program that
//! loaded it. The library checks beforehand whether a large amount is free ([`has_memory`]). A
//! small allocation that fails nevertheless comes from the reserve. Large allocations have a
//! mapping of their own, apart from the program's ([`Mapping`]).
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys::Mapping;

/// The bytes of the reserve. The largest allocation in it has [`PIECE`] bytes. Code that needs a
/// larger allocation asks with `try_reserve`, and copes with a failure.
const SIZE: usize = 128 * 1024;
const PIECE: usize = 4096;
/// Allocations of this many bytes or more get a mapping, as in the C library.
const LARGE: usize = 128 * 1024;

fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE && layout.align() <= 4096
}

fn map(layout: Layout) -> *mut u8 {
    let mapping = Mapping::new(layout.size(), libc::PROT_READ | libc::PROT_WRITE);
    mapping.map_or(std::ptr::null_mut(), Mapping::leak)
}

/// The allocator. Its reserve is a bump allocator, which is reset when everything was freed.
/// Nothing in this crate needs a larger alignment than the reserve has (`CachePadded`).
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Reserve {
    memory: UnsafeCell<[u8; SIZE]>,
    /// Upper half: bytes allocated. Lower half: allocations that were not freed.
    word: AtomicU64,
}

// SAFETY: each piece is handed out to one caller, by a compare-exchange of the word.
unsafe impl Sync for Reserve {}

impl Default for Reserve {
    fn default() -> Self {
        Self::new()
    }
}

impl Reserve {
    /// An unused reserve.
    pub const fn new() -> Self {
        Self { memory: UnsafeCell::new([0; SIZE]), word: AtomicU64::new(0) }
    }

    fn take(&self, layout: Layout) -> *mut u8 {
        if layout.size() > PIECE || layout.align() > align_of::<Self>() {
            return std::ptr::null_mut();
        }
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let (used, pieces) = ((word >> 32) as usize, word & u64::from(u32::MAX));
            let begin = used.next_multiple_of(layout.align());
            let Some(end) = begin.checked_add(layout.size()).filter(|&end| end <= SIZE) else {
                return std::ptr::null_mut();
            };
            let new = (end as u64) << 32 | (pieces + 1);
            // Acquire: the earlier owner of this memory has finished with it.
            match self.word.compare_exchange_weak(word, new, Ordering::Acquire, Ordering::Relaxed) {
                // SAFETY: within the memory.
                Ok(_) => return unsafe { self.memory.get().cast::<u8>().add(begin) },
                Err(now) => word = now,
            }
        }
    }

    fn owns(&self, at: *mut u8) -> bool {
        let first = self.memory.get().addr();
        (first..first + SIZE).contains(&at.addr())
    }

    fn give_back(&self) {
        let last = |word: u64| if word as u32 == 1 { 0 } else { word - 1 };
        // Release: see `take`.
        let _ = self.word.fetch_update(Ordering::Release, Ordering::Relaxed, |w| Some(last(w)));
    }
}

// SAFETY: the memory is a mapping, or the C library's, or a piece of the reserve that nobody else
// has. It is as long and as aligned as asked for.
unsafe impl GlobalAlloc for Reserve {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            return map(layout);
        }
        // SAFETY: the caller's contract.
        let found = unsafe { System.alloc(layout) };
        if found.is_null() { self.take(layout) } else { found }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            return map(layout);
        }
        // SAFETY: the caller's contract.
        let found = unsafe { System.alloc_zeroed(layout) };
        if !found.is_null() {
            return found;
        }
        let piece = self.take(layout);
        if !piece.is_null() {
            // SAFETY: the piece has this length, and is the caller's.
            unsafe { piece.write_bytes(0, layout.size()) };
        }
        piece
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if is_large(layout) {
            // SAFETY: `map` made this memory, with this size. Its owner does not use it any more.
            drop(unsafe { Mapping::of(at, layout.size()) });
        } else if self.owns(at) {
            self.give_back();
        } else {
            // SAFETY: the caller's contract; the memory is not the reserve's, so the C library made
            // it.
            unsafe { System.dealloc(at, layout) };
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.owns(at) && !is_large(layout) && size < LARGE {
            // SAFETY: the caller's contract.
            let found = unsafe { System.realloc(at, layout, size) };
            if !found.is_null() {
                return found;
            }
        }
        // SAFETY: a size that the caller answers for, with an alignment that was accepted before.
        let new = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
        if !new.is_null() {
            // SAFETY: both blocks are at least that long, and do not overlap. The old one is the
            // caller's.
            unsafe {
                new.copy_from_nonoverlapping(at, size.min(layout.size()));
                self.dealloc(at, layout);
            }
        }
        new
    }
}

/// The maximum memory in bytes of a context with this many slots, without its queue of entries that
/// are pushed and not submitted.
pub const fn context_bytes(slots: usize) -> usize {
    512 * 1024 + slots * 640
}

/// Are this many bytes of memory free? Two system calls, and nothing is kept.
pub fn has_memory(bytes: usize) -> bool {
    Mapping::new(bytes, libc::PROT_READ | libc::PROT_WRITE).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_apart_aligned_and_whole_again_in_the_end() {
        let reserve = Reserve::new();
        let layouts = [(1, 1), (100, 8), (3, 64), (5, 128), (4096, 16)];
        let layouts = layouts.map(|(size, align)| Layout::from_size_align(size, align).unwrap());
        for _ in 0..3 {
            let mut end = 0;
            for layout in layouts {
                let piece = reserve.take(layout);
                assert!(reserve.owns(piece) && piece.addr().is_multiple_of(layout.align()));
                assert!(piece.addr() >= end, "{layout:?}");
                end = piece.addr() + layout.size();
            }
            layouts.iter().for_each(|_| reserve.give_back());
        }
        let largest = Layout::from_size_align(PIECE, 64).unwrap();
        let taken = std::iter::repeat_with(|| reserve.take(largest)).take_while(|at| !at.is_null());
        assert_eq!(taken.count(), SIZE / PIECE);
        (0..SIZE / PIECE).for_each(|_| reserve.give_back());
        assert!(reserve.take(Layout::from_size_align(PIECE + 1, 1).unwrap()).is_null());
        assert!(!reserve.take(largest).is_null());
    }

    #[test]
    fn what_outgrows_the_c_librarys_memory_or_the_reserve_keeps_its_content() {
        let reserve = Reserve::new();
        let small = Layout::from_size_align(4, 1).unwrap();
        // SAFETY: each piece is used within the length that was asked for, and given back once.
        unsafe {
            let piece = reserve.take(small);
            piece.copy_from_nonoverlapping(b"abcd".as_ptr(), 4);
            let grown = reserve.realloc(piece, small, 6);
            assert!(!reserve.owns(grown) && std::slice::from_raw_parts(grown, 4) == b"abcd");
            assert_eq!(reserve.word.load(Ordering::Relaxed), 0);
            reserve.dealloc(grown, Layout::from_size_align(6, 1).unwrap());
        }
    }

    #[test]
    fn more_than_there_is_cannot_be_had() {
        assert!(has_memory(1 << 20));
        assert!(!has_memory(usize::MAX / 2));
    }
}
