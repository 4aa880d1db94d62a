//! The sides of a comparison, which run one after the other, and their times.

use std::time::Instant;

use anyhow::{Result, ensure};

/// One way to do a job. It returns a value on which all sides have to agree.
pub struct Side<'a> {
    pub name: &'static str,
    pub run: Box<dyn FnMut() -> Result<u64> + 'a>,
}

impl<'a> Side<'a> {
    pub fn new(name: &'static str, run: impl FnMut() -> Result<u64> + 'a) -> Self {
        Self { name, run: Box::new(run) }
    }
}

/// Seconds, and CPU seconds of the process: user and system.
#[derive(Clone, Copy)]
struct Taken {
    wall: f64,
    cpu: f64,
}

fn cpu_time() -> f64 {
    // SAFETY: zeroes are a valid `rusage`, which has only integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a structure of the type that the call writes.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len() % 2 == 1 { values[half] } else { (values[half - 1] + values[half]) / 2.0 }
}

/// The median of these values, with a 95 % interval that only uses their order, whatever their
/// distribution.
fn with_interval(mut values: Vec<f64>) -> (f64, f64, f64) {
    let middle = median(&mut values);
    let count = values.len();
    // `below + term`: the probability that at most `rank` of the values are below the true median.
    let (mut below, mut term, mut rank) = (0.0, 0.5f64.powi(count as i32), 0);
    while below + term <= 0.025 {
        below += term;
        term *= (count - rank) as f64 / (rank + 1) as f64;
        rank += 1;
    }
    let rank = rank.saturating_sub(1).min(count.saturating_sub(1) / 2);
    (middle, values[rank], values[count - 1 - rank])
}

/// Runs each side once in each round, each time after `prepare`. Each round begins with another
/// side. The times of a side are divided by the times of the first side: above 1, the first side is
/// faster, or cheaper.
pub fn compare(
    title: &str,
    rounds: usize,
    mut prepare: impl FnMut() -> Result<()>,
    mut sides: Vec<Side<'_>>,
) -> Result<()> {
    let mut taken: Vec<Vec<Taken>> = vec![Vec::new(); sides.len()];
    let mut expected = None;
    // The first round only warms up.
    for round in 0..=rounds {
        for turn in 0..sides.len() {
            let at = (round + turn) % sides.len();
            prepare()?;
            let (began, cpu) = (Instant::now(), cpu_time());
            let found = (sides[at].run)()?;
            let one = Taken { wall: began.elapsed().as_secs_f64(), cpu: cpu_time() - cpu };
            let first = *expected.get_or_insert(found);
            ensure!(found == first, "{}: {found}, not {first}", sides[at].name);
            if round > 0 {
                taken[at].push(one);
            }
        }
    }
    println!("{title}");
    println!(
        "  {:24} {:>9} {:>9}  {:>6} {:11}  {:>6} {:11}",
        "", "seconds", "CPU", "times", "95 %", "CPU", "95 %"
    );
    for (at, side) in sides.iter().enumerate() {
        let of = |part: fn(&Taken) -> f64| {
            let seconds = median(&mut taken[at].iter().map(part).collect::<Vec<_>>());
            let ratios = taken[at].iter().zip(&taken[0]).map(|(one, ours)| part(one) / part(ours));
            (seconds, with_interval(ratios.collect()))
        };
        let (wall, (times, low, high)) = of(|taken| taken.wall);
        let (cpu, (cpu_times, cpu_low, cpu_high)) = of(|taken| taken.cpu);
        println!(
            "  {:24} {wall:9.4} {cpu:9.4}  {times:5.2}× {:11}  {cpu_times:5.2}× {:11}",
            side.name,
            format!("{low:.2}–{high:.2}"),
            format!("{cpu_low:.2}–{cpu_high:.2}"),
        );
    }
    Ok(())
}
