//! How to open a file, and the blocking open(2).
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use uringlet::fs::{self, Direct, Op};

use crate::error;

/// The `O_*` flags of open(2), or a mode of Python's `open`.
#[derive(FromPyObject)]
pub(crate) enum Flags {
    Number(i32),
    Mode(String),
}

/// Opens for reading.
pub(crate) const READ: Flags = Flags::Number(libc::O_RDONLY);

/// The flags of a mode of Python's `open`. Files are binary: a `b` has no effect.
fn flags_of(mode: &str) -> Option<i32> {
    let has = |letter| mode.contains(letter);
    let is_known = mode.chars().all(|letter| "rwxab+".contains(letter));
    let is_once = |letter| mode.matches(letter).count() <= 1;
    if !is_known || !['b', '+'].into_iter().all(is_once) {
        return None;
    }
    let kinds: Vec<char> = mode.chars().filter(|letter| "rwxa".contains(*letter)).collect();
    let (access, made) = match kinds[..] {
        ['r'] => (libc::O_RDONLY, 0),
        ['w'] => (libc::O_WRONLY, libc::O_CREAT | libc::O_TRUNC),
        ['x'] => (libc::O_WRONLY, libc::O_CREAT | libc::O_EXCL),
        ['a'] => (libc::O_WRONLY, libc::O_CREAT | libc::O_APPEND),
        _ => return None,
    };
    Some(if has('+') { libc::O_RDWR } else { access } | made)
}

/// The path to open, and the options.
pub(crate) struct How {
    path: CString,
    /// The path, for messages.
    pub(crate) name: String,
    flags: i32,
    mode: u32,
    direct: Direct,
}

impl How {
    /// # Errors
    /// `ValueError`: a NUL in the path, flags without an access mode, no mode of `open`, or a wrong
    /// value of `direct`. `TypeError`: no path.
    pub(crate) fn new(
        path: &Bound<'_, PyAny>,
        flags: &Flags,
        mode: u32,
        direct: &str,
    ) -> PyResult<Self> {
        let py = path.py();
        let mut bytes: *mut ffi::PyObject = std::ptr::null_mut();
        // SAFETY: gives a new reference to bytes without a NUL among them, or an exception; the
        // interpreter is attached.
        let path = unsafe {
            if ffi::PyUnicode_FSConverter(path.as_ptr(), (&raw mut bytes).cast()) == 0 {
                return Err(PyErr::fetch(py));
            }
            let bytes = Bound::from_owned_ptr(py, bytes);
            CStr::from_ptr(ffi::PyBytes_AsString(bytes.as_ptr())).to_owned()
        };
        let name = String::from_utf8_lossy(path.as_bytes()).into_owned();
        let direct = match direct {
            "off" => Direct::Off,
            "try" => Direct::Try,
            "require" => Direct::Require,
            _ => return Err(PyValueError::new_err("direct must be 'off', 'try' or 'require'")),
        };
        let flags = match flags {
            Flags::Number(flags) if flags & libc::O_ACCMODE == libc::O_ACCMODE => None,
            Flags::Number(flags) => Some(*flags),
            Flags::Mode(mode) => flags_of(mode),
        };
        let flags = flags.ok_or_else(|| {
            PyValueError::new_err("flags must have an access mode, or be a mode such as 'rb'")
        })?;
        Ok(Self { path, name, flags, mode, direct })
    }

    /// The open as an operation that can be awaited.
    pub(crate) fn op(&self) -> Op<fs::Open> {
        let access = self.flags & libc::O_ACCMODE;
        fs::File::options()
            .read(access != libc::O_WRONLY)
            .write(access != libc::O_RDONLY)
            .custom_flags(self.flags)
            .mode(self.mode)
            .direct(self.direct)
            .open(OsStr::from_bytes(self.path.as_bytes()))
    }

    /// Opens the file on this thread, without the GIL. A signal handler that raises ends the open.
    ///
    /// # Errors
    /// As open(2), with the file's name; the exception of a signal handler.
    pub(crate) fn open(&self, py: Python<'_>) -> PyResult<fs::File> {
        let is_direct = self.direct != Direct::Off;
        let mut flags = self.flags | libc::O_CLOEXEC | if is_direct { libc::O_DIRECT } else { 0 };
        loop {
            let opened = py.detach(|| {
                // SAFETY: a path that ends with a NUL.
                match unsafe { libc::open(self.path.as_ptr(), flags, self.mode) } {
                    -1 => Err(std::io::Error::last_os_error()),
                    // SAFETY: open(2) has just returned it, and nothing else owns it.
                    fd => Ok(fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) })),
                }
            });
            let refused = match opened {
                Ok(file) => return Ok(file),
                Err(error) => error,
            };
            match refused.raw_os_error() {
                Some(libc::EINTR) => py.check_signals()?,
                Some(libc::EINVAL) if self.direct == Direct::Try && flags & libc::O_DIRECT != 0 => {
                    // The file system has no direct I/O. The failed open may have created the file,
                    // so the next try must not ask for a new file.
                    flags &= !(libc::O_DIRECT | libc::O_EXCL);
                }
                _ => return Err(error::with_name(py, &refused, &self.name)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_those_of_pythons_open() {
        let made = libc::O_CREAT;
        for (mode, flags) in [
            ("r", libc::O_RDONLY),
            ("rb", libc::O_RDONLY),
            ("br", libc::O_RDONLY),
            ("r+b", libc::O_RDWR),
            ("rb+", libc::O_RDWR),
            ("wb", libc::O_WRONLY | made | libc::O_TRUNC),
            ("w+b", libc::O_RDWR | made | libc::O_TRUNC),
            ("xb", libc::O_WRONLY | made | libc::O_EXCL),
            ("ab", libc::O_WRONLY | made | libc::O_APPEND),
            ("a+", libc::O_RDWR | made | libc::O_APPEND),
        ] {
            assert_eq!(flags_of(mode), Some(flags), "{mode}");
        }
        for mode in ["", "b", "+", "rw", "rr", "rbb", "r++", "rt", "U", "r b", "wx"] {
            assert_eq!(flags_of(mode), None, "{mode}");
        }
    }
}
