//! Every command in README.md and on the pages of the book works. This test runs the commands in a
//! folder with the files that they name.

mod skip;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Commands that this test does not run: how they begin, and why.
const NOT_RUN: &[(&str, &str)] = &[
    ("sudo apt install ", "installs a package as root: ci/packages.sh"),
    ("tar xzf uringlet-", "installs as root: ci/packages.sh"),
    ("cargo install ", "builds for minutes: ci/packages.sh"),
    ("python3 -m venv env ", "needs the wheel: ci/packages.sh"),
    ("env/bin/pip install ", "needs a package index: ci/python.sh"),
    ("cargo run --profile look ", "builds for minutes; `uringlet bench` is run"),
    ("ci/test.sh", "runs this test"),
    ("cargo rustc --release -p uringlet-capi ", "builds for minutes: the tests of capi"),
    ("capi/install.sh /usr/local", "installs as root: the tests of capi"),
    ("cc -o program program.c ", "needs the installed library: the tests of capi"),
    ("fio --client=", "needs the servers that the page starts"),
    ("uringlet run --stats -- fio --server=", "a server that does not end, on a fixed port"),
    ("uringlet run --stats --engine workers -- fio --server=", "as above"),
    ("uringlet run --stats -- mariadbd ", "needs a database: ci/mariadb.sh"),
    ("uringlet check -- mysqld", "needs a server: ci/mariadb.sh"),
    ("uringlet run --forbid docker --stats -- postgres ", "as above: ci/postgresql.sh"),
    ("cp \"$(command -v plocate)\" ", "needs the privileges of a database of names"),
    ("uringlet run --stats --forbid docker -- ./plocate ", "as above"),
    ("uringlet run --stats -- python3 program.py", "needs Python packages: ci/python.sh"),
    ("uringlet run --stats -- nginx ", "a server that does not end: ci/nginx.sh"),
    ("UV_USE_IO_URING=1 uringlet run ", "needs Node.js and a program of the reader's"),
    ("uringlet run --stats -- qemu-system-x86_64 ", "a machine that does not end"),
    ("uringlet run -- qemu-nbd ", "a server that does not end"),
    ("cargo test --no-run --tests", "the sources of tokio-uring"),
    ("uringlet run --stats --forbid docker -- target/debug/deps/", "as above"),
    ("env/bin/python python/examples/", "needs NumPy and the wheel: ci/python.sh"),
    ("export CFLAGS=", "needs the wheel: ci/python.sh"),
    ("folder=\"$(python ", "as above"),
    ("export LDFLAGS=", "as above"),
    ("cargo run --release -p uringlet --example copy ", "core/tests/examples.rs runs it"),
    ("uringlet reproduce all ", "takes minutes; each experiment is run"),
];

/// Texts of a page, and the smaller or shorter texts that this test puts in their place.
/// `LIBRARIES` is the folder of the drop-ins.
const CHANGED: &[(&str, &str)] = &[
    ("/tmp/file", "file"),
    ("/mnt/data", "."),
    ("/path/to", "LIBRARIES"),
    ("/var/lib/prometheus/node-exporter/", ""),
    ("target/look/uringlet", "uringlet"),
    ("uringlet check 4711", "uringlet run -- sh -c 'uringlet check $$'"),
    ("--runtime=60", "--runtime=1"),
    ("--size=64M", "--size=1M"),
    ("-c 20000 ", "-c 200 "),
    ("-c 10000 ", "-c 100 "),
    ("--timeout 10", "--timeout 1"),
    ("ioping -A -c 10 ", "ioping -A -c 2 "),
    ("--batch 60 --interval 1s", "--batch 2 --interval 50ms"),
    ("--batch 10 --interval 500ms", "--batch 2 --interval 50ms"),
    (" --budget 3m", ""),
    (" --budget 5m", ""),
    ("--seconds 1s --rounds 10", ""),
];

/// Arguments that are added to commands which begin with this text. The first match counts.
const SHORTENED: &[(&str, &str)] = &[
    ("uringlet top --", ""),
    ("uringlet top", " --once"),
    ("uringlet bench jobs/", " --seconds 0.1 --rounds 1"),
    ("uringlet bench --file", " --seconds 0.01 --rounds 1 --size 4M"),
    (
        "uringlet bench",
        " --seconds 0.01 --rounds 1 --size 4M --depth 8 --workloads cached-read,direct-read",
    ),
    ("uringlet reproduce lookup", " --contexts 1 --jobs 1"),
    ("uringlet reproduce affinity", " --seconds 0.01 --size 4M --file-systems 0"),
    ("uringlet reproduce fd-pool", " --quick --seconds 0.01 --size 4M"),
    ("uringlet reproduce", " --quick"),
];

/// Commands for which the pages mention a status other than 0: their beginning, and all statuses
/// with which they may end.
const STATUSES: &[(&str, &[i32])] = &[
    ("uringlet doctor --require io_uring", &[0, 3]),
    ("uringlet doctor --forbid docker --require io_uring", &[3]),
    ("uringlet compare --fail-on-regression", &[0, 1]),
    ("uringlet compare --changed --fail-on-regression", &[0, 1]),
];

fn starting<'a, T>(table: &'a [(&str, T)], command: &str) -> Option<&'a (&'a str, T)> {
    table.iter().find(|(start, _)| command.starts_with(start))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// README.md and the pages of the book, by their paths.
fn pages() -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from("README.md")];
    for folder in ["docs", "docs/programs"] {
        let names = root().join(folder).read_dir().unwrap();
        let names = names.map(|entry| Path::new(folder).join(entry.unwrap().file_name()));
        found.extend(names.filter(|name| name.extension().is_some_and(|kind| kind == "md")));
    }
    found.sort();
    found
}

/// The commands of a page, in order. A line that ends with a backslash continues on the next line.
/// A command with a here-document (`<<'END'`) ends at the line `END`.
fn commands(page: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let (mut is_shell, mut is_open) = (false, false);
    for event in Parser::new_ext(page, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(kind))) => is_shell = &*kind == "sh",
            Event::End(TagEnd::CodeBlock) => is_shell = false,
            Event::Text(text) if is_shell => {
                for line in text.lines() {
                    match found.last_mut().filter(|_| is_open) {
                        Some(last) => *last += &format!("\n{line}"),
                        None => found.push(line.to_owned()),
                    }
                    let has_text = found.last().unwrap().contains("<<'END'");
                    is_open = if has_text { line != "END" } else { line.ends_with('\\') };
                }
            }
            _ => {}
        }
    }
    found
}

/// A folder with the files of the pages, and with programs that replace the reader's own.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        let folder = place.0.path();
        fs::create_dir(folder.join("bin")).unwrap();
        symlink(assert_cmd::cargo::cargo_bin!("uringlet"), folder.join("bin/uringlet")).unwrap();
        symlink(root().join("jobs"), folder.join("jobs")).unwrap();
        for name in ["disk.img", "from.img"] {
            fs::File::create(folder.join(name)).unwrap().set_len(64 << 20).unwrap();
        }
        let program = "printf '#!/bin/sh\nexec fio --name=p --filename=data --size=64k \
                       --ioengine=libaio --rw=randrw\n' >program\nchmod +x program\n\
                       ln -s ../program bin/program";
        place.run(program, &[0]).unwrap();
        place
    }

    /// Runs a command. If its exit status is none of `statuses`, returns an error with its output.
    fn run(&self, command: &str, statuses: &[i32]) -> Result<(), String> {
        let path = std::env::var("PATH").unwrap();
        let mut shell = Command::new("timeout");
        shell.args(["-k", "5", "120", "bash", "-o", "pipefail", "-ec", command]);
        shell.current_dir(&self.0).env("HOME", self.0.path());
        shell.env("PATH", format!("{}:{path}", self.0.path().join("bin").display()));
        let output = shell.output().map_err(|error| format!("timeout: {error}"))?;
        if output.status.code().is_some_and(|status| statuses.contains(&status)) {
            return Ok(());
        }
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        Err(format!("{command}\n{}\n{out}\n{err}", output.status))
    }

    /// Returns a program that the command needs and this machine does not have.
    fn missing(&self, command: &str) -> Option<&'static str> {
        let programs = ["fio", "qemu-img", "stress-ng", "ioping", "jq", "man"];
        let is_used = |program: &str| {
            let own = ["uringlet man", "uringlet completions"];
            let rest = own.iter().fold(command.to_owned(), |text, own| text.replace(own, ""));
            rest.split_whitespace().any(|word| word == program)
        };
        let is_there = |program: &str| self.run(&format!("command -v {program}"), &[0]).is_ok();
        programs.into_iter().find(|program| is_used(program) && !is_there(program))
    }
}

#[test]
#[ignore = "takes minutes, and programs that a machine may lack"]
fn every_command_of_the_book_does_what_its_page_says() {
    const NAME: &str = "every_command_of_the_book_does_what_its_page_says";
    let libraries = assert_cmd::cargo::cargo_bin!("uringlet").parent().unwrap().to_str().unwrap();
    assert!(
        Path::new(libraries).join("liburing.so").exists(),
        "the drop-ins are not there: cargo build --workspace"
    );
    let (mut failed, mut not_run, mut ran) = (Vec::new(), BTreeSet::new(), 0);
    for page in pages() {
        let text = fs::read_to_string(root().join(&page)).unwrap();
        let (all, place) = (commands(&text), Place::new());
        if all.iter().any(|command| command.contains("old.json")) {
            let once = "uringlet bench --seconds 0.01 --rounds 2 --size 4M --workloads cached-read \
                        --depth 1 --json old.json && cp old.json new.json";
            place.run(once, &[0]).unwrap();
        }
        for command in all {
            if let Some((start, _)) = starting(NOT_RUN, &command) {
                not_run.insert(*start);
                continue;
            }
            let mut line = command.clone();
            for (from, to) in CHANGED {
                line = line.replace(from, &to.replace("LIBRARIES", libraries));
            }
            line += starting(SHORTENED, &line)
                .map_or("", |(_, more)| if line.contains(more) { "" } else { more });
            if let Some(program) = place.missing(&line) {
                skip::skipped(NAME, format!("{program} is missing: {command}"));
                continue;
            }
            let statuses = starting(STATUSES, &command).map_or(&[0][..], |(_, statuses)| statuses);
            ran += 1;
            if let Err(error) = place.run(&line, statuses) {
                failed.push(format!("{}: {command}\n{error}", page.display()));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    assert!(ran > 60, "only {ran} commands were found");
    let unused: Vec<_> = NOT_RUN.iter().filter(|(start, _)| !not_run.contains(start)).collect();
    assert!(unused.is_empty(), "no page has these any more: {unused:?}");
}
