//! What `uringlet run` learns about a program: that a drop-in was loaded, and each set-up, made or
//! refused. Each event is two bytes in a file of the command. Without that file, nothing is
//! written.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;

/// Something that happened in one of the processes of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A drop-in was loaded into a process.
    Loaded,
    /// A context was made.
    Made,
    /// A context was refused with this errno.
    Refused(u8),
    /// A set-up was left to the kernel, because the program makes further calls that the drop-in
    /// does not see.
    LeftToKernel,
    /// A set-up was left to the kernel, because the kernel has what was asked for.
    SteppedAside,
    /// A set-up was left to the kernel, because the drop-in does not serve what it asks for.
    Unserved,
    /// A process got a filter of seccomp(2).
    Filtered,
}

/// Appends an event to the file; errors are ignored.
pub(crate) fn note(path: &Path, what: Seen) {
    let bytes = match what {
        Seen::Loaded => [b'l', 0],
        Seen::Made => [b'm', 0],
        Seen::Refused(errno) => [b'r', errno],
        Seen::LeftToKernel => [b'k', 0],
        Seen::SteppedAside => [b's', 0],
        Seen::Unserved => [b'u', 0],
        Seen::Filtered => [b'f', 0],
    };
    // Two bytes at the end of a file are written in one piece.
    let _ = File::options().append(true).open(path).and_then(|mut file| file.write_all(&bytes));
}

/// All events that were written.
///
/// # Errors
/// The file cannot be read.
pub fn read(path: &Path) -> std::io::Result<Vec<Seen>> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    let events = bytes.chunks_exact(2).filter_map(|event| match event {
        [b'l', _] => Some(Seen::Loaded),
        [b'm', _] => Some(Seen::Made),
        [b'r', errno] => Some(Seen::Refused(*errno)),
        [b'k', _] => Some(Seen::LeftToKernel),
        [b's', _] => Some(Seen::SteppedAside),
        [b'u', _] => Some(Seen::Unserved),
        [b'f', _] => Some(Seen::Filtered),
        _ => None,
    });
    Ok(events.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_read_in_order_and_no_file_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seen");
        note(&path, Seen::Loaded);
        assert!(!path.exists());
        std::fs::write(&path, "").unwrap();
        let left = [Seen::LeftToKernel, Seen::SteppedAside, Seen::Unserved, Seen::Filtered];
        let all = [&[Seen::Loaded, Seen::Made, Seen::Refused(22)][..], &left].concat();
        all.iter().for_each(|&what| note(&path, what));
        assert_eq!(read(&path).unwrap(), all);
    }
}
