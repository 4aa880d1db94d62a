//! Many reads or writes in one call.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd as _, RawFd};
use std::ptr::NonNull;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use uringlet::fs;

use crate::batch::{BatchRequest, What, execute};
use crate::file::File;
use crate::{buffer, error};

/// `Py_buffer`s, which do not move, and which are released together.
struct Views(Vec<ffi::Py_buffer>);

impl Views {
    /// Adds the buffer of an object, and returns its address and length. The vector has room for
    /// it, so no other buffer moves.
    fn add(&mut self, object: &Bound<'_, PyAny>, flags: i32) -> PyResult<(*mut u8, usize)> {
        assert!(self.0.len() < self.0.capacity(), "room for all was reserved");
        let at = self.0.len();
        self.0.push(ffi::Py_buffer::new());
        // SAFETY: an object and a structure that does not move, with the interpreter attached.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut self.0[at], flags) } != 0 {
            self.0.pop();
            return Err(PyErr::fetch(object.py()));
        }
        let view = &self.0[at];
        let address = NonNull::new(view.buf.cast::<u8>()).unwrap_or(NonNull::dangling());
        Ok((address.as_ptr(), usize::try_from(view.len).unwrap_or(0)))
    }
}

/// The interpreter is attached when this is dropped, because `Views` live within one call.
impl Drop for Views {
    fn drop(&mut self) {
        for view in &mut self.0 {
            // SAFETY: filled by `PyObject_GetBuffer`, and released once.
            unsafe { ffi::PyBuffer_Release(view) };
        }
    }
}

/// What to do with a failed request of a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Errors {
    Raise,
    Return,
}

impl Errors {
    fn of(text: &str) -> PyResult<Self> {
        match text {
            "raise" => Ok(Self::Raise),
            "return" => Ok(Self::Return),
            _ => Err(PyValueError::new_err("errors must be 'raise' or 'return'")),
        }
    }
}

/// The three parts of a request: file, offset and buffer.
#[inline]
fn parts<'a, 'py>(item: &'a Bound<'py, PyAny>) -> PyResult<[Borrowed<'a, 'py, PyAny>; 3]> {
    if let Ok(tuple) = item.cast::<PyTuple>()
        && tuple.len() == 3
    {
        let part = |at| tuple.get_borrowed_item(at);
        return Ok([part(0)?, part(1)?, part(2)?]);
    }
    Err(PyTypeError::new_err("each request is a tuple of descriptor, offset and buffer"))
}

/// The descriptor of a number, or of an object with `fileno()`.
fn descriptor(object: &Bound<'_, PyAny>) -> PyResult<RawFd> {
    // SAFETY: an object, with the interpreter attached.
    match unsafe { ffi::PyObject_AsFileDescriptor(object.as_ptr()) } {
        -1 => Err(PyErr::fetch(object.py())),
        fd => Ok(fd),
    }
}

/// An offset in bytes.
fn offset(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    // SAFETY: an object, with the interpreter attached.
    let offset = unsafe { ffi::PyLong_AsLongLong(object.as_ptr()) };
    if offset == -1
        && let Some(exception) = PyErr::take(object.py())
    {
        return Err(exception);
    }
    error::offset(offset)
}

fn many<'py>(
    requests: &Bound<'py, PyAny>,
    errors: &str,
    what: What,
) -> PyResult<Bound<'py, PyList>> {
    let py = requests.py();
    let errors = Errors::of(errors)?;
    buffer::sweep(py);
    // Makes a tuple, so that the requests stay the same whatever Python code runs meanwhile.
    // SAFETY: gives a new reference to a tuple, or null with an exception.
    let items = unsafe {
        let raw = ffi::PySequence_Tuple(requests.as_ptr());
        Bound::from_owned_ptr_or_err(py, raw)?.cast_into_unchecked::<PyTuple>()
    };
    let flags = if what == What::Write { ffi::PyBUF_SIMPLE } else { ffi::PyBUF_WRITABLE };
    let mut views = Views(Vec::with_capacity(items.len()));
    let mut batch = Vec::with_capacity(items.len());
    // Files of this module stay open until the call has ended, even if another thread closes them.
    let mut kept: Vec<fs::File> = Vec::new();
    let mut last: Option<(*mut ffi::PyObject, RawFd)> = None;
    for item in items.iter_borrowed() {
        let [file, at, object] = parts(&item)?;
        let fd = match last {
            Some((known, fd)) if known == file.as_ptr() => fd,
            _ => match file.cast::<File>() {
                Ok(file) => {
                    kept.push(file.get().handle()?);
                    kept[kept.len() - 1].as_raw_fd()
                }
                Err(_) => descriptor(&file)?,
            },
        };
        last = Some((file.as_ptr(), fd));
        let offset = offset(&at)?;
        batch.push(BatchRequest::new(what, fd, views.add(&object, flags)?, offset));
    }
    // SAFETY: the views hold the memory until after this call.
    let executed = unsafe { execute(py, &mut batch) };
    if !kept.is_empty() {
        // The last handle closes the file, which may take a while.
        py.detach(|| drop(kept));
    }
    drop(views);
    executed?;
    results(py, &batch, errors)
}

fn results<'py>(
    py: Python<'py>,
    batch: &[BatchRequest],
    errors: Errors,
) -> PyResult<Bound<'py, PyList>> {
    // Most counts are the same, and share one Python number.
    let mut last: Option<(i64, Bound<'py, PyAny>)> = None;
    let mut counts = Vec::with_capacity(batch.len());
    for (at, &BatchRequest { result, .. }) in batch.iter().enumerate() {
        if let Some((known, count)) = &last
            && *known == result
        {
            counts.push(count.clone());
            continue;
        }
        if result < 0 {
            let exception = error::os_error(-result as i32);
            let value = exception.value(py);
            value.setattr("index", at)?;
            if errors == Errors::Raise {
                return Err(exception);
            }
            counts.push(value.clone().into_any());
            continue;
        }
        let count = result.into_pyobject(py)?.into_any();
        counts.push(count.clone());
        last = Some((result, count));
    }
    PyList::new(py, counts)
}

/// Reads many ranges in one call, without the GIL, and waits for all of them.
///
/// Each request is a tuple of a descriptor (or an object with ``fileno()``), an offset in bytes,
/// and a contiguous writable buffer. The buffer is filled from its beginning as far as the file
/// goes. The requests are not ordered.
///
/// Returns the number of bytes read for each, in the order of the requests; 0 at the end of a file,
/// and less than the buffer's length near it.
///
/// A failed request raises ``OSError`` as pread(2), after all requests have ended. If several fail,
/// the first of them in the list raises. The ``index`` of the exception is the number of the
/// request. With ``errors="return"`` nothing is raised, and the exception takes the place of the
/// count.
///
/// ``ValueError``: an offset is negative. ``BufferError`` or ``TypeError``: a buffer is not
/// writable or not contiguous; nothing was read then. A signal handler that raises ends the call
/// early: requests that have not begun are not executed.
#[pyfunction]
#[pyo3(signature = (requests, /, *, errors = "raise"))]
pub(crate) fn read_many<'py>(
    requests: &Bound<'py, PyAny>,
    errors: &str,
) -> PyResult<Bound<'py, PyList>> {
    many(requests, errors, What::Read)
}

/// Writes many ranges in one call, without the GIL, and waits for all of them.
///
/// Each request is a tuple of a descriptor (or an object with ``fileno()``), an offset in bytes,
/// and a contiguous buffer. The requests are not ordered: if two ranges overlap, either may be the
/// last.
///
/// Returns the number of bytes written for each, in the order of the requests. It can be less than
/// the buffer's length, as in pwrite(2).
///
/// Errors as for ``read_many``, with pwrite(2) for pread(2).
#[pyfunction]
#[pyo3(signature = (requests, /, *, errors = "raise"))]
pub(crate) fn write_many<'py>(
    requests: &Bound<'py, PyAny>,
    errors: &str,
) -> PyResult<Bound<'py, PyList>> {
    many(requests, errors, What::Write)
}
