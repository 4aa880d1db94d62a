//! The inside of a context: slots, completion queue and engine, for any number of threads.
//!
//! [`Context`](crate::Context) is its single-owner face; front ends hold it directly. What it is made of, and how it is
//! made, stands here; what can be done with it stands in `instance/`.
#![allow(unsafe_code)]

mod cancel;
mod close;
mod fast;
mod finish;
mod polls;
mod submit;
mod wait;

use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

pub use self::cancel::{Canceled, InFlight};
pub use self::fast::Transfer;
pub(crate) use self::finish::By;
pub use self::finish::Sink;
pub use self::submit::{Entry, Place, SubmitSteps, Submitted, TOLD_OTHERWISE};
pub(crate) use self::wait::without_taker;
pub use self::wait::{Taker, Waited, Wish};
use crate::affinity::placed::Placed;
use crate::config::{Builder, ConfigError};
use crate::descriptor::ticks_per_us;
use crate::engine::Engine;
use crate::own::Copied;
use crate::process;
use crate::queue::{Completions, IoEvent, Ring};
use crate::request::{FreeSlots, Slot};
use crate::stats::{Counters, Counting, Snapshot};
use crate::sys;
use crate::zeros::Zeros;

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
    /// Requests that were submitted while others were in flight.
    numbered: AtomicU64,
    /// Slots of cancelled requests that are free once their numbers have left a ring.
    reaped_in_rings: AtomicIsize,
    strict: bool,
    /// Requests may take the fast path.
    fast: bool,
    counters: Option<Counting>,
    ticks_per_us: u64,
    /// Takes the completions, if a front end wants them at once.
    sink: Option<Box<dyn Sink>>,
    /// Writes that the program's threads execute may raise a signal that no thread of the program
    /// expects (SIGXFSZ): there is a limit on the size of files.
    is_limited: bool,
    /// When [`Instance::poll`] last looked at what the kernel has, in ticks.
    looked: AtomicU64,
    polls: polls::Polls,
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
    /// With a completion queue of [`Cqe`](crate::Cqe)s of its own.
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
        let counters = Counting::new(builder.stats);
        let observed = counters.is_some() || machine.is_some();
        let fast = engine.has_fast_path() && sink.is_none() && !observed;
        let instance = Arc::new_cyclic(|me| Self {
            slots: Zeros::new(count),
            free: FreeSlots::new(count),
            completions,
            engine,
            generation,
            closed: AtomicBool::new(false),
            numbered: AtomicU64::new(0),
            reaped_in_rings: AtomicIsize::new(0),
            strict: builder.strict,
            fast,
            counters,
            ticks_per_us: ticks_per_us(),
            is_limited: sink.is_some() && sys::has_file_limit(),
            sink,
            looked: AtomicU64::new(0),
            polls: polls::Polls::default(),
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

    /// Destroyed. Asked with a slot in hand, the answer no means that who destroys it waits for the slot.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Requests that can be in flight or unreaped at a time.
    pub fn room(&self) -> usize {
        self.slots.len()
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

    /// A place in the order of submission: for one that is `alone`, the first.
    #[inline]
    pub(crate) fn next_number(&self, alone: bool) -> u64 {
        if alone { 0 } else { self.numbered.fetch_add(1, Ordering::Relaxed) + 1 }
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

    /// Is this write, if a thread of the program executes it, to be kept from raising a signal there?
    #[inline]
    pub(crate) fn is_to_be_quiet(&self, stream: bool) -> bool {
        self.is_limited || stream && self.has_sink()
    }

    /// Completions go to a [`Sink`].
    pub(crate) fn has_sink(&self) -> bool {
        self.sink.is_some()
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

    fn ns_since(&self, begin: u64) -> u64 {
        sys::ticks().wrapping_sub(begin).saturating_mul(1000) / self.ticks_per_us
    }
}
