//! `uringlet reproduce` on tiny files: the tables are complete, and nothing is left behind.

#[path = "../../cli/tests/skip/mod.rs"]
mod skip;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;

/// The rows of one table: engine and pool.
const WAYS: [(&str, Option<u64>); 9] = [
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

fn reproduce(experiment: &str, folder: &Path) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("uringlet-lab"));
    command.current_dir(folder).args([experiment]);
    command
}

fn fd_pool(folder: &Path) -> Command {
    reproduce("fd-pool", folder)
}

/// Matches a report with its folded lines joined.
fn unfolded(expected: impl Predicate<str>) -> impl Predicate<str> {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    predicate::function(move |text: &str| expected.eval(&words(text)))
}

/// Runs the experiment with `--json`, and returns the JSON; nothing else is left in the folder.
fn report(experiment: &str, folder: &Path, arguments: &[&str], text: impl Predicate<str>) -> Value {
    let output = tempfile::tempdir().unwrap();
    let json = output.path().join("result.json");
    let mut command = reproduce(experiment, folder);
    command.args(arguments).arg("--json").arg(&json).assert().success().stdout(unfolded(text));
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(
        (&report["experiment"], &report["interrupted"]),
        (&experiment.into(), &false.into())
    );
    report
}

/// The only cell with these values.
fn cell<'a>(cells: &'a Value, values: &[(&str, Value)]) -> &'a Value {
    let mut found = cells
        .as_array()
        .unwrap()
        .iter()
        .filter(|cell| values.iter().all(|(name, value)| cell[*name] == *value));
    let cell = found.next().unwrap_or_else(|| panic!("{values:?} is missing"));
    assert!(found.next().is_none(), "{values:?} is there twice");
    cell
}

/// Either positive figures, or a reason why there are none.
fn is_measured_or_says_why(cell: &Value, figures: &str, values: &[&str]) {
    let rounds = cell[figures].as_array().unwrap();
    match cell["not_measured"].as_str() {
        Some(reason) => assert!(!reason.is_empty() && rounds.is_empty(), "{cell}"),
        None => {
            assert_eq!(rounds.len(), 1, "{cell}");
            let positive = |value: &Value| value.as_f64() > Some(0.0);
            match values {
                [] => assert!(positive(&rounds[0]), "{cell}"),
                names => assert!(names.iter().all(|name| positive(&rounds[0][*name])), "{cell}"),
            }
        }
    }
}

const TINY: [&str; 5] = ["--quick", "--seconds", "0.02", "--size", "1M"];

#[test]
fn fd_pool_has_every_engine_in_every_table_beside_the_published_figures() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let report = report(
        "fd-pool",
        folder.path(),
        &TINY,
        contains("one round: a look, not a measurement")
            .and(contains("Random writes of 16k, direct; ratio to libaio"))
            .and(contains(
                "Sequential writes of 16k, cached; ratio to uringlet:posix_aio, pool of 1",
            ))
            .and(contains("(baremetal)"))
            .and(contains("a pool of 64 / a pool of 1"))
            .and(contains("left open by the engines: 0")),
    );
    assert_eq!(report["settings"]["depth"], 74);
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 4 * WAYS.len());
    for workload in ["randwrite", "write"] {
        for cache in ["off", "on"] {
            for (engine, pool) in WAYS {
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
        let name = "without_a_disk_the_direct_tables_are_not_measured_and_say_why";
        skip::skipped(name, "no /dev/shm to write to");
        return;
    };
    fd_pool(folder.path()).args(TINY).assert().success().stdout(unfolded(
        contains("notice: tmpfs keeps files in memory")
            .and(contains("Random writes of 16k, direct: psync"))
            .and(contains(": tmpfs has no device to go to directly")),
    ));
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
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("uringlet-lab"))
        .current_dir(folder.path())
        .args(["fd-pool", "--size", "1M", "--seconds", "600"])
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

#[test]
fn lookup_has_every_structure_and_road_beside_the_published_figures() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let text = contains("one round: a look, not a measurement")
        .and(contains("A lookup alone, by 1 thread: ns"))
        .and(contains("The whole job: 1 KiB at random in 256 KiB"))
        .and(contains("a lookup among 300 / 1, table"))
        .and(contains("a lookup among 1, table / list"))
        .and(contains("job of 1: radix / list"));
    let arguments = ["--quick", "--seconds", "0.002", "--contexts", "300,1,8", "--jobs", "1,9"];
    let report = report("lookup", folder.path(), &arguments, text);
    assert_eq!(report["settings"]["contexts"], serde_json::json!([1, 8, 300]));
    let threads = report["settings"]["threads"].as_array().unwrap();
    assert!(threads.len() == 2 && threads[0] == 1 && threads[1].as_u64() > Some(1));
    assert_eq!(report["lookups"].as_array().unwrap().len(), 2 * 3 * 3);
    for threads in threads {
        for contexts in [1, 8, 300] {
            for structure in ["list", "radix", "table"] {
                let key = [
                    ("threads", threads.clone()),
                    ("contexts", contexts.into()),
                    ("structure", structure.into()),
                ];
                is_measured_or_says_why(cell(&report["lookups"], &key), "ns", &[]);
            }
        }
    }
    assert_eq!(report["jobs"].as_array().unwrap().len(), 2 * 5);
    for jobs in [1u64, 9] {
        let ways = ["psync", "libaio", "uringlet, list", "uringlet, radix", "uringlet, table"];
        for way in ways {
            let cell = cell(&report["jobs"], &[("jobs", jobs.into()), ("road", way.into())]);
            is_measured_or_says_why(cell, "figures", &["elapsed_ms"]);
            assert!(cell["requests"].as_u64().unwrap() * jobs >= 512 * 256, "{cell}");
            assert!(way == "libaio" || cell["not_measured"].is_null(), "{cell}");
        }
    }
    assert_eq!(report["published"].as_array().unwrap().len(), 14);
    let shown = report["shown"].as_array().unwrap();
    let published: Vec<_> = shown.iter().filter(|line| !line["published"].is_null()).collect();
    assert_eq!(published.len(), 1, "radix / list of one context: {published:?}");
}

#[test]
fn batch_has_both_sizes_for_all_threads_and_never_more_than_the_room() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let text = contains("one round: a look, not a measurement")
        .and(contains("The submit path alone, 32 requests per submit to one context"))
        .and(contains("The published job: 8 KiB, direct, sequential"))
        .and(contains("path alone, 2 threads: steps per request, 1 / 32"))
        .and(contains("1000 requests, room for 128, batch 32: submits took over [128, "));
    let arguments = ["--quick", "--seconds", "0.01", "--size", "1M", "--threads", "1,2,5"];
    let report = report("batch", folder.path(), &arguments, text);
    let (paths, jobs) = (&report["paths"], &report["jobs"]);
    assert_eq!(paths.as_array().unwrap().len(), 3 * 2);
    assert_eq!(jobs.as_array().unwrap().len(), 3 * 2 * 3);
    let figures = ["requests", "steps_per_request", "hand_overs_per_request", "seconds"];
    for threads in [1, 2, 5] {
        for batch in [1, 32] {
            let key = [("threads", threads.into()), ("batch", batch.into())];
            let cell_of_path = cell(paths, &key);
            is_measured_or_says_why(cell_of_path, "figures", &figures);
            // At least one step for each batch.
            let steps = cell_of_path["figures"][0]["steps_per_request"].as_f64().unwrap();
            assert!(steps >= 1.0 / f64::from(batch), "{cell_of_path}");
            for phase in ["write", "read", "rewrite"] {
                let [threads, batch] = key.clone();
                let job = cell(jobs, &[("phase", phase.into()), threads, batch]);
                is_measured_or_says_why(job, "figures", &figures);
                let requests = job["figures"][0]["requests"].as_u64();
                assert!(requests.is_none_or(|requests| requests == (1 << 20) / 8192), "{job}");
            }
        }
    }
    for submit in report["too_many"].as_array().unwrap() {
        let accepted = serde_json::json!([128, 128, 128, 128, 128, 128, 128, 104]);
        assert_eq!(submit["accepted"], accepted, "{submit}");
    }
    assert_eq!(report["published_points"], 0.56);
}

#[test]
fn batch_writes_to_an_existing_file_only_if_allowed() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let content = vec![7u8; 1 << 20];
    std::fs::write(folder.path().join("precious"), &content).unwrap();
    let run = |arguments: &[&str]| {
        let quick = ["--quick", "--seconds", "0.001", "--threads", "1", "--file", "precious"];
        reproduce("batch", folder.path()).args(quick).args(arguments).assert()
    };
    run(&[]).code(2).stderr(contains("--file precious").and(contains("--allow-writes")));
    assert!(std::fs::read(folder.path().join("precious")).unwrap() == content);
    run(&["--allow-writes"]).success();
    assert_eq!(std::fs::metadata(folder.path().join("precious")).unwrap().len(), 1 << 20);
}

#[test]
fn a_folder_that_is_none_is_named() {
    let folder = tempfile::tempdir().unwrap();
    reproduce("lookup", folder.path())
        .args(["--quick", "--folder", "nowhere"])
        .assert()
        .code(2)
        .stderr(contains("--folder: cannot make 512 files of 256 KiB in nowhere"));
}

#[test]
fn uringlet_has_every_road_at_every_depth_beside_the_published_figures() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let text = contains("one round: a look, not a measurement")
        .and(contains("Random writes of 1k in 10 MiB, cached"))
        .and(contains("depth 1, uringlet:workers / io_uring"));
    let arguments = ["--quick", "--seconds", "0.01", "--size", "1M", "--depth", "3,1"];
    let report = report("uringlet", folder.path(), &arguments, text);
    assert_eq!(report["settings"]["depths"], serde_json::json!([1, 3]));
    assert_eq!(report["cells"].as_array().unwrap().len(), 2 * 4);
    for depth in [1, 3] {
        for engine in ["io_uring", "io_uring, async", "uringlet:workers", "uringlet:auto"] {
            let key = [("depth", depth.into()), ("engine", engine.into())];
            let cell = cell(&report["cells"], &key);
            is_measured_or_says_why(cell, "rates", &["iops"]);
            is_measured_or_says_why(cell, "timed", &["iops"]);
            let ours = engine.starts_with("uringlet");
            assert!(!ours || cell["not_measured"].is_null(), "{cell}");
            if cell["not_measured"].is_null() {
                let latency = |name: &str| cell["measured"][name].as_f64().unwrap();
                let (least, most) = (latency("lat_min_us"), latency("lat_max_us"));
                assert!((least..=most).contains(&latency("lat_mean_us")), "{cell}");
            }
            let published = depth == 1 && ["io_uring", "uringlet:workers"].contains(&engine);
            assert_eq!(!cell["published"].is_null(), published, "{cell}");
        }
    }
    assert_eq!(report["published"].as_array().unwrap().len(), 12);
    assert_eq!(report["shown"].as_array().unwrap().len(), 2 * 2);
}
