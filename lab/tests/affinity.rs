//! `uringlet reproduce affinity` on a tiny file: every placement of this machine is run and proved.

#[path = "../../cli/tests/skip/mod.rs"]
mod skip;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Stdio;

fn affinity(folder: &Path) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("uringlet-lab"));
    command.current_dir(folder).args(["affinity", "--quick", "--seconds", "0.05"]);
    command
}

#[test]
fn each_distinct_placement_is_proved_by_its_counters() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = tempfile::tempdir().unwrap();
    let json = output.path().join("result.json");
    let run =
        || affinity(folder.path()).args(["--size", "4M", "--json"]).arg(&json).output().unwrap();
    // If no thread of a placement gets CPU time, the application executes its requests itself, and
    // the placement is not proved. So a busy machine may need several runs.
    let run = (1..10).map(|_| run()).find(|run| run.status.code() != Some(1)).unwrap_or_else(run);
    let errors = String::from_utf8_lossy(&run.stderr);
    if run.status.code() == Some(2) {
        skip::skipped("each_distinct_placement_is_proved_by_its_counters", errors.trim());
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
    // The scratch file of 4 MiB is too small for file systems.
    let systems = &report["file_systems"];
    assert_eq!((&systems["measured"], &systems["not_measured"]), (&0.into(), &5.into()));
    assert!(text.contains("Not measured\n  file systems, Q C rq 0 0 0;"), "{text}");
    // The report folds long lines, so the words are joined again.
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("--size 4M: expected at least 16M for each of 2 file systems"),
        "{text}"
    );
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

/// The files of the loop devices that the run with this process ID has left behind.
fn loop_devices_of(process: u32) -> Vec<String> {
    let of_device = |entry: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(entry.unwrap().path().join("loop/backing_file")).ok()
    };
    let all = std::fs::read_dir("/sys/block").unwrap().filter_map(of_device);
    all.filter(|file| file.contains(&format!("-{process}-"))).collect()
}

/// The result of a run for which `PATH` begins with a folder of the test's own programs.
struct FileSystems {
    status: Option<i32>,
    errors: String,
    report: Value,
}

impl FileSystems {
    /// Did the run end by itself? A round lasts a millisecond, in which a placement may get no
    /// request. Then the placement is not proved, and the exit status is 1.
    fn has_ended(&self) -> bool {
        let is_proved = self.report["distinct"] == self.report["proved"];
        self.status == Some(i32::from(!is_proved))
    }
}

/// Runs the part with file systems, after which nothing may be left. None if the kernel refuses
/// them here.
fn file_systems(test: &str, programs: &[(&str, &str)]) -> Option<FileSystems> {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let own = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let json = own.path().join("result.json");
    for (name, script) in programs {
        let mut file = std::fs::File::options();
        let file = file.write(true).create_new(true).mode(0o755).open(own.path().join(name));
        file.unwrap().write_all(format!("#!/bin/sh\n{script}\n").as_bytes()).unwrap();
    }
    let path = format!("{}:{}", own.path().display(), std::env::var("PATH").unwrap());
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("uringlet-lab"));
    let arguments = ["affinity", "--quick", "--seconds", "0.001", "--size", "32M"];
    command.args(arguments).arg("--json").arg(&json).env("PATH", path);
    let child = command.current_dir(folder.path()).stderr(Stdio::piped()).stdout(Stdio::null());
    let child = child.spawn().unwrap();
    let process = child.id();
    let ended = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
    if ended.status.code() == Some(2) {
        skip::skipped(test, errors.trim());
        return None;
    }
    assert_eq!(loop_devices_of(process), [""; 0], "{errors}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{errors}");
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let reason = report["file_systems"]["rows"][0]["not_measured"].as_str().unwrap_or_default();
    let refused = ["mounts of its own", "/dev/fuse", "cannot mount tmpfs", "cannot mount uringlet"];
    let refused = refused.into_iter().chain(["/dev/loop", "no free loop"]);
    // For mount(2) of ext4, ENODEV ("No such device") means that the kernel lacks ext4.
    if refused.into_iter().any(|refused| reason.starts_with(refused))
        || reason.starts_with("cannot mount") && reason.contains("No such device")
    {
        skip::skipped(test, reason);
        return None;
    }
    Some(FileSystems { status: ended.status.code(), errors, report })
}

#[test]
fn the_steps_on_file_systems_are_timed_and_served_by_the_placed_context() {
    let test = "the_steps_on_file_systems_are_timed_and_served_by_the_placed_context";
    let Some(run) = file_systems(test, &[]) else { return };
    assert!(run.has_ended(), "{:?}: {}", run.status, run.errors);
    let report = &run.report;
    let part = &report["file_systems"];
    assert_eq!((&part["measured"], &part["not_measured"]), (&5.into(), &0.into()), "{part}");
    assert_eq!(part["steps"], serde_json::json!(["mkfs", "untar", "make", "clean"]));
    let interrupt = report["settings"]["interrupt"].as_u64().unwrap();
    for row in part["rows"].as_array().unwrap() {
        let [run] = row["runs"].as_array().unwrap().as_slice() else { panic!("{row}") };
        for step in run["seconds"].as_array().unwrap() {
            let seconds: Vec<f64> =
                step.as_array().unwrap().iter().flat_map(Value::as_f64).collect();
            assert!(seconds.len() == 2 && seconds.iter().all(|&seconds| seconds > 0.0), "{row}");
        }
        for served in run["served"].as_array().unwrap() {
            let count = |name: &str| served[name].as_u64().unwrap();
            let all = count("reads") + count("writes") + count("fsyncs");
            assert!(count("reads") > 0 && count("writes") > 0 && count("fsyncs") > 0, "{served}");
            assert_eq!(count("queue_local") + count("queue_remote"), all, "{served}");
            assert_eq!(count("completion_local") + count("completion_remote"), all, "{served}");
            let cpus = |placed: &str| match row[placed].as_u64().unwrap() {
                0 => "any".to_owned(),
                _ => interrupt.to_string(),
            };
            let placement = format!(
                "queue on {}, completion on {}, rq_affinity {}",
                cpus("queue_affinity"),
                cpus("completion_affinity"),
                row["rq_affinity"]
            );
            assert_eq!(served["placement"], placement, "{row}");
        }
    }
}

#[test]
fn a_step_that_fails_leaves_nothing_and_is_quoted() {
    let test = "a_step_that_fails_leaves_nothing_and_is_quoted";
    // An image has no room for these 64 MiB. If they go to another disk by mistake, they take
    // little space there.
    let full = "exec dd if=/dev/zero of=\"${4:?}/file\" bs=1M count=64 status=none";
    for (program, script, reason) in [
        ("mkfs.ext4", "echo not today >&2; exit 3", "mkfs.ext4 failed (exit status: 3): not today"),
        ("mkfs.ext4", "exit 0", "cannot mount /dev/loop"),
        ("tar", full, "No space left on device"),
        ("make", "kill -9 $$", "make failed (signal: 9 (SIGKILL))"),
    ] {
        let Some(run) = file_systems(test, &[(program, script)]) else { return };
        assert!(run.has_ended(), "{:?}: {}", run.status, run.errors);
        let part = &run.report["file_systems"];
        assert_eq!((&part["measured"], &part["not_measured"]), (&0.into(), &5.into()), "{part}");
        for row in part["rows"].as_array().unwrap() {
            assert!(row["not_measured"].as_str().unwrap().contains(reason), "{program}: {row}");
        }
    }
}

#[test]
fn ctrl_c_in_any_step_leaves_nothing() {
    let test = "ctrl_c_in_any_step_leaves_nothing";
    // The program runs on two file systems at a time. Only one of the two can make the folder and
    // send the signal. Each leaves a program in the background.
    let script = "mkdir \"${0%/*}/sent\" && kill -INT $PPID; sleep 600 & exec sleep 600";
    for program in ["mkfs.ext4", "tar", "make"] {
        let Some(run) = file_systems(test, &[(program, script)]) else { return };
        assert_eq!(run.status, Some(130), "{program}: {}", run.errors);
        assert!(run.errors.contains("interrupted"), "{program}: {}", run.errors);
        assert_eq!(run.report["interrupted"], true, "{program}");
        assert_eq!(run.report["file_systems"]["measured"], 0, "{program}");
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
