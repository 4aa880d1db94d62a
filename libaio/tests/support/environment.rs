//! Programs that are linked to a drop-in, and how the drop-in uses `URINGLET_*` variables in them.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use uringlet::stats::Region;

/// A user and group without rights.
const NOBODY: u32 = 65534;

/// A program that is linked to a drop-in, in a folder that everybody may enter.
pub struct Program {
    folder: tempfile::TempDir,
    path: PathBuf,
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("its owner's");
}

impl Program {
    /// Compiles `house/NAME.c` of the drop-in in `manifest`, and links the program to a copy of
    /// `library` that is called `soname`.
    pub fn new(name: &str, manifest: &str, library: &Path, soname: &str) -> Self {
        // The folder is not in the target folder, which may be in a private home.
        let folder = tempfile::tempdir().expect("a folder");
        set_mode(folder.path(), 0o755);
        let copy = folder.path().join(soname);
        std::fs::copy(library, &copy).expect("the library");
        set_mode(&copy, 0o755);
        let path = folder.path().join(name);
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let output = Command::new(compiler)
            .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Werror", "-pthread", "-o"])
            .arg(&path)
            .arg(Path::new(manifest).join("tests/house").join(name).with_extension("c"))
            .arg(copy)
            .arg(format!("-Wl,-rpath,{}", folder.path().display()))
            .output()
            .expect("a C compiler: run ci/setup.sh");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text} (run ci/setup.sh)");
        Self { folder, path }
    }

    /// The program's output, under a time limit, without variables that choose a library or an
    /// engine.
    #[allow(dead_code, reason = "not every test file asks")]
    pub fn answers(&self) -> String {
        self.answers_to(&[])
    }

    /// As [`Program::answers`], with arguments.
    #[allow(dead_code, reason = "as above")]
    pub fn answers_to(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "300"]).arg(&self.path).args(arguments);
        command.env("TMPDIR", self.folder.path());
        for name in ["LD_LIBRARY_PATH", "LD_PRELOAD", "URINGLET_ENGINE"] {
            command.env_remove(name);
        }
        let output = command.output().expect("timeout(1)");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && error.is_empty(), "{}: {error}", output.status);
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs the program with variables that choose the engine `null`, which moves no data, and that
    /// count contexts. Returns the output and the number of contexts.
    #[allow(dead_code, reason = "as above")]
    fn run(&self, arguments: &[&str], as_nobody: bool) -> (String, u64) {
        let region = Region::create().expect("memory");
        let mut command = Command::new(&self.path);
        command
            .args(arguments)
            .env("URINGLET_ENGINE", "null")
            .env("URINGLET_NULL_MEANT", "1")
            .env("URINGLET_STATS", region.path());
        command.env_remove("LD_LIBRARY_PATH").env_remove("LD_PRELOAD");
        if as_nobody {
            command.uid(NOBODY).gid(NOBODY).current_dir(self.folder.path());
        }
        let output = command.output().expect("the program");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && error.is_empty(), "{}: {error}", output.status);
        (String::from_utf8(output.stdout).expect("text"), region.snapshot().contexts)
    }

    #[allow(dead_code, reason = "as above")]
    pub fn keeps_what_it_was_told_at_its_start(&self) {
        let told = ("gains privileges: no\na read: 0\n".to_owned(), 1);
        assert_eq!(self.run(&[], false), told);
        assert_eq!(self.run(&["clear"], false), told, "the environment is gone by then");
    }

    /// Checks that a set-user-ID program ignores the variables. Returns the reason if this cannot
    /// be tested here.
    #[allow(dead_code, reason = "as above")]
    pub fn is_told_nothing_where_it_gains_privileges(&self) -> Option<&'static str> {
        if std::fs::metadata("/proc/self").expect("/proc").uid() != 0 {
            return Some("a program that is root's needs root");
        }
        set_mode(&self.path, 0o4755);
        let (printed, counted) = self.run(&[], true);
        set_mode(&self.path, 0o755);
        if printed.starts_with("gains privileges: no\n") {
            return Some("set-user-ID is ignored here (mount(8), nosuid)");
        }
        assert_eq!((&printed[..], counted), ("gains privileges: yes\na read: 64\n", 0));
        None
    }
}
