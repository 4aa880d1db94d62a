//! What `uringlet run` hears of a program: that a drop-in was loaded, and each set-up, made or
//! refused. Two bytes for each, in a file that the command keeps; nothing where there is none.

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
    /// One was not, for this errno.
    Refused(u8),
    /// A set-up was left to the kernel, since the program makes further calls unseen.
    LeftToKernel,
    /// One was, since the kernel has what was asked for.
    SteppedAside,
    /// One was, since it asks for what is not served.
    Unserved,
    /// A process got a filter of seccomp(2).
    Filtered,
}

/// Writes it down; it is no failure if that cannot be done.
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
    // Whole: two bytes at the end of a file are written as one.
    let _ = File::options().append(true).open(path).and_then(|mut file| file.write_all(&bytes));
}

/// Everything that was written down.
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
