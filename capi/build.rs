//! Gives the library its SONAME and its functions their names and versions.
//!
//! rustc writes a version script of its own that names what Rust exports, and a second script has
//! no effect on those names. So the functions are exported with a leading underscore, and the
//! linker makes the real names from them. `uringlet.map` lists the real names.

fn main() {
    println!("cargo::rerun-if-changed=uringlet.map");
    println!("cargo::rerun-if-changed=build.rs");
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    // GNU ld takes only one version script. On x86-64, rustc brings an lld of its own.
    if std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it") != "x86_64" {
        println!("cargo::rustc-link-arg-cdylib=-fuse-ld=lld");
    }
    let map = std::fs::read_to_string(format!("{folder}/uringlet.map")).expect("it is there");
    let names = map.lines().filter_map(|line| line.trim().strip_suffix(';'));
    let mut arguments = vec![
        "-Wl,-soname,liburinglet.so.0".to_owned(),
        format!("-Wl,--version-script={folder}/uringlet.map"),
        // The library's threads run its code: dlclose(3) must not unmap it.
        "-Wl,-z,nodelete".to_owned(),
    ];
    let functions = names.filter(|name| name.starts_with("uringlet_"));
    arguments.extend(functions.map(|name| format!("-Wl,--defsym={name}=_{name}")));
    for argument in arguments {
        println!("cargo::rustc-link-arg-cdylib={argument}");
    }
}
