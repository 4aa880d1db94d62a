//! Completions that the program has not reaped, and their three places. They are in the ring, in
//! the backlog because the ring had no room, or deferred (DEFER_TASKRUN). Deferred ones wait until
//! the *owner*, the thread that submits, enters the ring. None is lost, and none overtakes another.
//!
//! Completions move under the ring's lock. A thread that is about to sleep reads the counts without
//! the lock. So a completion that moves must always be seen in one of the places.

use std::collections::VecDeque;

use crate::abi::Cqe;
use crate::sync::{AtomicU32, Ordering};

/// The completion queue of a ring's memory.
pub(crate) trait Queue {
    /// The number of entries. A *place* is a value of the head or tail, whose low bits are the
    /// index of an entry.
    fn entries(&self) -> u32;
    /// The number of completions that the program has reaped, as the program says.
    fn head(&self) -> u32;
    /// The number of completions that were published. The program cannot change this number.
    fn tail(&self) -> u32;
    /// The number of completions that the program sees. It is behind [`tail`](Self::tail) for a
    /// moment in [`publish`](Self::publish). The program can overwrite it.
    fn seen_tail(&self) -> u32;
    /// Writes a completion to a place that nobody reads yet.
    fn write(&self, place: u32, cqe: &Cqe);
    /// Publishes the places before `tail`, which were written.
    fn publish(&self, tail: u32);
}

/// The numbers of completions, for threads that do not hold the lock.
#[derive(Debug)]
pub(crate) struct Counts {
    /// Completions that are not in the ring yet.
    outside: AtomicU32,
}

impl Counts {
    pub(crate) fn new() -> Self {
        Self { outside: AtomicU32::new(0) }
    }

    /// Completions in the ring.
    fn in_ring(&self, queue: &impl Queue) -> u32 {
        let head = queue.head();
        queue.tail().wrapping_sub(head).min(queue.entries())
    }

    /// All completions, in the ring or not. The program sees each that is counted in the ring.
    pub(crate) fn all(&self, queue: &impl Queue) -> u32 {
        // Completions outside of the ring are counted first. A completion that moves is in the ring
        // before it leaves this count. In the other order, a thread could see it in neither place.
        let outside = self.outside();
        let head = queue.head();
        queue.seen_tail().wrapping_sub(head).min(queue.entries()).saturating_add(outside)
    }

    /// Completions that are not in the ring yet.
    pub(crate) fn outside(&self) -> u32 {
        self.outside.load(Ordering::Acquire)
    }
}

/// The places outside of the ring's memory. The ring's lock protects them.
#[derive(Debug)]
pub(crate) struct Completions {
    backlog: VecDeque<Cqe>,
    deferred: VecDeque<Cqe>,
}

impl Completions {
    pub(crate) fn new() -> Self {
        Self { backlog: VecDeque::new(), deferred: VecDeque::new() }
    }

    /// Are there completions for which the ring had no room?
    pub(crate) fn has_overflown(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Are there completions that wait for the owner to enter the ring?
    pub(crate) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Has the ring room for a completion now?
    pub(crate) fn has_room(&self, counts: &Counts, queue: &impl Queue) -> bool {
        self.backlog.is_empty() && counts.in_ring(queue) < queue.entries()
    }

    /// Adds a completion to the ring, or to the backlog. Earlier deferred ones go first.
    pub(crate) fn add(&mut self, counts: &Counts, queue: &impl Queue, cqe: Cqe) {
        if !self.deferred.is_empty() {
            self.flush(counts, queue);
        }
        if self.has_room(counts, queue) {
            Self::write(queue, &cqe);
        } else {
            self.backlog.push_back(cqe);
            counts.outside.fetch_add(1, Ordering::Release);
        }
    }

    /// Adds a completion that goes into the ring when the owner enters the ring.
    pub(crate) fn defer(&mut self, counts: &Counts, cqe: Cqe) {
        self.deferred.push_back(cqe);
        counts.outside.fetch_add(1, Ordering::Release);
    }

    /// Moves waiting completions into the ring while it has room.
    pub(crate) fn flush(&mut self, counts: &Counts, queue: &impl Queue) {
        while counts.in_ring(queue) < queue.entries()
            && let Some(cqe) = self.backlog.pop_front().or_else(|| self.deferred.pop_front())
        {
            Self::write(queue, &cqe);
            counts.outside.fetch_sub(1, Ordering::Release);
        }
        // The deferred completions are counted already.
        self.backlog.append(&mut self.deferred);
    }

    fn write(queue: &impl Queue, cqe: &Cqe) {
        let tail = queue.tail();
        queue.write(tail, cqe);
        queue.publish(tail.wrapping_add(1));
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::{Completions, Counts, Queue};
    use crate::abi::Cqe;

    const ENTRIES: u32 = 2;

    /// A ring's memory.
    struct Ring {
        head: AtomicU32,
        tail: AtomicU32,
        seen_tail: AtomicU32,
        places: [AtomicU32; ENTRIES as usize],
    }

    impl Queue for Ring {
        fn entries(&self) -> u32 {
            ENTRIES
        }

        fn head(&self) -> u32 {
            self.head.load(Ordering::Acquire)
        }

        fn tail(&self) -> u32 {
            self.tail.load(Ordering::Acquire)
        }

        fn seen_tail(&self) -> u32 {
            self.seen_tail.load(Ordering::Acquire)
        }

        fn write(&self, place: u32, cqe: &Cqe) {
            self.places[(place % ENTRIES) as usize].store(cqe.res as u32, Ordering::Relaxed);
        }

        fn publish(&self, tail: u32) {
            self.tail.store(tail, Ordering::Release);
            self.seen_tail.store(tail, Ordering::Release);
        }
    }

    impl Ring {
        /// Reaps as a program does, from memory only.
        fn reap(&self) -> Option<u32> {
            let head = self.head.load(Ordering::Relaxed);
            if self.seen_tail.load(Ordering::Acquire) == head {
                return None;
            }
            let res = self.places[(head % ENTRIES) as usize].load(Ordering::Relaxed);
            self.head.store(head + 1, Ordering::Release);
            Some(res)
        }
    }

    struct Model {
        counts: Counts,
        ring: Ring,
        completions: Mutex<Completions>,
    }

    impl Model {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                counts: Counts::new(),
                ring: Ring {
                    head: AtomicU32::new(0),
                    tail: AtomicU32::new(0),
                    seen_tail: AtomicU32::new(0),
                    places: [AtomicU32::new(0), AtomicU32::new(0)],
                },
                completions: Mutex::new(Completions::new()),
            })
        }

        fn with<R>(&self, f: impl FnOnce(&mut Completions, &Counts, &Ring) -> R) -> R {
            f(&mut self.completions.lock().unwrap(), &self.counts, &self.ring)
        }

        fn add(&self, res: u32) {
            let cqe = Cqe { user_data: 0, res: res as i32, flags: 0 };
            self.with(|completions, counts, ring| completions.add(counts, ring, cqe));
        }

        fn defer(&self, res: u32) {
            let cqe = Cqe { user_data: 0, res: res as i32, flags: 0 };
            self.with(|completions, counts, _| completions.defer(counts, cqe));
        }

        fn flush(&self) {
            self.with(|completions, counts, ring| completions.flush(counts, ring));
        }
    }

    #[test]
    fn loom_more_completions_than_the_ring_holds_come_once_and_in_order() {
        loom::model(|| {
            let model = Model::new();
            let other = Arc::clone(&model);
            let posts = thread::spawn(move || (1..=4).for_each(|res| other.add(res)));
            let mut reaped = Vec::new();
            for _ in 0..2 {
                reaped.extend(model.ring.reap());
                model.flush();
            }
            posts.join().unwrap();
            while model.counts.all(&model.ring) > 0 {
                model.flush();
                reaped.extend(model.ring.reap());
            }
            assert_eq!(reaped, [1, 2, 3, 4]);
        });
    }

    #[test]
    fn loom_what_moves_into_the_ring_is_seen_by_who_would_sleep() {
        loom::model(|| {
            let model = Model::new();
            model.defer(1);
            let other = Arc::clone(&model);
            let owner = thread::spawn(move || other.flush());
            assert_eq!(model.counts.all(&model.ring).min(1), 1, "there has always been one");
            owner.join().unwrap();
            assert_eq!((model.ring.reap(), model.counts.all(&model.ring)), (Some(1), 0));
        });
    }

    #[test]
    #[should_panic(expected = "in neither place")]
    fn loom_canary_those_in_the_ring_are_counted_first() {
        loom::model(|| {
            let model = Model::new();
            model.defer(1);
            let other = Arc::clone(&model);
            let owner = thread::spawn(move || other.flush());
            let in_ring = model.counts.in_ring(&model.ring);
            assert!(in_ring + model.counts.outside() > 0, "in neither place");
            owner.join().unwrap();
        });
    }

    /// A completion comes while the program calls `count`. If `count` reports it, the program finds
    /// it in the ring.
    fn tells(count: fn(&Model) -> u32) {
        loom::model(move || {
            let model = Model::new();
            let other = Arc::clone(&model);
            let posts = thread::spawn(move || other.add(1));
            // Twice, so that a call of `count` can be between the two stores of `publish`.
            for _ in 0..2 {
                let told = count(&model);
                assert!(model.ring.reap().is_some() || told == 0, "told too early");
            }
            posts.join().unwrap();
        });
    }

    #[test]
    fn loom_who_is_told_of_a_completion_finds_it_in_the_ring() {
        tells(|model| model.counts.all(&model.ring));
    }

    #[test]
    #[should_panic(expected = "told too early")]
    fn loom_canary_the_tail_that_the_program_does_not_see_is_read() {
        tells(|model| model.counts.in_ring(&model.ring));
    }

    #[test]
    fn loom_one_of_the_owner_s_does_not_overtake_a_deferred_one() {
        loom::model(|| {
            let model = Model::new();
            let other = Arc::clone(&model);
            let engine = thread::spawn(move || {
                other.defer(1);
                other.defer(2);
            });
            model.add(10);
            let mut reaped = Vec::from_iter(model.ring.reap());
            engine.join().unwrap();
            model.add(11);
            while model.counts.all(&model.ring) > 0 {
                model.flush();
                reaped.extend(model.ring.reap());
            }
            assert!(reaped.iter().filter(|&&one| one < 10).is_sorted(), "{reaped:?}");
            assert_eq!((reaped.len(), reaped.last()), (4, Some(&11)), "{reaped:?}");
        });
    }

    #[test]
    fn loom_a_deferred_one_does_not_overtake_the_backlog() {
        loom::model(|| {
            let model = Model::new();
            (1..=3).for_each(|res| model.add(res));
            model.defer(4);
            let other = Arc::clone(&model);
            let owner = thread::spawn(move || other.flush());
            let mut reaped = Vec::from_iter(model.ring.reap());
            owner.join().unwrap();
            while model.counts.all(&model.ring) > 0 {
                model.flush();
                reaped.extend(model.ring.reap());
            }
            assert_eq!(reaped, [1, 2, 3, 4]);
        });
    }
}
