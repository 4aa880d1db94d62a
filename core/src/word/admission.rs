//! Requests that wait until an engine has room for them: in order, and passed on by one thread at a
//! time, so that they keep that order.
//!
//! A thread that finds another one passing requests on leaves its own to that one. A request that
//! stays for want of room is passed on by the thread that makes room. So is the request behind one
//! that is withdrawn: the thread that withdraws it passes the next one on.

use std::collections::VecDeque;

use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, fence, lock};

/// Requests that wait for room.
#[derive(Debug)]
pub(crate) struct Admission<T> {
    line: Mutex<AdmissionLine<T>>,
    /// Requests in the line, and the one that a thread has taken and not passed on yet.
    waiting: AtomicUsize,
    is_passing: AtomicBool,
}

#[derive(Debug)]
struct AdmissionLine<T> {
    requests: VecDeque<T>,
    /// Withdrawn requests in the line; briefly one less for each that is about to be counted.
    withdrawn: isize,
}

impl<T> Admission<T> {
    pub(crate) fn new() -> Self {
        let line = AdmissionLine { requests: VecDeque::new(), withdrawn: 0 };
        let (waiting, is_passing) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { line: Mutex::new(line), waiting, is_passing }
    }

    /// No request waits, so the caller's next one may pass at once. What the caller has queued
    /// before counts, until it was passed on.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Does a request wait? For a thread that has made room: [`run`](Self::run) has to follow then.
    #[inline]
    pub(crate) fn waits_for_room(&self) -> bool {
        fence(Ordering::SeqCst);
        !self.is_empty()
    }

    /// Queues a request behind the others: [`run`](Self::run) has to follow.
    pub(crate) fn push_back(&self, request: T) {
        let mut line = lock(&self.line);
        line.requests.push_back(request);
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// Queues a request before the others: [`run`](Self::run) has to follow.
    pub(crate) fn push_front(&self, request: T) {
        let mut line = lock(&self.line);
        line.requests.push_front(request);
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the first request if it `may_go`. `Err`: is the line empty? By the thread that
    /// [`run`](Self::run) calls, and [`passed`](Self::passed) has to follow.
    pub(crate) fn take_if(&self, may_go: impl FnOnce(&T) -> bool) -> Result<T, bool> {
        let mut line = lock(&self.line);
        let first = line.requests.front().ok_or(true)?;
        if may_go(first) { line.requests.pop_front().ok_or(true) } else { Err(false) }
    }

    /// What was taken was passed on, or, if it `was_withdrawn`, given up.
    pub(crate) fn passed(&self, was_withdrawn: bool) {
        if was_withdrawn {
            lock(&self.line).withdrawn -= 1;
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Asks something of the first request.
    pub(crate) fn first<R>(&self, ask: impl FnOnce(&T) -> R) -> Option<R> {
        lock(&self.line).requests.front().map(ask)
    }

    /// Requests that wait and are not withdrawn: a snapshot.
    pub(crate) fn len(&self) -> usize {
        let line = lock(&self.line);
        self.waiting.load(Ordering::Relaxed).saturating_add_signed(-line.withdrawn)
    }

    /// One request was withdrawn: [`run`](Self::run) has to follow, as the next one may have room.
    /// Withdrawn requests stay in the line for a while. Now and then they are removed, and given to
    /// the caller.
    pub(crate) fn note_withdrawn(&self, is_withdrawn: impl Fn(&T) -> bool) -> Vec<T> {
        /// Fewer are not worth it.
        const FEW: isize = 64;
        let mut line = lock(&self.line);
        line.withdrawn += 1;
        if line.withdrawn < FEW || line.withdrawn < line.requests.len() as isize / 2 {
            return Vec::new();
        }
        let all = std::mem::take(&mut line.requests);
        let (gone, kept): (Vec<T>, Vec<T>) = all.into_iter().partition(is_withdrawn);
        line.requests = kept.into();
        line.withdrawn -= gone.len() as isize;
        self.waiting.fetch_sub(gone.len(), Ordering::Relaxed);
        gone
    }

    /// Calls `pass_on` until no request waits, or until there is no room for the first. `pass_on`
    /// says whether it has left none. `may_go` says whether there is room for the first by now.
    pub(crate) fn run(&self, mut pass_on: impl FnMut() -> bool, mut may_go: impl FnMut() -> bool) {
        while self.waiting.load(Ordering::Relaxed) > 0
            && !self.is_passing.swap(true, Ordering::AcqRel)
        {
            let all = pass_on();
            // Not a plain store: a thread that has found this one here is seen with what it added.
            self.is_passing.swap(false, Ordering::AcqRel);
            if !all {
                // A thread that makes room comes by, but has found this one here.
                fence(Ordering::SeqCst);
                if !may_go() {
                    return;
                }
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::Admission;

    /// A request: its number, and how much room it takes.
    type Sized = (u32, usize);

    struct Model {
        admission: Admission<Sized>,
        engine: Mutex<Vec<u32>>,
        room: AtomicUsize,
        /// The request of number 1 is claimed, by the thread that passes it on or withdraws it.
        claimed: AtomicBool,
    }

    impl Model {
        fn new(room: usize) -> Arc<Self> {
            Arc::new(Self {
                admission: Admission::new(),
                engine: Mutex::new(Vec::new()),
                room: AtomicUsize::new(room),
                claimed: AtomicBool::new(false),
            })
        }

        fn is_withdrawn(&self, number: u32) -> bool {
            number == 1 && self.claimed.load(Ordering::Acquire)
        }

        fn fits(&self, &(number, room): &Sized) -> bool {
            self.is_withdrawn(number) || room <= self.room.load(Ordering::Relaxed)
        }

        fn pass_on(&self) -> bool {
            loop {
                let (number, room) = match self.admission.take_if(|first| self.fits(first)) {
                    Ok(next) => next,
                    Err(is_empty) => return is_empty,
                };
                let was_withdrawn = number == 1 && self.claimed.swap(true, Ordering::AcqRel);
                if !was_withdrawn {
                    self.room.fetch_sub(room, Ordering::Relaxed);
                    self.engine.lock().unwrap().push(number);
                }
                self.admission.passed(was_withdrawn);
            }
        }

        fn may_go(&self) -> bool {
            self.admission.first(|first| self.fits(first)).unwrap_or(true)
        }

        fn run(&self) {
            self.admission.run(|| self.pass_on(), || self.may_go());
        }

        fn submit(&self, number: u32) {
            self.admission.push_back((number, 1));
            self.run();
        }

        fn make_room(&self) {
            self.room.fetch_add(1, Ordering::Relaxed);
            if self.admission.waits_for_room() {
                self.run();
            }
        }

        fn withdraw(&self) -> bool {
            let is_withdrawn = !self.claimed.swap(true, Ordering::AcqRel);
            if is_withdrawn {
                assert!(self.admission.note_withdrawn(|_| unreachable!("one alone")).is_empty());
            }
            is_withdrawn
        }
    }

    #[test]
    fn loom_nothing_stays_that_has_room_and_each_thread_s_keep_their_order() {
        loom::model(|| {
            let model = Model::new(4);
            let other = Arc::clone(&model);
            let submits = thread::spawn(move || (2..=3).for_each(|request| other.submit(request)));
            model.submit(11);
            submits.join().unwrap();
            let engine = model.engine.lock().unwrap();
            assert_eq!(engine.len(), 3);
            let of_one: Vec<u32> = engine.iter().copied().filter(|&one| one < 10).collect();
            assert_eq!(of_one, [2, 3]);
        });
    }

    #[test]
    #[should_panic(expected = "one stays")]
    fn loom_canary_the_right_is_given_back_by_a_plain_store() {
        loom::model(|| {
            let model = Model::new(4);
            let submit = |model: &Model, request| {
                let Admission { waiting, is_passing, .. } = &model.admission;
                model.admission.push_back((request, 1));
                while waiting.load(Ordering::Relaxed) > 0
                    && !is_passing.swap(true, Ordering::AcqRel)
                {
                    model.pass_on();
                    is_passing.store(false, Ordering::Release);
                }
            };
            let other = Arc::clone(&model);
            let submits = thread::spawn(move || submit(&other, 2));
            submit(&model, 3);
            submits.join().unwrap();
            assert_eq!(model.engine.lock().unwrap().len(), 2, "one stays");
        });
    }

    #[test]
    fn loom_the_thread_that_makes_room_passes_on_what_was_left() {
        loom::model(|| {
            let model = Model::new(1);
            let other = Arc::clone(&model);
            let completes = thread::spawn(move || other.make_room());
            (2..=3).for_each(|request| model.submit(request));
            completes.join().unwrap();
            assert_eq!(*model.engine.lock().unwrap(), [2, 3]);
        });
    }

    /// A large request waits at the front, and is withdrawn while a small one comes.
    fn withdraw_beside_a_submit(passes_on: bool) {
        loom::model(move || {
            let model = Model::new(1);
            model.admission.push_back((1, 2));
            let other = Arc::clone(&model);
            let withdraws = thread::spawn(move || {
                assert!(other.withdraw());
                if passes_on {
                    other.run();
                }
            });
            model.submit(2);
            withdraws.join().unwrap();
            assert_eq!(*model.engine.lock().unwrap(), [2], "one stays");
            assert_eq!(model.admission.len(), 0);
        });
    }

    #[test]
    fn loom_a_withdrawn_request_passes_the_next_one_on() {
        withdraw_beside_a_submit(true);
    }

    #[test]
    #[should_panic(expected = "one stays")]
    fn loom_canary_a_withdrawn_request_holds_up_the_next_one() {
        withdraw_beside_a_submit(false);
    }

    #[test]
    fn loom_a_request_is_either_withdrawn_or_passed_on() {
        loom::model(|| {
            let model = Model::new(0);
            model.submit(1);
            let other = Arc::clone(&model);
            let completes = thread::spawn(move || other.make_room());
            let is_withdrawn = model.withdraw();
            model.run();
            completes.join().unwrap();
            let expected: &[u32] = if is_withdrawn { &[] } else { &[1] };
            assert_eq!(*model.engine.lock().unwrap(), expected);
            assert_eq!(model.admission.len(), 0);
        });
    }
}
