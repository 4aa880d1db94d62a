//! The exceptions of this module.

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

/// `OSError` of an errno; Python chooses the subclass.
pub(crate) fn os_error(errno: i32) -> PyErr {
    from_io(&std::io::Error::from_raw_os_error(errno))
}

/// `OSError` with the errno of an error, if it has one.
pub(crate) fn from_io(error: &std::io::Error) -> PyErr {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    let text = error.to_string();
    // Rust's text ends with the number, which the exception shows itself.
    let text = text.split(" (os error").next().unwrap_or_default().to_owned();
    PyOSError::new_err((errno, text))
}

/// An offset in a file, in bytes.
///
/// # Errors
/// `ValueError` for a negative offset.
pub(crate) fn offset(offset: i64) -> PyResult<u64> {
    u64::try_from(offset).map_err(|_| PyValueError::new_err("an offset must not be negative"))
}

/// The exception for the use of a closed file.
pub(crate) fn closed() -> PyErr {
    PyValueError::new_err("I/O operation on closed file")
}

/// The exception for a file that is used in the child of a fork.
pub(crate) fn forked(name: &str) -> PyErr {
    let text = "the file belongs to the process that opened it: open it after the fork";
    PyOSError::new_err((libc::EINVAL, text, name.to_owned()))
}

/// The exception for a context that is used in the child of a fork.
pub(crate) fn forked_context() -> PyErr {
    let text = "the context belongs to the process that made it: make one after the fork";
    PyOSError::new_err((libc::EINVAL, text))
}

/// As [`from_io`], with the name of the file.
pub(crate) fn with_name(py: Python<'_>, error: &std::io::Error, name: &str) -> PyErr {
    let exception = from_io(error);
    // An attribute of every `OSError`.
    let _ = exception.value(py).setattr("filename", name);
    exception
}
