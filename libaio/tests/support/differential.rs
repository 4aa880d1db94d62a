//! The same C program on the original library and on a drop-in: equal answers expected.
//!
//! Each program prints `name: answer` lines. The suite's table lists intended differences with
//! their reasons; an entry that no longer occurs is a failure, too.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, OnceLock};

pub mod matrix;

/// A program that takes longer hangs. On a busy machine, some take a minute.
const SECONDS_MAX: &str = "300";
/// A program's exit status for "cannot be tested here"; the reason is on its stderr.
const SKIPPED: i32 = 77;
/// The exit status of timeout(1), and of a program that it had to kill.
const TIMED_OUT: [i32; 2] = [124, 137];

/// Does a difference occur on every run?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occurs {
    /// The difference always occurs: otherwise its entry is out of date.
    #[allow(dead_code, reason = "which kinds a table uses changes with its library")]
    Always,
    /// The difference depends on timing.
    #[allow(dead_code, reason = "which kinds a table uses changes with its library")]
    May,
}

/// A line with an intended difference.
#[derive(Clone, Copy, Debug)]
pub struct Difference {
    pub program: &'static str,
    pub line: &'static str,
    pub original: &'static str,
    pub ours: &'static str,
    pub occurs: Occurs,
    pub reason: &'static str,
}

pub const fn differs(
    (program, line): (&'static str, &'static str),
    (original, ours): (&'static str, &'static str),
    occurs: Occurs,
    reason: &'static str,
) -> Difference {
    Difference { program, line, original, ours, occurs, reason }
}

/// One way to build every program.
#[derive(Clone, Copy, Debug)]
pub struct Build {
    /// The suffix of this build for the names of the functions that a program calls.
    pub suffix: &'static str,
    /// Flags for the C compiler.
    pub flags: &'static [&'static str],
}

/// The programs of a drop-in, and the expected differences.
#[derive(Debug)]
pub struct Suite {
    /// The file of the drop-in.
    pub library: fn() -> PathBuf,
    /// The environment variable that tells programs which library to find.
    pub expected: &'static str,
    /// The programs are in `tests/c` of this folder, the matrix in its README.
    pub manifest: &'static str,
    /// Arguments for the linker.
    pub link: &'static [&'static str],
    pub builds: &'static [Build],
    pub programs: &'static [&'static str],
    pub differences: &'static [Difference],
}

/// An answer, its name, and the function and case that it covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    name: String,
    answer: String,
    covers: Vec<(String, String)>,
}

impl Line {
    /// `name: answer`, or `[function case; function case] name: answer`.
    fn parse(text: &str) -> Option<Self> {
        let (name, answer) = text.split_once(": ")?;
        let tagged = name.strip_prefix('[').and_then(|rest| rest.split_once("] "));
        let (tags, name) = tagged.unwrap_or(("", name));
        let covers = tags.split("; ").filter_map(|tag| tag.split_once(' '));
        Some(Self {
            name: name.to_owned(),
            answer: answer.to_owned(),
            covers: covers.map(|(function, case)| (function.into(), case.into())).collect(),
        })
    }
}

fn parse(text: &str) -> Vec<Line> {
    text.lines().filter_map(Line::parse).collect()
}

enum Run {
    Finished(Vec<Line>),
    Skipped(String),
    Failed { lines: Vec<Line>, why: String },
}

/// The result of one program in one build.
#[derive(Clone, Debug)]
enum Outcome {
    /// Equal, except for the differences of the table.
    AsExpected(Vec<Line>),
    Skipped(String),
    Failed(String),
}

type Outcomes = BTreeMap<(&'static str, &'static str), Arc<OnceLock<Outcome>>>;

/// Each program runs once, for its own test or for the matrix, whichever comes first.
static OUTCOMES: Mutex<Outcomes> = Mutex::new(BTreeMap::new());

impl Suite {
    /// The test of one program, in every build.
    pub fn check(&self, name: &'static str) {
        for build in self.builds {
            match self.outcome(name, build) {
                Outcome::AsExpected(_) => {}
                Outcome::Skipped(reason) => skipped(name, &reason),
                Outcome::Failed(complaint) => panic!("{complaint}"),
            }
        }
    }

    /// The test of one program on a certain engine.
    pub fn check_on(&self, engine: &'static str, name: &'static str) {
        match self.compare(name, &Build { suffix: engine, flags: &[] }, Some(engine)) {
            Outcome::AsExpected(_) => {}
            Outcome::Skipped(reason) => skipped(&format!("{name} on {engine}"), &reason),
            Outcome::Failed(complaint) => panic!("on {engine}: {complaint}"),
        }
    }

    /// Checks that the sources and the table match the list of programs.
    pub fn check_list(&self) {
        let found: BTreeSet<String> = self
            .sources()
            .read_dir()
            .expect("the sources are there")
            .map(|entry| entry.expect("readable").path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
            .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
            .collect();
        let listed: BTreeSet<String> =
            self.programs.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(found, listed);
        for entry in self.differences {
            assert!(listed.contains(entry.program), "no program {}", entry.program);
            assert!(!entry.reason.is_empty() && entry.original != entry.ours, "{}", entry.line);
        }
    }

    fn outcome(&self, name: &'static str, build: &Build) -> Outcome {
        let cell = {
            let mut outcomes = OUTCOMES.lock().expect("no test panics while it holds this");
            Arc::clone(outcomes.entry((name, build.suffix)).or_default())
        };
        cell.get_or_init(|| self.compare(name, build, None)).clone()
    }

    fn compare(&self, name: &str, build: &Build, engine: Option<&str>) -> Outcome {
        let library = (self.library)();
        let program = self.compile(name, build);
        let label = format!("{name}{}", build.suffix);
        let original = match self.run(&program, None, None) {
            Run::Finished(lines) => lines,
            Run::Skipped(reason) => return Outcome::Skipped(reason),
            Run::Failed { why, .. } => {
                return Outcome::Failed(format!("{label} fails on the original library: {why}"));
            }
        };
        let ours = match self.run(&program, Some(&library), engine) {
            Run::Finished(lines) => lines,
            Run::Skipped(reason) => {
                let complaint =
                    format!("{label} ran on the original library, but not here: {reason}");
                return Outcome::Failed(complaint);
            }
            Run::Failed { lines, why } => {
                let mut complaint = format!("{label} on {}: {why}\n", library.display());
                // Lines that the program did not reach do not count.
                let reached = &original[..lines.len().min(original.len())];
                for line in differing(reached, &lines, name, &[]) {
                    complaint.push_str(&line);
                }
                return Outcome::Failed(complaint);
            }
        };
        let complaints = differing(&original, &ours, name, self.differences);
        if complaints.is_empty() {
            return Outcome::AsExpected(original);
        }
        let count = complaints.len();
        Outcome::Failed(format!("{label}: {count} unexpected\n{}", complaints.concat()))
    }

    fn sources(&self) -> PathBuf {
        Path::new(self.manifest).join("tests/c")
    }

    fn compile(&self, name: &str, build: &Build) -> PathBuf {
        // The suite of the other drop-in has programs of the same names, and may run at the same
        // time.
        let suite = Path::new(self.manifest).file_name().unwrap_or_default().to_string_lossy();
        let program =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{suite}-{name}{}", build.suffix));
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let output = Command::new(&compiler)
            .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-pthread"])
            .args(build.flags)
            .arg("-o")
            .arg(&program)
            .arg(self.sources().join(name).with_extension("c"))
            .args(self.link)
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

    /// Runs a program with a time limit, in a folder of its own that it has to leave empty.
    fn run(&self, program: &Path, preload: Option<&Path>, engine: Option<&str>) -> Run {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", SECONDS_MAX, "env"]).env("TMPDIR", folder.path());
        // Cargo's own search path must not decide which library is the original.
        command.env_remove("LD_LIBRARY_PATH").env_remove("LD_PRELOAD");
        if let Some(engine) = engine {
            command.env("URINGLET_ENGINE", engine);
        }
        match preload {
            Some(library) => {
                command.arg(format!("LD_PRELOAD={}", library.display())).env(self.expected, library)
            }
            None => command.env(self.expected, "original"),
        };
        let output = command.arg(program).output().expect("timeout(1) is part of coreutils");
        let left: Vec<_> = folder.path().read_dir().expect("the folder is there").collect();
        judge(&output, left.len())
    }
}

/// Differences that are not in the table, and entries of the table that do not occur.
fn differing(original: &[Line], ours: &[Line], name: &str, table: &[Difference]) -> Vec<String> {
    let mut complaints = Vec::new();
    let table: Vec<_> = table.iter().filter(|entry| entry.program == name).collect();
    for (whose, lines) in [("original", original), ("ours", ours)] {
        let mut names = BTreeSet::new();
        for line in lines.iter().filter(|line| !names.insert(&line.name)) {
            complaints.push(format!("  {}: printed twice ({whose})\n", line.name));
        }
    }
    let answers: BTreeMap<_, _> =
        ours.iter().map(|line| (&line.name, line.answer.as_str())).collect();
    let known: BTreeSet<_> = original.iter().map(|line| &line.name).collect();
    for Line { name: line, answer: native, .. } in original {
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
    for line in ours.iter().filter(|line| !known.contains(&line.name)) {
        let Line { name, answer, .. } = line;
        complaints.push(format!("  {name}: original (no such line) | ours {answer}\n"));
    }
    for entry in table.iter().filter(|entry| !known.iter().any(|line| *line == entry.line)) {
        complaints.push(format!("  {}: in the table, but not a line of {name}\n", entry.line));
    }
    complaints
}

/// Reports that a test is skipped, by a write to standard error that the harness does not capture.
fn skipped(name: &str, reason: &str) {
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {name}: {reason}");
}

fn judge(output: &Output, left: usize) -> Run {
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let lines = parse(&String::from_utf8_lossy(&output.stdout));
    let why = match output.status.code() {
        Some(SKIPPED) => return Run::Skipped(stderr),
        Some(code) if TIMED_OUT.contains(&code) => {
            let last = lines.last().map_or("anything", |line| &line.name);
            format!("hangs: not finished after {SECONDS_MAX} s, behind the line \"{last}\"")
        }
        Some(0) if left > 0 => format!("left {left} files behind"),
        Some(0) if lines.is_empty() => "printed nothing".to_owned(),
        // A library inside a program must not print anything.
        Some(0) if !stderr.is_empty() => format!("complains: {stderr}"),
        Some(0) => return Run::Finished(lines),
        _ => format!("{}\n{stderr}", output.status),
    };
    Run::Failed { lines, why }
}

#[test]
fn the_comparison_finds_what_it_should() {
    let table = [
        differs(("p", "always"), ("1", "2"), Occurs::Always, "reason"),
        differs(("p", "may"), ("1", "2"), Occurs::May, "reason"),
        differs(("other", "always"), ("1", "3"), Occurs::Always, "reason"),
    ];
    let original = parse("[f a; g b] always: 1\nmay: 1\n[f a] plain: 1");
    let count = |ours: &str| differing(&original, &parse(ours), "p", &table).len();
    assert_eq!(count("always: 2\nmay: 2\nplain: 1"), 0);
    assert_eq!(count("always: 2\nmay: 1\nplain: 1"), 0);
    assert_eq!(count("always: 1\nmay: 1\nplain: 1"), 1, "a stale entry");
    assert_eq!(count("always: 3\nmay: 1\nplain: 1"), 1, "another answer than the table's");
    assert_eq!(count("always: 2\nmay: 3\nplain: 1"), 1, "the same for one that may");
    assert_eq!(count("always: 2\nmay: 1\nplain: 2"), 1, "a difference");
    assert_eq!(count("always: 2\nmay: 1"), 1, "a line is missing");
    assert_eq!(count("always: 2\nmay: 1\nplain: 1\nnew: 1"), 1, "a line too many");
    assert_eq!(count("always: 2\nmay: 1\nplain: 1\nplain: 1"), 1, "a line twice");
    assert_eq!(differing(&parse("x: 1"), &parse("x: 1"), "p", &table).len(), 2, "no such lines");
}
