//! What lanes and threads may know of a context: its request slots, how a request begins and ends,
//! who takes its completion, and whom to call for it. Lanes know this, and nothing above it.
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

    /// The poller has executed a transfer on a stream, and bytes went through. Its completion
    /// comes after this call.
    fn after_transfer(&self, _fd: i32, _is_write: bool) {}
}

/// Who executed a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Executor {
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
    fn forward(&self, request: Started<'_>, to: Route, by: Executor);

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
pub(crate) enum Delivery {
    /// Executed by somebody.
    Finished(Executor),
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
    fn sends_away(&self, index: u32, result: i32, how: Delivery) -> bool;

    /// What `f` completes for other CPUs is sent to each of them at once.
    fn together(&self, board: &Board, f: &mut dyn FnMut());

    /// Runs the handler of a completion, if there is one.
    fn handle(&self, cqe: Cqe);

    /// A request completes on the calling thread's CPU.
    fn count(&self, counters: &Counters, index: u32);
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

    /// Slots that are held and that `is` says yes to.
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

    /// As [`Sink::after_transfer`], if bytes went through.
    pub(crate) fn after_transfer(&self, fd: i32, is_write: bool, result: i32) {
        if let Some(sink) = self.sink.as_ref().filter(|_| result > 0) {
            sink.after_transfer(fd, is_write);
        }
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
    pub(crate) fn forward(&self, request: Started<'_>, to: Route, by: Executor) {
        let dispatcher = self.dispatcher().expect("a context lives as long as its requests");
        dispatcher.forward(request, to, by);
    }

    /// A positional call on this request has found no offsets.
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

    /// Takes the oldest request of a queue, up to where the queue [ended](IndexRing::end).
    pub(crate) fn pop_before(&self, queue: &IndexRing, end: u64) -> Option<Queued<'_>> {
        // SAFETY: as for `pop`.
        queue.pop_before(end).map(|index| unsafe { self.slot(index).popped(index) })
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
        while let Some(request) = self.pop_before(queue, end) {
            if request.slot().is_canceled() {
                drop(self.start(request));
            } else {
                queue.push(&[request.index()]);
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
