//! Waits whose end no event of a descriptor reports. Separate threads wait.

use std::sync::{Arc, Mutex};
use std::{fmt, io};

use uringlet::front::{self, Guard, lock_counted};

/// The function that gets the result of a wait.
pub(crate) type Tell = Box<dyn FnOnce(i32) + Send>;

/// How far a wait is.
enum Phase {
    Before,
    Waits(Tell),
    /// The wait was cancelled before it began.
    Cancelled,
    Over,
}

/// A wait, and the function that gets its result, once.
pub(super) struct Telling(Mutex<Phase>);

impl Telling {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Phase::Before))
    }

    fn lock(&self) -> Guard<'_, Phase> {
        lock_counted(&self.0)
    }

    /// Begins the wait: `start` makes a thread wait. If `start` fails, the wait ends with
    /// `-ENOMEM`.
    pub(super) fn begin(&self, tell: Tell, start: impl FnOnce() -> io::Result<()>) {
        let mut phase = self.lock();
        if matches!(*phase, Phase::Cancelled) {
            drop(phase);
            return tell(-libc::ECANCELED);
        }
        *phase = Phase::Waits(tell);
        drop(phase);
        if start().is_err() {
            self.end(|| Some(-libc::ENOMEM));
        }
    }

    /// Ends the wait with the result of `result`, if the wait has not ended. False: `result` has
    /// found none yet.
    pub(super) fn end(&self, result: impl FnOnce() -> Option<i32>) -> bool {
        let mut phase = self.lock();
        if !matches!(*phase, Phase::Waits(_)) {
            return true;
        }
        let Some(result) = result() else { return false };
        let Phase::Waits(tell) = std::mem::replace(&mut *phase, Phase::Over) else { return true };
        drop(phase);
        tell(result);
        true
    }

    /// Has the wait ended, or was it cancelled?
    pub(super) fn is_over(&self) -> bool {
        matches!(*self.lock(), Phase::Over | Phase::Cancelled)
    }

    /// Cancels a wait that has not begun. False: the wait has begun.
    pub(super) fn cancel_before(&self) -> bool {
        let mut phase = self.lock();
        let is_before = matches!(*phase, Phase::Before);
        if is_before {
            *phase = Phase::Cancelled;
        }
        is_before
    }
}

impl fmt::Debug for Telling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telling").finish_non_exhaustive()
    }
}

/// Makes a new thread, which calls `wait`.
///
/// # Errors
/// The thread cannot be made.
pub(super) fn spawn(wait: impl FnOnce() + Send + 'static) -> io::Result<()> {
    front::spawn("sleeper", wait)
}

/// A call that waits in a thread.
pub(crate) trait Sleeper: fmt::Debug + Send + Sync {
    /// Begins to wait. When this returns, the wait can be woken.
    fn sleep(self: Arc<Self>, tell: Tell);

    /// Ends the wait with `-ECANCELED`. False: the wait has ended otherwise.
    fn cancel(&self) -> bool;
}
