//! May a worker execute queued requests beside the program's own thread? Yes, while a CPU is idle
//! and the worker has enough to do. The answer uses facts that are known anyway. How soon did a
//! called worker come, and on whose CPU? Was it preempted? How much did it execute? Does the
//! program's thread do anything meanwhile? There are no trials: each bad sign begins a pause, and
//! successive pauses grow.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::tuning::{
    BESIDE_AWAY_PART, BESIDE_LATE_US, BESIDE_LOOKS_ON, BESIDE_PAUSE_US, BESIDE_PAYS,
    BESIDE_SOON_US, TICK,
};

/// A time in which no worker is called, in ticks.
#[derive(Debug)]
struct Pause {
    until: AtomicU64,
    length: AtomicU64,
}

impl Pause {
    const fn new() -> Self {
        Self { until: AtomicU64::new(0), length: AtomicU64::new(0) }
    }

    fn is_over(&self, now: u64) -> bool {
        now >= self.until.load(Ordering::Relaxed)
    }

    /// Begins a pause, unless one is under way. It is twice as long as the last one, if the last
    /// ended less than its own length ago, or less than `BESIDE_SOON_US` ago.
    fn begin(&self, now: u64, ticks_per_us: u64) {
        // Loaded once: another thread may begin a pause meanwhile.
        let until = self.until.load(Ordering::Relaxed);
        if now < until {
            return;
        }
        let (shortest, longest) = BESIDE_PAUSE_US;
        let last = self.length.load(Ordering::Relaxed);
        let soon = last.max(BESIDE_SOON_US * ticks_per_us);
        let again = now - until < soon;
        let length = if again { 2 * last } else { 0 };
        let length = length.clamp(shortest * ticks_per_us, longest * ticks_per_us);
        self.length.store(length, Ordering::Relaxed);
        self.until.store(now + length, Ordering::Relaxed);
    }

    /// The next pause is as short as the first one.
    fn shorten(&self) {
        self.length.store(0, Ordering::Relaxed);
    }
}

/// What is known about this process's idle CPUs.
#[derive(Debug)]
pub(crate) struct SpareCpus {
    /// The pause after a check that found no idle CPU.
    busy: Pause,
    /// Workers that execute beside the program, or were called for that.
    beside: AtomicUsize,
}

/// The value of this process.
pub(crate) static SPARE_CPUS: SpareCpus = SpareCpus::new();

impl SpareCpus {
    const fn new() -> Self {
        Self { busy: Pause::new(), beside: AtomicUsize::new(0) }
    }

    /// Begins a pause, because a worker beside the program was preempted, or lost the baton: its
    /// CPU is not idle.
    #[cold]
    pub(crate) fn was_busy(&self, now: u64, ticks_per_us: u64) {
        self.busy.begin(now, ticks_per_us);
    }

    /// Resets the count of workers: this process is the child of a fork, and has none of its
    /// parent's.
    pub(crate) fn forget_workers(&self) {
        self.beside.store(0, Ordering::Relaxed);
    }
}

/// Was a preempted thread off its CPU for long? It ran for `cpu_us` of the last `all_us`. The
/// watchdog and other threads that run for a moment do not count, nor do the moments for which a
/// host takes a virtual CPU away: nobody else in this machine needs the CPU then.
pub(crate) fn was_away(all_us: u64, cpu_us: u64) -> bool {
    let away = all_us.saturating_sub(cpu_us);
    away > TICK.as_micros() as u64 && away > all_us / BESIDE_AWAY_PART
}

/// What one context knows about workers that execute beside the program.
#[derive(Debug)]
pub(crate) struct Beside {
    cpus: &'static SpareCpus,
    /// The maximum number of the process's workers that execute beside the program; 0 for none.
    at_most: usize,
    /// The time in ticks at which a worker was called that has not come yet; else 0.
    called: AtomicU64,
    /// The CPU of the thread that called.
    caller: AtomicUsize,
    /// The pause after a worker had too little to do, or was sent away.
    idle: Pause,
    /// The waiting thread executes as fast without the worker.
    sent_away: AtomicBool,
    shares: Shares,
}

/// What the waiting thread does with its time while workers are beside it, in ticks. The fields
/// have a cache line of their own: the waiting thread writes to them with each look.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shares {
    /// The time from which on the thread's time is counted.
    since: AtomicU64,
    /// For how long the thread has looked on since then.
    looked_on: AtomicU64,
    /// The end of the last look, or the time when the worker came.
    last: AtomicU64,
    /// The thread has slept after the last look.
    slept: AtomicBool,
}

/// A look of a waiting thread for completions of the worker beside it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WaiterLook {
    /// When the look began, in ticks.
    pub(crate) begin: u64,
    /// When it ended, in ticks.
    pub(crate) end: u64,
    /// For how many ticks the thread has executed requests meanwhile.
    pub(crate) executed: u64,
    /// The thread found nothing, and sleeps next.
    pub(crate) sleeps: bool,
    /// The thread waits for every request. So the worker had nothing to do before the look, and
    /// that time counts as looking on, too.
    pub(crate) waits_for_all: bool,
}

impl Beside {
    /// `at_most`: the maximum number of workers of the process that execute beside the program.
    pub(crate) fn new(at_most: usize) -> Self {
        Self::of(&SPARE_CPUS, at_most)
    }

    fn of(cpus: &'static SpareCpus, at_most: usize) -> Self {
        let (called, caller) = (AtomicU64::new(0), AtomicUsize::new(0));
        let (idle, sent_away) = (Pause::new(), AtomicBool::new(false));
        Self { cpus, at_most, called, caller, idle, sent_away, shares: Shares::default() }
    }

    /// Is a worker ever called?
    #[inline]
    pub(crate) fn is_possible(&self) -> bool {
        self.at_most > 0
    }

    /// Should a worker be called now? If so, the caller, which runs on `cpu`, calls a worker, which
    /// then [comes](Self::comes).
    pub(crate) fn is_due(&self, now: u64, cpu: impl Fn() -> usize) -> bool {
        let pauses = !self.idle.is_over(now) || !self.cpus.busy.is_over(now);
        if self.called.load(Ordering::Relaxed) != 0 || pauses {
            return false;
        }
        let all = &self.cpus.beside;
        let is_due = all.fetch_add(1, Ordering::Relaxed) < self.at_most
            && self.called.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_due {
            self.caller.store(cpu(), Ordering::Relaxed);
        } else {
            all.fetch_sub(1, Ordering::Relaxed);
        }
        is_due
    }

    /// Asks a worker that executes beside the program to leave.
    pub(crate) fn sends_away(&self) {
        self.sent_away.store(true, Ordering::Relaxed);
    }

    /// The waiting thread has looked for completions. A thread that looks on for most of its time
    /// would execute as fast alone, with half of the CPU time. So the worker is sent away.
    pub(crate) fn looked_on(&self, look: &WaiterLook, ticks_per_us: u64) {
        let shares = &self.shares;
        // If several threads look at the same time, that time counts once. If two threads note
        // their looks at once, one note may be lost, which does not matter.
        let last = shares.last.load(Ordering::Relaxed);
        let goes_on = look.waits_for_all || shares.slept.load(Ordering::Relaxed);
        let begin = if goes_on { last } else { last.max(look.begin) };
        let looked_on = look.end.saturating_sub(begin).saturating_sub(look.executed);
        let looked_on = shares.looked_on.load(Ordering::Relaxed) + looked_on;
        let all = look.end.saturating_sub(shares.since.load(Ordering::Relaxed));
        let is_judged = all > BESIDE_PAUSE_US.0 / 4 * ticks_per_us;
        if is_judged && looked_on * BESIDE_LOOKS_ON.1 > all * BESIDE_LOOKS_ON.0 {
            self.sends_away();
        }
        if is_judged {
            shares.since.store(look.end, Ordering::Relaxed);
        }
        shares.looked_on.store(if is_judged { 0 } else { looked_on }, Ordering::Relaxed);
        shares.last.store(look.end, Ordering::Relaxed);
        shares.slept.store(look.sleeps, Ordering::Relaxed);
    }

    /// Was the worker asked to leave?
    #[inline]
    pub(crate) fn is_sent_away(&self) -> bool {
        self.sent_away.load(Ordering::Relaxed)
    }

    /// The permission for a worker that has come. `None`: no worker was called to execute beside
    /// the program.
    pub(crate) fn comes(&self, now: impl Fn() -> u64) -> Option<Seat<'_>> {
        if self.called.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let called = self.called.swap(0, Ordering::Relaxed);
        // The seat is made only if a worker was called, because dropping a seat decrements the
        // count.
        (called != 0).then(|| {
            self.sent_away.store(false, Ordering::Relaxed);
            // The time without a worker does not count. The stays of several workers are counted
            // together, because one stay may be too short to be judged.
            let Shares { since, last, slept, .. } = &self.shares;
            let counted =
                last.load(Ordering::Relaxed).saturating_sub(since.load(Ordering::Relaxed));
            let now = now();
            since.store(now.saturating_sub(counted), Ordering::Relaxed);
            last.store(now, Ordering::Relaxed);
            slept.store(false, Ordering::Relaxed);
            Seat { beside: self, called }
        })
    }
}

/// A dropped context no longer counts the worker that was called and has not come.
impl Drop for Beside {
    fn drop(&mut self) {
        if *self.called.get_mut() != 0 {
            let one_less = |all: usize| Some(all.saturating_sub(1));
            let all = &self.cpus.beside;
            // The child of a fork has forgotten its parent's workers: the count may be 0 there.
            let _ = all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        }
    }
}

/// A worker's permission to execute beside the program, until it is dropped.
#[derive(Debug)]
pub(crate) struct Seat<'a> {
    beside: &'a Beside,
    called: u64,
}

/// The reason why a worker beside the program left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The worker came late, was preempted, or had the CPU of the thread that called it.
    Busy,
    /// The worker executed too few requests, or was sent away.
    Idle,
    /// The worker executed enough, and nothing was left to do.
    Done,
}

impl Seat<'_> {
    /// Has the worker, which came on `cpu`, found no idle CPU? It took too long to come, or it runs
    /// in place of the thread that called it.
    pub(crate) fn is_in_the_way(&self, now: u64, cpu: usize, ticks_per_us: u64) -> bool {
        now.saturating_sub(self.called) > BESIDE_LATE_US * ticks_per_us
            || cpu == self.beside.caller.load(Ordering::Relaxed)
    }

    /// The worker leaves. Its CPU was `busy`, or it `executed` this many requests.
    pub(crate) fn ends(self, busy: bool, executed: u64, now: u64, ticks_per_us: u64) -> Left {
        if busy {
            self.beside.cpus.was_busy(now, ticks_per_us);
            return Left::Busy;
        }
        // The worker is unwanted, however much it has executed.
        let sent_away = self.beside.sent_away.swap(false, Ordering::Relaxed);
        if sent_away || executed < BESIDE_PAYS {
            self.beside.idle.begin(now, ticks_per_us);
            return Left::Idle;
        }
        self.beside.idle.shorten();
        Left::Done
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.beside.cpus.beside.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Beside, Left, Pause, SpareCpus, WaiterLook, was_away};
    use crate::router::tuning::{BESIDE_LATE_US, BESIDE_PAUSE_US, BESIDE_PAYS, BESIDE_SOON_US};

    #[test]
    fn pauses_in_a_row_grow_and_a_late_one_is_short() {
        let (pause, (shortest, longest)) = (Pause::new(), BESIDE_PAUSE_US);
        let mut now = 1_000_000_000;
        assert!(pause.is_over(now));
        let mut lengths = Vec::new();
        for _ in 0..12 {
            pause.begin(now, 1);
            pause.begin(now, 1);
            assert!(!pause.is_over(now));
            let length = (1..).find(|&length| pause.is_over(now + length)).unwrap();
            lengths.push(length);
            now += length + length / 2;
        }
        assert_eq!(lengths[..3], [shortest, 2 * shortest, 4 * shortest]);
        assert_eq!(lengths[11], longest);
        now += longest;
        pause.begin(now, 1);
        assert!(pause.is_over(now + shortest) && !pause.is_over(now + shortest - 1));
        now += shortest;
        pause.begin(now + BESIDE_SOON_US - 1, 1);
        assert!(!pause.is_over(now + BESIDE_SOON_US + shortest), "soon after a short pause");
        now += BESIDE_SOON_US + 2 * shortest;
        pause.shorten();
        pause.begin(now, 1);
        assert!(pause.is_over(now + shortest), "it was useful in between");
    }

    #[test]
    fn a_thread_that_shares_its_cpu_is_away_for_long() {
        assert!(was_away(6_000, 3_000), "two threads take turns");
        assert!(!was_away(8_000, 6_500), "a host takes a part of the time");
        assert!(!was_away(500, 20), "a moment");
        assert!(!was_away(100, 110), "the two clocks differ");
    }

    #[test]
    fn a_worker_with_too_little_to_do_is_not_called_for_a_while() {
        static CPUS: SpareCpus = SpareCpus::new();
        let (beside, now) = (Beside::of(&CPUS, 1), 1_000_000_000);
        assert!(beside.comes(|| 0).is_none(), "none was called");
        assert!(beside.is_due(now, || 0) && !beside.is_due(now, || 0), "it is on its way");
        assert_eq!(beside.comes(|| 0).unwrap().ends(false, BESIDE_PAYS, now, 1), Left::Done);
        assert!(beside.is_due(now, || 0));
        assert_eq!(beside.comes(|| 0).unwrap().ends(false, BESIDE_PAYS - 1, now, 1), Left::Idle);
        assert!(!beside.is_due(now, || 0) && beside.is_due(now + BESIDE_PAUSE_US.0, || 0));
        let mut later = now + BESIDE_PAUSE_US.0 + BESIDE_SOON_US;
        assert_eq!(beside.comes(|| 0).unwrap().ends(false, BESIDE_PAYS, later, 1), Left::Done);
        for round in 0..3 {
            assert!(beside.is_due(later, || 0), "{round}");
            let seat = beside.comes(|| 0).unwrap();
            assert!(!beside.is_sent_away(), "{round}");
            beside.sends_away();
            assert!(beside.is_sent_away(), "{round}");
            // It was sent away, however much it has executed. Each pause is longer.
            assert_eq!(seat.ends(false, 100 * BESIDE_PAYS, later, 1), Left::Idle, "{round}");
            let pause = BESIDE_PAUSE_US.0 << round;
            assert!(!beside.is_due(later + pause - 1, || 0), "{round}");
            later += pause;
        }
        assert!(beside.is_due(later, || 0));
        assert!(!Beside::of(&CPUS, 1).is_due(now, || 0), "another context has the CPU");
        assert!(!Beside::of(&CPUS, 0).is_due(now, || 0), "forbidden");
    }

    /// After how many microseconds is the worker sent away, if the thread works for some
    /// microseconds, looks, and so on? `stay`: the worker leaves after as many rounds, and another
    /// one comes an hour later. `None`: it is not sent away within ten milliseconds.
    fn sent_away_after((works, looks): (u64, u64), stay: usize, look: WaiterLook) -> Option<u64> {
        static CPUS: SpareCpus = SpareCpus::new();
        let beside = Beside::of(&CPUS, usize::MAX);
        let (mut now, mut spent) = (1_000_000_000, 0);
        for round in 0..10_000 / (works + looks) as usize {
            if round.is_multiple_of(stay) {
                now += 3_600_000_000;
                assert!(beside.is_due(now, || 0));
                assert!(beside.comes(|| now).is_some());
            }
            let (begin, end) = (now + works, now + works + looks);
            beside.looked_on(&WaiterLook { begin, end, ..look }, 1);
            (now, spent) = (end, spent + works + looks);
            if beside.is_sent_away() {
                assert!(beside.is_due(now, || 0) && beside.comes(|| now).is_some());
                assert!(!beside.is_sent_away(), "the next one is judged anew");
                return Some(spent);
            }
        }
        None
    }

    #[test]
    fn a_worker_beside_a_thread_that_only_looks_on_is_sent_away() {
        let (look, stays) = (WaiterLook::default(), usize::MAX);
        let soon = |after: Option<u64>| after.is_some_and(|us| us <= BESIDE_PAUSE_US.0);
        for (works, looks) in [(0, 1), (1, 9), (3, 7), (30, 70), (0, 400)] {
            for stay in [1, 2, 5, stays] {
                assert!(
                    soon(sent_away_after((works, looks), stay, look)),
                    "{works} {looks} {stay}"
                );
            }
        }
        for (works, looks) in [(1, 0), (4, 6), (6, 4), (40, 60), (500, 260), (900, 400)] {
            for stay in [1, 2, 5, stays] {
                assert_eq!(sent_away_after((works, looks), stay, look), None, "{works} {looks}");
            }
        }
    }

    #[test]
    fn looking_on_is_waiting_for_all_and_sleeping_and_not_executing() {
        let (times, stays) = ((6, 4), usize::MAX);
        let is_away = |look| sent_away_after(times, stays, look).is_some();
        assert!(!is_away(WaiterLook::default()));
        assert!(is_away(WaiterLook { waits_for_all: true, ..WaiterLook::default() }));
        assert!(is_away(WaiterLook { sleeps: true, ..WaiterLook::default() }));
        let executes = |executed| {
            sent_away_after((1, 9), stays, WaiterLook { executed, ..WaiterLook::default() })
        };
        assert!(executes(1).is_some() && executes(4).is_none());
    }

    #[test]
    fn threads_that_look_at_the_same_time_count_once() {
        static CPUS: SpareCpus = SpareCpus::new();
        let (beside, mut now) = (Beside::of(&CPUS, 1), 1_000_000_000);
        assert!(beside.is_due(now, || 0) && beside.comes(|| now).is_some());
        for _ in 0..1_000 {
            // Each of four threads looks for the same half of the time.
            for _ in 0..4 {
                beside.looked_on(
                    &WaiterLook { begin: now + 5, end: now + 10, ..WaiterLook::default() },
                    1,
                );
            }
            now += 10;
        }
        assert!(!beside.is_sent_away());
    }

    #[test]
    fn while_no_cpu_is_spare_no_context_calls_a_worker() {
        static CPUS: SpareCpus = SpareCpus::new();
        let contexts = [(); 2].map(|()| Beside::of(&CPUS, 2));
        let mut now = 1_000_000_000;
        assert!(contexts[0].is_due(now, || 0));
        let seat = contexts[0].comes(|| 0).unwrap();
        assert!(
            !seat.is_in_the_way(now + BESIDE_LATE_US, 1, 1)
                && seat.is_in_the_way(now + BESIDE_LATE_US + 1, 1, 1)
                && seat.is_in_the_way(now, 0, 1)
        );
        assert_eq!(seat.ends(true, 0, now, 1), Left::Busy);
        assert!(contexts.iter().all(|beside| !beside.is_due(now, || 0)));
        now += BESIDE_PAUSE_US.0;
        assert!(contexts[1].is_due(now, || 0));
        CPUS.was_busy(now, 1);
        assert_eq!(contexts[1].comes(|| 0).unwrap().ends(false, BESIDE_PAYS, now, 1), Left::Done);
        assert!(contexts.iter().all(|beside| !beside.is_due(now + BESIDE_PAUSE_US.0, || 0)));
        assert!(contexts.iter().all(|beside| beside.is_due(now + 2 * BESIDE_PAUSE_US.0, || 0)));
    }
}
