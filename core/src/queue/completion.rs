//! Completion queue. Any number of threads post, and one of them at a time publishes. No thread
//! waits for a preempted publisher. A sleeper is woken when there are as many completions as it
//! needs.
//!
//! A thread that posts while another publishes leaves its completion on a list. The publisher takes
//! the list before it stops. README.md beside this file gives the argument.
#![allow(unsafe_code)]

mod sleepers;

#[cfg(not(loom))]
use std::cell::Cell;
use std::os::fd::RawFd;

pub use self::sleepers::Concern;
pub(crate) use self::sleepers::Sleeper;
use self::sleepers::{Sleepers, WORDS};
use super::gate::Gate;
use super::ring::Ring;
use super::sleep::Sleep;
use crate::lazy_zeroed::{Zero, Zeros};
use crate::request::Completion;
use crate::sync::{AtomicU32, Mutex, Ordering, Patience, UnsafeCell};

/// The state in which no thread publishes.
const IDLE: u32 = 0;
/// A thread publishes, and the list is empty.
const BUSY: u32 = 1;
/// A thread publishes; `state - FIRST` is the slot on top of the list.
const FIRST: u32 = 2;
/// A flag beside these values: a thread sleeps, or is about to.
const SLEEPERS: u32 = 1 << 31;

#[cfg(not(loom))]
thread_local! {
    /// The number of eventfds that this thread still has to count up, for completions that it has
    /// published.
    static OWED: Cell<u32> = const { Cell::new(0) };
}

/// Adds to the number of eventfds that this thread still has to count up.
fn owes_more(count: i32) {
    #[cfg(not(loom))]
    OWED.set(OWED.get().wrapping_add_signed(count));
    #[cfg(loom)]
    let _not_modelled = count;
}

/// Does this thread still have to count up an eventfd? If so, the caller is a signal handler: it
/// has interrupted the thread before the count.
fn owes() -> bool {
    #[cfg(not(loom))]
    return OWED.get() > 0;
    #[cfg(loom)]
    false
}

/// The completion queue of one context.
#[derive(Debug)]
pub(crate) struct Completions {
    state: AtomicU32,
    /// For each slot: a completion that was left for the publisher, and a link to the next older
    /// one on the list. The link is encoded as the list in `state`.
    parked: Zeros<Parked>,
    ring: Ring,
    /// For each place in the ring: the slot of its completion.
    slots: Zeros<UnsafeCell<u32>>,
    reaper: Gate<ReaperState>,
    sleepers: Mutex<Sleepers>,
    wakes: Sleep,
    /// Words of threads that sleep for certain requests.
    choosy: [Sleep; WORDS],
    /// Completions that can be reaped, although their eventfds are not counted up yet.
    unsignalled: AtomicU32,
    /// The part of `unsignalled` for which a wait has lasted too long. The engine assumes that the
    /// thread that has to count these eventfds up no longer exists.
    lost: AtomicU32,
}

#[derive(Debug)]
struct Parked {
    below: AtomicU32,
    completion: UnsafeCell<Completion>,
}

// SAFETY: all fields are numbers, and `IDLE` is 0.
unsafe impl Zero for Parked {
    fn zero() -> Self {
        let completion = UnsafeCell::new(Completion::default());
        Self { below: AtomicU32::new(IDLE), completion }
    }
}

#[derive(Debug)]
struct ReaperState {
    /// The next place in the ring whose slot will be freed. It follows the ring's head.
    released: u32,
}

// SAFETY: each cell is touched by one thread at a time. `parked[slot]`: by the slot's holder until
// it is on the list, and by the publisher afterwards. `slots[place]`: by the publisher beyond the
// tail, and by the reaper (inside its gate) before the tail.
unsafe impl Send for Completions {}
// SAFETY: as above.
unsafe impl Sync for Completions {}

/// What the publishing thread has to do afterwards, without a lock.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Posted {
    /// Eventfds to count up, each with the amount.
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

    /// Must a sleeping thread be woken? [`Completions::wake`] does it.
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

impl Completions {
    /// The ring has room for every slot: `slots <= ring.room()`.
    pub(crate) fn new(ring: Ring, slots: usize) -> Self {
        assert!(slots <= ring.room() as usize);
        Self {
            state: AtomicU32::new(IDLE),
            parked: Zeros::new(slots),
            slots: Zeros::new(ring.places() as usize),
            reaper: Gate::new(ReaperState { released: ring.head() }),
            ring,
            sleepers: Mutex::new(Sleepers::new()),
            wakes: Sleep::new(),
            choosy: std::array::from_fn(|_| Sleep::new()),
            unsignalled: AtomicU32::new(0),
            lost: AtomicU32::new(0),
        }
    }

    /// A queue for a front end that takes completions as they happen: there is nothing to reap,
    /// only sleepers.
    pub(crate) fn without_ring() -> Self {
        Self::new(Ring::cqes(0), 0)
    }

    /// Completions that can be reaped now.
    #[inline]
    pub(crate) fn available(&self) -> u32 {
        self.ring.available()
    }

    /// Posts completions in one step, in their order. `None`: another thread publishes them, counts
    /// eventfds up and wakes sleepers. The caller holds their slots, and gives them up here.
    #[inline]
    pub(crate) fn post(
        &self,
        completions: impl Iterator<Item = Completion> + Clone,
    ) -> Option<Posted> {
        let mut left = None;
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            let below = state & !SLEEPERS;
            let next = if below == IDLE {
                BUSY
            } else {
                let &mut (bottom, top) =
                    left.get_or_insert_with(|| self.leave(completions.clone()));
                self.parked[bottom as usize].below.store(below, Ordering::Relaxed);
                FIRST + top
            };
            let flag = state & SLEEPERS;
            // Acquire: this thread sees the last publisher's tail. Release: the present publisher
            // sees the parked completions.
            match self.state.compare_exchange_weak(
                state,
                flag | next,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) if next == BUSY => return Some(self.publish(completions)),
                Ok(_) => return None,
                Err(now) => state = now,
            }
        }
    }

    /// Links completions, at least one, for a list. Returns the slots of the first and the last.
    fn leave(&self, completions: impl Iterator<Item = Completion>) -> (u32, u32) {
        let mut ends = None;
        for completion in completions {
            let slot = completion.slot;
            let parked = &self.parked[slot as usize];
            // SAFETY: the slot is the caller's until it is on the list.
            parked.completion.with_mut(|at| unsafe { *at = completion });
            let (bottom, below) = ends.map_or((slot, BUSY), |(bottom, top)| (bottom, FIRST + top));
            parked.below.store(below, Ordering::Relaxed);
            ends = Some((bottom, slot));
        }
        ends.expect("there is a completion")
    }

    /// Writes `first`, and completions that are left on the list meanwhile. Then the thread stops
    /// publishing.
    fn publish(&self, first: impl Iterator<Item = Completion>) -> Posted {
        let mut posted = Posted::default();
        first.for_each(|completion| self.append(&completion, &mut posted));
        loop {
            let state = self.state.load(Ordering::Relaxed);
            let list = state & !SLEEPERS;
            let flag = state & SLEEPERS;
            let next = if list == BUSY { IDLE } else { BUSY };
            // Release: the next publisher sees the tail and the entries. So does a sleeper that
            // sets the flag after this. Acquire: this thread sees the parked completions, and a
            // flag that was set before this.
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
        // SAFETY: there is one publisher. Room was reserved when the slot was taken, so the place
        // is free. Its last reader is gone: that thread gave the slot back with release.
        unsafe { self.ring.write(at, completion) };
        // SAFETY: as above.
        self.slots[at as usize].with_mut(|slot| unsafe { *slot = completion.slot });
        if completion.notify >= 0 {
            // The count is raised before the tail: a thread that finds the completion finds the
            // count, too.
            owes_more(1);
            self.unsignalled.fetch_add(1, Ordering::Relaxed);
        }
        self.ring.set_tail(self.ring.after(at));
        if completion.notify >= 0 && !posted.add(completion.notify) {
            // There are more eventfds than the array holds: this one is counted up at once.
            #[cfg(not(loom))]
            crate::eventfd::count_up(completion.notify, 1);
            self.signalled(1);
        }
    }

    /// The eventfds of this many completions have been counted up.
    pub(crate) fn signalled(&self, completions: u32) {
        self.unsignalled.fetch_sub(completions, Ordering::Release);
        owes_more(-(completions as i32));
    }

    /// Waits until the eventfds of all completions that can be reaped have been counted up. A
    /// request of the kernel's AIO holds its eventfd's file until then. Here a completion has only
    /// the number, which the program may close once it has the completion.
    #[cold]
    fn wait_until_signalled(&self) {
        /// The maximum number of looks: some seconds. A thread may be preempted between the
        /// completion and the eventfd, and on a busy machine that may take longer than 0.1 s. The
        /// child of a fork may lack that thread.
        const LOOKS: u32 = 40_000;
        let left = || self.unsignalled.load(Ordering::Acquire);
        if owes() {
            return;
        }
        let mut patience = Patience::default();
        for _ in 0..LOOKS {
            if left() <= self.lost.load(Ordering::Relaxed) {
                return;
            }
            patience.wait();
        }
        self.lost.store(left(), Ordering::Relaxed);
    }

    /// Reaps up to `max` completions: `take` gets the ring and the place of each, `free` the slot.
    /// Also frees the slots of completions that the program has reaped itself.
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
            drop(reaper);
            if self.unsignalled.load(Ordering::Acquire) > 0 {
                self.wait_until_signalled();
            }
        }
        count
    }

    /// Frees the slots of completions that the program has reaped by moving the head itself.
    pub(crate) fn collect(&self, mut free: impl FnMut(u32)) {
        let mut reaper = self.reaper.enter();
        let head = self.checked_head(&reaper, self.ring.tail());
        self.release(&mut reaper, head, &mut free);
    }

    /// The head, which the program may have moved. A head beyond the tail counts as not moved: it
    /// must not free what is not published.
    fn checked_head(&self, reaper: &ReaperState, tail: u32) -> u32 {
        let (head, released) = (self.ring.head(), reaper.released);
        let places = self.ring.places();
        let span = |to: u32| if to >= released { to - released } else { to + places - released };
        if span(head) <= span(tail) { head } else { released }
    }

    fn release(&self, reaper: &mut ReaperState, upto: u32, free: &mut impl FnMut(u32)) {
        while reaper.released != upto {
            // SAFETY: the place lies before the head: published (the tail was read with acquire)
            // and not reused, since its slot is still held.
            let slot = self.slots[reaper.released as usize].with(|slot| unsafe { *slot });
            reaper.released = self.ring.after(reaper.released);
            free(slot);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::Completions;
    use crate::cqe::Cqe;
    use crate::queue::Ring;
    use crate::request::Completion;

    fn completion(slot: u32, user_data: u64) -> Completion {
        Completion { cqe: Cqe { user_data, res: 0, flags: 0 }, data: 0, notify: -1, slot }
    }

    #[test]
    fn completions_are_reaped_in_order_over_many_laps() {
        let queue = Completions::new(Ring::cqes(3), 3);
        // Posts completions one by one, and several at a time.
        let parts = [[0..1, 1..2, 2..3], [0..3, 3..3, 3..3], [0..1, 1..3, 3..3]];
        for lap in 0..20u64 {
            for slots in parts[lap as usize % parts.len()].iter().filter(|slots| !slots.is_empty())
            {
                let completions =
                    slots.clone().map(|slot| completion(slot, lap * 3 + u64::from(slot)));
                let posted = queue.post(completions).unwrap();
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
    fn threads_that_post_several_at_a_time_lose_none() {
        const THREADS: u32 = 3;
        const EACH: u32 = 4;
        let laps = if cfg!(miri) { 20 } else { 2000 };
        let all = THREADS * EACH;
        let queue = Completions::new(Ring::cqes(all), all as usize);
        for lap in 0..laps {
            std::thread::scope(|scope| {
                let post = |thread: u32| {
                    let slots = thread * EACH..(thread + 1) * EACH;
                    // No thread sleeps, so none has to be woken.
                    let _ = queue.post(slots.map(|slot| completion(slot, lap)));
                };
                (1..THREADS).for_each(|thread| drop(scope.spawn(move || post(thread))));
                post(0);
            });
            let mut freed = Vec::new();
            // SAFETY: `reap` passes places between head and tail.
            let take = |ring: &Ring, at| assert_eq!(unsafe { ring.read_cqe(at) }.user_data, lap);
            assert_eq!(queue.reap(all, take, |slot| freed.push(slot)), all);
            for slots in (0..THREADS).map(|thread| thread * EACH..(thread + 1) * EACH) {
                let mine = freed.iter().copied().filter(|slot| slots.contains(slot));
                assert!(mine.eq(slots.clone()), "{freed:?}");
            }
        }
    }

    /// The caller may be a signal handler that has interrupted the thread before it counts.
    #[test]
    fn a_thread_that_has_still_to_count_up_an_eventfd_does_not_wait_for_itself() {
        let queue = Completions::new(Ring::cqes(1), 1);
        let cqe = Cqe { user_data: 0, res: 0, flags: 0 };
        let completion = Completion { cqe, data: 0, notify: 900_000, slot: 0 };
        assert!(!super::owes());
        let _ = queue.post(std::iter::once(completion)).unwrap();
        assert!(super::owes());
        assert_eq!(queue.reap(1, |_, _| {}, |_| {}), 1);
        queue.signalled(1);
        assert!(!super::owes());
    }

    #[test]
    fn who_reaps_a_completion_finds_its_eventfd_counted_up() {
        let queue = Completions::new(Ring::cqes(1), 1);
        let (counted, reaped) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while queue.reap(1, |_, _| {}, |_| {}) == 0 {
                    std::thread::yield_now();
                }
                reaped.store(true, Ordering::Relaxed);
                assert!(counted.load(Ordering::Relaxed));
            });
            let cqe = Cqe { user_data: 0, res: 0, flags: 0 };
            let completion = Completion { cqe, data: 0, notify: 900_000, slot: 0 };
            let posted = queue.post(std::iter::once(completion)).unwrap();
            assert_eq!(posted.notifies(), [(900_000, 1)]);
            // The other thread has the completion, and does not return before the eventfd is
            // counted up. This thread acts as one that is preempted for long.
            while queue.available() > 0 {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(if cfg!(miri) { 1 } else { 300 }));
            assert!(!reaped.load(Ordering::Relaxed));
            counted.store(true, Ordering::Relaxed);
            queue.signalled(1);
        });
        assert!(reaped.into_inner());
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    //! A failure would be: a completion missing or twice, or a slot number that is not the
    //! completion's.

    use super::Completions;
    use crate::cqe::Cqe;
    use crate::queue::Ring;
    use crate::request::Completion;
    use loom::sync::Arc;
    use loom::thread;

    pub(super) fn post(queue: &Completions, slot: u32) {
        post_all(queue, slot..=slot);
    }

    fn post_all(queue: &Completions, slots: std::ops::RangeInclusive<u32>) {
        let posted = queue.post(slots.map(|slot| {
            let cqe = Cqe { user_data: u64::from(slot) + 10, res: 0, flags: 0 };
            Completion { cqe, data: 0, notify: -1, slot }
        }));
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
    fn loom_completions_posted_together_stay_in_their_order() {
        loom::model(|| {
            let queue = Arc::new(Completions::new(Ring::cqes(4), 4));
            let other = Arc::clone(&queue);
            let first = thread::spawn(move || post_all(&other, 0..=1));
            let other = Arc::clone(&queue);
            let second = thread::spawn(move || post_all(&other, 2..=3));
            let mut seen = Vec::new();
            reap(&queue, &mut seen);
            first.join().unwrap();
            second.join().unwrap();
            reap(&queue, &mut seen);
            let place = |slot| seen.iter().position(|&(_, other)| other == slot).unwrap();
            assert!(place(0) < place(1) && place(2) < place(3), "{seen:?}");
            seen.sort_unstable();
            assert_eq!(seen, [(10, 0), (11, 1), (12, 2), (13, 3)]);
        });
    }
}
