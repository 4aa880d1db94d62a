//! A job file as text: sections, options with their lines, what `[global]` adds to whom.

use std::fmt;
use std::path::{Path, PathBuf};

/// A place in a job file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At {
    pub file: PathBuf,
    pub line: usize,
}

impl fmt::Display for At {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.file.display(), self.line)
    }
}

/// `name=value`, or `name` alone.
#[derive(Clone, Debug)]
pub struct Entry {
    pub at: At,
    pub name: String,
    pub value: Option<String>,
    /// Stood in `[global]`.
    pub global: bool,
}

/// A job, with what the global sections before it say in front.
#[derive(Debug)]
pub struct Section {
    pub at: At,
    pub name: String,
    pub entries: Vec<Entry>,
}

/// More sections, or lines in `[global]`, than anybody writes: each section has a copy of those lines.
const MOST: usize = 1000;

/// The jobs of a file, in order; `variable` knows the environment.
///
/// # Errors
/// Every line that makes no sense, in words.
pub fn parse(
    file: &Path,
    text: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Vec<Section>, Vec<String>> {
    let mut errors = Vec::new();
    let mut global: Vec<Entry> = Vec::new();
    let mut sections: Vec<Section> = Vec::new();
    // None before the first head, and whether it is a global one.
    let mut inside = None;
    for (number, line) in text.lines().enumerate() {
        let at = At { file: file.to_owned(), line: number + 1 };
        let line = line.split(['#', ';']).next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        if line.chars().any(|c| c.is_control() && c != '\t') {
            errors.push(format!("{at}: expected a line without control characters"));
            continue;
        }
        if sections.len() > MOST || global.len() > MOST {
            errors
                .push(format!("{at}: expected at most {MOST} sections and {MOST} global options"));
            break;
        }
        if let Some(rest) = line.strip_prefix('[') {
            match rest.strip_suffix(']').filter(|name| !name.is_empty()) {
                Some("global") => inside = Some(true),
                Some(name) if name.contains('/') => {
                    errors.push(format!("{at}: {line}: expected a name without a slash"));
                }
                Some(name) => {
                    inside = Some(false);
                    sections.push(Section { at, name: name.into(), entries: global.clone() });
                }
                None => errors.push(format!("{at}: {line}: expected [NAME]")),
            }
            continue;
        }
        let (name, value) = match line.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim())),
            None => (line, None),
        };
        let value = match value.map(|value| expand(value, &variable)).transpose() {
            Ok(value) => value,
            Err(unset) => {
                let value = value.unwrap_or_default();
                errors.push(format!(
                    "{at}: {name}={value}: expected {unset} to be set in the environment"
                ));
                continue;
            }
        };
        let entry = |global| Entry { at: at.clone(), name: name.into(), value, global };
        match (inside, sections.last_mut()) {
            (Some(true), _) => global.push(entry(true)),
            (Some(false), Some(section)) => section.entries.push(entry(false)),
            _ => errors.push(format!("{at}: {line}: expected a [SECTION] before the first option")),
        }
    }
    if errors.is_empty() { Ok(sections) } else { Err(errors) }
}

/// `${NAME}` replaced; an error is the name of what is not set.
fn expand(text: &str, variable: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, after)) = after.split_once('}') else { break };
        out.push_str(before);
        out.push_str(&variable(name).ok_or_else(|| name.to_owned())?);
        rest = after;
    }
    Ok(out + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sections(text: &str) -> Result<Vec<Section>, Vec<String>> {
        let variable = |name: &str| (name == "SIZE").then(|| "2m".to_owned());
        parse(Path::new("job.fio"), text, variable)
    }

    #[test]
    fn a_global_section_is_for_the_jobs_after_it() {
        let text = "; head\n[global]\nbs=4k # small\n[a]\nrw = read\n\n[global]\nbs=8k\n[b]\nthread\nsize=${SIZE}\n";
        let found = sections(text).unwrap();
        let lines: Vec<_> = found
            .iter()
            .map(|section| {
                let entry =
                    |entry: &Entry| (entry.name.clone(), entry.value.clone(), entry.at.line);
                (section.name.as_str(), section.entries.iter().map(entry).collect::<Vec<_>>())
            })
            .collect();
        let entry = |name: &str, value: &str, line| (name.into(), Some(value.into()), line);
        assert_eq!(
            lines,
            [
                ("a", vec![entry("bs", "4k", 3), entry("rw", "read", 5)]),
                (
                    "b",
                    vec![
                        entry("bs", "4k", 3),
                        entry("bs", "8k", 8),
                        ("thread".into(), None, 10),
                        entry("size", "2m", 11),
                    ]
                ),
            ]
        );
    }

    #[test]
    fn what_would_reach_a_terminal_or_fill_the_memory_is_refused() {
        let errors = sections("[a]\nname=\u{1b}]52;x\n").unwrap_err();
        assert_eq!(errors, ["job.fio:2: expected a line without control characters"]);
        let errors = sections(&"[a]\nbs=4k\n".repeat(MOST + 2)).unwrap_err();
        assert_eq!(
            errors,
            ["job.fio:2002: expected at most 1000 sections and 1000 global options"]
        );
        sections(&"[a]\nbs=4k\n".repeat(MOST)).unwrap();
    }

    #[test]
    fn lines_without_a_meaning_are_named() {
        let errors = sections("bs=4k\n[a\n[b]\nsize=${NONE}\n[c/d]\n").unwrap_err();
        assert_eq!(
            errors,
            [
                "job.fio:1: bs=4k: expected a [SECTION] before the first option",
                "job.fio:2: [a: expected [NAME]",
                "job.fio:4: size=${NONE}: expected NONE to be set in the environment",
                "job.fio:5: [c/d]: expected a name without a slash",
            ]
        );
    }
}
