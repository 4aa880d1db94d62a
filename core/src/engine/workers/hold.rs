//! Holding the baton: executing what is inline and what is ordered, and losing it.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::baton::{Release, Turn, View};
use super::lane::Lane;
use super::{SPIN_US_MAX, TIMED_EVERY, Workers, threads};
use crate::descriptor;
use crate::instance::{By, Instance, Taker};
use crate::sys;

/// What a holder of the baton found in the inline queue.
enum Next {
    Nothing,
    Slot(u32),
    /// The baton has been taken away.
    Lost,
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
            let due = self.is_ordered_due(instance);
            if due && self.hold_order(instance, by, taker, enough) {
                return self.lay_down(instance, turn);
            }
            let next = self.take_inline(&turn);
            match next {
                Next::Lost => return self.lost(instance),
                // Another thread has taken the last inline request that an ordered one had to wait for.
                Next::Nothing if !due && self.is_ordered_due(instance) => continue,
                Next::Nothing | Next::Slot(_) => {}
            }
            if let Next::Slot(slot) = next {
                let next = self.inline.peek();
                if let Some(next) = next {
                    // On its way from the submitter's CPU while this one is executed.
                    sys::prefetch(instance.slot(next));
                }
                let timed = self.inline.taken().is_multiple_of(TIMED_EVERY);
                let ticks = self.run_here(instance, slot, by, timed, taker);
                if by == By::Worker && self.gives_way() {
                    self.lay_down(instance, turn);
                    if instance.completions().has_sleepers() {
                        instance.completions().wake_now();
                    }
                    return;
                }
                let emptied = next.is_none() && self.inline.peek().is_none();
                if emptied && self.ordered.is_empty() {
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

    /// Takes the oldest inline request. A holder that loses the baton after its last look takes one more at most. The
    /// request is executed as if the holder had lost the baton inside of it.
    #[inline]
    fn take_inline(&self, turn: &Turn) -> Next {
        while let Some((position, slot)) = self.inline.front() {
            if !self.baton.is_held_in(turn) {
                return Next::Lost;
            }
            if self.inline.pop_at(position) {
                return Next::Slot(slot);
            }
        }
        Next::Nothing
    }

    /// Was the oldest ordered request submitted before the oldest inline one? Positional writes that were submitted
    /// before an append may change where it goes.
    #[inline]
    fn is_ordered_due(&self, instance: &Instance) -> bool {
        let Some(ordered) = self.ordered.peek() else { return false };
        let number = |slot| instance.slot(slot).number();
        self.inline.peek().is_none_or(|inline| number(ordered) <= number(inline))
    }

    /// Executes ordered requests that are due until there are none, or `enough` says so (true). Whoever blocks
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
            // One of them may be at an append that was not known as one; it announces these when it is through.
            return false;
        }
        let Some(mut turn) = self.order.take() else { return false };
        loop {
            while self.is_ordered_due(instance)
                && let Some(slot) = self.ordered.pop()
            {
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

    /// Ordered requests wait, or are under way, or holders have lost the baton inside of their requests.
    #[inline]
    pub(super) fn is_overtaking(&self) -> bool {
        self.losers.load(Ordering::SeqCst) > 0
            || !self.ordered.is_empty()
            || self.order.view().is_held()
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Read as _;
    use std::os::fd::AsRawFd as _;

    use crate::config::Builder;
    use crate::engine::workers::threads::leave_alone;
    use crate::instance::{Entry, Instance, without_taker};
    use crate::sqe::{FILE_POSITION, Sqe};

    const AT_START: &[u8] = b"ffff";
    const APPENDED: &[u8] = b"aaa";

    /// What stands in a file after these were submitted, `together` or one by one, before the thread waited.
    fn written(appends: &[bool], together: bool) -> Vec<u8> {
        let instance = Instance::new(&Builder::default().entries(8)).unwrap();
        leave_alone(&instance);
        let file = tempfile::NamedTempFile::new().unwrap();
        let append = std::fs::File::options().append(true).open(file.path()).unwrap();
        let entry = |&appends: &bool| {
            let at_start = Sqe::write(file.as_file().as_raw_fd(), AT_START, 0);
            let append = Sqe::write(append.as_raw_fd(), APPENDED, FILE_POSITION);
            Entry { sqe: if appends { append } else { at_start }, data: 0, notify: -1 }
        };
        let entries: Vec<_> = appends.iter().map(entry).collect();
        for some in entries.chunks(if together { entries.len() } else { 1 }) {
            // SAFETY: the buffers are there for good.
            assert_eq!(unsafe { instance.submit(some) }.accepted, some.len());
        }
        let count = entries.len() as u32;
        without_taker(|taker| instance.wait(count, count, None, None, taker));
        assert_eq!(instance.reap(count, |cqe| assert!(cqe.res > 0)), count);
        instance.close();
        let mut found = Vec::new();
        file.reopen().unwrap().read_to_end(&mut found).unwrap();
        found
    }

    #[test]
    fn a_write_at_an_offset_and_an_append_behind_it_are_executed_in_this_order() {
        for together in [false, true] {
            assert_eq!(written(&[false, true], together), b"ffffaaa");
            assert_eq!(written(&[true, false], together), b"ffff");
            assert_eq!(written(&[false, true, false, true, true], together), b"ffffaaaaaaaaa");
            assert_eq!(written(&[true, true, false], together), b"ffffaa");
        }
    }
}
