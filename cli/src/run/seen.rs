//! What happened with the drop-ins in a program and its children, and why nothing went through
//! them.

use super::library::DropIn;
use nix::sys::signal::Signal;
use rustix::fs::{MemfdFlags, memfd_create};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use uringlet::front::seen::{self, Seen};
use uringlet::probe::errno_name;

/// Read by the drop-ins: the file for their events.
const SEEN: &str = "URINGLET_SEEN";

/// The state while the program runs.
pub struct Watch {
    file: std::fs::File,
    /// Processes into which no drop-in was loaded, each with name and reason.
    lost: Vec<(u32, String, &'static str)>,
}

impl Watch {
    /// # Errors
    /// There is no memory for the file.
    pub fn new() -> std::io::Result<Self> {
        // In memory, because there may be no writable folder.
        let file = memfd_create("uringlet-seen", MemfdFlags::CLOEXEC)?.into();
        Ok(Self { file, lost: Vec::new() })
    }

    fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }

    /// Has the program write its events.
    pub fn tell(&self, command: &mut Command) {
        command.env(SEEN, self.path());
    }

    fn all(&self) -> Vec<Seen> {
        seen::read(&self.path()).unwrap_or_default()
    }

    /// Looks for processes without a drop-in, until something went through a drop-in.
    pub fn look(&mut self, program: u32) {
        if self.all().contains(&Seen::Made) {
            return;
        }
        for pid in descendants(program) {
            if let Some((name, why)) = lost(Path::new("/proc"), pid)
                && !self.lost.iter().any(|(known, other, _)| *known == pid && *other == name)
            {
                self.lost.push((pid, name, why));
            }
        }
    }

    /// Set-ups that were refused, each errno once.
    pub fn refusals(&self) -> Option<String> {
        let refused: Vec<u8> = self.all().iter().filter_map(refusal).collect();
        let mut errnos = refused.clone();
        errnos.sort_unstable();
        errnos.dedup();
        let names = errnos.iter().map(|&errno| {
            errno_name(errno.into()).map_or_else(|| errno.to_string(), str::to_owned)
        });
        let names = names.collect::<Vec<_>>().join(", ");
        (!refused.is_empty()).then(|| {
            let count = refused.len();
            format!(
                "{count} set-ups were refused by uringlet ({names}): see `uringlet doctor`, or let \
                 --engine auto choose"
            )
        })
    }

    /// Processes that got a filter of seccomp(2).
    pub fn filters(&self) -> usize {
        self.all().iter().filter(|&&what| what == Seen::Filtered).count()
    }

    /// The reason why nothing went through a drop-in; none if something did. `program` was started,
    /// and has ended with `status`.
    pub fn verdict(&self, program: &Path, status: ExitStatus) -> Option<String> {
        let seen = self.all();
        if seen.contains(&Seen::Made) {
            return None;
        }
        let cause = if let Some(refused) = self.refusals() {
            refused
        } else if seen.contains(&Seen::SteppedAside) {
            "its io_uring rings are the kernel's, which allows them (--io-uring always serves them \
             here)"
                .into()
        } else if seen.contains(&Seen::Unserved) {
            "it asks for io_uring rings of a kind that is not served: they are left to the kernel"
                .into()
        } else if seen.contains(&Seen::LeftToKernel) {
            "it enters io_uring's rings by instructions of its own, which are caught neither with \
             --trap never nor where seccomp(2) is refused: they are the kernel's rings"
                .into()
        } else if !seen.contains(&Seen::Loaded) {
            "the drop-in was loaded into no process: the loader ignored LD_PRELOAD".into()
        } else if let Some((_, name, why)) = self.lost.first() {
            let more = self.lost.len() - 1;
            let more = if more > 0 { format!(", and {more} more") } else { String::new() };
            format!("its process {name}{more} runs without the drop-in: {why}")
        } else if let Some(signal) = killed_by(status) {
            format!("{signal} ended it before a first set-up was complete")
        } else {
            format!(
                "it called neither libaio, POSIX AIO nor io_uring in this run (a program that \
                 links uringlet itself needs no drop-in): `uringlet doctor -- {}` says what it \
                 imports",
                program.display()
            )
        };
        Some(format!("uringlet: nothing went through it: {cause}\n"))
    }
}

fn refusal(seen: &Seen) -> Option<u8> {
    match seen {
        Seen::Refused(errno) => Some(*errno),
        _ => None,
    }
}

/// The signal that has ended a program; a shell reports that of its last command.
fn killed_by(status: ExitStatus) -> Option<String> {
    let told = status.code().and_then(|code| code.checked_sub(128));
    let number = status.signal().or(told)?;
    Some(format!("signal {number} ({})", Signal::try_from(number).ok()?))
}

/// Prints the text if nothing went through uringlet. Standard error may be closed.
pub fn say(text: Option<String>) {
    text.inspect(|text| drop(std::io::stderr().write_all(text.as_bytes())));
}

/// A process and its descendants (proc_pid_task(5)); none if the kernel does not tell.
fn descendants(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut at = 0;
    while let Some(&pid) = all.get(at) {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(task.path().join("children"));
            let children = children.unwrap_or_default();
            all.extend(children.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
        at += 1;
    }
    all
}

/// The name of a process without a drop-in, and the reason.
fn lost(proc: &Path, pid: u32) -> Option<(String, &'static str)> {
    let read = |name: &str| std::fs::read(proc.join(format!("{pid}/{name}"))).ok();
    let (maps, environment) = (read("maps")?, read("environ")?);
    let holds = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|found| found == part);
    let names = DropIn::ALL.map(DropIn::file_name);
    // The process has just been started: nothing is loaded yet.
    let is_ready = holds(&maps, b"[heap]");
    if !is_ready || names.iter().any(|name| holds(&maps, name.as_bytes())) {
        return None;
    }
    let ours = names.iter().any(|name| holds(&environment, name.as_bytes()));
    let name = std::fs::read_link(proc.join(format!("{pid}/exe"))).ok()?;
    let name = String::from_utf8_lossy(name.file_name()?.as_bytes()).into_owned();
    let name = crate::session::printable(&name);
    Some(match ours {
        true => (name, "the loader ignored LD_PRELOAD (it is static, or gains privileges)"),
        false => (name, "it was started with another environment, without LD_PRELOAD"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(events: &[u8]) -> Watch {
        let watch = Watch::new().unwrap();
        (&watch.file).write_all(events).unwrap();
        watch
    }

    fn said(events: &[u8]) -> Option<String> {
        watch(events).verdict(Path::new("./program"), ExitStatus::default())
    }

    #[test]
    fn what_a_signal_ended_is_not_said_to_have_called_nothing() {
        let ended =
            |events, raw| watch(events).verdict(Path::new("x"), ExitStatus::from_raw(raw)).unwrap();
        for raw in [libc::SIGSEGV, (128 + libc::SIGSEGV) << 8] {
            let text = ended(b"l\0", raw);
            assert!(text.contains("signal 11 (SIGSEGV) ended it"), "{text}");
        }
        assert!(ended(b"l\0", 1 << 8).contains("it called neither"));
        assert!(ended(b"l\0r\x16", libc::SIGSEGV).contains("refused by uringlet"));
    }

    #[test]
    fn the_true_cause_is_named() {
        assert_eq!(said(b"l\0m\0"), None);
        assert_eq!(said(b"l\0r\x16m\0"), None, "another one was made");
        assert!(
            said(b"l\0r\x16r\x16").unwrap().contains("2 set-ups were refused by uringlet (EINVAL)")
        );
        assert!(said(b"l\0k\0").unwrap().contains("instructions of its own"));
        assert!(said(b"l\0s\0").unwrap().contains("--io-uring always"));
        assert!(said(b"l\0u\0").unwrap().contains("of a kind that is not served"));
        assert!(said(b"").unwrap().contains("the loader ignored LD_PRELOAD"));
        assert!(said(b"l\0").unwrap().contains("`uringlet doctor -- ./program`"));
        let mut lost = watch(b"l\0");
        lost.lost = vec![(1, "child".into(), "why"), (2, "other".into(), "why")];
        let text = lost.verdict(Path::new("x"), ExitStatus::default()).unwrap();
        assert!(
            text.contains("its process child, and 1 more runs without the drop-in: why"),
            "{text}"
        );
    }

    #[test]
    fn a_process_without_a_drop_in_is_known_by_its_maps_and_environment() {
        let proc = tempfile::tempdir().unwrap();
        let process = |pid: u32, maps: &str, environment: &str| {
            let folder = proc.path().join(pid.to_string());
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("maps"), maps).unwrap();
            std::fs::write(folder.join("environ"), environment).unwrap();
            std::os::unix::fs::symlink("/bin/child", folder.join("exe")).unwrap();
        };
        process(1, "/x/libaio.so\n[heap]\n", "LD_PRELOAD=/x/libaio.so\0");
        process(2, "[heap]\n", "LD_PRELOAD=/x/libaio.so\0");
        process(3, "[heap]\n", "A=b\0");
        process(4, "", "A=b\0");
        let why = |pid| lost(proc.path(), pid).map(|(_, why)| why);
        assert_eq!((why(1), why(4)), (None, None));
        assert!(why(2).unwrap().contains("static") && why(3).unwrap().contains("environment"));
        assert!(descendants(std::process::id()).contains(&std::process::id()));
    }
}
