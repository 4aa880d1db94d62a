//! What this machine and its sandbox allow, and the cause of each refusal: found by trying.
//!
//! ```
//! let probe = uringlet::probe::Probe::look();
//! for engine in &probe.engines {
//!     println!("{engine}");
//! }
//! ```

mod cause;
mod facts;
mod folder;
mod tries;

use std::fmt;
use std::path::Path;

pub use cause::{Cause, Refusal};
pub use facts::{Limit, MachineFacts};
pub use folder::{Answer, Asynchrony, Folder, Timing};

use crate::config::EngineKind;

/// The kernel's engines in `auto`'s order of preference. This order is defined here only.
///
/// Linux AIO comes first. Only plain reads and writes use it, and for these it is as fast as
/// io_uring. Fewer sandboxes refuse it (Docker's and containerd's allow it).
pub const KERNEL_ENGINES: [EngineKind; 2] = [EngineKind::LinuxAio, EngineKind::IoUring];

/// The engines that are tried, in the order of the report.
const TRIED: [EngineKind; 4] =
    [EngineKind::IoUring, EngineKind::LinuxAio, EngineKind::PosixAio, EngineKind::Workers];

/// An engine, and whether it is allowed here.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Engine {
    /// The kind of engine.
    pub kind: EngineKind,
    /// The reason why the engine cannot be used; `None` if it can.
    pub refusal: Option<Refusal>,
    /// A remark about the engine; may be empty.
    pub note: String,
}

impl fmt::Display for Engine {
    /// `linux_aio: available`, `io_uring: refused (io_uring_setup: EPERM, …)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.refusal {
            Some(refusal) => write!(f, "{}: refused ({refusal})", self.kind),
            None => write!(f, "{}: available", self.kind),
        }
    }
}

/// The findings about this process, its kernel and its sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Probe {
    /// Facts that could be read.
    pub facts: MachineFacts,
    /// The engines that were tried: io_uring, linux_aio, posix_aio, workers.
    pub engines: Vec<Engine>,
}

impl Probe {
    /// Tries every engine. Takes milliseconds, starts threads that end at once, and leaves nothing
    /// behind.
    pub fn look() -> Self {
        let mut facts = MachineFacts::look();
        facts.count_processes();
        let thread = tries::thread();
        let engines = TRIED.map(|kind| {
            let tried = match kind {
                EngineKind::IoUring => tries::io_uring(),
                EngineKind::LinuxAio => tries::linux_aio(),
                // Both engines need threads: the C library starts its own with the first request.
                _ => thread,
            };
            let refusal = tried.err().map(|(call, errno)| cause::find(call, errno, &facts));
            let note = match kind {
                EngineKind::PosixAio if refusal.is_none() => posix_aio_note(&facts),
                _ => String::new(),
            };
            Engine { kind, refusal, note }
        });
        Self { facts, engines: engines.into() }
    }

    /// Can this engine be used? True for `auto` and `null`, which need nothing.
    pub fn allows(&self, kind: EngineKind) -> bool {
        let tried = self.engines.iter().find(|engine| engine.kind == kind);
        tried.is_none_or(|engine| engine.refusal.is_none())
    }

    /// Tries out the file system of a folder on nameless scratch files: writes 512 KiB, and times
    /// some reads. Takes milliseconds on an idle disk.
    ///
    /// # Errors
    /// The folder does not exist, or is not accessible. A read-only folder is no error.
    pub fn folder(&self, path: &Path) -> std::io::Result<Folder> {
        Folder::look(path, self)
    }
}

fn posix_aio_note(facts: &MachineFacts) -> String {
    format!(
        "{}: executes on threads of its own, which count in RLIMIT_NPROC ({})",
        facts.c_library, facts.nproc
    )
}

/// The cause of an errno (positive) with which an engine was refused at its set-up; for messages.
///
/// For `workers` and `posix_aio`, the errno is that of a thread that could not be started.
pub fn explain(kind: EngineKind, errno: i32) -> Refusal {
    let mut facts = MachineFacts::look();
    let call = match kind {
        EngineKind::IoUring => "io_uring_setup",
        EngineKind::LinuxAio => "io_setup",
        _ => {
            facts.count_processes();
            "clone"
        }
    };
    cause::find(call, errno, &facts)
}

/// The name of an errno (positive), such as `EPERM`.
pub fn errno_name(errno: i32) -> Option<&'static str> {
    syscalls::Errno::new(errno).name()
}

/// Where `auto` sends a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExpectedLane {
    /// One request after the other, by one thread at a time: a waiting thread or a worker.
    Inline,
    /// Each request to a worker of its own.
    Pool,
    /// Tried without waiting. Reads whose data is not in memory go to one worker, in order.
    Cold,
    /// To the kernel, through this engine.
    Kernel(EngineKind),
}

impl fmt::Display for ExpectedLane {
    /// `inline`, `pool`, `cold`, or the name of the kernel's engine.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inline => f.write_str("inline"),
            Self::Pool => f.write_str("pool"),
            Self::Cold => f.write_str("cold"),
            Self::Kernel(kind) => f.write_str(kind.name()),
        }
    }
}

/// The lanes to which `auto` would send requests at first. Later it decides by their timing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExpectedLanes {
    /// Buffered reads and writes that find their pages in the cache.
    pub cached: ExpectedLane,
    /// Buffered reads that have to go to the device.
    pub cold: ExpectedLane,
    /// Direct reads and writes; `None` if direct I/O is refused here.
    pub direct: Option<ExpectedLane>,
    /// The reason for the lane of direct requests.
    pub reason: &'static str,
}

impl ExpectedLanes {
    fn choose(
        probe: &Probe,
        nowait_read: &Answer,
        direct: &Answer,
        asynchrony: &Asynchrony,
    ) -> Self {
        let threads = probe.allows(EngineKind::Workers);
        let pool = if threads { ExpectedLane::Pool } else { ExpectedLane::Inline };
        let kernel = KERNEL_ENGINES.into_iter().find(|&kind| probe.allows(kind));
        let (direct, reason) = match (direct, asynchrony, kernel) {
            (Answer::Refused(_), ..) => (None, "no direct I/O here"),
            (_, Asynchrony::Synchronous(_), _) if threads => {
                (Some(pool), "submitting to the kernel blocks here, so a worker does it")
            }
            (_, Asynchrony::Synchronous(_), _) => {
                (Some(pool), "submitting to the kernel blocks here, and no thread can be started")
            }
            (_, Asynchrony::Asynchronous(_), Some(kind)) => {
                (Some(ExpectedLane::Kernel(kind)), "the kernel needs no thread for each request")
            }
            (_, _, Some(kind)) => {
                (Some(ExpectedLane::Kernel(kind)), "it is allowed, and nothing speaks against it")
            }
            _ if threads => (Some(pool), "the kernel's asynchronous interfaces are refused"),
            _ => (Some(pool), "neither the kernel's interfaces nor threads are allowed"),
        };
        let cold = if threads && nowait_read.works() { ExpectedLane::Cold } else { pool };
        Self { cached: ExpectedLane::Inline, cold, direct, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(allowed: &[EngineKind]) -> Probe {
        let refusal = |kind| {
            let refusal = cause::find("io_setup", libc::EPERM, &MachineFacts::default());
            (!allowed.contains(&kind)).then_some(refusal)
        };
        let engines =
            TRIED.map(|kind| Engine { kind, refusal: refusal(kind), note: String::new() });
        Probe { facts: MachineFacts::default(), engines: engines.into() }
    }

    #[test]
    fn every_engine_is_tried_and_what_is_refused_has_a_cause() {
        let probe = Probe::look();
        assert_eq!(probe.engines.len(), TRIED.len());
        for engine in &probe.engines {
            if let Some(refusal) = &engine.refusal {
                assert!(refusal.errno > 0 && !refusal.words.is_empty(), "{engine}");
            }
        }
        assert!(probe.allows(EngineKind::Workers), "{:?}", probe.engines);
        assert!(probe.allows(EngineKind::Null) && probe.allows(EngineKind::Auto));
    }

    #[test]
    fn a_folder_is_tried_and_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let found = Probe::look().folder(folder.path()).unwrap();
        assert_eq!(found.scratch, Answer::Works);
        assert!(!matches!(found.nowait_read, Answer::Untried(_)));
        assert!(!matches!(found.direct, Answer::Untried(_)));
        assert_eq!(found.lanes.direct.is_none(), found.direct.refusal().is_some());
        assert!(found.direct_alignment.is_none() || found.direct.works());
        if let Some(timing) = found.asynchrony.timing() {
            assert!(timing.submit_ns <= timing.total_ns && timing.done_at_return <= timing.reads);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn direct_requests_go_to_the_first_kernel_engine_that_is_allowed_and_asynchronous() {
        use EngineKind::{IoUring, LinuxAio, Workers};
        let timing =
            Timing { reads: 32, done_at_return: 0, submit_ns: 1, total_ns: 2, single_ns: 1 };
        let fast = Asynchrony::Asynchronous(timing);
        let slow = Asynchrony::Synchronous(timing);
        let untried = Asynchrony::Untried("x");
        let cases = [
            (&[LinuxAio, IoUring, Workers][..], &fast, ExpectedLane::Kernel(LinuxAio)),
            (&[IoUring, Workers], &untried, ExpectedLane::Kernel(IoUring)),
            (&[LinuxAio, IoUring, Workers], &slow, ExpectedLane::Pool),
            (&[Workers], &untried, ExpectedLane::Pool),
            (&[LinuxAio], &slow, ExpectedLane::Inline),
            (&[], &untried, ExpectedLane::Inline),
        ];
        for (allowed, asynchrony, expected) in cases {
            let lanes =
                ExpectedLanes::choose(&probe(allowed), &Answer::Works, &Answer::Works, asynchrony);
            assert_eq!(lanes.direct, Some(expected), "{allowed:?}, {asynchrony:?}");
            assert_eq!(lanes.cached, ExpectedLane::Inline);
            let cold =
                if allowed.contains(&Workers) { ExpectedLane::Cold } else { ExpectedLane::Inline };
            assert_eq!(lanes.cold, cold, "{allowed:?}");
        }
        let refusal = cause::find("open", libc::EINVAL, &MachineFacts::default());
        let refused = Answer::Refused(refusal);
        let lanes = ExpectedLanes::choose(&probe(&[Workers]), &refused, &refused, &untried);
        assert_eq!((lanes.direct, lanes.cold), (None, ExpectedLane::Pool));
        // A folder without write access may still have files for direct reads.
        let unknown = Answer::Untried("x");
        let lanes = ExpectedLanes::choose(&probe(&[Workers]), &unknown, &unknown, &untried);
        assert_eq!(lanes.direct, Some(ExpectedLane::Pool));
    }

    #[test]
    fn an_errno_is_explained_for_each_engine() {
        assert_eq!(explain(EngineKind::IoUring, libc::ENFILE).call, "io_uring_setup");
        assert_eq!(explain(EngineKind::LinuxAio, libc::EAGAIN).call, "io_setup");
        assert_eq!(explain(EngineKind::Workers, libc::EAGAIN).call, "clone");
        assert_eq!(errno_name(libc::EPERM), Some("EPERM"));
        assert_eq!(errno_name(4095), None);
    }
}
