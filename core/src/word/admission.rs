//! Requests that wait until an engine has room for them: in order, passed on as in a [`Handover`].
//! A thread that withdraws a request passes the next one on.

use std::collections::VecDeque;

use super::handover::Handover;
use crate::sync::{Mutex, lock};

/// Requests that wait for room.
#[derive(Debug)]
pub(crate) struct Admission<T> {
    line: Mutex<AdmissionLine<T>>,
    /// Counts the requests in the line, and one that a thread has taken and not passed on yet.
    waiting: Handover,
}

#[derive(Debug)]
struct AdmissionLine<T> {
    requests: VecDeque<T>,
    /// The number of withdrawn requests in the line. A withdrawn request may leave the line before
    /// it is counted. Then the number is one too low for a moment.
    withdrawn: isize,
}

impl<T> Admission<T> {
    pub(crate) fn new() -> Self {
        let line = AdmissionLine { requests: VecDeque::new(), withdrawn: 0 };
        Self { line: Mutex::new(line), waiting: Handover::new() }
    }

    /// Does no request wait, so that the caller's next one may pass at once? Requests that the
    /// caller has queued count until they were passed on.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.ready() == 0
    }

    /// Does a request wait? For a thread that has made room, which calls [`run`](Self::run) then.
    #[inline]
    pub(crate) fn waits_for_room(&self) -> bool {
        self.waiting.waits_for_room()
    }

    /// Queues a request behind the others. The caller calls [`run`](Self::run) afterwards.
    pub(crate) fn push_back(&self, request: T) {
        let mut line = lock(&self.line);
        line.requests.push_back(request);
        self.waiting.add();
    }

    /// Queues a request before the others. The caller calls [`run`](Self::run) afterwards.
    pub(crate) fn push_front(&self, request: T) {
        let mut line = lock(&self.line);
        line.requests.push_front(request);
        self.waiting.add();
    }

    /// Takes the first request if it `may_go`. `Err`: is the line empty? For the thread that
    /// [`run`](Self::run) calls, which calls [`passed`](Self::passed) afterwards.
    pub(crate) fn take_if(&self, may_go: impl FnOnce(&T) -> bool) -> Result<T, bool> {
        let mut line = lock(&self.line);
        let first = line.requests.front().ok_or(true)?;
        if may_go(first) { line.requests.pop_front().ok_or(true) } else { Err(false) }
    }

    /// Notes that the taken request was passed on or, if it `was_withdrawn`, given up.
    pub(crate) fn passed(&self, was_withdrawn: bool) {
        if was_withdrawn {
            lock(&self.line).withdrawn -= 1;
        }
        self.waiting.sub(1);
    }

    /// Calls `ask` with the first request.
    pub(crate) fn first<R>(&self, ask: impl FnOnce(&T) -> R) -> Option<R> {
        lock(&self.line).requests.front().map(ask)
    }

    /// Requests that wait and are not withdrawn: a snapshot.
    pub(crate) fn len(&self) -> usize {
        let line = lock(&self.line);
        self.waiting.ready().saturating_add_signed(-line.withdrawn)
    }

    /// Notes that one request was withdrawn. The caller calls [`run`](Self::run) afterwards,
    /// because the next request may have room. Withdrawn requests stay in the line for a while. Now
    /// and then they are removed, and returned to the caller.
    pub(crate) fn note_withdrawn(&self, is_withdrawn: impl Fn(&T) -> bool) -> Vec<T> {
        /// Fewer withdrawn requests than this stay in the line, because removing them visits all
        /// requests.
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
        self.waiting.sub(gone.len());
        gone
    }

    /// Calls `pass_on` until no request waits, or until there is no room for the first. `pass_on`
    /// returns true if it has left none. `may_go` says whether there is room for the first now.
    pub(crate) fn run(&self, pass_on: impl FnMut() -> bool, may_go: impl FnMut() -> bool) {
        self.waiting.run(pass_on, may_go);
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::Admission;

    /// A request: its number, and the room that it takes.
    type Sized = (u32, usize);

    struct Model {
        admission: Admission<Sized>,
        engine: Mutex<Vec<u32>>,
        room: AtomicUsize,
        /// Request 1 is claimed, by the thread that passes it on or withdraws it.
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
