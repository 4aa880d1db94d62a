//! The lock of a ring: memory only is read and written under it. What can wait is left in a list of
//! tasks, and done without it. Threads that serve other rings, too, bring mail and never wait.

use std::ptr::null;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError, TryLockError};

use uringlet::front;

use super::completing::FLUSH;
use super::state::{Core, ENTERED, Locked, Mark};
use super::types::{Mail, Task};
use crate::abi::Cqe;
use crate::sockets::Tried;

/// What a thread that has had the lock has to do without it.
#[derive(Debug, Default)]
#[must_use]
pub(super) struct After {
    /// Usually none: a word that is null.
    pub(super) tasks: Option<Box<[Task]>>,
    /// Threads that wait for completions are woken.
    pub(super) wake: bool,
    /// The ring's descriptor tells of something new.
    pub(super) told: bool,
}

impl After {
    #[cold]
    pub(super) fn add_tasks(&mut self, tasks: Vec<Task>) {
        let all = self.tasks.take().into_iter().flatten().chain(tasks);
        self.tasks = Some(all.collect());
    }
}

impl Core {
    pub(super) fn lock(self: &Arc<Self>) -> Locked<'_> {
        let holds = Mark::new(&raw const **self);
        // Nothing in the critical sections panics.
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut locked = Locked { core: self, state, _holds: holds };
        locked.read_mail();
        locked
    }

    /// `None`: some thread has the lock. It reads the mail, and passes requests on, when it goes.
    pub(super) fn try_lock(self: &Arc<Self>) -> Option<Locked<'_>> {
        let holds = Mark::new(&raw const **self);
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

    /// Right after the lock was given back: is it to be taken once more? A fence comes first.
    fn has_missed(&self) -> bool {
        self.readiness.has_missed(|| self.completions() > 0) || self.inbox.has_mail()
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
            if !locked.state.tasks.is_empty() {
                after.add_tasks(std::mem::take(&mut locked.state.tasks));
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
        let _other = Mark::<ENTERED>::new(null());
        self.core.inbox.take().for_each(|mail| self.read(mail));
    }

    fn read(&mut self, mail: Mail) {
        match mail {
            Mail::Ended(key, result) => {
                if let Some(at) = self.find(key)
                    && self.was_ended(at, result)
                {
                    self.complete(at, result);
                }
            }
            Mail::Tried(key, Tried::Done(result)) => {
                if let Some(at) = self.find(key)
                    && !self.goes_on(at, result)
                {
                    self.complete(at, result);
                }
            }
            Mail::Tried(key, tried) => {
                if let Some(at) = self.find(key) {
                    self.socket_was_tried(at, tried);
                }
            }
            Mail::Parcel(parcel) => {
                let (parcel, from) = *parcel;
                let result = self.open_parcel(parcel);
                self.tasks.push(Task::Answer(from, result));
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
}
