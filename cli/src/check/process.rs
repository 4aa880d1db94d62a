//! The drop-ins that a process has mapped, and the counters of its contexts.

use crate::observe;
use crate::run::library::DropIn;
use crate::session;
use crate::size;
use crate::top::find::Finder;
use anyhow::{Context as _, Result};
use object::elf;
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::Path;
use std::process::ExitCode;
use uringlet::front::note;

/// A drop-in that is mapped.
#[derive(Debug, PartialEq, Eq)]
struct Mapped {
    path: String,
    /// uringlet's version, if the file can be read.
    version: Option<String>,
}

impl Mapped {
    fn is(&self, drop_in: DropIn) -> bool {
        let path = self.path.trim_end_matches(DELETED);
        let file = Path::new(path).file_name().and_then(|name| name.to_str());
        let name = path.strip_prefix("/memfd:").or(file);
        name == Some(drop_in.file_name())
    }
}

/// The suffix that proc(5) adds to the path of a deleted file.
const DELETED: &str = " (deleted)";

/// The program that a process has started, if the process is `uringlet run`.
fn started_by(pid: u32) -> Option<u32> {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let mut words = command.split(|&byte| byte == 0);
    let is_uringlet = words.next()?.ends_with(b"uringlet") && words.next()? == b"run";
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.trim().parse().ok().filter(|_| is_uringlet)
}

/// Checks a process and reports its drop-ins. If the process is `uringlet run`, the program that it
/// has started is checked instead.
pub fn check(pid: u32, only: Option<DropIn>) -> Result<ExitCode> {
    let pid = started_by(pid).unwrap_or(pid);
    let maps = match std::fs::read_to_string(format!("/proc/{pid}/maps")) {
        Ok(maps) => maps,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            observe::need_proc()?;
            return Err(session::refusal(format_args!("PID is {pid}: no such process")));
        }
        Err(error) => return Err(error).with_context(|| format!("process {pid}")),
    };
    let mapped: Vec<Mapped> = mapped(&maps, &format!("/proc/{pid}"))
        .into_iter()
        .filter(|mapped| only.is_none_or(|only| mapped.is(only)))
        .collect();
    let mut text = String::new();
    for Mapped { path, version } in &mapped {
        let version = version.as_deref().unwrap_or("of a version that cannot be read");
        let _ = writeln!(text, "{}: loaded, {version}", session::printable(path));
    }
    if mapped.is_empty() {
        let _ = writeln!(text, "process {pid}: NOT loaded: it has mapped no drop-in");
        session::say(&text)?;
        return Ok(ExitCode::FAILURE);
    }
    text += &answering(pid)?;
    session::say(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// A text with the counters of the process's contexts, if the process is observed. Otherwise, a
/// text that says how to observe it.
fn answering(pid: u32) -> Result<String> {
    let found = Finder::new(true).look().context("/proc")?;
    let regions = found.iter().filter(|found| found.holders.contains(&pid));
    let mut regions = regions.map(|found| found.region.contexts()).peekable();
    if regions.peek().is_none() {
        return Ok("not observed: start it with `uringlet run --observe` to see whether requests \
                   arrive\n"
            .into());
    }
    let own = regions.flatten().filter(|context| context.process.pid == pid);
    let (mut contexts, mut requests) = (0, 0);
    for context in own {
        contexts += 1;
        requests += context.counted.requests();
    }
    Ok(match contexts {
        0 => "observed: it has no context now\n".into(),
        _ => format!(
            "answering: {contexts} {}, {} {} completed\n",
            size::plural(contexts, "context"),
            size::grouped(requests),
            size::plural(requests, "request")
        ),
    })
}

/// The drop-ins in the memory map of a process (proc(5)). `proc` is the process's folder in /proc.
fn mapped(maps: &str, proc: &str) -> Vec<Mapped> {
    let program = std::fs::read_link(format!("{proc}/exe")).unwrap_or_default();
    let mut found: Vec<Mapped> = Vec::new();
    let mut before = "";
    for line in maps.lines() {
        // address perms offset dev inode pathname, which may have spaces
        let mut fields = line.splitn(6, ' ');
        let address = fields.next().unwrap_or_default();
        let rest = fields.nth(4).unwrap_or_default().trim_start();
        if !rest.starts_with('/') || rest == before || Path::new(rest) == program {
            continue;
        }
        before = rest;
        let version = [format!("{proc}/map_files/{address}"), format!("{proc}/root{rest}")]
            .iter()
            .find_map(|path| File::open(path).ok())
            .map(version_of);
        let mapped = Mapped { path: rest.to_owned(), version: version.clone().flatten() };
        // A file that can no longer be read is recognized by its name. The libraries that the
        // drop-ins replace have other names.
        let named = || DropIn::ALL.into_iter().any(|one| mapped.is(one));
        let ours = version.map_or_else(named, |version| version.is_some());
        if ours && !found.iter().any(|known| known.path == rest) {
            found.push(mapped);
        }
    }
    found
}

/// The version in the note of a drop-in; none in other files.
fn version_of(file: File) -> Option<String> {
    let mut bytes = Vec::new();
    // The headers and notes are at the beginning.
    file.take(1 << 20).read_to_end(&mut bytes).ok()?;
    let header = elf::FileHeader64::<object::Endianness>::parse(&*bytes).ok()?;
    let endian = header.endian().ok()?;
    for segment in header.program_headers(endian, &*bytes).ok()? {
        let Ok(Some(mut notes)) = segment.notes(endian, &*bytes) else { continue };
        while let Ok(Some(one)) = notes.next() {
            let owner = &note::OWNER[..note::OWNER.len() - 1];
            if one.name() == owner && one.n_type(endian).0 == note::VERSION {
                let text = one.desc().split(|&byte| byte == 0).next()?;
                return Some(format!("uringlet {}", String::from_utf8_lossy(text)));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_the_note_are_no_drop_ins() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(version_of(File::open(own).unwrap()), None);
        assert_eq!(version_of(File::open("/proc/self/maps").unwrap()), None);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert_eq!(mapped(&maps, "/proc/self"), []);
    }

    #[test]
    fn what_cannot_be_read_is_known_by_its_name() {
        let maps = "7f00-7f10 r--p 00000000 00:01 12  /gone/lib aio/libaio.so (deleted)\n\
                    7f10-7f20 r-xp 00001000 00:01 12  /gone/lib aio/libaio.so (deleted)\n\
                    7f30-7f40 r-xp 00001000 00:01 13  /memfd:libposix_aio.so (deleted)\n\
                    7f50-7f60 r-xp 00001000 00:01 14  /gone/libaio.so.1.0.2\n\
                    7f70-7f80 rw-p 00000000 00:00 0   [heap]\n";
        let found = mapped(maps, "/nowhere");
        let paths: Vec<_> = found.iter().map(|found| &*found.path).collect();
        let gone = "/gone/lib aio/libaio.so (deleted)";
        assert_eq!(paths, [gone, "/memfd:libposix_aio.so (deleted)"]);
        assert!(found[0].is(DropIn::Libaio) && found[1].is(DropIn::PosixAio));
    }
}
