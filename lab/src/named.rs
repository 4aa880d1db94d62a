//! Files that a command line names: they are opened without waiting, and read up to a limit.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, statfs};
use std::fs::{File, OpenOptions};
use std::io::{Error, Read as _, Result};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

/// The type of the file system of pipes without a name (statfs(2)).
const PIPEFS: u64 = 0x5049_5045;

/// Reads a whole file of at most `most` bytes: a regular file, or a shell's pipe for `<(command)`.
///
/// # Errors
/// The file cannot be read, is longer, or is a device or a named pipe, which may have no end.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let kind = path.metadata()?.file_type();
    let has_end = kind.is_file() || kind.is_fifo() && is_nameless(path);
    if !has_end {
        return Err(Error::other("expected a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(Error::other(format!("it is too long, expected at most {most} bytes")));
    }
    Ok(bytes)
}

/// Is the pipe one without a name? Opening such a pipe does not wait.
fn is_nameless(path: &Path) -> bool {
    // The type of the field differs among architectures.
    statfs(path).is_ok_and(|found| found.f_type as u64 == PIPEFS)
}

/// Opens a file with these options, which include writing.
///
/// # Errors
/// As [`OpenOptions::open`]. A named pipe without a reader is refused: opening it would wait.
pub fn open_to_write(options: &mut OpenOptions, path: &Path) -> Result<File> {
    let opened = options.custom_flags(libc::O_NONBLOCK).open(path);
    let file = opened.map_err(|error| {
        let is_pipe = path.metadata().is_ok_and(|found| found.file_type().is_fifo());
        match is_pipe && error.raw_os_error() == Some(libc::ENXIO) {
            true => Error::other("nobody reads this named pipe, expected a reader"),
            false => error,
        }
    })?;
    // The flag was for the opening. Writes may wait.
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;

    #[test]
    fn what_may_have_no_end_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for path in [&pipe, Path::new("/dev/zero"), Path::new("/dev/full"), folder.path()] {
            let error = read(path, 10).unwrap_err().to_string();
            assert_eq!(error, "expected a regular file", "{}", path.display());
        }
        let file = folder.path().join("file");
        std::fs::write(&file, "0123456789").unwrap();
        assert_eq!(read(&file, 10).unwrap(), b"0123456789");
        let error = read(&file, 9).unwrap_err().to_string();
        assert!(error.contains("expected at most 9 bytes"), "{error}");
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"piped").unwrap();
        drop(writer);
        let path = format!("/dev/fd/{}", reader.as_raw_fd());
        assert_eq!(read(Path::new(&path), 10).unwrap(), b"piped");
    }

    #[test]
    fn a_named_pipe_is_written_to_only_if_it_has_a_reader() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let open = || open_to_write(File::options().write(true), &pipe);
        let error = open().unwrap_err().to_string();
        assert!(error.contains("expected a reader"), "{error}");
        let reader = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe).unwrap();
        let file = open().unwrap();
        assert!(!fcntl_getfl(&file).unwrap().contains(OFlags::NONBLOCK));
        drop(reader);
        assert!(open_to_write(File::options().write(true), Path::new("/dev/null")).is_ok());
    }
}
