//! The output: text, and the same as JSON with stable names.

use super::words;
use crate::machine::{self, Storage};
use crate::sandbox::Sandbox;
use crate::size;
use serde_json::{Value, json};
use std::fmt::Write as _;
use uringlet::probe::{self, Answer, Asynchrony, ExpectedLanes, Probe, Refusal};

/// All findings.
pub struct Report<'a> {
    pub probe: &'a Probe,
    pub sandbox: &'a Sandbox,
    pub file_systems: Vec<FileSystem>,
}

/// A folder, and what its file system can do.
pub struct FileSystem {
    pub folder: probe::Folder,
    pub storage: Storage,
}

impl Report<'_> {
    /// The whole report, for programs; unknown values are null.
    pub fn json(&self) -> Value {
        let facts = &self.probe.facts;
        let (forbidden, forbid_errno) = self.sandbox.description().unzip();
        let engines = self.probe.engines.iter().map(|engine| {
            let refusal = engine.refusal.as_ref();
            let found = json!({ "engine": engine.kind.name(), "available": refusal.is_none() });
            let mut found = with_reason(found, refusal);
            found["note"] = engine.note.as_str().into();
            found
        });
        let limits = facts.limits().map(|limit| {
            json!({
                "name": limit.name,
                "counts": limit.counts,
                "used": limit.used,
                "limit": limit.limit.filter(|&most| most != u64::MAX),
                "unlimited": limit.limit == Some(u64::MAX),
            })
        });
        json!({
            "version": machine::VERSION,
            "kernel": machine::kernel(),
            "c_library": facts.c_library,
            "fills_return_stack": facts.fills_return_stack,
            "sandbox": {
                // 0: no seccomp, 1: strict seccomp, 2: a filter.
                "seccomp": facts.seccomp,
                "no_new_privs": facts.no_new_privs,
                "io_uring_disabled": facts.io_uring_disabled,
                "forbidden": forbidden.unwrap_or_default(),
                "forbid_errno": forbid_errno,
            },
            "engines": engines.collect::<Vec<_>>(),
            "limits": limits,
            "remedies": words::remedies(self.probe),
            "file_systems": self.file_systems.iter().map(FileSystem::json).collect::<Vec<_>>(),
        })
    }

    /// The whole report, for people.
    pub fn text(&self) -> String {
        let facts = &self.probe.facts;
        let mut text = format!("uringlet {} doctor\n", machine::VERSION);
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(text, "  {name:<11}{value}");
        };
        line("kernel", &machine::kernel());
        line("C library", &facts.c_library);
        line("sandbox", &self.sandbox_text());
        if facts.fills_return_stack {
            line(
                "CPU",
                "the kernel uses Safe RET, so the return stack is filled after system calls",
            );
        }
        text.push_str("\nEngines\n");
        for engine in &self.probe.engines {
            let refused = engine.refusal.as_ref().map(|refusal| format!("refused: {refusal}"));
            let mut words = refused.unwrap_or_else(|| "available".into());
            if !engine.note.is_empty() {
                let _ = write!(words, " ({})", engine.note);
            }
            let _ = writeln!(text, "  {:<11}{words}", engine.kind.name());
        }
        let _ = writeln!(text, "\n{:<16}{:>14}{:>14}", "Limits", "used", "limit");
        for limit in facts.limits() {
            let number = |number: Option<u64>| match number {
                Some(u64::MAX) => "unlimited".to_owned(),
                Some(number) => size::grouped(number),
                None => "unknown".to_owned(),
            };
            let (used, most) = (number(limit.used), number(limit.limit));
            let _ = writeln!(text, "  {:<14}{used:>14}{most:>14}  {}", limit.name, limit.counts);
        }
        for file_system in &self.file_systems {
            file_system.write(&mut text);
        }
        text + &self.plain_words()
    }

    fn sandbox_text(&self) -> String {
        let facts = &self.probe.facts;
        let mut parts = vec![match facts.seccomp {
            Some(0) => "no seccomp filter".to_owned(),
            Some(1) => "strict seccomp".to_owned(),
            Some(_) => "a seccomp filter is in force".to_owned(),
            None => "seccomp unknown".to_owned(),
        }];
        if facts.no_new_privs == Some(true) {
            parts.push("no_new_privs".into());
        }
        if let Some(n) = facts.io_uring_disabled {
            parts.push(format!("kernel.io_uring_disabled is {n}"));
        }
        if let Some((names, errno)) = self.sandbox.description() {
            parts.push(format!("forbidden by --forbid: {} ({errno})", names.join(", ")));
        }
        parts.join("; ")
    }
}

impl FileSystem {
    fn json(&self) -> Value {
        let Self { folder, storage } = self;
        let ExpectedLanes { cached, cold, direct, reason, .. } = &folder.lanes;
        let tried = folder.scratch.works();
        let direct = direct.filter(|_| tried).map(|lane| lane.to_string());
        let timing = folder.asynchrony.timing();
        json!({
            "path": folder.path.display().to_string(),
            "file_system": storage.file_system,
            "device": storage.device,
            "scratch": answer(&folder.scratch),
            "nowait_read": answer(&folder.nowait_read),
            "nowait_write": answer(&folder.nowait_write),
            "direct": answer(&folder.direct),
            "direct_alignment": folder.direct_alignment,
            // How io_submit(2) behaves with direct reads.
            "asynchronous_direct": {
                "verdict": folder.asynchrony.name(),
                "reads": timing.map(|timing| timing.reads),
                "done_at_return": timing.map(|timing| timing.done_at_return),
                "submit_ns": timing.map(|timing| timing.submit_ns),
                "total_ns": timing.map(|timing| timing.total_ns),
                "single_ns": timing.map(|timing| timing.single_ns),
            },
            "served": self.served(),
            // The lane to which the engine `auto` would send the first requests of each kind. A
            // lane is what executes requests: the calling thread, workers or the kernel. Null if
            // nothing could be tried.
            "auto": {
                "cached_read": tried.then(|| cached.to_string()),
                "cached_write": tried.then(|| cached.to_string()),
                "cold_read": tried.then(|| cold.to_string()),
                "direct_read": direct,
                "direct_write": direct,
                "direct_reason": tried.then_some(reason),
            },
        })
    }

    fn write(&self, text: &mut String) {
        let Self { folder, storage } = self;
        let known = |text: &str| if text.is_empty() { "unknown" } else { text }.to_owned();
        let (kind, device) = (known(&storage.file_system), known(&storage.device));
        let _ = writeln!(text, "\nFile system of {}: {kind} on {device}", folder.path.display());
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(text, "  {name:<24}{value}");
        };
        if folder.scratch.works() {
            line("RWF_NOWAIT, read", &folder.nowait_read.to_string());
            line("RWF_NOWAIT, write", &folder.nowait_write.to_string());
            let direct = match (folder.direct.works(), folder.direct_alignment) {
                (true, Some(bytes)) => format!("yes, aligned to {bytes} bytes"),
                (true, None) => "it opens, but reads fail".into(),
                (false, _) => folder.direct.to_string(),
            };
            line("O_DIRECT", &direct);
            line("io_submit, direct reads", &asynchrony_text(&folder.asynchrony));
        } else {
            line("scratch file", &folder.scratch.to_string());
            line("auto", "not tried");
            return;
        }
        let ExpectedLanes { cached, cold, direct, reason, .. } = &folder.lanes;
        line("auto, cached", &cached.to_string());
        line("auto, cold reads", &cold.to_string());
        let direct = direct.map_or_else(|| "none".into(), |lane| lane.to_string());
        line("auto, direct", &format!("{direct} ({reason})"));
    }
}

/// Adds the reason for a refusal; all null if there was none.
fn with_reason(mut found: Value, refusal: Option<&Refusal>) -> Value {
    found["call"] = refusal.map(|refusal| refusal.call).into();
    found["errno"] = refusal.map(|refusal| refusal.errno).into();
    found["errno_name"] = refusal.and_then(|refusal| probe::errno_name(refusal.errno)).into();
    found["cause"] = refusal.map(|refusal| refusal.cause.name()).into();
    found["reason"] = refusal.map(ToString::to_string).into();
    found
}

/// The JSON of one answer of a file system: whether a feature works there, or why not.
fn answer(answer: &Answer) -> Value {
    let mut found = with_reason(json!({ "works": answer.works() }), answer.refusal());
    if let Answer::Untried(_) = answer {
        found["reason"] = answer.to_string().into();
    }
    found
}

fn asynchrony_text(found: &Asynchrony) -> String {
    let Some(timing) = found.timing() else { return found.to_string() };
    let times = [timing.submit_ns, timing.total_ns, timing.single_ns];
    let [submit, total, single] = times.map(size::nanoseconds);
    let reads = timing.reads;
    format!(
        "{found} ({reads} reads submitted in {submit}, done in {total}; one alone takes {single})"
    )
}
