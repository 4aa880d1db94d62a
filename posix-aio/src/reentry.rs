//! The entry and exit of every function, which preserve `errno`. Between entry and exit, the thread
//! counts as inside the library. A signal handler may interrupt a thread that is inside, and call a
//! function of the library. The entry detects this.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use uringlet::front;

use crate::abi::Aiocb;

/// The maximum number of deferred requests of one thread. A request is deferred if a signal handler
/// submits it while its thread is inside the library.
const DEFERRED_MAX: usize = 64;

/// The state of one thread.
struct Thread {
    inside: Cell<bool>,
    deferred: [Cell<*mut Aiocb>; DEFERRED_MAX],
    /// The number of requests that were ever put into `deferred`. It changes in one atomic step,
    /// because handlers interrupt this thread and each other.
    put: AtomicUsize,
    /// The number of requests that were ever taken out, in the order in which they were put in.
    taken: AtomicUsize,
}

impl Thread {
    const fn new() -> Self {
        Self {
            inside: Cell::new(false),
            deferred: [const { Cell::new(std::ptr::null_mut()) }; DEFERRED_MAX],
            put: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
        }
    }

    /// Are there deferred requests? Each of them is stored completely, because a signal handler
    /// ends before the code that it has interrupted goes on.
    #[inline]
    fn has_deferred(&self) -> bool {
        self.put.load(Ordering::Relaxed) != self.taken.load(Ordering::Relaxed)
    }

    fn defer(&self, block: *mut Aiocb) -> bool {
        let at = self.put.fetch_add(1, Ordering::Relaxed);
        let has_room = at.wrapping_sub(self.taken.load(Ordering::Relaxed)) < DEFERRED_MAX;
        if has_room {
            self.deferred[at % DEFERRED_MAX].set(block);
        } else {
            self.put.fetch_sub(1, Ordering::Relaxed);
        }
        has_room
    }

    /// Passes all deferred requests to `start`. Signal handlers may defer more meanwhile, for
    /// example the handler of a notification of a request that was just started.
    #[cold]
    fn start_deferred(&self, start: impl Fn(*mut Aiocb)) {
        self.inside.set(true);
        while self.has_deferred() {
            let at = self.taken.load(Ordering::Relaxed);
            let block = self.deferred[at % DEFERRED_MAX].get();
            self.taken.store(at.wrapping_add(1), Ordering::Relaxed);
            start(block);
        }
        self.inside.set(false);
    }
}

thread_local! {
    static THREAD: Thread = const { Thread::new() };
}

/// Has a request submitted as soon as this thread leaves the interrupted function. False: too many
/// requests wait already.
pub(crate) fn defer(block: *mut Aiocb) -> bool {
    THREAD.with(|thread| thread.defer(block))
}

/// Runs `body`, during which the thread counts as inside the library. The argument of `body` is
/// true if the thread was inside already: then a signal handler calls this, and the thread may hold
/// locks. An error sets errno and returns -1; otherwise the program's `errno` is preserved. At the
/// end, `start` gets the requests that handlers have deferred.
#[inline(always)]
pub(crate) fn enter(
    body: impl FnOnce(bool) -> Result<c_int, c_int>,
    start: impl Fn(*mut Aiocb),
) -> c_int {
    let answer = front::enter(|| {
        let was_inside = THREAD.with(|thread| thread.inside.replace(true));
        let answer = body(was_inside);
        if !was_inside {
            leave(start);
        }
        answer
    });
    answer.unwrap_or_else(front::refuse)
}

/// Is the calling thread inside the library? Then a signal handler calls this, and has interrupted
/// a function of the library.
pub(crate) fn is_inside() -> bool {
    THREAD.with(|thread| thread.inside.get())
}

#[inline(always)]
fn leave(start: impl Fn(*mut Aiocb)) {
    THREAD.with(|thread| {
        thread.inside.set(false);
        // From here on, the thread is not inside. So a signal handler submits its requests itself.
        while thread.has_deferred() {
            thread.start_deferred(&start);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::{DEFERRED_MAX, Thread};
    use crate::abi::Aiocb;

    /// A control block of this address. The tests do not access it.
    fn block(number: usize) -> *mut Aiocb {
        std::ptr::without_provenance_mut(number)
    }

    #[test]
    fn as_many_as_there_is_room_for_wait_at_a_time_and_any_number_one_after_the_other() {
        const ALL: usize = 3 * DEFERRED_MAX;
        let thread = Thread::new();
        for number in 1..=DEFERRED_MAX {
            assert!(thread.defer(block(number)));
        }
        assert!(!thread.defer(block(ALL)), "there is no room");
        let started = RefCell::new(Vec::new());
        thread.start_deferred(|one| {
            assert!(thread.inside.get());
            started.borrow_mut().push(one.addr());
            // Defers another request for each that is started, as a signal handler may.
            let next = one.addr() + DEFERRED_MAX;
            assert!(next > ALL || thread.defer(block(next)));
        });
        assert!(!thread.inside.get() && !thread.has_deferred());
        assert_eq!(*started.borrow(), (1..=ALL).collect::<Vec<_>>());
    }
}
