//! The library has the SONAME, the names and the version nodes of the original, and newer ones.

use std::process::Command;

mod support;

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("binutils: run ci/setup.sh");
    assert!(output.status.success(), "{program}");
    String::from_utf8(output.stdout).expect("text")
}

/// Functions with their version, `name@VERSION`.
fn functions(library: &str) -> Vec<String> {
    let table = output("objdump", &["-T", library]);
    let lines = table
        .lines()
        .filter(|line| line.contains("LIBURING_") && !line.contains("*ABS*\t0000000000000000"));
    let mut found: Vec<String> = lines
        .filter_map(|line| {
            let mut words = line.split_whitespace().rev();
            let (name, version) = (words.next()?, words.next()?);
            let version = version.trim_matches(['(', ')']);
            (name != version).then(|| format!("{name}@{version}"))
        })
        .collect();
    found.sort();
    found
}

fn ours() -> String {
    support::library().display().to_string()
}

#[test]
fn every_name_of_the_original_is_there_with_its_version() {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let original = output(&compiler, &["-print-file-name=liburing.so.2"]).trim().to_owned();
    if !original.starts_with('/') {
        return support::skipped(
            "every_name_of_the_original_is_there_with_its_version",
            "liburing is not installed: run ci/setup.sh",
        );
    }
    let (theirs, ours) = (functions(&original), functions(&ours()));
    assert!(theirs.len() >= 27, "{theirs:?}");
    let missing: Vec<_> = theirs.iter().filter(|name| !ours.contains(name)).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
}

#[test]
fn all_version_nodes_are_there() {
    let text = output("readelf", &["-V", "--wide", &ours()]);
    for minor in 0..=15 {
        let node = format!("Name: LIBURING_2.{minor} ");
        let found = text.lines().any(|line| format!("{} ", line.trim()).contains(&node));
        assert!(found, "LIBURING_2.{minor}");
    }
    assert_eq!(functions(&ours()).len(), 83);
}

#[test]
fn soname_is_the_originals() {
    let header = output("objdump", &["-p", &ours()]);
    let line = header.lines().find_map(|line| line.trim().strip_prefix("SONAME"));
    assert_eq!(line.expect("a SONAME").trim(), "liburing.so.2");
}
