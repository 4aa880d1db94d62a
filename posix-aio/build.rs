//! Gives the functions the names and versions of the C library's.
//!
//! rustc writes a version script of its own that names what Rust exports, and a second script has
//! no effect on those names. So the functions are exported with a leading underscore, and the
//! linker makes the real names from them. The old versions are made in `lib.rs`.

/// Each name, and whether it has a variant for 64-bit offsets.
const NAMES: &[(&str, bool)] = &[
    ("aio_read", true),
    ("aio_write", true),
    ("aio_fsync", true),
    ("aio_error", true),
    ("aio_return", true),
    ("aio_suspend", true),
    ("aio_cancel", true),
    ("lio_listio", true),
    ("aio_init", false),
];

fn main() {
    println!("cargo::rerun-if-changed=posix-aio.map");
    println!("cargo::rerun-if-changed=build.rs");
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    // GNU ld takes only one version script, and lld takes two. On x86-64, rustc uses an lld of its
    // own without this argument.
    if std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it") != "x86_64" {
        println!("cargo::rustc-link-arg-cdylib=-fuse-ld=lld");
    }
    // Packages that depend on this one read this value.
    println!("cargo::metadata=folder={folder}");
    println!("cargo::rustc-link-arg-cdylib=-Wl,-soname,libposix_aio.so");
    // The library's threads run its code, so dlclose(3) must not unmap the library.
    println!("cargo::rustc-link-arg-cdylib=-Wl,-z,nodelete");
    println!("cargo::rustc-link-arg-cdylib=-Wl,--version-script={folder}/posix-aio.map");
    for (name, has_twin) in NAMES {
        println!("cargo::rustc-link-arg-cdylib=-Wl,--defsym={name}=_{name}");
        if *has_twin {
            println!("cargo::rustc-link-arg-cdylib=-Wl,--defsym={name}64=_{name}");
        }
    }
}
