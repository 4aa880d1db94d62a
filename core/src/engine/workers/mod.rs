//! The workers engine: submit inline, hand over when blocked (published as "uringlet", 2022).
//!
//! Requests that are expected not to sleep are executed one after the other by whoever holds the
//! baton: a worker, or the application's own thread while it waits. Requests known
//! to sleep go to a worker each, but for small cached reads, which are tried first; those that wait for a descriptor to
//! the poller. README.md in this folder gives the states and the arguments.
#![allow(unsafe_code)]

pub(super) mod baton;
mod cold;
mod fast;
mod fsync;
mod habit;
mod hold;
mod lane;
mod left;
mod mailbox;
mod parts;
mod place;
mod poller;
mod pool;
mod readers;
mod settle;
mod split;
mod stacks;
mod submit;
mod syncs;
pub(crate) mod threads;
mod wait;
mod watchdog;
mod work;

use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use once_cell::race::OnceBox;

use self::baton::Baton;
use self::cold::Cold;
use self::fsync::each_linked;
use self::habit::Habit;
use self::lane::{Flags, Lane};
use self::mailbox::{Mailbox, Taken};
use self::parts::Gain;
use self::split::Split;
use self::syncs::Syncs;
use self::threads::{Threads, ThreadsOf};
use super::kernel::{KernelLane, Reach};
use super::{Choice, Contract, Help};
use crate::config::{Builder, ConfigError, EngineKind};
use crate::descriptor::{self, ticks_per_us};
use crate::exec::{self, Mode};
use crate::instance::{By, Instance, Taker, without_taker};
use crate::own::{Copied, Copies};
use crate::queue::{IndexRing, SleepEnd, Sleeper};
use crate::request::{Expect, Kind, Slot};
use crate::sqe::{FILE_POSITION, Sqe, opcode};
use crate::sync::lock;
use crate::sys;

pub(crate) use self::threads::WORKERS_MAX;

/// The longest that a worker spins for more before it gives the baton back.
const SPIN_US_MAX: u64 = 20;
/// Handing one request to the kernel takes longer than this if the kernel is not asynchronous.
const SLOW_SUBMIT_US: u64 = 60;
/// Batches for the kernel between two looks at the descriptor's flags.
const FRESH_EVERY: u32 = 64;
/// One in so many inline requests is timed, to notice files that have become slow.
const TIMED_EVERY: u64 = 8;
/// Bytes of a buffer that are asked for before the call that uses them: as many lines as a CPU fetches at a time.
const PREFETCH_MAX: usize = 1024;
/// A waiter's first nap while another thread holds the baton, and the longest.
const NAP_US: (u64, u64) = (50, 1000);

/// The engine of one context. Its threads belong to the process.
#[derive(Debug)]
pub(crate) struct Workers {
    mailbox: Mailbox,
    baton: Baton,
    inline: IndexRing,
    /// Requests whose order can be observed, and the right to execute them, which nobody takes away.
    ordered: IndexRing,
    order: Baton,
    /// Holders that have lost the baton and are still inside their request.
    losers: AtomicUsize,
    pool: IndexRing,
    /// Fsyncs under way, and those that wait for one.
    syncs: Syncs,
    /// Requests that only a worker may execute.
    worker: IndexRing,
    /// Other descriptors of files that the program has closed, for those of these requests that were on them.
    kept: Mutex<Vec<(u32, Arc<Copied>)>>,
    /// Large copies, for any thread that comes.
    copies: IndexRing,
    /// Workers at them.
    copying: AtomicUsize,
    /// None was taken for a tick of the watchdog.
    copies_stuck: AtomicBool,
    /// One of them that is done in parts, and whether that is quicker.
    split: Split,
    gain: Gain,
    /// Made with the first cold read: most contexts have none.
    cold: OnceBox<Cold>,
    kernel: KernelLane,
    kind: EngineKind,
    habit: Habit,
    /// The last waiter had no deadline, so the next may take what has to be waited for.
    waits_are_unbounded: AtomicBool,
    /// Ordered requests that threads with a deadline do not execute.
    wary_ordered: AtomicUsize,
    /// Requests may be there whose end a poll may expect.
    expected: AtomicU32,
    /// How long a holder of ours last found it worth to spin, in ticks.
    spin: AtomicU64,
    /// As many of our workers may execute requests of this context at a time.
    workers_max: usize,
    seat: pool::Seat,
    threads: ThreadsOf,
    /// Those that collect what the kernel has completed, for a program that does not come.
    harvesters: ThreadsOf,
    /// Requests and completions have CPUs of their own: threads of the program only sleep.
    placed: AtomicBool,
    /// Unless all workers there are stuck.
    starved: AtomicBool,
    ticks_per_us: u64,
}

impl Workers {
    pub(super) fn new(builder: &Builder, slots: usize) -> Result<Self, ConfigError> {
        Ok(Self {
            mailbox: Mailbox::new(),
            baton: Baton::new(),
            inline: IndexRing::new(slots),
            ordered: IndexRing::new(slots),
            order: Baton::new(),
            losers: AtomicUsize::new(0),
            pool: IndexRing::new(slots),
            syncs: Syncs::new(),
            worker: IndexRing::new(slots),
            kept: Mutex::default(),
            copies: IndexRing::new(slots),
            copying: AtomicUsize::new(0),
            copies_stuck: AtomicBool::new(false),
            split: Split::new(),
            gain: Gain::default(),
            cold: OnceBox::new(),
            kernel: KernelLane::new(builder, slots)?,
            kind: builder.engine,
            habit: Habit::new(),
            waits_are_unbounded: AtomicBool::new(true),
            wary_ordered: AtomicUsize::new(0),
            expected: AtomicU32::new(0),
            spin: AtomicU64::new(0),
            workers_max: builder.workers_max,
            seat: pool::Seat::default(),
            threads: ThreadsOf::new(Threads::of_this_process()),
            harvesters: ThreadsOf::new(Threads::of_this_process()),
            placed: AtomicBool::new(false),
            starved: AtomicBool::new(false),
            ticks_per_us: ticks_per_us(),
        })
    }

    pub(super) fn choice(&self) -> Choice {
        let kernel = self.kernel.kind();
        Choice { engine: self.kind, kernel, refusals: self.kernel.refusals() }
    }

    /// What does not sleep is executed by threads of the process, and never handed to the kernel.
    pub(super) fn keeps_inline(&self) -> bool {
        matches!(self.kind, EngineKind::Auto | EngineKind::Workers)
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
        self.habit.waiters_come()
    }

    /// Gets a worker to take the baton.
    fn call_holder(&self, instance: &Arc<Instance>) {
        self.seat.want_holder();
        self.call_worker_at_once(instance);
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

    #[inline]
    fn watch_over(&self, instance: &Arc<Instance>) {
        if !self.baton.view().is_watched() && self.baton.watch() {
            self.threads.watchdog.add(instance);
        }
    }

    /// Executes one request that the caller popped from a ring. Gives the ticks that it took, 0 if it
    /// was not timed: a transfer is timed if `timed` says so or its descriptor is suspect.
    #[inline(never)]
    fn run(
        &self,
        instance: &Arc<Instance>,
        slot: u32,
        by: By,
        timed: bool,
        taker: &mut Taker<'_>,
    ) -> u64 {
        self.run_here(instance, slot, by, timed, taker)
    }

    /// As [`Workers::run`], without a call.
    #[inline(always)]
    fn run_here(
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
            let passes = lane == Lane::AfterInline as u8 || lane == Lane::AfterOrdered as u8;
            if passes && !self.is_quick_sync(request) {
                self.pass_on(instance, slot, by);
                return 0;
            }
        }
        self.execute(instance, slot, by, timed, taker)
    }

    /// Executes a started request.
    #[inline(always)]
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
        if request.wary && taker.is_bounded() && !self.threads.pool.is_helpless() {
            return self.try_or_leave(instance, slot, by, taker);
        }
        if by == By::Waiter
            && !timed
            && taker.has_room()
            && let Some(result) = self.transfer_fast(request)
        {
            taker.take(instance, slot, result);
            return 0;
        }
        let kind = request.kind;
        if kind == Kind::Sync && request.sqe.opcode == opcode::FSYNC && request.refused == 0 {
            return self.sync(instance, slot, by, taker);
        }
        let mode = if request.stream { Mode::Stream } else { Mode::Plain };
        let Sqe { fd, len, off, .. } = request.sqe;
        let write = kind == Kind::Write;
        let transfer = write || kind == Kind::Read;
        // Of those it was seen before, unless the caller wants to know.
        let tried = request.lane == Lane::Cold as u8;
        let wary = request.wary;
        let timed = transfer && (timed || !tried && descriptor::is_suspect(fd, write));
        if transfer && by == By::Worker {
            // The program's own CPU has it, and the kernel is a while on its way to it.
            sys::prefetch_buffer(request.sqe.addr, (len as usize).min(PREFETCH_MAX));
        }
        let doubted = timed && descriptor::is_on_the_brink(fd, write);
        let slept = if doubted { sys::sleeps_of_this_thread() } else { None };
        let before = if timed { sys::ticks() } else { 0 };
        let programs = by == By::Waiter || self.threads.pool.is_helpless();
        let result = if write && programs && instance.is_to_be_quiet(request.stream) {
            // SAFETY: copied in at submit; the buffers are the request's until its completion.
            sys::without_write_signals(|| unsafe { exec::execute(request, mode) })
        } else {
            // SAFETY: as above.
            unsafe { exec::execute(request, mode) }
        };
        if transfer && result == -libc::ESPIPE && !request.stream && off != FILE_POSITION {
            self.reroute(instance, slot);
            return 0;
        }
        let ticks = if timed { sys::ticks().wrapping_sub(before) } else { 0 };
        if timed {
            // As long as it took, it was preempted at most.
            let awake = slept.is_some() && sys::sleeps_of_this_thread() == slept;
            let ticks = if awake { ticks.min(self.ticks_per_us) } else { ticks };
            descriptor::learn(fd, write, ticks, self.ticks_per_us, u64::from(len));
        }
        if wary && transfer {
            descriptor::prove(fd, write);
        }
        instance.finish_for(slot, result, by, taker);
        ticks
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
            self.harvesters.poller.watch(instance, events);
        }
    }

    /// A request has come back from the kernel. False: it is to be posted.
    fn finish_kernel(
        &self,
        instance: &Arc<Instance>,
        slot: u32,
        result: i32,
        taker: &mut Taker<'_>,
    ) -> bool {
        // Not possible there, or not now: a thread does it, or says why not.
        if retried(result) && instance.slot(slot).take_back() {
            self.to_pool(instance, slot);
            return true;
        }
        instance.is_taken(slot, result, By::Kernel, taker)
    }

    /// From wherever it was to the pool's queue.
    fn to_pool(&self, instance: &Arc<Instance>, slot: u32) {
        self.move_to(instance, slot, Lane::Pool, &self.pool);
        self.call_worker_at_once(instance);
    }

    /// From wherever it was to the queue of what only workers execute.
    fn to_worker(&self, instance: &Arc<Instance>, slot: u32) {
        self.move_to(instance, slot, Lane::Worker, &self.worker);
        self.call_worker_at_once(instance);
    }

    /// The caller sees to it that somebody comes.
    fn move_to(&self, instance: &Instance, slot: u32, lane: Lane, queue: &IndexRing) {
        self.move_expected(instance, slot, lane, queue, Expect::Nothing);
    }

    fn move_expected(
        &self,
        instance: &Instance,
        slot: u32,
        lane: Lane,
        queue: &IndexRing,
        expect: Expect,
    ) {
        let started = instance.slot(slot);
        // SAFETY: started, and pushed only afterwards.
        unsafe { started.request() }.lane = lane as u8;
        started.expect(expect);
        started.requeue();
        queue.push(&[slot]);
    }

    /// A positional call found no offsets: the descriptor is a stream.
    #[cold]
    fn reroute(&self, instance: &Arc<Instance>, slot: u32) {
        // SAFETY: started by the caller.
        let request = unsafe { instance.slot(slot).request() };
        let kind = request.kind;
        let write = kind == Kind::Write;
        let (lane, stream) = lane::uncommon(&request.sqe, write, Reach::Nothing);
        (request.lane, request.stream) = (lane as u8, stream);
        match (lane, stream) {
            (_, false) => instance.finish(slot, -libc::ESPIPE, By::Worker),
            // Others were submitted before it, which other threads may have found out about, or not yet.
            (_, true) if lane == Lane::Poll || has_strays_before(instance, slot) => {
                self.threads.poller.add(instance, slot);
            }
            (_, true) => {
                // On whatever thread this is.
                // SAFETY: as for `run`.
                let mut execute = || unsafe { exec::execute(request, Mode::Stream) };
                let quiet = kind == Kind::Write && instance.is_to_be_quiet(true);
                let result = if quiet { sys::without_write_signals(execute) } else { execute() };
                instance.finish(slot, result, By::Worker);
            }
        }
    }

    /// Is there something for a holder of the baton?
    #[inline]
    fn has_inline_work(&self) -> bool {
        !self.inline.is_empty() || self.has_ordered_work()
    }

    /// Are there copies, or parts of one, for whoever comes?
    #[inline]
    fn has_copies(&self) -> bool {
        !self.copies.is_empty() || self.split.left() > 0
    }

    /// As [`Workers::has_inline_work`], for a thread that waits.
    #[inline]
    fn has_inline_work_for(&self, help: &Help) -> bool {
        !self.inline.is_empty()
            || self.has_ordered_work()
                && (help.wary || self.wary_ordered.load(Ordering::SeqCst) == 0)
    }

    #[inline]
    fn has_ordered_work(&self) -> bool {
        !self.ordered.is_empty()
            && !self.order.view().is_held()
            && self.losers.load(Ordering::SeqCst) == 0
    }

    fn purge_queue(instance: &Instance, queue: &IndexRing) {
        // Not those that are put back: where others take some meanwhile, their order would change.
        let end = queue.end();
        while let Some(slot) = queue.pop_before(end) {
            if instance.slot(slot).is_canceled() {
                instance.start(slot);
            } else {
                queue.push(&[slot]);
            }
        }
    }

    /// As [`Workers::purge_queue`], where others may wait for those that go.
    fn purge_worker_queue(&self, instance: &Instance) {
        let end = self.worker.end();
        while let Some(slot) = self.worker.pop_before(end) {
            if !instance.slot(slot).is_canceled() {
                self.worker.push(&[slot]);
                continue;
            }
            let passed_on = self.threads.poller.find(instance, slot);
            let _kept = self.kept_for(slot);
            instance.start(slot);
            passed_on.into_iter().for_each(|one| self.threads.poller.end(one));
        }
    }

    /// These descriptors are about to be closed: requests that wait for a worker get others of the same files, as the
    /// closing thread cannot execute them.
    fn keep_files(&self, instance: &Arc<Instance>, fds: &RangeInclusive<RawFd>) {
        let (mut copies, mut any, mut needed) = (Copies::default(), false, false);
        instance.free_slots().each_held(|slot| needed |= instance.slot(slot).names_one_of(fds));
        if !needed {
            return;
        }
        let end = self.worker.end();
        while let Some(slot) = self.worker.pop_before(end) {
            any = true;
            let place = instance.slot(slot);
            if !place.names_one_of(fds) {
                self.worker.push(&[slot]);
                continue;
            }
            let passed_on = self.threads.poller.find(instance, slot);
            if !instance.start(slot) {
                passed_on.into_iter().for_each(|one| self.threads.poller.end(one));
                continue;
            }
            // SAFETY: started by us just now, and pushed only afterwards.
            let request = unsafe { place.request() };
            // Where there is no descriptor to be had, it finds its own closed.
            if request.sqe.opcode != opcode::CLOSE
                && let Some(copy) = copies.of(request.sqe.fd)
            {
                request.sqe.fd = copy.fd();
                place.moved_to(copy.fd());
                lock(&self.kept).push((slot, copy));
            }
            place.requeue();
            self.worker.push(&[slot]);
        }
        if any {
            // A worker that looked meanwhile may have found nothing.
            self.call_worker_at_once(instance);
        }
    }

    /// What was kept open for this request, which the caller has popped.
    fn kept_for(&self, slot: u32) -> Option<Arc<Copied>> {
        let mut kept = lock(&self.kept);
        let at = kept.iter().position(|&(of, _)| of == slot)?;
        Some(kept.swap_remove(at).1)
    }

    /// Every request of this context that is neither completed nor reaped would have to be waited
    /// for by somebody who waits for `min`.
    fn must_wait_for_all(&self, instance: &Instance, min: u32) -> bool {
        !instance.free_slots().held_more_than(min as usize)
    }
}

/// Is there a transfer that was submitted before this one, for the same direction of the same descriptor, and is neither
/// done nor on the poller's list? Its descriptor was not known to be a stream's.
fn has_strays_before(instance: &Instance, slot: u32) -> bool {
    let (this, mut found) = (instance.slot(slot), false);
    instance.free_slots().each_held(|other| found |= instance.slot(other).strays_before(this));
    found
}

/// Answers of the kernel lane that say nothing about the request. Cancelled by nobody here: io_uring
/// does it when the thread that has submitted ends, or when it can make no thread of its own.
fn retried(result: i32) -> bool {
    use libc::{EAGAIN, ECANCELED, EINTR, ENOSYS, EOPNOTSUPP, ESPIPE};
    matches!(-result, EAGAIN | EOPNOTSUPP | ENOSYS | EINTR | ESPIPE | ECANCELED)
}

impl Contract for Workers {
    #[inline(always)]
    fn submit(&self, instance: &Arc<Instance>, slots: &[u32]) {
        let mut flags = Flags::new();
        let [slot] = *slots else {
            return self.submit_batch(instance, slots, |request| {
                self.choose_lane(request, false, &mut flags)
            });
        };
        // SAFETY: filled by the submitter, which has not passed it on yet.
        let request = unsafe { instance.slot(slot).request() };
        let chosen = self.choose_lane(request, true, &mut flags);
        if chosen.0 == Lane::Inline && request.notify == -1 {
            (request.lane, request.stream) = (Lane::Inline as u8, chosen.1);
            let (wary, expect) = lane::patience(request, Lane::Inline, chosen.1, false);
            request.wary = wary;
            instance.slot(slot).expect(expect);
            self.submit_one(instance, slot);
            return self.expects_one();
        }
        self.submit_batch(instance, slots, |_| chosen);
    }

    #[inline(always)]
    fn help_alone(&self, instance: &Arc<Instance>, taker: &mut Taker<'_>) -> bool {
        if self.stands_by() {
            return false;
        }
        self.run_alone(instance, taker)
    }

    #[inline]
    fn help(&self, instance: &Arc<Instance>, help: &Help, taker: &mut Taker<'_>) -> bool {
        if self.stands_by() {
            return self.look_on(help);
        }
        let before = taker.taken();
        let mut helped = !self.kernel.is_idle() && self.help_kernel(instance, help, taker);
        if let Some(cold) = self.cold.get()
            && !cold.is_empty()
        {
            helped |= self.help_cold(cold, instance, help, helped, (before, taker));
        }
        // A poll is to see of every lane what does not sleep, as far as it can take that.
        let is_enough = |taker: &Taker<'_>| {
            let come = || taker.taken() - before + instance.completions().available();
            help.min > 0 || come() >= help.max
        };
        if helped && is_enough(taker) {
            return true;
        }
        // It was left before anything else came into the queues: no request is overtaken.
        if self.copies.is_empty() && self.run_beside_others(instance, taker) {
            if is_enough(taker) {
                return true;
            }
            helped = true;
        }
        if self.has_copies() && self.help_copy(instance, help, taker) {
            if is_enough(taker) {
                return true;
            }
            helped = true;
        }
        self.help_more(instance, help, taker) || helped
    }

    fn has_help_to_offer(&self, instance: &Instance, help: &Help) -> bool {
        if self.stands_by() {
            return false;
        }
        let view = self.baton.view();
        view.has_work() && !view.is_held()
            || !self.mailbox.is_empty()
            || self.kernel.has_help_to_offer(help.min > 0)
            || self.has_copies()
            || self.has_cold_help()
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
        if self.stands_by() {
            return instance.completions().sleep_with(sleeper, time, mask);
        }
        let mut finish = |slot, result| self.finish_kernel(instance, slot, result, taker);
        self.kernel
            .sleep(instance, sleeper, time, mask, &mut finish)
            .unwrap_or_else(|| instance.completions().sleep_with(sleeper, time, mask))
    }

    fn is_trying(&self, slot: &Slot) -> bool {
        self.threads.poller.is_trying(slot)
    }

    fn settle(&self, instance: &Arc<Instance>, help: &Help, taker: &mut Taker<'_>) {
        self.see_what_others_have(instance, help, taker);
    }

    fn collect(&self, instance: &Arc<Instance>) {
        let mut finish =
            |slot, result| without_taker(|taker| self.finish_kernel(instance, slot, result, taker));
        self.kernel.harvest(instance, &mut finish);
    }

    fn nap(&self, nap: u32) -> Option<Duration> {
        // Watched only while a holder has requests behind it.
        let held = self.baton.view().is_held() && !self.inline.is_empty();
        held.then(|| Duration::from_micros((NAP_US.0 << (nap / 2).min(5)).min(NAP_US.1)))
    }

    fn watch(&self, instance: &Arc<Instance>) {
        let view = self.progress();
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
        self.purge_worker_queue(instance);
        self.purge_syncs(instance);
        Self::purge_queue(instance, &self.copies);
        self.cold_queues().for_each(|queue| Self::purge_queue(instance, queue));
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
        // Whoever looked into a queue meanwhile may have found it empty.
        self.watch_over(instance);
    }

    fn drain(&self, instance: &Instance) {
        self.kernel.harvest(instance, &mut |slot, result| {
            if retried(result) && instance.slot(slot).take_back() {
                // Ended below, as one that was not begun.
                instance.slot(slot).requeue();
                self.pool.push(&[slot]);
            } else {
                instance.finish(slot, result, By::Kernel);
            }
            true
        });
        if let Some(Taken { slot, .. }) = self.mailbox.take() {
            instance.slot(slot).queue();
            instance.end_popped(slot);
        }
        self.syncs.take_waiting(
            |_| true,
            |newest| each_linked(instance, newest, |slot| instance.end_popped(slot)),
        );
        while let Some(slot) = self.worker.pop() {
            let passed_on = self.threads.poller.find(instance, slot);
            let _kept = self.kept_for(slot);
            instance.end_popped(slot);
            passed_on.into_iter().for_each(|one| self.threads.poller.end(one));
        }
        let unordered = [&self.pool, &self.copies, self.kernel.queue()];
        let unordered = unordered.into_iter().chain(self.cold_queues());
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

    fn before_close(&self, instance: &Arc<Instance>, fds: &RangeInclusive<RawFd>) {
        self.threads.poller.keep_files(fds);
        self.keep_files(instance, fds);
        self.sync_before_close(instance, fds);
    }

    fn retract(&self, instance: &Instance, slot: u32, key: u64) -> bool {
        self.mailbox.remove(slot, || instance.slot(slot).key() == key)
            || self.threads.poller.remove(instance, slot, key)
    }
}
