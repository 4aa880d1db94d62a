//! The identity of this process, for other processes that share a ring with it. Also finds out
//! whether such a process has ended.

use std::convert::Infallible;

use uringlet::front::PerProcess;

use crate::sys;

/// The shift and the mask of each part of an identity: the start time in ticks, the PID namespace,
/// and the PID. The lowest bit is left for [`BUSY`](super::page::BUSY).
const START: (u32, u64) = (1, (1 << 25) - 1);
const NAMESPACE: (u32, u64) = (26, (1 << 16) - 1);
const PID: (u32, u64) = (42, (1 << 22) - 1);

fn put(value: u64, (shift, mask): (u32, u64)) -> u64 {
    (value & mask) << shift
}

fn get(word: u64, (shift, mask): (u32, u64)) -> u64 {
    word >> shift & mask
}

/// The identity of this process. The PID is always set, the rest if /proc is readable.
pub(crate) fn me() -> u64 {
    static ME: PerProcess<u64> = PerProcess::new();
    let make = || {
        let start = Stat::of("self").map_or(0, |stat| stat.start);
        let pid = u64::from(std::process::id());
        Ok::<_, Infallible>(put(pid, PID) | put(start, START) | put(namespace(), NAMESPACE))
    };
    let Ok(me) = ME.current_or(make);
    *me
}

/// The number of this process's PID namespace; 0 if /proc is not readable.
fn namespace() -> u64 {
    let link = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let digits = link.to_str().unwrap_or_default();
    digits.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0)
}

/// Has this process ended? False for a process in another PID namespace, or if the answer is
/// unknown.
pub(crate) fn is_gone(word: u64) -> bool {
    if get(word, NAMESPACE) != get(me(), NAMESPACE) {
        return false;
    }
    let pid = get(word, PID) as i32;
    if pid == 0 || !sys::is_process(pid) {
        return true;
    }
    sys::proc_shows_our_namespace()
        && Stat::of(&pid.to_string())
            .is_some_and(|stat| stat.start & START.1 != get(word, START) || stat.is_dead)
}

/// Fields of `/proc/PID/stat` (proc(5)).
struct Stat {
    /// The process waits to be reaped, and all of its threads have ended.
    is_dead: bool,
    /// The start time in ticks since the machine was started.
    start: u64,
}

impl Stat {
    fn of(pid: &str) -> Option<Self> {
        Self::read(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn read(text: &str) -> Option<Self> {
        /// Fields after the name, which may contain anything.
        const THREADS: usize = 17;
        const START: usize = 19;
        let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_ascii_whitespace().collect();
        // The first thread may have ended before the others.
        let is_alone = fields.get(THREADS)?.parse::<u32>().is_ok_and(|count| count <= 1);
        let is_dead = is_alone && matches!(*fields.first()?, "Z" | "X" | "x");
        Some(Self { is_dead, start: fields.get(START)?.parse().ok()? })
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::{PID, START, Stat, get, is_gone, me, put};

    #[test]
    fn this_process_is_there_and_one_that_was_reaped_is_gone() {
        assert_eq!(get(me(), PID), u64::from(std::process::id()));
        assert!(!is_gone(me()));
        assert!(is_gone(me() ^ put(1, START)), "another one had that number");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let word = me() & !put(!0, PID) | put(u64::from(child.id()), PID);
        child.wait().unwrap();
        assert!(is_gone(word));
    }

    #[test]
    fn a_process_that_waits_to_be_reaped_is_dead() {
        let stat = |state, threads| {
            let text = format!("7 (a) b) {state} 1 {}{threads} 0 4711 0\n", "0 ".repeat(15));
            Stat::read(&text).map(|stat| (stat.is_dead, stat.start))
        };
        assert_eq!(stat("S", 1), Some((false, 4711)));
        assert_eq!(stat("Z", 1), Some((true, 4711)));
        assert_eq!(stat("Z", 2), Some((false, 4711)), "only its first thread has ended");
        assert!(Stat::read("").is_none());
    }
}
