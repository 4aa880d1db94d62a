//! Decides when a descriptor has to be changed, so that it is readable while there are completions.
//!
//! The descriptor is an eventfd. Updating it costs two system calls each time that a queue fills
//! and empties, and most programs never look. So it is updated only while there are watchers. A
//! thread in poll(2) or select(2) is a watcher while it is there. An epoll with the descriptor, and
//! any watcher that the front end cannot see, is permanent.
//!
//! The queue has a lock. The thread that releases it updates the descriptor (`settle`). A
//! watcher announces itself before it looks:
//!
//! | gives the lock back | begins to watch |
//! |---|---|
//! | settles: reads the watchers | adds itself to the watchers |
//! | unlocks | fence |
//! | fence | locks, if nobody has the lock, and settles |
//! | reads the watchers again, and settles again if that changes something | sleeps |
//!
//! A watcher that does not get the lock leaves the work to the holder, whose second check sees the
//! watcher.

use crate::sync::{AtomicBool, AtomicU32, Ordering, fence};

/// The state of the descriptor and its watchers.
#[derive(Debug)]
pub struct Readiness {
    /// The descriptor is readable. Changed under the lock only.
    readable: AtomicBool,
    watchers: AtomicU32,
    /// One of the watchers is permanent.
    stays: AtomicBool,
}

impl Readiness {
    /// There are no watchers, and the descriptor is not readable.
    #[allow(clippy::new_without_default, reason = "made in one place")]
    pub fn new() -> Self {
        Self {
            readable: AtomicBool::new(false),
            watchers: AtomicU32::new(0),
            stays: AtomicBool::new(false),
        }
    }

    /// Is the descriptor readable?
    #[inline]
    pub fn is_readable(&self) -> bool {
        self.readable.load(Ordering::Relaxed)
    }

    #[inline]
    fn should_be_readable(&self, has: bool) -> bool {
        has && (self.is_readable() || self.watchers.load(Ordering::Relaxed) > 0)
    }

    /// Under the lock: the new state of the descriptor, if it has to change. `has`: there are
    /// completions.
    #[inline]
    pub fn settle(&self, has: bool) -> Option<bool> {
        let should = self.should_be_readable(has);
        if should == self.is_readable() {
            return None;
        }
        self.readable.store(should, Ordering::Relaxed);
        Some(should)
    }

    /// Under the lock, if the state need not change: must the descriptor be made readable once more
    /// for each completion? A permanent watcher may be edge-triggered (epoll(7), `EPOLLET`).
    #[inline]
    pub fn repeats(&self) -> bool {
        self.is_readable() && self.stays.load(Ordering::Relaxed)
    }

    /// Right after the lock was released: must it be taken once more?
    #[inline]
    pub fn has_missed(&self, has: impl FnOnce() -> bool) -> bool {
        fence(Ordering::SeqCst);
        let (readable, watched) = (self.is_readable(), self.watchers.load(Ordering::Relaxed) > 0);
        (readable || watched) && readable != has()
    }

    /// Counts a watcher that comes. It then tries to take the lock and to settle.
    pub fn watch(&self) {
        self.watchers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Counts a watcher that leaves.
    pub fn unwatch(&self) {
        self.watchers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts all permanent watchers as one. True for the first that comes.
    pub fn watch_for_ever(&self) -> bool {
        let first = !self.stays.swap(true, Ordering::Relaxed);
        if first {
            self.watch();
        }
        first
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn nobody_watches_and_it_is_not_readable() {
        let readiness = Readiness::new();
        assert_eq!(readiness.settle(true), None);
        assert!(!readiness.has_missed(|| true));
        readiness.watch();
        assert!(readiness.has_missed(|| true));
        assert_eq!(readiness.settle(true), Some(true));
        assert_eq!(readiness.settle(true), None);
        readiness.unwatch();
        assert_eq!(readiness.settle(true), None, "stays so until there is nothing");
        assert_eq!(readiness.settle(false), Some(false));
        assert_eq!(readiness.settle(true), None);
    }

    #[test]
    fn who_watches_for_ever_counts_once() {
        let readiness = Readiness::new();
        assert!(readiness.watch_for_ever());
        assert!(!readiness.watch_for_ever());
        assert!(!readiness.repeats());
        assert_eq!(readiness.settle(true), Some(true));
        assert!(readiness.repeats());
        assert_eq!(readiness.settle(false), Some(false));
        assert!(!readiness.repeats());
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;

    /// A model ring: completions under a lock, and whether its eventfd is readable.
    struct ReadinessModel {
        readiness: Readiness,
        lock: Mutex<()>,
        completions: AtomicU32,
        eventfd: AtomicBool,
    }

    impl ReadinessModel {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                readiness: Readiness::new(),
                lock: Mutex::new(()),
                completions: AtomicU32::new(0),
                eventfd: AtomicBool::new(false),
            })
        }

        fn has(&self) -> bool {
            self.completions.load(Ordering::Acquire) > 0
        }

        fn settle(&self) {
            if let Some(readable) = self.readiness.settle(self.has()) {
                self.eventfd.store(readable, Ordering::Release);
            }
        }

        fn give_back(&self, second_look: bool) {
            while second_look && self.readiness.has_missed(|| self.has()) {
                let Ok(held) = self.lock.try_lock() else { return };
                self.settle();
                drop(held);
            }
        }

        fn post(&self, second_look: bool) {
            let held = self.lock.lock().unwrap();
            self.completions.fetch_add(1, Ordering::Release);
            self.settle();
            drop(held);
            self.give_back(second_look);
        }

        fn begin_to_watch(&self) {
            self.readiness.watch();
            if let Ok(held) = self.lock.try_lock() {
                self.settle();
                drop(held);
                self.give_back(true);
            }
        }
    }

    fn who_watches_is_told(second_look: bool) {
        loom::model(move || {
            let ring = ReadinessModel::new();
            let other = Arc::clone(&ring);
            let poster = thread::spawn(move || other.post(second_look));
            ring.begin_to_watch();
            poster.join().unwrap();
            assert!(ring.eventfd.load(Ordering::Acquire), "sleeps beside a completion");
        });
    }

    #[test]
    fn loom_who_watches_is_told_of_what_is_posted() {
        who_watches_is_told(true);
    }

    #[test]
    #[should_panic(expected = "sleeps beside a completion")]
    fn loom_canary_without_a_second_look_a_watcher_sleeps() {
        who_watches_is_told(false);
    }

    #[test]
    fn loom_an_empty_queue_is_not_readable() {
        loom::model(|| {
            let ring = ReadinessModel::new();
            ring.readiness.watch_for_ever();
            ring.post(true);
            let other = Arc::clone(&ring);
            let poster = thread::spawn(move || other.post(true));
            // The program reaps the first completion, and then makes a call that settles.
            ring.completions.fetch_sub(1, Ordering::AcqRel);
            if let Ok(held) = ring.lock.try_lock() {
                ring.settle();
                drop(held);
                ring.give_back(true);
            }
            poster.join().unwrap();
            assert!(ring.eventfd.load(Ordering::Acquire), "the second is there");
        });
    }
}
