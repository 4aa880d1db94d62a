//! The inline lane: requests that usually do not sleep. The thread with the baton (its holder)
//! executes them one by one. Appends, and transfers at the file position, are ordered among each
//! other. A request that was submitted alone waits in the mailbox for its submitter's wait.
#![allow(unsafe_code)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use super::{Lane, Progress, Stuck, Withdraw, run};
use crate::board::{Board, DirectCompletions, Executor, without_taker};
use crate::descriptor;
use crate::errno;
use crate::queue::IndexRing;
use crate::request::{Queued, Route, Started};
use crate::router::facts::Facts;
use crate::router::tuning::{BESIDE_SPIN_US, HOLDER_SPIN_US, TIMED_EVERY};
use crate::router::{self, Call, Router, Situation};
use crate::sync::lock_counted;
use crate::sys;
use crate::word::baton::{Baton, Release, Turn, View};
use crate::word::mailbox::{Mailbox, Taken};

/// The queues of the inline lane, and the rights to execute their requests.
#[derive(Debug)]
pub(crate) struct InlineLane {
    /// A request that a submitter leaves for its own wait.
    mailbox: Mailbox,
    baton: Baton,
    queue: IndexRing,
    /// Requests whose order can be observed. The right to execute them, `order`, is never stolen.
    ordered: IndexRing,
    order: Baton,
    /// Locked while a request moves from the queue to the ordered ones, so that the ordered ones
    /// keep their order.
    diverting: Mutex<()>,
    /// Former holders of the baton that still execute a request.
    losers: AtomicUsize,
    /// Ordered requests that a server may hold up: threads with a deadline leave them to workers.
    hanging: AtomicUsize,
    /// The holder of the baton is a worker that executes beside the program.
    beside: AtomicBool,
}

/// What a holder of the baton found in the queue.
enum Popped<'a> {
    Nothing,
    Request(Queued<'a>),
    /// The holder has lost the baton.
    Lost,
}

/// A holder calls this between requests, with the ticks of the last request, and the number of
/// completions that it has taken. True: the holder stops.
pub(crate) type Enough<'a> = &'a mut dyn FnMut(u64, u32) -> bool;

impl InlineLane {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            mailbox: Mailbox::new(),
            baton: Baton::new(),
            queue: IndexRing::new(slots),
            ordered: IndexRing::new(slots),
            order: Baton::new(),
            diverting: Mutex::new(()),
            losers: AtomicUsize::new(0),
            hanging: AtomicUsize::new(0),
            beside: AtomicBool::new(false),
        }
    }

    /// The baton's word; it is marked while the watchdog watches the context.
    #[inline]
    pub(crate) fn baton(&self) -> &Baton {
        &self.baton
    }

    /// Is no thread executing requests of this lane, with the baton or after losing it?
    #[inline(always)]
    fn is_idle(&self) -> bool {
        !self.baton.view().is_held() && self.losers.load(Ordering::SeqCst) == 0
    }

    /// Is no request of the lane queued or executing?
    pub(crate) fn is_quiet(&self) -> bool {
        self.is_idle() && self.queue.is_empty() && self.mailbox.is_empty() && !self.is_overtaking()
    }

    /// Are there ordered requests, queued or executing, or holders that have lost the baton and
    /// still execute?
    #[inline]
    fn is_overtaking(&self) -> bool {
        self.losers.load(Ordering::SeqCst) > 0
            || !self.ordered.is_empty()
            || self.order.view().is_held()
    }

    /// Is there a request for a holder of the baton to execute?
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        !self.queue.is_empty() || self.has_ordered_work()
    }

    /// As [`InlineLane::has_work`]. `hanging`: the thread also executes requests that a server may
    /// hold up.
    #[inline]
    pub(crate) fn has_work_for(&self, hanging: bool) -> bool {
        !self.queue.is_empty()
            || self.has_ordered_work() && (hanging || self.hanging.load(Ordering::SeqCst) == 0)
    }

    /// Do ordered requests wait for a thread that may wait without end?
    pub(crate) fn has_patient_work(&self) -> bool {
        self.has_ordered_work() && self.hanging.load(Ordering::SeqCst) > 0
    }

    #[inline]
    fn has_ordered_work(&self) -> bool {
        !self.ordered.is_empty()
            && !self.order.view().is_held()
            && self.losers.load(Ordering::SeqCst) == 0
    }

    /// Would a thread that is about to sleep find something to do here?
    #[inline]
    pub(crate) fn has_help_to_offer(&self) -> bool {
        let view = self.baton.view();
        view.has_work() && !view.is_held() || !self.mailbox.is_empty()
    }

    /// Do requests wait behind a holder?
    #[inline]
    pub(crate) fn waits_for_holder(&self) -> bool {
        self.baton.view().is_held() && !self.queue.is_empty()
    }

    /// Queues requests. The caller announces them afterwards ([`InlineLane::announce`]).
    #[inline]
    pub(crate) fn push(&self, slots: &[u32]) {
        self.queue.push(slots);
    }

    /// Queues an ordered request. The caller has queued earlier inline requests before: a holder
    /// that finds the ordered request finds them, too.
    pub(crate) fn push_ordered(&self, board: &Board, slot: u32) {
        // SAFETY: the caller has its number, and has not put it into a queue yet.
        if unsafe { board.popped(slot) }.may_hang {
            self.hanging.fetch_add(1, Ordering::SeqCst);
        }
        self.ordered.push(&[slot]);
        self.order.announce();
    }

    /// Announces pushed requests, and has a thread execute them. True if a thread executes queued
    /// requests already.
    #[inline]
    pub(crate) fn announce(&self, board: &Board, waiters_come: bool) -> bool {
        let seen = self.baton.announce();
        let held = seen.is_held();
        let sleeps = board.completions().has_sleepers();
        let now = Situation { waiters_come, sleeps, held, ..Situation::default() };
        let call = router::thread_to_call(Route::Inline, &now);
        if call != Call::Nobody || !seen.is_watched() {
            board.call(call);
        }
        held
    }

    /// Requests in the queue: a hint.
    #[inline]
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// The number of requests that have left the queue.
    pub(crate) fn taken(&self) -> u64 {
        self.queue.taken()
    }

    /// Leaves a single request, which may be `alone` in its context, to the expected wait. Returns
    /// the request if that is not possible, for example if `others` come first.
    #[inline(always)]
    pub(crate) fn put_in_mailbox<'a>(
        &self,
        board: &Board,
        request: Started<'a>,
        alone: impl FnOnce() -> bool,
        others: impl FnOnce() -> bool,
    ) -> Result<(), Started<'a>> {
        if !self.is_idle() || !self.mailbox.is_empty() {
            return Err(request);
        }
        let alone = alone();
        if !alone && (self.has_work() || others()) {
            return Err(request);
        }
        request.slot().put_in_mailbox();
        let Some(watched) = self.mailbox.put(request.index(), alone) else { return Err(request) };
        request.into_index();
        // A sleeping thread is woken for the request. The watchdog checks that a thread takes it.
        if board.completions().has_sleepers() {
            Self::wake_for_mailbox(board);
        }
        if !watched && self.mailbox.watch() {
            Self::watch_mailbox(board);
        }
        Ok(())
    }

    // The fast path calls the next two functions, too, so they preserve errno. Waiting for a lock,
    // or making a thread, may change errno.
    #[cold]
    fn wake_for_mailbox(board: &Board) {
        errno::kept(|| board.wake_waiter());
    }

    #[cold]
    fn watch_mailbox(board: &Board) {
        errno::kept(|| board.call(Call::Nobody));
    }

    /// Moves the request from the mailbox to the queue, in front of later ones. True if there was
    /// one; the caller announces it.
    pub(crate) fn queue_mailbox(&self, board: &Board) -> bool {
        let Some(Taken { slot, .. }) = self.mailbox.take() else { return false };
        board.slot(slot).queue();
        self.queue.push(&[slot]);
        true
    }

    /// Takes the request from the mailbox, with its number, if the request is alone in its context.
    #[inline(always)]
    pub(crate) fn take_alone<'a>(&self, board: &'a Board) -> Option<(Started<'a>, u64)> {
        self.mailbox.take_alone().map(|taken| Self::begun(board, taken))
    }

    /// Takes the request from the mailbox, and its number.
    #[inline]
    pub(crate) fn take_from_mailbox<'a>(&self, board: &'a Board) -> Option<(Started<'a>, u64)> {
        self.mailbox.take().map(|taken| Self::begun(board, taken))
    }

    #[inline(always)]
    fn begun(board: &Board, taken: Taken) -> (Started<'_>, u64) {
        board.slot(taken.slot).begin();
        // SAFETY: the thread that takes the slot out of the word has it alone.
        (unsafe { board.in_hand(taken.slot) }, taken.number)
    }

    /// Takes the request with this key from the mailbox, if it is there: the caller ends it.
    pub(crate) fn retract(&self, board: &Board, slot: u32, key: u64) -> bool {
        self.mailbox.remove(slot, || board.slot(slot).key() == key)
    }

    /// Takes the baton, if it is free.
    #[inline]
    pub(crate) fn take_baton(&self) -> Option<Turn> {
        self.baton.take()
    }

    /// Does a worker beside the program hold the baton?
    #[inline]
    pub(crate) fn is_held_beside(&self) -> bool {
        self.beside.load(Ordering::Relaxed) && self.baton.view().is_held()
    }

    /// Holds the baton on a worker beside the program, while there is enough to do. A waiter
    /// [takes reads](Self::execute_read) meanwhile, or sends the worker away.
    pub(crate) fn hold_beside(
        &self,
        board: &Board,
        router: &Router,
        turn: Turn,
        enough: Enough<'_>,
    ) {
        self.beside.store(true, Ordering::Relaxed);
        without_taker(|taker| {
            taker.bound(true);
            self.hold(board, router, turn, Executor::Worker, taker, enough);
        });
        self.beside.store(false, Ordering::Relaxed);
    }

    /// A waiter executes the oldest request, if it is a read, beside the holder of the baton.
    /// Nothing depends on the order of reads. False: the waiter has executed nothing.
    pub(crate) fn execute_read(&self, board: &Board, taker: &mut DirectCompletions<'_>) -> bool {
        let Some((position, slot)) = self.queue.front() else { return false };
        if !board.slot(slot).is_read() || !self.queue.pop_at(position) {
            return false;
        }
        let timed = position.is_multiple_of(TIMED_EVERY);
        // SAFETY: popped just now.
        self.run(board, unsafe { board.popped(slot) }, Executor::Waiter, timed, taker);
        true
    }

    /// Executes the oldest request for a waiter that takes one completion, as [`Self::hold`] would.
    /// False: the baton is held, or other requests come first.
    #[inline]
    pub(crate) fn execute_next(
        &self,
        board: &Board,
        router: &Router,
        taker: &mut DirectCompletions<'_>,
    ) -> bool {
        if self.queue.is_empty() || !self.mailbox.is_empty() || self.is_overtaking() {
            return false;
        }
        let Some(turn) = self.take_baton() else { return false };
        if let Popped::Request(request) = self.pop(board, &turn, taker.is_bounded()) {
            let timed = self.queue.taken().is_multiple_of(TIMED_EVERY);
            self.run(board, request, Executor::Waiter, timed, taker);
        }
        let emptied = self.queue.is_empty();
        match if emptied { self.baton.release(turn) } else { Release::Work(turn) } {
            Release::Free => {}
            Release::Lost => self.lost(board, router),
            Release::Work(same) => self.lay_down(board, router, same),
        }
        true
    }

    /// Holds the baton until nothing is queued, `enough` returns true, or the baton is taken away.
    pub(crate) fn hold(
        &self,
        board: &Board,
        router: &Router,
        mut turn: Turn,
        by: Executor,
        taker: &mut DirectCompletions<'_>,
        enough: Enough<'_>,
    ) {
        let beside = by == Executor::Worker && self.beside.load(Ordering::Relaxed);
        let [most, earned] = BESIDE_SPIN_US.map(|us| us * board.ticks_per_us());
        let mut left = most;
        loop {
            let due = self.is_ordered_due(board);
            // A worker beside the program executes nothing that may wait without end. It gives the
            // baton up instead.
            let stays_out = || beside && self.hanging.load(Ordering::SeqCst) > 0;
            if due && (self.hold_order(board, router, by, taker, enough) || stays_out()) {
                return self.lay_down(board, router, turn);
            }
            let popped = self.pop(board, &turn, taker.is_bounded());
            match popped {
                Popped::Lost => return self.lost(board, router),
                // Another thread has taken the last request that an ordered one had to wait for.
                Popped::Nothing if !due && self.is_ordered_due(board) => continue,
                Popped::Nothing | Popped::Request(_) => {}
            }
            if let Popped::Request(request) = popped {
                // The slot is fetched from the submitter's CPU while this request is executed.
                let next = self.queue.peek().inspect(|&next| sys::prefetch(board.slot(next)));
                let timed = self.queue.taken().is_multiple_of(TIMED_EVERY);
                let ticks = self.run(board, request, by, timed, taker);
                left = (left + earned).min(most);
                if by == Executor::Worker && router.waiters.takes_baton() {
                    self.lay_down(board, router, turn);
                    board.wake_waiter();
                    return;
                }
                let emptied = next.is_none() && self.queue.peek().is_none();
                if emptied && self.ordered.is_empty() {
                    // Falls through to the release, which notices later announcements.
                } else if enough(ticks, taker.taken()) {
                    return self.lay_down(board, router, turn);
                } else {
                    // If the baton was stolen, `pop` finds out before it takes the next request.
                    continue;
                }
            }
            if beside && !enough(0, taker.taken()) {
                let begin = sys::ticks();
                sys::spin_until(left, || self.baton.view().has_work());
                left = left.saturating_sub(sys::ticks().wrapping_sub(begin));
            } else if by == Executor::Worker {
                self.spin_for_work(board, router);
            }
            match self.baton.release(turn) {
                Release::Free => return,
                Release::Lost => return self.lost(board, router),
                Release::Work(same) => match self.baton.look_again(same) {
                    Some(next) => turn = next,
                    None => return self.lost(board, router),
                },
            }
        }
    }

    /// Executes reads and writes in the mailbox and the queue that do not sleep, in their order, up
    /// to the first other request. Calls no other thread, and waits for none. True if requests are
    /// left that no thread executes.
    pub(crate) fn execute_ready(&self, board: &Board, router: &Router) -> bool {
        if self.queue_mailbox(board) {
            self.baton.announce();
        }
        if self.is_ready(board)
            && let Some(turn) = self.take_baton()
        {
            without_taker(|taker| {
                let enough = &mut |_, _| !self.is_ready(board);
                self.hold(board, router, turn, Executor::Waiter, taker, enough);
            });
        }
        !self.baton.view().is_held() && self.has_work() && !self.is_ready(board)
    }

    /// Is the oldest request one that does not sleep, and that no server can hold up?
    fn is_ready(&self, board: &Board) -> bool {
        let due = self.is_ordered_due(board);
        let next = if due { self.ordered.peek() } else { self.queue.peek() };
        next.map(|slot| board.slot(slot)).is_some_and(|slot| match slot.expected() {
            Some((_, soon)) => soon || Facts::noted(slot.fd()).is_some_and(Facts::is_local),
            None => false,
        })
    }

    /// Takes the oldest inline request. A holder may lose the baton after its last check. Then it
    /// takes at most one more request, as if it had lost the baton inside of that one. `bounded`:
    /// the holder leaves to workers what a server may hold up.
    #[inline]
    fn pop<'a>(&self, board: &'a Board, turn: &Turn, bounded: bool) -> Popped<'a> {
        while let Some((position, slot)) = self.queue.front() {
            if !self.baton.is_held_in(turn) {
                return Popped::Lost;
            }
            if (bounded || self.is_overtaking()) && self.divert(board, position, slot, bounded) {
                continue;
            }
            if self.queue.pop_at(position) {
                // SAFETY: popped just now.
                return Popped::Request(unsafe { board.popped(slot) });
            }
        }
        Popped::Nothing
    }

    /// Moves the oldest inline request behind the ordered ones, if it is a write that appends and
    /// would lose its order here. It would lose its order beside an earlier append, or if a worker
    /// executes it. The remembered facts may be about an earlier file, so the kernel is asked
    /// whether the descriptor appends. True: the queue has another front.
    #[cold]
    fn divert(&self, board: &Board, position: u64, slot: u32, bounded: bool) -> bool {
        let Some(fd) = board.slot(slot).written() else { return false };
        let left = || bounded && !Facts::noted(fd).is_some_and(|facts| facts.is_trusted(true));
        if !(self.is_overtaking() || left()) || !descriptor::appends(fd) {
            return false;
        }
        // A holder that has lost the baton may be here with an earlier request.
        let _diverting = lock_counted(&self.diverting);
        if self.queue.pop_at(position) {
            self.push_ordered(board, slot);
        }
        true
    }

    /// Executes a request of this lane. A slow fsync is passed on, in the end to a worker. A quick
    /// one is executed here, because calling another thread takes longer.
    #[inline(always)]
    fn run(
        &self,
        board: &Board,
        request: Queued<'_>,
        by: Executor,
        timed: bool,
        taker: &mut DirectCompletions<'_>,
    ) -> u64 {
        let Some(request) = board.start(request) else { return 0 };
        if request.route == Route::Sync && !self.is_quick_sync(&request) {
            self.pass_on(board, request, by);
            return 0;
        }
        run::execute(board, request, by, timed, taker)
    }

    /// Is this an fsync that is known to wait for nothing, and that no request has to precede?
    #[inline]
    fn is_quick_sync(&self, request: &Started<'_>) -> bool {
        run::is_fsync(request)
            && Facts::noted(request.sqe.fd).is_some_and(Facts::syncs_quickly)
            && !self.is_overtaking()
    }

    /// Sends a request behind the ordered ones (once, if there are any), or else to a worker.
    fn pass_on(&self, board: &Board, mut request: Started<'_>, by: Executor) {
        let others_first = !self.ordered.is_empty() || self.order.view().is_held();
        if !request.passed_inline && others_first {
            request.passed_inline = true;
            self.push_ordered(board, request.queue());
            self.announce(board, false);
        } else {
            board.forward(request, Route::Sync, by);
        }
    }

    /// Was the oldest ordered request submitted before the oldest inline one? Positional writes
    /// that were submitted before an append come first: they may change where the file ends.
    #[inline]
    fn is_ordered_due(&self, board: &Board) -> bool {
        let Some(ordered) = self.ordered.peek() else { return false };
        let number = |slot| board.slot(slot).number();
        self.queue.peek().is_none_or(|inline| number(ordered) <= number(inline))
    }

    /// Executes due ordered requests until none is left. True: `enough` was true while some were
    /// left. A thread that blocks here may lose the baton, but the ordered requests wait for it.
    #[cold]
    fn hold_order(
        &self,
        board: &Board,
        router: &Router,
        by: Executor,
        taker: &mut DirectCompletions<'_>,
        enough: Enough<'_>,
    ) -> bool {
        if taker.is_bounded() && self.hanging.load(Ordering::SeqCst) > 0 {
            // One of the requests may wait without end. To keep the order, none is executed.
            board.call(Call::PatientHolder);
            return false;
        }
        fence(Ordering::SeqCst);
        if self.losers.load(Ordering::SeqCst) > 0 {
            // A former holder of the baton may still execute an append that was not known as one.
            // When it is done, it announces the ordered requests.
            return false;
        }
        let Some(mut turn) = self.order.take() else { return false };
        loop {
            while self.is_ordered_due(board)
                && let Some(request) = board.pop(&self.ordered)
            {
                if request.may_hang {
                    self.hanging.fetch_sub(1, Ordering::SeqCst);
                }
                let ticks = self.run(board, request, by, true, taker);
                if enough(ticks, taker.taken()) && !self.ordered.is_empty() {
                    self.order.leave(turn);
                    // Another thread may have the baton by now, and has not seen these requests.
                    self.announce(board, router.waiters.come());
                    return true;
                }
            }
            match self.order.release(turn) {
                Release::Work(same) => {
                    turn = self.order.look_again(same).expect("nobody steals it");
                }
                Release::Free | Release::Lost => return false,
            }
        }
    }

    /// Gives the baton back although requests are left.
    fn lay_down(&self, board: &Board, router: &Router, turn: Turn) {
        if !self.baton.leave(turn) {
            self.lost(board, router);
        }
    }

    /// The baton's current state, for checking whether its holder makes progress.
    #[inline]
    pub(crate) fn view(&self) -> View {
        self.baton.view().at(self.queue.taken())
    }

    /// Takes the baton away from a holder that has been in one request for too long. False: the
    /// holder has made progress.
    pub(crate) fn steal(&self, board: &Board, waiters_come: bool, view: View) -> bool {
        // Counted first, so that the thread that takes the baton next sees the count.
        self.losers.fetch_add(1, Ordering::SeqCst);
        let stolen = self.baton.steal(view, self.queue.taken());
        if stolen {
            board.count(|stats| &stats.handovers);
        } else {
            self.one_loser_less(board, waiters_come);
        }
        stolen
    }

    /// A holder that has lost the baton has finished its request.
    #[cold]
    fn lost(&self, board: &Board, router: &Router) {
        board.count(|stats| &stats.after_losing_baton);
        self.one_loser_less(board, router.waiters.come());
    }

    fn one_loser_less(&self, board: &Board, waiters_come: bool) {
        self.losers.fetch_sub(1, Ordering::SeqCst);
        // Pairs with the fence in `hold_order`: either this thread sees the ordered requests, or
        // that thread sees this store.
        fence(Ordering::SeqCst);
        if !self.ordered.is_empty() {
            // Ordered requests may have waited for this holder.
            self.order.announce();
            self.announce(board, waiters_come);
        }
    }

    /// Spins briefly for more requests, if that has paid lately and no waiter is expected. Does not
    /// spin on a single CPU.
    fn spin_for_work(&self, board: &Board, router: &Router) {
        let learned = &router.holder_spin;
        let budget = learned.budget();
        if budget > 0 && !router.waiters.come() {
            let found = sys::spin_until(budget, || self.baton.view().has_work());
            learned.learn(budget, found, HOLDER_SPIN_US.1 * board.ticks_per_us());
        }
    }

    /// Ends the watch over the context, if the lane is empty and there is no `more` elsewhere.
    /// False: the watch goes on.
    pub(crate) fn ends_watch(&self, more: impl FnOnce() -> bool) -> bool {
        if !self.mailbox.unwatch() {
            return false;
        }
        if self.baton.unwatch() {
            // A submitter that saw the mark has not called the watchdog. After this fence, this
            // thread sees the requests of that submitter.
            fence(Ordering::SeqCst);
            if !more() || !self.baton.watch() {
                return true;
            }
        }
        // Requests have come: the watch stays. If another thread has marked the context meanwhile,
        // the watchdog has it on its list twice for a while.
        self.mailbox.watch();
        false
    }
}

/// Two parts: the mailbox, and the queues.
impl Lane for InlineLane {
    fn progress(&self) -> [Progress; 2] {
        let view = self.view();
        let word = view.turn().wrapping_add(self.ordered.taken() << 32) << 1;
        let held = view.is_held();
        let queued = view.has_work() || self.has_work();
        let is_left = !self.mailbox.is_empty();
        [
            Progress { queued: is_left, in_hand: false, word: self.mailbox.word() },
            Progress { queued, in_hand: false, word: word | u64::from(held) },
        ]
    }

    fn unstick(&self, board: &Board, part: usize, waiters_come: bool) -> Stuck {
        // The mark is set first: without it, a call would add the context to the watchdog again.
        self.baton.watch();
        let view = self.view();
        if part == 0 && self.queue_mailbox(board) {
            self.baton.announce();
        }
        if part == 0 || !view.is_held() {
            return Stuck { nobody_came: true, call: Some(Call::Holder) };
        }
        let stolen = self.steal(board, waiters_come, view);
        Stuck { nobody_came: false, call: stolen.then_some(Call::Holder) }
    }

    fn withdraw(&self, board: &Board, which: &Withdraw<'_>) {
        match which {
            Withdraw::Canceled => {
                if let Some(turn) = self.baton.take() {
                    board.purge(&self.queue);
                    if !self.baton.leave(turn) {
                        self.one_loser_less(board, true);
                    }
                } else {
                    // A holder may sleep in one request for longer than a submitter waits. So only
                    // the front is purged, without the baton.
                    board.purge_front(&self.queue);
                }
                if let Some(turn) = self.order.take() {
                    // Only the front is purged, so the other requests keep their order.
                    board.purge_front(&self.ordered);
                    self.order.leave(turn);
                }
            }
            Withdraw::All => {
                self.queue_mailbox(board);
                board.end_all(&self.queue);
                board.end_all(&self.ordered);
            }
            Withdraw::On(_) => {}
        }
    }
}

#[cfg(all(test, not(loom)))]
impl InlineLane {
    /// Takes the oldest request of the queue, with the baton or without it.
    pub(crate) fn pop_started<'a>(&self, board: &'a Board) -> Option<Started<'a>> {
        board.pop_started(&self.queue)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
