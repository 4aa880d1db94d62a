//! Hands on requests that are ready, by one thread at a time, so that they keep their order.
//!
//! A thread that finds another one handing over leaves its requests to that thread. If there is no
//! room, the thread that makes room hands over the rest. If another thread has a lock that handing
//! over needs, that thread hands over: each thread that releases the lock calls [`Handover::run`]
//! afterwards.

use crate::sync::{AtomicBool, AtomicUsize, Ordering, fence};

/// The number of ready requests, and whether a thread hands them over.
#[derive(Debug)]
pub struct Handover {
    ready: AtomicUsize,
    busy: AtomicBool,
}

impl Handover {
    /// A handover without ready requests.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self { ready: AtomicUsize::new(0), busy: AtomicBool::new(false) }
    }

    /// Counts a request that is ready. The caller calls [`run`](Self::run) afterwards.
    #[inline]
    pub fn add(&self) {
        self.ready.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of ready requests: a hint. Requests that the calling thread has added count.
    #[inline]
    pub fn ready(&self) -> usize {
        self.ready.load(Ordering::Relaxed)
    }

    /// Counts `count` requests that are no longer ready.
    #[inline]
    pub fn sub(&self, count: usize) {
        self.ready.fetch_sub(count, Ordering::Relaxed);
    }

    /// Is a request ready? For a thread that has made room, which calls [`run`](Self::run) then.
    #[inline]
    pub fn waits_for_room(&self) -> bool {
        fence(Ordering::SeqCst);
        self.ready() > 0
    }

    /// Calls `hand_over` until nothing is ready, or until there is no room. `hand_over` says
    /// whether there was room for all, and `has_room` whether there is some now.
    pub fn run(&self, mut hand_over: impl FnMut() -> bool, mut has_room: impl FnMut() -> bool) {
        while self.ready() > 0 && !self.busy.swap(true, Ordering::AcqRel) {
            let all = hand_over();
            // Another thread may have added requests, and have found this thread busy. An exchange
            // sees these requests, and a plain store would not.
            self.busy.swap(false, Ordering::AcqRel);
            if !all {
                // A thread that has made room meanwhile may have found this thread busy, and have
                // left the requests to it.
                fence(Ordering::SeqCst);
                if !has_room() {
                    return;
                }
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::Handover;

    struct Model {
        handover: Handover,
        queue: Mutex<Vec<u32>>,
        engine: Mutex<Vec<u32>>,
        room: AtomicUsize,
    }

    impl Model {
        fn new(room: usize) -> Arc<Self> {
            Arc::new(Self {
                handover: Handover::new(),
                queue: Mutex::new(Vec::new()),
                engine: Mutex::new(Vec::new()),
                room: AtomicUsize::new(room),
            })
        }

        fn hand_over(&self) -> bool {
            loop {
                let mut queue = self.queue.lock().unwrap();
                if queue.is_empty() {
                    return true;
                }
                let room = self.room.load(Ordering::Relaxed);
                if room == 0 {
                    return false;
                }
                let request = queue.remove(0);
                drop(queue);
                self.room.fetch_sub(1, Ordering::Relaxed);
                self.engine.lock().unwrap().push(request);
                self.handover.sub(1);
            }
        }

        fn has_room(&self) -> bool {
            self.room.load(Ordering::Relaxed) > 0
        }

        fn submit(&self, request: u32) {
            let mut queue = self.queue.lock().unwrap();
            queue.push(request);
            self.handover.add();
            drop(queue);
            self.handover.run(|| self.hand_over(), || self.has_room());
        }

        /// Hands over, as a ring of the io_uring front end does: without waiting for the lock of
        /// the queue.
        fn run_without_waiting(&self) {
            let hand_over = || loop {
                let Ok(mut queue) = self.queue.try_lock() else { return false };
                if queue.is_empty() {
                    return true;
                }
                let request = queue.remove(0);
                drop(queue);
                self.engine.lock().unwrap().push(request);
                self.handover.sub(1);
            };
            self.handover.run(hand_over, || self.has_room() && self.queue.try_lock().is_ok());
        }

        /// Takes the lock for another purpose, as another thread does, and releases it.
        fn settle(&self, passes_on: bool) {
            let queue = self.queue.lock().unwrap();
            // A step on a word that the other thread uses, too, so that the model switches threads
            // here.
            self.handover.ready.fetch_add(0, Ordering::Relaxed);
            drop(queue);
            if passes_on {
                self.run_without_waiting();
            }
        }

        fn submit_beside_a_holder(passes_on: bool) {
            loom::model(move || {
                let model = Model::new(1);
                let other = Arc::clone(&model);
                let holds = thread::spawn(move || other.settle(passes_on));
                model.queue.lock().unwrap().push(1);
                model.handover.add();
                model.run_without_waiting();
                holds.join().unwrap();
                assert_eq!(*model.engine.lock().unwrap(), [1], "it stays");
            });
        }

        fn make_room(&self) {
            self.room.fetch_add(1, Ordering::Relaxed);
            if self.handover.waits_for_room() {
                self.handover.run(|| self.hand_over(), || self.has_room());
            }
        }
    }

    #[test]
    fn loom_nothing_stays_that_is_ready_and_each_thread_s_keep_their_order() {
        loom::model(|| {
            let model = Model::new(4);
            let other = Arc::clone(&model);
            let submits = thread::spawn(move || (1..=2).for_each(|request| other.submit(request)));
            model.submit(11);
            submits.join().unwrap();
            let engine = model.engine.lock().unwrap();
            assert_eq!(engine.len(), 3);
            let of_one: Vec<u32> = engine.iter().copied().filter(|&one| one < 10).collect();
            assert_eq!(of_one, [1, 2]);
        });
    }

    #[test]
    #[should_panic(expected = "one stays")]
    fn loom_canary_the_right_is_given_back_by_a_plain_store() {
        loom::model(|| {
            let model = Model::new(4);
            let submit = |model: &Model, request| {
                model.queue.lock().unwrap().push(request);
                let Handover { ready, busy } = &model.handover;
                ready.fetch_add(1, Ordering::Relaxed);
                while ready.load(Ordering::Relaxed) > 0 && !busy.swap(true, Ordering::AcqRel) {
                    model.hand_over();
                    busy.store(false, Ordering::Release);
                }
            };
            let other = Arc::clone(&model);
            let submits = thread::spawn(move || submit(&other, 1));
            submit(&model, 2);
            submits.join().unwrap();
            assert_eq!(model.engine.lock().unwrap().len(), 2, "one stays");
        });
    }

    #[test]
    fn loom_who_has_the_lock_hands_over_what_was_left_for_that() {
        Model::submit_beside_a_holder(true);
    }

    #[test]
    #[should_panic(expected = "it stays")]
    fn loom_canary_who_has_the_lock_does_not_pass_on() {
        Model::submit_beside_a_holder(false);
    }

    #[test]
    fn loom_who_makes_room_hands_over_what_was_left() {
        loom::model(|| {
            let model = Model::new(1);
            let other = Arc::clone(&model);
            let completes = thread::spawn(move || other.make_room());
            (1..=2).for_each(|request| model.submit(request));
            completes.join().unwrap();
            assert_eq!(*model.engine.lock().unwrap(), [1, 2]);
        });
    }
}
