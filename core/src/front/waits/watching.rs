//! A drop-in's watch of the descriptors that the program waits for, during one call.

use super::Hooks;
use crate::errno::kept as enter;

pub(super) struct Watching<H: Hooks> {
    watch: H::Watch,
    is_paused: bool,
}

impl<H: Hooks> Watching<H> {
    pub(super) fn new(watch: H::Watch) -> Self {
        Self { watch, is_paused: false }
    }

    /// The thread has woken up, and collects completions itself.
    pub(super) fn pause(&mut self) {
        if !std::mem::replace(&mut self.is_paused, true) {
            enter(|| H::pause(self.watch));
        }
    }

    /// The thread is about to sleep.
    pub(super) fn resume(&mut self) {
        if std::mem::replace(&mut self.is_paused, false) {
            enter(|| H::resume(self.watch));
        }
    }

    /// The program's call has ended.
    pub(super) fn end(self) {
        H::end(self.watch, self.is_paused);
    }
}
