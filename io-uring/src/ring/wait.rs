//! Threads that wait on a ring. They wait for completions; on a ring that processes share, also for
//! those of other processes' requests. A thread that cancels or leaves waits until one more request
//! of this process has ended.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use uringlet::front::{Concern, Instance, IoEvent, WaitCondition, Waited};

use super::state::Core;
use crate::shared::process;
use crate::sys;
use crate::tuning::OWNER_LOOK;

impl Core {
    /// The number of completions that a wait for `min` lacks. 0 if a timeout that is not counted in
    /// `timeouts` has ended, or if this process has nothing in flight on a shared ring.
    pub(crate) fn missing(&self, min: u32, timeouts: u32) -> u32 {
        if self.waits_for_others() {
            return 0;
        }
        self.missing_of_all(min, timeouts)
    }

    /// As [`missing`](Self::missing), without the exception for a shared ring.
    pub(crate) fn missing_of_all(&self, min: u32, timeouts: u32) -> u32 {
        let waits = self.memory.page().timeouts.load(Ordering::Acquire) == timeouts;
        if waits { min.saturating_sub(self.completions()) } else { 0 }
    }

    /// The condition that ends a wait: [`Core::missing`] returns 0.
    pub(crate) fn concern(&self, min: u32, timeouts: u32) -> Concern {
        let words = [std::ptr::from_ref(self) as u64, min.into(), timeouts.into()];
        // SAFETY: the engine's receiver of completions (`Deliver`) holds this ring, so the pointer
        // is valid as long as the engine has events.
        unsafe {
            let is_over = |words: &[u64; 8], _: &IoEvent| {
                let core = &*(words[0] as *const Self);
                core.missing(words[1] as u32, words[2] as u32) == 0
            };
            Concern::new(is_over, &words)
        }
    }

    /// Is the ring shared, and does this process have nothing in flight on it? Then the engine of
    /// this process has nothing to wait for.
    pub(crate) fn waits_for_others(&self) -> bool {
        self.memory.page().is_shared() && self.taken.load(Ordering::Acquire) == self.ended()
    }

    /// Waits until [`ended`](Self::ended) differs from `ended`.
    pub(crate) fn wait_for_end(
        &self,
        instance: &Instance,
        ended: u32,
        time: Option<Duration>,
        restarts: bool,
    ) -> Waited {
        let words = [std::ptr::from_ref(self) as u64, ended.into()];
        // SAFETY: as in `concern`.
        let concern = unsafe {
            let has_more = |words: &[u64; 8], _: &IoEvent| {
                u64::from((*(words[0] as *const Self)).ended()) != words[1]
            };
            Concern::new(has_more, &words)
        };
        let wish = WaitCondition {
            missing: &|| u32::from(self.ended() == ended),
            concern,
            gives_up: &|| false,
            mask: None,
            restarts,
            beside: None,
        };
        instance.wait_for(&wish, time)
    }

    /// The word of another process that has requests of this ring in flight.
    fn busy_other(&self) -> Option<u64> {
        self.memory.page().busy_other(self.me)
    }

    /// Waits for `min` completions, or for a timeout that is not counted in `timeouts`. `deadline`
    /// is in nanoseconds of CLOCK_MONOTONIC, and `mask` is set while the thread sleeps.
    ///
    /// # Errors
    /// `-ETIME`, `-EINTR`; `-EBADF` if the ring is closed meanwhile.
    pub(crate) fn sleep_for_others(
        self: &Arc<Self>,
        (min, timeouts): (u32, u32),
        deadline: Option<u64>,
        mask: Option<u64>,
    ) -> Result<(), i32> {
        let page = self.memory.page();
        let mut look = OWNER_LOOK.0;
        loop {
            page.announce();
            let tail = page.cq_tail.load(Ordering::Relaxed);
            if self.missing_of_all(min, timeouts) == 0 {
                return Ok(());
            }
            if self.closing.load(Ordering::Relaxed) {
                return Err(-libc::EBADF);
            }
            let now = sys::now(libc::CLOCK_MONOTONIC);
            let left = deadline.map(|deadline| Duration::from_nanos(deadline.saturating_sub(now)));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(-libc::ETIME);
            }
            let time = left.map_or(look, |left| left.min(look));
            match sys::sleep_while(&page.cq_tail, tail, time, mask) {
                errno if errno == -libc::EINTR => return Err(errno),
                errno if errno == -libc::ETIMEDOUT => {
                    look = OWNER_LOOK.1.min(look * 2);
                    if let Some(gone) = self.busy_other().filter(|&by| process::is_gone(by)) {
                        self.end_what_is_left(gone);
                    }
                }
                _ => look = OWNER_LOOK.0,
            }
        }
    }

    /// A waiting thread has seen that the owner with this word has ended: ends the requests that it
    /// has left.
    pub(super) fn end_what_is_left(self: &Arc<Self>, gone: u64) {
        // If another process is quicker, that one does it.
        let _ = self.with(|locked| locked.claim(gone));
    }
}
