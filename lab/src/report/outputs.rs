//! `--json`, `--html`, `--csv`: files that are opened before the work, so that a wrong path does
//! not cost minutes.

use super::{Document, html, records};
use crate::named;
use crate::refusal::refusal;
use anyhow::{Context as _, Result};
use clap::Args;
use serde::Serialize;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// The output files that the command line names.
#[derive(Args, Clone, Debug, Default)]
pub struct Outputs {
    /// Write everything, each round's figures included, to this file (- for standard output,
    /// instead of the text; so --html and --csv)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Write a report with plots to this file: one page for browsers and printers that loads
    /// nothing
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write one line for each cell and round to this file, for spreadsheets
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

/// An opened file. The old content stays until the result is known.
struct Target {
    option: &'static str,
    path: PathBuf,
    file: File,
    /// True: the result replaces the old content. False for a device, a pipe, and the target of
    /// standard output or standard error: the result is appended.
    replaces: bool,
    /// The path, if the file was created by opening it. Cleared when the result is written. If it
    /// is still set at the drop, the file is removed.
    made: Option<PathBuf>,
}

/// The opened files.
pub struct Files {
    json: Option<Target>,
    html: Option<Target>,
    csv: Option<Target>,
}

impl Outputs {
    /// Does one of the outputs replace the text on standard output?
    pub fn replace_text(&self) -> bool {
        [&self.json, &self.html, &self.csv].into_iter().flatten().any(|path| path == Path::new("-"))
    }

    /// Opens the files. `worked_on` is the measured file, which none of them may be.
    ///
    /// # Errors
    /// A text: a file cannot be created, or two of them are the same.
    pub fn open(&self, worked_on: Option<&Path>) -> Result<Files> {
        let mut taken = Vec::new();
        taken.extend(worked_on.and_then(identity).map(|id| ("--file", id)));
        let mut open = |option, path: &Option<PathBuf>| {
            let Some(path) = path else { return Ok(None) };
            let same = identity(path).and_then(|id| taken.iter().find(|(_, other)| *other == id));
            if let Some((other, _)) = same {
                let path = path.display();
                return Err(refusal(format_args!(
                    "{option} {path}: expected another file than {other}"
                )));
            }
            let target = Target::open(option, path)?;
            taken.extend(identity(path).map(|id| (option, id)));
            Ok(Some(target))
        };
        Ok(Files {
            json: open("--json", &self.json)?,
            html: open("--html", &self.html)?,
            csv: open("--csv", &self.csv)?,
        })
    }
}

/// The path under which an output is opened: `-` is standard output.
fn real(path: &Path) -> &Path {
    if path == Path::new("-") { Path::new("/dev/stdout") } else { path }
}

/// The identity of a file; none for devices and pipes, which may be shared.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = real(path).metadata().ok().filter(std::fs::Metadata::is_file)?;
    Some((found.dev(), found.ino()))
}

impl Files {
    /// Writes each format to its file; an error does not stop the others.
    ///
    /// # Errors
    /// The first file that cannot be written to.
    pub fn write(self, json: &impl Serialize, document: &Document) -> Result<()> {
        let Self { json: as_json, html: as_html, csv: as_csv } = self;
        let results = [
            write(as_json, |to| Ok(serde_json::to_writer_pretty(to, json)?)),
            write(as_html, |to| Ok(to.write_all(html::page(document).as_bytes())?)),
            write(as_csv, |to| records::write(&document.records, to)),
        ];
        results.into_iter().collect()
    }
}

/// Writes JSON to a file, for the `--json` of commands that measure nothing.
///
/// # Errors
/// The file cannot be created or written to. Its old content stays then.
pub fn write_json(path: &Path, json: &impl Serialize) -> Result<()> {
    let target = Target::open("--json", path)?;
    write(Some(target), |to| {
        serde_json::to_writer_pretty(&mut *to, json)?;
        to.push(b'\n');
        Ok(())
    })
}

/// The refusal of an output that cannot be made.
pub fn cannot_make(option: &str, path: &Path, error: &std::io::Error) -> anyhow::Error {
    refusal(format_args!("{option}: cannot make {}: {error}", path.display()))
}

fn write(target: Option<Target>, content: impl FnOnce(&mut Vec<u8>) -> Result<()>) -> Result<()> {
    let Some(mut target) = target else { return Ok(()) };
    let mut bytes = Vec::new();
    let written = content(&mut bytes).and_then(|()| Ok(target.write(&bytes)?));
    written.with_context(|| format!("{}: cannot write {}", target.option, target.path.display()))
}

impl Target {
    /// Opens a file, or makes it. An error becomes a refusal.
    fn open(option: &'static str, path: &Path) -> Result<Self> {
        Self::try_open(option, path).map_err(|error| cannot_make(option, path, &error))
    }

    fn try_open(option: &'static str, path: &Path) -> std::io::Result<Self> {
        let found = identity(path);
        let shown = ["/dev/stdout", "/dev/stderr"].map(|stream| identity(Path::new(stream)));
        let is_shown = found.is_some() && shown.contains(&found);
        let given = path;
        let path = real(given);
        let is_new = !path.exists();
        let mut options = File::options();
        options.write(true).append(is_shown).create(is_new).truncate(false);
        let file = named::open_to_write(&mut options, path)?;
        let replaces = file.metadata()?.is_file() && !is_shown;
        let made = if is_new { path.canonicalize().ok() } else { None };
        Ok(Self { option, path: given.to_owned(), file, replaces, made })
    }

    fn write(&mut self, content: &[u8]) -> std::io::Result<()> {
        if self.replaces {
            replace(&self.file, content)?;
        } else {
            self.file.write_all(content)?;
        }
        self.made = None;
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(path) = &self.made {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Replaces the content of a file. If there is no room for the new content, the file keeps the old
/// one. The file itself is kept, with its links, owner and permissions.
fn replace(file: &File, content: &[u8]) -> std::io::Result<()> {
    let before = file.metadata()?.len();
    // The new content is first written after the old one. Some file systems report that they are
    // full only at a sync.
    let room = file.write_all_at(content, before).and_then(|()| file.sync_all());
    if room.is_err() {
        file.set_len(before)?;
        return room;
    }
    file.write_all_at(content, 0)?;
    file.set_len(content.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::super::Record;
    use super::*;

    #[test]
    fn no_output_is_another_one_or_what_is_worked_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| Some(folder.path().join(name));
        std::fs::write(folder.path().join("data"), "precious").unwrap();
        std::os::unix::fs::symlink("data", folder.path().join("link")).unwrap();
        let error = |outputs: Outputs, worked_on: Option<PathBuf>| {
            outputs.open(worked_on.as_deref()).err().map(|error| error.to_string())
        };
        let both = Outputs { json: path("a"), html: None, csv: path("a") };
        let found = error(both, None).unwrap();
        assert!(found.contains("--csv") && found.contains("another file than --json"), "{found}");
        let found = error(Outputs { html: path("link"), ..Outputs::default() }, path("data"));
        assert!(found.as_deref().is_some_and(|text| text.contains("than --file")), "{found:?}");
        assert_eq!(std::fs::read(folder.path().join("data")).unwrap(), b"precious");
        let null = Some("/dev/null".into());
        let all = Outputs { json: null.clone(), html: null.clone(), csv: null };
        assert_eq!(error(all, None), None);
    }

    #[test]
    fn a_full_disk_is_named_and_the_others_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let csv = folder.path().join("csv");
        let outputs =
            Outputs { json: Some("/dev/full".into()), html: None, csv: Some(csv.clone()) };
        let records = vec![Record::default().with("a", 1)];
        let document = Document { records, ..Document::default() };
        let error = outputs.open(None).unwrap().write(&1, &document).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("--json: cannot write /dev/full: No space left"), "{text}");
        assert_eq!(std::fs::read(csv).unwrap(), b"a\r\n1\r\n");
    }

    #[test]
    fn what_is_there_stays_until_it_is_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for (before, link) in [("", "first"), ("a longer text than the result", "second")] {
            std::fs::write(path("old"), before).unwrap();
            std::os::unix::fs::symlink("old", path(link)).unwrap();
            let outputs = Outputs { json: Some(path(link)), html: Some(path("new")), csv: None };
            drop(outputs.open(None).unwrap());
            assert_eq!(std::fs::read_to_string(path("old")).unwrap(), before);
            assert!(!path("new").exists());
            outputs.open(None).unwrap().write(&"result", &Document::default()).unwrap();
            assert_eq!(std::fs::read_to_string(path("old")).unwrap(), "\"result\"");
            assert!(path(link).is_symlink() && path("new").exists());
            std::fs::remove_file(path("new")).unwrap();
        }
    }
}
