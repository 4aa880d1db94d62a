//! The dynamic symbols of a library, read with binutils.

use std::collections::BTreeSet;
use std::process::Command;

/// What a program prints.
pub fn output(command: &str, arguments: &[&str]) -> String {
    let output = Command::new(command).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{command}: {error}: run ci/setup.sh"));
    assert!(output.status.success(), "{command} {arguments:?} failed: run ci/setup.sh");
    String::from_utf8(output.stdout).expect("text")
}

/// Functions with their versions; a version in parentheses is not the default one.
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
