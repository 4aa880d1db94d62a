//! The door of every function: `errno` is kept, and a signal handler that comes back through it, into a
//! thread that is inside already, is noticed.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use uringlet::front;

use crate::abi::Aiocb;

/// As many requests that signal handlers have submitted while their thread was inside may wait at a time.
const DEFERRED_MAX: usize = 64;

/// What one thread is at.
struct Thread {
    inside: Cell<bool>,
    deferred: [Cell<*mut Aiocb>; DEFERRED_MAX],
    /// How many were ever put there, each behind the last, and taken out. Changed in single steps: handlers interrupt this thread, and each other.
    put: AtomicUsize,
    taken: AtomicUsize,
}

impl Thread {
    /// Whatever was put there is there: a handler comes to its end before the code that it has interrupted goes on.
    #[inline]
    fn has_deferred(&self) -> bool {
        self.put.load(Ordering::Relaxed) != self.taken.load(Ordering::Relaxed)
    }
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            inside: Cell::new(false),
            deferred: [const { Cell::new(std::ptr::null_mut()) }; DEFERRED_MAX],
            put: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
        }
    };
}

/// Has a request submitted as soon as this thread is out. False: too many are waiting for that.
pub(crate) fn defer(block: *mut Aiocb) -> bool {
    THREAD.with(|thread| {
        let at = thread.put.fetch_add(1, Ordering::Relaxed);
        let has_room = at.wrapping_sub(thread.taken.load(Ordering::Relaxed)) < DEFERRED_MAX;
        if has_room {
            thread.deferred[at % DEFERRED_MAX].set(block);
        } else {
            thread.put.fetch_sub(1, Ordering::Relaxed);
        }
        has_room
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
        while thread.has_deferred() {
            submit_deferred(thread);
        }
    });
}

#[cold]
fn submit_deferred(thread: &Thread) {
    thread.inside.set(true);
    // Handlers may add to them meanwhile, also one that is told of the end of a request that was just submitted.
    while thread.has_deferred() {
        let at = thread.taken.load(Ordering::Relaxed);
        let block = thread.deferred[at % DEFERRED_MAX].get();
        thread.taken.store(at.wrapping_add(1), Ordering::Relaxed);
        // SAFETY: aio_read(3) or the like was called with it, and it has not completed.
        unsafe { crate::submit::start_deferred(block) };
    }
    thread.inside.set(false);
}
