//! Reads a file from an offset to its end. The buffer grows if the file's size does not tell how
//! many bytes there are.
#![allow(unsafe_code)]

use std::future::Future as _;
use std::os::fd::{AsRawFd as _, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use uringlet::fs::{self, BufResult, Op};

use crate::batch::{self, What, execute_one};
use crate::buffer::{self, Hold, Target};
use crate::error;
use crate::ready::Home;
use crate::request::Steps;

/// The number of bytes of the first read, if the read is awaited or the size is unknown. A cached
/// read of this length is done on the loop's thread.
const FIRST: usize = 64 << 10;

/// The next length of the buffer, of which `filled` bytes are filled. This is the number of bytes
/// behind `offset` in a file of this size, if that is more than `filled`. Otherwise it is twice
/// `filled`, but not less than [`FIRST`].
fn next_length(filled: usize, size: Option<u64>, offset: u64) -> usize {
    let left = size.and_then(|size| usize::try_from(size.checked_sub(offset)?).ok());
    left.filter(|&left| left > filled).unwrap_or(FIRST.max(filled.saturating_mul(2)))
}

/// Does a file of this size end `filled` bytes behind `offset`? A size of 0 tells nothing.
fn is_end(filled: usize, size: Option<u64>, offset: u64) -> bool {
    size.is_some_and(|size| size > 0 && offset.saturating_add(filled as u64) == size)
}

/// Bytes that no other code has seen yet, of which the first `filled` are filled.
struct Growing {
    bytes: Py<PyBytes>,
    filled: usize,
    length: usize,
}

impl Growing {
    fn new(py: Python<'_>, length: usize) -> PyResult<Self> {
        let (hold, bytes) = Hold::new_bytes(py, length)?;
        hold.release(py);
        Ok(Self { bytes, filled: 0, length })
    }

    /// The part of the buffer that is not filled.
    fn rest(&self, py: Python<'_>) -> Hold {
        Hold::of_bytes(self.bytes.bind(py)).from(self.filled)
    }

    fn is_full(&self) -> bool {
        self.filled == self.length
    }

    fn grow(&mut self, py: Python<'_>, length: usize) -> PyResult<()> {
        let mut longer = Self::new(py, length)?;
        longer.filled = self.filled;
        let (from, to) =
            (Hold::of_bytes(self.bytes.bind(py)), Hold::of_bytes(longer.bytes.bind(py)));
        // SAFETY: `filled` bytes are filled here, and `longer` has more room.
        unsafe { to.address().copy_from_nonoverlapping(from.address(), self.filled) };
        from.release(py);
        to.release(py);
        *self = longer;
        Ok(())
    }

    fn take(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        // SAFETY: `filled` bytes are filled, and no read is under way.
        unsafe { buffer::cut(self.bytes.bind(py), self.filled) }
    }
}

/// The size of a regular file.
fn size_of(py: Python<'_>, fd: RawFd) -> Option<u64> {
    // SAFETY: the structure has only integers, for which zeros are valid.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: fstat(2) writes only to `found`, which outlives the call.
    let is_known = py.detach(|| unsafe { libc::fstat(fd, &mut found) }) == 0;
    let is_regular = is_known && found.st_mode & libc::S_IFMT == libc::S_IFREG;
    is_regular.then_some(found.st_size as u64)
}

/// Reads all, blocking.
///
/// # Errors
/// As pread(2). `MemoryError`.
pub(crate) fn read_all(py: Python<'_>, file: &fs::File, offset: u64) -> PyResult<Py<PyAny>> {
    let fd = file.as_raw_fd();
    let mut growing = Growing::new(py, next_length(0, size_of(py, fd), offset))?;
    loop {
        let hold = growing.rest(py);
        let at = offset.saturating_add(growing.filled as u64);
        let request = batch::BatchRequest::new(What::Read, fd, hold.memory(), at).whole();
        // SAFETY: the hold outlives the call.
        let read = unsafe { execute_one(py, request) };
        hold.release(py);
        growing.filled += read?;
        if !growing.is_full() {
            return growing.take(py);
        }
        let size = size_of(py, fd);
        if is_end(growing.filled, size, offset) {
            return growing.take(py);
        }
        growing.grow(py, next_length(growing.filled, size, offset))?;
    }
}

/// Reads all, to be awaited.
pub(crate) struct ReadAll {
    file: fs::File,
    offset: u64,
    home: Home,
    growing: Growing,
    step: Step,
}

enum Step {
    Read(Op<fs::Read<Target>>),
    /// Asks for the file's size, because the buffer is full and the file may have more bytes.
    Size(Box<Op<fs::Stat>>),
}

impl ReadAll {
    pub(crate) fn new(py: Python<'_>, file: fs::File, offset: u64, home: Home) -> PyResult<Self> {
        let growing = Growing::new(py, FIRST)?;
        let read = Step::Read(file.read_at(Target(growing.rest(py).at(&home)), offset));
        Ok(Self { file, offset, home, growing, step: read })
    }

    fn read_on(&mut self, py: Python<'_>) {
        let target = Target(self.growing.rest(py).at(&self.home));
        let at = self.offset.saturating_add(self.growing.filled as u64);
        self.step = Step::Read(self.file.read_at(target, at));
    }
}

impl Steps for ReadAll {
    fn poll(&mut self, py: Python<'_>, context: &mut Context<'_>) -> Poll<PyResult<Py<PyAny>>> {
        loop {
            match &mut self.step {
                Step::Read(op) => {
                    let BufResult(result, target) = ready!(Pin::new(op).poll(context));
                    target.0.release(py);
                    let read = result.map_err(|error| error::from_io(&error))?;
                    self.growing.filled += read;
                    if read == 0 {
                        return Poll::Ready(self.growing.take(py));
                    }
                    if self.growing.is_full() {
                        self.step = Step::Size(Box::new(self.file.metadata()));
                    } else {
                        self.read_on(py);
                    }
                }
                Step::Size(op) => {
                    let found = ready!(Pin::new(op).poll(context));
                    let found = found.map_err(|error| error::from_io(&error))?;
                    let size = found.is_file().then(|| found.len());
                    if is_end(self.growing.filled, size, self.offset) {
                        return Poll::Ready(self.growing.take(py));
                    }
                    self.growing.grow(py, next_length(self.growing.filled, size, self.offset))?;
                    self.read_on(py);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_is_what_is_left_or_grows() {
        assert_eq!(next_length(0, Some(10), 4), 6);
        assert_eq!(next_length(0, Some(10), 10), FIRST);
        assert_eq!(next_length(0, Some(10), 11), FIRST);
        assert_eq!(next_length(0, None, 0), FIRST);
        assert_eq!(next_length(FIRST, None, 0), 2 * FIRST);
        assert_eq!(next_length(100, Some(5000), 0), 5000);
        // The file was truncated meanwhile.
        assert_eq!(next_length(FIRST, Some(7), 0), 2 * FIRST);
        assert_eq!(next_length(usize::MAX, None, 0), usize::MAX);
    }

    #[test]
    fn an_end_is_told_by_sizes_only() {
        assert!(is_end(6, Some(10), 4));
        assert!(!is_end(5, Some(10), 4));
        assert!(!is_end(7, Some(10), 4));
        // Files of /proc have the size 0, whatever their content.
        assert!(!is_end(0, Some(0), 0));
        assert!(!is_end(4096, None, 0));
    }
}
