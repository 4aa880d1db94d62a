//! Decides which requests may start. Requests of a chain start one after the other (IOSQE_IO_LINK).
//! A drained request starts when all earlier ones have ended, and later ones start after it has
//! ended (IOSQE_IO_DRAIN). io_uring_enter(2) has the rules. The ring's lock is held for all of it.
//!
//! As in the kernel, requests are processed in rounds. The first round has the entries of a batch.
//! What follows from the end of a request is a [`Step`] of the next round. In a round, cancelled
//! requests end first. Then follow requests that are linked to ended ones. Both kinds keep the
//! order in which the requests that caused them ended.

use std::collections::VecDeque;

/// No request.
pub(crate) const NONE: u32 = u32::MAX;

/// The properties of a ring's requests that chains need.
pub(crate) trait Links {
    /// The next request of the chain, or [`NONE`].
    fn next(&self, at: u32) -> u32;
    fn set_next(&mut self, at: u32, next: u32);
    /// Does the chain with this first request wait for all earlier ones?
    fn drains(&self, at: u32) -> bool;
    fn set_drains(&mut self, at: u32);
    /// Does the chain with this first request fail as a whole, because an entry was refused?
    fn fails(&self, at: u32) -> bool;
}

/// A chain that waits for earlier ones.
#[derive(Clone, Copy, Debug)]
struct Held {
    head: u32,
    /// The chain waits for all earlier requests.
    waits: bool,
    /// Later requests wait for the chain.
    drains: bool,
}

/// A consequence of the end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Starts a request.
    Start(u32),
    /// Ends a request with this result.
    End(u32, i32),
    /// Ends this request and later ones of its chain. `quiet`: without completions.
    Break { head: u32, quiet: bool },
}

/// The chains of a ring. A request that is linked to none is a chain of its own.
#[derive(Debug)]
pub(crate) struct Chains {
    /// The first and the last request of the chain that is being assembled.
    head: u32,
    tail: u32,
    /// The next chain counts as drained, because the previous one has a drained request behind its
    /// first.
    drain_next: bool,
    /// The next chain waits for earlier ones, because a drained chain has failed, and did not wait.
    wait_next: bool,
    held: VecDeque<Held>,
    /// Requests of chains that may start, and have not ended.
    running: u32,
    /// A drained chain has started, or starts next. Later chains wait until it has ended.
    barrier: bool,
    /// First requests of chains, which start in this batch.
    starts: VecDeque<u32>,
    /// Steps of this round, taken after `starts`.
    steps: VecDeque<Step>,
    /// Steps of the next round: first `first`, then `following`.
    first: VecDeque<Step>,
    following: VecDeque<Step>,
}

impl Chains {
    pub(crate) fn new() -> Self {
        Self {
            head: NONE,
            tail: NONE,
            drain_next: false,
            wait_next: false,
            held: VecDeque::new(),
            running: 0,
            barrier: false,
            starts: VecDeque::new(),
            steps: VecDeque::new(),
            first: VecDeque::new(),
            following: VecDeque::new(),
        }
    }

    /// The first request of the chain that is being assembled, or [`NONE`].
    pub(crate) fn head(&self) -> u32 {
        self.head
    }

    /// The last request of the chain that is being assembled, or [`NONE`].
    pub(crate) fn tail(&self) -> u32 {
        self.tail
    }

    /// Adds a request to the chain that is being assembled. `drains`: the chain waits for earlier
    /// chains. If the request is not the first of its chain, the next chain counts as drained, too.
    pub(crate) fn add(&mut self, requests: &mut impl Links, at: u32, drains: bool) {
        if self.head == NONE {
            if std::mem::take(&mut self.drain_next) {
                requests.set_drains(at);
            }
            self.head = at;
        } else {
            if drains {
                requests.set_drains(self.head);
                self.drain_next = true;
            }
            requests.set_next(self.tail, at);
        }
        self.tail = at;
    }

    /// The chain that is being assembled is complete. A failed chain waits for nothing. If it is
    /// drained, the next chain waits in its place, as in the kernel.
    pub(crate) fn end(&mut self, requests: &impl Links) {
        self.tail = NONE;
        let head = std::mem::replace(&mut self.head, NONE);
        if head == NONE {
            return;
        }
        let drains = requests.drains(head);
        if requests.fails(head) {
            self.wait_next |= drains;
            return self.let_through(requests, Held { head, waits: false, drains: false });
        }
        let waits = std::mem::take(&mut self.wait_next) || drains;
        let chain = Held { head, waits, drains };
        if self.has_to_wait(chain) || !self.held.is_empty() {
            self.held.push_back(chain);
        } else {
            self.let_through(requests, chain);
        }
    }

    fn has_to_wait(&self, chain: Held) -> bool {
        self.barrier || chain.waits && self.running > 0
    }

    fn let_through(&mut self, requests: &impl Links, chain: Held) {
        self.barrier |= chain.drains;
        let mut at = chain.head;
        while at != NONE {
            self.running += 1;
            at = requests.next(at);
        }
        self.starts.push_back(chain.head);
    }

    /// Adds a step to the next round: a consequence of the end of a request.
    pub(crate) fn then(&mut self, step: Step) {
        self.following.push_back(step);
    }

    /// Adds a step to the front of the next round: a request was cancelled.
    pub(crate) fn then_first(&mut self, step: Step) {
        self.first.push_back(step);
    }

    /// Is no chain being assembled, drained or held, and is no start or step queued?
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        let Self { head, drain_next, wait_next, barrier, .. } = *self;
        head == NONE && !(drain_next | wait_next | barrier) && !self.has_steps()
    }

    fn has_steps(&self) -> bool {
        let queued = self.starts.len() + self.held.len();
        queued + self.steps.len() + self.first.len() + self.following.len() > 0
    }

    /// A request that is a chain of its own has started.
    pub(crate) fn begun(&mut self) {
        self.running += 1;
    }

    /// A request has ended.
    pub(crate) fn ended(&mut self) {
        self.running = self.running.saturating_sub(1);
    }

    /// The first request of a chain that starts now.
    pub(crate) fn next_start(&mut self) -> Option<u32> {
        self.starts.pop_front()
    }

    /// The next step after a batch. `None`: nothing is left to do until a request ends.
    #[inline]
    pub(crate) fn next_step(&mut self, requests: &impl Links) -> Option<Step> {
        if !self.barrier && !self.has_steps() {
            return None;
        }
        self.next_of_some(requests)
    }

    fn next_of_some(&mut self, requests: &impl Links) -> Option<Step> {
        loop {
            if let Some(at) = self.starts.pop_front() {
                return Some(Step::Start(at));
            }
            if let Some(step) = self.steps.pop_front() {
                return Some(step);
            }
            if !self.first.is_empty() || !self.following.is_empty() {
                self.steps.append(&mut self.first);
                self.steps.append(&mut self.following);
                continue;
            }
            if self.running == 0 {
                self.barrier = false;
            }
            let chain = *self.held.front().filter(|&&chain| !self.has_to_wait(chain))?;
            self.held.pop_front();
            self.let_through(requests, chain);
        }
    }

    /// Removes the first waiting chain, and returns its first request. The chain never starts.
    pub(crate) fn pop_held(&mut self) -> Option<u32> {
        self.held.pop_front().map(|chain| chain.head)
    }

    /// Removes the queued starts of requests: the ring is being closed.
    pub(crate) fn forget_starts(&mut self) {
        self.starts.clear();
        for steps in [&mut self.steps, &mut self.following] {
            steps.retain(|step| !matches!(step, Step::Start(_)));
        }
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::{Chains, Links, NONE, Step};

    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Event {
        Start(u32),
        End(u32),
    }

    #[derive(Default)]
    struct Requests(Vec<(u32, bool)>);

    impl Links for Requests {
        fn next(&self, at: u32) -> u32 {
            self.0[at as usize].0
        }

        fn set_next(&mut self, at: u32, next: u32) {
            self.0[at as usize].0 = next;
        }

        fn drains(&self, at: u32) -> bool {
            self.0[at as usize].1
        }

        fn set_drains(&mut self, at: u32) {
            self.0[at as usize].1 = true;
        }

        fn fails(&self, _: u32) -> bool {
            false
        }
    }

    struct Model {
        chains: Chains,
        requests: Requests,
        /// Requests that have started and not ended.
        open: Vec<u32>,
        seen: Vec<Event>,
    }

    impl Model {
        fn new() -> Arc<Mutex<Self>> {
            let (chains, requests) = (Chains::new(), Requests::default());
            Arc::new(Mutex::new(Self { chains, requests, open: Vec::new(), seen: Vec::new() }))
        }

        fn submit(&mut self, links: bool, drains: bool) {
            let at = self.requests.0.len() as u32;
            self.requests.0.push((NONE, drains));
            self.chains.add(&mut self.requests, at, drains);
            if !links {
                self.chains.end(&self.requests);
            }
            self.start_all();
        }

        fn start_all(&mut self) {
            while let Some(Step::Start(at)) = self.chains.next_step(&self.requests) {
                self.seen.push(Event::Start(at));
                self.open.push(at);
            }
        }

        /// A thread of the engine ends a request, if there is any.
        fn complete(&mut self) {
            let Some(at) = self.open.pop() else { return };
            self.seen.push(Event::End(at));
            self.chains.ended();
            let next = self.requests.next(at);
            if next != NONE {
                self.chains.then(Step::Start(next));
            }
            self.start_all();
        }

        /// Ends the open requests, and checks that every submitted request has ended once.
        fn finish(&mut self) {
            while !self.open.is_empty() {
                self.complete();
            }
            assert_eq!(self.seen.len(), 2 * self.requests.0.len(), "{:?}", self.seen);
        }

        fn is_before(&self, first: Event, second: Event) -> bool {
            let place = |event| self.seen.iter().position(|&other| other == event).unwrap();
            place(first) < place(second)
        }
    }

    fn complete_beside(model: &Arc<Mutex<Model>>, times: u32) -> thread::JoinHandle<()> {
        let model = Arc::clone(model);
        thread::spawn(move || (0..times).for_each(|_| model.lock().unwrap().complete()))
    }

    #[test]
    fn loom_a_drained_request_is_alone() {
        loom::model(|| {
            let model = Model::new();
            let completes = complete_beside(&model, 2);
            for drains in [false, true, false] {
                model.lock().unwrap().submit(false, drains);
            }
            completes.join().unwrap();
            let mut model = model.lock().unwrap();
            model.finish();
            assert!(model.is_before(Event::End(0), Event::Start(1)), "{:?}", model.seen);
            assert!(model.is_before(Event::End(1), Event::Start(2)), "{:?}", model.seen);
        });
    }

    #[test]
    fn loom_requests_of_a_chain_start_in_their_order() {
        loom::model(|| {
            let model = Model::new();
            let completes = complete_beside(&model, 3);
            for links in [true, true, false, false] {
                model.lock().unwrap().submit(links, false);
            }
            completes.join().unwrap();
            let mut model = model.lock().unwrap();
            model.finish();
            assert!(model.is_before(Event::End(0), Event::Start(1)), "{:?}", model.seen);
            assert!(model.is_before(Event::End(1), Event::Start(2)), "{:?}", model.seen);
        });
    }

    #[test]
    fn loom_a_chain_that_drains_in_its_middle_waits_and_the_next_one_too() {
        loom::model(|| {
            let model = Model::new();
            let completes = complete_beside(&model, 2);
            for (links, drains) in [(false, false), (true, false), (false, true), (false, false)] {
                model.lock().unwrap().submit(links, drains);
            }
            completes.join().unwrap();
            let mut model = model.lock().unwrap();
            model.finish();
            assert!(model.is_before(Event::End(0), Event::Start(1)), "{:?}", model.seen);
            assert!(model.is_before(Event::End(2), Event::Start(3)), "{:?}", model.seen);
        });
    }
}
