//! WAITID: a child that has changed its state.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::sleepers::{Sleeper, Tell, Telling};
use super::{Attempt, Tried};
use crate::{sys, user};

#[derive(Debug)]
pub(crate) struct WaitChild {
    kind: i32,
    id: i32,
    /// Where the state goes, or 0.
    info: u64,
    options: i32,
    telling: Telling,
}

impl WaitChild {
    pub(crate) fn new((kind, id): (i32, i32), info: u64, options: i32) -> Self {
        Self { kind, id, info, options, telling: Telling::new() }
    }

    /// The result of a look, if there is one.
    fn look(&self) -> Option<i32> {
        /// Where `siginfo_t` has the process, the user and the status.
        const PROCESS: u64 = 16;
        let found = match sys::wait_child((self.kind, self.id), self.options | libc::WNOHANG) {
            Ok(found) => found,
            Err(errno) => return Some(errno),
        };
        let [first, second] = found;
        if second[0] == 0 && self.options & libc::WNOHANG == 0 {
            return None;
        }
        if self.info == 0 {
            return Some(0);
        }
        let (place, process) = (self.info as usize, (self.info + PROCESS) as usize);
        // SAFETY: both are of the program's `siginfo_t`.
        let told = unsafe { user::write(place, first).and_then(|()| user::write(process, second)) };
        Some(told.err().unwrap_or(0))
    }
}

impl Attempt for WaitChild {
    fn attempt(&self, _: i32) -> Tried {
        self.look().map_or(Tried::Sleeps, Tried::Done)
    }

    fn sleeper(self: Arc<Self>) -> Option<Arc<dyn Sleeper>> {
        Some(self)
    }
}

impl Sleeper for WaitChild {
    fn sleep(self: Arc<Self>, tell: Tell) {
        let this = Arc::clone(&self);
        // The thread leaves the child as it is: a wait that was cancelled takes nothing.
        self.telling.begin(tell, move || {
            loop {
                let options = this.options | libc::WNOWAIT;
                let waited = sys::wait_child((this.kind, this.id), options);
                let is_over = waited == Err(-libc::EINTR) && this.telling.is_over();
                if is_over || this.telling.end(|| this.look()) {
                    return;
                }
            }
        });
    }

    fn cancel(&self) -> bool {
        let mut is_cancelled = self.telling.cancel_before();
        self.telling.end(|| {
            is_cancelled = true;
            Some(-libc::ECANCELED)
        });
        is_cancelled
    }
}
