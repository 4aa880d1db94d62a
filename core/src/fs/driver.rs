//! Where operations go: an instance whose completions come back to them, and the limits on what is
//! in flight at a time, before which requests stand in line.
#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::collections::VecDeque;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::flight::Claim;
use super::wakers;
use crate::board::Sink;
use crate::config::{Builder, ConfigError, ENTRIES_MAX, EngineKind};
use crate::instance::Instance;
use crate::instance::choice::Choice;
use crate::instance::submit::Entry;
use crate::router::tuning::AWAITED_ROOM;
use crate::sqe::Sqe;
use crate::sync::{Patience, lock};
use crate::sys::aio::IoEvent;
use crate::{process, sys};

/// Where the requests of files go: an engine, and limits. A handle, cheap to clone.
///
/// One of them is made for the process when it is first needed; [`Fs::builder`] makes others. It
/// lasts as long as a handle, a file or a request of it. Dropping the last one never blocks.
#[derive(Clone)]
pub struct Fs(Arc<Shared>);

struct Shared {
    instance: Arc<Instance>,
    line: Arc<Line>,
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
}

impl FsBuilder {
    /// The engine; [`EngineKind::Auto`] by default.
    #[must_use]
    pub fn engine(mut self, engine: EngineKind) -> Self {
        self.builder = self.builder.engine(engine);
        self
    }

    /// Threads that may execute requests at a time: 1 to 64, which is the default. Those that wait
    /// for a FIFO or a server do not count ([`Builder::workers_max`](crate::Builder::workers_max)).
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.builder = self.builder.workers_max(threads);
        self
    }

    /// Requests that the engine has at a time: 1 to 32,768; 4,096 by default. Any further ones
    /// stand in line.
    #[must_use]
    pub fn in_flight(mut self, requests: u32) -> Self {
        self.in_flight = requests;
        self
    }

    /// Bytes of buffers that the engine has at a time; 64 MiB by default. A larger request goes
    /// alone.
    #[must_use]
    pub fn bytes_in_flight(mut self, bytes: u64) -> Self {
        self.bytes_in_flight = bytes;
        self
    }

    /// The most bytes that a read may have to be tried on the polling thread; 64 KiB by default,
    /// which take some 7 µs to copy. 0: nothing is tried there.
    #[must_use]
    pub fn inline_max(mut self, bytes: usize) -> Self {
        self.inline_max = bytes;
        self
    }

    /// Has requests delayed, reordered, shortened and failed: for tests.
    #[cfg(feature = "faulty")]
    #[must_use]
    pub fn faulty(mut self, faults: crate::Faults) -> Self {
        self.builder = self.builder.faulty(faults);
        self
    }

    /// Makes it.
    ///
    /// # Errors
    /// A value out of its range, named; an engine that was asked for and is refused here.
    pub fn build(&self) -> Result<Fs, ConfigError> {
        if !(1..=ENTRIES_MAX / 2).contains(&self.in_flight) {
            return Err(ConfigError {
                field: "in_flight",
                value: self.in_flight.to_string(),
                expected: format!("1 to {}", ENTRIES_MAX / 2),
                errno: libc::EINVAL,
            });
        }
        // Places of cancelled requests come back a little later: there are twice as many.
        self.of_places(2 * self.in_flight)
    }

    /// With so many places for requests of the engine.
    pub(super) fn of_places(&self, places: u32) -> Result<Fs, ConfigError> {
        let builder = self.builder.clone().entries(places).kernel_room(AWAITED_ROOM);
        let line = Arc::new(Line {
            waiting: Mutex::default(),
            bytes: AtomicU64::new(0),
            in_flight_max: self.in_flight as usize,
            bytes_max: self.bytes_in_flight,
        });
        let generation = process::enter();
        let instance = Instance::with_sink(&builder, Box::new(Deliver(Arc::clone(&line))))?;
        Ok(Fs(Arc::new(Shared { instance, line, generation, inline_max: self.inline_max })))
    }
}

/// That of the process, made on first use and never dropped. A child of a fork makes its own.
static GLOBAL: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());

impl Fs {
    /// A builder with the defaults.
    pub fn builder() -> FsBuilder {
        FsBuilder {
            builder: Builder::default(),
            in_flight: 4096,
            bytes_in_flight: 64 << 20,
            inline_max: 64 << 10,
        }
    }

    /// That of the process.
    pub(super) fn global() -> Result<Self, i32> {
        loop {
            let seen = GLOBAL.load(Ordering::Acquire);
            if !seen.is_null() {
                // SAFETY: leaked below, with a reference that is never given back.
                let fs = unsafe {
                    Arc::increment_strong_count(seen);
                    Self(Arc::from_raw(seen))
                };
                let generation = process::generation();
                if fs.generation() == generation {
                    return Ok(fs);
                }
                if process::has_parted() {
                    return Err(-libc::EINVAL);
                }
            }
            // No lock: a thread that the child of a fork does not have may hold it for ever.
            let new = Self::builder().build().map_err(|error| -error.errno())?;
            let raw = Arc::into_raw(Arc::clone(&new.0)).cast_mut();
            if GLOBAL.compare_exchange(seen, raw, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return Ok(new);
            }
            // SAFETY: the reference from above, which nobody has seen.
            drop(unsafe { Arc::from_raw(raw) });
        }
    }

    /// The engine that executes what is not done on the spot, and what was tried and refused.
    pub fn choice(&self) -> Choice {
        self.0.instance.choice()
    }

    /// Requests that the engine has, and those that stand in line: a snapshot.
    pub fn in_flight(&self) -> (usize, usize) {
        if self.generation() != process::generation() {
            return (0, 0);
        }
        let waiting = self.0.line.lock();
        (waiting.in_flight, waiting.line.len().saturating_add_signed(-waiting.withdrawn))
    }

    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.0.generation
    }

    pub(super) fn instance(&self) -> &Arc<Instance> {
        &self.0.instance
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
        if self.line.lock().in_flight == 0 && !IS_ENDING.get() {
            return self.instance.close();
        }
        // Operations that were dropped are in flight, or this thread is ending one: it does not
        // wait.
        let instance = Arc::clone(&self.instance);
        let kept = Arc::clone(&instance);
        let mask = sys::block_signals();
        let thread = std::thread::Builder::new().name("uringlet-close".into());
        let spawned = thread.stack_size(64 << 10).spawn(move || instance.close());
        sys::restore_signals(mask);
        if spawned.is_err() {
            // There are no threads to be had. The engine ends what it has, and nobody closes it.
            std::mem::forget(kept);
        }
    }
}

/// What a slot can do, whatever its operation.
pub(super) struct Verbs {
    pub(super) complete: unsafe fn(NonNull<Header>, i32) -> bool,
    pub(super) forget: unsafe fn(NonNull<Header>),
}

/// The part of a slot that knows nothing of its operation. Its address is the request's
/// [`Sqe::user_data`].
pub(super) struct Header {
    verbs: &'static Verbs,
    fs: Fs,
    entry: UnsafeCell<Entry>,
    bytes: Cell<u64>,
    claim: Claim,
    /// No further request is to be made.
    stopped: AtomicBool,
}

// SAFETY: the cells are the engine's side's: of whoever made the slot, then of whoever has claimed
// it or is told of its request's end. The rest is atomics and an `Arc`.
unsafe impl Send for Header {}
// SAFETY: as above.
unsafe impl Sync for Header {}

/// A reference of the engine's.
#[derive(Debug)]
struct Handle(NonNull<Header>);

// SAFETY: a slot is `Send`.
unsafe impl Send for Handle {}

impl Handle {
    fn header(&self) -> &Header {
        // SAFETY: a reference keeps the slot.
        unsafe { self.0.as_ref() }
    }

    /// Gives the reference back.
    fn forget(self) {
        // SAFETY: the engine's reference, used up.
        unsafe { (self.header().verbs.forget)(self.0) };
    }

    /// Ends the request. `Some`: the operation has another one.
    fn complete(self, result: i32) -> Option<Self> {
        // SAFETY: the request is over, and whoever has the handle is the engine's side.
        let is_over = unsafe { (self.header().verbs.complete)(self.0, result) };
        if is_over { None } else { Some(self) }
    }

    /// Ends the operation, which makes no further request.
    fn complete_last(self, errno: i32) {
        self.header().stop();
        let more = self.complete(errno);
        debug_assert!(more.is_none(), "stopped, so it is over");
    }
}

impl Header {
    pub(super) fn new(fs: Fs, notify: i32, verbs: &'static Verbs) -> Self {
        Self {
            verbs,
            fs,
            entry: UnsafeCell::new(Entry { sqe: Sqe::nop(), data: 0, notify }),
            bytes: Cell::new(0),
            claim: Claim::taken(),
            stopped: AtomicBool::new(false),
        }
    }

    pub(super) fn fs(&self) -> &Fs {
        &self.fs
    }

    /// Sets the next request, by the engine's side.
    ///
    /// # Safety
    /// The header of a slot, as a pointer to the whole of that: it comes back with the result.
    pub(super) unsafe fn fill(header: NonNull<Self>, sqe: Sqe, bytes: u64) {
        let sqe = sqe.user_data(header.as_ptr() as u64);
        // SAFETY: the caller's contract, and the engine's side has the cell to itself.
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

    /// Takes it out of the line, if it stands there.
    pub(super) fn withdraw(&self) -> bool {
        let withdrawn = self.claim.claim();
        if withdrawn {
            self.fs.0.line.note_withdrawn();
        }
        withdrawn
    }

    /// Submits it, or has it stand in line.
    ///
    /// # Safety
    /// The header of a slot, with a reference for the engine, whose next request is set.
    pub(super) unsafe fn start(header: NonNull<Self>) {
        let handle = Handle(header);
        let line = Arc::clone(&handle.header().fs.0.line);
        line.start(handle);
    }
}

/// What is in flight, and what stands in line for that.
#[derive(Debug)]
struct Line {
    waiting: Mutex<Waiting>,
    /// Of buffers in flight.
    bytes: AtomicU64,
    in_flight_max: usize,
    bytes_max: u64,
}

#[derive(Debug, Default)]
struct Waiting {
    /// In the order in which they came.
    line: VecDeque<Handle>,
    /// As many of those were withdrawn; briefly one less for each that is about to be counted.
    withdrawn: isize,
    in_flight: usize,
    /// A thread is passing them on.
    is_passing: bool,
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.waiting)
    }

    fn has_room(&self, waiting: &Waiting, bytes: u64) -> bool {
        let in_flight = self.bytes.load(Ordering::Relaxed);
        waiting.in_flight == 0
            || waiting.in_flight < self.in_flight_max
                && in_flight.saturating_add(bytes) <= self.bytes_max
    }

    fn admit(&self, waiting: &mut Waiting, handle: &Handle) {
        waiting.in_flight += 1;
        self.bytes.fetch_add(handle.header().bytes.get(), Ordering::Relaxed);
    }

    fn dismiss(&self, waiting: &mut Waiting, handle: &Handle) {
        waiting.in_flight -= 1;
        self.bytes.fetch_sub(handle.header().bytes.get(), Ordering::Relaxed);
    }

    fn start(&self, handle: Handle) {
        let mut waiting = self.lock();
        if !waiting.line.is_empty() || !self.has_room(&waiting, handle.header().bytes.get()) {
            handle.header().claim.offer();
            waiting.line.push_back(handle);
            return;
        }
        self.admit(&mut waiting, &handle);
        drop(waiting);
        // Under no lock: it may complete here and now.
        if let Some(refused) = self.submit(handle) {
            let mut waiting = self.lock();
            self.dismiss(&mut waiting, &refused);
            refused.header().claim.offer();
            waiting.line.push_front(refused);
            self.pass_on(waiting);
        }
    }

    /// Submits one that was admitted. `Some`: the instance has no place for it.
    fn submit(&self, handle: Handle) -> Option<Handle> {
        let header = handle.header();
        if header.is_stopped() {
            self.end_admitted(handle, -libc::ECANCELED);
            return None;
        }
        // SAFETY: the engine's side is this thread.
        let entry = unsafe { *header.entry.get() };
        let instance = Arc::clone(&header.fs.0.instance);
        // SAFETY: the operation's buffers stay in their place until the result is there, and its
        // paths are copied now: `Steps`. Once accepted, the handle is the instance's.
        let submitted = unsafe { instance.submit(&[entry]) };
        match submitted.refused {
            _ if submitted.accepted == 1 => {}
            errno if errno == -libc::EAGAIN => return Some(handle),
            errno => self.end_admitted(handle, if errno < 0 { errno } else { -libc::EINVAL }),
        }
        None
    }

    /// Ends one that was admitted and is not with the instance.
    fn end_admitted(&self, handle: Handle, errno: i32) {
        self.dismiss(&mut self.lock(), &handle);
        handle.complete_last(errno);
    }

    /// A request has ended. Its place is free a little later: [`Line::released`].
    fn complete(&self, handle: Handle, result: i32) {
        self.bytes.fetch_sub(handle.header().bytes.get(), Ordering::Relaxed);
        if let Some(again) = handle.complete(result) {
            // At the front, as it has begun. Whoever frees its place passes it on.
            again.header().claim.offer();
            self.lock().line.push_front(again);
        }
    }

    fn released(&self) {
        let mut waiting = self.lock();
        waiting.in_flight -= 1;
        self.pass_on(waiting);
    }

    /// Submits what there is room for. One thread at a time; whatever changes meanwhile it sees
    /// before it ends.
    fn pass_on<'a>(&'a self, mut waiting: MutexGuard<'a, Waiting>) {
        if waiting.line.is_empty() || waiting.is_passing {
            return;
        }
        waiting.is_passing = true;
        let mut gone = Vec::new();
        let mut patience = Patience::default();
        while let Some(first) = waiting.line.front() {
            if !self.has_room(&waiting, first.header().bytes.get()) {
                break;
            }
            let Some(first) = waiting.line.pop_front() else { break };
            if !first.header().claim.claim() {
                waiting.withdrawn -= 1;
                gone.push(first);
                continue;
            }
            self.admit(&mut waiting, &first);
            drop(waiting);
            let refused = self.submit(first);
            waiting = self.lock();
            if let Some(refused) = refused {
                self.dismiss(&mut waiting, &refused);
                refused.header().claim.offer();
                waiting.line.push_front(refused);
                if waiting.in_flight > 0 {
                    // Whoever frees a place comes here.
                    break;
                }
                // Places of cancelled requests are about to be free.
                drop(waiting);
                patience.wait();
                waiting = self.lock();
            }
        }
        waiting.is_passing = false;
        drop(waiting);
        gone.into_iter().for_each(Handle::forget);
    }

    /// One of those that stand in line was withdrawn. Now and then such are cleared out.
    fn note_withdrawn(&self) {
        /// Fewer are not worth it.
        const FEW: isize = 64;
        let mut waiting = self.lock();
        waiting.withdrawn += 1;
        if waiting.withdrawn < FEW || waiting.withdrawn < waiting.line.len() as isize / 2 {
            return;
        }
        let line = std::mem::take(&mut waiting.line);
        let (gone, kept): (Vec<_>, VecDeque<_>) = {
            let mut gone = Vec::with_capacity(waiting.withdrawn as usize);
            let mut kept = VecDeque::with_capacity(line.len() / 2);
            for handle in line {
                match handle.header().claim.is_claimed() {
                    true => gone.push(handle),
                    false => kept.push_back(handle),
                }
            }
            (gone, kept)
        };
        waiting.withdrawn -= gone.len() as isize;
        waiting.line = kept;
        drop(waiting);
        gone.into_iter().for_each(Handle::forget);
    }
}

thread_local! {
    /// The thread is ending a request.
    static IS_ENDING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body` with the thread known to be ending a request.
fn ending(body: impl FnOnce()) {
    let before = IS_ENDING.replace(true);
    body();
    IS_ENDING.set(before);
}

#[derive(Debug)]
struct Deliver(Arc<Line>);

impl Sink for Deliver {
    fn complete(&self, event: &IoEvent) {
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
