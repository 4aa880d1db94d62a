//! The lock of a ring. A thread that has it only reads and writes memory. Work that may block is
//! put into a list of tasks, and done after the lock is released. A thread that serves several
//! rings never waits for the lock: it leaves its message as mail if another thread has the lock.

use std::ptr::null;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError, TryLockError};

use uringlet::front;

use super::completing::FLUSH;
use super::state::{Core, ENTERED, Locked, Mark};
use super::types::{Attempted, Mail, Task};
use crate::abi::Cqe;
use crate::attempts::Tried;

/// Work that a thread has to do after it has released the lock.
#[derive(Debug, Default)]
#[must_use]
pub(super) struct After {
    /// Usually there are none: a null pointer.
    pub(super) tasks: Option<Box<[Task]>>,
    /// The caller has to wake the threads that wait for completions.
    pub(super) wake: bool,
    /// The ring's descriptor signals something new.
    pub(super) told: bool,
}

impl After {
    #[cold]
    pub(super) fn add_tasks(&mut self, tasks: Vec<Task>) {
        self.tasks = Some(match self.tasks.take() {
            None => tasks.into_boxed_slice(),
            Some(before) => before.into_iter().chain(tasks).collect(),
        });
    }
}

impl Core {
    pub(super) fn lock(self: &Arc<Self>) -> Locked<'_> {
        let holds = Mark::new(&raw const **self);
        // The critical sections do not panic.
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut locked = Locked { core: self, state, _holds: holds };
        locked.read_mail();
        locked
    }

    /// `None`: another thread has the lock. That thread reads the mail and passes requests on
    /// before it is done.
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

    /// Reads mail if the lock is free. Otherwise leaves it to the thread that has the lock. Does
    /// not wait.
    pub(super) fn bring(self: &Arc<Self>, mail: Mail) -> After {
        if let Some(mut locked) = self.try_lock() {
            locked.read(mail);
            return locked.give_back();
        }
        self.inbox.put(mail);
        fence(Ordering::SeqCst);
        self.try_lock().map(Locked::give_back).unwrap_or_default()
    }

    /// Right after the lock was released: must it be taken once more? Begins with a fence, in
    /// `Readiness::has_missed`.
    fn has_missed(&self) -> bool {
        self.readiness.has_missed(|| self.completions() > 0) || self.inbox.has_mail()
    }
}

impl Locked<'_> {
    /// Releases the lock. Starts requests that may start now, posts tags, updates flags and
    /// descriptor, and counts up the eventfd. Reads mail until there is none. Returns the work that
    /// is left for after the lock.
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

    /// Releases the lock after changes that nobody waits for. True: the caller has to take the lock
    /// again and give it back, for example because mail has come meanwhile.
    #[inline]
    pub(super) fn unlock(self) -> bool {
        // If mail was read, this thread has to wake the waiters. The thread that brought the mail
        // does not.
        let (core, owes) = (self.core, self.state.to_wake);
        drop(self);
        owes || core.has_missed()
    }

    /// Reads the mail of threads that do not wait for the lock.
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
        // Completions of the mail count as caused by the thread that brought it.
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
            Mail::Tried(all) => {
                for one in all {
                    let (key, tried) = match one {
                        Attempted::Request(key, tried) => (key, tried),
                        Attempted::Send(send) => {
                            self.send_was_made(send);
                            continue;
                        }
                    };
                    let Some(at) = self.find(key) else { continue };
                    match tried {
                        Tried::Done(result) => {
                            if !self.goes_on(at, result) && !self.was_no_socket(at, result) {
                                self.complete(at, result);
                            }
                        }
                        _ => self.socket_was_tried(at, tried),
                    }
                    if let Some(at) = self.find(key) {
                        self.begin_link_timeout(at);
                    }
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
