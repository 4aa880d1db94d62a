//! The command line: help texts, and wrong input that is refused with field, value and expectation.

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;

fn uringlet(arguments: &[&str]) -> assert_cmd::assert::Assert {
    Command::new(assert_cmd::cargo::cargo_bin!("uringlet")).args(arguments).assert()
}

#[test]
fn every_command_has_help_with_examples() {
    uringlet(&["--help"]).success().stdout(
        contains("run").and(contains("bench")).and(contains("doctor")).and(contains("reproduce")),
    );
    for command in [
        &["run"][..],
        &["bench"],
        &["doctor"],
        &["reproduce"],
        &["reproduce", "lookup"],
        &["reproduce", "batch"],
        &["reproduce", "fd-pool"],
        &["reproduce", "affinity"],
        &["reproduce", "uringlet"],
    ] {
        for flag in ["-h", "--help"] {
            uringlet(&[command, &[flag]].concat())
                .success()
                .stdout(contains("Examples:").and(contains("Exit status")));
        }
    }
    uringlet(&["--version"]).success().stdout(contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn wrong_values_are_refused_with_field_value_and_expectation() {
    let cases = [
        ("--size", "4x", "a positive size"),
        ("--size", "-1", "a positive size"),
        ("--size", "64k", "at least 1M"),
        ("--bs", "0", "a positive size"),
        ("--bs", "17M", "at most 16M"),
        ("--depth", "0", "from 1 to 4096"),
        ("--depth", "x", "from 1 to 4096"),
        ("--seconds", "0", "from 0.001 to 3600"),
        ("--seconds", "NaN", "from 0.001 to 3600"),
        ("--rounds", "0", "1..=1000"),
        ("--engines", "uring", "uringlet:io_uring"),
        ("--engines", "uringlet:psync", "posixaio"),
        ("--workloads", "tape", "fsync-write"),
    ];
    for (field, value, expected) in cases {
        uringlet(&["bench", field, value])
            .code(2)
            .stderr(contains(field).and(contains(value)).and(contains(expected)));
    }
    uringlet(&["bench", "--bs", "2M", "--size", "1M"])
        .code(2)
        .stderr(contains("--bs 2M").and(contains("1M, the --size")));
    uringlet(&["bench", "--bs", "1M", "--depth", "4096"]).code(2).stderr(contains("at most 1G"));
    uringlet(&["bench", "--allow-writes"]).code(2).stderr(contains("--file"));
    let cases = [
        ("--size", "64k", "at least 1M"),
        ("--seconds", "0", "from 0.001 to 3600"),
        ("--rounds", "0", "1..=1000"),
    ];
    for (field, value, expected) in cases {
        for experiment in ["fd-pool", "batch", "uringlet"] {
            uringlet(&["reproduce", experiment, field, value])
                .code(2)
                .stderr(contains(field).and(contains(value)).and(contains(expected)));
        }
    }
    let cases = [
        ("lookup", "--contexts", "0", "from 1 to 32768"),
        ("lookup", "--contexts", "1,x", "from 1 to 32768"),
        ("lookup", "--jobs", "1025", "from 1 to 1024"),
        ("lookup", "--loops", "0", "1..=10000"),
        ("lookup", "--seconds", "NaN", "from 0.001 to 3600"),
        ("lookup", "--rounds", "-1", "1..=1000"),
        ("batch", "--threads", "65", "from 1 to 64"),
        ("uringlet", "--depth", "4097", "from 1 to 4096"),
        ("batch", "--threads", "", "from 1 to 64"),
    ];
    for (experiment, field, value, expected) in cases {
        let value_shown = value.rsplit(',').next().unwrap();
        uringlet(&["reproduce", experiment, field, value])
            .code(2)
            .stderr(contains(field).and(contains(value_shown)).and(contains(expected)));
    }
    uringlet(&["reproduce", "warp"]).code(2).stderr(contains("warp"));
    uringlet(&["run", "--engine", "warp", "--", "true"]).code(2).stderr(contains("workers"));
    uringlet(&["run"]).code(2).stderr(contains("PROGRAM"));
    for command in [&["run", "true"][..], &["bench"], &["doctor"]] {
        let cases = [
            ("--forbid", "warp", "possible values: io_uring, linux_aio"),
            ("--forbid-errno", "EWARP", "a number from 1 to 4095"),
            ("--forbid-errno", "-1", "a number from 1 to 4095"),
        ];
        for (field, value, expected) in cases {
            let arguments = [&command[..1], &[field, value], &command[1..]].concat();
            uringlet(&arguments)
                .code(2)
                .stderr(contains(field).and(contains(value)).and(contains(expected)));
        }
        let alone = [&command[..1], &["--forbid-errno", "EPERM"], &command[1..]].concat();
        uringlet(&alone).code(2).stderr(contains("--forbid <LIST>"));
    }
}
