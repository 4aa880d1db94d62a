//! The inside of a context: slots, completion queue and engine, for any number of threads.
//!
//! [`Context`](crate::Context) is its single-owner face; front ends hold it directly.
#![allow(unsafe_code)]

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::affinity::placed::{How, Placed};
use crate::config::{Builder, ConfigError};
use crate::cqe::Cqe;
use crate::descriptor::ticks_per_us;
use crate::engine::{Contract, Engine, Help};
use crate::exec::{self, Mode};
use crate::own::{Copied, Copies};
use crate::process;
use crate::queue::{Completions, IoEvent, Posted, Ring, SleepEnd, Sleeper};
use crate::request::{
    BATCH, Cancel, Completion, CountSteps, FreeIt, FreeSlots, Kind, Request, Slot,
};
use crate::sqe::Sqe;
use crate::stats::{Counters, Counting, Snapshot};
use crate::sync::lock;
use crate::sys;
use crate::zeros::Zeros;

/// A request as a front end hands it in.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The request.
    pub sqe: Sqe,
    /// Comes back as [`IoEvent::data`]; not used with a ring of [`Cqe`]s.
    pub data: u64,
    /// An eventfd(2) that is counted up after the completion is visible, [`TOLD_OTHERWISE`], or -1.
    pub notify: i32,
}

/// [`Entry::notify`] of a request whose program is told of its end by the front end, and so may not
/// come to wait for it.
pub const TOLD_OTHERWISE: i32 = -2;

/// Takes completions as they happen, in place of a completion queue: called by whichever thread
/// has ended the request, with no lock held.
pub trait Sink: Send + Sync + std::fmt::Debug {
    /// A request has ended; `obj` is its [`Sqe::user_data`]. Called once for each.
    fn complete(&self, event: &IoEvent);

    /// Its slot is free, and those who wait for it are woken.
    fn released(&self);
}

/// What a thread waits for in [`Instance::wait_for`].
#[derive(Clone, Copy)]
pub struct Wish<'a> {
    /// How many requests are still to end; 0 ends the wait.
    pub missing: &'a dyn Fn() -> u32,
    /// Is this one of them? A thread that sleeps is woken for those only. Must not block.
    pub concerns: &'a dyn Fn(&IoEvent) -> bool,
    /// Ends the wait although something is missing; asked again after [`Instance::disturb`].
    pub gives_up: &'a dyn Fn() -> bool,
}

impl std::fmt::Debug for Wish<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wish").finish_non_exhaustive()
    }
}

/// One use of a slot: what [`Instance::in_flight_on`] gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    slot: u32,
    state: u32,
}

/// What [`Instance::cancel_all_on`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Canceled {
    /// Requests that will not be executed.
    pub canceled: usize,
    /// Requests that are being executed.
    pub running: usize,
}

/// Where a request is written to; all three are to be set.
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
    /// Entries taken over, from the first on.
    pub accepted: usize,
    /// Why the next one was refused, as a negative errno; 0 if all were accepted.
    pub refused: i32,
}

/// Writes each of `entries` to its place.
#[inline(always)]
fn entries_to(entries: &[Entry]) -> impl FnMut(usize, Place<'_>) -> Result<(), i32> {
    |at, place| {
        let Entry { sqe, data, notify } = entries[at];
        *place.sqe = sqe;
        (*place.data, *place.notify) = (data, notify);
        Ok(())
    }
}

/// What submits had to do with other submitters around: see [`Instance::submit_measured`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubmitSteps {
    /// Attempts to change a word of the free slots, which other submitters change too; failed ones
    /// and slots given back unused included.
    pub slots: u64,
    /// Calls of the engine, each of which announces its requests once.
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

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// At least as many completions as asked for can be reaped.
    Enough,
    /// The time is over.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
    /// The context is being destroyed, or belongs to another process: `EINVAL`.
    Gone,
    /// [`Wish::gives_up`] was true.
    GaveUp,
}

/// Where a waiting thread takes completions of requests that it has executed itself: they need not
/// go through the completion queue.
pub struct Taker<'a> {
    sink: &'a mut dyn FnMut(IoEvent),
    room: u32,
    taken: u32,
}

impl<'a> Taker<'a> {
    /// Takes up to `room` completions.
    pub fn new(room: u32, sink: &'a mut dyn FnMut(IoEvent)) -> Self {
        Self { sink, room, taken: 0 }
    }

    /// How many it has taken.
    pub fn taken(&self) -> u32 {
        self.taken
    }
}

impl std::fmt::Debug for Taker<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Taker").field("room", &self.room).field("taken", &self.taken).finish()
    }
}

/// Calls `f` with a taker that takes nothing.
pub(crate) fn without_taker<R>(f: impl FnOnce(&mut Taker<'_>) -> R) -> R {
    f(&mut Taker::new(0, &mut |_| {}))
}

/// Who executed a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// A thread of the program, while it waited.
    Waiter,
    /// A worker with the baton.
    Worker,
    /// A worker, as one of its own.
    Pool,
    /// The poller.
    Poller,
    /// The kernel, or the C library's threads.
    Kernel,
}

/// One asynchronous I/O instance. All methods can be called from any thread.
#[derive(Debug)]
pub struct Instance {
    slots: Zeros<Slot>,
    free: FreeSlots,
    completions: Completions,
    engine: Engine,
    /// The process that made it.
    generation: u64,
    closed: AtomicBool,
    /// Slots of cancelled requests that are free once their numbers have left a ring.
    reaped_in_rings: AtomicIsize,
    strict: bool,
    counters: Option<Counting>,
    ticks_per_us: u64,
    /// Takes the completions, if a front end wants them at once.
    sink: Option<Box<dyn Sink>>,
    /// Writes that the program's threads execute may raise a signal that no thread of the program
    /// expects (SIGXFSZ): there is a limit on the size of files.
    is_limited: bool,
    /// When [`Instance::poll`] last looked at what the kernel has, in ticks.
    looked: AtomicU64,
    /// Where its requests run, if anywhere in particular.
    placed: Option<Box<Placed>>,
    /// Of descriptors that the program has closed.
    kept: Mutex<Vec<Arc<Copied>>>,
    /// What the ring lies in, if a front end gave it: goes last.
    _memory: Option<Box<dyn RingMemory>>,
}

/// Memory of a front end's that an aio ring lies in, kept until nobody looks at the ring any more.
pub trait RingMemory: Send + Sync + std::fmt::Debug {}

impl Instance {
    /// With a completion queue of [`Cqe`]s of its own.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new(builder: &Builder) -> Result<Arc<Self>, ConfigError> {
        builder.check()?;
        let completions = Completions::new(Ring::cqes(builder.entries), builder.entries as usize);
        Self::with(builder, completions, builder.entries, None, None)
    }

    /// With a front end that takes completions as they happen. For [`Instance::wait_for`], not
    /// [`Instance::wait`]; there is nothing to reap.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn with_sink(builder: &Builder, sink: Box<dyn Sink>) -> Result<Arc<Self>, ConfigError> {
        builder.check()?;
        Self::with(builder, Completions::without_ring(), builder.entries, None, Some(sink))
    }

    /// With a completion queue in an aio ring of the front end's, for `room` requests, whatever
    /// the builder says.
    ///
    /// # Errors
    /// As [`Builder::build`].
    ///
    /// # Safety
    /// `room` is less than `places`; `head`, `tail` and `places` events are valid until `memory` is dropped, and nobody else
    /// uses them but as a reader of an aio ring does.
    pub unsafe fn with_aio_ring(
        builder: &Builder,
        memory: Box<dyn RingMemory>,
        head: *const std::sync::atomic::AtomicU32,
        tail: *const std::sync::atomic::AtomicU32,
        events: *mut IoEvent,
        places: u32,
        room: u32,
    ) -> Result<Arc<Self>, ConfigError> {
        // SAFETY: the caller's contract, which is the ring's.
        let ring = unsafe { Ring::events(head, tail, events, places) };
        let completions = Completions::new(ring, room as usize);
        Self::with(builder, completions, room, Some(memory), None)
    }

    fn with(
        builder: &Builder,
        completions: Completions,
        room: u32,
        memory: Option<Box<dyn RingMemory>>,
        sink: Option<Box<dyn Sink>>,
    ) -> Result<Arc<Self>, ConfigError> {
        let generation = process::enter();
        let count = room as usize;
        let machine = Placed::look(builder)?;
        let engine = Engine::new(builder, count)?;
        #[cfg(feature = "faulty")]
        let engine = engine.with_faults(builder.faults);
        let instance = Arc::new_cyclic(|me| Self {
            slots: Zeros::new(count),
            free: FreeSlots::new(count),
            completions,
            engine,
            generation,
            closed: AtomicBool::new(false),
            reaped_in_rings: AtomicIsize::new(0),
            strict: builder.strict,
            counters: Counting::new(builder.stats),
            ticks_per_us: ticks_per_us(),
            is_limited: sink.is_some() && sys::has_file_limit(),
            sink,
            looked: AtomicU64::new(0),
            placed: machine.map(|machine| Box::new(Placed::new(builder, machine, count, me))),
            kept: Mutex::default(),
            _memory: memory,
        });
        instance.count(|counters| &counters.contexts);
        instance.note_choice();
        Ok(instance)
    }

    /// Can it be used at all: not closed, and made by this very process?
    #[inline]
    pub fn is_usable(&self) -> bool {
        !self.closed.load(Ordering::Relaxed) && self.is_of_this_process()
    }

    /// Made by this process, not by the parent of a fork.
    #[inline]
    pub fn is_of_this_process(&self) -> bool {
        self.generation == process::generation()
    }

    /// Requests that can be in flight or unreaped at a time.
    pub fn room(&self) -> usize {
        self.slots.len()
    }

    /// Submits requests: takes slots for as many as there is room, in batches, and hands them to
    /// the engine. Never blocks.
    ///
    /// # Safety
    /// As for [`Instance::submit_with`].
    #[inline]
    pub unsafe fn submit(self: &Arc<Self>, entries: &[Entry]) -> Submitted {
        // SAFETY: the caller's contract.
        unsafe { self.submit_with(entries.len(), entries_to(entries)) }
    }

    /// As [`Instance::submit`], with requests written to where they stay: `fill` gets the number
    /// of the request and its place, or refuses it with a negative errno, which ends the submit.
    ///
    /// # Safety
    /// The buffers of an accepted request stay valid until its completion was reaped, and the
    /// other addresses in it can be read now.
    #[inline(always)]
    pub unsafe fn submit_with(
        self: &Arc<Self>,
        count: usize,
        fill: impl FnMut(usize, Place<'_>) -> Result<(), i32>,
    ) -> Submitted {
        // SAFETY: the caller's contract.
        unsafe { self.submit_in_batches(count, BATCH, fill, &mut ()) }
    }

    /// As [`Instance::submit`], with slots taken `batch` at a time (1 to 32, which is what every
    /// other submit does), and the steps counted: for measuring what batches are worth.
    ///
    /// # Safety
    /// As for [`Instance::submit_with`].
    pub unsafe fn submit_measured(
        self: &Arc<Self>,
        entries: &[Entry],
        batch: usize,
        steps: &mut SubmitSteps,
    ) -> Submitted {
        // SAFETY: the caller's contract.
        unsafe { self.submit_in_batches(entries.len(), batch.max(1), entries_to(entries), steps) }
    }

    /// # Safety
    /// As for [`Instance::submit_with`].
    #[inline(always)]
    unsafe fn submit_in_batches(
        self: &Arc<Self>,
        count: usize,
        batch_max: usize,
        mut fill: impl FnMut(usize, Place<'_>) -> Result<(), i32>,
        steps: &mut impl CountSteps,
    ) -> Submitted {
        if !self.is_usable() {
            return Submitted { accepted: 0, refused: -libc::EINVAL };
        }
        let begin = if self.counters.is_some() { sys::ticks() } else { 0 };
        let mut done = Submitted { accepted: 0, refused: 0 };
        let mut collected = false;
        while done.accepted < count && done.refused == 0 {
            let want = (count - done.accepted).min(batch_max);
            let (one, batch);
            let slots = if want == 1 {
                one = self.free.take_one(steps);
                one.as_slice()
            } else {
                batch = self.free.take_counted(want, steps);
                batch.as_slice()
            };
            if self.closed.load(Ordering::SeqCst) {
                // Destroyed meanwhile: nobody would collect it.
                slots.iter().for_each(|&slot| self.free.give(slot));
                done.refused = -libc::EINVAL;
                break;
            }
            if slots.is_empty() {
                if collected {
                    done.refused = -libc::EAGAIN;
                } else {
                    self.make_room();
                    collected = true;
                }
                continue;
            }
            let mut filled = 0;
            for &slot in slots {
                let slot = self.slot(slot);
                // SAFETY: just taken from the free slots, and not passed on yet.
                let request = unsafe { slot.request() };
                let Request { sqe, data, notify, .. } = &mut *request;
                let place = Place { sqe, data, notify };
                if let Err(errno) = fill(done.accepted + filled, place) {
                    done.refused = errno;
                    break;
                }
                // SAFETY: the caller answers for the addresses.
                let refused = unsafe { exec::copy_in(request) }.err().unwrap_or(0);
                if refused != 0 && self.strict {
                    done.refused = refused;
                    break;
                }
                request.kind = exec::kind(&request.sqe);
                let malformed = request.kind == Kind::Invalid;
                request.refused = if malformed { -libc::EINVAL } else { refused };
                request.submitted = begin;
                request.partial = 0;
                slot.fill(request.sqe.user_data, request.sqe.fd, request.notify);
                filled += 1;
            }
            for &slot in &slots[filled..] {
                steps.step();
                self.free.give(slot);
            }
            if filled > 0 {
                steps.handed_over();
                if let Some(placed) = &self.placed {
                    placed.submitted(self, &slots[..filled]);
                }
                self.engine.submit(self, &slots[..filled]);
                done.accepted += filled;
            }
        }
        if let Some(counters) = self.counters()
            && done.accepted > 0
        {
            counters.submitted.fetch_add(done.accepted as u64, Ordering::Relaxed);
            counters.submit.record(self.ns_since(begin));
        }
        done
    }

    /// Gathers slots that are held for nobody.
    #[cold]
    #[inline(never)]
    fn make_room(self: &Arc<Self>) {
        // Completions that the program reaped from the ring by itself still hold their slots.
        self.completions.collect(|slot| self.reaped(slot));
        self.engine.purge(self);
        self.await_reaped();
    }

    /// Waits until `min` completions can be reaped (0: only looks, and executes what will not
    /// sleep), executing requests on the way; `max` is how many the caller can take. Completions
    /// that `taker` has taken count, and are not in the queue. The signal mask, if given, is in
    /// force while the thread sleeps.
    #[inline]
    pub fn wait(
        self: &Arc<Self>,
        min: u32,
        max: u32,
        timeout: Option<Duration>,
        mask: Option<u64>,
        taker: &mut Taker<'_>,
    ) -> Waited {
        if !self.is_usable() {
            return Waited::Gone;
        }
        let available = self.completions.available();
        if available >= min && (min > 0 || available >= max) {
            return Waited::Enough;
        }
        let help = Help { min, max: max.max(min), unbounded: timeout.is_none() && min > 0 };
        if min == 0 {
            self.engine.help(self, help, taker);
            return Waited::Enough;
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let helped = self.engine.help(self, help, taker);
        if self.has_enough(min, taker) {
            return Waited::Enough;
        }
        self.wait_on(help, helped, deadline, mask, taker)
    }

    /// As many as `min` were taken or can be reaped.
    #[inline]
    fn has_enough(&self, min: u32, taker: &Taker<'_>) -> bool {
        taker.taken >= min || self.completions.available() >= min - taker.taken
    }

    /// The rest of a wait that one round of help, which `helped` or did not, has not ended.
    #[inline(never)]
    fn wait_on(
        self: &Arc<Self>,
        help: Help,
        mut helped: bool,
        deadline: Option<Instant>,
        mask: Option<u64>,
        taker: &mut Taker<'_>,
    ) -> Waited {
        let min = help.min;
        let mut naps = 0;
        loop {
            let help = Help { min: min - taker.taken, ..help };
            if helped {
                helped = self.engine.help(self, help, taker);
                if self.has_enough(min, taker) {
                    return Waited::Enough;
                }
                continue;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Waited::TimedOut;
            }
            let nap = self.engine.nap(naps);
            let time = [left, nap].into_iter().flatten().min();
            let stay_up = || self.engine.has_help_to_offer(self, help);
            let need = min - taker.taken;
            let sleeper =
                Sleeper { need, concerns: None, stay_up: &stay_up, even_if_closed: false };
            match self.engine.sleep(self, &sleeper, time, mask, taker) {
                SleepEnd::Again => {}
                SleepEnd::TimedOut => {
                    if nap.is_some() {
                        naps += 1;
                        self.engine.watch(self);
                    }
                }
                SleepEnd::Interrupted => return Waited::Interrupted,
                SleepEnd::Closed => return Waited::Gone,
            }
            // A sleep in the kernel's own wait takes what has come.
            if taker.taken >= min {
                return Waited::Enough;
            }
            helped = true;
        }
    }

    /// Waits until nothing is missing any more, executing requests on the way, where completions go to a [`Sink`].
    pub fn wait_for(self: &Arc<Self>, wish: &Wish<'_>, timeout: Option<Duration>) -> Waited {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        without_taker(|taker| {
            let mut naps = 0;
            loop {
                let missing = (wish.missing)();
                if missing == 0 {
                    return Waited::Enough;
                }
                if !self.is_usable() {
                    return Waited::Gone;
                }
                let help = Help { min: missing, max: u32::MAX, unbounded: timeout.is_none() };
                let helped = self.engine.help(self, help, taker);
                if (wish.missing)() == 0 {
                    return Waited::Enough;
                }
                let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
                if left.is_some_and(|left| left.is_zero()) {
                    return Waited::TimedOut;
                }
                if (wish.gives_up)() {
                    return Waited::GaveUp;
                }
                if helped {
                    continue;
                }
                let nap = self.engine.nap(naps);
                let time = [left, nap].into_iter().flatten().min();
                let stay_up = || {
                    (wish.missing)() == 0
                        || (wish.gives_up)()
                        || self.engine.has_help_to_offer(self, help)
                };
                let concerns = Some(wish.concerns);
                let sleeper =
                    Sleeper { need: missing, concerns, stay_up: &stay_up, even_if_closed: false };
                match self.engine.sleep(self, &sleeper, time, None, taker) {
                    SleepEnd::Again => {}
                    SleepEnd::TimedOut if nap.is_some() => {
                        naps += 1;
                        self.engine.watch(self);
                    }
                    SleepEnd::TimedOut => {}
                    SleepEnd::Interrupted if (wish.missing)() == 0 => return Waited::Enough,
                    SleepEnd::Interrupted => return Waited::Interrupted,
                    SleepEnd::Closed => return Waited::Gone,
                }
            }
        })
    }

    /// Has every thread that sleeps in [`Instance::wait_for`] look again.
    pub fn disturb(&self) {
        if self.completions.has_sleepers() {
            self.completions.wake_now();
        }
    }

    /// Looks whether something can be brought to its end at once: executes what is known not to sleep,
    /// and, now and then, collects what the kernel has done. Never sleeps.
    #[inline]
    pub fn poll(self: &Arc<Self>) {
        /// Looking at the kernel's ring costs as much as looking at thirty requests.
        const EVERY_US: u64 = 5;
        /// A look is for one request: it does not do all the work of others.
        const MOST: u32 = 64;
        if !self.is_usable() {
            return;
        }
        let help = Help { min: 0, max: MOST, unbounded: false };
        if !self.engine.has_help_to_offer(self, help) {
            let now = sys::ticks();
            if now.wrapping_sub(self.looked.load(Ordering::Relaxed)) < EVERY_US * self.ticks_per_us
            {
                return;
            }
            self.looked.store(now, Ordering::Relaxed);
            return self.engine.collect(self);
        }
        without_taker(|taker| self.engine.help(self, help, taker));
    }

    /// Reaps up to `max` completions as [`Cqe`]s, without sleeping. Gives how many.
    #[inline]
    pub fn reap(&self, max: u32, mut take: impl FnMut(Cqe)) -> u32 {
        self.completions.reap(
            max,
            // SAFETY: `reap` passes places between head and tail.
            |ring, at| take(unsafe { ring.read_cqe(at) }),
            |slot| self.reaped(slot),
        )
    }

    /// Reaps up to `max` completions as [`IoEvent`]s, without sleeping. Gives how many.
    #[inline]
    pub fn reap_events(&self, max: u32, mut take: impl FnMut(IoEvent)) -> u32 {
        self.completions.reap(
            max,
            // SAFETY: `reap` passes places between head and tail.
            |ring, at| take(unsafe { ring.read_event(at) }),
            |slot| self.reaped(slot),
        )
    }

    /// Completions that can be reaped.
    #[inline]
    pub fn available(&self) -> u32 {
        self.completions.available()
    }

    /// Cancels one request with this [`Sqe::user_data`] that has not been started: it completes
    /// with `-ECANCELED`. `Err`: `-EALREADY` if it is being executed, `-ENOENT` if there is none.
    pub fn cancel(&self, user_data: u64) -> Result<(), i32> {
        if !self.is_usable() {
            return Err(-libc::EINVAL);
        }
        let mut answer = Err(-libc::ENOENT);
        self.free.each_held(|slot| {
            if answer.is_ok() {
                return;
            }
            match self.cancel_slot(slot, user_data) {
                Cancel::Done => answer = Ok(()),
                Cancel::Started => answer = Err(-libc::EALREADY),
                Cancel::Polling | Cancel::Missed => {}
            }
        });
        answer
    }

    /// Cancels what has not been started on a descriptor.
    pub fn cancel_all_on(&self, fd: i32) -> Canceled {
        let mut found = Canceled::default();
        if !self.is_usable() {
            return found;
        }
        self.free.each_held(|index| {
            let slot = self.slot(index);
            // Once cancelled or completed, the slot may be another's.
            if let Some(state) = slot.in_flight_on(fd) {
                match self.cancel_slot(index, slot.key()) {
                    Cancel::Done => found.canceled += 1,
                    _ if slot.is_over(state) => {}
                    _ => found.running += 1,
                }
            }
        });
        found
    }

    /// The requests on a descriptor that were submitted and have not ended, as far as this thread can
    /// know of them.
    pub fn in_flight_on(&self, fd: i32) -> Vec<InFlight> {
        let mut found = Vec::new();
        self.free.each_held(|index| {
            if let Some(state) = self.slot(index).in_flight_on(fd) {
                found.push(InFlight { slot: index, state });
            }
        });
        found
    }

    /// A request that was in flight has ended: executed or cancelled.
    pub fn is_over(&self, request: InFlight) -> bool {
        self.slot(request.slot).is_over(request.state)
    }

    /// A slot is free: a hint, unless no other thread submits.
    pub fn has_room(&self) -> bool {
        !self.free.held_more_than(self.room() - 1)
    }

    /// Wakes those who wait for a request that the front end has completed by itself.
    pub fn wake_for(&self, event: &IoEvent) {
        self.completions.completed(event);
    }

    /// Is this write, if a thread of the program executes it, to be kept from raising a signal there?
    #[inline]
    pub(crate) fn is_to_be_quiet(&self, stream: bool) -> bool {
        self.is_limited || stream && self.has_sink()
    }

    /// Completions go to a [`Sink`].
    pub(crate) fn has_sink(&self) -> bool {
        self.sink.is_some()
    }

    fn cancel_slot(&self, index: u32, key: u64) -> Cancel {
        match self.slot(index).cancel_queued(key) {
            Cancel::Done => {
                self.post_canceled(index);
                Cancel::Done
            }
            Cancel::Polling if self.engine.retract(self, index, key) => {
                self.slot(index).done();
                self.post_canceled(index);
                Cancel::Done
            }
            // The poller has just taken it off: it is being executed.
            Cancel::Polling => Cancel::Started,
            other => other,
        }
    }

    /// The program is about to close `fd`: executes the requests on it that have not been started,
    /// here and now, and waits for those that have, so that none of them meets a descriptor that is
    /// gone, or another file under its number. Requests in the poller stay there, with the file, and so does an
    /// eventfd that requests are to count up.
    pub fn before_close(self: &Arc<Self>, fd: i32) {
        self.before_close_range(&(fd..=fd));
    }

    /// As [`Instance::before_close`], for a range of descriptors that begins at 0 or above.
    pub fn before_close_range(self: &Arc<Self>, fds: &RangeInclusive<i32>) {
        /// Naps before a request that is being executed counts as having begun its system call.
        const NAPS: u32 = 1000;
        let all = Help { min: u32::MAX, max: u32::MAX, unbounded: true };
        let mut naps = 0;
        let mut needed = false;
        self.free.each_held(|index| needed |= self.slot(index).needs_one_of(fds));
        if !needed || process::is_borrowed() {
            return;
        }
        self.keep_eventfds(fds);
        while self.is_usable() && naps < NAPS {
            let mut waiting = false;
            let handing_over = self.engine.is_handing_over();
            self.engine.keep_files(fds);
            self.free.each_held(|index| {
                waiting |= self.slot(index).is_waiting_for(fds, handing_over);
            });
            if !waiting {
                self.free.each_held(|index| self.slot(index).forget_number(fds));
                return;
            }
            if !without_taker(|taker| self.engine.help(self, all, taker)) {
                // Others execute them. Whether a system call has begun, and so holds the file,
                // nobody can see; after this long it has, and may never end.
                naps += 1;
                sys::nap(Duration::from_micros(20));
            }
        }
    }

    /// Requests whose eventfd is about to be closed get another descriptor of it, which is kept as long as the context.
    fn keep_eventfds(&self, fds: &RangeInclusive<i32>) {
        let mut copies = Copies::default();
        self.free.each_held(|index| {
            let copy = |fd| copies.of(fd).map_or(-1, |copy| copy.fd());
            self.slot(index).move_notify(fds, copy);
        });
        copies.into_all().for_each(|copy| self.keep(copy));
    }

    /// Keeps a descriptor open as long as the context.
    pub(crate) fn keep(&self, copy: Arc<Copied>) {
        lock(&self.kept).push(copy);
    }

    /// Executes a request that the caller has withdrawn from its queue.
    fn execute_withdrawn(&self, index: u32) {
        // SAFETY: withdrawn, so it is the caller's alone.
        let request = unsafe { self.slot(index).request() };
        let mode = if request.stream { Mode::Stream } else { Mode::Plain };
        // SAFETY: copied in at submit; the buffers are the request's until its completion.
        let result = unsafe { exec::execute(request, mode) };
        if let Some(counters) = self.counters() {
            self.count_finished(counters, index, result, By::Waiter);
        }
        self.post_placed(index, result);
    }

    /// Destroys it: cancels what has not been started, waits for what has, refuses everything
    /// from then on. What has completed can still be reaped. Threads that wait are sent away.
    ///
    /// A strict one executes what has not been started, except what may wait for ever (polls,
    /// pipes, sockets): io_destroy(2) finds buffered requests executed and direct ones begun.
    pub fn close(self: &Arc<Self>) {
        if self.closed.swap(true, Ordering::SeqCst) || !self.is_of_this_process() {
            return;
        }
        self.completions.close();
        loop {
            // Again and again: a submit that had passed the check may still be pushing.
            self.engine.drain(self);
            self.free.each_held(|index| {
                if self.slot(index).is_polling() {
                    self.cancel_slot(index, self.slot(index).key());
                }
            });
            self.completions.collect(|slot| self.reaped(slot));
            // Every request that was accepted stands in the ring: nobody touches it any more.
            let available = self.completions.available();
            if self.free.held() == available as usize {
                return self.engine.closed();
            }
            let sleeper = Sleeper {
                need: available + 1,
                concerns: None,
                stay_up: &|| false,
                even_if_closed: true,
            };
            let time = Some(Duration::from_millis(10));
            without_taker(|taker| self.engine.sleep(self, &sleeper, time, None, taker));
        }
    }

    /// What was counted, if [`Builder::stats`] asked for it.
    pub fn stats(&self) -> Option<Snapshot> {
        self.counters.as_ref()?.read()
    }

    /// Tells those who observe the program what executes the requests.
    pub(crate) fn note_choice(&self) {
        if let Some(counting) = &self.counters {
            counting.note(&self.engine().choice());
        }
    }

    /// The engine that executes.
    pub(crate) fn engine(&self) -> &Engine {
        self.engine.inner()
    }

    /// The engine that requests go to first.
    #[cfg(feature = "faulty")]
    pub(crate) fn outer_engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn completions(&self) -> &Completions {
        &self.completions
    }

    pub(crate) fn free_slots(&self) -> &FreeSlots {
        &self.free
    }

    #[inline]
    pub(crate) fn slot(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }

    #[inline]
    fn counters(&self) -> Option<&Counters> {
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

    /// Begins the execution of a request whose number the caller popped. False: it was cancelled.
    #[inline]
    pub(crate) fn start(&self, index: u32) -> bool {
        match self.slot(index).start() {
            Ok(()) => true,
            Err(FreeIt(free)) => {
                if free {
                    self.reaped_in_rings.fetch_sub(1, Ordering::Relaxed);
                    self.free.give(index);
                }
                false
            }
        }
    }

    /// Ends a request whose number the caller popped because the context is being destroyed.
    pub(crate) fn end_popped(&self, index: u32) {
        if !self.start(index) {
            return;
        }
        self.slot(index).done();
        // SAFETY: started by us just now.
        let request = unsafe { self.slot(index).request() };
        let ends = !request.stream && request.kind != Kind::Poll;
        if self.strict && ends {
            self.execute_withdrawn(index);
        } else {
            self.post_canceled(index);
        }
    }

    /// Completes a cancelled request, which is the caller's alone.
    fn post_canceled(&self, index: u32) {
        self.count(|counters| &counters.canceled);
        // SAFETY: the caller has cancelled it: nobody executes it.
        let request = unsafe { self.slot(index).request() };
        let result = match request.kind {
            // Bytes that went into a stream are not taken back.
            _ if request.partial > 0 => request.partial as i32,
            // As io_cancel has it.
            Kind::Poll if self.strict => 0,
            _ => -libc::ECANCELED,
        };
        self.post_placed(index, result);
    }

    /// Where requests run, if that was asked for and one was submitted yet.
    pub fn placement(&self) -> Option<&crate::affinity::Choice> {
        self.placed.as_ref()?.choice()
    }

    /// The calling thread hands these to the kernel.
    pub(crate) fn ran_here(&self, slots: &[u32]) {
        if let Some(placed) = &self.placed {
            placed.ran_here(slots);
        }
    }

    /// Completions that `f` finishes are sent to other CPUs at once.
    pub(crate) fn together(&self, f: impl FnOnce()) {
        match &self.placed {
            Some(placed) => placed.together(self, f),
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
            let user_data = unsafe { self.slot(index).request() }.sqe.user_data;
            placed.handle(Cqe { user_data, res: result, flags: 0 });
        }
        match how {
            How::Finished(by) => self.finish_here(index, result, by),
            How::Posted => self.post(index, result),
        }
    }

    fn post_placed(&self, index: u32, result: i32) {
        if !self.sends_away(index, result, How::Posted) {
            self.post(index, result);
        }
    }

    /// As [`Instance::finish`], by a thread that may want the completion for itself.
    #[inline]
    pub(crate) fn finish_for(&self, index: u32, result: i32, by: By, taker: &mut Taker<'_>) {
        // SAFETY: started by the caller.
        let request = unsafe { self.slot(index).request() };
        if self.sends_away(index, result, How::Finished(by)) {
            return;
        }
        if taker.taken >= taker.room || request.notify >= 0 {
            // With a sink it has its completion at once, too.
            taker.taken += u32::from(self.sink.is_some());
            return self.finish_here(index, result, by);
        }
        if let Some(counters) = self.counters() {
            self.count_finished(counters, index, result, by);
        }
        let event = IoEvent {
            data: request.data,
            obj: request.sqe.user_data,
            res: i64::from(result),
            res2: 0,
        };
        self.slot(index).done();
        self.free.give(index);
        taker.taken += 1;
        (taker.sink)(event);
    }

    /// Completes a started request. The caller lets go of the slot here.
    #[inline]
    pub(crate) fn finish(&self, index: u32, result: i32, by: By) {
        if !self.sends_away(index, result, How::Finished(by)) {
            self.finish_here(index, result, by);
        }
    }

    /// As [`Instance::finish`], on this very CPU.
    #[inline]
    fn finish_here(&self, index: u32, result: i32, by: By) {
        if let Some(counters) = self.counters() {
            self.count_finished(counters, index, result, by);
        }
        self.slot(index).done();
        self.post(index, result);
    }

    #[inline]
    fn post(&self, index: u32, result: i32) {
        if let Some(sink) = &self.sink {
            return self.deliver(&**sink, index, result);
        }
        // SAFETY: the caller holds the slot: it executed, cancelled or retracted the request.
        let request = unsafe { self.slot(index).request() };
        let completion = Completion {
            cqe: Cqe { user_data: request.sqe.user_data, res: result, flags: 0 },
            data: request.data,
            notify: self.slot(index).notify(),
            slot: index,
        };
        if let Some(posted) = self.completions.post(completion)
            && (posted.wakes() || !posted.notifies().is_empty())
        {
            self.tell(&posted);
        }
    }

    #[inline(never)]
    fn deliver(&self, sink: &dyn Sink, index: u32, result: i32) {
        // SAFETY: as in `post`.
        let request = unsafe { self.slot(index).request() };
        let (data, obj) = (request.data, request.sqe.user_data);
        let event = IoEvent { data, obj, res: i64::from(result), res2: 0 };
        sink.complete(&event);
        // Afterwards, so that whoever finds no such slot finds the completion.
        self.reaped(index);
        self.completions.completed(&event);
        sink.released();
    }

    #[inline(never)]
    fn tell(&self, posted: &Posted) {
        for &(fd, count) in posted.notifies() {
            sys::eventfd_add(fd, u64::from(count));
        }
        if posted.wakes() {
            self.completions.wake();
        }
    }

    /// A completion was reaped: its slot is free, unless its number is still in a ring.
    #[inline]
    fn reaped(&self, index: u32) {
        if self.slot(index).reaped().0 {
            self.free.give(index);
        } else {
            self.reaped_in_rings.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Numbers of cancelled requests that are reaped already may be on their way out of a ring, in the
    /// hands of a thread that is executing: it is not to cost a program its room.
    #[cold]
    fn await_reaped(&self) {
        /// As long as a thread takes to pop them, even if it is preempted meanwhile.
        const POP_US: u64 = 2000;
        let begin = sys::ticks();
        while self.reaped_in_rings.load(Ordering::Relaxed) > 0
            && sys::ticks().wrapping_sub(begin) < POP_US * self.ticks_per_us
        {
            std::thread::yield_now();
        }
    }

    fn ns_since(&self, begin: u64) -> u64 {
        sys::ticks().wrapping_sub(begin).saturating_mul(1000) / self.ticks_per_us
    }

    #[inline(never)]
    fn count_finished(&self, counters: &Counters, index: u32, result: i32, by: By) {
        // SAFETY: started by the caller, which still holds it.
        let request = unsafe { self.slot(index).request() };
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
}
