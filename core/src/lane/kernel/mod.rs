//! The kernel lane: requests that the kernel executes asynchronously, handed over in batches.
//!
//! A submitter only queues requests. The thread that comes to wait hands all of them over with one
//! system call, and sleeps inside the kernel's own wait. If the program does not come, a worker
//! hands over, and the poller's thread collects. One thread at a time has the right to hand over,
//! and one the right to collect. README.md argues that no completion is lost.
#![allow(unsafe_code)]

mod backend;
mod batch;
mod harvest;
mod io_uring;
pub(crate) mod linux_aio;
mod posix_aio;

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use self::backend::{Backend, Tell};
use self::batch::together;
use self::harvest::By;
use super::{Lane, Progress, Stuck, Withdraw, withdraw_from};
use crate::board::{Board, Executor, without_taker};
use crate::config::{Builder, ConfigError, EngineKind};
use crate::descriptor;
use crate::eventfd::ProgramEventfd;
use crate::exec;
use crate::probe::{self, KERNEL_ENGINES, Refusal};
use crate::queue::IndexRing;
use crate::request::{BATCH, Batch, Kind, Route, Started};
use crate::router::tuning::{AT_ONCE_MAX, FRESH_EVERY, SLOW_SUBMIT_US};
use crate::router::{Call, KernelScope, facts};
use crate::sync::lock;
use crate::sys;
use crate::word::baton::{Baton, Release};
use crate::word::reaper::Reaper;

/// [`KernelLane::depth`] counts sixteenths of a request. Each batch lowers the depth by a sixteenth
/// of its value, but not below the current number of requests.
const DEPTH_PARTS: usize = 16;

/// How a thread hands over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandOver {
    /// No thread of the program comes to collect.
    pub(crate) nobody_comes: bool,
    /// The thread is a submitter, so it must not wait in the kernel.
    pub(crate) at_once: bool,
}

/// An io_uring has room for at least this many requests (or for all slots, if they are fewer), even
/// if `Builder::kernel_room` is less. A smaller ring takes no less of the host's resources.
const RING_LEAST: usize = 128;

/// The kernel lane of one context.
#[derive(Debug)]
pub(crate) struct KernelLane {
    scope: KernelScope,
    queue: IndexRing,
    /// The right to hand over queued requests.
    hand_over: Baton,
    backend: OnceLock<Option<Box<dyn Backend>>>,
    refusals: Mutex<Vec<(EngineKind, Refusal)>>,
    slots: usize,
    room: usize,
    in_flight: AtomicUsize,
    reaper: Reaper,
    handed: AtomicU32,
    /// Incremented each time that completions were collected.
    collected: AtomicU32,
    /// Threads that are handing over now.
    submitting: AtomicU32,
    /// The poller watches [`Backend::events`].
    told: AtomicBool,
    /// Requests have named an eventfd: their program may sleep on it, and not come to wait.
    notifies: AtomicBool,
    /// The eventfd that the context has made for its program; -1 for none ([`Tell::program`]).
    program: ProgramEventfd,
    /// Requests that do not name that eventfd were handed over since it was made.
    others: AtomicBool,
    /// Of the interfaces that may be used, io_uring is tried first.
    prefers_ring: AtomicBool,
    /// A file does not support RWF_NOWAIT, so submitters do not hand over themselves any more.
    only_waits: AtomicBool,
    /// The recent maximum of requests that were queued or in flight, in sixteenths of a request.
    depth: AtomicUsize,
    /// Requests were handed over without waiting, so the kernel may execute only a part of one.
    did_at_once: AtomicBool,
}

/// `slots`: the context's number of slots. `room`: the maximum number of requests in the kernel.
fn make(
    kind: EngineKind,
    slots: usize,
    room: usize,
    fd_pool: usize,
) -> Result<Box<dyn Backend>, i32> {
    match kind {
        EngineKind::LinuxAio => Ok(Box::new(linux_aio::LinuxAio::new(slots, room)?)),
        EngineKind::IoUring => Ok(Box::new(io_uring::Uring::new(slots.min(room.max(RING_LEAST)))?)),
        EngineKind::PosixAio => Ok(Box::new(Arc::new(posix_aio::PosixAio::new(slots, fd_pool)?))),
        other => unreachable!("{other} is not a kernel interface"),
    }
}

impl KernelLane {
    /// # Errors
    /// The builder's engine is a kernel interface, which the machine refuses.
    pub(crate) fn new(builder: &Builder, slots: usize) -> Result<Self, ConfigError> {
        let backend = OnceLock::new();
        let room = slots.min(builder.kernel_room as usize);
        let scope = match builder.engine {
            EngineKind::Auto => KernelScope::Direct,
            EngineKind::Workers | EngineKind::Null => KernelScope::Nothing,
            kind => {
                let made =
                    make(kind, slots, room, builder.fd_pool).map_err(|errno| ConfigError {
                        field: "engine",
                        value: kind.name().to_owned(),
                        expected: format!(
                            "an engine that this machine allows ({})",
                            probe::explain(kind, -errno)
                        ),
                        errno: -errno,
                    })?;
                backend.set(Some(made)).expect("just made");
                KernelScope::Everything
            }
        };
        let queued = if scope == KernelScope::Nothing { 0 } else { slots };
        Ok(Self {
            scope,
            queue: IndexRing::new(queued),
            hand_over: Baton::new(),
            backend,
            refusals: Mutex::default(),
            slots,
            room,
            in_flight: AtomicUsize::new(0),
            reaper: Reaper::new(),
            handed: AtomicU32::new(0),
            collected: AtomicU32::new(0),
            submitting: AtomicU32::new(0),
            told: AtomicBool::new(false),
            notifies: AtomicBool::new(false),
            program: ProgramEventfd::new(),
            others: AtomicBool::new(false),
            prefers_ring: AtomicBool::new(false),
            only_waits: AtomicBool::new(false),
            depth: AtomicUsize::new(0),
            did_at_once: AtomicBool::new(false),
        })
    }

    /// The requests that this lane takes now.
    #[inline]
    pub(crate) fn scope(&self) -> KernelScope {
        match self.backend.get() {
            Some(None) => KernelScope::Nothing,
            _ => self.scope,
        }
    }

    /// The interface in use, if one was needed yet.
    pub(crate) fn kind(&self) -> Option<EngineKind> {
        Some(self.backend.get()?.as_ref()?.kind())
    }

    /// Are cached requests executed inside the call that hands them over (io_submit(2))?
    pub(crate) fn executes_what_is_cached(&self) -> bool {
        self.scope == KernelScope::Everything && self.kind() == Some(EngineKind::LinuxAio)
    }

    /// The interfaces that were tried and refused.
    pub(crate) fn refusals(&self) -> Vec<(EngineKind, Refusal)> {
        lock(&self.refusals).clone()
    }

    /// The interface, made now if none was needed before. `None`: all were refused.
    fn backend(&self, board: &Board) -> Option<&dyn Backend> {
        let known = self.backend.get().is_some();
        let made = self.backend.get_or_init(|| {
            let _whole = sys::Uncancelable::new();
            let mut kinds = KERNEL_ENGINES;
            if self.prefers_ring.load(Ordering::Relaxed) {
                kinds.sort_by_key(|&kind| kind != EngineKind::IoUring);
            }
            for kind in kinds {
                match make(kind, self.slots, self.room, 1) {
                    Ok(backend) => return Some(backend),
                    Err(errno) => lock(&self.refusals).push((kind, probe::explain(kind, -errno))),
                }
            }
            None
        });
        if !known && let Some(owner) = board.dispatcher() {
            owner.note_choice();
        }
        made.as_deref()
    }

    /// Queues requests. True if a thread is handing over now, which sees the requests.
    #[inline]
    pub(crate) fn push(&self, slots: &[u32]) -> bool {
        self.queue.push(slots);
        self.hand_over.announce().is_held()
    }

    /// Is nothing queued and nothing in flight? A hint.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) == 0 && self.queue.is_empty()
    }

    /// Requests that wait to be handed over.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Takes the oldest request, for the calling thread to execute it in place of the kernel.
    pub(crate) fn pop<'a>(&self, board: &'a Board) -> Option<Started<'a>> {
        board.pop_started(&self.queue)
    }

    /// Closes the interface, which frees scarce resources of the host. The context is destroyed,
    /// and nothing is in flight. No thread collects after this.
    pub(crate) fn close(&self) {
        if let Some((reaping, backend)) = self.try_reap() {
            backend.close();
            // No thread gets the right to collect again.
            std::mem::forget(reaping);
        }
    }

    /// Requests that the kernel has.
    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// Could the calling thread help? Yes if requests were announced, and no thread hands them
    /// over. With `collects`, also if requests are in flight, and no thread collects their
    /// completions.
    pub(crate) fn has_help_to_offer(&self, collects: bool) -> bool {
        let view = self.hand_over.view();
        self.queued() > 0 && view.has_work() && !view.is_held()
            || collects && self.in_flight() > 0 && self.reaper.is_free()
    }

    /// May a submitter hand over by itself? It may not before the kernel's interface is set up,
    /// because the set-up may wait. It may not hand over cached requests: without waiting, the
    /// kernel reads only what is in memory.
    #[inline]
    pub(crate) fn can_at_once(&self) -> bool {
        self.scope == KernelScope::Direct
            && !self.only_waits.load(Ordering::Relaxed)
            && self.backend.get().and_then(Option::as_deref).is_some_and(Backend::submits_at_once)
    }

    /// Does the program keep few requests in flight? If there are many, a worker hands several of
    /// them over in one call.
    #[inline]
    pub(crate) fn is_shallow(&self) -> bool {
        self.depth.load(Ordering::Relaxed) <= AT_ONCE_MAX * DEPTH_PARTS
    }

    /// Was the interface made, or can none be made?
    pub(crate) fn is_made(&self) -> bool {
        self.backend.get().is_some()
    }

    /// The eventfd that signals completions.
    pub(crate) fn events(&self) -> Option<RawFd> {
        let backend = self.backend.get()?.as_deref()?;
        Some(backend.events()).filter(|&fd| fd >= 0)
    }

    /// Hands over queued requests while there is room. Requests that the kernel refuses go to the
    /// pool lane.
    pub(crate) fn hand_over(&self, board: &Board, how: HandOver) {
        let Some(mut turn) = self.hand_over.take() else { return };
        loop {
            while let Some(batch) = self.next_batch(board) {
                match self.backend(board) {
                    Some(backend) => self.hand_over_batch(board, backend, batch, how),
                    None => batch.for_each(|request| {
                        board.forward(request, Route::Pool, Executor::Kernel);
                    }),
                }
                match self.hand_over.proceed(turn) {
                    Some(next) => turn = next,
                    // The call took long: the watchdog has freed the right for another thread.
                    None => return,
                }
            }
            match self.hand_over.release(turn) {
                // Requests were announced meanwhile: look once more.
                Release::Work(same) => match self.hand_over.look_again(same) {
                    Some(next) => turn = next,
                    None => return,
                },
                Release::Free | Release::Lost => return,
            }
        }
    }

    /// Started requests from the queue, as many as there is room for; `None` if there are none.
    fn next_batch<'a>(&self, board: &'a Board) -> Option<Batch<'a>> {
        let room = self.backend.get().and_then(Option::as_ref).map_or(self.room, |b| b.room());
        let most = room.saturating_sub(self.in_flight()).min(BATCH);
        let mut batch = board.batch();
        while batch.len() < most
            && let Some(request) = board.pop_started(&self.queue)
        {
            batch.push(request);
        }
        (!batch.is_empty()).then_some(batch)
    }

    fn hand_over_batch(
        &self,
        board: &Board,
        backend: &dyn Backend,
        mut batch: Batch<'_>,
        how: HandOver,
    ) {
        let count = batch.len();
        let first = batch.requests().iter().next();
        let (fd, write) = first.map_or((-1, false), |(_, it)| (it.sqe.fd, it.kind == Kind::Write));
        let (before, tell) = self.begin_to_hand_over(board, backend, &batch, how);
        let begin = sys::ticks();
        while !batch.is_empty() {
            let requests = batch.requests();
            let together = together(requests, before + count - requests.len(), self.queued());
            let (taken, errno) = backend.submit(requests.first(together), tell, how.at_once);
            batch.give_away(taken);
            self.note_refusal(errno, how);
            if errno < 0 {
                // The kernel refuses this request, for any reason. A thread executes it, and either
                // succeeds or reports the error.
                self.in_flight.fetch_sub(1, Ordering::SeqCst);
                if let Some(refused) = batch.next() {
                    // `take_back` returns true, because no thread closes the descriptor during the
                    // hand-over. So the result is ignored.
                    let _ = refused.slot().take_back();
                    board.forward(refused, Route::Pool, Executor::Kernel);
                }
            }
        }
        let ticks = sys::ticks().wrapping_sub(begin) / count as u64;
        let slow = !how.at_once && ticks > SLOW_SUBMIT_US * board.ticks_per_us();
        self.has_handed_over(fd, write, slow);
    }

    /// Notes requests that go to the kernel next. Returns the number of requests that were in
    /// flight before, and how the completions are made known.
    #[inline]
    fn begin_to_hand_over(
        &self,
        board: &Board,
        backend: &dyn Backend,
        batch: &Batch<'_>,
        how: HandOver,
    ) -> (usize, Tell) {
        let count = batch.len();
        let notifies = batch.requests().iter().any(|(_, request)| request.notify != -1);
        if notifies && !self.notifies.load(Ordering::Relaxed) {
            self.notifies.store(true, Ordering::Relaxed);
        }
        let program = self.program.fd();
        if program >= 0 && batch.requests().iter().any(|(_, request)| request.notify != program) {
            self.others.store(true, Ordering::Relaxed);
        }
        let tell = Tell { events: how.nobody_comes || notifies, program };
        if !tell.events && !self.notifies.load(Ordering::Relaxed) {
            backend.untell();
        }
        if how.at_once && !self.did_at_once.load(Ordering::Relaxed) {
            self.did_at_once.store(true, Ordering::Relaxed);
        }
        self.submitting.fetch_add(1, Ordering::SeqCst);
        if backend.holds_files() {
            batch.numbers().iter().for_each(|&slot| board.slot(slot).hand_over());
        }
        let before = self.in_flight.fetch_add(count, Ordering::SeqCst);
        let depth = self.depth.load(Ordering::Relaxed);
        let now = (before + count + self.queued()) * DEPTH_PARTS;
        self.depth.store(now.max(depth - depth / DEPTH_PARTS), Ordering::Relaxed);
        board.ran_here(batch.numbers());
        (before, tell)
    }

    /// Ends a hand-over, whose first request was on `fd`, and notes for `fd` whether the hand-over
    /// was `slow`: the kernel has waited in the call. If the kernel was asked not to wait, a call
    /// that took long is not slow: its thread was preempted.
    #[inline]
    fn has_handed_over(&self, fd: RawFd, write: bool, slow: bool) {
        facts::learn_submit(fd, write, slow);
        self.submitting.fetch_sub(1, Ordering::SeqCst);
        let batches = self.handed.fetch_add(1, Ordering::Relaxed) + 1;
        if batches.is_multiple_of(FRESH_EVERY) {
            // O_DIRECT may have been switched off (fcntl(2)).
            let _ = descriptor::fresh(fd);
        }
    }

    /// Hands a request over in its submitter's thread, past the queue. With `copies`, its vector is
    /// not copied yet: the kernel reads the vector in the program's memory. The vector is copied
    /// afterwards, before the request can end. Returns whether there were completions. `Err`: the
    /// kernel refuses the request, other requests come first, or another thread collects. Nothing
    /// has changed then.
    ///
    /// # Safety
    /// As for [`Instance::submit_with`](crate::instance::Instance::submit_with), but a vector that
    /// is to be copied may be invalid.
    pub(crate) unsafe fn hand_over_alone<'a>(
        &self,
        board: &'a Board,
        mut request: Started<'a>,
        copies: bool,
    ) -> Result<bool, Started<'a>> {
        let how = HandOver { nobody_comes: true, at_once: true };
        if !self.queue.is_empty() {
            return Err(request);
        }
        let Some((mut reaping, backend)) = self.try_reap() else { return Err(request) };
        if self.in_flight() >= backend.room() {
            drop(reaping);
            self.pass_on_the_right(board);
            return Err(request);
        }
        let (index, fd, write) = (request.index(), request.sqe.fd, request.kind == Kind::Write);
        if copies {
            // A signal handler may collect this request before its vector is copied. If the request
            // is executed again then, it fails.
            request.refused = -libc::EFAULT as i16;
            request.copied.iter_mut().for_each(|copied| copied.iov.clear());
        }
        let mut batch = board.batch();
        batch.push(request);
        let (_, tell) = self.begin_to_hand_over(board, backend, &batch, how);
        let (taken, errno) = reaping.asleep(|| backend.submit(batch.requests(), tell, true));
        if taken != 1 {
            // `take_back` returns true, because no thread closes the descriptor during the
            // hand-over. So the result is ignored.
            let _ = board.slot(index).take_back();
        }
        self.has_handed_over(fd, write, false);
        if taken == 1 {
            batch.give_away(1);
            if !reaping.is_held() {
                return Ok(false);
            }
            if copies {
                // SAFETY: this thread has the right to collect, so no other thread ends the
                // request. The kernel has just read the vector, so it can be read.
                unsafe {
                    let mut request = board.in_hand(index);
                    request.refused = exec::copy_in(&mut request).err().unwrap_or(0) as i16;
                    request.into_index();
                }
            }
            // A program that looks into its ring after a submit finds what has completed meanwhile.
            let by = (By::Program, board);
            return Ok(without_taker(|taker| self.harvest_with(reaping, backend, by, taker)));
        }
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.note_refusal(errno, how);
        drop(reaping);
        self.pass_on_the_right(board);
        let mut request = batch.next().expect("the kernel has not taken it");
        request.refused = 0;
        Err(request)
    }

    fn note_refusal(&self, errno: i32, how: HandOver) {
        if errno == -libc::EOPNOTSUPP && how.at_once {
            self.only_waits.store(true, Ordering::Relaxed);
        }
    }

    /// May a request that counts as handed over still need its descriptor number? It may if it has
    /// not reached the kernel. It also may if the kernel, which must not wait, gives the request
    /// back (EAGAIN).
    pub(crate) fn needs_numbers(&self) -> bool {
        let keeps_back = |backend: &dyn Backend| backend.keeps_back();
        self.did_at_once.load(Ordering::Relaxed)
            || self.submitting.load(Ordering::SeqCst) > 0
            || self.backend.get().and_then(Option::as_deref).is_some_and(keeps_back)
    }

    /// The eventfd that signals completions, for a thread that has the poller watch it. `None`: the
    /// poller watches the eventfd already, or need not watch it.
    pub(crate) fn events_to_watch(&self, nobody_comes: bool) -> Option<RawFd> {
        let backend = self.backend.get()?.as_ref()?;
        if !nobody_comes && !self.notifies.load(Ordering::Relaxed)
            || self.told.load(Ordering::SeqCst)
            || self.told.swap(true, Ordering::SeqCst)
        {
            return None;
        }
        Some(backend.events()).filter(|&fd| fd >= 0)
    }

    /// Shall the poller keep watching? Only if the watch is `needed`. Otherwise a later thread has
    /// the poller watch again.
    pub(crate) fn stays_watched(&self, needed: impl FnOnce() -> bool) -> bool {
        self.told.store(false, Ordering::SeqCst);
        // Either this thread sees the need, or the thread that needs the watch sees the flag clear.
        needed() && !self.told.swap(true, Ordering::SeqCst)
    }

    /// As [`KernelLane::events_to_watch`], for an event loop that hands over itself. `None`: there
    /// is no io_uring, the only interface that does not wait for the device at a hand-over.
    #[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "a tokio runtime drives"))]
    pub(crate) fn events_for_reactor(&self, board: &Board) -> Option<RawFd> {
        if self.scope == KernelScope::Nothing {
            return None;
        }
        self.prefers_ring.store(true, Ordering::Relaxed);
        let backend = self.backend(board)?;
        (backend.kind() == EngineKind::IoUring && backend.events() >= 0).then(|| backend.events())
    }
}

/// Two parts: requests to be handed over, and requests in flight.
impl Lane for KernelLane {
    fn progress(&self) -> [Progress; 2] {
        let view = self.hand_over.view();
        let queue = Progress::of(&self.queue);
        let word = queue.word ^ view.turn() << 32 ^ u64::from(view.is_held()) << 63;
        let in_flight = Progress {
            queued: self.in_flight() > 0,
            in_hand: self.in_flight() > 0,
            word: self.collected.load(Ordering::Relaxed).into(),
        };
        [Progress { in_hand: view.is_held() || in_flight.in_hand, word, ..queue }, in_flight]
    }

    fn unstick(&self, board: &Board, part: usize, _: bool) -> Stuck {
        if part == 1 {
            // No waiter has come for the completions.
            let any = without_taker(|taker| self.harvest(board, taker));
            // If there were completions, there is room again: a thread is called to hand over.
            return Stuck { nobody_came: any, call: any.then_some(Call::InPlaceOfReactor) };
        }
        let view = self.hand_over.view();
        if view.is_held() {
            self.hand_over.steal(view, 0);
        }
        let room = self.backend.get().and_then(Option::as_ref).map_or(self.room, |b| b.room());
        let call = if self.in_flight() < room { Call::InPlaceOfReactor } else { Call::HandOver };
        Stuck { nobody_came: !view.is_held(), call: Some(call) }
    }

    fn withdraw(&self, board: &Board, which: &Withdraw<'_>) {
        if matches!(which, Withdraw::All) {
            without_taker(|taker| self.harvest(board, taker));
        }
        withdraw_from(&self.queue, board, which);
    }
}
