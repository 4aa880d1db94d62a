//! The manual pages: well-formed, and one for each function.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use crate::support::{
    bounded, compile, crate_folder, finished, has, output, scratch, skipped, tree,
};

fn pages() -> Vec<PathBuf> {
    let folder = crate_folder().join("man").read_dir().expect("the manual");
    folder.map(|entry| entry.expect("readable").path()).collect()
}

#[test]
fn pages_are_well_formed() {
    for page in pages() {
        if has("groff") {
            let ran =
                Command::new("groff").args(["-man", "-ww", "-Tutf8", "-z"]).arg(&page).output();
            let ran = ran.expect("it was there");
            let text = String::from_utf8_lossy(&ran.stderr);
            assert!(ran.status.success() && text.is_empty(), "{}: {text}", page.display());
        } else {
            skipped("pages_are_well_formed with groff", "it is not installed: run ci/setup.sh");
        }
        // mandoc has no --version.
        match Command::new("mandoc").args(["-T", "lint", "-W", "warning"]).arg(&page).output() {
            Ok(ran) => {
                let text = String::from_utf8_lossy(&ran.stdout);
                assert!(ran.status.success() && text.is_empty(), "{text}");
            }
            Err(_) => skipped("pages_are_well_formed with mandoc", "it is not installed"),
        }
    }
}

#[test]
fn every_function_has_a_page() {
    let map = std::fs::read_to_string(crate_folder().join("uringlet.map")).expect("text");
    let names = map.lines().filter_map(|line| line.trim().strip_suffix(';'));
    let functions: BTreeSet<_> = names
        .filter(|name| name.starts_with("uringlet_"))
        .map(|name| format!("{name}.3"))
        .collect();
    let folder = tree().path("share/man/man3").read_dir().expect("installed");
    let installed: BTreeSet<_> = folder
        .map(|entry| entry.expect("readable").file_name().into_string().expect("text"))
        .collect();
    let missing: Vec<_> = functions.difference(&installed).collect();
    assert!(missing.is_empty(), "no page for {missing:?}");
    let stale: Vec<_> = installed.difference(&functions).collect();
    assert!(stale.iter().all(|name| *name == "uringlet_prep.3"), "pages for nothing: {stale:?}");
}

/// The header has each declaration that a page has.
#[test]
fn synopses_are_the_headers() {
    let squeeze = |text: &str| text.split_whitespace().collect::<String>();
    let header = std::fs::read_to_string(crate_folder().join("include/uringlet.h")).expect("text");
    let header = squeeze(&header);
    let mut seen = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("text");
        let synopsis = text.split(".SH SYNOPSIS").nth(1).expect("a synopsis");
        let synopsis = synopsis.split("\n.SH ").next().expect("split gives one");
        // A line may be continued.
        let synopsis = synopsis.replace("\\\n", "");
        let lines = synopsis.lines().filter_map(|line| line.strip_prefix(".BI "));
        for line in lines {
            let declaration = squeeze(&line.replace(['"', ';'], ""));
            assert!(header.contains(&declaration), "{}: {line}", page.display());
            seen += 1;
        }
    }
    assert_eq!(seen, 17 + 23, "functions and entries");
}

/// Each program in uringlet(7) and docs/c.md reads its own source here, and prints the length.
#[test]
fn programs_in_the_documents_run() {
    let page = std::fs::read_to_string(crate_folder().join("man/uringlet.7")).expect("text");
    let example = page.split(".EX\n").nth(1).and_then(|rest| rest.split(".EE").next());
    let example = example.expect("an example").replace("\\-", "-").replace("\\e", "\\");
    let book = crate_folder().join("../docs/c.md");
    let book = std::fs::read_to_string(book).expect("text");
    let blocks = book.split("```c\n").skip(1).map(|rest| rest.split("```").next().expect("an end"));
    let programs: Vec<_> = blocks.filter(|block| block.contains("int main")).collect();
    assert_eq!(programs.len(), 1);
    for (name, text) in [("manual", &*example), ("book", programs[0])] {
        let source = scratch().join(format!("document-{name}.c"));
        std::fs::write(&source, text).expect("written");
        let program = compile(&source);
        let ran = bounded(&program).arg(&source).output().expect("timeout(1)");
        let out = finished(name, &ran);
        assert!(out.contains(&text.len().min(4096).to_string()), "{name}: {out}");
    }
}

#[test]
fn the_manual_can_be_read_as_text() {
    if !has("groff") {
        return skipped("the_manual_can_be_read_as_text", "groff is not installed");
    }
    let page = crate_folder().join("man/uringlet.7").display().to_string();
    let text = output("groff", &["-man", "-Tascii", "-P-cbou", &page]);
    for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXAMPLES", "SEE ALSO"] {
        assert!(text.lines().any(|line| line == section), "no {section}");
    }
}
