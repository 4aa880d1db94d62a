//! The data of a ring: [`State`] under its lock, [`Core`] beside it, and [`Locked`] for both. All
//! of this is memory: nothing here makes a system call, or calls the engine.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::VecDeque;
use std::ptr::null;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use uringlet::Sqe;
use uringlet::front::{Entry, Handover, Instance, OwnDescriptor, Readiness};

use super::index::Index;
use super::types::{Mail, Overtaken, Registry, Request, Stage, Task, Try};
use crate::abi::{self, op, setup, sq};
use crate::buffers::BufferGroups;
use crate::chains::{Chains, NONE};
use crate::completions::{Completions, Counts};
use crate::files::{Buffer, File, Slots};
use crate::inbox::Inbox;
use crate::memory::{Current, Memory, Word};
use crate::prepare::Plan;
use crate::restrict::Restrictions;
use crate::tuning::SMALL_VECTOR;
use crate::{shared, sys};

thread_local! {
    /// The ring that each kind of [`Mark`] names in this thread, or null.
    static MARKS: [Cell<*const Core>; 2] = const { [const { Cell::new(null()) }; 2] };
    /// The number of calls on sockets that this thread makes or has to make. Each hand-over of
    /// requests to the engine counts, too.
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// Adds to the number of calls and hand-overs of this thread.
pub(super) fn calls_more(count: i32) {
    CALLS.set(CALLS.get().wrapping_add_signed(count));
}

/// Does this thread have calls on sockets to make, or is it handing requests to the engine? If so,
/// a close by this thread comes from a signal handler, or from a task between such calls.
pub(super) fn calls_here() -> bool {
    CALLS.get() > 0
}

/// Is a vector small enough that its submitter may execute it? Larger transfers go to the engine,
/// which may use other threads.
pub(super) fn is_small(bytes: i32) -> bool {
    bytes <= SMALL_VECTOR
}

/// The index in `MARKS` of the ring that this thread has entered.
pub(super) const ENTERED: usize = 0;
/// The index in `MARKS` of the ring whose lock this thread has, or waits for. A signal handler
/// can read that mark.
pub(super) const HELD: usize = 1;

fn marked(kind: usize) -> *const Core {
    MARKS.with(|marks| marks[kind].get())
}

/// Does this thread have the lock of any ring, or wait for one?
pub(super) fn is_any_held_here() -> bool {
    !marked(HELD).is_null()
}

/// The words of `struct io_uring_napi` for a ring without busy polling: no time, no preference, and
/// no tracking (255).
pub(crate) const NO_NETWORK_POLLING: [u32; 4] = [0, 0, 255, 0];

/// What is under the lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) requests: Vec<Request>,
    pub(super) free: Vec<u32>,
    pub(super) completions: Completions,
    /// The tail of the completion queue when the descriptor was last checked and updated.
    pub(super) told_tail: u32,
    /// The number of completions posted, without those of timeouts.
    pub(super) posted: u32,
    /// Timeouts with a completion count.
    pub(super) counting: Vec<u32>,
    pub(super) chains: Chains,
    pub(super) ready: VecDeque<u32>,
    /// Requests in lines for sockets. The oldest of a line is tried or waits; others wait for it.
    pub(super) lines: Index,
    /// Requests that have not ended.
    pub(super) by_user_data: Index,
    /// Requests that use a descriptor number of the program's, and may be in flight when the
    /// program closes it.
    pub(super) by_number: Index,
    pub(super) tasks: Vec<Task>,
    /// Reads and sends that the submitting thread is about to try, and perhaps a write behind them.
    pub(super) tries: Vec<Try>,
    /// The descriptor numbers of sends that are being made, and are no requests.
    pub(super) sending: VecDeque<i32>,
    /// The thread that submits a batch has entered the ring, and tries reads and writes itself.
    pub(super) submits: bool,
    /// The batch of the thread that submits has a cancel.
    pub(super) cancels: bool,
    /// The batch of the thread that submits has further entries, not taken yet.
    pub(super) more_follow: bool,
    /// A batch is not finished: the consequences of its entries wait.
    pub(super) is_in_batch: bool,
    /// The number of cancels, closes and opens that a thread is making: nothing is started before
    /// they have ended.
    pub(super) asking: u32,
    /// The thread (gettid(2)) that has made `asking` more than 0.
    asker: i32,
    /// The number of requests that the engine has, for each kind of [`Overtaken`].
    pub(super) in_front: [u32; 2],
    /// Tags whose files and buffers have lost their last user.
    pub(super) tags: Vec<u64>,
    /// Cancelled requests, each with the key of its cancel. They end after the cancel.
    pub(super) held: Vec<(u64, u32)>,
    /// The present action is a consequence of the end of other requests.
    pub(super) stepping: bool,
    pub(crate) files: Option<Slots<File>>,
    pub(super) buffers: Option<Slots<Buffer>>,
    pub(crate) groups: BufferGroups,
    pub(crate) eventfd: Option<(OwnDescriptor, bool)>,
    pub(super) eventfd_due: bool,
    /// How many times the eventfd was counted up.
    pub(super) counted_up: u32,
    pub(crate) restrictions: Restrictions,
    pub(super) drain_disabled: bool,
    pub(crate) clock: libc::clockid_t,
    pub(crate) workers: [u32; 2],
    /// `IORING_REGISTER_NAPI`.
    pub(crate) network_polling: [u32; 4],
    /// Completions were posted, and the threads that wait for them were not woken yet.
    pub(super) to_wake: bool,
    pub(super) sharing: Sharing,
}

impl State {
    fn new() -> Self {
        Self {
            requests: Vec::new(),
            free: Vec::new(),
            completions: Completions::new(),
            told_tail: 0,
            posted: 0,
            counting: Vec::new(),
            chains: Chains::new(),
            ready: VecDeque::new(),
            lines: Index::default(),
            by_user_data: Index::default(),
            by_number: Index::default(),
            tasks: Vec::new(),
            tries: Vec::new(),
            sending: VecDeque::new(),
            submits: false,
            cancels: false,
            more_follow: false,
            is_in_batch: false,
            asking: 0,
            asker: 0,
            in_front: [0; 2],
            tags: Vec::new(),
            held: Vec::new(),
            stepping: false,
            files: None,
            buffers: None,
            groups: BufferGroups::default(),
            eventfd: None,
            eventfd_due: false,
            counted_up: 0,
            restrictions: Restrictions::default(),
            drain_disabled: false,
            clock: libc::CLOCK_MONOTONIC,
            workers: [0; 2],
            network_polling: NO_NETWORK_POLLING,
            to_wake: false,
            sharing: Sharing::default(),
        }
    }

    /// Does the engine have requests that a later read (or write) must not overtake?
    #[inline]
    pub(super) fn is_in_front_of(&self, write: bool) -> bool {
        let [reads, others] = self.in_front;
        others > 0 || write && reads > 0
    }
}

/// This process's part in sharing the ring, under the ring's lock.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    /// This process is the ring's owner (`shared/page.rs`), and busy.
    pub(super) owns: bool,
    /// Other processes use the ring: the journal is kept, and the engine leaves no request to a
    /// waiting thread.
    pub(super) is_shared: bool,
    /// A timer for waiting completions is set.
    pub(super) flushes: bool,
}

/// A ring: the state under its lock, and data that threads use without the lock.
#[derive(Debug)]
pub(crate) struct Core {
    pub(super) registry: &'static dyn Registry,
    pub(crate) memory: Current,
    pub(crate) flags: u32,
    /// A duplicate of the ring's eventfd, made when a thread first waits for the eventfd.
    pub(super) eventfd: OnceLock<OwnDescriptor>,
    pub(super) readiness: Readiness,
    /// The submitting thread (SINGLE_ISSUER), or 0.
    pub(crate) owner: AtomicI32,
    pub(crate) disabled: AtomicBool,
    pub(super) state: Mutex<State>,
    pub(super) inbox: Inbox<Mail>,
    pub(super) counts: Counts,
    /// The word that stands for this process, for other processes that share the ring.
    pub(super) me: u64,
    /// Calls for the ring are restricted: no other process may use the ring.
    pub(crate) restricted: AtomicBool,
    /// The number of submitted requests, and the number of ended ones.
    pub(super) taken: AtomicU32,
    pub(super) ended: AtomicU32,
    /// The number of calls on sockets that are being tried, and of threads that hand requests to
    /// the engine.
    pub(super) trying: AtomicU32,
    /// The last vector that was seen had few bytes, so the next one is expected to have as few.
    pub(super) expects_small_vectors: AtomicBool,
    /// Receives were submitted that wait for an event without a first try.
    pub(crate) untried: AtomicBool,
    /// The program has made a multishot poll. As in the kernel, each receive's result is then
    /// posted before later events are taken. If a later event came first, the program would think
    /// that it announces the data of that receive.
    pub(super) polls_edges: AtomicBool,
    /// The number of threads that execute what they submit. Changed under the lock.
    pub(super) executing: AtomicU32,
    /// The number of polls that each thread checks when it enters the ring.
    pub(super) looks: AtomicU32,
    pub(super) handover: Handover,
    /// Room for the entries of the thread that passes requests on.
    pub(super) passed_on: Mutex<Vec<Entry>>,
    /// The program is notified of completions. Possibly none of its threads waits for the ring.
    pub(crate) told: AtomicBool,
    pub(crate) closing: AtomicBool,
    /// The poll thread takes the events of polls, and waiting threads do not. Set when a waiting
    /// thread found the seat (`service/seat.rs`) taken, or slept where no event of the epoll wakes
    /// it.
    pub(super) waits_apart: AtomicBool,
    pub(super) instance: OnceLock<Weak<Instance>>,
}

impl Core {
    pub(crate) fn new(
        registry: &'static dyn Registry,
        memory: Arc<Memory>,
        params: &abi::Params,
        owner: i32,
    ) -> Arc<Self> {
        Arc::new(Self {
            registry,
            memory: Current::new(memory),
            flags: params.flags,
            eventfd: OnceLock::new(),
            readiness: Readiness::new(),
            owner: AtomicI32::new(owner),
            disabled: AtomicBool::new(params.flags & setup::R_DISABLED != 0),
            state: Mutex::new(State::new()),
            inbox: Inbox::new(),
            counts: Counts::new(),
            me: shared::process::me(),
            restricted: AtomicBool::new(false),
            taken: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            trying: AtomicU32::new(0),
            untried: AtomicBool::new(false),
            polls_edges: AtomicBool::new(false),
            expects_small_vectors: AtomicBool::new(false),
            executing: AtomicU32::new(0),
            looks: AtomicU32::new(0),
            handover: Handover::new(),
            passed_on: Mutex::default(),
            told: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            waits_apart: AtomicBool::new(false),
            instance: OnceLock::new(),
        })
    }

    /// A ring of this process over the memory of its parent's ring.
    pub(crate) fn inherit(&self) -> Arc<Self> {
        let params = abi::Params { flags: self.flags, ..Default::default() };
        let owner = self.owner.load(Ordering::Relaxed);
        let core = Self::new(self.registry, self.memory.share(), &params, owner);
        core.disabled.store(self.disabled.load(Ordering::Relaxed), Ordering::Relaxed);
        core.memory.page().share();
        core
    }

    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Marks that this thread has entered this ring, as long as the mark lives.
    pub(crate) fn entered(&self) -> Mark<ENTERED> {
        Mark::new(self)
    }

    pub(super) fn is_entered(&self) -> bool {
        std::ptr::eq(marked(ENTERED), self)
    }

    /// Is this a signal handler, on a thread that has the lock? Such a handler must not wait for
    /// the lock.
    #[inline]
    pub(crate) fn is_held_here(&self) -> bool {
        std::ptr::eq(marked(HELD), self)
    }

    /// All completions, in the ring or not.
    pub(crate) fn completions(&self) -> u32 {
        self.counts.all(&*self.memory)
    }

    /// Are there completions outside of the ring?
    pub(crate) fn has_more(&self) -> bool {
        self.counts.outside() > 0
    }

    /// Are there requests that have not ended?
    pub(crate) fn has_requests(&self) -> bool {
        self.taken.load(Ordering::Acquire) != self.ended()
    }

    /// A number that changes with each request that ends.
    pub(crate) fn ended(&self) -> u32 {
        self.ended.load(Ordering::Acquire)
    }

    /// Adds to a counter that is changed under the lock only.
    fn count(counter: &AtomicU32, more: u32) {
        let count = counter.load(Ordering::Relaxed).wrapping_add(more);
        counter.store(count, Ordering::Release);
    }

    pub(super) fn one_was_taken(&self) {
        Self::count(&self.taken, 1);
    }

    pub(super) fn one_has_ended(&self) {
        Self::count(&self.ended, 1);
    }

    pub(super) fn executes_one_more(&self) {
        Self::count(&self.executing, 1);
    }

    pub(super) fn executes_one_less(&self) {
        Self::count(&self.executing, 1u32.wrapping_neg());
    }

    /// A vector was seen that has, or has moved, this number of bytes.
    pub(super) fn saw_vector(&self, bytes: i32) {
        let is_small = is_small(bytes);
        if self.expects_small_vectors.load(Ordering::Relaxed) != is_small {
            self.expects_small_vectors.store(is_small, Ordering::Relaxed);
        }
    }

    pub(super) fn show_flags(&self, flags: u32) {
        let always = if self.has(setup::SQPOLL) { sq::NEED_WAKEUP } else { 0 };
        self.memory.word(Word::SqFlags).store(flags | always, Ordering::Release);
    }
}

/// While the mark lives, its thread counts as having entered a ring ([`ENTERED`]), or as having or
/// awaiting the lock of a ring ([`HELD`]).
#[derive(Debug)]
pub(crate) struct Mark<const KIND: usize> {
    /// The place of the mark in this thread's memory, kept because each look-up is a call.
    place: *const Cell<*const Core>,
    before: *const Core,
}

impl<const KIND: usize> Mark<KIND> {
    pub(super) fn new(core: *const Core) -> Self {
        MARKS.with(|marks| {
            let before = marks[KIND].replace(core);
            // If a signal handler has left a wait by a jump, the mark of that wait is still set.
            let before = if std::ptr::eq(before, core) { null() } else { before };
            Self { place: &raw const marks[KIND], before }
        })
    }
}

impl<const KIND: usize> Drop for Mark<KIND> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: a thread-local cell of this thread, which a mark does not leave. The cell has no
        // destructor, so it exists until the thread has ended.
        unsafe { &*self.place }.set(self.before);
    }
}

/// A ring whose lock this thread has.
pub(crate) struct Locked<'a> {
    pub(super) core: &'a Arc<Core>,
    pub(super) state: MutexGuard<'a, State>,
    /// Dropped after the lock.
    pub(super) _holds: Mark<HELD>,
}

impl std::ops::Deref for Locked<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        &self.state
    }
}

impl std::ops::DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Locked<'_> {
    /// Nothing is started until the request at `at` has ended. This thread has a task that ends it.
    pub(super) fn begin_asking(&mut self, at: u32) {
        self.request(at).asks = true;
        self.state.asker = sys::thread_id();
        self.state.asking += 1;
    }

    /// Has this thread begun a task ([`begin_asking`](Self::begin_asking)) that has not ended? If
    /// so, the caller is a signal handler that has interrupted this thread.
    pub(super) fn asks_here(&self) -> bool {
        self.state.asking > 0 && self.state.asker == sys::thread_id()
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        self.core
    }

    /// The index of the request with this key, unless another request has the index now.
    pub(crate) fn find(&self, key: u64) -> Option<u32> {
        let at = key as u32;
        let request = self.state.requests.get(at as usize)?;
        (request.generation == (key >> 32) as u32 && request.stage != Stage::Free).then_some(at)
    }

    pub(super) fn key(&self, at: u32) -> u64 {
        u64::from(self.state.requests[at as usize].generation) << 32 | u64::from(at)
    }

    pub(super) fn request(&mut self, at: u32) -> &mut Request {
        &mut self.state.requests[at as usize]
    }

    /// The descriptor number of a request.
    pub(super) fn number(&mut self, at: u32) -> i32 {
        self.request(at).number()
    }

    /// Requests that have not ended, each with its index.
    pub(super) fn live(&self) -> impl Iterator<Item = (u32, &Request)> {
        let all = self.state.requests.iter().enumerate();
        all.filter(|(_, request)| request.stage != Stage::Free)
            .map(|(at, request)| (at as u32, request))
    }

    pub(super) fn take(&mut self) -> u32 {
        self.core.one_was_taken();
        self.place()
    }

    /// A free place in `State::requests`, for a request that `Core::one_was_taken` has counted.
    pub(super) fn place(&mut self) -> u32 {
        let at = self.state.free.pop().unwrap_or_else(|| {
            self.state.requests.push(Request::new());
            self.state.requests.len() as u32 - 1
        });
        let request = self.request(at);
        request.generation = request.generation.wrapping_add(1);
        request.stage = Stage::Waits;
        (request.next, request.timeout, request.target) = (NONE, NONE, NONE);
        (request.refused, request.expected, request.canceled_by) = (0, -1, 0);
        request.quiet = false;
        at
    }

    /// Lists the request by its user data, so that cancels and updates find it.
    #[inline]
    pub(super) fn list(&mut self, at: u32) {
        let user_data = self.request(at).user_data;
        self.state.by_user_data.add(at, user_data);
    }

    /// Lists the request by its descriptor number. It may be in flight when the program closes that
    /// descriptor.
    #[inline]
    pub(super) fn list_number(&mut self, at: u32) {
        let Request { fd, ref file, .. } = *self.request(at);
        if file.is_none() {
            self.state.by_number.add(at, fd as u64);
        }
    }

    pub(super) fn end_chain(&mut self) {
        let state = &mut *self.state;
        state.chains.end(&state.requests);
    }

    /// The last request of the chain that is being assembled.
    pub(super) fn chain_tail(&self) -> u32 {
        self.state.chains.tail()
    }

    pub(super) fn count_from_now(&self, count: u32) -> u32 {
        self.state.posted.wrapping_add(count)
    }

    /// Prepares a request for the engine. The caller then queues it by
    /// [`make_ready`](Self::make_ready).
    pub(super) fn hand_over(&mut self, at: u32, sqe: Sqe) -> Option<i32> {
        let request = self.request(at);
        request.plan = Plan::Engine(sqe, None);
        request.stage = Stage::Ready;
        None
    }

    /// Queues a request for the engine.
    pub(super) fn make_ready(&mut self, at: u32) {
        let request = self.request(at);
        request.stage = Stage::Ready;
        self.list_number(at);
        self.is_for_engine(at);
        self.state.ready.push_back(at);
        self.core.handover.add();
    }

    /// Takes the first request that is ready, as the engine gets it. If the program has closed the
    /// request's descriptor meanwhile, the engine gets the duplicate.
    #[inline]
    pub(super) fn next_for_engine(&mut self) -> Option<Sqe> {
        let at = self.state.ready.pop_front()?;
        let key = self.key(at);
        let request = self.request(at);
        request.stage = Stage::Engine;
        let sqe = request.plan.sqe().user_data(key);
        let fd = if sqe.fd == request.fd { request.number() } else { sqe.fd };
        Some(Sqe { fd, ..sqe })
    }

    /// The engine is about to get a request. Notes which later requests may overtake it.
    #[inline]
    pub(super) fn is_for_engine(&mut self, at: u32) {
        let request = self.request(at);
        let is_read = matches!(request.opcode, op::READ | op::READV | op::READ_FIXED);
        let by = if is_read { Overtaken::ByReads } else { Overtaken::ByNone };
        if request.in_front.replace(by).is_none() {
            self.state.in_front[by as usize] += 1;
        }
    }
}
