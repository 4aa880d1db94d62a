//! The workers of this process: one bounded pool that serves the contexts in turn.
//!
//! A context that needs a worker stands in a queue, once. A worker takes the first, executes one
//! request of its (or some cold reads, or one turn with its baton), and puts it back at the end
//! while it needs more, so a busy context does not keep the others waiting. The lock covers the
//! queue and the list of idle workers only; it is never held across a system call.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;

use super::spawn::Spawner;
use super::tenant::Tenant;
use crate::router::spin::Spin;
use crate::router::tuning::{
    ENOUGH_PER_CPU, FOR_EACH_WAITING, IDLE_SPIN_US_MAX, LONG_US, ON_THE_WAY_MAX, RETIRE_AFTER,
    SHARE_OF_FREE, WORKERS_MAX,
};
use crate::sync::lock;
use crate::sys::{self, cpus, ticks_per_us};

/// The pool.
#[derive(Debug)]
pub(crate) struct WorkerPool {
    spawner: Spawner,
    state: Mutex<PoolState>,
    /// Contexts in the queue, for the worker that spins.
    queued: AtomicUsize,
    spin: Spin,
    /// How long requests of the pool lane take, in ticks: a moving average.
    typical: AtomicU64,
    /// No thread could be made, and there is none.
    helpless: AtomicBool,
}

#[derive(Debug)]
struct PoolState {
    queue: VecDeque<Arc<dyn Tenant>>,
    idle: Vec<Arc<Parker>>,
    alive: usize,
    /// Woken or made, but not at the queue yet; the one that spins counts.
    on_the_way: usize,
    spinning: bool,
}

/// Where an idle worker sleeps.
#[derive(Debug)]
struct Parker {
    thread: Thread,
    called: AtomicBool,
    /// When its worker went to sleep, in ticks.
    since: AtomicU64,
}

/// What is to be done after the lock was released.
enum Wake {
    Nobody,
    Idle(Arc<Parker>),
    New,
}

impl PoolState {
    /// Wakes or makes a worker if there is need for one and fewer than `enough` are at work.
    fn wake_one(&mut self, enough: usize) -> Wake {
        let at_work = self.at_work();
        if self.queue.is_empty() || self.on_the_way >= ON_THE_WAY_MAX || at_work >= enough {
            return Wake::Nobody;
        }
        if let Some(parker) = self.idle.pop() {
            self.on_the_way += 1;
            return Wake::Idle(parker);
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

    fn enqueue(&mut self, tenant: &Arc<dyn Tenant>) {
        let entry = tenant.entry();
        if self.may_have_another(entry.active.load(Ordering::Relaxed), tenant.workers_max())
            && !entry.queued.swap(true, Ordering::Relaxed)
        {
            self.queue.push_back(Arc::clone(tenant));
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

impl WorkerPool {
    pub(crate) fn new(spawner: Spawner) -> Self {
        let state = PoolState {
            queue: VecDeque::with_capacity(64),
            idle: Vec::with_capacity(WORKERS_MAX),
            alive: 0,
            on_the_way: 0,
            spinning: false,
        };
        Self {
            spawner,
            state: Mutex::new(state),
            queued: AtomicUsize::new(0),
            spin: Spin::new(),
            typical: AtomicU64::new(0),
            helpless: AtomicBool::new(false),
        }
    }

    /// How many workers are enough for requests that end by themselves, of which so many of a
    /// context wait for one.
    fn enough(&self, at_work: usize, waiting: usize) -> usize {
        let one_more = if waiting * FOR_EACH_WAITING > at_work { at_work + 1 } else { 0 };
        let are_long = self.typical.load(Ordering::Relaxed) >= LONG_US * ticks_per_us();
        let enough = if are_long { WORKERS_MAX } else { ENOUGH_PER_CPU * cpus() };
        enough.max(one_more).min(WORKERS_MAX)
    }

    /// Takes note of how long a request of the pool lane took.
    pub(crate) fn took(&self, ticks: u64) {
        let typical = self.typical.load(Ordering::Relaxed);
        self.typical.store(typical - typical / 8 + ticks / 8, Ordering::Relaxed);
    }

    /// Calls a worker for a context. True if one was woken or made. None is if enough are at work
    /// already, unless the request is one that they must not be waited for.
    pub(crate) fn call(&'static self, tenant: &Arc<dyn Tenant>, urgent: bool) -> bool {
        let waiting = tenant.waiting();
        let mut state = lock(&self.state);
        state.enqueue(tenant);
        self.queued.store(state.queue.len(), Ordering::Relaxed);
        let enough = if urgent { WORKERS_MAX } else { self.enough(state.at_work(), waiting) };
        let wake = state.wake_one(enough);
        drop(state);
        self.wake(wake, &**tenant)
    }

    fn wake(&'static self, wake: Wake, tenant: &dyn Tenant) -> bool {
        match wake {
            Wake::Nobody => false,
            Wake::Idle(parker) => {
                self.spin_would_have_paid(&parker);
                parker.called.store(true, Ordering::Release);
                parker.thread.unpark();
                true
            }
            Wake::New => self.make(tenant),
        }
    }

    fn make(&'static self, tenant: &dyn Tenant) -> bool {
        let made = self.spawner.spawn("worker", || self.work());
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
            tenant.board().workers_at_most(alive as u64);
        }
        made.is_ok()
    }

    /// There is no worker, and none can be made.
    pub(crate) fn is_helpless(&self) -> bool {
        self.helpless.load(Ordering::Relaxed)
    }

    /// There are as many workers as there may be, and each is inside a request.
    pub(crate) fn is_exhausted(&self) -> bool {
        let state = lock(&self.state);
        state.alive >= WORKERS_MAX && state.idle.is_empty()
    }

    /// The life of a worker.
    fn work(&'static self) {
        let parker = Arc::new(Parker {
            thread: std::thread::current(),
            called: AtomicBool::new(false),
            since: AtomicU64::new(0),
        });
        let mut state = lock(&self.state);
        state.on_the_way -= 1;
        loop {
            let Some(tenant) = state.queue.pop_front() else {
                let budget = self.spin.budget();
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
                parker.since.store(sys::ticks(), Ordering::Relaxed);
                state.idle.push(Arc::clone(&parker));
                drop(state);
                if !self.rest(&parker) {
                    return;
                }
                state = lock(&self.state);
                state.on_the_way -= 1;
                continue;
            };
            let entry = tenant.entry();
            entry.queued.store(false, Ordering::Relaxed);
            entry.active.fetch_add(1, Ordering::Relaxed);
            let waiting = tenant.waiting();
            if waiting > 1 || waiting == 1 && tenant.has_wishes() {
                state.enqueue(&tenant);
            }
            self.queued.store(state.queue.len(), Ordering::Relaxed);
            let urgent = tenant.is_urgent();
            let enough = if urgent { WORKERS_MAX } else { self.enough(state.at_work(), waiting) };
            let wake = state.wake_one(enough);
            drop(state);
            if self.wake(wake, &*tenant) {
                tenant.board().count(|stats| &stats.wakeups);
            }
            tenant.serve();
            state = lock(&self.state);
            tenant.entry().active.fetch_sub(1, Ordering::Relaxed);
            if tenant.needs_worker() {
                state.enqueue(&tenant);
                self.queued.store(state.queue.len(), Ordering::Relaxed);
            }
            if Arc::strong_count(&tenant) == 1 {
                // The last one to know the context: it goes, but not under the lock.
                drop(state);
                drop(tenant);
                state = lock(&self.state);
            }
        }
    }

    /// Looks for work for a while. True if some has come.
    fn spin(&self, budget: u64) -> bool {
        let begin = sys::ticks();
        loop {
            if self.queued.load(Ordering::Relaxed) > 0 {
                self.spin.paid(budget, IDLE_SPIN_US_MAX * ticks_per_us());
                return true;
            }
            if sys::ticks().wrapping_sub(begin) > budget {
                self.spin.was_in_vain(budget);
                return false;
            }
            std::hint::spin_loop();
        }
    }

    /// A worker is woken: had it gone to sleep only a moment ago, spinning would have been cheaper.
    fn spin_would_have_paid(&self, parker: &Parker) {
        let slept = sys::ticks().wrapping_sub(parker.since.load(Ordering::Relaxed));
        if cpus() > 1 && slept < IDLE_SPIN_US_MAX / 2 * ticks_per_us() {
            self.spin.would_have_paid(2 * slept);
        }
    }

    /// Sleeps until called. False: nobody called for long, and the worker ends.
    fn rest(&self, parker: &Arc<Parker>) -> bool {
        let begin = std::time::Instant::now();
        loop {
            if parker.called.swap(false, Ordering::Acquire) {
                return true;
            }
            let left = RETIRE_AFTER.saturating_sub(begin.elapsed());
            if left.is_zero() {
                let mut state = lock(&self.state);
                let at = state.idle.iter().position(|other| Arc::ptr_eq(other, parker));
                if let Some(at) = at {
                    state.idle.remove(at);
                    state.alive -= 1;
                    return false;
                }
                // Called at the last moment: the call is on its way.
                drop(state);
                while !parker.called.swap(false, Ordering::Acquire) {
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
    use super::*;

    #[test]
    fn more_workers_come_while_many_requests_wait_or_take_long() {
        let pool = WorkerPool::new(Spawner::still());
        let few = (ENOUGH_PER_CPU * cpus()).min(WORKERS_MAX);
        assert_eq!(pool.enough(few, few / FOR_EACH_WAITING), few);
        assert_eq!(pool.enough(few, few), (few + 1).min(WORKERS_MAX));
        assert_eq!(pool.enough(WORKERS_MAX, 1000), WORKERS_MAX);
        (0..100).for_each(|_| pool.took(2 * LONG_US * ticks_per_us()));
        assert_eq!(pool.enough(few, 0), WORKERS_MAX);
    }
}
