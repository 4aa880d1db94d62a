//! Asks a program's dynamic loader what it would load and bind. The program is not run (ld.so(8)).

use anyhow::{Context as _, Result};
use std::path::Path;
use std::process::{Command, Stdio};

/// Exported for other reasons than the interface: programs bind them in any case.
const BESIDE: [&str; 8] =
    ["close", "close_range", "closefrom", "dup2", "dup3", "unshare", "syscall", "pthread_cancel"];

/// What the loader said.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// It would not load the library; why.
    pub refused: Option<String>,
    /// The interface's functions that the program and its libraries would call there.
    pub bound: Vec<String>,
}

/// Has the loader of a program say what it would do with this library preloaded.
pub fn trace(program: &Path, library: &Path) -> Result<Loaded> {
    let output = Command::new(program)
        .env("LD_PRELOAD", library)
        .env("LD_TRACE_LOADED_OBJECTS", "1")
        .env("LD_WARN", "yes")
        .env("LD_BIND_NOW", "yes")
        .env("LD_DEBUG", "bindings")
        .env_remove("LD_DEBUG_OUTPUT")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(read(&text(&output.stdout), &text(&output.stderr), &library.display().to_string()))
}

fn read(objects: &str, debug: &str, library: &str) -> Loaded {
    let is_it = |line: &str| line.split_whitespace().next() == Some(library);
    let mut loaded = Loaded::default();
    if !objects.lines().any(is_it) {
        let error =
            debug.lines().find(|line| line.contains("ERROR: ld.so") && line.contains(library));
        let said = error.unwrap_or("its loader says nothing").trim();
        loaded.refused = Some(said.to_owned());
        return loaded;
    }
    let to_it = format!(" to {library} [");
    let from_it = format!("binding file {library} [");
    for line in debug.lines().filter(|line| line.contains(&to_it) && !line.contains(&from_it)) {
        let Some((_, name)) = line.split_once(": normal symbol `") else { continue };
        let name = name.split('\'').next().unwrap_or(name);
        if !BESIDE.contains(&name) {
            loaded.bound.push(name.to_owned());
        }
    }
    loaded.bound.sort_unstable();
    loaded.bound.dedup();
    loaded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loader_is_understood() {
        let objects =
            "\tlinux-vdso.so.1 (0x7f)\n\t/x/libaio.so (0x7f)\n\tlibc.so.6 => /libc.so.6\n";
        let debug = "   1:\tbinding file ./p [0] to /x/libaio.so [0]: normal \
             symbol `io_submit' [A]\n\
                     1:\tbinding file ./p [0] to /x/libaio.so [0]: normal symbol `close'\n\
                     1:\tbinding file /x/libaio.so [0] to /x/libaio.so [0]: normal symbol `_io_x'\n\
                     1:\tbinding file ./p [0] to /libc.so.6 [0]: normal symbol `io_other'\n";
        let loaded = read(objects, debug, "/x/libaio.so");
        assert_eq!(loaded, Loaded { refused: None, bound: vec!["io_submit".into()] });
        let refused = read("\tlibc.so.6 => x\n", "ERROR: ld.so: object '/y.so' no\n", "/y.so");
        assert!(refused.refused.unwrap().contains("object '/y.so' no"));
        assert!(read("", "", "/y.so").refused.unwrap().contains("says nothing"));
    }
}
