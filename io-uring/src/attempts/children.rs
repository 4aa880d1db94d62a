//! WAITID: a child that has changed its state.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use uringlet::front::{PerProcess, lock_counted};

use super::sleepers::{Sleeper, Tell, Telling, spawn};
use super::{Attempt, Tried};
use crate::{sys, user};

/// The kind of a child or a set of children, its number, and the options of the wait (waitid(2)).
/// The last number is 0, except for a pidfd whose process is unknown. That pidfd may mean another
/// child later, so each such wait has a number of its own.
type Awaited = (i32, i32, i32, u64);

/// The waits for children, by what they wait for. Waits for the same children share one thread. No
/// signal ends the call of that thread. So the thread remains after a cancel, and serves the next
/// wait for the same children.
type Waits = Mutex<BTreeMap<Awaited, Vec<Arc<WaitChild>>>>;

static WAITS: PerProcess<Waits> = PerProcess::new();

#[derive(Debug)]
pub(crate) struct WaitChild {
    /// The kind and the number in the entry.
    asked: (i32, i32),
    options: i32,
    /// The children that `asked` meant when the request began to wait.
    awaited: OnceLock<Awaited>,
    /// The address for the state of the child, or 0.
    info: u64,
    telling: Telling,
}

/// The waits of this process. Never `None`, because nothing fails when they are made.
fn waits() -> Option<&'static Waits> {
    WAITS.current_or(|| Ok::<_, Infallible>(Mutex::default())).ok()
}

impl WaitChild {
    pub(crate) fn new(asked: (i32, i32), info: u64, options: i32) -> Self {
        Self { asked, options, awaited: OnceLock::new(), info, telling: Telling::new() }
    }

    /// The children that `asked` means, found once. Later the number may mean others: a pidfd may
    /// be closed, and the process may change its group.
    fn awaited(&self) -> Awaited {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        *self.awaited.get_or_init(|| {
            let (kind, id) = match (self.asked.0 as u32, self.asked.1) {
                (libc::P_PIDFD, fd) => match sys::process_of(fd) {
                    Some(process) => (libc::P_PID, process),
                    None => (libc::P_PIDFD, fd),
                },
                (libc::P_PGID, 0) => (libc::P_PGID, sys::process_group()),
                asked => asked,
            };
            let is_lasting = kind != libc::P_PIDFD;
            let serial = if is_lasting { 0 } else { SERIAL.fetch_add(1, Ordering::Relaxed) };
            (kind as i32, id, self.options, serial)
        })
    }

    /// Adds the wait to the waits for the same children. The first such wait starts the thread.
    fn join(self: Arc<Self>) -> io::Result<()> {
        let awaited = self.awaited();
        let waits = waits().ok_or(io::ErrorKind::Unsupported)?;
        let mut all = lock_counted(waits);
        if let Some(waiting) = all.get_mut(&awaited) {
            waiting.push(self);
            return Ok(());
        }
        all.insert(awaited, vec![self]);
        drop(all);
        spawn(move || wait_for(awaited)).inspect_err(|_| {
            // Other waits may have joined meanwhile.
            let left = lock_counted(waits).remove(&awaited).unwrap_or_default();
            left.iter().for_each(|one| _ = one.telling.end(|| Some(-libc::ENOMEM)));
        })
    }

    /// Makes the call without waiting. `None`: no child has changed its state, and the wait goes
    /// on.
    fn look(&self, whose: (i32, i32), options: i32) -> Option<i32> {
        /// The offset of the process, the user and the status in `siginfo_t`, in bytes.
        const PROCESS: u64 = 16;
        let found = match sys::wait_child(whose, options | libc::WNOHANG) {
            Ok(found) => found,
            Err(errno) => return Some(errno),
        };
        let [first, second] = found;
        if second[0] == 0 && options & libc::WNOHANG == 0 {
            return None;
        }
        if self.info == 0 {
            return Some(0);
        }
        let (place, process) = (self.info as usize, self.info.wrapping_add(PROCESS) as usize);
        // SAFETY: both addresses are in the `siginfo_t` that the program has given for the result.
        let told = unsafe { user::write(place, first).and_then(|()| user::write(process, second)) };
        Some(told.err().unwrap_or(0))
    }
}

impl Attempt for WaitChild {
    fn attempt(&self, _: i32) -> Tried {
        let (kind, id) = self.asked;
        let is_nonblocking =
            || kind as u32 == libc::P_PIDFD && sys::status_flags(id) & libc::O_NONBLOCK != 0;
        let mut result = self.look(self.asked, self.options);
        if result.is_none() && is_nonblocking() {
            result = self.look(self.asked, self.options | libc::WNOHANG);
        }
        result.map(Tried::Done).unwrap_or_else(|| {
            self.awaited();
            Tried::Sleeps
        })
    }

    fn sleeper(self: Arc<Self>) -> Option<Arc<dyn Sleeper>> {
        Some(self)
    }
}

/// Waits until the children change their state, and ends the requests in [`WAITS`] that wait for
/// them. Returns when no wait is left. The call here consumes no state, so a cancelled wait takes
/// nothing.
fn wait_for(awaited @ (kind, id, options, _): Awaited) {
    let Some(waits) = waits() else { return };
    loop {
        let _ = sys::wait_child((kind, id), options | libc::WNOWAIT);
        let waiting = lock_counted(waits).get_mut(&awaited).map(std::mem::take).unwrap_or_default();
        let mut left: Vec<_> = waiting
            .into_iter()
            .filter(|one| !one.telling.end(|| one.look((kind, id), options)))
            .collect();
        let mut all = lock_counted(waits);
        let Some(waiting) = all.get_mut(&awaited) else { return };
        left.append(waiting);
        if left.is_empty() {
            all.remove(&awaited);
            return;
        }
        *waiting = left;
    }
}

impl Sleeper for WaitChild {
    fn sleep(self: Arc<Self>, tell: Tell) {
        let this = Arc::clone(&self);
        self.telling.begin(tell, || this.join());
    }

    fn cancel(&self) -> bool {
        let mut is_cancelled = self.telling.cancel_before();
        self.telling.end(|| {
            is_cancelled = true;
            Some(-libc::ECANCELED)
        });
        let mut all = waits().map(lock_counted);
        if let Some(waiting) = all.as_mut().and_then(|all| all.get_mut(&self.awaited())) {
            waiting.retain(|one| !std::ptr::eq(&raw const **one, self));
        }
        is_cancelled
    }
}
