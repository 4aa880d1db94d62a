//! The counters of a program under `uringlet run`, while it runs and at its end: lines, JSON,
//! Prometheus' format.

mod skip;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;

fn run(arguments: &[&str]) -> assert_cmd::assert::Assert {
    let mut uringlet = Command::new(assert_cmd::cargo::cargo_bin!("uringlet"));
    uringlet.arg("run").args(arguments).assert()
}

/// A job that makes 64 requests.
fn fio(folder: &Path) -> String {
    format!(
        "fio --name=job --filename={}/data --size=256k --bs=4k --ioengine=libaio --rw=write \
         --output=/dev/null",
        folder.display()
    )
}

/// One sample in Prometheus' text format.
#[derive(Debug)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// Parses the text format strictly. It checks metric names, escapes, HELP and TYPE before each
/// family's samples, repeated samples, and the parts of a histogram.
fn parse(text: &str) -> Vec<Sample> {
    assert!(text.ends_with('\n') && !text.contains("\n\n"));
    let mut samples: Vec<Sample> = Vec::new();
    let mut kinds: BTreeMap<String, String> = BTreeMap::new();
    let mut helped = None;
    let mut family: Option<String> = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect(line);
            assert!(!help.is_empty() && !help.contains('\\'), "{line}");
            helped = Some(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect(line);
            assert_eq!(helped.as_deref(), Some(name), "{line}");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(kinds.insert(name.into(), kind.into()).is_none(), "twice: {line}");
            family = Some(name.into());
        } else {
            let sample = sample(line);
            let family = family.as_deref().expect("a TYPE comes first");
            let suffixes: &[&str] = match kinds[family].as_str() {
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            let suffix = sample.name.strip_prefix(family).expect(line);
            assert!(suffixes.contains(&suffix), "{line}");
            assert_eq!(kinds[family] == "counter", sample.name.ends_with("_total"), "{line}");
            assert!(sample.value >= 0.0 && sample.value.is_finite(), "{line}");
            let twice = samples.iter().any(|s| s.name == sample.name && s.labels == sample.labels);
            assert!(!twice, "twice: {line}");
            samples.push(sample);
        }
    }
    for (name, _) in kinds.iter().filter(|(_, kind)| *kind == "histogram") {
        let of = |suffix: &str| {
            let name = format!("{name}{suffix}");
            samples.iter().filter(|s| s.name == name).collect::<Vec<_>>()
        };
        let bounds: Vec<(f64, f64)> = of("_bucket")
            .iter()
            .map(|s| (s.labels["le"].replace("+Inf", "inf").parse().expect("a bound"), s.value))
            .collect();
        assert!(bounds.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{bounds:?}");
        let (last, count) = (bounds.last().unwrap(), of("_count")[0].value);
        assert_eq!(*last, (f64::INFINITY, count));
        assert_eq!(of("_sum").len(), 1);
    }
    samples
}

fn sample(line: &str) -> Sample {
    let (name, rest) = line.split_once('{').expect(line);
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
    assert!(name.starts_with("uringlet_") && name.chars().all(is_name), "{line}");
    let mut labels = BTreeMap::new();
    let mut rest = rest;
    loop {
        let (label, value) = rest.split_once("=\"").expect(line);
        assert!(label.chars().all(is_name), "{line}");
        let mut text = String::new();
        let mut chars = value.chars();
        loop {
            match chars.next().expect(line) {
                '"' => break,
                '\\' => text.push(match chars.next().expect(line) {
                    'n' => '\n',
                    c @ ('"' | '\\') => c,
                    other => panic!("\\{other} in {line}"),
                }),
                c => text.push(c),
            }
        }
        assert!(labels.insert(label.to_owned(), text).is_none(), "{line}");
        rest = chars.as_str();
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => break,
        }
    }
    let value = rest.strip_prefix("} ").expect(line).parse().expect(line);
    Sample { name: name.to_owned(), labels, value }
}

#[test]
fn prometheus_gets_what_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fio.prom");
    let path = file.to_str().unwrap();
    std::fs::write(&file, "what was there").unwrap();
    let program = format!("grep -q ^uringlet_reads_total {path} && {}", fio(folder.path()));
    run(&["--stats-prometheus", path, "--", "sh", "-c", &program]).success().stderr("");
    let samples = parse(&std::fs::read_to_string(&file).unwrap());
    let value = |name: &str| samples.iter().find(|s| s.name == name).expect(name).value;
    assert_eq!(value("uringlet_writes_total"), 64.0);
    assert_eq!(value("uringlet_written_bytes_total"), 262_144.0);
    assert_eq!(value("uringlet_completion_seconds_count"), 64.0);
    assert!(value("uringlet_completion_seconds_sum") > 0.0);
    assert_eq!(value("uringlet_in_flight"), 0.0);
    assert!(samples.iter().all(|s| s.labels["program"] == "sh" && s.labels["pid"] != "0"));
    let names = folder.path().read_dir().unwrap().flatten().map(|entry| entry.file_name());
    let left: Vec<_> = names.filter(|name| name != "fio.prom" && name != "data").collect();
    assert!(left.is_empty(), "{left:?}");

    // A program whose name has unusual characters; the counters go to standard output.
    let odd = folder.path().join("o\"d\\d\nname");
    std::os::unix::fs::symlink("/bin/true", &odd).unwrap();
    let output = run(&["--stats-prometheus", "-", "--", odd.to_str().unwrap()]).success();
    let samples = parse(std::str::from_utf8(&output.get_output().stdout).unwrap());
    assert!(samples.iter().all(|s| s.labels["program"] == "o\"d\\d\nname"));
}

#[test]
fn json_has_the_totals_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(&["--stats-json", "-", "--", "sh", "-c", &fio(folder.path())]).success();
    let line: serde_json::Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(line["totals"]["writes"], 64);
    assert_eq!(line["totals"]["submitted"], 64);
    assert_eq!(line["totals"]["written_bytes"], 262_144);
    assert_eq!((&line["ended"], &line["in_flight"]), (&true.into(), &0.into()));
}

#[test]
fn every_interval_gets_a_line_an_object_and_a_new_file() {
    let folder = tempfile::tempdir().unwrap();
    let [json, prometheus] = ["stats.json", "stats.prom"].map(|name| folder.path().join(name));
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("uringlet"))
        .args(["run", "--stats-interval", "50ms", "--stats-json"])
        .arg(&json)
        .arg("--stats-prometheus")
        .arg(&prometheus)
        .args(["--", "sh", "-c", &format!("{}; read end; exit 7", fio(folder.path()))])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let first = lines.next().unwrap();
    for part in ["uringlet: 0.", " s: ", " req/s, read ", "in flight", "workers", "p99", "errors"] {
        assert!(first.contains(part), "{part} is missing in {first}");
    }
    // The second line is printed after the file of the first interval was written.
    lines.next().unwrap();
    parse(&std::fs::read_to_string(&prometheus).unwrap());
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(7));
    assert!(lines.all(|line| line.starts_with("uringlet: ")));
    let lines = std::fs::read_to_string(&json).unwrap();
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() > 2);
    let (last, before) = lines.split_last().unwrap();
    assert_eq!(last["ended"], true);
    assert!(before.iter().all(|line| line["ended"] == false));
    let lanes =
        lines.iter().flat_map(|line| line["interval"]["lanes"].as_object().unwrap().values());
    let executed: u64 = lanes.map(|requests| requests.as_u64().unwrap()).sum();
    assert_eq!(executed, 64, "every request is in one interval");
}

#[test]
fn what_cannot_be_written_is_said_and_the_programs_status_comes_first() {
    let refused = |arguments: &[&str], reason: &'static str| {
        run(&[arguments, &["--", "echo", "started"]].concat())
            .code(2)
            .stdout("")
            .stderr(contains(reason));
    };
    refused(&["--stats-json", "/no/such/file"], "--stats-json: cannot make /no/such/file");
    refused(&["--stats-prometheus", "/no/such/file"], "--stats-prometheus: cannot write");
    refused(&["--stats-prometheus", "/dev/null"], "/dev/null, expected a regular file, or -");
    // Earlier figures are dropped only if nothing is refused.
    let old = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(old.path(), "earlier figures").unwrap();
    let old_path = old.path().to_str().unwrap();
    let kept = || assert_eq!(std::fs::read_to_string(old.path()).unwrap(), "earlier figures");
    let both = ["--stats-json", old_path, "--stats-prometheus", "/no/such/file"];
    refused(&both, "--stats-prometheus: cannot write");
    kept();
    run(&["--stats-json", old_path, "--", "true"]);
    assert!(!std::fs::read_to_string(old.path()).unwrap().contains("earlier"));
    for (status, code) in [("0", 1), ("7", 7)] {
        let program = format!("exit {status}");
        run(&["--stats", "--stats-json", "/dev/full", "--", "sh", "-c", &program])
            .code(code)
            .stderr(
                contains("nothing went through")
                    .and(contains("--stats-json: cannot write /dev/full: No")),
            );
    }
    for interval in ["0", "10ms", "2h", "soon"] {
        run(&["--stats-interval", interval, "--", "true"])
            .code(2)
            .stderr(contains("--stats-interval").and(contains("expected a time")));
    }
}

/// The child makes an empty folder its root folder, as daemons do, and reads a file that was opened
/// before. It exits with 77 if it is not allowed to change its root folder.
const DAEMON: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <libaio.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

static int serve(int fd, const char *root) {
    char byte;
    struct iocb one, *list = &one;
    struct io_event event;
    io_context_t context = 0;
    if (chroot(root) && (unshare(CLONE_NEWUSER) || chroot(root)))
        return 77;
    io_prep_pread(&one, fd, &byte, 1, 0);
    return io_setup(1, &context) || io_submit(context, 1, &list) != 1 ||
           io_getevents(context, 1, 1, &event, NULL) != 1 || event.res != 1;
}

int main(int count, char **arguments) {
    int status, fd = open(arguments[0], O_RDONLY);
    if (fork() == 0)
        _exit(serve(fd, arguments[count - 1]));
    return wait(&status) < 0 || !WIFEXITED(status) ? 1 : WEXITSTATUS(status);
}
"#;

#[test]
fn a_process_that_can_open_nothing_any_more_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("daemon.c"), folder.path().join("daemon"));
    std::fs::write(&source, DAEMON).unwrap();
    let mut cc = std::process::Command::new("cc");
    let made = cc.args([&source, Path::new("-laio"), Path::new("-o"), &program]).status();
    assert!(made.unwrap().success());
    let root = folder.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let ran = run(&["--stats", "--", program.to_str().unwrap(), root.to_str().unwrap()]);
    let output = ran.get_output();
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) {
        let name = "a_process_that_can_open_nothing_any_more_is_counted";
        return skip::skipped(name, "no root folder can be changed here");
    }
    assert!(output.status.success(), "{text}");
    let reads = text.lines().find_map(|line| line.trim_start().strip_prefix("reads"));
    assert_eq!(reads.and_then(|rest| rest.split_whitespace().next()), Some("1"), "{text}");
}
