//! Finds the drop-ins: relative to the executable, or the copies that the command carries.

use crate::embed;
use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A shared library with the functions of one interface. `run` preloads the library, so that the
/// program binds these functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DropIn {
    /// libaio's functions, and Linux AIO's system calls made through syscall(2)
    Libaio,
    /// The C library's aio_read, aio_write and so on
    PosixAio,
    /// liburing's functions, and io_uring's system calls made through syscall(2)
    IoUring,
}

impl DropIn {
    /// All drop-ins, in the order of preloading.
    pub const ALL: [Self; 3] = [Self::Libaio, Self::PosixAio, Self::IoUring];

    /// The name of the file that cargo builds.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Libaio => "libaio.so",
            Self::PosixAio => "libposix_aio.so",
            Self::IoUring => "liburing.so",
        }
    }
}

/// The folder where cargo built the drop-ins, for a command that carries none. Empty if the command
/// carries drop-ins, or was built with `URINGLET_DROP_INS=none`.
const BUILT_IN: &str = env!("URINGLET_BUILT_IN");

/// Finds a drop-in beside the running executable or in its `deps/`, whichever is newer, or in
/// `../lib/uringlet/`. If none is there, puts the carried drop-in where the loader finds it. A
/// command that carries none looks in the folder where it was built.
///
/// # Errors
/// The library does not exist (with a list of the places), or the loader cannot preload its path.
pub fn find(drop_in: DropIn) -> Result<PathBuf> {
    let executable = std::env::current_exe().context("cannot find the uringlet executable")?;
    let found = find_from(executable.parent().unwrap_or(Path::new("/")), drop_in);
    match found {
        Err(_) if embed::carries(drop_in.file_name()) => embed::place(drop_in.file_name()),
        Err(error) if !BUILT_IN.is_empty() => {
            let built = find_from(Path::new(BUILT_IN), drop_in).ok();
            built.filter(|path| is_trusted(path)).ok_or(error)
        }
        found => found,
    }
}

/// Do this file and its folder belong to this user or to root? The folder of the build may be gone:
/// `cargo install` builds below /tmp. Another user may have made a folder of the same name.
fn is_trusted(library: &Path) -> bool {
    let mut both = library.ancestors().take(2);
    both.all(|path| path.symlink_metadata().is_ok_and(|data| embed::is_trusted(&data)))
}

fn find_from(folder: &Path, drop_in: DropIn) -> Result<PathBuf> {
    let name = drop_in.file_name();
    let places = [
        folder.join(name),
        folder.join("deps").join(name),
        folder.join("../lib/uringlet").join(name),
    ];
    // cargo puts a drop-in into `deps/`. It copies the drop-in to the executable's folder only when
    // the whole workspace is built. The newer file belongs to the executable's build.
    let modified = |place: &&PathBuf| place.metadata().and_then(|data| data.modified()).ok();
    let built = places[..2].iter().filter(|place| place.is_file()).max_by_key(modified);
    let Some(found) = built.or(places.last().filter(|place| place.is_file())) else {
        let list: Vec<String> = places.iter().map(|p| format!("  {}", p.display())).collect();
        bail!(
            "the drop-in {name} is not there; looked for\n{}\n\
             In the source tree, `cargo build --release` makes it.",
            list.join("\n")
        );
    };
    let found = found.canonicalize().with_context(|| found.display().to_string())?;
    preloadable(&found)?;
    Ok(found)
}

/// Refuses a path that the loader cannot preload from.
///
/// # Errors
/// The reason.
pub fn preloadable(path: &Path) -> Result<()> {
    // ld.so(8): spaces or colons separate the elements of LD_PRELOAD, and cannot be escaped.
    if path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        bail!(
            "{}: the dynamic loader cannot preload from a path with a space or a colon; \
             move the folder",
            path.display()
        );
    }
    Ok(())
}

/// The value of `LD_PRELOAD`: the drop-ins, then the old value.
pub fn preload(libraries: &[PathBuf], existing: Option<OsString>) -> OsString {
    let existing = existing.filter(|text| !text.is_empty());
    let ours = libraries.iter().map(|library| library.as_os_str().to_owned());
    ours.chain(existing).collect::<Vec<_>>().join(":".as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_two_in_the_target_folder_the_newer_is_taken() {
        let folder = tempfile::Builder::new().prefix("lib").tempdir().unwrap();
        let error = find_from(folder.path(), DropIn::Libaio).unwrap_err().to_string();
        assert!(error.contains("deps/libaio.so") && error.contains("cargo build --release"));
        std::fs::create_dir(folder.path().join("deps")).unwrap();
        std::fs::write(folder.path().join("deps/libaio.so"), "").unwrap();
        assert!(find_from(folder.path(), DropIn::Libaio).unwrap().ends_with("deps/libaio.so"));
        std::fs::write(folder.path().join("libaio.so"), "").unwrap();
        let built = |place: &str, seconds| {
            let file = std::fs::File::options().write(true).open(folder.path().join(place));
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            file.unwrap().set_modified(time).unwrap();
        };
        built("deps/libaio.so", 1000);
        built("libaio.so", 2000);
        assert!(!find_from(folder.path(), DropIn::Libaio).unwrap().ends_with("deps/libaio.so"));
        built("deps/libaio.so", 3000);
        assert!(find_from(folder.path(), DropIn::Libaio).unwrap().ends_with("deps/libaio.so"));
    }

    #[test]
    fn where_the_command_was_built_a_library_of_another_user_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("libaio.so");
        std::fs::write(&library, "").unwrap();
        assert!(is_trusted(&library));
        if !rustix::process::geteuid().is_root() {
            let name = "where_the_command_was_built_a_library_of_another_user_is_not_taken";
            return crate::skip::skipped(name, "root only");
        }
        for other in [folder.path(), &library] {
            std::os::unix::fs::chown(other, Some(65534), None).unwrap();
            assert!(!is_trusted(&library), "{}", other.display());
            std::os::unix::fs::chown(other, Some(0), None).unwrap();
        }
    }

    #[test]
    fn a_path_that_cannot_be_preloaded_is_refused() {
        let folder = tempfile::Builder::new().prefix("a b").tempdir().unwrap();
        std::fs::write(folder.path().join("libaio.so"), "").unwrap();
        assert!(
            find_from(folder.path(), DropIn::Libaio).unwrap_err().to_string().contains("space")
        );
    }

    #[test]
    fn an_existing_preload_stays_behind_ours() {
        let ours = ["/x/libaio.so", "/x/libposix_aio.so"].map(PathBuf::from);
        assert_eq!(preload(&ours[..1], None), "/x/libaio.so");
        assert_eq!(preload(&ours[..1], Some("".into())), "/x/libaio.so");
        assert_eq!(preload(&ours, Some("/y.so".into())), "/x/libaio.so:/x/libposix_aio.so:/y.so");
    }
}
