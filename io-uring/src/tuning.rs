//! Every constant of time and number in the policy of the drop-in, with its unit. Those of the
//! engine stand in its `router/tuning.rs`.

use std::time::Duration;

// Waits of a thread that leaves a ring, or waits on it.

/// A close that waits for requests in execution cancels again after this time.
pub(crate) const CANCEL_AGAIN: Duration = Duration::from_millis(20);
/// A thread that ends waits this long for its requests: one in a system call may never end.
pub(crate) const THREAD_END_MAX: Duration = Duration::from_secs(1);
/// A waiter checks after this time whether the ring's owner has ended. Each further time is twice
/// as long, up to the second value.
pub(crate) const OWNER_LOOK: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_secs(1));
/// Completions that found no room in the ring are moved there after this time at most, in
/// nanoseconds.
pub(crate) const FLUSH_AFTER_NS: u64 = 1_000_000;

// The number of tries, with a pause that grows between two.

/// Tries to submit while others take the next entry. Threads of this process stop far earlier.
/// Another process may change the shared words without end.
pub(crate) const SUBMIT_TRIES: u32 = 1_000;
/// Tries to cancel a request that is on its way to the engine.
pub(crate) const CANCEL_TRIES: u32 = 10_000;
/// The number of tries to cancel a request that a thread is trying just now. Then the request is
/// noted to end with its try, if that would wait.
pub(crate) const CANCEL_TRIED_TRIES: u32 = 200;
/// Tries to take the lock for the ring's descriptor, some seconds: two holders wait for each other
/// if signal handlers have interrupted both.
pub(crate) const SIGNAL_TRIES: u32 = 50_000;
/// Looks at threads that use the number of a descriptor. The caller may be a signal handler on such
/// a thread.
pub(crate) const NUMBER_TRIES: u32 = 100;

/// The size of a small vector, in bytes. After a longer vector, the next vector of its ring is
/// copied before use.
pub(crate) const SMALL_VECTOR: i32 = 64 << 10;

// Sockets and polls.

/// After this many results of a multishot request, other requests are tried.
pub(crate) const SHOTS_IN_A_ROW: u32 = 32;
/// This many calls on sockets are made before their results are posted.
pub(crate) const TRIES_AT_ONCE: usize = 32;
/// After this many tries in vain, a ready socket is tried only at a new event.
pub(crate) const VAIN_TRIES: u32 = 8;
/// After this many tries in vain, a send waits in a thread: the receiver of a message may be full
/// although the socket itself is ready.
pub(crate) const VAIN_SENDS: u32 = 8;
/// After tries in vain, up to this many receives in a row wait for an event of their socket without
/// a first try.
pub(crate) const UNTRIED: u32 = 63;
/// After this many events in a row that nothing has waited for, a socket does not stay registered.
pub(crate) const UNCLAIMED: u32 = 2;
/// After this many times in a row that events were taken which nothing has asked for, the epoll of
/// all rings is made anew.
pub(crate) const STRAYS: u32 = 8;
/// A receive that waits without a system call relies on the registration of its socket. That is
/// checked after this time to twice this time, in nanoseconds.
pub(crate) const CONFIRM_AFTER_NS: u64 = 100_000_000;
/// Without polls, the poll thread ends after `POLL_THREAD_IDLE`. With polls and no event, it checks
/// after `POLL_THREAD_LOOK` whether polls are left.
pub(crate) const POLL_THREAD_IDLE: Duration = Duration::from_secs(2);
pub(crate) const POLL_THREAD_LOOK: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });
/// For this time the poll thread leaves events to waiting threads.
pub(crate) const WAITER_GRACE: Duration = Duration::from_millis(1);
/// The number of events that are taken at a time.
pub(crate) const EVENTS: usize = 512;
/// The number of rings that a wait of the program's watches; further ones are watched permanently.
pub(crate) const WATCHED_RINGS: usize = 4;
