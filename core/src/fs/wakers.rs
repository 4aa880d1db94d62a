//! Wakes tasks, on a thread of the engine, without a lock. A thread may collect several completions
//! together (a harvest). It wakes the tasks after the whole harvest. [`Flights`] counts operations
//! for tasks that wait for all of them.

use std::cell::RefCell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use crate::sync::lock;

/// Wakers that this thread holds until the last harvest around it has ended: harvests may be
/// nested.
#[derive(Default)]
struct HeldWakers {
    harvests: u32,
    wakers: Vec<Waker>,
}

thread_local! {
    static HELD: RefCell<HeldWakers> =
        const { RefCell::new(HeldWakers { harvests: 0, wakers: Vec::new() }) };
}

/// Wakes a task now, or after the harvest that this thread is in.
pub(super) fn wake(waker: Waker) {
    let mut waker = Some(waker);
    // While a thread ends, `HELD` is gone, and the task is woken now.
    let _ = HELD.try_with(|held| {
        let mut held = held.borrow_mut();
        if held.harvests > 0 {
            held.wakers.extend(waker.take());
        }
    });
    guarded(|| waker.into_iter().for_each(Waker::wake));
}

/// Runs a harvest, and then wakes the tasks whose requests it has ended.
pub(super) fn after(harvest: &mut dyn FnMut()) {
    let begins = |held: &RefCell<HeldWakers>| held.borrow_mut().harvests += 1;
    let is_counted = HELD.try_with(begins).is_ok();
    harvest();
    if !is_counted {
        return;
    }
    let ends = |held: &RefCell<HeldWakers>| {
        let mut held = held.borrow_mut();
        held.harvests -= 1;
        if held.harvests == 0 { std::mem::take(&mut held.wakers) } else { Vec::new() }
    };
    let mut wakers = HELD.try_with(ends).unwrap_or_default();
    wakers.drain(..).for_each(|waker| guarded(|| waker.wake()));
    // The memory is kept for the next harvest.
    let keeps = |held: &RefCell<HeldWakers>| {
        let mut held = held.borrow_mut();
        if held.wakers.capacity() < wakers.capacity() && held.wakers.is_empty() {
            held.wakers = wakers;
        }
    };
    let _ = HELD.try_with(keeps);
}

/// Runs the program's code on a thread of the engine. A panic in it ends here, after its message
/// was printed.
pub(super) fn guarded(body: impl FnOnce()) {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    if let Err(panic) = catch_unwind(AssertUnwindSafe(body))
        && let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic)))
    {
        // The panic's payload has panicked in its own drop.
        std::mem::forget(again);
    }
}

/// Operations that have begun and not ended, and the tasks that wait for their end.
#[derive(Debug, Default)]
pub struct Flights {
    count: AtomicUsize,
    /// There are wakers in the list below.
    is_watched: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Flights {
    pub(super) fn begin(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an operation as ended. If it was the last one, wakes the waiting tasks. Either this
    /// thread sees a waiting task, or the task sees the end: both write before they read, with
    /// `SeqCst`.
    pub(super) fn end(&self) {
        if self.count.fetch_sub(1, Ordering::SeqCst) == 1 && self.is_watched.load(Ordering::SeqCst)
        {
            let mut known = lock(&self.wakers);
            self.is_watched.store(false, Ordering::SeqCst);
            let waiting = std::mem::take(&mut *known);
            drop(known);
            waiting.into_iter().for_each(wake);
        }
    }

    pub(super) fn poll(&self, waker: &Waker) -> Poll<()> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return Poll::Ready(());
        }
        let mut known = lock(&self.wakers);
        if !known.iter().any(|known| known.will_wake(waker)) {
            known.push(waker.clone());
        }
        self.is_watched.store(true, Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) == 0 { Poll::Ready(()) } else { Poll::Pending }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};
    use std::task::Wake;

    use super::*;

    struct Note(usize, Arc<Mutex<Vec<usize>>>);

    impl Wake for Note {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    #[test]
    fn tasks_are_woken_after_the_outermost_harvest() {
        let woken = Arc::new(Mutex::new(Vec::new()));
        let wake = |number| super::wake(Waker::from(Arc::new(Note(number, Arc::clone(&woken)))));
        let seen = || woken.lock().unwrap().clone();
        wake(0);
        assert_eq!(seen(), [0]);
        for _ in 0..2 {
            woken.lock().unwrap().clear();
            after(&mut || {
                wake(1);
                after(&mut || wake(2));
                wake(3);
                assert!(seen().is_empty());
            });
            assert_eq!(seen(), [1, 2, 3]);
        }
    }

    /// A waker that panics.
    struct Panics(AtomicUsize);

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
            panic!("as this waker does");
        }
    }

    #[test]
    fn a_waker_that_panics_does_not_keep_the_others_from_being_woken() {
        let panics = Arc::new(Panics(AtomicUsize::new(0)));
        after(&mut || (0..3).for_each(|_| wake(Waker::from(Arc::clone(&panics)))));
        assert_eq!(panics.0.load(Ordering::Relaxed), 3);
    }
}
