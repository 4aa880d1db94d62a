//! The watchdog: a thread that checks, once in a tick, contexts whose requests may have been
//! forgotten. It checks only while there is such a context.

use std::sync::{Arc, Mutex, Weak};

use super::spawn::Spawner;
use super::tenant::{Activity, Tenant, Watched};
use crate::queue::Sleep;
use crate::router::tuning::{CALM_LOOKS, CALM_TICK, RETIRE_AFTER, TICK};
use crate::sync::lock;

#[derive(Debug)]
pub(crate) struct Watchdog {
    spawner: Spawner,
    state: Mutex<WatchdogState>,
    wake: Sleep,
}

#[derive(Debug)]
struct WatchdogState {
    watched: Vec<(Weak<dyn Tenant>, Watched)>,
    alive: bool,
    /// The watchdog sleeps for longer than a tick: a new context wakes it.
    resting: bool,
}

impl Watchdog {
    pub(crate) fn new(spawner: Spawner) -> Self {
        let state = WatchdogState { watched: Vec::new(), alive: false, resting: false };
        Self { spawner, state: Mutex::new(state), wake: Sleep::new() }
    }

    /// Watches a context until the context says that it is quiet. The caller has marked it as
    /// watched.
    pub(crate) fn add(&'static self, tenant: &Arc<dyn Tenant>) {
        let watched = Watched { words: tenant.words(), quiet: 0, starved: 0, refused: 0 };
        let mut state = lock(&self.state);
        // The watchdog does not keep a context alive: a dropped context ends at once.
        state.watched.push((Arc::downgrade(tenant), watched));
        let (make, wake) = (!state.alive, state.resting);
        state.alive = true;
        state.resting = false;
        drop(state);
        if make {
            if self.spawner.spawn("watch", || self.run()).is_err() {
                // No watchdog notices that a waiter does not come. So waiters are not relied on for
                // now, and a worker is called.
                lock(&self.state).alive = false;
                tenant.is_unwatched();
            }
        } else if wake {
            self.wake.change();
            self.wake.wake_all();
        }
    }

    fn run(&self) {
        let mut looked_at = Vec::new();
        let mut calm_looks = 0;
        loop {
            let ticket = self.wake.ticket();
            std::mem::swap(&mut looked_at, &mut lock(&self.state).watched);
            // The lock is not held: a context may call the program's code.
            let mut calm = true;
            looked_at.retain_mut(|(tenant, watched)| {
                let look = tenant.upgrade().map_or(Activity::Quiet, |tenant| tenant.look(watched));
                calm &= look != Activity::Busy;
                look != Activity::Quiet
            });
            calm_looks = if calm { calm_looks + 1 } else { 0 };
            let mut state = lock(&self.state);
            if !state.watched.is_empty() {
                // A context has come meanwhile.
                calm_looks = 0;
            }
            state.watched.append(&mut looked_at);
            let idle = state.watched.is_empty();
            let calm = calm_looks >= CALM_LOOKS;
            state.resting = idle || calm;
            drop(state);
            let tick = match () {
                () if idle => RETIRE_AFTER,
                () if calm => CALM_TICK,
                () => TICK,
            };
            self.wake.sleep(ticket, Some(tick), false);
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
