//! Gives the library its SONAME and its functions the names and versions of the original.
//!
//! rustc writes a version script of its own that names what Rust exports, and a second script has
//! no effect on those names. So the functions are exported with a leading underscore, and the
//! linker makes the real names from them.

/// Each name, and the function that has its default version. `lib.rs` makes the old versions.
const NAMES: &[(&str, &str)] = &[
    ("io_setup", "_io_setup"),
    ("io_destroy", "_io_destroy"),
    ("io_submit", "_io_submit"),
    ("io_cancel", "_io_cancel"),
    ("io_getevents", "_io_getevents"),
    ("io_pgetevents", "_io_pgetevents"),
    ("io_queue_init", "_io_queue_init"),
    ("io_queue_run", "_io_queue_run"),
    ("io_queue_wait", "_io_queue_wait"),
    ("io_queue_release", "_io_queue_release"),
];

fn main() {
    println!("cargo::rerun-if-changed=libaio.map");
    println!("cargo::rerun-if-changed=build.rs");
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    // GNU ld takes only one version script. On x86-64, rustc brings an lld of its own.
    if std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it") != "x86_64" {
        println!("cargo::rustc-link-arg-cdylib=-fuse-ld=lld");
    }
    // Packages that depend on this one read this value.
    println!("cargo::metadata=folder={folder}");
    let mut arguments = vec![
        "-Wl,-soname,libaio.so.1".to_owned(),
        format!("-Wl,--version-script={folder}/libaio.map"),
        // The library's threads run its code: dlclose(3) must not unmap it.
        "-Wl,-z,nodelete".to_owned(),
    ];
    arguments.extend(NAMES.iter().map(|(name, from)| format!("-Wl,--defsym={name}={from}")));
    for argument in arguments {
        println!("cargo::rustc-link-arg-cdylib={argument}");
    }
}
