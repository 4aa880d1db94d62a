//! Submitting: takes slots, writes requests to them, and pushes them to their lanes, in batches. A
//! slot has room for one request. A lane is one way to execute requests, and has a queue. The
//! router chooses the lane and the thread to call.
//!
//! The inline lane has requests that usually do not sleep. The thread that has the baton (the
//! holder) executes them in order. A single one may be left in the mailbox, for the wait that
//! follows.
#![allow(unsafe_code)]

use std::array;
use std::sync::atomic::{Ordering, fence};

use super::Instance;
use super::fast::Transfer;
use crate::board::{Executor, without_taker};
use crate::config::EngineKind;
use crate::descriptor::Asked;
use crate::errno;
use crate::exec;
use crate::request::{BATCH, CountSteps, Expect, Kind, Numbers, Request, Route, Started};
use crate::router::tuning::BESIDE_QUEUED;
use crate::router::{self, Call, Situation};
use crate::sqe::Sqe;
use crate::sync::Count;
use crate::sys;
use crate::threads::poller::Untried;

/// A request as a front end submits it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The request.
    pub sqe: Sqe,
    /// Returned as [`IoEvent::data`](crate::sys::aio::IoEvent::data); not used with a ring of
    /// [`Cqe`](crate::Cqe)s.
    pub data: u64,
    /// An eventfd(2) that is counted up after the completion is visible, [`TOLD_OTHERWISE`], or -1
    /// for neither.
    pub notify: i32,
}

/// The value of [`Entry::notify`] for a request without an eventfd, of whose end the front end
/// notifies the program. So the program may never wait for this request.
pub const TOLD_OTHERWISE: i32 = -2;

/// The fields of a request that its front end fills, in the request's slot. The function that gets
/// them writes all three.
#[derive(Debug)]
pub struct Place<'a> {
    /// [`Entry::sqe`].
    pub sqe: &'a mut Sqe,
    /// [`Entry::data`].
    pub data: &'a mut u64,
    /// [`Entry::notify`].
    pub notify: &'a mut i32,
}

/// How far a submit got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// Number of entries accepted, from the first on.
    pub accepted: usize,
    /// The negative errno with which the next entry was refused; 0 if all were accepted.
    pub refused: i32,
}

/// A function that writes the entry with a given index to its place in a slot.
#[inline(always)]
fn entries_to(entries: &[Entry]) -> impl FnMut(usize, Place<'_>) -> Result<(), i32> {
    |at, place| entry_to(&entries[at], place)
}

#[inline(always)]
fn entry_to(&Entry { sqe, data, notify }: &Entry, place: Place<'_>) -> Result<(), i32> {
    *place.sqe = sqe;
    (*place.data, *place.notify) = (data, notify);
    Ok(())
}

/// The contention of submits with other submitters: see [`Instance::submit_measured`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubmitSteps {
    /// Attempts, also failed ones, to change a word of the bitmap of free slots, which other
    /// submitters change, too. Each slot that this submit gave back unused counts as one.
    pub slots: u64,
    /// Batches of requests that were pushed to the lanes.
    pub hand_overs: u64,
}

impl CountSteps for SubmitSteps {
    #[inline]
    fn step(&mut self) {
        self.slots += 1;
    }

    #[inline]
    fn handed_over(&mut self) {
        self.hand_overs += 1;
    }
}

impl Instance {
    /// Submits as many requests as there are slots for, in batches. Never blocks.
    ///
    /// # Safety
    /// As for [`Instance::submit_with`].
    #[inline]
    pub unsafe fn submit(&self, entries: &[Entry]) -> Submitted {
        if let [entry] = entries {
            // SAFETY: the caller's contract.
            if unsafe { self.submit_entry_fast(entry) } {
                return Submitted { accepted: 1, refused: 0 };
            }
            // SAFETY: as above.
            let single = unsafe { self.submit_single(|place| entry_to(entry, place), |_| Ok(())) };
            if let Some(submitted) = single {
                return submitted;
            }
        }
        // SAFETY: as above.
        unsafe { self.submit_in_batches(entries.len(), BATCH, entries_to(entries), &mut ()) }
    }

    /// # Safety
    /// As for [`Instance::submit_with`].
    #[inline(always)]
    unsafe fn submit_entry_fast(&self, entry: &Entry) -> bool {
        let &Entry { sqe, data, notify } = entry;
        // The cheapest check comes first: many contexts have no fast path, for example those of
        // POSIX AIO.
        if !self.fast || notify != -1 || !self.is_of_this_process() {
            return false;
        }
        // SAFETY: the caller's contract.
        Transfer::of(&sqe)
            .is_some_and(|transfer| unsafe { self.submit_fast(&Transfer { data, ..transfer }) })
    }

    /// As [`Instance::submit`], but requests are written in place. `fill` gets the index of the
    /// request and its place. If `fill` refuses with a negative errno, the submit ends.
    ///
    /// # Safety
    /// The buffers of an accepted request stay valid until its completion was reaped. Other memory
    /// that the request points to, such as a path or a vector, can be read during this call.
    #[inline(always)]
    pub unsafe fn submit_with(
        &self,
        count: usize,
        fill: impl FnMut(usize, Place<'_>) -> Result<(), i32>,
    ) -> Submitted {
        // SAFETY: the caller's contract.
        unsafe { self.submit_in_batches(count, BATCH, fill, &mut ()) }
    }

    /// As [`Instance::submit`], with slots taken `batch` at a time (1 to 32; other submits take
    /// 32), and with steps counted. For measuring the gain of batches.
    ///
    /// # Safety
    /// As for [`Instance::submit_with`].
    pub unsafe fn submit_measured(
        &self,
        entries: &[Entry],
        batch: usize,
        steps: &mut SubmitSteps,
    ) -> Submitted {
        // SAFETY: the caller's contract.
        unsafe { self.submit_in_batches(entries.len(), batch.max(1), entries_to(entries), steps) }
    }

    /// As [`Instance::submit_with`] for one request, without the cost of batches. `None`: there was
    /// no free slot, and `fill` was not called; `submit_with` makes room. `check` is called before
    /// the engine reads the vector of a readv or writev, and may refuse it with a negative errno.
    /// If this call hands the request over to the kernel, the kernel reads the vector first,
    /// without a call of `check`.
    ///
    /// # Safety
    /// As for [`Instance::submit_with`], but a vector need be readable only once `check` has
    /// accepted it.
    #[inline(always)]
    pub unsafe fn submit_single(
        &self,
        fill: impl FnOnce(Place<'_>) -> Result<(), i32>,
        check: impl Fn(&Sqe) -> Result<(), i32>,
    ) -> Option<Submitted> {
        let begin = if self.board.counters().is_some() { sys::ticks() } else { 0 };
        let slot = self.board.free_slots().take_one(&mut ())?;
        // This is checked while the slot is held: a thread that destroys the context after this
        // check waits for the slot.
        let gone = self.board.is_closed() || !self.is_of_this_process();
        let filled = if gone {
            Err(-libc::EINVAL)
        } else {
            // SAFETY: the slot was just taken; the caller answers for the rest.
            unsafe { self.fill_single(slot, begin, fill, check) }
        };
        if let Err(refused) = filled {
            self.board.free_slots().give(slot);
            return Some(Submitted { accepted: 0, refused });
        }
        if filled == Ok(false) && !self.is_taken_over(&[slot]) {
            self.push(&[slot]);
        }
        self.count_submitted(1, begin);
        Some(Submitted { accepted: 1, refused: 0 })
    }

    /// Writes a request to its slot, or refuses it with a negative errno. True: the request was
    /// handed over to the kernel.
    ///
    /// # Safety
    /// As for [`Instance::submit_single`]; the slot was just taken.
    #[inline(always)]
    unsafe fn fill_single(
        &self,
        slot: u32,
        begin: u64,
        fill: impl FnOnce(Place<'_>) -> Result<(), i32>,
        check: impl Fn(&Sqe) -> Result<(), i32>,
    ) -> Result<bool, i32> {
        let kernel = &self.lanes.kernel;
        let at_once = kernel.can_at_once() && kernel.is_shallow() && self.takes_no_note();
        let mut copies = false;
        let look = |request: &mut Request| {
            let is_vector = exec::is_vector(&request.sqe);
            copies = at_once && is_vector;
            match () {
                () if copies => return Ok(()),
                () if is_vector => check(&request.sqe)?,
                () => {}
            }
            // SAFETY: the caller's contract.
            unsafe { self.copy_in(request) }
        };
        // SAFETY: the caller's contract.
        unsafe { self.fill_slot(slot, begin, fill, look) }?;
        // SAFETY: as above.
        if at_once && unsafe { self.hand_over_single(slot, copies) } {
            return Ok(true);
        }
        if copies {
            // SAFETY: filled by this thread, which has not passed it on yet; as above.
            let copied = unsafe {
                let mut request = self.board.in_hand(slot);
                let copied = check(&request.sqe).and_then(|()| self.copy_in(&mut request));
                if copied.is_err() {
                    request.slot().done();
                }
                request.into_index();
                copied
            };
            copied?;
        }
        Ok(false)
    }

    /// # Safety
    /// As for [`Instance::submit_with`].
    #[inline(never)]
    unsafe fn submit_in_batches(
        &self,
        count: usize,
        batch_max: usize,
        mut fill: impl FnMut(usize, Place<'_>) -> Result<(), i32>,
        steps: &mut impl CountSteps,
    ) -> Submitted {
        if !self.is_usable() {
            return Submitted { accepted: 0, refused: -libc::EINVAL };
        }
        let begin = if self.board.counters().is_some() { sys::ticks() } else { 0 };
        let mut done = Submitted { accepted: 0, refused: 0 };
        let mut collected = false;
        while done.accepted < count && done.refused == 0 {
            let want = (count - done.accepted).min(batch_max);
            let (one, batch);
            let slots = if want == 1 {
                one = self.board.free_slots().take_one(steps);
                one.as_slice()
            } else {
                batch = self.board.free_slots().take_counted(want, steps);
                batch.as_slice()
            };
            if self.board.is_closed() {
                // The context was destroyed meanwhile: nobody would collect the completion.
                slots.iter().for_each(|&slot| self.board.free_slots().give(slot));
                done.refused = -libc::EINVAL;
                break;
            }
            if slots.is_empty() {
                if collected {
                    done.refused = -libc::EAGAIN;
                } else {
                    self.make_room(count - done.accepted);
                    collected = true;
                }
                continue;
            }
            let mut filled = 0;
            for &slot in slots {
                let at = done.accepted + filled;
                // SAFETY: the slot was just taken; the caller answers for the rest.
                let written = unsafe {
                    let look = |request: &mut Request| self.copy_in(request);
                    self.fill_slot(slot, begin, |place| fill(at, place), look)
                };
                if let Err(errno) = written {
                    done.refused = errno;
                    break;
                }
                filled += 1;
            }
            for &slot in &slots[filled..] {
                steps.step();
                self.board.free_slots().give(slot);
            }
            if filled > 0 {
                steps.handed_over();
                if !self.is_taken_over(&slots[..filled]) {
                    self.push(&slots[..filled]);
                }
                done.accepted += filled;
            }
        }
        self.count_submitted(done.accepted, begin);
        done
    }

    /// Writes a request to its slot, or refuses it with a negative errno.
    ///
    /// # Safety
    /// The slot was taken from the free ones, and was not passed on yet; as for
    /// [`Instance::submit_with`].
    #[inline(always)]
    unsafe fn fill_slot(
        &self,
        slot: u32,
        begin: u64,
        fill: impl FnOnce(Place<'_>) -> Result<(), i32>,
        look: impl FnOnce(&mut Request) -> Result<(), i32>,
    ) -> Result<(), i32> {
        let number = self.board.next_number(self.board.free_slots().is_alone(slot));
        // SAFETY: the caller's contract.
        let mut request = unsafe { self.board.in_hand(slot) };
        let filled = self.fill_request(&mut request, begin, fill, look);
        if filled.is_ok() {
            request.slot().fill(request.sqe.user_data, request.sqe.fd, request.notify);
            request.slot().submitted_as(number, request.kind);
        }
        request.into_index();
        filled
    }

    #[inline(always)]
    fn fill_request(
        &self,
        request: &mut Request,
        begin: u64,
        fill: impl FnOnce(Place<'_>) -> Result<(), i32>,
        look: impl FnOnce(&mut Request) -> Result<(), i32>,
    ) -> Result<(), i32> {
        let Request { sqe, data, notify, .. } = &mut *request;
        fill(Place { sqe, data, notify })?;
        request.refused = 0;
        look(request)?;
        request.kind = exec::kind(&request.sqe);
        if request.kind == Kind::Invalid && self.board.has_sink() {
            request.kind = exec::accept_call(request.kind, &request.sqe);
        }
        if request.kind == Kind::Invalid {
            request.refused = -libc::EINVAL as i16;
        }
        request.submitted = begin;
        (request.partial, request.passed_on) = (0, 0);
        (request.fast, request.may_hang, request.passed_inline) = (false, false, false);
        Ok(())
    }

    /// Copies paths and vectors, which the program may change after the submit. If that fails, a
    /// strict context refuses the request. In any other context, the request completes with the
    /// errno.
    ///
    /// # Safety
    /// As for [`Instance::submit_with`].
    #[inline(always)]
    unsafe fn copy_in(&self, request: &mut Request) -> Result<(), i32> {
        // SAFETY: the caller answers for the addresses.
        let refused = unsafe { exec::copy_in(request) }.err().unwrap_or(0);
        if refused != 0 && self.board.is_strict() {
            return Err(refused);
        }
        request.refused = refused as i16;
        Ok(())
    }

    /// True if neither a placement nor the filter `lane/faulty.rs` has to see requests before they
    /// are pushed.
    #[inline]
    pub(super) fn takes_no_note(&self) -> bool {
        #[cfg(feature = "faulty")]
        if self.faulty.is_some() {
            return false;
        }
        self.board.placed().is_none()
    }

    /// If the context has a placement, it notes the CPU of these submits. True if the filter
    /// `lane/faulty.rs` has taken the requests. It pushes them itself, now or later.
    #[inline(always)]
    fn is_taken_over(&self, slots: &[u32]) -> bool {
        if let Some(placed) = self.board.placed() {
            placed.submitted(&self.board, slots);
        }
        #[cfg(feature = "faulty")]
        if let Some(faulty) = &self.faulty {
            faulty.submit(&self.board, slots);
            return true;
        }
        false
    }

    /// Pushes requests, which are filled and belong to the caller, to their lanes. Never blocks.
    #[inline(always)]
    pub(super) fn push(&self, slots: &[u32]) {
        let mut asked = Asked::of(self.board.waits_where_nonblocking());
        let [slot] = *slots else {
            return self.push_batch(slots, |request| self.route(request, &mut asked));
        };
        // SAFETY: filled by the submitter, which has not passed it on yet.
        let mut request = unsafe { self.board.in_hand(slot) };
        let chosen = self.route(&request, &mut asked);
        (request.route, request.stream) = chosen;
        if chosen.0 == Route::Inline && request.notify == -1 {
            let (may_hang, expect) = router::patience(&request, Route::Inline, chosen.1, false);
            request.may_hang = may_hang;
            request.slot().expect(expect);
            self.push_one(request);
            return self.expects_one();
        }
        if chosen.0 == Route::Inline
            && self.lanes.inline.is_quiet()
            && let Some(result) = self.execute_at_submit(&request)
        {
            return errno::kept(|| self.board.finish(request, result, Executor::Waiter));
        }
        request.into_index();
        self.push_batch(slots, |_| chosen);
    }

    /// The lane of a request, and whether its descriptor is a stream.
    #[inline(always)]
    fn route(&self, request: &Request, asked: &mut Asked) -> (Route, bool) {
        if self.engine == EngineKind::Null {
            return (Route::Null, false);
        }
        let scope = self.kernel_scope();
        match router::route(&request.sqe, request.kind, scope, asked) {
            (Route::Cold, _) if !self.lanes.cold.is_possible() => (Route::Pool, false),
            // A malformed request need not go to the kernel: it only completes with its errno.
            (Route::Kernel, _) if request.refused != 0 => (Route::Inline, false),
            chosen => chosen,
        }
    }

    /// Pushes a single inline request without an eventfd. It goes to the mailbox for the expected
    /// wait, or to the queue.
    #[inline(always)]
    fn push_one(&self, request: Started<'_>) {
        let index = request.index();
        let alone = || self.board.free_slots().is_alone(index);
        if let Err(request) = self.leave_to_wait(request, alone) {
            self.push_inline(request);
        }
    }

    /// Leaves an inline request in the mailbox, for the expected wait. If that is not possible,
    /// returns the request.
    #[inline(always)]
    pub(super) fn leave_to_wait<'a>(
        &self,
        request: Started<'a>,
        alone: impl FnOnce() -> bool,
    ) -> Result<(), Started<'a>> {
        if !self.router.waiters.come() {
            return Err(request);
        }
        let others = || !self.lanes.copy.is_empty();
        self.lanes.inline.put_in_mailbox(&self.board, request, alone, others)
    }

    /// Pushes a single inline request that is not left to a wait.
    pub(super) fn push_inline(&self, request: Started<'_>) {
        self.lanes.inline.queue_mailbox(&self.board);
        self.lanes.inline.push(&[request.queue()]);
        self.announce(self.router.waiters.come());
    }

    /// Announces requests that were pushed to the inline lane. If a waiter is expected, and enough
    /// requests are queued, also calls a worker to execute some of them beside the waiter.
    #[inline]
    pub(super) fn announce(&self, waiters_come: bool) {
        let inline = &self.lanes.inline;
        let held = inline.announce(&self.board, waiters_come);
        let beside = waiters_come && !held && self.router.beside.is_possible();
        if beside
            && inline.queued() >= BESIDE_QUEUED
            && self.router.beside.is_due(sys::ticks(), sys::cpu)
        {
            self.board.count(|stats| &stats.calls_beside);
            errno::kept(|| self.call(Call::Holder));
        }
    }

    /// Runs `submit`, and then executes the transfers on streams that it has submitted to this
    /// context, as far as they need not wait. The poller gets the others. So a transfer that need
    /// not wait changes no thread, as in io_uring.
    pub fn try_streams_of<R>(&self, submit: impl FnOnce() -> R) -> R {
        let outer = Untried::begin();
        let answer = submit();
        if outer.end() {
            self.threads.get().poller.try_untried(&self.board);
        }
        answer
    }

    /// Pushes requests to the lanes that `choose` returns. A function of its own, so that the code
    /// for a single request stays small.
    #[inline(never)]
    fn push_batch(&self, slots: &[u32], mut choose: impl FnMut(&Request) -> (Route, bool)) {
        /// The inline lane, whose queue keeps its order. Fsyncs go there first, to stay behind
        /// earlier writes.
        const INLINE: usize = Route::Inline as usize;
        let _in_hand = Count::new();
        let board = &self.board;
        let moved = self.lanes.inline.queue_mailbox(board);
        let kernel_executes = self.lanes.kernel.executes_what_is_cached();
        // Each batch is made by a call: an array constant would be copied with the elements that
        // are not initialised.
        let mut batches: [Numbers; Route::Null as usize + 1] = array::from_fn(|_| Numbers::new());
        let (mut notifies, mut expected, mut is_told) = (false, false, true);
        // This thread executes requests up to the first one that it cannot. So none is overtaken.
        let (mut ended, mut ends_here) = ([(0, 0); BATCH], 0);
        let mut tries = !moved && self.lanes.inline.is_quiet();
        for &slot in slots {
            // SAFETY: filled by the submitter, which has not passed it on yet.
            let mut request = unsafe { board.in_hand(slot) };
            let (route, stream) = choose(&request);
            (request.route, request.stream) = (route, stream);
            if matches!(route, Route::Inline | Route::Ordered | Route::Sync) && tries {
                if let Some(result) = self.execute_at_submit(&request) {
                    ended[ends_here] = (request.into_index(), result);
                    ends_here += 1;
                    continue;
                }
                tries = false;
            }
            notifies |= request.notify != -1;
            is_told &= request.notify >= 0;
            let (may_hang, expect) = router::patience(&request, route, stream, kernel_executes);
            request.may_hang = may_hang;
            request.slot().expect(expect);
            expected |= expect != Expect::Nothing;
            request.fast =
                route == Route::Inline && !stream && !may_hang && self.executes_fast(&request);
            match route {
                Route::Stream => self.wait_for_descriptor(request),
                Route::Null => batches[Route::Null as usize].push(request.into_index()),
                Route::Sync => batches[INLINE].push(request.queue()),
                _ => batches[route as usize].push(request.queue()),
            }
        }
        if ends_here > 0 {
            errno::kept(|| board.finish_together(&ended[..ends_here], Executor::Waiter));
        }
        // A program that is notified of completions need not come to wait.
        let waiters_come = !notifies && self.router.waiters.come();
        let (inline, ordered) = (&batches[INLINE], &batches[Route::Ordered as usize]);
        if !inline.is_empty() {
            self.lanes.push(board, Route::Inline, inline.as_slice(), waiters_come);
        }
        // Ordered requests are pushed after inline ones. So a holder of the baton that finds an
        // ordered request also finds the inline ones that were submitted before it.
        if !ordered.is_empty() {
            self.lanes.push(board, Route::Ordered, ordered.as_slice(), waiters_come);
        }
        if moved || !inline.is_empty() || !ordered.is_empty() {
            self.announce(waiters_come);
        }
        self.push_others(&batches, waiters_come, is_told);
        if expected {
            // The mark is set after the pushes: a poll (a wait for zero completions) that clears it
            // finds the requests.
            self.expects_one();
        }
        if !waiters_come && self.is_helpless() {
            self.run_without_workers();
        }
    }

    /// Pushes requests to the lanes other than the inline one, and calls threads for them.
    /// `is_told`: an eventfd tells the program of the end of each.
    fn push_others(&self, batches: &[Numbers], waiters_come: bool, is_told: bool) {
        const OTHERS: [Route; 6] =
            [Route::Null, Route::Worker, Route::Copy, Route::Cold, Route::Kernel, Route::Pool];
        for route in OTHERS {
            let batch = &batches[route as usize];
            if !batch.is_empty() {
                let held = self.lanes.push(&self.board, route, batch.as_slice(), waiters_come);
                if route == Route::Cold && is_told && self.takes_no_note() && !self.stands_by() {
                    errno::kept(|| self.lanes.cold.try_at_submit(&self.board));
                    continue;
                }
                self.call_for(route, held, waiters_come);
            }
        }
    }

    /// Requests were pushed to a lane other than the inline one. Calls the thread that will execute
    /// the requests. `held`: a thread works on that lane already, and sees the requests.
    fn call_for(&self, route: Route, held: bool, waiters_come: bool) {
        if route == Route::Null {
            return;
        }
        // Either this thread sees a sleeping thread, or that thread sees the requests, because it
        // checks once more before it sleeps. The same holds for workers that leave.
        fence(Ordering::SeqCst);
        let now = Situation {
            waiters_come,
            held,
            sleeps: self.board.completions().has_sleepers(),
            alone: route == Route::Pool && self.is_left_to_waiter(),
            queued: if route == Route::Copy { self.lanes.copy.len() } else { 0 },
            room: if route == Route::Copy { self.lanes.copy.for_workers(waiters_come) } else { 0 },
        };
        match router::thread_to_call(route, &now) {
            Call::HandOver if self.hands_over_at_once() => self.hand_over_at_once(),
            Call::Nobody
                if route == Route::Kernel
                    && waiters_come
                    && self.lanes.kernel.is_worth_a_call() =>
            {
                self.hand_over_early();
            }
            call => self.call(call),
        }
    }

    /// Is a request of the pool lane the only one of its context, and would the expected waiter
    /// sleep for it anyway?
    pub(super) fn is_left_to_waiter(&self) -> bool {
        self.router.waiters.are_unbounded()
            && self.board.must_wait_for_all(1)
            && !self.board.completions().has_sleepers()
    }

    /// No worker exists and none can be made, and the program might never wait. So the submitter
    /// executes its own requests, as the kernel's AIO does with buffered ones.
    #[cold]
    pub(super) fn run_without_workers(&self) {
        if let Some(turn) = self.lanes.inline.take_baton() {
            without_taker(|taker| {
                let enough = &mut |_, _| false;
                self.lanes.inline.hold(
                    &self.board,
                    &self.router,
                    turn,
                    Executor::Waiter,
                    taker,
                    enough,
                );
            });
        }
        self.lanes.run_without_workers(&self.board);
    }

    #[inline]
    fn count_submitted(&self, accepted: usize, begin: u64) {
        if let Some(counters) = self.board.counters()
            && accepted > 0
        {
            counters.submitted.fetch_add(accepted as u64, Ordering::Relaxed);
            counters.submit.record(self.board.ns_since(begin));
        }
    }
}
