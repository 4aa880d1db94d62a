//! Finds the cause of an errno. Nothing is tried or read here, so every case can be tested.

use std::fmt;

use super::facts::MachineFacts;

/// The cause of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// A seccomp filter: of the container, the service manager, or the program itself.
    Seccomp,
    /// The setting kernel.io_uring_disabled.
    IoUringDisabled,
    /// The kernel is too old, or compiled without the call.
    Kernel,
    /// The file system does not support the call.
    FileSystem,
    /// The setting fs.aio-max-nr: all Linux AIO requests of the host are taken.
    AioMaxNr,
    /// The limit of locked memory (RLIMIT_MEMLOCK).
    Memlock,
    /// Memory is short.
    Memory,
    /// RLIMIT_NOFILE, or fs.file-max of the host.
    Descriptors,
    /// RLIMIT_NPROC, pids.max of the control group, or kernel.threads-max of the host.
    Threads,
    /// A folder without write access.
    Permission,
    /// No cause was found.
    Unknown,
}

impl Cause {
    /// A short name that programs can rely on, such as `seccomp`, `io_uring_disabled` or
    /// `aio_max_nr`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Seccomp => "seccomp",
            Self::IoUringDisabled => "io_uring_disabled",
            Self::Kernel => "kernel",
            Self::FileSystem => "file_system",
            Self::AioMaxNr => "aio_max_nr",
            Self::Memlock => "rlimit_memlock",
            Self::Memory => "memory",
            Self::Descriptors => "descriptors",
            Self::Threads => "threads",
            Self::Permission => "permission",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A call that was tried and refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The system call.
    pub call: &'static str,
    /// The errno (positive).
    pub errno: i32,
    /// The cause of the refusal.
    pub cause: Cause,
    /// The cause in words, with the numbers that matter.
    pub words: String,
}

impl fmt::Display for Refusal {
    /// `io_uring_setup: EPERM, a seccomp filter refuses it`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.call)?;
        match super::errno_name(self.errno) {
            Some(name) => f.write_str(name)?,
            None => write!(f, "errno {}", self.errno)?,
        }
        write!(f, ", {}", self.words)
    }
}

impl std::error::Error for Refusal {}

/// A system call: the kernel version that added it, and whether it is compiled in.
struct SystemCall {
    since: (u32, u32),
    /// `None` if unknown.
    compiled_in: Option<bool>,
}

impl SystemCall {
    fn of(name: &str, facts: &MachineFacts) -> Self {
        match name {
            // The setting kernel.io_uring_disabled came with 6.6, and exists if io_uring is
            // compiled in.
            "io_uring_setup" | "io_uring_enter" => {
                let compiled_in = facts.io_uring_disabled.is_some().then_some(true);
                Self { since: (5, 1), compiled_in }
            }
            "io_setup" | "io_submit" | "io_getevents" => {
                Self { since: (2, 5), compiled_in: facts.aio.limit.is_some().then_some(true) }
            }
            "preadv2" | "pwritev2" => Self { since: (4, 6), compiled_in: Some(true) },
            _ => Self { since: (0, 0), compiled_in: Some(true) },
        }
    }
}

/// Finds the cause of `errno` (positive), the answer to `call`.
pub(super) fn find(call: &'static str, errno: i32, facts: &MachineFacts) -> Refusal {
    let (cause, mut words) = by_errno(call, errno, facts).unwrap_or_else(|| elsewhere(facts));
    if facts.is_filtered() && cause != Cause::Seccomp && cause != Cause::FileSystem {
        words.push_str("; a seccomp filter is in force as well");
    }
    Refusal { call, errno, cause, words }
}

/// The kernel's own reason. None if it has none for this errno, or if the reason does not apply.
fn by_errno(call: &str, errno: i32, facts: &MachineFacts) -> Option<(Cause, String)> {
    match (call, errno) {
        ("io_uring_setup", libc::EPERM) => match facts.io_uring_disabled {
            Some(1) if facts.sys_admin != Some(true) => Some((
                Cause::IoUringDisabled,
                "kernel.io_uring_disabled is 1: off without CAP_SYS_ADMIN and outside \
                 kernel.io_uring_group"
                    .into(),
            )),
            None | Some(0 | 1) => None,
            Some(n) => Some((
                Cause::IoUringDisabled,
                format!("kernel.io_uring_disabled is {n}: off for everybody"),
            )),
        },
        (_, libc::ENOSYS) => missing(&SystemCall::of(call, facts), facts),
        // With fewer than 33 requests left, this setting counts as the cause. Engines that are
        // refused try again with fewer requests, down to 32.
        ("io_setup", libc::EAGAIN) if facts.aio.exhausted_by(33) != Some(false) => Some((
            Cause::AioMaxNr,
            format!("fs.aio-nr is {}, the limit fs.aio-max-nr of the whole host", facts.aio),
        )),
        ("io_uring_setup", libc::ENOMEM) if facts.is_older_than((5, 12)) => Some((
            Cause::Memlock,
            format!(
                "kernels before 5.12 count rings as locked memory, and RLIMIT_MEMLOCK is used to \
                 {} bytes by this process, maybe more by this user",
                facts.memlock
            ),
        )),
        (_, libc::ENOMEM) => {
            Some((Cause::Memory, "memory is short, or the control group's limit is reached".into()))
        }
        (_, libc::EMFILE) if facts.nofile.exhausted_by(1) != Some(false) => Some((
            Cause::Descriptors,
            format!("RLIMIT_NOFILE is used up: {} descriptors", facts.nofile),
        )),
        (_, libc::ENFILE) => {
            Some((Cause::Descriptors, "fs.file-max of the host is used up".into()))
        }
        ("clone", libc::EAGAIN) => threads(facts),
        _ => None,
    }
}

/// ENOSYS: the kernel is old, or compiled without the call, or a filter gives this answer.
fn missing(call: &SystemCall, facts: &MachineFacts) -> Option<(Cause, String)> {
    let (major, minor) = call.since;
    if facts.is_older_than(call.since) {
        let words = format!("the kernel, {}, is older than {major}.{minor}", facts.release);
        return Some((Cause::Kernel, words));
    }
    if !facts.is_filtered() {
        return Some((Cause::Kernel, "the kernel is compiled without it".into()));
    }
    match call.compiled_in {
        Some(true) => None,
        _ => {
            let words = "a seccomp filter answers so, or the kernel is compiled without it".into();
            Some((Cause::Seccomp, words))
        }
    }
}

/// Causes of EAGAIN for a thread.
fn threads(facts: &MachineFacts) -> Option<(Cause, String)> {
    for limit in [&facts.pids, &facts.nproc] {
        if limit.exhausted_by(1) == Some(true) {
            let words = format!("{} is used up: {} {}", limit.name, limit, limit.counts);
            return Some((Cause::Threads, words));
        }
    }
    let words = format!(
        "a limit on threads: RLIMIT_NPROC ({}), pids.max of the control group ({}), or \
         kernel.threads-max",
        facts.nproc, facts.pids
    );
    // With a filter in force and room under both limits, the filter is more likely.
    (!facts.is_filtered()).then_some((Cause::Threads, words))
}

/// The cause of an answer for which the kernel itself has no reason: a seccomp filter, if one is in
/// force.
fn elsewhere(facts: &MachineFacts) -> (Cause, String) {
    match facts.seccomp {
        _ if facts.is_filtered() => (Cause::Seccomp, "a seccomp filter refuses it".into()),
        Some(_) => (
            Cause::Unknown,
            "no seccomp filter is in force: a security module (SELinux, AppArmor) or an outer \
             sandbox, perhaps"
                .into(),
        ),
        None => (
            Cause::Unknown,
            "a seccomp filter or a security module, perhaps; /proc does not tell".into(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::Limit;
    use super::*;

    fn facts(version: (u32, u32), seccomp: u32) -> MachineFacts {
        MachineFacts {
            release: format!("{}.{}.0", version.0, version.1),
            version: Some(version),
            seccomp: Some(seccomp),
            ..MachineFacts::default()
        }
    }

    fn limit(used: u64, limit: u64) -> Limit {
        Limit { name: "limit", used: Some(used), limit: Some(limit), ..Limit::default() }
    }

    fn cause(call: &'static str, errno: i32, facts: &MachineFacts) -> Cause {
        find(call, errno, facts).cause
    }

    #[test]
    fn eperm_is_the_setting_or_the_filter() {
        let mut facts = facts((6, 8), 2);
        let refused = |facts: &MachineFacts| cause("io_uring_setup", libc::EPERM, facts);
        assert_eq!(refused(&facts), Cause::Seccomp);
        facts.io_uring_disabled = Some(0);
        assert_eq!(refused(&facts), Cause::Seccomp);
        facts.io_uring_disabled = Some(2);
        assert_eq!(refused(&facts), Cause::IoUringDisabled);
        assert!(find("io_uring_setup", libc::EPERM, &facts).words.contains("as well"));
        facts.io_uring_disabled = Some(1);
        assert_eq!(refused(&facts), Cause::IoUringDisabled);
        // The setting 1 does not apply to privileged processes.
        facts.sys_admin = Some(true);
        assert_eq!(refused(&facts), Cause::Seccomp);
        facts.seccomp = Some(0);
        assert_eq!(refused(&facts), Cause::Unknown);
        facts.seccomp = None;
        assert!(find("io_uring_setup", libc::EPERM, &facts).words.contains("/proc"));
    }

    #[test]
    fn enosys_is_the_kernel_or_the_filter() {
        let refused = |facts: &MachineFacts| cause("io_uring_setup", libc::ENOSYS, facts);
        assert_eq!(refused(&facts((4, 4), 2)), Cause::Kernel);
        assert_eq!(refused(&facts((6, 8), 0)), Cause::Kernel);
        let mut filtered = facts((6, 8), 2);
        assert_eq!(refused(&filtered), Cause::Seccomp);
        assert!(find("io_uring_setup", libc::ENOSYS, &filtered).words.contains("or the kernel"));
        filtered.io_uring_disabled = Some(0);
        let refusal = find("io_uring_setup", libc::ENOSYS, &filtered);
        assert_eq!(refusal.to_string(), "io_uring_setup: ENOSYS, a seccomp filter refuses it");
        assert_eq!(cause("preadv2", libc::ENOSYS, &facts((4, 5), 0)), Cause::Kernel);
        assert_eq!(cause("preadv2", libc::ENOSYS, &facts((5, 5), 2)), Cause::Seccomp);
    }

    #[test]
    fn limits_are_blamed_with_their_numbers_and_only_if_used_up() {
        let mut full = facts((5, 10), 0);
        full.aio = limit(65_536, 65_536);
        full.nofile = limit(64, 64);
        full.memlock = limit(0, 65_536);
        full.nproc = limit(100, 100);
        let cases = [
            ("io_setup", libc::EAGAIN, Cause::AioMaxNr, "65536 of 65536"),
            ("io_uring_setup", libc::EMFILE, Cause::Descriptors, "64 of 64"),
            ("io_uring_setup", libc::ENFILE, Cause::Descriptors, "fs.file-max"),
            ("io_uring_setup", libc::ENOMEM, Cause::Memlock, "0 of 65536"),
            ("clone", libc::EAGAIN, Cause::Threads, "100 of 100"),
        ];
        for (call, errno, cause, numbers) in cases {
            let refusal = find(call, errno, &full);
            assert_eq!(refusal.cause, cause, "{refusal}");
            assert!(refusal.words.contains(numbers), "{refusal}");
        }
        full.version = Some((6, 1));
        assert_eq!(cause("io_uring_setup", libc::ENOMEM, &full), Cause::Memory);

        let mut roomy = facts((5, 10), 2);
        roomy.aio = limit(0, 65_536);
        roomy.nofile = limit(3, 1024);
        roomy.nproc = limit(3, 1024);
        for (call, errno) in
            [("io_setup", libc::EAGAIN), ("io_uring_setup", libc::EMFILE), ("clone", libc::EAGAIN)]
        {
            assert_eq!(cause(call, errno, &roomy), Cause::Seccomp, "{call}");
        }
        roomy.seccomp = Some(0);
        assert_eq!(cause("io_setup", libc::EAGAIN, &roomy), Cause::Unknown);
        assert_eq!(cause("clone", libc::EAGAIN, &roomy), Cause::Threads);
    }

    #[test]
    fn numbers_without_a_name_are_shown_as_numbers() {
        let refusal = find("io_setup", 4095, &facts((6, 8), 2));
        assert_eq!(refusal.to_string(), "io_setup: errno 4095, a seccomp filter refuses it");
    }
}
