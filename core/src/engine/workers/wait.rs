//! What a thread of the program does while it waits.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::baton::View;
use super::{Workers, threads};
use crate::engine::Help;
use crate::engine::kernel::Reach;
use crate::instance::{By, Instance, Taker};
use crate::sys;

/// A waiter that has enough goes on for what it can still take: this many requests at most, and
/// none after one that took this long.
pub(super) const FAVOURS: u32 = 32;
pub(super) const FAVOUR_US: u64 = 10;
/// It looks what other threads have completed before the first of so many requests.
const LOOK_EVERY: u32 = 8;
/// A waiter waits this long for a worker to give it the baton.
const ASK_US: u64 = 5;

impl Workers {
    /// A waiter collects what the kernel has completed, and hands over what is queued.
    pub(super) fn help_kernel(
        &self,
        instance: &Arc<Instance>,
        help: &Help,
        taker: &mut Taker<'_>,
    ) -> bool {
        if self.kernel.queued() == 0 {
            let mut finish = |slot, result| self.finish_kernel(instance, slot, result, taker);
            return self.kernel.harvest(instance, &mut finish);
        }
        if help.min > 0 {
            self.habit.waiter_came();
        }
        let alone = self.kernel.queued() == 1 && help.unbounded;
        if alone
            && self.kernel.reach() == Reach::Direct
            && self.must_wait_for_all(instance, help.min)
        {
            // It would sleep for this one request anyway: one system call instead of two.
            if let Some(slot) = self.kernel.queue().pop() {
                self.run(instance, slot, By::Waiter, true, taker);
                return true;
            }
        }
        // First, so that the device has work while this thread collects.
        self.hand_over(instance, By::Waiter);
        let mut finish = |slot, result| self.finish_kernel(instance, slot, result, taker);
        self.kernel.harvest(instance, &mut finish)
    }

    /// Executes requests that any thread may, as long as it pays to stay.
    pub(super) fn help_copy(
        &self,
        instance: &Arc<Instance>,
        help: &Help,
        taker: &mut Taker<'_>,
    ) -> bool {
        let (mut executed, before) = (0, taker.taken());
        while let Some(slot) = self.copies.pop() {
            let ticks = if help.min > 0 {
                self.run_copy(instance, slot, By::Waiter, taker)
            } else {
                self.run(instance, slot, By::Waiter, true, taker)
            };
            executed += 1;
            let taken = taker.taken() - before;
            let slow = ticks > FAVOUR_US * self.ticks_per_us;
            // What workers have completed meanwhile is on a line that they write to: looked at seldom.
            let look = executed % 8 == 0 && help.max < u32::MAX;
            let available = if look { instance.completions().available() } else { 0 };
            if slow || executed >= FAVOURS || taken + available >= help.max {
                break;
            }
        }
        if help.min > 0 && executed == 0 && self.read_part(instance, By::Waiter, taker) {
            // A worker was quicker to begin with it.
            while self.read_part(instance, By::Waiter, taker) {}
            self.wait_for_last_parts();
            executed += 1;
        }
        if executed > 0 && help.min > 0 {
            self.habit.waiter_came();
        }
        executed > 0
    }

    /// Asks the worker that holds the baton for it, and waits for as long as a request that does
    /// not sleep takes. Gives the baton as it is then.
    #[cold]
    pub(super) fn ask_for_baton(&self) -> View {
        self.seat.waiter_wants.store(true, Ordering::Relaxed);
        let begin = sys::ticks();
        loop {
            let view = self.baton.view();
            let over = sys::ticks().wrapping_sub(begin) > ASK_US * self.ticks_per_us;
            if !view.is_held() || over || threads::cpus() == 1 {
                return view;
            }
            std::hint::spin_loop();
        }
    }

    pub(super) fn may_take(&self, instance: &Instance, help: &Help) -> bool {
        let helpless = self.threads.pool.is_helpless();
        !self.pool.is_empty()
            && (helpless || help.unbounded && self.must_wait_for_all(instance, help.min))
            || helpless && !self.worker.is_empty()
    }

    /// Helps with what is left when it has looked at the other lanes.
    pub(super) fn help_more(
        &self,
        instance: &Arc<Instance>,
        help: &Help,
        taker: &mut Taker<'_>,
    ) -> bool {
        let mut view = self.baton.view();
        if view.has_work() || self.has_inline_work_for(help) {
            if help.min > 0 || view.has_work() {
                self.habit.waiter_came();
            }
            let ask = view.is_held() && help.min > 0;
            if ask && self.has_inline_work_for(help) {
                view = self.ask_for_baton();
            }
            if !view.is_held()
                && let Some(turn) = self.baton.take()
            {
                let (mut executed, before, mut others) = (0, taker.taken(), 0);
                let (mut seen, slow) = (before, FAVOUR_US * self.ticks_per_us);
                self.hold(instance, turn, By::Waiter, taker, &mut |ticks, taken| {
                    if taken == seen || executed % LOOK_EVERY == 0 || ticks > slow {
                        // What this thread could not take, or others have completed.
                        others = instance.completions().available();
                    }
                    (executed, seen) = (executed + 1, taken);
                    let available = others + taken - before;
                    // Who only looks expects to see everything that did not sleep.
                    let favour = help.min > 0 && available >= help.min;
                    available >= help.max || favour && (ticks > slow || executed >= FAVOURS)
                });
                if help.min == 0 && !self.pool.is_empty() {
                    // What has been passed on there is left to a waiter, which a poll is not.
                    self.call_worker(instance);
                }
                return true;
            }
        } else if help.min > 0 {
            self.habit.waiter_came();
        }
        if help.min > 0 && self.waits_are_unbounded.load(Ordering::Relaxed) != help.unbounded {
            self.waits_are_unbounded.store(help.unbounded, Ordering::Relaxed);
        }
        if self.may_take(instance, help) {
            if let Some(slot) = self.pool.pop() {
                self.run(instance, slot, By::Waiter, true, taker);
                return true;
            }
            if self.threads.pool.is_helpless()
                && let Some(slot) = self.worker.pop()
            {
                self.run_for_poller(instance, slot);
                return true;
            }
        } else if !self.pool.is_empty() {
            // Left for a waiter, but not for one with a deadline.
            self.call_worker(instance);
        }
        self.help_read(instance, help, taker)
    }
}
