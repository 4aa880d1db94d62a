//! Who executes while a program keeps several requests queued and does nothing but submit and wait:
//! its own waiting thread, a worker on another CPU while that thread prepares the next (pipelined),
//! or, reads only, both side by side. What pays depends on the requests, the CPUs and the other
//! threads, so it is tried: now and then another way gets its turn, and is compared with the windows next to it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::threads::{Busy, cpus};
use crate::engine::trial::Shares;

/// Requests of one window.
const WINDOW: u64 = 256;
/// Windows before the first probe.
const SETTLE: u32 = 64;
/// Windows between two probes: fewest, and most, to which it doubles while the answer stays.
const GAP: (u32, u32) = (2, 64);
/// A request that takes longer than this, its program's part included, leaves CPUs idle anyway.
const SATURATED_US: u64 = 20;
/// After so long with such requests only, or with one at a time, the waiter executes again.
const IDLE_MS: u64 = 100;
/// So many percent of the time that the waiter takes alone, another way has to stay below to be worth a second CPU: with
/// a short queue, and with a long one, whose program wants throughput.
const WORTH: [u64; 2] = [92, 96];
/// The other way round, so many percent of the time of a way with two CPUs the waiter has to stay below to get back.
const BACK: [u64; 2] = [104, 100];
/// The same between two ways that take a second CPU.
const BETTER: u64 = 95;
/// A way with two CPUs that was chosen is looked at again after so many windows: all of them, with those that were disturbed, which a
/// probe hardly ever meets, took less than this percentage of what the waiter took before.
const KEPT: (u32, [u64; 2]) = (64, [94, 98]);
/// If not, no other way is tried for so many windows, and for twice as many each time that it happens again, so many times.
const DOUBT: (u32, u32) = (128, 5);
/// More requests than this are a long queue.
const LONG: usize = 8;
/// Without reads the waiter's way is what side by side amounts to: one in so many of its probes is made all the same.
const READS_EVERY: u32 = 16;

/// Who executes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Way {
    /// Whoever waits.
    #[default]
    Waiter,
    /// A worker, and waiters only wait.
    Pipelined,
    /// Reads by workers and waiters at the same time, everything else by waiters.
    SideBySide,
}

const WAYS: [Way; 3] = [Way::Waiter, Way::Pipelined, Way::SideBySide];

/// Who executes the requests of one context.
#[derive(Debug)]
pub(super) struct Pipeline {
    way: AtomicU8,
    /// The count of executed requests at which the window ends.
    window_end: AtomicU64,
    /// Ticks per request in the last window.
    per_request: AtomicU64,
    state: Mutex<State>,
    ticks_per_us: u64,
}

#[derive(Debug)]
struct State {
    begin: u64,
    begin_count: u64,
    /// Large and side-by-side reads at the begin of the window.
    begin_copied: u64,
    /// When the context last said that it is busy.
    span: u64,
    /// For how many ticks CPUs have had nothing to do.
    idle: u64,
    answer: Way,
    step: Step,
    /// Windows until the next probe, and between this one and the one after.
    left: u32,
    gap: u32,
    /// Probes made, for taking turns.
    probes: u32,
    /// The last probe of side by side found no reads.
    no_reads: bool,
    /// The queue is long.
    long: bool,
    shares: [Shares; WAYS.len()],
    /// The answer's own windows, and what the waiter's took before it was left.
    stay: Stay,
    waiters: Stay,
    /// How often a way with two CPUs was chosen in vain lately.
    doubt: u32,
}

/// Windows of one way, the later ones weighing more.
#[derive(Clone, Copy, Debug, Default)]
struct Stay {
    windows: u32,
    cost: u64,
}

impl Stay {
    fn add(&mut self, cost: u64) {
        if self.windows == 2 * KEPT.0 {
            *self = Self { windows: KEPT.0, cost: self.cost / 2 };
        }
        *self = Self { windows: self.windows + 1, cost: self.cost + cost };
    }

    fn mean(&self) -> u64 {
        self.cost / u64::from(self.windows.max(1))
    }
}

/// What goes on in the window at hand. A probe is two windows of another way, and two of the present one after it; the
/// first of each does not count: threads are still on their way.
#[derive(Clone, Copy, Debug)]
enum Step {
    Stay,
    Enter { way: Way, before: u64 },
    Probe { way: Way, before: u64 },
    Leave { way: Way, before: u64, cost: u64 },
    Compare { way: Way, before: u64, cost: u64 },
}

impl Pipeline {
    pub(super) fn new(ticks_per_us: u64) -> Self {
        let state = State {
            begin: 0,
            begin_count: 0,
            begin_copied: 0,
            span: 0,
            idle: 0,
            answer: Way::Waiter,
            step: Step::Stay,
            left: SETTLE,
            gap: GAP.0,
            probes: 0,
            no_reads: false,
            long: false,
            shares: Default::default(),
            stay: Stay::default(),
            waiters: Stay::default(),
            doubt: 0,
        };
        Self {
            way: AtomicU8::new(Way::Waiter as u8),
            window_end: AtomicU64::new(0),
            per_request: AtomicU64::new(0),
            state: Mutex::new(state),
            ticks_per_us,
        }
    }

    #[inline]
    pub(super) fn is(&self, way: Way) -> bool {
        self.way.load(Ordering::Relaxed) == way as u8
    }

    /// How many ticks a request took in the last window.
    #[inline]
    pub(super) fn per_request(&self) -> u64 {
        self.per_request.load(Ordering::Relaxed)
    }

    /// Is a window over, now that so many requests have been executed?
    #[inline]
    pub(super) fn is_due(&self, count: u64) -> bool {
        count >= self.window_end.load(Ordering::Relaxed)
    }

    /// A window is over: so many requests have been executed, `copied` of them as copies. Does the program keep
    /// `more_than` so many going?
    #[cold]
    pub(super) fn next_window(
        &self,
        (count, copied): (u64, u64),
        now: u64,
        more_than: impl Fn(usize) -> bool,
        busy: &Busy,
    ) {
        // Another waiter is at it.
        let Ok(mut state) = self.state.try_lock() else { return };
        if !self.is_due(count) {
            return;
        }
        let requests = count.saturating_sub(state.begin_count).max(1);
        let per_request = now.saturating_sub(state.begin) / requests;
        let reads = copied != state.begin_copied;
        (state.begin, state.begin_count, state.begin_copied) = (now, count, copied);
        self.per_request.store(per_request, Ordering::Relaxed);
        self.window_end.store(count + WINDOW, Ordering::Relaxed);
        let saturated = more_than(1) && per_request < SATURATED_US * self.ticks_per_us;
        let span = Busy::span(now / self.ticks_per_us);
        if saturated && state.span != span {
            state.span = span;
            busy.add(span);
        }
        state.long = more_than(LONG);
        state.idle = if saturated { 0 } else { state.idle + per_request * requests };
        // Each such context keeps one CPU busy by itself; another for each has to be there.
        let possible = busy.count(span) * 2 <= cpus();
        let idle = state.idle >= IDLE_MS * 1000 * self.ticks_per_us;
        let way = match () {
            () if !possible || idle => state.give_up(),
            // It says nothing about who executes.
            () if !saturated => state.answer_again(),
            () => state.next(per_request, reads),
        };
        if !self.is(way) {
            self.way.store(way as u8, Ordering::Relaxed);
        }
    }
}

impl State {
    fn give_up(&mut self) -> Way {
        // What is in doubt stays so.
        let left = if self.answer == Way::Waiter { self.left } else { 0 };
        self.settle(Way::Waiter);
        self.left = left.max(SETTLE);
        self.answer
    }

    /// Another answer, about which nothing is known yet.
    fn settle(&mut self, answer: Way) {
        let stay = std::mem::take(&mut self.stay);
        if self.answer == Way::Waiter && stay.windows >= SETTLE {
            self.waiters = stay;
        }
        self.answer = answer;
        self.step = Step::Stay;
        self.shares = Default::default();
        (self.gap, self.left) = (GAP.0, GAP.0);
    }

    /// A window does not count, and a probe that it was part of does not either.
    fn answer_again(&mut self) -> Way {
        if !matches!(self.step, Step::Stay) {
            (self.step, self.left) = (Step::Stay, self.gap);
        }
        self.answer
    }

    /// Who executes in the next window? `per_request` is the time in the one before, `reads` says whether there were any
    /// to execute side by side.
    fn next(&mut self, per_request: u64, reads: bool) -> Way {
        match self.step {
            Step::Stay => {
                self.left -= 1;
                self.stay.add(per_request);
                if self.is_due_to_pay() && !self.pays() {
                    self.settle(Way::Waiter);
                    self.left = DOUBT.0 << self.doubt;
                    self.doubt = (self.doubt + 1).min(DOUBT.1);
                } else if self.left == 0 {
                    self.step = Step::Enter { way: self.candidate(), before: per_request };
                }
            }
            Step::Enter { way, before } => self.step = Step::Probe { way, before },
            Step::Probe { way, before } => {
                self.no_reads = if way == Way::SideBySide { !reads } else { self.no_reads };
                self.step = Step::Leave { way, before, cost: per_request };
            }
            Step::Leave { way, before, cost } => self.step = Step::Compare { way, before, cost },
            Step::Compare { way, before, cost } => {
                self.step = Step::Stay;
                // A window that was disturbed took longer.
                self.shares[way as usize].add(cost * 100 / before.min(per_request).max(1));
                self.judge(way);
            }
        }
        match self.step {
            Step::Enter { way, .. } | Step::Probe { way, .. } => way,
            _ => self.answer,
        }
    }

    fn is_due_to_pay(&self) -> bool {
        self.answer != Way::Waiter && self.stay.windows.is_multiple_of(KEPT.0)
    }

    /// Was the second CPU worth it?
    fn pays(&mut self) -> bool {
        if self.waiters.windows < SETTLE {
            return true;
        }
        let most = self.waiters.mean() * KEPT.1[usize::from(self.long)] / 100;
        let pays = self.stay.mean() < most;
        if pays {
            self.doubt = self.doubt.saturating_sub(1);
        }
        pays
    }

    /// The way to be probed next: the two others take turns.
    fn candidate(&mut self) -> Way {
        self.probes = self.probes.wrapping_add(1);
        let mut others = WAYS.into_iter().filter(|&way| way != self.answer);
        let (first, second) = (others.next(), others.next());
        let useless = |way: &Way| {
            *way == Way::SideBySide && self.no_reads && !self.probes.is_multiple_of(READS_EVERY)
        };
        let (turn, other) =
            if self.probes.is_multiple_of(2) { (second, first) } else { (first, second) };
        turn.filter(|way| !useless(way)).or(other).unwrap_or_default()
    }

    fn judge(&mut self, way: Way) {
        let least = match (self.answer, way) {
            (Way::Waiter, _) => WORTH[usize::from(self.long)],
            (_, Way::Waiter) => BACK[usize::from(self.long)],
            _ => BETTER,
        };
        match self.shares[way as usize].median() {
            Some(share) if share < least => self.settle(way),
            Some(_) => {
                self.gap = (self.gap * 2).min(GAP.1);
                self.left = self.gap;
            }
            None => self.left = self.gap,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Pipeline, SETTLE, WINDOW, Way};
    use crate::engine::workers::threads::Busy;

    /// Runs windows with these costs per request by way, in ticks, and so many requests going; gives how many were run `so`.
    fn windows(
        pipeline: &Pipeline,
        clock: &mut (u64, u64),
        n: u32,
        (costs, held): ([u64; 3], usize),
        so: Way,
    ) -> u32 {
        let busy = Busy::new();
        (0..n).fold(0, |on, _| {
            let cost = costs[usize::from(pipeline.way.load(super::Ordering::Relaxed))];
            let before = u32::from(pipeline.is(so));
            *clock = (clock.0 + WINDOW, clock.1 + WINDOW * cost);
            assert!(pipeline.is_due(clock.0));
            pipeline.next_window((clock.0, clock.0), clock.1, |n| held > n, &busy);
            on + before
        })
    }

    #[test]
    fn what_is_faster_stays_and_the_other_way_is_tried_now_and_then() {
        if super::cpus() == 1 {
            let name = "what_is_faster_stays_and_the_other_way_is_tried_now_and_then";
            return crate::skipped(name, "one CPU only");
        }
        let pipeline = Pipeline::new(1000);
        let mut clock = (0, 1_000_000);
        for (costs, held, best) in [
            ([1000, 700, 900], 4, Way::Pipelined),
            ([1000, 800, 600], 4, Way::SideBySide),
            ([1000, 950, 990], 4, Way::Waiter),
            // With a long queue the second CPU need not save as much, but it must save something.
            ([1000, 950, 1100], 32, Way::Pipelined),
            ([980, 1000, 1000], 32, Way::Waiter),
        ] {
            let on = windows(&pipeline, &mut clock, 8000, (costs, held), best);
            assert!((6000..8000).contains(&on), "{best:?} in {on} of 8000 windows");
        }
    }

    #[test]
    fn without_a_queue_it_is_off_soon() {
        if super::cpus() == 1 {
            return crate::skipped("without_a_queue_it_is_off_soon", "one CPU only");
        }
        let pipeline = Pipeline::new(1000);
        let mut clock = (0, 1_000_000);
        windows(&pipeline, &mut clock, SETTLE + 64, ([1000, 500, 800], 4), Way::Waiter);
        assert!(pipeline.is(Way::Pipelined));
        let busy = Busy::new();
        // 15 ms each, and one of them without a queue.
        for window in 0..7 {
            assert!(pipeline.is(Way::Pipelined), "given up after {window} slow windows");
            let (queued, cost) = if window == 2 { (false, 1_000) } else { (true, 60_000) };
            clock = (clock.0 + WINDOW, clock.1 + WINDOW * cost);
            pipeline.next_window((clock.0, clock.0), clock.1, |_| queued, &busy);
        }
        clock = (clock.0 + WINDOW, clock.1 + WINDOW * 60_000);
        pipeline.next_window((clock.0, clock.0), clock.1, |_| true, &busy);
        assert!(pipeline.is(Way::Waiter));
    }
}
