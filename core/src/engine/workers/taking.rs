//! Who takes requests out of the inline queue: one thread at a time, for as long as it decides where one goes.
//!
//! Not a mutex: a signal handler of the program may interrupt the thread that has the right, and wait for completions. It comes
//! to execute what is queued, or waits for a worker that does: both would wait for the interrupted thread for ever. So a handler has the right of
//! the thread that it has interrupted, and the right of a thread that stays away is taken from it.

use crate::sync::{AtomicUsize, Ordering, Patience};
use crate::sys;

/// Looks, of about 60 µs all but the first hundred, before somebody has stayed away with the right: about 0.1 s. A thread that
/// is only preempted is back by then, on all but the busiest machines; appends whose numbers were known as other files before may change
/// places if it is not.
const LOOKS: u32 = 1700;

/// The thread that has the right, or 0.
#[derive(Debug)]
pub(super) struct Taking(AtomicUsize);

/// The right, until it is dropped.
#[derive(Debug)]
pub(super) struct Alone<'a>(Option<(&'a AtomicUsize, usize)>);

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
        let (mut patience, mut looks, mut whose) = (Patience::default(), 0, 0);
        loop {
            match self.0.compare_exchange(whose, me, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Alone(Some((&self.0, me))),
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
