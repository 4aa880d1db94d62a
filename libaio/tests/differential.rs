//! The same C program on the original library and on this one: equal answers expected.
//!
//! Each program in `c/` prints `name: answer` lines. Where an answer differs on purpose,
//! [`DIFFERENCES`] says so and why; an entry that does not occur (any more) is a failure too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

mod support;

/// A program that takes longer hangs.
const SECONDS_MAX: &str = "60";
/// A program's exit status for "cannot be tested here"; the reason is on its stderr.
const SKIPPED: i32 = 77;
/// exit status of timeout(1), and of what it had to kill.
const TIMED_OUT: [i32; 2] = [124, 137];

/// Does a difference show on every run?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Occurs {
    /// Yes: if it does not, the entry is stale.
    #[allow(dead_code, reason = "which kinds the table uses changes with the library")]
    Always,
    /// It depends on who is faster.
    #[allow(dead_code, reason = "which kinds the table uses changes with the library")]
    May,
}

/// A line that this library answers otherwise, on purpose.
#[derive(Clone, Copy, Debug)]
struct Difference {
    program: &'static str,
    line: &'static str,
    original: &'static str,
    ours: &'static str,
    occurs: Occurs,
    reason: &'static str,
}

const fn differs(
    (program, line): (&'static str, &'static str),
    (original, ours): (&'static str, &'static str),
    occurs: Occurs,
    reason: &'static str,
) -> Difference {
    Difference { program, line, original, ours, occurs, reason }
}

const KEY: &str = "requests are not written to: aio_key stays what it was";
const NUMBER_REUSED: &str = "what is known about a descriptor is not asked for again per request: the call itself finds out";
const QUEUED: &str = "a request that has not been started can be cancelled; natively there is none";

const ADDRESS: &str = "the address is the handle";
const METHOD: &str =
    "files that the kernel has no asynchronous method for are read and written all the same";

const DIFFERENCES: &[Difference] = &[
    differs(("submit_errors", "key after submit"), ("0", "4711"), Occurs::Always, KEY),
    differs(
        ("submit_errors", "request block in read-only memory"),
        ("-EFAULT", "1"),
        Occurs::Always,
        KEY,
    ),
    differs(
        ("faults", "read, descriptor closed after use"),
        ("submit -EBADF", "res -EBADF"),
        Occurs::May,
        NUMBER_REUSED,
    ),
    differs(
        ("faults", "write, descriptor closed after use"),
        ("submit -EBADF", "res -EBADF"),
        Occurs::May,
        NUMBER_REUSED,
    ),
    differs(
        ("faults", "read, number is a folder since"),
        ("submit -EINVAL", "res -EISDIR"),
        Occurs::May,
        NUMBER_REUSED,
    ),
    differs(
        ("faults", "write, number is a folder since"),
        ("submit -EBADF", "res -EBADF"),
        Occurs::May,
        NUMBER_REUSED,
    ),
    differs(
        ("cancel", "cancel the last of them"),
        ("-EINVAL", "-EINPROGRESS"),
        Occurs::May,
        QUEUED,
    ),
    differs(
        ("cancel", "cancel with a wrong key"),
        ("-EINVAL", "-EINPROGRESS"),
        Occurs::Always,
        KEY,
    ),
    differs(
        ("cancel", "cancel with the right key"),
        ("-EINPROGRESS", "-EINVAL"),
        Occurs::Always,
        "it was cancelled with the wrong one",
    ),
    differs(
        ("moved_ring", "a read through the new address"),
        ("res 4096", "submit -EINVAL"),
        Occurs::Always,
        ADDRESS,
    ),
    differs(("moved_ring", "destroy the new address"), ("0", "-EINVAL"), Occurs::Always, ADDRESS),
    differs(
        ("read_write", "read of a socket, with an offset"),
        ("res -ESPIPE", "res 3"),
        Occurs::Always,
        "the offset is ignored for sockets as it is for pipes",
    ),
    differs(
        ("read_write", "write to full"),
        ("submit -EINVAL", "res -ENOSPC"),
        Occurs::Always,
        METHOD,
    ),
    differs(("read_write", "read of proc"), ("submit -EINVAL", "res 16"), Occurs::Always, METHOD),
    differs(
        ("read_write", "write to an eventfd"),
        ("submit -EINVAL", "res 8"),
        Occurs::Always,
        METHOD,
    ),
    differs(
        ("read_write", "read of a directory"),
        ("submit -EINVAL", "res -EISDIR"),
        Occurs::Always,
        METHOD,
    ),
];

macro_rules! programs {
    ($($name:ident),* $(,)?) => {
        const PROGRAMS: &[&str] = &[$(stringify!($name)),*];
        $(#[test] fn $name() { differential(stringify!($name)); })*
    };
}

programs! {
    append_order,
    cancel,
    cancel_thread,
    close_all,
    close_in_flight,
    destroy,
    destroy_race,
    eintr,
    enospc,
    eventfd,
    faults,
    fork,
    fork_threads,
    fsync,
    getevents,
    handles,
    house,
    leaks,
    moved_ring,
    old_versions,
    own_malloc,
    partial_submit,
    pgetevents,
    poll,
    poll_visible,
    queue_legacy,
    read_write,
    ring,
    rw_flags,
    setup_destroy,
    submit_errors,
    syscall,
    threads,
    vectored,
    vfork,
}

/// Names and answers, in the order in which they were printed.
type Lines = Vec<Line>;
type Line = (String, String);

enum Run {
    Finished(Lines),
    Skipped(String),
    Failed { lines: Lines, why: String },
}

fn differential(name: &str) {
    let library = support::library();
    let program = compile(name);
    let original = match run(&program, None) {
        Run::Finished(lines) => lines,
        Run::Skipped(reason) => return support::skipped(name, &reason),
        Run::Failed { why, .. } => panic!("{name} fails on the original library: {why}"),
    };
    let ours = match run(&program, Some(&library)) {
        Run::Finished(lines) => lines,
        Run::Skipped(reason) => {
            panic!("{name} ran on the original library, but not here: {reason}")
        }
        Run::Failed { lines, why } => {
            let mut complaint = format!("{name} on {}: {why}\n", library.display());
            // Lines that it did not come to are no news.
            let reached = &original[..lines.len().min(original.len())];
            for line in differing(reached, &lines, name, &[]) {
                complaint.push_str(&line);
            }
            panic!("{complaint}");
        }
    };
    let complaints = differing(&original, &ours, name, DIFFERENCES);
    assert!(
        complaints.is_empty(),
        "{name}: {} unexpected\n{}",
        complaints.len(),
        complaints.concat()
    );
}

/// What is not equal and not in the table, and what is in the table and does not occur.
fn differing(original: &[Line], ours: &[Line], name: &str, table: &[Difference]) -> Vec<String> {
    let mut complaints = Vec::new();
    let table: Vec<_> = table.iter().filter(|entry| entry.program == name).collect();
    for (whose, lines) in [("original", original), ("ours", ours)] {
        let names: BTreeSet<_> = lines.iter().map(|(name, _)| name).collect();
        if names.len() != lines.len() {
            complaints.push(format!("  a name is printed twice ({whose})\n"));
        }
    }
    let answers: BTreeMap<_, _> =
        ours.iter().map(|(name, answer)| (name, answer.as_str())).collect();
    let known: BTreeSet<_> = original.iter().map(|(name, _)| name).collect();
    for (line, native) in original {
        let answer = answers.get(line).copied().unwrap_or("(no such line)");
        let mut entries = table.iter().filter(|entry| entry.line == line);
        if native != answer {
            if !entries.any(|entry| entry.original == native && entry.ours == answer) {
                complaints.push(format!("  {line}: original {native} | ours {answer}\n"));
            }
        } else if let Some(entry) = entries.find(|entry| entry.occurs == Occurs::Always) {
            complaints.push(format!(
                "  {line}: both {native}; the table expects {} here ({})\n",
                entry.ours, entry.reason
            ));
        }
    }
    for (line, answer) in ours.iter().filter(|(line, _)| !known.contains(line)) {
        complaints.push(format!("  {line}: original (no such line) | ours {answer}\n"));
    }
    for entry in table.iter().filter(|entry| !known.iter().any(|line| *line == entry.line)) {
        complaints.push(format!("  {}: in the table, but not a line of {name}\n", entry.line));
    }
    complaints
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c")
}

fn compile(name: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let output = Command::new(&compiler)
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-pthread", "-o"])
        .arg(&program)
        .arg(sources().join(name).with_extension("c"))
        .args(["-laio", "-ldl"])
        .output();
    let output = output.unwrap_or_else(|error| {
        panic!("cannot start the C compiler {compiler:?} ({error}): run ci/setup.sh")
    });
    let text = String::from_utf8_lossy(&output.stderr);
    let missing = ["libaio.h", "-laio", "stdio.h"].iter().any(|what| text.contains(what));
    let hint = if missing { " (a header or library is missing: run ci/setup.sh)" } else { "" };
    assert!(output.status.success(), "{name}.c does not compile{hint}:\n{text}");
    program
}

/// Runs a program within its time, in a folder of its own that it has to leave empty.
fn run(program: &Path, preload: Option<&Path>) -> Run {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", SECONDS_MAX, "env"]).env("TMPDIR", folder.path());
    // Cargo's own search path must not decide which library is the original.
    command.env_remove("LD_LIBRARY_PATH").env_remove("LD_PRELOAD");
    match preload {
        Some(library) => {
            command.arg(format!("LD_PRELOAD={}", library.display())).env("LIBAIO_EXPECTED", library)
        }
        None => command.env("LIBAIO_EXPECTED", "original"),
    };
    let output = command.arg(program).output().expect("timeout(1) is part of coreutils");
    let left: Vec<_> = folder.path().read_dir().expect("the folder is there").collect();
    judge(&output, left.len())
}

fn judge(output: &Output, left: usize) -> Run {
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let split = |line: &str| line.split_once(": ").map(|(a, b)| (a.to_owned(), b.to_owned()));
    let lines: Lines = stdout.lines().filter_map(split).collect();
    let why = match output.status.code() {
        Some(SKIPPED) => return Run::Skipped(stderr),
        Some(code) if TIMED_OUT.contains(&code) => {
            let last = lines.last().map_or("anything", |(name, _)| name);
            format!("hangs: not finished after {SECONDS_MAX} s, behind the line \"{last}\"")
        }
        Some(0) if left > 0 => format!("left {left} files behind"),
        Some(0) if lines.is_empty() => "printed nothing".to_owned(),
        // Neither a program nor a library in its house prints what nobody asked for.
        Some(0) if !stderr.is_empty() => format!("complains: {stderr}"),
        Some(0) => return Run::Finished(lines),
        _ => format!("{}\n{stderr}", output.status),
    };
    Run::Failed { lines, why }
}

#[test]
fn every_program_is_in_the_list() {
    let found: BTreeSet<String> = sources()
        .read_dir()
        .expect("the sources are there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    let listed: BTreeSet<String> = PROGRAMS.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(found, listed);
    for entry in DIFFERENCES {
        assert!(listed.contains(entry.program), "no program {}", entry.program);
        assert!(!entry.reason.is_empty() && entry.original != entry.ours, "{}", entry.line);
    }
}

#[test]
fn the_comparison_finds_what_it_should() {
    let lines = |text: &str| -> Lines {
        let split = |line: &str| line.split_once(": ").map(|(a, b)| (a.into(), b.into()));
        text.lines().filter_map(split).collect()
    };
    let table = [
        differs(("p", "always"), ("1", "2"), Occurs::Always, "reason"),
        differs(("p", "may"), ("1", "2"), Occurs::May, "reason"),
        differs(("other", "always"), ("1", "3"), Occurs::Always, "reason"),
    ];
    let original = lines("always: 1\nmay: 1\nplain: 1");
    let count = |ours: &str| differing(&original, &lines(ours), "p", &table).len();
    assert_eq!(count("always: 2\nmay: 2\nplain: 1"), 0);
    assert_eq!(count("always: 2\nmay: 1\nplain: 1"), 0);
    assert_eq!(count("always: 1\nmay: 1\nplain: 1"), 1, "a stale entry");
    assert_eq!(count("always: 3\nmay: 1\nplain: 1"), 1, "another answer than the table's");
    assert_eq!(count("always: 2\nmay: 3\nplain: 1"), 1, "the same for one that may");
    assert_eq!(count("always: 2\nmay: 1\nplain: 2"), 1, "a difference");
    assert_eq!(count("always: 2\nmay: 1"), 1, "a line is missing");
    assert_eq!(count("always: 2\nmay: 1\nplain: 1\nnew: 1"), 1, "a line too many");
    assert_eq!(count("always: 2\nmay: 1\nplain: 1\nplain: 1"), 1, "a line twice");
    assert_eq!(differing(&lines("x: 1"), &lines("x: 1"), "p", &table).len(), 2, "no such lines");
}
