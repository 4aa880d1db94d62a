//! A request that will sleep and is alone: its waiter can do it in one system call and sleep in there, or start it with one
//! call and sleep in the next. The second way costs a call, but on some machines and devices a thread that sleeps there runs
//! again much sooner. So the other way is tried now and then, and compared with the windows next to it.

use std::sync::Mutex;

use super::pipeline::Shares;

/// Requests of one window. The first [`SKIPPED`] do not count: they are still under the influence of the way before.
const WINDOW: u32 = 32;
const SKIPPED: u32 = 2;
/// Windows between two probes: fewest, and most, to which it doubles while the answer stays.
const GAP: (u32, u32) = (2, 64);
/// So many percent of the time that the present way takes, the other one has to stay below.
const WORTH: u64 = 92;
/// Longer than this between two requests: their program was elsewhere, or their device is so slow that it does not matter.
const LONGEST_US: u64 = 1000;

/// What is alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// A direct read: `pread`, or handed to the kernel.
    DirectRead,
    /// A direct write: `pwrite`, or handed to the kernel.
    DirectWrite,
    /// A cached read whose page is not expected to be there: `pread`, or asked for without waiting first.
    Cold,
}

/// For each sort, which way is taken.
#[derive(Debug)]
pub(super) struct Lone {
    trials: [Mutex<Trial>; 3],
    longest: u64,
}

#[derive(Debug)]
struct Trial {
    /// The way that is taken when nothing is tried: in two calls?
    answer: bool,
    step: Step,
    /// Windows until the next probe, and between this one and the one after.
    left: u32,
    gap: u32,
    shares: Shares,
    /// When the last request came, and how many of this window have; the time of those that count.
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

impl Lone {
    pub(super) fn new(ticks_per_us: u64) -> Self {
        Self { trials: Default::default(), longest: LONGEST_US * ticks_per_us }
    }

    /// One has come, `now` in ticks. Is it to be done in two calls?
    pub(super) fn in_two_calls(&self, sort: Sort, now: u64) -> bool {
        // Another waiter is at it.
        let Ok(mut trial) = self.trials[sort as usize].try_lock() else { return false };
        trial.next(now, self.longest)
    }
}

impl Default for Trial {
    fn default() -> Self {
        let (answer, step, shares) = (false, Step::Stay, Shares::default());
        Self { answer, step, left: GAP.0, gap: GAP.0, shares, last: 0, count: 0, sum: 0 }
    }
}

impl Trial {
    fn next(&mut self, now: u64, longest: u64) -> bool {
        let passed = now.wrapping_sub(self.last);
        self.last = now;
        if passed > longest {
            // What has been begun does not count.
            (self.step, self.count, self.sum) = (Step::Stay, 0, 0);
            self.left = self.left.max(1);
            return self.answer;
        }
        self.count += 1;
        if self.count > SKIPPED {
            self.sum += passed;
        }
        if self.count == WINDOW + SKIPPED {
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
                match self.shares.median() {
                    Some(share) if share < WORTH => {
                        (self.answer, self.gap) = (!self.answer, GAP.0);
                        self.shares = Shares::default();
                    }
                    Some(_) => self.gap = (self.gap * 2).min(GAP.1),
                    None => {}
                }
                self.left = self.gap;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{LONGEST_US, Lone, Sort, WINDOW};

    /// So many cold reads, as below.
    fn requests(lone: &Lone, clock: &mut u64, n: u32, cost: [u64; 2]) -> u32 {
        requests_of(Sort::Cold, lone, clock, n, cost)
    }

    /// So many requests, which take `cost` ticks in one call or in two; gives how many were done in two.
    fn requests_of(sort: Sort, lone: &Lone, clock: &mut u64, n: u32, cost: [u64; 2]) -> u32 {
        (0..n).fold(0, |two, _| {
            let in_two = lone.in_two_calls(sort, *clock);
            *clock += cost[usize::from(in_two)];
            two + u32::from(in_two)
        })
    }

    #[test]
    fn what_is_quicker_stays_and_the_other_way_is_tried_now_and_then() {
        let (lone, mut clock) = (Lone::new(1000), 1 << 40);
        let n = 1000 * WINDOW;
        for (cost, two) in
            [([50_000, 30_000], true), ([50_000, 51_000], true), ([50_000, 60_000], false)]
        {
            let in_two = requests(&lone, &mut clock, n, cost);
            let right = if two { in_two } else { n - in_two };
            assert!((n * 3 / 4..n).contains(&right), "{in_two} of {n} with {cost:?}");
        }
        let other = lone.in_two_calls(Sort::DirectRead, clock);
        assert!(!other, "learned apart");
    }

    #[test]
    fn what_comes_seldom_is_done_in_one_call() {
        let (lone, mut clock) = (Lone::new(1000), 1 << 40);
        let cost = [(LONGEST_US + 1) * 1000, 1];
        assert_eq!(requests(&lone, &mut clock, 100 * WINDOW, cost), 0);
    }

    #[cfg(not(miri))]
    mod with_a_file {
        use super::{Sort, WINDOW, requests_of};
        use crate::engine::workers::Workers;
        use crate::front::Entry;
        use crate::instance::{Instance, without_taker};
        use crate::{Context, Sqe, sys};
        use std::io::Write;
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::FileExt;

        const LEN: usize = 4096;

        #[repr(C, align(4096))]
        struct Page([u8; LEN]);

        #[test]
        fn a_direct_request_that_is_quicker_in_two_calls_goes_to_the_kernel() {
            let skip = |reason| {
                let name = "a_direct_request_that_is_quicker_in_two_calls_goes_to_the_kernel";
                let _ = writeln!(std::io::stderr(), "\nSKIPPED {name}: {reason}");
            };
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(&[7; LEN], 0).unwrap();
            // SAFETY: a call on a descriptor.
            if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_DIRECT) } != 0 {
                return skip("no O_DIRECT here");
            }
            let instance = Instance::new(&Context::builder().entries(4).stats(true)).unwrap();
            let workers = Workers::of(&instance);
            let (us, mut clock) = (workers.ticks_per_us, sys::ticks());
            for sort in [Sort::DirectRead, Sort::DirectWrite] {
                let costs = [50 * us, 30 * us];
                requests_of(sort, &workers.lone, &mut clock, 100 * WINDOW, costs);
            }
            for round in 0..20 {
                let mut page = Page([round; LEN]);
                let write = Sqe::write(file.as_raw_fd(), &raw const page.0[..], 0);
                let read = Sqe::read(file.as_raw_fd(), &raw mut page.0[..], 0);
                for sqe in [write, read] {
                    let entry = Entry { sqe, data: 0, notify: -1 };
                    // SAFETY: the page outlives the request, which is waited for.
                    assert_eq!(unsafe { instance.submit(&[entry]) }.accepted, 1);
                    without_taker(|taker| instance.wait(1, 1, None, None, taker));
                    assert_eq!(instance.reap(1, |cqe| assert_eq!(cqe.res, LEN as i32)), 1);
                }
                assert!(page.0.iter().all(|&byte| byte == round));
            }
            match (workers.kernel.kind(), instance.stats().unwrap().by_kernel) {
                (None, _) => skip("no kernel interface here"),
                // Should this thread be away for long, a worker comes for it.
                (Some(_), by_kernel) => assert!(by_kernel > 20, "{by_kernel} of 40"),
            }
        }
    }
}
