//! `uringlet check`: what it reports about programs and processes, and its exit status.

mod skip;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

fn uringlet(arguments: &[&str]) -> assert_cmd::assert::Assert {
    Command::new(assert_cmd::cargo::cargo_bin!("uringlet")).args(arguments).assert()
}

/// A shell that reports that it has started, and then waits for its standard input.
struct Waits(Child);

impl Waits {
    fn start(arguments: &[&str]) -> Self {
        let script = "echo ready; read line";
        let mut command = match arguments {
            [] => std::process::Command::new("sh"),
            _ => std::process::Command::new(assert_cmd::cargo::cargo_bin!("uringlet")),
        };
        if !arguments.is_empty() {
            command.args(arguments).arg("sh");
        }
        let mut child = command
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The command loads the drop-ins into itself to ask them. A drop-in has to leave the command's own
/// calls of io_uring to the kernel. It does so for executables that have uringlet's ELF note.
#[test]
fn the_command_has_the_note_by_which_drop_ins_leave_its_calls_alone() {
    let file = std::fs::read(assert_cmd::cargo::cargo_bin!("uringlet")).unwrap();
    let note = [&b"uringlet\0\0\0\0"[..], env!("CARGO_PKG_VERSION").as_bytes(), b"\0"].concat();
    assert!(file.windows(note.len()).any(|part| part == note));
}

#[test]
fn of_a_program_it_says_what_is_bound_and_that_it_answers() {
    let bound = contains("binds ").and(contains("io_submit")).and(contains("aio_read"));
    let both = contains("libaio.so: loaded from").and(contains("libposix_aio.so: loaded from"));
    let answers = contains(", and answers").count(3).and(contains("rings: "));
    uringlet(&["check", "--", "fio", "--version"])
        .success()
        .stdout(bound.and(both).and(answers).and(contains("fio-").not()));
    if std::path::Path::new("/proc/sys/kernel/seccomp").exists() {
        uringlet(&["check", "--only", "io-uring", "--forbid", "io_uring", "--", "true"])
            .success()
            .stdout(contains("rings: uringlet serves them"));
    } else {
        skip::skipped("check --forbid", "the kernel has no seccomp filters");
    }
    uringlet(&["check", "--only", "libaio", "--", "true"])
        .success()
        .stdout(contains("binds none").and(contains("libposix_aio").not()));
}

#[test]
fn what_cannot_be_loaded_is_said_and_is_a_failure() {
    uringlet(&["check", "--", "no-such-program"]).code(2).stderr(contains("no such program"));
    uringlet(&["check", "0"]).code(2).stderr(contains("expected a process id"));
    uringlet(&["check"]).code(2);
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("s.c"), folder.path().join("static"));
    std::fs::write(&source, "int main(void) { return 0; }").unwrap();
    let mut cc = std::process::Command::new("cc");
    let made = cc.arg("-static").arg(&source).arg("-o").arg(&program).output();
    if !made.is_ok_and(|made| made.status.success()) {
        let name = "what_cannot_be_loaded_is_said_and_is_a_failure";
        return skip::skipped(name, "cc -static does not work here");
    }
    uringlet(&["check", "--", program.to_str().unwrap()])
        .code(1)
        .stdout(contains("libaio.so: NOT loaded").and(contains("statically linked")));
}

#[test]
fn a_drop_in_that_does_not_answer_is_a_failure() {
    // The library that is put beside a copy of the command is not uringlet's.
    let folder = tempfile::tempdir().unwrap();
    let mut cp = std::process::Command::new("cp");
    let copied = cp.arg(assert_cmd::cargo::cargo_bin!("uringlet")).arg(folder.path()).status();
    assert!(copied.unwrap().success());
    let source = folder.path().join("s.c");
    std::fs::write(&source, "int nothing;").unwrap();
    let mut cc = std::process::Command::new("cc");
    let library = folder.path().join("libaio.so");
    cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
    assert!(cc.status().unwrap().success());
    let check = || {
        let mut check = Command::new(folder.path().join("uringlet"));
        check.args(["check", "--only", "libaio", "--", "true"]).assert().code(1)
    };
    check().stdout(contains("does NOT answer").and(contains("counted 0 reads")));
    // The loader cannot load this library.
    std::fs::write(&library, "not a library").unwrap();
    check().stdout(contains("NOT loaded from").and(contains("ERROR: ld.so")));
}

#[test]
fn of_a_process_it_says_what_is_mapped() {
    let without = Waits::start(&[]);
    uringlet(&["check", &without.pid()]).code(1).stdout(contains("NOT loaded"));
    let with = Waits::start(&["run", "--only", "libaio", "--"]);
    let version = concat!("libaio.so: loaded, uringlet ", env!("CARGO_PKG_VERSION"));
    uringlet(&["check", &with.pid()])
        .success()
        .stdout(contains(version).and(contains("not observed")));
    uringlet(&["check", "--only", "posix-aio", &with.pid()]).code(1);
    let gone = std::process::Command::new("true").spawn().and_then(|mut child| {
        let pid = child.id();
        child.wait().map(|_| pid)
    });
    uringlet(&["check", &gone.unwrap().to_string()]).code(2).stderr(contains("no such process"));
}

#[test]
fn of_an_observed_process_it_counts_requests() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("s.c"), folder.path().join("waits"));
    let text = "#include <stdio.h>\n#include <sys/syscall.h>\n#include <unistd.h>\n\
        int main(void) { long ctx = 0; if (syscall(SYS_io_setup, 8, &ctx)) return 1;\n\
        puts(\"ready\"); fflush(stdout); return getchar() == 7; }";
    std::fs::write(&source, text).unwrap();
    let mut cc = std::process::Command::new("cc");
    assert!(cc.arg(&source).arg("-o").arg(&program).status().unwrap().success());
    let exec = format!("exec {}", program.display());
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("uringlet"));
    command.args(["run", "--observe", "--", "sh", "-c", &exec]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let waits = Waits(child);
    uringlet(&["check", &waits.pid()])
        .success()
        .stdout(contains("answering: 1 context, 0 requests completed"));
}

/// A container may have no /proc. Then nothing is known about processes.
#[test]
fn without_proc_no_process_is_said_to_be_missing() {
    let script = "mount -t tmpfs none /proc && exec \"$0\" \"$@\"";
    for arguments in [["check", "1"], ["top", "--once"]] {
        let mut command = std::process::Command::new("unshare");
        command.args(["-m", "sh", "-c", script]).arg(assert_cmd::cargo::cargo_bin!("uringlet"));
        let output = command.args(arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        if error.contains("unshare: ") || error.contains("mount: ") {
            skip::skipped("without_proc_no_process_is_said_to_be_missing", error);
            return;
        }
        assert!(error.contains("/proc lists no processes, expected it mounted"), "{error}");
        assert_eq!(output.status.code(), Some(1), "{error}");
    }
}
