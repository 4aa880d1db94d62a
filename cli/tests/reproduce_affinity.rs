//! `uringlet reproduce affinity` on a tiny file: every placement of this machine is run and proved.

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;
use std::path::Path;

fn affinity(folder: &Path) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("uringlet"));
    command.current_dir(folder).args(["reproduce", "affinity", "--quick", "--seconds", "0.05"]);
    command
}

#[test]
fn each_distinct_placement_is_proved_by_its_counters() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = tempfile::tempdir().unwrap();
    let json = output.path().join("result.json");
    let run = affinity(folder.path()).args(["--size", "4M", "--json"]).arg(&json).output().unwrap();
    let errors = String::from_utf8_lossy(&run.stderr);
    if run.status.code() == Some(2) {
        println!("SKIPPED each_distinct_placement_is_proved_by_its_counters: {}", errors.trim());
        return;
    }
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{text}{errors}");
    let shown = contains("Placements: 18 published").and(contains("rq_affinity 2"));
    assert!(shown.and(contains("Adding 32 to a completion list")).eval(&text), "{text}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);

    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(report["experiment"], "affinity");
    assert_eq!(report["placements"].as_array().unwrap().len(), 18);
    assert_eq!(report["published_matrix"].as_array().unwrap().len(), 20);
    assert_eq!(report["distinct"], report["proved"]);
    let cells = report["cells"].as_array().unwrap();
    let placed: Vec<&Value> = cells.iter().filter(|cell| !cell["expected"].is_null()).collect();
    assert_eq!(placed.len() as u64, report["distinct"].as_u64().unwrap());
    for cell in cells {
        for run in cell["runs"].as_array().unwrap() {
            let count = |name: &str| run[name].as_u64().unwrap();
            let requests = count("requests");
            assert!(requests > 0, "{cell}");
            for pair in ["queue_local queue_remote", "completion_local completion_remote"] {
                let (local, remote) = pair.split_once(' ').unwrap();
                assert_eq!(count(local) + count(remote), requests, "{cell}");
            }
        }
    }
}

#[test]
fn what_it_cannot_be_run_on_is_refused() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    affinity(folder.path()).args(["--size", "1M"]).assert().code(2).stderr(contains("--size"));
    if Path::new("/dev/shm").is_dir() {
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let refused = affinity(memory.path()).args(["--size", "4M"]).assert().code(2);
        refused.stderr(contains("expected a disk"));
    }
}
