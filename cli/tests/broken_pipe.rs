//! The reader of a command's output is gone: the command ends without a message, with the status
//! that a shell expects.

use std::path::Path;
use std::process::{Command, Stdio};

const RESULT: &str = r#"{
    "machine": {}, "storage": {}, "settings": { "rounds": 1 },
    "cells": [{
        "workload": "cold-read", "block": 4096, "depth": 1, "engine": "psync",
        "figures": [{ "iops": 1.0, "cpu_us_per_request": 1.0 }],
        "latency": { "complete_us_p999": 1.0 }, "not_measured": null
    }]
}"#;
const JOB: &str = "[job]\nrw=randread\nbs=4k\nsize=64k\nioengine=psync\n";

/// A shell reports this status for a process that SIGPIPE has ended.
const BROKEN_PIPE: i32 = 128 + libc::SIGPIPE;

/// Pipes without a reader, for standard output, standard error or both.
fn streams() -> [(&'static str, [Stdio; 2]); 3] {
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    let both = closed();
    let again = both.try_clone().unwrap();
    [
        ("both", [both.into(), again.into()]),
        ("standard output", [closed().into(), Stdio::null()]),
        ("standard error", [Stdio::null(), closed().into()]),
    ]
}

/// Checks that the command ends without a message, with one of the exit statuses in `codes`.
fn assert_quiet(folder: &Path, arguments: &[&str], codes: &[i32]) {
    for (which, [out, error]) in streams() {
        let mut uringlet = Command::new(assert_cmd::cargo::cargo_bin!("uringlet"));
        uringlet.current_dir(folder).args(arguments).stdin(Stdio::null()).stdout(out).stderr(error);
        let status = uringlet.status().unwrap();
        let right = status.code().is_some_and(|code| codes.contains(&code));
        assert!(right, "{arguments:?}, nobody reads {which}: {status}");
    }
}

#[test]
fn every_command_ends_quietly() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(folder.path().join("result.json"), RESULT).unwrap();
    std::fs::write(folder.path().join("job.fio"), JOB).unwrap();
    std::fs::write(folder.path().join("data"), vec![0; 2 << 20]).unwrap();
    for arguments in [
        "bench --workloads cached-read --engines psync --seconds 0.01 --rounds 1 --size 1M",
        "bench job.fio --seconds 0.01 --rounds 1 --engines psync",
        "bench --workloads cached-read --engines psync --seconds 0.01 --rounds 1 --size 1M \
         --csv /dev/stdout --json /dev/stderr",
        "compare result.json result.json",
        "doctor",
        "doctor --json -",
        "reproduce lookup --quick --seconds 0.01 --contexts 1 --jobs 1 --loops 1",
        "reproduce all --quick --file data --forbid threads",
        "man",
        "man bench",
        "completions bash",
        "top --once",
        "top --batch 2 --interval 100ms --json -",
        "help",
        "--version",
        "bench --help",
    ] {
        let words: Vec<&str> = arguments.split(' ').collect();
        assert_quiet(folder.path(), &words, &[0, BROKEN_PIPE]);
    }
}

#[test]
fn what_is_refused_or_fails_keeps_its_status() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, code) in [
        ("", 2),
        ("bench --nosuch", 2),
        ("bench no-such.fio", 2),
        ("compare no-such no-such", 2),
        ("doctor no-such-folder", 2),
        ("reproduce batch --forbid threads", 2),
        ("man no-such-command", 2),
        ("top", 2),
        ("run -- no-such-program", 2),
        ("run --queue-affinity 7000 -- true", 2),
        ("run --stats-json /no-such-folder/x -- true", 2),
    ] {
        let words: Vec<&str> = arguments.split_whitespace().collect();
        assert_quiet(folder.path(), &words, &[code]);
    }
}

/// The program goes on without a reader: the status of the program is what counts.
#[test]
fn a_program_that_is_run_keeps_its_status_and_the_usual_signals() {
    let folder = tempfile::tempdir().unwrap();
    let ways: [&[&str]; 5] = [
        &[],
        &["--observe"],
        &["--stats"],
        &["--stats-interval", "100ms", "--stats"],
        &["--stats-json", "-"],
    ];
    for way in ways {
        let program = ["--", "sh", "-c", "exit 7"];
        assert_quiet(folder.path(), &[&["run"], way, &program].concat(), &[7]);
        let program = ["--", "true"];
        assert_quiet(folder.path(), &[&["run"], way, &program].concat(), &[0]);
        let mut uringlet = Command::new(assert_cmd::cargo::cargo_bin!("uringlet"));
        let program = ["--", "grep", "SigIgn", "/proc/self/status"];
        let output = uringlet.args([&["run"], way, &program].concat()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let ignored = text.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
        let ignored = u64::from_str_radix(ignored, 16).unwrap();
        assert_eq!(ignored & 1 << (libc::SIGPIPE - 1), 0, "{way:?}");
    }
}
