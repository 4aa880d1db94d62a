//! Every constant of time and number in the policy of the drop-in, with its unit. The engine's
//! constants are in its `router/tuning.rs`.

use std::time::Duration;

// Waits of a thread that leaves a ring, or waits on it.

/// A close that waits for requests in execution cancels them again after this time.
pub(crate) const CANCEL_AGAIN: Duration = Duration::from_millis(20);
/// A thread that ends waits at most this long for its requests. A request in a system call may
/// never end.
pub(crate) const THREAD_END_MAX: Duration = Duration::from_secs(1);
/// A waiter checks after this time whether the process that executes the ring's requests has ended.
/// Each further time is twice as long, up to the second value.
pub(crate) const OWNER_LOOK: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_secs(1));
/// In a ring that several processes share, completions wait outside of the ring while it has no
/// room. After this time, in nanoseconds, they are moved into the ring.
pub(crate) const FLUSH_AFTER_NS: u64 = 1_000_000;

// Numbers of tries. The pause between two tries grows.

/// Tries to submit. A try fails if another thread takes the next entry meanwhile. Among the threads
/// of one process, a try succeeds far earlier. Another process may change the shared words without
/// end.
pub(crate) const SUBMIT_TRIES: u32 = 1_000;
/// Tries to cancel a request that is on its way to the engine.
pub(crate) const CANCEL_TRIES: u32 = 10_000;
/// The number of tries to cancel a request that a thread is trying just now. Then the request is
/// marked: it ends with `-ECANCELED` if its try would wait.
pub(crate) const CANCEL_TRIED_TRIES: u32 = 200;
/// Tries to take a ring's lock to update its descriptor; together they take some seconds. Two
/// signal handlers may wait for each other: each has interrupted the thread whose lock the other
/// one needs.
pub(crate) const SIGNAL_TRIES: u32 = 50_000;
/// Before a descriptor is closed: the number of checks whether threads still use its number. The
/// closing call may be in a signal handler on such a thread.
pub(crate) const NUMBER_TRIES: u32 = 100;
/// The number of further checks for calls on a socket with this number, and for its requests that
/// are on their way to the engine. Together the checks take some seconds. The threads that make
/// these calls do not wait, but may be preempted.
pub(crate) const CALL_TRIES: u32 = 30_000;

/// Vectored transfers of at most this many bytes are small: their submitter may execute them. After
/// a larger one, the ring's next vector is copied before its use.
pub(crate) const SMALL_VECTOR: i32 = 64 << 10;

/// A submit of several plain transfers executes them by itself for this many microseconds. Writes
/// may wait for their file, and later entries must not wait for many of them. Thirty-two reads of
/// 4 KiB take 40.
pub(crate) const TURN_US: u64 = 200;

// Sockets and polls. A try is in vain if the call would have waited.

/// After this many results of a multishot request, other requests are tried.
pub(crate) const SHOTS_IN_A_ROW: u32 = 32;
/// The memory of this many ended calls on sockets is kept for later ones: some 70 KiB.
pub(crate) const SPARE_SOCKETS: usize = 256;
/// At most this many calls on sockets are made before their results are posted.
pub(crate) const TRIES_AT_ONCE: usize = 32;
/// After more than this many tries in vain, a ready socket is tried only at a new event.
pub(crate) const VAIN_TRIES: u32 = 8;
/// After this many tries in vain, a send waits in a thread: the receiver of a message may be full
/// although the socket itself is ready.
pub(crate) const VAIN_SENDS: u32 = 8;
/// After tries in vain, up to this many receives in a row wait for an event of their socket without
/// a first try.
pub(crate) const UNTRIED: u32 = 63;
/// After more than this many events in a row that nothing has waited for, a socket does not stay
/// registered.
pub(crate) const UNCLAIMED: u32 = 2;
/// An event is stray if nothing has asked for it. After more than this many calls in a row that
/// returned stray events, the epoll of all rings is made anew.
pub(crate) const STRAYS: u32 = 8;
/// A receive that waits without a system call relies on the registration of its socket. The
/// registration is checked after this time to twice this time, in nanoseconds.
pub(crate) const CONFIRM_AFTER_NS: u64 = 100_000_000;
/// Without polls, the poll thread ends after `POLL_THREAD_IDLE`. With polls and no event, it checks
/// after `POLL_THREAD_LOOK` whether polls are left.
pub(crate) const POLL_THREAD_IDLE: Duration = Duration::from_secs(2);
pub(crate) const POLL_THREAD_LOOK: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });
/// The poll thread leaves events to waiting threads for this time, and then checks again.
pub(crate) const WAITER_GRACE: Duration = Duration::from_millis(1);
/// The number of events that are taken at a time.
pub(crate) const EVENTS: usize = 512;
/// The number of rings that a wait of the program's watches; further ones are watched permanently.
pub(crate) const WATCHED_RINGS: usize = 4;
