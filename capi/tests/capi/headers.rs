//! The header is C99, C11, C17 and C++17, for gcc and clang.

use std::process::Command;

use crate::support::{STRICT, crate_folder, finished, has, scratch, skipped};

/// This program uses the options' initializer, and an inline function, so that the inline functions
/// are compiled.
const SOURCE: &str = "#include \"uringlet.h\"\n\
    void use(struct uringlet_sqe *sqe, struct uringlet_stats *stats);\n\
    void use(struct uringlet_sqe *sqe, struct uringlet_stats *stats)\n\
    { struct uringlet_options options = URINGLET_OPTIONS_INIT;\n\
    stats->size = options.size; uringlet_prep_nop(sqe); }\n";

fn compiles(compiler: &str, language: &str, standard: &str) -> std::process::Output {
    let name = format!("capi-header-{compiler}-{standard}");
    let source = scratch().join(&name).with_extension(language);
    std::fs::write(&source, SOURCE).expect("written");
    Command::new(compiler)
        .arg(format!("-std={standard}"))
        .args(STRICT)
        .args(["-Wconversion", "-Wundef", "-c", "-o"])
        .arg(scratch().join(&name).with_extension("o"))
        .arg(format!("-I{}", crate_folder().join("include").display()))
        .arg(&source)
        .output()
        .expect("it was there")
}

fn check(compiler: &str, language: &str, standards: &[&str]) {
    if !has(compiler) {
        skipped(&format!("the header with {compiler}"), "it is not installed: run ci/setup.sh");
        return;
    }
    for standard in standards {
        let ran = compiles(compiler, language, standard);
        finished(&format!("{compiler} -std={standard}"), &ran);
    }
}

#[test]
fn gcc_compiles_it_as_c() {
    check("gcc", "c", &["c99", "c11", "c17"]);
}

#[test]
fn gcc_compiles_it_as_cpp() {
    check("g++", "cpp", &["c++17"]);
}

#[test]
fn clang_compiles_it_as_c() {
    check("clang", "c", &["c99", "c11", "c17"]);
}

#[test]
fn clang_compiles_it_as_cpp() {
    check("clang++", "cpp", &["c++17"]);
}
