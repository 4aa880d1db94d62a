//! The use of the CPUs by other processes and guests during a measurement: proc_stat(5), and
//! /proc/pressure/cpu.

use super::drive::cpu_time;
use super::median;
use crate::machine::{self, Ticks};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use serde::Serialize;
use std::fs::read_to_string;
use std::time::{Duration, Instant};

/// Other processes and guests use a share of the CPU time. A round is disturbed if their share is
/// above that of the median round by more than this.
const BEYOND: f64 = 0.10;
/// Shorter intervals are useless: the kernel counts in hundredths of a second.
const SHORTEST: Duration = Duration::from_millis(200);

/// The kernel's counters at one moment.
pub struct Look {
    at: Instant,
    /// CPU time of this process and of the children that it has waited for.
    own: Duration,
    stat: String,
    /// Microseconds in which some thread waited for a CPU.
    waited: Option<u64>,
}

/// The changes between two samples, as shares of the time of the CPUs that this process may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Outside {
    /// The share that other processes and kernel threads used.
    pub others: f64,
    /// The share in which the hypervisor ran another guest.
    pub stolen: f64,
    /// The share of the wall-clock time in which some thread was ready and had no CPU. The thread
    /// may belong to this process.
    pub waiting: f64,
}

impl Look {
    /// Reads the counters.
    pub fn now() -> Self {
        let children = getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0, |usage| {
            usage.user_time().num_microseconds() + usage.system_time().num_microseconds()
        });
        let pressure = read_to_string("/proc/pressure/cpu").unwrap_or_default();
        let total =
            pressure.lines().find_map(|line| line.strip_prefix("some ")?.split("total=").nth(1));
        Self {
            at: Instant::now(),
            own: cpu_time() + Duration::from_micros(children.cast_unsigned()),
            stat: read_to_string("/proc/stat").unwrap_or_default(),
            waited: total.and_then(|total| total.trim().parse().ok()),
        }
    }

    /// The changes since this sample; none if they are unknown, or if the interval is too short.
    pub fn elapsed(&self) -> Option<Outside> {
        let now = Self::now();
        let (seconds, own) = (now.at - self.at, now.own.saturating_sub(self.own));
        if seconds < SHORTEST {
            return None;
        }
        let waited = self.waited.zip(now.waited).map_or(0, |(then, now)| now.saturating_sub(then));
        let cpus = machine::cpus_allowed();
        let ticks =
            machine::ticks_between(&ticks_of(&self.stat, &cpus)?, &ticks_of(&now.stat, &cpus)?);
        let [user, nice, system, _idle, _iowait, irq, softirq, stolen] = ticks;
        let busy = (user + nice + system + irq + softirq) as f64;
        let ticks = ticks.iter().sum::<u64>().max(1) as f64;
        let whole = seconds.as_secs_f64() * cpus.len() as f64;
        Some(Outside {
            others: (busy / ticks - own.as_secs_f64() / whole).clamp(0.0, 1.0),
            stolen: stolen as f64 / ticks,
            waiting: waited as f64 / 1e6 / seconds.as_secs_f64(),
        })
    }
}

impl Outside {
    fn taken(&self) -> f64 {
        self.others + self.stolen
    }
}

/// The rounds of a run that were disturbed more than the others. An outside load that is equal in
/// all rounds marks none of them as disturbed: [`usual`] returns its share.
pub fn disturbed(rounds: &[Option<Outside>]) -> Vec<bool> {
    let known = || rounds.iter().flatten();
    let middle = |of: fn(&Outside) -> f64| median(known().map(of).collect()).unwrap_or_default();
    let (taken, waiting) = (middle(Outside::taken), middle(|one| one.waiting));
    let is_disturbed =
        |one: &Outside| one.taken() > taken + BEYOND || one.waiting > waiting + 2.0 * BEYOND;
    let judged = known().count() > 2;
    rounds.iter().map(|round| judged && round.as_ref().is_some_and(is_disturbed)).collect()
}

/// The share of the CPU time that other processes and guests used in the median round.
pub fn usual<'a>(rounds: impl Iterator<Item = &'a Outside>) -> f64 {
    median(rounds.map(Outside::taken).collect()).unwrap_or_default()
}

/// The sum of the counters of `cpus`; `stat` is the text of /proc/stat.
fn ticks_of(stat: &str, cpus: &[usize]) -> Option<Ticks> {
    let is_own = |number: &str| number.parse().is_ok_and(|number| cpus.contains(&number));
    let own = machine::cpu_ticks(stat).filter(|(number, _)| is_own(number));
    own.map(|(_, ticks)| ticks).reduce(|sum, ticks| std::array::from_fn(|at| sum[at] + ticks[at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_cpus_count() {
        let stat =
            "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 10 20 4 5 6 0 0\ncpu1 7 0 0 3 0 0 0 0 0 0\n";
        assert_eq!(ticks_of(stat, &[0]), Some([1, 2, 3, 10, 20, 4, 5, 6]));
        assert_eq!(ticks_of(stat, &[0, 1]), Some([8, 2, 3, 13, 20, 4, 5, 6]));
        assert_eq!((ticks_of("", &[0]), ticks_of("cpu0 1\n", &[0])), (None, None));
    }

    #[test]
    fn a_round_is_disturbed_by_more_than_the_machine_always_has() {
        let round = |others, waiting| Some(Outside { others, stolen: 0.0, waiting });
        let burst = [round(0.02, 0.0), round(0.4, 0.0), round(0.0, 0.0), round(0.01, 0.5), None];
        assert_eq!(disturbed(&burst), [false, true, false, true, false]);
        let always = [0.5, 0.49, 0.52, 0.51].map(|others| round(others, 0.9));
        assert_eq!(disturbed(&always), [false; 4]);
        assert!((usual(always.iter().flatten()) - 0.505).abs() < 1e-9);
        assert_eq!(disturbed(&burst[..2]), [false; 2], "two rounds have no middle");
    }

    #[test]
    fn a_look_is_a_part_of_the_whole() {
        let look = Look { at: Instant::now() - Duration::from_secs(1), ..Look::now() };
        // Without counters for these CPUs in /proc/stat, there is no result.
        assert!(look.elapsed().is_none_or(|found| (0.0..=1.0).contains(&found.others)));
        assert_eq!(Look::now().elapsed(), None, "too short");
    }
}
