//! `uringlet doctor` and `--forbid`: what is refused, what refuses it, and that nothing is left
//! behind.

mod skip;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;
use std::path::Path;

fn doctor(arguments: &[&str]) -> assert_cmd::assert::Assert {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("uringlet"));
    command.arg("doctor").args(arguments).assert()
}

fn json(arguments: &[&str]) -> Value {
    let assert = doctor(&[&["--json", "-"], arguments].concat()).success();
    serde_json::from_slice(&assert.get_output().stdout).unwrap()
}

fn engine<'a>(report: &'a Value, name: &str) -> &'a Value {
    let engines = report["engines"].as_array().unwrap();
    engines.iter().find(|engine| engine["engine"] == name).unwrap()
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// Returns false, and prints that the test is skipped, where the kernel has no seccomp filters.
fn has_seccomp(test: &str) -> bool {
    let there = Path::new("/proc/sys/kernel/seccomp").exists();
    if !there {
        skip::skipped(test, "the kernel has no seccomp filters");
    }
    there
}

#[test]
fn the_report_is_readable_and_nothing_is_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    doctor(&[path]).success().stdout(
        contains("Engines")
            .and(contains("io_uring"))
            .and(contains("fs.aio-max-nr"))
            .and(contains(format!("File system of {path}")))
            .and(contains("RWF_NOWAIT, read"))
            .and(contains("auto, direct")),
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn json_has_the_names_that_programs_rely_on() {
    let folder = tempfile::tempdir().unwrap();
    let report = json(&[folder.path().to_str().unwrap()]);
    let top = [
        "c_library",
        "engines",
        "file_systems",
        "fills_return_stack",
        "kernel",
        "limits",
        "remedies",
        "sandbox",
        "version",
    ];
    let mut found = keys(&report);
    found.sort_unstable();
    assert_eq!(found, top);
    let reason = ["call", "errno", "errno_name", "cause", "reason"];
    for name in ["io_uring", "linux_aio", "posix_aio", "workers"] {
        let engine = engine(&report, name);
        assert!(engine["available"].is_boolean());
        for key in reason {
            assert_eq!(engine[key].is_null(), engine["available"] == true, "{engine}");
        }
    }
    for limit in report["limits"].as_array().unwrap() {
        for key in ["name", "counts", "used", "limit", "unlimited"] {
            assert!(keys(limit).contains(&key), "{key} in {limit}");
        }
    }
    let systems = report["file_systems"].as_array().unwrap();
    assert_eq!(systems.len(), 1);
    for key in ["scratch", "nowait_read", "nowait_write", "direct"] {
        assert!(systems[0][key]["works"].is_boolean(), "{key}");
    }
    assert_eq!(systems[0]["scratch"]["works"], true);
    assert!(systems[0]["asynchronous_direct"]["verdict"].is_string());
    assert_eq!(systems[0]["auto"]["cached_read"], "inline");
    assert_eq!(
        systems[0]["auto"]["direct_read"].is_string(),
        systems[0]["direct"]["works"] == true
    );
}

#[test]
fn without_folders_each_file_system_at_hand_is_tried_once() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("uringlet"));
    let assert = command.current_dir(&folder).args(["doctor", "--json", "-"]).assert().success();
    let report: Value = serde_json::from_slice(&assert.get_output().stdout).unwrap();
    let systems = report["file_systems"].as_array().unwrap();
    // The current folder is below /tmp, so /tmp has the same file system and is left out.
    assert_eq!(systems[0]["path"], ".");
    assert!(systems.iter().all(|system| system["path"] != "/tmp"), "{systems:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn each_sandbox_is_named_as_the_cause() {
    if !has_seccomp("each_sandbox_is_named_as_the_cause") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let cases: [(&str, &[&str], &str); 5] = [
        ("io_uring", &["io_uring"], "EPERM"),
        ("io-uring", &["io_uring"], "ENOSYS"),
        ("linux_aio", &["linux_aio"], "EACCES"),
        ("io_uring,linux-aio", &["io_uring", "linux_aio"], "EINVAL"),
        ("threads", &["workers", "posix_aio"], "EPERM"),
    ];
    for (list, refused, errno) in cases {
        let report = json(&["--forbid", list, "--forbid-errno", errno, path]);
        assert_eq!(report["sandbox"]["seccomp"], 2);
        assert_eq!(report["sandbox"]["no_new_privs"], true);
        assert_eq!(report["sandbox"]["forbid_errno"], errno);
        for name in refused {
            let engine = engine(&report, name);
            assert_eq!(
                (&engine["available"], &engine["errno_name"]),
                (&false.into(), &errno.into())
            );
            // Where the kernel's setting refuses io_uring as well, that reason is also true.
            let disabled = report["sandbox"]["io_uring_disabled"].as_u64().unwrap_or(0) > 0;
            assert!(engine["cause"] == "seccomp" || (*name == "io_uring" && disabled), "{engine}");
        }
    }
    doctor(&["--forbid", "linux_aio", path])
        .success()
        .stdout(contains("io_setup: EPERM, a seccomp filter refuses it"));
}

#[test]
fn forbidding_preadv2_takes_rwf_nowait_and_nothing_else() {
    if !has_seccomp("forbidding_preadv2_takes_rwf_nowait_and_nothing_else") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let report = json(&["--forbid", "preadv2", folder.path().to_str().unwrap()]);
    let system = &report["file_systems"][0];
    for (key, call) in [("nowait_read", "preadv2"), ("nowait_write", "pwritev2")] {
        assert_eq!((&system[key]["works"], &system[key]["call"]), (&false.into(), &call.into()));
        assert_eq!(system[key]["cause"], "seccomp");
    }
    assert_eq!(system["scratch"]["works"], true);
    assert_eq!(engine(&report, "workers")["available"], true);
}

#[test]
fn in_docker_io_uring_is_refused_and_the_rest_is_left() {
    if !has_seccomp("in_docker_io_uring_is_refused_and_the_rest_is_left") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let (outside, inside) = (json(&[path]), json(&["--forbid", "docker", path]));
    assert_eq!(engine(&inside, "io_uring")["available"], false);
    assert_eq!(engine(&inside, "io_uring")["errno_name"], "EPERM");
    for name in ["linux_aio", "posix_aio", "workers"] {
        let available = |report| engine(report, name)["available"].clone();
        assert_eq!(available(&inside), available(&outside), "{name}");
    }
}

#[test]
fn without_kernel_engines_and_threads_everything_is_inline() {
    if !has_seccomp("without_kernel_engines_and_threads_everything_is_inline") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let report = json(&["--forbid", "io_uring,linux_aio,threads", folder.path().to_str().unwrap()]);
    let system = &report["file_systems"][0];
    assert_eq!(system["auto"]["cold_read"], "inline");
    if system["direct"]["works"] == true {
        assert_eq!(system["auto"]["direct_read"], "inline");
        assert_eq!(system["asynchronous_direct"]["verdict"], "untried");
    }
}

#[test]
fn a_folder_that_cannot_be_tried_is_named() {
    doctor(&["/no/such/folder"]).code(2).stderr(contains("/no/such/folder"));
    doctor(&["/proc/self/exe"]).code(2).stderr(contains("/proc/self/exe"));
    // A folder that exists and takes no files is a finding: the command does not fail. The report
    // claims nothing about the folder.
    let unknown = contains("scratch file")
        .and(contains("nothing could be tried: "))
        .and(contains("What uringlet can do here is unknown"))
        .and(contains("auto, direct").not())
        .and(contains("nothing to change").not());
    doctor(&["/proc"]).success().stdout(unknown);
    let report = json(&["/proc"]);
    let system = &report["file_systems"][0];
    assert!(system["auto"].as_object().unwrap().values().all(Value::is_null), "{system}");
    assert_eq!(system["served"], Value::Array(Vec::new()));
    let folder = tempfile::tempdir().unwrap();
    let some = doctor(&["/proc", folder.path().to_str().unwrap()]).success();
    some.stdout(contains("Of the folders that could be tried:\n").and(contains("auto, direct")));
}

/// Root may enter every folder, so another user tries this one.
#[test]
fn a_folder_that_cannot_be_entered_is_no_folder_that_cannot_be_written_to() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;

    let folder = tempfile::tempdir().unwrap();
    let closed = std::fs::Permissions::from_mode(0o600);
    let root = rustix::process::geteuid().is_root();
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("uringlet"));
    command.arg("doctor").arg(folder.path()).current_dir("/");
    if root {
        command.uid(65534);
    }
    std::fs::set_permissions(folder.path(), closed).unwrap();
    let output = match command.output() {
        Ok(output) => String::from_utf8(output.stdout).unwrap(),
        Err(error) => {
            let name = "a_folder_that_cannot_be_entered_is_no_folder_that_cannot_be_written_to";
            skip::skipped(name, format_args!("another user cannot run the command: {error}"));
            return;
        }
    };
    assert!(output.contains("nothing could be tried: this folder cannot be entered"), "{output}");
}

#[test]
fn bench_measures_what_is_left_and_says_what_was_forbidden() {
    if !has_seccomp("bench_measures_what_is_left_and_says_what_was_forbidden") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("uringlet"));
    command.current_dir(&folder).args(["bench", "--seconds", "0.02", "--rounds", "1"]);
    command.args(["--size", "1M", "--depth", "1", "--workloads", "cached-read"]);
    let assert = command.args(["--forbid", "io_uring", "--json", "result.json"]).assert().success();
    assert.stdout(contains("forbidden here: io_uring (EPERM)"));
    let report = std::fs::read(folder.path().join("result.json")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    let measured = |engine: &str| {
        let cells = report["cells"].as_array().unwrap();
        cells.iter().find(|cell| cell["engine"] == engine).unwrap()["not_measured"].is_null()
    };
    assert_eq!((measured("io_uring"), measured("uringlet:auto")), (false, true));
}

#[test]
fn what_is_required_and_refused_is_an_exit_status() {
    if !has_seccomp("what_is_required_and_refused_is_an_exit_status") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    doctor(&["--require", "auto", "--require", "workers", path]).success();
    doctor(&["--forbid", "io_uring", "--require", "io_uring", path])
        .code(3)
        .stderr(contains("--require io_uring: io_uring_setup: EPERM"))
        .stdout(contains("In plain words").and(contains("Docker, io_uring: --security-opt")));
    doctor(&["--require", "warp"]).code(2).stderr(contains("io_uring"));
}

#[test]
fn a_program_is_looked_at_before_it_is_run() {
    doctor(&["--", "true"])
        .code(3)
        .stdout(contains("preload     possible").and(contains("libaio      not imported")));
    let rings = doctor(&["--", "fio"]).success().get_output().stdout.clone();
    assert!(String::from_utf8_lossy(&rings).contains("  rings       "));
    if has_seccomp("a_program_is_looked_at_before_it_is_run") {
        doctor(&["--forbid", "io_uring", "--", "fio"])
            .success()
            .stdout(contains("rings       uringlet serves them"));
    }
    doctor(&["--", "no-such-program"]).code(2).stderr(contains("no such program"));
    let assert = doctor(&["--json", "-", "--", env!("CARGO")]).get_output().stdout.clone();
    let found: Value = serde_json::from_slice(&assert).unwrap();
    assert!(found["needs"].as_array().unwrap().iter().any(|name| name == "libc.so.6"), "{found}");
}
