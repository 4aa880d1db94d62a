//! The dynamic symbols, their versions and the SONAME are the original's.

use std::collections::BTreeSet;
use std::path::Path;

use symbols::{functions, is_interposed, output};

mod support;
#[path = "support/symbols.rs"]
mod symbols;

/// The original that the linker finds.
fn original() -> String {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let path = output(&compiler, &["-print-file-name=libaio.so"]).trim().to_owned();
    assert!(Path::new(&path).is_absolute(), "libaio is not installed: run ci/setup.sh");
    path
}

fn ours() -> String {
    support::library().display().to_string()
}

fn soname(library: &str) -> String {
    let header = output("objdump", &["-p", library]);
    let line = header.lines().find_map(|line| line.trim().strip_prefix("SONAME"));
    line.expect("a SONAME").trim().to_owned()
}

/// The version names that a library defines.
fn versions(library: &str) -> BTreeSet<String> {
    let text = output("readelf", &["-V", "--wide", library]);
    let names = text.split_whitespace().filter(|word| word.starts_with("LIBAIO_"));
    names.map(str::to_owned).collect()
}

#[test]
fn symbols_and_versions_are_the_originals() {
    let (theirs, ours) = (functions(&original()), functions(&ours()));
    let missing: Vec<_> = theirs.difference(&ours).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
    // The linker makes the real names from the names in `makings` (build.rs). The library also
    // exports functions of the C library that it has to see, such as close(2) and syscall(2).
    let makings = |name: &str| name.starts_with("_io_") && name.ends_with("@Base");
    let known = |name: &&String| makings(name) || is_interposed(name, "syscall");
    let extra: Vec<_> = ours.difference(&theirs).filter(|name| !known(name)).collect();
    assert!(extra.is_empty(), "not the original's: {extra:?}");
    assert_eq!(theirs.len(), 13, "the original has changed: {theirs:?}");
}

#[test]
fn version_names_are_the_originals() {
    assert_eq!(versions(&original()), versions(&ours()));
}

#[test]
fn soname_is_the_originals() {
    assert_eq!(soname(&ours()), "libaio.so.1");
    // Distributions that changed to 64-bit time on 32-bit machines have t64 in the name on all
    // machines.
    assert!(["libaio.so.1", "libaio.so.1t64"].contains(&soname(&original()).as_str()));
}

/// The library's threads run its code, so dlclose(3) must not unmap the library.
#[test]
fn it_stays_when_it_is_unloaded() {
    let text = output("readelf", &["-d", "--wide", &ours()]);
    assert!(text.lines().any(|line| line.contains("FLAGS_1") && line.contains("NODELETE")));
}
