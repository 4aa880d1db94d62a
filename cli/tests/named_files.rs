//! Files that the command line names: devices without an end, and named pipes, are refused at once.

use assert_cmd::Command;
use predicates::str::contains;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::path::Path;

/// The command in a folder with a named pipe `pipe` that nobody has open.
fn uringlet(folder: &Path, arguments: &[&str]) -> assert_cmd::assert::Assert {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("uringlet"));
    // The limit is for a failure: a command that opens the pipe would wait without end.
    let limit = std::time::Duration::from_secs(60);
    command.current_dir(folder).args(arguments).timeout(limit).assert()
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    mknodat(CWD, folder.path().join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    std::fs::write(folder.path().join("job.fio"), "[a]\nsize=64k\ninclude pipe\n").unwrap();
    folder
}

#[test]
fn what_may_have_no_end_is_not_read() {
    let folder = folder();
    for file in ["pipe", "/dev/zero", "/dev/full", "."] {
        for command in [&["compare", file, file][..], &["bench", file]] {
            let expected = format!("{file}: expected a regular file");
            uringlet(folder.path(), command).code(2).stderr(contains(expected));
        }
    }
    uringlet(folder.path(), &["bench", "job.fio"])
        .code(2)
        .stderr(contains("pipe: expected a regular file"));
    let file = ["bench", "--file", "pipe"];
    uringlet(folder.path(), &file).code(2).stderr(contains("expected a regular file"));
    for command in [&["doctor", "pipe"][..], &["run", "--", "./pipe"], &["check", "--", "./pipe"]] {
        uringlet(folder.path(), command).code(2).stderr(contains("pipe"));
    }
}

#[test]
fn an_output_that_nobody_reads_is_refused_before_the_work() {
    let folder = folder();
    let program = ["--", "echo", "started"];
    for option in ["--stats-json", "--stats-prometheus"] {
        let run = [&["run", option, "pipe"], &program[..]].concat();
        uringlet(folder.path(), &run).code(2).stdout("").stderr(contains("pipe"));
    }
    for option in ["--json", "--html", "--csv"] {
        for command in [&["bench", "--size", "1M"][..], &["reproduce", "lookup", "--quick"]] {
            let expected = format!("{option}: cannot make pipe: nobody reads this named pipe");
            let arguments = [command, &[option, "pipe"]].concat();
            uringlet(folder.path(), &arguments).code(2).stderr(contains(expected));
        }
    }
    for command in [&["doctor", "--json", "pipe"][..], &["top", "--once", "--json", "pipe"]] {
        let expected = contains("--json: cannot make pipe: nobody reads this named pipe");
        uringlet(folder.path(), command).code(2).stderr(expected);
    }
    std::fs::rename(folder.path().join("pipe"), folder.path().join("uringlet.1")).unwrap();
    let man = uringlet(folder.path(), &["man", "--out", "."]).code(2);
    man.stderr(contains("--out: cannot write into .: nobody reads this named pipe"));
}

/// Two outputs to `-` are refused, also if standard output is a file. The error names the second
/// output as the command line does.
#[test]
fn standard_output_is_named_as_it_was_given() {
    let folder = folder();
    let out = std::fs::File::create(folder.path().join("out")).unwrap();
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("uringlet"));
    let command = command.args(["bench", "--size", "1M", "--json", "-", "--csv", "-"]);
    let output = command.stdout(out).stderr(std::process::Stdio::piped()).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("--csv -: expected another file than --json"), "{error}");
}
