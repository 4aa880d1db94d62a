//! The engine of awaited operations: an instance whose completions return to the operations, and
//! limits on what is in flight. Requests beyond the limits are queued in a line.
#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::background::{AtGate, BackgroundGate};
use super::flight::Claim;
use super::interrupt::Interruptible;
use super::wakers::{self, Flights};
use crate::board::Sink;
use crate::config::{Builder, ConfigError, ENTRIES_MAX, EngineKind};
use crate::instance::Instance;
use crate::instance::choice::Choice;
use crate::instance::submit::Entry;
use crate::process::PerProcess;
use crate::router::tuning::AWAITED_ROOM;
use crate::sqe::Sqe;
use crate::sync::Patience;
use crate::sys::aio::IoEvent;
use crate::word::admission::Admission;
use crate::{process, sys};

/// The engine for requests of files, and its limits. A handle, cheap to clone.
///
/// The process has an `Fs`, which is made when it is first needed; [`FsBuilder::build`] makes
/// others. An `Fs` lives as long as one of its handles, files or requests. Dropping the last one
/// never blocks.
#[derive(Clone)]
pub struct Fs(Arc<Shared>);

struct Shared {
    instance: Arc<Instance>,
    line: Arc<Line>,
    detached: Flights,
    /// Operations that were handed over, and have not ended.
    flights: Flights,
    /// No further operation begins.
    is_shut_down: AtomicBool,
    generation: u64,
    inline_max: usize,
}

/// Makes an [`Fs`].
#[derive(Clone, Debug)]
pub struct FsBuilder {
    builder: Builder,
    in_flight: u32,
    bytes_in_flight: u64,
    inline_max: usize,
    background: usize,
}

impl FsBuilder {
    /// The engine; [`EngineKind::Auto`] by default.
    #[must_use]
    pub fn engine(mut self, engine: EngineKind) -> Self {
        self.builder = self.builder.engine(engine);
        self
    }

    /// Threads that may execute requests at a time: 1 to 64, 64 by default. Threads that wait for a
    /// FIFO or a server do not count ([`Builder::workers_max`](crate::Builder::workers_max)).
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.builder = self.builder.workers_max(threads);
        self
    }

    /// The number of operations [in the background](super::Op::background) that compete with the
    /// others at a time. 1 by default, and at most [`FsBuilder::threads`]. 0 is taken as 1.
    #[must_use]
    pub fn background(mut self, operations: usize) -> Self {
        self.background = operations;
        self
    }

    /// Requests that the engine has at a time: 1 to 32,768; 4,096 by default. Further ones are
    /// queued. A request that never ends keeps its place, for example a read of an empty pipe. A
    /// program with thousands of such requests gives them an `Fs` of their own.
    #[must_use]
    pub fn in_flight(mut self, requests: u32) -> Self {
        self.in_flight = requests;
        self
    }

    /// Bytes of buffers that the engine has at a time; 64 MiB by default. While it has fewer, the
    /// next request is started, however large it is.
    #[must_use]
    pub fn bytes_in_flight(mut self, bytes: u64) -> Self {
        self.bytes_in_flight = bytes;
        self
    }

    /// The maximum length in bytes of a read that is tried on the polling thread. 64 KiB by
    /// default: to copy them takes some 7 µs. 0: nothing is tried there.
    #[must_use]
    pub fn inline_max(mut self, bytes: usize) -> Self {
        self.inline_max = bytes;
        self
    }

    /// Delays, reorders, shortens and fails requests: for tests.
    #[cfg(feature = "faulty")]
    #[must_use]
    pub fn faulty(mut self, faults: crate::Faults) -> Self {
        self.builder = self.builder.faulty(faults);
        self
    }

    /// Makes the `Fs`.
    ///
    /// # Errors
    /// A value is out of range, and the error names it. Or the engine that was asked for cannot be
    /// used on this system.
    pub fn build(&self) -> Result<Fs, ConfigError> {
        if !(1..=ENTRIES_MAX / 2).contains(&self.in_flight) {
            return Err(ConfigError {
                field: "in_flight",
                value: self.in_flight.to_string(),
                expected: format!("1 to {}", ENTRIES_MAX / 2),
                errno: libc::EINVAL,
            });
        }
        // The slot of a cancelled request is free a little later than the request has ended, so
        // there are twice as many slots as requests.
        self.of_places(2 * self.in_flight)
    }

    /// Makes an `Fs` with this many slots for requests in the engine.
    pub(super) fn of_places(&self, places: u32) -> Result<Fs, ConfigError> {
        let builder = self.builder.clone().entries(places).kernel_room(AWAITED_ROOM);
        let line = Arc::new(Line {
            waiting: Admission::new(),
            gate: BackgroundGate::new(self.background.min(builder.workers_max).max(1)),
            in_flight: AtomicUsize::new(0),
            in_flight_max: self.in_flight as usize,
            bytes: AtomicU64::new(0),
            bytes_max: self.bytes_in_flight,
        });
        let generation = process::enter();
        let instance = Instance::with_sink(&builder, Box::new(Deliver(Arc::clone(&line))))?;
        Ok(Fs(Arc::new(Shared {
            instance,
            line,
            detached: Flights::default(),
            flights: Flights::default(),
            is_shut_down: AtomicBool::new(false),
            generation,
            inline_max: self.inline_max,
        })))
    }
}

/// The `Fs` of the process, made on first use and never dropped. The child of a fork makes its own.
static GLOBAL: PerProcess<Fs> = PerProcess::new();

impl Fs {
    /// A builder with the defaults.
    pub fn builder() -> FsBuilder {
        FsBuilder {
            builder: Builder::default(),
            in_flight: 4096,
            bytes_in_flight: 64 << 20,
            inline_max: 64 << 10,
            background: 1,
        }
    }

    /// The `Fs` of the process, if it was made.
    pub(super) fn known() -> Option<Self> {
        GLOBAL.current().cloned()
    }

    /// The `Fs` of the process, made now if there is none.
    pub(super) fn global() -> Result<Self, i32> {
        match GLOBAL.current() {
            Some(fs) => Ok(fs.clone()),
            None if process::has_parted() => Err(-libc::EINVAL),
            None => {
                let make = || Self::builder().build().map_err(|error| -error.errno());
                GLOBAL.current_or(make).cloned()
            }
        }
    }

    /// The engine, and what was tried and refused.
    pub fn choice(&self) -> Choice {
        self.0.instance.choice()
    }

    /// The number of requests in the engine, and of queued ones: a snapshot.
    pub fn in_flight(&self) -> (usize, usize) {
        if self.generation() != process::generation() {
            return (0, 0);
        }
        let line = &self.0.line;
        (line.in_flight.load(Ordering::Acquire), line.waiting.len() + line.gate.len())
    }

    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.0.generation
    }

    pub(super) fn instance(&self) -> &Arc<Instance> {
        &self.0.instance
    }

    pub(super) fn detached(&self) -> &Flights {
        &self.0.detached
    }

    pub(super) fn flights(&self) -> &Flights {
        &self.0.flights
    }

    #[inline]
    pub(super) fn is_shut_down(&self) -> bool {
        self.0.is_shut_down.load(Ordering::SeqCst)
    }

    pub(super) fn refuse_further(&self) {
        self.0.is_shut_down.store(true, Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn inline_max(&self) -> usize {
        self.0.inline_max
    }
}

impl fmt::Debug for Fs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fs").field("choice", &self.choice()).finish_non_exhaustive()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.generation != process::generation() {
            return;
        }
        if self.line.in_flight.load(Ordering::Acquire) == 0 && !IS_ENDING.get() {
            return self.instance.close();
        }
        // Requests are in flight, or this thread is ending one. This thread must not block, so
        // another one closes the instance.
        let instance = Arc::clone(&self.instance);
        let kept = Arc::clone(&instance);
        let mask = sys::block_signals();
        let thread = std::thread::Builder::new().name("uringlet-close".into());
        let spawned = thread.stack_size(64 << 10).spawn(move || instance.close());
        sys::restore_signals(mask);
        if spawned.is_err() {
            // No thread can be made. The engine still completes its requests, and is not closed.
            std::mem::forget(kept);
        }
    }
}

/// The functions by which the engine uses a slot (`OpSlot`), for one type of operation.
pub struct OpVtable {
    pub(super) complete: unsafe fn(NonNull<Header>, i32) -> bool,
    pub(super) forget: unsafe fn(NonNull<Header>),
}

/// The first field of a slot, the same for all types of operations. Its address is the request's
/// [`Sqe::user_data`].
pub struct Header {
    vtable: &'static OpVtable,
    fs: Fs,
    entry: UnsafeCell<Entry>,
    bytes: Cell<u64>,
    claim: Claim,
    /// The operation is in the background. While it waits at the gate, `gate_claim` is unclaimed.
    is_background: bool,
    gate_claim: Claim,
    /// The operation was stopped: it makes no further request.
    stopped: AtomicBool,
    /// The operation runs to its end though nobody waits, and is counted as detached.
    detached: AtomicBool,
    /// The call that a worker makes for the operation, and that a cancel may interrupt.
    interruptible: Interruptible,
    /// Counts the operations in flight on the same file, if the operation has one.
    flights: Option<Arc<Flights>>,
}

// SAFETY: `entry` and `bytes` are accessed only by the thread that makes the slot, claims it, or
// gets its request's result. While the slot is queued, they are only read, under the line's lock.
// The other fields can be shared.
unsafe impl Send for Header {}
// SAFETY: as above.
unsafe impl Sync for Header {}

/// The counters in which an operation is counted.
pub(super) struct Counts {
    fs: Fs,
    flights: Option<Arc<Flights>>,
    is_detached: bool,
}

impl Counts {
    /// Counts the operation as ended.
    pub(super) fn end(self) {
        if self.is_detached {
            self.fs.detached().end();
        }
        if let Some(flights) = self.flights {
            flights.end();
        }
        self.fs.flights().end();
    }
}

/// The engine's reference to a slot.
#[derive(Debug)]
struct Handle(NonNull<Header>);

// SAFETY: a slot is `Send` and `Sync`.
unsafe impl Send for Handle {}

impl Handle {
    fn header(&self) -> &Header {
        // SAFETY: the handle is a counted reference, so the slot exists.
        unsafe { self.0.as_ref() }
    }

    /// Drops the reference.
    fn forget(self) {
        // SAFETY: this is the engine's reference, and nothing uses it after this call.
        unsafe { (self.header().vtable.forget)(self.0) };
    }

    /// Ends the request. `Some`: the operation has another request.
    fn complete(self, result: i32) -> Option<Self> {
        // SAFETY: the request is over, and the thread with the handle owns the payload.
        let is_over = unsafe { (self.header().vtable.complete)(self.0, result) };
        if is_over { None } else { Some(self) }
    }

    /// Ends the operation, which makes no further request.
    fn complete_last(self, errno: i32) {
        self.header().stop();
        let more = self.complete(errno);
        debug_assert!(more.is_none(), "stopped, so it is over");
    }
}

impl AtGate for Handle {
    fn gate_claim(&self) -> &Claim {
        &self.header().gate_claim
    }

    fn forget(self) {
        Self::forget(self);
    }
}

impl Header {
    /// Makes the header of an operation, and counts the operation as in flight.
    pub(super) fn new(
        fs: Fs,
        notify: i32,
        vtable: &'static OpVtable,
        flights: Option<Arc<Flights>>,
        is_background: bool,
    ) -> Self {
        fs.flights().begin();
        if let Some(flights) = &flights {
            flights.begin();
        }
        Self {
            vtable,
            fs,
            flights,
            interruptible: Interruptible::default(),
            entry: UnsafeCell::new(Entry { sqe: Sqe::nop(), data: 0, notify }),
            bytes: Cell::new(0),
            claim: Claim::taken(),
            is_background,
            gate_claim: Claim::taken(),
            stopped: AtomicBool::new(false),
            detached: AtomicBool::new(false),
        }
    }

    pub(super) fn fs(&self) -> &Fs {
        &self.fs
    }

    /// Sets the next request. Its result comes with this pointer to the slot.
    ///
    /// # Safety
    /// The pointer is valid for the whole slot, whose payload the caller owns for the engine.
    pub(super) unsafe fn fill(header: NonNull<Self>, sqe: Sqe, bytes: u64) {
        let sqe = sqe.user_data(header.as_ptr() as u64);
        // SAFETY: the caller's contract: no other thread accesses these fields.
        unsafe {
            let header = header.as_ref();
            (*header.entry.get()).sqe = sqe;
            header.bytes.set(bytes);
        }
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Counts the operation as detached. The caller abandons it afterwards.
    pub(super) fn detach(&self) {
        self.fs.detached().begin();
        self.detached.store(true, Ordering::Relaxed);
    }

    /// The counters of the operation, for the thread that ends it. If that thread finds a detached
    /// operation abandoned, it also ends the count of detached ones. Otherwise the thread that has
    /// detached the operation does so.
    pub(super) fn counts(&self, is_abandoned: bool) -> Counts {
        // A thread that detaches the operation sets `detached` before it abandons the operation.
        let is_detached = is_abandoned && self.detached.load(Ordering::Relaxed);
        Counts { fs: self.fs.clone(), flights: self.flights.clone(), is_detached }
    }

    /// Makes a system call on a worker, and repeats it after `EINTR`. Returns a count or a negative
    /// errno. When the operation is stopped, a call that a signal can end returns `ECANCELED`.
    pub(super) fn interruptibly(&self, call: impl FnMut() -> sys::Ret) -> i32 {
        self.interruptible.during(|| self.is_stopped(), call)
    }

    /// Ends a call that can be interrupted, after the operation was stopped.
    pub(super) fn interrupt(&self) {
        self.interruptible.end();
    }

    /// Withdraws a queued request. True: it was withdrawn, so the caller owns the payload now.
    pub(super) fn withdraw(&self) -> bool {
        let line = &self.fs.0.line;
        if self.gate_claim.claim() {
            line.gate.note_withdrawn(|next| line.start(next));
            return true;
        }
        let withdrawn = self.claim.claim();
        if withdrawn {
            line.leave(self.is_background);
            line.note_withdrawn();
            line.gate.made_room(|next| line.start(next));
        }
        withdrawn
    }

    /// Submits the request, or queues it in the line.
    ///
    /// # Safety
    /// The slot's next request is set. The engine takes over a reference to the slot.
    pub(super) unsafe fn start(header: NonNull<Self>) {
        let handle = Handle(header);
        let line = Arc::clone(&handle.header().fs.0.line);
        if handle.header().is_background {
            line.gate.enter(handle, |next| line.start(next));
        } else {
            line.start(handle);
        }
    }
}

/// The requests in flight, within their limits, and the line of requests that wait for room.
#[derive(Debug)]
struct Line {
    waiting: Admission<Handle>,
    /// Operations in the background wait here first.
    gate: BackgroundGate<Handle>,
    /// The number of requests in the engine, and of ended ones whose slots are not free yet.
    in_flight: AtomicUsize,
    in_flight_max: usize,
    /// The number of bytes in the buffers of requests in the engine.
    bytes: AtomicU64,
    bytes_max: u64,
}

impl Line {
    /// Is there room for one more request?
    fn has_place(&self, in_flight: usize) -> bool {
        in_flight < self.in_flight_max
    }

    /// Is there room for a request of this many bytes? It may exceed the limit, if the requests in
    /// flight do not reach the limit. So a request of any size gets room.
    fn has_bytes(&self, in_flight: u64, bytes: u64) -> bool {
        bytes == 0 || in_flight == 0 || in_flight < self.bytes_max
    }

    /// Counts a request as in flight if there is room for it.
    fn admit(&self, handle: &Handle) -> bool {
        let place = |now| self.has_place(now).then_some(now + 1);
        if self.in_flight.fetch_update(Ordering::AcqRel, Ordering::Relaxed, place).is_err() {
            return false;
        }
        let bytes = handle.header().bytes.get();
        let add = |now| self.has_bytes(now, bytes).then_some(now + bytes);
        let is_admitted =
            self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok();
        if !is_admitted {
            // Due to this count, another thread may have found no room. The caller calls `pass_on`.
            self.in_flight.fetch_sub(1, Ordering::Release);
        }
        is_admitted
    }

    fn dismiss(&self, handle: &Handle) {
        self.bytes.fetch_sub(handle.header().bytes.get(), Ordering::Relaxed);
        self.in_flight.fetch_sub(1, Ordering::Release);
    }

    fn start(&self, handle: Handle) {
        if !self.waiting.is_empty() || !self.admit(&handle) {
            handle.header().claim.offer();
            self.waiting.push_back(handle);
        } else if let Some(refused) = self.submit(handle) {
            self.waiting.push_front(refused);
        } else {
            return;
        }
        self.pass_on();
    }

    /// Submits an admitted request. `Some`: the instance has no slot for it, and it is no longer
    /// admitted. Called without a lock: the request may complete at once.
    fn submit(&self, handle: Handle) -> Option<Handle> {
        let header = handle.header();
        if header.is_stopped() {
            self.end_admitted(handle, -libc::ECANCELED);
            return None;
        }
        // SAFETY: this thread has the handle of an admitted request: no other one writes `entry`.
        let entry = unsafe { *header.entry.get() };
        let instance = Arc::clone(&header.fs.0.instance);
        // SAFETY: by the contract of `Steps`, buffers stay valid until the result is there, and
        // paths until this submit, which copies them. An accepted request owns the reference of the
        // handle.
        let submitted = unsafe { instance.submit(&[entry]) };
        match submitted.refused {
            _ if submitted.accepted == 1 => {}
            errno if errno == -libc::EAGAIN => {
                self.dismiss(&handle);
                handle.header().claim.offer();
                return Some(handle);
            }
            errno => self.end_admitted(handle, if errno < 0 { errno } else { -libc::EINVAL }),
        }
        None
    }

    /// Ends an admitted request that the instance does not have.
    fn end_admitted(&self, handle: Handle, errno: i32) {
        self.bytes.fetch_sub(handle.header().bytes.get(), Ordering::Relaxed);
        let (instance, obj) =
            (Arc::clone(&handle.header().fs.0.instance), handle.0.as_ptr() as u64);
        let is_background = handle.header().is_background;
        handle.complete_last(errno);
        self.leave(is_background);
        // A thread may sleep in the instance until this operation ends.
        instance.wake_for(&IoEvent { data: 0, obj, res: i64::from(errno), res2: 0 });
        self.released();
    }

    /// Passes a result to its operation. The slot is free a little later: [`Line::released`].
    fn complete(&self, handle: Handle, result: i32) {
        self.bytes.fetch_sub(handle.header().bytes.get(), Ordering::Relaxed);
        let is_background = handle.header().is_background;
        let Some(again) = handle.complete(result) else { return self.leave(is_background) };
        // The request goes to the front of the line, because its operation has begun. The thread
        // that frees its slot in the engine passes it on.
        again.header().claim.offer();
        self.waiting.push_front(again);
    }

    /// Notes the end of an operation. After one in the background, another may pass the gate.
    fn leave(&self, is_background: bool) {
        if is_background {
            self.gate.leave();
        }
    }

    fn released(&self) {
        self.in_flight.fetch_sub(1, Ordering::Release);
        // `waits_for_room` has a fence, which the gate needs, too.
        if self.waiting.waits_for_room() {
            self.pass_on();
        }
        if !self.gate.is_empty() {
            self.gate.made_room(|next| self.start(next));
        }
    }

    /// Submits as many requests as there is room for.
    fn pass_on(&self) {
        let (mut gone, mut patience) = (Vec::new(), Patience::default());
        self.waiting.run(|| self.pass_on_now(&mut gone), || self.first_may_go(&mut patience));
        gone.into_iter().for_each(Handle::forget);
    }

    /// The part of [`Line::pass_on`] that one thread at a time executes. Withdrawn requests go to
    /// `gone`. False: a request waits, and there is no room for it.
    fn pass_on_now(&self, gone: &mut Vec<Handle>) -> bool {
        loop {
            let mut is_admitted = false;
            let next = self.waiting.take_if(|first| {
                is_admitted = self.admit(first);
                is_admitted || first.header().claim.is_claimed()
            });
            let next = match next {
                Ok(next) => next,
                Err(is_empty) => return is_empty,
            };
            let was_withdrawn = !next.header().claim.claim();
            if was_withdrawn {
                if is_admitted {
                    self.dismiss(&next);
                }
                gone.push(next);
            } else if let Some(refused) = self.submit(next) {
                self.waiting.push_front(refused);
                self.waiting.passed(false);
                return false;
            }
            self.waiting.passed(was_withdrawn);
        }
    }

    /// Can [`Line::pass_on_now`] go on? Also true if no request waits, or the first was withdrawn.
    fn first_may_go(&self, patience: &mut Patience) -> bool {
        let in_flight = self.in_flight.load(Ordering::Acquire);
        let first = self.waiting.first(|first| {
            let header = first.header();
            let bytes = self.bytes.load(Ordering::Relaxed);
            let has_room = self.has_place(in_flight) && self.has_bytes(bytes, header.bytes.get());
            (has_room, header.claim.is_claimed(), header.fs.0.instance.has_room())
        });
        match first {
            None | Some((_, true, _) | (true, _, true)) => true,
            Some((true, false, false)) if in_flight == 0 => {
                // Slots of cancelled requests will be free soon, and no thread will report it.
                patience.wait();
                true
            }
            Some(_) => false,
        }
    }

    /// Counts a request that was withdrawn from the line, and passes the next one on.
    fn note_withdrawn(&self) {
        let gone = self.waiting.note_withdrawn(|handle| handle.header().claim.is_claimed());
        gone.into_iter().for_each(Handle::forget);
        self.pass_on();
    }
}

thread_local! {
    /// The thread is ending a request.
    static IS_ENDING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body` with the thread marked as ending a request.
fn ending(body: impl FnOnce()) {
    let before = IS_ENDING.replace(true);
    body();
    IS_ENDING.set(before);
}

#[derive(Debug)]
struct Deliver(Arc<Line>);

impl Sink for Deliver {
    unsafe fn complete(&self, event: &IoEvent) {
        let header = NonNull::new(event.obj as *mut Header).expect("a header's address");
        ending(|| self.0.complete(Handle(header), event.res as i32));
    }

    fn released(&self) {
        ending(|| self.0.released());
    }

    fn together(&self, harvest: &mut dyn FnMut()) {
        wakers::after(harvest);
    }

    fn begins_streams_at_once(&self) -> bool {
        false
    }
}
