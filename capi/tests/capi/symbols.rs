//! The libraries export exactly what the header declares and the version script lists.

use std::collections::BTreeSet;

use crate::support::{crate_folder, output, tree};

fn read(name: &str) -> String {
    std::fs::read_to_string(crate_folder().join(name)).expect("it is there")
}

/// The functions of the header, inline or not, except its three helpers.
fn declared() -> BTreeSet<String> {
    let header = read("include/uringlet.h");
    let begins = |line: &&str| {
        line.starts_with(|first: char| first.is_ascii_lowercase()) && line.contains("uringlet_")
    };
    let lines = header.lines().filter(begins).filter(|line| line.contains('('));
    let names = lines.map(|line| {
        let before = line.split('(').next().expect("split gives one");
        before.rsplit([' ', '*']).next().expect("so does rsplit").to_owned()
    });
    let helpers = ["uringlet_prep_any", "uringlet_address", "uringlet_length"];
    names.filter(|name| !helpers.contains(&name.as_str())).collect()
}

fn listed() -> BTreeSet<String> {
    let map = read("uringlet.map");
    let names = map.lines().filter_map(|line| line.trim().strip_suffix(';'));
    names.filter(|name| name.starts_with("uringlet_")).map(str::to_owned).collect()
}

#[test]
fn the_version_script_lists_what_the_header_declares() {
    let (declared, listed) = (declared(), listed());
    assert_eq!(declared, listed);
    assert_eq!(listed.len(), 17 + 23, "functions and entries");
}

#[test]
fn the_shared_library_exports_that_and_no_more() {
    let symbols = output("objdump", &["-T", &tree().shared_library()]);
    let mut exported = BTreeSet::new();
    for line in symbols.lines().filter(|line| !line.contains("*UND*") && !line.contains("*ABS*")) {
        let mut words = line.split_whitespace().rev();
        if let (Some(name), Some(version)) = (words.next(), words.next())
            && line.contains(" g ")
        {
            exported.insert(format!("{name} {version}"));
        }
    }
    // The linker makes the names from those with a leading underscore: see build.rs.
    let makings = listed().into_iter().map(|name| format!("_{name} Base"));
    let named = listed().into_iter().map(|name| format!("{name} URINGLET_0.1"));
    assert_eq!(exported, named.chain(makings).collect());
}

#[test]
fn the_static_library_has_the_same_names() {
    let library = tree().path("lib/liburinglet.a").display().to_string();
    let symbols = output("nm", &["--defined-only", "--extern-only", "--quiet", &library]);
    let names: BTreeSet<String> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .filter(|name| name.trim_start_matches('_').starts_with("uringlet_"))
        .map(str::to_owned)
        .collect();
    assert_eq!(names, listed());
}

#[test]
fn the_soname_has_the_version_of_the_interface() {
    let text = output("readelf", &["-d", "--wide", &tree().shared_library()]);
    assert!(text.contains("soname: [liburinglet.so.0]"), "{text}");
    // The library's threads run its code: dlclose(3) must not unmap it.
    assert!(text.lines().any(|line| line.contains("FLAGS_1") && line.contains("NODELETE")));
    assert!(!text.contains("RPATH") && !text.contains("RUNPATH"), "{text}");
}

/// The library needs no other libraries than the C library and the compiler's.
#[test]
fn the_shared_library_needs_the_c_library_only() {
    let text = output("readelf", &["-d", "--wide", &tree().shared_library()]);
    let needed = text.lines().filter(|line| line.contains("(NEEDED)"));
    for line in needed {
        let name = line.split('[').nth(1).expect("a name");
        let known = ["libc.so", "libgcc_s.so", "libm.so", "libpthread.so", "libdl.so", "ld-linux"];
        assert!(known.iter().any(|known| name.starts_with(known)), "{line}");
    }
}
