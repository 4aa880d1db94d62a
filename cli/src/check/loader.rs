//! Asks a program's dynamic loader what it would load and bind. The program does not run
//! (ld.so(8)).

use anyhow::{Context as _, Result};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

/// A part of the name of each function of libaio, POSIX AIO and liburing. A drop-in also exports
/// functions that any program binds, such as close.
const INTERFACE: &str = "io_";

/// Asks the loader what it would do with this library preloaded. Returns the functions that the
/// program and its libraries would bind to this library, or why the loader would not load it.
pub fn trace(program: &Path, library: &Path) -> Result<Result<Vec<String>, String>> {
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

fn read(objects: &str, debug: &str, library: &str) -> Result<Vec<String>, String> {
    let is_it = |line: &str| line.split_whitespace().next() == Some(library);
    if !objects.lines().any(is_it) {
        let error =
            debug.lines().find(|line| line.contains("ERROR: ld.so") && line.contains(library));
        return Err(error.unwrap_or("its loader says nothing").trim().to_owned());
    }
    let to_it = format!(" to {library} [");
    let from_it = format!("binding file {library} [");
    let lines = debug.lines().filter(|line| line.contains(&to_it) && !line.contains(&from_it));
    let names = lines.filter_map(|line| line.split_once(": normal symbol `")?.1.split('\'').next());
    let bound: BTreeSet<&str> = names.filter(|name| name.contains(INTERFACE)).collect();
    Ok(bound.into_iter().map(str::to_owned).collect())
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
        assert_eq!(read(objects, debug, "/x/libaio.so"), Ok(vec!["io_submit".into()]));
        let refused = read("\tlibc.so.6 => x\n", "ERROR: ld.so: object '/y.so' no\n", "/y.so");
        assert!(refused.unwrap_err().contains("object '/y.so' no"));
        assert!(read("", "", "/y.so").unwrap_err().contains("says nothing"));
    }
}
