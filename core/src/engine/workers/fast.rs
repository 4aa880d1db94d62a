//! The engine's part of the [fast path](crate::instance::Transfer): from a plain transfer to its place in the queue, and from there to
//! its completion.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::lane::{LARGE, Lane};
use super::mailbox::Taken;
use super::{TIMED_EVERY, Workers};
use crate::descriptor;
use crate::exec;
use crate::front::enter;
use crate::instance::{By, Instance, Taker, Transfer};
use crate::request::{Expect, Kind, Request};

impl Workers {
    /// Submits a transfer whose file is such that it is inline. False: nothing was done.
    #[inline(always)]
    pub(crate) fn submit_fast(&self, instance: &Arc<Instance>, transfer: &Transfer) -> bool {
        if !transfer.is_write && transfer.length >= LARGE {
            return false;
        }
        let Some((slot, alone)) = instance.free_slots().take_near() else { return false };
        // Asked while the slot is held: who destroys it later waits for what is in the slot.
        // And a write beside others may be an append by now, whose order counts: the general way asks.
        let beside_others = || transfer.is_write && !alone && self.has_inline_in_flight();
        if instance.is_closed() || beside_others() {
            instance.free_slots().give(slot);
            return false;
        }
        let place = instance.slot(slot);
        // SAFETY: just taken.
        let request = unsafe { place.request() };
        request.sqe = transfer.sqe();
        (request.data, request.notify, request.kind) = (transfer.data, -1, transfer.kind());
        (request.lane, request.stream, request.fast) = (Lane::Inline as u8, false, true);
        (request.partial, request.refused, request.wary) = (0, 0, false);
        place.expect(Expect::Soon);
        place.fill(transfer.user_data, transfer.fd, -1);
        place.submitted_as(instance.next_number(alone), transfer.kind());
        if !self.leave_to_wait(instance, slot, || alone) {
            enter(|| self.submit_to_ring(instance, slot));
        }
        self.expects_one();
        true
    }

    /// Executes a request that was submitted so, or could have been, and which the caller, a waiter, has started. Gives the result, or
    /// `None`: it has to be executed as any other.
    #[inline(always)]
    pub(super) fn transfer_fast(&self, request: &Request) -> Option<i32> {
        let (sqe, write) = (&request.sqe, request.kind == Kind::Write);
        if !request.fast || descriptor::is_suspect(sqe.fd, write) {
            return None;
        }
        // SAFETY: at an offset, and without flags; the buffer is the request's until its completion.
        let result = unsafe { if write { exec::write(sqe) } else { exec::read(sqe) } };
        // The descriptor is a stream meanwhile, and nothing was done.
        (result != -libc::ESPIPE).then_some(result)
    }

    /// A waiter executes the single request that is alone in its context, and has `take` take its completion: data,
    /// [`Sqe::user_data`](crate::Sqe::user_data) and result. False: there is none, or it has not ended here.
    #[inline(always)]
    pub(crate) fn run_fast(
        &self,
        instance: &Arc<Instance>,
        bounded: bool,
        take: impl FnOnce(u64, u64, i64),
    ) -> bool {
        let Some(Taken { slot, number }) = self.mailbox.take_alone() else { return false };
        let place = instance.slot(slot);
        place.begin();
        self.habit.waiter_came();
        // SAFETY: begun by us just now, and not passed on before the reference's last use.
        let request = unsafe { place.request() };
        let timed = number.is_multiple_of(TIMED_EVERY);
        if !timed && let Some(result) = self.transfer_fast(request) {
            let (data, user_data) = (request.data, request.sqe.user_data);
            place.done();
            instance.free_slots().give(slot);
            take(data, user_data, i64::from(result));
            return true;
        }
        let ended = self.run_slowly(instance, slot, timed, bounded);
        ended.map(|(data, user_data, result)| take(data, user_data, result)).is_some()
    }

    /// Executes a request of any kind, or one that is timed. Its completion, if it has ended here.
    #[inline(never)]
    fn run_slowly(
        &self,
        instance: &Arc<Instance>,
        slot: u32,
        timed: bool,
        bounded: bool,
    ) -> Option<(u64, u64, i64)> {
        let mut ended = None;
        let mut take = |data, user_data, result| ended = Some((data, user_data, result));
        let mut taker = Taker::new(1, &mut take);
        taker.bound(bounded);
        enter(|| self.execute(instance, slot, By::Waiter, timed, &mut taker));
        taker.give_back(instance);
        ended
    }
}
