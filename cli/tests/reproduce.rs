//! `uringlet reproduce` on tiny files: the tables are complete, and nothing is left behind.

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;

/// Of one table: engine and pool.
const ROADS: [(&str, Option<u64>); 9] = [
    ("psync", None),
    ("posixaio", None),
    ("uringlet:posix_aio", Some(1)),
    ("uringlet:posix_aio", Some(16)),
    ("uringlet:posix_aio", Some(64)),
    ("libaio", None),
    ("io_uring", None),
    ("uringlet:workers", None),
    ("uringlet:auto", None),
];

fn fd_pool(folder: &Path) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("uringlet"));
    command.current_dir(folder).args(["reproduce", "fd-pool"]);
    command
}

fn tiny(folder: &Path) -> Command {
    let mut command = fd_pool(folder);
    command.args(["--quick", "--seconds", "0.02", "--size", "1M"]);
    command
}

#[test]
fn fd_pool_has_every_engine_in_every_table_beside_the_published_figures() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = tempfile::tempdir().unwrap();
    let json = output.path().join("result.json");
    tiny(folder.path()).arg("--json").arg(&json).assert().success().stdout(
        contains("one round: a look, not a measurement")
            .and(contains("Random writes of 16k, direct; ratio to libaio"))
            .and(contains(
                "Sequential writes of 16k, cached; ratio to uringlet:posix_aio, pool of 1",
            ))
            .and(contains("(baremetal)"))
            .and(contains("a pool of 64 / a pool of 1"))
            .and(contains("left open by the engines: 0")),
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);

    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(report["experiment"], "fd-pool");
    assert_eq!(report["interrupted"], false);
    assert_eq!(report["settings"]["depth"], 74);
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 4 * ROADS.len());
    for workload in ["randwrite", "write"] {
        for cache in ["off", "on"] {
            for (engine, pool) in ROADS {
                let cell = cells.iter().find(|cell| {
                    (cell["workload"] == workload && cell["cache"] == cache)
                        && (cell["engine"] == engine && cell["pool"].as_u64() == pool)
                });
                let what = format!("{workload}, {cache}, {engine}, {pool:?}");
                let cell = cell.unwrap_or_else(|| panic!("{what} is missing"));
                let measured = &cell["measured"];
                match cell["not_measured"].as_str() {
                    Some(reason) => assert!(!reason.is_empty() && measured.is_null(), "{what}"),
                    None => {
                        assert!(measured["mb_per_s"].as_f64() > Some(0.0), "{what}");
                        assert!(measured["complete_ms"].as_f64() > Some(0.0), "{what}");
                        assert_eq!(measured["submit_us"].is_null(), engine == "psync", "{what}");
                    }
                }
                let published = engine == "libaio" && cache == "off"
                    || engine == "uringlet:posix_aio" && (cache == "off" || pool == Some(1));
                assert_eq!(!cell["published"].is_null(), published, "{what}");
            }
        }
    }
    assert_eq!(report["published_only"].as_array().unwrap().len(), 4);
    assert_eq!(report["shown"].as_array().unwrap().len(), 6);
}

#[test]
fn without_a_disk_the_direct_tables_are_not_measured_and_say_why() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("SKIP: no /dev/shm to write to");
        return;
    };
    tiny(folder.path()).assert().success().stdout(
        contains("notice: tmpfs keeps files in memory")
            .and(contains("Random writes of 16k, direct: psync"))
            .and(contains(": tmpfs has no device to go to directly")),
    );
}

#[test]
fn an_existing_file_is_not_written_to_unless_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("precious");
    let content = vec![7u8; 2 << 20];
    std::fs::write(&file, &content).unwrap();
    fd_pool(folder.path())
        .args(["--quick", "--file", "precious"])
        .assert()
        .code(2)
        .stderr(contains("--file precious").and(contains("expected a folder")));
    assert!(std::fs::read(&file).unwrap() == content);
}

#[test]
fn ctrl_c_ends_it_in_order_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("uringlet"))
        .current_dir(folder.path())
        .args(["reproduce", "fd-pool", "--size", "1M", "--seconds", "600"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    while !lines.next().expect("the header is complete").unwrap().is_empty() {}
    let kill = format!("kill -INT {}", child.id());
    assert!(std::process::Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
