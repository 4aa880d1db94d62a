//! The workers of this process: one bounded pool that serves the contexts in turn.
//!
//! A context that needs a worker stands in a queue, once. A worker takes the first, executes one
//! request of its (or some cold reads, or one turn with its baton), and puts it back at the end while it needs more,
//! so a busy context does not keep the others waiting. The lock covers the queue and the list of idle
//! workers only; it is never held across a system call.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;

use super::Workers;
use super::threads::{RETIRE_AFTER, WORKERS_MAX, cpus};
use crate::descriptor::ticks_per_us;
use crate::instance::Instance;
use crate::sync::lock;
use crate::sys;

/// Workers on their way to work before another one is woken.
const ON_THE_WAY_MAX: usize = 2;

/// Workers per CPU that are enough for requests that do not take long and do not wait in large numbers: with more, each finds
/// its queue empty when it is done, and has to sleep and be woken for the next.
const ENOUGH_PER_CPU: usize = 8;
/// More of them as long as one request waits for each so many that are at work.
const FOR_EACH_WAITING: usize = 3;
/// A context may have so many workers for each that is free: 48 of 64 if it is alone.
const SHARE_OF_FREE: usize = 3;
/// Requests that take this long get as many workers as there may be.
const LONG_US: u64 = 400;

/// The longest that an idle worker looks for work before it sleeps.
const SPIN_US_MAX: u64 = 40;

/// The pool.
#[derive(Debug)]
pub(super) struct Pool {
    state: Mutex<State>,
    /// Contexts in the queue, for the worker that spins.
    queued: AtomicUsize,
    /// How long it does, in ticks: what has lately paid, 0 if nothing did.
    spin: AtomicU64,
    /// How long requests of the pool lane take, in ticks: a moving average.
    typical: AtomicU64,
    /// No thread could be made, and there is none.
    helpless: AtomicBool,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<Arc<Instance>>,
    idle: Vec<Arc<Bed>>,
    alive: usize,
    /// Woken or made, but not at the queue yet; the one that spins counts.
    on_the_way: usize,
    spinning: bool,
}

/// Where an idle worker sleeps.
#[derive(Debug)]
struct Bed {
    thread: Thread,
    called: AtomicBool,
    /// When its worker went to sleep, in ticks.
    since: AtomicU64,
}

/// What the pool knows about one context. `queued` and `active` change under the pool's lock.
#[derive(Debug, Default)]
pub(super) struct Seat {
    queued: AtomicBool,
    active: AtomicUsize,
    want_holder: AtomicBool,
    want_hand_over: AtomicBool,
    /// A waiter would rather have the baton than sleep.
    pub(super) waiter_wants: AtomicBool,
    /// What a napping waiter saw of the baton.
    pub(super) last_view: AtomicU64,
}

impl Seat {
    pub(super) fn want_holder(&self) {
        self.want_holder.store(true, Ordering::Release);
    }

    pub(super) fn wants_holder(&self) -> bool {
        self.want_holder.load(Ordering::Relaxed)
    }

    /// A worker is to hand over what is queued for the kernel.
    pub(super) fn want_hand_over(&self) {
        self.want_hand_over.store(true, Ordering::Release);
    }

    pub(super) fn wants_hand_over(&self) -> bool {
        self.want_hand_over.load(Ordering::Relaxed)
    }

    /// True once for each wish.
    pub(super) fn takes_hand_over(&self) -> bool {
        self.wants_hand_over() && self.want_hand_over.swap(false, Ordering::AcqRel)
    }

    /// True once for each wish.
    pub(super) fn takes_holder(&self) -> bool {
        self.want_holder.swap(false, Ordering::AcqRel)
    }
}

/// What is to be done after the lock was released.
enum Wake {
    Nobody,
    Idle(Arc<Bed>),
    New,
}

impl State {
    /// Wakes or makes a worker if there is need for one and fewer than `enough` are at work.
    fn wake_one(&mut self, enough: usize) -> Wake {
        let at_work = self.at_work();
        if self.queue.is_empty() || self.on_the_way >= ON_THE_WAY_MAX || at_work >= enough {
            return Wake::Nobody;
        }
        if let Some(bed) = self.idle.pop() {
            self.on_the_way += 1;
            return Wake::Idle(bed);
        }
        if self.alive < WORKERS_MAX {
            self.alive += 1;
            self.on_the_way += 1;
            return Wake::New;
        }
        Wake::Nobody
    }

    fn at_work(&self) -> usize {
        self.alive - self.idle.len()
    }

    fn enqueue(&mut self, instance: &Arc<Instance>, seat: &Seat, workers_max: usize) {
        if self.may_have_another(seat.active.load(Ordering::Relaxed), workers_max)
            && !seat.queued.swap(true, Ordering::Relaxed)
        {
            self.queue.push_back(Arc::clone(instance));
        }
    }

    /// A context has its share of what is left: never the last workers, however many requests it
    /// has that may never end, and less where others have theirs (dynamic thresholds, Choudhury and
    /// Hahne, 1998). One worker it may always wait for.
    fn may_have_another(&self, active: usize, workers_max: usize) -> bool {
        let free = WORKERS_MAX - self.at_work().min(WORKERS_MAX);
        active == 0 || active < workers_max.min(SHARE_OF_FREE * free)
    }
}

impl Pool {
    pub(super) fn new() -> Self {
        let state = State {
            queue: VecDeque::with_capacity(64),
            idle: Vec::with_capacity(WORKERS_MAX),
            alive: 0,
            on_the_way: 0,
            spinning: false,
        };
        Self {
            state: Mutex::new(state),
            queued: AtomicUsize::new(0),
            spin: AtomicU64::new(0),
            typical: AtomicU64::new(0),
            helpless: AtomicBool::new(false),
        }
    }

    /// How many workers are enough for requests that end by themselves, of which so many of a context wait for one.
    fn enough(&self, at_work: usize, waiting: usize) -> usize {
        let one_more = if waiting * FOR_EACH_WAITING > at_work { at_work + 1 } else { 0 };
        let are_long = self.typical.load(Ordering::Relaxed) >= LONG_US * ticks_per_us();
        let enough = if are_long { WORKERS_MAX } else { ENOUGH_PER_CPU * cpus() };
        enough.max(one_more).min(WORKERS_MAX)
    }

    /// Takes note of how long a request of the pool lane took.
    pub(super) fn took(&self, ticks: u64) {
        let typical = self.typical.load(Ordering::Relaxed);
        self.typical.store(typical - typical / 8 + ticks / 8, Ordering::Relaxed);
    }

    /// Calls a worker for a context. True if one was woken or made. None is if enough are at work
    /// already, unless the request is one that they must not be waited for.
    pub(super) fn call(&self, instance: &Arc<Instance>, seat: &Seat, urgent: bool) -> bool {
        let workers = Workers::of(instance);
        let waiting = workers.for_workers();
        let mut state = lock(&self.state);
        state.enqueue(instance, seat, workers.workers_max);
        self.queued.store(state.queue.len(), Ordering::Relaxed);
        let enough = if urgent { WORKERS_MAX } else { self.enough(state.at_work(), waiting) };
        let wake = state.wake_one(enough);
        drop(state);
        self.wake(wake, instance)
    }

    fn wake(&self, wake: Wake, instance: &Instance) -> bool {
        match wake {
            Wake::Nobody => false,
            Wake::Idle(bed) => {
                self.spin_would_have_paid(&bed);
                bed.called.store(true, Ordering::Release);
                bed.thread.unpark();
                true
            }
            Wake::New => self.make(instance),
        }
    }

    fn make(&self, instance: &Instance) -> bool {
        let threads = Workers::of(instance).threads.get();
        let made = threads.spawn("worker", move || threads.pool.work());
        let mut state = lock(&self.state);
        if made.is_err() {
            // The thread limit: go on with those that there are; without any, waiters execute.
            state.alive -= 1;
            state.on_the_way -= 1;
        }
        self.helpless.store(state.alive == 0, Ordering::Relaxed);
        let alive = state.alive;
        drop(state);
        if made.is_ok() {
            instance.workers_at_most(alive as u64);
        }
        made.is_ok()
    }

    /// There is no worker, and none can be made.
    pub(super) fn is_helpless(&self) -> bool {
        self.helpless.load(Ordering::Relaxed)
    }

    /// There are as many workers as there may be, and each is inside a request.
    pub(super) fn is_exhausted(&self) -> bool {
        let state = lock(&self.state);
        state.alive >= WORKERS_MAX && state.idle.is_empty()
    }

    /// The life of a worker.
    fn work(&self) {
        let bed = Arc::new(Bed {
            thread: std::thread::current(),
            called: AtomicBool::new(false),
            since: AtomicU64::new(0),
        });
        let mut state = lock(&self.state);
        state.on_the_way -= 1;
        loop {
            let Some(instance) = state.queue.pop_front() else {
                let budget = self.spin.load(Ordering::Relaxed);
                if budget > 0 && !state.spinning {
                    state.spinning = true;
                    state.on_the_way += 1;
                    drop(state);
                    let found = self.spin(budget);
                    state = lock(&self.state);
                    state.spinning = false;
                    state.on_the_way -= 1;
                    if found || !state.queue.is_empty() {
                        continue;
                    }
                }
                bed.since.store(sys::ticks(), Ordering::Relaxed);
                state.idle.push(Arc::clone(&bed));
                drop(state);
                if !self.rest(&bed) {
                    return;
                }
                state = lock(&self.state);
                state.on_the_way -= 1;
                continue;
            };
            let workers = Workers::of(&instance);
            let seat = &workers.seat;
            seat.queued.store(false, Ordering::Relaxed);
            seat.active.fetch_add(1, Ordering::Relaxed);
            let waiting = workers.for_workers();
            if waiting > 1 || waiting == 1 && (seat.wants_holder() || seat.wants_hand_over()) {
                state.enqueue(&instance, seat, workers.workers_max);
            }
            self.queued.store(state.queue.len(), Ordering::Relaxed);
            let urgent = workers.needs_worker_at_once();
            let enough = if urgent { WORKERS_MAX } else { self.enough(state.at_work(), waiting) };
            let wake = state.wake_one(enough);
            drop(state);
            if self.wake(wake, &instance) {
                instance.count(|stats| &stats.wakeups);
            }
            workers.serve(&instance);
            state = lock(&self.state);
            seat.active.fetch_sub(1, Ordering::Relaxed);
            if workers.needs_worker() {
                state.enqueue(&instance, seat, workers.workers_max);
                self.queued.store(state.queue.len(), Ordering::Relaxed);
            }
            if Arc::strong_count(&instance) == 1 {
                // The last one to know the context: it goes, but not under the lock.
                drop(state);
                drop(instance);
                state = lock(&self.state);
            }
        }
    }

    /// Looks for work for a while. True if some has come.
    fn spin(&self, budget: u64) -> bool {
        let begin = sys::ticks();
        loop {
            if self.queued.load(Ordering::Relaxed) > 0 {
                let longest = SPIN_US_MAX * ticks_per_us();
                self.spin.store((budget + budget / 8).min(longest), Ordering::Relaxed);
                return true;
            }
            if sys::ticks().wrapping_sub(begin) > budget {
                self.spin.store(budget / 2, Ordering::Relaxed);
                return false;
            }
            std::hint::spin_loop();
        }
    }

    /// A worker is woken: had it gone to sleep only a moment ago, spinning would have been cheaper.
    fn spin_would_have_paid(&self, bed: &Bed) {
        let slept = sys::ticks().wrapping_sub(bed.since.load(Ordering::Relaxed));
        if cpus() > 1 && slept < SPIN_US_MAX / 2 * ticks_per_us() {
            self.spin.fetch_max(2 * slept, Ordering::Relaxed);
        }
    }

    /// Sleeps until called. False: nobody called for long, and the worker ends.
    fn rest(&self, bed: &Arc<Bed>) -> bool {
        let begin = std::time::Instant::now();
        loop {
            if bed.called.swap(false, Ordering::Acquire) {
                return true;
            }
            let left = RETIRE_AFTER.saturating_sub(begin.elapsed());
            if left.is_zero() {
                let mut state = lock(&self.state);
                let at = state.idle.iter().position(|other| Arc::ptr_eq(other, bed));
                if let Some(at) = at {
                    state.idle.remove(at);
                    state.alive -= 1;
                    return false;
                }
                // Called at the last moment: the call is on its way.
                drop(state);
                while !bed.called.swap(false, Ordering::Acquire) {
                    std::thread::park();
                }
                return true;
            }
            std::thread::park_timeout(left);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{ENOUGH_PER_CPU, FOR_EACH_WAITING, LONG_US, Pool, WORKERS_MAX, cpus, ticks_per_us};

    #[test]
    fn more_workers_come_while_many_requests_wait_or_take_long() {
        let pool = Pool::new();
        let few = (ENOUGH_PER_CPU * cpus()).min(WORKERS_MAX);
        assert_eq!(pool.enough(few, few / FOR_EACH_WAITING), few);
        assert_eq!(pool.enough(few, few), (few + 1).min(WORKERS_MAX));
        assert_eq!(pool.enough(WORKERS_MAX, 1000), WORKERS_MAX);
        (0..100).for_each(|_| pool.took(2 * LONG_US * ticks_per_us()));
        assert_eq!(pool.enough(few, 0), WORKERS_MAX);
    }
}
