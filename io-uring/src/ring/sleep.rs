//! A thread waits for completions of requests that other processes have in flight. It sleeps on
//! the tail of the ring's memory, and needs no engine.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Core;
use crate::shared::process;
use crate::sys;

/// After this the thread looks whether the owner is gone; from then on after twice as much each
/// time, up to the other.
const LOOK: Duration = Duration::from_millis(20);
const LOOK_MOST: Duration = Duration::from_secs(1);

impl Core {
    /// Waits for `min` completions, or for a timeout's that is not counted in `timeouts`.
    /// `deadline` is in nanoseconds of CLOCK_MONOTONIC, and `mask` is in force while the thread
    /// sleeps.
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
        let mut look = LOOK;
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
                    look = LOOK_MOST.min(look * 2);
                    if let Some(gone) = self.busy_other().filter(|&by| process::is_gone(by)) {
                        self.end_what_is_left(gone);
                    }
                }
                _ => look = LOOK,
            }
        }
    }
}
