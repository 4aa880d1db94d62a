//! What io_uring_enter(2) does before it has the ring's lock: it prepares the entries that borrow
//! memory of the program's. That memory may have to be paged in, and a server may not answer.

use std::collections::VecDeque;

use crate::abi::op;
use crate::memory::Memory;
use crate::prepare::Refused;
use crate::ring::Request;

/// An entry that was prepared.
#[derive(Debug)]
pub(crate) struct Prepared {
    place: u32,
    pub(crate) request: Request,
    pub(crate) answer: Result<(), Refused>,
}

/// The entries of one call.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The place of the first entry.
    head: u32,
    /// Entries that are there.
    pub(crate) there: u32,
    /// Entries that were taken from the queue, and those of them that count as submitted.
    pub(crate) taken: u32,
    pub(crate) consumed: u32,
    /// None of the others is taken.
    pub(crate) is_over: bool,
    /// Entries that borrow. One alone is not allocated; the others seldom are there.
    first: Option<Prepared>,
    #[allow(clippy::box_collection, reason = "one word to look at where there are none")]
    others: Option<Box<VecDeque<Prepared>>>,
}

impl Batch {
    /// Prepares up to `count` entries from `head` on, as far as they borrow.
    pub(crate) fn read(
        memory: &Memory,
        (head, there): (u32, u32),
        count: u32,
        iopoll: bool,
    ) -> Self {
        let mut batch =
            Self { head, there, taken: 0, consumed: 0, is_over: false, first: None, others: None };
        for place in (0..count.min(there)).map(|at| head.wrapping_add(at)) {
            if memory.opcode(place).is_some_and(op::borrows) {
                batch.prepare(memory, place, iopoll);
            }
        }
        batch
    }

    #[inline(never)]
    fn prepare(&mut self, memory: &Memory, place: u32, iopoll: bool) {
        let Some(entry) = memory.sqe(place) else { return };
        let mut request = Request::new();
        let answer = request.prepare(&entry, iopoll);
        let prepared = Prepared { place, request, answer };
        if self.first.is_none() {
            self.first = Some(prepared);
        } else {
            self.others.get_or_insert_default().push_back(prepared);
        }
    }

    /// The place of the next entry.
    pub(crate) fn next(&self) -> u32 {
        self.head.wrapping_add(self.taken)
    }

    /// What was prepared for this place.
    #[inline]
    pub(crate) fn take(&mut self, place: u32) -> Option<Prepared> {
        let is_here = |one: &Prepared| one.place == place;
        if self.first.as_ref().is_some_and(is_here) {
            return self.first.take();
        }
        let others = self.others.as_deref_mut()?;
        others.front().is_some_and(is_here).then(|| others.pop_front()).flatten()
    }
}
