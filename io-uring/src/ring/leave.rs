//! The end of a ring or a thread: its requests are cancelled, and waited for.

use std::sync::Arc;
use std::time::Instant;

use uringlet::front::{Descriptor, Instance};

use super::state::{Core, Locked};
use crate::attempts::Sleeper;
use crate::tuning::{CANCEL_AGAIN, THREAD_END_MAX};

impl Core {
    /// Cancels what waits, and waits for what is being executed: the program may free its buffers
    /// when this function returns. A request that may never end is not waited for.
    pub(crate) fn close(self: &Arc<Self>, instance: &Arc<Instance>) {
        loop {
            let keys = self.with(|locked| locked.cancel_everything());
            self.await_tries();
            if keys.is_empty() {
                break;
            }
            let sleepers = |locked: &mut Locked<'_>| -> Vec<Arc<dyn Sleeper>> {
                let found = keys.iter().filter_map(|&key| locked.find(key));
                found.filter_map(|at| locked.sleeper(at)).collect()
            };
            self.with(sleepers).iter().for_each(|sleeper| _ = sleeper.cancel());
            instance.cancel_each(&keys, |_, _| {});
            let seen = self.ended();
            let (left, hangs) =
                self.with(|locked| (locked.live().next().is_some(), locked.may_hang()));
            if !left {
                break;
            }
            if hangs {
                // The call may never return. The engine and its memory are kept, in case the call
                // does return.
                std::mem::forget(Arc::clone(instance));
                return;
            }
            self.wait_for_end(instance, seen, Some(CANCEL_AGAIN), false);
        }
        instance.close();
    }

    /// A thread ends: cancels its requests, and waits for a while for requests that are being
    /// executed.
    pub(crate) fn thread_ends(self: &Arc<Self>, instance: &Instance, thread: u32) {
        let end = Instant::now() + THREAD_END_MAX;
        let found = self.with(|locked| locked.cancel_thread(thread));
        // Transfers on seekable files end soon. They are not cancelled, as if io_uring_enter(2) had
        // executed them.
        let ends = |fd| Descriptor::fresh(fd).is_ok_and(Descriptor::is_seekable);
        let (kept, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|&(_, fd)| ends(fd));
        let mut running: Vec<u64> = kept.into_iter().map(|(key, _)| key).collect();
        let others: Vec<u64> = others.into_iter().map(|(key, _)| key).collect();
        self.cancel_each(instance, &others, |key, answer| {
            running.extend((answer == -libc::EALREADY).then_some(key));
        });
        loop {
            let seen = self.ended();
            self.with(|locked| {
                let ends = |key: &u64| locked.find(*key).is_some_and(|at| locked.will_end(at));
                running.retain(ends);
            });
            let left = end.saturating_duration_since(Instant::now());
            if running.is_empty() || left.is_zero() {
                return;
            }
            self.wait_for_end(instance, seen, Some(left), true);
        }
    }
}
