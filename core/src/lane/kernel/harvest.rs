//! Completions of the kernel lane: who collects them, and how they end.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::KernelLane;
use super::backend::{Backend, Harvested};
use super::batch::transfer_len;
use crate::board::{Board, DirectCompletions, Executor, without_taker};
use crate::queue::{SleepEnd, Sleeper};
use crate::request::Route;
use crate::router::tuning::{TAKEN_MAX, TICK};
use crate::sys;
use crate::word::reaper::Reaping;

/// Who collects completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The program in its submit, or when it reaps.
    Program,
    /// A thread of the engine, or a thread of the program that waits.
    Another,
}

impl KernelLane {
    /// The context has made this eventfd for its program: requests name it from now on.
    pub(crate) fn is_watched_by_program(&self, eventfd: RawFd) {
        if self.program.fd() != eventfd {
            // Requests in flight may name another eventfd, or none.
            self.others.store(self.in_flight() > 0, Ordering::Relaxed);
            self.program.set(eventfd);
        }
    }

    /// Counts the program's eventfd up, so that the program reaps. False: the kernel counts no
    /// eventfd up for the program.
    pub(crate) fn call_program(&self) -> bool {
        let is_there = self.counted_up() >= 0;
        if is_there {
            self.program.count_up();
        }
        is_there
    }

    /// The program's eventfd is about to be closed: no thread of the engine counts it up any more.
    /// False: one is doing so, and makes no progress.
    pub(crate) fn forget_program(&self) -> bool {
        self.program.end()
    }

    /// Does the program collect all requests of the kernel? It does if each of them names the
    /// eventfd that the kernel counts up.
    pub(crate) fn is_collected_by_program(&self) -> bool {
        self.counted_up() >= 0 && !self.others.load(Ordering::Relaxed)
    }

    /// The eventfd that the kernel counts up for the program; -1 for none.
    #[inline]
    pub(crate) fn counted_up(&self) -> RawFd {
        let program = self.program.fd();
        let backend = || self.backend.get().and_then(Option::as_deref);
        if program >= 0 && backend().is_some_and(Backend::counts_up) { program } else { -1 }
    }

    pub(super) fn try_reap(&self) -> Option<(Reaping<'_>, &dyn Backend)> {
        let backend = self.backend.get()?.as_deref()?;
        Some((self.reaper.take()?, backend))
    }

    /// Collects completions. `taker` takes them while it has room. True if there were any.
    pub(crate) fn harvest(&self, board: &Board, taker: &mut DirectCompletions<'_>) -> bool {
        self.harvest_as(By::Another, board, taker)
    }

    /// As [`KernelLane::harvest`], by the submitting thread.
    pub(crate) fn harvest_at_submit(&self, board: &Board) -> bool {
        without_taker(|taker| self.harvest_as(By::Program, board, taker))
    }

    fn harvest_as(&self, by: By, board: &Board, taker: &mut DirectCompletions<'_>) -> bool {
        if self.in_flight.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.try_reap().is_some_and(|(reaping, backend)| {
            self.harvest_with(reaping, backend, (by, board), taker)
        })
    }

    pub(super) fn harvest_with(
        &self,
        reaping: Reaping<'_>,
        backend: &dyn Backend,
        (by, board): (By, &Board),
        taker: &mut DirectCompletions<'_>,
    ) -> bool {
        let mut any = false;
        loop {
            let mut done = [(0, 0); TAKEN_MAX as usize];
            let n = backend.harvest(&mut done);
            self.finish((by, board), &mut done[..n], taker);
            any |= n > 0;
            if n < TAKEN_MAX as usize {
                break;
            }
        }
        drop(reaping);
        self.pass_on_the_right(board);
        any
    }

    fn finish(
        &self,
        (by, board): (By, &Board),
        done: &mut [Harvested],
        taker: &mut DirectCompletions<'_>,
    ) {
        if done.is_empty() {
            return;
        }
        // One of two increments at the same time may be lost: the value has changed nevertheless.
        let collected = self.collected.load(Ordering::Relaxed);
        self.collected.store(collected.wrapping_add(1), Ordering::Relaxed);
        self.in_flight.fetch_sub(done.len(), Ordering::SeqCst);
        let mut left = 0;
        let partly = self.did_at_once.load(Ordering::Relaxed);
        // The kernel has counted the program's eventfd up. When the program collects, no second
        // count is needed. Any other collector counts the eventfd up again, because the program may
        // have read the first count already.
        let counted_up = if by == By::Program { self.counted_up() } else { -1 };
        board.together(|| {
            for at in 0..done.len() {
                let (slot, result) = done[at];
                // If the kernel has not executed the request, or only a part, a thread executes it
                // or reports the error.
                // SAFETY: the kernel has completed the request, and reports each one once.
                let mut request = unsafe { board.in_hand(slot) };
                let short = || partly && result >= 0 && (result as u64) < transfer_len(&request);
                let again = (is_retried(result) || short()) && board.slot(slot).take_back();
                if again && board.is_closed() {
                    board.end_started(request);
                    continue;
                } else if again {
                    board.forward(request, Route::Pool, Executor::Kernel);
                    continue;
                }
                if request.notify >= 0 && request.notify == counted_up {
                    request.notify = -1;
                    request.slot().was_told();
                }
                if let Some(request) = board.offer(request, result, Executor::Kernel, taker) {
                    done[left] = (request.into_index(), result);
                    left += 1;
                }
            }
        });
        if left > 0 {
            board.finish_together(&done[..left], Executor::Kernel);
        }
    }

    /// Collects completions for a thread that is notified of them only once. If another thread has
    /// the right to collect, that thread sends the notification again when it gives up the right.
    /// True if completions were collected.
    pub(crate) fn harvest_when_told(&self, board: &Board) -> bool {
        self.in_flight() > 0 && self.harvest_or_be_told(By::Another, board)
    }

    /// As [`KernelLane::harvest_when_told`], for the program, which the kernel signals. This does
    /// not check `in_flight`: another thread may have collected the last request, and not posted it
    /// yet.
    pub(crate) fn harvest_for_program(&self, board: &Board) -> bool {
        self.harvest_or_be_told(By::Program, board)
    }

    fn harvest_or_be_told(&self, by: By, board: &Board) -> bool {
        if let Some(backend) = self.backend.get().and_then(Option::as_deref)
            && let Some(reaping) = self.reaper.take_or_be_missed()
        {
            return without_taker(|taker| self.harvest_with(reaping, backend, (by, board), taker));
        }
        false
    }

    pub(super) fn pass_on_the_right(&self, board: &Board) {
        if self.in_flight() > 0 || self.queued() > 0 || self.counted_up() >= 0 {
            self.reaper.pass_on(board.completions());
            // An event loop or the poller may have been signalled while this thread collected. It
            // is signalled once more.
            if self.reaper.was_wanted()
                && !self.call_program()
                && let Some(events) = self.events()
            {
                sys::eventfd_add(events, 1);
            }
        }
    }

    /// Sleeps in the kernel's wait, if requests are in flight and no other thread does. `None`: the
    /// caller sleeps elsewhere.
    pub(crate) fn sleep(
        &self,
        board: &Board,
        sleeper: &Sleeper<'_>,
        timeout: Option<Duration>,
        mask: Option<u64>,
        taker: &mut DirectCompletions<'_>,
    ) -> Option<SleepEnd> {
        let in_flight = self.in_flight();
        if in_flight == 0 {
            return None;
        }
        let (mut reaping, backend) = self.try_reap()?;
        let fd = backend.wake_fd();
        // Several completions are awaited only if the kernel has all requests of the context.
        let alone = board.free_slots().held() == in_flight;
        let min = if alone { (sleeper.need as usize).clamp(1, in_flight) } else { 1 };
        let mut done = [(0, 0); TAKEN_MAX as usize];
        let mut n = 0;
        let end = board.completions().sleep_elsewhere(sleeper, fd, || {
            let min = min.min(TAKEN_MAX as usize);
            // A wake-up counts as one completion only, and fewer may come than were in flight
            // (refused at submit). So a thread that awaits several checks again after a tick. So
            // does a thread that cannot be woken.
            let looks_again = min > 1 || fd < 0;
            let shorter = timeout.unwrap_or(TICK).min(TICK);
            let timeout = if looks_again { Some(shorter) } else { timeout };
            let (harvested, end) = reaping.asleep(|| backend.sleep(min, timeout, mask, &mut done));
            n = harvested;
            if n == 0 && reaping.is_held() {
                n = backend.harvest(&mut done);
            }
            if n > 0 && end != SleepEnd::Interrupted { SleepEnd::Again } else { end }
        });
        drop(reaping);
        self.finish((By::Another, board), &mut done[..n], taker);
        self.pass_on_the_right(board);
        Some(end)
    }
}

/// Is this an answer that says nothing about the request? io_uring cancels requests when the
/// submitting thread ends, or when it can make no thread of its own. It also answers EFAULT to a
/// read whose page arrives after that thread has ended.
fn is_retried(result: i32) -> bool {
    use libc::{EAGAIN, ECANCELED, EFAULT, EINTR, ENOSYS, EOPNOTSUPP, ESPIPE};
    matches!(-result, EAGAIN | EOPNOTSUPP | ENOSYS | EINTR | ESPIPE | ECANCELED | EFAULT)
}
