//! Executes one request that a lane has started, and reports its time to the router.
#![allow(unsafe_code)]

use crate::board::{Board, DirectCompletions, Executor};
use crate::descriptor;
use crate::exec::{self, Mode, Tried};
use crate::request::{Expect, Kind, Request, Route, Started};
use crate::router::facts::{self, Facts};
use crate::router::tuning::PREFETCH_MAX;
use crate::router::{sync_begins, sync_ended};
use crate::sqe::{FILE_POSITION, FSYNC_DATASYNC, Sqe, opcode};
use crate::sys;

/// Executes a started request. Returns the ticks that it took, 0 if it was not timed. A transfer is
/// timed if `timed` is set, or if transfers of its descriptor have lately slept.
#[inline(always)]
pub(super) fn execute(
    board: &Board,
    mut request: Started<'_>,
    by: Executor,
    timed: bool,
    taker: &mut DirectCompletions<'_>,
) -> u64 {
    if request.may_hang && taker.is_bounded() && is_to_be_left(&request, by) {
        try_or_leave(board, request, by, taker);
        return 0;
    }
    if by == Executor::Waiter
        && !timed
        && taker.has_room()
        && let Some(result) = transfer_fast(&request)
    {
        taker.take(board, request, result);
        return 0;
    }
    if is_fsync(&request) {
        let (result, ticks) = sync(board, &mut request, FSYNC_DATASYNC);
        board.finish_for(request, result, by, taker);
        return ticks;
    }
    let kind = request.kind;
    let mode = if request.stream { Mode::Stream } else { Mode::Plain };
    let Sqe { fd, len, off, .. } = request.sqe;
    let write = kind == Kind::Write;
    let transfer = write || kind == Kind::Read;
    // The try of a cold read has shown whether it sleeps. So cold reads are timed only if the
    // caller asks.
    let tried = request.route == Route::Cold;
    let timed = transfer && (timed || !tried && facts::is_suspect(fd, write));
    if transfer && by == Executor::Worker {
        // The data is in the cache of the program's CPU. It is prefetched while the kernel prepares
        // the transfer.
        sys::prefetch_buffer(request.sqe.addr, (len as usize).min(PREFETCH_MAX));
    }
    let quiet = write && by == Executor::Waiter && board.is_to_be_quiet(request.stream);
    let mut call = || {
        if quiet {
            // SAFETY: vectors and paths were copied at submit; buffers are the request's until it
            // completes.
            return sys::without_write_signals(|| unsafe { exec::execute(&mut request, mode) });
        }
        // SAFETY: as above.
        unsafe { exec::execute(&mut request, mode) }
    };
    let (result, ticks) = if timed { time(board, (fd, write, len), call) } else { (call(), 0) };
    if transfer && result == -libc::ESPIPE && !request.stream && off != FILE_POSITION {
        board.reroute(request);
        return 0;
    }
    if request.may_hang && transfer {
        descriptor::prove(fd, write);
    }
    board.finish_for(request, result, by, taker);
    ticks
}

/// Times the call that executes a read or a write of this length. Learns from the time whether
/// reads or writes of the descriptor sleep. Returns the call's result and its ticks.
fn time(
    board: &Board,
    (fd, write, len): (i32, bool, u32),
    call: impl FnOnce() -> i32,
) -> (i32, u64) {
    let sleeps = || sys::use_of_this_thread().map(|thread| thread.sleeps);
    let slept = if facts::is_on_the_brink(fd, write) { sleeps() } else { None };
    let before = sys::ticks();
    let result = call();
    let ticks = sys::ticks().wrapping_sub(before);
    // If the thread has not slept, it may have been preempted: at most a microsecond is learned.
    let rate = board.ticks_per_us();
    let awake = slept.is_some() && sleeps() == slept;
    let ticks = if awake { ticks.min(rate) } else { ticks };
    // ESPIPE: the descriptor is a stream by now, and nothing was transferred.
    if result != -libc::ESPIPE {
        descriptor::learn(fd, write, ticks, rate, u64::from(len));
    }
    (result, ticks)
}

/// Executes a plain write on the thread that submits it, without a request, if the write is
/// expected not to sleep. `None`: the write needs a request.
///
/// # Safety
/// The buffer is the write's during the call.
#[inline]
pub(super) unsafe fn write_now(board: &Board, sqe: &Sqe, timed: bool) -> Option<i32> {
    // At an offset, a stream is refused. At the file position, it would take the bytes, or wait.
    let is_stream = sqe.off == FILE_POSITION && !sys::has_offsets(sqe.fd);
    if board.is_to_be_quiet(false) || is_stream {
        return None;
    }
    // SAFETY: the write has no flags, and `write` gets it with an offset; the rest is the caller's
    // contract.
    let call = || unsafe {
        match (exec::is_vector(sqe), sqe.off) {
            (true, _) => exec::write_vector(sqe),
            (false, FILE_POSITION) => exec::write_at_position(sqe),
            (false, _) => exec::write(sqe),
        }
    };
    let timed = timed || facts::is_suspect(sqe.fd, true);
    let result = if timed { time(board, (sqe.fd, true, sqe.len), call).0 } else { call() };
    (result != -libc::ESPIPE).then_some(result)
}

/// Executes a plain transfer, without checks that only other requests need. `None`: [`execute`] has
/// to execute the request.
#[inline(always)]
pub(super) fn transfer_fast(request: &Request) -> Option<i32> {
    let (sqe, write) = (&request.sqe, request.kind == Kind::Write);
    if !request.fast || facts::is_suspect(sqe.fd, write) {
        return None;
    }
    // SAFETY: `fast`: at an offset, without flags. The buffer is the request's until it completes.
    let result = unsafe { if write { exec::write(sqe) } else { exec::read(sqe) } };
    // ESPIPE: the descriptor is a stream now, and nothing was transferred.
    (result != -libc::ESPIPE).then_some(result)
}

/// Must this request be left to a thread that may wait without end? A worker executes the request
/// itself if it waits for a device only.
#[cold]
fn is_to_be_left(request: &Started<'_>, by: Executor) -> bool {
    by == Executor::Waiter || !Facts::noted(request.sqe.fd).is_some_and(Facts::is_local)
}

/// Is this an fsync that can be executed?
pub(super) fn is_fsync(request: &Request) -> bool {
    let fsync = request.kind == Kind::Sync && request.sqe.opcode == opcode::FSYNC;
    fsync && request.refused == 0
}

/// Executes an fsync with those of its flags that `flags` contains. Returns its result, and the
/// ticks that it took.
pub(super) fn sync(board: &Board, request: &mut Request, flags: u32) -> (i32, u64) {
    request.sqe.op_flags &= flags;
    let fd = request.sqe.fd;
    sync_begins();
    let begin = sys::ticks();
    // SAFETY: an fsync has no buffers.
    let result = unsafe { exec::execute(request, Mode::Plain) };
    let ticks = sys::ticks().wrapping_sub(begin);
    descriptor::learn_sync(fd, ticks, board.ticks_per_us());
    sync_ended();
    // Asks whether the file system is local, if that is not known yet.
    descriptor::prove(fd, true);
    (result, ticks)
}

/// The calling thread must not wait without end, and has started a request that a file server may
/// hold up. Executes a read that is in memory, and sends any other request to the worker lane.
#[cold]
fn try_or_leave(
    board: &Board,
    request: Started<'_>,
    by: Executor,
    taker: &mut DirectCompletions<'_>,
) {
    if request.kind == Kind::Read {
        let fd = request.sqe.fd;
        // SAFETY: the buffers are the request's until its completion.
        match unsafe { exec::try_request(&request) } {
            Tried::Done(result) => {
                facts::prove_by_try(fd);
                board.finish_for(request, result, by, taker);
                return;
            }
            Tried::WouldWait => {
                facts::learn_tried(fd, false);
                request.slot().expect(Expect::Perhaps);
            }
            Tried::Failed | Tried::Impossible => {}
        }
    }
    board.forward(request, Route::Worker, by);
}
