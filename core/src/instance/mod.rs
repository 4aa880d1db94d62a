//! The inside of a context, used by any number of threads. Its board has the request slots and the
//! completion queue. Its lanes are the ways to execute requests. Its router chooses the lane.
//!
//! [`Context`](crate::Context) is the single-owner interface of an [`Instance`]; front ends use an
//! instance directly. This file has the fields and the constructors. The other files of this folder
//! have the operations: submit, wait (with `help` and `others`), cancel, close, leaving, and
//! `serve` for the engine's threads.
//!
//! A waiter is a thread of the program inside `wait`. A poll is a wait for zero completions. The
//! baton is the right to execute the requests of the inline lane.
#![allow(unsafe_code)]

pub(crate) mod cancel;
pub(crate) mod choice;
mod close;
pub(crate) mod fast;
mod help;
mod leaving;
mod others;
pub(crate) mod reactor;
mod realtime_polls;
mod room;
mod serve;
pub(crate) mod submit;
pub(crate) mod wait;

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::board::{Board, Dispatcher, Parts, Placing, Sink};
use crate::config::{Builder, ConfigError, EngineKind};
use crate::lane::Help;
#[cfg(feature = "faulty")]
use crate::lane::faulty::Faulty;
use crate::lane::lanes::Lanes;
use crate::place::fill;
use crate::placed::Placed;
use crate::process;
use crate::queue::{Completions, Ring};
use crate::router::Router;
use crate::stats::{Counting, Snapshot};
use crate::sys;
use crate::sys::aio::IoEvent;
use crate::threads::tenant::PoolEntry;
use crate::threads::{Threads, ThreadsOf};

/// One asynchronous I/O instance. All methods can be called from any thread.
#[derive(Debug)]
pub struct Instance {
    board: Board,
    lanes: Lanes,
    router: Router,
    engine: EngineKind,
    #[cfg(feature = "faulty")]
    faulty: Option<Faulty>,
    me: Weak<Self>,
    /// Requests may take the fast path.
    fast: bool,
    /// The maximum number of workers that execute this context's requests at a time.
    workers_max: usize,
    /// What the two pools of workers know about this instance. One pool is for work that ends, the
    /// other for work that may wait without end.
    entries: [PoolEntry; 2],
    wishes: Wishes,
    threads: ThreadsOf,
    driven: reactor::Driven,
    /// The threads that collect the kernel's completions if the program does not come to wait.
    harvesters: ThreadsOf,
    /// A placement (`placed/`) is in effect. The program's threads only sleep, and execute nothing.
    is_placed: AtomicBool,
    /// All workers of the placed context are stuck, so the program's threads execute its requests.
    starved: AtomicBool,
    /// Are there requests whose end a poll may expect? The values are in `others.rs`.
    expected: AtomicU32,
    /// When [`Instance::poll`] last checked the kernel's completions, in ticks.
    looked: AtomicU64,
    /// The baton's state after the last nap of a waiter ([`Instance::look_at_holder`]).
    last_view: AtomicU64,
    polls: realtime_polls::Polls,
    /// Set: the next thread that would sleep in [`Instance::wait`] returns instead.
    interrupted: AtomicBool,
    /// The memory of the ring, if a front end gave it: dropped last.
    _memory: Option<Box<dyn RingMemory>>,
}

/// Why a worker was called, besides single requests. `holder`: to take the baton. `patient_holder`:
/// the same, by a worker that may wait without end. `hand_over`: to hand queued requests over to
/// the kernel.
#[derive(Debug, Default)]
struct Wishes {
    holder: AtomicBool,
    patient_holder: AtomicBool,
    hand_over: AtomicBool,
}

/// Memory that a front end gives, and that contains an aio ring. It is kept until no thread uses
/// the ring.
pub trait RingMemory: Send + Sync + std::fmt::Debug {}

impl Instance {
    /// An instance with a completion queue of [`Cqe`](crate::Cqe)s of its own.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new(builder: &Builder) -> Result<Arc<Self>, ConfigError> {
        builder.check()?;
        let completions = Completions::new(Ring::cqes(builder.entries), builder.entries as usize);
        Self::with(builder, completions, builder.entries, None, None)
    }

    /// An instance for a front end that takes completions as they happen. The front end waits with
    /// [`Instance::wait_for`], not with [`Instance::wait`]. There is nothing to reap.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn with_sink(builder: &Builder, sink: Box<dyn Sink>) -> Result<Arc<Self>, ConfigError> {
        builder.check()?;
        Self::with(builder, Completions::without_ring(), builder.entries, None, Some(sink))
    }

    /// An instance whose completion queue is an aio ring in the front end's memory. It has room for
    /// `room` requests; the builder's number of entries is not used.
    ///
    /// # Errors
    /// As [`Builder::build`].
    ///
    /// # Safety
    /// `room` is less than `places`. `head`, `tail` and `places` events are valid until `memory` is
    /// dropped. Nobody else uses them, except as a reader of an aio ring does.
    pub unsafe fn with_aio_ring(
        builder: &Builder,
        memory: Box<dyn RingMemory>,
        head: *const std::sync::atomic::AtomicU32,
        tail: *const std::sync::atomic::AtomicU32,
        events: *mut IoEvent,
        places: u32,
        room: u32,
    ) -> Result<Arc<Self>, ConfigError> {
        // SAFETY: the caller's contract includes that of `Ring::events`.
        let ring = unsafe { Ring::events(head, tail, events, places) };
        let completions = Completions::new(ring, room as usize);
        Self::with(builder, completions, room, Some(memory), None)
    }

    /// Memory for an instance, with its lanes built in it. The weak pointer must not be used until
    /// all other fields are written.
    fn begin(
        builder: &Builder,
        slots: usize,
    ) -> Result<(Arc<MaybeUninit<Self>>, Weak<Self>), ConfigError> {
        let place = Arc::<Self>::new_uninit();
        let at = Arc::as_ptr(&place).cast::<Self>().cast_mut();
        // SAFETY: the field is valid for a write, and aligned. No other thread knows this memory.
        unsafe { Lanes::put(&raw mut (*at).lanes, builder, slots)? };
        let me = Arc::downgrade(&place).into_raw().cast::<Self>();
        // SAFETY: from `into_raw`, and `MaybeUninit<Self>` has the layout of `Self`.
        let me = unsafe { Weak::from_raw(me) };
        Ok((place, me))
    }

    fn with(
        builder: &Builder,
        completions: Completions,
        room: u32,
        memory: Option<Box<dyn RingMemory>>,
        sink: Option<Box<dyn Sink>>,
    ) -> Result<Arc<Self>, ConfigError> {
        let generation = process::enter();
        let slots = room as usize;
        let machine = Placed::look(builder)?;
        let counters = Counting::new(builder.stats);
        let observed = counters.is_some() || machine.is_some();
        let keeps_inline = matches!(builder.engine, EngineKind::Auto | EngineKind::Workers);
        let fast = keeps_inline && sink.is_none() && !observed;
        #[cfg(feature = "faulty")]
        let faulty = builder.faults.map(Faulty::new);
        #[cfg(feature = "faulty")]
        let fast = fast && faulty.is_none();
        let (place, me) = Self::begin(builder, slots)?;
        let dispatcher = || Weak::clone(&me) as Weak<dyn Dispatcher>;
        let placed = machine.map(|machine| {
            let placed = Placed::new(builder, machine, slots, dispatcher());
            Box::new(placed) as Box<dyn Placing>
        });
        let parts = Parts {
            slots,
            completions,
            dispatcher: dispatcher(),
            generation,
            strict: builder.strict,
            counters,
            ticks_per_us: sys::ticks_per_us(),
            sink,
            placed,
        };
        let at = Arc::as_ptr(&place).cast::<Self>().cast_mut();
        // SAFETY: `at` is valid and aligned. No copy of `me` is upgraded before all is written.
        unsafe {
            fill!(at, Self with { lanes } {
                board: Board::new(parts),
                router: Router::new(
                    builder.spare_cpus.unwrap_or(sys::cpus() - 1).min(sys::cpus() - 1),
                ),
                engine: builder.engine,
                #[cfg(feature = "faulty")]
                faulty: faulty,
                me: me,
                fast: fast,
                workers_max: builder.workers_max,
                entries: Default::default(),
                wishes: Wishes::default(),
                threads: ThreadsOf::new(Threads::of_this_process()),
                driven: reactor::Driven::default(),
                harvesters: ThreadsOf::new(Threads::of_this_process()),
                is_placed: AtomicBool::new(false),
                starved: AtomicBool::new(false),
                expected: AtomicU32::new(0),
                looked: AtomicU64::new(0),
                last_view: AtomicU64::new(0),
                polls: realtime_polls::Polls::default(),
                interrupted: AtomicBool::new(false),
                _memory: memory,
            });
        }
        // SAFETY: every field was made: the lanes before, the others here.
        let instance = unsafe { place.assume_init() };
        instance.board.count(|counters| &counters.contexts);
        Dispatcher::note_choice(&*instance);
        Ok(instance)
    }

    /// Can the context be used: is it not closed, and made by this process?
    #[inline]
    pub fn is_usable(&self) -> bool {
        self.board.is_usable()
    }

    /// Did this process make the context, and not the parent of a fork?
    #[inline]
    pub fn is_of_this_process(&self) -> bool {
        self.board.is_of_this_process()
    }

    /// Requests that can be in flight or unreaped at a time.
    pub fn room(&self) -> usize {
        self.board.room()
    }

    /// The counters, if [`Builder::stats`] asked for them.
    pub fn stats(&self) -> Option<Snapshot> {
        self.board.counting()?.read()
    }

    /// The placement in effect, if one was asked for and a request was submitted.
    pub fn placement(&self) -> Option<&crate::affinity::EffectivePlacement> {
        self.board.placed()?.choice()
    }

    /// Is there no worker, and can none be made?
    #[inline]
    fn is_helpless(&self) -> bool {
        self.threads.pool.is_helpless()
    }

    /// What the calling thread offers to execute while it waits. [`Help`] explains the parameters.
    #[inline]
    fn offer(&self, min: u32, max: u32, unbounded: bool, accepts_hanging: bool) -> Help {
        let waiters_come = self.router.waiters.come();
        Help { min, max, unbounded, accepts_hanging, helpless: self.is_helpless(), waiters_come }
    }

    /// Do threads of the program execute and collect nothing? True for a placed context, unless its
    /// workers are stuck or cannot be made.
    #[inline]
    fn stands_by(&self) -> bool {
        self.is_placed.load(Ordering::Relaxed)
            && !self.is_helpless()
            && !self.starved.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
impl Instance {
    pub(crate) fn board(&self) -> &Board {
        &self.board
    }

    pub(crate) fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    pub(crate) fn router(&self) -> &Router {
        &self.router
    }

    pub(crate) fn poller(&self) -> &'static crate::threads::poller::Poller {
        &self.threads.get().poller
    }

    /// Keeps workers, poller and watchdog from this context, which has no requests yet, as if they
    /// never got a CPU. Only the test's threads execute.
    pub(crate) fn leave_alone(&self) {
        self.have_threads(Threads::still());
    }

    /// As [`Instance::leave_alone`], and no thread can be made.
    pub(crate) fn have_no_threads(&self) {
        self.have_threads(Threads::refused());
    }

    fn have_threads(&self, threads: &'static Threads) {
        self.threads.set(threads);
        self.harvesters.set(threads);
    }
}
