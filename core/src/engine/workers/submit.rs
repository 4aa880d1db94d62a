//! Submitting: a lane for each request, and somebody who is told of it.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::lane::{self, Flags, Lane};
use super::pipeline::Way;
use super::{EXECUTING, ROBBED, Workers};
use crate::instance::Instance;
use crate::request::{Batch, Kind, Request};

/// A program that has submitted more than there is room for before its wait does so the next times, too.
const PAST_NEXT: u32 = 31;

impl Workers {
    /// Where a request goes, and whether its descriptor is a stream.
    #[inline(always)]
    pub(super) fn choose_lane(&self, request: &Request, flags: &mut Flags) -> (Lane, bool) {
        match lane::choose(&request.sqe, request.kind, self.kernel.reach(), flags) {
            (Lane::Cold, _) if !self.can_be_cold() => (Lane::Pool, false),
            // Not worth a call: it completes with its error.
            (Lane::Kernel, _) if request.refused != 0 => (Lane::Inline, false),
            (Lane::Inline, false)
                if request.kind == Kind::Read && self.pipeline.is(Way::SideBySide) =>
            {
                (Lane::Copy, false)
            }
            chosen => chosen,
        }
    }

    /// Submits requests of any lane, as `choose` says. Kept out of the way of a single one.
    #[inline(never)]
    pub(super) fn submit_batch(
        &self,
        instance: &Arc<Instance>,
        slots: &[u32],
        mut choose: impl FnMut(&Request) -> (Lane, bool),
    ) {
        let moved = !self.next.is_empty() && self.next_to_ring(instance);
        let (mut inline, mut pool, mut kernel) = (Batch::new(), Batch::new(), Batch::new());
        let (mut copies, mut cold) = (Batch::new(), Batch::new());
        let (mut notifies, mut ordered, mut for_worker) = (false, false, false);
        let mut behind_inline = None;
        for &slot in slots {
            // SAFETY: filled by the submitter, which has not passed it on yet.
            let request = unsafe { instance.slot(slot).request() };
            let (lane, stream) = choose(request);
            (request.lane, request.stream) = (lane as u8, stream);
            notifies |= request.notify != -1;
            instance.slot(slot).queue();
            match lane {
                Lane::Inline | Lane::AfterInline | Lane::AfterOrdered => inline.push(slot),
                Lane::Ordered
                    if *behind_inline.get_or_insert_with(|| self.may_have_begun_inline()) =>
                {
                    self.taking.in_order();
                    inline.push(slot);
                }
                Lane::Ordered => {
                    self.ordered.push(&[slot]);
                    ordered = true;
                }
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
        // Whoever is told of completions is not inside `wait`.
        let helpers_come = !notifies && self.waiters_execute();
        if !inline.as_slice().is_empty() {
            self.inline.push(inline.as_slice());
        }
        if ordered {
            self.order.announce();
        }
        if moved || ordered || !inline.as_slice().is_empty() {
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

    /// A request of the pool lane is the only one of its context, and the thread that comes to wait would sleep for it anyway.
    pub(super) fn is_left_to_waiter(&self, instance: &Instance) -> bool {
        self.waits_are_unbounded.load(Ordering::Relaxed)
            && self.must_wait_for_all(instance, 1)
            && !instance.completions().has_sleepers()
    }

    /// Are there, or may somebody have in hand, inline requests? Some may be appends that were not known as such, and one
    /// that is known goes behind them.
    fn may_have_begun_inline(&self) -> bool {
        let losers = self.losers.load(Ordering::SeqCst) > 0;
        losers || self.baton.view().is_held() || !self.inline.is_empty()
    }

    /// Leaves a single inline request to the wait that is expected to follow. False: not now.
    #[inline(always)]
    pub(super) fn leave_to_wait(&self, instance: &Arc<Instance>, slot: u32) -> bool {
        let busy = self.baton.view().is_held() || self.losers.load(Ordering::SeqCst) > 0;
        if busy || !self.waiters_execute() {
            return false;
        }
        let left = if self.next.has_room_beside() {
            instance.slot(slot).leave();
            self.next.put_beside(slot)
        } else {
            let past = self.past_next.load(Ordering::Relaxed);
            if past > 0 {
                self.past_next.store(past - 1, Ordering::Relaxed);
                return false;
            }
            let alone = instance.free_slots().is_alone(slot);
            // A wait looks at copies first, and a poll is to find both.
            if !alone && (self.has_inline_work() || self.has_copies()) {
                return false;
            }
            instance.slot(slot).leave();
            self.next.put(slot, alone)
        };
        let Some(watched) = left else { return false };
        if instance.completions().has_sleepers() {
            instance.completions().wake_now();
        }
        if !watched && self.next.watch() {
            self.threads.watchdog.add(instance);
        }
        true
    }

    /// Submits a single inline request that nobody is told of by an eventfd.
    #[inline(always)]
    pub(super) fn submit_one(&self, instance: &Arc<Instance>, slot: u32) {
        if self.leave_to_wait(instance, slot) {
            return;
        }
        if !self.next.is_empty() {
            self.next_to_ring(instance);
        }
        instance.slot(slot).queue();
        self.inline.push(&[slot]);
        self.announce(instance, self.waiters_execute());
    }

    /// What was left for its submitter's wait goes into the ring, in front of what comes. True if
    /// there was something, which the caller announces.
    pub(super) fn next_to_ring(&self, instance: &Arc<Instance>) -> bool {
        self.rob_next(instance);
        let mut all = Batch::new();
        for slot in self.next.take_all() {
            instance.slot(slot).queue();
            all.push(slot);
        }
        if all.as_slice().is_empty() {
            return false;
        }
        self.past_next.store(PAST_NEXT, Ordering::Relaxed);
        self.inline.push(all.as_slice());
        true
    }

    /// What is in the word comes before what a waiter has taken from it, should that be in no hurry: as if it had lost the baton.
    fn rob_next(&self, instance: &Arc<Instance>) {
        if self.in_next.load(Ordering::Relaxed) != EXECUTING {
            return;
        }
        // Before the fact, as in `steal`.
        self.losers.fetch_add(1, Ordering::SeqCst);
        let (success, failure) = (Ordering::SeqCst, Ordering::Relaxed);
        if self.in_next.compare_exchange(EXECUTING, ROBBED, success, failure).is_err() {
            self.one_loser_less(instance);
        }
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
