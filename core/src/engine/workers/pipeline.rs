//! Who executes while a program keeps several requests queued and does nothing but submit and wait:
//! its own waiting thread, a worker on another CPU while that thread prepares the next (pipelined),
//! or, reads only, both side by side. What pays depends on the requests, the CPUs and the other
//! threads, so it is tried: windows of each way take turns, the best stays for a while, and then it is tried again.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::threads::{Busy, cpus};

/// Requests of one window.
const WINDOW: u64 = 256;
/// Windows of each way in a trial.
const SAMPLES: usize = 4;
/// Windows before the first trial.
const SETTLE: u32 = 8;
/// Windows between two trials: fewest, several times as many as a trial has, and most, to which it doubles while the
/// answer stays.
const STAY: (u32, u32) = (64, 1024);
/// A request that takes longer than this, its program's part included, leaves CPUs idle anyway.
const SATURATED_US: u64 = 20;
/// So many percent of the time that the waiter takes alone, another way has to stay below to be worth a second CPU.
const WORTH: u64 = 92;
/// Windows in a row that are worse than what the trial promised, before another trial: fewest, and which part of those
/// between two trials. A disk that is busy for a while makes any way worse.
const WORSE: (u32, u32) = (4, 8);
/// The part of the windows between two trials that is left when the answer changes: it may have been a disturbed trial.
const SHORTER: u32 = 4;

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
    state: Mutex<State>,
    ticks_per_us: u64,
}

#[derive(Debug)]
struct State {
    begin: u64,
    begin_count: u64,
    /// When the context last said that it is busy.
    span: u64,
    /// Ticks per request of a trial's windows, by way.
    samples: [[u64; SAMPLES]; WAYS.len()],
    /// Windows of the trial that have begun; 0 outside of trials.
    trial: usize,
    /// The answer of the last trial.
    answer: Way,
    stay: u32,
    left: u32,
    /// Ticks per request that the answer must stay below, by the last trial.
    limit: u64,
    worse: u32,
}

impl Pipeline {
    pub(super) fn new(ticks_per_us: u64) -> Self {
        let state = State {
            begin: 0,
            begin_count: 0,
            span: 0,
            samples: [[0; SAMPLES]; WAYS.len()],
            trial: 0,
            answer: Way::Waiter,
            stay: STAY.0,
            left: SETTLE,
            limit: 0,
            worse: 0,
        };
        Self {
            way: AtomicU8::new(Way::Waiter as u8),
            window_end: AtomicU64::new(0),
            state: Mutex::new(state),
            ticks_per_us,
        }
    }

    #[inline]
    pub(super) fn is(&self, way: Way) -> bool {
        self.way.load(Ordering::Relaxed) == way as u8
    }

    /// Is a window over, now that so many requests have been executed?
    #[inline]
    pub(super) fn is_due(&self, count: u64) -> bool {
        count >= self.window_end.load(Ordering::Relaxed)
    }

    /// A window is over. `queued`: the program keeps more than one request going.
    #[cold]
    pub(super) fn next_window(&self, count: u64, now: u64, queued: bool, busy: &Busy) {
        // Another waiter is at it.
        let Ok(mut state) = self.state.try_lock() else { return };
        if !self.is_due(count) {
            return;
        }
        let requests = count.saturating_sub(state.begin_count).max(1);
        let per_request = now.saturating_sub(state.begin) / requests;
        (state.begin, state.begin_count) = (now, count);
        self.window_end.store(count + WINDOW, Ordering::Relaxed);
        let saturated = queued && per_request < SATURATED_US * self.ticks_per_us;
        let span = Busy::span(now / self.ticks_per_us);
        if saturated && state.span != span {
            state.span = span;
            busy.add(span);
        }
        // Each such context keeps one CPU busy by itself; another for each has to be there.
        let possible = saturated && busy.count(span) * 2 <= cpus();
        let way = if possible { state.next(per_request) } else { state.give_up() };
        if !self.is(way) {
            self.way.store(way as u8, Ordering::Relaxed);
        }
    }
}

impl State {
    fn give_up(&mut self) -> Way {
        (self.trial, self.answer) = (0, Way::Waiter);
        (self.stay, self.left) = (STAY.0, SETTLE);
        self.answer
    }

    /// The way of a trial's window, from 1 on, and its number among those of this way.
    fn turn(window: usize) -> (usize, usize) {
        ((window - 1) % WAYS.len(), (window - 1) / WAYS.len())
    }

    /// Who executes in the next window? `per_request` is the time in the one before.
    fn next(&mut self, per_request: u64) -> Way {
        if self.trial > 0 {
            let (way, sample) = Self::turn(self.trial);
            self.samples[way][sample] = per_request;
            self.trial += 1;
            if self.trial <= WAYS.len() * SAMPLES {
                return WAYS[Self::turn(self.trial).0];
            }
            self.conclude();
            return self.answer;
        }
        if self.answer != Way::Waiter && per_request > self.limit {
            self.worse += 1;
        } else {
            self.worse = 0;
        }
        self.left -= 1;
        if self.left == 0 || self.worse >= WORSE.0.max(self.stay / WORSE.1) {
            self.trial = 1;
            return WAYS[Self::turn(1).0];
        }
        self.answer
    }

    fn conclude(&mut self) {
        // The second best of each: what a preemption spoils does not count.
        let costs = self.samples.map(|mut samples| {
            samples.sort_unstable();
            samples[1]
        });
        let alone = costs[Way::Waiter as usize];
        let quickest = WAYS.into_iter().min_by_key(|&way| costs[way as usize]);
        let worth = |&way: &Way| costs[way as usize] * 100 < alone * WORTH;
        let answer = quickest.filter(worth).unwrap_or_default();
        let same = answer == self.answer;
        let stay = if same { self.stay * 2 } else { self.stay / SHORTER };
        self.stay = stay.clamp(STAY.0, STAY.1);
        (self.trial, self.answer, self.left) = (0, answer, self.stay);
        (self.limit, self.worse) = (alone, 0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Pipeline, SETTLE, WINDOW, Way};
    use crate::engine::workers::threads::Busy;

    /// Runs windows with these costs per request by way, in ticks; gives how many were run `so`.
    fn windows(
        pipeline: &Pipeline,
        clock: &mut (u64, u64),
        n: u32,
        costs: [u64; 3],
        so: Way,
    ) -> u32 {
        let busy = Busy::new();
        (0..n).fold(0, |on, _| {
            let cost = costs[usize::from(pipeline.way.load(super::Ordering::Relaxed))];
            let before = u32::from(pipeline.is(so));
            *clock = (clock.0 + WINDOW, clock.1 + WINDOW * cost);
            assert!(pipeline.is_due(clock.0));
            pipeline.next_window(clock.0, clock.1, true, &busy);
            on + before
        })
    }

    #[test]
    fn what_is_faster_stays_and_the_other_way_is_tried_now_and_then() {
        if super::cpus() == 1 {
            return;
        }
        let pipeline = Pipeline::new(1000);
        let mut clock = (0, 1_000_000);
        for (costs, best) in [
            ([1000, 700, 900], Way::Pipelined),
            ([1000, 800, 600], Way::SideBySide),
            ([1000, 950, 990], Way::Waiter),
        ] {
            let on = windows(&pipeline, &mut clock, 8000, costs, best);
            assert!((6000..8000).contains(&on), "{best:?} in {on} of 8000 windows");
        }
    }

    #[test]
    fn without_a_queue_or_spare_cpus_it_is_off_at_once() {
        if super::cpus() == 1 {
            return;
        }
        let pipeline = Pipeline::new(1000);
        let mut clock = (0, 1_000_000);
        windows(&pipeline, &mut clock, SETTLE + 16, [1000, 500, 800], Way::Waiter);
        assert!(pipeline.is(Way::Pipelined));
        let busy = Busy::new();
        clock = (clock.0 + WINDOW, clock.1 + WINDOW * 500);
        pipeline.next_window(clock.0, clock.1, false, &busy);
        assert!(pipeline.is(Way::Waiter));
    }
}
