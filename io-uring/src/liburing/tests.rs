//! A ring in the test's memory. One thread submits while another one reaps, which liburing's manual
//! allows. The thread that reaps also acts as the kernel. Miri can run this: there is no system
//! call.
#![allow(unsafe_code)]

use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use super::submit::_io_uring_get_sqe;
use super::wait::_io_uring_peek_batch_cqe;
use super::{RingAt, word};
use crate::abi::{self, CQE_SKIP, CQE_WIDE, Cqe, Uring, setup};

const ENTRIES: u32 = 4;

/// The words of a queue: head, tail, mask, entries, flags.
type Words = [u32; 5];

#[derive(Clone, Copy)]
struct Shared(RingAt);

// SAFETY: one thread only submits, and the other one only reaps and acts as the kernel.
unsafe impl Send for Shared {}

impl Shared {
    fn ring(self) -> RingAt {
        self.0
    }
}

fn sq(words: *mut u32, sqes: *mut u8) -> abi::Sq {
    let word = |at| words.wrapping_add(at);
    abi::Sq {
        khead: word(0),
        ktail: word(1),
        kring_mask: word(2),
        kring_entries: word(3),
        kflags: word(4),
        kdropped: null_mut(),
        array: null_mut(),
        sqes,
        sqe_head: 0,
        sqe_tail: 0,
        ring_sz: 0,
        ring_ptr: null_mut(),
        ring_mask: ENTRIES - 1,
        ring_entries: ENTRIES,
        sqes_sz: 0,
        pad: 0,
    }
}

fn cq(words: *mut u32, cqes: *mut u8) -> abi::Cq {
    let word = |at| words.wrapping_add(at);
    abi::Cq {
        khead: word(0),
        ktail: word(1),
        kring_mask: word(2),
        kring_entries: word(3),
        kflags: word(4),
        koverflow: null_mut(),
        cqes,
        ring_sz: 0,
        ring_ptr: null_mut(),
        ring_mask: ENTRIES - 1,
        ring_entries: ENTRIES,
        pad: [0; 2],
    }
}

/// Fills in `count` entries. The first word of each entry is the entry's number, from 0 on.
fn submit(ring: RingAt, count: u32) {
    let mut filled = 0;
    while filled < count {
        // SAFETY: a ring, to which this thread submits alone.
        let sqe = unsafe { _io_uring_get_sqe(ring) };
        if sqe.is_null() {
            std::thread::yield_now();
        } else {
            // SAFETY: a free entry of 64 bytes.
            unsafe { sqe.cast::<u32>().write(filled) };
            filled += 1;
        }
        // SAFETY: as above.
        unsafe { ring.flush() };
    }
}

/// Completes each entry with its number, as long as there is room for completions.
fn execute(ring: RingAt) {
    // SAFETY: the words of a ring, whose kernel this thread is.
    unsafe {
        let (sq, cq) = (&raw const (*ring.0).sq, &raw const (*ring.0).cq);
        let (head, posted) = ((*sq).khead, (*cq).ktail);
        loop {
            let at = word(head).load(Ordering::Relaxed);
            let place = word(posted).load(Ordering::Relaxed);
            let is_full = place - word((*cq).khead).load(Ordering::Relaxed) == ENTRIES;
            if is_full || at == word((*sq).ktail).load(Ordering::Acquire) {
                return;
            }
            let sqe = (*sq).sqes.add((at % ENTRIES) as usize * 64);
            let user_data = sqe.cast::<u32>().read().into();
            let cqe = Cqe { user_data, res: 0, flags: 0 };
            (*cq).cqes.cast::<Cqe>().add((place % ENTRIES) as usize).write(cqe);
            word(posted).store(place + 1, Ordering::Release);
            word(head).store(at + 1, Ordering::Release);
        }
    }
}

fn uring(sq: abi::Sq, cq: abi::Cq, flags: u32) -> Uring {
    Uring {
        sq,
        cq,
        flags: setup::NO_SQARRAY | flags,
        ring_fd: -1,
        features: 0,
        enter_ring_fd: -1,
        int_flags: 0,
        pad: [0; 3],
        pad2: 0,
    }
}

#[test]
fn one_thread_submits_while_another_reaps() {
    const COUNT: u32 = if cfg!(miri) { 12 } else { 1000 };
    let new = || -> Words { [0, 0, ENTRIES - 1, ENTRIES, 0] };
    let (mut in_sq, mut in_cq) = (new(), new());
    let mut sqes = [[0u64; 8]; ENTRIES as usize];
    let mut cqes = [Cqe::default(); ENTRIES as usize];
    let sq = sq((&raw mut in_sq).cast(), (&raw mut sqes).cast());
    let mut ring = uring(sq, cq((&raw mut in_cq).cast(), (&raw mut cqes).cast()), 0);
    let shared = Shared(RingAt(&raw mut ring));
    let submitter = std::thread::spawn(move || submit(shared.ring(), COUNT));
    let (ring, mut seen) = (shared.ring(), 0);
    while seen < COUNT {
        execute(ring);
        let mut found = [null_mut::<Cqe>(); ENTRIES as usize];
        // SAFETY: a ring, from which this thread reaps alone, with room for as many.
        let count = unsafe {
            if ring.ready() == 0 {
                std::thread::yield_now();
                continue;
            }
            _io_uring_peek_batch_cqe(ring, found.as_mut_ptr(), ENTRIES)
        };
        for cqe in &found[..count as usize] {
            // SAFETY: a completion that is not marked as seen.
            assert_eq!(unsafe { (**cqe).user_data }, seen.into());
            seen += 1;
        }
        // SAFETY: a word of the ring's.
        unsafe { word((*ring.0).cq.khead) }.fetch_add(count, Ordering::Release);
    }
    submitter.join().unwrap();
}

#[test]
fn completions_of_mixed_sizes_are_counted_by_their_places() {
    let words = |tail| -> Words { [0, tail, ENTRIES - 1, ENTRIES, 0] };
    let flags_of = |flags: [u32; ENTRIES as usize]| {
        let at = |place: usize| Cqe { user_data: place as u64, res: 0, flags: flags[place] };
        std::array::from_fn::<_, { ENTRIES as usize }, _>(at)
    };
    let (mut in_sq, mut in_cq) = (words(0), words(4));
    let mut sqes = [[0u64; 8]; ENTRIES as usize];
    let mut cqes = flags_of([CQE_SKIP, CQE_WIDE, 0, 0]);
    let sq = sq((&raw mut in_sq).cast(), (&raw mut sqes).cast());
    let cq = cq((&raw mut in_cq).cast(), (&raw mut cqes).cast());
    let mut ring = uring(sq, cq, setup::CQE_MIXED);
    let ring = RingAt(&raw mut ring);
    let found = || {
        let mut found = [null_mut::<Cqe>(); ENTRIES as usize];
        // SAFETY: a ring with completions, and room for as many.
        let count = unsafe { _io_uring_peek_batch_cqe(ring, found.as_mut_ptr(), ENTRIES) };
        // SAFETY: completions of the ring.
        let named = |&cqe: &*mut Cqe| unsafe { (*cqe).user_data };
        found[..count as usize].iter().map(named).collect::<Vec<_>>()
    };
    // The place that is no completion is passed over, and marked as seen.
    assert_eq!(found(), [1, 3]);
    // SAFETY: a word of the ring's.
    let head = unsafe { word((*ring.0).cq.khead) };
    assert_eq!(head.load(Ordering::Relaxed), 1);
    // Behind a completion, a place that is no completion ends the batch.
    // SAFETY: the places of completions.
    unsafe { ((*ring.cqe(1)).flags, (*ring.cqe(2)).flags) = (0, CQE_SKIP) };
    assert_eq!(found(), [1]);
}
