//! Awaited files: the promises of `uringlet::fs`, on five executors.

mod any_range;
mod basics;
mod batches;
mod budget;
mod classes;
#[cfg(any(feature = "tokio", feature = "futures-io"))]
mod cursors;
mod deadlines;
mod dirs;
#[cfg(feature = "tokio")]
mod driven;
mod executors;
mod faults;
mod fork;
mod limits;
mod more;
mod names;
mod over;
mod power;
mod program;
mod replacing;
mod storms;
mod vectored;
mod wakers;

/// Reports that a test is skipped, by a write to standard error that the harness does not capture.
fn skipped(name: &str, reason: impl std::fmt::Display) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {name}: {reason}");
}

/// A file of this many known bytes.
fn file_of(length: usize) -> (tempfile::NamedTempFile, Vec<u8>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let data: Vec<u8> = (0..length).map(|at| (at / 7 % 251) as u8).collect();
    std::fs::write(file.path(), &data).unwrap();
    (file, data)
}

/// A pipe: its reads wait until something is written.
fn pipe() -> (std::os::fd::OwnedFd, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    (reader.into(), writer)
}
