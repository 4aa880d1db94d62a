//! The common part of the drop-ins' test files.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Packages, and cargo's names of their libraries.
const LIBRARIES: &[(&str, &str)] = &[
    ("uringlet-libaio", "libaio.so"),
    ("uringlet-posix-aio", "libposix_aio.so"),
    ("uringlet-io-uring", "liburing.so"),
];

/// The library that cargo has built for this test, beside it or in the folder above.
pub fn library() -> PathBuf {
    let package = env!("CARGO_PKG_NAME");
    let found = LIBRARIES.iter().find(|(name, _)| *name == package);
    let (_, name) = found.expect("a drop-in is in the list");
    let executable = std::env::current_exe().expect("the test has a path");
    let deps = executable.parent().expect("and a folder");
    let places = [deps.join("..").join(name), deps.join(name)];
    let age = |path: &&PathBuf| path.metadata().and_then(|data| data.modified()).ok();
    let newest = places.iter().filter(|path| path.is_file()).max_by_key(age);
    let Some(found) = newest else {
        let [above, beside] = places.map(|path| path.display().to_string());
        panic!("the library is neither {above} nor {beside}: cargo build");
    };
    found.canonicalize().expect("it is there")
}

/// Reports that a test is skipped, by a write to standard error that the harness does not capture.
#[allow(dead_code, reason = "not every test file skips")]
pub fn skipped(name: &str, reason: &str) {
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {name}: {reason}");
}

/// Runs a program with a time limit, on the library or not.
#[allow(dead_code, reason = "not every test file runs one")]
pub fn run(program: &str, arguments: &[&str], folder: &Path, ours: bool) -> Output {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "300", "env"]);
    if ours {
        command.arg(format!("LD_PRELOAD={}", library().display()));
    }
    command
        .arg(program)
        .args(arguments)
        .current_dir(folder)
        .env_remove("LD_PRELOAD")
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .expect("timeout(1)")
}
