//! Ends a call in which a worker sleeps, for example the open of a FIFO whose operation was
//! cancelled.
//!
//! A signal whose handler does nothing ends the call with `EINTR`. A signal that comes just before
//! the call does not end it. So a kernel timer repeats the signal until the worker has left the
//! call and deletes the timer.
//!
//! | state    | meaning                   | left by                      |
//! |----------|---------------------------|------------------------------|
//! | `IDLE`   | no worker is in a call    | the worker                   |
//! | a thread | that worker is in a call  | the worker, or a canceller   |
//! | `ARMING` | a canceller makes a timer | the worker, or the canceller |
//! | a timer  | it signals the worker     | the worker, which deletes it |
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys::{self, Ret};

const IDLE: u64 = 0;
const ARMING: u64 = 1;
/// With this bit, the word has the number of a thread. With `TIMER`, it has that of a timer.
const THREAD: u64 = 1 << 32;
const TIMER: u64 = 2 << 32;

/// A call of a worker's that can be interrupted.
#[derive(Debug, Default)]
pub(super) struct Interruptible(AtomicU64);

impl Interruptible {
    /// Makes a call until it returns something other than `EINTR`: a count, or a negative errno.
    /// Ends with `ECANCELED` once the operation `is_stopped`: the thread that stops the operation
    /// calls [`Interruptible::end`] afterwards.
    pub(super) fn during(
        &self,
        is_stopped: impl Fn() -> bool,
        mut call: impl FnMut() -> Ret,
    ) -> i32 {
        let takes_signals = takes_signals();
        if takes_signals {
            self.0.store(THREAD | u64::from(sys::thread_id()), Ordering::SeqCst);
        }
        let result = loop {
            if is_stopped() {
                break -libc::ECANCELED;
            }
            let result = call();
            if result != -(libc::EINTR as Ret) {
                break result as i32;
            }
        };
        if takes_signals {
            let left = self.0.swap(IDLE, Ordering::SeqCst);
            if left & TIMER != 0 {
                delete(left as u32 as i32);
            }
        }
        result
    }

    /// Ends the call, if a worker is in one. The thread that has stopped the operation calls this.
    pub(super) fn end(&self) {
        let now = self.0.load(Ordering::SeqCst);
        if now & THREAD == 0
            || self.0.compare_exchange(now, ARMING, Ordering::SeqCst, Ordering::SeqCst).is_err()
        {
            return;
        }
        let signal = SIGNAL.get().copied().flatten().filter(|&signal| is_ours(signal));
        let timer = signal.and_then(|signal| make(signal, now as u32));
        let next = timer.map_or(now, |timer| TIMER | timer as u32 as u64);
        let set = self.0.compare_exchange(ARMING, next, Ordering::SeqCst, Ordering::SeqCst);
        if let (Err(_), Some(timer)) = (set, timer) {
            // The worker has left the call meanwhile.
            delete(timer);
        }
    }
}

/// The signal: a real-time one that was unused when it was first needed.
static SIGNAL: OnceLock<Option<i32>> = OnceLock::new();

thread_local! {
    /// The thread does not block the signal.
    static TAKES_SIGNALS: Cell<bool> = const { Cell::new(false) };
}

/// Unblocks the signal in the calling thread, a worker. False: there is no signal.
fn takes_signals() -> bool {
    if cfg!(miri) {
        return false;
    }
    let Some(signal) = *SIGNAL.get_or_init(take_signal) else { return false };
    if !TAKES_SIGNALS.replace(true) {
        sys::unblock_signal(signal);
    }
    true
}

extern "C" fn nothing(_: i32) {}

/// The action of a signal.
fn action(signal: i32) -> Option<libc::sigaction> {
    // SAFETY: integers and pointers, which may be zero.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: writable memory for the action.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    (asked == 0).then_some(action)
}

/// Is the handler still ours?
fn is_ours(signal: i32) -> bool {
    action(signal).is_some_and(|action| action.sa_sigaction == nothing as *const () as usize)
}

/// Installs a handler that does nothing, for a signal that has none.
fn take_signal() -> Option<i32> {
    // Tools often use the last signal, and language runtimes the two before it.
    let candidates = (libc::SIGRTMIN()..=libc::SIGRTMAX() - 3).rev();
    candidates.into_iter().find(|&signal| {
        let Some(mut action) = action(signal) else { return false };
        if action.sa_sigaction != libc::SIG_DFL {
            return false;
        }
        action.sa_sigaction = nothing as *const () as usize;
        // The handler has no SA_RESTART, so that the call ends. It runs on the thread's alternate
        // stack, if there is one.
        action.sa_flags = libc::SA_ONSTACK;
        // SAFETY: a handler that touches nothing.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) == 0 }
    })
}

/// Makes a timer that sends the signal to a thread now, and every 10 ms from then on.
fn make(signal: i32, thread: u32) -> Option<i32> {
    const NOW: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 1 };
    const AGAIN: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    // SAFETY: integers and pointers, which may be zero.
    let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
    (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_THREAD_ID, signal);
    event.sigev_notify_thread_id = thread as i32;
    let mut timer = 0i32;
    let (event, at) = (&raw const event, &raw mut timer);
    // SAFETY: an event, and writable memory for the timer's number (timer_create(2)).
    if unsafe { sys::call!(timer_create, libc::CLOCK_MONOTONIC, event, at) } != 0 {
        return None;
    }
    let time = libc::itimerspec { it_interval: AGAIN, it_value: NOW };
    // SAFETY: a time that lives across the call (timer_settime(2)).
    unsafe { sys::call!(timer_settime, timer, 0, &raw const time, 0) };
    Some(timer)
}

fn delete(timer: i32) {
    // SAFETY: no memory is passed. The timer was made here, and is deleted once.
    unsafe { sys::call!(timer_delete, timer) };
}
