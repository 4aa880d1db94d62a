//! `uringlet run --print-env`: the variables that `run` would set, for a service file or a shell.

use crate::{embed, session};
use anyhow::{Result, ensure};
use clap::ValueEnum;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The format of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// The Service section of a unit (systemd.exec(5)): Environment="NAME=VALUE"
    Systemd,
    /// A POSIX shell: export NAME='VALUE'
    Shell,
    /// env(1), an environment file: NAME=VALUE
    Plain,
}

/// Prints the variables that are set for this command.
///
/// # Errors
/// The libraries are where another process would not find them, or standard output cannot be
/// written.
pub fn print(command: &Command, libraries: &[PathBuf], format: Format) -> Result<ExitCode> {
    ensure!(
        !libraries.iter().any(|library| embed::is_passing(library)),
        "--print-env: no folder can hold the drop-ins for other processes; \
         set XDG_CACHE_HOME to one that can be written to, and that is not mounted noexec"
    );
    let mut text = String::new();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            text += &line(&name.to_string_lossy(), &value.to_string_lossy(), format);
        }
    }
    session::say(&text)?;
    let closed = libraries.iter().find_map(|library| closed_to_others(library));
    if let Some(folder) = closed {
        session::tell(format_args!(
            "uringlet run: only user {} can read {}: a service of another user needs the drop-ins \
             elsewhere (XDG_CACHE_HOME)",
            rustix::process::geteuid().as_raw(),
            folder.display()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn line(name: &str, value: &str, format: Format) -> String {
    match format {
        Format::Systemd => {
            // systemd.syntax(7), systemd.unit(5): specifiers begin with a per cent sign.
            let value = value.replace('\\', r"\\").replace('"', r#"\""#).replace('%', "%%");
            format!("Environment=\"{name}={value}\"\n")
        }
        Format::Shell => format!("export {name}='{}'\n", value.replace('\'', r"'\''")),
        Format::Plain => format!("{name}={value}\n"),
    }
}

/// Of the folders above a file, the topmost one that other users cannot enter.
fn closed_to_others(file: &Path) -> Option<&Path> {
    let closed = |folder: &&Path| folder.metadata().is_ok_and(|data| data.mode() & 0o001 == 0);
    file.ancestors().skip(1).filter(closed).last()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn each_format_quotes_in_its_way() {
        let value = r#"/a%b"c\d'e"#;
        assert_eq!(line("A", value, Format::Systemd), "Environment=\"A=/a%%b\\\"c\\\\d'e\"\n");
        assert_eq!(line("A", value, Format::Shell), "export A='/a%b\"c\\d'\\''e'\n");
        assert_eq!(line("A", value, Format::Plain), format!("A={value}\n"));
    }

    #[test]
    fn a_folder_closed_to_others_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("open/libaio.so");
        let mode = |mode| std::fs::set_permissions(folder.path(), Permissions::from_mode(mode));
        let is_closed = |found: Option<&Path>| found == Some(folder.path());
        std::fs::create_dir(file.parent().unwrap()).unwrap();
        mode(0o700).unwrap();
        // Folders above the temporary folder may be closed to other users, too.
        let outside = folder.path().parent().unwrap();
        let above = closed_to_others(outside.join("x").as_path()).map(Path::to_owned);
        assert!(above.is_some() || is_closed(closed_to_others(&file)));
        mode(0o755).unwrap();
        assert_eq!(closed_to_others(&file), above.as_deref());
    }
}
