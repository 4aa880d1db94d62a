//! Who takes requests out of the inline queue: one thread at a time, for as long as it decides where one goes.
//!
//! Not a mutex: a signal handler of the program may interrupt the thread that has the right, wait for completions, and come
//! to execute what is queued. It would wait for its own thread for ever.

use crate::sync::{AtomicUsize, Ordering, Patience};
use crate::sys;

/// The thread that has the right, or 0.
#[derive(Debug)]
pub(super) struct Taking(AtomicUsize);

/// The right, until it is dropped.
#[derive(Debug)]
pub(super) struct Alone<'a>(Option<&'a AtomicUsize>);

impl Taking {
    pub(super) fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// Waits for it, which is short.
    #[inline]
    pub(super) fn alone(&self) -> Alone<'_> {
        self.alone_as(sys::thread())
    }

    #[inline]
    fn alone_as(&self, me: usize) -> Alone<'_> {
        let mut patience = Patience::default();
        loop {
            match self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Alone(Some(&self.0)),
                // A handler that has interrupted it: nobody else is at it, and the thread goes on only after the handler.
                Err(owner) if owner == me => return Alone(None),
                Err(_) => patience.wait(),
            }
        }
    }
}

impl Drop for Alone<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(word) = self.0 {
            word.store(0, Ordering::Release);
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
}

#[cfg(all(test, loom))]
mod loom_models {
    //! Failure would look like: two threads at the queue at the same time.

    use super::Taking;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicUsize, Ordering};
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
}
