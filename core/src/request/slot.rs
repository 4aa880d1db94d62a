//! One slot: its request, a word with the request's phase, and copies of some fields. Threads that
//! do not hold the slot may read the word and the copies.
#![allow(unsafe_code)]

use std::ops::RangeInclusive;

use super::{Kind, Request};
use crate::lazy_zeroed::Zero;
use crate::sync::{AtomicU32, AtomicU64, Ordering, UnsafeCell, fence};

/// The phase of a request. Above these bits, the word counts the uses of the slot, so that an old
/// value of a reused slot never matches.
mod phase {
    pub(super) const MASK: u32 = 0xf;
    /// The submitter has the request.
    pub(super) const FILLED: u32 = 7;
    /// The request is in a submission ring, or about to be pushed.
    pub(super) const QUEUED: u32 = 1;
    /// A thread executes the request.
    pub(super) const STARTED: u32 = 2;
    /// The request was cancelled while its number was still in a ring. The completion is posted.
    pub(super) const CANCELED: u32 = 3;
    /// The request waits in the poller for its descriptor.
    pub(super) const POLLING: u32 = 4;
    /// The request is in the mailbox, for the submitter's own wait.
    pub(super) const MAILBOX: u32 = 6;
    /// The request has completed.
    pub(super) const DONE: u32 = 5;
    /// The request has completed, and the executing thread took the completion: none is posted.
    pub(super) const TAKEN: u32 = 9;
    /// The kernel has the request.
    pub(super) const KERNEL: u32 = 8;
    /// Bit of a cancelled request: its number has left the ring.
    pub(super) const POPPED: u32 = 0x10;
    /// Bit of a cancelled request: its completion was reaped.
    pub(super) const REAPED: u32 = 0x20;
    /// The step of the use count.
    pub(super) const USE: u32 = 0x40;
}

/// The result of [`Slot::cancel_queued`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cancel {
    /// The request was queued and is cancelled: the caller posts the completion.
    Done,
    /// The request is in the mailbox, or on the poller's list: the engine has to take it out there.
    Polling,
    /// The request is being executed.
    Started,
    /// The slot has another request, or this one has completed.
    Missed,
}

/// The number of bits of [`Slot::order`] that hold the request's [`Kind`].
const DIRECTION_BITS: u32 = 3;
const DIRECTION: u64 = (1 << DIRECTION_BITS) - 1;
const _: () = assert!((Kind::Invalid as u64) < 1 << DIRECTION_BITS);

/// In place of a descriptor number: the descriptor was closed.
const FORGOTTEN: u32 = u32::MAX;

/// A request, its phase, and copies of some of its fields for threads that do not hold the slot.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(super) request: UnsafeCell<Request>,
    state: AtomicU32,
    /// Copies of the request's `user_data` and `fd`, for threads that do not hold the slot.
    key: AtomicU64,
    fd: AtomicU32,
    /// The eventfd to count up, plus one: [`Request::notify`], or a duplicate once the program has
    /// closed its own descriptor.
    notify: AtomicU32,
    /// In a list of waiting slots: the next slot's number, plus one. In no list: what a poll may
    /// [expect](Expect) of the request.
    link: AtomicU32,
    /// The request's number in the order of submission and, in the lower bits, its [`Kind`].
    order: AtomicU64,
}

/// What a poll (a wait for zero completions) may expect of a request that was submitted before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Expect {
    /// No end can be expected: the request sleeps, or waits for something.
    Nothing = 0,
    /// A worker executes the request. It ends soon, unless its file system hangs.
    Perhaps = 1 << 30,
    /// The request is known not to sleep.
    Soon = 1 << 31,
}

// SAFETY: a slot's request is touched only by the thread that holds it at the moment (submitter,
// then the executor that popped its number); raw pointers inside are addresses that the kernel
// checks.
unsafe impl Send for Slot {}
// SAFETY: as above; state and key are atomics.
unsafe impl Sync for Slot {}

// SAFETY: zero bytes are valid: numbers and atomics of 0, false, the first `Kind` and `Route`, and
// `None` for a box. Dropping in place frees the box, which is all that a slot owns.
unsafe impl Zero for Slot {
    fn zero() -> Self {
        Self {
            request: UnsafeCell::new(Request::zero()),
            state: AtomicU32::new(0),
            key: AtomicU64::new(0),
            fd: AtomicU32::new(0),
            notify: AtomicU32::new(0),
            link: AtomicU32::new(0),
            order: AtomicU64::new(0),
        }
    }
}

impl Slot {
    /// Begins a use of the slot under `key`, for `fd`, with an eventfd `notify` or -1. The request
    /// cannot be cancelled until the engine has queued it.
    #[inline]
    pub(crate) fn fill(&self, key: u64, fd: i32, notify: i32) {
        self.key.store(key, Ordering::Relaxed);
        self.fd.store(fd as u32, Ordering::Relaxed);
        self.notify.store(notify.wrapping_add(1) as u32, Ordering::Relaxed);
        let used = self.state.load(Ordering::Relaxed) & !(phase::USE - 1);
        self.state.store(used.wrapping_add(phase::USE) | phase::FILLED, Ordering::Relaxed);
    }

    /// Notes the request's number in the order of submission.
    #[inline]
    pub(crate) fn submitted_as(&self, number: u64, kind: Kind) {
        self.order.store(number << DIRECTION_BITS | kind as u64 & DIRECTION, Ordering::Relaxed);
    }

    /// The request's descriptor.
    pub(crate) fn fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed) as i32
    }

    /// The request's number in the order of submission, if it is queued: a hint.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.order.load(Ordering::Relaxed) >> DIRECTION_BITS
    }

    /// Is the request a read? A hint for threads that do not hold the slot.
    #[inline]
    pub(crate) fn is_read(&self) -> bool {
        self.order.load(Ordering::Relaxed) & DIRECTION == Kind::Read as u64
    }

    /// The descriptor of a write: a hint for threads that do not hold the slot.
    pub(crate) fn written(&self) -> Option<i32> {
        let write = self.order.load(Ordering::Relaxed) & DIRECTION == Kind::Write as u64;
        write.then(|| self.fd.load(Ordering::Relaxed) as i32)
    }

    /// Was this request submitted before `other`, for the same direction?
    pub(crate) fn comes_before(&self, other: &Self) -> bool {
        let (this, other) =
            (self.order.load(Ordering::Relaxed), other.order.load(Ordering::Relaxed));
        this < other && (this ^ other) & DIRECTION == 0
    }

    /// Is this a transfer of the same descriptor and direction as `polled`, submitted earlier, and
    /// neither ended nor on the poller's list?
    pub(crate) fn strays_before(&self, polled: &Self) -> bool {
        let is_astray = |state: u32| {
            let phase = state & phase::MASK;
            matches!(phase, phase::QUEUED | phase::STARTED | phase::MAILBOX | phase::KERNEL)
        };
        self.fd.load(Ordering::Relaxed) == polled.fd.load(Ordering::Relaxed)
            && self.comes_before(polled)
            && is_astray(self.state.load(Ordering::Acquire))
    }

    /// The number was popped from a ring: may the request be executed? If not, it was cancelled.
    /// Then `Err` says whether the caller has to free the slot, because the completion was already
    /// reaped.
    #[inline]
    pub(crate) fn start(&self) -> Result<(), FreeIt> {
        let now = self.state.load(Ordering::Relaxed);
        if now & phase::MASK == phase::QUEUED {
            let started = now - phase::QUEUED + phase::STARTED;
            let swap =
                self.state.compare_exchange(now, started, Ordering::AcqRel, Ordering::Relaxed);
            if swap.is_ok() {
                return Ok(());
            }
        }
        let before = self.state.fetch_or(phase::POPPED, Ordering::AcqRel);
        debug_assert_eq!(before & phase::MASK, phase::CANCELED);
        Err(FreeIt(before & phase::REAPED != 0))
    }

    /// Sets what a poll may expect of the request. For the thread that holds the slot.
    #[inline]
    pub(crate) fn expect(&self, what: Expect) {
        self.link.store(what as u32, Ordering::Relaxed);
    }

    /// The request's state, if it is in flight, and a poll may expect its end. The flag is true for
    /// [`Expect::Soon`], and false for [`Expect::Perhaps`].
    pub(crate) fn expected(&self) -> Option<(u32, bool)> {
        let state = self.state.load(Ordering::Acquire);
        let expect = self.link.load(Ordering::Relaxed);
        let begun = matches!(
            state & phase::MASK,
            phase::QUEUED | phase::STARTED | phase::MAILBOX | phase::KERNEL
        );
        let soon = expect == Expect::Soon as u32;
        (begun && (soon || expect == Expect::Perhaps as u32)).then_some((state, soon))
    }

    /// A poll has waited for the request's end, which did not come in time: no later poll waits for
    /// the request.
    pub(crate) fn expect_no_more(&self, state: u32) {
        if !self.is_over(state) {
            let now = self.link.load(Ordering::Relaxed);
            if now == Expect::Soon as u32 || now == Expect::Perhaps as u32 {
                // If the slot has another request by now, polls may not wait for that request
                // either.
                let _ = self.link.compare_exchange(now, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    /// Has the request ended, with its completion in the queue or on the way to it?
    pub(crate) fn is_posted(&self) -> bool {
        let state = self.state.load(Ordering::Acquire);
        matches!(state & phase::MASK, phase::DONE | phase::CANCELED) && state & phase::REAPED == 0
    }

    /// Notes that the submitter leaves the request in the mailbox for its own wait.
    #[inline]
    pub(crate) fn put_in_mailbox(&self) {
        self.set_phase(phase::MAILBOX);
    }

    /// Notes that the request is about to be pushed to a ring, by its submitter or by the thread
    /// that popped it.
    #[inline]
    pub(crate) fn queue(&self) {
        self.set_phase(phase::QUEUED);
    }

    /// Notes that the thread that alone has the request begins to execute it.
    #[inline]
    pub(crate) fn begin(&self) {
        self.set_phase(phase::STARTED);
    }

    /// Notes that the thread that has started the request hands it to the kernel.
    #[inline]
    pub(crate) fn hand_over(&self) {
        self.set_phase(phase::KERNEL);
    }

    /// Notes that the kernel gives the request back unexecuted: it counts as started again. False:
    /// the program has closed the descriptor meanwhile. The descriptor's number must not be used,
    /// because it may name another file.
    #[must_use]
    pub(crate) fn take_back(&self) -> bool {
        self.set_phase(phase::STARTED);
        // Pairs with the fence in `forget_number`: either this thread sees that the number is
        // forgotten, or the closing thread sees that the request is back.
        fence(Ordering::SeqCst);
        self.fd.load(Ordering::Relaxed) != FORGOTTEN
    }

    #[inline]
    fn set_phase(&self, phase: u32) {
        let now = self.state.load(Ordering::Relaxed) & !phase::MASK;
        self.state.store(now | phase, Ordering::Release);
    }

    /// Notes that the request goes to the poller's list. Called with the list locked.
    pub(crate) fn polling(&self) {
        self.set_phase(phase::POLLING);
    }

    /// Links another slot to this one. The caller holds this slot.
    pub(crate) fn link(&self, other: Option<u32>) {
        self.link.store(other.map_or(0, |slot| slot + 1), Ordering::Relaxed);
    }

    /// The slot that is linked to this one.
    pub(crate) fn linked(&self) -> Option<u32> {
        self.link.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Notes that the executing thread is about to post the request's completion.
    #[inline]
    pub(crate) fn done(&self) {
        let now = self.state.load(Ordering::Relaxed);
        self.state.store(now & !phase::MASK | phase::DONE, Ordering::Relaxed);
    }

    /// As [`Slot::done`], by a thread that keeps the completion.
    #[inline]
    pub(crate) fn taken(&self) {
        let now = self.state.load(Ordering::Relaxed);
        self.state.store(now & !phase::MASK | phase::TAKEN, Ordering::Relaxed);
    }

    /// Cancels the request if the slot is `key`'s, and the request is still queued. The caller does
    /// not hold the slot.
    pub(crate) fn cancel_queued(&self, key: u64) -> Cancel {
        let now = self.state.load(Ordering::Acquire);
        if self.key.load(Ordering::Relaxed) != key {
            return Cancel::Missed;
        }
        match now & phase::MASK {
            phase::QUEUED => {
                let canceled = now - phase::QUEUED + phase::CANCELED;
                match self.state.compare_exchange(
                    now,
                    canceled,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                ) {
                    Ok(_) => Cancel::Done,
                    Err(_) => self.cancel_queued(key),
                }
            }
            phase::POLLING | phase::MAILBOX => Cancel::Polling,
            phase::STARTED | phase::KERNEL => Cancel::Started,
            _ => Cancel::Missed,
        }
    }

    /// Does a cancel see that the slot is `key`'s, and that the request is being executed? The
    /// caller does not hold the slot.
    pub(crate) fn cancel_finds_started(&self, key: u64) -> bool {
        let phase = self.state.load(Ordering::Acquire) & phase::MASK;
        self.key.load(Ordering::Relaxed) == key && matches!(phase, phase::STARTED | phase::KERNEL)
    }

    /// The completion was reaped: may the slot be freed now? Not while the number of a cancelled
    /// request is still in a ring; then the thread that pops it frees the slot.
    #[inline]
    pub(crate) fn reaped(&self) -> FreeIt {
        if self.state.load(Ordering::Acquire) & phase::MASK != phase::CANCELED {
            return FreeIt(true);
        }
        let before = self.state.fetch_or(phase::REAPED, Ordering::AcqRel);
        FreeIt(before & phase::POPPED != 0)
    }

    /// Was the request cancelled, and its completion reaped? Then the thread that pops its number
    /// frees the slot.
    pub(crate) fn is_of_nobody(&self) -> bool {
        let of_nobody = phase::CANCELED | phase::REAPED;
        self.state.load(Ordering::Acquire) & (phase::MASK | phase::REAPED) == of_nobody
    }

    /// Is the request on one of these descriptors, and does it need the number? A request needs its
    /// number while it is queued, in the mailbox, or being executed. While the kernel has the
    /// request, `needs_number` says whether the kernel may give it back.
    pub(crate) fn is_waiting_for(
        &self,
        fds: &RangeInclusive<i32>,
        needs_number: impl FnOnce() -> bool,
    ) -> bool {
        self.names_one_of(fds)
            && match self.state.load(Ordering::Acquire) & phase::MASK {
                phase::QUEUED | phase::STARTED | phase::MAILBOX => true,
                // A thread that hands over is visible to `needs_number` before it sets this phase.
                // So the question comes after the phase was read.
                phase::KERNEL => needs_number(),
                _ => false,
            }
    }

    /// The request's state, if it is on this descriptor and in flight.
    pub(crate) fn in_flight_on(&self, fd: i32) -> Option<u32> {
        let state = self.state.load(Ordering::Acquire);
        let over = matches!(state & phase::MASK, phase::DONE | phase::TAKEN | phase::CANCELED | 0);
        (!over && self.names(fd)).then_some(state)
    }

    /// Has the request that had this state ended?
    pub(crate) fn is_over(&self, before: u32) -> bool {
        let now = self.state.load(Ordering::SeqCst);
        let used_again = now / phase::USE != before / phase::USE;
        used_again || matches!(now & phase::MASK, phase::DONE | phase::TAKEN | phase::CANCELED)
    }

    /// Is the request on this descriptor, and was the descriptor not closed since?
    pub(crate) fn names(&self, fd: i32) -> bool {
        self.fd.load(Ordering::SeqCst) as i32 == fd
    }

    /// Is the request on one of these descriptors, or will it count one of them up?
    pub(crate) fn needs_one_of(&self, fds: &RangeInclusive<i32>) -> bool {
        self.names_one_of(fds) || fds.contains(&self.notify())
    }

    pub(crate) fn names_one_of(&self, fds: &RangeInclusive<i32>) -> bool {
        fds.contains(&(self.fd.load(Ordering::SeqCst) as i32))
    }

    /// Called before these descriptors are closed. If the kernel has the request, the kernel holds
    /// the file. So the number is forgotten, and must not be used again. False: the request needs
    /// the number, because the kernel has given the request back.
    pub(crate) fn forget_number(&self, fds: &RangeInclusive<i32>) -> bool {
        let fd = self.fd.load(Ordering::SeqCst);
        if !fds.contains(&(fd as i32)) {
            return true;
        }
        let is_back = |state: u32| {
            matches!(state & phase::MASK, phase::QUEUED | phase::STARTED | phase::MAILBOX)
        };
        let state = self.state.load(Ordering::Acquire);
        if state & phase::MASK != phase::KERNEL {
            return !is_back(state);
        }
        let swap = |from, to| {
            self.fd.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        if !swap(fd, FORGOTTEN) {
            // The slot was reused meanwhile.
            return true;
        }
        // Pairs with the fence in `take_back`.
        fence(Ordering::SeqCst);
        if is_back(self.state.load(Ordering::Relaxed)) {
            swap(FORGOTTEN, fd);
            return false;
        }
        true
    }

    /// The eventfd to count up at completion, or -1.
    #[inline]
    pub(crate) fn notify(&self) -> i32 {
        self.notify.load(Ordering::Relaxed).wrapping_sub(1) as i32
    }

    /// The request's eventfd was counted up. For the thread that has the request.
    pub(crate) fn was_told(&self) {
        self.notify.store(0, Ordering::Relaxed);
    }

    /// Gives the request another descriptor of the same file. Called with the poller's list locked,
    /// for a request on it.
    pub(crate) fn moved_to(&self, fd: i32) {
        self.fd.store(fd as u32, Ordering::SeqCst);
    }

    /// If the request's eventfd is one of these, `other` gives the eventfd to count up instead, or
    /// -1.
    pub(crate) fn move_notify(&self, fds: &RangeInclusive<i32>, other: impl FnOnce(i32) -> i32) {
        let notify = self.notify();
        if fds.contains(&notify) {
            let (from, to) = (notify.wrapping_add(1) as u32, other(notify).wrapping_add(1) as u32);
            // If the slot was reused meanwhile, its new request came after the closing began:
            // either eventfd is right for that request.
            let _ = self.notify.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The key of the current use.
    pub(crate) fn key(&self) -> u64 {
        self.key.load(Ordering::Relaxed)
    }

    /// Does the request wait in the poller?
    pub(crate) fn is_polling(&self) -> bool {
        self.state.load(Ordering::Relaxed) & phase::MASK == phase::POLLING
    }

    /// Was the request cancelled while its number was in a ring?
    pub(crate) fn is_canceled(&self) -> bool {
        self.state.load(Ordering::Relaxed) & phase::MASK == phase::CANCELED
    }
}

/// Must the thread that holds this free the slot?
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreeIt(pub(crate) bool);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Cancel, FreeIt, Slot};
    use crate::lazy_zeroed::Zero;

    #[test]
    fn a_cancelled_slot_is_freed_once_whichever_comes_first() {
        for popped_first in [true, false] {
            let slot = Slot::zero();
            slot.fill(5, 0, -1);
            slot.queue();
            assert_eq!(slot.cancel_queued(6), Cancel::Missed);
            assert_eq!(slot.cancel_queued(5), Cancel::Done);
            assert_eq!(slot.cancel_queued(5), Cancel::Missed);
            let pop = || slot.start().unwrap_err();
            let (first, second) =
                if popped_first { (pop(), slot.reaped()) } else { (slot.reaped(), pop()) };
            assert_eq!((first, second), (FreeIt(false), FreeIt(true)));
        }
    }

    /// Miri checks this test: two exclusive references to one request would be undefined behaviour.
    #[test]
    fn who_pops_a_request_and_who_cancels_it_may_both_read_it() {
        for _ in 0..20 {
            let slot = Slot::zero();
            slot.fill(5, 3, -1);
            slot.queue();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    // SAFETY: the number is popped, and the request not started.
                    assert_eq!(unsafe { slot.popped(0) }.partial, 0);
                });
                if slot.cancel_queued(5) == Cancel::Done {
                    // SAFETY: cancelled by this thread.
                    assert_eq!(unsafe { slot.ended() }.partial, 0);
                }
            });
        }
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    //! A failure would be: a cancelled slot freed twice or never, or a request executed on a
    //! descriptor number that the program has closed.

    use super::{Cancel, Ordering, Slot};
    use crate::lazy_zeroed::Zero;
    use crate::sync::AtomicU32;
    use loom::sync::Arc;
    use loom::thread;

    const FD: i32 = 5;
    /// The states of the descriptor number `FD`.
    const OPEN: u32 = 0;
    const CLOSED: u32 = 1;

    /// The kernel gives a request back while the program closes its descriptor. `careful`: the
    /// closing thread asks [`Slot::forget_number`] whether it may go on.
    fn given_back_while_closed(careful: bool) {
        loom::model(move || {
            let world = Arc::new((Slot::zero(), AtomicU32::new(OPEN)));
            world.0.fill(1, FD, -1);
            world.0.queue();
            world.0.start().unwrap();
            world.0.hand_over();
            let other = Arc::clone(&world);
            let reaper = thread::spawn(move || {
                let (slot, number) = &*other;
                if slot.take_back() {
                    assert_eq!(number.load(Ordering::Relaxed), OPEN, "another file");
                }
                slot.done();
            });
            let (slot, number) = &*world;
            let fds = FD..=FD;
            loop {
                if !slot.is_waiting_for(&fds, || false) {
                    let may_close = slot.forget_number(&fds);
                    if may_close || !careful {
                        break;
                    }
                }
                thread::yield_now();
            }
            number.store(CLOSED, Ordering::Relaxed);
            reaper.join().unwrap();
        });
    }

    #[test]
    fn loom_what_the_kernel_gives_back_meets_no_other_file() {
        given_back_while_closed(true);
    }

    /// Canary: the request comes back between the closing thread's two checks.
    #[test]
    #[should_panic(expected = "another file")]
    fn loom_canary_closing_without_a_second_look_is_found() {
        given_back_while_closed(false);
    }

    #[test]
    fn loom_start_cancel_and_reap_agree_on_who_frees() {
        loom::model(|| {
            let slot = Arc::new(Slot::zero());
            slot.fill(1, 0, -1);
            slot.queue();
            let other = Arc::clone(&slot);
            let executor = thread::spawn(move || match other.start() {
                Ok(()) => None,
                Err(free) => Some(free.0),
            });
            let canceled = slot.cancel_queued(1) == Cancel::Done;
            let freed_by_reaper = canceled && slot.reaped().0;
            match executor.join().unwrap() {
                None => assert!(!canceled, "executed and cancelled"),
                Some(freed) => {
                    assert!(canceled);
                    assert!(freed ^ freed_by_reaper, "freed twice or never");
                }
            }
        });
    }
}
