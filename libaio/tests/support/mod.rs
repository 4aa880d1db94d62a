//! What the test files share.

use std::io::Write as _;
use std::path::PathBuf;

/// Packages and what cargo makes of them.
const LIBRARIES: &[(&str, &str)] =
    &[("uringlet-libaio", "libaio.so"), ("uringlet-posix-aio", "libposix_aio.so")];

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

/// Past the capturing of a passed test's output: skipped must not look like passed.
#[allow(dead_code, reason = "not every test file skips")]
pub fn skipped(name: &str, reason: &str) {
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {name}: {reason}");
}
