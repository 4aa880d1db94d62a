//! Completion queue: any number of threads post, one of them at a time publishes, nobody waits
//! for a publisher that was preempted; sleepers are woken by number of completions.
//!
//! A thread that posts while another publishes leaves its completion on a list, and the
//! publisher takes the list along before it stops. README.md beside this file gives the argument.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::time::Duration;

use super::gate::Gate;
use super::ring::{IoEvent, Ring};
use crate::request::Completion;
use crate::sync::{AtomicU32, Mutex, Ordering, UnsafeCell, fence, lock};
use crate::zeros::{Zero, Zeros};

/// Nobody publishes.
const IDLE: u32 = 0;
/// Somebody publishes, the list is empty.
const BUSY: u32 = 1;
/// Somebody publishes; `state - FIRST` is the slot on top of the list.
const FIRST: u32 = 2;
/// Flag beside the above: somebody sleeps, or is about to.
const SLEEPERS: u32 = 1 << 31;

/// The completion queue of one context.
#[derive(Debug)]
pub(crate) struct Completions {
    state: AtomicU32,
    /// By slot: a completion left for the publisher, and the state below it.
    parked: Zeros<Parked>,
    ring: Ring,
    /// By place in the ring: the slot whose completion stands there.
    slots: Zeros<UnsafeCell<u32>>,
    reaper: Gate<Reaper>,
    sleepers: Mutex<Sleepers>,
    wakes: Sleep,
}

#[derive(Debug)]
struct Parked {
    below: AtomicU32,
    completion: UnsafeCell<Completion>,
}

// SAFETY: numbers, and a state that is 0 when idle.
unsafe impl Zero for Parked {
    fn zero() -> Self {
        let completion = UnsafeCell::new(Completion::default());
        Self { below: AtomicU32::new(IDLE), completion }
    }
}

#[derive(Debug)]
struct Reaper {
    /// Slots of the places before this one were given back.
    released: u32,
}

#[derive(Debug)]
struct Sleepers {
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

/// A sleeper that waits for certain requests. Both pointers are good until it has unregistered itself.
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

// SAFETY: cells are touched under the rules above: `parked[slot]` by the slot's holder until it is
// on the list and by the publisher afterwards, `slots[place]` by the publisher beyond the tail
// and by the reaper (under its lock) before it. What choosy sleepers point to is used under
// the sleepers' lock, which they take before it goes.
unsafe impl Send for Completions {}
// SAFETY: as above.
unsafe impl Sync for Completions {}

/// What the thread that published has to do afterwards, outside of everything.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Posted {
    /// Eventfds to count up, with how much each.
    notify: [(RawFd, u32); 4],
    notifies: usize,
    wake: bool,
}

impl Posted {
    fn add(&mut self, fd: RawFd) -> bool {
        let known = &mut self.notify[..self.notifies];
        if let Some(entry) = known.iter_mut().find(|entry| entry.0 == fd) {
            entry.1 += 1;
            return true;
        }
        if self.notifies == self.notify.len() {
            return false;
        }
        self.notify[self.notifies] = (fd, 1);
        self.notifies += 1;
        true
    }

    /// True if a sleeping thread is to be woken: [`Completions::wake`].
    #[inline]
    pub(crate) fn wakes(&self) -> bool {
        self.wake
    }

    /// Eventfds to count up.
    #[inline]
    pub(crate) fn notifies(&self) -> &[(RawFd, u32)] {
        &self.notify[..self.notifies]
    }
}

/// Why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SleepEnd {
    /// Completions, or nothing at all: look again.
    Again,
    /// The time is over.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
    /// The context is being destroyed.
    Closed,
}

impl Completions {
    /// The ring has room for every slot: `slots <= ring.room()`.
    pub(crate) fn new(ring: Ring, slots: usize) -> Self {
        assert!(slots <= ring.room() as usize);
        Self {
            state: AtomicU32::new(IDLE),
            parked: Zeros::new(slots),
            slots: Zeros::new(ring.places() as usize),
            reaper: Gate::new(Reaper { released: ring.head() }),
            ring,
            sleepers: Mutex::new(Sleepers {
                count: 0,
                need: u32::MAX,
                eventfds: Vec::new(),
                choosy: Vec::new(),
                closed: false,
            }),
            wakes: Sleep::new(),
        }
    }

    /// For completions that a front end takes as they happen: there is nothing to reap, only sleepers.
    pub(crate) fn without_ring() -> Self {
        Self::new(Ring::cqes(0), 0)
    }

    /// Completions that can be reaped now.
    #[inline]
    pub(crate) fn available(&self) -> u32 {
        self.ring.available()
    }

    /// Posts a completion. `None`: another thread publishes it, and does what is to be done then.
    /// The caller holds the slot, and stops holding it here.
    #[inline]
    pub(crate) fn post(&self, completion: Completion) -> Option<Posted> {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            let below = state & !SLEEPERS;
            let next = if below == IDLE {
                BUSY
            } else {
                let parked = &self.parked[completion.slot as usize];
                // SAFETY: the slot is the caller's until the exchange below puts it on the list.
                parked.completion.with_mut(|at| unsafe { *at = completion });
                parked.below.store(below, Ordering::Relaxed);
                FIRST + completion.slot
            };
            let flag = state & SLEEPERS;
            // Acquire: the last publisher's tail. Release: the parked completion.
            match self.state.compare_exchange_weak(
                state,
                flag | next,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) if next == BUSY => return Some(self.publish(completion)),
                Ok(_) => return None,
                Err(now) => state = now,
            }
        }
    }

    /// Writes `first` and whatever is left on the list meanwhile; stops being the publisher.
    fn publish(&self, first: Completion) -> Posted {
        let mut posted = Posted::default();
        self.append(&first, &mut posted);
        loop {
            let state = self.state.load(Ordering::Relaxed);
            let list = state & !SLEEPERS;
            let flag = state & SLEEPERS;
            let next = if list == BUSY { IDLE } else { BUSY };
            // Release: tail and entries, for the next publisher and for a sleeper that sets the
            // flag after this. Acquire: the parked completions, and a flag set before this.
            let swap = self.state.compare_exchange(
                state,
                flag | next,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            match (swap, list) {
                (Err(_), _) => {}
                (Ok(_), BUSY) => {
                    posted.wake = flag != 0;
                    return posted;
                }
                (Ok(_), list) => self.append_list(list, &mut posted),
            }
        }
    }

    /// Appends the list under `top` in the order in which it was made.
    fn append_list(&self, mut top: u32, posted: &mut Posted) {
        let mut oldest = BUSY;
        while top != BUSY {
            let parked = &self.parked[(top - FIRST) as usize];
            let below = parked.below.load(Ordering::Relaxed);
            parked.below.store(oldest, Ordering::Relaxed);
            oldest = top;
            top = below;
        }
        while oldest != BUSY {
            let parked = &self.parked[(oldest - FIRST) as usize];
            // The link is read first: once appended, the slot may be reused.
            oldest = parked.below.load(Ordering::Relaxed);
            // SAFETY: what is on the taken list belongs to the publisher.
            let completion = parked.completion.with(|at| unsafe { *at });
            self.append(&completion, posted);
        }
    }

    #[inline]
    fn append(&self, completion: &Completion, posted: &mut Posted) {
        let at = self.ring.tail();
        // SAFETY: there is one publisher; room was reserved when the slot was taken, so the place
        // is free and its last reader gone (it gave the slot back with release).
        unsafe { self.ring.write(at, completion) };
        // SAFETY: as above.
        self.slots[at as usize].with_mut(|slot| unsafe { *slot = completion.slot });
        self.ring.set_tail(self.ring.after(at));
        if completion.notify >= 0 && !posted.add(completion.notify) {
            // More eventfds than the list holds: this one is counted up at once.
            crate::sys::eventfd_add(completion.notify, 1);
        }
    }

    /// Reaps up to `max` completions: `take` gets the ring and the place of each, `free` the slot.
    /// Slots of completions that the program reaped by itself are freed on the way.
    #[inline]
    pub(crate) fn reap(
        &self,
        max: u32,
        mut take: impl FnMut(&Ring, u32),
        mut free: impl FnMut(u32),
    ) -> u32 {
        let mut reaper = self.reaper.enter();
        let tail = self.ring.tail();
        let head = self.checked_head(&reaper, tail);
        self.release(&mut reaper, head, &mut free);
        let mut at = head;
        let mut count = 0;
        while at != tail && count < max {
            take(&self.ring, at);
            at = self.ring.after(at);
            count += 1;
        }
        if count > 0 {
            self.ring.set_head(at);
            self.release(&mut reaper, at, &mut free);
        }
        count
    }

    /// Frees the slots of completions that the program reaped by moving the head itself.
    pub(crate) fn collect(&self, mut free: impl FnMut(u32)) {
        let mut reaper = self.reaper.enter();
        let head = self.checked_head(&reaper, self.ring.tail());
        self.release(&mut reaper, head, &mut free);
    }

    /// The head, which the program may have moved. One that lies beyond the tail is nonsense and
    /// counts as not moved: it must not free what is not published.
    fn checked_head(&self, reaper: &Reaper, tail: u32) -> u32 {
        let (head, released) = (self.ring.head(), reaper.released);
        let places = self.ring.places();
        let span = |to: u32| if to >= released { to - released } else { to + places - released };
        if span(head) <= span(tail) { head } else { released }
    }

    fn release(&self, reaper: &mut Reaper, upto: u32, free: &mut impl FnMut(u32)) {
        while reaper.released != upto {
            // SAFETY: the place lies before the head: published (the tail was read with acquire)
            // and not reused, since its slot is still held.
            let slot = self.slots[reaper.released as usize].with(|slot| unsafe { *slot });
            reaper.released = self.ring.after(reaper.released);
            free(slot);
        }
    }

    /// Registers a sleeper, unless it need not sleep. Gives the word to sleep on, of `own` if it is choosy.
    fn register(
        &self,
        sleeper: &Sleeper<'_>,
        own: &Sleep,
        eventfd: Option<RawFd>,
    ) -> Result<u32, SleepEnd> {
        let need = sleeper.need;
        let mut sleepers = lock(&self.sleepers);
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
        let mut sleepers = lock(&self.sleepers);
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

    /// Sleeps until there are enough completions, or those that it waits for, at most `timeout`. May
    /// end for no reason.
    pub(crate) fn sleep(&self, sleeper: &Sleeper<'_>, timeout: Option<Duration>) -> SleepEnd {
        let own = Sleep::new();
        match self.register(sleeper, &own, None) {
            Err(end) => end,
            Ok(ticket) => {
                let choosy = sleeper.concerns.is_some();
                // As aio_suspend(3), whose wait in the kernel goes on after a handler with SA_RESTART.
                let word = if choosy { &own } else { &self.wakes };
                let end = word.sleep(ticket, timeout, choosy);
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
        let mut sleepers = lock(&self.sleepers);
        let due = sleepers.count > 0 && due(&sleepers);
        let mut woken = Woken::default();
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
        let mut woken = Woken::default();
        let sleepers = lock(&self.sleepers);
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
        lock(&self.sleepers).closed = true;
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
struct Woken {
    words: [usize; 8],
    count: usize,
}

impl Woken {
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
        // Their owners may have gone meanwhile: a wake at a word that is none any more hits nobody, or
        // somebody who looks again.
        self.words[..self.count].iter().for_each(|&word| Sleep::wake_at(word));
    }
}

/// What a thread that wants to sleep waits for.
pub(crate) struct Sleeper<'a> {
    /// Completions in the ring.
    pub(crate) need: u32,
    /// Instead: completions for which this is true, of a context whose completions go through no ring.
    /// Asked under a lock: it must not block.
    pub(crate) concerns: Option<&'a dyn Fn(&IoEvent) -> bool>,
    /// Asked once more when everybody can see that this thread is going to sleep: true if there
    /// is something to do instead.
    pub(crate) stay_up: &'a dyn Fn() -> bool,
    /// It waits for the end of what was in flight when the context was closed.
    pub(crate) even_if_closed: bool,
}

/// A word to sleep on: a futex.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct Sleep(AtomicU32);

#[cfg(not(loom))]
impl Sleep {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// The word now: a change after this ends a sleep with this ticket.
    pub(crate) fn ticket(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn sleep(&self, ticket: u32, timeout: Option<Duration>, restarts: bool) -> SleepEnd {
        use crate::sys::Woken;
        match crate::sys::futex_wait(&self.0, ticket, timeout, restarts) {
            Woken::Again => SleepEnd::Again,
            Woken::TimedOut => SleepEnd::TimedOut,
            Woken::Interrupted => SleepEnd::Interrupted,
        }
    }

    /// Ends the sleep of everybody with an older ticket, together with [`Sleep::wake_all`].
    pub(crate) fn change(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn wake_all(&self) {
        Self::wake_at(self.address());
    }

    fn address(&self) -> usize {
        self.0.as_ptr().addr()
    }

    fn wake_at(address: usize) {
        crate::sys::futex_wake(address, i32::MAX);
    }
}

/// The same from loom's parts.
#[cfg(loom)]
#[derive(Debug)]
pub(crate) struct Sleep {
    word: AtomicU32,
    gate: Mutex<()>,
    changed: loom::sync::Condvar,
}

#[cfg(loom)]
impl Sleep {
    pub(crate) fn new() -> Self {
        Self { word: AtomicU32::new(0), gate: Mutex::new(()), changed: loom::sync::Condvar::new() }
    }

    pub(crate) fn ticket(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    pub(crate) fn sleep(
        &self,
        ticket: u32,
        _timeout: Option<Duration>,
        _restarts: bool,
    ) -> SleepEnd {
        let mut gate = lock(&self.gate);
        while self.word.load(Ordering::Acquire) == ticket {
            gate = self.changed.wait(gate).unwrap();
        }
        drop(gate);
        SleepEnd::Again
    }

    pub(crate) fn change(&self) {
        self.word.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn wake_all(&self) {
        drop(lock(&self.gate));
        self.changed.notify_all();
    }

    fn address(&self) -> usize {
        0
    }

    fn wake_at(_: usize) {}
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Completions, SleepEnd, Sleeper};
    use crate::cqe::Cqe;
    use crate::queue::Ring;
    use crate::request::Completion;
    use std::time::Duration;

    fn sleeper(need: u32) -> Sleeper<'static> {
        Sleeper { need, concerns: None, stay_up: &|| false, even_if_closed: false }
    }

    fn completion(slot: u32, user_data: u64) -> Completion {
        Completion { cqe: Cqe { user_data, res: 0, flags: 0 }, data: 0, notify: -1, slot }
    }

    #[test]
    fn completions_are_reaped_in_order_over_many_laps() {
        let queue = Completions::new(Ring::cqes(3), 3);
        for lap in 0..20u64 {
            for slot in 0..3 {
                let posted = queue.post(completion(slot, lap * 3 + u64::from(slot))).unwrap();
                assert!(!posted.wakes() && posted.notifies().is_empty());
            }
            assert_eq!(queue.available(), 3);
            let (mut seen, mut freed) = (Vec::new(), Vec::new());
            for max in [1, 5] {
                // SAFETY: `reap` passes places between head and tail.
                let take = |ring: &Ring, at| seen.push(unsafe { ring.read_cqe(at) }.user_data);
                queue.reap(max, take, |slot| freed.push(slot));
            }
            assert_eq!(seen, [lap * 3, lap * 3 + 1, lap * 3 + 2]);
            assert_eq!(freed, [0, 1, 2]);
        }
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
    //! Failure would look like: a completion missing or twice, a slot number that is not the
    //! completion's, or a sleeper that sleeps on (loom reports a deadlock).

    use super::{AtomicU32, Completions, Ordering, Sleeper};
    use crate::cqe::Cqe;
    use crate::queue::{IoEvent, Ring};
    use crate::request::Completion;
    use loom::sync::Arc;
    use loom::thread;

    fn waits_for(need: u32) -> Sleeper<'static> {
        Sleeper { need, concerns: None, stay_up: &|| false, even_if_closed: false }
    }

    fn post(queue: &Completions, slot: u32) {
        let cqe = Cqe { user_data: u64::from(slot) + 10, res: 0, flags: 0 };
        let posted = queue.post(Completion { cqe, data: 0, notify: -1, slot });
        if posted.is_some_and(|posted| posted.wakes()) {
            queue.wake();
        }
    }

    fn reap(queue: &Completions, seen: &mut Vec<(u64, u32)>) {
        let mut users = Vec::new();
        let mut slots = Vec::new();
        // SAFETY: `reap` passes places between head and tail.
        let take = |ring: &Ring, at| users.push(unsafe { ring.read_cqe(at) }.user_data);
        queue.reap(8, take, |slot| slots.push(slot));
        seen.extend(users.into_iter().zip(slots));
    }

    #[test]
    fn loom_every_completion_is_published_once() {
        loom::model(|| {
            let queue = Arc::new(Completions::new(Ring::cqes(3), 3));
            let other = Arc::clone(&queue);
            let first = thread::spawn(move || post(&other, 0));
            let other = Arc::clone(&queue);
            let second = thread::spawn(move || post(&other, 1));
            let mut seen = Vec::new();
            reap(&queue, &mut seen);
            first.join().unwrap();
            second.join().unwrap();
            reap(&queue, &mut seen);
            seen.sort_unstable();
            assert_eq!(seen, [(10, 0), (11, 1)]);
        });
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
            queue.sleep(&Sleeper { need: 1, concerns, stay_up, even_if_closed: false }, None);
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
            let sleeper =
                Sleeper { need: 1, concerns, stay_up: &is_written, even_if_closed: false };
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
                    let mut sleepers = super::lock(&queue.sleepers);
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
