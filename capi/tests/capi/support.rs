//! The common part of these tests: an installed tree, compilers, programs.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The time limit of a program in seconds: a program that takes longer hangs.
const SECONDS_MAX: &str = "300";

/// The compiler's options beside the one that chooses the language standard.
pub const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"];

/// This crate's folder.
pub fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder for files of tests.
pub fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Reports that a test is skipped, by a write to standard error that the harness does not capture.
pub fn skipped(name: &str, reason: &str) {
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {name}: {reason}");
}

/// Can this program be started?
pub fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// The output of a program, which has to succeed.
#[track_caller]
pub fn output<A: AsRef<OsStr>>(program: &str, arguments: &[A]) -> String {
    let ran = Command::new(program).args(arguments).output();
    let ran = ran.unwrap_or_else(|error| panic!("{program}: {error}: run ci/setup.sh"));
    finished(program, &ran)
}

#[track_caller]
pub fn finished(name: &str, ran: &Output) -> String {
    let [out, error] = [&ran.stdout, &ran.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(ran.status.success(), "{name}: {}\n{out}\n{error}", ran.status);
    out.into_owned()
}

/// The folder where cargo has put the libraries, beside this test or above it.
pub fn built() -> PathBuf {
    let executable = std::env::current_exe().expect("the test has a path");
    let deps = executable.parent().expect("and a folder");
    let library = "liburinglet_capi.so";
    let age = |place: &PathBuf| place.join(library).metadata().ok()?.modified().ok();
    let places = [deps.parent().expect("above").to_owned(), deps.to_owned()];
    let newest = places.into_iter().filter(|place| age(place).is_some()).max_by_key(age);
    newest.expect("the library is built: cargo build -p uringlet-capi")
}

/// The result of `install.sh`.
#[derive(Debug)]
pub struct Tree {
    folder: PathBuf,
}

impl Tree {
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub fn shared_library(&self) -> String {
        self.path("lib/liburinglet.so.0").display().to_string()
    }
}

/// An installed tree, made once.
pub fn tree() -> &'static Tree {
    static TREE: OnceLock<Tree> = OnceLock::new();
    TREE.get_or_init(|| {
        let folder = scratch().join("capi-installed");
        let _ = std::fs::remove_dir_all(&folder);
        let script = crate_folder().join("install.sh");
        let built = built();
        let arguments = [OsStr::new("--from"), built.as_os_str(), folder.as_os_str()];
        output(script.to_str().expect("text"), &arguments);
        Tree { folder }
    })
}

pub fn c_compiler() -> String {
    std::env::var("CC").unwrap_or_else(|_| "cc".to_owned())
}

/// Compiles a C program against the installed tree, and returns its path.
#[track_caller]
pub fn compile(source: &Path) -> PathBuf {
    let tree = tree();
    let name = source.file_stem().expect("a name").to_str().expect("text");
    let program = scratch().join(format!("capi-{name}"));
    let library = tree.path("lib").display().to_string();
    let ran = Command::new(c_compiler())
        .args(["-std=c11", "-O1", "-g", "-pthread"])
        // Examples define the feature macros that they need, because users copy them.
        .args((!source.starts_with(crate_folder().join("examples"))).then_some("-D_DEFAULT_SOURCE"))
        .args(STRICT)
        .arg("-o")
        .args([&program, source])
        .arg(format!("-I{}", tree.path("include").display()))
        .arg(format!("-L{library}"))
        .arg(format!("-Wl,-rpath,{library}"))
        .args(["-luringlet", "-ldl"])
        .output();
    finished(name, &ran.expect("a C compiler: run ci/setup.sh"));
    program
}

/// A command that kills a program that hangs.
pub fn bounded(program: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", SECONDS_MAX]).arg(program);
    command.env_remove("LD_LIBRARY_PATH").env_remove("LD_PRELOAD");
    command
}

/// An example or a test program, by its path in this crate.
#[track_caller]
pub fn program(source: &str) -> Command {
    bounded(&compile(&crate_folder().join(source)))
}
