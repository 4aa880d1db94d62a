//! What a ring does without its lock. It hands requests to the engine, and takes their results. It
//! tries reads and writes. It runs tasks, and handles timers and polls.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use uringlet::Sqe;
use uringlet::front::{self, Entry, Instance, IoEvent, Patience, Sink, TOLD_OTHERWISE};

use super::batch::Batch;
use super::lock::After;
use super::polls::POLLS_RINGS;
use super::state::{Core, Locked, calls_more};
use super::submit::Submitted;
use super::types::{
    Attempted, CancelJob, Mail, Parcel, Peer, PlainSend, SendOutcome, Sender, Stage, Task, Try,
    is_in_order,
};
use crate::abi::{op, rwf, setup};
use crate::attempts::Tried;
use crate::memory::Word;
use crate::prepare::{self, RingMessage};
use crate::service::{self, Events, Watcher};
use crate::timers::Expires;
use crate::tuning::{CANCEL_TRIED_TRIES, CANCEL_TRIES, SUBMIT_TRIES, TRIES_AT_ONCE};
use crate::{shared, sys};

/// The minimum and the maximum number of requests of one ring that the engine has at a time.
/// Further requests wait.
pub(crate) const SLOTS: (u32, u32) = (64, 4096);
/// The maximum number of requests that one call passes on to the engine.
const PASSED_ON: usize = 32;

impl Core {
    /// Calls `f` with the lock. After the lock is released, does the work that `f` has left.
    pub(crate) fn with<R>(self: &Arc<Self>, f: impl FnOnce(&mut Locked<'_>) -> R) -> R {
        let mut locked = self.lock();
        let answer = f(&mut locked);
        self.follow_up(locked.give_back());
        answer
    }

    /// Consumes up to `count` entries of the queue. `thread` is the submitting thread, or 0.
    /// Returns the number of consumed entries. Never inlined: a call that needs only
    /// [`submit_fast`](Self::submit_fast) would reserve and fill this function's stack frame, too.
    ///
    /// # Errors
    /// `-EEXIST`: another process has requests of this ring in flight.
    #[inline(never)]
    pub(crate) fn submit(
        self: &Arc<Self>,
        engine: &Instance,
        count: u32,
        thread: u32,
    ) -> Result<u32, i32> {
        let (mut gone, mut all) = (0, 0);
        let mut patience = Patience::default();
        for _ in 0..SUBMIT_TRIES {
            let head = self.memory.page().sq_head.load(Ordering::Acquire);
            let tail = self.memory.word(Word::SqTail).load(Ordering::Acquire);
            let there = tail.wrapping_sub(head).min(self.memory.sq_entries());
            let iopoll = self.has(setup::IOPOLL);
            let count = count - all;
            let mut batch = Batch::read(&self.memory, (head, there), count, iopoll);
            loop {
                let before = batch.consumed;
                let mut locked = self.lock();
                let is_inside = locked.asks_here();
                let submitted = locked.submit(count, thread, &mut batch, gone);
                if !locked.tries.is_empty() {
                    locked = self.try_all(engine, locked);
                }
                self.after_submit(engine, locked.give_back());
                match submitted {
                    Submitted::All => return Ok(all + batch.consumed),
                    // This is a signal handler. It has interrupted its own thread in a call for
                    // which later entries wait.
                    Submitted::Pauses if is_inside => {
                        let consumed = all + batch.consumed;
                        return if consumed > 0 { Ok(consumed) } else { Err(-libc::EAGAIN) };
                    }
                    // Another thread makes a call for which later entries wait.
                    Submitted::Pauses if batch.consumed == before => patience.wait(),
                    Submitted::Pauses => {}
                    Submitted::Overtaken => {
                        // The other thread may have taken entries of this batch. The next try reads
                        // the queue anew.
                        all += batch.consumed;
                        break;
                    }
                    _ if all + batch.consumed > 0 => return Ok(all + batch.consumed),
                    Submitted::Held(by) if by != gone && shared::process::is_gone(by) => {
                        gone = by;
                        break;
                    }
                    Submitted::Held(_) => return Err(-libc::EEXIST),
                }
            }
        }
        Ok(all)
    }

    /// As [`follow_up`](Self::follow_up), after a submit.
    #[inline]
    pub(super) fn after_submit(self: &Arc<Self>, engine: &Instance, mut after: After) {
        if std::mem::take(&mut after.wake) {
            engine.wake_for(&IoEvent::default());
        }
        if self.handover.ready() > 0 {
            engine.try_streams_of(|| self.pass_on_to(engine));
        } else {
            self.pass_on_to(engine);
        }
        self.follow_up(after);
    }

    /// Sends a message of data to the ring.
    ///
    /// # Errors
    /// A negative errno.
    pub(crate) fn tell(self: &Arc<Self>, what: &RingMessage) -> Result<i32, i32> {
        let parcel = Parcel::of_data(what)?;
        Ok(self.with(|locked| locked.open_parcel(parcel)))
    }

    /// Does the work that was left for after the lock.
    #[inline]
    pub(super) fn follow_up(self: &Arc<Self>, after: After) {
        if after.wake {
            self.wake();
        }
        // This comes first, because a task may wait.
        self.pass_on();
        if let Some(tasks) = after.tasks {
            self.run_tasks(tasks);
        }
        if after.told && POLLS_RINGS.load(Ordering::Relaxed) {
            // This ring's descriptor may be polled, by another ring or by this one.
            service::look_at_all();
        }
    }

    /// Tries reads and sends that were just submitted, as the kernel does when it issues them, and
    /// executes a write behind the reads. A read that would wait goes to the engine, and the write
    /// follows it. The lock is given back meanwhile.
    fn try_all<'a>(self: &'a Arc<Self>, engine: &Instance, mut locked: Locked<'a>) -> Locked<'a> {
        // Another thread that has the lock meanwhile must not run this thread's tasks.
        let mut tasks = std::mem::take(&mut locked.state.tasks);
        let mut tries = std::mem::take(&mut locked.state.tries);
        self.executes_one_more();
        if locked.unlock() {
            self.with(|_| ());
        }
        let mut all = true;
        let mut waiting = Vec::new();
        for one in &mut tries {
            match one {
                Try::Send(send) => make_send(send, &mut waiting),
                Try::Transfer { sqe, result, .. } => {
                    if all || !is_in_order(sqe) {
                        // SAFETY: the buffer is the request's by the contract of
                        // io_uring_enter(2).
                        *result = unsafe { engine.try_now(sqe) };
                    }
                    all &= result.is_some();
                }
            }
        }
        let mut locked = self.lock();
        self.executes_one_less();
        for one in tries.drain(..) {
            match one {
                Try::Send(send) => {
                    calls_more(-1);
                    locked.send_was_made(send);
                }
                Try::Transfer { key, result, .. } => {
                    let Some(at) = locked.find(key) else { continue };
                    locked.transfer_was_tried(at, result);
                }
            }
        }
        if !waiting.is_empty() {
            // Later sends of these sockets wait behind the earlier ones.
            let is_behind = |task: &mut Task| match task {
                Task::Send(send) => waiting.contains(&send.fields.fd()) && !send.gives_up(),
                _ => false,
            };
            for task in tasks.extract_if(.., is_behind) {
                if let Task::Send(send) = task {
                    calls_more(-1);
                    locked.send_was_made(send);
                }
            }
        }
        tasks.append(&mut locked.state.tasks);
        // The next submit needs no allocation.
        (locked.state.tasks, locked.state.tries) = (tasks, tries);
        locked
    }

    /// As [`follow_up`](Self::follow_up), for a thread that passes requests on anyway.
    pub(super) fn run_tasks_of(self: &Arc<Self>, after: After) {
        if after.wake {
            self.wake();
        }
        if let Some(tasks) = after.tasks {
            self.run_tasks(tasks);
        }
    }

    #[cold]
    pub(super) fn run_tasks(self: &Arc<Self>, tasks: Box<[Task]>) {
        let (mut tasks, mut tried) = (VecDeque::from(tasks.into_vec()), Vec::new());
        // Calls of requests that were tried, and sockets on which a send waits.
        let (mut requests, mut waiting) = (0, Vec::new());
        while let Some(task) = tasks.pop_front() {
            let attempted = match task {
                Task::Try(key, fd, socket) => {
                    requests += 1;
                    Attempted::Request(key, socket.try_now(fd))
                }
                Task::Send(mut send) => {
                    make_send(&mut send, &mut waiting);
                    Attempted::Send(send)
                }
                other => {
                    if let Some(mail) = self.run_task(other, &tasks) {
                        self.bring_for(mail, &mut tasks);
                    }
                    continue;
                }
            };
            tried.push(attempted);
            let goes_on = tasks.front().is_some_and(is_try);
            let waits = !self.polls_edges.load(Ordering::Relaxed);
            if goes_on && waits && tried.len() < TRIES_AT_ONCE {
                continue;
            }
            if goes_on {
                service::goes_on();
            }
            calls_more(-(tried.len() as i32));
            self.trying.fetch_sub(std::mem::take(&mut requests), Ordering::Release);
            self.bring_for(Mail::Tried(std::mem::take(&mut tried)), &mut tasks);
        }
    }

    /// Brings mail, and adds the tasks that follow.
    fn bring_for(self: &Arc<Self>, mail: Mail, tasks: &mut VecDeque<Task>) {
        let after = self.bring(mail);
        if after.wake {
            self.wake();
        }
        self.pass_on();
        tasks.extend(after.tasks.into_iter().flatten());
    }

    /// Runs a task that tries no call. Returns its result. `left`: the tasks after it.
    fn run_task(self: &Arc<Self>, task: Task, left: &VecDeque<Task>) -> Option<Mail> {
        match task {
            Task::Drop(file) => drop(file),
            Task::Parcel { key, to, parcel } => {
                let from = Arc::clone(self) as Arc<dyn Peer>;
                return to.receive(parcel, (from, key)).map(|result| Mail::Ended(key, result));
            }
            Task::Answer((to, key), result) => to.answer(key, result),
            Task::Sleep(key, sleeper) => {
                let core = Arc::clone(self);
                let tell = move |result| core.follow_up(core.bring(Mail::Ended(key, result)));
                sleeper.sleep(Box::new(tell));
            }
            Task::Cancel(job) => return Some(Mail::Ended(job.by, self.ask_to_cancel(&job))),
            Task::Call(key, call) => {
                // A close waits for the tries of other requests. This thread has still to make
                // them, so the engine gets the close.
                let waits = call.is_close() && left.iter().any(is_try);
                let call = if waits {
                    self.with(|locked| locked.hand_over_call(key, call))?
                } else {
                    call
                };
                return Some(Mail::Ended(key, call.run()));
            }
            Task::Open(key, call) => {
                let result = match call.open_at_once() {
                    Some(result) => result,
                    None => {
                        self.with(|locked| locked.hand_over_call(key, call))?;
                        -libc::ECANCELED
                    }
                };
                return Some(Mail::Ended(key, result));
            }
            Task::Try(..) | Task::Send(_) => {}
        }
        None
    }
}

fn is_try(task: &Task) -> bool {
    matches!(task, Task::Try(..) | Task::Send(_))
}

/// Makes a send without waiting. `waiting` names the sockets on which an earlier send waits. On
/// these sockets, only a send with MSG_DONTWAIT is made.
fn make_send(send: &mut PlainSend, waiting: &mut Vec<i32>) {
    let fd = send.fields.fd();
    if waiting.contains(&fd) && !send.gives_up() {
        return;
    }
    let mut socket = prepare::plain_send(&send.fields);
    let is_write = send.fields.opcode() == op::WRITE;
    // As in the kernel, a write raises SIGPIPE in the thread that submits it.
    socket.raises_signal(is_write);
    send.outcome = match socket.try_now(fd) {
        Tried::Done(result) if is_write && result == -libc::ENOTSOCK => SendOutcome::Untried,
        Tried::Done(result) => SendOutcome::Ended(result),
        tried => {
            waiting.push(fd);
            socket.raises_signal(false);
            SendOutcome::Waits(socket.shared(), tried)
        }
    };
}

impl Peer for Core {
    fn receive(self: Arc<Self>, parcel: Parcel, from: Sender) -> Option<i32> {
        let Some(mut locked) = self.try_lock() else {
            self.follow_up(self.bring(Mail::Parcel(Box::new((parcel, from)))));
            return None;
        };
        let result = locked.open_parcel(parcel);
        let after = locked.give_back();
        self.follow_up(after);
        Some(result)
    }

    fn answer(self: Arc<Self>, key: u64, result: i32) {
        self.follow_up(self.bring(Mail::Ended(key, result)));
    }
}

impl Expires for Core {
    fn on_timer(self: Arc<Self>, key: u64) {
        self.follow_up(self.bring(Mail::Timer(key)));
    }
}

impl Watcher for Core {
    fn on_polls(self: Arc<Self>, events: Events) -> Box<dyn FnOnce()> {
        let after = self.bring(Mail::Polls(events));
        Box::new(move || self.follow_up(after))
    }
}

impl Core {
    /// Makes the engine that executes this process's requests of the ring.
    ///
    /// # Errors
    /// A negative errno.
    pub(crate) fn engine(self: &Arc<Self>) -> Result<Arc<Instance>, i32> {
        let slots = self.memory.cq_entries().clamp(SLOTS.0, SLOTS.1);
        let builder = front::env::builder()?.entries(slots).kernel_room(slots);
        let sink = Box::new(Deliver(Arc::clone(self)));
        let instance = Instance::with_sink(&builder, sink).map_err(|error| -error.errno())?;
        let _ = self.instance.set(Arc::downgrade(&instance));
        Ok(instance)
    }

    fn instance(&self) -> Option<Arc<Instance>> {
        self.instance.get().and_then(Weak::upgrade)
    }

    /// Wakes the threads that wait for completions of this ring.
    fn wake(&self) {
        if let Some(instance) = self.instance() {
            instance.wake_for(&IoEvent::default());
        }
    }

    /// Hands ready requests to the engine, in their order.
    pub(super) fn pass_on(self: &Arc<Self>) {
        if self.handover.ready() > 0
            && let Some(engine) = self.instance()
        {
            self.pass_on_to(&engine);
        }
    }

    /// As [`pass_on`](Self::pass_on), to the engine of this ring.
    fn pass_on_to(self: &Arc<Self>, engine: &Instance) {
        self.handover.run(|| self.pass_on_now(engine), || self.can_pass_on(engine));
    }

    /// Does the engine have room, and is the lock free?
    fn can_pass_on(self: &Arc<Self>, engine: &Instance) -> bool {
        if !engine.has_room() {
            return false;
        }
        let Some(locked) = self.try_lock() else { return false };
        self.run_tasks_of(locked.give_back());
        true
    }

    /// Hands the first ready requests to the engine. False: the engine has not accepted all of
    /// them, or another thread has the lock. That thread passes requests on afterwards.
    fn pass_on_now(self: &Arc<Self>, engine: &Instance) -> bool {
        let entry = Entry { sqe: Sqe::nop(), data: 0, notify: -1 };
        // SAFETY: the buffers are the request's by the contract of io_uring_enter(2); other memory
        // that an entry points to is kept in the request.
        let submit = |entries: &[Entry]| unsafe { engine.submit(entries) };
        // Many entries do not fit on a small stack, so they are in a shared buffer. One thread at a
        // time uses it.
        if self.handover.ready() > 2
            && let Ok(mut entries) = self.passed_on.try_lock()
        {
            entries.resize(PASSED_ON, entry);
            return self.pass_on_some(&mut entries, submit);
        }
        self.pass_on_some(&mut [entry; 2], submit)
    }

    /// [`Entry::notify`] of this ring's requests.
    #[inline]
    pub(super) fn notify(&self) -> i32 {
        if self.told.load(Ordering::Relaxed) { TOLD_OTHERWISE } else { -1 }
    }

    pub(super) fn pass_on_some(
        self: &Arc<Self>,
        entries: &mut [Entry],
        submit: impl FnOnce(&[Entry]) -> front::Submitted,
    ) -> bool {
        let notify = self.notify();
        let mut count = 0;
        let Some(mut locked) = self.try_lock() else { return false };
        while count < entries.len()
            && let Some(sqe) = locked.next_for_engine()
        {
            (entries[count].sqe, entries[count].notify) = (sqe, notify);
            count += 1;
        }
        // The entries name descriptors by number. A close(2) waits a while for `trying` to become
        // 0.
        self.trying.fetch_add(1, Ordering::Relaxed);
        calls_more(1);
        let owes = locked.unlock();
        let submitted = submit(&entries[..count]);
        calls_more(-1);
        self.trying.fetch_sub(1, Ordering::Release);
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

    /// Asks the engine to cancel. Returns the result of the request that has asked for the cancel.
    fn ask_to_cancel(self: &Arc<Self>, job: &CancelJob) -> i32 {
        let (mut answer, mut done) = (-libc::ENOENT, job.done);
        if let Some(instance) = self.instance() {
            // A cancel with `IORING_ASYNC_CANCEL_ALL` may have several keys.
            self.cancel_each(&instance, &job.keys, |_, result| {
                answer = result;
                done += i32::from(result >= 0);
            });
        }
        job.answer(done, answer)
    }

    /// As [`cancel_at`](Self::cancel_at), for many requests in their order. `answer` gets the
    /// result of each.
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

    /// Cancels a request that the engine has, or that a separate thread waits for. Returns 0 or 1,
    /// or a negative errno. Looks again while the request is on its way to the engine or is being
    /// tried.
    pub(super) fn cancel_at(self: &Arc<Self>, instance: &Instance, key: u64) -> i32 {
        let mut patience = Patience::default();
        for look in 0.. {
            let answer = match instance.cancel(key) {
                Ok(()) => return 0,
                Err(errno) => errno,
            };
            let most = if answer == -libc::ENOENT { CANCEL_TRIES } else { CANCEL_TRIED_TRIES };
            // While another thread has the lock, the request counts as the engine's.
            let (mut sleeper, mut done) = (None, 0);
            let stage = self.try_lock().map_or(Some(Stage::Engine), |mut locked| {
                // If only the first cancel finds a request, and another cancel has ended it, this
                // cancel does not find it.
                let found = locked.find(key).filter(|&at| {
                    let request = locked.request(at);
                    request.stage != Stage::Ends || !request.is_cancelled_once()
                });
                let mut stage = found.map(|at| locked.cancel_tried(at));
                // For a wait for a futex or a child, the kernel returns the number of cancelled
                // waits.
                done = found.map_or(0, |at| i32::from(locked.request(at).is_cancelled_once()));
                if let Some(at) = found.filter(|_| look >= CANCEL_TRIED_TRIES)
                    && stage == Some(Stage::Tried)
                {
                    // This thread may be the one that should try the request, so it stops looking.
                    // If the try of a call on a socket would wait, the request then ends with
                    // ECANCELED.
                    locked.request(at).refused = -libc::ECANCELED;
                    stage = Some(Stage::Ends);
                }
                sleeper = found.and_then(|at| locked.sleeper(at));
                self.run_tasks_of(locked.give_back());
                stage
            });
            if let Some(sleeper) = sleeper {
                return if sleeper.cancel() { done } else { -libc::ENOENT };
            }
            match stage {
                // The request ends now. Or another cancel has ended the request, and its completion
                // is not posted yet.
                Some(Stage::Ends) => return done,
                Some(Stage::Tried | Stage::Engine) if look < most => {}
                _ => return answer,
            }
            patience.wait();
        }
        -libc::ENOENT
    }
}

/// Receives the engine's completions.
#[derive(Debug)]
struct Deliver(Arc<Core>);

impl Sink for Deliver {
    unsafe fn complete(&self, event: &IoEvent) {
        let core = &self.0;
        let after = core.bring(Mail::Ended(event.obj, event.res as i32));
        // The engine wakes the waiting threads, and calls `released`.
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
        // A socket refuses an offset, and a pipe ignores it. Flags that a socket refuses are left
        // to the call, which reports the error.
        let has_offset = ![0, u64::MAX].contains(&sqe.off);
        let is_refused = has_offset && sqe.op_flags & !rwf::OF_ANY_FILE == 0;
        (is_refused && sys::is_socket(sqe.fd)).then_some(-libc::ESPIPE)
    }

    fn after_transfer(&self, fd: i32, is_write: bool) {
        const READABLE: i16 = libc::POLLIN | libc::POLLRDNORM;
        const WRITABLE: i16 = libc::POLLOUT | libc::POLLWRNORM;
        service::went_through(fd, if is_write { WRITABLE } else { READABLE } as u32);
    }
}
