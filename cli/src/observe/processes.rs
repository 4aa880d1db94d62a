//! What /proc tells about the observed processes.

use crate::session::printable;
use std::path::Path;
use uringlet::stats::{ContextNow, ProcessId};

/// The names of the engine's workers (proc(5), comm).
const WORKERS: [&[u8]; 2] = [b"uringlet-worker\n", b"uringlet-waits\n"];

/// A process's name, safe for a terminal; `?` if the process has ended.
pub fn name(pid: u32) -> String {
    let Ok(name) = std::fs::read(format!("/proc/{pid}/comm")) else { return "?".into() };
    let name = String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(&name));
    printable(&name)
}

/// The number of workers of these contexts' processes.
pub fn workers(contexts: &[ContextNow]) -> usize {
    let mut processes: Vec<ProcessId> = contexts.iter().map(|context| context.process).collect();
    processes.sort_unstable();
    processes.dedup();
    processes.iter().map(|process| workers_of(Path::new("/proc"), process.pid)).sum()
}

fn workers_of(proc: &Path, pid: u32) -> usize {
    let Ok(tasks) = proc.join(format!("{pid}/task")).read_dir() else { return 0 };
    let is_worker = |task: &std::fs::DirEntry| {
        std::fs::read(task.path().join("comm")).is_ok_and(|name| WORKERS.contains(&&name[..]))
    };
    tasks.flatten().filter(is_worker).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_the_threads_of_that_name() {
        let proc = tempfile::tempdir().unwrap();
        for (task, comm) in [(1, "fio\n"), (2, "uringlet-worker\n"), (3, "uringlet-watchd\n")] {
            let folder = proc.path().join(format!("1/task/{task}"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("comm"), comm).unwrap();
        }
        assert_eq!(workers_of(proc.path(), 1), 1);
        assert_eq!(workers_of(proc.path(), 2), 0, "no such process");
    }

    #[test]
    fn a_name_is_fit_for_a_terminal() {
        assert_ne!(name(std::process::id()), "?");
        assert_eq!(name(0), "?");
    }
}
