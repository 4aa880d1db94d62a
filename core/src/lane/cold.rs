//! The cold lane: cached reads of files whose pages are usually not in memory. Each read is tried
//! without waiting (preadv2(2), `RWF_NOWAIT`). If a page is missing, the try has the device begin
//! to read it: the page is on its way. One worker then executes these reads, one after the other.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering, fence};

use once_cell::race::OnceBox;

use super::{Help, Lane, Progress, Stuck, Withdraw, run, withdraw_from};
use crate::board::{Board, DirectCompletions, Executor, without_taker};
use crate::descriptor;
use crate::exec::{self, Tried};
use crate::fallback_alloc::has_memory;
use crate::queue::IndexRing;
use crate::request::{Queued, Route, Started};
use crate::router::tuning::{COMING_MAX, FAVOURS, SLEPT_DIRECT_US, TRY_SLOW_US};
use crate::router::{Call, coming_max, facts};
use crate::sqe::Sqe;
use crate::sys;
use crate::word::readers::Readers;

/// The cold reads of a context. The queues are allocated at the first cold read, because most
/// contexts have none.
#[derive(Debug)]
pub(crate) struct ColdLane {
    slots: usize,
    queues: OnceBox<Queues>,
}

#[derive(Debug)]
struct Queues {
    /// Reads that were not tried yet.
    untried: IndexRing,
    /// Set: a worker has to try the untried reads, even if waiters are expected.
    for_workers: AtomicBool,
    /// Reads that were tried, and whose pages are on their way from the device.
    coming: IndexRing,
    readers: Readers,
}

/// The result of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The read was executed and completed.
    Present,
    Coming,
    /// The read was cancelled, or was sent to the pool lane because it cannot be tried.
    Gone,
}

impl Queues {
    fn new(slots: usize) -> Self {
        Self {
            untried: IndexRing::new(slots),
            for_workers: AtomicBool::new(false),
            coming: IndexRing::new(slots),
            readers: Readers::new(),
        }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.untried.is_empty() && self.coming.is_empty()
    }

    /// Is there a read to try, and room for it if its page is missing?
    #[inline]
    fn may_try(&self) -> bool {
        !self.untried.is_empty() && self.coming.len() < coming_max()
    }

    /// Leaves the untried reads to a worker. The reads were pushed before this call, so a thread
    /// that sees the flag also sees the reads.
    fn leave_to_workers(&self) {
        self.for_workers.store(true, Ordering::Release);
    }

    /// Should another worker come and execute reads whose pages are on their way?
    fn wants_reader(&self) -> bool {
        !self.coming.is_empty() && self.readers.are_too_few()
    }

    /// Should a worker try reads?
    fn is_to_try(&self, waiters_come: bool) -> bool {
        self.may_try() && (!waiters_come || self.for_workers.load(Ordering::Relaxed))
    }
}

/// May this waiter, which has `taken` some completions, execute a read that sleeps until its page
/// has come? Yes if it needs every outstanding request anyway, or if no worker can be made.
fn may_read(board: &Board, help: &Help, taken: u32) -> bool {
    let missing = help.min.saturating_sub(taken);
    let in_order = help.unbounded && missing > 0 && board.must_wait_for_all(missing);
    in_order || help.helpless
}

impl ColdLane {
    pub(super) fn new(slots: usize) -> Self {
        Self { slots, queues: OnceBox::new() }
    }

    /// Are there queues, or can they be made?
    #[inline]
    pub(crate) fn is_possible(&self) -> bool {
        self.queues.get().is_some() || self.make()
    }

    #[cold]
    fn make(&self) -> bool {
        let bytes = size_of::<Queues>() + 2 * self.slots * size_of::<u64>();
        has_memory(bytes) && self.queues.set(Box::new(Queues::new(self.slots))).is_ok()
            || self.queues.get().is_some()
    }

    /// Is the lane empty? It is most of the time.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.get().is_none_or(Queues::is_empty)
    }

    /// Queues cold reads.
    pub(crate) fn push(&self, slots: &[u32], waiters_come: bool) {
        let queues = self.queues.get().expect("made when the route was chosen");
        queues.untried.push(slots);
        if !waiters_come || queues.coming.len() >= coming_max() {
            // No waiter is expected, or too many pages are on their way: a worker tries these reads
            // later.
            queues.leave_to_workers();
        }
    }

    /// A waiter tries queued reads, so that the device has work. `before`: the number of
    /// completions that the waiter had taken when it began to help. `helped`: it has executed
    /// requests of other lanes. False: no read has completed.
    #[inline(never)]
    pub(crate) fn help(
        &self,
        board: &Board,
        help: &Help,
        helped: bool,
        (before, taker): (u32, &mut DirectCompletions<'_>),
    ) -> bool {
        let Some(queues) = self.queues.get().filter(|queues| !queues.is_empty()) else {
            return false;
        };
        if help.unbounded
            && !helped
            && board.must_wait_for_all(1)
            && let Some(request) = board.pop(&queues.untried)
        {
            // The waiter would sleep for this read anyway.
            if let Some(request) = board.start(request) {
                run::execute(board, request, Executor::Waiter, true, taker);
            }
            return true;
        }
        let mut tried = 0;
        let present = try_some(queues, board, (Executor::Waiter, true), taker, |taker| {
            tried += 1;
            let come = taker.taken() - before + board.completions().available();
            let favour = tried >= FAVOURS && help.min > 0 && come >= help.min;
            favour || come >= help.max
        });
        taker.give_back(board);
        if self.for_workers(help.waiters_come) > 0 && !may_read(board, help, taker.taken() - before)
        {
            board.call(Call::Worker);
        }
        present > 0
    }

    /// A waiter executes the oldest read whose page is on its way, because it would sleep for that
    /// read anyway. If no worker can be made, the waiter also executes an untried read. False:
    /// there is no such read, or the waiter may not execute it.
    pub(crate) fn help_read(
        &self,
        board: &Board,
        help: &Help,
        taker: &mut DirectCompletions<'_>,
    ) -> bool {
        let Some(queues) = self.queues.get().filter(|queues| !queues.is_empty()) else {
            return false;
        };
        if !may_read(board, help, 0) {
            return false;
        }
        let untried = || if help.helpless { board.pop(&queues.untried) } else { None };
        let Some(request) = board.pop(&queues.coming).or_else(untried) else { return false };
        if let Some(request) = board.start(request) {
            run::execute(board, request, Executor::Waiter, false, taker);
        }
        true
    }

    /// A worker tries queued reads, unless waiters do. It executes reads whose pages are on their
    /// way, unless other workers do. False: there was nothing for the worker to do.
    pub(crate) fn work(
        &self,
        board: &Board,
        waiters_come: impl Fn() -> bool,
        others_wait: impl Fn() -> bool,
    ) -> bool {
        let Some(queues) = self.queues.get() else { return false };
        let tried = work_at_untried(queues, board, waiters_come());
        if queues.coming.is_empty() || !queues.readers.enter() {
            return tried;
        }
        for _ in 0..COMING_MAX {
            let Some(request) = board.pop(&queues.coming) else { break };
            if let Some(request) = board.start(request) {
                without_taker(|taker| run::execute(board, request, Executor::Pool, false, taker));
            }
            if queues.coming.len() < coming_max() / 2 {
                work_at_untried(queues, board, waiters_come());
            }
            if others_wait() {
                break;
            }
        }
        queues.readers.leave();
        if others_wait() && queues.wants_reader() {
            // This worker goes on to other lanes, so another one is called for the missing pages.
            board.call(Call::Worker);
        }
        true
    }

    /// Takes a read for the submitter, if no other thread can execute it.
    pub(crate) fn pop_for_submitter<'a>(&self, board: &'a Board) -> Option<Started<'a>> {
        let queues = self.queues.get()?;
        board.pop_started(&queues.untried).or_else(|| board.pop_started(&queues.coming))
    }

    /// A submitter tries queued reads, if its program does not come to wait. So a read of pages in
    /// memory needs no other thread. For missing pages the device has work at once, and a worker is
    /// called.
    pub(crate) fn try_at_submit(&self, board: &Board) {
        let Some(queues) = self.queues.get() else { return };
        without_taker(|taker| try_some(queues, board, (Executor::Waiter, false), taker, |_| false));
        // Either this thread sees a worker that leaves, or the worker sees the reads.
        fence(Ordering::SeqCst);
        if self.for_workers(false) > 0 {
            board.call(Call::Worker);
        }
    }

    /// The number of workers that should come: one to try reads, and one to read missing pages.
    pub(crate) fn for_workers(&self, waiters_come: bool) -> usize {
        self.queues.get().map_or(0, |queues| {
            usize::from(queues.is_to_try(waiters_come)) + usize::from(queues.wants_reader())
        })
    }

    /// Is there a read that a waiter can try before it sleeps? `helpless`: no worker can be made,
    /// so the waiter also executes reads whose pages are missing.
    #[inline]
    pub(crate) fn has_help_to_offer(&self, helpless: bool) -> bool {
        self.queues.get().is_some_and(|queues| queues.may_try() || helpless && !queues.is_empty())
    }
}

fn work_at_untried(queues: &Queues, board: &Board, waiters_come: bool) -> bool {
    if !queues.is_to_try(waiters_come) {
        return false;
    }
    // Acquire: this thread sees the reads that were pushed before the flag was set.
    queues.for_workers.swap(false, Ordering::AcqRel);
    without_taker(|taker| try_some(queues, board, (Executor::Pool, true), taker, |_| false));
    true
}

/// Tries queued reads. Stops if there are none, if too many pages are on their way, if a try takes
/// long, or if `enough` returns true. Returns the number of reads that have completed. `how`: by
/// whom, and whether that thread may wait for the device's queue (posix_fadvise(2)).
fn try_some(
    queues: &Queues,
    board: &Board,
    how: (Executor, bool),
    taker: &mut DirectCompletions<'_>,
    mut enough: impl FnMut(&DirectCompletions<'_>) -> bool,
) -> u32 {
    let (mut present, mut some_coming) = (0, false);
    loop {
        if queues.coming.len() >= coming_max() && !queues.untried.is_empty() {
            // Workers try the other reads when some of the pages have arrived.
            queues.leave_to_workers();
            break;
        }
        let Some(request) = board.pop(&queues.untried) else { break };
        let (outcome, ticks) = try_cold(queues, board, request, how, taker);
        match outcome {
            Outcome::Present => present += 1,
            Outcome::Coming => some_coming = true,
            Outcome::Gone => {}
        }
        if ticks > TRY_SLOW_US * board.ticks_per_us() {
            queues.leave_to_workers();
            break;
        }
        if enough(taker) {
            break;
        }
    }
    if some_coming {
        // While these reads were tried, the queues may have been empty, and the watchdog may have
        // stopped watching the context. This call has it watch again.
        fence(Ordering::SeqCst);
        board.call(Call::Nobody);
    }
    present
}

/// Executes a read whose pages are in memory, or has the device read them. Also returns the ticks
/// that the try took.
fn try_cold(
    queues: &Queues,
    board: &Board,
    request: Queued<'_>,
    (by, may_wait): (Executor, bool),
    taker: &mut DirectCompletions<'_>,
) -> (Outcome, u64) {
    let Some(request) = board.start(request) else { return (Outcome::Gone, 0) };
    let Sqe { fd, off, len, .. } = request.sqe;
    let rate = board.ticks_per_us();
    let begin = sys::ticks();
    // SAFETY: the buffer is the request's until its completion.
    let tried = unsafe { exec::try_read(&request.sqe) };
    let ticks = sys::ticks().wrapping_sub(begin);
    match tried {
        Tried::Done(result) => {
            if ticks > TRY_SLOW_US * rate {
                // O_DIRECT may have been switched on (fcntl(2)): with it, a try waits for the
                // device. The engine asks the kernel again.
                let _ = descriptor::fresh(fd);
            }
            facts::learn_tried(fd, true);
            board.finish_for(request, result, by, taker);
            return (Outcome::Present, ticks);
        }
        Tried::Impossible => {
            board.forward(request, Route::Pool, Executor::Pool);
            return (Outcome::Gone, ticks);
        }
        Tried::WouldWait => {
            if may_wait && ticks < SLEPT_DIRECT_US * rate {
                // A try that was this quick has not started the device. The page is on its way
                // already, or this kernel does not read ahead for `RWF_NOWAIT`.
                sys::fadvise(fd, off, len.into(), libc::POSIX_FADV_WILLNEED as u32);
            }
            facts::learn_tried(fd, false);
            board.count(|stats| &stats.reads_ahead);
        }
        Tried::Failed => {}
    }
    queues.coming.push(&[request.queue()]);
    (Outcome::Coming, ticks)
}

/// Two parts: reads to be tried, and reads whose pages are on their way.
impl Lane for ColdLane {
    fn progress(&self) -> [Progress; 2] {
        let Some(queues) = self.queues.get() else { return [Progress::NOTHING; 2] };
        let untried = Progress::of(&queues.untried);
        let may_try = untried.queued && queues.may_try();
        // Reads that wait for room in `coming` count as in hand, so the watchdog does not take them
        // for stuck.
        let untried = Progress { queued: may_try, in_hand: untried.queued && !may_try, ..untried };
        [untried, Progress::of(&queues.coming)]
    }

    fn unstick(&self, _: &Board, part: usize, _: bool) -> Stuck {
        if let Some(queues) = self.queues.get() {
            if part == 0 {
                queues.leave_to_workers();
            } else {
                queues.readers.are_stuck();
            }
        }
        Stuck { nobody_came: part == 0, call: Some(Call::WorkerNow) }
    }

    fn withdraw(&self, board: &Board, which: &Withdraw<'_>) {
        let queues = self.queues.get().into_iter().flat_map(|all| [&all.untried, &all.coming]);
        queues.for_each(|queue| withdraw_from(queue, board, which));
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests;
