//! `uringlet compare`: it reports changes beyond the noise, and files that cannot be compared.

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::{Value, json};
use std::path::Path;

fn uringlet(folder: &Path, arguments: &[&str]) -> assert_cmd::assert::Assert {
    Command::new(assert_cmd::cargo::cargo_bin!("uringlet"))
        .current_dir(folder)
        .args(arguments)
        .assert()
}

fn cell(depth: u64, engine: &str, iops: [f64; 3], cpu_us: f64) -> Value {
    // Each figure is there twice, because three rounds are too few for a verdict.
    let [a, b, c] = iops;
    let figures = [a, b, c, a, b, c]
        .map(|iops| json!({ "iops": iops, "cpu_us_per_request": cpu_us + iops / 1000.0 }));
    json!({
        "workload": "cold-read", "block": 4096, "depth": depth, "engine": engine,
        "figures": figures, "latency": { "complete_us_p999": 10.0 }, "not_measured": null,
    })
}

fn result(kernel: &str, cells: &[Value]) -> String {
    let machine = json!({ "kernel": kernel, "load": cells.len() });
    json!({ "machine": machine, "storage": {}, "settings": { "rounds": 3 }, "cells": cells })
        .to_string()
}

fn write(folder: &Path) {
    let a = [
        cell(1, "psync", [10.0, 11.0, 12.0], 1.0),
        cell(1, "libaio", [10.0, 11.0, 12.0], 9.0),
        cell(8, "libaio", [20.0, 21.0, 22.0], 1.0),
        cell(9, "libaio", [20.0, 21.0, 22.0], 1.0),
    ];
    let b = [
        cell(1, "psync", [5.0, 6.0, 7.0], 1.0),
        cell(1, "libaio", [11.5, 13.0, 14.0], 1.0),
        cell(8, "libaio", [42.0, 41.0, 43.0], 1.0),
        cell(7, "libaio", [20.0, 21.0, 22.0], 1.0),
    ];
    std::fs::write(folder.join("a.json"), result("Linux 1", &a)).unwrap();
    std::fs::write(folder.join("b.json"), result("Linux 2", &b)).unwrap();
}

#[test]
fn cells_are_matched_and_only_what_is_beyond_noise_has_changed() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    uringlet(folder.path(), &["compare", "a.json", "b.json", "--json", "c.json"]).success().stdout(
        contains("notice: machine differs in kernel: A Linux 1, B Linux 2\n")
            .and(contains("load").not())
            .and(contains("slower"))
            .and(contains("faster"))
            .and(contains("cheaper"))
            .and(contains("1.00×  few rounds  unknown"))
            .and(contains("Only in A\n  cold-read, 4k, depth 9, libaio\n"))
            .and(contains("cells only in A: 1, only in B: 1")),
    );
    let report: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("c.json")).unwrap()).unwrap();
    let rates = json!({ "better": 2, "worse": 1, "level": 0, "unknown": 0 });
    assert_eq!(report["summary"][0], json!(["requests_per_second", rates]));
    assert_eq!(report["only_in_b"], json!(["cold-read, 4k, depth 7, libaio"]));

    uringlet(folder.path(), &["compare", "a.json", "b.json", "--changed"])
        .success()
        .stdout(contains("cold-read").and(contains("few rounds").not()));
}

#[test]
fn a_regression_is_an_exit_status_if_it_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let run = |a, b| uringlet(folder.path(), &["compare", a, b, "--fail-on-regression"]);
    run("a.json", "b.json").code(1);
    run("a.json", "a.json").success();
}

#[test]
fn what_cannot_be_compared_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let other = json!({
        "experiment": "lookup", "machine": {}, "settings": {},
        "lookups": [{ "contexts": 1, "ns": [1.0] }],
    });
    std::fs::write(folder.path().join("other.json"), other.to_string()).unwrap();
    std::fs::write(folder.path().join("bad.json"), "{\n  \"cells\": [1,}\n").unwrap();
    std::fs::write(folder.path().join("fio.json"), "{\"jobs\": []}").unwrap();
    let cases = [
        ("bad.json", "bad.json:2:15: expected JSON"),
        ("fio.json", "fio.json: expected what --json of uringlet bench or reproduce writes"),
        ("none.json", "none.json: No such file"),
        ("other.json", "other.json: expected a result of uringlet bench, as a.json is"),
    ];
    for (file, cause) in cases {
        uringlet(folder.path(), &["compare", "a.json", file]).code(2).stderr(contains(cause));
    }
}

#[test]
fn results_of_bench_and_of_reproduce_can_be_compared() {
    let folder = tempfile::tempdir().unwrap();
    let short = ["--seconds", "0.01", "--size", "1M", "--depth", "1", "--rounds", "2"];
    let bench = ["bench", "--workloads", "cached-read", "--engines", "psync,workers"];
    std::fs::write(folder.path().join("job.fio"), "[a]\nsize=64k\n").unwrap();
    let runs: [(Vec<&str>, &str); 3] = [
        ([&bench[..], &short].concat(), "cached-read, 4k, depth 1, one-in-a-call, psync"),
        (
            vec!["bench", "job.fio", "--rounds", "2", "--engines", "psync"],
            "a, read, 4k, depth 1, threads 1, psync",
        ),
        ([&["reproduce", "uringlet"], &short[..]].concat(), "depth 1, uringlet:workers"),
    ];
    for (run, cell) in runs {
        let run = [&run[..], &["--json", "r.json"]].concat();
        uringlet(folder.path(), &run).success();
        uringlet(folder.path(), &["compare", "r.json", "r.json", "--fail-on-regression"])
            .success()
            .stdout(contains(cell).and(contains("few rounds")).and(contains("1.00×")));
    }
}
