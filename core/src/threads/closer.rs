//! Closes descriptors of files that may be on a server: close(2) may ask the server, which may not
//! answer. Threads of this module call close(2), so that no other thread and no lock waits.
//!
//! One thread closes, and another one stands by. If the closing thread is stuck, the other one
//! takes over, and a third stands by. The threads end when there was nothing to close for a while.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::Threads;
use super::spawn::Spawner;
use crate::own;
use crate::process;
use crate::router::tuning::RETIRE_AFTER;
use crate::sync::lock;

/// The maximum number of closing threads. If all are stuck, further descriptors stay open until a
/// server answers.
const MOST: usize = 64;
/// If no descriptor was closed within this time, the closing thread is stuck.
const STUCK_AFTER: Duration = Duration::from_millis(2);

/// The closing threads.
#[derive(Debug)]
pub(crate) struct Closer {
    spawner: Spawner,
    state: Mutex<CloserState>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct CloserState {
    queue: VecDeque<RawFd>,
    threads: usize,
    /// Threads that sleep.
    idle: usize,
    /// Descriptors closed so far.
    closed: u64,
}

/// Closes one of the engine's own descriptors on another thread. False: there is no thread, and the
/// caller keeps the descriptor.
pub(super) fn close_elsewhere(fd: RawFd) -> bool {
    // The child of a fork has no threads unless it makes a context.
    process::generation() != 0 && Threads::of_this_process().closer.close(fd)
}

impl Closer {
    pub(super) fn new(spawner: Spawner) -> Self {
        Self { spawner, state: Mutex::default(), wake: Condvar::new() }
    }

    fn close(&'static self, fd: RawFd) -> bool {
        let mut state = lock(&self.state);
        state.queue.push_back(fd);
        if state.threads > 0 {
            // While the queue is not empty, a thread that stands by checks without being woken.
            if state.queue.len() == 1 {
                self.wake.notify_one();
            }
            return true;
        }
        if self.add_thread(&mut state) {
            return true;
        }
        state.queue.clear();
        false
    }

    /// Makes a thread. The caller holds the lock, so that nobody counts on a thread that cannot be
    /// made.
    fn add_thread(&'static self, state: &mut CloserState) -> bool {
        let made = self.spawner.spawn("close", move || self.run()).is_ok();
        state.threads += usize::from(made);
        made
    }

    fn run(&'static self) {
        let mut state = lock(&self.state);
        loop {
            while let Some(fd) = state.queue.pop_front() {
                if state.idle == 0 && state.threads < MOST {
                    self.add_thread(&mut state);
                }
                drop(state);
                own::close(fd);
                state = lock(&self.state);
                state.closed += 1;
            }
            // Stands by until the queue is not empty, and no descriptor was closed since the last
            // check.
            loop {
                let (seen, was_empty) = (state.closed, state.queue.is_empty());
                let time = if was_empty { RETIRE_AFTER } else { STUCK_AFTER };
                state.idle += 1;
                let waited = self.wake.wait_timeout(state, time);
                let (back, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                state = back;
                state.idle -= 1;
                if !state.queue.is_empty() && state.closed == seen {
                    break;
                }
                if was_empty && state.queue.is_empty() && timeout.timed_out() {
                    state.threads -= 1;
                    return;
                }
            }
        }
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::sys;

    #[test]
    fn many_are_closed_by_few_threads() {
        let closer: &'static Closer = Box::leak(Box::new(Closer::new(Spawner::on(None))));
        let pipes: Vec<[RawFd; 2]> = (0..200).map(|_| sys::pipe().expect("a pipe")).collect();
        for &[_, writer] in &pipes {
            own::note(writer);
            assert!(closer.close(writer));
        }
        for [reader, _] in pipes {
            // A pipe reports its end when its last writer was closed.
            let mut poll = [libc::pollfd { fd: reader, events: libc::POLLIN, revents: 0 }];
            assert_eq!(sys::ppoll(&mut poll, None, None), 1);
            assert_eq!(poll[0].revents, libc::POLLHUP);
            sys::close(reader);
        }
        assert!(lock(&closer.state).threads <= MOST);
    }
}
