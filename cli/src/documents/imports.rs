//! Checks the direction of imports. Between the parts of a crate, only known cycles are allowed.
//! Between the files of a crate, a cycle has at most three files. In a folder with layers, a file
//! imports from lower layers only. The map of such a folder, in its `mod.rs`, lists the layers.

use super::{CRATES, crate_sources, files, first_name, functions};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The code of a source, without lines of comments and without the tests at its end.
fn code(text: &str) -> String {
    let is_test =
        |line: &str| ["#[cfg(test)]", "#[cfg(all(test"].iter().any(|start| line.starts_with(start));
    let lines = text.lines().take_while(|line| !is_test(line));
    let lines = lines.filter(|line| !line.trim_start().starts_with("//"));
    lines.fold(String::new(), |code, line| code + line + "\n")
}

/// Adds the paths at the start of a text to `found`, as in `a::{b, c::d}`. Returns the rest.
fn add_paths<'a>(text: &'a str, before: &[&'a str], found: &mut Vec<Vec<&'a str>>) -> &'a str {
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
            if rest.is_empty() || rest.starts_with('}') {
                return rest.get(1..).unwrap_or("");
            }
            // A path may be followed by a new name, as in `a as b`.
            rest = add_paths(rest, before, found).trim_start_matches(|c| ![',', '}'].contains(&c));
        }
    }
    let word = first_name(text);
    let (path, behind) = ([before, &[word]].concat(), &text[word.len()..]);
    let goes_on = |rest: &&str| rest.starts_with('{') || !first_name(rest).is_empty();
    match behind.strip_prefix("::").filter(goes_on) {
        Some(rest) => add_paths(rest, &path, found),
        None => {
            found.push(path);
            behind
        }
    }
}

/// The paths that a source names, starting with `crate`, `super` or `self`.
fn named_paths(code: &str) -> Vec<Vec<&str>> {
    let mut found = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            if !code[..at].ends_with(is_name) {
                add_paths(&code[at..], &[], &mut found);
            }
        }
    }
    found
}

/// The module of a file in `src`, as its path in the crate.
fn module(file: &Path) -> Vec<&str> {
    let mut path: Vec<&str> = file.iter().map(|part| part.to_str().unwrap()).collect();
    let last = path.pop().unwrap().trim_end_matches(".rs");
    path.extend(Some(last).filter(|last| !["mod", "lib", "main"].contains(last)));
    path
}

/// The modules of a crate, each with the modules that it names. Its own children do not count: a
/// module may re-export them.
fn imports(sources: &BTreeMap<&Path, String>) -> BTreeMap<String, BTreeSet<String>> {
    let modules: BTreeSet<Vec<&str>> = sources.keys().map(|file| module(file)).collect();
    let mut graph = BTreeMap::new();
    for (file, code) in sources {
        let from = module(file);
        let mut named = BTreeSet::new();
        for path in named_paths(code) {
            let mut base = if path[0] == "crate" { Vec::new() } else { from.clone() };
            for word in &path {
                match *word {
                    "crate" | "self" => {}
                    "super" => _ = base.pop(),
                    _ => base.push(word),
                }
            }
            while !modules.contains(&base) && base.pop().is_some() {}
            if !base.is_empty() && !base.starts_with(&from) {
                named.insert(base.join("/"));
            }
        }
        if !from.is_empty() {
            graph.insert(from.join("/"), named);
        }
    }
    graph
}

/// The code of a crate, by its files.
fn crate_code<'a>(
    sources: &'a BTreeMap<PathBuf, String>,
    folder: &str,
) -> BTreeMap<&'a Path, String> {
    crate_sources(sources, folder).into_iter().map(|(file, text)| (file, code(text))).collect()
}

/// The nodes that can be reached from a node.
fn reached<'a>(graph: &'a BTreeMap<String, BTreeSet<String>>, from: &'a str) -> BTreeSet<&'a str> {
    let (mut found, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(node) = left.pop() {
        let named = graph.get(node).into_iter().flatten().map(|name| &**name);
        left.extend(named.filter(|&name| name != node && found.insert(name)));
    }
    found
}

/// The groups of nodes that can all reach each other.
fn circles(graph: &BTreeMap<String, BTreeSet<String>>) -> Vec<BTreeSet<&str>> {
    let all: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|node| (&**node, reached(graph, node))).collect();
    let mut circles = Vec::new();
    for (node, found) in &all {
        let is_mutual = |name: &&&str| all.get(*name).is_some_and(|of| of.contains(node));
        let circle: BTreeSet<&str> = found.iter().filter(is_mutual).copied().collect();
        if circle.contains(node) && !circles.contains(&circle) {
            circles.push(circle);
        }
    }
    circles
}

/// Complains about unknown circles, and about known ones that no longer exist.
fn compare(found: &[(&str, BTreeSet<String>)], known: &[(&str, &[&str])]) {
    let known: Vec<(&str, BTreeSet<String>)> = known
        .iter()
        .map(|(folder, circle)| (*folder, circle.iter().map(|&name| name.into()).collect()))
        .collect();
    let new: Vec<_> = found.iter().filter(|circle| !known.contains(circle)).collect();
    assert!(new.is_empty(), "name each other in a circle: {new:#?}");
    let gone: Vec<_> = known.iter().filter(|circle| !found.contains(circle)).collect();
    assert!(gone.is_empty(), "not a circle any more, strike it: {gone:#?}");
}

#[test]
fn paths_are_found_in_all_their_forms() {
    let text = "use crate::{own, sys::{\n    a::B as C,\n    *,\n}};\nfn a() { crate::exec::b() }\n\
                // crate::fs\nuse super::super::x::Y;\n#[cfg(test)]\nuse crate::front;\n";
    let code = code(text);
    let named: Vec<String> = named_paths(&code).iter().map(|path| path.join("::")).collect();
    let expected =
        ["crate::own", "crate::sys::a::B", "crate::sys::", "crate::exec::b", "super::super::x::Y"];
    assert_eq!(named, expected);
    let (a, b) = ("use super::b::B;\nuse crate::c;\nuse crate::e::f;\n", "use self::g::A;\n");
    let sources = [("d/a.rs", a), ("d/b.rs", b), ("d/b/g.rs", ""), ("c/mod.rs", ""), ("lib.rs", a)];
    let sources = sources.map(|(file, code)| (Path::new(file), code.into()));
    let graph = imports(&sources.into());
    assert_eq!(graph["d/a"], ["c", "d/b"].map(String::from).into());
    assert_eq!((graph.len(), graph["d/b"].len()), (4, 0));
}

#[test]
fn imports_between_the_parts_of_a_crate_point_one_way() {
    let graph = [("a", vec!["b"]), ("b", vec!["c", "d"]), ("c", vec!["a"]), ("d", vec!["d"])];
    let named = |all: Vec<&str>| all.into_iter().map(String::from).collect();
    let graph = graph.map(|(part, all)| (part.to_owned(), named(all)));
    assert_eq!(circles(&graph.into()), [BTreeSet::from(["a", "b", "c"])]);

    /// Circles that are allowed for now.
    const KNOWN: [(&str, &[&str]); 3] = [
        // `process` keeps a duplicated descriptor (`own::Copied`), and `own` asks whether the
        // thread has its own descriptor table.
        ("core", &["own", "process"]),
        ("cli", &["embed", "run"]),
        ("lab", &["bench", "report", "session"]),
    ];
    let sources = files(&[".rs"]);
    let mut found = Vec::new();
    for folder in CRATES {
        // A part is a folder at the top of `src`, with its file of the same name, or a file there.
        let part = |module: &str| module.split('/').next().unwrap().to_owned();
        let mut parts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (module, named) in imports(&crate_code(&sources, folder)) {
            parts.entry(part(&module)).or_default().extend(named.iter().map(|name| part(name)));
        }
        parts.iter_mut().for_each(|(part, named)| _ = named.remove(part));
        if folder == "core" {
            assert!(parts["instance"].contains("lane"), "{parts:#?}");
        }
        let circles = circles(&parts);
        let own = |circle: BTreeSet<&str>| circle.into_iter().map(String::from).collect();
        found.extend(circles.into_iter().map(|circle| (folder, own(circle))));
    }
    compare(&found, &KNOWN);
}

#[test]
fn no_more_than_three_files_name_each_other() {
    let sources = files(&[".rs"]);
    let mut found = Vec::new();
    for folder in CRATES {
        let graph = imports(&crate_code(&sources, folder));
        let large = circles(&graph).into_iter().filter(|circle| circle.len() > 3);
        found.extend(large.map(|circle| format!("{folder}: {circle:?}")));
    }
    assert!(found.is_empty(), "name each other in a circle: {found:#?}");
}

/// The layers of a folder, as the table in its map has them, the lowest first.
fn layers(map: &str) -> Vec<Vec<&str>> {
    let rows = map.lines().filter_map(|line| line.strip_prefix("//! | `")?.split_once("` | "));
    rows.map(|(files, _)| files.split("`, `").collect()).collect()
}

/// The names of the methods that are called on a ring or on `self`.
fn called(code: &str) -> BTreeSet<&str> {
    const OF: [&str; 5] = ["self.", "locked.", "core.", "core().", "Self::"];
    let calls = code.match_indices('(').filter_map(|(at, _)| {
        let before = &code[..at];
        let rest = before.trim_end_matches(|c: char| c.is_alphanumeric() || c == '_');
        OF.iter().any(|of| rest.ends_with(of)).then_some(&before[rest.len()..])
    });
    calls.collect()
}

/// Complaints: a file imports from a layer that is not below its own, or calls a method that only
/// layers not below its own define. `folder` is the path in the crate.
fn known_from_below(
    folder: &str,
    layers: &[Vec<&str>],
    sources: &BTreeMap<&str, String>,
) -> Vec<String> {
    let level = |file: &str| layers.iter().position(|layer| layer.contains(&file));
    let mut defined: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (file, code) in sources {
        functions(code).iter().for_each(|(name, _)| defined.entry(name).or_default().push(file));
    }
    let mut complaints = Vec::new();
    for (&file, code) in sources {
        let Some(own) = level(file) else {
            complaints.push(format!("{file} is not in the map"));
            continue;
        };
        for path in named_paths(code) {
            let name = match path[..] {
                ["super", name, ..] => name,
                ["crate", part, name, ..] if part == folder => name,
                _ => continue,
            };
            if level(name).is_none_or(|of| of >= own) {
                complaints.push(format!("{file} imports {name}"));
            }
        }
        for name in called(code) {
            let is_fine = |other: &&str| *other == file || level(other).is_some_and(|of| of < own);
            if defined.get(name).is_some_and(|by| !by.iter().any(is_fine)) {
                complaints.push(format!("{file} calls {name} of {:?}", defined[name]));
            }
        }
    }
    complaints
}

#[test]
fn each_file_of_a_layered_folder_knows_lower_layers_only() {
    let map =
        "//! | file | what it has |\n//! |---|---|\n//! | `a` | low |\n//! | `b`, `c` | up |\n";
    let all = layers(map);
    assert_eq!(all, [vec!["a"], vec!["b", "c"]]);
    let a = "impl A {\n    fn f() {\n        self.f(g(1).g(), Self::i(), core.h())\n    }\n}\n";
    assert_eq!(called(a), ["f", "h", "i"].into());
    let b = "use super::c::C;\nuse super::{a::A, D};\nfn h() {}\nfn i() {}\n";
    let sources = [("a", a), ("b", b), ("c", "fn h() {}\n"), ("d", "")];
    let sources = sources.map(|(file, code)| (file, code.to_owned()));
    let expected = [
        "a calls h of [\"b\", \"c\"]",
        "a calls i of [\"b\"]",
        "b imports c",
        "b imports D",
        "d is not in the map",
    ];
    assert_eq!(known_from_below("x", &all, &sources.into()), expected);

    let sources = files(&[".rs"]);
    let all = crate_code(&sources, "io-uring");
    let map = layers(&sources[Path::new("io-uring/src/ring/mod.rs")]);
    assert!(map.len() > 5, "{map:?}");
    let of_ring = all.into_iter().filter_map(|(file, code)| {
        let name = file.strip_prefix("ring").ok()?.to_str()?.strip_suffix(".rs")?;
        (name != "mod").then_some((name, code))
    });
    let complaints = known_from_below("ring", &map, &of_ring.collect());
    assert!(complaints.is_empty(), "move the code, or pass data: {complaints:#?}");
}
