//! Policy: where a request is executed (its lane), which thread is called, and what is learned from
//! its time. It starts no thread, makes no system call, and does not touch a request's buffers. The
//! kernel is asked through [`Ask`], which also has the clock.
#![forbid(unsafe_code)]

pub(crate) mod facts;
pub(crate) mod spare;
pub(crate) mod spin;
pub(crate) mod tuning;
pub(crate) mod waiters;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use self::facts::{Facts, FileKind, Fresh};
use self::spare::{Beside, SPARE_CPUS};
use self::spin::Spin;
use self::tuning::{COMING_BESIDE_SYNCS, COMING_MAX, LARGE, TIMED_EVERY, TRIED_MAX};
use self::waiters::Waiters;
use crate::request::{Expect, Kind, Request, Route};
use crate::sqe::{FILE_POSITION, Sqe, opcode};

/// What the router asks the kernel, if hints must not decide.
pub(crate) trait Ask {
    /// The hints about a descriptor, looked up if there are none.
    fn known(&mut self, fd: i32) -> Result<Facts, i32>;

    /// The kernel's current answer about a descriptor.
    fn fresh(&mut self, fd: i32) -> Result<Fresh, i32>;

    /// May poll(2) itself wait for a file's server?
    fn poll_may_wait(&self, fd: i32) -> bool;

    /// Does a request wait for this stream? Otherwise it fails at once with EAGAIN.
    fn waits_for(&self, stream: Fresh) -> bool {
        !stream.is_nonblocking()
    }

    /// Is O_APPEND set now?
    fn appends(&mut self, fd: i32) -> bool;

    /// Has the file offsets now? False if the descriptor is not open.
    fn has_offsets(&mut self, fd: i32) -> bool;

    /// Is O_DIRECT set now, and is the descriptor a file with offsets, not a pipe?
    fn is_direct_file(&mut self, fd: i32) -> bool;

    /// A clock, in ticks.
    fn now(&self) -> u64;
}

/// The requests that the kernel lane takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KernelScope {
    /// No requests.
    Nothing,
    /// Direct reads and writes, for which the kernel is truly asynchronous.
    Direct,
    /// Direct transfers and small reads: an event loop hands them to a ring, and collects their
    /// completions.
    DirectAndReads,
    /// All reads and writes of files.
    Everything,
}

/// What is learned about one context.
#[derive(Debug)]
pub(crate) struct Router {
    pub(crate) waiters: Waiters,
    /// How long a worker spins for more work before it gives back the baton, the right to execute
    /// the inline requests.
    pub(crate) holder_spin: Spin,
    /// Workers that execute beside the program.
    pub(crate) beside: Beside,
    /// The approximate number of writes that were executed at their submits.
    at_submits: AtomicU64,
}

impl Router {
    /// `beside`: the maximum number of workers of the process that execute beside the program.
    pub(crate) fn new(beside: usize) -> Self {
        Self {
            waiters: Waiters::new(),
            holder_spin: Spin::new(),
            beside: Beside::new(beside),
            at_submits: AtomicU64::new(0),
        }
    }

    /// Counts a write that its submit executes. Is it one that is timed?
    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
        // Two threads may get the same number: nothing depends on it.
        let number = self.at_submits.load(Ordering::Relaxed).wrapping_add(1);
        self.at_submits.store(number, Ordering::Relaxed);
        number.is_multiple_of(TIMED_EVERY)
    }
}

/// Fsyncs of this process that are under way.
static SYNCING: AtomicUsize = AtomicUsize::new(0);

/// Counts an fsync that begins.
pub(crate) fn sync_begins() {
    SYNCING.fetch_add(1, Ordering::Relaxed);
}

/// Ends what [`sync_begins`] has begun: the fsync no longer counts.
pub(crate) fn sync_ended() {
    SYNCING.fetch_sub(1, Ordering::Relaxed);
}

/// Resets the counts of fsyncs and workers in the child of a fork, where the parent's threads do
/// not exist.
pub(crate) fn forget_threads() {
    SYNCING.store(0, Ordering::Relaxed);
    SPARE_CPUS.forget_workers();
}

/// The number of cold reads that may be on their way from the device now.
#[inline]
pub(crate) fn coming_max() -> usize {
    if SYNCING.load(Ordering::Relaxed) > 0 { COMING_BESIDE_SYNCS } else { COMING_MAX }
}

/// The thread to call for a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// No thread is called: one is at work already, or a thread of the program will come. The
    /// watchdog checks that.
    Nobody,
    /// A thread that sleeps for completions.
    Waiter,
    /// A worker, unless enough are working.
    Worker,
    /// A worker, however many are working.
    WorkerNow,
    /// A worker that takes the baton.
    Holder,
    /// A worker that may wait without end, however many are working.
    Patient,
    /// A worker that may wait without end, and takes the baton.
    PatientHolder,
    /// A worker that hands queued requests over to the kernel, or the event loop that drives the
    /// context.
    HandOver,
    /// Engine threads, because the event loop that drives the context has not come in time.
    InPlaceOfReactor,
}

/// What [`thread_to_call`] needs to know about a lane after requests were pushed to it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Situation {
    /// A thread of the program is expected to come and execute the requests.
    pub(crate) waiters_come: bool,
    /// A thread sleeps for completions.
    pub(crate) sleeps: bool,
    /// A thread has the baton, or the right to hand over.
    pub(crate) held: bool,
    /// The request is the only one of its context, and the expected waiter would sleep for it
    /// anyway.
    pub(crate) alone: bool,
    /// Of the copy lane: the queued requests, and how many of them need a further worker. Else 0.
    pub(crate) queued: usize,
    pub(crate) room: usize,
}

/// Chooses the thread to call after requests were pushed to a lane.
#[inline]
pub(crate) fn thread_to_call(route: Route, now: &Situation) -> Call {
    let waiter = if now.sleeps { Call::Waiter } else { Call::Nobody };
    match route {
        Route::Inline | Route::Ordered | Route::Kernel if now.held => Call::Nobody,
        Route::Inline | Route::Ordered if !now.waiters_come => Call::Holder,
        Route::Kernel if !now.waiters_come => Call::HandOver,
        Route::Inline | Route::Ordered | Route::Kernel => waiter,
        Route::Cold if !now.waiters_come => Call::Worker,
        Route::Cold => waiter,
        // The waiter takes one request, and workers take the others.
        Route::Copy if now.waiters_come && now.queued == 1 && !now.sleeps => Call::Nobody,
        Route::Copy if now.room > 0 => Call::Worker,
        Route::Copy => waiter,
        Route::Pool | Route::Sync if now.waiters_come && now.alone && !now.sleeps => Call::Nobody,
        Route::Pool | Route::Sync => Call::Worker,
        Route::Worker => Call::Patient,
        Route::Stream | Route::Null => Call::Nobody,
    }
}

/// The lane of a request, and whether its descriptor is a stream (the offset is ignored).
#[inline(always)]
pub(crate) fn route(
    sqe: &Sqe,
    kind: Kind,
    scope: KernelScope,
    ask: &mut impl Ask,
) -> (Route, bool) {
    if kind == Kind::Read || kind == Kind::Write {
        return transfer(sqe, kind == Kind::Write, scope, ask);
    }
    no_transfer(sqe, kind, ask)
}

#[inline(never)]
fn no_transfer(sqe: &Sqe, kind: Kind, ask: &impl Ask) -> (Route, bool) {
    let route = match kind {
        Kind::Sync => Route::Sync,
        // A worker calls poll(2) for this request: in the poller's thread, all streams of the
        // process would wait for that call, too.
        Kind::Poll if sqe.fd >= 0 && ask.poll_may_wait(sqe.fd) => Route::Worker,
        // A negative descriptor is not polled: the executor completes the request with EBADF.
        Kind::Poll if sqe.fd >= 0 => Route::Stream,
        Kind::Other => Route::Worker,
        _ => Route::Inline,
    };
    (route, false)
}

#[inline(always)]
fn transfer(sqe: &Sqe, write: bool, scope: KernelScope, ask: &mut impl Ask) -> (Route, bool) {
    let Ok(facts) = ask.known(sqe.fd) else {
        return (Route::Inline, false);
    };
    // Flags, the file position, or another negative offset, which only a stream ignores.
    let special = sqe.op_flags != 0 || (sqe.off as i64) < 0;
    if !facts.seems_seekable() || special {
        return uncommon(sqe, write, scope, ask);
    }
    // A hint is enough here. If the number names another file by now, the inline lane keeps the
    // order of writes, and asks the kernel before it breaks that order.
    if write && facts.seems_to_append() {
        return (Route::Ordered, false);
    }
    let driven = || scope == KernelScope::DirectAndReads && is_driven(sqe, write, facts);
    if scope == KernelScope::Everything || facts.sleeps(write) || driven() {
        return sleeping(sqe, write, facts, scope, ask);
    }
    // Only reads are worth it: writes of one file wait for its lock, whatever the number of
    // threads.
    let copy = sqe.len >= LARGE && sqe.opcode == opcode::READ && !facts.is_direct();
    (if copy { Route::Copy } else { Route::Inline }, false)
}

/// May the submitting thread hand this read (or write) to the kernel, without waiting? For a read,
/// remembered facts decide. If they are out of date, the read still gets its answer, or EAGAIN. A
/// transfer for which the kernel would have to wait also gets EAGAIN. For a write the kernel is
/// asked now: appends have to keep their order.
#[inline]
pub(crate) fn goes_at_once(sqe: &Sqe, write: bool, ask: &mut impl Ask) -> bool {
    let special = sqe.op_flags != 0 || (sqe.off as i64) < 0;
    let Some(facts) = Facts::noted(sqe.fd).filter(|_| !special) else { return false };
    facts.seems_seekable()
        && facts.is_direct()
        && facts.is_local()
        && facts.sleeps(write)
        && !(write && (facts.seems_to_append() || ask.appends(sqe.fd)))
        && (!write || ask.is_direct_file(sqe.fd))
}

/// Is this a read that an event loop hands to its ring, because it may sleep? Most such reads were
/// tried before, and are not in memory.
#[inline]
fn is_driven(sqe: &Sqe, write: bool, facts: Facts) -> bool {
    !write && sqe.opcode == opcode::READ && sqe.len <= TRIED_MAX && facts.is_local()
}

/// The lane of a transfer that is expected to sleep, or that the kernel lane may take.
#[inline(never)]
fn sleeping(
    sqe: &Sqe,
    write: bool,
    facts: Facts,
    scope: KernelScope,
    ask: &mut impl Ask,
) -> (Route, bool) {
    // The lanes chosen below do not keep the order of requests, which appends need. And for a file
    // without offsets, the kernel would wait inside its call. Hints are not enough for these
    // decisions.
    if write && ask.appends(sqe.fd) {
        return (Route::Ordered, false);
    }
    let kernel = match scope {
        KernelScope::Everything if !ask.has_offsets(sqe.fd) => {
            return uncommon(sqe, write, KernelScope::Nothing, ask);
        }
        // A server that does not answer would hold up the call that hands the request over, and all
        // later requests of the context.
        _ if !facts.is_local() => return (Route::Worker, false),
        KernelScope::Nothing => false,
        KernelScope::Everything => true,
        KernelScope::DirectAndReads if !facts.is_direct() => {
            is_driven(sqe, write, facts)
                && !facts.submit_blocks(write, ask.now())
                && ask.has_offsets(sqe.fd)
        }
        _ if !facts.is_direct() || facts.submit_blocks(write, ask.now()) => false,
        _ => ask.is_direct_file(sqe.fd),
    };
    // Large reads are worth a thread each.
    let cold = !write && !facts.is_direct() && sqe.opcode == opcode::READ && sqe.len < LARGE;
    let route = match () {
        () if kernel => Route::Kernel,
        () if cold => Route::Cold,
        () => Route::Pool,
    };
    (route, false)
}

/// The lane of an uncommon transfer. One system call more is cheap here, and hints must not decide
/// whether the offset and the order matter.
#[inline(never)]
pub(crate) fn uncommon(
    sqe: &Sqe,
    write: bool,
    scope: KernelScope,
    ask: &mut impl Ask,
) -> (Route, bool) {
    let Ok(fresh) = ask.fresh(sqe.fd) else {
        return (Route::Inline, false);
    };
    let flag = |flag: i32| sqe.op_flags & flag as u32 != 0;
    if fresh.kind() == FileKind::Stream {
        // If the call fails at once, the request need not wait for the descriptor.
        let possible = fresh.is_open_for(write);
        let waits = possible && sqe.len > 0 && !flag(libc::RWF_NOWAIT);
        let waits = waits && ask.waits_for(fresh);
        return (if waits { Route::Stream } else { Route::Inline }, true);
    }
    // Appends, and transfers at the file position, take place in the order of submission.
    let ordered = sqe.off == FILE_POSITION || write && (fresh.appends() || flag(libc::RWF_APPEND));
    let waits = fresh.facts().sleeps(write) || flag(libc::RWF_DSYNC) || flag(libc::RWF_SYNC);
    let direct = fresh.facts().is_direct();
    // A direct transfer waits for its device anyway.
    let waits = waits && (direct || !flag(libc::RWF_NOWAIT));
    let local = fresh.facts().is_local();
    let route = match () {
        () if ordered => Route::Ordered,
        () if waits && direct && local && scope != KernelScope::Nothing => Route::Kernel,
        () if waits && !local => Route::Worker,
        () if waits => Route::Pool,
        () => Route::Inline,
    };
    (route, false)
}

/// The lane of a usual read (or write) of a file by what is remembered of it, and the reason in
/// words: the same as [`route`] says.
pub(crate) fn explain(facts: Facts, write: bool, scope: KernelScope) -> (Route, &'static str) {
    let direct = facts.is_direct();
    let because = match () {
        () if !facts.seems_seekable() && !facts.seems_open_for(write) => {
            return (Route::Inline, "it is not open for that, which the call says at once");
        }
        () if !facts.seems_seekable() && facts.seems_nonblocking() => {
            return (Route::Inline, "O_NONBLOCK is set, so the call does not sleep");
        }
        () if !facts.seems_seekable() => {
            return (Route::Stream, "a pipe, a socket or a terminal is waited for with poll(2)");
        }
        () if write && facts.seems_to_append() => {
            return (Route::Ordered, "appends take place in the order of submission");
        }
        () if scope == KernelScope::DirectAndReads && !write && !direct && facts.is_local() => {
            return (Route::Kernel, "an event loop hands small reads to its ring");
        }
        () if scope != KernelScope::Everything && !facts.sleeps(write) => {
            return (Route::Inline, "calls on it are not known to sleep");
        }
        () if scope == KernelScope::Everything && facts.is_local() => {
            return (Route::Kernel, "the engine hands over all reads and writes of files");
        }
        () if !facts.is_local() => {
            return (Route::Worker, "its file system is not known to be a local one");
        }
        () if !direct && !write => {
            return (Route::Cold, "reads of it have waited for the device");
        }
        () if !direct => "writes to it have waited for the device",
        () if scope == KernelScope::Nothing => "no interface of the kernel takes direct I/O here",
        () if facts.submit_blocks(write, 1) => "handing it to the kernel has blocked",
        () => return (Route::Kernel, "the kernel is asynchronous for direct I/O"),
    };
    (Route::Pool, because)
}

/// Must a thread with a deadline not execute this request, because a file server may hold it up?
/// And what may a poll expect of it? `kernel_executes`: the kernel executes cached requests inside
/// the call that hands them over.
#[inline]
pub(crate) fn patience(
    request: &Request,
    route: Route,
    stream: bool,
    kernel_executes: bool,
) -> (bool, Expect) {
    let fd = request.sqe.fd;
    let noted = || Facts::noted(fd);
    let write = request.kind == Kind::Write;
    let soon = |soon| (false, if soon { Expect::Soon } else { Expect::Nothing });
    let harmless = match (route, request.kind) {
        _ if stream || request.refused != 0 => true,
        (Route::Inline | Route::Ordered | Route::Copy, Kind::Read | Kind::Write) => {
            noted().is_some_and(|facts| facts.is_trusted(write))
        }
        (Route::Inline, Kind::Quick) => {
            request.sqe.opcode == opcode::NOP || noted().is_some_and(Facts::is_local)
        }
        (Route::Inline, _) => true,
        // Earlier writes may have been slow only because a preempted thread had the file's lock.
        // With the kernel's AIO, such a write has ended when io_submit(2) returns. So a poll here
        // waits for the write's end.
        (Route::Pool, Kind::Write) if request.sqe.op_flags == 0 => {
            return soon(noted().is_some_and(|facts| !facts.is_direct()));
        }
        (Route::Kernel, _) => {
            return soon(kernel_executes && noted().is_some_and(|facts| !facts.is_direct()));
        }
        // With `true`, the executing thread also asks, after the transfer, whether the file system
        // is local, if that is not known yet.
        (Route::Worker, Kind::Read | Kind::Write) => return (true, Expect::Nothing),
        _ => return (false, Expect::Nothing),
    };
    match route {
        Route::Inline | Route::Ordered | Route::Copy if harmless => (false, Expect::Soon),
        // No server can hold the request up, but no read of this local file was seen yet.
        Route::Inline | Route::Ordered | Route::Copy if noted().is_some_and(Facts::is_local) => {
            (true, Expect::Soon)
        }
        Route::Inline | Route::Ordered | Route::Copy => (true, Expect::Perhaps),
        _ => (false, Expect::Nothing),
    }
}
