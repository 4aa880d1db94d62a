//! What lanes and threads may know of a context: its request slots, how a request begins and ends,
//! who takes its completion, and whom to call for it. Lanes know this, and nothing above it.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::affinity;
use crate::cqe::Cqe;
use crate::eventfd;
use crate::exec::{self, Mode};
use crate::own::{Copied, Copies};
use crate::process;
use crate::queue::{Completions, IndexRing, Posted};
use crate::request::{
    Completion, FreeIt, FreeSlots, Kind, Queued, Request, Returned, Route, Slot, Started,
};
use crate::router::Call;
use crate::sqe::Sqe;
use crate::stats::{Counters, Counting};
use crate::sync::lock;
use crate::sys;
use crate::sys::aio::IoEvent;
use crate::zeros::Zeros;

/// Takes completions as they happen, in place of a completion queue: called by whichever thread
/// has ended the request, with no lock held.
pub trait Sink: Send + Sync + std::fmt::Debug {
    /// A request has ended; `obj` is its [`Sqe::user_data`](crate::Sqe::user_data).
    ///
    /// # Safety
    /// The request was accepted with this `obj` and this `data`, and this is called once for it.
    unsafe fn complete(&self, event: &IoEvent);

    /// Its slot is free, and those who wait for it are woken.
    fn released(&self);

    /// Runs `harvest`, which ends several requests one after the other.
    fn together(&self, harvest: &mut dyn FnMut()) {
        harvest();
    }

    /// The oldest read (or write) of a stream counts as begun from its submit on, and cannot be
    /// cancelled: as aio_cancel(3) of the C library has it.
    fn begins_streams_at_once(&self) -> bool {
        true
    }

    /// A request waits for its stream although the descriptor is not blocking (`O_NONBLOCK`), as
    /// io_uring has it.
    fn waits_where_nonblocking(&self) -> bool {
        false
    }

    /// A write that a stream takes in part completes with that part, as io_uring has it. Otherwise
    /// the rest waits for room, as in a write(2) that may sleep.
    fn ends_short_writes(&self) -> bool {
        false
    }

    /// The poller is about to execute a transfer on a stream. A result ends it unexecuted.
    fn before_transfer(&self, _sqe: &Sqe) -> Option<i32> {
        None
    }
}

/// Who executed a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// A thread of the program, while it waited.
    Waiter,
    /// A worker with the baton.
    Worker,
    /// A worker without the baton.
    Pool,
    /// The poller.
    Poller,
    /// The kernel, or the C library's threads.
    Kernel,
}

/// What a board asks of the context that it belongs to.
pub(crate) trait Dispatcher: Send + Sync + fmt::Debug {
    /// The board of this context.
    fn board(&self) -> &Board;

    /// Sends a request to another lane, and sees to it that somebody comes to it there.
    fn forward(&self, request: Started<'_>, to: Route, by: By);

    /// A positional call on this request has found no offsets: its descriptor is a stream.
    fn reroute(&self, request: Started<'_>);

    /// Gets somebody to come.
    fn call(&self, who: Call);

    /// Tells those who observe the program what executes the requests.
    fn note_choice(&self);

    /// Hands requests to their lanes that were held back, and which the caller has started.
    #[cfg(feature = "faulty")]
    fn submit(&self, slots: &[u32]);

    /// Decides where requests run, before the first.
    fn place(&self, choice: &affinity::EffectivePlacement);

    /// A request that the poller had passed on to a worker has ended, or was withdrawn.
    fn passed_on_ended(&self, number: u32);

    /// Collects what the kernel has completed. False: there is no need to come again, before the
    /// poller is told so.
    fn collect(&self) -> bool;

    /// The kernel's interface has nothing in flight: shall the poller go on looking at it?
    fn stays_watched(&self) -> bool;
}

/// What is still to be done for a completion where it is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// Executed by somebody.
    Finished(By),
    /// Cancelled, and counted as that: only posted.
    Posted,
}

/// Where a context's requests run and complete, if it is placed: `placed/mod.rs`.
pub(crate) trait Placing: Send + Sync + fmt::Debug {
    /// What has become of the placement; none before the first submit.
    fn choice(&self) -> Option<&affinity::EffectivePlacement>;

    /// Requests are about to be handed to their lanes by the calling thread.
    fn submitted(&self, board: &Board, slots: &[u32]);

    /// The calling thread hands these to the kernel.
    fn ran_here(&self, slots: &[u32]);

    /// Sends a completion to where it is wanted. False: it is completed here, by the caller.
    fn sends_away(&self, index: u32, result: i32, how: How) -> bool;

    /// What `f` completes for other CPUs is sent to each of them at once.
    fn together(&self, board: &Board, f: &mut dyn FnMut());

    /// Runs the handler of a completion, if there is one.
    fn handle(&self, cqe: Cqe);

    /// A request completes on the calling thread's CPU.
    fn count(&self, counters: &Counters, index: u32);
}

/// Where a waiting thread takes completions of requests that it has executed itself: they need not
/// go through the completion queue.
pub struct DirectCompletions<'a> {
    sink: &'a mut dyn FnMut(u64, u64, i64),
    room: u32,
    taken: u32,
    /// This thread has a deadline, or only looks: it waits for no server.
    bounded: bool,
    /// Their slots.
    returned: Returned,
}

impl<'a> DirectCompletions<'a> {
    /// Takes up to `room` completions: `data`, `obj` and `res` of an [`IoEvent`]. They come one by
    /// one, in registers.
    pub fn new(room: u32, sink: &'a mut dyn FnMut(u64, u64, i64)) -> Self {
        Self { sink, room, taken: 0, bounded: false, returned: Returned::default() }
    }

    #[inline(always)]
    pub(crate) fn has_room(&self) -> bool {
        self.taken < self.room
    }

    /// Takes the completion of a request that the caller has executed, and which nobody else is
    /// told of.
    #[inline(always)]
    pub(crate) fn take(&mut self, board: &Board, request: Started<'_>, result: i32) {
        let (data, user_data) = (request.data, request.sqe.user_data);
        request.slot().taken();
        board.free.give_later(request.into_index(), &mut self.returned);
        self.taken += 1;
        (self.sink)(data, user_data, i64::from(result));
    }

    /// Says whether the thread has a deadline, or only looks.
    #[inline(always)]
    pub(crate) fn bound(&mut self, bounded: bool) {
        self.bounded = bounded;
    }

    /// The thread may execute nothing that may wait for a server.
    #[inline(always)]
    pub(crate) fn is_bounded(&self) -> bool {
        self.bounded
    }

    /// How many it has taken.
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// Frees the slots of what it has taken.
    #[inline]
    pub(crate) fn give_back(&mut self, board: &Board) {
        board.free.give_returned(&mut self.returned);
    }
}

impl std::fmt::Debug for DirectCompletions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirectCompletions")
            .field("room", &self.room)
            .field("taken", &self.taken)
            .finish()
    }
}

/// Calls `f` with a taker that takes nothing.
pub(crate) fn without_taker<R>(f: impl FnOnce(&mut DirectCompletions<'_>) -> R) -> R {
    f(&mut DirectCompletions::new(0, &mut |_, _, _| {}))
}

/// The requests of one context.
#[derive(Debug)]
pub(crate) struct Board {
    slots: Zeros<Slot>,
    free: FreeSlots,
    completions: Completions,
    dispatcher: Weak<dyn Dispatcher>,
    /// The process that made it.
    generation: u64,
    closed: AtomicBool,
    /// Requests that were submitted while others were in flight.
    numbered: AtomicU64,
    /// Slots of cancelled requests that are free once their numbers have left a ring.
    reaped_in_rings: AtomicIsize,
    /// Requests on the poller's list.
    polled: AtomicUsize,
    strict: bool,
    counters: Option<Counting>,
    ticks_per_us: u64,
    /// Takes the completions, if a front end wants them at once.
    sink: Option<Box<dyn Sink>>,
    /// Writes that the program's threads execute may raise a signal that no thread of the program
    /// expects (SIGXFSZ): there is a limit on the size of files.
    is_limited: bool,
    /// Where its requests run, if anywhere in particular.
    placed: Option<Box<dyn Placing>>,
    /// Of descriptors that the program has closed.
    kept: Mutex<Vec<Arc<Copied>>>,
}

/// What a board is made from.
pub(crate) struct Parts {
    pub(crate) slots: usize,
    pub(crate) completions: Completions,
    pub(crate) dispatcher: Weak<dyn Dispatcher>,
    pub(crate) generation: u64,
    pub(crate) strict: bool,
    pub(crate) counters: Option<Counting>,
    pub(crate) ticks_per_us: u64,
    pub(crate) sink: Option<Box<dyn Sink>>,
    pub(crate) placed: Option<Box<dyn Placing>>,
}

impl Board {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            slots: Zeros::new(parts.slots),
            free: FreeSlots::new(parts.slots),
            completions: parts.completions,
            dispatcher: parts.dispatcher,
            generation: parts.generation,
            closed: AtomicBool::new(false),
            numbered: AtomicU64::new(0),
            reaped_in_rings: AtomicIsize::new(0),
            polled: AtomicUsize::new(0),
            strict: parts.strict,
            counters: parts.counters,
            ticks_per_us: parts.ticks_per_us,
            is_limited: parts.sink.is_some() && sys::has_file_limit(),
            sink: parts.sink,
            placed: parts.placed,
            kept: Mutex::default(),
        }
    }

    /// Can its context be used at all: not closed, and made by this very process?
    #[inline]
    pub(crate) fn is_usable(&self) -> bool {
        !self.closed.load(Ordering::Relaxed) && self.is_of_this_process()
    }

    /// Made by this process, not by the parent of a fork.
    #[inline]
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.generation == process::generation()
    }

    /// Destroyed. Asked with a slot in hand, the answer no means that who destroys it waits for the
    /// slot.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// As [`Board::is_closed`], without an order: a hint.
    #[inline(always)]
    pub(crate) fn seems_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// It is being destroyed. False: it was already.
    pub(crate) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::SeqCst)
    }

    /// Requests that can be in flight or unreaped at a time.
    pub(crate) fn room(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    pub(crate) fn completions(&self) -> &Completions {
        &self.completions
    }

    /// Is what is refused at submit an error of the submit, as libaio has it?
    #[inline]
    pub(crate) fn is_strict(&self) -> bool {
        self.strict
    }

    pub(crate) fn placed(&self) -> Option<&dyn Placing> {
        self.placed.as_deref()
    }

    pub(crate) fn ticks_per_us(&self) -> u64 {
        self.ticks_per_us
    }

    /// A place in the order of submission: for one that is `alone`, the first.
    #[inline]
    pub(crate) fn next_number(&self, alone: bool) -> u64 {
        if alone { 0 } else { self.numbered.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    #[inline]
    pub(crate) fn free_slots(&self) -> &FreeSlots {
        &self.free
    }

    #[inline]
    pub(crate) fn slot(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }

    /// Every request that is neither completed nor reaped would have to be waited for by somebody
    /// who waits for `min`.
    pub(crate) fn must_wait_for_all(&self, min: u32) -> bool {
        !self.free.held_more_than(min as usize)
    }

    /// Slots of cancelled requests whose numbers have not left their ring.
    pub(crate) fn reaped_in_rings(&self) -> isize {
        self.reaped_in_rings.load(Ordering::Relaxed)
    }

    pub(crate) fn counting(&self) -> Option<&Counting> {
        self.counters.as_ref()
    }

    #[inline]
    pub(crate) fn counters(&self) -> Option<&Counters> {
        self.counters.as_deref()
    }

    #[inline]
    pub(crate) fn count(&self, which: impl FnOnce(&Counters) -> &AtomicU64) {
        if let Some(counters) = self.counters() {
            which(counters).fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn workers_at_most(&self, workers: u64) {
        if let Some(counters) = self.counters() {
            counters.workers_max.fetch_max(workers, Ordering::Relaxed);
        }
    }

    pub(crate) fn ns_since(&self, begin: u64) -> u64 {
        sys::ticks().wrapping_sub(begin).saturating_mul(1000) / self.ticks_per_us
    }

    /// Is this write, if a thread of the program executes it, to be kept from raising a signal
    /// there?
    #[inline]
    pub(crate) fn is_to_be_quiet(&self, stream: bool) -> bool {
        self.is_limited || stream && self.has_sink()
    }

    /// As [`Sink::waits_where_nonblocking`].
    pub(crate) fn waits_where_nonblocking(&self) -> bool {
        self.sink.as_ref().is_some_and(|sink| sink.waits_where_nonblocking())
    }

    /// As [`Sink::ends_short_writes`].
    pub(crate) fn ends_short_writes(&self) -> bool {
        self.sink.as_ref().is_some_and(|sink| sink.ends_short_writes())
    }

    /// As [`Sink::before_transfer`].
    pub(crate) fn before_transfer(&self, sqe: &Sqe) -> Option<i32> {
        self.sink.as_ref().and_then(|sink| sink.before_transfer(sqe))
    }

    /// Completions go to a [`Sink`].
    pub(crate) fn has_sink(&self) -> bool {
        self.sink.is_some()
    }

    /// Is the oldest read (or write) of a stream not to be cancelled?
    pub(crate) fn begins_streams_at_once(&self) -> bool {
        self.sink.as_ref().is_some_and(|sink| sink.begins_streams_at_once())
    }

    /// The calling thread hands these to the kernel.
    pub(crate) fn ran_here(&self, slots: &[u32]) {
        if let Some(placed) = &self.placed {
            placed.ran_here(slots);
        }
    }

    /// Keeps a descriptor open as long as the context.
    pub(crate) fn keep(&self, copy: Arc<Copied>) {
        lock(&self.kept).push(copy);
    }

    /// Requests whose eventfd is about to be closed get another descriptor of it, which is kept.
    pub(crate) fn keep_eventfds(&self, fds: &RangeInclusive<i32>) {
        let mut copies = Copies::default();
        self.free.each_held(|index| {
            let copy = |fd| copies.of(fd).map_or(-1, |copy| copy.fd());
            self.slot(index).move_notify(fds, copy);
        });
        copies.into_all().for_each(|copy| self.keep(copy));
    }

    /// The context, unless it is going.
    pub(crate) fn dispatcher(&self) -> Option<Arc<dyn Dispatcher>> {
        self.dispatcher.upgrade()
    }

    /// Gets somebody to come.
    #[cold]
    pub(crate) fn call(&self, who: Call) {
        if let Some(dispatcher) = self.dispatcher() {
            dispatcher.call(who);
        }
    }

    /// Wakes a thread that sleeps for completions, if there is one, so that it looks for requests.
    #[inline]
    pub(crate) fn wake_waiter(&self) {
        if self.completions.has_sleepers() {
            self.completions.wake_now();
        }
    }

    /// Sends a request to another lane, and sees to it that somebody comes to it there.
    #[cold]
    pub(crate) fn forward(&self, request: Started<'_>, to: Route, by: By) {
        let dispatcher = self.dispatcher().expect("a context lives as long as its requests");
        dispatcher.forward(request, to, by);
    }

    /// A positional call on this request has found no offsets.
    #[cold]
    pub(crate) fn reroute(&self, request: Started<'_>) {
        let dispatcher = self.dispatcher().expect("a context lives as long as its requests");
        dispatcher.reroute(request);
    }

    /// Takes the oldest request of a queue of this context.
    #[inline(always)]
    pub(crate) fn pop(&self, queue: &IndexRing) -> Option<Queued<'_>> {
        // SAFETY: queues hold numbers of slots that were queued, each once.
        queue.pop().map(|index| unsafe { self.slot(index).popped(index) })
    }

    /// Takes the oldest request of a queue that may still be executed.
    #[inline]
    pub(crate) fn pop_started(&self, queue: &IndexRing) -> Option<Started<'_>> {
        loop {
            if let Some(started) = self.start(self.pop(queue)?) {
                return Some(started);
            }
        }
    }

    /// The request behind a number that the caller has.
    ///
    /// # Safety
    /// As [`Slot::popped`].
    #[inline]
    pub(crate) unsafe fn popped(&self, index: u32) -> Queued<'_> {
        // SAFETY: the caller's contract.
        unsafe { self.slot(index).popped(index) }
    }

    /// The request behind a number that is the caller's alone.
    ///
    /// # Safety
    /// As [`Slot::in_hand`].
    #[inline(always)]
    pub(crate) unsafe fn in_hand(&self, index: u32) -> Started<'_> {
        // SAFETY: the caller's contract.
        unsafe { self.slot(index).in_hand(index) }
    }

    /// Begins the execution of a request. `None`: it was cancelled.
    #[inline]
    pub(crate) fn start<'a>(&self, request: Queued<'a>) -> Option<Started<'a>> {
        let index = request.index();
        match request.start() {
            Ok(started) => Some(started),
            Err(FreeIt(free)) => {
                if free {
                    self.reaped_in_rings.fetch_sub(1, Ordering::Relaxed);
                    self.free.give(index);
                }
                None
            }
        }
    }

    /// Forgets the numbers of cancelled requests that are in front of a queue. Nothing else moves,
    /// so that other threads may take from the queue meanwhile.
    pub(crate) fn purge_front(&self, queue: &IndexRing) {
        while let Some(index) = queue.pop_if(|index| self.slot(index).is_canceled()) {
            // SAFETY: popped just now.
            drop(self.start(unsafe { self.popped(index) }));
        }
    }

    /// Forgets the numbers of cancelled requests in a queue; the others keep their order, unless
    /// other threads push meanwhile.
    pub(crate) fn purge(&self, queue: &IndexRing) {
        // Not those that are put back: where others take some meanwhile, their order would change.
        let end = queue.end();
        while let Some(index) = queue.pop_before(end) {
            if self.slot(index).is_canceled() {
                // SAFETY: popped just now.
                drop(self.start(unsafe { self.popped(index) }));
            } else {
                queue.push(&[index]);
            }
        }
    }

    /// Ends all requests of a queue: the context is being destroyed.
    pub(crate) fn end_all(&self, queue: &IndexRing) {
        while let Some(request) = self.pop(queue) {
            self.end(request);
        }
    }

    /// Ends a request because the context is being destroyed.
    ///
    /// A strict one executes what has not been started, except what may wait without end (polls,
    /// pipes, sockets): io_destroy(2) finds buffered requests executed and direct ones begun.
    fn end(&self, request: Queued<'_>) {
        if let Some(request) = self.start(request) {
            self.end_started(request);
        }
    }

    /// As for those of a queue ([`Board::end_all`]), for one that the caller has in hand.
    pub(crate) fn end_started(&self, mut request: Started<'_>) {
        let ends = !request.stream && request.kind != Kind::Poll;
        if self.strict && ends {
            let mode = if request.stream { Mode::Stream } else { Mode::Plain };
            // SAFETY: copied in at submit; the buffers are the request's until its completion.
            let result = unsafe { exec::execute(&mut request, mode) };
            if let Some(counters) = self.counters() {
                self.count_finished(counters, request.index(), &request, result, By::Waiter);
            }
            request.slot().done();
            self.post_placed(request.into_index(), result);
        } else {
            request.slot().done();
            self.post_canceled(request.into_index());
        }
    }

    /// Completes a cancelled request, which is the caller's alone but for those that have its
    /// number.
    pub(crate) fn post_canceled(&self, index: u32) {
        self.count(|counters| &counters.canceled);
        // SAFETY: the caller has cancelled it: nobody executes it, but who pops its number may look
        // at it.
        let request = unsafe { self.slot(index).ended() };
        let result = match request.kind {
            // Bytes that went into a stream are not taken back.
            _ if request.partial > 0 => request.partial as i32,
            // As io_cancel has it.
            Kind::Poll if self.strict => 0,
            _ => -libc::ECANCELED,
        };
        self.post_placed(index, result);
    }

    /// Completions that `f` finishes are sent to other CPUs at once.
    pub(crate) fn together(&self, mut f: impl FnMut()) {
        match &self.placed {
            Some(placed) => placed.together(self, &mut f),
            None => f(),
        }
    }

    /// Sends a completion to its CPU. False: it is completed here.
    #[inline]
    fn sends_away(&self, index: u32, result: i32, how: How) -> bool {
        self.placed.as_ref().is_some_and(|placed| placed.sends_away(index, result, how))
    }

    /// A completion has come to its CPU.
    pub(crate) fn complete_placed(&self, index: u32, result: i32, how: How) {
        if let Some(placed) = &self.placed {
            // SAFETY: who executed or cancelled it has passed it on to this thread.
            let user_data = unsafe { self.slot(index).ended() }.sqe.user_data;
            placed.handle(Cqe { user_data, res: result, flags: 0 });
        }
        match how {
            How::Finished(by) => self.finish_here(std::iter::once((index, result)), by),
            How::Posted => self.post(std::iter::once((index, result))),
        }
    }

    fn post_placed(&self, index: u32, result: i32) {
        if !self.sends_away(index, result, How::Posted) {
            self.post(std::iter::once((index, result)));
        }
    }

    /// As [`Board::finish`], by a thread that may want the completion for itself.
    #[inline(always)]
    pub(crate) fn finish_for(
        &self,
        request: Started<'_>,
        result: i32,
        by: By,
        taker: &mut DirectCompletions<'_>,
    ) {
        if let Some(request) = self.offer(request, result, by, taker) {
            self.finish_here(std::iter::once((request.into_index(), result)), by);
        }
    }

    /// Completes a request if it belongs to another CPU, or the caller wants the completion for
    /// itself. Otherwise gives it back, to be posted.
    #[inline(always)]
    pub(crate) fn offer<'a>(
        &self,
        request: Started<'a>,
        result: i32,
        by: By,
        taker: &mut DirectCompletions<'_>,
    ) -> Option<Started<'a>> {
        if self.sends_away(request.index(), result, How::Finished(by)) {
            // It is the other CPU's.
            request.into_index();
            return None;
        }
        if !taker.has_room() || request.notify >= 0 {
            // With a sink it has its completion at once, too.
            taker.taken += u32::from(self.sink.is_some());
            return Some(request);
        }
        if let Some(counters) = self.counters() {
            self.count_finished(counters, request.index(), &request, result, by);
        }
        taker.take(self, request, result);
        None
    }

    /// Completes a request.
    #[inline]
    pub(crate) fn finish(&self, request: Started<'_>, result: i32, by: By) {
        let index = request.into_index();
        if !self.sends_away(index, result, How::Finished(by)) {
            self.finish_here(std::iter::once((index, result)), by);
        }
    }

    /// Completes requests that have ended together, at least one, and which are the caller's:
    /// waiters are told once.
    #[inline]
    pub(crate) fn finish_together(&self, done: &[(u32, i32)], by: By) {
        let finish = || {
            if self.placed.is_none() {
                return self.finish_here(done.iter().copied(), by);
            }
            for &(index, result) in done {
                if !self.sends_away(index, result, How::Finished(by)) {
                    self.finish_here(std::iter::once((index, result)), by);
                }
            }
        };
        match &self.sink {
            Some(sink) if done.len() > 1 => sink.together(&mut { finish }),
            _ => finish(),
        }
    }

    /// On this very CPU.
    #[inline]
    fn finish_here(&self, done: impl Iterator<Item = (u32, i32)> + Clone, by: By) {
        let ended = |(index, result): (u32, i32)| {
            if let Some(counters) = self.counters() {
                // SAFETY: finished by this thread, and not posted yet.
                let request = unsafe { self.slot(index).ended() };
                self.count_finished(counters, index, request, result, by);
            }
            self.slot(index).done();
        };
        if self.has_sink() {
            // One by one: the thread that finds that a request is over is to find its completion.
            return done.for_each(|one| {
                ended(one);
                self.post(std::iter::once(one));
            });
        }
        done.clone().for_each(ended);
        self.post(done);
    }

    #[inline]
    fn post(&self, done: impl Iterator<Item = (u32, i32)> + Clone) {
        if let Some(sink) = &self.sink {
            return done.for_each(|(index, result)| self.deliver(&**sink, index, result));
        }
        let completions = done.map(|(index, result)| {
            // SAFETY: the caller holds the slot: it executed, cancelled or retracted the request.
            let request = unsafe { self.slot(index).ended() };
            Completion {
                cqe: Cqe { user_data: request.sqe.user_data, res: result, flags: 0 },
                data: request.data,
                notify: self.slot(index).notify(),
                slot: index,
            }
        });
        if let Some(posted) = self.completions.post(completions)
            && (posted.wakes() || !posted.notifies().is_empty())
        {
            self.tell(&posted);
        }
    }

    #[inline(never)]
    fn deliver(&self, sink: &dyn Sink, index: u32, result: i32) {
        // SAFETY: as in `post`.
        let request = unsafe { self.slot(index).ended() };
        let (data, obj) = (request.data, request.sqe.user_data);
        let event = IoEvent { data, obj, res: i64::from(result), res2: 0 };
        // SAFETY: what the request came with; a slot ends once for each request.
        unsafe { sink.complete(&event) };
        // Afterwards, so that the thread that finds no such slot finds the completion.
        self.reaped(index);
        self.completions.completed(&event);
        sink.released();
    }

    #[inline(never)]
    fn tell(&self, posted: &Posted) {
        // As the kernel does: who is woken finds the count. It cannot block.
        for &(fd, count) in posted.notifies() {
            eventfd::count_up(fd, count);
            self.completions.told(count);
        }
        if posted.wakes() {
            self.completions.wake();
        }
    }

    /// A completion was reaped: its slot is free, unless its number is still in a ring.
    #[inline]
    fn reaped(&self, index: u32) {
        let mut returned = Returned::default();
        self.reaped_with_others(index, &mut returned);
        self.free.give_returned(&mut returned);
    }

    #[inline]
    fn reaped_with_others(&self, index: u32, returned: &mut Returned) {
        if self.slot(index).reaped().0 {
            self.free.give_later(index, returned);
        } else {
            self.reaped_in_rings.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Calls `f` with what is to be called for each completion that was reaped.
    #[inline]
    pub(crate) fn reaping<R>(&self, f: impl FnOnce(&mut dyn FnMut(u32)) -> R) -> R {
        let mut returned = Returned::default();
        let result = f(&mut |index| self.reaped_with_others(index, &mut returned));
        self.free.give_returned(&mut returned);
        result
    }

    /// Frees the slots of completions that the program has reaped from the ring by itself.
    pub(crate) fn collect_reaped(&self) {
        self.reaping(|reaped| self.completions.collect(reaped));
    }

    #[inline(never)]
    fn count_finished(
        &self,
        counters: &Counters,
        index: u32,
        request: &Request,
        result: i32,
        by: By,
    ) {
        let bytes = u64::try_from(result).unwrap_or(0) + u64::from(request.partial);
        let add = |counter: &AtomicU64, n| counter.fetch_add(n, Ordering::Relaxed);
        match request.kind {
            Kind::Read => {
                add(&counters.bytes_read, bytes);
                add(&counters.reads, 1)
            }
            Kind::Write => {
                add(&counters.bytes_written, bytes);
                add(&counters.writes, 1)
            }
            Kind::Sync => add(&counters.fsyncs, 1),
            Kind::Poll => add(&counters.polls, 1),
            Kind::Quick | Kind::Other | Kind::Invalid => add(&counters.others, 1),
        };
        let by = match by {
            By::Waiter => &counters.by_waiter,
            By::Worker => &counters.by_worker,
            By::Pool => &counters.by_pool,
            By::Poller => &counters.by_poller,
            By::Kernel => &counters.by_kernel,
        };
        add(by, 1);
        if result < 0 {
            add(&counters.errors, 1);
        }
        counters.completion.record(self.ns_since(request.submitted));
        if let Some(placed) = &self.placed {
            placed.count(counters, index);
        }
    }

    /// A read was executed at its submit, with this result, without a slot.
    #[inline]
    pub(crate) fn count_tried(&self, result: i32) {
        if let Some(counters) = self.counters() {
            let bytes = u64::try_from(result).unwrap_or(0);
            counters.bytes_read.fetch_add(bytes, Ordering::Relaxed);
            for counter in [&counters.submitted, &counters.reads, &counters.by_waiter] {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Is there a transfer that was submitted before this one, for the same direction of the same
    /// descriptor, and is neither done nor on the poller's list? Its descriptor was not known to be
    /// a stream's.
    pub(crate) fn has_strays_before(&self, index: u32) -> bool {
        if self.free.held() <= self.polled.load(Ordering::Relaxed) {
            // All are on the list, which the caller has locked.
            return false;
        }
        let (this, mut found) = (self.slot(index), false);
        self.free.each_held(|other| found |= self.slot(other).strays_before(this));
        found
    }

    /// A request is on the poller's list, which the caller has locked.
    pub(crate) fn begins_to_wait(&self, index: u32) {
        self.polled.fetch_add(1, Ordering::Relaxed);
        self.slot(index).polling();
    }

    /// It is taken off that list.
    pub(crate) fn ends_to_wait(&self, index: u32) {
        self.slot(index).begin();
        self.polled.fetch_sub(1, Ordering::Relaxed);
    }
}
