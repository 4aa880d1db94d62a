//! One ring: its requests, from the entry to the completion.
//!
//! Everything is under one lock, which is held for memory only: [`Core::with`]. What can wait, and
//! what calls the engine, is left in lists, and done without the lock. Threads that serve other
//! rings, too, never wait for it: [`Core::bring`].
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::ops::RangeInclusive;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::ptr::null;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use uringlet::Sqe;
use uringlet::front::{
    Concern, Descriptor, Entry, Handover, Instance, IoEvent, OwnDescriptor, Patience, Readiness,
    Sink, TOLD_OTHERWISE, WaitCondition,
};

mod batch;
mod cancels;
mod issue;
mod lock;
mod polls;
mod sharing;
mod sleep;
mod sockets;
mod timeouts;

use self::batch::{Batch, Prepared};
pub(crate) use self::lock::{Locked, Task};
use self::lock::{Mail, Try};
pub(crate) use self::sharing::SLOTS;
use self::sharing::Sharing;
use self::sockets::{Line, Lines};
use crate::abi::{self, Cqe, iosqe, op, setup, sq};
use crate::calls::Call;
use crate::chains::{Chains, Links, NONE, Step};
use crate::completions::{Completions, Counts, Queue};
use crate::files::{Buffer, File, Registered, Slots};
use crate::inbox::Inbox;
use crate::memory::{Memory, Word};
use crate::prepare::{self, Fields, Plan, Refused};
use crate::restrict::Restrictions;
use crate::timers::Timer;
use crate::{service, shared, sys};

/// A ring has polled a ring.
pub(crate) static POLLS_RINGS: AtomicBool = AtomicBool::new(false);

/// Rings whose descriptor is readable.
static ARMED: AtomicUsize = AtomicUsize::new(0);

/// Is the descriptor of any ring readable?
#[inline]
pub(crate) fn any_is_armed() -> bool {
    ARMED.load(Ordering::Relaxed) > 0
}

thread_local! {
    /// The ring that this thread has entered.
    static ENTERED: Cell<*const Core> = const { Cell::new(null()) };
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Free,
    /// Behind another one of its chain, or of a chain that waits.
    Waits,
    /// To be handed to the engine.
    Ready,
    /// In line for a socket, behind another one.
    Behind,
    /// A read, or a call on a socket, is tried without the lock and without waiting.
    Tried,
    /// With the engine.
    Engine,
    Poll(service::Poll),
    Timer(Option<Timer>),
    /// A linked timeout whose target is being executed.
    LinkTimer(Timer),
    /// Ends in this very call.
    Here,
    /// Cancelled, or a timeout that is over: its completion follows that of what has ended it.
    Ends,
    /// As that. It was removed, and no cancel finds it.
    Removed,
}

/// A request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) generation: u32,
    pub(crate) stage: Stage,
    pub(crate) opcode: u8,
    pub(crate) flags: u8,
    pub(crate) user_data: u64,
    pub(crate) fd: i32,
    pub(crate) plan: Plan,
    /// What preparation has refused.
    pub(crate) refused: i32,
    /// The next of its chain.
    pub(crate) next: u32,
    /// The linked timeout that is set for it.
    pub(crate) timeout: u32,
    /// The request that this linked timeout is set for.
    pub(crate) target: u32,
    pub(crate) file: Option<Arc<Registered<File>>>,
    pub(crate) buffer: Option<Arc<Registered<Buffer>>>,
    /// As many bytes are success.
    pub(crate) expected: i32,
    pub(crate) iov: Vec<libc::iovec>,
    pub(crate) call: Option<Box<Call>>,
    /// The thread that has submitted the call, where threads may have rights of their own.
    pub(crate) submitter: i32,
    /// The thread that has submitted it: as [`threads::enters`](crate::threads::enters) has it.
    thread: u32,
    /// The slot that an opened file goes into.
    pub(crate) target_slot: Option<u32>,
    /// The registered file that a splice reads from.
    pub(crate) source: Option<Arc<Registered<File>>>,
    /// Where it stands in line for a socket.
    line: Option<Line>,
    /// The last cancel of it that had to ask the engine, by key.
    pub(crate) canceled_by: u64,
    /// Those behind it in its chain leave no completions if it fails.
    quiet: bool,
    /// A multishot poll of a ring, or of an epoll, which may have one.
    pub(crate) is_of_rings: bool,
    /// [`State::counted_up`] when this poll began.
    pub(crate) counted_up: u32,
    /// A poll that a thread which enters the ring looks at.
    looked_at: bool,
    /// Nothing is started before this cancel is answered.
    pub(crate) asks: bool,
    /// It has failed, or one before it.
    failed: bool,
    /// The engine has it or is to get it, and it is no read: a read behind it is not tried.
    in_front: bool,
}

// SAFETY: the iovecs are addresses of the program's, which are only handed on.
unsafe impl Send for Request {}

impl Request {
    pub(crate) fn new() -> Self {
        Self {
            generation: 0,
            stage: Stage::Free,
            opcode: 0,
            flags: 0,
            user_data: 0,
            fd: -1,
            plan: Plan::Nop(0),
            refused: 0,
            next: NONE,
            timeout: NONE,
            target: NONE,
            file: None,
            buffer: None,
            expected: -1,
            iov: Vec::new(),
            call: None,
            submitter: 0,
            thread: 0,
            target_slot: None,
            source: None,
            line: None,
            canceled_by: 0,
            quiet: false,
            is_of_rings: false,
            counted_up: 0,
            looked_at: false,
            asks: false,
            failed: false,
            in_front: false,
        }
    }
}

impl Request {
    /// The descriptor that it is on.
    pub(crate) fn number(&self) -> i32 {
        self.file.as_ref().map_or(self.fd, |file| file.number())
    }

    /// Has it a call that is judged by the rights of the thread that makes it?
    pub(crate) fn is_judged(&self) -> bool {
        self.call.as_deref().is_some_and(Call::is_judged)
    }
}

impl Links for Vec<Request> {
    fn next(&self, at: u32) -> u32 {
        self[at as usize].next
    }

    fn set_next(&mut self, at: u32, next: u32) {
        self[at as usize].next = next;
    }

    fn drains(&self, at: u32) -> bool {
        self[at as usize].flags & iosqe::DRAIN != 0
    }

    fn set_drains(&mut self, at: u32) {
        self[at as usize].flags |= iosqe::DRAIN;
    }

    fn fails(&self, at: u32) -> bool {
        self[at as usize].refused != 0
    }
}

impl Queue for Memory {
    fn head(&self) -> u32 {
        self.word(Word::CqHead).load(Ordering::Acquire)
    }

    fn write(&self, place: u32, cqe: &Cqe) {
        self.write_cqe(place, cqe);
    }

    fn tail(&self) -> u32 {
        self.page().cq_tail.load(Ordering::Acquire)
    }

    fn publish(&self, tail: u32) {
        // First what a process goes by that adopts the ring.
        self.page().cq_tail.store(tail, Ordering::Release);
        self.word(Word::CqTail).store(tail, Ordering::Release);
    }
}

/// A cancel that concerns requests which are with the engine.
#[derive(Debug)]
pub(crate) struct CancelJob {
    pub(crate) keys: Vec<u64>,
    /// As many were cancelled without the engine.
    pub(crate) done: i32,
    pub(crate) all: bool,
    /// The request that gets the answer: a cancel, or a linked timeout.
    pub(crate) by: u64,
    pub(crate) is_link_timeout: bool,
}

/// What is under the lock.
#[derive(Debug)]
pub(crate) struct State {
    requests: Vec<Request>,
    free: Vec<u32>,
    completions: Completions,
    /// The tail as it was when the descriptor has last said what is true.
    told_tail: u32,
    /// Completions posted, without those of timeouts.
    posted: u32,
    /// Timeouts that also count.
    pub(crate) counting: Vec<u32>,
    chains: Chains,
    ready: VecDeque<u32>,
    lines: Lines,
    pub(crate) tasks: Vec<Task>,
    /// Reads of the submit that has the lock.
    tries: Vec<Try>,
    /// A thread submits, and tries reads.
    submits: bool,
    /// A batch is not through: what follows from its entries waits.
    is_in_batch: bool,
    /// Cancels that ask the engine: nothing is started before they are answered.
    pub(crate) asking: u32,
    /// Requests that no read behind them is to overtake.
    in_front: u32,
    /// Tags whose files and buffers have lost their last user.
    tags: Vec<u64>,
    /// Requests that the engine has cancelled, behind the cancel with this key.
    held: Vec<(u64, u32)>,
    /// What is done follows from the end of other requests.
    stepping: bool,
    pub(crate) files: Option<Slots<File>>,
    pub(crate) buffers: Option<Slots<Buffer>>,
    pub(crate) eventfd: Option<(OwnDescriptor, bool)>,
    eventfd_due: bool,
    /// How many times the eventfd was counted up.
    pub(crate) counted_up: u32,
    pub(crate) restrictions: Restrictions,
    pub(crate) drain_disabled: bool,
    pub(crate) clock: libc::clockid_t,
    pub(crate) workers: [u32; 2],
    /// Completions were posted that no event of the engine's tells of.
    to_wake: bool,
    sharing: Sharing,
}

/// How far a batch has come.
#[derive(Debug)]
enum Submitted {
    All,
    /// The engine is asked without the lock. The rest follows then.
    Asks,
    /// Another thread has taken the next entry.
    Overtaken,
    /// By this word, another process has requests in flight.
    Held(u64),
}

/// What a ring asks about all rings of its process, by the numbers of their descriptors.
pub(crate) trait Registry: fmt::Debug + Send + Sync {
    /// Does this number stand for a ring?
    fn has(&self, fd: i32) -> bool;
    /// A descriptor is watched by epoll, a poll or the like.
    fn is_polled(&self, fd: i32);
    /// Is the descriptor of any ring watched so?
    fn any_is_polled(&self) -> bool;
}

/// What completions, timers and polls know of a ring.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) registry: &'static dyn Registry,
    pub(crate) memory: Arc<Memory>,
    pub(crate) flags: u32,
    pub(crate) sq_entries: u32,
    pub(crate) cq_entries: u32,
    /// Another descriptor of the ring's eventfd, from when somebody has waited for that on.
    eventfd: OnceLock<OwnDescriptor>,
    readiness: Readiness,
    /// The thread that submits (SINGLE_ISSUER), or 0.
    pub(crate) owner: AtomicI32,
    pub(crate) disabled: AtomicBool,
    state: Mutex<State>,
    inbox: Inbox<Mail>,
    counts: Counts,
    /// This process, for others that share the ring.
    me: u64,
    /// Calls are restricted: no other process may use it.
    pub(crate) restricted: AtomicBool,
    /// Requests that were submitted, and requests that have ended.
    taken: AtomicU32,
    ended: AtomicU32,
    /// Threads that try reads.
    trying: AtomicU32,
    /// Polls that a thread looks at which enters the ring.
    looks: AtomicU32,
    handover: Handover,
    /// The program is told of completions, and may not come to wait.
    pub(crate) told: AtomicBool,
    pub(crate) closing: AtomicBool,
    instance: OnceLock<Weak<Instance>>,
}

/// What the engine hands completions to.
#[derive(Debug)]
struct Deliver(Arc<Core>);

impl Sink for Deliver {
    unsafe fn complete(&self, event: &IoEvent) {
        let core = &self.0;
        let after = core.bring(Mail::Ended(event.obj, event.res as i32));
        // The engine wakes those who wait, and has `released` called.
        if let Some(tasks) = after.tasks {
            core.pass_on();
            core.run_tasks(tasks);
        }
    }

    fn released(&self) {
        let core = &self.0;
        if core.handover.waits_for_room() {
            core.pass_on();
        }
    }

    fn begins_streams_at_once(&self) -> bool {
        false
    }

    fn waits_where_nonblocking(&self) -> bool {
        true
    }

    fn ends_short_writes(&self) -> bool {
        true
    }

    fn before_transfer(&self, sqe: &Sqe) -> Option<i32> {
        service::look(sqe.fd);
        // A socket has no offsets. A pipe has none either, and does not mind.
        (![0, u64::MAX].contains(&sqe.off) && sys::is_socket(sqe.fd)).then_some(-libc::ESPIPE)
    }

    fn after_transfer(&self, fd: i32, is_write: bool) {
        const READABLE: i16 = libc::POLLIN | libc::POLLRDNORM;
        const WRITABLE: i16 = libc::POLLOUT | libc::POLLWRNORM;
        service::went_through(fd, if is_write { WRITABLE } else { READABLE } as u32);
    }
}

impl Core {
    pub(crate) fn new(
        registry: &'static dyn Registry,
        memory: Arc<Memory>,
        params: &abi::Params,
        owner: i32,
    ) -> Arc<Self> {
        let state = State {
            requests: Vec::new(),
            free: Vec::new(),
            completions: Completions::new(),
            told_tail: 0,
            posted: 0,
            counting: Vec::new(),
            chains: Chains::new(),
            ready: VecDeque::new(),
            lines: Lines::new(),
            tasks: Vec::new(),
            tries: Vec::new(),
            submits: false,
            is_in_batch: false,
            asking: 0,
            in_front: 0,
            tags: Vec::new(),
            held: Vec::new(),
            stepping: false,
            files: None,
            buffers: None,
            eventfd: None,
            eventfd_due: false,
            counted_up: 0,
            restrictions: Restrictions::default(),
            drain_disabled: false,
            clock: libc::CLOCK_MONOTONIC,
            workers: [0; 2],
            to_wake: false,
            sharing: Sharing::default(),
        };
        Arc::new(Self {
            registry,
            memory,
            flags: params.flags,
            sq_entries: params.sq_entries,
            cq_entries: params.cq_entries,
            eventfd: OnceLock::new(),
            readiness: Readiness::new(),
            owner: AtomicI32::new(owner),
            disabled: AtomicBool::new(params.flags & setup::R_DISABLED != 0),
            state: Mutex::new(state),
            inbox: Inbox::new(),
            counts: Counts::new(params.cq_entries),
            me: shared::process::me(),
            restricted: AtomicBool::new(false),
            taken: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            trying: AtomicU32::new(0),
            looks: AtomicU32::new(0),
            handover: Handover::new(),
            told: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            instance: OnceLock::new(),
        })
    }

    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Consumes up to `count` entries of the queue, for a thread or for none (0). Gives how many.
    ///
    /// # Errors
    /// `-EEXIST`: another process has requests of this ring in flight.
    pub(crate) fn submit(self: &Arc<Self>, count: u32, thread: u32) -> Result<u32, i32> {
        /// Threads of this process are through long before. Another process may write anything.
        const TRIES: u32 = 1_000;
        let mut gone = 0;
        for _ in 0..TRIES {
            let head = self.memory.page().sq_head.load(Ordering::Acquire);
            let tail = self.memory.word(Word::SqTail).load(Ordering::Acquire);
            let there = tail.wrapping_sub(head).min(self.sq_entries);
            let iopoll = self.has(setup::IOPOLL);
            let mut batch = Batch::read(&self.memory, (head, there), count, iopoll);
            loop {
                match self.with(|locked| locked.submit(count, thread, &mut batch, gone)) {
                    Submitted::All => return Ok(batch.consumed),
                    Submitted::Asks => {}
                    _ if batch.consumed > 0 => return Ok(batch.consumed),
                    Submitted::Overtaken => break,
                    Submitted::Held(by) if by != gone && shared::process::is_gone(by) => {
                        gone = by;
                        break;
                    }
                    Submitted::Held(_) => return Err(-libc::EEXIST),
                }
            }
        }
        Ok(0)
    }

    /// Calls `f` as a thread that has entered this ring.
    pub(crate) fn entered<T>(&self, f: impl FnOnce() -> T) -> T {
        let before = ENTERED.replace(self);
        let answer = f();
        // A wait that a signal handler has left by a jump has not put it back.
        ENTERED.set(if std::ptr::eq(before, self) { null() } else { before });
        answer
    }

    /// A thread enters the ring: it sees what polls have to tell by now, where that counts.
    #[inline]
    pub(crate) fn look_at_polls(&self) {
        if self.looks.load(Ordering::Relaxed) > 0 {
            service::look_at_all();
        }
    }

    fn is_entered(&self) -> bool {
        std::ptr::eq(ENTERED.get(), self)
    }

    /// Completions that there are, in the ring or not.
    pub(crate) fn completions(&self) -> u32 {
        self.counts.all(&*self.memory)
    }

    /// Are there completions that are not in the ring yet?
    pub(crate) fn has_more(&self) -> bool {
        self.counts.outside() > 0
    }

    /// The descriptor is readable, and should not be any more.
    #[inline]
    pub(crate) fn is_stale(&self) -> bool {
        self.readiness.is_readable() && self.completions() == 0
    }

    /// Clears the descriptor if the program has reaped what made it readable.
    pub(crate) fn freshen(self: &Arc<Self>) {
        if self.is_stale() {
            self.settle();
        }
    }

    /// Has the descriptor say what is true. Waits for other threads, which hold the lock for memory
    /// only. Where this very thread holds it, in a signal handler, that is left to the holder.
    fn settle(self: &Arc<Self>) {
        /// Some seconds: holders wait for each other where handlers have interrupted both.
        const TRIES: u32 = 50_000;
        let mut patience = Patience::default();
        for _ in 0..TRIES {
            if self.is_held_here() {
                return;
            }
            if let Some(locked) = self.try_lock() {
                return self.follow_up(locked.give_back());
            }
            patience.wait();
        }
    }

    /// Takes another descriptor of the ring's, which outlives the program's. Without one, the
    /// program's is readable always.
    fn hold(&self, fd: i32) {
        if self.eventfd.get().is_none() {
            match OwnDescriptor::duplicate(fd) {
                Some(other) => _ = self.eventfd.set(other),
                None => sys::eventfd_set(fd),
            }
        }
    }

    /// A thread is about to wait for the descriptor `fd` of the ring: until
    /// [`unwatch`](Self::unwatch) it is readable while there are completions.
    pub(crate) fn watch(self: &Arc<Self>, fd: i32) {
        self.hold(fd);
        self.readiness.watch();
        self.settle();
    }

    pub(crate) fn unwatch(&self) {
        self.readiness.unwatch();
    }

    /// The descriptor `fd` of the ring is waited for in ways that end unseen.
    pub(crate) fn watch_for_ever(self: &Arc<Self>, fd: i32) {
        self.hold(fd);
        if self.readiness.watch_for_ever() {
            self.settle();
        }
    }

    pub(crate) fn show_flags(&self, flags: u32) {
        let always = if self.has(setup::SQPOLL) { sq::NEED_WAKEUP } else { 0 };
        self.memory.word(Word::SqFlags).store(flags | always, Ordering::Release);
    }

    /// The program is about to close descriptors: requests on them keep their files.
    pub(crate) fn before_close(self: &Arc<Self>, fds: &RangeInclusive<i32>) {
        // In a signal handler, what it interrupts may have the lock.
        if self.has_requests() && !self.is_held_here() {
            self.with(|locked| locked.keep_files(fds));
            self.await_tries();
        }
    }

    /// Are there requests that have not ended?
    pub(crate) fn has_requests(&self) -> bool {
        self.taken.load(Ordering::Acquire) != self.ended()
    }

    /// Waits for threads that try reads by a descriptor's number: they do not wait. Not for long,
    /// as this may be a signal handler on such a thread.
    fn await_tries(&self) {
        const TRIES: u32 = 100;
        let mut patience = Patience::default();
        for _ in 0..TRIES {
            if self.trying.load(Ordering::Acquire) == 0 {
                return;
            }
            patience.wait();
        }
    }

    /// A number that changes with each request that ends.
    pub(crate) fn ended(&self) -> u32 {
        self.ended.load(Ordering::Acquire)
    }

    /// Completions that a wait for `min` misses. Any timeout ends the wait that has not been
    /// counted in `timeouts`.
    pub(crate) fn missing(&self, min: u32, timeouts: u32) -> u32 {
        if self.waits_for_others() {
            return 0;
        }
        self.missing_of_all(min, timeouts)
    }

    /// As [`missing`](Self::missing), whichever process they come from.
    pub(crate) fn missing_of_all(&self, min: u32, timeouts: u32) -> u32 {
        let waits = self.memory.page().timeouts.load(Ordering::Acquire) == timeouts;
        if waits { min.saturating_sub(self.completions()) } else { 0 }
    }

    /// What ends the wait of [`Core::missing`].
    pub(crate) fn concern(&self, min: u32, timeouts: u32) -> Concern {
        let words = [std::ptr::from_ref(self) as u64, min.into(), timeouts.into()];
        // SAFETY: what takes the completions of the engine's context holds this.
        unsafe {
            let is_over = |words: &[u64; 8], _: &IoEvent| {
                let core = &*(words[0] as *const Self);
                core.missing(words[1] as u32, words[2] as u32) == 0
            };
            Concern::new(is_over, &words)
        }
    }

    /// A request ends, after [`Core::ended`] was `seen`.
    pub(crate) fn concern_about_more(&self, seen: u32) -> Concern {
        let words = [std::ptr::from_ref(self) as u64, seen.into()];
        // SAFETY: as above.
        unsafe {
            let has_more = |words: &[u64; 8], _: &IoEvent| {
                u64::from((*(words[0] as *const Self)).ended()) != words[1]
            };
            Concern::new(has_more, &words)
        }
    }

    fn instance(&self) -> Option<Arc<Instance>> {
        self.instance.get().and_then(Weak::upgrade)
    }

    /// Wakes those who wait for completions of this ring.
    fn wake(&self) {
        if let Some(instance) = self.instance() {
            instance.wake_for(&IoEvent::default());
        }
    }

    /// Cancels a request that the engine has: 0, or a negative errno. One that is on its way to the
    /// engine, or that a thread is trying just now, is asked for again.
    pub(crate) fn cancel_at(self: &Arc<Self>, instance: &Instance, key: u64) -> i32 {
        const ON_ITS_WAY: u32 = 10_000;
        const TRIED: u32 = 200;
        let mut patience = Patience::default();
        for look in 0.. {
            let answer = match instance.cancel(key) {
                Ok(()) => return 0,
                Err(errno) => errno,
            };
            let most = if answer == -libc::ENOENT { ON_ITS_WAY } else { TRIED };
            // While another thread has the lock, the request counts as being with the engine.
            let stage = self.try_lock().map_or(Some(Stage::Engine), |mut locked| {
                let stage = locked.find(key).map(|at| locked.cancel_tried(at));
                self.run_tasks_of(locked.give_back());
                stage
            });
            match stage {
                // One on a socket that was just tried; or another cancel's, which has not told yet.
                Some(Stage::Ends) => return 0,
                Some(Stage::Tried | Stage::Engine) if look < most => {}
                _ => return answer,
            }
            patience.wait();
        }
        -libc::ENOENT
    }

    /// As [`cancel_at`](Self::cancel_at), many in their order. `answer` is told of each.
    pub(crate) fn cancel_each(
        self: &Arc<Self>,
        instance: &Instance,
        keys: &[u64],
        mut answer: impl FnMut(u64, i32),
    ) {
        if let &[key] = keys {
            return answer(key, self.cancel_at(instance, key));
        }
        instance.cancel_each(keys, |key, result| {
            answer(key, result.map_or_else(|_| self.cancel_at(instance, key), |()| 0));
        });
    }

    /// A thread ends: cancels what it has submitted, and waits a while for what is being executed.
    pub(crate) fn thread_ends(self: &Arc<Self>, instance: &Instance, thread: u32) {
        /// A request in a system call may never end.
        const LONGEST: Duration = Duration::from_secs(1);
        let end = Instant::now() + LONGEST;
        let found = self.with(|locked| locked.cancel_thread(thread));
        // As if they had been executed in io_uring_enter(2): what does not wait for others ends.
        let ends = |fd| Descriptor::fresh(fd).is_ok_and(Descriptor::is_seekable);
        let (kept, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|&(_, fd)| ends(fd));
        let mut running: Vec<u64> = kept.into_iter().map(|(key, _)| key).collect();
        let others: Vec<u64> = others.into_iter().map(|(key, _)| key).collect();
        self.cancel_each(instance, &others, |key, answer| {
            running.extend((answer == -libc::EALREADY).then_some(key));
        });
        loop {
            let seen = self.ended();
            self.with(|locked| {
                let ends = |key: &u64| locked.find(*key).is_some_and(|at| locked.will_end(at));
                running.retain(ends);
            });
            let left = end.saturating_duration_since(Instant::now());
            if running.is_empty() || left.is_zero() {
                return;
            }
            let wish = WaitCondition {
                missing: &|| u32::from(self.ended() == seen),
                concern: self.concern_about_more(seen),
                gives_up: &|| false,
                mask: None,
                restarts: true,
            };
            instance.wait_for(&wish, Some(left));
        }
    }

    /// Asks the engine to cancel. Gives the result of the request that has asked for it.
    fn ask_to_cancel(self: &Arc<Self>, job: &CancelJob) -> i32 {
        let (mut answer, mut done) = (-libc::ENOENT, job.done);
        if let Some(instance) = self.instance() {
            // There are several if all are meant.
            self.cancel_each(&instance, &job.keys, |_, result| {
                answer = result;
                done += i32::from(result == 0);
            });
        }
        match () {
            () if job.all => done,
            () if job.done > 0 || answer == 0 => {
                if job.is_link_timeout {
                    -libc::ETIME
                } else {
                    0
                }
            }
            () => answer,
        }
    }

    /// Hands requests to the engine that are ready, in their order.
    pub(crate) fn pass_on(self: &Arc<Self>) {
        self.handover.run(|| self.pass_on_now(), || self.can_pass_on());
    }

    /// Has the engine room, and is the lock free?
    fn can_pass_on(self: &Arc<Self>) -> bool {
        let instance = self.instance();
        if !instance.is_some_and(|instance| instance.has_room()) {
            return false;
        }
        let Some(locked) = self.try_lock() else { return false };
        self.run_tasks_of(locked.give_back());
        true
    }

    /// Hands some over. False: there is no room for the next, no engine, or another thread has the
    /// lock, and passes requests on when it goes.
    fn pass_on_now(self: &Arc<Self>) -> bool {
        let Some(instance) = self.instance() else { return false };
        // The entries of a large batch are written to memory before they are used.
        if self.handover.ready() <= 2 {
            self.pass_on_to::<2>(&instance)
        } else {
            self.pass_on_many(&instance)
        }
    }

    /// In a frame of its own: a small stack has no room for it beside others.
    #[inline(never)]
    fn pass_on_many(self: &Arc<Self>, instance: &Instance) -> bool {
        self.pass_on_to::<32>(instance)
    }

    fn pass_on_to<const MOST: usize>(self: &Arc<Self>, instance: &Instance) -> bool {
        let notify = if self.told.load(Ordering::Relaxed) { TOLD_OTHERWISE } else { -1 };
        let mut entries = [Entry { sqe: Sqe::nop(), data: 0, notify }; MOST];
        let mut count = 0;
        let Some(mut locked) = self.try_lock() else { return false };
        while count < MOST
            && let Some(at) = locked.ready.pop_front()
        {
            let request = &mut locked.requests[at as usize];
            request.stage = Stage::Engine;
            let key = u64::from(request.generation) << 32 | u64::from(at);
            entries[count].sqe = request.plan.sqe().user_data(key);
            count += 1;
        }
        let owes = locked.unlock();
        // SAFETY: the buffers are the request's by the contract of io_uring_enter(2); what else
        // it points to is kept in the request.
        let submitted = unsafe { instance.submit(&entries[..count]) };
        self.handover.sub(submitted.accepted);
        let all = submitted.accepted == count;
        if owes && let Some(locked) = self.try_lock() {
            self.run_tasks_of(locked.give_back());
        }
        if !all {
            let left = entries[submitted.accepted..count].iter();
            let keys = left.map(|entry| entry.sqe.user_data).collect();
            self.run_tasks_of(self.bring(Mail::Refused(keys, submitted.refused)));
        }
        all
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.readiness.is_readable() {
            ARMED.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Locked<'_> {
    /// What the engine has not taken over is ready once more; or ends, if nobody executes it.
    fn take_back(&mut self, keys: &[u64], errno: i32) {
        for at in keys.iter().rev().filter_map(|&key| self.find(key)).collect::<Vec<u32>>() {
            self.request(at).stage = Stage::Ready;
            self.state.ready.push_front(at);
        }
        if errno == -libc::EAGAIN {
            return;
        }
        while let Some(at) = self.state.ready.pop_front() {
            self.core.handover.sub(1);
            self.finish(at, errno, 0);
        }
    }

    /// Makes flags and descriptor say what is true. True: the descriptor tells of something new.
    fn settle(&mut self) -> bool {
        let core = self.core;
        let change = core.readiness.settle(core.completions() > 0);
        let mut flags = 0;
        if self.state.completions.has_overflown() {
            flags |= sq::CQ_OVERFLOW;
        }
        // Where the program has not asked for it, it is what has newer libraries call at an empty
        // ring, so that its descriptor is cleared.
        let calls = if core.has(setup::TASKRUN_FLAG) {
            self.state.completions.has_deferred()
        } else {
            core.readiness.is_readable()
        };
        if calls {
            flags |= sq::TASKRUN;
        }
        // First the flags: who is woken looks at them.
        if self.speaks_for_ring() {
            core.show_flags(flags);
        }
        let tail = core.memory.tail();
        let is_news = std::mem::replace(&mut self.state.told_tail, tail) != tail;
        match change {
            Some(true) => _ = ARMED.fetch_add(1, Ordering::Relaxed),
            Some(false) => {
                ARMED.fetch_sub(1, Ordering::Relaxed);
                core.eventfd.get().inspect(|fd| sys::eventfd_clear(fd.number()));
                return false;
            }
            // The program may have reaped what it was told of, and wait for an edge.
            None if is_news && core.readiness.repeats() => {}
            None => return false,
        }
        core.eventfd.get().inspect(|fd| sys::eventfd_set(fd.number()));
        true
    }

    /// The request that has this key, if it is still that one.
    pub(crate) fn find(&self, key: u64) -> Option<u32> {
        let at = key as u32;
        let request = self.state.requests.get(at as usize)?;
        (request.generation == (key >> 32) as u32 && request.stage != Stage::Free).then_some(at)
    }

    pub(crate) fn key(&self, at: u32) -> u64 {
        u64::from(self.state.requests[at as usize].generation) << 32 | u64::from(at)
    }

    pub(crate) fn request(&mut self, at: u32) -> &mut Request {
        &mut self.state.requests[at as usize]
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        self.core
    }

    /// Requests that have not ended, by number.
    pub(crate) fn live(&self) -> impl Iterator<Item = (u32, &Request)> {
        let all = self.state.requests.iter().enumerate();
        all.filter(|(_, request)| request.stage != Stage::Free)
            .map(|(at, request)| (at as u32, request))
    }

    fn take(&mut self) -> u32 {
        let at = self.state.free.pop().unwrap_or_else(|| {
            self.state.requests.push(Request::new());
            self.state.requests.len() as u32 - 1
        });
        let request = self.request(at);
        request.generation = request.generation.wrapping_add(1);
        request.stage = Stage::Waits;
        (request.next, request.timeout, request.target) = (NONE, NONE, NONE);
        (request.refused, request.expected, request.canceled_by) = (0, -1, 0);
        (request.quiet, request.failed) = (false, false);
        let taken = self.core.taken.load(Ordering::Relaxed).wrapping_add(1);
        self.core.taken.store(taken, Ordering::Release);
        at
    }

    /// Requests on these numbers get other descriptors of their files. Without one, a request has
    /// its number only.
    fn keep_files(&mut self, fds: &RangeInclusive<i32>) {
        let mut known: Vec<(i32, File)> = Vec::new();
        for request in &mut self.state.requests {
            let waits = matches!(
                request.stage,
                Stage::Ready | Stage::Behind | Stage::Tried | Stage::Engine | Stage::Poll(_)
            );
            let is_on = waits && request.file.is_none() && fds.contains(&request.fd);
            if !is_on || !prepare::has_file(request.opcode) {
                continue;
            }
            let found = known.iter().find(|(fd, _)| *fd == request.fd);
            let file = found.map(|(_, file)| file.clone()).or_else(|| {
                let descriptor = OwnDescriptor::duplicate(request.fd)?;
                known.push((request.fd, File { descriptor }));
                known.last().map(|(_, file)| file.clone())
            });
            let Some(file) = file else { continue };
            if matches!(request.stage, Stage::Ready | Stage::Tried)
                && let Plan::Engine(sqe, _) = &mut request.plan
                && sqe.fd == request.fd
            {
                sqe.fd = file.descriptor.number();
            }
            request.file = Some(Arc::new(Registered { value: file, tag: 0 }));
        }
        self.move_lines(&known);
    }

    /// Goes on with a batch: consumes up to `count` entries, for a thread or for none (0). `gone`
    /// is the word of an owner that is gone, or 0.
    fn submit(&mut self, count: u32, thread: u32, batch: &mut Batch, gone: u64) -> Submitted {
        let core = self.core;
        self.state.is_in_batch = false;
        if let Err(by) = self.claim(gone) {
            return Submitted::Held(by);
        }
        let sq_head = &core.memory.page().sq_head;
        if !batch.is_over && sq_head.load(Ordering::Relaxed) != batch.next() {
            return Submitted::Overtaken;
        }
        (self.state.submits, self.state.is_in_batch) = (core.is_entered(), true);
        self.start_new();
        while self.state.asking == 0 && !batch.is_over {
            batch.is_over = !self.submit_one(count, thread, batch);
            if batch.is_over {
                // A chain ends with its batch.
                self.end_chain();
            }
            sq_head.store(batch.next(), Ordering::Release);
            self.start_new();
        }
        self.state.submits = false;
        let head = sq_head.load(Ordering::Relaxed);
        core.memory.word(Word::SqHead).store(head, Ordering::Release);
        if self.state.asking > 0 {
            return Submitted::Asks;
        }
        self.state.is_in_batch = false;
        self.take_steps();
        Submitted::All
    }

    /// Consumes an entry. False: the batch ends there.
    fn submit_one(&mut self, count: u32, thread: u32, batch: &mut Batch) -> bool {
        let core = self.core;
        if batch.consumed == count || batch.taken == batch.there {
            return false;
        }
        let place = batch.next();
        batch.taken += 1;
        let Some((at, prepared)) = self.accept(place, batch) else {
            core.memory.word(Word::SqDropped).fetch_add(1, Ordering::Relaxed);
            // Consumed, and none of those that were submitted.
            self.end_chain();
            return core.has(setup::SQPOLL);
        };
        batch.consumed += 1;
        self.journal_taken(at, place);
        // A poller goes on where the batch of a call would end.
        self.assemble(at, prepared, thread) || core.has(setup::SUBMIT_ALL | setup::SQPOLL)
    }

    /// Makes a request of the entry at a place. `None`: the program's index for it is out of range.
    fn accept(&mut self, place: u32, batch: &mut Batch) -> Option<(u32, Result<(), Refused>)> {
        if let Some(Prepared { request, answer, .. }) = batch.take(place) {
            let at = self.take();
            let Request { generation, stage, .. } = *self.request(at);
            *self.request(at) = Request { generation, stage, ..request };
            return Some((at, answer));
        }
        let entry = self.core.memory.sqe(place)?;
        let at = self.take();
        let iopoll = self.core.has(setup::IOPOLL);
        let answer = self.request(at).prepare(&Fields(entry), iopoll);
        Some((at, answer))
    }

    /// Adds a request to its chain. False: its preparation has failed, and a batch ends here.
    fn assemble(&mut self, at: u32, prepared: Result<(), Refused>, thread: u32) -> bool {
        let refused = self.judge(at, prepared);
        let head = self.state.chains.head();
        let request = self.request(at);
        (request.refused, request.thread) = (refused, thread);
        let links = request.flags & (iosqe::LINK | iosqe::HARDLINK) != 0;
        // Not that of an entry that no ring takes.
        let drains = request.flags & iosqe::DRAIN != 0;
        if refused != 0 && head != NONE {
            // The chain is assembled to its end, and fails as a whole.
            let head = self.request(head);
            if head.refused == 0 {
                head.refused = -libc::ECANCELED;
            }
        }
        let state = &mut *self.state;
        state.chains.add(&mut state.requests, at, drains);
        if links {
            // Not even the failed one ends the batch.
            return true;
        }
        self.end_chain();
        refused == 0
    }

    fn end_chain(&mut self) {
        let state = &mut *self.state;
        state.chains.end(&state.requests);
    }

    /// Starts chains that were let through.
    fn start_new(&mut self) {
        while self.state.asking == 0
            && let Some(at) = self.state.chains.next_start()
        {
            self.start(at);
        }
    }

    /// Does what follows from the end of requests, until there is nothing. A batch goes first.
    fn take_steps(&mut self) {
        if self.state.is_in_batch {
            return;
        }
        self.state.stepping = true;
        while self.state.asking == 0 {
            let state = &mut *self.state;
            match state.chains.next_step(&state.requests) {
                Some(Step::Start(at)) => self.start(at),
                Some(Step::End(at, result)) => self.finish(at, result, 0),
                Some(Step::Break { head, quiet }) => self.cancel_chain(head, quiet),
                None => break,
            }
        }
        self.state.stepping = false;
    }

    fn start(&mut self, at: u32) {
        let refused = self.request(at).refused;
        if refused != 0 {
            self.request(at).stage = Stage::Here;
            // A chain that was broken when it was made: hard links do not mend it.
            self.request(at).flags &= !iosqe::HARDLINK;
            if self.request(at).next != NONE {
                self.request(at).flags |= iosqe::LINK;
            }
            return self.finish(at, refused, 0);
        }
        self.request(at).stage = Stage::Here;
        let key = self.key(at);
        match self.issue(at) {
            Some(result) => self.finish(at, result, 0),
            None if self.find(key).is_none() => {}
            None => {
                if self.request(at).stage == Stage::Ready && !self.is_tried(at) {
                    self.make_ready(at);
                }
                let next = self.request(at).next;
                // A call of this thread's cannot be cancelled.
                let waits = self.request(at).stage != Stage::Here;
                if waits && next != NONE && self.request(next).opcode == op::LINK_TIMEOUT {
                    self.set_link_timeout(at, next);
                }
            }
        }
    }

    /// The engine is to get a request.
    fn make_ready(&mut self, at: u32) {
        let request = self.request(at);
        request.stage = Stage::Ready;
        request.in_front = !matches!(request.opcode, op::READ | op::READV | op::READ_FIXED);
        self.state.in_front += u32::from(self.state.requests[at as usize].in_front);
        self.state.ready.push_back(at);
        self.core.handover.add();
    }

    /// Has the submitting thread try a read without the lock. False: it is none that can be tried,
    /// or the engine has others than reads: programs may count on their order, which many file
    /// systems keep.
    fn is_tried(&mut self, at: u32) -> bool {
        let (key, submits) = (self.key(at), self.state.submits && self.state.in_front == 0);
        let request = self.request(at);
        let Plan::Engine(sqe, None) = request.plan else { return false };
        let alone = request.next == NONE && request.flags & iosqe::ASYNC == 0;
        let is_read = matches!(request.opcode, op::READ | op::READ_FIXED);
        if !submits || !alone || !is_read || !uringlet::front::is_read_inline(sqe.fd) {
            return false;
        }
        request.stage = Stage::Tried;
        self.state.tries.push(Try { key, sqe, result: None });
        true
    }

    /// The engine has ended a request. If a cancel has had that done, the cancel's completion is
    /// posted first.
    pub(crate) fn complete(&mut self, at: u32, result: i32) {
        let by = self.request(at).canceled_by;
        if result != -libc::ECANCELED || self.find(by).is_none() {
            return self.finish(at, result, 0);
        }
        self.request(at).stage = Stage::Ends;
        self.state.held.push((by, at));
    }

    /// A request has ended. After a cancel, the requests that the engine cancelled for it end.
    fn let_follow(&mut self, by: u64) {
        let State { held, chains, .. } = &mut *self.state;
        for (_, at) in held.extract_if(.., |(of, _)| *of == by) {
            chains.then_first(Step::End(at, -libc::ECANCELED));
        }
    }

    /// Takes a request from where it waits. It ends with this result in the next round.
    pub(crate) fn end_later(&mut self, at: u32, result: i32) {
        self.disarm(at);
        self.request(at).stage = Stage::Ends;
        self.state.chains.then_first(Step::End(at, result));
    }

    /// As [`end_later`](Self::end_later), and no cancel finds it any more.
    pub(crate) fn remove(&mut self, at: u32) {
        self.end_later(at, -libc::ECANCELED);
        self.request(at).stage = Stage::Removed;
    }

    /// As [`end_later`](Self::end_later), cancelled by the request with this key: behind that.
    pub(crate) fn end_behind(&mut self, by: u64, at: u32) {
        self.disarm(at);
        self.request(at).stage = Stage::Ends;
        self.state.held.push((by, at));
    }

    /// Ends a request: its completion is posted, and its chain goes on or is broken.
    pub(crate) fn finish(&mut self, at: u32, result: i32, flags: u32) {
        let result = match self.request(at).target_slot.take() {
            Some(slot) if result >= 0 => {
                // SAFETY: the request has opened it, for this slot alone.
                let opened = unsafe { OwnedFd::from_raw_fd(result) };
                self.install_opened(slot, opened)
            }
            _ => result,
        };
        let request = self.request(at);
        let (result, breaks) =
            request.call.as_deref().map_or((result, false), |call| call.outcome(result));
        let failed = breaks
            || match request.opcode {
                op::TIMEOUT => {
                    let asked = match &request.plan {
                        Plan::Timeout(timing) => timing.flags & abi::timeout::ETIME_SUCCESS != 0,
                        _ => false,
                    };
                    result < 0 && !(result == -libc::ETIME && asked)
                }
                op::LINK_TIMEOUT => false,
                _ => result < 0 || request.expected >= 0 && result != request.expected,
            };
        if failed && request.flags & iosqe::CQE_SKIP != 0 {
            request.quiet = true;
        }
        let skips = request.flags & iosqe::CQE_SKIP != 0 && !failed;
        let breaks = failed && request.flags & iosqe::HARDLINK == 0;
        let (opcode, user_data, quiet) = (request.opcode, request.user_data, request.quiet);
        let (timeout, mut next, key) = (request.timeout, request.next, self.key(at));
        self.let_go(at);
        let cqe = Cqe { user_data, res: result, flags };
        self.post_last(at, (!skips).then_some(cqe), opcode == op::TIMEOUT);
        if !self.state.held.is_empty() {
            self.let_follow(key);
        }
        if timeout != NONE {
            // The one that was set for it, and which it has outrun.
            let after = std::mem::replace(&mut self.request(timeout).next, NONE);
            self.request(timeout).target = NONE;
            self.disarm(timeout);
            self.request(timeout).stage = Stage::Ends;
            self.state.chains.then(Step::End(timeout, -libc::ECANCELED));
            if next == timeout {
                next = after;
            }
        }
        if next != NONE {
            let step = if breaks { Step::Break { head: next, quiet } } else { Step::Start(next) };
            self.state.chains.then(step);
        }
    }

    /// Ends the rest of a broken chain.
    fn cancel_chain(&mut self, mut next: u32, quiet: bool) {
        while next != NONE {
            let request = self.request(next);
            let result = if request.refused != 0 && request.refused != -libc::ECANCELED {
                request.refused
            } else {
                -libc::ECANCELED
            };
            let (at, user_data, opcode) = (next, request.user_data, request.opcode);
            next = request.next;
            self.let_go(at);
            let cqe = Cqe { user_data, res: result, flags: 0 };
            self.post_last(at, (!quiet).then_some(cqe), opcode == op::TIMEOUT);
        }
    }

    /// The last request of the chain that is being assembled.
    pub(crate) fn chain_tail(&self) -> u32 {
        self.state.chains.tail()
    }

    /// Takes a request from where it waits.
    fn disarm(&mut self, at: u32) {
        // Not copied: most have nothing behind their tag.
        match &self.request(at).stage {
            &Stage::Poll(poll) => {
                service::unwatch(poll, self.key(at), Arc::as_ptr(self.core).addr())
            }
            &Stage::Timer(timer) => {
                if let Some(timer) = timer {
                    timer.disarm();
                }
                self.state.counting.retain(|&other| other != at);
            }
            &Stage::LinkTimer(timer) => _ = timer.disarm(),
            Stage::Ready => {
                let before = self.state.ready.len();
                self.state.ready.retain(|&other| other != at);
                if self.state.ready.len() < before {
                    self.core.handover.sub(1);
                }
            }
            Stage::Free
            | Stage::Waits
            | Stage::Behind
            | Stage::Tried
            | Stage::Engine
            | Stage::Here
            | Stage::Ends
            | Stage::Removed => {}
        }
    }

    /// A poll is looked at by each thread that enters the ring, beside the thread for all polls.
    pub(crate) fn look_first(&mut self, at: u32) {
        let before = std::mem::replace(&mut self.request(at).looked_at, true);
        self.core.looks.fetch_add(u32::from(!before), Ordering::Relaxed);
    }

    /// Frees a request's place.
    fn let_go(&mut self, at: u32) {
        self.disarm(at);
        self.leave_line(at);
        let target = self.request(at).target;
        if target != NONE {
            self.request(target).timeout = NONE;
        }
        let request = self.request(at);
        let in_front = std::mem::take(&mut request.in_front);
        let asks = std::mem::take(&mut request.asks);
        let looked_at = std::mem::take(&mut request.looked_at);
        request.stage = Stage::Free;
        (request.call, request.target_slot, request.submitter) = (None, None, 0);
        request.plan = Plan::Nop(0);
        let files = [request.file.take(), request.source.take()];
        let buffer = request.buffer.take();
        files.into_iter().for_each(|file| self.release_file(file));
        self.release_buffer(buffer);
        self.state.in_front -= u32::from(in_front);
        self.state.asking -= u32::from(asks);
        self.core.looks.fetch_sub(u32::from(looked_at), Ordering::Relaxed);
        self.state.free.push(at);
        self.state.chains.ended();
        let ended = self.core.ended.load(Ordering::Relaxed).wrapping_add(1);
        self.core.ended.store(ended, Ordering::Release);
    }

    /// Posts a completion.
    pub(crate) fn post(&mut self, cqe: Cqe, of_timeout: bool) {
        let core = self.core;
        self.state.to_wake = true;
        let disabled =
            core.memory.word(Word::CqFlags).load(Ordering::Relaxed) & abi::CQ_EVENTFD_DISABLED;
        if disabled == 0
            && let Some((_, only_async)) = &self.state.eventfd
        {
            self.state.eventfd_due |= !only_async || !core.is_entered();
        }
        if core.has(setup::DEFER_TASKRUN) && (self.state.stepping || !core.is_entered()) {
            self.state.completions.defer(&core.counts, cqe);
        } else {
            self.state.completions.add(&core.counts, &*core.memory, cqe);
            self.flush_later();
        }
        if of_timeout {
            core.memory.page().timeouts.fetch_add(1, Ordering::Release);
            return;
        }
        self.state.posted = self.state.posted.wrapping_add(1);
        if !self.state.counting.is_empty() {
            self.count_timeouts();
        }
    }

    /// Ends the timeouts that have waited for as many completions.
    fn count_timeouts(&mut self) {
        let posted = self.state.posted;
        let counting = std::mem::take(&mut self.state.counting);
        let (due, left): (Vec<u32>, Vec<u32>) =
            counting.into_iter().partition(|&at| match &self.state.requests[at as usize].plan {
                Plan::Timeout(timing) => posted.wrapping_sub(timing.at) as i32 >= 0,
                _ => true,
            });
        self.state.counting = left;
        for at in due {
            self.end_later(at, 0);
        }
    }

    pub(crate) fn count_from_now(&self, count: u32) -> u32 {
        self.state.posted.wrapping_add(count)
    }

    /// Can the ring take a completion that more will follow?
    pub(crate) fn can_go_on(&self) -> bool {
        self.state.completions.has_room(&self.core.counts, &*self.core.memory)
    }

    /// Moves into the ring what waits for that, as far as there is room.
    pub(crate) fn flush(&mut self) {
        self.state.completions.flush(&self.core.counts, &*self.core.memory);
    }

    /// Closing: everything that waits in here ends. Gives the keys of what the engine has.
    pub(crate) fn cancel_everything(&mut self) -> Vec<u64> {
        self.end_chain();
        while let Some(head) = self.state.chains.pop_held() {
            self.cancel_chain(head, true);
        }
        let live: Vec<(u32, Stage)> =
            self.live().map(|(at, request)| (at, request.stage)).collect();
        let mut keys = Vec::new();
        for (at, stage) in live {
            let generation_matches = self.state.requests[at as usize].stage == stage;
            if !generation_matches {
                continue;
            }
            match stage {
                Stage::Engine => keys.push(self.key(at)),
                Stage::Poll(_) | Stage::Timer(_) | Stage::Ready | Stage::Behind => {
                    self.finish(at, -libc::ECANCELED, 0);
                }
                _ => {}
            }
        }
        self.state.chains.forget_starts();
        keys
    }

    /// Cancels what a thread has submitted that ends, but for timeouts. Gives the keys of what the
    /// engine has or gets, and the number of the file of a transfer (or -1).
    fn cancel_thread(&mut self, thread: u32) -> Vec<(u64, i32)> {
        let mut found = Vec::new();
        for at in 0..self.state.requests.len() as u32 {
            let request = self.request(at);
            if request.thread != thread {
                continue;
            }
            let fd = if request.call.is_none() { request.number() } else { -1 };
            match request.stage {
                Stage::Engine | Stage::Ready => found.push((self.key(at), fd)),
                Stage::Poll(_) | Stage::Behind => self.end_later(at, -libc::ECANCELED),
                // It is not started, or on its way to wait.
                Stage::Waits | Stage::Tried if request.refused == 0 => {
                    request.refused = -libc::ECANCELED
                }
                _ => {}
            }
        }
        found
    }

    /// Requests that the engine has and that may never end.
    pub(crate) fn may_hang(&self) -> bool {
        self.live().any(|(at, request)| request.stage == Stage::Engine && !self.will_end(at))
    }

    /// Will it end by itself?
    fn will_end(&self, at: u32) -> bool {
        let request = &self.state.requests[at as usize];
        // The engine has a poll if a server is asked.
        request.opcode != op::POLL_ADD && !request.call.as_deref().is_some_and(Call::may_hang)
    }
}

// Miri knows no shared memory.
#[cfg(all(test, not(miri)))]
mod tests;
