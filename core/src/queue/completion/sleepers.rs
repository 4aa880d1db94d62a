//! Those who sleep until something completes: how they register, and how they are woken.
//!
//! A sleeper takes the lock, sets `SLEEPERS` in the queue's state word, and looks again before it
//! sleeps. README.md in `queue/` gives the argument.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::time::Duration;

use super::{Completions, SLEEPERS};
use crate::queue::sleep::{Sleep, SleepEnd};
use crate::sync::{Ordering, fence, lock_counted};
use crate::sys::aio::IoEvent;

/// Who sleeps, and what for.
#[derive(Debug)]
pub(super) struct Sleepers {
    count: u32,
    /// The smallest number of completions that any of them waits for.
    need: u32,
    /// Sleepers in ppoll: their eventfds.
    eventfds: Vec<RawFd>,
    /// Those of all these who wait for certain requests, and for no number of completions.
    choosy: Vec<Choosy>,
    /// The context is being destroyed: nobody sleeps any more.
    closed: bool,
}

impl Sleepers {
    pub(super) fn new() -> Self {
        Self { count: 0, need: u32::MAX, eventfds: Vec::new(), choosy: Vec::new(), closed: false }
    }
}

/// A sleeper that waits for certain requests. Both pointers are good until it has unregistered
/// itself.
#[derive(Clone, Copy)]
struct Choosy {
    concerns: *const (dyn Fn(&IoEvent) -> bool + 'static),
    sleep: *const Sleep,
    /// It sleeps elsewhere, and this ends it; else -1.
    eventfd: RawFd,
}

impl std::fmt::Debug for Choosy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Choosy").field("eventfd", &self.eventfd).finish_non_exhaustive()
    }
}

/// What a thread that wants to sleep waits for.
pub(crate) struct Sleeper<'a> {
    /// Completions in the ring.
    pub(crate) need: u32,
    /// Instead: completions for which this is true, of a context whose completions go through no
    /// ring. Asked under a lock: it must not block.
    pub(crate) concerns: Option<&'a dyn Fn(&IoEvent) -> bool>,
    /// Asked once more when everybody can see that this thread is going to sleep: true if there
    /// is something to do instead.
    pub(crate) stay_up: &'a dyn Fn() -> bool,
    /// It waits for the end of what was in flight when the context was closed.
    pub(crate) even_if_closed: bool,
    /// Without a timeout it goes on after a handler with SA_RESTART.
    pub(crate) restarts: bool,
}

impl Completions {
    /// Registers a sleeper, unless it need not sleep. Gives the word to sleep on, of `own` if it is
    /// choosy.
    fn register(
        &self,
        sleeper: &Sleeper<'_>,
        own: &Sleep,
        eventfd: Option<RawFd>,
    ) -> Result<u32, SleepEnd> {
        let need = sleeper.need;
        let mut sleepers = lock_counted(&self.sleepers);
        if sleepers.closed && !sleeper.even_if_closed {
            return Err(SleepEnd::Closed);
        }
        // Either the next publisher sees the flag in the exchange with which it stops, or this
        // sees that publisher's tail: both change the same word. And either a submitter sees the
        // flag after announcing its requests, or `stay_up` sees those.
        self.state.fetch_or(SLEEPERS, Ordering::SeqCst);
        // Pairs with the fence in `completed`: it sees the flag, or `stay_up` what it has written.
        fence(Ordering::SeqCst);
        if self.available() >= need || (sleeper.stay_up)() {
            if sleepers.count == 0 {
                self.state.fetch_and(!SLEEPERS, Ordering::Relaxed);
            }
            return Err(SleepEnd::Again);
        }
        sleepers.count += 1;
        let Some(concerns) = sleeper.concerns else {
            sleepers.need = sleepers.need.min(need);
            sleepers.eventfds.extend(eventfd);
            return Ok(self.wakes.ticket());
        };
        let concerns = std::ptr::from_ref(concerns);
        // SAFETY: only the lifetime changes; `unregister` comes before its end.
        let concerns = unsafe {
            std::mem::transmute::<
                *const (dyn Fn(&IoEvent) -> bool + '_),
                *const (dyn Fn(&IoEvent) -> bool + 'static),
            >(concerns)
        };
        let eventfd = eventfd.unwrap_or(-1);
        sleepers.choosy.push(Choosy { concerns, sleep: std::ptr::from_ref(own), eventfd });
        Ok(own.ticket())
    }

    fn unregister(&self, own: &Sleep, eventfd: Option<RawFd>) {
        let mut sleepers = lock_counted(&self.sleepers);
        sleepers.count -= 1;
        sleepers.choosy.retain(|other| !std::ptr::eq(other.sleep, own));
        if let Some(fd) = eventfd {
            sleepers.eventfds.retain(|&other| other != fd);
        }
        if sleepers.count == 0 {
            sleepers.need = u32::MAX;
            self.state.fetch_and(!SLEEPERS, Ordering::Relaxed);
        }
    }

    /// Sleeps until there are enough completions, or those that it waits for, at most `timeout`.
    /// May end for no reason.
    pub(crate) fn sleep(&self, sleeper: &Sleeper<'_>, timeout: Option<Duration>) -> SleepEnd {
        let own = Sleep::new();
        match self.register(sleeper, &own, None) {
            Err(end) => end,
            Ok(ticket) => {
                let choosy = sleeper.concerns.is_some();
                let word = if choosy { &own } else { &self.wakes };
                let end = word.sleep(ticket, timeout, sleeper.restarts);
                self.unregister(&own, None);
                end
            }
        }
    }

    /// As [`Completions::sleep`], with the thread's signal mask replaced meanwhile, atomically.
    /// `Err` with the negative errno if no descriptor is left for it.
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
        let own = Sleep::new();
        let end = match self.register(sleeper, &own, Some(fd)) {
            Err(end) => end,
            Ok(_) => {
                let mut poll = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
                let ret = crate::sys::ppoll(&mut poll, timeout, Some(&mask));
                self.unregister(&own, Some(fd));
                match ret {
                    0 => SleepEnd::TimedOut,
                    ret if ret == -(libc::EINTR as isize) => SleepEnd::Interrupted,
                    _ => SleepEnd::Again,
                }
            }
        };
        crate::sys::close(fd);
        Ok(end)
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
            // No descriptor left: the mask cannot be in force, but time can pass.
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
        let own = Sleep::new();
        match self.register(sleeper, &own, Some(eventfd)) {
            Err(end) => end,
            Ok(_) => {
                let end = elsewhere();
                self.unregister(&own, Some(eventfd));
                end
            }
        }
    }

    /// Wakes the sleepers if one of them has what it waits for. True if anybody was woken.
    pub(crate) fn wake(&self) -> bool {
        self.wake_if(|sleepers| sleepers.closed || self.available() >= sleepers.need)
    }

    /// Wakes the sleepers so that they look at what there is to execute.
    pub(crate) fn wake_now(&self) -> bool {
        self.wake_if(|_| true)
    }

    fn wake_if(&self, due: impl FnOnce(&Sleepers) -> bool) -> bool {
        let mut sleepers = lock_counted(&self.sleepers);
        let due = sleepers.count > 0 && due(&sleepers);
        let mut woken = WokenSleepers::default();
        if due {
            // All of them look again, and say anew what they need.
            sleepers.need = u32::MAX;
            self.wakes.change();
            for &fd in &sleepers.eventfds {
                crate::sys::eventfd_add(fd, 1);
            }
            sleepers.choosy.iter().for_each(|choosy| woken.add(choosy));
        }
        drop(sleepers);
        if due {
            self.wakes.wake_all();
        }
        woken.wake();
        due
    }

    /// A request has completed that goes through no ring, and what tells those who wait for it is
    /// written: wakes them.
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
        let mut woken = WokenSleepers::default();
        let sleepers = lock_counted(&self.sleepers);
        for choosy in &sleepers.choosy {
            // SAFETY: registered, so its owner sleeps, or waits for this lock.
            if unsafe { (*choosy.concerns)(event) } {
                woken.add(choosy);
            }
        }
        // The last ones of a context that is being closed are counted.
        let closing = sleepers.closed;
        drop(sleepers);
        woken.wake();
        if closing {
            self.wake();
        }
    }

    /// Wakes every sleeper, and lets nobody sleep any more.
    pub(crate) fn close(&self) {
        lock_counted(&self.sleepers).closed = true;
        self.wake();
    }

    /// Somebody sleeps, or is about to and has not looked for the last time.
    #[inline]
    pub(crate) fn has_sleepers(&self) -> bool {
        self.state.load(Ordering::SeqCst) & SLEEPERS != 0
    }
}

/// Sleepers whose words were changed under the lock, to be woken outside of it.
#[derive(Default)]
struct WokenSleepers {
    words: [usize; 8],
    count: usize,
}

impl WokenSleepers {
    /// The caller holds the sleepers' lock.
    fn add(&mut self, choosy: &Choosy) {
        // SAFETY: registered, so the word is there.
        let sleep = unsafe { &*choosy.sleep };
        sleep.change();
        if choosy.eventfd >= 0 {
            crate::sys::eventfd_add(choosy.eventfd, 1);
        } else if cfg!(loom) || self.count == self.words.len() {
            sleep.wake_all();
        } else {
            self.words[self.count] = sleep.address();
            self.count += 1;
        }
    }

    fn wake(&self) {
        // Their owners may have gone meanwhile: a wake at a word that is none any more hits nobody,
        // or somebody who looks again.
        self.words[..self.count].iter().for_each(|&word| Sleep::wake_at(word));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Completions, Sleeper};
    use crate::queue::{Ring, SleepEnd};
    use std::time::Duration;

    fn sleeper(need: u32) -> Sleeper<'static> {
        Sleeper { need, concerns: None, stay_up: &|| false, even_if_closed: false, restarts: false }
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
    //! Failure would look like: a sleeper that sleeps on (loom reports a deadlock).

    use super::super::loom_models::post;
    use super::{Completions, Ordering, Sleeper};
    use crate::queue::Ring;
    use crate::sync::AtomicU32;
    use crate::sys::aio::IoEvent;
    use loom::sync::Arc;
    use loom::thread;

    fn waits_for(need: u32) -> Sleeper<'static> {
        Sleeper { need, concerns: None, stay_up: &|| false, even_if_closed: false, restarts: false }
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
        let concerns = |event: &IoEvent| event.obj == obj;
        while !is_written() {
            let (concerns, stay_up) = (Some(&concerns as &dyn Fn(&IoEvent) -> bool), &is_written);
            queue.sleep(
                &Sleeper { need: 1, concerns, stay_up, even_if_closed: false, restarts: true },
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

    /// Canary: who looks for sleepers before the word is written leaves one asleep.
    #[test]
    #[should_panic(expected = "sleeps for ever")]
    fn loom_canary_looking_before_writing_leaves_a_sleeper() {
        loom::model(|| {
            let queue = Arc::new(Completions::without_ring());
            let word = Arc::new(AtomicU32::new(0));
            let (other, written) = (Arc::clone(&queue), Arc::clone(&word));
            let worker = thread::spawn(move || {
                other.completed(&event(7));
                written.store(1, Ordering::Release);
            });
            let own = super::Sleep::new();
            let is_written = || word.load(Ordering::Acquire) == 1;
            let concerns: Option<&dyn Fn(&IoEvent) -> bool> = Some(&|event| event.obj == 7);
            let sleeper = Sleeper {
                need: 1,
                concerns,
                stay_up: &is_written,
                even_if_closed: false,
                restarts: true,
            };
            let registered = queue.register(&sleeper, &own, None);
            worker.join().unwrap();
            if let Ok(ticket) = registered {
                queue.unregister(&own, None);
                assert_ne!(own.ticket(), ticket, "sleeps for ever");
            }
        });
    }

    /// Canary: a sleeper that looks first and raises its flag afterwards is never woken.
    #[test]
    #[should_panic(expected = "sleeps for ever")]
    fn loom_canary_flag_after_looking_sleeps_for_ever() {
        loom::model(|| {
            let queue = Arc::new(Completions::new(Ring::cqes(1), 1));
            let other = Arc::clone(&queue);
            let poster = thread::spawn(move || post(&other, 0));
            if queue.available() < 1 {
                let ticket = {
                    let mut sleepers = super::lock_counted(&queue.sleepers);
                    sleepers.count += 1;
                    sleepers.need = 1;
                    queue.state.fetch_or(super::SLEEPERS, super::Ordering::Relaxed);
                    queue.wakes.ticket()
                };
                poster.join().unwrap();
                assert_ne!(queue.wakes.ticket(), ticket, "sleeps for ever");
            } else {
                poster.join().unwrap();
            }
        });
    }
}
