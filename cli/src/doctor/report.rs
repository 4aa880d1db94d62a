//! What the user gets: text, and the same as JSON with names that stay.

use crate::machine::{self, Storage};
use crate::sandbox::Sandbox;
use crate::size;
use serde::Serialize;
use std::fmt::Write as _;
use uringlet::probe::{self, Probe, Refusal};

/// Everything that was found out.
#[derive(Serialize)]
pub struct Report {
    version: &'static str,
    kernel: String,
    c_library: String,
    sandbox: SandboxFacts,
    engines: Vec<Engine>,
    limits: Vec<Limit>,
    file_systems: Vec<FileSystem>,
}

/// What is known about the sandbox; null where /proc does not tell.
#[derive(Serialize)]
struct SandboxFacts {
    /// 0 off, 1 strict, 2 a filter.
    seccomp: Option<u32>,
    no_new_privs: Option<bool>,
    io_uring_disabled: Option<u32>,
    /// By `--forbid`.
    forbidden: Vec<String>,
    forbid_errno: Option<String>,
}

/// Why something was refused; all null if it was not.
#[derive(Default, Serialize)]
struct Reason {
    call: Option<&'static str>,
    errno: Option<i32>,
    errno_name: Option<&'static str>,
    cause: Option<&'static str>,
    reason: Option<String>,
}

impl Reason {
    fn of(refusal: Option<&Refusal>) -> Self {
        let Some(refusal) = refusal else { return Self::default() };
        Self {
            call: Some(refusal.call),
            errno: Some(refusal.errno),
            errno_name: probe::errno_name(refusal.errno),
            cause: Some(refusal.cause.name()),
            reason: Some(refusal.to_string()),
        }
    }
}

#[derive(Serialize)]
struct Engine {
    engine: &'static str,
    available: bool,
    #[serde(flatten)]
    why: Reason,
    note: String,
}

#[derive(Serialize)]
struct Limit {
    name: &'static str,
    counts: &'static str,
    used: Option<u64>,
    limit: Option<u64>,
    unlimited: bool,
}

/// Whether something works, in a file system.
#[derive(Serialize)]
pub struct Answer {
    pub works: bool,
    #[serde(flatten)]
    why: Reason,
    #[serde(skip)]
    text: String,
}

impl Answer {
    fn of(answer: &probe::Answer) -> Self {
        let mut why = Reason::of(answer.refusal());
        if let probe::Answer::Untried(_) = answer {
            why.reason = Some(answer.to_string());
        }
        Self { works: answer.works(), why, text: answer.to_string() }
    }
}

/// How io_submit(2) behaves with direct reads.
#[derive(Serialize)]
struct Asynchrony {
    verdict: &'static str,
    reads: Option<u32>,
    done_at_return: Option<u32>,
    submit_ns: Option<u64>,
    total_ns: Option<u64>,
    single_ns: Option<u64>,
    #[serde(skip)]
    text: String,
}

impl Asynchrony {
    fn of(found: &probe::Asynchrony) -> Self {
        let timing = found.timing();
        let mut text = found.to_string();
        if let Some(t) = timing {
            let [submit, total, single] =
                [t.submit_ns, t.total_ns, t.single_ns].map(size::nanoseconds);
            let _ = write!(
                text,
                " ({} reads submitted in {submit}, done in {total}; one alone takes {single})",
                t.reads
            );
        }
        Self {
            verdict: found.name(),
            reads: timing.map(|t| t.reads),
            done_at_return: timing.map(|t| t.done_at_return),
            submit_ns: timing.map(|t| t.submit_ns),
            total_ns: timing.map(|t| t.total_ns),
            single_ns: timing.map(|t| t.single_ns),
            text,
        }
    }
}

/// Where `auto` would send requests at first.
#[derive(Serialize)]
struct Lanes {
    cached_read: String,
    cached_write: String,
    cold_read: String,
    /// Null if direct I/O is refused.
    direct_read: Option<String>,
    direct_write: Option<String>,
    direct_reason: &'static str,
}

impl Lanes {
    fn of(lanes: &probe::Lanes) -> Self {
        let direct = lanes.direct.map(|lane| lane.to_string());
        Self {
            cached_read: lanes.cached.to_string(),
            cached_write: lanes.cached.to_string(),
            cold_read: lanes.cold.to_string(),
            direct_read: direct.clone(),
            direct_write: direct,
            direct_reason: lanes.reason,
        }
    }
}

/// A folder, and what its file system can do.
#[derive(Serialize)]
pub struct FileSystem {
    path: String,
    file_system: String,
    device: String,
    pub scratch: Answer,
    nowait_read: Answer,
    nowait_write: Answer,
    direct: Answer,
    direct_alignment: Option<u32>,
    asynchronous_direct: Asynchrony,
    auto: Lanes,
}

impl FileSystem {
    pub fn new(folder: probe::Folder, storage: &Storage) -> Self {
        Self {
            path: folder.path.display().to_string(),
            file_system: storage.file_system.clone(),
            device: storage.device.clone(),
            scratch: Answer::of(&folder.scratch),
            nowait_read: Answer::of(&folder.nowait_read),
            nowait_write: Answer::of(&folder.nowait_write),
            direct: Answer::of(&folder.direct),
            direct_alignment: folder.direct_alignment,
            asynchronous_direct: Asynchrony::of(&folder.asynchrony),
            auto: Lanes::of(&folder.lanes),
        }
    }

    fn write(&self, text: &mut String) {
        let unless_empty = |text: &str| if text.is_empty() { "unknown" } else { text }.to_owned();
        let (kind, device) = (unless_empty(&self.file_system), unless_empty(&self.device));
        let _ = writeln!(text, "\nFile system of {}: {kind} on {device}", self.path);
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(text, "  {name:<24}{value}");
        };
        if self.scratch.works {
            line("RWF_NOWAIT, read", &self.nowait_read.text);
            line("RWF_NOWAIT, write", &self.nowait_write.text);
            let direct = match (self.direct.works, self.direct_alignment) {
                (true, Some(bytes)) => format!("yes, aligned to {bytes} bytes"),
                (true, None) => "it opens, but reads fail".into(),
                (false, _) => self.direct.text.clone(),
            };
            line("O_DIRECT", &direct);
            line("io_submit, direct reads", &self.asynchronous_direct.text);
        } else {
            line("scratch file", &self.scratch.text);
        }
        let auto = &self.auto;
        line("auto, cached", &auto.cached_read);
        line("auto, cold reads", &auto.cold_read);
        let direct = auto.direct_read.as_deref().unwrap_or("none");
        line("auto, direct", &format!("{direct} ({})", auto.direct_reason));
    }
}

impl Report {
    pub fn new(probe: &Probe, sandbox: &Sandbox, file_systems: Vec<FileSystem>) -> Self {
        let facts = &probe.facts;
        let (forbidden, forbid_errno) = sandbox.description().unzip();
        let engines = probe.engines.iter().map(|engine| Engine {
            engine: engine.kind.name(),
            available: engine.refusal.is_none(),
            why: Reason::of(engine.refusal.as_ref()),
            note: engine.note.clone(),
        });
        let limits = facts.limits().map(|limit| Limit {
            name: limit.name,
            counts: limit.counts,
            used: limit.used,
            limit: limit.limit.filter(|&most| most != u64::MAX),
            unlimited: limit.limit == Some(u64::MAX),
        });
        Self {
            version: machine::VERSION,
            kernel: machine::kernel(),
            c_library: facts.c_library.clone(),
            sandbox: SandboxFacts {
                seccomp: facts.seccomp,
                no_new_privs: facts.no_new_privs,
                io_uring_disabled: facts.io_uring_disabled,
                forbidden: forbidden.unwrap_or_default(),
                forbid_errno,
            },
            engines: engines.collect(),
            limits: limits.into(),
            file_systems,
        }
    }

    /// The whole report, for people.
    pub fn text(&self) -> String {
        let mut text = format!("uringlet {} doctor\n", self.version);
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(text, "  {name:<11}{value}");
        };
        line("kernel", &self.kernel);
        line("C library", &self.c_library);
        line("sandbox", &self.sandbox.text());
        text.push_str("\nEngines\n");
        for engine in &self.engines {
            let mut words = match &engine.why.reason {
                Some(reason) => format!("refused: {reason}"),
                None => "available".to_owned(),
            };
            if !engine.note.is_empty() {
                let _ = write!(words, " ({})", engine.note);
            }
            let _ = writeln!(text, "  {:<11}{words}", engine.engine);
        }
        let _ = writeln!(text, "\n{:<16}{:>14}{:>14}", "Limits", "used", "limit");
        for limit in &self.limits {
            let unknown = || "unknown".to_owned();
            let used = limit.used.map_or_else(unknown, size::grouped);
            let most = match limit.unlimited {
                true => "unlimited".to_owned(),
                false => limit.limit.map_or_else(unknown, size::grouped),
            };
            let _ = writeln!(text, "  {:<14}{used:>14}{most:>14}  {}", limit.name, limit.counts);
        }
        for file_system in &self.file_systems {
            file_system.write(&mut text);
        }
        text
    }
}

impl SandboxFacts {
    fn text(&self) -> String {
        let mut parts = vec![match self.seccomp {
            Some(0) => "no seccomp filter".to_owned(),
            Some(1) => "strict seccomp".to_owned(),
            Some(_) => "a seccomp filter is in force".to_owned(),
            None => "seccomp unknown".to_owned(),
        }];
        if self.no_new_privs == Some(true) {
            parts.push("no_new_privs".into());
        }
        if let Some(n) = self.io_uring_disabled {
            parts.push(format!("kernel.io_uring_disabled is {n}"));
        }
        if let Some(errno) = &self.forbid_errno {
            parts.push(format!("forbidden by --forbid: {} ({errno})", self.forbidden.join(", ")));
        }
        parts.join("; ")
    }
}
