//! `--html` and `--csv`: a browser checks the pages at every size and in every colour scheme.

mod browser;
mod skip;

use assert_cmd::Command;
use browser::{Browser, View};
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Output, Stdio};

const ENGINES: [&str; 9] = [
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
const EXPERIMENTS: [&str; 5] = ["lookup", "batch", "fd-pool", "affinity", "uringlet"];

fn uringlet(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("uringlet"));
    command.current_dir(folder).args(arguments);
    command
}

/// The lines of a CSV file, as names and values.
fn records(path: &Path) -> Vec<Vec<(String, String)>> {
    let mut file = csv::Reader::from_path(path).unwrap();
    let heads = file.headers().unwrap().clone();
    let lines = file.records().map(|line| {
        let line = line.unwrap();
        heads.iter().map(str::to_owned).zip(line.iter().map(str::to_owned)).collect()
    });
    lines.collect()
}

fn value<'a>(record: &'a [(String, String)], column: &str) -> &'a str {
    record.iter().find(|(name, _)| name == column).map_or("", |(_, value)| value)
}

/// Has the command measured? On a busy machine, an experiment may fail to prove that requests ran
/// on the wanted CPUs. Its table says NO then, and the status is 1. This result counts as measured,
/// too.
fn has_measured(run: &Output) -> bool {
    let text = String::from_utf8_lossy(&run.stdout);
    let is_not_proved = || text.split_whitespace().any(|word| word == "NO");
    run.status.success() || run.status.code() == Some(1) && is_not_proved()
}

/// Checks a page at every size and in every colour scheme, and returns the titles of its plots.
/// `None` without a browser.
fn plots(page: &Path, test: &str) -> Option<Vec<String>> {
    let Some(mut browser) = Browser::start() else {
        skip::skipped(&format!("{test}, in a browser"), "chromium is missing (ci/setup.sh)");
        return None;
    };
    let mut backgrounds = Vec::new();
    let mut plots = Vec::new();
    for (width, scheme, medium) in [
        (1280, "light", "screen"),
        (1280, "dark", "screen"),
        (400, "light", "screen"),
        (400, "dark", "screen"),
        (718, "dark", "print"),
    ] {
        let view = View { width, scheme, medium };
        let seen = browser.look(page, view);
        assert!(seen.problems.is_empty(), "{view:?}: {:#?}", seen.problems);
        let own = format!("file://{}", page.display());
        assert_eq!(seen.requests, [own], "{view:?}");
        if medium == "screen" {
            backgrounds.push((scheme, seen.background));
        } else {
            assert_eq!(seen.background, "rgb(255, 255, 255)", "paper is white");
        }
        plots = seen.plots;
    }
    let (light, dark): (Vec<_>, Vec<_>) =
        backgrounds.iter().partition(|(scheme, _)| *scheme == "light");
    assert!(light[0].1 == light[1].1 && dark[0].1 == dark[1].1 && light[0].1 != dark[0].1);
    Some(plots)
}

fn assert_has(plots: &[String], title: &str) {
    assert!(plots.iter().any(|plot| plot == title), "{title} is missing in {plots:#?}");
}

/// The page as a busy machine would give it: both latencies of each pair `A / B` in a table have
/// five digits.
fn with_wide_figures(page: &str) -> String {
    let is_figure = |text: &str| text.parse::<f64>().is_ok();
    let mut found = 0;
    let mut wide = |cell: &str| {
        let (text, rest) = cell.split_once("</td>")?;
        let (from, to) = text.split_once(" / ")?;
        found += usize::from(is_figure(from) && is_figure(to));
        (is_figure(from) && is_figure(to)).then(|| format!("12345 / 67890</td>{rest}"))
    };
    const CELL: &str = "<td class=\"right\">";
    let cells = page.split(CELL).map(|cell| wide(cell).unwrap_or_else(|| cell.to_owned()));
    let page = cells.collect::<Vec<_>>().join(CELL);
    assert!(found > 0, "no pair of latencies");
    page
}

#[test]
fn a_page_of_bench_has_every_plot() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // The name of a file must not become markup.
    let output = tempfile::Builder::new().prefix("<b>&\"'").tempdir().unwrap();
    let (html, csv) = (output.path().join("report.html"), output.path().join("rounds.csv"));
    let file = output.path().join("data <i>");
    let quick = ["bench", "--size", "1M", "--seconds", "0.01", "--rounds", "2", "--depth", "1,74"];
    let command = &mut uringlet(folder.path(), &quick);
    let command = command.args(["--workloads", "buffered-write,direct-read"]);
    // With all engines, the tables have the largest possible number of columns.
    let command = command.args(["--engines", &ENGINES.join(",")]);
    let command = command.arg("--html").arg(&html).arg("--csv").arg(&csv).arg("--file").arg(&file);
    command.assert().success();

    let lines = records(&csv);
    // Each cell has at least one line.
    assert!(lines.len() >= 2 * 2 * ENGINES.len(), "{}", lines.len());
    for line in &lines {
        let measured = value(line, "round") == "latencies" || !value(line, "iops").is_empty();
        assert_ne!(measured, !value(line, "not_measured").is_empty(), "{line:?}");
    }
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.contains("&lt;b&gt;&amp;") && !page.contains("<b>"));

    // This name needs no escaping in an address.
    let plain = folder.path().join("report.html");
    std::fs::write(&plain, with_wide_figures(&page)).unwrap();
    let Some(plots) = plots(&plain, "a_page_of_bench_has_every_plot") else { return };
    assert_has(&plots, "uringlet:auto against the best native engine");
    let measured = |workload: &str| {
        lines
            .iter()
            .any(|line| value(line, "workload") == workload && !value(line, "iops").is_empty())
    };
    for (workload, label) in
        [("buffered-write", "buffered write 1k"), ("direct-read", "direct read 16k")]
    {
        if measured(workload) {
            // The rate and the CPU time each have a plot; completion and submit latency have one at
            // each depth.
            assert_eq!(plots.iter().filter(|plot| *plot == label).count(), 2, "{plots:#?}");
            for depth in
                ["1 in flight", "74 in flight, all in a call", "74 in flight, one in a call"]
            {
                let title = format!("{label}, {depth}");
                let count = plots.iter().filter(|plot| **plot == title).count();
                assert_eq!(count, 2, "{title}: {plots:#?}");
            }
        }
    }
}

#[test]
fn all_experiments_are_run_and_summed_up() {
    // A file in memory makes the runs short. Experiments that need a disk are refused on it, so the
    // test sees refused experiments, too.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let output = tempfile::tempdir().unwrap();
    let path = |name: &str| output.path().join(name);
    let (json, html, csv) = (path("all.json"), path("all.html"), path("all.csv"));
    let mut command = uringlet(folder.path(), &["reproduce", "all", "--quick", "--size", "4M"]);
    command.arg("--json").arg(&json).arg("--html").arg(&html).arg("--csv").arg(&csv);
    let run = command.output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(has_measured(&run), "{text}{}", String::from_utf8_lossy(&run.stderr));
    assert!(contains("All experiments").and(contains("Of 5 experiments: ")).eval(&text), "{text}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);

    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let runs = report["experiments"].as_array().unwrap();
    let names: Vec<_> = runs.iter().map(|run| run["name"].as_str().unwrap()).collect();
    assert_eq!(names, EXPERIMENTS);
    for run in runs {
        match run["outcome"].as_str().unwrap() {
            "measured" => assert_eq!(run["report"]["experiment"], run["name"]),
            _ => assert!(!run["reason"].as_str().unwrap().is_empty(), "{run}"),
        }
    }
    let lines = records(&csv);
    for name in EXPERIMENTS {
        assert!(lines.iter().any(|line| value(line, "experiment") == name), "{name}");
    }

    let Some(plots) = plots(&html, "all_experiments_are_run_and_summed_up") else { return };
    let measured =
        |name: &str| runs.iter().any(|r| r["name"] == name && r["outcome"] == "measured");
    for (experiment, titles) in [
        (
            "lookup",
            &["A lookup, by 1 thread", "The whole job: time", "The whole job: CPU time"][..],
        ),
        ("batch", &["The path alone: steps", "The path alone: time"]),
        ("fd-pool", &["Random writes of 16k, cached: throughput"]),
        ("fd-pool", &["Sequential writes of 16k, cached: submit"]),
        ("fd-pool", &["Random writes of 16k, cached: measured and published"]),
        ("uringlet", &["Rate", "CPU time", "Completion latency, 1 in flight"]),
    ] {
        if measured(experiment) {
            titles.iter().for_each(|title| assert_has(&plots, title));
        }
    }
    assert_has(&plots, "Measured and published ratios");
}

#[test]
fn a_page_of_affinity_has_its_matrix_measured_and_published() {
    let test = "a_page_of_affinity_has_its_matrix_measured_and_published";
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = tempfile::tempdir().unwrap();
    let html = output.path().join("report.html");
    let quick = ["reproduce", "affinity", "--quick", "--seconds", "0.02", "--size", "4M", "--html"];
    let run = uringlet(folder.path(), &quick).arg(&html).output().unwrap();
    let errors = String::from_utf8_lossy(&run.stderr);
    if run.status.code() == Some(2) {
        skip::skipped(test, errors.trim());
        return;
    }
    assert!(has_measured(&run), "{}{errors}", String::from_utf8_lossy(&run.stdout));
    let Some(plots) = plots(&html, test) else { return };
    for title in ["Placements, measured", "Placements, published", "Completion lists"] {
        assert_has(&plots, title);
    }
}

#[test]
fn one_that_cannot_be_run_is_named_and_the_others_go_on() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let data = vec![7u8; 2 << 20];
    std::fs::write(folder.path().join("data"), &data).unwrap();
    let arguments = ["reproduce", "all", "--quick", "--file", "data", "--forbid", "threads"];
    let refused = contains("notice: forbidden here: threads (EPERM)")
        .and(contains("batch refused: no thread can be started here"))
        .and(contains("fd-pool refused: --file data (existing): this experiment writes"))
        .and(contains("Of 5 experiments: 5 refused"));
    uringlet(folder.path(), &arguments).assert().success().stdout(refused);
    assert!(std::fs::read(folder.path().join("data")).unwrap() == data);
}

#[test]
fn the_check_of_pages_finds_what_is_wrong() {
    let Some(mut browser) = Browser::start() else {
        let name = "the_check_of_pages_finds_what_is_wrong";
        skip::skipped(name, "chromium is missing (ci/setup.sh)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    std::fs::write(
        &page,
        "<!DOCTYPE html><title>x</title><body style='background:#fff'><h1>x</h1><h3>left out</h3>\
         <div style='width:2000px'>wide</div><p style='color:#ccc'>pale</p><a href='#no'>link</a>\
         <figure><svg class='plot' role='img' aria-describedby='d' \
         viewBox='0 0 360 100' width='360'>\
         <title>t</title><desc id='d'>d</desc><text class='axis x' x='350' y='50'>no unit</text>\
         <text x='10' y='50'>one</text><text x='12' y='50'>other</text></svg></figure>\
         <img src='http://127.0.0.1:9/picture'>",
    )
    .unwrap();
    let view = View { width: 1280, scheme: "light", medium: "screen" };
    let seen = browser.look(&page, view);
    for expected in [
        "the page scrolls sideways",
        "wider than the page: wide",
        "contrast of only 1.6 (rgb(204, 204, 204)): pale",
        "a level of headings is left out: left out",
        "leads nowhere: link",
        "not one main",
        "no unit: no unit",
        "no label of the y axis: t",
        "cut off: no unit",
        "over \"other\": one",
        "no table of its values: t",
    ] {
        let found = seen.problems.iter().any(|problem| problem.starts_with(expected));
        assert!(found, "{expected}: {:#?}", seen.problems);
    }
    assert!(seen.requests.iter().any(|url| url == "http://127.0.0.1:9/picture"), "{seen:?}");
}

/// Starts the command and interrupts it after the line that begins with `header`. Returns what it
/// wrote to `--json`.
fn interrupted(arguments: &[&str], header: &str) -> Value {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = tempfile::tempdir().unwrap();
    let path = |name: &str| output.path().join(name);
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("uringlet"))
        .current_dir(folder.path())
        .args(arguments)
        .arg("--json")
        .arg(path("json"))
        .arg("--html")
        .arg(path("html"))
        .arg("--csv")
        .arg(path("csv"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while !lines.next().expect("the header comes").unwrap().starts_with(header) {}
    let kill = format!("kill -INT {}", child.id());
    assert!(std::process::Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    // The test reads standard output to its end, so that the command does not wait for a reader.
    assert!(lines.all(|line| line.is_ok()));
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stderr).contains("interrupted"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let page = std::fs::read_to_string(path("html")).unwrap();
    assert!(page.contains("Interrupted: ") && page.ends_with("</html>"));
    assert!(!records(&path("csv")).is_empty());
    serde_json::from_slice(&std::fs::read(path("json")).unwrap()).unwrap()
}

#[test]
fn ctrl_c_leaves_what_was_measured_and_nothing_else() {
    let long = ["--size", "1M", "--seconds", "600"];
    let report = interrupted(&[&["bench"], &long[..]].concat(), "uringlet ");
    assert_eq!(report["interrupted"], true);
    for experiment in ["fd-pool", "batch", "affinity", "uringlet"] {
        let arguments = [&["reproduce", experiment, "--size", "4M"], &long[2..]].concat();
        let report = interrupted(&arguments, "uringlet ");
        assert_eq!(report["interrupted"], true, "{experiment}");
    }
    let report = interrupted(&["reproduce", "lookup", "--seconds", "600"], "uringlet ");
    assert_eq!(report["interrupted"], true);
}

#[test]
fn ctrl_c_ends_all_of_them() {
    let report = interrupted(&["reproduce", "all", "--quick", "--size", "4M"], "A lookup alone");
    assert_eq!(report["interrupted"], true);
    let runs = report["experiments"].as_array().unwrap();
    assert_eq!(runs.len(), EXPERIMENTS.len());
    assert_eq!((&runs[0]["outcome"], &runs[4]["outcome"]), (&"measured".into(), &"not run".into()));
}

#[test]
fn outputs_that_cannot_be_made_are_named_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let commands =
        [&["bench", "--size", "1M"][..], &["reproduce", "all"], &["reproduce", "lookup"]];
    for command in commands {
        for option in ["--json", "--html", "--csv"] {
            let arguments = [command, &[option, "no/such/file"]].concat();
            let named = contains(format!("{option}: cannot make no/such/file"));
            let silent = contains("kernel").not();
            uringlet(folder.path(), &arguments).assert().code(2).stderr(named).stdout(silent);
        }
        let twice = [command, &["--html", "same", "--csv", "same"]].concat();
        let named = contains("--csv same: expected another file than --html");
        uringlet(folder.path(), &twice).assert().code(2).stderr(named);
    }
}

#[test]
fn a_full_disk_is_one_clear_line() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let bench = ["bench", "--size", "1M", "--seconds", "0.001", "--rounds", "1", "--depth", "1"];
    let few = ["--engines", "psync", "--workloads", "cached-read", "--html", "/dev/full"];
    let line =
        "uringlet bench: --html: cannot write /dev/full: No space left on device (os error 28)\n";
    uringlet(folder.path(), &[&bench[..], &few].concat()).assert().code(1).stderr(line);
}
