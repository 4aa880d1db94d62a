//! Functions that the test files share.

use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "../../../libaio/tests/support/mod.rs"]
mod shared;
#[allow(unused_imports, reason = "not every test file runs one")]
pub use shared::{library, run, skipped};

fn compiler() -> String {
    std::env::var("CC").unwrap_or_else(|_| "cc".to_owned())
}

/// Is liburing's header installed? Prints that the test is skipped if not.
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

/// Compiles a C program of `tests/c`. `None`: liburing's header is missing, and a line reports
/// that.
#[allow(dead_code, reason = "not every test file compiles")]
pub fn compile(test: &str, name: &str, folder: &Path) -> Option<PathBuf> {
    compile_with("-luring", test, name, folder)
}

/// As [`compile`]. `library` is the option by which the linker finds a library of liburing's.
pub fn compile_with(library: &str, test: &str, name: &str, folder: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name);
    let program = folder.join(name).with_extension("");
    if !has_header(test) {
        return None;
    }
    let output = Command::new(compiler())
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-pthread", "-fexceptions"])
        .arg("-o")
        .args([&program, &source])
        .arg(library)
        .output()
        .expect("a compiler");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// Is io_uring allowed here at all?
#[allow(dead_code, reason = "not every test file asks")]
pub fn has_io_uring() -> bool {
    let mut params = [0u32; 30];
    #[allow(unsafe_code)]
    // SAFETY: the kernel reads and writes 120 bytes, which `params` has.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
    if fd >= 0 {
        #[allow(unsafe_code)]
        // SAFETY: the descriptor was just made, and nothing else uses it.
        unsafe {
            libc::close(fd as i32)
        };
    }
    fd >= 0
}
