//! Holding the baton: executing what is inline and what is ordered, and losing it.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::baton::{Release, Turn, View};
use super::lane::Lane;
use super::taking::{Holder, Taken};
use super::{SPIN_US_MAX, TIMED_EVERY, Workers, threads};
use crate::descriptor;
use crate::instance::{By, Instance, Taker};
use crate::request::Kind;
use crate::sys;

/// A holder of the baton at the inline queue.
struct InTurn<'a> {
    workers: &'a Workers,
    instance: &'a Instance,
    turn: &'a Turn,
}

impl Holder for InTurn<'_> {
    #[inline]
    fn holds(&self) -> bool {
        self.workers.baton.is_held_in(self.turn)
    }

    #[inline]
    fn overtakes(&self) -> bool {
        self.workers.is_overtaking()
    }

    fn put_behind(&self, slot: u32) -> bool {
        let Self { workers, instance, .. } = *self;
        let is_in_order = workers.is_ordered(instance, slot)
            || workers.is_overtaking() && workers.is_hidden_append(instance, slot);
        if is_in_order {
            // SAFETY: popped by us.
            let wary = unsafe { instance.slot(slot).shared() }.wary;
            workers.push_ordered(slot, wary);
            workers.order.announce();
        }
        is_in_order
    }
}

impl Workers {
    /// Holds the baton until nothing is waiting, `enough` says so, or it is taken away.
    pub(super) fn hold(
        &self,
        instance: &Arc<Instance>,
        mut turn: Turn,
        by: By,
        taker: &mut Taker<'_>,
        enough: &mut dyn FnMut(u64, u32) -> bool,
    ) {
        loop {
            if !self.ordered.is_empty() && self.hold_order(instance, by, taker, enough) {
                return self.lay_down(instance, turn);
            }
            let fetching = self.fetch.is_on();
            if fetching {
                self.fetch_pages(instance, &turn);
            }
            let holder = InTurn { workers: self, instance, turn: &turn };
            let taken = self.taking.take(&self.inline, &holder);
            match taken {
                Taken::Lost => return self.lost(instance),
                Taken::Moved => continue,
                Taken::Nothing | Taken::Slot(_) => {}
            }
            if let Taken::Slot(slot) = taken {
                let next = self.inline.peek();
                if let Some(next) = next {
                    // On its way from the submitter's CPU while this one is executed.
                    sys::prefetch(instance.slot(next));
                }
                let timed = fetching || self.inline.taken().is_multiple_of(TIMED_EVERY);
                let ticks = self.run_here(instance, slot, by, timed, taker);
                self.took(ticks);
                if by == By::Worker && self.gives_way() {
                    self.lay_down(instance, turn);
                    if instance.completions().has_sleepers() {
                        instance.completions().wake_now();
                    }
                    return;
                }
                if next.is_none() && self.inline.peek().is_none() {
                    // Fall through to the release: it notices what was announced meanwhile.
                } else if enough(ticks, taker.taken()) {
                    return self.lay_down(instance, turn);
                } else {
                    // Whether the baton was taken away is seen before the next one is taken.
                    continue;
                }
            }
            if by == By::Worker && !self.waiters_execute() {
                self.spin_for_work();
            }
            match self.baton.release(turn) {
                Release::Free => return,
                Release::Lost => return self.lost(instance),
                Release::Work(same) => match self.baton.look_again(same) {
                    Some(next) => turn = next,
                    None => return self.lost(instance),
                },
            }
        }
    }

    /// Executes ordered requests until there are none, or `enough` says so (true). Whoever blocks
    /// here may lose the baton, and the ordered requests wait for him all the same.
    #[cold]
    pub(super) fn hold_order(
        &self,
        instance: &Arc<Instance>,
        by: By,
        taker: &mut Taker<'_>,
        enough: &mut dyn FnMut(u64, u32) -> bool,
    ) -> bool {
        if taker.is_bounded() && self.wary_ordered.load(Ordering::SeqCst) > 0 {
            // In their order, or not at all: workers may wait for the file of any of them.
            if !self.seat.wants_holder() {
                self.call_holder(instance);
            }
            return false;
        }
        fence(Ordering::SeqCst);
        if self.losers.load(Ordering::SeqCst) > 0 {
            // One of them may be at an append; it announces these when it is through.
            return false;
        }
        let Some(mut turn) = self.order.take() else { return false };
        loop {
            while let Some(slot) = self.ordered.pop() {
                // SAFETY: popped by us.
                if unsafe { instance.slot(slot).shared() }.wary {
                    self.wary_ordered.fetch_sub(1, Ordering::SeqCst);
                }
                let ticks = self.run(instance, slot, by, true, taker);
                if enough(ticks, taker.taken()) && !self.ordered.is_empty() {
                    self.order.leave(turn);
                    // The baton may be somebody else's by now, who has not seen these.
                    self.announce(instance, self.waiters_execute());
                    return true;
                }
            }
            match self.order.release(turn) {
                Release::Work(same) => {
                    turn = self.order.look_again(same).expect("nobody steals it");
                }
                Release::Free | Release::Lost => return false,
            }
        }
    }

    /// A worker gives the baton to a waiter that came for it: it executes without waking anybody.
    pub(super) fn gives_way(&self) -> bool {
        // One that came once, and does not any more, must not stop a worker that is needed.
        self.seat.waiter_wants.load(Ordering::Relaxed)
            && self.waiters_execute()
            && self.seat.waiter_wants.swap(false, Ordering::Relaxed)
    }

    /// Gives the baton back although requests are left.
    pub(super) fn lay_down(&self, instance: &Arc<Instance>, turn: Turn) {
        if !self.baton.leave(turn) {
            self.lost(instance);
        }
    }

    /// The baton as it is now, for seeing whether its holder goes on.
    pub(super) fn progress(&self) -> View {
        self.baton.view().at(self.inline.taken())
    }

    /// Takes the baton away from a holder that has been in one request for too long. False: it has gone on.
    pub(super) fn steal(&self, instance: &Arc<Instance>, view: View) -> bool {
        // Before the fact, so that whoever takes the baton next knows.
        self.losers.fetch_add(1, Ordering::SeqCst);
        let stolen = self.baton.steal(view, self.inline.taken());
        if stolen {
            instance.count(|stats| &stats.handovers);
        } else {
            self.one_loser_less(instance);
        }
        stolen
    }

    /// A holder that has lost the baton is through with its request.
    #[cold]
    pub(super) fn lost(&self, instance: &Arc<Instance>) {
        instance.count(|stats| &stats.after_losing_baton);
        self.one_loser_less(instance);
    }

    pub(super) fn one_loser_less(&self, instance: &Arc<Instance>) {
        self.losers.fetch_sub(1, Ordering::SeqCst);
        // Pairs with the fence in `hold_order`: ordered requests are seen here, or this there.
        fence(Ordering::SeqCst);
        if !self.ordered.is_empty() {
            // They may have waited for it.
            self.order.announce();
            self.announce(instance, self.waiters_execute());
        }
    }

    /// Would an inline request overtake one that was submitted before it?
    #[inline]
    pub(super) fn is_overtaking(&self) -> bool {
        self.losers.load(Ordering::SeqCst) > 0
            || !self.ordered.is_empty()
            || self.order.view().is_held()
    }

    /// It came through the inline queue to stay behind what was there before it.
    #[inline]
    fn is_ordered(&self, instance: &Instance, slot: u32) -> bool {
        // SAFETY: popped by us, so not freed; only read, as whoever cancels it at this moment does.
        unsafe { instance.slot(slot).shared() }.lane == Lane::Ordered as u8
    }

    /// Is it an append that is in the inline lane, because its descriptor's number stood for another file when it was
    /// last looked at? It must not overtake: it goes behind the ordered ones. What is known of the number stays wrong:
    /// others of its file are in the inline queue, too.
    #[cold]
    fn is_hidden_append(&self, instance: &Instance, slot: u32) -> bool {
        // SAFETY: as in `is_ordered`.
        let request = unsafe { instance.slot(slot).shared() };
        request.kind == Kind::Write && descriptor::Facts::appends_now(request.sqe.fd)
    }

    /// To the pool, once everything is done that it has to come after.
    pub(super) fn pass_on(&self, instance: &Arc<Instance>, slot: u32, by: By) {
        let started = instance.slot(slot);
        // SAFETY: started, and pushed only afterwards.
        let request = unsafe { started.request() };
        let others_first = !self.ordered.is_empty() || self.order.view().is_held();
        if request.lane == Lane::AfterInline as u8 && others_first {
            // Behind the ordered ones that came before it; it is passed on again from there.
            request.lane = Lane::AfterOrdered as u8;
            started.requeue();
            self.ordered.push(&[slot]);
            self.order.announce();
            self.announce(instance, false);
        } else if !descriptor::Facts::noted(request.sqe.fd).is_some_and(|facts| facts.is_local()) {
            // A server may hold it up: no thread of the program takes it by the way.
            self.to_worker(instance, slot);
        } else if by == By::Waiter && request.notify == -1 && self.is_left_to_waiter(instance) {
            // This one, when it looks for more.
            self.move_to(instance, slot, Lane::Pool, &self.pool);
            self.watch_over(instance);
        } else {
            self.to_pool(instance, slot);
        }
    }

    /// Waits a little for more, if that has been worth it lately. Bounded; none on one CPU.
    pub(super) fn spin_for_work(&self) {
        let budget = self.spin.load(Ordering::Relaxed);
        if budget == 0 {
            return;
        }
        let begin = sys::ticks();
        loop {
            if self.baton.view().has_work() {
                let longest = SPIN_US_MAX * self.ticks_per_us;
                self.spin.store((budget + budget / 4).min(longest), Ordering::Relaxed);
                return;
            }
            if sys::ticks().wrapping_sub(begin) > budget {
                self.spin.store(budget / 2, Ordering::Relaxed);
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// A worker had to be called: a short spin before would have been cheaper.
    pub(super) fn spin_pays(&self) {
        if threads::cpus() > 1 {
            let least = 2 * self.ticks_per_us;
            self.spin.fetch_max(least, Ordering::Relaxed);
        }
    }
}
