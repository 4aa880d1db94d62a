//! The dynamic symbols of a library, read with binutils.

use std::collections::BTreeSet;
use std::process::Command;

/// The output of a program.
pub fn output(command: &str, arguments: &[&str]) -> String {
    let output = Command::new(command).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{command}: {error}: run ci/setup.sh"));
    assert!(output.status.success(), "{command} {arguments:?} failed: run ci/setup.sh");
    String::from_utf8(output.stdout).expect("text")
}

/// The functions that a library defines, as `name@version`. A version in parentheses is not the
/// default version.
pub fn functions(library: &str) -> BTreeSet<String> {
    let symbols = output("objdump", &["-T", library]);
    let mut found = BTreeSet::new();
    for line in symbols.lines().filter(|line| !line.contains("*UND*") && !line.contains("*ABS*")) {
        let mut words = line.split_whitespace().rev();
        if let (Some(name), Some(version)) = (words.next(), words.next())
            && line.contains(".text")
        {
            found.insert(format!("{name}@{version}"));
        }
    }
    found
}

/// Functions of the C library that drop-ins export. They close descriptors, start or end processes
/// and programs, or wait for descriptors.
pub const INTERPOSED: &[&str] = &[
    "close",
    "close_range",
    "closefrom",
    "dup2",
    "dup3",
    "unshare",
    "fclose",
    "pclose",
    "closedir",
    "freopen",
    "freopen64",
    "_exit",
    "_Exit",
    "quick_exit",
    "fork",
    "_Fork",
    "vfork",
    "daemon",
    "forkpty",
    "clone",
    "system",
    "popen",
    "posix_spawn",
    "posix_spawnp",
    "execl",
    "execle",
    "execlp",
    "execv",
    "execve",
    "execvp",
    "execvpe",
    "execveat",
    "fexecve",
    "poll",
    "ppoll",
    "__poll_chk",
    "__ppoll_chk",
    "select",
    "pselect",
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
];

/// Is the symbol one of [`INTERPOSED`], or the drop-in's `own`?
pub fn is_interposed(name: &str, own: &str) -> bool {
    name.strip_suffix("@Base").is_some_and(|name| name == own || INTERPOSED.contains(&name))
}
