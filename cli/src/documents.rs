//! Checks the documents: links lead somewhere, command lines can be parsed, variables and tests
//! exist. Also checks the whole tree: the width of lines, the length of functions, and plain words.
//! Each type of a library has a name of its own, and imports point one way (`imports.rs`).

use crate::Cli;
use clap::{Command, CommandFactory as _, error::ErrorKind};
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

mod imports;

const PREFIX: &str = "URINGLET_";

/// The longest line, in characters.
const WIDTH: usize = 100;

/// The files of the repository with one of these endings, by their path in it.
fn files(endings: &[&str]) -> BTreeMap<PathBuf, String> {
    fn walk(folder: &Path, root: &Path, endings: &[&str], found: &mut BTreeMap<PathBuf, String>) {
        for entry in folder.read_dir().unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if name.starts_with('.') || name == "target" {
                continue;
            }
            if path.is_dir() {
                walk(&path, root, endings, found);
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                let text = std::fs::read_to_string(&path).unwrap();
                found.insert(path.strip_prefix(root).unwrap().to_owned(), text);
            }
        }
    }
    let root = root();
    let mut found = BTreeMap::new();
    walk(&root, &root, endings, &mut found);
    assert!(!found.is_empty(), "no {endings:?} in {}", root.display());
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The parts of a document that are checked.
#[derive(Default)]
struct Document {
    /// Text and destination, images included.
    links: Vec<(String, String)>,
    /// Anchors, as code hosts and mdBook make them from headings.
    anchors: BTreeSet<String>,
    /// The code blocks for a shell.
    shell: Vec<String>,
}

impl Document {
    fn new(text: &str) -> Self {
        let mut document = Self::default();
        // The text of the innermost element.
        let mut inner = String::new();
        let mut destination = String::new();
        let mut in_shell = false;
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Heading { .. }) => inner.clear(),
                Event::End(TagEnd::Heading(_)) => document.add_anchor(&inner),
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    inner.clear();
                    destination = dest_url.to_string();
                }
                Event::End(TagEnd::Link | TagEnd::Image) => {
                    document.links.push((inner.clone(), destination.clone()));
                }
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => {
                    in_shell = &*language == "sh";
                }
                Event::End(TagEnd::CodeBlock) => in_shell = false,
                Event::Text(text) if in_shell => document.shell.push(text.to_string()),
                Event::Text(text) | Event::Code(text) => inner.push_str(&text),
                _ => {}
            }
        }
        document
    }

    fn add_anchor(&mut self, headline: &str) {
        let kept = |c: char| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            _ => c.is_alphanumeric().then_some(c),
        };
        let anchor: String = headline.to_lowercase().chars().filter_map(kept).collect();
        let again = (1..).map(|n| format!("{anchor}-{n}"));
        let free = std::iter::once(anchor.clone()).chain(again).find(|a| !self.anchors.contains(a));
        self.anchors.extend(free);
    }
}

fn documents() -> BTreeMap<PathBuf, Document> {
    files(&[".md"]).into_iter().map(|(path, text)| (path, Document::new(&text))).collect()
}

/// The file in the repository that a link leads to; none if it leads out of the repository.
fn target(document: &Path, link: &str) -> Option<PathBuf> {
    let mut path = document.parent().unwrap().to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => path.pop().then_some(())?,
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    Some(path)
}

#[test]
fn every_link_leads_somewhere() {
    let documents = documents();
    let mut broken = Vec::new();
    for (name, document) in &documents {
        let elsewhere = |link: &str| link.contains("://") || link.starts_with("mailto:");
        for (_, link) in document.links.iter().filter(|(_, link)| !elsewhere(link)) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let file = if path.is_empty() { Some(name.clone()) } else { target(name, path) };
            let there = file.as_ref().is_some_and(|file| root().join(file).exists());
            let headline = anchor.is_empty()
                || file
                    .and_then(|file| documents.get(&file))
                    .is_some_and(|d| d.anchors.contains(anchor));
            if !there || !headline {
                broken.push(format!("{}: {link}", name.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_page_is_in_the_summary_and_every_picture_says_what_it_shows() {
    let documents = documents();
    let summary = Path::new("docs/SUMMARY.md");
    let listed: BTreeSet<PathBuf> =
        documents[summary].links.iter().filter_map(|(_, link)| target(summary, link)).collect();
    for page in documents.keys().filter(|page| page.starts_with("docs") && *page != summary) {
        assert!(listed.contains(page), "{} is not in {}", page.display(), summary.display());
    }
    for (name, picture) in files(&[".svg"]) {
        let used = |d: &Document, at: &Path| {
            d.links.iter().any(|(_, l)| target(at, l).as_ref() == Some(&name))
        };
        for part in ["<title ", "<desc ", "prefers-color-scheme: dark"] {
            assert!(picture.contains(part), "{} has no {part}", name.display());
        }
        assert!(documents.iter().any(|(at, d)| used(d, at)), "{} is not shown", name.display());
    }
}

/// The names that begin with `URINGLET_`. With `behind`, only the names that follow this character.
fn variables(text: &str, behind: Option<char>) -> BTreeSet<String> {
    let name_of = |(at, _): (usize, &str)| {
        let end = |c: char| !c.is_ascii_uppercase() && c != '_';
        let rest = &text[at..];
        let name = &rest[..rest.find(end).unwrap_or(rest.len())];
        let fits = behind.is_none() || text[..at].chars().next_back() == behind;
        (fits && name.len() > PREFIX.len()).then(|| name.to_owned())
    };
    text.match_indices(PREFIX).filter_map(name_of).collect()
}

#[test]
fn every_variable_is_documented_and_every_documented_one_is_read() {
    let all = |files: BTreeMap<PathBuf, String>, behind| -> BTreeSet<String> {
        files.values().flat_map(|text| variables(text, behind)).collect()
    };
    let mut sources = files(&[".rs", ".c", ".h"]);
    // Variables that `env!` reads at compile time come from a build script, not from a user.
    sources.values_mut().for_each(|text| *text = text.replace("env!(\"", ""));
    let mut read = all(sources, Some('"'));
    read.extend(all(files(&[".sh"]), None));
    let documented = all(files(&[".md"]), None);
    assert!(read.contains(&format!("{PREFIX}ENGINE")), "{read:?}");
    assert_eq!(documented, read, "documented, and read by the sources");
}

/// The command lines of a script that start uringlet, as words.
fn command_lines(script: &str) -> Vec<Vec<String>> {
    let mut lines = Vec::new();
    for line in script.replace("\\\n", " ").lines() {
        let words = shlex::split(line).unwrap_or_else(|| panic!("quotes in {line}"));
        for command in words.split(|word| matches!(&**word, "|" | "&&" | ";")) {
            // The command ends before a redirection.
            let command = command.split(|word| matches!(&**word, ">" | "2>")).next().unwrap();
            let mut words = command.iter().skip_while(|word| word.contains('=')).cloned();
            let Some(program) = words.next() else { continue };
            let rest: Vec<String> = words.collect();
            let rest = match Path::new(&program).file_name().and_then(|name| name.to_str()) {
                Some("uringlet") => &rest[..],
                // cargo builds or runs another package.
                Some("cargo") if rest.contains(&"--manifest-path".into()) => continue,
                // `cargo run --release -- bench`
                Some("cargo") if rest[0] == "run" && !rest.contains(&"--example".into()) => {
                    &rest[rest.iter().position(|word| word == "--").expect("arguments") + 1..]
                }
                _ => continue,
            };
            lines.push([&["uringlet".to_owned()], rest].concat());
        }
    }
    lines
}

/// The reason why the command would refuse these words.
fn refusal(words: &[String]) -> Option<String> {
    let error = Cli::command().try_get_matches_from(words).err()?;
    let asked = [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion].contains(&error.kind());
    (!asked).then(|| format!("{}\n{error}", words.join(" ")))
}

#[test]
fn every_command_line_in_the_documents_can_be_parsed() {
    let mut used = BTreeSet::new();
    for (name, document) in documents() {
        for words in document.shell.iter().flat_map(|script| command_lines(script)) {
            used.extend(words.get(1).cloned());
            if let Some(refusal) = refusal(&words) {
                panic!("{}: {refusal}", name.display());
            }
        }
    }
    let commands = documents().remove(Path::new("docs/commands.md")).unwrap();
    for command in Cli::command().get_subcommands() {
        let name = command.get_name();
        assert!(used.contains(name), "no document shows how to use `uringlet {name}`");
        let listed = commands.links.iter().any(|(text, _)| *text == format!("uringlet {name}"));
        assert!(listed, "`uringlet {name}` is not in docs/commands.md");
    }
    assert!(refusal(&["uringlet".into(), "bench".into(), "--nosuch".into()]).is_some());
}

#[test]
fn every_example_of_the_help_can_be_parsed() {
    fn check(command: &Command) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let examples = help.lines().filter_map(|line| line.strip_prefix("  uringlet "));
        for example in examples {
            // An explanation may follow, after at least three spaces.
            let line = format!("uringlet {}", example.split("   ").next().unwrap());
            for words in command_lines(&line) {
                assert_eq!(refusal(&words), None, "in the help of {}", command.get_name());
            }
        }
        command.get_subcommands().for_each(check);
    }
    check(&Cli::command());
}

#[test]
fn every_test_that_proves_a_guarantee_exists() {
    let page = Path::new("docs/guarantees.md");
    let sources = files(&[".rs", ".c"]);
    let document = documents().remove(page).unwrap();
    let in_tests = |link: &str| link.ends_with(".c") || link.ends_with(".rs");
    let named: Vec<_> = document.links.iter().filter(|(_, link)| in_tests(link)).collect();
    assert!(named.len() > 50, "only {} tests", named.len());
    for (name, link) in named {
        let file = target(page, link).unwrap();
        let source = sources.get(&file).unwrap_or_else(|| panic!("{link} is not there"));
        if name.ends_with(".c") {
            // The drop-in's differential tests run every program in `tests/c`.
            assert!(file.ends_with(name) && file.parent().unwrap().ends_with("tests/c"), "{link}");
            continue;
        }
        let test = format!("fn {name}(");
        let at = source.find(&test).unwrap_or_else(|| panic!("{link} has no {name}"));
        let above: Vec<&str> = source[..at].lines().rev().take(4).collect();
        assert!(above.iter().any(|line| line.contains("#[test]")), "{name} in {link} is no test");
    }
}

/// Is the line one word, after the mark of a comment or a list? Such a line cannot be broken.
fn is_one_word(line: &str) -> bool {
    let word = line.trim().trim_start_matches(['/', '!', '#', '*', '-']).trim_start();
    !word.contains(char::is_whitespace)
}

/// Is the line one link or picture, after the mark of a list? A link is easier to read in one line.
fn is_one_link(line: &str) -> bool {
    let line = line.trim().trim_start_matches("- ").trim_end_matches(['.', ',', ';', ':']);
    let link = line.strip_prefix('!').unwrap_or(line);
    let parts = link.strip_prefix('[').and_then(|link| link.strip_suffix(')')?.split_once("]("));
    parts.is_some_and(|(_, destination)| !destination.contains([' ', '(']))
}

/// The numbers and lengths of lines that are too long, and can be broken.
fn long_lines(name: &Path, text: &str) -> Vec<(usize, usize)> {
    let is_document = name.extension().is_some_and(|extension| extension == "md");
    let mut in_fence = false;
    let mut found = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        in_fence ^= is_document && line.trim_start().starts_with("```");
        let may_be_long = is_one_word(line)
            || if is_document {
                in_fence || line.trim_start().starts_with('|') || is_one_link(line)
            } else {
                line.contains("://")
            };
        let length = line.chars().count();
        if length > WIDTH && !may_be_long {
            found.push((number, length));
        }
    }
    found
}

#[test]
fn no_line_is_longer_than_a_hundred_characters() {
    let mut all = files(&[".rs", ".c", ".h", ".py", ".sh", ".md"]);
    for folder in [".ci", "ci"] {
        for entry in root().join(folder).read_dir().unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            all.insert(path.strip_prefix(root()).unwrap().to_owned(), text);
        }
    }
    for known in [".ci/run", "ci/test.sh", "core/src/lib.rs", "ARCHITECTURE.md"] {
        assert!(all.contains_key(Path::new(known)), "{known} is not looked at");
    }
    let mut complaints = Vec::new();
    for (name, text) in &all {
        for (number, length) in long_lines(name, text) {
            complaints.push(format!("{}:{number}: {length} characters", name.display()));
        }
    }
    assert!(complaints.is_empty(), "break these lines at {WIDTH} characters: {complaints:#?}");
}

#[test]
fn a_line_may_be_long_only_if_it_cannot_be_broken() {
    let words = "word ".repeat(21);
    let word = "a".repeat(101);
    let count = |name: &str, text: &str| long_lines(Path::new(name), text).len();
    assert_eq!(long_lines(Path::new("a.rs"), &format!("\n{words}")), [(2, 105)]);
    // Characters and not bytes are counted.
    assert_eq!(count("a.sh", &"– ".repeat(50)), 0);
    for (name, long) in [("a.rs", "// "), ("a.c", " * "), ("a.sh", "# "), ("a.md", "- ")] {
        assert_eq!(count(name, &format!("{long}{words}")), 1, "{name}");
        assert_eq!(count(name, &format!("{long}{word}")), 0, "{name}");
    }
    assert_eq!(count("a.rs", &format!("// {words} https://example.org")), 0);
    assert_eq!(count("a.rs", &format!("| {words} |")), 1);
    assert_eq!(count("a.md", &format!("| {words} |")), 0);
    assert_eq!(count("a.md", &format!("```sh\n{words}\n```\n{words}")), 1);
    assert_eq!(count("a.md", &format!("- [{words}]({word});")), 0);
    assert_eq!(count("a.md", &format!("![{words}]({word})")), 0);
    assert_eq!(count("a.md", &format!("[a]({word}), [b]({word})")), 1);
}

/// Phrases that readers have to read twice, each with a replacement.
const FOREIGN: [(&str, &str); 5] = [
    ("whoever", "the thread that, or another noun"),
    ("to be had", "is free, can be made"),
    ("for ever", "without end, never"),
    ("so many", "this many, or the number of"),
    // At the start of a sentence, where no noun comes before it.
    ("Those that", "the noun itself"),
];

/// The refused phrases in a text, each with its line number. A phrase may begin on one line and end
/// on the next.
fn foreign(text: &str) -> Vec<(usize, &'static str)> {
    let (mut joined, mut starts) = (String::new(), Vec::new());
    for line in text.lines() {
        starts.push(joined.len());
        joined.push_str(line.trim().trim_start_matches(['/', '!', '#', '*']).trim());
        joined.push(' ');
    }
    let lower = joined.to_ascii_lowercase();
    let is_word = |at: usize, length: usize| {
        let ends = [lower[..at].chars().next_back(), lower[at + length..].chars().next()];
        !ends.into_iter().flatten().any(char::is_alphanumeric)
    };
    let mut found = Vec::new();
    for (phrase, _) in FOREIGN {
        let text = if phrase.starts_with(char::is_uppercase) { &joined } else { &lower };
        let places = text.match_indices(phrase).filter(|(at, _)| is_word(*at, phrase.len()));
        found.extend(places.map(|(at, _)| (starts.partition_point(|&start| start <= at), phrase)));
    }
    found
}

#[test]
fn no_phrase_has_to_be_read_twice() {
    let text = "/// Whoever has it.\n//! Is any to be\n//! had?\nlet so_many = 1; // so many.\n\
                those that Those that forever";
    let expected = [(1, "whoever"), (2, "to be had"), (4, "so many"), (5, "Those that")];
    assert_eq!(foreign(text), expected);

    let all = files(&[".rs", ".c", ".h", ".py", ".sh", ".md"]);
    let mut complaints = Vec::new();
    for (name, text) in all.iter().filter(|(name, _)| !name.ends_with("documents.rs")) {
        let places = foreign(text).into_iter();
        complaints
            .extend(places.map(|(line, phrase)| format!("{}:{line}: {phrase}", name.display())));
    }
    assert!(complaints.is_empty(), "say it in other words, {FOREIGN:?}: {complaints:#?}");
}

/// The longest file, and the longest function, in lines.
const FILE_LINES: usize = 700;
const FUNCTION_LINES: usize = 70;

/// Functions that may be longer for now.
const LONG_FUNCTIONS: [&str; 6] = [
    "every_request_completes_once_while_another_thread_cancels",
    "in_a_child_operations_fail_with_their_buffers_and_nothing_hangs",
    "listio",
    "measure",
    "poll_slowly",
    "wrong_values_are_refused_with_field_value_and_expectation",
];

/// The functions of a source, and their lengths in lines.
fn functions(text: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let rest = line.trim_start();
        let Some((before, named)) = rest.split_once("fn ") else { continue };
        let is_code = before.split_whitespace().all(|word| {
            word.starts_with("pub")
                || word.ends_with(')')
                || word.starts_with('"')
                || ["const", "async", "unsafe", "extern"].contains(&word)
        });
        if !is_code {
            continue;
        }
        let indent = &line[..line.len() - rest.len()];
        let end = format!("{indent}}}");
        let length = lines[at..].iter().position(|line| *line == end).map_or(0, |end| end + 1);
        // A declaration, or a function in one line.
        let is_short = line.ends_with([';', '}']);
        let name = named.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
        found.push((name, if is_short { 1 } else { length }));
    }
    found
}

#[test]
fn files_and_functions_are_short_enough_to_read() {
    let text = "pub(crate) fn a(\n    b: u8,\n) {\n    c\n}\n    fn d() {}\n// fn e() {\n\
                    fn f() {\n}\n";
    assert_eq!(functions(text), [("a", 5), ("d", 1), ("f", 2)]);

    let mut complaints = Vec::new();
    for (name, text) in files(&[".rs"]) {
        let (count, name) = (text.lines().count(), name.display().to_string());
        if count > FILE_LINES {
            complaints.push(format!("{name}: {count} lines"));
        }
        for (function, length) in functions(&text) {
            if length > FUNCTION_LINES && !LONG_FUNCTIONS.contains(&function) {
                complaints.push(format!("{name}: {function} has {length} lines"));
            }
        }
    }
    assert!(complaints.is_empty(), "cut these up: {complaints:#?}");
}

/// The name that a text begins with.
fn first_name(text: &str) -> &str {
    &text[..text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())]
}

/// The trait, if there is one, and the type of the first line of an `impl`.
fn implemented(line: &str) -> Option<(Option<&str>, &str)> {
    let rest = line.trim_start().strip_prefix("impl")?;
    let rest = if rest.starts_with('<') { rest.split_once("> ")?.1 } else { rest.trim_start() };
    Some(match rest.split_once(" for ") {
        Some((of, what)) => (Some(first_name(of)), first_name(what)),
        None => (None, first_name(rest)),
    })
}

/// Uses of `then_some` with a value whose type implements `Drop`. If the condition is false, the
/// value is made nevertheless, and dropped.
fn made_too_early<'a>(text: &'a str, dropped: &BTreeSet<&str>) -> Vec<(usize, &'a str)> {
    let (mut found, mut this) = (Vec::new(), "");
    for (line, at) in text.lines().zip(1..) {
        this = implemented(line).map_or(this, |(_, what)| what);
        let values = line.split("then_some(").skip(1).map(first_name);
        let names = values.map(|name| if name == "Self" { this } else { name });
        found.extend(names.filter(|name| dropped.contains(name)).map(|name| (at, name)));
    }
    found
}

#[test]
fn nothing_is_dropped_that_was_not_wanted() {
    let text = "impl<'a, T> Held<'a> {\n    ok.then_some(Self(1))\n}\nimpl Plain {\n    \
                ok.then_some(Self(1)), ok.then(|| Held(1)), ok.then_some(Held(1))\n}";
    let dropped = BTreeSet::from(["Held"]);
    assert_eq!(made_too_early(text, &dropped), [(2, "Held"), (5, "Held")]);

    let all = files(&[".rs"]);
    let drops = |line| implemented(line).filter(|(of, _)| *of == Some("Drop")).map(|found| found.1);
    let dropped = all.values().flat_map(|text| text.lines().filter_map(drops)).collect();
    let mut complaints = Vec::new();
    for (name, text) in all.iter().filter(|(name, _)| !name.ends_with("documents.rs")) {
        for (line, what) in made_too_early(text, &dropped) {
            complaints.push(format!("{}:{line}: {what}", name.display()));
        }
    }
    assert!(complaints.is_empty(), "make these with `then`, which calls: {complaints:#?}");
}

/// The type that an unindented line defines. An indented type belongs to a test or a function, or
/// is an associated type.
fn defined_type(line: &str) -> Option<&str> {
    if line.starts_with(char::is_whitespace) {
        return None;
    }
    let before = |word: &&str| word.starts_with("pub") || word.ends_with(')') || *word == "unsafe";
    let mut words = line.split_whitespace().skip_while(before);
    let kind = words.next()?;
    let rest =
        words.next().filter(|_| ["struct", "enum", "trait", "union", "type"].contains(&kind))?;
    Some(first_name(rest))
}

/// The folders with a crate each.
const CRATES: [&str; 11] = [
    "core",
    "libaio",
    "posix-aio",
    "io-uring",
    "capi",
    "python",
    "cli",
    "lab",
    "lab/await",
    "lab/files",
    "lab/store",
];

/// The sources of a crate, by their path in its `src`, without files of tests.
fn crate_sources<'a>(
    sources: &'a BTreeMap<PathBuf, String>,
    folder: &str,
) -> BTreeMap<&'a Path, &'a str> {
    let root = Path::new(folder).join("src");
    let is_test = |file: &Path| {
        let is_of_documents = file.ends_with("documents.rs") || file.starts_with("documents");
        is_of_documents || file.to_str().unwrap().ends_with("tests.rs")
    };
    let files = sources.iter().filter_map(|(name, text)| {
        let file = name.strip_prefix(&root).ok()?;
        (!is_test(file)).then_some((file, &**text))
    });
    let files: BTreeMap<&Path, &str> = files.collect();
    assert!(!files.is_empty(), "no sources in {}", root.display());
    files
}

#[test]
fn no_two_files_of_a_library_define_a_type_of_one_name() {
    assert_eq!(defined_type("pub(in crate::word) struct Turn(u64);"), Some("Turn"));
    assert_eq!(defined_type("pub unsafe trait Lane<T>: Sized {"), Some("Lane"));
    assert_eq!(defined_type("    type Output;"), None);
    assert_eq!(defined_type("pub fn free() -> u32 {"), None);

    let sources = files(&[".rs"]);
    let mut complaints = Vec::new();
    for library in CRATES.iter().take_while(|&&name| name != "cli") {
        // The types by name and by file. A type may have one definition for loom and one for other
        // builds, both in one file.
        let mut types: BTreeMap<&str, BTreeMap<&Path, usize>> = BTreeMap::new();
        for (file, text) in crate_sources(&sources, library) {
            for (line, number) in text.lines().zip(1..) {
                if let Some(defined) = defined_type(line) {
                    types.entry(defined).or_default().entry(file).or_insert(number);
                }
            }
        }
        if *library == "core" {
            assert!(types["Instance"].contains_key(Path::new("instance/mod.rs")), "{types:#?}");
        }
        types.retain(|_, places| places.len() > 1);
        let place =
            |(file, number): (&&Path, &usize)| format!("{library}/src/{}:{number}", file.display());
        complaints.extend(types.iter().map(|(name, places)| {
            let places: Vec<String> = places.iter().map(place).collect();
            format!("`{name}` is defined in {}", places.join(" and in "))
        }));
    }
    assert!(complaints.is_empty(), "rename one of the two, say by its part: {complaints:#?}");
}
