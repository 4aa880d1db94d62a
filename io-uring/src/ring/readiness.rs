//! The flags and the descriptor of a ring, which signal completions.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::state::{Core, Locked};
use crate::abi::{setup, sq};
use crate::completions::Queue as _;
use crate::sys;

/// The number of rings whose descriptor is readable.
static ARMED: AtomicUsize = AtomicUsize::new(0);

/// Is the descriptor of any ring readable?
#[inline]
pub(crate) fn any_is_armed() -> bool {
    ARMED.load(Ordering::Relaxed) > 0
}

impl Core {
    /// Is the descriptor readable?
    pub(crate) fn is_readable(&self) -> bool {
        self.readiness.is_readable()
    }

    /// Is the descriptor readable, although it should not be any more?
    #[inline]
    pub(super) fn is_stale(&self) -> bool {
        self.readiness.is_readable() && self.completions() == 0
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.readiness.is_readable() {
            ARMED.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Locked<'_> {
    /// Updates flags and descriptor. True: the descriptor signals something new.
    pub(super) fn settle(&mut self) -> bool {
        let core = self.core;
        let change = core.readiness.settle(core.completions() > 0);
        let mut flags = 0;
        if self.state.completions.has_overflown() {
            flags |= sq::CQ_OVERFLOW;
        }
        // Without the flag, newer versions of liburing make no call if the ring is empty. But such
        // a call has to clear the descriptor.
        let calls = if core.has(setup::TASKRUN_FLAG) {
            self.state.completions.has_deferred()
        } else {
            core.readiness.is_readable()
        };
        if calls {
            flags |= sq::TASKRUN;
        }
        // The flags are written first: a woken thread reads them.
        if self.speaks_for_ring() {
            core.show_flags(flags);
        }
        let tail = core.memory.tail();
        let is_news = std::mem::replace(&mut self.state.told_tail, tail) != tail;
        match change {
            Some(true) => _ = ARMED.fetch_add(1, Ordering::Relaxed),
            Some(false) => {
                ARMED.fetch_sub(1, Ordering::Relaxed);
                core.eventfd.get().inspect(|fd| sys::eventfd_clear(fd.number()));
                return false;
            }
            // The program may have reaped what it was notified of, and wait for an edge.
            None if is_news && core.readiness.repeats() => {}
            None => return false,
        }
        core.eventfd.get().inspect(|fd| sys::eventfd_set(fd.number()));
        true
    }
}
