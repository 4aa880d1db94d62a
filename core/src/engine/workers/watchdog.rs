//! The watchdog: a slow tick for contexts whose requests nobody may be looking after. Ticks only
//! while there is such a context.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::Workers;
use super::baton::View;
use super::threads::RETIRE_AFTER;
use crate::instance::Instance;
use crate::queue::Sleep;
use crate::sync::lock;

/// Between two looks at a context. A holder is stuck if it is in the same request in two looks.
const TICK: Duration = Duration::from_millis(1);
/// The same while requests do nothing but pass through the kernel: each tick is 10 to 15 us of CPU time on a virtual machine.
const CALM_TICK: Duration = Duration::from_millis(4);
/// So many looks in a row have found nothing in any queue by then.
const CALM_LOOKS: u32 = 16;
/// Looks at a context with nothing to do before it is let go.
const QUIET_TICKS: u32 = 4;

#[derive(Debug)]
pub(super) struct Watchdog {
    state: Mutex<State>,
    wake: Sleep,
}

#[derive(Debug)]
struct State {
    watched: Vec<Watched>,
    alive: bool,
    /// It sleeps for longer than a [`TICK`]: a context that comes wakes it.
    resting: bool,
}

#[derive(Debug)]
struct Watched {
    /// Not kept alive: a context that is dropped goes at once.
    instance: Weak<Instance>,
    view: View,
    /// The right to hand over to the kernel, as of the last look.
    door: View,
    /// Requests taken from the queues, as of the last look.
    taken: [u64; 2],
    /// What the kernel has completed was collected, as of the last look.
    collected: u32,
    /// Cold reads taken from theirs.
    cold: [u64; 2],
    /// The request left for its submitter's wait, then.
    left: u64,
    quiet: u32,
    /// Of a placed context: ticks in which no worker was to be had.
    starved: u32,
}

impl Watchdog {
    pub(super) fn new() -> Self {
        let state = State { watched: Vec::new(), alive: false, resting: false };
        Self { state: Mutex::new(state), wake: Sleep::new() }
    }

    /// Watches a context until it is quiet. The caller has marked it with
    /// [`Baton::watch`](super::baton::Baton::watch).
    pub(super) fn add(&self, instance: &Arc<Instance>) {
        let workers = Workers::of(instance);
        let mut state = lock(&self.state);
        state.watched.push(Watched {
            instance: Arc::downgrade(instance),
            view: workers.progress(),
            door: workers.kernel.door().view(),
            taken: workers.taken(),
            collected: workers.kernel.collections(),
            cold: workers.cold_taken(),
            left: workers.mailbox.word(),
            quiet: 0,
            starved: 0,
        });
        let (make, wake) = (!state.alive, state.resting);
        state.alive = true;
        state.resting = false;
        drop(state);
        if make {
            let threads = workers.threads.get();
            if threads.spawn("watch", move || threads.watchdog.run()).is_err() {
                // Without a watchdog, workers are called for every request of this context.
                lock(&self.state).alive = false;
                workers.habit.nobody_came();
                workers.call_holder(instance);
            }
        } else if wake {
            self.wake.change();
            self.wake.wake_all();
        }
    }

    fn run(&self) {
        let mut looks = Vec::new();
        let mut calm_looks = 0;
        loop {
            let ticket = self.wake.ticket();
            let mut state = lock(&self.state);
            if !state.resting && calm_looks >= CALM_LOOKS {
                // Woken for a context that has come.
                calm_looks = 0;
            }
            state.watched.retain_mut(|watched| {
                let Some(instance) = watched.instance.upgrade() else { return false };
                let (look, left) = (watched.look(&instance), watched.is_left(&instance));
                // Each is let go outside of the lock: it may be the last to have it.
                looks.push((instance, look, left));
                look != Look::Quiet
            });
            let idle = state.watched.is_empty();
            let calm = looks.iter().all(|(_, look, _)| matches!(look, Look::Calm | Look::Quiet));
            calm_looks = if calm { calm_looks + 1 } else { 0 };
            state.resting = idle || calm_looks >= CALM_LOOKS;
            drop(state);
            for (instance, look, left) in looks.drain(..) {
                let workers = Workers::of(&instance);
                if left && workers.collect(&instance) {
                    // Nobody had come for them.
                    workers.habit.nobody_came();
                    calm_looks = 0;
                }
                if look == Look::NeedsWorker {
                    workers.call_worker_at_once(&instance);
                }
            }
            let tick = if calm_looks >= CALM_LOOKS { CALM_TICK } else { TICK };
            self.wake.sleep(ticket, Some(if idle { RETIRE_AFTER } else { tick }), false);
            if idle {
                let mut state = lock(&self.state);
                if state.resting && state.watched.is_empty() {
                    state.alive = false;
                    return;
                }
            }
        }
    }
}

/// What a look at a context found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Fine,
    /// Fine, and nothing waits in a queue but for the kernel, which takes what is there.
    Calm,
    NeedsWorker,
    /// It needs no watch any more.
    Quiet,
}

impl Watched {
    /// Requests are in the kernel's hands, and nobody has collected any since the last look.
    fn is_left(&mut self, instance: &Instance) -> bool {
        let kernel = &Workers::of(instance).kernel;
        let before = std::mem::replace(&mut self.collected, kernel.collections());
        kernel.in_flight() > 0 && self.collected == before
    }

    fn look(&mut self, instance: &Arc<Instance>) -> Look {
        let workers = Workers::of(instance);
        let view = workers.progress();
        let taken = workers.taken();
        let waiting = view.has_work() || workers.has_inline_work();
        let mut look = Look::Fine;
        if waiting && view.is_held() {
            if view.is_stuck_since(self.view) {
                // Watched by being on this list, whatever the mark said: `steal` may announce, and who finds no mark
                // comes here to be put on it.
                workers.baton.watch();
                if workers.steal(instance, view) {
                    workers.seat.want_holder();
                    look = Look::NeedsWorker;
                }
            }
        } else if waiting && taken[0] == self.taken[0] {
            workers.habit.nobody_came();
            workers.seat.want_holder();
            look = Look::NeedsWorker;
        }
        let left = workers.mailbox.word();
        if !workers.mailbox.is_empty() && left == self.left {
            workers.habit.nobody_came();
            if workers.left_to_ring(instance) {
                // As above.
                workers.baton.watch();
                workers.baton.announce();
            }
            workers.seat.want_holder();
            look = Look::NeedsWorker;
        }
        self.left = left;
        let kernel = &workers.kernel;
        let door = kernel.door().view();
        if kernel.queued() > 0 && taken[1] == self.taken[1] {
            if door.is_stuck_since(self.door) {
                kernel.door().steal(door, 0);
            } else if !door.is_held() {
                workers.habit.nobody_came();
            }
            workers.seat.want_hand_over();
            look = Look::NeedsWorker;
        }
        self.door = kernel.door().view();
        if workers.for_worker_each() > 0 && taken[1] == self.taken[1] {
            look = Look::NeedsWorker;
        }
        let before = self.taken;
        (self.view, self.taken) = (workers.progress(), taken);
        if !workers.copies.is_empty() && taken[1] == before[1] {
            workers.copies_stuck.store(true, Ordering::Relaxed);
            look = Look::NeedsWorker;
        }
        if workers.cold_is_stuck(self.cold) {
            look = Look::NeedsWorker;
        }
        self.cold = workers.cold_taken();
        let lying = look == Look::NeedsWorker;
        workers.look_for_starvation(instance, lying, &mut self.starved);
        if waiting || workers.has_queued() || !workers.mailbox.is_empty() {
            self.quiet = 0;
            return look;
        }
        let (queued, door) = (kernel.queued() > 0, kernel.door().view().is_held());
        let moves = taken[1] != before[1] || !queued && !door;
        let calm = if look == Look::Fine && moves { Look::Calm } else { look };
        if door || !kernel.is_idle() {
            self.quiet = 0;
            return calm;
        }
        self.quiet += 1;
        if self.quiet >= QUIET_TICKS && workers.mailbox.unwatch() {
            if workers.baton.unwatch() {
                // A submitter that saw the mark has not told anybody: what it pushed is seen here.
                fence(Ordering::SeqCst);
                if !workers.has_more() || !workers.baton.watch() {
                    return Look::Quiet;
                }
            }
            // Requests have come: stay. If somebody else has marked it meanwhile, it is on the list
            // twice for a while.
            workers.mailbox.watch();
        }
        calm
    }
}
