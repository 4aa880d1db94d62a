//! The workers engine: submit inline, hand over when blocked (published as "uringlet", 2022).
//!
//! Requests that are expected not to sleep are executed one after the other by whoever holds the
//! baton: a worker, or the application's own thread while it waits. Requests known
//! to sleep go to a worker each; those that wait for a descriptor to the poller. README.md in
//! this folder gives the states and the arguments.
#![allow(unsafe_code)]

pub(super) mod baton;
mod habit;
mod lane;
mod next;
mod pipeline;
mod poller;
pub(super) mod pool;
pub(super) mod threads;
mod watchdog;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::time::Duration;

use self::baton::{Baton, Release, Turn, View};
use self::habit::Habit;
use self::lane::{Flags, Lane};
use self::next::Next;
use self::pipeline::{Pipeline, Way};
use self::threads::Threads;
use super::kernel::{KernelLane, Reach};
use super::{Choice, Contract, Help};
use crate::config::{Builder, ConfigError, EngineKind};
use crate::descriptor::{self, ticks_per_us};
use crate::exec::{self, Mode};
use crate::instance::{By, Instance, Taker, without_taker};
use crate::queue::{IndexRing, SleepEnd, Sleeper};
use crate::request::{Batch, Kind};
use crate::sqe::{FILE_POSITION, Sqe};
use crate::sys;

pub(crate) use self::threads::WORKERS_MAX;

/// The longest that a worker spins for more before it gives the baton back.
const SPIN_US_MAX: u64 = 20;
/// A waiter that has enough goes on for what it can still take: this many requests at most, and
/// none after one that took this long.
const FAVOURS: u32 = 32;
const FAVOUR_US: u64 = 10;
/// A poll waits this long for a request that another thread has begun and that is not expected to sleep.
const POLL_US: u64 = 500;
/// A waiter waits this long for a worker to give it the baton.
const ASK_US: u64 = 5;
/// Workers that execute cached reads of one context side by side: more than this wait for memory.
const COPIERS_MAX: usize = 4;
/// Handing one request to the kernel takes longer than this if the kernel is not asynchronous.
const SLOW_SUBMIT_US: u64 = 60;
/// Batches for the kernel between two looks at the descriptor's flags.
const FRESH_EVERY: u32 = 64;
/// One in so many inline requests is timed, to notice files that have become slow.
const TIMED_EVERY: u64 = 8;
/// A waiter's first nap while another thread holds the baton, and the longest.
const NAP_US: (u64, u64) = (50, 1000);

/// The engine of one context. Its threads belong to the process.
#[derive(Debug)]
pub(crate) struct Workers {
    next: Next,
    baton: Baton,
    inline: IndexRing,
    /// Requests whose order can be observed, and the right to execute them, which nobody takes away.
    ordered: IndexRing,
    order: Baton,
    /// Holders that have lost the baton and are still inside their request.
    losers: AtomicUsize,
    pool: IndexRing,
    /// Requests that only a worker may execute.
    worker: IndexRing,
    /// Large copies, for any thread that comes.
    copies: IndexRing,
    /// Workers at them.
    copying: AtomicUsize,
    /// None was taken for a tick of the watchdog.
    copies_stuck: AtomicBool,
    kernel: KernelLane,
    kind: EngineKind,
    habit: Habit,
    pipeline: Pipeline,
    /// The last waiter had no deadline, so the next may take what has to be waited for.
    waits_are_unbounded: AtomicBool,
    /// The holder that a poll has waited for in vain.
    given_up: AtomicU64,
    /// How long a holder of ours last found it worth to spin, in ticks.
    spin: AtomicU64,
    /// As many of our workers may execute requests of this context at a time.
    workers_max: usize,
    seat: pool::Seat,
    threads: &'static Threads,
    ticks_per_us: u64,
}

impl Workers {
    pub(super) fn new(builder: &Builder, slots: usize) -> Result<Self, ConfigError> {
        Ok(Self {
            next: Next::new(),
            baton: Baton::new(),
            inline: IndexRing::new(slots),
            ordered: IndexRing::new(slots),
            order: Baton::new(),
            losers: AtomicUsize::new(0),
            pool: IndexRing::new(slots),
            worker: IndexRing::new(slots),
            copies: IndexRing::new(slots),
            copying: AtomicUsize::new(0),
            copies_stuck: AtomicBool::new(false),
            kernel: KernelLane::new(builder, slots)?,
            kind: builder.engine,
            habit: Habit::new(),
            pipeline: Pipeline::new(ticks_per_us()),
            waits_are_unbounded: AtomicBool::new(true),
            given_up: AtomicU64::new(0),
            spin: AtomicU64::new(0),
            workers_max: builder.workers_max,
            seat: pool::Seat::default(),
            threads: Threads::of_this_process(),
            ticks_per_us: ticks_per_us(),
        })
    }

    pub(super) fn choice(&self) -> Choice {
        let kernel = self.kernel.kind();
        Choice { engine: self.kind, kernel, refusals: self.kernel.refusals() }
    }

    /// The engine of an instance that a thread of this engine serves.
    fn of(instance: &Instance) -> &Self {
        match instance.engine() {
            super::Engine::Workers(workers) => workers,
            other => unreachable!("a worker serves {other:?}"),
        }
    }

    /// A thread of the program is expected to come and execute what is submitted.
    #[inline]
    fn waiters_execute(&self) -> bool {
        self.habit.waiters_come() && !self.pipeline.is(Way::Pipelined)
    }

    /// Gets a worker to take the baton.
    fn call_holder(&self, instance: &Arc<Instance>) {
        self.seat.want_holder();
        self.call_worker_at_once(instance);
    }

    /// No worker exists and none can be made, and the program may not come to wait: the submitter
    /// executes its own requests, as the kernel's AIO does with buffered ones.
    #[cold]
    fn run_without_workers(&self, instance: &Arc<Instance>) {
        if let Some(turn) = self.baton.take() {
            without_taker(|taker| {
                self.hold(instance, turn, By::Waiter, taker, &mut |_, _| false);
            });
        }
        let left =
            || self.pool.pop().or_else(|| self.copies.pop()).or_else(|| self.kernel.queue().pop());
        while let Some(slot) = left() {
            self.run_pooled(instance, slot);
        }
    }

    /// Gets a worker to look after requests of the pool lane, soon.
    fn call_worker(&self, instance: &Arc<Instance>) {
        if self.threads.pool.call(instance, &self.seat, false) {
            instance.count(|stats| &stats.wakeups);
        }
        // Should those at work be stuck, the watchdog calls more.
        self.watch_over(instance);
    }

    /// Gets a worker, however many are at work.
    fn call_worker_at_once(&self, instance: &Arc<Instance>) {
        if self.threads.pool.call(instance, &self.seat, true) {
            instance.count(|stats| &stats.wakeups);
        }
    }

    fn watch_over(&self, instance: &Arc<Instance>) {
        if self.baton.watch() {
            self.threads.watchdog.add(instance);
        }
    }

    /// Executes one request that the caller popped from a ring. Gives the ticks that it took, 0 if it
    /// was not timed: a transfer is timed if `timed` says so or its descriptor is suspect.
    #[inline]
    fn run(
        &self,
        instance: &Arc<Instance>,
        slot: u32,
        by: By,
        timed: bool,
        taker: &mut Taker<'_>,
    ) -> u64 {
        if !instance.start(slot) {
            return 0;
        }
        // SAFETY: started by us just now, and not passed on before the reference's last use.
        let request = unsafe { instance.slot(slot).request() };
        if by == By::Waiter || by == By::Worker {
            let lane = request.lane;
            if lane == Lane::AfterInline as u8 || lane == Lane::AfterOrdered as u8 {
                self.pass_on(instance, slot);
                return 0;
            }
        }
        self.execute(instance, slot, by, timed, taker)
    }

    /// Executes a started request.
    #[inline]
    fn execute(
        &self,
        instance: &Arc<Instance>,
        slot: u32,
        by: By,
        timed: bool,
        taker: &mut Taker<'_>,
    ) -> u64 {
        // SAFETY: started by the caller, and not passed on before the reference's last use.
        let request = unsafe { instance.slot(slot).request() };
        let kind = request.kind;
        let mode = if request.stream { Mode::Stream } else { Mode::Plain };
        let Sqe { fd, len, off, .. } = request.sqe;
        let write = kind == Kind::Write;
        let transfer = write || kind == Kind::Read;
        let timed = transfer && (timed || descriptor::is_suspect(fd, write));
        let before = if timed { sys::ticks() } else { 0 };
        // SAFETY: copied in at submit; the buffers are the request's until its completion.
        let result = unsafe { exec::execute(request, mode) };
        if transfer && result == -libc::ESPIPE && !request.stream && off != FILE_POSITION {
            self.reroute(instance, slot);
            return 0;
        }
        let ticks = if timed { sys::ticks().wrapping_sub(before) } else { 0 };
        if timed {
            descriptor::learn(fd, write, ticks, self.ticks_per_us, u64::from(len));
        }
        instance.finish_for(slot, result, by, taker);
        ticks
    }

    /// A request of the pool lane, on one of our workers or in its place.
    fn run_pooled(&self, instance: &Arc<Instance>, slot: u32) {
        let ticks = without_taker(|taker| self.run(instance, slot, By::Pool, true, taker));
        if ticks > 0 {
            self.threads.pool.took(ticks);
        }
    }

    /// What was left for its submitter's wait goes into the ring, in front of what comes. True if
    /// there was something, which the caller announces.
    fn next_to_ring(&self, instance: &Instance) -> bool {
        let Some(taken) = self.next.take() else { return false };
        instance.slot(taken.slot).queue();
        self.inline.push(&[taken.slot]);
        true
    }

    /// Submits a single inline request that nobody is told of by an eventfd.
    #[inline]
    fn submit_one(&self, instance: &Arc<Instance>, slot: u32) {
        if self.leave_to_wait(instance, slot) {
            return;
        }
        if !self.next.is_empty() {
            self.next_to_ring(instance);
        }
        instance.slot(slot).queue();
        self.inline.push(&[slot]);
        self.announce(instance, self.waiters_execute());
    }

    /// Leaves a single inline request to the wait that is expected to follow. False: not now.
    #[inline]
    fn leave_to_wait(&self, instance: &Arc<Instance>, slot: u32) -> bool {
        let not_alone = self.baton.view().is_held() || self.losers.load(Ordering::SeqCst) > 0;
        if not_alone || !self.waiters_execute() || self.has_inline_work() {
            return false;
        }
        instance.slot(slot).leave();
        let Some(watched) = self.next.put(slot) else { return false };
        if instance.completions().has_sleepers() {
            instance.completions().wake_now();
        }
        if !watched && self.next.watch() {
            self.threads.watchdog.add(instance);
        }
        true
    }

    /// To the pool, once everything is done that it has to come after.
    fn pass_on(&self, instance: &Arc<Instance>, slot: u32) {
        let started = instance.slot(slot);
        // SAFETY: started, and pushed only afterwards.
        let request = unsafe { started.request() };
        let others_first = !self.ordered.is_empty() || self.order.view().is_held();
        if request.lane == Lane::AfterInline as u8 && others_first {
            // Behind the ordered ones that came before it; it is passed on again from there.
            request.lane = Lane::AfterOrdered as u8;
            started.requeue();
            self.ordered.push(&[slot]);
            self.order.announce();
            self.announce(instance, false);
        } else {
            self.to_pool(instance, slot);
        }
    }

    /// Queues requests for the kernel, and sees to it that somebody hands them over.
    fn queue_for_kernel(&self, instance: &Arc<Instance>, slots: &[u32], helpers_come: bool) {
        let door = self.kernel.push(slots);
        if !door.is_held() {
            if !helpers_come {
                self.seat.want_hand_over();
                self.call_worker_at_once(instance);
            } else if instance.completions().has_sleepers() {
                instance.completions().wake_now();
            }
        }
        if !self.baton.view().is_watched() {
            self.watch_over(instance);
        }
    }

    /// Hands over what is queued for the kernel.
    fn hand_over(&self, instance: &Arc<Instance>, by: By) {
        let nobody_comes = !self.habit.waiters_come();
        let alone = self.kernel.in_flight() == 0 && self.kernel.queued() == 1;
        if by == By::Worker && nobody_comes && alone && self.kernel.reach() == Reach::Direct {
            // One at a time: this thread is as quick as the way through the kernel and the poller.
            if let Some(slot) = self.kernel.queue().pop() {
                return self.run_pooled(instance, slot);
            }
        }
        let slow = SLOW_SUBMIT_US * self.ticks_per_us;
        self.kernel.hand_over(
            instance,
            nobody_comes,
            &mut |slot| self.to_pool(instance, slot),
            &mut |fd, write, ticks| {
                descriptor::learn_submit(fd, write, ticks > slow);
                if self.kernel.batches().is_multiple_of(FRESH_EVERY) {
                    // O_DIRECT may have been switched off (fcntl(2)).
                    let _ = descriptor::Facts::fresh(fd);
                }
            },
        );
        if let Some(events) = self.kernel.events_to_watch(nobody_comes) {
            self.threads.poller.watch(instance, events);
        }
    }

    /// A waiter collects what the kernel has completed, and hands over what is queued.
    fn help_kernel(&self, instance: &Arc<Instance>, help: Help, taker: &mut Taker<'_>) -> bool {
        if self.kernel.queued() == 0 {
            let mut finish = |slot, result| self.finish_kernel(instance, slot, result, taker);
            return self.kernel.harvest(instance, &mut finish);
        }
        if help.min > 0 {
            self.habit.waiter_came();
        }
        let alone = self.kernel.queued() == 1 && help.unbounded;
        if alone
            && self.kernel.reach() == Reach::Direct
            && self.must_wait_for_all(instance, help.min)
        {
            // It would sleep for this one request anyway: one system call instead of two.
            if let Some(slot) = self.kernel.queue().pop() {
                self.run(instance, slot, By::Waiter, true, taker);
                return true;
            }
        }
        // First, so that the device has work while this thread collects.
        self.hand_over(instance, By::Waiter);
        let mut finish = |slot, result| self.finish_kernel(instance, slot, result, taker);
        self.kernel.harvest(instance, &mut finish)
    }

    /// Collects for a program that does not come for its completions.
    fn collect(&self, instance: &Arc<Instance>) -> bool {
        let any = without_taker(|taker| {
            let mut finish = |slot, result| self.finish_kernel(instance, slot, result, taker);
            self.kernel.harvest(instance, &mut finish)
        });
        if any && self.kernel.queued() > 0 {
            // There is room again.
            self.seat.want_hand_over();
            self.call_worker_at_once(instance);
        }
        any
    }

    /// A request has come back from the kernel.
    fn finish_kernel(
        &self,
        instance: &Arc<Instance>,
        slot: u32,
        result: i32,
        taker: &mut Taker<'_>,
    ) {
        if retried(result) {
            // Not possible there, or not now: a thread does it, or says why not. Unless the program has
            // closed the descriptor meanwhile: its number may stand for another file.
            // SAFETY: back from the kernel, so ours.
            let fd = unsafe { instance.slot(slot).request() }.sqe.fd;
            if !instance.slot(slot).names(fd) {
                return instance.finish_for(slot, result, By::Kernel, taker);
            }
            instance.slot(slot).take_back();
            return self.to_pool(instance, slot);
        }
        instance.finish_for(slot, result, By::Kernel, taker);
    }

    /// From wherever it was to the pool's queue.
    fn to_pool(&self, instance: &Arc<Instance>, slot: u32) {
        self.move_to(instance, slot, Lane::Pool, &self.pool);
    }

    /// From wherever it was to the queue of what only workers execute.
    fn to_worker(&self, instance: &Arc<Instance>, slot: u32) {
        self.move_to(instance, slot, Lane::Worker, &self.worker);
    }

    fn move_to(&self, instance: &Arc<Instance>, slot: u32, lane: Lane, queue: &IndexRing) {
        let started = instance.slot(slot);
        // SAFETY: started, and pushed only afterwards.
        unsafe { started.request() }.lane = lane as u8;
        started.requeue();
        queue.push(&[slot]);
        self.call_worker_at_once(instance);
    }

    /// A positional call found no offsets: the descriptor is a stream.
    #[cold]
    fn reroute(&self, instance: &Arc<Instance>, slot: u32) {
        // SAFETY: started by the caller.
        let request = unsafe { instance.slot(slot).request() };
        let kind = request.kind;
        let _ = descriptor::Facts::fresh(request.sqe.fd);
        let (lane, stream) = lane::choose(&request.sqe, kind, Reach::Nothing, &mut Flags::new());
        (request.lane, request.stream) = (lane as u8, stream);
        match (lane, stream) {
            (_, false) => instance.finish(slot, -libc::ESPIPE, By::Worker),
            (Lane::Poll, true) => self.threads.poller.add(instance, slot),
            (_, true) => {
                // SAFETY: as for `run`.
                let result = unsafe { exec::execute(request, Mode::Stream) };
                instance.finish(slot, result, By::Worker);
            }
        }
    }

    /// Holds the baton until nothing is waiting, `enough` says so, or it is taken away.
    fn hold(
        &self,
        instance: &Arc<Instance>,
        mut turn: Turn,
        by: By,
        taker: &mut Taker<'_>,
        enough: &mut dyn FnMut(u64, u32) -> bool,
    ) {
        loop {
            if !self.ordered.is_empty() && self.hold_order(instance, by, taker, enough) {
                return self.lay_down(instance, turn);
            }
            if let Some(slot) = self.inline.pop() {
                if self.is_overtaking() && self.defer_append(instance, slot) {
                    continue;
                }
                let timed = turn.number().is_multiple_of(TIMED_EVERY);
                let ticks = self.run(instance, slot, by, timed, taker);
                if by == By::Worker && self.gives_way() {
                    self.lay_down(instance, turn);
                    if instance.completions().has_sleepers() {
                        instance.completions().wake_now();
                    }
                    return;
                }
                if self.inline.is_empty() {
                    // Fall through to the release: it notices what was announced meanwhile.
                } else if enough(ticks, taker.taken()) {
                    return self.lay_down(instance, turn);
                } else {
                    match self.baton.proceed(turn) {
                        Some(next) => turn = next,
                        None => return self.lost(instance),
                    }
                    continue;
                }
            }
            if by == By::Worker && !self.waiters_execute() {
                self.spin_for_work();
            }
            match self.baton.release(turn) {
                Release::Free => return,
                Release::Lost => return self.lost(instance),
                Release::Work(same) => match self.baton.proceed(same) {
                    Some(next) => turn = next,
                    None => return self.lost(instance),
                },
            }
        }
    }

    /// A worker gives the baton to a waiter that came for it: it executes without waking anybody.
    fn gives_way(&self) -> bool {
        // One that came once, and does not any more, must not stop a worker that is needed.
        self.seat.waiter_wants.load(Ordering::Relaxed)
            && self.waiters_execute()
            && self.seat.waiter_wants.swap(false, Ordering::Relaxed)
    }

    /// Asks the worker that holds the baton for it, and waits for as long as a request that does
    /// not sleep takes. Gives the baton as it is then.
    #[cold]
    fn ask_for_baton(&self) -> View {
        self.seat.waiter_wants.store(true, Ordering::Relaxed);
        let begin = sys::ticks();
        loop {
            let view = self.baton.view();
            let over = sys::ticks().wrapping_sub(begin) > ASK_US * self.ticks_per_us;
            if !view.is_held() || over || threads::cpus() == 1 {
                return view;
            }
            std::hint::spin_loop();
        }
    }

    /// Executes requests that any thread may, as long as it pays to stay.
    fn help_copy(&self, instance: &Arc<Instance>, help: Help, taker: &mut Taker<'_>) -> bool {
        let (mut executed, before) = (0, taker.taken());
        while let Some(slot) = self.copies.pop() {
            let ticks = self.run(instance, slot, By::Waiter, true, taker);
            executed += 1;
            let taken = taker.taken() - before;
            let slow = ticks > FAVOUR_US * self.ticks_per_us;
            // What workers have completed meanwhile is on a line that they write to: looked at seldom.
            let look = executed % 8 == 0 && help.max < u32::MAX;
            let available = if look { instance.completions().available() } else { 0 };
            if slow || executed >= FAVOURS || taken + available >= help.max {
                break;
            }
        }
        if executed > 0 && help.min > 0 {
            self.habit.waiter_came();
        }
        executed > 0
    }

    /// A worker executes requests that any thread may until there are none, and looks out for more
    /// for a while: submitters need not call it then.
    fn work_at_copies(&self, instance: &Arc<Instance>) {
        self.copies_stuck.store(false, Ordering::Relaxed);
        self.copying.fetch_add(1, Ordering::SeqCst);
        loop {
            let mut idle_since = sys::ticks();
            loop {
                if let Some(slot) = self.copies.pop() {
                    without_taker(|taker| self.run(instance, slot, By::Pool, true, taker));
                    idle_since = sys::ticks();
                    if self.others_wait() {
                        // Back to the queue of contexts, which serves them in turn.
                        self.copying.fetch_sub(1, Ordering::SeqCst);
                        return;
                    }
                } else if sys::ticks().wrapping_sub(idle_since) > self.copy_patience() {
                    break;
                }
                std::hint::spin_loop();
            }
            self.copying.fetch_sub(1, Ordering::SeqCst);
            // Pairs with the fence of a submitter: it sees that nobody is here, or this its requests.
            fence(Ordering::SeqCst);
            if self.copies.is_empty() {
                return;
            }
            self.copying.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Requests that neither the baton's word nor the next cell tells of.
    fn has_more(&self) -> bool {
        let door = self.kernel.door().view().is_held();
        self.for_workers() > 0 || !self.copies.is_empty() || !self.kernel.is_idle() || door
    }

    /// Requests of other lanes wait for a worker.
    fn others_wait(&self) -> bool {
        !self.pool.is_empty() || self.needs_worker_at_once()
    }

    /// How long a worker without work looks out for more, in ticks.
    fn copy_patience(&self) -> u64 {
        if self.pipeline.is(Way::SideBySide) { SPIN_US_MAX * self.ticks_per_us } else { 0 }
    }

    /// Workers are at the last of the requests that this waiter waits for: looks out for them as
    /// long as a few take. True if enough has come, or more to execute.
    fn wait_for_copiers(&self, instance: &Instance, min: u32) -> bool {
        let begin = sys::ticks();
        while self.copying.load(Ordering::Relaxed) > 0 {
            if instance.completions().available() >= min || !self.copies.is_empty() {
                return true;
            }
            if sys::ticks().wrapping_sub(begin) > SPIN_US_MAX * self.ticks_per_us {
                return false;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Has workers come to the requests that any thread may execute, if there are too few.
    fn call_for_copies(&self, instance: &Arc<Instance>, helpers_come: bool) {
        fence(Ordering::SeqCst);
        // The waiter takes one, and workers what it has no hands for.
        if helpers_come && self.copies.len() == 1 && !instance.completions().has_sleepers() {
            if !self.baton.view().is_watched() {
                self.watch_over(instance);
            }
        } else {
            if self.copies_for_workers() > 0 {
                self.call_worker(instance);
            } else if instance.completions().has_sleepers() {
                instance.completions().wake_now();
            }
            if !self.baton.view().is_watched() {
                self.watch_over(instance);
            }
        }
    }

    /// A worker executes what this waiter waits for: looks out for it as long as a few requests take.
    /// `None`: enough has come. Else the baton as it is then.
    fn wait_for_pipeline(&self, instance: &Instance, min: u32) -> Option<View> {
        let begin = sys::ticks();
        loop {
            if instance.completions().available() >= min {
                return None;
            }
            let view = self.baton.view();
            let over = sys::ticks().wrapping_sub(begin) > SPIN_US_MAX * self.ticks_per_us;
            if !view.is_held() || over {
                return Some(view);
            }
            std::hint::spin_loop();
        }
    }

    /// Gives the baton back although requests are left.
    fn lay_down(&self, instance: &Arc<Instance>, turn: Turn) {
        if !self.baton.leave(turn) {
            self.lost(instance);
        }
    }

    /// Takes the baton away from a holder that has been in one request for too long. False: it has gone on.
    fn steal(&self, instance: &Arc<Instance>, view: View) -> bool {
        // Before the fact, so that whoever takes the baton next knows.
        self.losers.fetch_add(1, Ordering::SeqCst);
        let stolen = self.baton.steal(view);
        if stolen {
            instance.count(|stats| &stats.handovers);
        } else {
            self.one_loser_less(instance);
        }
        stolen
    }

    /// A holder that has lost the baton is through with its request.
    #[cold]
    fn lost(&self, instance: &Arc<Instance>) {
        instance.count(|stats| &stats.after_losing_baton);
        self.one_loser_less(instance);
    }

    fn one_loser_less(&self, instance: &Arc<Instance>) {
        self.losers.fetch_sub(1, Ordering::SeqCst);
        // Pairs with the fence in `hold_order`: ordered requests are seen here, or this there.
        fence(Ordering::SeqCst);
        if !self.ordered.is_empty() {
            // They may have waited for it.
            self.order.announce();
            self.announce(instance, self.waiters_execute());
        }
    }

    /// Would an inline request overtake one that was submitted before it?
    #[inline]
    fn is_overtaking(&self) -> bool {
        self.losers.load(Ordering::SeqCst) > 0
            || !self.ordered.is_empty()
            || self.order.view().is_held()
    }

    /// An append that is in the inline lane, because its descriptor's number stood for another file
    /// when it was last looked at, must not overtake: it goes behind the ordered ones. False: it is none.
    #[cold]
    fn defer_append(&self, instance: &Instance, slot: u32) -> bool {
        // SAFETY: popped by us, so not freed; only read, as whoever cancels it at this moment does.
        let request = unsafe { instance.slot(slot).request() };
        if request.kind != Kind::Write || !descriptor::Facts::appends_now(request.sqe.fd) {
            return false;
        }
        let _ = descriptor::Facts::fresh(request.sqe.fd);
        self.ordered.push(&[slot]);
        self.order.announce();
        true
    }

    /// Executes ordered requests until there are none, or `enough` says so (true). Whoever blocks
    /// here may lose the baton, and the ordered requests wait for him all the same.
    #[cold]
    fn hold_order(
        &self,
        instance: &Arc<Instance>,
        by: By,
        taker: &mut Taker<'_>,
        enough: &mut dyn FnMut(u64, u32) -> bool,
    ) -> bool {
        fence(Ordering::SeqCst);
        if self.losers.load(Ordering::SeqCst) > 0 {
            // One of them may be at an append; it announces these when it is through.
            return false;
        }
        let Some(mut turn) = self.order.take() else { return false };
        loop {
            while let Some(slot) = self.ordered.pop() {
                let ticks = self.run(instance, slot, by, true, taker);
                if enough(ticks, taker.taken()) && !self.ordered.is_empty() {
                    self.order.leave(turn);
                    // The baton may be somebody else's by now, who has not seen these.
                    self.announce(instance, self.waiters_execute());
                    return true;
                }
            }
            match self.order.release(turn) {
                Release::Work(same) => turn = self.order.proceed(same).expect("nobody steals it"),
                Release::Free | Release::Lost => return false,
            }
        }
    }

    /// Says that requests were pushed, and sees to it that somebody executes them.
    #[inline]
    fn announce(&self, instance: &Arc<Instance>, helpers_come: bool) {
        let seen = self.baton.announce();
        if !seen.is_held() {
            if !helpers_come {
                self.call_holder(instance);
            } else if instance.completions().has_sleepers() {
                instance.completions().wake_now();
            }
        }
        if !seen.is_watched() {
            self.watch_over(instance);
        }
    }

    /// Is there something for a holder of the baton?
    #[inline]
    fn has_inline_work(&self) -> bool {
        !self.inline.is_empty() || self.has_ordered_work()
    }

    fn has_ordered_work(&self) -> bool {
        !self.ordered.is_empty()
            && !self.order.view().is_held()
            && self.losers.load(Ordering::SeqCst) == 0
    }

    /// Waits a little for more, if that has been worth it lately. Bounded; none on one CPU.
    fn spin_for_work(&self) {
        let budget = self.spin.load(Ordering::Relaxed);
        if budget == 0 {
            return;
        }
        let begin = sys::ticks();
        loop {
            if self.baton.view().has_work() {
                let longest = SPIN_US_MAX * self.ticks_per_us;
                self.spin.store((budget + budget / 4).min(longest), Ordering::Relaxed);
                return;
            }
            if sys::ticks().wrapping_sub(begin) > budget {
                self.spin.store(budget / 2, Ordering::Relaxed);
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// A worker had to be called: a short spin before would have been cheaper.
    fn spin_pays(&self) {
        if threads::cpus() > 1 {
            let least = 2 * self.ticks_per_us;
            self.spin.fetch_max(least, Ordering::Relaxed);
        }
    }

    /// What a worker does for a context that it was called for: one request of the pool lane, or
    /// else a turn with the baton.
    fn serve(&self, instance: &Arc<Instance>) {
        if self.seat.takes_hand_over() {
            self.hand_over(instance, By::Worker);
        } else if let Some(slot) = self.pool.pop().or_else(|| self.worker.pop()) {
            self.run_pooled(instance, slot);
        } else if self.copies_for_workers() > 0 {
            self.work_at_copies(instance);
        } else if self.seat.takes_holder()
            && let Some(turn) = self.baton.take()
        {
            self.spin_pays();
            without_taker(|taker| {
                self.hold(instance, turn, By::Worker, taker, &mut |_, _| false);
            });
        }
    }

    /// Waits for the holder of the baton to finish what it executes, unless that takes long.
    #[cold]
    fn wait_for_holder(&self, mut view: View) -> View {
        let before = View::from_word(self.given_up.load(Ordering::Relaxed));
        if view.is_stuck_since(before) {
            return view;
        }
        let begin = sys::ticks();
        while view.is_held() && sys::ticks().wrapping_sub(begin) < POLL_US * self.ticks_per_us {
            std::thread::yield_now();
            view = self.baton.view();
        }
        if view.is_held() {
            self.given_up.store(view.word(), Ordering::Relaxed);
        }
        view
    }

    fn purge_queue(instance: &Instance, queue: &IndexRing) {
        for _ in 0..queue.len() {
            let Some(slot) = queue.pop() else { return };
            if instance.slot(slot).is_canceled() {
                instance.start(slot);
            } else {
                queue.push(&[slot]);
            }
        }
    }

    /// Is there something for a worker to do?
    fn needs_worker(&self) -> bool {
        self.for_workers() > 0 || self.seat.wants_holder() || self.seat.wants_hand_over()
    }

    /// Is there something that must not wait for those that are at work?
    fn needs_worker_at_once(&self) -> bool {
        !self.worker.is_empty() || self.seat.wants_holder() || self.seat.wants_hand_over()
    }

    /// How many requests have been taken for execution, by holders and by workers of their own.
    fn taken(&self) -> (u64, u64) {
        let inline = self.inline.taken() + self.ordered.taken();
        (
            inline,
            self.pool.taken()
                + self.worker.taken()
                + self.copies.taken()
                + self.kernel.queue().taken(),
        )
    }

    /// Requests that wait for a worker each.
    fn for_workers(&self) -> usize {
        self.pool.len() + self.worker.len() + self.copies_for_workers()
    }

    /// Large copies for which there are CPUs, this thread's own not counted.
    fn copies_for_workers(&self) -> usize {
        let most = if self.waiters_execute() { threads::cpus() - 1 } else { threads::cpus() };
        let most = most.min(COPIERS_MAX);
        if self.copies_stuck.load(Ordering::Relaxed) {
            // Those at them sleep, which cached reads do not usually.
            return self.copies.len().min(1);
        }
        let at_them = self.copying.load(Ordering::Relaxed);
        self.copies.len().min(most.max(1).saturating_sub(at_them))
    }

    /// Every request of this context that is neither completed nor reaped would have to be waited
    /// for by somebody who waits for `min`.
    fn must_wait_for_all(&self, instance: &Instance, min: u32) -> bool {
        !instance.free_slots().held_more_than(min as usize)
    }

    fn may_take(&self, instance: &Instance, help: Help) -> bool {
        let helpless = self.threads.pool.is_helpless();
        !self.pool.is_empty()
            && (helpless || help.unbounded && self.must_wait_for_all(instance, help.min))
            || helpless && !self.worker.is_empty()
    }

    /// Helps with all but a request left for its submitter's wait.
    fn help_more(&self, instance: &Arc<Instance>, help: Help, taker: &mut Taker<'_>) -> bool {
        let mut view = self.baton.view();
        if help.min == 0 && view.is_held() {
            // A poll that comes while another thread executes: what it has begun is not to be missed.
            view = self.wait_for_holder(view);
        }
        if help.min > 0 && self.pipeline.is(Way::Pipelined) && view.is_held() {
            match self.wait_for_pipeline(instance, help.min) {
                None => return true,
                Some(now) => view = now,
            }
        }
        if view.has_work() || self.has_inline_work() {
            if help.min > 0 || view.has_work() {
                self.habit.waiter_came();
            }
            let ask = view.is_held() && help.min > 0 && !self.pipeline.is(Way::Pipelined);
            if ask && self.has_inline_work() {
                view = self.ask_for_baton();
            }
            if !view.is_held()
                && let Some(turn) = self.baton.take()
            {
                let (mut executed, before) = (0, taker.taken());
                self.hold(instance, turn, By::Waiter, taker, &mut |ticks, taken| {
                    executed += 1;
                    let slow = ticks > FAVOUR_US * self.ticks_per_us;
                    let available = instance.completions().available() + taken - before;
                    // Who only looks expects to see everything that did not sleep.
                    let favour = help.min > 0 && available >= help.min;
                    available >= help.max || favour && (slow || executed >= FAVOURS)
                });
                return true;
            }
        } else if help.min > 0 {
            self.habit.waiter_came();
        }
        if help.min > 0 && self.waits_are_unbounded.load(Ordering::Relaxed) != help.unbounded {
            self.waits_are_unbounded.store(help.unbounded, Ordering::Relaxed);
        }
        if self.may_take(instance, help) {
            let mut slot = self.pool.pop();
            if slot.is_none() && self.threads.pool.is_helpless() {
                slot = self.worker.pop();
            }
            if let Some(slot) = slot {
                self.run(instance, slot, By::Waiter, true, taker);
                return true;
            }
        } else if !self.pool.is_empty() {
            // Left for a waiter, but not for one with a deadline.
            self.call_worker(instance);
        }
        false
    }
}

/// Answers of the kernel lane that say nothing about the request. Cancelled by nobody here: io_uring
/// does it when the thread that has submitted ends, or when it can make no thread of its own.
fn retried(result: i32) -> bool {
    use libc::{EAGAIN, ECANCELED, EINTR, ENOSYS, EOPNOTSUPP, ESPIPE};
    matches!(-result, EAGAIN | EOPNOTSUPP | ENOSYS | EINTR | ESPIPE | ECANCELED)
}

impl Contract for Workers {
    #[inline]
    fn submit(&self, instance: &Arc<Instance>, slots: &[u32]) {
        let mut flags = Flags::new();
        let side_by_side = self.pipeline.is(Way::SideBySide);
        if let [slot] = *slots {
            // SAFETY: filled by the submitter, which has not passed it on yet.
            let request = unsafe { instance.slot(slot).request() };
            let (lane, stream) =
                lane::choose(&request.sqe, request.kind, self.kernel.reach(), &mut flags);
            let for_all = side_by_side && request.kind == Kind::Read;
            if lane == Lane::Inline && request.notify < 0 && !for_all {
                (request.lane, request.stream) = (lane as u8, stream);
                return self.submit_one(instance, slot);
            }
        }
        let moved = !self.next.is_empty() && self.next_to_ring(instance);
        let (mut inline, mut pool, mut kernel) = (Batch::new(), Batch::new(), Batch::new());
        let mut copies = Batch::new();
        let (mut notifies, mut ordered, mut for_worker) = (false, false, false);
        for &slot in slots {
            // SAFETY: filled by the submitter, which has not passed it on yet.
            let request = unsafe { instance.slot(slot).request() };
            let kind = request.kind;
            let (lane, stream) =
                match lane::choose(&request.sqe, kind, self.kernel.reach(), &mut flags) {
                    // Not worth a call: it completes with its error.
                    (Lane::Kernel, _) if request.refused != 0 => (Lane::Inline, false),
                    (Lane::Inline, false) if side_by_side && kind == Kind::Read => {
                        (Lane::Copy, false)
                    }
                    chosen => chosen,
                };
            (request.lane, request.stream) = (lane as u8, stream);
            notifies |= request.notify >= 0;
            instance.slot(slot).queue();
            match lane {
                Lane::Inline | Lane::AfterInline | Lane::AfterOrdered => inline.push(slot),
                Lane::Ordered => {
                    self.ordered.push(&[slot]);
                    ordered = true;
                }
                Lane::Pool => pool.push(slot),
                Lane::Kernel => kernel.push(slot),
                Lane::Copy => copies.push(slot),
                Lane::Worker => {
                    self.worker.push(&[slot]);
                    for_worker = true;
                }
                Lane::Poll => {
                    if instance.start(slot) {
                        self.threads.poller.add(instance, slot);
                    }
                }
            }
        }
        // Whoever waits for an eventfd is not inside `wait`.
        let helpers_come = !notifies && self.waiters_execute();
        if !inline.as_slice().is_empty() {
            self.inline.push(inline.as_slice());
        }
        if ordered {
            self.order.announce();
        }
        if moved || ordered || !inline.as_slice().is_empty() {
            self.announce(instance, helpers_come);
        }
        if for_worker {
            self.call_worker_at_once(instance);
        }
        if !copies.as_slice().is_empty() {
            self.copies.push(copies.as_slice());
            self.call_for_copies(instance, helpers_come);
        }
        if !kernel.as_slice().is_empty() {
            self.queue_for_kernel(instance, kernel.as_slice(), helpers_come);
        }
        if !pool.as_slice().is_empty() {
            self.pool.push(pool.as_slice());
            let left_to_waiter = helpers_come
                && self.waits_are_unbounded.load(Ordering::Relaxed)
                && pool.as_slice().len() == 1
                && self.must_wait_for_all(instance, 1)
                && !instance.completions().has_sleepers();
            if left_to_waiter {
                self.watch_over(instance);
            } else {
                self.call_worker(instance);
            }
        }
        if !helpers_come && self.threads.pool.is_helpless() {
            self.run_without_workers(instance);
        }
    }

    #[inline]
    fn help(&self, instance: &Arc<Instance>, help: Help, taker: &mut Taker<'_>) -> bool {
        if !self.kernel.is_idle() && self.help_kernel(instance, help, taker) {
            return true;
        }
        if help.min > 0 {
            let count = self.inline.taken() + self.copies.taken();
            if self.pipeline.is_due(count) {
                let queued = instance.free_slots().held_more_than(1);
                self.pipeline.next_window(count, sys::ticks(), queued, &self.threads.busy);
            }
        }
        if !self.copies.is_empty() && self.help_copy(instance, help, taker) {
            return true;
        }
        if help.min > 0
            && self.pipeline.is(Way::SideBySide)
            && self.wait_for_copiers(instance, help.min)
        {
            return true;
        }
        if !self.has_inline_work()
            && let Some(taken) = self.next.take()
        {
            instance.slot(taken.slot).begin();
            let timed = taken.number.is_multiple_of(TIMED_EVERY);
            self.execute(instance, taken.slot, By::Waiter, timed, taker);
            self.habit.waiter_came();
            return true;
        }
        self.help_more(instance, help, taker)
    }

    fn has_help_to_offer(&self, instance: &Instance, help: Help) -> bool {
        let view = self.baton.view();
        view.has_work() && !view.is_held()
            || !self.next.is_empty()
            || self.kernel.has_help_to_offer()
            || !self.copies.is_empty()
            || self.may_take(instance, help)
    }

    fn sleep(
        &self,
        instance: &Arc<Instance>,
        sleeper: &Sleeper<'_>,
        time: Option<Duration>,
        mask: Option<u64>,
        taker: &mut Taker<'_>,
    ) -> SleepEnd {
        let mut finish = |slot, result| self.finish_kernel(instance, slot, result, taker);
        self.kernel
            .sleep(instance, sleeper, time, mask, &mut finish)
            .unwrap_or_else(|| instance.completions().sleep_with(sleeper, time, mask))
    }

    fn nap(&self, nap: u32) -> Option<Duration> {
        // Watched only while a holder has requests behind it.
        let held = self.baton.view().is_held() && !self.inline.is_empty();
        held.then(|| Duration::from_micros((NAP_US.0 << (nap / 2).min(5)).min(NAP_US.1)))
    }

    fn watch(&self, instance: &Arc<Instance>) {
        let view = self.baton.view();
        if !view.is_held() || self.inline.is_empty() {
            return;
        }
        let last = self.seat.last_view.swap(view.word(), Ordering::Relaxed);
        if last == view.word() && self.steal(instance, view) && !self.habit.waiters_come() {
            self.call_holder(instance);
        }
    }

    fn purge(&self, instance: &Arc<Instance>) {
        Self::purge_queue(instance, &self.pool);
        Self::purge_queue(instance, &self.worker);
        Self::purge_queue(instance, &self.copies);
        Self::purge_queue(instance, self.kernel.queue());
        if let Some(turn) = self.baton.take() {
            Self::purge_queue(instance, &self.inline);
            self.lay_down(instance, turn);
        }
        // Here the order stays as it is: only what is in front goes.
        if let Some(turn) = self.order.take() {
            while let Some(slot) = self.ordered.pop_if(|slot| instance.slot(slot).is_canceled()) {
                instance.start(slot);
            }
            self.order.leave(turn);
        }
    }

    fn drain(&self, instance: &Instance) {
        self.kernel.harvest(instance, &mut |slot, result| {
            if retried(result) {
                // Ended below, as one that was not begun.
                instance.slot(slot).take_back();
                instance.slot(slot).requeue();
                self.pool.push(&[slot]);
            } else {
                instance.finish(slot, result, By::Kernel);
            }
        });
        if let Some(taken) = self.next.take() {
            instance.slot(taken.slot).queue();
            instance.end_popped(taken.slot);
        }
        let unordered = [&self.pool, &self.worker, &self.copies, self.kernel.queue()];
        for queue in [&self.inline, &self.ordered].into_iter().chain(unordered) {
            while let Some(slot) = queue.pop() {
                instance.end_popped(slot);
            }
        }
    }

    fn closed(&self) {
        self.kernel.close();
    }

    fn is_handing_over(&self) -> bool {
        self.kernel.is_handing_over()
    }

    fn retract(&self, instance: &Instance, slot: u32, key: u64) -> bool {
        self.next.remove(slot, || instance.slot(slot).key() == key)
            || self.threads.poller.remove(instance, slot, key)
    }
}
