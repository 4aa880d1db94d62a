//! What the test files share.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The library that cargo has built for this test, beside it or in the folder above.
pub fn library() -> PathBuf {
    let name = "liburing.so";
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
pub fn skipped(name: &str, reason: &str) {
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {name}: {reason}");
}

fn compiler() -> String {
    std::env::var("CC").unwrap_or_else(|_| "cc".to_owned())
}

/// Is liburing's header there? Said aloud if not.
#[allow(dead_code, reason = "not every test file compiles")]
pub fn has_header(test: &str) -> bool {
    let has = Command::new(compiler())
        .args(["-E", "-include", "liburing.h", "-x", "c", "/dev/null"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !has {
        skipped(test, "liburing.h is not installed: run ci/setup.sh");
    }
    has
}

/// Compiles a C program of `tests/c`. `None`, said aloud, where liburing's header is missing.
#[allow(dead_code, reason = "not every test file compiles")]
pub fn compile(test: &str, name: &str, folder: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name);
    let program = folder.join(name).with_extension("");
    if !has_header(test) {
        return None;
    }
    let output = Command::new(compiler())
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-pthread", "-fexceptions"])
        .arg("-o")
        .args([&program, &source])
        .arg("-luring")
        .output()
        .expect("a compiler");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Some(program)
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

/// Is io_uring allowed here at all?
#[allow(dead_code, reason = "not every test file asks")]
pub fn has_io_uring() -> bool {
    let mut params = [0u32; 30];
    #[allow(unsafe_code)]
    // SAFETY: room for the parameters.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
    if fd >= 0 {
        #[allow(unsafe_code)]
        // SAFETY: just made.
        unsafe {
            libc::close(fd as i32)
        };
    }
    fd >= 0
}
