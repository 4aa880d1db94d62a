//! Facts from the kernel and the sandbox. Any of them may be missing.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fmt;
use std::fs::{read_dir, read_to_string};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

use crate::sys::return_stack;

/// `Seccomp:` in /proc/self/status while a filter is in force (proc_pid_status(5)).
const SECCOMP_FILTER: u32 = 2;
/// Bit of CAP_SYS_ADMIN in `CapEff:` (capabilities(7)).
const CAP_SYS_ADMIN: u32 = 21;

/// A limit of the kernel's, and how much of it is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limit {
    /// The limit's name, for example `fs.aio-max-nr` or `RLIMIT_NOFILE`.
    pub name: &'static str,
    /// What is counted, and for whom.
    pub counts: &'static str,
    /// The amount in use; `None` if unknown.
    pub used: Option<u64>,
    /// The maximum: `u64::MAX` if there is no limit, `None` if unknown.
    pub limit: Option<u64>,
}

impl Limit {
    fn new(name: &'static str, counts: &'static str) -> Self {
        Self { name, counts, used: None, limit: None }
    }

    /// Is there no room for `more`? `None` if unknown.
    pub(super) fn exhausted_by(&self, more: u64) -> Option<bool> {
        Some(self.used?.checked_add(more)? > self.limit?)
    }

    fn room(&self) -> u64 {
        match (self.used, self.limit) {
            (Some(used), Some(limit)) => limit.saturating_sub(used),
            _ => u64::MAX,
        }
    }
}

impl fmt::Display for Limit {
    /// For example `12 of 65536`, or `unknown of unlimited`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.used {
            Some(used) => write!(f, "{used} of ")?,
            None => f.write_str("unknown of ")?,
        }
        match self.limit {
            Some(u64::MAX) => f.write_str("unlimited"),
            Some(limit) => write!(f, "{limit}"),
            None => f.write_str("unknown"),
        }
    }
}

/// Facts about this process and its kernel that can be read without trying anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MachineFacts {
    /// The kernel's release (uname(2)); empty if unknown.
    pub release: String,
    /// The first two numbers of the release.
    pub version: Option<(u32, u32)>,
    /// The C library, `glibc 2.41` or `musl`.
    pub c_library: String,
    /// The seccomp mode: 0 off, 1 strict, 2 a filter (proc_pid_status(5)); `None` if unknown.
    pub seccomp: Option<u32>,
    /// Is PR_SET_NO_NEW_PRIVS on (prctl(2))?
    pub no_new_privs: Option<bool>,
    /// Does the process have CAP_SYS_ADMIN?
    pub sys_admin: Option<bool>,
    /// kernel.io_uring_disabled: 0 allowed, 1 for privileged processes, 2 off. `None` before Linux
    /// 6.6, and if io_uring is not compiled in.
    pub io_uring_disabled: Option<u32>,
    /// Does the library fill the CPU's return stack after each system call? It does if the
    /// kernel's returns are replaced by `Safe RET`, which would make the next system call slower.
    pub fills_return_stack: bool,
    /// Requests of all Linux AIO contexts of the host.
    pub aio: Limit,
    /// Bytes of locked memory of this process.
    pub memlock: Limit,
    /// Processes and threads of this user that this process can see.
    pub nproc: Limit,
    /// Descriptors of this process.
    pub nofile: Limit,
    /// Processes and threads of the control group.
    pub pids: Limit,
}

impl MachineFacts {
    /// Reads all facts but the number of this user's processes.
    pub(super) fn look() -> Self {
        let release = release();
        let status = read_to_string("/proc/self/status").unwrap_or_default();
        let number = |name| field(&status, name).and_then(|text| text.parse().ok());
        let capabilities = field(&status, "CapEff");
        let capabilities = capabilities.and_then(|text| u64::from_str_radix(text, 16).ok());
        let locked = field(&status, "VmLck").and_then(|text| text.strip_suffix("kB"));
        let locked = locked.and_then(|text| text.trim().parse::<u64>().ok());
        Self {
            version: version(&release),
            release,
            c_library: c_library(),
            seccomp: number("Seccomp"),
            no_new_privs: number("NoNewPrivs").map(|on| on != 0),
            sys_admin: capabilities.map(|set| set >> CAP_SYS_ADMIN & 1 == 1),
            io_uring_disabled: setting("kernel/io_uring_disabled"),
            fills_return_stack: return_stack::is_filled(),
            aio: Limit {
                used: setting("fs/aio-nr"),
                limit: setting("fs/aio-max-nr"),
                ..Limit::new("fs.aio-max-nr", "requests of all Linux AIO contexts of the host")
            },
            memlock: Limit {
                used: locked.map(|kibibytes| kibibytes << 10),
                limit: resource(libc::RLIMIT_MEMLOCK),
                ..Limit::new("RLIMIT_MEMLOCK", "bytes of locked memory of this process")
            },
            nproc: Limit {
                limit: resource(libc::RLIMIT_NPROC),
                ..Limit::new("RLIMIT_NPROC", "processes and threads of this user, seen from here")
            },
            nofile: Limit {
                // One of the entries is the folder itself, open for reading.
                used: read_dir("/proc/self/fd").ok().map(|list| list.count() as u64 - 1),
                limit: resource(libc::RLIMIT_NOFILE),
                ..Limit::new("RLIMIT_NOFILE", "descriptors of this process")
            },
            pids: pids(),
        }
    }

    /// Counts this user's processes and threads: reads a file of /proc for each process.
    pub(super) fn count_processes(&mut self) {
        // SAFETY: no memory is involved, and the call cannot fail.
        let user = unsafe { libc::getuid() };
        let Ok(list) = read_dir("/proc") else { return };
        let mut count = 0;
        for entry in list.flatten() {
            if !entry.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit) {
                continue;
            }
            // A process may end, or be hidden, at any time.
            let status = read_to_string(entry.path().join("status")).unwrap_or_default();
            let uid = field(&status, "Uid").and_then(|ids| ids.split_whitespace().next());
            if uid.and_then(|id| id.parse().ok()) == Some(user) {
                let threads = field(&status, "Threads").and_then(|text| text.parse::<u64>().ok());
                count += threads.unwrap_or(1);
            }
        }
        self.nproc.used = Some(count).filter(|&count| count > 0);
    }

    /// Is a seccomp filter in force? False if unknown.
    pub fn is_filtered(&self) -> bool {
        self.seccomp == Some(SECCOMP_FILTER)
    }

    /// Is the kernel older than this version? False if unknown.
    pub(super) fn is_older_than(&self, version: (u32, u32)) -> bool {
        self.version.is_some_and(|ours| ours < version)
    }

    /// Every limit, in the order of the report.
    pub fn limits(&self) -> [&Limit; 5] {
        [&self.aio, &self.memlock, &self.nproc, &self.nofile, &self.pids]
    }
}

/// The value of the line `name: value` in a text of such lines.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(found, _)| *found == name).map(|(_, value)| value.trim())
}

fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    read_to_string(Path::new("/proc/sys").join(name)).ok()?.trim().parse().ok()
}

#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

/// The soft limit of getrlimit(2); RLIM_INFINITY is `u64::MAX`.
fn resource(which: Resource) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a writable rlimit.
    let ret = unsafe { libc::getrlimit(which, &raw mut limit) };
    (ret == 0).then_some(limit.rlim_cur)
}

fn release() -> String {
    let mut names = MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: `names` is room for one utsname.
    unsafe { libc::uname(names.as_mut_ptr()) };
    // SAFETY: zeroed is a valid utsname (arrays of bytes), and uname fills it in.
    let names = unsafe { names.assume_init() };
    // SAFETY: uname ends each field with NUL, and a zeroed one is empty.
    unsafe { CStr::from_ptr(names.release.as_ptr()) }.to_string_lossy().into_owned()
}

/// `6.18.1-arch1` is (6, 18).
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn c_library() -> String {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: a constant string of the C library, which ends in NUL.
        let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
        format!("glibc {}", version.to_string_lossy())
    }
    #[cfg(not(target_env = "gnu"))]
    if cfg!(target_env = "musl") { "musl".into() } else { "unknown C library".into() }
}

/// The limit pids.max with the least room left, among the control groups of this process and their
/// ancestors, of both versions (cgroups(7)).
fn pids() -> Limit {
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut tightest = Limit::new("pids.max", "processes and threads of this control group");
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let root = match controllers {
            "" => PathBuf::from("/sys/fs/cgroup"),
            "pids" => PathBuf::from("/sys/fs/cgroup/pids"),
            _ => continue,
        };
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            let read = |name| read_to_string(root.join(group).join(name)).ok();
            let Some(limit) = read("pids.max") else { continue };
            let limit =
                if limit.trim() == "max" { Some(u64::MAX) } else { limit.trim().parse().ok() };
            let used = read("pids.current").and_then(|text| text.trim().parse().ok());
            let found = Limit { used, limit, ..tightest.clone() };
            if tightest.limit.is_none() || found.room() < tightest.room() {
                tightest = found;
            }
        }
    }
    tightest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_all_kinds_have_a_version_or_none() {
        assert_eq!(version("6.18.1-arch1"), Some((6, 18)));
        assert_eq!(version("5.1"), Some((5, 1)));
        assert_eq!(version("4.19-rc3+"), Some((4, 19)));
        assert_eq!(version(""), None);
        assert_eq!(version("six"), None);
    }

    #[test]
    fn a_limit_without_figures_is_unknown_and_not_exhausted() {
        let mut limit = Limit::new("RLIMIT_NPROC", "");
        assert_eq!(limit.to_string(), "unknown of unknown");
        assert_eq!(limit.exhausted_by(1), None);
        limit.limit = Some(u64::MAX);
        assert_eq!(limit.to_string(), "unknown of unlimited");
        limit.used = Some(7);
        assert_eq!(limit.exhausted_by(1), Some(false));
        limit.limit = Some(7);
        assert_eq!(limit.to_string(), "7 of 7");
        assert_eq!((limit.exhausted_by(0), limit.exhausted_by(1)), (Some(false), Some(true)));
    }

    #[test]
    fn this_process_has_descriptors_and_threads() {
        let mut facts = MachineFacts::look();
        facts.count_processes();
        if !Path::new("/proc/self/status").exists() {
            return crate::skipped("this_process_has_descriptors_and_threads", "no /proc");
        }
        assert!(facts.version.is_some(), "{}", facts.release);
        assert!(facts.nofile.used >= Some(1) && facts.nofile.used <= facts.nofile.limit);
        assert!(facts.nproc.used >= Some(1), "{:?}", facts.nproc);
        assert!(facts.seccomp.is_some());
    }
}
