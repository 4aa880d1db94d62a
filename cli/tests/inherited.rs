//! A program under `uringlet run` is started with the signals, descriptors and limits that it would
//! have without, and its end is seen as without.

mod skip;

use rustix::process::geteuid;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Makes a context of Linux AIO through libc's syscall(). Fails with the number of the error.
const SETS_UP: &str = r#"
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {
    unsigned long context = 0;
    return syscall(SYS_io_setup, 8, &context) ? errno : 0;
}
"#;

/// Runs a line of bash in which `$RUN` is in front of a program: natively nothing, or `uringlet
/// run`.
fn bash(line: &str, run: &str) -> Output {
    let mut command = Command::new("bash");
    command.args(["-c", line]).env("RUN", run).stdin(Stdio::null());
    command.output().unwrap()
}

fn under_run(options: &str) -> String {
    format!("{} run {options} --", assert_cmd::cargo::cargo_bin!("uringlet").display())
}

/// Compares the output and the end of a line, natively and under `uringlet run`.
#[track_caller]
fn assert_same(line: &str) {
    let (native, ours) = (bash(line, ""), bash(line, &under_run("")));
    let said = String::from_utf8_lossy(&ours.stderr);
    assert_eq!(ours.status.code(), native.status.code(), "{line}: {said}");
    assert_eq!(ours.status.signal(), native.status.signal(), "{line}: {said}");
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text(&ours), text(&native), "{line}");
}

fn compile(folder: &Path, source: &str) -> String {
    let (file, program) = (folder.join("source.c"), folder.join("program"));
    std::fs::write(&file, source).unwrap();
    let made = Command::new("cc").arg(&file).arg("-o").arg(&program).status().unwrap();
    assert!(made.success());
    program.display().to_string()
}

#[test]
fn what_is_ignored_stays_so_and_nothing_else() {
    let all = (1..=libc::SIGRTMAX()).filter(|&signal| {
        let is_internal = (32..libc::SIGRTMIN()).contains(&signal);
        ![libc::SIGKILL, libc::SIGSTOP].contains(&signal) && !is_internal
    });
    for signal in all {
        assert_same(&format!(
            "trap '' {signal}; exec $RUN grep -E '^Sig(Blk|Ign)' /proc/self/status"
        ));
    }
    // The status of a child is known, although its end is ignored.
    assert_same("trap '' CHLD; exec $RUN bash -c 'exit 7'");
}

#[test]
fn what_is_closed_stays_so() {
    // The command opens what is closed as /dev/null. Its program does not get that.
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let lists = "for fd in 0 1 2; do [ -e /proc/$$/fd/$fd ] && echo $fd >&9; done; exit 0";
        assert_same(&format!("exec 9>&1; $RUN bash -c '{lists}' {closed}"));
    }
}

/// Shells and supervisors tell a signal from an exit status.
#[test]
fn a_program_that_a_signal_ends_is_seen_to_end_by_it() {
    for signal in ["HUP", "INT", "QUIT", "ABRT", "KILL", "USR1", "SEGV", "PIPE", "TERM", "RTMIN"] {
        assert_same(&format!("ulimit -c 0; exec $RUN bash -c 'kill -{signal} $$'"));
    }
    assert_same("exec $RUN bash -c 'exit 130'");
}

/// A limit of 0 bytes: SIGXFSZ would end a process that extends a memfd.
#[test]
fn a_limit_on_the_size_of_files_ends_nothing() {
    assert_same("ulimit -f 0; exec $RUN true");
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), SETS_UP);
    for options in ["", "--observe"] {
        let ran = bash(&format!("ulimit -f 0; exec $RUN {program}"), &under_run(options));
        assert!(ran.status.success(), "{options}: {ran:?}");
    }
    let refused = bash("ulimit -f 0; exec $RUN true", &under_run("--stats"));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(1) && said.contains("File too large"), "{said}");
}

/// A reservation must not take what the program and its threads need.
#[test]
fn a_limit_on_address_space_leaves_room_for_contexts() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), SETS_UP);
    for kib in [150_000, 200_000, 220_000, 285_000, 400_000, 900_000] {
        let ran = bash(&format!("ulimit -v {kib}; exec $RUN {program}"), &under_run(""));
        assert!(ran.status.success(), "{kib} KiB: {ran:?}");
    }
}

/// The child of a process that has left its PID namespace sees no parent.
#[test]
fn a_program_is_the_first_of_a_new_pid_namespace() {
    let flags = if geteuid().is_root() { "-p" } else { "-rp" };
    let probe = Command::new("unshare").args([flags, "-f", "true"]).output();
    if !probe.is_ok_and(|ran| ran.status.success()) {
        let test = "a_program_is_the_first_of_a_new_pid_namespace";
        return skip::skipped(test, "no PID namespaces here");
    }
    assert_same(&format!("exec unshare {flags} $RUN bash -c 'exit 5'"));
}
