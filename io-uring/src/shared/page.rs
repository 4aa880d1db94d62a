//! The words that processes sharing a ring exchange, in a page beside the ring's own. They say who
//! executes its requests, how far both queues are, and whether a thread sleeps.
//!
//! A ring has one owner at a time: the process that has submitted to it last. The owner is *busy*
//! while it has requests in flight. Another process that submits replaces an owner that is idle, or
//! has ended.
//!
//! The program does not map the page, but it is in the memory of every process that has the ring.
//! Its values may be anything: they are only compared, masked, or bounded.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// A bit of the owner's word: it has requests in flight.
pub(crate) const BUSY: u64 = 1;

/// Initially zero.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Page {
    /// The identity of the owner, and [`BUSY`].
    owner: AtomicU64,
    /// More than one process has used the ring.
    shared: AtomicU32,
    /// The number of entries taken from the submission queue.
    pub(crate) sq_head: AtomicU32,
    /// The number of completions in the completion queue so far. Sleepers of all processes sleep on
    /// it.
    pub(crate) cq_tail: AtomicU32,
    /// A thread sleeps, or is about to.
    sleepers: AtomicU32,
    /// The number of completions of timeouts so far. Each such completion ends all present waits.
    pub(crate) timeouts: AtomicU32,
}

/// The result of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The caller was the owner before.
    Kept,
    /// The caller is the owner now. The former owner has left requests if it was busy.
    Adopted { was_busy: bool },
    /// The process with this word is the owner, and busy.
    Held(u64),
}

impl Page {
    /// Makes the process `me` the first owner, when it makes the ring.
    pub(crate) fn found(&self, me: u64) {
        self.owner.store(me, Ordering::Relaxed);
    }

    /// The words move to the page of the ring's new memory, which only this process uses.
    pub(crate) fn take_over(&self, old: &Self) {
        self.owner.store(old.owner.load(Ordering::Relaxed), Ordering::Relaxed);
        for (new, old) in [
            (&self.shared, &old.shared),
            (&self.sq_head, &old.sq_head),
            (&self.cq_tail, &old.cq_tail),
            (&self.sleepers, &old.sleepers),
            (&self.timeouts, &old.timeouts),
        ] {
            new.store(old.load(Ordering::Acquire), Ordering::Relaxed);
        }
    }

    /// Makes the process `me` the busy owner, unless another process is busy. `gone` is the word of
    /// an owner that is known to have ended, or 0.
    pub(crate) fn claim(&self, me: u64, gone: u64) -> Claim {
        let mut now = self.owner.load(Ordering::Relaxed);
        loop {
            let (was_busy, is_mine) = (now & BUSY != 0, now & !BUSY == me);
            if was_busy && is_mine {
                return Claim::Kept;
            }
            if was_busy && now != gone {
                return Claim::Held(now);
            }
            // Acquire: this process sees what the former owner has written.
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            match self.owner.compare_exchange_weak(now, me | BUSY, success, failure) {
                Ok(_) if is_mine => return Claim::Kept,
                Ok(_) => return Claim::Adopted { was_busy },
                Err(other) => now = other,
            }
        }
    }

    /// The owner `me` has nothing in flight any more. In a shared ring, a process that was taken
    /// for ended and replaced changes nothing.
    #[inline]
    pub(crate) fn release(&self, me: u64) {
        if !self.is_shared() {
            return self.owner.store(me, Ordering::Release);
        }
        let (success, failure) = (Ordering::Release, Ordering::Relaxed);
        let _ = self.owner.compare_exchange(me | BUSY, me, success, failure);
    }

    /// The word of a busy owner other than `me`.
    pub(crate) fn busy_other(&self, me: u64) -> Option<u64> {
        let now = self.owner.load(Ordering::Relaxed);
        (now & BUSY != 0 && now & !BUSY != me).then_some(now)
    }

    /// A process that did not make the ring uses it.
    pub(crate) fn share(&self) {
        self.shared.store(1, Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed) != 0
    }

    /// The caller is about to check the queue, and then to sleep while the tail is unchanged.
    pub(crate) fn announce(&self) {
        self.sleepers.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Must sleepers be woken? Asked after a post, and after a fence. Clears the flag. A thread
    /// that goes back to sleep sets the flag again, and a killed thread does not.
    #[inline]
    pub(crate) fn takes_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::Relaxed) != 0 && self.sleepers.swap(0, Ordering::Relaxed) != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{BUSY, Claim, Page};

    fn page() -> Page {
        // SAFETY: all fields are numbers, for which zero is valid.
        #[allow(unsafe_code)]
        unsafe {
            std::mem::zeroed()
        }
    }

    #[test]
    fn an_owner_is_replaced_when_it_is_idle_or_gone() {
        let page = page();
        page.found(2);
        assert_eq!(page.claim(2, 0), Claim::Kept);
        page.share();
        assert_eq!(page.claim(2, 0), Claim::Kept, "it is busy");
        assert_eq!(page.claim(4, 0), Claim::Held(2 | BUSY));
        assert_eq!(page.claim(4, 6 | BUSY), Claim::Held(2 | BUSY), "another one is gone");
        page.release(4);
        assert_eq!(page.busy_other(4), Some(2 | BUSY));
        page.release(2);
        assert_eq!((page.busy_other(4), page.busy_other(2)), (None, None));
        assert_eq!(page.claim(4, 0), Claim::Adopted { was_busy: false });
        assert_eq!(page.claim(2, 4 | BUSY), Claim::Adopted { was_busy: true });
        page.release(4);
        assert_eq!(page.busy_other(4), Some(2 | BUSY), "what was replaced releases nothing");
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    use loom::thread;

    use super::{BUSY, Claim, Page};

    const MAKER: u64 = 2;

    fn page() -> Page {
        Page {
            owner: AtomicU64::new(MAKER),
            shared: AtomicU32::new(1),
            sq_head: AtomicU32::new(0),
            cq_tail: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            timeouts: AtomicU32::new(0),
        }
    }

    /// Posts a completion by a load and a store. That is correct only while one owner posts at a
    /// time.
    fn post(page: &Page) {
        let tail = page.cq_tail.load(Ordering::Relaxed);
        page.cq_tail.store(tail + 1, Ordering::Relaxed);
    }

    /// Submits one request that ends at once, if no other process holds the ring.
    fn one(page: &Page, me: u64) -> u32 {
        match page.claim(me, 0) {
            Claim::Held(_) => 0,
            Claim::Kept | Claim::Adopted { .. } => {
                post(page);
                page.release(me);
                1
            }
        }
    }

    #[test]
    fn loom_of_processes_that_adopt_a_ring_one_is_the_owner() {
        loom::model(|| {
            let page = Arc::new(page());
            let other = Arc::clone(&page);
            let adopts = thread::spawn(move || one(&other, 4));
            let mine = one(&page, 6) + one(&page, MAKER);
            let posted = mine + adopts.join().unwrap();
            assert_eq!(page.cq_tail.load(Ordering::Relaxed), posted, "two have posted at once");
        });
    }

    #[test]
    #[should_panic(expected = "two have posted at once")]
    fn loom_canary_an_owner_is_replaced_without_an_exchange() {
        loom::model(|| {
            let page = Arc::new(page());
            let take = |page: &Page, me: u64| {
                if page.owner.load(Ordering::Acquire) & BUSY == 0 {
                    page.owner.store(me | BUSY, Ordering::Release);
                    post(page);
                    page.owner.store(me, Ordering::Release);
                    return 1;
                }
                0
            };
            let other = Arc::clone(&page);
            let adopts = thread::spawn(move || take(&other, 4));
            let posted = take(&page, 6) + adopts.join().unwrap();
            assert_eq!(page.cq_tail.load(Ordering::Relaxed), posted, "two have posted at once");
        });
    }

    /// The owner ends at any point. Two processes see that, and both submit.
    #[test]
    fn loom_of_processes_that_see_an_owner_gone_one_adopts_what_it_left() {
        loom::model(|| {
            let page = Arc::new(page());
            assert_eq!(page.claim(MAKER, 0), Claim::Kept);
            let adopt = |page: &Page, me: u64| page.claim(me, MAKER | BUSY);
            let other = Arc::clone(&page);
            let adopts = thread::spawn(move || adopt(&other, 4));
            let all = [adopt(&page, 6), adopts.join().unwrap()];
            let left = Claim::Adopted { was_busy: true };
            assert_eq!(all.iter().filter(|&&one| one == left).count(), 1, "{all:?}");
            assert!(all.iter().any(|one| matches!(one, Claim::Held(_))), "{all:?}");
        });
    }

    /// The owner becomes idle, and ends, while another process adopts: that process never takes
    /// ended requests for left ones.
    #[test]
    fn loom_an_owner_that_is_idle_when_it_ends_leaves_nothing() {
        loom::model(|| {
            let page = Arc::new(page());
            assert_eq!(page.claim(MAKER, 0), Claim::Kept);
            let other = Arc::clone(&page);
            let ends = thread::spawn(move || {
                post(&other);
                other.release(MAKER);
            });
            let claim = page.claim(4, 0);
            if claim == (Claim::Adopted { was_busy: false }) {
                assert_eq!(page.cq_tail.load(Ordering::Relaxed), 1, "a completion is not seen");
            } else {
                assert_eq!(claim, Claim::Held(MAKER | BUSY));
            }
            ends.join().unwrap();
        });
    }

    /// Does a thread of another process go to sleep? futex(2) compares the tail once more.
    fn sleeps(page: &Page, announces: bool) -> bool {
        if announces {
            page.announce();
        }
        page.cq_tail.load(Ordering::Relaxed) == 0
    }

    fn post_beside_a_sleeper(announces: bool) {
        loom::model(move || {
            let page = Arc::new(page());
            let other = Arc::clone(&page);
            let sleeper = thread::spawn(move || sleeps(&other, announces));
            post(&page);
            fence(Ordering::SeqCst);
            let wakes = page.takes_sleepers();
            assert!(wakes || !sleeper.join().unwrap(), "it sleeps on");
        });
    }

    #[test]
    fn loom_who_sleeps_on_the_tail_in_another_process_is_woken() {
        post_beside_a_sleeper(true);
    }

    #[test]
    #[should_panic(expected = "it sleeps on")]
    fn loom_canary_a_sleeper_does_not_announce_itself() {
        post_beside_a_sleeper(false);
    }

    #[test]
    #[should_panic(expected = "it sleeps on")]
    fn loom_canary_the_owner_looks_for_sleepers_without_a_fence() {
        loom::model(|| {
            let page = Arc::new(page());
            let other = Arc::clone(&page);
            let sleeper = thread::spawn(move || sleeps(&other, true));
            post(&page);
            let wakes = page.takes_sleepers();
            assert!(wakes || !sleeper.join().unwrap(), "it sleeps on");
        });
    }
}
