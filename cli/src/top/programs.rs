//! The programs and their contexts, and their counts since the last snapshot.

use super::find::{Finder, Found, Key};
use crate::observe::figures::{self, Figures};
use crate::observe::processes;
use serde::Serialize;
use serde_json::Value;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};
use uringlet::stats::{ContextNow, Region, Snapshot};

/// A program: the processes that one `uringlet run` has started, or an observed process with its
/// children.
#[derive(Serialize)]
pub struct Program {
    #[serde(skip)]
    pub key: Key,
    pub pid: u32,
    pub program: String,
    /// The program's known processes.
    pub processes: Vec<u32>,
    pub in_flight: u64,
    pub workers: usize,
    pub interval: Figures,
    pub totals: Value,
    pub contexts: Vec<Context>,
}

/// A context that has its own slot in the region of counters.
#[derive(Serialize)]
pub struct Context {
    pub pid: u32,
    pub program: String,
    /// The number of the context's slot.
    pub place: usize,
    /// The context's engine, and why it was chosen.
    pub engine: String,
    pub in_flight: u64,
    pub interval: Figures,
}

/// The counts of a program at the last snapshot.
struct Before {
    /// The region stays mapped while its key is remembered, so that no other region gets the same
    /// key.
    _region: Rc<Region>,
    at: Instant,
    sum: Snapshot,
    /// The counts of contexts, by the number of the slot.
    contexts: HashMap<usize, Snapshot>,
}

/// Looks at programs repeatedly.
pub struct Programs {
    finder: Finder,
    /// Only the program that the process with this number belongs to.
    only: Option<u32>,
    before: HashMap<Key, Before>,
}

impl Programs {
    pub fn new(finder: Finder, only: Option<u32>) -> Self {
        Self { finder, only, before: HashMap::new() }
    }

    pub fn finder(&mut self) -> &mut Finder {
        &mut self.finder
    }

    /// The current programs, in no order. For a program that was not there at the last snapshot,
    /// rates are 0.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn look(&mut self) -> io::Result<Vec<Program>> {
        let mut before = std::mem::take(&mut self.before);
        let mut programs = Vec::new();
        for found in self.finder.look()? {
            let contexts = found.region.contexts();
            let program = program_pid(&found);
            let of = |pid| {
                pid == program
                    || found.holders.contains(&pid)
                    || contexts.iter().any(|context| context.process.pid == pid)
            };
            if self.only.is_some_and(|pid| !of(pid)) {
                continue;
            }
            let (at, sum) = (Instant::now(), found.region.snapshot());
            let last = before.remove(&found.key);
            let time = last.as_ref().map_or(Duration::ZERO, |last| at - last.at);
            let since = |last: Option<&Snapshot>, now: &Snapshot| {
                Figures::between(last.unwrap_or(now), now, time)
            };
            let nothing = Snapshot::default();
            let last_of = |context: &ContextNow| {
                let last = last.as_ref()?;
                // If this is the first context of its slot, all counts of the slot are new.
                let first = (context.generation == 1).then_some(&nothing);
                last.contexts.get(&context.place).or(first)
            };
            let shown = contexts.iter().map(|context| Context {
                pid: context.process.pid,
                program: processes::name(context.process.pid),
                place: context.place,
                engine: context.choice.clone(),
                in_flight: context.in_flight,
                interval: since(last_of(context), &context.counted),
            });
            programs.push(Program {
                key: found.key,
                pid: program,
                program: processes::name(program),
                processes: processes_of(&found, &contexts),
                in_flight: contexts.iter().fold(0u64, |sum, one| sum.saturating_add(one.in_flight)),
                workers: processes::workers(&contexts),
                interval: since(last.as_ref().map(|last| &last.sum), &sum),
                totals: figures::totals(&sum),
                contexts: shown.collect(),
            });
            let contexts = contexts.into_iter().map(|context| (context.place, context.counted));
            let contexts = contexts.collect();
            let now = Before { _region: found.region, at, sum, contexts };
            self.before.insert(found.key, now);
        }
        Ok(programs)
    }
}

/// The pid that stands for the program: its own. After its end, the lowest pid of a process that
/// still has the counters open.
fn program_pid(found: &Found) -> u32 {
    let program = found.region.program();
    let left = || found.holders.first().copied().unwrap_or_default();
    if program.pid != 0 && program.is_alive() { program.pid } else { left() }
}

fn processes_of(found: &Found, contexts: &[ContextNow]) -> Vec<u32> {
    let mut pids = found.holders.clone();
    pids.push(program_pid(found));
    pids.extend(contexts.iter().map(|context| context.process.pid));
    pids.sort_unstable();
    pids.dedup();
    pids
}
