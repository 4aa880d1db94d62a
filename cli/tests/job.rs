//! `uringlet bench JOB.fio`: the same jobs by fio and here, the same requests and files; what is refused, by file and line.

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const ENGINES: &str = "psync,libaio,posixaio,uringlet:auto";

/// Not in a place that is often kept in memory, where direct jobs may be refused.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn bench(folder: &Path, job: &str) -> Command {
    std::fs::write(folder.join("job.fio"), job).unwrap();
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("uringlet"));
    command.current_dir(folder).args(["bench", "job.fio", "--rounds", "1"]);
    command
}

fn ours(folder: &Path, job: &str) -> Value {
    let arguments = ["--engines", ENGINES, "--json", "ours.json"];
    bench(folder, job).args(arguments).assert().success();
    serde_json::from_slice(&std::fs::read(folder.join("ours.json")).unwrap()).unwrap()
}

fn fio(folder: &Path, job: &str) -> Value {
    std::fs::write(folder.join("job.fio"), job).unwrap();
    let output = std::process::Command::new("fio")
        .current_dir(folder)
        .args(["--output-format=json", "--output=fio.json", "job.fio"])
        .output()
        .expect("fio is installed (ci/setup.sh)");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // What fio has to say about the job comes before it.
    let text = std::fs::read_to_string(folder.join("fio.json")).unwrap();
    serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap()
}

/// Names and lengths, without what the test has written itself.
fn files(folder: &Path) -> BTreeMap<String, u64> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let named =
        entries.map(|e| (e.file_name().into_string().unwrap(), e.metadata().unwrap().len()));
    named.filter(|(name, _)| !["job.fio", "fio.json", "ours.json"].contains(&&**name)).collect()
}

/// Requests by job and group, of one engine or of fio.
fn requests(report: &Value, engine: Option<&str>) -> BTreeMap<(String, u64), u64> {
    let mut found = BTreeMap::new();
    for job in report["jobs"].as_array().unwrap() {
        if engine.is_some_and(|engine| job["job options"]["ioengine"] != engine) {
            continue;
        }
        let name = job["jobname"].as_str().unwrap().to_owned();
        let of = |side: &str| job[side]["total_ios"].as_u64().unwrap();
        *found.entry((name, job["groupid"].as_u64().unwrap())).or_default() +=
            of("read") + of("write");
    }
    found
}

fn block_sizes(report: &Value) -> BTreeSet<(String, u64)> {
    let mut found = BTreeSet::new();
    for job in report["jobs"].as_array().unwrap() {
        for side in ["read", "write"].map(|side| &job[side]) {
            if let (Some(ios @ 1..), Some(bytes)) =
                (side["total_ios"].as_u64(), side["io_bytes"].as_u64())
            {
                assert_eq!(bytes % ios, 0, "{side}");
                found.insert((job["jobname"].as_str().unwrap().to_owned(), bytes / ios));
            }
        }
    }
    found
}

/// Runs a job by both, and compares everything that does not depend on time.
fn compare(job: &str) -> (Value, Value) {
    let (there, here) = (folder(), folder());
    let (theirs, ours) = (fio(there.path(), job), ours(here.path(), job));
    assert_eq!(files(here.path()), files(there.path()), "{job}");
    // In a short time fio may not come to do anything.
    assert!(block_sizes(&ours).is_superset(&block_sizes(&theirs)), "{job}");
    for engine in ENGINES.split(',') {
        let refused = ours["not_measured"]
            .as_array()
            .unwrap()
            .iter()
            .any(|refused| refused["what"].as_array().unwrap().contains(&Value::from(engine)));
        // These need nothing that a sandbox may refuse.
        assert!(!refused || engine == "libaio", "{}", ours["not_measured"]);
        if !refused && !job.contains("time_based") {
            assert_eq!(requests(&ours, Some(engine)), requests(&theirs, None), "{engine}: {job}");
        }
    }
    (theirs, ours)
}

/// A job file of the repository, made smaller: every line of `changes` has to be there.
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
fn the_job_of_many_contexts_is_the_same_in_fio() {
    let changes =
        [("numjobs=512", "numjobs=4"), ("loops=100", "loops=2"), ("size=100m", "size=512k")];
    let (_, ours) = compare(&shipped("lookup.fio", &changes));
    let expected = BTreeMap::from([
        (("512-contexts".to_owned(), 0), 4 * 2 * 256),
        (("1-context".to_owned(), 1), 512),
    ]);
    assert_eq!(requests(&ours, Some("psync")), expected);
}

#[test]
fn the_job_of_aio_stress_is_the_same_in_fio() {
    let (_, ours) = compare(&shipped("aio-stress.fio", &[("size=1g", "size=2m")]));
    assert_eq!(requests(&ours, Some("psync")).into_values().collect::<Vec<_>>(), [256, 256, 256]);
}

#[test]
fn the_jobs_with_a_runtime_are_the_same_in_fio() {
    let short = ("runtime=5", "runtime=30ms");
    compare(&shipped("batch.fio", &[short, ("size=256m", "size=1m")]));
    compare(&shipped("fd-pool.fio", &[short, ("size=256m", "size=2m")]));
    let (_, ours) = compare(&shipped("uringlet.fio", &[short]));
    for depth in [1, 2, 4, 8, 16, 32] {
        let entry = ours["jobs"].as_array().unwrap().iter().find(|job| {
            job["jobname"] == format!("depth-{depth}")
                && job["job options"]["ioengine"] == "posixaio"
        });
        let entry = entry.unwrap_or_else(|| panic!("no depth {depth}"));
        assert_eq!(entry["job options"]["iodepth"], depth.to_string());
        assert!(entry["write"]["clat_ns"]["N"].as_u64() > Some(0), "{entry}");
    }
}

#[test]
fn sizes_loops_and_limits_count_as_in_fio() {
    let head = "[global]\nioengine=libaio\nthread\nsize=256k\nbs=4k\n";
    for jobs in [
        "[a]\nrw=randrw\nrwmixread=70\nloops=3\nnumjobs=3\ngroup_reporting\niodepth=4\n[b]\nstonewall\nrw=read\n",
        "[a]\nrw=rw\n[b]\nrw=write\nend_fsync=1\nfsync=8\n",
        "[a]\nrw=randread\nio_size=700k\n[b]\nnew_group\nio_size=100k\nloops=2\n[c]\nnumber_ios=7\nloops=3\n",
        "[a]\nrw=randread\nsize=10000\nnorandommap\nloops=3\n[b]\nwait_for_previous\nsize=10000\nrw=randwrite\n",
        "[a]\nrw=read\noffset=64k\n[b]\nrw=randread\nnrfiles=3\n[c]\nfilename=p:q\nrw=randwrite\n",
        "[a]\nfilesize=512k\nrw=randread\n[global]\nbs=8k\n[b]\nfilename=x\noffset_increment=256k\nnumjobs=2\n",
        "[a]\nbs=0x2000\nsize=1mib\nrw=randwrite\nfdatasync=16\niodepth=8\niodepth_low=2 ; drained\n",
    ] {
        compare(&format!("{head}{jobs}"));
    }
}

#[test]
fn every_block_is_visited_once() {
    let folder = folder();
    let job = "[a]\nrw=randwrite\nbs=4k\nsize=160k\niodepth=8\nfilename=f\n";
    std::fs::write(folder.path().join("f"), vec![7u8; 160 << 10]).unwrap();
    bench(folder.path(), job).args(["--engines", "psync", "--allow-writes"]).assert().success();
    let content = std::fs::read(folder.path().join("f")).unwrap();
    assert_eq!(content.len(), 160 << 10);
    assert!(content.chunks(4096).all(|block| block.iter().any(|&byte| byte != 7)));
}

#[test]
fn a_file_of_the_users_is_not_written_to_unless_allowed() {
    let folder = folder();
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
    // Without a size it is all of the file.
    let report = ours(folder.path(), "[a]\nfilename=precious\nrw=randread\nbs=4k\n");
    assert_eq!(requests(&report, Some("psync")).into_values().sum::<u64>(), 256);
    assert!(std::fs::read(&file).unwrap() == content);
}

#[test]
fn what_is_refused_is_named_with_file_and_line() {
    let folder = folder();
    let job =
        "[a]\nsize=1m\nfoo=3\nbs=xyz\nrw=trim\nioengine=net\niodepth=0\ndirect=2\nruntime=5x\n";
    let lines = [
        "job.fio:3: foo: expected an option that is understood here (--lenient leaves it out)",
        "job.fio:4: bs=xyz: expected a size",
        "job.fio:5: rw=trim: expected read, write,",
        "job.fio:6: ioengine=net: expected an engine",
        "job.fio:7: iodepth=0: expected a number from 1",
        "job.fio:8: direct=2: expected 1 or 0",
        "job.fio:9: runtime=5x: expected a time",
    ];
    let mut assert = bench(folder.path(), job).assert().code(2);
    for line in lines {
        assert = assert.stderr(contains(line));
    }
    let cases = [
        ("bs=4k\n[a]\n", "job.fio:1: bs=4k: expected a [SECTION] before"),
        (
            "[a]\nsize=${URINGLET_UNSET}\n",
            "job.fio:2: size=${URINGLET_UNSET}: expected URINGLET_UNSET",
        ),
        ("[a]\n", "job.fio:1: [a]: a.0.0 does not exist: expected a size"),
        ("[a]\nsize=1k\n", "job.fio:1: [a]: bs=4096: expected at most 1024"),
        ("[a]\ndirectory=missing\nsize=1m\n", "expected missing to be a folder"),
        ("[a]\nfilename=/dev/null\nsize=1m\n", "job.fio:2: /dev/null: expected a regular file"),
        ("", "job.fio: expected a [SECTION]"),
    ];
    for (job, cause) in cases {
        bench(folder.path(), job).assert().code(2).stderr(contains(cause));
    }
    bench(folder.path(), "[a]\nsize=9999t\n").assert().code(1).stderr(contains("the free space"));
    bench(folder.path(), "[a]\nsize=1m\n").args(["--section", "b"]).assert().code(2);
    bench(folder.path(), "[a]\n").args(["--size", "1M"]).assert().code(2);
    assert!(files(folder.path()).is_empty());
}

#[test]
fn what_is_chosen_is_run_and_nothing_else() {
    let folder = folder();
    bench(
        folder.path(),
        "[global]\nsize=${SIZE}\nfoo=3\nunlink=1\n[a]\nruntime=100\ntime_based\n[b]\n",
    )
    .env("SIZE", "64k")
    .args(["--lenient", "--section", "a", "--seconds", "0.01", "--engines", "psync"])
    .assert()
    .success()
    .stdout(
        contains("notice: job.fio:3: foo is not understood here, and left out")
            .and(contains("read 4k, depth 1"))
            .and(contains("\n  b ").not()),
    );
    assert!(files(folder.path()).is_empty());
}

#[test]
fn what_a_sandbox_refuses_is_not_measured_and_says_why() {
    let folder = folder();
    bench(folder.path(), "[a]\nsize=64k\niodepth=4\n")
        .args(["--forbid", "io_uring,linux_aio"])
        .assert()
        .success()
        .stdout(
            contains("Not measured")
                .and(contains("  libaio: io_setup refused"))
                .and(contains("  io_uring: io_uring_setup refused")),
        );
}

/// Paths of all keys, but for those of options, which are the user's.
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
    let (theirs, ours) = compare("[a]\nioengine=libaio\nrw=randrw\nsize=512k\niodepth=4\nthread\n");
    let of = |report: &Value| {
        let mut found = BTreeSet::new();
        keys(&report["jobs"][0], "", &mut found);
        found
    };
    let (theirs, mut all) = (of(&theirs), of(&ours));
    assert!(all.remove("/uringlet"));
    assert!(all.is_subset(&theirs), "{:?}", all.difference(&theirs).collect::<Vec<_>>());
    let missing: BTreeSet<_> =
        theirs.difference(&all).filter(|key| !key.contains("/iodepth_")).collect();
    assert!(
        missing.iter().all(|key| ["/ctx", "/majf", "/minf"].contains(&key.as_str())),
        "{missing:?}"
    );
    let entry = &ours["jobs"][1];
    for side in ["read", "write"].map(|side| &entry[side]) {
        assert_eq!(side["io_bytes"].as_u64(), side["total_ios"].as_u64().map(|ios| ios * 4096));
        assert_eq!(side["clat_ns"]["N"], side["total_ios"], "of the same jobs: {entry}");
        assert!(side["lat_ns"]["mean"].as_f64() >= side["clat_ns"]["mean"].as_f64(), "{entry}");
        let at = |percentile: &str| side["clat_ns"]["percentile"][percentile].as_u64().unwrap();
        assert!(at("1.000000") <= at("50.000000") && at("50.000000") <= at("99.990000"));
    }
    let shares = ["latency_ns", "latency_us", "latency_ms"].map(|unit| &entry[unit]);
    let shares = shares.iter().flat_map(|unit| unit.as_object().unwrap().values());
    assert!((shares.filter_map(Value::as_f64).sum::<f64>() - 100.0).abs() < 1e-6, "{entry}");
}
