//! A placement: what a user asks for, checked against a machine, and what the machine allows of it,
//! with reasons.
//!
//! A cell is the CPUs of a NUMA node, of a last-level cache or of a core (`CellKind`).

use std::fmt;
use std::str::FromStr;

use super::device::Device;
use super::topology::Topology;
use crate::cpus::CpuSet;
use crate::environment::variable;
use crate::error::ConfigError;

/// CPUs, by number or by what happens on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Affinity {
    /// Any CPU: the scheduler and the path of the request choose.
    #[default]
    Any,
    /// The CPUs with these numbers.
    Cpus(CpuSet),
    /// The CPUs that the first submitting thread is confined to, if they are in one cell. Otherwise
    /// the allowed CPUs of the cell on which that thread runs.
    Application,
    /// The CPUs that serve the interrupts of the disk behind the first request's file.
    Interrupt,
    /// The CPUs of cells that serve neither the application nor the interrupt. If there are no such
    /// cells, the CPUs of cells without the application.
    OtherCell,
}

const WORDS: [(&str, Affinity); 4] = [
    ("any", Affinity::Any),
    ("application", Affinity::Application),
    ("interrupt", Affinity::Interrupt),
    ("other-cell", Affinity::OtherCell),
];

const EXPECTED: &str =
    "a list of CPUs as in 0-3,8, or one of application, interrupt, other-cell, any";

impl fmt::Display for Affinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpus(cpus) => cpus.fmt(f),
            word => f.write_str(WORDS.iter().find(|(_, a)| a == word).map_or("", |(name, _)| name)),
        }
    }
}

impl FromStr for Affinity {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        if let Some((_, word)) = WORDS.iter().find(|(name, _)| *name == text.trim()) {
            return Ok(word.clone());
        }
        // The machine is not known here: only an empty list is refused.
        match text.parse::<CpuSet>() {
            Ok(cpus) if !cpus.is_empty() => Ok(Self::Cpus(cpus)),
            Ok(_) => Err(refused("affinity", "an empty list", EXPECTED)),
            Err(_) => Err(refused("affinity", &format!("{text:?}"), EXPECTED)),
        }
    }
}

fn refused(field: &'static str, value: &str, expected: impl fmt::Display) -> ConfigError {
    let (value, expected) = (value.to_owned(), expected.to_string());
    ConfigError { field, value, expected, errno: libc::EINVAL }
}

/// Where the requests of a context run: three settings that do not depend on each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// CPUs on which requests are executed, and handed to the kernel.
    pub queue: Affinity,
    /// CPUs on which completions are collected, and handlers run.
    pub completion: Affinity,
    /// 0: completions stay on the CPU where they arrive. 1: they are sent to the cell of the
    /// submitting thread. 2: they are sent to its CPU. The result is always within `completion`.
    pub rq_affinity: u8,
}

/// The placement that a machine allows for a [`Placement`], for the requests of one context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EffectivePlacement {
    /// As [`Placement::queue`]; `None` if the scheduler chooses.
    pub queue: Option<CpuSet>,
    /// As [`Placement::completion`]; `None` if the scheduler chooses.
    pub completion: Option<CpuSet>,
    /// As [`Placement::rq_affinity`].
    pub rq_affinity: u8,
    /// Each setting that differs from what was asked for, and the reason.
    pub notes: Vec<String>,
}

impl fmt::Display for EffectivePlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus = |cpus: &Option<CpuSet>| cpus.as_ref().map_or("any".into(), CpuSet::to_string);
        let (queue, completion) = (cpus(&self.queue), cpus(&self.completion));
        write!(
            f,
            "queue on {queue}, completion on {completion}, rq_affinity {}",
            self.rq_affinity
        )?;
        self.notes.iter().try_for_each(|note| write!(f, "; {note}"))
    }
}

/// `URINGLET_QUEUE_AFFINITY`: as [`Placement::queue`].
pub const QUEUE_VARIABLE: &str = "URINGLET_QUEUE_AFFINITY";
/// `URINGLET_COMPLETION_AFFINITY`: as [`Placement::completion`].
pub const COMPLETION_VARIABLE: &str = "URINGLET_COMPLETION_AFFINITY";
/// `URINGLET_RQ_AFFINITY`: as [`Placement::rq_affinity`].
pub const RQ_VARIABLE: &str = "URINGLET_RQ_AFFINITY";

impl Placement {
    /// Reads the placement that `uringlet run` sets for the program that it starts. A program that
    /// gains privileges reads nothing (AT_SECURE, getauxval(3)).
    ///
    /// # Errors
    /// [`ConfigError`] names the field whose value cannot be read.
    pub fn from_environment() -> Result<Self, ConfigError> {
        let text = |name| variable(name).map(|value| value.to_string_lossy().into_owned());
        let cpus = |name, field| match text(name) {
            Some(text) => text.parse().map_err(|error| ConfigError { field, ..error }),
            None => Ok(Affinity::Any),
        };
        let rq_affinity = match text(RQ_VARIABLE) {
            Some(text) => text.parse().map_err(|_| refused("rq_affinity", &text, "0, 1 or 2"))?,
            None => 0,
        };
        let queue = cpus(QUEUE_VARIABLE, "queue_affinity")?;
        let completion = cpus(COMPLETION_VARIABLE, "completion_affinity")?;
        Ok(Self { queue, completion, rq_affinity })
    }

    /// Is every setting at its default?
    pub fn is_free(&self) -> bool {
        self == &Self::default()
    }

    /// Checks `rq_affinity`, and whether this machine has the CPUs of the lists. A word such as
    /// `interrupt` is not checked: if no CPU fits, [`Placement::resolve`] uses [`Affinity::Any`].
    ///
    /// # Errors
    /// [`ConfigError`]: the list is empty, or names a CPU that does not exist, is offline, or is
    /// forbidden to the threads of this process. Or `rq_affinity` is above 2.
    pub fn check(&self, topology: &Topology) -> Result<(), ConfigError> {
        check_list("queue_affinity", &self.queue, topology)?;
        check_list("completion_affinity", &self.completion, topology)?;
        if self.rq_affinity > 2 {
            return Err(refused("rq_affinity", &self.rq_affinity.to_string(), "0, 1 or 2"));
        }
        Ok(())
    }

    /// Resolves the placement for a thread that may run on `confined` and now runs on `cpu`. Its
    /// requests are for the disk `device`; an `Err` says why there is no disk. Unavailable
    /// placements become [`Affinity::Any`].
    pub fn resolve(
        &self,
        topology: &Topology,
        confined: &CpuSet,
        cpu: usize,
        device: Result<&Device, &str>,
    ) -> EffectivePlacement {
        let here: CpuSet = [cpu].into_iter().collect();
        let cell = topology.cells_around(&here);
        let application = if !confined.is_empty() && confined.is_within(&cell) {
            confined.clone()
        } else {
            let allowed = cell.and(topology.allowed());
            if allowed.is_empty() { here } else { allowed }
        };
        let site = Site { topology, application, device };
        let mut notes = Vec::new();
        let mut find = |field: &str, affinity: &Affinity| {
            site.find(affinity, &mut |note| notes.push(format!("{field}={affinity}: {note}")))
        };
        let queue = find("queue_affinity", &self.queue);
        let completion = find("completion_affinity", &self.completion);
        EffectivePlacement { queue, completion, rq_affinity: self.rq_affinity, notes }
    }
}

fn check_list(
    field: &'static str,
    affinity: &Affinity,
    topology: &Topology,
) -> Result<(), ConfigError> {
    let Affinity::Cpus(cpus) = affinity else { return Ok(()) };
    let reachable = topology.reachable();
    if cpus.is_empty() {
        return Err(refused(field, "an empty list", format_args!("CPUs out of {reachable}")));
    }
    let bad = |which: &CpuSet, why: &str| {
        let (cpu, is) = if which.len() == 1 { ("CPU", "is") } else { ("CPUs", "are") };
        let expected = format!("CPUs out of {reachable} ({cpu} {which} {is} {why})");
        Err(refused(field, &cpus.to_string(), expected))
    };
    let missing = cpus.without(topology.present());
    if !missing.is_empty() {
        return bad(&missing, "not there");
    }
    let offline = cpus.without(topology.online());
    if !offline.is_empty() {
        return bad(&offline, "offline");
    }
    let outside = cpus.without(reachable);
    if !outside.is_empty() {
        let group = topology.cgroup().is_some_and(|group| !outside.meets(group));
        let why = if group { "outside the control group" } else { "not for this process" };
        return bad(&outside, why);
    }
    Ok(())
}

/// What the words `Application`, `Interrupt` and `OtherCell` are resolved from.
struct Site<'a> {
    topology: &'a Topology,
    application: CpuSet,
    device: Result<&'a Device, &'a str>,
}

impl Site<'_> {
    fn find(&self, affinity: &Affinity, note: &mut dyn FnMut(String)) -> Option<CpuSet> {
        match affinity {
            Affinity::Any => None,
            Affinity::Cpus(cpus) => self.still_there(cpus, note),
            Affinity::Application => Some(self.application.clone()),
            Affinity::Interrupt => self.interrupt(note),
            Affinity::OtherCell => self.other_cell(note),
        }
    }

    fn still_there(&self, cpus: &CpuSet, note: &mut dyn FnMut(String)) -> Option<CpuSet> {
        let left = cpus.and(self.topology.online()).and(self.topology.reachable());
        let gone = cpus.without(&left);
        if left.is_empty() {
            note("none of them is online any more: left to the scheduler".into());
            return None;
        }
        if !gone.is_empty() {
            note(format!("{gone} went offline: {left} is left"));
        }
        Some(left)
    }

    fn interrupt(&self, note: &mut dyn FnMut(String)) -> Option<CpuSet> {
        let interrupts = match self.device {
            Ok(device) if !device.interrupts.is_empty() => &device.interrupts,
            Ok(device) => {
                note(format!("{}: left to the scheduler", device.notes.join(", ")));
                return None;
            }
            Err(reason) => {
                note(format!("{reason}: left to the scheduler"));
                return None;
            }
        };
        let allowed = self.topology.allowed();
        let mine = interrupts.and(allowed);
        if !mine.is_empty() {
            return Some(mine);
        }
        let near = self.topology.cells_around(interrupts).and(allowed);
        if near.is_empty() {
            note(format!("{interrupts} is not for this process: left to the scheduler"));
            return None;
        }
        note(format!("{interrupts} is not for this process: {near}, in the same cell"));
        Some(near)
    }

    fn other_cell(&self, note: &mut dyn FnMut(String)) -> Option<CpuSet> {
        let topology = self.topology;
        let away = topology.allowed().without(&topology.cells_around(&self.application));
        if away.is_empty() {
            note(format!(
                "no other {} is for this process: left to the scheduler",
                topology.cell_kind()
            ));
            return None;
        }
        let interrupts = self.device.map(|device| device.interrupts.clone()).unwrap_or_default();
        let neither = away.without(&topology.cells_around(&interrupts));
        if neither.is_empty() {
            note(format!("interrupts are served in every other cell: {away}"));
            return Some(away);
        }
        Some(neither)
    }
}
