//! An open file.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Mutex;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use uringlet::fs::{self, Direct, Op};

use crate::batch::{self, What, execute_one};
use crate::buffer::{self, Hold, Source, Target};
use crate::error;
use crate::loops::{Home, lock};
use crate::request::{Request, Work, cut};

/// An open file for reads and writes at offsets, from any thread or task.
///
/// ``File(path)`` opens it, blocking, as open(2) does with ``flags`` (``os.O_RDONLY`` and so on;
/// ``O_CLOEXEC`` is always set) and ``mode``, the permissions of a file that is made, less the
/// umask. ``await File.aopen(path)`` does it without blocking the event loop.
///
/// ``direct``: ``"off"``; ``"try"``, which goes past the page cache (``O_DIRECT``) if the file
/// system can; ``"require"``, which fails otherwise. Direct I/O needs aligned buffers, offsets and
/// lengths (``alignment``): an ``mmap`` is aligned.
///
/// Offsets and lengths are in bytes. There is no file position: requests have no order among each
/// other, and any number may be in flight. A file belongs to the process that opened it: in the
/// child of a fork its methods raise ``OSError`` with ``EINVAL``.
///
/// ``OSError`` as open(2). ``ValueError``: a NUL in the path, or ``direct`` is something else.
#[pyclass(frozen, weakref, module = "uringlet")]
pub(crate) struct File {
    file: Mutex<Option<fs::File>>,
    name: String,
    generation: u64,
}

/// The outcome of a close. The descriptor of a file that has requests in flight is closed after the
/// last of them: that is what was asked for.
pub(crate) fn closed(result: std::io::Result<()>) -> PyResult<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(()),
        result => result.map_err(|error| error::from_io(&error)),
    }
}

/// A path as the file system has it, and its name for messages.
fn path_of(path: &Bound<'_, PyAny>) -> PyResult<(PathBuf, String)> {
    let mut bytes: *mut ffi::PyObject = std::ptr::null_mut();
    // SAFETY: gives a new reference to bytes, or an exception; the interpreter is attached.
    let bytes = unsafe {
        match ffi::PyUnicode_FSConverter(path.as_ptr(), (&raw mut bytes).cast()) {
            0 => return Err(PyErr::fetch(path.py())),
            _ => Bound::from_owned_ptr(path.py(), bytes).cast_into_unchecked::<PyBytes>(),
        }
    };
    let path = PathBuf::from(OsStr::from_bytes(bytes.as_bytes()));
    let name = path.to_string_lossy().into_owned();
    Ok((path, name))
}

fn open(path: PathBuf, flags: i32, mode: u32, direct: &str) -> PyResult<Op<fs::Open>> {
    let direct = match direct {
        "off" => Direct::Off,
        "try" => Direct::Try,
        "require" => Direct::Require,
        _ => return Err(PyValueError::new_err("direct must be 'off', 'try' or 'require'")),
    };
    let (read, write) = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => (true, false),
        libc::O_WRONLY => (false, true),
        libc::O_RDWR => (true, true),
        _ => return Err(PyValueError::new_err("flags have no access mode")),
    };
    let options = fs::File::options().read(read).write(write).custom_flags(flags);
    Ok(options.mode(mode).direct(direct).open(path))
}

impl File {
    pub(crate) fn of(file: fs::File) -> Self {
        let generation = uringlet::front::enter_process();
        Self { file: Mutex::new(Some(file)), name: String::new(), generation }
    }

    pub(crate) fn named(mut self, name: String) -> Self {
        self.name = name;
        self
    }

    /// The file.
    ///
    /// # Errors
    /// `ValueError`: it is closed.
    fn get(&self) -> PyResult<fs::File> {
        lock(&self.file).clone().ok_or_else(error::closed)
    }

    /// As [`File::get`], for a call that blocks.
    ///
    /// # Errors
    /// `EINVAL` in the child of a fork, too.
    fn of_this_process(&self) -> PyResult<fs::File> {
        let file = self.get()?;
        match self.generation == uringlet::front::generation() {
            true => Ok(file),
            false => Err(error::os_error(libc::EINVAL)),
        }
    }

    fn sync(&self, py: Python<'_>, what: What) -> PyResult<()> {
        let file = self.of_this_process()?;
        let request = batch::Request::sync(what, file.as_raw_fd());
        // SAFETY: it has no buffer.
        unsafe { execute_one(py, request) }.map(|_| ())
    }
}

#[pymethods]
impl File {
    #[new]
    #[pyo3(signature = (path, flags = libc::O_RDONLY, mode = 0o666, *, direct = "off"))]
    fn new(
        py: Python<'_>,
        path: &Bound<'_, PyAny>,
        flags: i32,
        mode: u32,
        direct: &str,
    ) -> PyResult<Self> {
        let (path, name) = path_of(path)?;
        let open = open(path, flags, mode, direct)?;
        let opened = py.detach(|| open.wait());
        Ok(Self::of(opened.map_err(|error| error::with_name(py, &error, &name))?).named(name))
    }

    /// Opens a file as ``File(...)`` does, without blocking the event loop.
    #[staticmethod]
    #[pyo3(signature = (path, flags = libc::O_RDONLY, mode = 0o666, *, direct = "off"))]
    fn aopen(path: &Bound<'_, PyAny>, flags: i32, mode: u32, direct: &str) -> PyResult<Request> {
        let (path, name) = path_of(path)?;
        Ok(Request::new(Work::Open(open(path, flags, mode, direct)?, name)))
    }

    /// Takes over a descriptor that is open already; ``close`` closes it.
    ///
    /// ``OSError`` with ``EBADF``: it is not open.
    #[staticmethod]
    fn from_fd(fd: RawFd) -> PyResult<Self> {
        // SAFETY: asks about a number.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            return Err(error::os_error(libc::EBADF));
        }
        // SAFETY: open, and given to this file by the program.
        let descriptor = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self::of(descriptor.into()).named(format!("<fd {fd}>")))
    }

    /// Reads from ``offset`` on into a contiguous writable buffer, from its beginning.
    ///
    /// Returns the number of bytes, 0 at the end of the file, as pread(2). Blocks without the GIL.
    ///
    /// ``OSError`` as pread(2). ``ValueError``: the file is closed, or the offset is negative.
    /// ``BufferError`` or ``TypeError``: the buffer is not writable or not contiguous.
    #[pyo3(signature = (buffer, offset, /))]
    fn read_into(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: i64) -> PyResult<usize> {
        let file = self.of_this_process()?;
        let offset = error::offset(offset)?;
        buffer::sweep(py);
        let hold = Hold::writable(buffer)?;
        let request = batch::Request::new(What::Read, file.as_raw_fd(), hold.memory(), offset);
        // SAFETY: the hold outlives the call.
        let read = unsafe { execute_one(py, request) };
        hold.release(py);
        read
    }

    /// Reads ``n`` bytes from ``offset`` on: fewer near the end of the file, none at it.
    ///
    /// Errors as ``read_into``. ``MemoryError`` if there is no memory for ``n`` bytes.
    #[pyo3(signature = (n, offset, /))]
    fn read(&self, py: Python<'_>, n: usize, offset: i64) -> PyResult<Py<PyAny>> {
        let file = self.of_this_process()?;
        let offset = error::offset(offset)?;
        let (hold, bytes) = Hold::new_bytes(py, n)?;
        let request = batch::Request::new(What::Read, file.as_raw_fd(), hold.memory(), offset);
        // SAFETY: the hold outlives the call.
        let read = unsafe { execute_one(py, request) };
        hold.release(py);
        cut(bytes.bind(py), read?)
    }

    /// Writes a contiguous buffer to ``offset`` on.
    ///
    /// Returns the number of bytes written, which can be less than the buffer's length, as
    /// pwrite(2). They are with the kernel then; ``fdatasync`` brings them to the disk.
    ///
    /// ``OSError`` as pwrite(2). Otherwise as ``read_into``.
    #[pyo3(signature = (data, offset, /))]
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: i64) -> PyResult<usize> {
        let file = self.of_this_process()?;
        let offset = error::offset(offset)?;
        buffer::sweep(py);
        let hold = Hold::readable(data)?;
        let request = batch::Request::new(What::Write, file.as_raw_fd(), hold.memory(), offset);
        // SAFETY: the hold outlives the call.
        let written = unsafe { execute_one(py, request) };
        hold.release(py);
        written
    }

    /// Brings data and metadata to the disk, as fsync(2).
    fn fsync(&self, py: Python<'_>) -> PyResult<()> {
        self.sync(py, What::Fsync)
    }

    /// Brings data to the disk, as fdatasync(2).
    fn fdatasync(&self, py: Python<'_>) -> PyResult<()> {
        self.sync(py, What::Fdatasync)
    }

    /// As ``read_into``, to be awaited. The buffer is held until the read is over, also if the task
    /// is cancelled.
    #[pyo3(signature = (buffer, offset, /))]
    fn aread_into(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        offset: i64,
    ) -> PyResult<Request> {
        let file = self.get()?;
        let offset = error::offset(offset)?;
        buffer::sweep(py);
        let home = Home::default();
        let target = Target(Hold::writable(buffer)?.at(&home));
        Ok(Request::with_home(Work::ReadInto(file.read_at(target, offset)), home))
    }

    /// As ``read``, to be awaited.
    #[pyo3(signature = (n, offset, /))]
    fn aread(&self, py: Python<'_>, n: usize, offset: i64) -> PyResult<Request> {
        let file = self.get()?;
        let offset = error::offset(offset)?;
        buffer::sweep(py);
        let home = Home::default();
        let (hold, bytes) = Hold::new_bytes(py, n)?;
        let read = file.read_at(Target(hold.at(&home)), offset);
        Ok(Request::with_home(Work::Read(read, bytes), home))
    }

    /// As ``write``, to be awaited. The buffer is held until the write is over, also if the task is
    /// cancelled; then the write may happen wholly, in part, or not at all.
    #[pyo3(signature = (data, offset, /))]
    fn awrite(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: i64) -> PyResult<Request> {
        let file = self.get()?;
        let offset = error::offset(offset)?;
        buffer::sweep(py);
        let home = Home::default();
        let source = Source(Hold::readable(data)?.at(&home));
        Ok(Request::with_home(Work::Write(file.write_at(source, offset)), home))
    }

    /// As ``fsync``, to be awaited. It covers the writes that had ended before. Calls that are made
    /// at the same time are shared.
    fn afsync(&self) -> PyResult<Request> {
        Ok(Request::new(Work::Control(self.get()?.sync_all())))
    }

    /// As ``fdatasync``, to be awaited; as ``afsync`` otherwise.
    fn afdatasync(&self) -> PyResult<Request> {
        Ok(Request::new(Work::Control(self.get()?.sync_data())))
    }

    /// Closes the file. Requests in flight go on, and the descriptor is closed after the last one.
    /// A second call does nothing.
    ///
    /// ``OSError`` as close(2), if nothing was in flight.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let file = lock(&self.file).take();
        match file {
            Some(file) => closed(py.detach(|| file.close().wait())),
            None => Ok(()),
        }
    }

    /// As ``close``, to be awaited; the file is closed for other calls at once.
    fn aclose(&self, py: Python<'_>) -> Request {
        let file = lock(&self.file).take();
        Request::new(match file {
            Some(file) => Work::Close(file.close()),
            None => Work::Done(py.None()),
        })
    }

    /// The descriptor, which stays the file's.
    ///
    /// ``ValueError``: the file is closed.
    fn fileno(&self) -> PyResult<RawFd> {
        lock(&self.file).as_ref().map(fs::File::as_raw_fd).ok_or_else(error::closed)
    }

    /// The path that it was opened with.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// ``close`` was called.
    #[getter]
    fn closed(&self) -> bool {
        lock(&self.file).is_none()
    }

    /// What direct I/O has to be multiples of, in bytes: the addresses of buffers, and offsets and
    /// lengths. ``None`` if reads and writes go through the page cache.
    #[getter]
    fn alignment(&self) -> PyResult<Option<(usize, usize)>> {
        Ok(self.get()?.alignment().map(|alignment| (alignment.memory, alignment.offset)))
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().get()?;
        Ok(slf)
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }

    fn __aenter__(slf: Bound<'_, Self>) -> PyResult<Request> {
        slf.get().get()?;
        Ok(Request::new(Work::Done(slf.into_any().unbind())))
    }

    fn __aexit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> Request {
        self.aclose(py)
    }

    fn __repr__(&self) -> String {
        match self.fileno() {
            Ok(fd) => format!("<uringlet.File {:?}, descriptor {fd}>", self.name),
            Err(_) => format!("<uringlet.File {:?}, closed>", self.name),
        }
    }
}
