//! `install.sh` and pkg-config, as a packager and a user of the package call them.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use crate::support::{
    bounded, built, c_compiler, crate_folder, finished, has, output, scratch, skipped,
};

fn install(arguments: &[&OsStr]) -> std::process::Output {
    let built = built();
    let mut command = Command::new(crate_folder().join("install.sh"));
    command.arg("--from").arg(built).args(arguments).output().expect("bash")
}

/// The output of pkg-config for a package that is staged in a folder.
fn pkg_config(stage: &Path, arguments: &[&str]) -> Vec<String> {
    let ran = Command::new("pkg-config")
        .args(arguments)
        .arg("uringlet")
        .env("PKG_CONFIG_SYSROOT_DIR", stage)
        .env("PKG_CONFIG_LIBDIR", stage.join("usr/lib/x/pkgconfig"))
        .output()
        .expect("it was there");
    finished("pkg-config", &ran).split_whitespace().map(str::to_owned).collect()
}

#[test]
fn an_example_builds_against_a_staged_package() {
    let name = "an_example_builds_against_a_staged_package";
    if !has("pkg-config") {
        return skipped(name, "pkg-config is not installed: run ci/setup.sh");
    }
    let stage = scratch().join("capi-stage");
    let _ = std::fs::remove_dir_all(&stage);
    let arguments = ["--libdir", "lib/x", "/usr"].map(OsStr::new);
    finished("install.sh", &install(&[&arguments[..], &[stage.as_os_str()]].concat()));
    let version = pkg_config(&stage, &["--modversion"]);
    assert_eq!(version, [env!("CARGO_PKG_VERSION")]);

    let source = crate_folder().join("examples/cat.c");
    let library = stage.join("usr/lib/x");
    // The first program is linked with the shared library, the second with the static one. All
    // other libraries are shared.
    let shared = pkg_config(&stage, &["--cflags", "--libs"]);
    let mut fixed = pkg_config(&stage, &["--static", "--cflags", "--libs"]);
    let at = fixed.iter().position(|argument| argument == "-luringlet").expect("a library");
    fixed[at] = "-l:liburinglet.a".to_owned();
    for (name, arguments) in [("shared", shared), ("static", fixed)] {
        let program = scratch().join(format!("capi-staged-{name}"));
        let mut compile = Command::new(c_compiler());
        compile.arg("-o").args([&program, &source]).args(&arguments);
        finished(name, &compile.output().expect("a C compiler"));
        let needs = output("readelf", &["-d".as_ref(), program.as_os_str()]);
        assert_eq!(needs.contains("liburinglet.so.0"), name == "shared", "{needs}");
        let mut command = bounded(&program);
        if name == "shared" {
            command.env("LD_LIBRARY_PATH", &library);
        }
        let text = finished(name, &command.arg(&source).output().expect("timeout(1)"));
        assert!(text == std::fs::read_to_string(&source).expect("text"), "other bytes");
    }
}

#[test]
fn everything_has_its_place() {
    let stage = scratch().join("capi-places");
    let _ = std::fs::remove_dir_all(&stage);
    finished("install.sh", &install(&[OsStr::new("/opt/it"), stage.as_os_str()]));
    let files = output("find", &[stage.as_os_str(), "-type".as_ref(), "f".as_ref()]);
    let root = format!("{}/opt/it/", stage.display());
    let files: Vec<_> =
        files.lines().map(|line| line.strip_prefix(&root).expect("in it")).collect();
    let version = env!("CARGO_PKG_VERSION");
    let library = format!("lib/liburinglet.so.{version}");
    for expected in [
        "include/uringlet.h",
        &library,
        "lib/liburinglet.a",
        "lib/pkgconfig/uringlet.pc",
        "share/man/man7/uringlet.7",
        "share/man/man3/uringlet_create.3",
    ] {
        assert!(files.contains(&expected), "{expected} is not among {files:?}");
    }
    for file in files {
        let known = ["include/", "lib/", "share/man/man3/", "share/man/man7/"];
        assert!(known.iter().any(|known| file.starts_with(known)), "{file}");
    }
    let link = std::fs::read_link(stage.join("opt/it/lib/liburinglet.so.0")).expect("a link");
    assert_eq!(link.to_str(), library.strip_prefix("lib/"));
    let text = std::fs::read_to_string(stage.join("opt/it/lib/pkgconfig/uringlet.pc"));
    let text = text.expect("text");
    assert!(text.starts_with("prefix=/opt/it\n") && !text.contains('@'), "{text}");
}

#[test]
fn it_says_what_is_wrong() {
    for (arguments, complaint) in [
        (&[][..], "expected PREFIX [DESTDIR]"),
        (&["usr"], "usr is not an absolute path"),
        (&["--what", "/usr"], "unknown option --what"),
        (&["--libdir"], "--libdir needs a value"),
        (&["--from", "/nowhere", "/usr"], "/nowhere/liburinglet_capi.so is not there"),
    ] {
        let arguments: Vec<_> = arguments.iter().map(OsStr::new).collect();
        let ran = install(&arguments);
        let text = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{text}");
        assert!(text.contains(complaint), "{text}");
    }
}
