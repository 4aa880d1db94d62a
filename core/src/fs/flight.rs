//! The protocol between an operation and the engine: one word says which of them owns the payload.
//!
//! | state     | the payload belongs to | the field `waker` belongs to                         |
//! |-----------|------------------------|------------------------------------------------------|
//! | EMPTY     | the engine             | the operation; the field is empty outside of `poll`  |
//! | WAKER     | the engine             | the thread that leaves this state; a waker is stored |
//! | DONE      | the operation          | the operation; the field is empty outside of `poll`  |
//! | ABANDONED | the engine             | nobody; the field is empty                           |
//!
//! At most two threads use a word: the one with the operation, and the one that ends the request.
//! DONE and ABANDONED are final. Each step out of EMPTY or WAKER is one atomic exchange. So one
//! thread takes the waker, and the payload has one owner.
#![allow(unsafe_code)]

use std::task::Waker;

use crate::sync::{AtomicBool, AtomicU32, Ordering, UnsafeCell};

mod state {
    pub(super) const EMPTY: u32 = 0;
    pub(super) const WAKER: u32 = 1;
    pub(super) const DONE: u32 = 2;
    pub(super) const ABANDONED: u32 = 3;
}

/// The data of a request (buffer, descriptor) while the engine may use it, and the task to wake at
/// its end.
#[derive(Debug)]
pub(crate) struct Flight<T> {
    state: AtomicU32,
    waker: UnsafeCell<Option<Waker>>,
    payload: UnsafeCell<Option<T>>,
}

/// What to do after the end of a request.
#[derive(Debug)]
pub(crate) enum Ended<T> {
    /// No task waits yet; the operation will find the request done.
    Quietly,
    /// Wake the operation's task.
    Wake(Waker),
    /// The operation was dropped: the caller drops the payload.
    Abandoned(T),
}

// SAFETY: the payload is touched by its owner alone, which the table above names; it moves between
// threads, so it has to be Send. Wakers are Send and Sync.
unsafe impl<T: Send> Send for Flight<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Flight<T> {}

impl<T> Flight<T> {
    /// A request in flight, without a waker.
    pub(crate) fn new(payload: T) -> Self {
        Self {
            state: AtomicU32::new(state::EMPTY),
            waker: UnsafeCell::new(None),
            payload: UnsafeCell::new(Some(payload)),
        }
    }

    /// A reference to the payload, which does not move before it is taken out.
    ///
    /// # Safety
    /// The caller owns the payload, and drops the reference before it passes the payload on.
    pub(crate) unsafe fn payload(&self) -> &T {
        // SAFETY: the caller owns the payload: no other thread accesses it.
        let payload = self.payload.with(|at| unsafe { &*at });
        payload.as_ref().expect("it is taken out once")
    }

    /// Takes the payload out.
    ///
    /// # Safety
    /// The caller owns the payload.
    pub(crate) unsafe fn take(&self) -> T {
        // SAFETY: the caller owns the payload: no other thread accesses it.
        let payload = self.payload.with_mut(|at| unsafe { (*at).take() });
        payload.expect("it is taken out once")
    }

    /// Has the request ended, so that the payload belongs to the operation?
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.state.load(Ordering::Acquire) == state::DONE
    }

    /// Stores the `waker` to wake at the end. True: the request has ended, and the waker is not
    /// stored.
    ///
    /// # Safety
    /// The caller has the operation, and has not abandoned it.
    pub(crate) unsafe fn poll(&self, waker: &Waker) -> bool {
        let (empty, full) = (state::EMPTY, state::WAKER);
        match self.state.load(Ordering::Acquire) {
            state::DONE => return true,
            // After the exchange, the field `waker` belongs to the operation.
            state::WAKER => {
                let swap =
                    self.state.compare_exchange(full, empty, Ordering::Acquire, Ordering::Acquire);
                if swap.is_err() {
                    return true;
                }
            }
            _ => {}
        }
        // SAFETY: the state is EMPTY, so the field belongs to the operation. The thread that ends
        // the request does not access it.
        self.waker.with_mut(|at| match unsafe { &mut *at } {
            Some(known) if known.will_wake(waker) => {}
            other => *other = Some(waker.clone()),
        });
        // Release: the thread that ends the request sees the waker.
        let swap = self.state.compare_exchange(empty, full, Ordering::Release, Ordering::Acquire);
        if swap.is_err() {
            // DONE meanwhile, by a thread that has found no waker.
            // SAFETY: in the state DONE, the field belongs to the operation.
            self.waker.with_mut(|at| unsafe { *at = None });
            return true;
        }
        false
    }

    /// Ends the request: from now on the payload belongs to the operation, unless the operation was
    /// abandoned.
    ///
    /// # Safety
    /// The caller owns the payload for the engine, and calls this once.
    pub(crate) unsafe fn finish(&self) -> Ended<T> {
        // Acquire: this thread sees data that the operation has left beside the payload.
        let mut now = self.state.load(Ordering::Acquire);
        loop {
            if now == state::ABANDONED {
                // SAFETY: the payload still belongs to the engine, and so to the caller.
                return Ended::Abandoned(unsafe { self.take() });
            }
            // Release: the operation sees the payload. Acquire: this thread sees the waker.
            let swap =
                self.state.compare_exchange(now, state::DONE, Ordering::AcqRel, Ordering::Acquire);
            match swap {
                Ok(state::WAKER) => {
                    // SAFETY: this thread has left WAKER, so the field belongs to it.
                    let waker = self.waker.with_mut(|at| unsafe { (*at).take() });
                    return waker.map_or(Ended::Quietly, Ended::Wake);
                }
                Ok(_) => return Ended::Quietly,
                Err(other) => now = other,
            }
        }
    }

    /// Notes that the operation is given up. Returns the payload if the request has ended; else the
    /// engine keeps it.
    ///
    /// # Safety
    /// The caller has the operation, has not taken the payload, and calls this once.
    pub(crate) unsafe fn abandon(&self) -> Option<T> {
        let mut now = self.state.load(Ordering::Acquire);
        loop {
            if now == state::DONE {
                // SAFETY: in the state DONE, the payload belongs to the operation.
                return Some(unsafe { self.take() });
            }
            let swap = self.state.compare_exchange(
                now,
                state::ABANDONED,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match swap {
                Ok(_) => {
                    // SAFETY: this thread has left EMPTY or WAKER, so the field belongs to it.
                    drop(self.waker.with_mut(|at| unsafe { (*at).take() }));
                    return None;
                }
                Err(other) => now = other,
            }
        }
    }
}

/// The claim to a request that waits in line. The first thread that claims the request owns it: a
/// thread of the engine, or one that withdraws the operation.
#[derive(Debug)]
pub(crate) struct Claim(AtomicBool);

impl Claim {
    /// A claimed request: the thread that made it owns it.
    pub(crate) fn taken() -> Self {
        Self(AtomicBool::new(true))
    }

    /// Lets one thread claim the request from now on. Only the owner of the request calls this.
    pub(crate) fn offer(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Does a thread own the request?
    pub(crate) fn is_claimed(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Claims the request. True for the one thread that owns it from now on.
    pub(crate) fn claim(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use super::{Claim, Ended, Flight};

    #[derive(Debug, Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flight() -> (Flight<Box<u32>>, Arc<Count>, Waker) {
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        (Flight::new(Box::new(7)), count, waker)
    }

    #[test]
    fn the_last_waker_is_woken_and_the_payload_is_the_operations() {
        let (flight, count, waker) = flight();
        let (_, other_count, other) = self::flight();
        // SAFETY: one thread plays both sides, each call in the state that it needs.
        unsafe {
            assert!(!flight.poll(&other) && !flight.poll(&waker) && !flight.poll(&waker));
            assert_eq!(**flight.payload(), 7);
            let Ended::Wake(found) = flight.finish() else { panic!("a waker is there") };
            found.wake();
            assert!(flight.is_done() && flight.poll(&waker));
            assert_eq!(*flight.take(), 7);
        }
        assert_eq!(
            (count.0.load(Ordering::Relaxed), other_count.0.load(Ordering::Relaxed)),
            (1, 0)
        );
        drop(flight);
        assert_eq!(Arc::strong_count(&count), 2, "the flight has kept no waker");
    }

    #[test]
    fn what_nobody_waits_for_is_done_quietly() {
        let (flight, _, waker) = flight();
        // SAFETY: as above.
        unsafe {
            assert!(matches!(flight.finish(), Ended::Quietly));
            assert!(flight.poll(&waker));
            assert_eq!(flight.abandon(), Some(Box::new(7)));
        }
    }

    #[test]
    fn an_abandoned_payload_goes_back_to_the_thread_that_ends_the_request() {
        let (flight, count, waker) = flight();
        // SAFETY: as above.
        unsafe {
            assert!(!flight.poll(&waker));
            assert_eq!(flight.abandon(), None);
            assert_eq!(Arc::strong_count(&count), 2, "the waker is gone at once");
            assert!(!flight.is_done());
            let Ended::Abandoned(payload) = flight.finish() else { panic!("abandoned") };
            assert_eq!(*payload, 7);
        }
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn one_claim_wins() {
        let claim = Claim::taken();
        assert!(!claim.claim());
        claim.offer();
        assert!(claim.claim() && !claim.claim());
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    //! What must not happen: a payload with two owners or with none, or an operation that waits and
    //! is not woken. loom's `UnsafeCell` detects two owners, and its `Arc` a payload without one.

    use super::{Claim, Ended, Flight};
    use crate::sync::{AtomicBool, AtomicU32, Ordering};
    use loom::sync::Arc;
    use loom::thread;
    use std::task::{RawWaker, RawWakerVTable, Waker};

    /// A waker that sets a flag of loom's: `std::task::Wake` works with `std`'s `Arc` only.
    fn waker(flag: &Arc<AtomicBool>) -> Waker {
        unsafe fn clone(data: *const ()) -> RawWaker {
            // SAFETY: `data` is from `Arc::into_raw` below, and the caller has a reference.
            let flag = unsafe { Arc::from_raw(data.cast::<AtomicBool>()) };
            let other = Arc::clone(&flag);
            std::mem::forget(flag);
            RawWaker::new(Arc::into_raw(other).cast(), &VTABLE)
        }
        unsafe fn wake(data: *const ()) {
            // SAFETY: as above; the caller gives its reference up.
            let flag = unsafe { Arc::from_raw(data.cast::<AtomicBool>()) };
            flag.store(true, Ordering::Release);
        }
        unsafe fn wake_by_ref(_: *const ()) {
            unreachable!("never called here");
        }
        unsafe fn drop_it(data: *const ()) {
            // SAFETY: as above; the caller gives its reference up.
            drop(unsafe { Arc::from_raw(data.cast::<AtomicBool>()) });
        }
        static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, drop_it);
        let data = Arc::into_raw(Arc::clone(flag)).cast();
        // SAFETY: the functions above count the references of one `Arc`.
        unsafe { Waker::from_raw(RawWaker::new(data, &VTABLE)) }
    }

    /// The engine's side: writes a result into the payload, and ends the request. Returns whether
    /// the payload came back.
    fn end(flight: &Flight<Arc<AtomicU32>>) -> bool {
        // SAFETY: one thread plays the engine's side, and ends the request once.
        unsafe {
            flight.payload().store(1, Ordering::Relaxed);
            match flight.finish() {
                Ended::Quietly => false,
                Ended::Wake(waker) => {
                    waker.wake();
                    false
                }
                Ended::Abandoned(payload) => {
                    assert_eq!(payload.load(Ordering::Relaxed), 1);
                    true
                }
            }
        }
    }

    #[test]
    fn loom_an_operation_that_waits_is_woken_and_finds_the_result() {
        loom::model(|| {
            let flight = Arc::new(Flight::new(Arc::new(AtomicU32::new(0))));
            let engines = Arc::clone(&flight);
            let engine = thread::spawn(move || assert!(!end(&engines)));
            let (first, second) =
                (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
            // SAFETY: this thread plays the operation's side.
            let is_done = unsafe {
                // A task that moves: the second waker replaces the first.
                flight.poll(&waker(&first)) || flight.poll(&waker(&second))
            };
            if is_done {
                assert!(flight.is_done());
                // SAFETY: the request is done, so the payload belongs to the operation, even if the
                // engine's thread still runs.
                assert_eq!(unsafe { flight.take() }.load(Ordering::Relaxed), 1);
            }
            engine.join().unwrap();
            if !is_done {
                assert!(second.load(Ordering::Acquire), "it is not woken");
                // SAFETY: as above; the engine's thread has ended.
                assert_eq!(unsafe { flight.take() }.load(Ordering::Relaxed), 1);
            }
        });
    }

    #[test]
    fn loom_a_payload_has_one_owner_when_its_operation_is_dropped() {
        loom::model(|| {
            let flight = Arc::new(Flight::new(Arc::new(AtomicU32::new(0))));
            let engines = Arc::clone(&flight);
            let engine = thread::spawn(move || end(&engines));
            let flag = Arc::new(AtomicBool::new(false));
            // SAFETY: this thread plays the operation's side.
            let kept = unsafe {
                flight.poll(&waker(&flag));
                flight.abandon()
            };
            let went_to_the_engine = engine.join().unwrap();
            assert!(kept.is_some() != went_to_the_engine, "two owners, or none");
            assert!(kept.is_none_or(|payload| payload.load(Ordering::Relaxed) == 1));
        });
    }

    #[test]
    fn loom_what_is_withdrawn_is_not_submitted() {
        loom::model(|| {
            let flight = Arc::new(Flight::new(Arc::new(AtomicU32::new(0))));
            let claim = Arc::new(Claim::taken());
            claim.offer();
            let (others, its_claim) = (Arc::clone(&flight), Arc::clone(&claim));
            let passer = thread::spawn(move || its_claim.claim() && end(&others));
            // SAFETY: this thread plays the operation's side, and takes what it has claimed.
            let here = unsafe {
                let done = flight.abandon();
                if done.is_none() && claim.claim() { Some(flight.take()) } else { done }
            };
            let there = passer.join().unwrap();
            assert!(here.is_some() != there, "two owners, or none");
        });
    }

    /// A model that has to fail (a canary): it ends a request by a load and a store, not by an
    /// exchange. So it misses an operation that is abandoned at the same moment.
    #[test]
    #[should_panic(expected = "two owners, or none")]
    fn loom_canary_an_end_by_a_plain_store_overlooks_an_operation_that_goes() {
        loom::model(|| {
            let flight = Arc::new(Flight::new(Arc::new(AtomicU32::new(0))));
            let others = Arc::clone(&flight);
            let engine = thread::spawn(move || {
                let now = others.state.load(Ordering::Acquire);
                if now != super::state::ABANDONED {
                    others.state.store(super::state::DONE, Ordering::Release);
                }
                now == super::state::ABANDONED
            });
            // SAFETY: this thread plays the operation's side.
            let kept = unsafe { flight.abandon() };
            assert!(kept.is_some() != engine.join().unwrap(), "two owners, or none");
        });
    }
}
