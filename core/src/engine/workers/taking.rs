//! Who takes requests out of the inline queue. Where the order of any of them may matter: one thread at a time, for as long as it
//! decides where one goes. The right to that is not a mutex: a signal handler of the program may interrupt the thread that has the right, and wait for completions. It comes
//! to execute what is queued, or waits for a worker that does: both would wait for the interrupted thread for ever. So a handler has the right of
//! the thread that it has interrupted, and the right of a thread that stays away is taken from it.

use crate::queue::IndexRing;
use crate::sync::{AtomicBool, AtomicUsize, Ordering, Patience};
use crate::sys;

/// Looks, of about 60 µs all but the first hundred, before somebody has stayed away with the right: about 0.1 s. A thread that
/// is only preempted is back by then, on all but the busiest machines; appends whose numbers were known as other files before may change
/// places if it is not.
const LOOKS: u32 = 1700;

#[derive(Debug)]
pub(crate) struct Taking {
    /// The thread that has the right, or 0.
    owner: AtomicUsize,
    /// Requests whose order matters have come through the queue.
    in_order: AtomicBool,
}

/// What became of the oldest request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Nothing,
    /// The caller has it.
    Slot(u32),
    /// It is behind others now whose order matters.
    Moved,
    /// The caller holds the baton no longer.
    Lost,
}

/// What a thread that takes requests knows of them, and of itself.
pub(crate) trait Holder {
    /// Nobody has taken the baton away from it.
    fn holds(&self) -> bool;

    /// A write may be an append that was not known as such, and must not overtake.
    fn overtakes(&self) -> bool;

    /// Puts a request whose order matters behind the others of its kind. False: it is none.
    fn put_behind(&self, slot: u32) -> bool;
}

/// The right, until it is dropped.
#[derive(Debug)]
pub(crate) struct Alone<'a>(Option<(&'a AtomicUsize, usize)>);

impl Taking {
    pub(crate) fn new() -> Self {
        Self { owner: AtomicUsize::new(0), in_order: AtomicBool::new(false) }
    }

    /// A request whose order matters comes through the queue: said before it is pushed, and true for good.
    pub(crate) fn in_order(&self) {
        self.in_order.store(true, Ordering::Relaxed);
    }

    /// Takes the oldest request of `queue`, for a holder of the baton.
    ///
    /// Without the right as long as no order matters: a holder that loses the baton after its last look may take one more, which
    /// is none of those in order, as it saw the request before it looked for the mark; and one that turns out to be
    /// an append has begun before anything behind it is taken by somebody who sees that the baton was lost.
    #[inline]
    pub(crate) fn take(&self, queue: &IndexRing, holder: &impl Holder) -> Taken {
        self.take_as(queue, holder, sys::thread)
    }

    #[inline]
    fn take_as(&self, queue: &IndexRing, holder: &impl Holder, me: impl Fn() -> usize) -> Taken {
        while let Some((position, slot)) = queue.front() {
            if self.in_order.load(Ordering::Relaxed) || holder.overtakes() {
                return self.take_alone(queue, holder, me());
            }
            if !holder.holds() {
                return Taken::Lost;
            }
            if queue.pop_at(position) {
                return Taken::Slot(slot);
            }
        }
        Taken::Nothing
    }

    /// One at a time, and only as holder: one that was preempted between taking an append and putting it behind the others,
    /// and lost the baton, would find later ones there.
    #[inline(never)]
    fn take_alone(&self, queue: &IndexRing, holder: &impl Holder, me: usize) -> Taken {
        let _alone = self.alone_as(me);
        if !holder.holds() {
            return Taken::Lost;
        }
        match queue.pop() {
            None => Taken::Nothing,
            Some(slot) if holder.put_behind(slot) => Taken::Moved,
            Some(slot) => Taken::Slot(slot),
        }
    }

    /// Waits for it, which is short.
    #[inline]
    pub(crate) fn alone(&self) -> Alone<'_> {
        self.alone_as(sys::thread())
    }

    #[inline]
    fn alone_as(&self, me: usize) -> Alone<'_> {
        let (mut patience, mut looks, mut whose) = (Patience::default(), 0, 0);
        loop {
            match self.owner.compare_exchange(whose, me, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Alone(Some((&self.owner, me))),
                // A handler that has interrupted it: nobody else is at it, and the thread goes on only after the handler.
                Err(owner) if owner == me => return Alone(None),
                Err(owner) => {
                    looks += 1;
                    whose = if looks < LOOKS { 0 } else { owner };
                    patience.wait();
                }
            }
        }
    }
}

impl Drop for Alone<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some((word, me)) = self.0 {
            // Unless somebody else has it by now.
            let _ = word.compare_exchange(me, 0, Ordering::Release, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Taking;

    #[test]
    fn a_handler_of_the_same_thread_does_not_wait_and_ends_nothing() {
        let taking = Taking::new();
        let outer = taking.alone();
        drop(taking.alone());
        assert!(outer.0.is_some() && taking.alone().0.is_none(), "the outer one still has it");
        drop(outer);
        assert!(taking.alone().0.is_some());
    }

    #[test]
    fn who_stays_away_loses_it_and_takes_nothing_away_when_he_comes_back() {
        let taking = Taking::new();
        let away = taking.alone_as(1);
        let thief = taking.alone_as(2);
        assert!(thief.0.is_some());
        drop(away);
        assert!(taking.alone_as(2).0.is_none(), "the other one still has it");
        drop(thief);
        assert!(taking.alone_as(1).0.is_some());
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    //! Failure would look like: two threads at the queue at the same time, or an append that is executed while an earlier one is.

    use super::{Holder, Taken, Taking};
    use crate::baton::{Baton, Turn};
    use crate::queue::IndexRing;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use loom::thread;

    fn two_threads(me: usize, other: usize) {
        loom::model(move || {
            let shared = Arc::new((Taking::new(), AtomicUsize::new(0)));
            let count = |shared: &(Taking, AtomicUsize), me| {
                let _alone = shared.0.alone_as(me);
                // In two steps, and without an order of its own: what the right is to give.
                let so_far = shared.1.load(Ordering::Relaxed);
                shared.1.store(so_far + 1, Ordering::Relaxed);
            };
            let theirs = Arc::clone(&shared);
            let thread = thread::spawn(move || count(&theirs, other));
            count(&shared, me);
            thread.join().unwrap();
            assert_eq!(shared.1.load(Ordering::Relaxed), 2, "at the same time");
        });
    }

    #[test]
    fn loom_one_thread_at_a_time_takes() {
        two_threads(1, 2);
    }

    /// Canary: threads that are taken for one are at it at the same time.
    #[test]
    #[should_panic(expected = "at the same time")]
    fn loom_canary_threads_of_one_number_are_both_at_it() {
        two_threads(1, 1);
    }

    /// Appends in the inline queue, and two threads that come for them, one after the other with the baton.
    struct Model {
        baton: Baton,
        queue: IndexRing,
        taking: Taking,
        behind: IndexRing,
        losers: AtomicUsize,
        /// The first one was executed where it was.
        first_is_done: AtomicBool,
        /// They were not known as appends when they were pushed.
        hidden: bool,
        looks_for_losers: bool,
    }

    struct InTurn<'a>(&'a Model, &'a Turn);

    impl Holder for InTurn<'_> {
        fn holds(&self) -> bool {
            self.0.baton.is_held_in(self.1)
        }

        fn overtakes(&self) -> bool {
            let losers = self.0.looks_for_losers && self.0.losers.load(Ordering::SeqCst) > 0;
            losers || !self.0.behind.is_empty()
        }

        fn put_behind(&self, slot: u32) -> bool {
            let behind = !self.0.hidden || self.overtakes();
            if behind {
                self.0.behind.push(&[slot]);
            }
            behind
        }
    }

    impl Model {
        fn new(hidden: bool, looks_for_losers: bool) -> Self {
            Self {
                baton: Baton::new(),
                queue: IndexRing::new(2),
                taking: Taking::new(),
                behind: IndexRing::new(2),
                losers: AtomicUsize::new(0),
                first_is_done: AtomicBool::new(false),
                hidden,
                looks_for_losers,
            }
        }

        /// Takes until there is nothing, or the baton is lost.
        fn hold(&self, turn: Turn, me: usize) {
            loop {
                match self.taking.take_as(&self.queue, &InTurn(self, &turn), || me) {
                    Taken::Nothing => break,
                    Taken::Lost => return self.lost(),
                    Taken::Moved => continue,
                    Taken::Slot(slot) => {
                        assert!(
                            self.hidden,
                            "an append that was known as one is executed before its turn"
                        );
                        if slot == 0 {
                            self.first_is_done.store(true, Ordering::Relaxed);
                        } else {
                            assert!(self.first_is_done.load(Ordering::Relaxed), "overtaken");
                        }
                    }
                }
            }
            if !self.baton.leave(turn) {
                self.lost();
            }
        }

        fn lost(&self) {
            self.losers.fetch_sub(1, Ordering::SeqCst);
        }

        /// As a thief that goes on in its place does.
        fn steal_and_hold(&self) {
            self.losers.fetch_add(1, Ordering::SeqCst);
            if !self.baton.steal(self.baton.view(), 0) {
                self.losers.fetch_sub(1, Ordering::SeqCst);
            }
            if let Some(turn) = self.baton.take() {
                self.hold(turn, 2);
            }
        }

        /// Two appends are `pushed` while one thread holds the baton, and another one takes it away.
        fn run(self, pushed: fn(&Self)) {
            let model = Arc::new(self);
            let turn = model.baton.take().unwrap();
            if model.hidden {
                pushed(&model);
            }
            let other = Arc::clone(&model);
            let thief = thread::spawn(move || {
                if !other.hidden {
                    pushed(&other);
                }
                other.steal_and_hold();
            });
            model.hold(turn, 1);
            thief.join().unwrap();
            if let Some(first) = model.behind.pop() {
                let second = model.behind.pop();
                assert!(first == 0 || second.is_none(), "put behind in the wrong order");
            }
        }
    }

    fn push(model: &Model) {
        if !model.hidden {
            model.taking.in_order();
        }
        model.queue.push(&[0]);
        model.queue.push(&[1]);
    }

    #[test]
    fn loom_appends_are_taken_in_order() {
        loom::model(|| Model::new(false, true).run(push));
    }

    /// Canary: a submitter that says afterwards what it has pushed.
    #[test]
    #[should_panic(expected = "before its turn")]
    fn loom_canary_an_append_that_is_announced_after_its_push_is_executed_at_once() {
        loom::model(|| {
            Model::new(false, true).run(|model| {
                model.queue.push(&[0]);
                model.taking.in_order();
                model.queue.push(&[1]);
            });
        });
    }

    #[test]
    fn loom_appends_that_were_not_known_do_not_overtake() {
        loom::model(|| Model::new(true, true).run(push));
    }

    /// Canary: nobody looks whether another thread has lost the baton, and may have one in hand.
    #[test]
    #[should_panic(expected = "overtaken")]
    fn loom_canary_an_append_that_looks_for_no_loser_overtakes() {
        loom::model(|| Model::new(true, false).run(push));
    }
}
