//! What a submitter leaves for its own wait, and who comes for it: the ways in and out of the [`mailbox`](super::mailbox).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::mailbox::Taken;
use super::{TIMED_EVERY, Workers};
use crate::front::enter;
use crate::instance::{By, Instance, Taker};

impl Workers {
    /// Leaves a single inline request, which may be `alone` in its context, to the wait that is expected to follow. False: not now.
    #[inline(always)]
    pub(super) fn leave_to_wait(
        &self,
        instance: &Arc<Instance>,
        slot: u32,
        alone: impl FnOnce() -> bool,
    ) -> bool {
        if self.is_busy() || !self.waiters_execute() || !self.mailbox.is_empty() {
            return false;
        }
        let alone = alone();
        // A wait looks at copies first, and a poll is to find both.
        if !alone && (self.has_inline_work() || self.has_copies()) {
            return false;
        }
        instance.slot(slot).leave();
        let Some(watched) = self.mailbox.put(slot, alone) else { return false };
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
        if self.mailbox.watch() {
            enter(|| self.threads.watchdog.add(instance));
        }
    }

    /// What was left for its submitter's wait goes into the ring, in front of what comes. True if
    /// there was something, which the caller announces.
    pub(super) fn left_to_ring(&self, instance: &Instance) -> bool {
        let Some(Taken { slot, .. }) = self.mailbox.take() else { return false };
        instance.slot(slot).queue();
        self.inline.push(&[slot]);
        true
    }

    /// A waiter executes what is alone in its context. False: nothing is, or it is somebody else's.
    #[inline(always)]
    pub(super) fn run_alone(&self, instance: &Arc<Instance>, taker: &mut Taker<'_>) -> bool {
        let taken = self.mailbox.take_alone();
        taken.map(|taken| self.run_left(instance, taken, taker)).is_some()
    }

    /// As [`Workers::run_alone`], where there may be other requests.
    pub(super) fn run_beside_others(
        &self,
        instance: &Arc<Instance>,
        taker: &mut Taker<'_>,
    ) -> bool {
        let taken = self.mailbox.take();
        taken.map(|taken| self.run_left(instance, taken, taker)).is_some()
    }

    #[inline(always)]
    fn run_left(&self, instance: &Arc<Instance>, left: Taken, taker: &mut Taker<'_>) {
        instance.slot(left.slot).begin();
        let timed = left.number.is_multiple_of(TIMED_EVERY);
        self.execute(instance, left.slot, By::Waiter, timed, taker);
        self.habit.waiter_came();
    }
}
