//! A placed context: its threads run on CPUs of their own, and the program's threads leave everything to them.

use std::sync::atomic::Ordering;

use super::threads::Threads;
use super::{POLL_US, Workers};
use crate::affinity::Choice;
use crate::engine::Help;
use crate::sys;

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
            // Nobody comes, and nobody will be said to.
            (0..4).for_each(|_| self.habit.nobody_came());
            self.placed.store(true, Ordering::Release);
        }
    }

    /// Threads of the program execute and collect nothing. Unless there is nobody else to.
    #[inline]
    pub(super) fn stands_by(&self) -> bool {
        self.placed.load(Ordering::Relaxed) && !self.threads.pool.is_helpless()
    }

    /// A poll that comes while another CPU executes what does not sleep: as if it had been executed here.
    pub(super) fn look_on(&self, help: Help) -> bool {
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
