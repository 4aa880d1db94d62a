//! The number of readers: workers that execute reads whose pages are on their way from the device.
//! There is one, and another for each that is stuck.

use crate::sync::{AtomicUsize, Ordering, fence};

#[derive(Debug)]
pub(crate) struct Readers {
    at_it: AtomicUsize,
    /// The number of stuck readers, plus one.
    most: AtomicUsize,
}

impl Readers {
    pub(crate) fn new() -> Self {
        Self { at_it: AtomicUsize::new(0), most: AtomicUsize::new(1) }
    }

    /// Asked after a request was pushed: must a reader be called? If not, a present reader sees the
    /// request before it leaves, or right after.
    #[inline]
    pub(crate) fn are_too_few(&self) -> bool {
        // Pairs with the fence in `leave`: either that reader sees the push, or this thread sees
        // that there is no reader.
        fence(Ordering::SeqCst);
        self.at_it.load(Ordering::Relaxed) < self.most.load(Ordering::Relaxed)
    }

    /// Becomes a reader, unless there are enough.
    pub(crate) fn enter(&self) -> bool {
        // As in `are_too_few`: a reader that leaves meanwhile sees what the caller has seen.
        fence(Ordering::SeqCst);
        let mut now = self.at_it.load(Ordering::Relaxed);
        while now < self.most.load(Ordering::Relaxed) {
            let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            match self.at_it.compare_exchange(now, now + 1, order, failed) {
                Ok(_) => return true,
                Err(changed) => {
                    now = changed;
                    fence(Ordering::SeqCst);
                }
            }
        }
        false
    }

    /// Stops being a reader. The caller checks afterwards whether requests are left, and whether
    /// readers [are too few](Self::are_too_few) for them.
    pub(crate) fn leave(&self) {
        let others = self.at_it.fetch_sub(1, Ordering::AcqRel) - 1;
        // This reader is not stuck, whatever the others are.
        let most = self.most.load(Ordering::Relaxed);
        if most > others + 1 {
            self.most.store(others + 1, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Lets another reader come, because requests wait, and none was taken for long.
    pub(crate) fn are_stuck(&self) {
        self.most.store(self.at_it.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Readers;

    #[test]
    fn one_reads_and_another_for_each_that_is_stuck() {
        let readers = Readers::new();
        assert!(readers.are_too_few() && readers.enter());
        assert!(!readers.are_too_few() && !readers.enter());
        readers.are_stuck();
        assert!(readers.enter() && !readers.enter());
        readers.leave();
        assert!(readers.enter(), "the other one is still stuck");
        readers.leave();
        readers.leave();
        assert!(readers.enter() && !readers.enter(), "none is stuck any more");
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    //! A failure would be: a request that was pushed, and neither read nor seen by the thread that
    //! has to call a reader.

    use super::Readers;
    use crate::queue::IndexRing;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use loom::thread;

    #[derive(Debug)]
    struct Model {
        readers: Readers,
        coming: IndexRing,
        read: AtomicUsize,
    }

    impl Model {
        /// A worker: becomes a reader and reads, again and again, until nothing is left or there
        /// are enough readers.
        fn work(&self, leave: impl Fn(&Readers)) {
            while !self.coming.is_empty() && self.readers.enter() {
                let before = self.read.load(Ordering::Relaxed);
                while self.coming.pop().is_some() {
                    self.read.fetch_add(1, Ordering::Relaxed);
                }
                leave(&self.readers);
                if self.read.load(Ordering::Relaxed) == before {
                    // A pushing thread has reserved the entry, and not written it yet.
                    thread::yield_now();
                }
            }
        }
    }

    /// A reader leaves while another request comes. The pushing thread becomes the next reader if
    /// none is there.
    fn a_push_while_a_reader_leaves(leave: fn(&Readers)) {
        loom::model(move || {
            let coming = IndexRing::new(2);
            coming.push(&[0]);
            let (readers, read) = (Readers::new(), AtomicUsize::new(0));
            let model = Arc::new(Model { readers, coming, read });
            let other = Arc::clone(&model);
            let reader = thread::spawn(move || other.work(leave));
            model.coming.push(&[1]);
            if model.readers.are_too_few() {
                model.work(leave);
            }
            reader.join().unwrap();
            assert_eq!(model.read.load(Ordering::Relaxed), 2, "forgotten");
        });
    }

    #[test]
    fn loom_what_is_pushed_while_a_reader_leaves_is_read() {
        a_push_while_a_reader_leaves(Readers::leave);
    }

    /// Canary: a reader that checks without a fence.
    #[test]
    #[should_panic(expected = "forgotten")]
    fn loom_canary_a_reader_that_leaves_without_a_fence_forgets_one() {
        a_push_while_a_reader_leaves(|readers| {
            readers.at_it.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Two workers were called at the same time: a worker that finds a reader may leave.
    #[test]
    fn loom_who_is_one_too_many_leaves_it_to_the_other() {
        loom::model(|| {
            let coming = IndexRing::new(2);
            let (readers, read) = (Readers::new(), AtomicUsize::new(0));
            let model = Arc::new(Model { readers, coming, read });
            let workers = [0, 1].map(|slot| {
                let model = Arc::clone(&model);
                thread::spawn(move || {
                    model.coming.push(&[slot]);
                    model.work(Readers::leave);
                })
            });
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            assert_eq!(model.read.load(Ordering::Relaxed), 2, "forgotten");
        });
    }
}
