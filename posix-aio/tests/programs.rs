//! Programs that were written for the C library's aio, on this library.

use std::path::Path;
use std::process::Command;

use uringlet::stats::{Region, Snapshot};

mod library;

/// Runs a program with the library preloaded, and returns the requests that the library served.
/// `None` if the program is not installed.
fn run(engine: &str, folder: &Path, program: &str, arguments: &[&str]) -> Option<Snapshot> {
    let region = Region::create().expect("memory for the counters");
    let output = Command::new("timeout")
        .args(["--kill-after=10", "300", program])
        .args(arguments)
        .current_dir(folder)
        .env("LD_PRELOAD", library::path())
        .env("URINGLET_ENGINE", engine)
        .env("URINGLET_STATS", region.path())
        .output()
        .expect("timeout(1)");
    if output.status.code() == Some(127) {
        return None;
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{program} {arguments:?} on {engine}: {:?}\n{}\n{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    Some(region.snapshot())
}

/// Writes 8 MiB in random order and reads them back.
const FIO: &[&str] = &[
    "--name=verify",
    "--filename=data",
    "--size=8M",
    "--ioengine=posixaio",
    "--rw=randwrite",
    "--verify=crc32c",
    "--verify_fatal=1",
    "--randrepeat=0",
];

#[test]
fn fio_verifies_what_it_has_written() {
    let jobs: &[&[&str]] = &[
        &["--bs=4k", "--iodepth=1"],
        &["--bs=1k", "--iodepth=32", "--fsync=16"],
        &["--bs=16k", "--iodepth=74", "--direct=1"],
        &["--bs=4k", "--iodepth=16", "--direct=1", "--thread", "--numjobs=1", "--fdatasync=8"],
    ];
    for engine in ["auto", "workers", "posix_aio"] {
        for job in jobs {
            let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            let Some(stats) = run(engine, folder.path(), "fio", &[FIO, job].concat()) else {
                let name = "fio_verifies_what_it_has_written";
                return library::skipped(name, "no fio (ci/setup.sh)");
            };
            assert_eq!((stats.bytes_written, stats.bytes_read), (8 << 20, 8 << 20), "{job:?}");
            assert_eq!((stats.contexts, stats.errors), (1, 0), "{job:?}: {stats:?}");
            assert!(job[2..].iter().all(|option| !option.contains("sync=")) || stats.fsyncs > 0);
        }
    }
}

#[test]
fn stress_ng_verifies_its_requests() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let arguments =
        ["--aio", "2", "--aio-requests", "16", "--aio-ops", "2000", "--verify", "--timeout", "60"];
    let Some(stats) = run("auto", folder.path(), "stress-ng", &arguments) else {
        return library::skipped("stress_ng_verifies_its_requests", "no stress-ng");
    };
    assert!(stats.requests() >= 2000, "{stats:?}");
    assert!(stats.contexts >= 2, "one for each of its processes: {stats:?}");
}

/// A program with two writes. It fails unless both write 0 bytes, as on the engine `null`.
const WRITES: &str = "
#include <aio.h>
#include <errno.h>
int main(void) {
    struct aiocb block = {.aio_fildes = 1, .aio_buf = \"data\", .aio_nbytes = 4};
    const struct aiocb *list[] = {&block};
    for (int i = 0; i < 2; i++) {
        if (aio_write(&block) != 0) return 1;
        while (aio_error(&block) == EINPROGRESS) aio_suspend(list, 1, 0);
        if (aio_return(&block) != 0) return 1;
    }
    return 0;
}
";

#[test]
fn an_engine_that_moves_no_data_is_warned_of_once() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (source, program) = (folder.path().join("writes.c"), folder.path().join("writes"));
    std::fs::write(&source, WRITES).unwrap();
    let made = Command::new("cc").arg("-o").arg(&program).arg(&source).status();
    assert!(made.expect("a C compiler: run ci/setup.sh").success());
    let run = |meant: &[(&str, &str)]| {
        let mut command = Command::new(&program);
        command.env("LD_PRELOAD", library::path()).env("URINGLET_ENGINE", "null");
        let output = command.envs(meant.iter().copied()).output().unwrap();
        assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let told = run(&[]);
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(told.contains("unset URINGLET_ENGINE"), "{told}");
    assert_eq!(run(&[("URINGLET_NULL_MEANT", "1")]), "");
}
