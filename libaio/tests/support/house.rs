//! Programs of the distribution on the drop-in under test.

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::Output;

use uringlet::stats::{Region, Snapshot};

use crate::support;

/// A folder in which programs run, and the counters of these programs.
pub struct House {
    folder: tempfile::TempDir,
    counters: Region,
}

impl House {
    pub fn new() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        Self { folder, counters: Region::create().expect("memory") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a program on the library; it has to succeed.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let stats = format!("URINGLET_STATS={}", self.counters.path().display());
        let all = [&[stats.as_str(), "URINGLET_TRAP=auto", program], arguments].concat();
        let output = support::run("env", &all, self.folder.path(), true);
        let [out, error] =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        let missing = output.status.code() == Some(127);
        let hint = if missing { " (it is missing: run ci/setup.sh)" } else { "" };
        assert!(output.status.success(), "{program}: {}{hint}\n{out}{error}", output.status);
        output
    }

    pub fn counted(&self) -> Snapshot {
        self.counters.snapshot()
    }

    /// A file of random bytes.
    pub fn image(&self, name: &str, bytes: usize) -> PathBuf {
        let path = self.path(name);
        let mut content = vec![0; bytes];
        let source = std::fs::File::open("/dev/urandom").expect("there is one");
        std::io::Read::read_exact(&mut { source }, &mut content).expect("endless");
        std::fs::write(&path, content).expect("written");
        path
    }

    /// Has the file system direct I/O? Prints a message if not.
    pub fn has_direct(&self, test: &str) -> bool {
        let path = self.image("probe", 4096);
        let mut options = std::fs::OpenOptions::new();
        let has = options.read(true).custom_flags(libc::O_DIRECT).open(path).is_ok();
        if !has {
            support::skipped(test, "no direct I/O on this file system");
        }
        has
    }
}
