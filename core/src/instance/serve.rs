//! What a context does for engine threads and for its lanes: a worker's turn, the watchdog's check,
//! forwarding a request, and calling a thread.
//!
//! The baton is the right to execute the inline lane's requests in order. A waiter is a thread of
//! the program inside `wait`. "Patient" is said of work that may wait without end, and its workers.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Instance, Wishes};
use crate::affinity;
use crate::board::{Board, Dispatcher, Executor, without_taker};
use crate::descriptor::Asked;
use crate::errno;
use crate::exec::{self, Mode};
use crate::lane::kernel::HandOver;
use crate::lane::lanes::LANES;
use crate::lane::{PARTS, Withdraw};
use crate::request::{Expect, Kind, Route, Started};
use crate::router::facts::Facts;
use crate::router::spare::{Left, Seat};
use crate::router::tuning::{
    BESIDE_SOON_US, HOLDER_SPIN_US, QUIET_TICKS, REFUSE_TICKS, SELDOM_EVERY, STARVED_TICKS,
};
use crate::router::{self, Call, KernelScope};
use crate::sys;
use crate::threads::Threads;
use crate::threads::tenant::{
    Activity, Collecting, PoolEntry, Tenant, WATCHED_PARTS, Watched, Work,
};
use crate::word::baton::Turn;

/// Returns whether a wish was made, and clears it.
fn takes(wish: &AtomicBool) -> bool {
    // The load comes first: an exchange would take the cache line from submitters, which write this
    // word.
    wish.load(Ordering::Relaxed) && wish.swap(false, Ordering::AcqRel)
}

impl Instance {
    /// Calls a thread. The watchdog checks that the thread comes.
    #[inline]
    pub(super) fn call(&self, who: Call) {
        match who {
            Call::Nobody => {}
            Call::Waiter => self.board.wake_waiter(),
            Call::Worker => self.call_worker(Work::Ends, false),
            Call::WorkerNow => self.call_worker(Work::Ends, true),
            Call::Patient => self.call_worker(Work::MayWait, true),
            Call::Holder => {
                self.wishes.holder.store(true, Ordering::Release);
                self.call_worker(Work::Ends, true);
            }
            Call::PatientHolder => {
                self.wishes.patient_holder.store(true, Ordering::Release);
                self.call_worker(Work::MayWait, true);
            }
            Call::HandOver if self.call_reactor() => {}
            Call::InPlaceOfReactor => self.leave_to_our_threads(),
            Call::HandOver => {
                self.wishes.hand_over.store(true, Ordering::Release);
                self.call_worker(Work::Ends, true);
            }
        }
        let baton = self.lanes.inline.baton();
        if !baton.view().is_watched() && baton.watch() {
            self.watch();
        }
    }

    #[cold]
    fn watch(&self) {
        if let Some(me) = self.me.upgrade() {
            let tenant: Arc<dyn Tenant> = me;
            self.threads.get().watchdog.add(&tenant);
        }
    }

    #[inline(never)]
    fn call_worker(&self, work: Work, urgent: bool) {
        if let Some(me) = self.me.upgrade() {
            let tenant: Arc<dyn Tenant> = me;
            let threads = self.threads.get();
            let called = match work {
                Work::Ends => threads.pool.call(&tenant, urgent),
                Work::MayWait => {
                    let called = threads.patient.call(&tenant, urgent);
                    called || self.has_no_patient_worker() && threads.pool.call(&tenant, urgent)
                }
            };
            if called {
                self.board.count(|stats| &stats.wakeups);
            }
        }
    }

    /// Is there no thread for work that may wait without end, and can none be made? Then the
    /// workers for other work do it, if there are any.
    fn has_no_patient_worker(&self) -> bool {
        self.threads.patient.is_helpless()
    }

    /// Do the workers for `work` also do work of this `kind`?
    fn is_done_by(&self, work: Work, kind: Work) -> bool {
        work == kind || kind == Work::MayWait && self.has_no_patient_worker()
    }

    /// `stuck`: the watchdog has found that no thread came for requests that may wait without end.
    /// Then the context's workers are inside such requests. They are released: they no longer
    /// count, so that others may come. If no further thread can be made for long, the requests are
    /// refused. `looks` counts the checks in a row that have found this.
    fn look_after_patient(&self, stuck: bool, looks: &mut u32) {
        let pool = &self.threads.patient;
        *looks = if stuck && pool.is_exhausted() { *looks + 1 } else { 0 };
        if stuck {
            pool.release(self);
        }
        if *looks >= REFUSE_TICKS {
            self.lanes.worker.refuse(&self.board);
        }
    }

    /// Hands a started request to the poller, which waits for its descriptor.
    pub(super) fn wait_for_descriptor(&self, request: Started<'_>) {
        let owner = self.me.upgrade().expect("a context lives as long as its requests");
        request.slot().begin();
        self.threads.get().poller.add(owner, request);
    }

    /// Withdraws requests from every lane.
    pub(super) fn withdraw(&self, which: &Withdraw<'_>) {
        #[cfg(feature = "faulty")]
        if let Some(faulty) = &self.faulty {
            faulty.withdraw(&self.board, which);
        }
        self.lanes.each().iter().for_each(|lane| lane.withdraw(&self.board, which));
    }

    /// Do requests other than cold reads and large copies wait for a worker?
    fn others_wait(&self) -> bool {
        !self.lanes.pool.is_empty() || self.is_urgent(Work::Ends)
    }

    /// A worker executes a request of the pool lane.
    fn run_pooled(&self, request: Started<'_>) {
        let ticks =
            without_taker(|taker| self.lanes.execute(&self.board, request, Executor::Pool, taker));
        if ticks > 0 {
            self.threads.pool.took(ticks);
        }
    }

    /// A worker holds the baton. `bounded`: it executes nothing that may wait without end.
    fn hold(&self, turn: Turn, bounded: bool) {
        let Self { board, lanes, router, .. } = self;
        without_taker(|taker| {
            taker.bound(bounded);
            lanes.inline.hold(board, router, turn, Executor::Worker, taker, &mut |_, _| false);
        });
    }

    /// A worker's turn for work that may wait without end. False: there was no such work.
    fn serve_patiently(&self) -> bool {
        if takes(&self.wishes.patient_holder)
            && let Some(turn) = self.lanes.inline.take_baton()
        {
            self.hold(turn, false);
            return true;
        }
        self.lanes.worker.take(&self.board, |request| {
            without_taker(|taker| self.lanes.execute(&self.board, request, Executor::Pool, taker));
        })
    }

    /// Hands queued requests over to the kernel.
    pub(super) fn hand_over(&self, by: Executor) {
        let kernel = &self.lanes.kernel;
        let nobody_comes = !self.router.waiters.come();
        let alone = kernel.in_flight() == 0 && kernel.queued() == 1;
        let direct = kernel.scope() == KernelScope::Direct;
        // Before the kernel's interface is set up, it is not known whether submitters can hand over
        // by themselves.
        let stays_so = kernel.is_made() && !kernel.can_at_once();
        if by == Executor::Worker && nobody_comes && alone && direct && stays_so {
            // The program has one request at a time. This thread executes it as fast as the kernel
            // and the poller's thread together would.
            if let Some(request) = kernel.pop(&self.board) {
                return self.run_pooled(request);
            }
        }
        kernel.hand_over(&self.board, HandOver { nobody_comes, at_once: false });
        self.have_events_watched(nobody_comes);
    }

    /// A submitter hands over queued requests, although the waiter that will come would do it: the
    /// device works meanwhile. The kernel answers EAGAIN where it would wait.
    pub(super) fn hand_over_early(&self) {
        let how = HandOver { nobody_comes: false, at_once: true };
        errno::kept(|| self.lanes.kernel.hand_over(&self.board, how));
        self.have_events_watched(false);
    }

    /// A submitter hands over queued requests to the kernel, for a program that does not come to
    /// wait. No engine thread is woken. The kernel answers EAGAIN where it would wait.
    pub(super) fn hand_over_at_once(&self) {
        errno::kept(|| {
            self.lanes
                .kernel
                .hand_over(&self.board, HandOver { nobody_comes: true, at_once: true });
            // A program that looks into its ring after a submit finds what has completed meanwhile.
            let any = self.lanes.kernel.harvest_at_submit(&self.board);
            self.has_submitted(any);
        });
        let left = self.lanes.kernel.queued() > 0;
        self.call(if left { Call::HandOver } else { Call::Nobody });
    }

    /// A worker takes the baton, if it is free, and executes inline requests with it.
    fn take_turn(&self) {
        let Self { board, lanes, router, .. } = self;
        if let Some(seat) = router.beside.comes(sys::ticks) {
            self.hold_beside(seat);
        } else if let Some(turn) = lanes.inline.take_baton() {
            if sys::cpus() > 1 {
                // A worker had to be called. If the last holder had spun for a moment, that would
                // have been cheaper.
                router.holder_spin.would_have_paid(HOLDER_SPIN_US.0 * board.ticks_per_us());
            }
            self.hold(turn, true);
        } else {
            return;
        }
        if lanes.inline.has_patient_work() {
            self.call(Call::PatientHolder);
        }
    }

    /// A worker executes beside the waiting thread of the program, while the worker's CPU is idle.
    fn hold_beside(&self, seat: Seat<'_>) {
        let Self { board, lanes, router, .. } = self;
        let (begin, rate, taken) = (sys::ticks(), board.ticks_per_us(), lanes.inline.taken());
        let in_the_way = seat.is_in_the_way(begin, sys::cpu(), rate);
        let mut before = (begin, sys::use_of_this_thread());
        // Does the worker lose its CPU to other threads?
        let mut is_busy = || {
            let now = (sys::ticks(), sys::use_of_this_thread());
            let (Some(last), Some(this)) = (before.1, now.1) else { return false };
            // A thread that has slept in a request was away because of that request.
            let preempted = this.preemptions > last.preemptions && this.sleeps == last.sleeps;
            let all_us = now.0.wrapping_sub(before.0) / rate;
            if all_us > BESIDE_SOON_US {
                before = now;
            }
            preempted && router::spare::was_away(all_us, this.cpu_us - last.cpu_us)
        };
        let mut busy = in_the_way;
        if !in_the_way && let Some(turn) = self.take_baton_within(HOLDER_SPIN_US.1 * rate) {
            let mut executed = 0u64;
            lanes.inline.hold_beside(board, router, turn, &mut |_, _| {
                executed = executed.wrapping_add(1);
                busy = busy || executed.is_multiple_of(SELDOM_EVERY) && is_busy();
                busy || router.beside.is_sent_away()
            });
            busy = busy || is_busy();
            if router.beside.is_sent_away() && lanes.inline.has_work() {
                board.wake_waiter();
            }
        }
        let executed = lanes.inline.taken().wrapping_sub(taken);
        match seat.ends(busy, executed, sys::ticks(), rate) {
            Left::Busy => board.count(|stats| &stats.beside_busy),
            Left::Idle => board.count(|stats| &stats.beside_idle),
            Left::Done => {}
        }
    }

    /// Takes the baton, which a waiter may have for a moment, within this many ticks.
    fn take_baton_within(&self, longest: u64) -> Option<Turn> {
        let mut turn = None;
        sys::spin_until(longest, || {
            turn = self.lanes.inline.take_baton();
            turn.is_some()
        });
        turn
    }

    /// The watchdog checks for starvation: requests of a placed context wait (`lying`), and every
    /// worker of its CPUs is stuck. Then the context's waiters execute the requests.
    fn look_for_starvation(&self, lying: bool, looks: &mut u32) {
        if !self.is_placed.load(Ordering::Relaxed) {
            return;
        }
        let starved = self.starved.load(Ordering::Relaxed);
        let exhausted = (lying || starved) && self.threads.pool.is_exhausted();
        *looks = if exhausted { *looks + 1 } else { 0 };
        if starved != (*looks >= STARVED_TICKS) {
            self.starved.store(!starved, Ordering::SeqCst);
            self.board.completions().wake_now();
        }
    }
}

impl Tenant for Instance {
    fn board(&self) -> &Board {
        &self.board
    }

    fn entry(&self, work: Work) -> &PoolEntry {
        &self.entries[work as usize]
    }

    fn workers_max(&self) -> usize {
        self.workers_max
    }

    fn waiting(&self, work: Work) -> usize {
        let patient = self.is_done_by(work, Work::MayWait);
        let waiting = if patient { self.lanes.worker.len() } else { 0 };
        if work == Work::MayWait {
            return waiting;
        }
        let come = self.router.waiters.come();
        waiting + self.lanes.for_worker_each(come) + self.lanes.cold.for_workers(come)
    }

    fn has_wishes(&self, work: Work) -> bool {
        let wished = |wish: &AtomicBool| wish.load(Ordering::Relaxed);
        let Wishes { holder, patient_holder, hand_over } = &self.wishes;
        work == Work::Ends && (wished(holder) || wished(hand_over))
            || self.is_done_by(work, Work::MayWait) && wished(patient_holder)
    }

    fn is_urgent(&self, work: Work) -> bool {
        self.is_done_by(work, Work::MayWait) && !self.lanes.worker.is_empty()
            || self.has_wishes(work)
    }

    fn needs_worker(&self, work: Work) -> bool {
        self.waiting(work) > 0 || self.has_wishes(work)
    }

    /// A worker's turn. For work that ends: cold reads first. If there are none, or other requests
    /// wait, one of these follows: a hand-over to the kernel, one request of the pool lane, large
    /// copies, or a turn with the baton. For work that may wait: one request, or a turn with the
    /// baton.
    fn serve(&self, work: Work) {
        if self.is_done_by(work, Work::MayWait) && self.serve_patiently() || work == Work::MayWait {
            return;
        }
        let Self { board, lanes, router, .. } = self;
        let others_wait = || self.others_wait();
        if lanes.cold.work(board, || router.waiters.come(), others_wait) && !others_wait() {
            return;
        }
        if takes(&self.wishes.hand_over) {
            self.hand_over(Executor::Worker);
        } else if let Some(request) = lanes.pool.pop(board) {
            self.run_pooled(request);
        } else if lanes.copy.for_workers(router.waiters.come()) > 0 {
            lanes.copy.work(board, others_wait);
        } else if takes(&self.wishes.holder) {
            self.take_turn();
        }
    }

    fn words(&self) -> [u64; WATCHED_PARTS] {
        let mut words = [0; WATCHED_PARTS];
        for (lane, words) in self.lanes.each().iter().zip(words.chunks_exact_mut(PARTS)) {
            words.copy_from_slice(&lane.progress().map(|part| part.word));
        }
        words
    }

    fn look(&self, watched: &mut Watched) -> Activity {
        const { assert!(LANES * PARTS == WATCHED_PARTS) };
        let waiters = &self.router.waiters;
        let (mut lying, mut busy, mut calm, mut patience) = (false, false, true, false);
        for (lane, before) in self.lanes.each().iter().zip(watched.words.chunks_mut(PARTS)) {
            for (part, now) in lane.progress().into_iter().enumerate() {
                busy |= now.queued || now.in_hand;
                calm &= !now.queued || now.in_hand;
                if now.queued && now.word == before[part] {
                    let stuck = lane.unstick(&self.board, part, waiters.come());
                    if stuck.nobody_came {
                        waiters.nobody_came();
                    }
                    if let Some(call) = stuck.call {
                        lying = true;
                        patience |= call == Call::Patient;
                        self.call(call);
                    }
                }
                before[part] = now.word;
            }
        }
        self.look_for_starvation(lying, &mut watched.starved);
        self.look_after_patient(patience, &mut watched.refused);
        watched.quiet = if busy { 0 } else { watched.quiet + 1 };
        let ends = || self.lanes.inline.ends_watch(|| !self.lanes.are_empty());
        match () {
            () if watched.quiet >= QUIET_TICKS && ends() => Activity::Quiet,
            () if calm && !lying => Activity::Calm,
            () => Activity::Busy,
        }
    }

    fn is_unwatched(&self) {
        self.router.waiters.nobody_came();
        self.call(Call::Holder);
    }

    fn drive_in_poll(&self, told: &[RawFd]) -> Option<Collecting> {
        self.drive_before_sleep(told)
    }

    fn leave_poll(&self) {
        self.sleeps_unseen();
    }
}

impl Dispatcher for Instance {
    fn board(&self) -> &Board {
        &self.board
    }

    fn forward(&self, mut request: Started<'_>, to: Route, by: Executor) {
        let fd = request.sqe.fd;
        // If a file server may hold the fsync up, it goes to the worker lane: no waiter executes
        // requests of that lane while workers can be made. Requests of the pool lane may be
        // executed by a waiter.
        let remote = || !Facts::noted(fd).is_some_and(Facts::is_local);
        let to = match to {
            Route::Sync if remote() => Route::Worker,
            Route::Sync => Route::Pool,
            other => other,
        };
        request.route = to;
        if to == Route::Stream {
            return self.wait_for_descriptor(request);
        }
        // If `left` is true, no worker is called: this waiter executes the request when it next
        // looks for work.
        let left = by == Executor::Waiter && request.notify == -1 && self.is_left_to_waiter();
        // If `young` is true, a thread with a deadline has left the request to a worker. A poll may
        // still expect the request's end, so its `Expect` is not reset.
        let young = to == Route::Worker && request.may_hang;
        if !young {
            request.slot().expect(Expect::Nothing);
        }
        self.lanes.push(&self.board, to, &[request.queue()], true);
        if young {
            self.expects_one();
        }
        let call = match to {
            Route::Pool if left => Call::Nobody,
            Route::Worker => Call::Patient,
            _ => Call::WorkerNow,
        };
        self.call(call);
    }

    #[cold]
    fn reroute(&self, mut request: Started<'_>) {
        let write = request.kind == Kind::Write;
        let nothing = KernelScope::Nothing;
        let (route, stream) = router::uncommon(
            &request.sqe,
            write,
            nothing,
            &mut Asked::of(self.board.waits_where_nonblocking()),
        );
        (request.route, request.stream) = (route, stream);
        if !stream {
            return self.board.finish(request, -libc::ESPIPE, Executor::Worker);
        }
        // Earlier requests on this descriptor may be in other lanes, whose threads have not found
        // out that it is a stream.
        if route == Route::Stream || self.board.has_strays_before(request.index()) {
            return self.wait_for_descriptor(request);
        }
        // The calling thread executes the request, whichever thread it is.
        // SAFETY: vectors were copied at submit; the buffers are the request's until it completes.
        let mut execute = || unsafe { exec::execute(&mut request, Mode::Stream) };
        let quiet = write && self.board.is_to_be_quiet(true);
        let result = if quiet { sys::without_write_signals(execute) } else { execute() };
        self.board.finish(request, result, Executor::Worker);
    }

    #[inline]
    fn call(&self, who: Call) {
        Self::call(self, who);
    }

    fn note_choice(&self) {
        if let Some(counting) = self.board.counting() {
            counting.note(&self.choice());
        }
    }

    #[cfg(feature = "faulty")]
    fn submit(&self, slots: &[u32]) {
        self.push(slots);
    }

    fn place(&self, choice: &affinity::EffectivePlacement) {
        if let Some(cpus) = &choice.queue {
            self.threads.set(Threads::on(cpus));
        }
        if let Some(cpus) = &choice.completion {
            self.harvesters.set(Threads::on(cpus));
        }
        if choice.queue.is_some() || choice.completion.is_some() {
            self.router.waiters.leave_all_to_workers();
            self.is_placed.store(true, Ordering::Release);
        }
    }

    fn passed_on_ended(&self, number: u32) {
        self.threads.poller.end(number);
    }

    fn collect(&self) -> bool {
        let kernel = &self.lanes.kernel;
        let any = kernel.harvest_when_told(&self.board);
        if any && kernel.queued() > 0 {
            // The kernel has room for more requests again.
            self.call(Call::HandOver);
        }
        !self.driven.comes() || kernel.stays_watched(|| !self.driven.still_comes())
    }

    fn stays_watched(&self) -> bool {
        let kernel = &self.lanes.kernel;
        kernel.stays_watched(|| kernel.in_flight() > 0)
    }
}
