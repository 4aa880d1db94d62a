//! `uringlet bench` on tiny files: its results are complete, its reasons are true, and it leaves
//! nothing behind.

mod skip;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

const DEFAULT: [&str; 5] = ["psync", "libaio", "io_uring", "posixaio", "uringlet:auto"];
const ALL: [&str; 9] = [
    "psync",
    "libaio",
    "io_uring",
    "posixaio",
    "uringlet:auto",
    "uringlet:workers",
    "uringlet:io_uring",
    "uringlet:linux_aio",
    "uringlet:posix_aio",
];
const WORKLOADS: [&str; 8] = [
    "buffered-write",
    "cached-read",
    "cold-read",
    "large-cached-read",
    "direct-read",
    "direct-write",
    "sequential-direct-write",
    "fsync-write",
];
/// Workloads that are run in an event loop, too.
const LOOPED: [&str; 4] = ["cached-read", "buffered-write", "direct-read", "direct-write"];

fn bench(folder: &Path) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("uringlet"));
    command.current_dir(folder).args(["bench", "--seconds", "0.02", "--rounds", "1"]);
    command
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Checks that a cell has plausible figures, or a reason why it has none.
fn assert_complete(cell: &Value) {
    let figures = cell["figures"].as_array().unwrap();
    if let Some(reason) = cell["not_measured"].as_str() {
        assert!(!reason.is_empty() && cell["iops_median"].is_null(), "{cell}");
        return;
    }
    assert!(figures.len() == 1 && figures[0]["requests"].as_u64() > Some(0), "{cell}");
    assert!(cell["iops_median"].as_f64() > Some(0.0), "{cell}");
    assert!(cell["cpu_us_per_request_median"].as_f64() >= Some(0.0), "{cell}");
    let latency = &cell["latency"];
    assert!(latency["complete_us_mean"].as_f64() > Some(0.0), "{cell}");
    let submit = &latency["submit"];
    if cell["engine"] == "psync" {
        assert!(submit.is_null(), "{cell}");
        return;
    }
    assert!(submit["us_per_request_mean"].as_f64() > Some(0.0), "{cell}");
    assert!(submit["us_per_call_p999"].as_f64() > Some(0.0), "{cell}");
    assert!(submit["requests_per_call"].as_f64() >= Some(1.0), "{cell}");
}

#[test]
fn every_cell_has_figures_or_a_reason() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = tempfile::tempdir().unwrap();
    let json = output.path().join("result.json");
    bench(folder.path()).args(["--size", "1M", "--json"]).arg(&json).assert().success().stdout(
        contains("Requests per second")
            .and(contains("CPU time per request"))
            .and(contains("Submit by the caller's clock"))
            .and(contains("uringlet:auto against the best native engine"))
            .and(contains("Of 32 cells, uringlet:auto is ").or(contains("Of 16 cells, ")))
            .and(contains("\nNext: ")),
    );
    assert!(names(folder.path()).is_empty());

    let report = read_json(&json);
    assert_eq!(report["interrupted"], false);
    assert!(report["machine"]["kernel"].as_str().unwrap().starts_with("Linux"));
    assert_eq!(report["settings"]["file_size"], 1 << 20);
    let cells = report["cells"].as_array().unwrap();
    let usual = [(1, "one-in-a-call"), (32, "all-in-a-call"), (32, "one-in-a-call")];
    for workload in WORKLOADS {
        let is_looped = LOOPED.contains(&workload);
        let looped = [1, 32].map(|depth| (depth, "event-loop"));
        let looped = looped.into_iter().filter(|_| is_looped);
        for (depth, submit) in usual.into_iter().chain(looped) {
            for engine in DEFAULT {
                let cell = cells.iter().find(|cell| {
                    cell["workload"] == workload
                        && cell["engine"] == engine
                        && cell["depth"] == depth
                        && cell["submit"] == submit
                });
                match cell {
                    Some(cell) => assert_complete(cell),
                    // These engines do not count up an eventfd.
                    None => assert!(
                        submit == "event-loop" && ["psync", "posixaio"].contains(&engine),
                        "{workload}, {engine}, {depth}, {submit} is missing"
                    ),
                }
            }
        }
    }
    let lines = report["lines"].as_array().unwrap();
    assert_eq!(lines.len(), WORKLOADS.len() * usual.len() + 2 * LOOPED.len());
    let compared: Vec<_> = lines.iter().map(|line| &line["comparison"]).collect();
    let ratios = compared.iter().filter(|found| found["ratio"].as_f64() > Some(0.0)).count();
    let summary = &report["summary"];
    assert_eq!(summary["engine"], "uringlet:auto");
    let classes = ["better", "level", "worse", "unknown"];
    for what in ["rates", "cpu"] {
        let count = classes.map(|class| summary[what][class].as_u64().unwrap());
        assert_eq!(count.iter().sum::<u64>(), ratios as u64, "{summary}");
    }
    // After one round, nothing may be called faster or slower.
    assert!(compared.iter().all(|found| found.is_null() || found["class"] == "unknown"));
    assert_eq!(summary["sentences"].as_array().unwrap().len(), 2);
}

#[test]
fn rounds_go_on_until_the_budget_is_used_and_the_order_can_be_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("result.json");
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("uringlet"));
    command.current_dir(folder.path()).args(["bench", "--size", "1M", "--seconds", "5ms"]);
    command.args(["--budget", "2s", "--seed", "7", "--workloads", "cached-read,buffered-write"]);
    command.args(["--depth", "1", "--engines", "psync,psync-again", "--json"]).arg(&json);
    command.assert().success().stdout(contains("takes    at most 2 s"));
    let report = read_json(&json);
    assert_eq!(
        (&report["settings"]["seed"], &report["settings"]["rounds"]),
        (&7.into(), &Value::Null)
    );
    for line in report["lines"].as_array().unwrap() {
        let found = &line["comparison"];
        assert_eq!(
            (&found["engine"], &found["best_native"]),
            (&"psync-again".into(), &"psync".into())
        );
        assert!(found["rounds"].as_u64() >= Some(1), "{line}");
        let [low, high] = ["low", "high"].map(|name| found[name].as_f64());
        assert!(low <= found["ratio"].as_f64() && found["ratio"].as_f64() <= high.or(Some(1e9)));
    }
}

#[test]
fn a_budget_that_is_too_short_is_refused_and_the_shortest_one_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("uringlet"));
    command.current_dir(folder.path()).args(["bench", "--size", "1M", "--budget", "1ms"]);
    let refused = command.args(["--workloads", "cached-read", "--engines", "psync"]).assert();
    let expected = contains("--budget 0.001: expected at least 1s, for one round of each cell");
    refused.code(2).stdout("").stderr(expected);
}

#[test]
fn where_nothing_can_be_measured_the_exit_status_says_so() {
    let folder = tempfile::tempdir().unwrap();
    bench(folder.path())
        .args(["--size", "1M", "--forbid", "io_uring", "--engines", "io_uring,uringlet:io_uring"])
        .args(["--workloads", "cached-read"])
        .assert()
        .code(2)
        .stdout(contains("Not measured"))
        .stderr(contains("nothing was measured: all of it was refused"));
}

#[test]
fn every_engine_can_be_chosen_and_none_is_mistaken_for_another() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("result.json");
    for workload in ["fsync-write", "large-cached-read"] {
        bench(folder.path())
            .args(["--size", "1M", "--depth", "8", "--workloads", workload])
            .args(["--submit", "all-in-a-call"])
            .args(["--engines", &ALL.join(","), "--json"])
            .arg(&json)
            .assert()
            .success();
        let report = read_json(&json);
        let cells = report["cells"].as_array().unwrap();
        let engines: Vec<_> = cells.iter().map(|cell| cell["engine"].as_str().unwrap()).collect();
        assert_eq!(engines, ALL);
        cells.iter().for_each(assert_complete);
        // These engines need nothing that a sandbox may refuse.
        for engine in ["psync", "posixaio", "uringlet:auto", "uringlet:workers"] {
            let cell = cells.iter().find(|cell| cell["engine"] == engine).unwrap();
            assert!(cell["not_measured"].is_null(), "{cell}");
        }
    }
}

#[test]
fn what_a_sandbox_refuses_is_not_measured_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("result.json");
    bench(folder.path())
        .args(["--size", "1M", "--depth", "1", "--workloads", "cached-read,buffered-write"])
        .args(["--engines", &ALL.join(","), "--forbid", "io_uring,linux_aio", "--json"])
        .arg(&json)
        .assert()
        .success()
        .stdout(contains("Not measured").and(contains("uringlet:auto has chosen")));
    for cell in read_json(&json)["cells"].as_array().unwrap() {
        assert_complete(cell);
        let refused =
            ["libaio", "io_uring", "uringlet:io_uring", "uringlet:linux_aio"].map(Value::from);
        assert_eq!(cell["not_measured"].is_string(), refused.contains(&cell["engine"]), "{cell}");
    }
}

#[test]
fn buffers_that_would_fill_the_memory_are_not_made() {
    let folder = tempfile::tempdir().unwrap();
    bench(folder.path())
        .args(["--size", "1M", "--depth", "1025", "--engines", "psync,uringlet:workers"])
        .args(["--workloads", "large-cached-read"])
        .assert()
        .success()
        .stdout(contains("uringlet:workers: expected at most 1G in flight"));
}

#[test]
fn full_says_how_long_it_takes_and_gives_way_to_what_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("result.json");
    let output = bench(folder.path())
        .args(["--full", "--size", "1M", "--workloads", "cached-read", "--json"])
        .arg(&json)
        .output()
        .unwrap();
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout);
    let time = text.lines().find_map(|line| line.trim_start().strip_prefix("takes "));
    assert!(time.is_some_and(|time| time.contains(|byte: char| byte.is_ascii_digit())), "{text}");
    let settings = &read_json(&json)["settings"];
    assert_eq!(settings["depths"], serde_json::json!([1, 8, 32, 74]));
    assert_eq!(settings["engines"], serde_json::json!(ALL));
    assert_eq!(settings["seconds"], 0.02);
}

#[test]
fn tmpfs_is_named_and_has_neither_cold_nor_direct_cells() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        let name = "tmpfs_is_named_and_has_neither_cold_nor_direct_cells";
        skip::skipped(name, "no /dev/shm to write to");
        return;
    };
    bench(folder.path()).args(["--size", "1M", "--depth", "1"]).assert().success().stdout(
        contains("notice: tmpfs keeps files in memory")
            .and(contains("cold read: tmpfs has no cold state"))
            .and(contains("direct read; direct write; seq. direct write: tmpfs has no device")),
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
            .and(contains("buffered write; direct write; seq. direct write; write with fsync: "))
            .and(contains(": an existing file is not")),
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
        bench(folder.path()).args(["--file", path]).assert().code(2).stderr(contains(cause));
    }
    bench(folder.path())
        .args(["--size", "1M", "--json", "no/such/folder.json"])
        .assert()
        .code(2)
        .stderr(contains("--json").and(contains("no/such/folder.json")));
    bench(folder.path()).args(["--size", "8192T"]).assert().code(2).stderr(contains("free space"));
}

#[test]
fn an_output_that_does_not_fit_leaves_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("data"), vec![7u8; 1 << 20]).unwrap();
    std::fs::write(path("old"), "precious").unwrap();
    // A limit on the size of files replaces a full disk, which would need root. The limit leaves
    // room for the CSV file, but not for the whole of the JSON and HTML files.
    let script = "trap '' XFSZ; ulimit -f 4; exec \"$@\"";
    let program = assert_cmd::cargo::cargo_bin!("uringlet");
    Command::new("sh")
        .current_dir(folder.path())
        .args(["-c", script, "sh"])
        .arg(program)
        .args(["bench", "--seconds", "0.02", "--rounds", "1", "--depth", "1", "--file", "data"])
        .args(["--engines", "psync", "--workloads", "cached-read"])
        .args(["--json", "new", "--html", "old", "--csv", "small"])
        .assert()
        .code(1)
        .stderr(contains("--json: cannot write new: File too large"));
    assert!(!path("new").exists());
    assert_eq!(std::fs::read(path("old")).unwrap(), b"precious");
    assert!(path("small").metadata().unwrap().len() > 0);
}

#[test]
fn standard_output_can_be_an_output_too() {
    let folder = tempfile::tempdir().unwrap();
    let run = |stdout: Stdio| {
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("uringlet"));
        let command = command.current_dir(folder.path()).stdout(stdout);
        let arguments = ["bench", "--seconds", "0.02", "--rounds", "1", "--size", "1M"];
        let chosen = ["--depth", "1", "--engines", "psync", "--workloads", "cached-read"];
        let output = ["--json", "/dev/stdout", "--csv", "/dev/null"];
        let output = command.args(arguments).args(chosen).args(output).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let is_complete = |text: &str| {
        let at = text.find("\n{\n").unwrap_or_else(|| panic!("no JSON in {text}"));
        assert!(text[..at].contains("Requests per second"), "{text}");
        serde_json::from_str::<Value>(&text[at..]).unwrap();
    };
    is_complete(&run(Stdio::piped()));
    let file = folder.path().join("redirected");
    run(std::fs::File::create(&file).unwrap().into());
    is_complete(&std::fs::read_to_string(&file).unwrap());
    let arguments = ["--size", "1M", "--depth", "1", "--engines", "psync", "--json", "-"];
    let only = bench(folder.path()).args(arguments).args(["--workloads", "cached-read"]).output();
    let only: Value = serde_json::from_slice(&only.unwrap().stdout).unwrap();
    assert!(only["cells"].is_array(), "{only}");
}

/// Starts a benchmark of several minutes, and returns when it has printed its header.
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
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let child = long_run(folder.path());
        let kill = format!("kill -{signal} {}", child.id());
        assert!(std::process::Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
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

/// Adds the paths of all keys to `into`, except for those below `job options` and `uringlet`.
fn keys(value: &Value, path: &str, into: &mut BTreeSet<String>) {
    for (name, value) in value.as_object().into_iter().flatten() {
        let path = format!("{path}/{name}");
        if name != "job options" && name != "uringlet" {
            keys(value, &path, into);
        }
        into.insert(path);
    }
}

#[test]
fn the_json_has_what_fio_has() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let fio = std::process::Command::new("fio")
        .current_dir(folder.path())
        .args(["--output-format=json", "--name=a", "--size=512k", "--ioengine=libaio", "--thread"])
        .output();
    let theirs: Value = match fio {
        Ok(found) => serde_json::from_slice(&found.stdout).unwrap(),
        Err(error) => {
            return skip::skipped("the_json_has_what_fio_has", format_args!("fio: {error}"));
        }
    };
    let workloads = "cached-read,buffered-write";
    let ours = ["--workloads", workloads, "--engines", "workers", "--depth", "4", "--size", "1M"];
    Command::new(assert_cmd::cargo::cargo_bin!("uringlet"))
        .current_dir(folder.path())
        .args(["bench", "--rounds", "2", "--seconds", "0.01", "--json", "ours.json"])
        .args(ours)
        .assert()
        .success();
    let ours = std::fs::read(folder.path().join("ours.json")).unwrap();
    let ours: Value = serde_json::from_slice(&ours).unwrap();
    let of = |entry: &Value| {
        let mut found = BTreeSet::new();
        keys(entry, "", &mut found);
        found
    };
    let theirs = of(&theirs["jobs"][0]);
    let entries = ours["jobs"].as_array().unwrap();
    // Each workload has three entries: all requests in one call, one in each call, an event loop.
    assert_eq!(entries.len(), 6);
    for (at, entry) in entries.iter().enumerate() {
        let (name, other) = if at < 3 { ("read", "write") } else { ("write", "read") };
        let mut all = of(entry);
        assert!(all.remove("/uringlet"));
        // fio has percentiles only for a direction with requests, and fio's job has only read.
        all.retain(|key| !key.contains("/percentile"));
        assert!(all.is_subset(&theirs), "{:?}", all.difference(&theirs).collect::<Vec<_>>());
        let missing = |key: &&String| {
            let few = ["/ctx", "/majf", "/minf"].contains(&key.as_str());
            !few && !key.contains("/iodepth_") && !key.contains("/percentile")
        };
        let missing: Vec<_> = theirs.difference(&all).filter(missing).collect();
        assert!(missing.is_empty(), "{missing:?}");
        let side = &entry[name];
        let ios = side["total_ios"].as_u64().unwrap();
        assert!(ios > 0 && entry[other]["total_ios"] == 0, "{entry}");
        let block = side["io_bytes"].as_u64().unwrap() / ios;
        assert_eq!(side["io_bytes"].as_u64(), Some(ios * block));
        assert!(side["clat_ns"]["N"].as_u64() > Some(0), "{entry}");
        assert!(side["lat_ns"]["mean"].as_f64() >= side["clat_ns"]["mean"].as_f64(), "{entry}");
        let at = |percentile: &str| side["clat_ns"]["percentile"][percentile].as_u64().unwrap();
        assert!(at("1.000000") <= at("50.000000") && at("50.000000") <= at("99.990000"));
        let shares = ["latency_ns", "latency_us", "latency_ms"].map(|unit| &entry[unit]);
        let shares = shares.iter().flat_map(|unit| unit.as_object().unwrap().values());
        assert!((shares.filter_map(Value::as_f64).sum::<f64>() - 100.0).abs() < 1e-6, "{entry}");
    }
}
