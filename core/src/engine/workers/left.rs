//! What a submitter leaves for its own wait, and who comes for it: the ways in and out of [`next`](super::next).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::next::Taken;
use super::wait::{FAVOUR_US, FAVOURS};
use super::{TIMED_EVERY, Workers};
use crate::engine::Help;
use crate::front::enter;
use crate::instance::{By, Instance, Taker};
use crate::request::Batch;

/// A program that has submitted more than there is room for before its wait does so the next times, too.
const PAST_NEXT: u32 = 31;

/// A waiter is at those that were left for it.
const EXECUTING: u32 = 1;
/// It is, and what it had not begun was put into the ring: it counts as one that has lost the baton.
const ROBBED: u32 = 2;

impl Workers {
    /// Leaves a single inline request, which may be `alone` in its context, to the wait that is expected to follow. False: not now.
    #[inline(always)]
    pub(super) fn leave_to_wait(
        &self,
        instance: &Arc<Instance>,
        slot: u32,
        alone: impl FnOnce() -> bool,
    ) -> bool {
        if self.is_busy() || !self.waiters_execute() {
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
            let alone = alone();
            // A wait looks at copies first, and a poll is to find both.
            if !alone && (self.has_inline_work() || self.has_copies()) {
                return false;
            }
            instance.slot(slot).leave();
            self.next.put(slot, alone)
        };
        let Some(watched) = left else { return false };
        self.see_to_left(instance, watched);
        true
    }

    /// Somebody is at requests that were submitted before.
    #[inline(always)]
    fn is_busy(&self) -> bool {
        self.baton.view().is_held() || self.losers.load(Ordering::SeqCst) > 0
    }

    /// Sees to it that what was left is executed, should its submitter not come, or another thread wait already.
    #[inline(always)]
    fn see_to_left(&self, instance: &Arc<Instance>, watched: bool) {
        if instance.completions().has_sleepers() {
            Self::wake_for_left(instance);
        }
        if !watched {
            self.watch_left(instance);
        }
    }

    // The fast path, which comes here as well, keeps errno by itself: a lock that is waited for may change it, and so may making a thread.
    #[cold]
    fn wake_for_left(instance: &Instance) {
        enter(|| instance.completions().wake_now());
    }

    #[cold]
    fn watch_left(&self, instance: &Arc<Instance>) {
        if self.next.watch() {
            enter(|| self.threads.watchdog.add(instance));
        }
    }

    /// Takes what is alone, but not past another waiter that is at those before it.
    #[inline(always)]
    pub(super) fn take_single(&self) -> Option<Taken> {
        self.next.take_single(|| self.in_next.load(Ordering::Acquire) == 0)
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

    /// A waiter executes what is alone in its context. False: nothing is, or it is somebody else's.
    #[inline(always)]
    pub(super) fn run_left(
        &self,
        instance: &Arc<Instance>,
        help: &Help,
        taker: &mut Taker<'_>,
    ) -> bool {
        let helped = match self.take_single() {
            Some(taken) => {
                self.run_next(instance, taken, taker);
                true
            }
            None => self.next.has_several() && self.run_several(instance, help, taker),
        };
        if helped {
            self.habit.waiter_came();
        }
        helped
    }

    /// Executes a request that its submitter has left for a wait.
    #[inline(always)]
    fn run_next(&self, instance: &Arc<Instance>, next: Taken, taker: &mut Taker<'_>) -> u64 {
        let Taken { slot, number, .. } = next;
        instance.slot(slot).begin();
        let timed = number.is_multiple_of(TIMED_EVERY);
        self.execute(instance, slot, By::Waiter, timed, taker)
    }

    /// Executes requests that their submitter has left for a wait, in their order, as far as the caller can take them. False: another
    /// waiter is at them, or they are gone.
    #[inline(never)]
    pub(super) fn run_several(
        &self,
        instance: &Arc<Instance>,
        help: &Help,
        taker: &mut Taker<'_>,
    ) -> bool {
        let (success, failure) = (Ordering::SeqCst, Ordering::Relaxed);
        if self.in_next.compare_exchange(0, EXECUTING, success, failure).is_err() {
            // Where that one blocks, they are not to wait for it.
            if self.next_to_ring(instance) {
                self.announce(instance, true);
            }
            return false;
        }
        let (mut executed, before) = (0, taker.taken());
        while let Some(next) = self.next.take() {
            let ticks = self.run_next(instance, next, taker);
            executed += 1;
            // As in `help_more`.
            let come = taker.taken() - before + instance.completions().available();
            let slow = ticks > FAVOUR_US * self.ticks_per_us;
            let favour = help.min > 0 && come >= help.min;
            if !next.more || come >= help.max || favour && (slow || executed >= FAVOURS) {
                break;
            }
        }
        if self.in_next.swap(0, Ordering::SeqCst) == ROBBED {
            self.one_loser_less(instance);
        }
        executed > 0
    }
}
