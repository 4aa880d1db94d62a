//! Builds the drop-ins that the command carries, and writes the list of them. A drop-in is a shared
//! library that replaces libaio, POSIX AIO or liburing. The command carries its bytes.
//!
//! In stable cargo, a package cannot depend on the shared library of another one. So a release
//! build has cargo build these libraries once more, stripped, in a folder of its own below
//! `OUT_DIR`. Other profiles carry nothing: there cargo puts the libraries beside the command.
//! A command that carries nothing knows the folder where cargo puts the libraries. The command
//! looks there if it is installed elsewhere (`cargo install --debug --path cli`).
//!
//! `URINGLET_DROP_INS` names a folder with built libraries, or is `none`.

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::hash::Hasher as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The drop-ins: the `links` key of each package, and the name of the file that cargo builds.
const DROP_INS: &[(&str, &str)] = &[
    ("uringlet-libaio", "libaio.so"),
    ("uringlet-posix-aio", "libposix_aio.so"),
    ("uringlet-io-uring", "liburing.so"),
];

/// The workspace's profile, which a package from a registry does not have. Debug information is
/// stripped.
const PROFILE: &[&str] = &[
    "profile.release.lto='thin'",
    "profile.release.codegen-units=1",
    "profile.release.panic='unwind'",
    "profile.release.debug=false",
    "profile.release.strip='symbols'",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=URINGLET_DROP_INS");
    let out = PathBuf::from(variable("OUT_DIR"));
    let mut built_in = None;
    let libraries = match env::var("URINGLET_DROP_INS") {
        Ok(none) if none == "none" => Vec::new(),
        Ok(folder) if !folder.is_empty() => made(Path::new(&folder)),
        _ if variable("PROFILE") == "release" => build(&out.join("drop-ins")),
        _ => {
            // OUT_DIR is build/PACKAGE/out in the folder that has the libraries.
            built_in = out.ancestors().nth(3).map(Path::to_path_buf);
            Vec::new()
        }
    };
    println!("cargo::rustc-env=URINGLET_BUILT_IN={}", show(&built_in.unwrap_or_default()));
    let mut list = String::new();
    let mut hasher = DefaultHasher::new();
    for path in &libraries {
        let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", show(path)));
        hasher.write(&bytes);
        let name = path.file_name().expect("a file has a name");
        list += &format!("    ({name:?}, include_bytes!({path:?})),\n");
    }
    let hash =
        if libraries.is_empty() { String::new() } else { format!("{:016x}", hasher.finish()) };
    let text = format!("&[\n{list}]\n");
    std::fs::write(out.join("drop_ins.rs"), text).expect("OUT_DIR can be written to");
    // A hash of these libraries; empty if there are none.
    println!("cargo::rustc-env=URINGLET_CARRIES={hash}");
}

/// The libraries in the folder that `URINGLET_DROP_INS` names.
fn made(folder: &Path) -> Vec<PathBuf> {
    let path = |&(_, file): &(&str, &str)| {
        let path = folder.join(file);
        println!("cargo::rerun-if-changed={}", show(&path));
        path.canonicalize().unwrap_or_else(|error| {
            panic!("URINGLET_DROP_INS: {}: {error}; an absolute path is expected", show(&path))
        })
    };
    DROP_INS.iter().map(path).collect()
}

/// Has cargo build the libraries.
fn build(target: &Path) -> Vec<PathBuf> {
    let triple = variable("TARGET");
    for (links, _) in DROP_INS {
        // The build scripts of these packages print where their sources are: beside this package,
        // or in cargo's copy from a registry.
        let key = links.to_uppercase().replace('-', "_");
        let folder = PathBuf::from(variable(&format!("DEP_{key}_FOLDER")));
        println!("cargo::rerun-if-changed={}", show(&folder.join("src")));
        println!("cargo::rerun-if-changed={}", show(&folder.join("Cargo.toml")));
        let core = folder.join("../core/src");
        if core.is_dir() {
            println!("cargo::rerun-if-changed={}", show(&core));
        }
        let mut cargo = Command::new(variable("CARGO"));
        cargo.args(["build", "--release", "--lib", "--target", &triple, "--manifest-path"]);
        cargo.arg(folder.join("Cargo.toml")).arg("--target-dir").arg(target);
        cargo.args(PROFILE.iter().flat_map(|setting| ["--config", setting]));
        // A statically linked command carries dynamically linked libraries.
        if env::var("CARGO_CFG_TARGET_FEATURE").is_ok_and(|list| list.contains("crt-static")) {
            let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
            // `+crt-static` would override an added `-crt-static`, so `+crt-static` is replaced.
            // Targets that link statically by default have no flag to replace. They need
            // `-crt-static`, too.
            let flags = flags.replace("+crt-static", "-crt-static");
            let separator = if flags.is_empty() { "" } else { "\x1f" };
            let dynamic = "-Ctarget-feature=-crt-static";
            cargo.env("CARGO_ENCODED_RUSTFLAGS", format!("{flags}{separator}{dynamic}"));
        }
        // Under Clippy, this variable names a wrapper that checks code and does not build it.
        cargo.env_remove("RUSTC_WORKSPACE_WRAPPER");
        let status = cargo.status().unwrap_or_else(|error| panic!("cannot start cargo: {error}"));
        assert!(
            status.success(),
            "the drop-in {links} could not be built ({status}); \
             URINGLET_DROP_INS=none builds a command that carries none"
        );
    }
    let folder = target.join(&triple).join("release");
    DROP_INS.iter().map(|(_, file)| folder.join(file)).collect()
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn show(path: &Path) -> std::path::Display<'_> {
    path.display()
}
