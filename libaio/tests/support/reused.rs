//! Runs `reused.c` on every engine of a drop-in. The program closes descriptor numbers without the
//! drop-in's knowledge, and the numbers then name another kind of file.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

fn variable(name: &str, default: impl FnOnce() -> u64) -> String {
    let value = std::env::var(name).map(|value| value.replace('_', ""));
    value.unwrap_or_else(|_| default().to_string())
}

/// Runs the program on every engine. `flags` are the drop-in's flags for the C compiler. `expected`
/// is the variable that tells the program which library to find.
pub fn check(library: &Path, flags: &[&str], expected: &str) {
    let nanos = || std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos());
    let seed = variable("URINGLET_TEST_SEED", || nanos() as u64 >> 10);
    let sequences = variable("URINGLET_TEST_SEQUENCES", || 8000);
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../libaio/tests/support/reused.c");
    let program = folder.path().join("reused");
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Werror", "-pthread", "-o"]);
    compiler.args([program.as_path(), Path::new(source)]).args(flags);
    let output = compiler.output().expect("a C compiler: run ci/setup.sh");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text} (run ci/setup.sh)");
    for engine in ["auto", "workers", "linux_aio", "io_uring", "posix_aio"] {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "600", "env", "-u", "LD_LIBRARY_PATH"]);
        let name = |name: &str, path: &Path| format!("{name}={}", path.display());
        command.args([name("LD_PRELOAD", library), name(expected, library)]);
        command.args([name("TMPDIR", folder.path()), format!("URINGLET_ENGINE={engine}")]);
        let output = command.arg(&program).args([&seed, &sequences]).output().expect("timeout(1)");
        let text = String::from_utf8_lossy(&output.stderr);
        if output.status.code() == Some(77) {
            let reason = text.trim();
            let _ = writeln!(std::io::stderr(), "\nSKIPPED reused.c on {engine}: {reason}");
            continue;
        }
        let again = format!("URINGLET_TEST_SEED={seed} URINGLET_TEST_SEQUENCES={sequences}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "equal\n", "{engine}, {again}: {text}");
    }
}
