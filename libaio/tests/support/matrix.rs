//! The function matrix of a drop-in's README: which case of which function is compared, and the
//! result.
//!
//! The programs, or a table beside them, say which cases their answers cover; the suite lists the
//! required cases. If the README's table differs from the table of this run, the test fails. With
//! `URINGLET_WRITE_MATRIX`, it writes the new table into the README instead.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use super::{Build, Difference, Line, Occurs, Outcome, Suite, skipped};

const BEGIN: &str =
    "<!-- matrix: written by the differential tests with URINGLET_WRITE_MATRIX=1 -->\n";
const END: &str = "<!-- end of the matrix -->\n";

/// A function with its cases: success, each errno of its manual page, each kind of notification.
pub type Function = (&'static str, &'static [&'static str]);

/// A case that no program can produce: function, case, reason.
pub type Untested = (&'static str, &'static str, &'static str);

/// Answers that cover a case, although their names do not tell it: function, case, program, names
/// of the answers. A `*` at the end of a name matches anything.
pub type Covers = (&'static str, &'static str, &'static str, &'static [&'static str]);

/// The required cases of a drop-in.
#[derive(Debug)]
pub struct Matrix {
    pub functions: &'static [Function],
    /// The functions that have the same name in every build.
    pub unsuffixed: &'static [&'static str],
    pub untested: &'static [Untested],
    pub covers: &'static [Covers],
}

/// The answers that cover one case.
#[derive(Default)]
struct Cell {
    programs: BTreeSet<String>,
    answers: usize,
    /// The number of answers that always differ, and of answers that sometimes differ.
    differing: [usize; 2],
    reasons: BTreeSet<&'static str>,
}

impl Cell {
    fn add(&mut self, program: &str, line: &Line, table: &[Difference]) {
        self.programs.insert(program.to_owned());
        self.answers += 1;
        let entry = |entry: &&Difference| entry.program == program && entry.line == line.name;
        let entries = table.iter().filter(entry);
        if let Some(first) = entries.clone().next() {
            self.differing[usize::from(first.occurs == Occurs::May)] += 1;
        }
        self.reasons.extend(entries.map(|entry| entry.reason));
    }

    fn row(&self) -> String {
        let programs: Vec<_> = self.programs.iter().map(|name| format!("`{name}`")).collect();
        let reasons: Vec<_> = self.reasons.iter().copied().collect();
        let reasons = reasons.join("; ");
        let result = match self.differing {
            [0, 0] => "same".to_owned(),
            [0, may] => format!("{may} may differ: {reasons}"),
            [1, 0] => format!("1 differs: {reasons}"),
            [always, 0] => format!("{always} differ: {reasons}"),
            [always, may] => format!("{always} always and {may} at times differ: {reasons}"),
        };
        format!("{} | {} | {result}", programs.join(", "), self.answers)
    }
}

type Cells = BTreeMap<(String, String), Cell>;

impl Matrix {
    /// Compares the README's matrix with what the programs cover, or writes it.
    pub fn check(&self, suite: &Suite) {
        let mut complaints = Vec::new();
        let mut builds = Vec::new();
        for build in suite.builds {
            match self.collect(suite, build, &mut complaints) {
                Some(cells) => builds.push((build, cells)),
                None => return,
            }
        }
        assert!(complaints.is_empty(), "no matrix: {}", complaints.join(", "));
        for (_, cells) in &builds {
            complaints.extend(self.holes(cells));
        }
        complaints.sort();
        complaints.dedup();
        assert!(complaints.is_empty(), "no matrix:\n{}", complaints.join("\n"));
        publish(&Path::new(suite.manifest).join("README.md"), &self.render(&builds));
    }

    /// The answers of each case; `None` if a program cannot run here.
    fn collect(&self, suite: &Suite, build: &Build, complaints: &mut Vec<String>) -> Option<Cells> {
        let mut cells = Cells::new();
        for &program in suite.programs {
            let lines = match suite.outcome(program, build) {
                Outcome::AsExpected(lines) => lines,
                Outcome::Skipped(reason) => {
                    skipped("the matrix", &format!("{program} does not run here: {reason}"));
                    return None;
                }
                Outcome::Failed(_) => {
                    complaints.push(format!("{program}{} fails", build.suffix));
                    continue;
                }
            };
            for line in &lines {
                for case in &line.covers {
                    cells.entry(case.clone()).or_default().add(program, line, suite.differences);
                }
            }
            for (function, case, _, names) in
                self.covers.iter().filter(|(.., at, _)| *at == program)
            {
                for name in *names {
                    let mut found =
                        lines.iter().filter(|line| matches(name, &line.name)).peekable();
                    if found.peek().is_none() {
                        complaints.push(format!("{program} has no line \"{name}\""));
                    }
                    let cell = cells.entry(((*function).into(), (*case).into())).or_default();
                    found.for_each(|line| cell.add(program, line, suite.differences));
                }
            }
        }
        Some(cells)
    }

    /// Complaints about undeclared cases that are covered, and declared cases that are not.
    fn holes(&self, cells: &Cells) -> Vec<String> {
        let declared: BTreeSet<_> = self
            .functions
            .iter()
            .flat_map(|(function, cases)| cases.iter().map(|case| (*function, *case)))
            .collect();
        let covered: BTreeSet<_> = cells.keys().map(|(f, c)| (f.as_str(), c.as_str())).collect();
        let argued: BTreeSet<_> = self.untested.iter().map(|(f, c, _)| (*f, *c)).collect();
        let mut complaints = Vec::new();
        let mut complain = |(function, case): &(&str, &str), what: &str| {
            complaints.push(format!("{function}, {case}: {what}"));
        };
        covered.difference(&declared).for_each(|at| complain(at, "not a case of the list"));
        covered.intersection(&argued).for_each(|at| complain(at, "is tested after all"));
        argued
            .difference(&declared)
            .for_each(|at| complain(at, "no case, but said to be untested"));
        declared
            .difference(&covered)
            .filter(|at| !argued.contains(*at))
            .for_each(|at| complain(at, "no answer covers it, and no reason is given"));
        complaints
    }

    fn render(&self, builds: &[(&Build, Cells)]) -> String {
        let mut table = String::from(
            "| function | case | programs | answers | result |\n|---|---|---|---|---|\n",
        );
        for (function, cases) in self.functions {
            let rows = |cells: &Cells| -> Vec<String> {
                let row = |case: &&str| {
                    let key = ((*function).to_owned(), (*case).to_owned());
                    let reason = self.untested.iter().find(|(f, c, _)| f == function && c == case);
                    let absent = || {
                        reason
                            .map_or_else(String::new, |(.., why)| format!("| | not tested: {why}"))
                    };
                    cells.get(&key).map_or_else(absent, Cell::row)
                };
                cases.iter().map(row).collect()
            };
            // The names of a function in several builds share a block if their rows are equal.
            let mut blocks: Vec<(Vec<String>, Vec<String>)> = Vec::new();
            for (build, cells) in builds {
                let suffixed = !self.unsuffixed.contains(function);
                let suffix = if suffixed { build.suffix } else { "" };
                let (name, rows) = (format!("`{function}{suffix}`"), rows(cells));
                match blocks.iter_mut().find(|(_, other)| *other == rows) {
                    Some((names, _)) if names.contains(&name) => {}
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
}

fn matches(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |start| name.starts_with(start))
}

/// Compares the table between the README's marks with `table`. If they differ, writes `table` there
/// if `URINGLET_WRITE_MATRIX` is set, and fails otherwise.
fn publish(path: &Path, table: &str) {
    let readme = std::fs::read_to_string(path).expect("the drop-in has a README");
    let (before, rest) = readme.split_once(BEGIN).expect("the README says where the matrix begins");
    let (present, after) = rest.split_once(END).expect("and where it ends");
    if present == table {
        return;
    }
    if std::env::var_os("URINGLET_WRITE_MATRIX").is_some_and(|value| !value.is_empty()) {
        let written = std::fs::write(path, format!("{before}{BEGIN}{table}{END}{after}"));
        return written.expect("the README can be written");
    }
    let (old, new): (BTreeSet<_>, BTreeSet<_>) =
        (present.lines().collect(), table.lines().collect());
    let gone: Vec<_> = old.difference(&new).map(|line| format!("- {line}")).collect();
    let come: Vec<_> = new.difference(&old).map(|line| format!("+ {line}")).collect();
    panic!(
        "the matrix in {} is not what the programs cover (URINGLET_WRITE_MATRIX=1 writes it):\n\
         {}\n{}",
        path.display(),
        gone.join("\n"),
        come.join("\n")
    );
}

#[test]
fn the_matrix_notices_holes() {
    let matrix = Matrix {
        functions: &[("f", &["covered", "forgotten", "argued", "argued too much"])],
        unsuffixed: &[],
        untested: &[
            ("f", "argued", "why"),
            ("f", "argued too much", "why"),
            ("g", "unknown", "why"),
        ],
        covers: &[],
    };
    let mut cells = Cells::new();
    for case in ["covered", "argued too much", "not declared"] {
        cells.insert(("f".to_owned(), case.to_owned()), Cell::default());
    }
    let mut complaints = matrix.holes(&cells);
    complaints.sort();
    let expected = [
        "f, argued too much: is tested after all",
        "f, forgotten: no answer covers it, and no reason is given",
        "f, not declared: not a case of the list",
        "g, unknown: no case, but said to be untested",
    ];
    assert_eq!(complaints, expected);
    assert!(
        matches("a", "a") && !matches("a", "ab") && matches("a*", "ab") && !matches("b*", "ab")
    );
}

#[test]
fn a_row_tells_what_differs() {
    let line =
        |name: &str| Line { name: name.to_owned(), answer: String::new(), covers: Vec::new() };
    let table = [
        super::differs(("p", "x"), ("1", "2"), Occurs::Always, "because"),
        super::differs(("p", "y"), ("1", "2"), Occurs::May, "perhaps"),
    ];
    let mut cell = Cell::default();
    cell.add("p", &line("z"), &table);
    assert_eq!(cell.row(), "`p` | 1 | same");
    cell.add("q", &line("x"), &table);
    cell.add("p", &line("x"), &table);
    assert_eq!(cell.row(), "`p`, `q` | 3 | 1 differs: because");
    cell.add("p", &line("y"), &table);
    assert_eq!(cell.row(), "`p`, `q` | 4 | 1 always and 1 at times differ: because; perhaps");
}
