//! A placed context: its threads run on CPUs of their own, and the program's threads leave everything to them.

use std::sync::atomic::Ordering;

use super::Workers;
use super::threads::Threads;
use crate::affinity::Choice;
use crate::engine::Help;
use crate::instance::Instance;
use crate::sys;

/// A poll waits so long for what another CPU executes.
const POLL_US: u64 = 500;

/// Ticks of the watchdog for which every worker of a pool is inside a request, and none takes another: a
/// slow disk completes one of 64 more often than that.
const STARVED_TICKS: u32 = 50;

impl Workers {
    /// Before the first request: where requests are executed, and where their completions are collected.
    pub(in crate::engine) fn place(&self, choice: &Choice) {
        if let Some(cpus) = &choice.queue {
            self.threads.set(Threads::on(cpus));
        }
        if let Some(cpus) = &choice.completion {
            self.harvesters.set(Threads::on(cpus));
        }
        if choice.queue.is_some() || choice.completion.is_some() {
            self.habit.leave_all_to_workers();
            self.placed.store(true, Ordering::Release);
        }
    }

    /// Threads of the program execute and collect nothing. Unless there is nobody else to.
    #[inline]
    pub(super) fn stands_by(&self) -> bool {
        self.placed.load(Ordering::Relaxed)
            && !self.threads.pool.is_helpless()
            && !self.starved.load(Ordering::Relaxed)
    }

    /// The watchdog looks whether requests of a placed context lie about, and every worker of its CPUs is
    /// stuck: then its waiters execute them after all. `waiting` says that nothing was taken since the last look.
    pub(super) fn look_for_starvation(&self, instance: &Instance, waiting: bool, ticks: &mut u32) {
        if !self.placed.load(Ordering::Relaxed) {
            return;
        }
        let starved = self.starved.load(Ordering::Relaxed);
        *ticks =
            if (waiting || starved) && self.threads.pool.is_exhausted() { *ticks + 1 } else { 0 };
        if starved != (*ticks >= STARVED_TICKS) {
            self.starved.store(!starved, Ordering::SeqCst);
            instance.completions().wake_now();
        }
    }

    /// A poll that comes while another CPU executes what does not sleep: as if it had been executed here.
    pub(super) fn look_on(&self, help: &Help) -> bool {
        let begin = sys::ticks();
        let busy = || self.has_inline_work() || self.baton.view().is_held();
        while help.min == 0
            && busy()
            && sys::ticks().wrapping_sub(begin) < POLL_US * self.ticks_per_us
        {
            std::thread::yield_now();
        }
        false
    }
}
