//! An open file.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd, RawFd};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use uringlet::fs::{self, BufResult};

use crate::batch::{self, What, execute_one};
use crate::buffer::{self, Hold, Source, Target, cut};
use crate::error;
use crate::open::{Flags, How, READ};
use crate::ready::{Home, lock};
use crate::request::{Done, Request, then};
use crate::whole::{self, ReadAll};

/// An open file for reads and writes at offsets, from any thread or task.
///
/// ``File(path)`` opens it, blocking, as open(2) does with ``flags`` and ``mode`` (the permissions
/// of a new file, less the umask). ``flags`` are ``os.O_RDONLY`` and so on (``O_CLOEXEC`` is always
/// set), or a mode of ``open``: ``"rb"``, ``"r+b"``, ``"wb"``, ``"xb"``, ``"ab"``. ``await
/// File.aopen(path)`` opens it without blocking the event loop.
///
/// ``direct``: ``"off"``; ``"try"``, which bypasses the page cache (``O_DIRECT``) if the file
/// system can; ``"require"``, which fails otherwise. Direct I/O needs aligned buffers, offsets and
/// lengths (``alignment``): an ``mmap`` is aligned.
///
/// Offsets and lengths are in bytes. There is no file position: requests have no order among each
/// other, and any number may be in flight. A file belongs to the process that opened it: in the
/// child of a fork, methods that make requests raise ``OSError`` with ``EINVAL``.
///
/// ``OSError`` as open(2). ``ValueError``: the path has a NUL, or ``flags`` or ``direct`` has
/// another value.
#[pyclass(frozen, weakref, module = "uringlet")]
pub(crate) struct File {
    file: Mutex<Option<fs::File>>,
    name: String,
    generation: u64,
}

/// The value of a transfer: its number of bytes.
fn counted(py: Python<'_>, result: std::io::Result<usize>) -> PyResult<Py<PyAny>> {
    Ok(result.map_err(|error| error::from_io(&error))?.into_pyobject(py)?.into_any().unbind())
}

/// The value of an operation without a result.
fn nothing(py: Python<'_>, result: std::io::Result<()>) -> PyResult<Py<PyAny>> {
    result.map(|()| py.None()).map_err(|error| error::from_io(&error))
}

/// The result of a close. `EBUSY` is no error: requests are in flight, and the descriptor is closed
/// after the last of them.
fn closed(result: std::io::Result<()>) -> PyResult<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(()),
        result => result.map_err(|error| error::from_io(&error)),
    }
}

/// close(2), of a descriptor that the caller owns.
fn close(fd: RawFd) -> std::io::Result<()> {
    uringlet::front::forget_descriptors(&(fd..=fd));
    // SAFETY: the caller owns the descriptor, so nothing else uses it.
    if unsafe { libc::close(fd) } == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// ``os.stat_result`` of a statx(2).
///
/// # Errors
/// `MemoryError`: there is no memory.
fn stat_result(py: Python<'_>, found: &fs::Metadata) -> PyResult<Py<PyAny>> {
    let nanoseconds = |time: SystemTime| match time.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    };
    let others = PyDict::new(py);
    let mut seconds = [0; 3];
    let times = [("a", found.accessed()), ("m", found.modified()), ("c", found.changed())];
    for (at, (letter, time)) in times.into_iter().enumerate() {
        let time = nanoseconds(time?);
        seconds[at] = time.div_euclid(1_000_000_000);
        let rest = time.rem_euclid(1_000_000_000) as f64;
        others.set_item(format!("st_{letter}time"), seconds[at] as f64 + 1e-9 * rest)?;
        others.set_item(format!("st_{letter}time_ns"), time)?;
    }
    others.set_item("st_blksize", found.blksize())?;
    others.set_item("st_blocks", found.blocks())?;
    others.set_item("st_rdev", found.rdev())?;
    let fields = (
        (found.mode(), found.ino(), found.dev(), found.nlink(), found.uid(), found.gid()),
        (found.len(), seconds[0], seconds[1], seconds[2]),
    );
    let fields = fields.0.into_pyobject(py)?.add(fields.1)?;
    Ok(py.import("os")?.getattr("stat_result")?.call1((fields, others))?.unbind())
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

    /// The file, for a caller that needs its descriptor only. The descriptor stays open as long as
    /// the returned handle exists.
    ///
    /// # Errors
    /// `ValueError`: the file is closed.
    pub(crate) fn handle(&self) -> PyResult<fs::File> {
        lock(&self.file).clone().ok_or_else(error::closed)
    }

    /// The file, for a request.
    ///
    /// # Errors
    /// As [`File::handle`]; `EINVAL` in the child of a fork.
    fn get(&self) -> PyResult<fs::File> {
        let file = self.handle()?;
        if self.is_of_this_process() { Ok(file) } else { Err(error::forked(&self.name)) }
    }

    fn is_of_this_process(&self) -> bool {
        self.generation == uringlet::front::generation()
    }

    /// Writes `data`: all of it if `is_whole`, or else until a call writes less than it could.
    /// Returns the number of bytes written, and the length of `data`.
    fn written(
        &self,
        data: &Bound<'_, PyAny>,
        offset: i64,
        is_whole: bool,
    ) -> PyResult<(usize, usize)> {
        let py = data.py();
        let file = self.get()?;
        let offset = error::offset(offset)?;
        buffer::sweep(py);
        let hold = Hold::readable(data)?;
        let request =
            batch::BatchRequest::new(What::Write, file.as_raw_fd(), hold.memory(), offset);
        let request = if is_whole { request.whole() } else { request };
        let length = hold.length();
        // SAFETY: the hold outlives the call.
        let written = unsafe { execute_one(py, request) };
        hold.release(py);
        Ok((written?, length))
    }

    fn sync(&self, py: Python<'_>, what: What) -> PyResult<()> {
        let file = self.get()?;
        let request = batch::BatchRequest::sync(what, file.as_raw_fd());
        // SAFETY: the request has no buffer.
        unsafe { execute_one(py, request) }.map(|_| ())
    }
}

#[pymethods]
impl File {
    #[new]
    #[pyo3(signature = (path, flags = READ, mode = 0o666, *, direct = "off"))]
    fn new(
        py: Python<'_>,
        path: &Bound<'_, PyAny>,
        flags: Flags,
        mode: u32,
        direct: &str,
    ) -> PyResult<Self> {
        let how = How::new(path, &flags, mode, direct)?;
        Ok(Self::of(how.open(py)?).named(how.name))
    }

    /// Opens a file as ``File(...)`` does, without blocking the event loop.
    #[staticmethod]
    #[pyo3(signature = (path, flags = READ, mode = 0o666, *, direct = "off"))]
    fn aopen(path: &Bound<'_, PyAny>, flags: Flags, mode: u32, direct: &str) -> PyResult<Request> {
        let how = How::new(path, &flags, mode, direct)?;
        let open = then(how.op(), |py, result| {
            let file = result.map_err(|error| error::with_name(py, &error, &how.name))?;
            Ok(Py::new(py, Self::of(file).named(how.name))?.into_any())
        });
        Ok(Request::new("File.aopen", open))
    }

    /// Takes over an open descriptor; ``close`` closes it.
    ///
    /// ``OSError`` with ``EBADF``: the descriptor is not open.
    #[staticmethod]
    fn from_fd(fd: RawFd) -> PyResult<Self> {
        // SAFETY: only asks for the flags of a descriptor, which need not be open.
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
    /// A buffer of more than 2 GiB takes several calls; the first short one ends them.
    ///
    /// ``OSError`` as pread(2). ``ValueError``: the file is closed, or the offset is negative.
    /// ``BufferError`` or ``TypeError``: the buffer is not writable or not contiguous.
    #[pyo3(signature = (buffer, offset, /))]
    fn read_into(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: i64) -> PyResult<usize> {
        let file = self.get()?;
        let offset = error::offset(offset)?;
        buffer::sweep(py);
        let hold = Hold::writable(buffer)?;
        let request = batch::BatchRequest::new(What::Read, file.as_raw_fd(), hold.memory(), offset);
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
        let file = self.get()?;
        let offset = error::offset(offset)?;
        buffer::sweep(py);
        let (hold, bytes) = Hold::new_bytes(py, n)?;
        let request = batch::BatchRequest::new(What::Read, file.as_raw_fd(), hold.memory(), offset);
        // SAFETY: the hold outlives the call.
        let read = unsafe { execute_one(py, request) };
        hold.release(py);
        // SAFETY: the read has filled this number of bytes, and is over.
        unsafe { cut(bytes.bind(py), read?) }
    }

    /// Reads from ``offset`` on to the end of the file, whatever its length.
    ///
    /// Errors as ``read``.
    #[pyo3(signature = (offset = 0, /))]
    fn read_all(&self, py: Python<'_>, offset: i64) -> PyResult<Py<PyAny>> {
        let file = self.get()?;
        let offset = error::offset(offset)?;
        buffer::sweep(py);
        whole::read_all(py, &file, offset)
    }

    /// Writes a contiguous buffer at ``offset``.
    ///
    /// Returns the number of bytes written, which can be less than the buffer's length, as
    /// pwrite(2). The kernel has these bytes then; ``fdatasync`` brings them to the disk.
    ///
    /// ``OSError`` as pwrite(2). Otherwise as ``read_into``.
    #[pyo3(signature = (data, offset, /))]
    fn write(&self, data: &Bound<'_, PyAny>, offset: i64) -> PyResult<usize> {
        self.written(data, offset, false).map(|(count, _)| count)
    }

    /// As ``write``, until all of the buffer is written.
    ///
    /// ``OSError`` as pwrite(2); a part may have been written. ``EIO``: the file takes no more.
    #[pyo3(signature = (data, offset, /))]
    fn write_all(&self, data: &Bound<'_, PyAny>, offset: i64) -> PyResult<()> {
        match self.written(data, offset, true)? {
            (count, length) if count < length => Err(error::os_error(libc::EIO)),
            _ => Ok(()),
        }
    }

    /// Brings data and metadata to the disk, as fsync(2).
    fn fsync(&self, py: Python<'_>) -> PyResult<()> {
        self.sync(py, What::Fsync)
    }

    /// Brings data to the disk, as fdatasync(2).
    fn fdatasync(&self, py: Python<'_>) -> PyResult<()> {
        self.sync(py, What::Fdatasync)
    }

    /// The metadata of the file, as ``os.fstat``.
    fn stat(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let file = self.get()?;
        Ok(py.import("os")?.call_method1("fstat", (file.as_raw_fd(),))?.unbind())
    }

    /// Truncates the file to ``length`` bytes, or extends it with zeros, as ``os.ftruncate``.
    #[pyo3(signature = (length, /))]
    fn truncate(&self, py: Python<'_>, length: i64) -> PyResult<()> {
        let file = self.get()?;
        py.import("os")?.call_method1("ftruncate", (file.as_raw_fd(), length))?;
        Ok(())
    }

    /// The length in bytes (fstat(2)).
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.stat(py)?.bind(py).getattr("st_size")?.extract()
    }

    /// True, also for an empty file.
    fn __bool__(&self) -> bool {
        true
    }

    /// As ``read_into``, to be awaited. The buffer is held until the read has ended, also if the
    /// task is cancelled.
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
        let read = then(file.read_at(target, offset), |py, BufResult(result, target)| {
            target.0.release(py);
            counted(py, result)
        });
        Ok(Request::with_home("File.aread_into", read, home))
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
        let read = then(read, move |py, BufResult(result, target)| {
            target.0.release(py);
            // SAFETY: the read has filled this number of bytes, and is over.
            unsafe { cut(bytes.bind(py), result.map_err(|error| error::from_io(&error))?) }
        });
        Ok(Request::with_home("File.aread", read, home))
    }

    /// As ``read_all``, to be awaited.
    #[pyo3(signature = (offset = 0, /))]
    fn aread_all(&self, py: Python<'_>, offset: i64) -> PyResult<Request> {
        let file = self.get()?;
        let offset = error::offset(offset)?;
        buffer::sweep(py);
        let home = Home::default();
        let read = ReadAll::new(py, file, offset, Home::clone(&home))?;
        Ok(Request::with_home("File.aread_all", Box::new(read), home))
    }

    /// As ``write``, to be awaited. The buffer is held until the write has ended, also if the task
    /// is cancelled; then the write may happen wholly, in part, or not at all.
    #[pyo3(signature = (data, offset, /))]
    fn awrite(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: i64) -> PyResult<Request> {
        let file = self.get()?;
        let offset = error::offset(offset)?;
        buffer::sweep(py);
        let home = Home::default();
        let source = Source(Hold::readable(data)?.at(&home));
        let write = then(file.write_at(source, offset), |py, BufResult(result, source)| {
            source.0.release(py);
            counted(py, result)
        });
        Ok(Request::with_home("File.awrite", write, home))
    }

    /// As ``write_all``, to be awaited; as ``awrite`` otherwise.
    #[pyo3(signature = (data, offset, /))]
    fn awrite_all(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        offset: i64,
    ) -> PyResult<Request> {
        let file = self.get()?;
        let offset = error::offset(offset)?;
        buffer::sweep(py);
        let home = Home::default();
        let source = Source(Hold::readable(data)?.at(&home));
        let write = then(file.write_all_at(source, offset), |py, BufResult(result, source)| {
            source.0.release(py);
            nothing(py, result)
        });
        Ok(Request::with_home("File.awrite_all", write, home))
    }

    /// As ``fsync``, to be awaited. It covers writes that had ended before. Concurrent calls share
    /// one fsync(2).
    fn afsync(&self) -> PyResult<Request> {
        Ok(Request::new("File.afsync", then(self.get()?.sync_all(), nothing)))
    }

    /// As ``fdatasync``, to be awaited; as ``afsync`` otherwise.
    fn afdatasync(&self) -> PyResult<Request> {
        Ok(Request::new("File.afdatasync", then(self.get()?.sync_data(), nothing)))
    }

    /// As ``stat``, to be awaited.
    fn astat(&self) -> PyResult<Request> {
        let stat = then(self.get()?.metadata(), |py, result| {
            stat_result(py, &result.map_err(|error| error::from_io(&error))?)
        });
        Ok(Request::new("File.astat", stat))
    }

    /// As ``truncate``, to be awaited.
    #[pyo3(signature = (length, /))]
    fn atruncate(&self, length: i64) -> PyResult<Request> {
        let file = self.get()?;
        // The kernel refuses negative lengths.
        let cut = file.set_len(length as u64);
        Ok(Request::new("File.atruncate", then(cut, nothing)))
    }

    /// Closes the file. Requests in flight go on, and the descriptor is closed after the last one.
    /// A second call does nothing.
    ///
    /// ``OSError`` as close(2), if nothing was in flight.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(file) = lock(&self.file).take() else { return Ok(()) };
        let closed = py.detach(|| match file.into_std() {
            Ok(file) => close(file.into_raw_fd()),
            // A request in flight also holds the file: the last holder closes it.
            Err(shared) => {
                drop(shared);
                Ok(())
            }
        });
        match closed {
            // close(2) closes the descriptor even if a signal interrupts the call.
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => py.check_signals(),
            closed => closed.map_err(|error| error::from_io(&error)),
        }
    }

    /// As ``close``, to be awaited; the file is closed for other calls at once.
    fn aclose(&self, py: Python<'_>) -> PyResult<Request> {
        if !self.is_of_this_process() {
            self.close(py)?;
        }
        let file = lock(&self.file).take();
        Ok(Request::new(
            "File.aclose",
            match file {
                Some(file) => then(file.close(), |py, result| closed(result).map(|()| py.None())),
                None => Box::new(Done(py.None())),
            },
        ))
    }

    /// The descriptor, which the file keeps.
    ///
    /// ``ValueError``: the file is closed.
    fn fileno(&self) -> PyResult<RawFd> {
        lock(&self.file).as_ref().map(fs::File::as_raw_fd).ok_or_else(error::closed)
    }

    /// The path with which the file was opened.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// True after a call of ``close``.
    #[getter]
    fn closed(&self) -> bool {
        lock(&self.file).is_none()
    }

    /// The alignment of direct I/O, in bytes: of buffer addresses, and of offsets and lengths.
    /// ``None`` if reads and writes use the page cache.
    #[getter]
    fn alignment(&self) -> PyResult<Option<(usize, usize)>> {
        Ok(self.handle()?.alignment().map(|alignment| (alignment.memory, alignment.offset)))
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().handle()?;
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
        slf.get().handle()?;
        Ok(Request::new("File.__aenter__", Box::new(Done(slf.into_any().unbind()))))
    }

    fn __aexit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<Request> {
        self.aclose(py)
    }

    fn __repr__(&self) -> String {
        match self.fileno() {
            Ok(fd) => format!("<uringlet.File {:?}, descriptor {fd}>", self.name),
            Err(_) => format!("<uringlet.File {:?}, closed>", self.name),
        }
    }
}
