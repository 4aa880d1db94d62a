//! What the findings mean for a user with a program to run. What serves each kind of request here?
//! What does that cost, compared with a machine that refuses nothing? What would help?

use super::report::{FileSystem, Report};
use crate::report::wrapped;
use serde::Serialize;
use std::fmt::Write as _;
use uringlet::EngineKind;
use uringlet::probe::{Cause, ExpectedLane as Lane, Probe};

/// One kind of request on one file system.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Served {
    /// The kind of request: `cached reads and writes`.
    pub what: &'static str,
    pub by: String,
    /// The cost compared with the best machine, which refuses no interface.
    pub costs: &'static str,
    /// Is no cheaper means known to execute these requests?
    pub is_best: bool,
}

impl Served {
    pub fn text(&self) -> String {
        format!("{}: {}; {}", self.what, self.by, self.costs)
    }
}

impl FileSystem {
    /// What serves each kind of request. Empty if nothing could be tried.
    pub fn served(&self) -> Vec<Served> {
        if !self.folder.scratch.works() {
            return Vec::new();
        }
        let lanes = &self.folder.lanes;
        let one_by_one = (
            "the thread that waits, one after the other",
            "only one is at the device at a time",
            false,
        );
        let cached = match lanes.cached {
            Lane::Inline => {
                ("the thread that waits, with one system call each", "as on the best machine", true)
            }
            _ => ("a worker each", "a wake-up more for each than on the best machine", false),
        };
        let cold = match lanes.cold {
            Lane::Cold => (
                "a worker that starts many at a time without waiting",
                "a system call more for each than on the best machine",
                true,
            ),
            Lane::Inline => one_by_one,
            _ => (
                "a worker each, at most 64",
                "a wake-up more for each, and about twice the CPU time of the best machine",
                false,
            ),
        };
        let by_kernel;
        let direct = match lanes.direct {
            None => (
                "nothing: this file system or sandbox refuses them",
                "programs that insist on O_DIRECT fail here with or without uringlet",
                true,
            ),
            Some(Lane::Kernel(kind)) => {
                by_kernel = format!("the kernel ({}), many with one call", kind.name());
                (&*by_kernel, "as on the best machine", true)
            }
            Some(Lane::Inline) => one_by_one,
            Some(_) => (
                "a worker each, at most 64",
                "two context switches more for each than on the best machine",
                false,
            ),
        };
        let all = [
            ("cached reads and writes", cached),
            ("cold reads", cold),
            ("direct reads and writes", direct),
        ];
        all.map(|(what, (by, costs, is_best))| Served { what, by: by.into(), costs, is_best })
            .into()
    }
}

/// Advice for refused interfaces or threads: lines for people who run containers and machines.
pub fn remedies(probe: &Probe) -> Vec<String> {
    let mut lines = Vec::new();
    for engine in &probe.engines {
        let Some(refusal) = &engine.refusal else { continue };
        let calls = match engine.kind {
            EngineKind::IoUring => "io_uring_setup, io_uring_enter and io_uring_register",
            EngineKind::LinuxAio => "io_setup, io_submit, io_getevents and io_destroy",
            _ => "clone3 and clone",
        };
        let name = engine.kind.name();
        let words: &[&str] = match refusal.cause {
            Cause::Seccomp => &[
                "Docker, NAME: --security-opt seccomp=FILE, a copy of its default profile that \
                 allows CALLS",
                "Kubernetes, NAME: seccompProfile: { type: Localhost, localhostProfile: FILE }, \
                 the same file on the node",
                "systemd, NAME: SystemCallFilter=@aio in the unit",
            ],
            Cause::IoUringDisabled => {
                &["sysctl, NAME: sysctl -w kernel.io_uring_disabled=0, on the host"]
            }
            Cause::AioMaxNr => &["sysctl, NAME: sysctl -w fs.aio-max-nr=1048576, on the host"],
            Cause::Threads => {
                &["NAME: --pids-limit (Docker), podPidsLimit (Kubernetes), TasksMax= (systemd)"]
            }
            Cause::Descriptors => {
                &["NAME: ulimit -n; --ulimit nofile= (Docker), LimitNOFILE= (systemd)"]
            }
            Cause::Memlock => {
                &["NAME: ulimit -l; --ulimit memlock= (Docker), LimitMEMLOCK= (systemd)"]
            }
            Cause::Kernel => &["NAME: a newer kernel, or one compiled with it"],
            _ => &[],
        };
        let filled = |words: &&str| words.replace("NAME", name).replace("CALLS", calls);
        lines.extend(words.iter().map(filled));
    }
    lines
}

impl Report<'_> {
    /// The end of the report, for readers who read nothing else.
    pub fn plain_words(&self) -> String {
        let mut text = String::from("\nIn plain words\n");
        let mut add = |line: &str| {
            let inside = line.len() - line.trim_start().len();
            for (at, part) in wrapped(line, 96 - inside).iter().enumerate() {
                let more = if at > 0 { 2 } else { 0 };
                let _ = writeln!(text, "{:1$}{part}", "", inside + more);
            }
        };
        let mut is_best = true;
        for file_system in &self.file_systems {
            add(&format!("  In {}:", file_system.folder.path.display()));
            if let Some(refusal) = file_system.folder.scratch.refusal() {
                add(&format!("    nothing could be tried: {}", refusal.words));
            }
            for served in file_system.served() {
                is_best &= served.is_best;
                add(&format!("    {}", served.text()));
            }
        }
        let remedies = remedies(self.probe);
        let tried = |file_system: &FileSystem| file_system.folder.scratch.works();
        if !self.file_systems.iter().any(tried) {
            add("  What uringlet can do here is unknown: name a folder that you can write to.");
            if !remedies.is_empty() {
                add("  Programs that insist on a refused interface need:");
            }
            remedies.iter().for_each(|line| add(&format!("    {line}")));
            return text;
        }
        if !self.file_systems.iter().all(tried) {
            add("  Of the folders that could be tried:");
        }
        match (is_best, remedies.is_empty()) {
            (true, true) => add("  uringlet has all it needs here; there is nothing to change."),
            (true, false) => add(
                "  uringlet does its best here with what it is allowed; programs that insist on a \
                 refused interface need:",
            ),
            (false, true) => {
                add("  It works here, at the cost named above; no setting is known to help.")
            }
            (false, false) => add("  It works here, at the cost named above. What would help:"),
        }
        remedies.iter().for_each(|line| add(&format!("    {line}")));
        text
    }
}
