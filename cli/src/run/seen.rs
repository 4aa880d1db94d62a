//! What the drop-ins report from a program and its children. If none of these processes has made a
//! context through a drop-in: why not.

use super::library::DropIn;
use nix::sys::signal::Signal;
use rustix::process::geteuid;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::rc::Rc;
use uringlet::front::seen::{self, Seen};
use uringlet::probe::errno_name;
use uringlet::stats::Region;

/// Read by the drop-ins: the memory for their events.
const SEEN: &str = "URINGLET_SEEN";

/// What `run` learns about the drop-ins while the program runs.
pub struct Watch {
    region: Rc<Region>,
    /// Processes into which no drop-in was loaded, each with name and reason.
    lost: Vec<(u32, String, &'static str)>,
}

impl Watch {
    /// Makes the memory for the events of the drop-ins. With `counts`, the program's contexts count
    /// their requests into the memory, too.
    ///
    /// # Errors
    /// The memory for events cannot be made.
    pub fn new(counts: bool) -> std::io::Result<Self> {
        let make = if counts { Region::create } else { Region::create_for_events };
        let mut region = make()?;
        // Root starts programs that become other users. They may not open the memory by its path
        // below /proc, and use an inherited descriptor instead.
        if geteuid().is_root() {
            region.pass_on()?;
        }
        Ok(Self { region: Rc::new(region), lost: Vec::new() })
    }

    /// The memory for events. It also has room for the counters of contexts.
    pub fn region(&self) -> Rc<Region> {
        Rc::clone(&self.region)
    }

    /// Tells the drop-ins in the program where to count their events.
    pub fn tell(&self, command: &mut Command) {
        command.env(SEEN, self.region.path());
    }

    fn has(&self, what: Seen) -> bool {
        seen::count(&self.region, what) > 0
    }

    /// Looks for processes without a drop-in, until a context was made through a drop-in.
    pub fn look(&mut self, program: u32) {
        if self.has(Seen::Made) {
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

    /// A text with the number of refused set-ups, and each errno once.
    pub fn refusals(&self) -> Option<String> {
        let (count, errnos) = seen::refused(&self.region);
        let names = errnos.iter().map(|&errno| {
            errno_name(errno.into()).map_or_else(|| errno.to_string(), str::to_owned)
        });
        let names = names.collect::<Vec<_>>().join(", ");
        let set_ups = if count == 1 { "set-up was" } else { "set-ups were" };
        (count > 0).then(|| {
            format!(
                "{count} {set_ups} refused by uringlet ({names}): see `uringlet doctor`, or let \
                 --engine auto choose"
            )
        })
    }

    /// The number of processes that got a seccomp(2) filter.
    pub fn filters(&self) -> u64 {
        seen::count(&self.region, Seen::Filtered)
    }

    /// The reason why no context was made through a drop-in; none if one was made. `program` was
    /// started, and has ended with `status`.
    pub fn verdict(&self, program: &Path, status: ExitStatus) -> Option<String> {
        if self.has(Seen::Made) {
            return None;
        }
        let cause = if let Some(refused) = self.refusals() {
            refused
        } else if self.has(Seen::SteppedAside) {
            "its io_uring rings are the kernel's, which allows them (--io-uring always serves them \
             here)"
                .into()
        } else if self.has(Seen::Unserved) {
            "it asks for io_uring rings of a kind that is not served: they are left to the kernel"
                .into()
        } else if self.has(Seen::LeftToKernel) {
            "it enters io_uring's rings by instructions of its own, which are caught neither with \
             --trap never nor where seccomp(2) is refused: they are the kernel's rings"
                .into()
        } else if !self.has(Seen::Loaded) {
            "the drop-in was loaded into no process: the loader ignored LD_PRELOAD".into()
        } else if let Some((_, name, why)) = self.lost.first() {
            let more = self.lost.len() - 1;
            let more = if more > 0 { format!(", and {more} more") } else { String::new() };
            let run = if self.lost.len() == 1 { "runs" } else { "run" };
            format!("its process {name}{more} {run} without the drop-in: {why}")
        } else if let Some(signal) = killed_by(status) {
            format!(
                "{signal} ended it before it made a request through libaio, POSIX AIO or io_uring"
            )
        } else {
            format!(
                "it made no request through libaio, POSIX AIO or io_uring in this run (a program \
                 that links uringlet itself needs no drop-in): `uringlet doctor -- {}` says what \
                 it imports",
                program.display()
            )
        };
        Some(format!("uringlet: nothing went through it: {cause}\n"))
    }
}

/// The signal that has ended a program. A shell reports the signal of its last command by a status
/// above 128.
fn killed_by(status: ExitStatus) -> Option<String> {
    let told = status.code().and_then(|code| code.checked_sub(128));
    let number = status.signal().or(told)?;
    Some(format!("signal {number} ({})", Signal::try_from(number).ok()?))
}

/// Prints the text of [`Watch::verdict`], if there is one. Standard error may be closed.
pub fn say(text: Option<String>) {
    text.inspect(|text| drop(std::io::stderr().write_all(text.as_bytes())));
}

/// A process and its descendants (proc_pid_task(5)). Only the process, if the kernel lists no
/// children.
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
    // Without a heap, the process has just been started: no library is loaded yet.
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
    use crate::observe::figures::Figures;
    use crate::run::summary;
    use std::time::Duration;
    use uringlet::stats::Snapshot;

    const LOADED: Seen = Seen::Loaded;
    const REFUSED: Seen = Seen::Refused(libc::EINVAL as u8);

    fn watch(events: &[Seen]) -> Watch {
        let watch = Watch::new(true).unwrap();
        events.iter().for_each(|&what| seen::note(&watch.region, what));
        watch
    }

    fn said(events: &[Seen]) -> Option<String> {
        watch(events).verdict(Path::new("./program"), ExitStatus::default())
    }

    #[test]
    fn what_a_signal_ended_is_not_said_to_have_called_nothing() {
        let ended = |events: &[Seen], raw| {
            watch(events).verdict(Path::new("x"), ExitStatus::from_raw(raw)).unwrap()
        };
        for raw in [libc::SIGSEGV, (128 + libc::SIGSEGV) << 8] {
            let text = ended(&[LOADED], raw);
            assert!(text.contains("signal 11 (SIGSEGV) ended it"), "{text}");
        }
        assert!(ended(&[LOADED], 1 << 8).contains("it made no request"));
        assert!(ended(&[LOADED, REFUSED], libc::SIGSEGV).contains("refused by uringlet"));
    }

    #[test]
    fn the_true_cause_is_named() {
        assert_eq!(said(&[LOADED, Seen::Made]), None);
        assert_eq!(said(&[LOADED, REFUSED, Seen::Made]), None, "another one was made");
        assert!(
            said(&[LOADED, REFUSED, REFUSED])
                .unwrap()
                .contains("2 set-ups were refused by uringlet (EINVAL)")
        );
        assert!(said(&[LOADED, Seen::LeftToKernel]).unwrap().contains("instructions of its own"));
        assert!(said(&[LOADED, Seen::SteppedAside]).unwrap().contains("--io-uring always"));
        assert!(said(&[LOADED, Seen::Unserved]).unwrap().contains("of a kind that is not served"));
        assert!(said(&[]).unwrap().contains("the loader ignored LD_PRELOAD"));
        assert!(said(&[LOADED]).unwrap().contains("`uringlet doctor -- ./program`"));
        let mut lost = watch(&[LOADED]);
        lost.lost = vec![(1, "child".into(), "why"), (2, "other".into(), "why")];
        assert!(said(&[LOADED, REFUSED]).unwrap().contains(": 1 set-up was refused by"));
        let text = lost.verdict(Path::new("x"), ExitStatus::default()).unwrap();
        assert!(
            text.contains("its process child, and 1 more run without the drop-in: why"),
            "{text}"
        );
    }

    #[test]
    fn whatever_a_program_writes_into_the_memory_can_be_read() {
        use std::os::unix::fs::FileExt as _;

        let watch = watch(&[LOADED]);
        let file = std::fs::File::options().write(true).open(watch.region.path()).unwrap();
        let length = file.metadata().unwrap().len() as usize;
        for byte in [0x7f, 0xff] {
            file.write_all_at(&vec![byte; length], 0).unwrap();
            let (stats, before) = (watch.region.snapshot(), Snapshot::default());
            let figures = Figures::between(&before, &stats, Duration::from_secs(1));
            assert!(figures.requests_per_s > 0.0);
            let refused = watch.refusals();
            assert!(refused.as_ref().is_some_and(|text| text.contains("EINVAL")));
            assert!(summary::text(&stats, watch.filters(), refused).contains("latency"));
            assert!(watch.region.contexts().is_empty(), "no such process is there");
            assert_eq!(watch.verdict(Path::new("x"), ExitStatus::default()), None);
        }
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
