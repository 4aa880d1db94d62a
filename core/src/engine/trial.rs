//! Two ways to do the same, of which the better one depends on the machine: the other one is tried now and then, and compared
//! with the windows next to it.

/// A way is judged by the median of its last probes, and by no fewer than these, or those if they agree: a probe can be disturbed.
const PROBES: usize = 5;
const ENOUGH: usize = 3;
/// Windows between two probes: fewest, and most, to which it doubles while the answer stays.
const GAP: (u32, u32) = (2, 64);
/// So many percent of the time that the first way takes, the second one has to stay below in as many probes as are looked at: it is to be
/// no accident. And so many percent of the time of the second one are enough for the first to come back.
const WORTH: u64 = 87;
const BACK: u64 = 98;

/// Which of two ways requests are done.
#[derive(Debug)]
pub(super) struct Trial {
    /// Requests of a window that count, and of those before them, which are still under the influence of the way before.
    window: u32,
    skipped: u32,
    /// After so many ticks without a request their program was elsewhere.
    longest: u64,
    /// The way that is taken when nothing is tried: the second one?
    answer: bool,
    step: Step,
    /// Windows until the next probe, and between this one and the one after.
    left: u32,
    gap: u32,
    shares: Shares,
    /// When the last request came, how many of this window have, and the time of those that count.
    last: u64,
    count: u32,
    sum: u64,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Stay,
    Probe { before: u64 },
    Compare { before: u64, cost: u64 },
}

impl Trial {
    pub(super) fn new(window: u32, skipped: u32, longest: u64) -> Self {
        Self {
            window,
            skipped,
            longest,
            answer: false,
            step: Step::Stay,
            left: GAP.0,
            gap: GAP.0,
            shares: Shares::default(),
            last: 0,
            count: 0,
            sum: 0,
        }
    }

    /// A request has come, `now` in ticks. Is it to be done in the second way?
    pub(super) fn next(&mut self, now: u64) -> bool {
        let passed = now.wrapping_sub(self.last);
        self.last = now;
        if passed > self.longest {
            // What has been begun does not count.
            (self.step, self.count, self.sum) = (Step::Stay, 0, 0);
            self.left = self.left.max(1);
            return self.answer;
        }
        self.count += 1;
        if self.count > self.skipped {
            self.sum += passed;
        }
        if self.count == self.window + self.skipped {
            let cost = self.sum;
            (self.count, self.sum) = (0, 0);
            self.end_window(cost);
        }
        self.answer != matches!(self.step, Step::Probe { .. })
    }

    fn end_window(&mut self, cost: u64) {
        match self.step {
            Step::Stay => {
                self.left -= 1;
                if self.left == 0 {
                    self.step = Step::Probe { before: cost };
                }
            }
            Step::Probe { before } => self.step = Step::Compare { before, cost },
            Step::Compare { before, cost: other } => {
                self.step = Step::Stay;
                self.shares.add(other * 200 / (before + cost).max(1));
                let most = if self.answer { BACK } else { WORTH };
                let agreed = self.shares.highest() < most;
                let sure = self.answer || agreed || self.shares.count >= PROBES;
                match self.shares.median() {
                    Some(share) if sure && share < most => {
                        (self.answer, self.gap) = (!self.answer, GAP.0);
                        self.shares = Shares::default();
                    }
                    Some(_) => {
                        self.gap = (self.gap * 2).min(GAP.1);
                    }
                    None => {}
                }
                self.left = self.gap;
            }
        }
    }
}

/// How long a way took in its last probes, in percent of what the answer took before and after.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shares {
    last: [u64; PROBES],
    count: usize,
}

impl Shares {
    pub(super) fn add(&mut self, share: u64) {
        self.last[self.count % PROBES] = share;
        self.count += 1;
    }

    fn highest(&self) -> u64 {
        let last = &self.last[..self.count.min(PROBES)];
        last.iter().copied().max().unwrap_or(u64::MAX)
    }

    /// `None`: too few to say.
    pub(super) fn median(&self) -> Option<u64> {
        let count = self.count.min(PROBES);
        let mut last = self.last;
        last[..count].sort_unstable();
        (count >= ENOUGH).then(|| last[count / 2])
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Trial;

    const WINDOW: u32 = 32;

    /// So many requests, which take `cost` ticks one way or the other; gives how many were done in the second.
    fn requests(trial: &mut Trial, clock: &mut u64, n: u32, cost: [u64; 2]) -> u32 {
        (0..n).fold(0, |second, _| {
            let is_second = trial.next(*clock);
            *clock += cost[usize::from(is_second)];
            second + u32::from(is_second)
        })
    }

    #[test]
    fn what_is_quicker_stays_and_the_other_way_is_tried_now_and_then() {
        let (mut trial, mut clock) = (Trial::new(WINDOW, 2, 1_000_000), 1 << 40);
        let n = 1000 * WINDOW;
        for (cost, second) in
            [([50_000, 30_000], true), ([50_000, 47_000], true), ([50_000, 60_000], false)]
        {
            let in_second = requests(&mut trial, &mut clock, n, cost);
            let right = if second { in_second } else { n - in_second };
            assert!((n * 3 / 4..n).contains(&right), "{in_second} of {n} with {cost:?}");
        }
    }

    #[test]
    fn a_little_quicker_is_not_worth_a_change() {
        let (mut trial, mut clock) = (Trial::new(WINDOW, 2, 1_000_000), 1 << 40);
        let n = 1000 * WINDOW;
        let in_second = requests(&mut trial, &mut clock, n, [50_000, 45_000]);
        assert!(in_second < n / 8, "{in_second}");
    }

    #[test]
    fn what_comes_seldom_says_nothing() {
        let (mut trial, mut clock) = (Trial::new(WINDOW, 2, 1_000_000), 1 << 40);
        assert_eq!(requests(&mut trial, &mut clock, 100 * WINDOW, [1_000_001, 1]), 0);
    }
}
