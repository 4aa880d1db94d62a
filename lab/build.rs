//! Passes the commit of the build to the command, if git knows it.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let log = Path::new("../.git/logs/HEAD");
    if log.exists() {
        println!("cargo::rerun-if-changed={}", log.display());
    }
    let git = Command::new("git").args(["rev-parse", "--short=10", "HEAD"]).output();
    let commit = git.ok().filter(|out| out.status.success()).map(|out| out.stdout);
    let commit = commit.and_then(|text| String::from_utf8(text).ok()).unwrap_or_default();
    let suffix = match commit.trim() {
        "" => String::new(),
        commit => format!(" ({commit})"),
    };
    println!("cargo::rustc-env=URINGLET_COMMIT_SUFFIX={suffix}");
}
