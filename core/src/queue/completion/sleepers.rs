//! Threads that sleep until something completes: how they register, and how they are woken.
//!
//! A sleeper takes the lock, sets `SLEEPERS` in the queue's state word, and checks again before it
//! sleeps. README.md in `queue/` gives the argument.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::time::Duration;

use super::{Completions, SLEEPERS};
use crate::queue::sleep::{Sleep, SleepEnd};
use crate::sync::{Ordering, fence, lock_counted, this_thread};
use crate::sys::aio::IoEvent;

/// The number of futex words for threads that sleep for certain requests, one each. All other
/// sleepers share one more.
pub(super) const WORDS: usize = if cfg!(loom) { 1 } else { 8 };

/// The completions that wake a sleeping thread: a function and its arguments. A signal handler may
/// leave the wait by a jump (siglongjmp(3)), and the thread stays registered. So nothing here may
/// be on its stack.
#[derive(Clone, Copy)]
pub struct Concern {
    asks: unsafe fn(&[u64; 8], &IoEvent) -> bool,
    words: [u64; 8],
}

impl Concern {
    /// `asks` is called with these words for each completion, under a lock: it must not block.
    ///
    /// # Safety
    /// Any thread may call `asks` with these words, as long as the context exists.
    pub unsafe fn new(asks: unsafe fn(&[u64; 8], &IoEvent) -> bool, words: &[u64]) -> Self {
        let mut all = [0; 8];
        all[..words.len()].copy_from_slice(words);
        Self { asks, words: all }
    }

    /// Completions of requests with this [`Sqe::user_data`](crate::Sqe::user_data).
    pub fn about(user_data: u64) -> Self {
        // SAFETY: the function reads its arguments only.
        unsafe { Self::new(|words, event| event.obj == words[0], &[user_data]) }
    }

    fn is_about(&self, event: &IoEvent) -> bool {
        // SAFETY: the contract of [`Concern::new`]; the context exists, because its queue asks.
        unsafe { (self.asks)(&self.words, event) }
    }
}

impl std::fmt::Debug for Concern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Concern").field("words", &self.words).finish_non_exhaustive()
    }
}

/// The sleeping threads, and what they sleep for.
#[derive(Debug)]
pub(super) struct Sleepers {
    asleep: Vec<Asleep>,
    /// The smallest number of completions that any of them waits for.
    need: u32,
    /// The number of registrations so far.
    number: u64,
    /// The context is being destroyed: no thread sleeps any more.
    closed: bool,
}

impl Sleepers {
    pub(super) fn new() -> Self {
        Self { asleep: Vec::new(), need: u32::MAX, number: 0, closed: false }
    }
}

/// A thread that sleeps, or has left its sleep by a jump.
#[derive(Clone, Copy, Debug)]
struct Asleep {
    number: u64,
    thread: usize,
    /// The thread waits for certain requests, not for a number of completions.
    concern: Option<Concern>,
    /// The thread's word; [`WORDS`]: the shared one.
    word: usize,
    /// The eventfd that ends the sleep of a thread that does not sleep on its word; else -1.
    eventfd: RawFd,
    /// The eventfd belongs to this sleep alone.
    owns: bool,
}

/// The data of a registered thread.
struct Registration {
    number: u64,
    word: usize,
    ticket: u32,
}

/// What a thread that wants to sleep waits for.
pub(crate) struct Sleeper<'a> {
    /// The number of completions in the ring that the thread waits for.
    pub(crate) need: u32,
    /// The completions to wait for in a context without a ring, instead of `need`.
    pub(crate) concern: Option<Concern>,
    /// Asked once more when other threads can see that this thread is going to sleep. True: there
    /// is something to do instead.
    pub(crate) stay_up: &'a dyn Fn() -> bool,
    /// The thread waits for the end of requests that were in flight when the context was closed.
    pub(crate) even_if_closed: bool,
    /// Without a timeout, the sleep continues after a signal handler with SA_RESTART.
    pub(crate) restarts: bool,
}

impl Completions {
    /// Registers a sleeper, unless it need not sleep. `eventfd` ends its sleep; the flag says
    /// whether it belongs to this sleep alone.
    fn register(
        &self,
        sleeper: &Sleeper<'_>,
        eventfd: Option<(RawFd, bool)>,
    ) -> Result<Registration, SleepEnd> {
        let (need, thread) = (sleeper.need, this_thread());
        let mut sleepers = lock_counted(&self.sleepers);
        // Earlier sleeps of this thread: it has left them by a jump, or it runs a signal handler
        // that has interrupted one. An interrupted sleep checks again afterwards.
        while let Some(at) = sleepers.asleep.iter().position(|one| one.thread == thread) {
            let left = sleepers.asleep.swap_remove(at);
            self.word(left.word).change();
            if left.owns {
                crate::sys::close(left.eventfd);
            }
        }
        if sleepers.closed && !sleeper.even_if_closed {
            return Err(SleepEnd::Closed);
        }
        // Either the next publisher sees the flag in its last exchange, or this thread sees that
        // publisher's tail: both change the same word. And either a submitter sees the flag after
        // announcing its requests, or `stay_up` sees the requests.
        self.state.fetch_or(SLEEPERS, Ordering::SeqCst);
        // Pairs with the fence in `completed`: either the completing thread sees the flag, or
        // `stay_up` sees what that thread has written.
        fence(Ordering::SeqCst);
        if self.available() >= need || (sleeper.stay_up)() {
            if sleepers.asleep.is_empty() {
                self.state.fetch_and(!SLEEPERS, Ordering::Relaxed);
            }
            return Err(SleepEnd::Again);
        }
        let is_free = |word: &usize| sleepers.asleep.iter().all(|one| one.word != *word);
        let word = match sleeper.concern {
            Some(_) => (0..WORDS).find(is_free).unwrap_or(WORDS),
            None => {
                sleepers.need = sleepers.need.min(need);
                WORDS
            }
        };
        sleepers.number += 1;
        let number = sleepers.number;
        let (eventfd, owns) = eventfd.unwrap_or((-1, false));
        let concern = sleeper.concern;
        sleepers.asleep.push(Asleep { number, thread, concern, word, eventfd, owns });
        Ok(Registration { number, word, ticket: self.word(word).ticket() })
    }

    /// False: the thread is not registered, because a signal handler of this thread has slept
    /// meanwhile.
    fn unregister(&self, number: u64) -> bool {
        let mut sleepers = lock_counted(&self.sleepers);
        let at = sleepers.asleep.iter().position(|one| one.number == number);
        if let Some(at) = at {
            sleepers.asleep.swap_remove(at);
        }
        if sleepers.asleep.is_empty() {
            sleepers.need = u32::MAX;
            self.state.fetch_and(!SLEEPERS, Ordering::Relaxed);
        }
        at.is_some()
    }

    fn word(&self, at: usize) -> &Sleep {
        self.choosy.get(at).unwrap_or(&self.wakes)
    }

    /// Sleeps until there are enough completions, or until the wanted requests complete, at most
    /// `timeout`. May end for no reason.
    pub(crate) fn sleep(&self, sleeper: &Sleeper<'_>, timeout: Option<Duration>) -> SleepEnd {
        match self.register(sleeper, None) {
            Err(end) => end,
            Ok(Registration { number, word, ticket }) => {
                let end = self.word(word).sleep(ticket, timeout, sleeper.restarts);
                self.unregister(number);
                end
            }
        }
    }

    /// As [`Completions::sleep`], with the thread's signal mask replaced atomically. `Err` with the
    /// negative errno if no descriptor is free.
    #[cfg(not(loom))]
    pub(crate) fn sleep_masked(
        &self,
        sleeper: &Sleeper<'_>,
        timeout: Option<Duration>,
        mask: u64,
    ) -> Result<SleepEnd, i32> {
        let fd = crate::sys::eventfd();
        if fd < 0 {
            return Err(fd as i32);
        }
        let fd = fd as RawFd;
        let mut owns = true;
        let end = match self.register(sleeper, Some((fd, true))) {
            Err(end) => end,
            Ok(Registration { number, .. }) => {
                let end = poll(&mut [readable(fd)], timeout, Some(&mask));
                owns = self.unregister(number);
                end
            }
        };
        if owns {
            crate::sys::close(fd);
        }
        Ok(end)
    }

    /// As [`Completions::sleep_with`], but also ends when the first descriptor is readable, and
    /// returns whether it is. The second is an eventfd for this sleep alone.
    #[cfg(not(loom))]
    pub(crate) fn sleep_beside(
        &self,
        sleeper: &Sleeper<'_>,
        [beside, eventfd]: [RawFd; 2],
        time: Option<Duration>,
        mask: Option<u64>,
    ) -> (SleepEnd, bool) {
        let mut set = [readable(beside), readable(eventfd)];
        let end = self.sleep_elsewhere(sleeper, eventfd, || poll(&mut set, time, mask.as_ref()));
        if set[1].revents != 0 {
            crate::sys::eventfd_drain(eventfd);
        }
        (end, set[0].revents != 0)
    }

    /// As [`Completions::sleep`] or [`Completions::sleep_masked`].
    #[cfg(not(loom))]
    pub(crate) fn sleep_with(
        &self,
        sleeper: &Sleeper<'_>,
        time: Option<Duration>,
        mask: Option<u64>,
    ) -> SleepEnd {
        match mask.map(|mask| self.sleep_masked(sleeper, time, mask)) {
            Some(Ok(end)) => end,
            // No descriptor is free. The thread sleeps without the mask.
            None | Some(Err(_)) => self.sleep(sleeper, time),
        }
    }

    /// Registers a sleeper that sleeps in `elsewhere`, which ends when `eventfd` is counted up.
    #[cfg(not(loom))]
    pub(crate) fn sleep_elsewhere(
        &self,
        sleeper: &Sleeper<'_>,
        eventfd: RawFd,
        elsewhere: impl FnOnce() -> SleepEnd,
    ) -> SleepEnd {
        match self.register(sleeper, Some((eventfd, false))) {
            Err(end) => end,
            Ok(Registration { number, .. }) => {
                let end = elsewhere();
                self.unregister(number);
                end
            }
        }
    }

    /// Wakes the sleepers if one of them has what it waits for. True if any was woken.
    pub(crate) fn wake(&self) -> bool {
        self.wake_if(|sleepers| sleepers.closed || self.available() >= sleepers.need)
    }

    /// Wakes the sleepers, so that they look for requests to execute.
    pub(crate) fn wake_now(&self) -> bool {
        self.wake_if(|_| true)
    }

    fn wake_if(&self, due: impl FnOnce(&Sleepers) -> bool) -> bool {
        let mut sleepers = lock_counted(&self.sleepers);
        let due = !sleepers.asleep.is_empty() && due(&sleepers);
        let mut woken = Woken::default();
        if due {
            // All sleepers check again, and register again what they need.
            sleepers.need = u32::MAX;
            sleepers.asleep.iter().for_each(|one| woken.add(self, one));
        }
        drop(sleepers);
        woken.wake(self);
        due
    }

    /// A request of a context without a ring has completed. Its result is written before this call,
    /// which wakes the threads that wait for it.
    #[inline]
    pub(crate) fn completed(&self, event: &IoEvent) {
        // Pairs with the fence in `register`.
        fence(Ordering::SeqCst);
        if self.state.load(Ordering::Relaxed) & SLEEPERS != 0 {
            self.wake_concerned(event);
        }
    }

    #[cold]
    fn wake_concerned(&self, event: &IoEvent) {
        let mut woken = Woken::default();
        let sleepers = lock_counted(&self.sleepers);
        for one in &sleepers.asleep {
            if one.concern.is_some_and(|concern| concern.is_about(event)) {
                woken.add(self, one);
            }
        }
        // The thread that closes a context sleeps without a concern, so it is woken in any case.
        let closing = sleepers.closed;
        drop(sleepers);
        woken.wake(self);
        if closing {
            self.wake();
        }
    }

    /// Wakes every sleeper; no thread sleeps any more.
    pub(crate) fn close(&self) {
        lock_counted(&self.sleepers).closed = true;
        self.wake();
    }

    /// Does a thread sleep, or has a thread registered and not checked for the last time?
    #[inline]
    pub(crate) fn has_sleepers(&self) -> bool {
        self.state.load(Ordering::SeqCst) & SLEEPERS != 0
    }
}

#[cfg(not(loom))]
fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

#[cfg(not(loom))]
fn poll(set: &mut [libc::pollfd], time: Option<Duration>, mask: Option<&u64>) -> SleepEnd {
    match crate::sys::ppoll(set, time, mask) {
        0 => SleepEnd::TimedOut,
        ret if ret == -(libc::EINTR as isize) => SleepEnd::Interrupted,
        _ => SleepEnd::Again,
    }
}

/// Words that were changed under the lock, whose sleepers are woken without it.
#[derive(Default)]
struct Woken([bool; WORDS + 1]);

impl Woken {
    /// The caller holds the sleepers' lock.
    fn add(&mut self, queue: &Completions, one: &Asleep) {
        if one.eventfd >= 0 {
            crate::sys::eventfd_add(one.eventfd, 1);
        } else if !std::mem::replace(&mut self.0[one.word], true) {
            queue.word(one.word).change();
        }
    }

    fn wake(&self, queue: &Completions) {
        let woken = self.0.iter().enumerate().filter(|&(_, &woken)| woken);
        woken.for_each(|(word, _)| queue.word(word).wake_all());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Completions, Concern, Sleeper, WORDS};
    use crate::queue::{Ring, SleepEnd};
    use crate::sys::aio::IoEvent;
    use std::time::Duration;

    fn sleeper(need: u32) -> Sleeper<'static> {
        Sleeper { need, concern: None, stay_up: &|| false, even_if_closed: false, restarts: false }
    }

    #[test]
    fn a_thread_that_left_its_sleep_by_a_jump_is_forgotten_when_it_comes_again() {
        // The test registers without sleeping, as a thread that has left its sleep by a jump.
        let queue = Completions::without_ring();
        let about = |obj| Sleeper { concern: Some(Concern::about(obj)), ..sleeper(1) };
        let first = queue.register(&about(7), None).ok().unwrap();
        assert!(queue.has_sleepers());
        queue.completed(&IoEvent { obj: 7, ..IoEvent::default() });
        let before = queue.word(first.word).ticket();
        let second = queue.register(&about(8), None).ok().unwrap();
        // The second sleeper may be a signal handler. Then the sleep that the handler has
        // interrupted ends.
        assert_ne!(queue.word(first.word).ticket(), before);
        assert!(!queue.unregister(first.number), "it was forgotten");
        assert!(queue.has_sleepers());
        assert!(queue.unregister(second.number));
        assert!(!queue.has_sleepers());
        // Sleeps of other threads stay registered, even if they are more than there are words.
        std::thread::scope(|scope| {
            for obj in 0..2 * WORDS as u64 {
                scope.spawn({
                    let (queue, about) = (&queue, &about);
                    move || queue.register(&about(obj), None).ok().unwrap()
                });
            }
        });
        assert!(queue.register(&sleeper(1), None).is_ok());
        assert!(queue.has_sleepers());
    }

    #[test]
    #[cfg_attr(miri, ignore = "futex(2) is inline assembly here, which Miri does not execute")]
    fn a_sleep_ends_by_time_or_by_closing() {
        let queue = Completions::new(Ring::cqes(1), 1);
        assert_eq!(queue.sleep(&sleeper(1), Some(Duration::from_millis(1))), SleepEnd::TimedOut);
        queue.close();
        assert_eq!(queue.sleep(&sleeper(1), None), SleepEnd::Closed);
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    //! A failure would be: a sleeper that is never woken (loom reports a deadlock).

    use super::super::loom_models::post;
    use super::{Completions, Concern, Ordering, Sleeper};
    use crate::queue::Ring;
    use crate::sync::AtomicU32;
    use crate::sys::aio::IoEvent;
    use loom::sync::Arc;
    use loom::thread;

    fn waits_for(need: u32) -> Sleeper<'static> {
        Sleeper { need, concern: None, stay_up: &|| false, even_if_closed: false, restarts: false }
    }

    #[test]
    fn loom_a_sleeper_is_woken_when_enough_is_there() {
        loom::model(|| {
            let queue = Arc::new(Completions::new(Ring::cqes(2), 2));
            let other = Arc::clone(&queue);
            let first = thread::spawn(move || post(&other, 0));
            let other = Arc::clone(&queue);
            let second = thread::spawn(move || post(&other, 1));
            while queue.available() < 2 {
                queue.sleep(&waits_for(2), None);
            }
            first.join().unwrap();
            second.join().unwrap();
        });
    }

    #[test]
    fn loom_two_sleepers_are_both_woken() {
        loom::model(|| {
            let queue = Arc::new(Completions::new(Ring::cqes(1), 1));
            let other = Arc::clone(&queue);
            let sleeper = thread::spawn(move || {
                while other.available() < 1 {
                    other.sleep(&waits_for(1), None);
                }
            });
            post(&queue, 0);
            while queue.available() < 1 {
                queue.sleep(&waits_for(1), None);
            }
            sleeper.join().unwrap();
        });
    }

    fn event(obj: u64) -> IoEvent {
        IoEvent { obj, ..IoEvent::default() }
    }

    /// Sleeps until the word for `obj` is written.
    fn sleep_for(queue: &Completions, obj: u64, word: &AtomicU32) {
        let is_written = || word.load(Ordering::Acquire) == 1;
        while !is_written() {
            let (concern, stay_up) = (Some(Concern::about(obj)), &is_written);
            queue.sleep(
                &Sleeper { need: 1, concern, stay_up, even_if_closed: false, restarts: true },
                None,
            );
        }
    }

    #[test]
    fn loom_a_choosy_sleeper_is_woken_by_its_completion() {
        loom::model(|| {
            let queue = Arc::new(Completions::without_ring());
            let word = Arc::new(AtomicU32::new(0));
            let (other, written) = (Arc::clone(&queue), Arc::clone(&word));
            let worker = thread::spawn(move || {
                written.store(1, Ordering::Release);
                other.completed(&event(7));
            });
            sleep_for(&queue, 7, &word);
            worker.join().unwrap();
        });
    }

    #[test]
    fn loom_each_choosy_sleeper_is_woken_by_its_own() {
        loom::model(|| {
            let queue = Arc::new(Completions::without_ring());
            let words = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
            let (other, written) = (Arc::clone(&queue), Arc::clone(&words));
            let sleeper = thread::spawn(move || sleep_for(&other, 1, &written[1]));
            for obj in [1, 0] {
                words[obj].store(1, Ordering::Release);
                queue.completed(&event(obj as u64));
            }
            sleeper.join().unwrap();
        });
    }

    /// Canary: a thread that looks for sleepers before the word is written leaves one asleep.
    #[test]
    #[should_panic(expected = "sleeps without end")]
    fn loom_canary_looking_before_writing_leaves_a_sleeper() {
        loom::model(|| {
            let queue = Arc::new(Completions::without_ring());
            let word = Arc::new(AtomicU32::new(0));
            let (other, written) = (Arc::clone(&queue), Arc::clone(&word));
            let worker = thread::spawn(move || {
                other.completed(&event(7));
                written.store(1, Ordering::Release);
            });
            let is_written = || word.load(Ordering::Acquire) == 1;
            let sleeper = Sleeper {
                need: 1,
                concern: Some(Concern::about(7)),
                stay_up: &is_written,
                even_if_closed: false,
                restarts: true,
            };
            let registered = queue.register(&sleeper, None);
            worker.join().unwrap();
            if let Ok(registered) = registered {
                queue.unregister(registered.number);
                let word = queue.word(registered.word);
                assert_ne!(word.ticket(), registered.ticket, "sleeps without end");
            }
        });
    }

    /// Canary: a sleeper that checks first and raises its flag afterwards is never woken.
    #[test]
    #[should_panic(expected = "sleeps without end")]
    fn loom_canary_flag_after_looking_sleeps_for_ever() {
        loom::model(|| {
            let queue = Arc::new(Completions::new(Ring::cqes(1), 1));
            let other = Arc::clone(&queue);
            let poster = thread::spawn(move || post(&other, 0));
            if queue.available() < 1 {
                let ticket = {
                    let mut sleepers = super::lock_counted(&queue.sleepers);
                    sleepers.need = 1;
                    queue.state.fetch_or(super::SLEEPERS, super::Ordering::Relaxed);
                    queue.wakes.ticket()
                };
                poster.join().unwrap();
                assert_ne!(queue.wakes.ticket(), ticket, "sleeps without end");
            } else {
                poster.join().unwrap();
            }
        });
    }
}
