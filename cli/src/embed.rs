//! Puts the drop-ins that the command carries where the loader finds them. A drop-in is a library
//! that replaces libaio, POSIX AIO or liburing. The command contains the bytes of each drop-in.
//!
//! A user who can write to a preloaded library controls every program that loads it. So a folder is
//! used only if nobody but its owner and root can change it or any folder above it. A file in it is
//! used only if it is the carried library, byte for byte, and can be executed.
#![allow(unsafe_code)]

use crate::run::library::preloadable;
use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::geteuid;
use std::env;
use std::fs::{DirBuilder, File, Metadata, Permissions};
use std::io::{Read as _, Write as _};
use std::ops::Range;
use std::os::fd::{AsRawFd as _, IntoRawFd as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Mutex;

/// Name and content of each drop-in.
static CARRIED: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/drop_ins.rs"));
/// The folder of the drop-ins is named after this hash of them. So several versions of the command
/// do not interfere.
const HASH: &str = env!("URINGLET_CARRIES");

/// The descriptor of a drop-in in memory gets a random number in this range. Few processes use such
/// high numbers. So, if another process gets this process's id later, the path hardly leads to a
/// file of that process.
const NUMBERS: Range<i32> = 256..1000;

/// Write permission for the group and for all other users.
const OTHERS_WRITE: u32 = 0o022;
/// The mode of folders: programs that become other users find the drop-ins there, too.
const SEARCHABLE: u32 = 0o755;
/// In a folder with the sticky bit, users can rename and delete only their own files.
const STICKY: u32 = 0o1000;

/// A folder into which the drop-ins could be put.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    folder: PathBuf,
    /// Folders above it may be created, too.
    with_parents: bool,
}

/// Does the command carry this drop-in?
pub fn carries(name: &str) -> bool {
    CARRIED.iter().any(|&(carried, _)| carried == name)
}

/// The folder in /proc with the descriptors of this process, which other processes can open. A
/// child has its own descriptors, so what it opens and closes has no effect here.
fn descriptors() -> PathBuf {
    format!("/proc/{}/fd", std::process::id()).into()
}

/// Does the path exist only as long as this process?
pub fn is_passing(path: &Path) -> bool {
    path.starts_with(descriptors())
}

/// A path from which the loader can preload a carried drop-in. It leads to a file in one of the
/// folders of `places`. If no folder can hold the file, the path leads to a memory file
/// (memfd_create(2)) that this process has open.
///
/// # Errors
/// The drop-in is not carried, or can be put nowhere: the error says why.
pub fn place(name: &str) -> Result<PathBuf> {
    static PLACED: Mutex<Vec<(String, PathBuf)>> = Mutex::new(Vec::new());
    let mut placed = PLACED.lock().expect("nobody panics with it");
    if let Some((_, path)) = placed.iter().find(|(known, _)| known == name) {
        return Ok(path.clone());
    }
    let carried = CARRIED.iter().find(|&&(carried, _)| carried == name);
    let &(_, bytes) = carried.with_context(|| format!("this command carries no {name}"))?;
    let path = place_in(&places(), HASH, name, bytes)?;
    placed.push((name.to_owned(), path.clone()));
    Ok(path)
}

/// Puts a drop-in into the first of these folders that can hold it, or else into memory.
fn place_in(places: &[Place], hash: &str, name: &str, bytes: &[u8]) -> Result<PathBuf> {
    let mut reasons = Vec::new();
    for place in places {
        match put(place, hash, name, bytes) {
            Ok(path) => return Ok(path),
            Err(error) => reasons.push(format!("  {}: {error:#}", place.folder.display())),
        }
    }
    in_memory(name, bytes).with_context(|| {
        format!("the carried {name} can be put nowhere; tried\n{}\n  memory", reasons.join("\n"))
    })
}

/// The folders in the order of trying.
fn places() -> Vec<Place> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let user = geteuid();
    let mut found = Vec::new();
    let mut add = |folder: PathBuf, with_parents| found.push(Place { folder, with_parents });
    // https://specifications.freedesktop.org/basedir-spec
    if let Some(cache) = absolute("XDG_CACHE_HOME") {
        add(cache.join("uringlet"), true);
    }
    if user.is_root() {
        // Readable for others: root starts programs that become other users.
        add("/var/cache/uringlet".into(), false);
    }
    if let Some(home) = absolute("HOME").filter(|home| home.is_dir()) {
        add(home.join(".cache/uringlet"), true);
    }
    if let Some(runtime) = absolute("XDG_RUNTIME_DIR") {
        add(runtime.join("uringlet"), false);
    }
    for shared in ["/dev/shm", "/var/tmp", "/tmp"] {
        add(Path::new(shared).join(format!("uringlet-{}", user.as_raw())), false);
    }
    found
}

/// Writes the library into the subfolder `hash` of this folder. Both folders are made if needed.
fn put(place: &Place, hash: &str, name: &str, bytes: &[u8]) -> Result<PathBuf> {
    preloadable(&place.folder)?;
    if place.with_parents
        && let Some(parent) = place.folder.parent()
    {
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    let folder = make(&place.folder)?;
    let folder = make(&folder.join(hash))?;
    let path = folder.join(name);
    if is_usable(&path, bytes) != Some(true) {
        let mut file = tempfile::NamedTempFile::new_in(&folder)?;
        file.write_all(bytes)?;
        file.as_file().set_permissions(Permissions::from_mode(0o644))?;
        // The file is replaced in one step: no process sees a part of it, and a process that has
        // mapped the old file keeps it.
        file.persist(&path)?;
    }
    match is_usable(&path, bytes) {
        Some(true) => Ok(path),
        Some(false) => bail!("what lies there cannot be executed (is it mounted noexec?)"),
        None => bail!("what was put there is not there any more"),
    }
}

/// Makes the folder if it does not exist, and returns its path without symbolic links. Refuses a
/// folder of another user. Also refuses it if other users can change it or a folder above it.
fn make(folder: &Path) -> Result<PathBuf> {
    let made = DirBuilder::new().mode(SEARCHABLE).create(folder);
    if let Err(error) = made
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        return Err(error.into());
    }
    let data = folder.symlink_metadata()?;
    ensure!(data.is_dir(), "is a link or a file, not a folder");
    ensure!(data.uid() == geteuid().as_raw(), "belongs to user {}", data.uid());
    ensure!(data.mode() & OTHERS_WRITE == 0, "others can write to it");
    // The umask of this run, or of an earlier one, may have left others no way to the drop-ins.
    if data.mode() & SEARCHABLE != SEARCHABLE {
        let only_folders = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let opened = File::options().read(true).custom_flags(only_folders).open(folder);
        if let Ok(opened) = opened
            && opened.metadata().is_ok_and(|opened| opened.ino() == data.ino())
        {
            // The folder still serves this user if the mode cannot be changed.
            let _ = opened.set_permissions(Permissions::from_mode(SEARCHABLE));
        }
    }
    let folder = folder.canonicalize()?;
    preloadable(&folder)?;
    for above in folder.ancestors().skip(1) {
        let data = above.symlink_metadata()?;
        let only = data.mode() & OTHERS_WRITE == 0 || data.mode() & STICKY != 0;
        ensure!(is_trusted(&data) && only, "others can change {}", above.display());
    }
    Ok(folder)
}

/// Does the file belong to this user or to root?
pub fn is_trusted(data: &Metadata) -> bool {
    data.uid() == 0 || data.uid() == geteuid().as_raw()
}

/// Can this file be executed? `None` if it is not the library, or if other users can change it.
fn is_usable(path: &Path, bytes: &[u8]) -> Option<bool> {
    if !path.symlink_metadata().ok()?.is_file() {
        return None;
    }
    let mut file = File::open(path).ok()?;
    let data = file.metadata().ok()?;
    if !is_trusted(&data) || data.mode() & OTHERS_WRITE != 0 || data.len() != bytes.len() as u64 {
        return None;
    }
    let mut found = Vec::with_capacity(bytes.len());
    file.read_to_end(&mut found).ok()?;
    (found == bytes).then(|| is_executable(&file))
}

/// Can the file be mapped for execution, as the loader maps it? A file system that is mounted
/// noexec refuses this.
fn is_executable(file: &File) -> bool {
    const SIZE: usize = 4096;
    let protection = ProtFlags::READ | ProtFlags::EXEC;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let made = unsafe { mmap(ptr::null_mut(), SIZE, protection, MapFlags::PRIVATE, file, 0) };
    made.is_ok_and(|at| {
        // SAFETY: mapped above, and nothing else uses it.
        let _ = unsafe { munmap(at, SIZE) };
        true
    })
}

/// The library in sealed memory. The descriptor stays open, in this process only.
fn in_memory(name: &str, bytes: &[u8]) -> Result<PathBuf> {
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
    // Linux before 6.3 does not know `NOEXEC_SEAL`. With vm.memfd_noexec 2, the kernel requires it.
    let made = memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL);
    let made = made.or_else(|error| match error {
        Errno::INVAL => memfd_create(name, flags),
        error => Err(error),
    });
    let mut file = File::from(made.context("memfd_create")?);
    file.write_all(bytes)?;
    let all = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&file, all).context("cannot seal it")?;
    let duplicate = |from| fcntl_dupfd_cloexec(&file, from);
    let kept = File::from(duplicate(fastrand::i32(NUMBERS)).or_else(|_| duplicate(3))?);
    let path = descriptors().join(kept.as_raw_fd().to_string());
    ensure!(File::open(&path).is_ok(), "{} cannot be opened", path.display());
    ensure!(is_executable(&kept), "it cannot be executed");
    let _ = kept.into_raw_fd();
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip;
    use std::os::unix::fs::{chown, symlink};

    const BYTES: &[u8] = b"a library";

    /// A folder that nobody else can change, and a subfolder that does not exist yet.
    fn scratch() -> (tempfile::TempDir, Place) {
        let folder = tempfile::tempdir().unwrap();
        let place = Place { folder: folder.path().join("uringlet"), with_parents: false };
        (folder, place)
    }

    fn reason(place: &Place) -> String {
        format!("{:#}", put(place, "1", "x.so", BYTES).unwrap_err())
    }

    #[test]
    fn it_is_put_once_and_put_again_if_it_is_another() {
        let (_folder, place) = scratch();
        let path = put(&place, "1", "x.so", BYTES).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), BYTES);
        let first = path.metadata().unwrap();
        assert_eq!(first.mode() & 0o7777, 0o644);
        assert_eq!(put(&place, "1", "x.so", BYTES).unwrap(), path);
        assert_eq!(path.metadata().unwrap().ino(), first.ino(), "the same file");
        // The changed file has the same length, is shorter, or is writable for others.
        for change in [b"a cuckoo!".as_slice(), b"a l"] {
            std::fs::write(&path, change).unwrap();
            put(&place, "1", "x.so", BYTES).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), BYTES);
        }
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        put(&place, "1", "x.so", BYTES).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o644);
        // A link is not followed, even to the same content.
        let other = place.folder.join("other");
        std::fs::rename(&path, &other).unwrap();
        symlink(&other, &path).unwrap();
        put(&place, "1", "x.so", BYTES).unwrap();
        assert!(path.symlink_metadata().unwrap().is_file());
        // The folder has no other file.
        assert_eq!(path.parent().unwrap().read_dir().unwrap().count(), 1);
        assert_ne!(put(&place, "2", "x.so", b"another build").unwrap(), path);
    }

    /// As a umask of 077 leaves them.
    #[test]
    fn folders_that_others_cannot_search_are_opened_to_them() {
        let (_folder, place) = scratch();
        let closed = Permissions::from_mode(0o700);
        std::fs::create_dir(&place.folder).unwrap();
        std::fs::create_dir(place.folder.join("1")).unwrap();
        std::fs::set_permissions(place.folder.join("1"), closed.clone()).unwrap();
        std::fs::set_permissions(&place.folder, closed).unwrap();
        put(&place, "1", "x.so", BYTES).unwrap();
        for folder in [place.folder.join("1"), place.folder] {
            assert_eq!(folder.metadata().unwrap().mode() & 0o777, SEARCHABLE);
        }
    }

    #[test]
    fn a_folder_that_others_could_change_is_refused() {
        let (folder, place) = scratch();
        let elsewhere = folder.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, &place.folder).unwrap();
        assert!(reason(&place).contains("a link or a file"));
        assert_eq!(elsewhere.read_dir().unwrap().count(), 0, "nothing is written behind a link");
        std::fs::remove_file(&place.folder).unwrap();
        std::fs::create_dir(&place.folder).unwrap();
        std::fs::set_permissions(&place.folder, Permissions::from_mode(0o770)).unwrap();
        assert!(reason(&place).contains("others can write to it"));
        std::fs::set_permissions(&place.folder, Permissions::from_mode(0o755)).unwrap();
        // A folder above the place may be writable for others only if it has the sticky bit.
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        assert!(reason(&place).contains("others can change"));
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).unwrap();
        put(&place, "1", "x.so", BYTES).unwrap();
    }

    #[test]
    fn a_folder_of_somebody_else_is_refused() {
        let (folder, place) = scratch();
        if !geteuid().is_root() {
            return skip::skipped("a_folder_of_somebody_else_is_refused", "root only");
        }
        std::fs::create_dir(&place.folder).unwrap();
        chown(&place.folder, Some(65534), None).unwrap();
        assert!(reason(&place).contains("belongs to user 65534"));
        chown(&place.folder, Some(0), None).unwrap();
        chown(folder.path(), Some(65534), None).unwrap();
        assert!(reason(&place).contains("others can change"));
    }

    #[test]
    fn a_path_that_cannot_be_preloaded_is_not_taken() {
        let (folder, _) = scratch();
        for name in ["a b", "a:b"] {
            let place = Place { folder: folder.path().join(name), with_parents: true };
            assert!(reason(&place).contains("a space or a colon"));
            assert!(!place.folder.exists());
        }
    }

    #[test]
    fn without_a_folder_it_is_in_memory_that_cannot_be_changed() {
        let nowhere = Place { folder: "/proc/uringlet".into(), with_parents: true };
        let path = place_in(&[nowhere], "1", "x.so", BYTES).unwrap();
        assert!(is_passing(&path), "{path:?}");
        assert_eq!(std::fs::read(&path).unwrap(), BYTES);
        let writer = File::options().write(true).open(&path).and_then(|mut f| f.write_all(b"x"));
        assert!(writer.is_err(), "it is sealed");
        // A child finds the file under the same name, without having its descriptor.
        let mut cat = std::process::Command::new("cat");
        assert_eq!(cat.arg(&path).output().unwrap().stdout, BYTES);
    }

    #[test]
    fn what_is_not_carried_is_said() {
        assert!(!carries("libnothing.so"));
        assert!(place("libnothing.so").unwrap_err().to_string().contains("carries no"));
    }
}
