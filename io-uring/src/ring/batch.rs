//! The part of io_uring_enter(2) before the ring's lock: prepares the entries that borrow memory of
//! the program's. That memory may have to be paged in, from a file server that may not answer.

use std::collections::VecDeque;

use uringlet::Sqe;

use super::types::Request;
use crate::abi::{MAX_RW_COUNT, Timespec, iosqe, op};
use crate::memory::Memory;
use crate::prepare::{self, Fields, Plan, Refused};
use crate::{rights, sys, user};

/// An entry that was prepared.
#[derive(Debug)]
pub(super) struct Prepared {
    place: u32,
    pub(super) request: Request,
    pub(super) answer: Result<(), Refused>,
}

/// The entries of one call.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The position of the first entry in the submission queue.
    head: u32,
    /// The number of entries in the queue.
    pub(super) there: u32,
    /// The number of entries that were taken from the queue, and the number of entries that count
    /// as submitted.
    pub(super) taken: u32,
    pub(super) consumed: u32,
    /// One of the entries is a cancel. Receives of this batch are tried at once, so that the cancel
    /// finds none whose data is there.
    pub(super) cancels: bool,
    /// One of the entries may be a send that its submitter makes.
    pub(super) sends: bool,
    /// Sends were taken, and were not made yet.
    pub(super) has_sent: bool,
    /// The batch has paused before the entry at this position.
    pub(super) paused: Option<u32>,
    /// The batch takes no further entry.
    pub(super) is_over: bool,
    /// Entries that borrow memory. A single one needs no allocation; more are rare.
    first: Option<Prepared>,
    #[allow(clippy::box_collection, reason = "one word to look at where there are none")]
    others: Option<Box<VecDeque<Prepared>>>,
}

impl Batch {
    /// Looks at up to `count` entries from `head` on. Prepares each entry that borrows memory.
    pub(super) fn read(
        memory: &Memory,
        (head, there): (u32, u32),
        count: u32,
        iopoll: bool,
    ) -> Self {
        let mut batch = Self { head, there, ..Self::default() };
        for place in (0..count.min(there)).map(|at| head.wrapping_add(at)) {
            let opcode = memory.opcode(place).unwrap_or(op::NOP);
            batch.cancels |= opcode == op::ASYNC_CANCEL;
            batch.sends |= matches!(opcode, op::SEND | op::WRITE);
            let sqe = || memory.sqe(place).map(Fields);
            let does = || sqe().is_some_and(|fields| prepare::send_borrows(&fields));
            if prepare::borrows(opcode) && (opcode != op::SEND || does()) {
                batch.prepare(memory, place, iopoll);
            }
        }
        batch
    }

    #[inline(never)]
    fn prepare(&mut self, memory: &Memory, place: u32, iopoll: bool) {
        let Some(entry) = memory.sqe(place) else { return };
        let mut request = Request::new();
        let answer = request.prepare(&Fields(entry), iopoll);
        let prepared = Prepared { place, request, answer };
        if self.first.is_none() {
            self.first = Some(prepared);
        } else {
            self.others.get_or_insert_default().push_back(prepared);
        }
    }

    /// Is there another one of the `count` entries that the call submits?
    pub(super) fn has_next(&self, count: u32) -> bool {
        self.consumed < count && self.taken < self.there
    }

    /// The position of the next entry in the submission queue.
    pub(super) fn next(&self) -> u32 {
        self.head.wrapping_add(self.taken)
    }

    /// Takes the entry at this position, if it was prepared.
    #[inline]
    pub(super) fn take(&mut self, place: u32) -> Option<Prepared> {
        let is_here = |one: &Prepared| one.place == place;
        if self.first.as_ref().is_some_and(is_here) {
            return self.first.take();
        }
        let others = self.others.as_deref_mut()?;
        others.front().is_some_and(is_here).then(|| others.pop_front()).flatten()
    }
}

impl Request {
    /// Fills the request from its entry. Structures that the entry points to (an iovec array, a
    /// time) are copied; data buffers are not. Entries with such structures are prepared before the
    /// ring's lock is taken, in `Batch::read`.
    #[inline(always)]
    pub(super) fn prepare(&mut self, fields: &Fields, iopoll: bool) -> Result<(), Refused> {
        (self.opcode, self.user_data) = (fields.opcode(), fields.user_data());
        (self.fd, self.flags) = (fields.fd(), fields.flags() & iosqe::KNOWN);
        self.plan = Plan::Nop(0);
        self.notice = prepare::notice(fields).filter(|_| !iopoll);
        self.plan = prepare::plan(fields, iopoll)?;
        if matches!(self.opcode, op::READ..=op::WRITE | op::READ_FIXED..=op::WRITE_FIXED)
            || matches!(self.opcode, op::SPLICE | op::TEE)
        {
            self.expected = i32::try_from(fields.len()).unwrap_or(i32::MAX);
        }
        if !matches!(self.plan, Plan::Engine(..)) {
            if fields.flags() & iosqe::BUFFER_SELECT != 0 {
                self.group = Some(fields.buf_index());
            }
            self.borrow(fields)?;
        }
        Ok(())
    }

    /// Copies the memory that the entry points to.
    #[inline(never)]
    fn borrow(&mut self, fields: &Fields) -> Result<(), i32> {
        let time = |at: u64| user::read::<Timespec>(at as usize)?.in_nanoseconds();
        match &mut self.plan {
            Plan::Vectored(sqe, index) => {
                user::read_array(sqe.addr as usize, sqe.len as usize, &mut self.iov)?;
                let lengths = || self.iov.iter().map(|part| part.iov_len);
                if lengths().any(|len| len > isize::MAX as usize) {
                    return Err(-libc::EINVAL);
                }
                let total = lengths().fold(0usize, usize::saturating_add);
                self.expected = i32::try_from(total).unwrap_or(i32::MAX);
                let addr = self.iov.as_ptr() as u64;
                let vectored = Sqe { addr, ..*sqe };
                self.plan = Plan::Engine(plain(&vectored, &self.iov).unwrap_or(vectored), *index);
            }
            Plan::Call(_, make) => {
                let call = make(fields)?;
                self.set_call(call);
                if rights::may_differ() && self.is_judged() {
                    self.submitter = sys::thread_id();
                }
            }
            Plan::Timeout(timing) | Plan::LinkTimeout(timing) => {
                timing.period = time(fields.addr())?;
            }
            Plan::TimeoutRemove { update: Some((new, _)), .. } => *new = time(fields.off())?,
            Plan::EpollCtl { event: Some(event), .. } => {
                let [events, low, high]: [u32; 3] = user::read(fields.addr() as usize)?;
                *event = (events, u64::from(low) | u64::from(high) << 32);
            }
            _ => {}
        }
        Ok(())
    }
}

/// A vectored transfer of one part as a plain one, for which the engine need not copy a vector.
fn plain(sqe: &Sqe, parts: &[libc::iovec]) -> Option<Sqe> {
    let &[libc::iovec { iov_base, iov_len }] = parts else { return None };
    let len = u32::try_from(iov_len).ok().filter(|len| (1..=MAX_RW_COUNT).contains(len))?;
    let opcode = if sqe.opcode == op::READV { op::READ } else { op::WRITE };
    Some(Sqe { opcode, addr: iov_base as u64, len, ..*sqe })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_of_one_part_is_a_plain_one() {
        let plan_of = |opcode: u8, parts: &[(u64, usize)]| {
            let at = parts.as_ptr().expose_provenance() as u64;
            let words = [opcode.into(), 7, at, parts.len() as u64, 0, 0, 0, 0];
            let mut request = Request::new();
            request.prepare(&Fields(words), false).unwrap();
            let Plan::Engine(sqe, None) = request.plan else { panic!("{:?}", request.plan) };
            (sqe.opcode, sqe.off, sqe.addr, sqe.len, request.expected)
        };
        for (vectored, plain) in [(op::READV, op::READ), (op::WRITEV, op::WRITE)] {
            assert_eq!(plan_of(vectored, &[(4096, 512)]), (plain, 7, 4096, 512, 512));
            let (opcode, _, _, len, expected) = plan_of(vectored, &[(4096, 512), (8192, 8)]);
            assert_eq!((opcode, len, expected), (vectored, 2, 520));
            for odd in [0, MAX_RW_COUNT as usize + 1] {
                assert_eq!(plan_of(vectored, &[(4096, odd)]).0, vectored, "{odd}");
            }
        }
    }
}
