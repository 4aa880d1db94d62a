//! `uringlet doctor -- PROGRAM`: can the drop-ins serve a program, and through which interface?

use crate::check::answer::rings;
use crate::report::wrapped;
use crate::run::program;
use crate::session;
use anyhow::Result;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
use serde::Serialize;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use uringlet::front::sites::{each_number, is_io_uring};
use uringlet::probe::Probe;

/// The architecture of this command. Code for other architectures is not searched for io_uring
/// calls.
const HOST: object::Architecture = if cfg!(target_arch = "aarch64") {
    object::Architecture::Aarch64
} else {
    object::Architecture::X86_64
};
/// Files with more bytes are not searched for symbols and system calls.
const LARGEST: u64 = 1 << 30;

/// The findings about a program. The libraries that it names are listed, but not inspected.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Found {
    pub file: PathBuf,
    /// The reason why no drop-in can be preloaded; none if a drop-in can be.
    pub refused: Option<String>,
    /// Functions of libaio, of POSIX AIO, and of liburing that the program imports.
    pub libaio: Vec<String>,
    pub posix_aio: Vec<String>,
    pub io_uring: Vec<String>,
    /// The program makes io_uring's calls by its own instructions.
    pub own_io_uring_calls: bool,
    /// The program imports syscall(2), by which it may make the calls of Linux AIO and of io_uring.
    pub calls_by_number: bool,
    /// Built by Go's compiler, whose programs make system calls by themselves.
    pub go: bool,
    /// The number of system call instructions in the program's code.
    pub raw_calls: usize,
    /// Libraries that the program names.
    pub needs: Vec<String>,
    /// The program is a script: its interpreter was inspected.
    pub interpreter: bool,
    /// Says who serves the program's rings under `uringlet run`: the kernel or the drop-in. None if
    /// the program cannot ask for a ring.
    pub rings: Option<String>,
}

const LIBAIO: [&str; 7] = [
    "io_setup",
    "io_submit",
    "io_getevents",
    "io_destroy",
    "io_cancel",
    "io_queue_init",
    "io_pgetevents",
];
const POSIX_AIO: [&str; 8] = [
    "aio_read",
    "aio_write",
    "aio_fsync",
    "aio_error",
    "aio_return",
    "aio_suspend",
    "lio_listio",
    "aio_cancel",
];

/// Inspects a program as `uringlet run` would start it.
///
/// # Errors
/// The program does not exist.
pub fn look(name: &OsStr) -> Result<Found> {
    let path = std::env::var_os("PATH");
    let file = program::resolve(name, path.as_deref()).map_err(session::refusal)?;
    let refused = program::check(&file).err();
    let mut found = Found { refused, file, ..Found::default() };
    let mut image = found.file.clone();
    if let Some(interpreter) = interpreter(&image) {
        found.interpreter = true;
        image = interpreter;
    }
    if std::fs::metadata(&image).is_ok_and(|data| data.len() <= LARGEST)
        && let Ok(bytes) = std::fs::read(&image)
    {
        found.read(&bytes);
    }
    Ok(found)
}

/// The maximum length of a script's first line that is looked at, in bytes.
const FIRST_LINE: u64 = 4096;

/// The program that a script's first line names.
fn interpreter(file: &Path) -> Option<PathBuf> {
    let mut bytes = Vec::new();
    File::open(file).ok()?.take(FIRST_LINE).read_to_end(&mut bytes).ok()?;
    let line = bytes.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line).into_owned();
    let mut words = line.split_ascii_whitespace();
    let first = words.next()?;
    match words.next().filter(|_| first.ends_with("/env")) {
        Some(name) => program::resolve(name.as_ref(), std::env::var_os("PATH").as_deref()).ok(),
        None => Some(first.into()),
    }
}

impl Found {
    fn read(&mut self, bytes: &[u8]) {
        let Ok(image) = object::File::parse(bytes) else { return };
        self.go = image.section_by_name(".go.buildinfo").is_some()
            || image.section_by_name(".note.go.buildid").is_some();
        for symbol in image.dynamic_symbols().filter(|symbol| symbol.is_undefined()) {
            let Ok(name) = symbol.name() else { continue };
            let bare = name.trim_end_matches("64");
            let list = if LIBAIO.contains(&bare) {
                &mut self.libaio
            } else if POSIX_AIO.contains(&bare) {
                &mut self.posix_aio
            } else if name.trim_start_matches('_').starts_with("io_uring_") {
                &mut self.io_uring
            } else {
                self.calls_by_number |= name == "syscall";
                continue;
            };
            list.push(name.to_owned());
        }
        for section in image.sections().filter(|s| s.kind() == object::SectionKind::Text) {
            let code = section.data().unwrap_or_default();
            self.raw_calls += raw_calls(code, image.architecture());
            if image.architecture() == HOST {
                each_number(code, |number| self.own_io_uring_calls |= is_io_uring(number));
            }
        }
        self.needs = needed(bytes);
        for list in [&mut self.libaio, &mut self.posix_aio, &mut self.io_uring, &mut self.needs] {
            list.sort();
            list.dedup();
            list.iter_mut().for_each(|name| *name = session::printable(name));
        }
    }

    /// Fills in `rings` if the program can ask for a ring of io_uring. `probe` says whether the
    /// kernel allows io_uring.
    pub fn say_whose_rings(&mut self, probe: &Probe) {
        let asks = !self.io_uring.is_empty() || self.own_io_uring_calls;
        if self.refused.is_none() && (asks || self.calls_by_number || self.names("liburing.so")) {
            self.rings = Some(rings(probe));
        }
    }

    fn names(&self, library: &str) -> bool {
        self.needs.iter().any(|name| name.starts_with(library))
    }

    /// Can the program be served, as far as that is known before it runs?
    pub fn is_reached(&self) -> bool {
        self.refused.is_none() && !self.go && (!self.ways().is_empty() || self.calls_by_number)
    }

    /// The interfaces for which the program's file shows a use. Whether the program can be
    /// preloaded at all is not considered here.
    fn ways(&self) -> Vec<&'static str> {
        let all = [
            ("libaio", !self.libaio.is_empty() || self.names("libaio.so")),
            ("POSIX AIO", !self.posix_aio.is_empty()),
            ("liburing", !self.io_uring.is_empty() || self.names("liburing.so")),
            ("io_uring calls of its own, which are caught", self.own_io_uring_calls),
        ];
        all.iter().filter(|(_, is)| *is).map(|(name, _)| *name).collect()
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let mut text = format!("Program {}\n", self.file.display());
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(text, "  {name:<12}{}", wrapped(value, 84).join("\n              "));
        };
        if self.interpreter {
            line("script", "what follows is of its interpreter; its modules are not looked at");
        }
        line("preload", self.refused.as_deref().unwrap_or("possible: dynamically linked"));
        let list = |names: &[String]| match names {
            [] => "not imported".to_owned(),
            names => names.join(", "),
        };
        line("libaio", &list(&self.libaio));
        line("POSIX AIO", &list(&self.posix_aio));
        line("liburing", &list(&self.io_uring));
        line(
            "libraries",
            &if self.needs.is_empty() { "none".into() } else { self.needs.join(", ") },
        );
        let raw = match (self.go, self.raw_calls) {
            (true, _) => {
                "a Go program: it makes all system calls by instructions of its own".into()
            }
            (false, 0) => "none in its own code".to_owned(),
            (false, 1) => "1 place in its own code".to_owned(),
            (false, places) => format!("{places} places in its own code"),
        };
        let raw = raw + if self.own_io_uring_calls { ", some of io_uring" } else { "" };
        line("raw calls", &raw);
        if let Some(rings) = &self.rings {
            line("rings", rings);
        }
        let _ = writeln!(text, "\n{}", wrapped(&self.verdict(), 98).join("\n"));
        text
    }

    /// The verdict in a sentence.
    pub fn verdict(&self) -> String {
        let name = self.file.display();
        let run = format!("`uringlet run --stats -- {name}` shows what goes through");
        if let Some(refused) = &self.refused {
            return format!("uringlet cannot reach it: {refused}.");
        }
        if self.go {
            return "uringlet cannot reach it: a Go program makes its system calls itself.".into();
        }
        if let [ways @ .., last] = &self.ways()[..] {
            let ways = if ways.is_empty() { String::new() } else { ways.join(", ") + " and " };
            return format!("uringlet can reach it, through {ways}{last}: {run}.");
        }
        if self.calls_by_number {
            return format!(
                "uringlet can reach it if it makes the calls of Linux AIO or of io_uring through \
                 syscall(): {run}."
            );
        }
        format!(
            "Nothing that uringlet serves is imported. A library that it loads while it runs may \
             do so: {run}."
        )
    }
}

/// The libraries that a dynamic image names.
fn needed(bytes: &[u8]) -> Vec<String> {
    use object::elf;
    use object::read::elf::{Dyn as _, FileHeader as _};
    macro_rules! needed {
        ($header:ty) => {{
            let header = <$header>::parse(bytes).ok()?;
            let endian = header.endian().ok()?;
            let sections = header.sections(endian, bytes).ok()?;
            let (entries, strings) = sections.dynamic(endian, bytes).ok()??;
            let strings = sections.strings(endian, bytes, strings).ok()?;
            let names = entries.iter().filter(|entry| entry.d_tag(endian) == elf::DT_NEEDED);
            let names = names.filter_map(|entry| entry.string(endian, strings).ok());
            Some(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
        }};
    }
    let found = || -> Option<Vec<String>> {
        match elf::FileClass(*bytes.get(4)?) {
            elf::ELFCLASS64 => needed!(elf::FileHeader64<object::Endianness>),
            elf::ELFCLASS32 => needed!(elf::FileHeader32<object::Endianness>),
            _ => None,
        }
    };
    found().unwrap_or_default()
}

/// The number of instructions that enter the kernel. Data that looks like such an instruction
/// counts, too.
fn raw_calls(code: &[u8], architecture: object::Architecture) -> usize {
    match architecture {
        object::Architecture::X86_64 => {
            code.windows(2).filter(|bytes| *bytes == [0x0f, 0x05]).count()
        }
        object::Architecture::Aarch64 => {
            code.chunks_exact(4).filter(|word| *word == [0x01, 0x00, 0x00, 0xd4]).count()
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_is_read() {
        let mut found = Found::default();
        found.read(&std::fs::read("/proc/self/exe").unwrap());
        assert!(found.names("libc.so") || found.names("libc.musl"), "{found:?}");
        assert!(!found.go);
        found.read(b"no image");
    }

    #[test]
    fn the_verdict_names_the_way_or_the_obstacle() {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let of = |found: Found| (found.is_reached(), found.verdict());
        let (is, said) = of(Found { libaio: list(&["io_setup"]), ..Found::default() });
        assert!(is && said.contains("through libaio"), "{said}");
        let (is, said) = of(Found { posix_aio: list(&["aio_read"]), ..Found::default() });
        assert!(is && said.contains("through POSIX AIO"), "{said}");
        let (is, said) = of(Found { io_uring: list(&["io_uring_submit"]), ..Found::default() });
        assert!(is && said.contains("through liburing"), "{said}");
        let both =
            Found { libaio: list(&["io_setup"]), own_io_uring_calls: true, ..Found::default() };
        let (is, said) = of(both);
        assert!(is && said.contains("through libaio and io_uring calls of its own"), "{said}");
        let (is, said) = of(Found { go: true, ..Found::default() });
        assert!(!is && said.contains("Go"), "{said}");
        let static_one = Found { refused: Some("statically linked".into()), ..Found::default() };
        let (is, said) = of(static_one);
        assert!(!is && said.contains("cannot reach it: statically linked"), "{said}");
        let (is, said) = of(Found { calls_by_number: true, ..Found::default() });
        assert!(is && said.contains("syscall()"), "{said}");
        assert!(of(Found::default()).1.contains("Nothing that uringlet serves"));
    }

    #[test]
    fn instructions_are_counted() {
        let code = [0x90, 0x0f, 0x05, 0xc3, 0x0f, 0x05];
        assert_eq!(raw_calls(&code, object::Architecture::X86_64), 2);
        assert_eq!(raw_calls(&[1, 0, 0, 0xd4], object::Architecture::Aarch64), 1);
    }
}
