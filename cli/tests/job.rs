//! `uringlet bench JOB.fio`: fio runs the jobs with every engine, and the results become a table.
//! Jobs that are refused are named.

mod skip;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// A folder for a job. `None`, with a message, if fio is not installed. The folder is not below
/// /tmp, which is often kept in memory.
fn folder(test: &str) -> Option<tempfile::TempDir> {
    match std::process::Command::new("fio").arg("--version").output() {
        Ok(_) => Some(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()),
        Err(error) => {
            skip::skipped(test, format_args!("fio: {error} (ci/setup.sh)"));
            None
        }
    }
}

fn bench(folder: &Path, job: &str) -> Command {
    std::fs::write(folder.join("job.fio"), job).unwrap();
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("uringlet"));
    command.current_dir(folder).args(["bench", "job.fio", "--rounds", "1"]);
    command
}

fn report(folder: &Path, job: &str, arguments: &[&str]) -> Value {
    bench(folder, job).args(arguments).args(["--json", "ours.json"]).assert().success();
    serde_json::from_slice(&std::fs::read(folder.join("ours.json")).unwrap()).unwrap()
}

/// The number of requests in the only round of a cell.
fn requests(report: &Value, job: &str, engine: &str) -> Option<u64> {
    let cells = report["cells"].as_array().unwrap();
    let cell = cells.iter().find(|cell| cell["job"] == job && cell["engine"] == engine)?;
    cell["figures"][0]["requests"].as_u64()
}

/// The reason why an engine has no figures.
fn refusal<'a>(report: &'a Value, what: &str) -> Option<&'a str> {
    let reasons = report["not_measured"].as_array().unwrap();
    let of = |reason: &&Value| reason["what"].as_array().unwrap().contains(&what.into());
    reasons.iter().find(of).map(|reason| reason["reason"].as_str().unwrap())
}

#[test]
fn every_engine_makes_the_requests_that_the_job_says() {
    let test = "every_engine_makes_the_requests_that_the_job_says";
    let Some(folder) = folder(test) else { return };
    let job = "[global]\nsize=256k\nbs=4k\nioengine=sync\n\
               [a]\nrw=randrw\niodepth=4\nnumjobs=2\n[b]\nstonewall\nrw=write\nbs=8k\niodepth=2\n";
    let report = report(folder.path(), job, &["--csv", "ours.csv", "--html", "ours.html"]);
    let ways = ["psync", "libaio", "io_uring", "posixaio", "sync"];
    let ours = ["uringlet:auto (libaio)", "uringlet:auto (posixaio)"];
    for way in ways.into_iter().chain(ours) {
        for (job, expected) in [("a", 128), ("b", 32)] {
            let found = requests(&report, job, way);
            if let Some(reason) = refusal(&report, &format!("{job}, {way}")) {
                // The other engines need nothing that a sandbox may refuse.
                assert!(["libaio", "io_uring"].contains(&way) && !reason.is_empty(), "{reason}");
                continue;
            }
            assert_eq!(found, Some(expected), "{job}, {way}: {report:#}");
        }
    }
    let cell = &report["cells"][0];
    assert_eq!(
        (&cell["rw"], &cell["block"], &cell["depth"]),
        (&"randrw".into(), &4096.into(), &4.into())
    );
    let figure = &cell["figures"][0];
    let [mean, p99] = ["mean_us", "p99_us"].map(|name| figure[name].as_f64().unwrap());
    assert!(mean > 0.0 && p99 > 0.0, "{figure}");
    let lines = report["lines"].as_array().unwrap();
    assert_eq!(lines.len(), 4);
    assert!(lines.iter().all(|line| line["comparison"]["ratio"].as_f64() > Some(0.0)), "{lines:?}");
    // Each clone has an entry of its own, as in fio.
    let entries = report["jobs"].as_array().unwrap().iter();
    let of_a =
        entries.filter(|entry| entry["jobname"] == "a" && entry["uringlet"]["engine"] == "psync");
    assert_eq!(
        of_a.map(|entry| entry["read"]["total_ios"].as_u64().unwrap()
            + entry["write"]["total_ios"].as_u64().unwrap())
            .collect::<Vec<_>>(),
        [64, 64]
    );
    let csv = std::fs::read_to_string(folder.path().join("ours.csv")).unwrap();
    assert!(csv.starts_with("job,rw,block,depth,threads,engine,round,requests,iops,"), "{csv}");
    let page = std::fs::read_to_string(folder.path().join("ours.html")).unwrap();
    assert!(page.contains("uringlet:auto (posixaio)") && page.contains("99th percentile"));
}

/// A job file of the repository, made smaller. Every line in `changes` has to occur in it.
fn shipped(name: &str, changes: &[(&str, &str)]) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../jobs").join(name);
    let mut text = std::fs::read_to_string(path).unwrap();
    for (line, smaller) in changes {
        let (line, smaller) = (format!("\n{line}\n"), format!("\n{smaller}\n"));
        assert!(text.contains(&line), "{name} has no line {line}");
        text = text.replace(&line, &smaller);
    }
    text
}

#[test]
fn the_job_files_of_the_repository_can_be_run() {
    let test = "the_job_files_of_the_repository_can_be_run";
    let Some(folder) = folder(test) else { return };
    let lookup =
        [("numjobs=512", "numjobs=4"), ("loops=100", "loops=2"), ("size=100m", "size=512k")];
    let files = [
        ("lookup.fio", &lookup[..], vec!["512-contexts", "1-context"]),
        ("aio-stress.fio", &[("size=1g", "size=2m")], Vec::new()),
        ("batch.fio", &[("size=256m", "size=1m")], Vec::new()),
        ("fd-pool.fio", &[("size=256m", "size=2m")], Vec::new()),
        ("uringlet.fio", &[], vec!["depth-1", "depth-32"]),
    ];
    for (name, changes, jobs) in files {
        let arguments = ["--seconds", "0.03", "--engines", "psync,uringlet:workers"];
        let report = report(folder.path(), &shipped(name, changes), &arguments);
        let own = report["not_measured"].to_string();
        assert_eq!(own, "[]", "{name}");
        for job in jobs {
            let found = requests(&report, job, "uringlet:workers (libaio)");
            assert!(found > Some(0), "{name}, {job}: {report:#}");
        }
    }
}

#[test]
fn a_file_of_the_users_is_not_written_to_unless_allowed() {
    let test = "a_file_of_the_users_is_not_written_to_unless_allowed";
    let Some(folder) = folder(test) else { return };
    let file = folder.path().join("precious");
    let content = vec![7u8; 1 << 20];
    std::fs::write(&file, &content).unwrap();
    let refused = [
        ("rw=write\nsize=1m", "job.fio:2: precious exists, and [a] writes to it"),
        ("rw=read\nsize=2m", "job.fio:2: precious exists and has 1048576 bytes"),
    ];
    for (options, cause) in refused {
        let job = format!("[a]\nfilename=precious\n{options}\n");
        bench(folder.path(), &job)
            .assert()
            .code(2)
            .stderr(contains(cause).and(contains("--allow-writes")));
    }
    let job = "[a]\nfilename=${NAME}\nrw=randwrite\n";
    bench(folder.path(), job)
        .env("NAME", "precious")
        .assert()
        .code(2)
        .stderr(contains("precious exists"));
    // Without a size, the job reads the whole file.
    let read = report(
        folder.path(),
        "[a]\nfilename=precious\nrw=randread\nbs=4k\n",
        &["--engines", "psync"],
    );
    assert_eq!(requests(&read, "a", "psync"), Some(256));
    assert!(std::fs::read(&file).unwrap() == content);

    let job = "[a]\nrw=randwrite\nbs=4k\nfilename=precious\n";
    bench(folder.path(), job).args(["--engines", "psync", "--allow-writes"]).assert().success();
    let written = std::fs::read(&file).unwrap();
    assert_eq!(written.len(), content.len());
    assert!(written.chunks(4096).all(|block| block.iter().any(|&byte| byte != 7)));
}

#[test]
fn what_cannot_be_run_is_refused_by_name() {
    let Some(folder) = folder("what_cannot_be_run_is_refused_by_name") else { return };
    let cases = [
        ("bs=4k\n", "job.fio: expected a [SECTION] beside [global]"),
        ("[a]\ninclude none\n", "none: No such file"),
    ];
    for (job, cause) in cases {
        bench(folder.path(), job).assert().code(2).stderr(contains(cause));
    }
    bench(folder.path(), "[a]\nsize=1m\n")
        .args(["--section", "b"])
        .assert()
        .code(2)
        .stderr(contains("--section b: expected the name of a section: a\n"));
    bench(folder.path(), "[a]\n").args(["--size", "1M"]).assert().code(2);
    bench(folder.path(), "[a]\nsize=1m\n")
        .env("PATH", folder.path())
        .assert()
        .code(2)
        .stderr(contains("no such program").and(contains("apt install fio")));
}

#[test]
fn what_fio_or_the_kernel_refuses_is_not_measured_and_says_why() {
    let test = "what_fio_or_the_kernel_refuses_is_not_measured_and_says_why";
    let Some(folder) = folder(test) else { return };
    let job = "[a]\nsize=64k\niodepth=4\n";
    let forbidden = report(folder.path(), job, &["--forbid", "io_uring,linux_aio"]);
    for engine in ["libaio", "io_uring"] {
        let reason = refusal(&forbidden, &format!("a, {engine}"));
        assert!(reason.is_some_and(|reason| reason.contains("not permitted")), "{forbidden:#}");
    }
    assert_eq!(requests(&forbidden, "a", "uringlet:auto (libaio)"), Some(16), "{forbidden:#}");

    let arguments = ["--engines", "psync", "--json", "ours.json"];
    let nothing = bench(folder.path(), "[a]\nsize=64k\nnosuch=1\n").args(arguments).assert();
    nothing.code(2).stderr(contains("nothing was measured: all of it was refused"));
    let unknown = std::fs::read(folder.path().join("ours.json")).unwrap();
    let unknown: Value = serde_json::from_slice(&unknown).unwrap();
    assert!(
        refusal(&unknown, "psync").is_some_and(|reason| reason.contains("nosuch")),
        "{unknown:#}"
    );
    let engine = "[a]\nsize=64k\nioengine=nosuch\n";
    bench(folder.path(), engine)
        .assert()
        .success()
        .stdout(contains("Not measured\n  nosuch: fio: dlopen: nosuch: cannot open"));
}

#[test]
fn what_is_chosen_is_run_and_nothing_else() {
    let Some(folder) = folder("what_is_chosen_is_run_and_nothing_else") else { return };
    let job = "[global]\nsize=${SIZE}\nunlink=1\n[a]\nruntime=100\ntime_based\n[b]\n";
    bench(folder.path(), job)
        .env("SIZE", "64k")
        .args(["--section", "a", "--seconds", "0.05", "--engines", "psync"])
        .assert()
        .success()
        .stdout(contains("read 4k, depth 1").and(contains("\n  b ").not()));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "the job's files are gone");
}

#[test]
fn files_with_names_of_a_form_are_not_left_behind() {
    let test = "files_with_names_of_a_form_are_not_left_behind";
    let Some(folder) = folder(test) else { return };
    let job = shipped("uringlet.fio", &[]);
    let run = ["--section", "depth-1", "--seconds", "0.03", "--engines", "psync,uringlet:auto"];
    bench(folder.path(), &job).args(run).assert().success();
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn ctrl_c_ends_fio_too() {
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        ends_fio_too(signal, code);
    }
}

fn ends_fio_too(signal: &str, code: i32) {
    let Some(folder) = folder("ctrl_c_ends_fio_too") else { return };
    let job = "[a]\nsize=64k\ntime_based\nruntime=600\nunlink=1\n";
    std::fs::write(folder.path().join("job.fio"), job).unwrap();
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("uringlet"))
        .current_dir(folder.path())
        .args(["bench", "job.fio", "--engines", "psync"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.by_ref().any(|line| line.unwrap().starts_with("  rounds ")));
    let status =
        std::process::Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
    assert!(status.unwrap().success());
    // The command ends only after fio has ended.
    assert_eq!(child.wait().unwrap().code(), Some(code));
}
