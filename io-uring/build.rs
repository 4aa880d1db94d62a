//! Gives the library its SONAME and its functions the names and versions of the original.
//!
//! rustc writes a version script of its own that names what Rust exports, and a second script has
//! no effect on those names. So the functions are exported with a leading underscore, and the
//! linker makes the real names from them. `nodes.txt` has the version of each.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Names by version, in the order of the versions.
fn nodes() -> BTreeMap<(u32, u32), Vec<&'static str>> {
    let mut nodes = BTreeMap::<_, Vec<_>>::new();
    for line in include_str!("nodes.txt").lines() {
        let mut words = line.split_whitespace();
        let version = words.next().expect("a version");
        let (major, minor) = version.split_once('.').expect("two numbers");
        let version = (major.parse().expect("a number"), minor.parse().expect("a number"));
        nodes.entry(version).or_default().extend(words);
    }
    nodes
}

fn main() {
    println!("cargo::rerun-if-changed=nodes.txt");
    println!("cargo::rerun-if-changed=build.rs");
    // Packages that depend on this one read this value.
    println!(
        "cargo::metadata=folder={}",
        std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")
    );
    let nodes = nodes();
    let (mut script, mut previous) = (String::new(), String::new());
    for ((major, minor), names) in &nodes {
        let node = format!("LIBURING_{major}.{minor}");
        let globals: String = names.iter().map(|name| format!(" {name};")).collect();
        let globals = if globals.is_empty() { globals } else { format!("global:{globals}") };
        writeln!(script, "{node} {{ {globals} }} {previous};").expect("memory");
        previous = node;
    }
    let folder = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets it"));
    let map = folder.join("liburing.map");
    std::fs::write(&map, script).expect("written");
    let mut arguments = vec![
        "-Wl,-soname,liburing.so.2".to_owned(),
        format!("-Wl,--version-script={}", map.display()),
        // The library's threads run its code: dlclose(3) must not unmap it.
        "-Wl,-z,nodelete".to_owned(),
    ];
    let names = nodes.values().flatten();
    arguments.extend(names.map(|name| format!("-Wl,--defsym={name}=_{name}")));
    for argument in arguments {
        println!("cargo::rustc-link-arg-cdylib={argument}");
    }
}
