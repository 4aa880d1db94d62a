//! The door of every function: `errno` is kept, and a signal handler that comes back through it, into a
//! thread that is inside already, is noticed.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use uringlet::front;

use crate::abi::Aiocb;

/// Requests that signal handlers have submitted while their thread was inside.
const DEFERRED_MAX: usize = 64;

/// What one thread is at.
struct Thread {
    inside: Cell<bool>,
    deferred: [Cell<*mut Aiocb>; DEFERRED_MAX],
    /// Changed in single steps: handlers interrupt this thread, and each other.
    count: AtomicUsize,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            inside: Cell::new(false),
            deferred: [const { Cell::new(std::ptr::null_mut()) }; DEFERRED_MAX],
            count: AtomicUsize::new(0),
        }
    };
}

/// Has a request submitted as soon as this thread is out. False: too many are waiting for that.
pub(crate) fn defer(block: *mut Aiocb) -> bool {
    THREAD.with(|thread| {
        let at = thread.count.fetch_add(1, Ordering::Relaxed);
        match thread.deferred.get(at) {
            Some(place) => place.set(block),
            None => drop(thread.count.fetch_sub(1, Ordering::Relaxed)),
        }
        at < DEFERRED_MAX
    })
}

/// Runs `body` inside, with whether the thread was inside before (a signal handler of the program has
/// interrupted it, and locks may be held), and gives -1 and sets errno for an error. Otherwise the
/// program's `errno` stays what it was.
#[inline(always)]
pub(crate) fn enter(body: impl FnOnce(bool) -> Result<c_int, c_int>) -> c_int {
    let answer = front::enter(|| {
        let was_inside = THREAD.with(|thread| thread.inside.replace(true));
        let answer = body(was_inside);
        if !was_inside {
            leave();
        }
        answer
    });
    answer.unwrap_or_else(front::refuse)
}

#[inline(always)]
fn leave() {
    THREAD.with(|thread| {
        thread.inside.set(false);
        // A handler that comes from here on is not inside: it submits by itself.
        while thread.count.load(Ordering::Relaxed) > 0 {
            submit_deferred(thread);
        }
    });
}

#[cold]
fn submit_deferred(thread: &Thread) {
    thread.inside.set(true);
    let mut at = 0;
    // Handlers may add to them meanwhile.
    while thread.count.compare_exchange(at, 0, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        let block = thread.deferred[at].get();
        // SAFETY: aio_read(3) or the like was called with it, and it has not completed.
        unsafe { crate::submit::start_deferred(block) };
        at += 1;
    }
    thread.inside.set(false);
}
