//! The lock of a ring: memory only is read and written under it. What can wait is left in a list of
//! tasks, and done without it. Threads that serve other rings, too, bring mail and never wait.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::VecDeque;
use std::ptr::null;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, MutexGuard, PoisonError, TryLockError};

use uringlet::front::IoEvent;
use uringlet::{Sqe, front};

use super::sharing::FLUSH;
use super::{CancelJob, Core, ENTERED, POLLS_RINGS, State};
use crate::abi::Cqe;
use crate::calls::Call;
use crate::files::{Buffer, File, Registered};
use crate::service::{self, Events, Watcher};
use crate::sockets::{Socket, Tried};
use crate::timers::{self, Timer};

thread_local! {
    /// The ring whose lock this thread has, or waits for. A signal handler finds it so.
    static HELD: Cell<*const Core> = const { Cell::new(null()) };
}

/// While it lives, this thread has the lock of a ring, or is about to have it.
#[derive(Debug)]
struct Holds {
    before: *const Core,
}

impl Holds {
    fn new(core: &Core) -> Self {
        Self { before: HELD.replace(core) }
    }
}

impl Drop for Holds {
    fn drop(&mut self) {
        HELD.set(self.before);
    }
}

/// What is done without the lock.
#[derive(Debug)]
pub(crate) enum Task {
    /// The engine is asked.
    Cancel(CancelJob),
    /// A call of this very thread, with its rights. The result ends the request that has this key.
    Call(u64, Box<Call>),
    /// A call on a socket is tried, for the request that has this key.
    Try(u64, i32, Arc<Socket>),
    /// A file that nobody uses any more is let go of.
    Drop(File),
}

/// A read that the submitting thread tries without the lock, and its result if it did not wait.
#[derive(Debug)]
pub(super) struct Try {
    pub(super) key: u64,
    pub(super) sqe: Sqe,
    pub(super) result: Option<i32>,
}

/// What a thread that has had the lock has to do without it.
#[derive(Debug, Default)]
#[must_use]
pub(super) struct After {
    tries: Vec<Try>,
    /// Usually none: a word that is null.
    pub(super) tasks: Option<Box<[Task]>>,
    /// Threads that wait for completions are woken.
    pub(super) wake: bool,
    /// The ring's descriptor tells of something new.
    told: bool,
}

impl After {
    #[cold]
    fn add(&mut self, tasks: Vec<Task>) {
        let all = self.tasks.take().into_iter().flatten().chain(tasks);
        self.tasks = Some(all.collect());
    }
}

/// What threads that do not wait for the lock have to say.
#[derive(Debug)]
pub(super) enum Mail {
    /// A request has ended, with its result.
    Ended(u64, i32),
    /// A call on a socket was tried.
    Tried(u64, Tried),
    Timer(u64),
    /// Requests whose descriptors are ready, with their events.
    Polls(Events),
    /// The engine has not taken these requests over, for want of room (`-EAGAIN`) or for good.
    Refused(Vec<u64>, i32),
}

/// The lock.
pub(crate) struct Locked<'a> {
    pub(super) core: &'a Arc<Core>,
    pub(super) state: MutexGuard<'a, State>,
    /// Goes after the lock.
    _holds: Holds,
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

impl Core {
    /// Calls `f` with the lock, and does without it what was left to be done.
    pub(crate) fn with<R>(self: &Arc<Self>, f: impl FnOnce(&mut Locked<'_>) -> R) -> R {
        let mut locked = self.lock();
        let answer = f(&mut locked);
        self.follow_up(locked.give_back());
        answer
    }

    fn lock(self: &Arc<Self>) -> Locked<'_> {
        let holds = Holds::new(self);
        // Nothing in the critical sections panics.
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut locked = Locked { core: self, state, _holds: holds };
        locked.read_mail();
        locked
    }

    /// `None`: some thread has the lock. It reads the mail, and passes requests on, when it goes.
    pub(super) fn try_lock(self: &Arc<Self>) -> Option<Locked<'_>> {
        let holds = Holds::new(self);
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let mut locked = Locked { core: self, state, _holds: holds };
        locked.read_mail();
        Some(locked)
    }

    /// Has mail read: by this thread, or by the one that has the lock. Does not wait.
    pub(super) fn bring(self: &Arc<Self>, mail: Mail) -> After {
        if let Some(mut locked) = self.try_lock() {
            locked.read(mail);
            return locked.give_back();
        }
        self.inbox.put(mail);
        fence(Ordering::SeqCst);
        self.try_lock().map(Locked::give_back).unwrap_or_default()
    }

    /// Does what was left to be done without the lock.
    #[inline]
    pub(super) fn follow_up(self: &Arc<Self>, mut after: After) {
        if !after.tries.is_empty() {
            let tried = self.try_reads(std::mem::take(&mut after.tries));
            after.wake |= tried.wake;
            after.told |= tried.told;
            if let Some(tasks) = tried.tasks {
                after.add(tasks.into_vec());
            }
        }
        if after.wake {
            self.wake();
        }
        // First: a task may wait.
        self.pass_on();
        if let Some(tasks) = after.tasks {
            self.run_tasks(tasks);
        }
        if after.told && POLLS_RINGS.load(Ordering::Relaxed) {
            // Polls of the ring, of other rings or of its own.
            service::look_at_all();
        }
    }

    /// Tries reads that were just submitted, as the kernel does when it issues them. The engine
    /// gets those that would wait.
    fn try_reads(self: &Arc<Self>, mut tries: Vec<Try>) -> After {
        let instance = self.instance();
        if let Some(instance) = &instance {
            for Try { sqe, result, .. } in &mut tries {
                // SAFETY: the buffer is the request's by the contract of io_uring_enter(2).
                *result = unsafe { instance.try_now(sqe) };
            }
        }
        let mut locked = self.lock();
        self.trying.fetch_sub(1, Ordering::Release);
        for Try { key, result, .. } in tries.drain(..) {
            let Some(at) = locked.find(key) else { continue };
            match result {
                Some(result) => locked.complete(at, result),
                None => locked.make_ready(at),
            }
        }
        // The next submit needs no memory of its own.
        locked.state.tries = tries;
        let mut after = locked.give_back();
        if let Some(instance) = instance.filter(|_| std::mem::take(&mut after.wake)) {
            instance.wake_for(&IoEvent::default());
        }
        after
    }

    /// As [`follow_up`](Self::follow_up), by a thread that passes requests on anyway.
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
        let mut tasks = VecDeque::from(tasks.into_vec());
        while let Some(task) = tasks.pop_front() {
            let mail = match task {
                Task::Drop(file) => {
                    drop(file);
                    continue;
                }
                Task::Cancel(job) => Mail::Ended(job.by, self.ask_to_cancel(&job)),
                Task::Call(key, call) => Mail::Ended(key, call.run()),
                Task::Try(key, fd, socket) => {
                    let tried = socket.try_now(fd);
                    self.trying.fetch_sub(1, Ordering::Release);
                    Mail::Tried(key, tried)
                }
            };
            let after = self.bring(mail);
            if after.wake {
                self.wake();
            }
            self.pass_on();
            tasks.extend(after.tasks.into_iter().flatten());
        }
    }

    /// Is this a signal handler, on a thread that has the lock? A handler that waits for the lock
    /// waits without end.
    #[inline]
    pub(crate) fn is_held_here(&self) -> bool {
        std::ptr::eq(HELD.get(), self)
    }

    /// A timer of this ring is due.
    pub(crate) fn on_timer(self: &Arc<Self>, key: u64) {
        self.follow_up(self.bring(Mail::Timer(key)));
    }

    /// Has [`on_timer`](Self::on_timer) called at a time, or a little later.
    ///
    /// # Errors
    /// A negative errno: no thread can be made for that.
    pub(crate) fn set_timer(self: &Arc<Self>, deadline: u64, key: u64) -> Result<Timer, i32> {
        let core = Arc::clone(self);
        timers::set(deadline, move || core.on_timer(key))
    }

    /// Right after the lock was given back: is it to be taken once more? A fence comes first.
    fn has_missed(&self) -> bool {
        self.readiness.has_missed(|| self.completions() > 0) || self.inbox.has_mail()
    }
}

impl Watcher for Core {
    fn on_polls(self: Arc<Self>, events: Events) -> Box<dyn FnOnce()> {
        let after = self.bring(Mail::Polls(events));
        Box::new(move || self.follow_up(after))
    }
}

impl Locked<'_> {
    /// Gives the lock back: starts what was set free, tells tags, makes flags and descriptor say
    /// what is true, counts up the eventfd. Reads mail until there is none. Gives what is to be
    /// done without the lock.
    pub(super) fn give_back(self) -> After {
        let mut locked = self;
        let mut after = After::default();
        loop {
            locked.take_steps();
            locked.tell_tags();
            after.told |= locked.settle();
            if !locked.state.tries.is_empty() {
                after.tries = std::mem::take(&mut locked.state.tries);
                locked.core.trying.fetch_add(1, Ordering::Relaxed);
            }
            if !locked.state.tasks.is_empty() {
                after.add(std::mem::take(&mut locked.state.tasks));
            }
            after.wake |= std::mem::take(&mut locked.state.to_wake);
            let due = std::mem::take(&mut locked.state.eventfd_due);
            let eventfd = locked.state.eventfd.as_ref().filter(|_| due).cloned();
            let counts = u32::from(eventfd.is_some());
            locked.state.counted_up = locked.state.counted_up.wrapping_add(counts);
            let core = locked.core;
            locked.release();
            drop(locked);
            if let Some((eventfd, _)) = eventfd {
                front::count_up(eventfd.number());
            }
            let missed = core.has_missed();
            core.wake_sleepers();
            if !missed {
                return after;
            }
            let Some(again) = core.try_lock() else { return after };
            locked = again;
        }
    }

    /// Gives the lock back where nothing was changed that anybody waits for. True: somebody has
    /// come meanwhile who leaves the rest to this thread.
    #[inline]
    pub(super) fn unlock(self) -> bool {
        // By mail that was read: who brought it does not wake anybody.
        let (core, owes) = (self.core, self.state.to_wake);
        drop(self);
        owes || core.has_missed()
    }

    /// Reads what threads have to say that do not wait for the lock.
    #[inline]
    fn read_mail(&mut self) {
        if self.core.inbox.has_mail() {
            self.read_all();
        }
    }

    #[cold]
    fn read_all(&mut self) {
        // The thread that brought the mail has not woken the waiters, or has woken them too early.
        self.state.to_wake = true;
        // It is not this thread that it comes from.
        let entered = ENTERED.replace(null());
        self.core.inbox.take().for_each(|mail| self.read(mail));
        ENTERED.set(entered);
    }

    fn read(&mut self, mail: Mail) {
        match mail {
            Mail::Ended(key, result) => {
                if let Some(at) = self.find(key) {
                    self.complete(at, result);
                }
            }
            Mail::Tried(key, Tried::Done(result)) => {
                if let Some(at) = self.find(key) {
                    self.complete(at, result);
                }
            }
            Mail::Tried(key, tried) => {
                if let Some(at) = self.find(key) {
                    self.socket_was_tried(at, tried);
                }
            }
            Mail::Timer(FLUSH) => self.flush_again(),
            Mail::Timer(key) => {
                if let Some(at) = self.find(key) {
                    self.timer_fired(at);
                }
            }
            Mail::Polls(events) => {
                for (key, seen) in events {
                    if let Some(at) = self.find(key) {
                        self.poll_fired(at, seen);
                    }
                }
            }
            Mail::Refused(keys, errno) => self.take_back(&keys, errno),
        }
    }

    /// Posts the completions of tags whose files and buffers have lost their last user.
    fn tell_tags(&mut self) {
        while !self.state.tags.is_empty() {
            for user_data in std::mem::take(&mut self.state.tags) {
                self.post(Cqe { user_data, res: 0, flags: 0 }, false);
            }
            self.take_steps();
        }
    }

    /// A slot or a request uses a file no more. The last user's call has its tag told.
    #[inline]
    pub(crate) fn release_file(&mut self, file: Option<Arc<Registered<File>>>) {
        let Some(Registered { value, tag }) = file.and_then(Arc::into_inner) else { return };
        self.state.tasks.push(Task::Drop(value));
        self.state.tags.extend((tag != 0).then_some(tag));
    }

    /// As [`release_file`](Self::release_file).
    #[inline]
    pub(crate) fn release_buffer(&mut self, buffer: Option<Arc<Registered<Buffer>>>) {
        let Some(Registered { tag, .. }) = buffer.and_then(Arc::into_inner) else { return };
        self.state.tags.extend((tag != 0).then_some(tag));
    }
}
