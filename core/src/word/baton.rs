//! The baton: the right to execute a context's inline lane. One thread holds it at a time; a holder
//! that blocks loses it. `lane/README.md` gives the states, and the argument that no wake-up is
//! lost.
//!
//! One word: `turn << 3 | WATCHED | WORK | HELD`. The turn is incremented with every change of
//! holder. The number of requests that were taken out of the queue grows with every request that a
//! holder begins. If the sum of turn and number ([`View::at`]) is the same in two checks, the
//! holder has been in one request in between. Where a batch is begun, and not a request (the
//! hand-over of the kernel lane), the turn itself is incremented.

use crate::sync::{AtomicU64, Ordering, fence, fence_behind_exchange};

const HELD: u64 = 1;
const WORK: u64 = 2;
const WATCHED: u64 = 4;
const TURN: u64 = 8;

/// The baton of one context.
#[derive(Debug)]
pub(crate) struct Baton(AtomicU64);

/// Proof of holding the baton, as long as no thread has taken it away.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Turn(u64);

/// The value of the word, as seen by a thread that does not hold the baton.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View(u64);

impl View {
    /// Does a thread hold the baton?
    pub(crate) fn is_held(self) -> bool {
        self.0 & HELD != 0
    }

    /// Were requests announced since a holder last checked?
    pub(crate) fn has_work(self) -> bool {
        self.0 & WORK != 0
    }

    /// Does the watchdog watch this context?
    pub(crate) fn is_watched(self) -> bool {
        self.0 & WATCHED != 0
    }

    /// The turn. It changes when a thread takes or steals the baton, and when its holder begins a
    /// batch. After [`View::at`], it also changes with each request that a holder begins.
    pub(crate) fn turn(self) -> u64 {
        self.0 / TURN
    }

    /// The word itself, to be stored.
    pub(crate) fn word(self) -> u64 {
        self.0
    }

    /// Adds the number of requests that holders have taken out of their queue, which grows with
    /// every request that a holder begins.
    pub(crate) fn at(self, taken: u64) -> Self {
        Self(self.0.wrapping_add(taken.wrapping_mul(TURN)))
    }

    /// Is the baton held, in the same turn as in `earlier`?
    pub(crate) fn is_stuck_since(self, earlier: View) -> bool {
        self.is_held() && self.0 / TURN == earlier.0 / TURN && earlier.is_held()
    }
}

/// The result of a [`Baton::release`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// No thread holds the baton, and no request waits.
    Free,
    /// Requests were announced meanwhile: still held.
    Work(Turn),
    /// The baton had been taken away.
    Lost,
}

impl Baton {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Announces pushed requests. If the returned view is not held, the caller has to find a thread
    /// that takes the baton.
    #[inline]
    pub(crate) fn announce(&self) -> View {
        // The word is only read while requests are already announced to its holder, or to the next
        // one.
        if View(self.0.load(Ordering::Relaxed)).has_work() {
            // Pairs with the fences in `take` and `look_again`: a thread that clears the mark seen
            // here sees the pushed entries.
            fence(Ordering::SeqCst);
            // The load is ordered with the sleepers' flag, as below.
            let now = View(self.0.load(Ordering::SeqCst));
            if now.has_work() {
                return now;
            }
        }
        // Release: the thread that takes the baton sees the pushed entries. Ordered with the
        // sleepers' flag: either the submitter sees a sleeper, or the sleeper sees the work.
        View(self.0.fetch_or(WORK, Ordering::SeqCst))
    }

    /// The current value of the word.
    #[inline]
    pub(crate) fn view(&self) -> View {
        View(self.0.load(Ordering::SeqCst))
    }

    /// Takes a free baton. Requests that were announced before are in the queue after this.
    #[inline]
    pub(crate) fn take(&self) -> Option<Turn> {
        let turn = self.take_unfenced()?;
        // Pairs with the fence in `announce`.
        fence_behind_exchange();
        Some(turn)
    }

    #[inline]
    fn take_unfenced(&self) -> Option<Turn> {
        let mut now = self.0.load(Ordering::Relaxed);
        while now & HELD == 0 {
            let held = (now & WATCHED) | ((now & !(TURN - 1)).wrapping_add(TURN)) | HELD;
            match self.0.compare_exchange_weak(now, held, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(Turn(held / TURN)),
                Err(changed) => now = changed,
            }
        }
        None
    }

    /// Is the baton still held in this turn?
    #[inline]
    pub(crate) fn is_held_in(&self, turn: &Turn) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        now / TURN == turn.0 && now & HELD != 0
    }

    /// Changes a holder's word. `Err(false)`: the baton was taken away. `Err(true)`: `f` changes
    /// nothing.
    #[inline]
    fn update(&self, turn: &Turn, f: impl Fn(u64) -> Option<u64>) -> Result<u64, bool> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            if now / TURN != turn.0 || now & HELD == 0 {
                return Err(false);
            }
            let Some(next) = f(now) else { return Err(true) };
            match self.0.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(next),
                Err(changed) => now = changed,
            }
        }
    }

    /// Begins the next batch: a new turn. `None` if the baton was taken away.
    #[inline]
    pub(crate) fn proceed(&self, turn: Turn) -> Option<Turn> {
        self.update(&turn, |now| Some(now.wrapping_add(TURN))).ok().map(|now| Turn(now / TURN))
    }

    /// Clears the announcements and begins a new turn. Requests that were announced before are in
    /// the queue after this. `None` if the baton was taken away.
    #[inline]
    pub(crate) fn look_again(&self, turn: Turn) -> Option<Turn> {
        let now = self.update(&turn, |now| Some((now & !WORK).wrapping_add(TURN))).ok()?;
        // Pairs with the fence in `announce`.
        fence_behind_exchange();
        Some(Turn(now / TURN))
    }

    /// Gives the baton back after the queue was found empty.
    #[inline]
    pub(crate) fn release(&self, turn: Turn) -> Release {
        match self.update(&turn, |now| (now & WORK == 0).then_some(now & !HELD)) {
            Ok(_) => Release::Free,
            Err(true) => Release::Work(turn),
            Err(false) => Release::Lost,
        }
    }

    /// Gives the baton back although requests may be left, and announces them to the next holder.
    /// False if it had been taken away.
    #[inline]
    pub(crate) fn leave(&self, turn: Turn) -> bool {
        self.update(&turn, |now| Some(now & !HELD | WORK)).is_ok()
    }

    /// Takes the baton away from the holder seen in `stuck`. `taken`: the number of requests that
    /// holders have taken by now. Fails if that number or the turn has changed since. Either the
    /// holder's next step on its turn succeeds, or this does. After this the baton is free, with
    /// work announced.
    pub(crate) fn steal(&self, stuck: View, taken: u64) -> bool {
        let mut now = self.0.load(Ordering::Relaxed);
        while now & HELD != 0 && View(now).at(taken).0 / TURN == stuck.0 / TURN {
            let free = now.wrapping_add(TURN) & !HELD | WORK;
            match self.0.compare_exchange_weak(now, free, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(changed) => now = changed,
            }
        }
        false
    }

    /// Marks the context as watched. True for the one caller that has to tell the watchdog.
    pub(crate) fn watch(&self) -> bool {
        self.0.fetch_or(WATCHED, Ordering::AcqRel) & WATCHED == 0
    }

    /// Ends the watch if nothing is announced. The caller has found the queue empty before.
    pub(crate) fn unwatch(&self) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        now & WORK == 0
            && self
                .0
                .compare_exchange(now, now & !WATCHED, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Baton, Release};

    #[test]
    fn blocked_holder_loses_the_baton() {
        let baton = Baton::new();
        let turn = baton.take().unwrap();
        assert!(baton.take().is_none());
        let view = baton.view();
        let turn = baton.proceed(turn).unwrap();
        assert!(!baton.view().is_stuck_since(view));
        assert!(!baton.steal(view, 0), "an old view steals nothing");
        let view = baton.view().at(7);
        assert!(
            !baton.view().at(8).is_stuck_since(view) && baton.view().at(7).is_stuck_since(view)
        );
        assert!(!baton.steal(view, 8), "its holder has begun another request");
        assert!(baton.is_held_in(&turn));
        assert!(baton.steal(view, 7));
        assert!(!baton.is_held_in(&turn) && baton.proceed(turn).is_none());
        assert!(baton.view().has_work());
        let turn = baton.take().unwrap();
        assert_eq!(baton.release(turn), Release::Free);
    }

    #[test]
    fn announced_work_keeps_the_baton_with_its_holder() {
        let baton = Baton::new();
        let turn = baton.take().unwrap();
        assert!(baton.announce().is_held());
        let turn = baton.proceed(turn).unwrap();
        let Release::Work(turn) = baton.release(turn) else { panic!("work was announced") };
        let turn = baton.look_again(turn).unwrap();
        assert_eq!(baton.release(turn), Release::Free);
        assert!(!baton.announce().is_held());
        assert!(!baton.unwatch(), "work is announced");
        let turn = baton.take().unwrap();
        assert!(baton.leave(turn));
        assert!(baton.view().has_work());
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    //! A failure would be: two threads that each believe that they hold the same turn; or the baton
    //! free, with nothing announced, and a request left in the ring.

    use super::{Baton, Release, Turn, View};
    use crate::queue::IndexRing;
    use crate::sync::{AtomicU32, Ordering};
    use loom::sync::Arc;
    use loom::thread;

    struct Model {
        baton: Baton,
        ring: IndexRing,
        executed: AtomicU32,
        losers: AtomicU32,
    }

    impl Model {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                baton: Baton::new(),
                ring: IndexRing::new(2),
                executed: AtomicU32::new(0),
                losers: AtomicU32::new(0),
            })
        }

        /// Push, announce, and serve if no thread holds the baton, as submit and a worker do.
        fn submit(&self, slot: u32) {
            self.ring.push(&[slot]);
            if !self.baton.announce().is_held()
                && let Some(turn) = self.baton.take()
            {
                self.hold(turn);
            }
        }

        fn hold(&self, mut turn: Turn) {
            let lost = || {
                self.losers.fetch_add(1, Ordering::Relaxed);
            };
            loop {
                while let Some((position, _)) = self.ring.front() {
                    if !self.baton.is_held_in(&turn) {
                        return lost();
                    }
                    if self.ring.pop_at(position) {
                        self.executed.fetch_add(1, Ordering::Relaxed);
                    }
                }
                match self.baton.release(turn) {
                    Release::Work(same) => match self.baton.look_again(same) {
                        Some(next) => turn = next,
                        None => return lost(),
                    },
                    Release::Free => return,
                    Release::Lost => return lost(),
                }
            }
        }
    }

    #[test]
    fn loom_no_request_is_left_behind() {
        loom::model(|| {
            let model = Model::new();
            let other = Arc::clone(&model);
            let submitter = thread::spawn(move || other.submit(0));
            model.submit(1);
            submitter.join().unwrap();
            assert_eq!(model.executed.load(Ordering::Relaxed), 2);
            assert!(!model.baton.view().is_held());
        });
    }

    #[test]
    fn loom_a_thief_and_the_holder_never_both_win() {
        loom::model(|| {
            let model = Model::new();
            let turn = model.baton.take().unwrap();
            model.ring.push(&[0]);
            model.baton.announce();
            let seen = model.baton.view();
            let other = Arc::clone(&model);
            let thief = thread::spawn(move || {
                let won = other.baton.steal(seen, 0);
                if won && let Some(turn) = other.baton.take() {
                    other.hold(turn);
                }
                won
            });
            let kept = model.baton.proceed(turn);
            let still_holder = kept.is_some();
            if let Some(turn) = kept {
                model.hold(turn);
            }
            let stolen = thief.join().unwrap();
            assert!(still_holder ^ stolen, "exactly one wins");
            assert_eq!(model.executed.load(Ordering::Relaxed), 1);
            assert!(!model.baton.view().is_held());
        });
    }

    #[test]
    fn loom_who_loses_it_between_two_requests_finds_out_once() {
        loom::model(|| {
            let model = Model::new();
            model.ring.push(&[0, 1]);
            model.baton.announce();
            let turn = model.baton.take().unwrap();
            let seen = model.baton.view().at(model.ring.taken());
            let other = Arc::clone(&model);
            let thief = thread::spawn(move || {
                let stolen = other.baton.steal(seen, other.ring.taken());
                if stolen && let Some(turn) = other.baton.take() {
                    other.hold(turn);
                }
                stolen
            });
            model.hold(turn);
            let stolen = thief.join().unwrap();
            assert_eq!(model.losers.load(Ordering::Relaxed), u32::from(stolen));
            assert_eq!(model.executed.load(Ordering::Relaxed), 2);
            assert!(!model.baton.view().is_held());
        });
    }

    /// A holder sees a pushed request, also if another request was announced already, so that the
    /// submitter only reads the word.
    fn submit_behind_a_holder(announce: impl Fn(&Baton) -> View + Send + Sync + 'static) {
        loom::model(move || {
            let model = Model::new();
            let turn = model.baton.take().unwrap();
            model.ring.push(&[0]);
            model.baton.announce();
            let other = Arc::clone(&model);
            let holder = thread::spawn(move || other.hold(turn));
            model.ring.push(&[1]);
            if !announce(&model.baton).is_held()
                && let Some(turn) = model.baton.take()
            {
                model.hold(turn);
            }
            holder.join().unwrap();
            assert_eq!(model.executed.load(Ordering::Relaxed), 2, "left behind");
        });
    }

    #[test]
    fn loom_what_is_announced_already_is_seen_all_the_same() {
        submit_behind_a_holder(Baton::announce);
    }

    /// Canary: without the fence, the word may be read before the push is seen.
    #[test]
    #[should_panic(expected = "left behind")]
    fn loom_canary_announcing_by_a_mere_look_leaves_a_request_behind() {
        submit_behind_a_holder(|baton| {
            let now = View(baton.0.load(Ordering::Relaxed));
            if now.is_held() && now.has_work() { now } else { baton.announce() }
        });
    }

    /// A submitter finds another one's requests announced already, and no thread holds the baton
    /// yet.
    fn submit_before_a_holder(take: impl Fn(&Baton) -> Option<Turn> + Send + Sync + 'static) {
        loom::model(move || {
            let model = Model::new();
            model.ring.push(&[0]);
            model.baton.announce();
            let other = Arc::clone(&model);
            // Another request was announced before. So the submitter leaves the free baton to the
            // thread that comes for that announcement.
            let submitter = thread::spawn(move || {
                other.ring.push(&[1]);
                other.baton.announce().has_work()
            });
            if let Some(turn) = take(&model.baton) {
                model.hold(turn);
            }
            let was_announced = submitter.join().unwrap();
            if !was_announced && let Some(turn) = model.baton.take() {
                model.hold(turn);
            }
            assert_eq!(model.executed.load(Ordering::Relaxed), 2, "left behind");
        });
    }

    #[test]
    fn loom_what_is_announced_for_the_next_holder_is_seen_by_him() {
        submit_before_a_holder(Baton::take);
    }

    /// Canary: a holder that takes the baton, and checks the queue without a fence.
    #[test]
    #[should_panic(expected = "left behind")]
    fn loom_canary_taking_without_a_fence_leaves_a_request_behind() {
        submit_before_a_holder(Baton::take_unfenced);
    }

    /// Canary: a holder that releases with a plain store loses later announcements.
    #[test]
    #[should_panic(expected = "left behind")]
    fn loom_canary_release_by_store_leaves_a_request_behind() {
        loom::model(|| {
            let model = Model::new();
            let turn = model.baton.take().unwrap();
            let other = Arc::clone(&model);
            let submitter = thread::spawn(move || other.submit(0));
            while model.ring.pop().is_some() {
                model.executed.fetch_add(1, Ordering::Relaxed);
            }
            model.baton.0.store(turn.0 * super::TURN, Ordering::Release);
            submitter.join().unwrap();
            assert_eq!(model.executed.load(Ordering::Relaxed), 1, "left behind");
        });
    }
}
