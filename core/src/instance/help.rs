//! How a waiting thread of the program (a waiter) helps: it executes requests of its context's
//! lanes.
//!
//! A poll is a wait for zero completions. The baton is the right to execute the inline lane's queue
//! in order; the thread that has it is the holder. A request that was submitted alone is in the
//! mailbox, not in the queue.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Instance;
use crate::board::{DirectCompletions, Executor};
use crate::lane::Help;
use crate::request::Started;
use crate::router::spare::WaiterLook;
use crate::router::tuning::{
    ASK_US, BESIDE_LOOK_US, FAVOUR_US, FAVOURS, HOLDER_SPIN_US, LOOK_ON_US, NAP_US, TIMED_EVERY,
};
use crate::router::{Call, KernelScope};
use crate::sys;
use crate::word::baton::View;

impl Instance {
    /// Lets the waiting thread execute the only request of its context. False: there are several or
    /// none, or the thread must not execute it; call [`Instance::help_lanes`]. `bounded`: the
    /// thread has a deadline.
    #[inline(always)]
    pub(super) fn help_alone(&self, bounded: bool, taker: &mut DirectCompletions<'_>) -> bool {
        #[cfg(feature = "faulty")]
        if self.faulty.is_some() {
            return false;
        }
        if self.stands_by() {
            return false;
        }
        let Some((request, number)) = self.lanes.inline.take_alone(&self.board) else {
            return false;
        };
        taker.bound(bounded && !self.is_helpless());
        let timed = number.is_multiple_of(TIMED_EVERY);
        self.lanes.execute_from_mailbox(&self.board, request, timed, taker);
        self.router.waiters.one_came();
        true
    }

    /// Lets the waiting thread execute requests. It may take their completions directly, through
    /// `taker`. True if there may be new completions.
    pub(super) fn help_lanes(&self, help: &Help, taker: &mut DirectCompletions<'_>) -> bool {
        if self.stands_by() {
            return self.look_on(help);
        }
        let Self { board, lanes, .. } = self;
        let before = taker.taken();
        let mut helped = !lanes.kernel.is_idle() && self.help_kernel(help, taker);
        if !lanes.cold.is_empty() {
            self.one_came(help);
            helped |= lanes.cold.help(board, help, helped, (before, taker));
        }
        // A poll executes ready requests of every lane, up to the number of completions it can
        // take.
        let is_enough = |taker: &DirectCompletions<'_>| {
            let come = || taker.taken() - before + board.completions().available();
            help.min > 0 || come() >= help.max
        };
        if helped && is_enough(taker) {
            return true;
        }
        // The mailbox was filled before anything came into the queues: no request is overtaken.
        if lanes.copy.is_empty()
            && let Some((request, number)) = lanes.inline.take_from_mailbox(board)
        {
            let timed = number.is_multiple_of(TIMED_EVERY);
            lanes.execute_from_mailbox(board, request, timed, taker);
            self.router.waiters.one_came();
            if is_enough(taker) {
                return true;
            }
            helped = true;
        }
        if !lanes.copy.is_empty() && lanes.copy.help(board, help, taker) {
            self.one_came(help);
            if is_enough(taker) {
                return true;
            }
            helped = true;
        }
        self.help_more(help, taker) || helped
    }

    /// Notes that a thread has come to wait for completions, unless it only polls.
    fn one_came(&self, help: &Help) {
        if help.min > 0 {
            self.router.waiters.one_came();
        }
    }

    /// Handles a poll by a thread that must not execute requests. While another CPU executes
    /// requests that do not sleep, the poll waits for their completions, for a short time.
    fn look_on(&self, help: &Help) -> bool {
        let begin = sys::ticks();
        let inline = &self.lanes.inline;
        let busy = || inline.has_work() || inline.baton().view().is_held();
        let longest = LOOK_ON_US * self.board.ticks_per_us();
        while help.min == 0 && busy() && sys::ticks().wrapping_sub(begin) < longest {
            std::thread::yield_now();
        }
        false
    }

    /// A waiter collects what the kernel has completed, and hands over queued requests.
    pub(super) fn help_kernel(&self, help: &Help, taker: &mut DirectCompletions<'_>) -> bool {
        let kernel = &self.lanes.kernel;
        if kernel.queued() == 0 {
            return kernel.harvest(&self.board, taker);
        }
        self.one_came(help);
        let alone = kernel.queued() == 1 && help.unbounded;
        if alone
            && kernel.scope() == KernelScope::Direct
            && self.board.must_wait_for_all(help.min)
            && let Some(request) = kernel.pop(&self.board)
        {
            // The waiter would sleep for this one request anyway: one system call instead of two.
            self.lanes.execute(&self.board, request, Executor::Waiter, taker);
            return true;
        }
        // The hand-over comes first, so that the device has work while this thread collects.
        self.hand_over(Executor::Waiter);
        kernel.harvest(&self.board, taker)
    }

    /// Asks the worker that holds the baton to give it up, and waits as long as a request that does
    /// not sleep takes. Returns the baton's state after that.
    #[cold]
    fn ask_for_baton(&self) -> View {
        self.router.waiters.ask_for_baton();
        let begin = sys::ticks();
        loop {
            let view = self.lanes.inline.baton().view();
            let over = sys::ticks().wrapping_sub(begin) > ASK_US * self.board.ticks_per_us();
            if !view.is_held() || over || sys::cpus() == 1 {
                return view;
            }
            std::hint::spin_loop();
        }
    }

    /// A worker executes beside this thread. The thread takes some of the worker's reads, and looks
    /// for completions. False: for a while there were neither reads nor completions, and the worker
    /// still has the baton.
    fn help_beside(&self, help: &Help, taker: &mut DirectCompletions<'_>) -> bool {
        let Self { board, lanes, router, .. } = self;
        let (begin, before) = (sys::ticks(), taker.taken());
        let waits_for_all = help.min > 1 && board.must_wait_for_all(help.min);
        let mut look = WaiterLook { begin, end: begin, waits_for_all, ..WaiterLook::default() };
        let (mut last, mut seen) = (begin, 0);
        while lanes.inline.is_held_beside() && !look.sleeps {
            let come = taker.taken() - before + board.completions().available();
            if come >= help.min {
                break;
            }
            let executed = lanes.inline.execute_read(board, taker);
            let now = sys::ticks();
            if executed {
                look.executed += now.wrapping_sub(look.end);
            }
            if executed || come > seen {
                (last, seen) = (now, come);
            } else if now.wrapping_sub(last) > HOLDER_SPIN_US.1 * board.ticks_per_us() {
                look.sleeps = true;
            } else {
                // A pause between two looks: each look takes a cache line that the worker writes
                // to.
                while sys::ticks().wrapping_sub(now) < BESIDE_LOOK_US * board.ticks_per_us() {
                    std::hint::spin_loop();
                }
            }
            look.end = sys::ticks();
        }
        look.waits_for_all = look.waits_for_all && look.executed == 0;
        router.beside.looked_on(&look, board.ticks_per_us());
        !look.sleeps
    }

    /// May a waiter execute requests of the pool lane, or of the worker lane?
    fn may_take(&self, help: &Help) -> bool {
        let own = help.unbounded && self.board.must_wait_for_all(help.min);
        !self.lanes.pool.is_empty() && (help.helpless || own)
            || help.helpless && !self.lanes.worker.is_empty()
    }

    /// Helps with the inline lane. If this thread can execute nothing there, it helps with the
    /// pool, worker and cold lanes.
    pub(super) fn help_more(&self, help: &Help, taker: &mut DirectCompletions<'_>) -> bool {
        let Self { board, lanes, router, .. } = self;
        let inline = &lanes.inline;
        let mut view = inline.baton().view();
        if view.has_work() || inline.has_work_for(help.accepts_hanging) {
            if help.min > 0 || view.has_work() {
                router.waiters.one_came();
            }
            let ask = view.is_held() && help.min > 0;
            if ask && inline.is_held_beside() {
                if self.help_beside(help, taker) {
                    return true;
                }
            } else if ask && inline.has_work_for(help.accepts_hanging) {
                view = self.ask_for_baton();
            }
            if !view.is_held()
                && let Some(turn) = inline.take_baton()
            {
                let (mut executed, before, mut others) = (0, taker.taken(), 0);
                let (mut seen, slow) = (before, FAVOUR_US * board.ticks_per_us());
                inline.hold(board, router, turn, Executor::Waiter, taker, &mut |ticks, taken| {
                    if taken == seen || executed % TIMED_EVERY == 0 || ticks > slow {
                        // The completions that this thread could not take, or that other threads
                        // have posted.
                        others = board.completions().available();
                    }
                    (executed, seen) = (executed + 1, taken);
                    let available = others + taken - before;
                    // Only a wait stops after `min` completions. A poll executes every request that
                    // does not sleep, up to `max` completions.
                    let favour = help.min > 0 && available >= help.min;
                    available >= help.max || favour && (ticks > slow || executed >= FAVOURS)
                });
                if help.min == 0 && !lanes.pool.is_empty() {
                    // While this thread held the baton, it may have passed requests on to the pool
                    // lane, and left them to the next waiter. A poll does not execute them.
                    self.call(Call::Worker);
                }
                return true;
            }
        } else {
            self.one_came(help);
        }
        if help.min > 0 {
            router.waiters.one_waits(help.unbounded);
        }
        if self.may_take(help) {
            if let Some(request) = lanes.pool.pop(board) {
                lanes.execute(board, request, Executor::Waiter, taker);
                return true;
            }
            if help.helpless {
                let execute = |request: Started<'_>| {
                    lanes.execute(board, request, Executor::Waiter, taker);
                };
                if lanes.worker.take(board, execute) {
                    return true;
                }
            }
        } else if !lanes.pool.is_empty() {
            // No worker was called for these requests, because a waiter was expected to execute
            // them. This waiter may not take them.
            self.call(Call::Worker);
        }
        lanes.cold.help_read(board, help, taker)
    }

    /// Would [`Instance::help_lanes`] find something to do? Asked once more before a sleep and,
    /// with a minimum of 0, before a poll.
    pub(super) fn has_help_to_offer(&self, help: &Help) -> bool {
        let lanes = &self.lanes;
        !self.stands_by()
            && (lanes.inline.has_help_to_offer()
                || lanes.kernel.has_help_to_offer(help.min > 0)
                || !lanes.copy.is_empty()
                || lanes.cold.has_help_to_offer(help.helpless)
                || self.may_take(help))
    }

    /// How long a waiter may sleep before it checks the holder of the baton; `nap` counts its
    /// sleeps. `None` unless requests wait behind the holder.
    pub(super) fn nap(&self, nap: u32) -> Option<Duration> {
        let us = (NAP_US.0 << (nap / 2).min(5)).min(NAP_US.1);
        self.lanes.inline.waits_for_holder().then(|| Duration::from_micros(us))
    }

    /// A waiter has slept for a nap. If the holder is in the same request as after the last nap, it
    /// loses the baton.
    pub(super) fn look_at_holder(&self) {
        let inline = &self.lanes.inline;
        if !inline.waits_for_holder() {
            return;
        }
        let (view, come) = (inline.view(), self.router.waiters.come());
        let last = self.last_view.swap(view.word(), Ordering::Relaxed);
        if last == view.word() && inline.steal(&self.board, come, view) && !come {
            self.call(Call::Holder);
        }
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    use std::sync::atomic::{AtomicBool, Ordering};

    use crate::board::without_taker;
    use crate::config::Builder;
    use crate::instance::Instance;
    use crate::instance::submit::Entry;
    use crate::sqe::Sqe;

    const ROUNDS: u64 = 2_000;
    const DEPTH: usize = 8;
    const BLOCK: usize = 64;

    /// A worker holds the baton beside the program again and again. It leaves the baton after a
    /// request if it has `enough`.
    fn hold_beside(instance: &Instance, over: &AtomicBool, enough: impl Fn() -> bool) {
        let inline = &instance.lanes().inline;
        while !over.load(Ordering::Relaxed) {
            if let Some(turn) = inline.take_baton() {
                let enough = &mut |_, _| enough();
                inline.hold_beside(instance.board(), &instance.router, turn, enough);
            }
            std::thread::yield_now();
        }
    }

    /// Ends the worker, also if the test fails.
    struct Ends<'a>(&'a AtomicBool);

    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_waiter_that_only_looks_on_sends_the_worker_away() {
        let instance = Instance::new(&Builder::default().entries(DEPTH as u32)).unwrap();
        instance.leave_alone();
        let file = tempfile::tempfile().unwrap();
        let is_sent_away = || instance.router.beside.is_sent_away();
        let over = AtomicBool::new(false);
        // The worker executes one write, and stays until it is sent away.
        let stays = || {
            while !is_sent_away() && !over.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            true
        };
        std::thread::scope(|scope| {
            let _over = Ends(&over);
            scope.spawn(|| hold_beside(&instance, &over, stays));
            // The waiter may have executed all writes before the worker comes.
            let rounds = (0..1_000_000).take_while(|_| !is_sent_away()).map(|_| {
                for at in 0..DEPTH as u64 {
                    let sqe = Sqe::write(file.as_raw_fd(), &b"eight of"[..], 8 * at);
                    let entry = Entry { sqe, data: 0, notify: -1 };
                    // SAFETY: the bytes are constant.
                    assert_eq!(unsafe { instance.submit(&[entry]) }.accepted, 1);
                }
                let all = DEPTH as u32;
                without_taker(|taker| instance.wait(all, all, None, None, taker));
                assert_eq!(instance.reap(all, |cqe| assert_eq!(cqe.res, 8)), all);
            });
            rounds.for_each(drop);
        });
        assert!(is_sent_away());
        instance.close();
    }

    /// In each round, reads and appends are submitted one by one, and one wait follows for all of
    /// them, with or without a deadline.
    #[test]
    fn a_worker_beside_a_waiter_repeats_loses_and_reorders_nothing() {
        let instance = Instance::new(&Builder::default().entries(2 * DEPTH as u32)).unwrap();
        instance.leave_alone();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; BLOCK]).unwrap();
        let log = tempfile::NamedTempFile::new().unwrap();
        let append = std::fs::File::options().append(true).open(log.path()).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _over = Ends(&over);
            scope.spawn(|| hold_beside(&instance, &over, || false));
            for round in 0..ROUNDS {
                let mut buffers = [[0; BLOCK]; DEPTH];
                let numbers: [[u8; 8]; DEPTH] =
                    std::array::from_fn(|at| (round * DEPTH as u64 + at as u64).to_le_bytes());
                for at in 0..DEPTH {
                    let sqe = if at % 4 == 3 {
                        Sqe::write(append.as_raw_fd(), &numbers[at][..], 0)
                    } else {
                        Sqe::read(file.as_raw_fd(), &mut buffers[at][..], 0)
                    };
                    let entry = Entry { sqe: sqe.user_data(at as u64), data: 0, notify: -1 };
                    // SAFETY: every round ends its requests before its buffers are dropped.
                    assert_eq!(unsafe { instance.submit(&[entry]) }.accepted, 1);
                }
                let all = DEPTH as u32;
                let wait = |timeout| {
                    without_taker(|taker| instance.wait(all, all, timeout, None, taker));
                };
                if round % 2 == 0 {
                    wait(Some(std::time::Duration::from_millis(10)));
                }
                // A waiter with a deadline leaves a read that would have to wait, and no other
                // worker comes here.
                wait(None);
                let mut seen = [0; DEPTH];
                let reaped = instance.reap(all, |cqe| {
                    assert_eq!(cqe.res, if cqe.user_data % 4 == 3 { 8 } else { BLOCK as i32 });
                    seen[cqe.user_data as usize] += 1;
                });
                assert_eq!((reaped, seen), (all, [1; DEPTH]));
                assert!((0..DEPTH).all(|at| at % 4 == 3 || buffers[at] == [7; BLOCK]));
            }
        });
        instance.close();
        let written = std::fs::read(log.path()).unwrap();
        let expected = (0..ROUNDS * DEPTH as u64).filter(|number| number % 4 == 3);
        assert!(written.chunks(8).eq(expected.map(|number| number.to_le_bytes())), "the order");
    }
}
