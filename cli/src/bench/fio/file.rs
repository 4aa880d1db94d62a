//! A job file, as far as this command has to understand it. Its options are fio's.

use crate::size;
use std::path::{Path, PathBuf};
use uringlet_lab::named;

/// The maximum length of a job file in bytes.
const LONGEST: u64 = 1 << 20;

/// Lines with this option are replaced by [`JobFile::with`].
const ENGINE: &str = "ioengine";
const RUNTIMES: [&str; 2] = ["runtime", "timeout"];

/// A line of a file.
#[derive(Clone, Debug)]
struct Line {
    /// File and number, for messages.
    at: String,
    text: String,
}

impl Line {
    /// The line without a comment.
    fn plain(&self) -> &str {
        self.text.split([';', '#']).next().unwrap_or_default().trim()
    }

    fn section(&self) -> Option<&str> {
        Some(self.plain().strip_prefix('[')?.split(']').next()?.trim())
    }

    /// Name and value of an option; the value of a switch is empty.
    fn option(&self) -> Option<(&str, &str)> {
        let (name, value) = self.plain().split_once('=').unwrap_or((self.plain(), ""));
        let is_option = !name.is_empty() && !name.starts_with('[');
        is_option.then_some((name.trim(), value.trim()))
    }
}

/// The options of a job, with those of global sections; later ones override earlier ones.
struct Section<'a> {
    name: &'a str,
    options: Vec<(&'a Line, &'a str, &'a str)>,
}

impl<'a> Section<'a> {
    fn last(&self, names: &[&str]) -> Option<(&'a Line, &'a str)> {
        let found = self.options.iter().rev().find(|(_, name, _)| names.contains(name));
        found.map(|(line, _, value)| (*line, *value))
    }

    fn value(&self, names: &[&str]) -> Option<&'a str> {
        self.last(names).map(|(_, value)| value)
    }

    fn folder(&self) -> PathBuf {
        self.value(&["directory"]).map(expand).unwrap_or_default().into()
    }

    /// Does the job say where its files are? A `filename_format` without a folder is a form of the
    /// names that fio generates.
    fn has_place(&self) -> bool {
        let form = self.value(&["filename_format"]).map(expand);
        self.last(&["directory", "filename", "opendir"]).is_some()
            || form.is_some_and(|form| form.contains('/'))
    }

    fn writes(&self) -> bool {
        let rw = self.value(&["rw", "readwrite"]).unwrap_or("read");
        !matches!(rw.split(':').next(), Some("read" | "randread"))
    }

    /// The bytes that the job needs in each of its `files` files. None if the job gives no size.
    fn needs(&self, files: u64) -> Option<u64> {
        let bytes = |names: &[&str]| size::parse(&expand(self.value(names)?)).ok();
        let size = bytes(&["filesize"]).or_else(|| Some(bytes(&["size"])? / files))?;
        Some(size + bytes(&["offset", "fileoffset"]).unwrap_or(0))
    }

    /// An error text if the job would write to, or enlarge, an existing file that it names.
    fn harm(&self) -> Option<String> {
        let (line, names) = self.last(&["filename"])?;
        let names = expand(names).replace("\\:", "\0");
        let names: Vec<PathBuf> = names
            .split(':')
            .filter(|name| !name.is_empty())
            .map(|name| self.folder().join(name.replace('\0', ":")))
            .collect();
        let (path, found) = names.iter().find_map(|path| Some((path, path.metadata().ok()?)))?;
        let (at, file, job) = (&line.at, path.display(), self.name);
        let needs = self.needs(names.len() as u64).filter(|_| found.is_file());
        let (allow, len) = ("expected --allow-writes", found.len());
        match needs {
            _ if self.writes() => {
                Some(format!("{at}: {file} exists, and [{job}] writes to it: {allow}"))
            }
            Some(needs) if needs > len => Some(format!(
                "{at}: {file} exists and has {len} bytes, and [{job}] makes it {needs}: {allow}"
            )),
            _ => None,
        }
    }
}

/// Replaces `${NAME}` by a variable of the environment.
fn expand(text: &str) -> String {
    let mut parts = text.split("${");
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once('}').unwrap_or((part, ""));
        whole += &std::env::var(name).unwrap_or_default();
        whole += rest;
    }
    whole
}

/// A job file that was read.
pub struct JobFile {
    lines: Vec<Line>,
    /// The names of the jobs to run. If there are none, all jobs are run.
    chosen: Vec<String>,
}

impl JobFile {
    /// Reads the file, and the files that it includes.
    ///
    /// # Errors
    /// A text: a file cannot be read, includes are nested too deeply, or there is no job.
    pub fn read(path: &Path, chosen: &[String]) -> Result<Self, String> {
        let mut lines = Vec::new();
        read_into(&mut lines, path, 0)?;
        let file = Self { lines, chosen: chosen.to_vec() };
        if !file.lines.iter().any(|line| line.section().is_some_and(|name| name != "global")) {
            return Err(format!("{}: expected a [SECTION] beside [global]", path.display()));
        }
        Ok(file)
    }

    /// The jobs to run.
    fn jobs(&self) -> Vec<Section<'_>> {
        let mut global: Vec<_> = Vec::new();
        let mut jobs: Vec<Section<'_>> = Vec::new();
        let mut in_global = true;
        for line in &self.lines {
            if let Some(name) = line.section() {
                in_global = name == "global";
                if !in_global {
                    jobs.push(Section { name, options: global.clone() });
                }
            } else if let Some((name, value)) = line.option() {
                let options = match jobs.last_mut() {
                    Some(job) if !in_global => &mut job.options,
                    _ => &mut global,
                };
                options.push((line, name, value));
            }
        }
        jobs.retain(|job| {
            self.chosen.is_empty() || self.chosen.iter().any(|name| name == job.name)
        });
        jobs
    }

    /// The names of all jobs, chosen or not.
    pub fn names(&self) -> Vec<String> {
        let sections = self.lines.iter().filter_map(Line::section);
        sections.filter(|name| *name != "global").map(str::to_owned).collect()
    }

    /// Is a job of this name run?
    pub fn has(&self, name: &str) -> bool {
        self.jobs().iter().any(|job| job.name == name)
    }

    /// Does a job have this option with a value other than `0`?
    pub fn says(&self, option: &str) -> bool {
        self.jobs().iter().any(|job| job.value(&[option]).is_some_and(|value| value != "0"))
    }

    /// The engines that the file names.
    pub fn engines(&self) -> Vec<String> {
        let named = |job: &Section<'_>| Some(expand(job.value(&[ENGINE])?));
        self.jobs().iter().filter_map(named).collect()
    }

    /// Does no job say where its files are, so that this command may choose?
    pub fn is_placeless(&self) -> bool {
        self.jobs().iter().all(|job| !job.has_place())
    }

    /// The folder of the files of the first job; `.` if that is not an existing folder.
    pub fn folder(&self) -> PathBuf {
        let jobs = self.jobs();
        let folder = jobs.first().map(Section::folder).filter(|folder| folder.is_dir());
        folder.unwrap_or_else(|| ".".into())
    }

    /// An error text for each job that would write to, or enlarge, an existing file.
    pub fn harms(&self) -> Vec<String> {
        self.jobs().iter().filter_map(Section::harm).collect()
    }

    /// The file's text with another engine, and a limit to the runtime of every job. Files are
    /// created before the clock starts, and percentiles are those of the total latency.
    pub fn with(&self, ioengine: &str, seconds: Option<f64>) -> String {
        let mut own = format!("{ENGINE}={ioengine}\nlat_percentiles=1\n");
        if let Some(seconds) = seconds {
            own += &format!("runtime={}ms\n", (seconds * 1e3).ceil());
        }
        if !self.says("overwrite") {
            own += "overwrite=1\n";
        }
        let mut text = String::new();
        let mut in_job = false;
        for line in &self.lines {
            if let Some(name) = line.section() {
                text += if in_job { &own } else { "" };
                in_job = name != "global";
            }
            let name = line.option().map_or("", |(name, _)| name);
            if name != ENGINE && (seconds.is_none() || !RUNTIMES.contains(&name)) {
                text += &line.text;
                text += "\n";
            }
        }
        text + if in_job { &own } else { "" }
    }
}

/// `include NAME` inserts the lines of that file. NAME is relative to the current folder or, if it
/// does not exist there, to the folder of the including file.
fn read_into(lines: &mut Vec<Line>, path: &Path, depth: usize) -> Result<(), String> {
    let name = path.display();
    let text = named::read(path, LONGEST).map_err(|error| format!("{name}: {error}"))?;
    let text =
        String::from_utf8(text).map_err(|error| format!("{name}: expected text: {error}"))?;
    for (text, number) in text.lines().zip(1..) {
        let line = Line { at: format!("{name}:{number}"), text: text.to_owned() };
        match line.plain().strip_prefix("include ").map(str::trim) {
            // The depth that fio allows.
            Some(_) if depth == 16 => return Err(format!("{}: too many includes", line.at)),
            Some(other) => {
                let beside = path.with_file_name(other);
                let file = if Path::new(other).exists() { Path::new(other) } else { &beside };
                read_into(lines, file, depth + 1)?;
            }
            None => lines.push(line),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str, chosen: &[&str]) -> JobFile {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("more"), "rw=write\n").unwrap();
        std::fs::write(folder.path().join("job"), text).unwrap();
        let chosen: Vec<String> = chosen.iter().map(|name| (*name).to_owned()).collect();
        JobFile::read(&folder.path().join("job"), &chosen).unwrap()
    }

    #[test]
    fn every_job_gets_another_engine_and_keeps_the_rest() {
        let file = file("[global]\nioengine=sync ; ours\nruntime=5\n[a]\nrw=read\n[b]\n", &[]);
        let own = "ioengine=libaio\nlat_percentiles=1\n";
        let expected =
            format!("[global]\nruntime=5\n[a]\nrw=read\n{own}overwrite=1\n[b]\n{own}overwrite=1\n");
        assert_eq!(file.with("libaio", None), expected);
        assert_eq!(file.engines(), ["sync", "sync"]);
        let short = file.with("libaio", Some(0.5));
        assert!(!short.contains("runtime=5\n") && short.contains("runtime=500ms\n"), "{short}");
    }

    #[test]
    fn generated_names_say_no_place() {
        let is_placeless = |line: &str| file(&format!("[a]\n{line}\n"), &[]).is_placeless();
        assert!(is_placeless("size=4k") && is_placeless("filename_format=$jobname.$filenum"));
        for line in ["directory=x", "filename=x", "opendir=x", "filename_format=x/$filenum"] {
            assert!(!is_placeless(line), "{line}");
        }
    }

    #[test]
    fn global_options_count_for_the_jobs_behind_them() {
        let text = "[global]\nthread\n[a]\nthread=0\n[global]\nsize=4k\n[b]\ninclude more\n";
        let all = file(text, &[]);
        let jobs = all.jobs();
        assert_eq!((jobs[0].value(&["size"]), jobs[1].value(&["size"])), (None, Some("4k")));
        assert_eq!((jobs[0].writes(), jobs[1].writes()), (false, true));
        assert!(all.says("thread") && !file(text, &["a"]).says("thread"));
        assert!(!file(text, &["a"]).has("b"));
    }
}
