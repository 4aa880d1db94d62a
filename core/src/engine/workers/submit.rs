//! Submitting: a lane for each request, and somebody who is told of it.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::Workers;
use super::lane::{self, Flags, Lane};
use crate::instance::Instance;
use crate::request::{Batch, Expect, Request};

impl Workers {
    /// Where a request goes, and whether its descriptor is a stream.
    #[inline(always)]
    pub(super) fn choose_lane(
        &self,
        request: &Request,
        single: bool,
        flags: &mut Flags,
    ) -> (Lane, bool) {
        let beside_others = || !single || self.has_inline_in_flight();
        let reach = self.kernel.reach();
        match lane::choose(&request.sqe, request.kind, beside_others, reach, flags) {
            (Lane::Cold, _) if !self.can_be_cold() => (Lane::Pool, false),
            // Not worth a call: it completes with its error.
            (Lane::Kernel, _) if request.refused != 0 => (Lane::Inline, false),
            chosen => chosen,
        }
    }

    /// Inline or ordered requests wait, or somebody is at one: a hint.
    #[inline]
    pub(super) fn has_inline_in_flight(&self) -> bool {
        let view = self.baton.view();
        view.is_held() || view.has_work() || !self.mailbox.is_empty() || self.is_overtaking()
    }

    /// Submits requests of any lane, as `choose` says. Kept out of the way of a single one.
    #[inline(never)]
    pub(super) fn submit_batch(
        &self,
        instance: &Arc<Instance>,
        slots: &[u32],
        mut choose: impl FnMut(&Request) -> (Lane, bool),
    ) {
        let moved = self.left_to_ring(instance);
        let (mut inline, mut pool, mut kernel) = (Batch::new(), Batch::new(), Batch::new());
        let (mut copies, mut cold) = (Batch::new(), Batch::new());
        let (mut notifies, mut for_worker) = (false, false);
        let mut ordered = Batch::new();
        let mut expected = false;
        for &slot in slots {
            // SAFETY: filled by the submitter, which has not passed it on yet.
            let request = unsafe { instance.slot(slot).request() };
            let (lane, stream) = choose(request);
            (request.lane, request.stream) = (lane as u8, stream);
            notifies |= request.notify != -1;
            let (wary, expect) =
                lane::patience(request, lane, stream, self.kernel.executes_what_is_cached());
            request.wary = wary;
            instance.slot(slot).expect(expect);
            expected |= expect != Expect::Nothing;
            request.fast =
                lane == Lane::Inline && !stream && !wary && instance.executes_fast(request);
            instance.slot(slot).queue();
            match lane {
                Lane::Inline | Lane::AfterInline | Lane::AfterOrdered => inline.push(slot),
                Lane::Ordered => ordered.push(slot),
                Lane::Pool => pool.push(slot),
                Lane::Kernel => kernel.push(slot),
                Lane::Copy => copies.push(slot),
                Lane::Cold => cold.push(slot),
                Lane::Worker => {
                    self.worker.push(&[slot]);
                    for_worker = true;
                }
                Lane::Poll => {
                    if instance.start(slot) {
                        self.threads.poller.add(instance, slot);
                    }
                }
            }
        }
        if expected {
            self.expects_one();
        }
        // Whoever is told of completions is not inside `wait`.
        let helpers_come = !notifies && self.waiters_execute();
        if !inline.as_slice().is_empty() {
            self.inline.push(inline.as_slice());
        }
        // Behind the inline ones: a holder that finds these finds those that were submitted before them.
        for &slot in ordered.as_slice() {
            // SAFETY: filled by the submitter, which has not passed it on yet.
            let wary = unsafe { instance.slot(slot).shared() }.wary;
            self.push_ordered(slot, wary);
        }
        let any_ordered = !ordered.as_slice().is_empty();
        if any_ordered {
            self.order.announce();
        }
        if moved || any_ordered || !inline.as_slice().is_empty() {
            self.announce(instance, helpers_come);
        }
        if for_worker {
            self.call_worker_at_once(instance);
        }
        if !copies.as_slice().is_empty() {
            self.copies.push(copies.as_slice());
            self.call_for_copies(instance, helpers_come);
        }
        if !cold.as_slice().is_empty() {
            self.queue_cold(instance, cold.as_slice(), helpers_come);
        }
        if !kernel.as_slice().is_empty() {
            self.queue_for_kernel(instance, kernel.as_slice(), helpers_come);
        }
        if !pool.as_slice().is_empty() {
            self.pool.push(pool.as_slice());
            if helpers_come && self.is_left_to_waiter(instance) {
                self.watch_over(instance);
            } else {
                self.call_worker(instance);
            }
        }
        if !helpers_come && self.threads.pool.is_helpless() {
            self.run_without_workers(instance);
        }
    }

    /// Puts a request, which the caller has in hand, behind the ordered ones.
    pub(super) fn push_ordered(&self, slot: u32, wary: bool) {
        if wary {
            self.wary_ordered.fetch_add(1, Ordering::SeqCst);
        }
        self.ordered.push(&[slot]);
    }

    /// A request of the pool lane is the only one of its context, and the thread that comes to wait would sleep for it anyway.
    pub(super) fn is_left_to_waiter(&self, instance: &Instance) -> bool {
        self.waits_are_unbounded.load(Ordering::Relaxed)
            && self.must_wait_for_all(instance, 1)
            && !instance.completions().has_sleepers()
    }

    /// Submits a single inline request that nobody is told of by an eventfd.
    #[inline(always)]
    pub(super) fn submit_one(&self, instance: &Arc<Instance>, slot: u32) {
        let alone = || instance.free_slots().is_alone(slot);
        if !self.leave_to_wait(instance, slot, alone) {
            self.submit_to_ring(instance, slot);
        }
    }

    /// Submits a single inline request that is not left for a wait.
    pub(super) fn submit_to_ring(&self, instance: &Arc<Instance>, slot: u32) {
        self.left_to_ring(instance);
        instance.slot(slot).queue();
        self.inline.push(&[slot]);
        self.announce(instance, self.waiters_execute());
    }

    /// Queues requests for the kernel, and sees to it that somebody hands them over.
    pub(super) fn queue_for_kernel(
        &self,
        instance: &Arc<Instance>,
        slots: &[u32],
        helpers_come: bool,
    ) {
        let door = self.kernel.push(slots);
        if !door.is_held() {
            if !helpers_come {
                self.seat.want_hand_over();
                self.call_worker_at_once(instance);
            } else if instance.completions().has_sleepers() {
                instance.completions().wake_now();
            }
        }
        self.watch_over(instance);
    }

    /// Has workers come to the requests that any thread may execute, if there are too few.
    pub(super) fn call_for_copies(&self, instance: &Arc<Instance>, helpers_come: bool) {
        fence(Ordering::SeqCst);
        // The waiter takes one, and workers what it has no hands for.
        if !helpers_come || self.copies.len() != 1 || instance.completions().has_sleepers() {
            if self.copies_for_workers() > 0 {
                self.call_worker(instance);
            } else if instance.completions().has_sleepers() {
                instance.completions().wake_now();
            }
        }
        self.watch_over(instance);
    }

    /// Says that requests were pushed, and sees to it that somebody executes them.
    #[inline]
    pub(super) fn announce(&self, instance: &Arc<Instance>, helpers_come: bool) {
        let seen = self.baton.announce();
        if !seen.is_held() {
            if !helpers_come {
                self.call_holder(instance);
            } else if instance.completions().has_sleepers() {
                instance.completions().wake_now();
            }
        }
        if !seen.is_watched() {
            self.watch_over(instance);
        }
    }
}
