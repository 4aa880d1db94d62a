//! `uringlet run` with all drop-ins loaded: each engine, each interface, and sandboxes that refuse
//! interfaces of the kernel. fio verifies what it has written. These tests run 30 of the 75
//! combinations, or all with `URINGLET_TEST_MATRIX=full` (`ci/matrix.sh`).

mod skip;

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Command;
use uringlet::EngineKind;

/// The kernel interfaces that are refused to the program, and so to the engine.
const SANDBOXES: [&[&str]; 5] =
    [&[], &["docker"], &["linux_aio"], &["io_uring"], &["linux_aio", "io_uring"]];

const REQUESTS: u64 = 64;

fn engines() -> impl Iterator<Item = EngineKind> {
    EngineKind::ALL.into_iter().filter(|&engine| engine != EngineKind::Null)
}

/// Is this engine refused here, so that setting a context up fails?
fn is_refused(engine: EngineKind, sandbox: &[&str]) -> bool {
    match engine {
        EngineKind::LinuxAio => sandbox.contains(&"linux_aio"),
        EngineKind::IoUring => sandbox.contains(&"io_uring") || sandbox.contains(&"docker"),
        _ => false,
    }
}

/// The number on a line of the summary.
fn counted(summary: &str, name: &str) -> Option<u64> {
    let rest = summary.lines().find_map(|line| line.trim_start().strip_prefix(name))?;
    rest.split_whitespace().next()?.replace(',', "").parse().ok()
}

fn cell(folder: &Path, interface: &str, engine: EngineKind, sandbox: &[&str]) {
    let mut run = Command::new("timeout");
    run.args(["--kill-after=5", "300"]).arg(assert_cmd::cargo::cargo_bin!("uringlet"));
    run.args(["run", "--stats", "--io-uring", "always", "--engine", engine.name()]);
    if !sandbox.is_empty() {
        run.arg(format!("--forbid={}", sandbox.join(",")));
    }
    run.args(["--", "fio", "--name=job", "--size=128k", "--bs=4k", "--rw=randwrite"]);
    run.args(["--direct=1", "--iodepth=8", "--verify=crc32c", "--output=/dev/null"]);
    run.arg(format!("--ioengine={interface}"));
    run.arg(format!("--filename={}/{interface}", folder.display()));
    let output = run.output().expect("timeout(1)");
    let text = String::from_utf8_lossy(&output.stderr);
    let name = format!("{interface} on {} without {sandbox:?}: {text}", engine.name());
    if is_refused(engine, sandbox) {
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert!(text.contains("refused by uringlet"), "{name}");
        return;
    }
    assert!(output.status.success(), "{name}");
    // fio sets up one context for the job; the engine sets up none of its own.
    assert_eq!(counted(&text, "contexts"), Some(1), "{name}");
    assert_eq!(counted(&text, "of these failed"), Some(0), "{name}");
    assert!(counted(&text, "requests") >= Some(REQUESTS), "{name}");
}

/// Runs every engine without a sandbox, and in one sandbox, which depends on `shift`. The full
/// matrix runs every engine in every sandbox.
fn matrix(name: &str, interface: &str, shift: usize) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut direct = std::fs::OpenOptions::new();
    direct.write(true).create(true).custom_flags(libc::O_DIRECT);
    if direct.open(folder.path().join(interface)).is_err() {
        return skip::skipped(name, "no direct I/O on this file system");
    }
    let is_full = std::env::var_os("URINGLET_TEST_MATRIX").is_some_and(|what| what == "full");
    for (at, engine) in engines().enumerate() {
        let more = 1 + (at + shift) % (SANDBOXES.len() - 1);
        for (index, sandbox) in SANDBOXES.into_iter().enumerate() {
            if is_full || index == 0 || index == more {
                cell(folder.path(), interface, engine, sandbox);
            }
        }
    }
}

#[test]
fn libaio_on_every_engine_where_interfaces_are_refused() {
    matrix("libaio_on_every_engine_where_interfaces_are_refused", "libaio", 1);
}

#[test]
fn posix_aio_on_every_engine_where_interfaces_are_refused() {
    matrix("posix_aio_on_every_engine_where_interfaces_are_refused", "posixaio", 3);
}

#[test]
fn io_uring_on_every_engine_where_interfaces_are_refused() {
    matrix("io_uring_on_every_engine_where_interfaces_are_refused", "io_uring", 1);
}
