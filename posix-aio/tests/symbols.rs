//! The dynamic symbols and their versions are the same as the C library's.

use std::collections::BTreeSet;

use symbols::{functions, is_interposed, output};

mod library;
#[path = "../../libaio/tests/support/symbols.rs"]
mod symbols;

/// The aio functions of the C library that this process has loaded.
fn originals() -> BTreeSet<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    let library = maps
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .find(|path| path.ends_with("/libc.so.6"))
        .expect("the C library is mapped");
    let is_aio = |name: &String| name.starts_with("aio_") || name.starts_with("lio_");
    functions(library).into_iter().filter(is_aio).collect()
}

fn ours() -> String {
    library::path().display().to_string()
}

#[test]
fn symbols_and_versions_are_the_c_librarys() {
    let (theirs, ours) = (originals(), functions(&ours()));
    if !theirs.contains("aio_read@GLIBC_2.34") {
        let name = "symbols_and_versions_are_the_c_librarys";
        return library::skipped(name, "glibc is older than 2.34");
    }
    let missing: Vec<_> = theirs.difference(&ours).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
    // The linker makes the real names from the names in `made` (build.rs). The library also exports
    // functions of the C library that it has to see, such as close(2) and pthread_cancel(3).
    let made = |name: &str| {
        (name.starts_with("_aio_") || name.starts_with("_lio_")) && name.ends_with("@Base")
    };
    let known = |name: &&String| made(name) || is_interposed(name, "pthread_cancel");
    let extra: Vec<_> = ours.difference(&theirs).filter(|name| !known(name)).collect();
    assert!(extra.is_empty(), "not the C library's: {extra:?}");
    let names: BTreeSet<_> = theirs.iter().filter_map(|name| name.split('@').next()).collect();
    assert_eq!(names.len(), 17, "the C library has changed: {names:?}");
}

#[test]
fn it_stays_when_it_is_unloaded() {
    let header = output("readelf", &["-d", "--wide", &ours()]);
    assert!(header.contains("NODELETE"), "{header}");
}
