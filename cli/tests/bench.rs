//! `uringlet bench` on tiny files: complete results, honest reasons, and nothing left behind.

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

const ENGINES: [&str; 4] = ["psync", "libaio", "io_uring", "workers"];
const WORKLOADS: [&str; 5] =
    ["cached-read", "cold-read", "buffered-write", "direct-read", "direct-write"];

fn bench(folder: &Path) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("uringlet"));
    command.current_dir(folder).args(["bench", "--seconds", "0.05", "--rounds", "1"]);
    command
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn every_cell_has_figures_or_a_reason() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = tempfile::tempdir().unwrap();
    let json = output.path().join("result.json");
    bench(folder.path())
        .args(["--size", "1M", "--json"])
        .arg(&json)
        .assert()
        .success()
        .stdout(contains("Requests per second").and(contains("CPU time per request")));
    assert!(names(folder.path()).is_empty());

    let report = read_json(&json);
    assert_eq!(report["interrupted"], false);
    assert!(report["machine"]["kernel"].as_str().unwrap().starts_with("Linux"));
    assert_eq!(report["settings"]["file_size"], 1 << 20);
    let cells = report["cells"].as_array().unwrap();
    for workload in WORKLOADS {
        for engine in ENGINES {
            for depth in [1, 32] {
                if engine == "psync" && depth > 1 {
                    continue;
                }
                let cell = cells.iter().find(|cell| {
                    cell["workload"] == workload
                        && cell["engine"] == engine
                        && cell["depth"] == depth
                });
                let cell =
                    cell.unwrap_or_else(|| panic!("{workload}, {engine}, {depth} is missing"));
                let figures = cell["figures"].as_array().unwrap();
                match cell["not_measured"].as_str() {
                    Some(reason) => assert!(!reason.is_empty() && cell["iops_median"].is_null()),
                    None => {
                        assert!(figures.len() == 1 && figures[0]["requests"].as_u64() > Some(0))
                    }
                }
            }
        }
    }
    assert_eq!(report["lines"].as_array().unwrap().len(), WORKLOADS.len() * 2);
}

#[test]
fn tmpfs_is_named_and_has_neither_cold_nor_direct_cells() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("SKIP: no /dev/shm to write to");
        return;
    };
    bench(folder.path()).args(["--size", "1M", "--depth", "1"]).assert().success().stdout(
        contains("notice: tmpfs keeps files in memory")
            .and(contains("cold read: tmpfs has no cold state"))
            .and(contains("direct read; direct write: tmpfs has no device")),
    );
}

#[test]
fn an_existing_file_is_read_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("precious");
    let content: Vec<u8> = (0..2u32 << 20).map(|at| (at / 7) as u8).collect();
    std::fs::write(&file, &content).unwrap();
    bench(folder.path()).arg("--file").arg(&file).assert().success().stdout(
        contains("precious (existing)")
            .and(contains("buffered write; direct write: an existing file is not written to")),
    );
    assert!(std::fs::read(&file).unwrap() == content);

    let allowed = ["--allow-writes", "--workloads", "buffered-write", "--engines", "psync,workers"];
    bench(folder.path())
        .arg("--file")
        .arg(&file)
        .args(allowed)
        .assert()
        .success()
        .stdout(contains("Not measured").not());
    assert!(std::fs::read(&file).unwrap() != content);
    assert_eq!(file.metadata().unwrap().len(), content.len() as u64);
}

#[test]
fn a_chosen_part_measures_only_that() {
    let folder = tempfile::tempdir().unwrap();
    let chosen =
        ["--engines", "psync", "--workloads", "cached-read", "--depth", "1", "--bs", "512"];
    bench(folder.path())
        .args(chosen)
        .args(["--size", "1M", "--file", "named"])
        .assert()
        .success()
        .stdout(contains("cached read 512").and(contains("libaio").not()));
    assert!(names(folder.path()).is_empty());
}

#[test]
fn what_cannot_be_used_as_a_file_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        ("/dev/null", "expected a regular file"),
        ("missing/folder/file", "missing/folder"),
        ("small", "expected at least 1M"),
    ];
    std::fs::write(folder.path().join("small"), "x").unwrap();
    for (path, cause) in cases {
        bench(folder.path()).args(["--file", path]).assert().code(1).stderr(contains(cause));
    }
    bench(folder.path())
        .args(["--size", "1M", "--json", "no/such/folder.json"])
        .assert()
        .code(1)
        .stderr(contains("--json").and(contains("no/such/folder.json")));
    bench(folder.path()).args(["--size", "8192T"]).assert().code(1).stderr(contains("free space"));
}

/// A benchmark of several minutes that has just printed its header.
fn long_run(folder: &Path) -> Child {
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("uringlet"))
        .current_dir(folder)
        .args(["bench", "--size", "1M", "--seconds", "600", "--engines", "psync,workers"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    while !lines.next().expect("the header is complete").unwrap().is_empty() {}
    child
}

#[test]
fn ctrl_c_ends_it_in_order_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for signal in ["INT", "TERM"] {
        let child = long_run(folder.path());
        let kill = format!("kill -{signal} {}", child.id());
        assert!(std::process::Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted"));
        assert!(names(folder.path()).is_empty());
    }
}

#[test]
fn even_sigkill_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = long_run(folder.path());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(names(folder.path()).is_empty());
}
