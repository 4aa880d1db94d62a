//! The function matrix of a drop-in's README: which case of which function is compared, and how it ends.
//!
//! The programs say what their answers cover; the suite says which cases there must be. A table in
//! the README that is not what the run produced is a failure, and is written anew where
//! `URINGLET_WRITE_MATRIX` is set.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use super::{Build, Difference, Line, Outcome, Suite, skipped};

const BEGIN: &str =
    "<!-- matrix: written by the differential tests with URINGLET_WRITE_MATRIX=1 -->\n";
const END: &str = "<!-- end of the matrix -->\n";

/// A function with its cases: success, each errno of its manual page, each kind of notification.
pub type Function = (&'static str, &'static [&'static str]);

/// A case that no program can bring about: function, case, reason.
pub type Untested = (&'static str, &'static str, &'static str);

/// The answers that cover one case.
#[derive(Default)]
struct Cell {
    programs: BTreeSet<String>,
    answers: usize,
    differing: usize,
    reasons: BTreeSet<&'static str>,
}

impl Cell {
    fn add(&mut self, program: &str, line: &Line, table: &[Difference]) {
        self.programs.insert(program.to_owned());
        self.answers += 1;
        let entry = |entry: &&Difference| entry.program == program && entry.line == line.name;
        let mut entries = table.iter().filter(entry).peekable();
        self.differing += usize::from(entries.peek().is_some());
        self.reasons.extend(entries.map(|entry| entry.reason));
    }

    fn row(&self) -> String {
        let programs: Vec<_> = self.programs.iter().map(|name| format!("`{name}`")).collect();
        let result = if self.differing == 0 {
            "same".to_owned()
        } else {
            let reasons: Vec<_> = self.reasons.iter().copied().collect();
            format!("{} differ: {}", self.differing, reasons.join("; "))
        };
        format!("{} | {} | {result}", programs.join(", "), self.answers)
    }
}

type Cells = BTreeMap<(String, String), Cell>;

/// Compares the README's matrix with what the programs cover, or writes it.
pub fn check(suite: &Suite, functions: &[Function], untested: &[Untested]) {
    let mut complaints = Vec::new();
    let mut builds = Vec::new();
    for build in suite.builds {
        let Some(cells) = collect(suite, build, &mut complaints) else {
            return;
        };
        builds.push((build, cells));
    }
    assert!(complaints.is_empty(), "no matrix: {}", complaints.join(", "));
    for (_, cells) in &builds {
        complaints.extend(holes(cells, functions, untested));
    }
    complaints.sort();
    complaints.dedup();
    assert!(complaints.is_empty(), "no matrix:\n{}", complaints.join("\n"));
    let table = render(&builds, functions, untested);
    let path = Path::new(suite.manifest).join("README.md");
    let readme = std::fs::read_to_string(&path).expect("the drop-in has a README");
    let (before, rest) = readme.split_once(BEGIN).expect("the README says where the matrix begins");
    let (present, after) = rest.split_once(END).expect("and where it ends");
    if present == table {
        return;
    }
    if std::env::var_os("URINGLET_WRITE_MATRIX").is_some_and(|value| !value.is_empty()) {
        let written = std::fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}"));
        written.expect("the README can be written");
        return;
    }
    let (old, new): (BTreeSet<_>, BTreeSet<_>) =
        (present.lines().collect(), table.lines().collect());
    let gone: Vec<_> = old.difference(&new).map(|line| format!("- {line}")).collect();
    let come: Vec<_> = new.difference(&old).map(|line| format!("+ {line}")).collect();
    panic!(
        "the matrix in {} is not what the programs cover (URINGLET_WRITE_MATRIX=1 writes it):\n{}\n{}",
        path.display(),
        gone.join("\n"),
        come.join("\n")
    );
}

/// What each case's answers are; nothing if a program cannot run here.
fn collect(suite: &Suite, build: &Build, complaints: &mut Vec<String>) -> Option<Cells> {
    let mut cells = Cells::new();
    for &program in suite.programs {
        match suite.outcome(program, build) {
            Outcome::AsExpected(lines) => {
                for line in &lines {
                    for case in &line.covers {
                        cells.entry(case.clone()).or_default().add(
                            program,
                            line,
                            suite.differences,
                        );
                    }
                }
            }
            Outcome::Skipped(reason) => {
                skipped("the matrix", &format!("{program} does not run here: {reason}"));
                return None;
            }
            Outcome::Failed(_) => complaints.push(format!("{program}{} fails", build.suffix)),
        }
    }
    Some(cells)
}

/// Cases that nobody has declared, and declared ones that nobody covers.
fn holes(cells: &Cells, functions: &[Function], untested: &[Untested]) -> Vec<String> {
    let declared: BTreeSet<_> = functions
        .iter()
        .flat_map(|(function, cases)| cases.iter().map(|case| (*function, *case)))
        .collect();
    let covered: BTreeSet<_> = cells.keys().map(|(f, c)| (f.as_str(), c.as_str())).collect();
    let argued: BTreeSet<_> = untested.iter().map(|(f, c, _)| (*f, *c)).collect();
    let mut complaints = Vec::new();
    for (function, case) in covered.difference(&declared) {
        complaints.push(format!("{function}, {case}: not a case of the list"));
    }
    for (function, case) in covered.intersection(&argued) {
        complaints.push(format!("{function}, {case}: said to be untested, but it is"));
    }
    for (function, case) in declared.difference(&covered) {
        if !argued.contains(&(function, case)) {
            complaints
                .push(format!("{function}, {case}: no answer covers it, and no reason is given"));
        }
    }
    for (function, case) in argued.difference(&declared) {
        complaints.push(format!("{function}, {case}: untested, but not a case of the list"));
    }
    complaints
}

fn render(builds: &[(&Build, Cells)], functions: &[Function], untested: &[Untested]) -> String {
    let mut table =
        String::from("| function | case | programs | answers | result |\n|---|---|---|---|---|\n");
    for (function, cases) in functions {
        let rows = |cells: &Cells| -> Vec<String> {
            let row = |case: &&str| {
                let key = ((*function).to_owned(), (*case).to_owned());
                let reason = untested.iter().find(|(f, c, _)| f == function && c == case);
                let absent = || {
                    reason.map_or_else(String::new, |(.., why)| format!("| | not tested: {why}"))
                };
                cells.get(&key).map_or_else(absent, Cell::row)
            };
            cases.iter().map(row).collect()
        };
        // One block for all names that answer alike.
        let mut blocks: Vec<(Vec<String>, Vec<String>)> = Vec::new();
        for (build, cells) in builds {
            let (name, rows) = (format!("`{function}{}`", build.suffix), rows(cells));
            match blocks.iter_mut().find(|(_, other)| *other == rows) {
                Some((names, _)) => names.push(name),
                None => blocks.push((vec![name], rows)),
            }
        }
        for (names, rows) in blocks {
            let mut names = names.join(", ");
            for (case, row) in cases.iter().zip(rows) {
                let _ = writeln!(table, "| {} | {case} | {row} |", std::mem::take(&mut names));
            }
        }
    }
    table
}
