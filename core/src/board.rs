//! The part of a context that lanes (the ways to execute requests) and threads may use. It has the
//! request slots, and decides how a request begins and ends, where its completion goes, and which
//! thread to call.
#![allow(unsafe_code)]

mod completing;
mod direct;

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

pub use self::direct::DirectCompletions;
pub(crate) use self::direct::without_taker;
use crate::affinity;
use crate::cqe::Cqe;
use crate::lazy_zeroed::Zeros;
use crate::own::{Copied, Copies};
use crate::process;
use crate::queue::{Completions, IndexRing};
use crate::request::{Batch, FreeIt, FreeSlots, Queued, Route, Slot, Started};
use crate::router::Call;
use crate::sqe::Sqe;
use crate::stats::{Counters, Counting};
use crate::sync::lock;
use crate::sys;
use crate::sys::aio::IoEvent;

/// Receives completions as they happen, in place of a completion queue. The thread that has ended
/// the request calls the sink, with no lock held.
pub trait Sink: Send + Sync + std::fmt::Debug {
    /// Receives the completion of a request that has ended; `obj` is its
    /// [`Sqe::user_data`](crate::Sqe::user_data).
    ///
    /// # Safety
    /// The request was accepted with this `obj` and this `data`. The function is called once for
    /// each request.
    unsafe fn complete(&self, event: &IoEvent);

    /// Tells the sink that the slot of an ended request is free. A sink that holds back requests,
    /// because no slot was free, submits some now.
    fn released(&self);

    /// Runs `harvest`, which ends several requests one after the other. Before or after that, a
    /// sink may do work once for all of these requests.
    fn together(&self, harvest: &mut dyn FnMut()) {
        harvest();
    }

    /// Does the oldest read (or write) of a stream count as begun at its submit? If so, the request
    /// cannot be cancelled, as in aio_cancel(3) of the C library.
    fn begins_streams_at_once(&self) -> bool {
        true
    }

    /// Does a request wait for its stream although the descriptor is nonblocking (`O_NONBLOCK`), as
    /// in io_uring?
    fn waits_where_nonblocking(&self) -> bool {
        false
    }

    /// Does a write that a stream takes in part complete with that part, as in io_uring? Otherwise
    /// the rest waits for room, as in a blocking write(2).
    fn ends_short_writes(&self) -> bool {
        false
    }

    /// Called before a transfer on a stream is executed without waiting. `Some(result)` ends the
    /// request without executing it.
    fn before_transfer(&self, _sqe: &Sqe) -> Option<i32> {
        None
    }

    /// Called after a transfer on a stream, executed without waiting, has moved at least one byte.
    /// The request completes afterwards.
    fn after_transfer(&self, _fd: i32, _is_write: bool) {}
}

/// The kind of thread that executed a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Executor {
    /// A thread of the program, while it waited.
    Waiter,
    /// A worker with the baton, the right to execute the inline requests.
    Worker,
    /// A worker without the baton.
    Pool,
    /// The poller.
    Poller,
    /// The kernel, or the C library's threads.
    Kernel,
}

/// What a board needs from its context.
pub(crate) trait Dispatcher: Send + Sync + fmt::Debug {
    /// The board of this context.
    fn board(&self) -> &Board;

    /// Sends a request to another lane, and calls a thread for it.
    fn forward(&self, request: Started<'_>, to: Route, by: Executor);

    /// Routes a request once more whose positional call failed with `ESPIPE`: the descriptor has no
    /// offsets.
    fn reroute(&self, request: Started<'_>);

    /// Wakes or makes the thread that `who` names.
    fn call(&self, who: Call);

    /// Writes the chosen engine to the statistics, for observers of the program.
    fn note_choice(&self);

    /// Sends started requests to their lanes. The lane that injects faults (`lane/faulty.rs`)
    /// passes them on by this function.
    #[cfg(feature = "faulty")]
    fn submit(&self, slots: &[u32]);

    /// Applies the placement to the context, before its first request.
    fn place(&self, choice: &affinity::EffectivePlacement);

    /// Tells the poller that a request has ended, or was withdrawn. The poller had passed the
    /// request on to a worker under this number.
    fn passed_on_ended(&self, number: u32);

    /// Collects the kernel's completions. False: the poller need not call again before it is
    /// signalled.
    fn collect(&self) -> bool;

    /// The kernel's interface has nothing in flight: shall the poller keep watching it?
    fn stays_watched(&self) -> bool;
}

/// What is left to do for a completion after it was sent to its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The request was executed: it is counted and posted.
    Finished(Executor),
    /// The request is counted already: it was cancelled, or executed at the end of its context. It
    /// is only posted.
    Posted,
}

/// The CPUs where a placed context's requests run and complete: `placed/mod.rs`.
pub(crate) trait Placing: Send + Sync + fmt::Debug {
    /// The placement in effect; none before the first submit.
    fn choice(&self) -> Option<&affinity::EffectivePlacement>;

    /// Notes the calling thread's CPU as that of the submit. These requests go to their lanes next.
    fn submitted(&self, board: &Board, slots: &[u32]);

    /// Notes the calling thread's CPU as the one that hands these requests to the kernel.
    fn ran_here(&self, slots: &[u32]);

    /// Sends a completion to the CPU on which it has to be processed. False: the caller completes
    /// the request here.
    fn sends_away(&self, index: u32, result: i32, how: Delivery) -> bool;

    /// Runs `f`. The completions that `f` makes for another CPU are sent to that CPU in one batch.
    fn together(&self, board: &Board, f: &mut dyn FnMut());

    /// Runs the handler for a completion, if the context has one.
    fn handle(&self, cqe: Cqe);

    /// Counts a request that completes on the calling thread's CPU.
    fn count(&self, counters: &Counters, index: u32);
}

/// The requests of one context.
#[derive(Debug)]
pub(crate) struct Board {
    slots: Zeros<Slot>,
    free: FreeSlots,
    completions: Completions,
    dispatcher: Weak<dyn Dispatcher>,
    /// The number of the process that made this board (`process::generation`).
    generation: u64,
    closed: AtomicBool,
    /// Counts the requests that were submitted while others were in flight.
    numbered: AtomicU64,
    /// The number of requests on the poller's list.
    polled: AtomicUsize,
    strict: bool,
    counters: Option<Counting>,
    ticks_per_us: u64,
    /// Takes the completions, if a front end wants them at once.
    sink: Option<Box<dyn Sink>>,
    /// A sink takes the completions, and a limit on the size of files is set (RLIMIT_FSIZE). So a
    /// write that a thread of the program executes may raise an unexpected signal (SIGXFSZ).
    is_limited: bool,
    /// Set if the context is placed.
    placed: Option<Box<dyn Placing>>,
    /// Copies of descriptors that the program has closed while requests needed them.
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

    /// Can the context be used: is it not closed, and made by this process?
    #[inline]
    pub(crate) fn is_usable(&self) -> bool {
        !self.closed.load(Ordering::Relaxed) && self.is_of_this_process()
    }

    /// Did this process make the context, and not the parent of a fork?
    #[inline]
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.generation == process::generation()
    }

    /// Has a thread begun to destroy the context? If the caller has a slot and the answer is no, a
    /// thread that destroys the context later waits for the slot.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// As [`Board::is_closed`], without memory ordering: a hint.
    #[inline(always)]
    pub(crate) fn seems_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Begins to destroy the context. False: another thread has begun already.
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

    /// Are malformed requests refused at submit, as in libaio?
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

    /// The request's number in the order of submission. 0, which comes before all others, if the
    /// request is `alone`.
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

    /// Are at most `min` slots held? Then a wait for `min` completions needs every request.
    pub(crate) fn must_wait_for_all(&self, min: u32) -> bool {
        !self.free.held_more_than(min as usize)
    }

    /// The number of held slots for which `is` is true.
    pub(crate) fn count_held(&self, is: impl Fn(&Slot) -> bool) -> usize {
        let mut count = 0;
        self.free.each_held(|index| count += usize::from(is(self.slot(index))));
        count
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

    /// Must a thread of the program that executes this write suppress its signals (SIGXFSZ,
    /// SIGPIPE)?
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

    /// As [`Sink::after_transfer`], if at least one byte was transferred.
    pub(crate) fn after_transfer(&self, fd: i32, is_write: bool, result: i32) {
        if let Some(sink) = self.sink.as_ref().filter(|_| result > 0) {
            sink.after_transfer(fd, is_write);
        }
    }

    /// Do completions go to a [`Sink`]?
    pub(crate) fn has_sink(&self) -> bool {
        self.sink.is_some()
    }

    /// As [`Sink::begins_streams_at_once`]. False without a sink.
    pub(crate) fn begins_streams_at_once(&self) -> bool {
        self.sink.as_ref().is_some_and(|sink| sink.begins_streams_at_once())
    }

    /// As [`Placing::ran_here`], if the context is placed.
    pub(crate) fn ran_here(&self, slots: &[u32]) {
        if let Some(placed) = &self.placed {
            placed.ran_here(slots);
        }
    }

    /// Keeps a descriptor open as long as the context exists.
    pub(crate) fn keep(&self, copy: Arc<Copied>) {
        lock(&self.kept).push(copy);
    }

    /// Gives requests a duplicate of their eventfd's descriptor, which the program is about to
    /// close. The context keeps the duplicate open.
    pub(crate) fn keep_eventfds(&self, fds: &RangeInclusive<i32>) {
        let mut copies = Copies::default();
        self.free.each_held(|index| {
            let copy = |fd| copies.of(fd).map_or(-1, |copy| copy.fd());
            self.slot(index).move_notify(fds, copy);
        });
        copies.into_all().for_each(|copy| self.keep(copy));
    }

    /// The context, unless it is being dropped.
    pub(crate) fn dispatcher(&self) -> Option<Arc<dyn Dispatcher>> {
        self.dispatcher.upgrade()
    }

    /// Wakes or makes the thread that `who` names.
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

    /// Sends a request to another lane, and calls a thread for it.
    #[cold]
    pub(crate) fn forward(&self, request: Started<'_>, to: Route, by: Executor) {
        let dispatcher = self.dispatcher().expect("a context lives as long as its requests");
        dispatcher.forward(request, to, by);
    }

    /// As [`Dispatcher::reroute`].
    #[cold]
    pub(crate) fn reroute(&self, request: Started<'_>) {
        let dispatcher = self.dispatcher().expect("a context lives as long as its requests");
        dispatcher.reroute(request);
    }

    /// A batch without requests.
    pub(crate) fn batch(&self) -> Batch<'_> {
        Batch::new(&self.slots)
    }

    /// Takes the oldest request of a queue of this context.
    #[inline(always)]
    pub(crate) fn pop(&self, queue: &IndexRing) -> Option<Queued<'_>> {
        // SAFETY: queues hold numbers of slots that were queued, each once.
        queue.pop().map(|index| unsafe { self.slot(index).popped(index) })
    }

    /// Takes the oldest request of a queue, if it was queued before `end` ([`IndexRing::end`]).
    pub(crate) fn pop_before(&self, queue: &IndexRing, end: u64) -> Option<Queued<'_>> {
        // SAFETY: as for `pop`.
        queue.pop_before(end).map(|index| unsafe { self.slot(index).popped(index) })
    }

    /// Takes the oldest request of a queue that was not cancelled, and starts it.
    #[inline]
    pub(crate) fn pop_started(&self, queue: &IndexRing) -> Option<Started<'_>> {
        loop {
            if let Some(started) = self.start(self.pop(queue)?) {
                return Some(started);
            }
        }
    }

    /// The request whose slot number the caller has popped.
    ///
    /// # Safety
    /// As [`Slot::popped`].
    #[inline]
    pub(crate) unsafe fn popped(&self, index: u32) -> Queued<'_> {
        // SAFETY: the caller's contract.
        unsafe { self.slot(index).popped(index) }
    }

    /// The request whose slot the caller alone uses.
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
                    self.free.give(index);
                }
                None
            }
        }
    }

    /// Drops the numbers of cancelled requests at the front of a queue. All other numbers keep
    /// their places, so other threads may pop meanwhile.
    pub(crate) fn purge_front(&self, queue: &IndexRing) {
        while let Some(index) = queue.pop_if(|index| self.slot(index).is_canceled()) {
            // SAFETY: popped just now.
            drop(self.start(unsafe { self.popped(index) }));
        }
    }

    /// Drops the numbers of cancelled requests in a queue. The others keep their order, unless
    /// other threads push meanwhile.
    pub(crate) fn purge(&self, queue: &IndexRing) {
        // The loop stops at the queue's present end. Behind it are the requests that the loop has
        // put back: popping these again would change their order.
        let end = queue.end();
        while let Some(request) = self.pop_before(queue, end) {
            if request.slot().is_canceled() {
                drop(self.start(request));
            } else {
                queue.push(&[request.index()]);
            }
        }
    }

    /// Is an earlier transfer on the same descriptor, in the same direction, under way but not on
    /// the poller's list? Such a transfer was submitted before the descriptor was known to be a
    /// stream.
    pub(crate) fn has_strays_before(&self, index: u32) -> bool {
        if self.free.held() <= self.polled.load(Ordering::Relaxed) {
            // All requests are on the list, which the caller has locked.
            return false;
        }
        let (this, mut found) = (self.slot(index), false);
        self.free.each_held(|other| found |= self.slot(other).strays_before(this));
        found
    }

    /// Notes that a request was put on the poller's list, which the caller has locked.
    pub(crate) fn begins_to_wait(&self, index: u32) {
        self.polled.fetch_add(1, Ordering::Relaxed);
        self.slot(index).polling();
    }

    /// Notes that a request was taken off the poller's list, which the caller has locked.
    pub(crate) fn ends_to_wait(&self, index: u32) {
        self.slot(index).begin();
        self.polled.fetch_sub(1, Ordering::Relaxed);
    }
}
