//! The files of a job: which there are, which have to be made, and which must be left alone.

use super::options::Spec;
use super::plan::{Needed, Plan};
use crate::scratch;
use crate::session::{self, STOP};
use crate::size;
use anyhow::{Context as _, Result, ensure};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Seek as _, SeekFrom};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Bytes of a file or block device that exists.
pub fn len(path: &Path) -> Option<u64> {
    let metadata = path.metadata().ok()?;
    if !metadata.file_type().is_block_device() {
        return Some(metadata.len());
    }
    File::open(path).and_then(|mut device| device.seek(SeekFrom::End(0))).ok()
}

/// Opens a file as its job wants it.
///
/// # Errors
/// Why it cannot be, in words.
pub fn open(path: &Path, spec: &Spec) -> Result<File, String> {
    let mut options = OpenOptions::new();
    options.read(true).write(spec.rw.writes);
    if spec.direct {
        options.custom_flags(libc::O_DIRECT);
    }
    options.open(path).map_err(|error| {
        let how = if spec.direct { " with O_DIRECT" } else { "" };
        format!("cannot open {}{how}: {error}", path.display())
    })
}

/// What is wrong with the files: none of this is tried.
pub fn refusals(plan: &Plan, allow_writes: bool) -> Vec<String> {
    plan.files.iter().filter_map(|(path, needed)| refusal(path, needed, allow_writes)).collect()
}

fn refusal(path: &Path, needed: &Needed, allow_writes: bool) -> Option<String> {
    let name = path.display();
    let at = needed.named.as_ref().map(|at| format!("{at}: ")).unwrap_or_default();
    let Ok(metadata) = path.metadata() else {
        let folder = folder(path);
        return (!folder.is_dir())
            .then(|| format!("{at}{name}: expected {} to be a folder", folder.display()));
    };
    let kind = metadata.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Some(format!("{at}{name}: expected a regular file or a block device"));
    }
    let len = len(path).unwrap_or(0);
    if kind.is_block_device() && needed.len > len {
        return Some(format!("{at}{name} has {len} bytes: expected at least {}", needed.len));
    }
    if needed.named.is_none() || allow_writes {
        return None;
    }
    match &needed.written_by {
        Some(job) => Some(format!(
            "{at}{name} exists, and [{job}] writes to it: expected --allow-writes, which lets the job \
             OVERWRITE ITS DATA"
        )),
        None if needed.len > len => Some(format!(
            "{at}{name} exists and has {len} bytes, and the job needs {}: expected --allow-writes, which \
             lets it be made longer",
            needed.len
        )),
        None => None,
    }
}

/// Where a file is.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// What was laid out.
#[derive(Default)]
pub struct Laid {
    made: Vec<PathBuf>,
}

impl Laid {
    /// Files that were not there before.
    pub fn made(&self) -> usize {
        self.made.len()
    }
}

/// Makes what is missing, and makes longer what is too short, with data that no file system can compress away.
/// False if it was interrupted: then the files that it has made are gone.
///
/// # Errors
/// The file system is full, or fails; the files that it has made are gone.
pub fn lay_out(plan: &Plan) -> Result<Option<Laid>> {
    let missing =
        |(path, needed): (&PathBuf, &Needed)| needed.len.saturating_sub(len(path).unwrap_or(0));
    let total = plan.files.iter().map(missing).fold(0, u64::saturating_add);
    for path in plan.files.keys() {
        let free = scratch::free_bytes(folder(path))?;
        ensure!(
            total <= free,
            "{}: the files need {} more: expected at most {}, the free space",
            path.display(),
            size::long(total),
            size::long(free)
        );
    }
    let bar = session::bytes(total, "laying out the files");
    let mut laid = Laid::default();
    let mut done = 0;
    for (path, needed) in &plan.files {
        let from = len(path).unwrap_or(0);
        if from >= needed.len {
            continue;
        }
        let is_new = !path.exists();
        let result =
            OpenOptions::new().write(true).create(true).truncate(false).open(path).and_then(
                |file| {
                    if is_new {
                        laid.made.push(path.clone());
                    }
                    scratch::fill(&file, from..needed.len, |at| {
                        bar.set_position(done + at - from);
                        !STOP.load(Ordering::Relaxed)
                    })
                },
            );
        done += needed.len - from;
        if let Err(error) = result {
            bar.finish_and_clear();
            remove(&laid.made);
            if error.kind() == ErrorKind::Interrupted {
                return Ok(None);
            }
            let bytes = size::long(needed.len);
            return Err(error)
                .with_context(|| format!("cannot lay out {}, {bytes}", path.display()));
        }
    }
    bar.finish_and_clear();
    Ok(Some(laid))
}

/// Removes what `unlink` says, if it was made here.
pub fn unlink(plan: &Plan, laid: &Laid) {
    let unlink = laid.made.iter().filter(|path| plan.files[*path].unlink);
    remove(&unlink.cloned().collect::<Vec<_>>());
}

/// They may be gone already; nothing depends on it.
fn remove(paths: &[PathBuf]) {
    for path in paths {
        let _ = std::fs::remove_file(path);
    }
}
