//! The workers of this process: two pools that serve the contexts in turn. One is for work that
//! ends by itself, and one for [work that may wait without end](Work::MayWait).
//!
//! A context that needs a worker is in a queue, once. A worker takes the first context, and
//! executes one of its requests, or some cold reads. Or it executes the context's inline requests
//! while it holds the baton, the right to do so. If the context needs more, the worker puts the
//! context back at the end. So a busy context does not delay the others. The lock covers the queue
//! and the list of idle workers only. It is never held across a system call.
//!
//! A worker that is found to wait without end is released: it no longer counts, and another one may
//! take its place. The total number has a limit of its own.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;

use super::spawn::Spawner;
use super::tenant::{PoolEntry, Tenant, Work};
use crate::router::spin::Spin;
use crate::router::tuning::{
    ENOUGH_PER_CPU, FOR_EACH_WAITING, IDLE_SPIN_US_MAX, LONG_US, ON_THE_WAY_MAX, PATIENT_MAX,
    RETIRE_AFTER, SHARE_OF_FREE, TICK, WORKERS_MAX,
};
use crate::sync::lock;
use crate::sys::{self, cpus, ticks_per_us};

/// A pool of workers.
#[derive(Debug)]
pub(crate) struct WorkerPool {
    /// The kind of work that its workers take.
    work: Work,
    spawner: Spawner,
    state: Mutex<PoolState>,
    /// The number of contexts in the queue. The worker that spins reads it.
    queued: AtomicUsize,
    spin: Spin,
    /// The time that requests of the pool lane take, in ticks: a moving average.
    typical: AtomicU64,
    /// No thread could be made, and the pool has none.
    helpless: AtomicBool,
}

#[derive(Debug)]
struct PoolState {
    queue: VecDeque<Arc<dyn Tenant>>,
    idle: Vec<Arc<Parker>>,
    alive: usize,
    /// Workers that were woken or made, but have not taken work yet; the one that spins counts.
    on_the_way: usize,
    spinning: bool,
    /// Workers that were released: they wait in a request that may never end.
    released: usize,
    /// How often all workers were released.
    round: usize,
    /// How often workers have begun to serve a context.
    begun: usize,
    /// The value of `begun` when a context last found that no worker comes, and the time in ticks.
    looked: (usize, u64),
    /// The last attempt to make a thread failed.
    refused: bool,
}

/// The place where an idle worker sleeps.
#[derive(Debug)]
struct Parker {
    thread: Thread,
    called: AtomicBool,
    /// The time when its worker went to sleep, in ticks.
    since: AtomicU64,
}

/// What to do after the lock was released.
enum Wake {
    Nobody,
    Idle(Arc<Parker>),
    New,
}

impl PoolState {
    fn new() -> Self {
        Self {
            queue: VecDeque::with_capacity(64),
            idle: Vec::with_capacity(WORKERS_MAX),
            alive: 0,
            on_the_way: 0,
            spinning: false,
            released: 0,
            round: 0,
            begun: 0,
            looked: (0, 0),
            refused: false,
        }
    }

    /// Wakes or makes a worker if one is needed and fewer than `enough` are working.
    fn wake_one(&mut self, enough: usize) -> Wake {
        let counted = self.counted();
        if self.queue.is_empty() || self.on_the_way >= ON_THE_WAY_MAX || counted >= enough {
            return Wake::Nobody;
        }
        if let Some(parker) = self.idle.pop() {
            self.on_the_way += 1;
            return Wake::Idle(parker);
        }
        if self.alive - self.released < WORKERS_MAX && self.alive < PATIENT_MAX {
            self.alive += 1;
            self.on_the_way += 1;
            return Wake::New;
        }
        Wake::Nobody
    }

    /// Workers that are neither idle nor released.
    fn counted(&self) -> usize {
        self.alive - self.idle.len() - self.released
    }

    /// Workers that serve a context, without the released ones.
    fn active(&self, entry: &PoolEntry) -> usize {
        if entry.round.swap(self.round, Ordering::Relaxed) != self.round {
            entry.active.store(0, Ordering::Relaxed);
        }
        entry.active.load(Ordering::Relaxed)
    }

    /// Counts a worker that begins to serve a context. Returns the value for [`PoolState::ends`].
    fn begins(&mut self, entry: &PoolEntry) -> (usize, usize) {
        self.begun = self.begun.wrapping_add(1);
        entry.active.store(self.active(entry) + 1, Ordering::Relaxed);
        (self.round, entry.released.load(Ordering::Relaxed))
    }

    /// A worker has served a context, and no longer counts there. If it was released meanwhile, it
    /// no longer counts as released.
    fn ends(&mut self, entry: &PoolEntry, begun: (usize, usize)) {
        if begun == (self.round, entry.released.load(Ordering::Relaxed)) {
            entry.active.fetch_sub(1, Ordering::Relaxed);
        } else {
            self.released -= 1;
        }
    }

    /// No worker has come to a context for a tick: releases its workers. If there is the maximum
    /// number of workers, and none has begun to serve a context for a tick, releases all workers.
    fn release(&mut self, entry: &PoolEntry, now: u64) {
        self.released += self.active(entry);
        entry.active.store(0, Ordering::Relaxed);
        entry.released.fetch_add(1, Ordering::Relaxed);
        let (begun, since) = self.looked;
        if self.counted() < WORKERS_MAX {
            self.looked = (self.begun.wrapping_sub(1), now);
        } else if now.wrapping_sub(since) >= TICK.as_micros() as u64 * ticks_per_us() {
            if begun == self.begun {
                self.released += self.counted();
                self.round += 1;
            }
            self.looked = (self.begun, now);
        }
    }

    fn enqueue(&mut self, tenant: &Arc<dyn Tenant>, work: Work) {
        let entry = tenant.entry(work);
        if self.may_have_another(self.active(entry), tenant.workers_max())
            && !entry.queued.swap(true, Ordering::Relaxed)
        {
            self.queue.push_back(Arc::clone(tenant));
        }
    }

    /// May a context have one more worker? It gets its share of the free workers, and never the
    /// last ones, whatever the number of its requests. The share shrinks when other contexts take
    /// workers (dynamic thresholds, Choudhury and Hahne, 1998). A context without a worker may
    /// always have one.
    fn may_have_another(&self, active: usize, workers_max: usize) -> bool {
        let free = WORKERS_MAX - self.counted().min(WORKERS_MAX);
        active == 0 || active < workers_max.min(SHARE_OF_FREE * free)
    }
}

impl WorkerPool {
    pub(crate) fn new(work: Work, spawner: Spawner) -> Self {
        Self {
            work,
            spawner,
            state: Mutex::new(PoolState::new()),
            queued: AtomicUsize::new(0),
            spin: Spin::new(),
            typical: AtomicU64::new(0),
            helpless: AtomicBool::new(false),
        }
    }

    /// The number of workers that are enough while a context has `waiting` requests that end by
    /// themselves.
    fn enough(&self, at_work: usize, waiting: usize) -> usize {
        let one_more = if waiting * FOR_EACH_WAITING > at_work { at_work + 1 } else { 0 };
        let are_long = self.typical.load(Ordering::Relaxed) >= LONG_US * ticks_per_us();
        let enough = if are_long { WORKERS_MAX } else { ENOUGH_PER_CPU * cpus() };
        enough.max(one_more).min(WORKERS_MAX)
    }

    /// Learns how long a request of the pool lane took.
    pub(crate) fn took(&self, ticks: u64) {
        let typical = self.typical.load(Ordering::Relaxed);
        self.typical.store(typical - typical / 8 + ticks / 8, Ordering::Relaxed);
    }

    /// Calls a worker for a context. True if a worker was woken or made. If enough are working
    /// already, no worker is called, unless the request is `urgent`.
    pub(crate) fn call(&'static self, tenant: &Arc<dyn Tenant>, urgent: bool) -> bool {
        let waiting = tenant.waiting(self.work);
        let mut state = lock(&self.state);
        state.enqueue(tenant, self.work);
        self.queued.store(state.queue.len(), Ordering::Relaxed);
        let enough = if urgent { WORKERS_MAX } else { self.enough(state.counted(), waiting) };
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
        let name = match self.work {
            Work::Ends => "worker",
            Work::MayWait => "waits",
        };
        let made = self.spawner.spawn(name, || self.work());
        let mut state = lock(&self.state);
        if made.is_err() {
            // The thread limit is reached: existing workers go on. If there are none, waiters
            // execute.
            state.alive -= 1;
            state.on_the_way -= 1;
        }
        state.refused = made.is_err();
        self.helpless.store(state.alive == 0, Ordering::Relaxed);
        let alive = state.alive;
        drop(state);
        if made.is_ok() {
            tenant.board().workers_at_most(alive as u64);
        }
        made.is_ok()
    }

    /// Is there no worker, and can none be made?
    pub(crate) fn is_helpless(&self) -> bool {
        self.helpless.load(Ordering::Relaxed)
    }

    /// Is every worker inside a request, and can no other be made?
    pub(crate) fn is_exhausted(&self) -> bool {
        let state = lock(&self.state);
        let all = match self.work {
            Work::Ends => state.alive >= WORKERS_MAX,
            Work::MayWait => state.alive >= PATIENT_MAX || state.refused,
        };
        all && state.idle.is_empty()
    }

    /// No worker has come within a tick of a context's call: the context's own workers do not count
    /// any more, so that others may come.
    pub(crate) fn release(&self, tenant: &dyn Tenant) {
        let now = sys::ticks();
        lock(&self.state).release(tenant.entry(self.work), now);
    }

    /// The main loop of a worker.
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
            let entry = tenant.entry(self.work);
            entry.queued.store(false, Ordering::Relaxed);
            let begun = state.begins(entry);
            let waiting = tenant.waiting(self.work);
            if waiting > 1 || waiting == 1 && tenant.has_wishes(self.work) {
                state.enqueue(&tenant, self.work);
            }
            self.queued.store(state.queue.len(), Ordering::Relaxed);
            let urgent = tenant.is_urgent(self.work);
            let enough = if urgent { WORKERS_MAX } else { self.enough(state.counted(), waiting) };
            let wake = state.wake_one(enough);
            drop(state);
            if self.wake(wake, &*tenant) {
                tenant.board().count(|stats| &stats.wakeups);
            }
            tenant.serve(self.work);
            state = lock(&self.state);
            state.ends(tenant.entry(self.work), begun);
            if tenant.needs_worker(self.work) {
                state.enqueue(&tenant, self.work);
                self.queued.store(state.queue.len(), Ordering::Relaxed);
            }
            if Arc::strong_count(&tenant) == 1 {
                // This may be the last reference to the context: it is dropped without the lock.
                drop(state);
                drop(tenant);
                state = lock(&self.state);
            }
        }
    }

    /// Spins for work. True if a context was queued.
    fn spin(&self, budget: u64) -> bool {
        let found = sys::spin_until(budget, || self.queued.load(Ordering::Relaxed) > 0);
        self.spin.learn(budget, found, IDLE_SPIN_US_MAX * ticks_per_us());
        found
    }

    /// Learns from a worker that is woken. If the worker fell asleep only a moment ago, spinning
    /// would have been cheaper.
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
                // The worker was called at the last moment: the call is about to arrive.
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
        let pool = WorkerPool::new(Work::Ends, Spawner::still());
        let few = (ENOUGH_PER_CPU * cpus()).min(WORKERS_MAX);
        assert_eq!(pool.enough(few, few / FOR_EACH_WAITING), few);
        assert_eq!(pool.enough(few, few), (few + 1).min(WORKERS_MAX));
        assert_eq!(pool.enough(WORKERS_MAX, 1000), WORKERS_MAX);
        (0..100).for_each(|_| pool.took(2 * LONG_US * ticks_per_us()));
        assert_eq!(pool.enough(few, 0), WORKERS_MAX);
    }

    #[test]
    fn workers_that_wait_for_ever_are_let_go_of_and_may_come_back() {
        let mut state = PoolState::new();
        let (first, second, third) =
            (PoolEntry::default(), PoolEntry::default(), PoolEntry::default());
        let mut turns = Vec::new();
        for (entry, count) in [(&first, 40), (&second, WORKERS_MAX - 40)] {
            for _ in 0..count {
                state.alive += 1;
                turns.push((entry, state.begins(entry)));
            }
        }
        assert_eq!((state.active(&first), state.counted()), (40, WORKERS_MAX));
        // The first context's workers are released, because no worker has come to it for a tick.
        let tick = TICK.as_micros() as u64 * ticks_per_us();
        state.release(&first, tick);
        assert_eq!((state.active(&first), state.counted()), (0, WORKERS_MAX - 40));
        // Another context gets as many workers in their place, which wait, too.
        for _ in 0..40 {
            state.alive += 1;
            turns.push((&second, state.begins(&second)));
        }
        assert_eq!(state.counted(), WORKERS_MAX);
        // The workers of all contexts are released, but not if one begins to serve a context
        // between two checks.
        state.release(&third, 2 * tick);
        let ended = turns.pop().unwrap();
        state.ends(ended.0, ended.1);
        turns.push((&second, state.begins(&second)));
        state.release(&third, 3 * tick);
        state.release(&third, 3 * tick + 1);
        assert_eq!(state.counted(), WORKERS_MAX, "a moment is not a tick");
        state.release(&third, 4 * tick);
        assert_eq!((state.active(&second), state.counted()), (0, 0));
        // Each worker comes back once.
        state.alive += 1;
        turns.push((&second, state.begins(&second)));
        assert_eq!((state.active(&second), state.counted()), (1, 1));
        for (entry, begun) in turns {
            state.ends(entry, begun);
        }
        assert_eq!((state.released, state.active(&first), state.active(&second)), (0, 0, 0));
    }
}
