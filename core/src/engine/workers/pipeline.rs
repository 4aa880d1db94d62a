//! Pipelining: while a program keeps several requests queued and does nothing but submit and wait,
//! a worker can execute them on another CPU while the program's thread prepares the next. Whether
//! that pays depends on the requests, the CPUs and the other threads, so it is tried: windows with
//! and without it take turns, the better way stays for a while, and then it is tried again.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::threads::{Busy, cpus};

/// Requests of one window.
const WINDOW: u64 = 256;
/// Windows of each kind in a trial.
const SAMPLES: usize = 4;
/// Windows between two trials: fewest, and most, to which it doubles while the answer stays.
const STAY: (u32, u32) = (8, 1024);
/// A request that takes longer than this, its program's part included, leaves CPUs idle anyway.
const SATURATED_US: u64 = 20;
/// So many percent of the time without it, pipelining has to stay below to be worth a second CPU.
const WORTH: u64 = 92;
/// Windows in a row that are worse than what the trial promised, before another trial.
const WORSE: u32 = 4;

/// Whether the requests of one context are pipelined.
#[derive(Debug)]
pub(super) struct Pipeline {
    on: AtomicBool,
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
    /// Ticks per request of a trial's windows, without and with pipelining.
    samples: [[u64; SAMPLES]; 2],
    /// Windows of the trial that have begun; 0 outside of trials.
    trial: usize,
    /// The answer of the last trial.
    answer: bool,
    stay: u32,
    left: u32,
    /// Ticks per request that pipelining must stay below, by the last trial.
    limit: u64,
    worse: u32,
}

impl Pipeline {
    pub(super) fn new(ticks_per_us: u64) -> Self {
        let state = State {
            begin: 0,
            begin_count: 0,
            span: 0,
            samples: [[0; SAMPLES]; 2],
            trial: 0,
            answer: false,
            stay: STAY.0,
            left: STAY.0,
            limit: 0,
            worse: 0,
        };
        Self {
            on: AtomicBool::new(false),
            window_end: AtomicU64::new(0),
            state: Mutex::new(state),
            ticks_per_us,
        }
    }

    /// Workers execute, and waiters only wait.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
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
        let on = possible && state.next(per_request);
        if !possible {
            state.give_up();
        }
        if self.is_on() != on {
            self.on.store(on, Ordering::Relaxed);
        }
    }
}

impl State {
    fn give_up(&mut self) {
        (self.trial, self.answer) = (0, false);
        (self.stay, self.left) = (STAY.0, STAY.0);
    }

    /// Is the next window pipelined? `per_request` is the time in the one before.
    fn next(&mut self, per_request: u64) -> bool {
        if self.trial > 0 {
            self.samples[self.trial % 2][(self.trial - 1) / 2] = per_request;
            self.trial += 1;
            if self.trial <= 2 * SAMPLES {
                return self.trial % 2 == 1;
            }
            self.conclude();
            return self.answer;
        }
        if self.answer && per_request > self.limit {
            self.worse += 1;
        } else {
            self.worse = 0;
        }
        self.left -= 1;
        if self.left == 0 || self.worse == WORSE {
            self.trial = 1;
            return true;
        }
        self.answer
    }

    fn conclude(&mut self) {
        // The second best of each: what a preemption spoils does not count.
        let [without, with] = self.samples.map(|mut samples| {
            samples.sort_unstable();
            samples[1]
        });
        let answer = with * 100 < without * WORTH;
        self.stay = if answer == self.answer { (self.stay * 2).min(STAY.1) } else { STAY.0 };
        (self.trial, self.answer, self.left) = (0, answer, self.stay);
        (self.limit, self.worse) = (without, 0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Pipeline, STAY, WINDOW};
    use crate::engine::workers::threads::Busy;

    /// Runs windows with these costs per request, in ticks; gives how many were pipelined.
    fn windows(pipeline: &Pipeline, clock: &mut (u64, u64), n: u32, costs: [u64; 2]) -> u32 {
        let busy = Busy::new();
        (0..n).fold(0, |on, _| {
            let cost = costs[usize::from(pipeline.is_on())];
            let before = u32::from(pipeline.is_on());
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
        let on = windows(&pipeline, &mut clock, 4000, [1000, 700]);
        assert!((3500..4000).contains(&on), "pipelined in {on} of 4000 windows");
        let on = windows(&pipeline, &mut clock, 4000, [1000, 990]);
        assert!((8..1000).contains(&on), "not worth a CPU, and pipelined in {on} of 4000 windows");
    }

    #[test]
    fn without_a_queue_or_spare_cpus_it_is_off_at_once() {
        if super::cpus() == 1 {
            return;
        }
        let pipeline = Pipeline::new(1000);
        let mut clock = (0, 1_000_000);
        windows(&pipeline, &mut clock, STAY.0 + 20, [1000, 500]);
        assert!(pipeline.is_on());
        let busy = Busy::new();
        clock = (clock.0 + WINDOW, clock.1 + WINDOW * 500);
        pipeline.next_window(clock.0, clock.1, false, &busy);
        assert!(!pipeline.is_on());
    }
}
