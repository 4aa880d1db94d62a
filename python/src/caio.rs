//! Contexts and operations with caio's interface. The thread that calls ``process_events`` or
//! ``flush`` takes the completions, and calls the callbacks.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pyo3::exceptions::{
    PyBlockingIOError, PyMemoryError, PyOverflowError, PyRuntimeError, PyTypeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyTuple, PyType};
use pyo3::{PyTraverseError, PyVisit};
use uringlet::front::Eventfd;
use uringlet::{Canceller, Cqe, Sqe};

use crate::buffer::{self, Hold};
use crate::error;
use crate::ready::lock;

/// The exception of a failed operation: an `OSError`, and the `SystemError` that caio's users
/// expect.
pub(crate) fn operation_error(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static ERROR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let error = ERROR.get_or_try_init(py, || -> PyResult<_> {
        let builtins = py.import("builtins")?;
        let bases = (builtins.getattr("OSError")?, builtins.getattr("SystemError")?);
        let members = pyo3::types::PyDict::new(py);
        members.set_item("__module__", "uringlet.caio")?;
        members.set_item("__doc__", "An operation failed: its ``errno`` says how.")?;
        Ok(py.get_type::<PyType>().call1(("OperationError", bases, members))?.unbind())
    })?;
    Ok(error.bind(py))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Fsync,
    Fdsync,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    InFlight,
    Over,
}

/// The mutable part of an operation.
struct Changing {
    phase: Phase,
    /// A count, or a negative errno.
    result: i32,
    callback: Option<Py<PyAny>>,
    /// The context, while the operation is in flight.
    context: Option<Py<Context>>,
    /// The number by which the context knows the operation.
    ticket: u64,
}

/// One read, write or sync, which is submitted once.
///
/// Made by ``read``, ``write``, ``fsync`` and ``fdsync``; offsets and sizes are in bytes.
#[pyclass(frozen, weakref, subclass, module = "uringlet.caio")]
pub(crate) struct Operation {
    kind: Kind,
    fd: RawFd,
    offset: u64,
    priority: u16,
    nbytes: usize,
    /// The bytes to write, or the bytes that a read fills. Nobody sees the bytes of a read before
    /// the read has ended.
    bytes: Option<Py<PyBytes>>,
    changing: Mutex<Changing>,
}

impl Operation {
    fn new(kind: Kind, fd: RawFd, offset: u64, priority: u16) -> Self {
        let (phase, result, ticket) = (Phase::New, 0, 0);
        let changing = Changing { phase, result, callback: None, context: None, ticket };
        let changing = Mutex::new(changing);
        Self { kind, fd, offset, priority, nbytes: 0, bytes: None, changing }
    }

    fn sqe(&self, py: Python<'_>) -> Sqe {
        let memory = self.bytes.as_ref().map(|bytes| Hold::of_bytes(bytes.bind(py)));
        let (address, length) = memory
            .as_ref()
            .map_or((std::ptr::null_mut(), 0), |hold| (hold.address(), hold.length()));
        let buffer = std::ptr::slice_from_raw_parts_mut(address, length.min(0x7fff_f000));
        let sqe = match self.kind {
            Kind::Read => Sqe::read(self.fd, buffer, self.offset),
            Kind::Write => Sqe::write(self.fd, buffer, self.offset),
            Kind::Fsync => Sqe::fsync(self.fd),
            Kind::Fdsync => Sqe::fdatasync(self.fd),
        };
        if let Some(memory) = memory {
            memory.release(py);
        }
        sqe
    }

    /// Claims the operation for this context, if it was not submitted before.
    fn claim(&self, context: &Bound<'_, Context>) -> bool {
        let mut changing = lock(&self.changing);
        let is_new = changing.phase == Phase::New;
        if is_new {
            changing.phase = Phase::InFlight;
            changing.context = Some(context.clone().unbind());
        }
        is_new
    }

    /// Undoes [`Operation::claim`], because the context did not accept the operation.
    fn give_back(&self) {
        let context = {
            let mut changing = lock(&self.changing);
            changing.phase = Phase::New;
            changing.context.take()
        };
        drop(context);
    }

    /// Notes the end of the operation. Returns the callback to call.
    fn end(&self, py: Python<'_>, result: i32) -> Option<Py<PyAny>> {
        if self.kind == Kind::Read
            && let Some(bytes) = &self.bytes
        {
            let hold = Hold::of_bytes(bytes.bind(py));
            let read = usize::try_from(result).unwrap_or(0).min(hold.length());
            // SAFETY: the operation is over, and nobody has seen the bytes.
            unsafe { hold.address().add(read).write_bytes(0, hold.length() - read) };
            hold.release(py);
        }
        let (callback, context) = {
            let mut changing = lock(&self.changing);
            (changing.phase, changing.result) = (Phase::Over, result);
            let callback = changing.callback.as_ref().map(|callback| callback.clone_ref(py));
            (callback, changing.context.take())
        };
        drop(context);
        callback
    }

    /// The result, once the operation has ended; `None` before it is submitted.
    ///
    /// # Errors
    /// `RuntimeError` while the operation is in flight.
    fn ended(&self) -> PyResult<Option<i32>> {
        let changing = lock(&self.changing);
        match changing.phase {
            Phase::New => Ok(None),
            Phase::InFlight => Err(PyRuntimeError::new_err("the operation is in flight")),
            Phase::Over => Ok(Some(changing.result)),
        }
    }
}

#[pymethods]
impl Operation {
    /// Reads ``nbytes`` of a descriptor from ``offset``.
    #[classmethod]
    #[pyo3(signature = (nbytes, fd, offset, priority = 0))]
    fn read(
        cls: &Bound<'_, PyType>,
        nbytes: u64,
        fd: RawFd,
        offset: u64,
        priority: u16,
    ) -> PyResult<Self> {
        let nbytes = usize::try_from(nbytes)
            .ok()
            .filter(|&nbytes| nbytes < isize::MAX as usize / 2)
            .ok_or_else(|| PyMemoryError::new_err("no memory for this many bytes"))?;
        let (hold, bytes) = Hold::new_bytes(cls.py(), nbytes)?;
        hold.release(cls.py());
        let operation = Self::new(Kind::Read, fd, offset, priority);
        Ok(Self { nbytes, bytes: Some(bytes), ..operation })
    }

    /// Writes bytes to a descriptor at ``offset``.
    ///
    /// ``ValueError``: the payload is not bytes.
    #[classmethod]
    #[pyo3(signature = (payload_bytes, fd, offset, priority = 0))]
    fn write(
        _cls: &Bound<'_, PyType>,
        payload_bytes: &Bound<'_, PyAny>,
        fd: RawFd,
        offset: u64,
        priority: u16,
    ) -> PyResult<Self> {
        let Ok(bytes) = payload_bytes.cast::<PyBytes>() else {
            return Err(PyValueError::new_err("the payload must be bytes"));
        };
        let operation = Self::new(Kind::Write, fd, offset, priority);
        let nbytes = bytes.len()?;
        Ok(Self { nbytes, bytes: Some(bytes.clone().unbind()), ..operation })
    }

    /// Brings data and metadata of a descriptor to the disk, as fsync(2).
    #[classmethod]
    #[pyo3(signature = (fd, priority = 0))]
    fn fsync(_cls: &Bound<'_, PyType>, fd: RawFd, priority: u16) -> Self {
        Self::new(Kind::Fsync, fd, 0, priority)
    }

    /// Brings data of a descriptor to the disk, as fdatasync(2).
    #[classmethod]
    #[pyo3(signature = (fd, priority = 0))]
    fn fdsync(_cls: &Bound<'_, PyType>, fd: RawFd, priority: u16) -> Self {
        Self::new(Kind::Fdsync, fd, 0, priority)
    }

    /// The bytes read, the number of bytes written, or ``None``.
    ///
    /// ``OperationError``: the operation failed. ``RuntimeError``: the operation is in flight.
    fn get_value(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let Some(result) = self.ended()? else { return Ok(py.None()) };
        if result < 0 {
            let text = error::os_error(-result).value(py).getattr("strerror")?;
            let exception = operation_error(py)?.call1((-result, text))?;
            return Err(PyErr::from_value(exception));
        }
        match (self.kind, &self.bytes) {
            (Kind::Read, Some(bytes)) => {
                // SAFETY: the operation has filled this number of bytes, and is over.
                unsafe { buffer::cut(bytes.bind(py), usize::try_from(result).unwrap_or(0)) }
            }
            (Kind::Write, _) => Ok(result.into_pyobject(py)?.into_any().unbind()),
            _ => Ok(py.None()),
        }
    }

    /// Has ``callback(result)`` called when the operation ends. The result is a count, or a
    /// negative errno.
    ///
    /// ``ValueError``: the callback is not callable.
    fn set_callback(&self, callback: &Bound<'_, PyAny>) -> PyResult<bool> {
        if !callback.is_callable() {
            return Err(PyValueError::new_err("the callback must be callable"));
        }
        let before = lock(&self.changing).callback.replace(callback.clone().unbind());
        drop(before);
        Ok(true)
    }

    /// The bytes to write; or the bytes that were read, with zeros up to ``nbytes``.
    ///
    /// ``RuntimeError``: the operation is in flight.
    #[getter]
    fn payload(&self, py: Python<'_>) -> PyResult<Option<Py<PyBytes>>> {
        if self.ended()?.is_none() && self.kind == Kind::Read {
            return Ok(None);
        }
        Ok(self.bytes.as_ref().map(|bytes| bytes.clone_ref(py)))
    }

    /// The descriptor.
    #[getter]
    fn fileno(&self) -> RawFd {
        self.fd
    }

    /// The offset in the file, in bytes.
    #[getter]
    fn offset(&self) -> u64 {
        self.offset
    }

    /// The number of bytes to transfer.
    #[getter]
    fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// The priority, which is stored and not used.
    #[getter]
    fn priority(&self) -> u16 {
        self.priority
    }

    /// The number of bytes transferred.
    #[getter]
    fn result(&self) -> i32 {
        lock(&self.changing).result.max(0)
    }

    /// The errno of a failed operation, or 0.
    #[getter]
    fn error(&self) -> i32 {
        -lock(&self.changing).result.min(0)
    }

    /// The context on which the operation is in flight.
    #[getter]
    fn context(&self, py: Python<'_>) -> Option<Py<Context>> {
        lock(&self.changing).context.as_ref().map(|context| context.clone_ref(py))
    }

    /// Has the operation ended, and was its completion delivered?
    #[getter]
    fn done(&self) -> bool {
        lock(&self.changing).phase == Phase::Over
    }

    fn __repr__(&self) -> String {
        let (kind, phase) = (self.kind, lock(&self.changing).phase);
        let Self { fd, offset, nbytes, .. } = self;
        let what = format!("{kind:?}, fd={fd}, offset={offset}, nbytes={nbytes}");
        format!("<uringlet.caio.Operation {what}, {phase:?}>")
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Ok(changing) = self.changing.try_lock() {
            if let Some(callback) = &changing.callback {
                visit.call(callback)?;
            }
            if let Some(context) = &changing.context {
                visit.call(context)?;
            }
        }
        Ok(())
    }

    /// Drops the callback and the context. The bytes are kept, because the kernel may be writing to
    /// them.
    fn __clear__(&self) {
        let cleared = {
            let mut changing = lock(&self.changing);
            (changing.callback.take(), changing.context.take())
        };
        drop(cleared);
    }
}

/// The part of a context that one thread at a time uses, without the interpreter.
struct Owned {
    context: uringlet::Context,
    /// The number of requests that were submitted and not reaped.
    outstanding: usize,
    next: u64,
}

impl Owned {
    /// Executes requests that need not sleep. Then takes completions, `max` at most.
    fn reap(&mut self, max: usize) -> VecDeque<Cqe> {
        let _ = self.context.wait(0, None);
        let mut reaped = VecDeque::new();
        while reaped.len() < max
            && let Some(cqe) = self.context.reap()
        {
            self.outstanding -= 1;
            reaped.push_back(cqe);
        }
        reaped
    }
}

/// A context of uringlet with caio's interface: ``submit``, then ``process_events`` when ``fileno``
/// is readable.
///
/// ``max_requests`` may be in flight at a time. All methods may be called from any thread.
/// Operations in flight keep their context alive, and the context keeps them. In the child of a
/// fork, the methods of its parent's context raise ``OSError`` with ``EINVAL``.
///
/// ``OSError``: no context can be made. ``ValueError``: ``max_requests`` is out of range.
#[pyclass(frozen, weakref, subclass, module = "uringlet.caio")]
pub(crate) struct Context {
    /// The process that made the context.
    generation: u64,
    owned: Mutex<Option<Owned>>,
    canceller: Canceller,
    counter: Eventfd,
    max_requests: usize,
    in_flight: Mutex<BTreeMap<u64, Py<Operation>>>,
    /// The number of completions that all threads together have delivered.
    delivered: AtomicU64,
}

/// The exception for a [`Context`] that is used after its end.
fn ended() -> PyErr {
    PyRuntimeError::new_err("the context is closed")
}

impl Context {
    /// Refuses the child of a fork. It has none of its parent's completions, and must not take the
    /// counts of its parent's eventfd.
    fn check_process(&self) -> PyResult<()> {
        if uringlet::front::enter_process() == self.generation {
            Ok(())
        } else {
            Err(error::forked_context())
        }
    }

    fn reap(&self, py: Python<'_>, max: usize) -> VecDeque<Cqe> {
        py.detach(|| lock(&self.owned).as_mut().map(|owned| owned.reap(max)).unwrap_or_default())
    }

    /// Ends operations, and calls their callbacks.
    fn deliver(&self, py: Python<'_>, cqes: VecDeque<Cqe>) -> usize {
        let count = cqes.len();
        for cqe in cqes {
            let operation = lock(&self.in_flight).remove(&cqe.user_data);
            self.delivered.fetch_add(1, Ordering::SeqCst);
            let Some(operation) = operation else { continue };
            let callback = operation.get().end(py, cqe.res);
            drop(operation);
            if let Some(callback) = callback
                && let Err(exception) = callback.call1(py, (cqe.res,))
            {
                exception.write_unraisable(py, Some(callback.bind(py)));
            }
        }
        count
    }

    /// Sleeps until the eventfd has counted a completion, or until the time is over.
    fn sleep(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<()> {
        let milliseconds = timeout.map_or(-1, |timeout| {
            i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
        });
        let fd = self.counter.as_raw_fd();
        let ret = py.detach(|| {
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: passes the address of one structure, which outlives the call.
            unsafe { libc::poll(&raw mut poll, 1, milliseconds) }
        });
        if ret < 0 { py.check_signals() } else { Ok(()) }
    }
}

#[pymethods]
impl Context {
    #[new]
    #[pyo3(signature = (max_requests = 512))]
    fn new(max_requests: u32) -> PyResult<Self> {
        if !(1..=uringlet::ENTRIES_MAX).contains(&max_requests) {
            return Err(PyValueError::new_err("max_requests is out of range"));
        }
        let mut context =
            uringlet::Context::new(max_requests).map_err(|error| error::os_error(error.errno()))?;
        let counter = context.eventfd().and_then(|counter| counter.try_clone_to_owned());
        let counter = Eventfd::from(counter.map_err(|error| error::from_io(&error))?);
        let canceller = context.canceller();
        let owned = Mutex::new(Some(Owned { context, outstanding: 0, next: 0 }));
        let (max_requests, in_flight) = (max_requests as usize, Mutex::default());
        let delivered = AtomicU64::new(0);
        let generation = uringlet::front::enter_process();
        Ok(Self { generation, owned, canceller, counter, max_requests, in_flight, delivered })
    }

    /// The maximum number of operations in flight.
    #[getter]
    fn max_requests(&self) -> usize {
        self.max_requests
    }

    /// A descriptor that is readable when there are completions.
    #[getter]
    fn fileno(&self) -> RawFd {
        self.counter.as_raw_fd()
    }

    /// Begins operations. Operations that were submitted before are left out. Returns the number of
    /// operations that have begun.
    ///
    /// ``TypeError``: an argument is no operation; no operation has begun then. ``OverflowError``:
    /// ``max_requests`` operations are in flight; earlier ones in the list have begun.
    #[pyo3(signature = (*aio_operations))]
    fn submit(slf: &Bound<'_, Self>, aio_operations: &Bound<'_, PyTuple>) -> PyResult<usize> {
        let (py, this) = (slf.py(), slf.get());
        this.check_process()?;
        buffer::sweep(py);
        let operations = of(aio_operations)?;
        let mut begun = 0;
        for operation in operations {
            if !operation.get().claim(slf) {
                continue;
            }
            let sqe = operation.get().sqe(py);
            let result = this.begin(&operation, sqe);
            if let Err(exception) = result {
                operation.get().give_back();
                return Err(exception);
            }
            begun += 1;
        }
        Ok(begun)
    }

    /// Asks to cancel operations. An operation that had not begun ends with ``ECANCELED``; others
    /// go on. Returns 0.
    #[pyo3(signature = (*aio_operations))]
    fn cancel(slf: &Bound<'_, Self>, aio_operations: &Bound<'_, PyTuple>) -> PyResult<usize> {
        let this = slf.get();
        this.check_process()?;
        for operation in of(aio_operations)? {
            let ticket = {
                let changing = lock(&operation.get().changing);
                let is_here = changing.context.as_ref().is_some_and(|context| context.is(slf));
                is_here.then_some(changing.ticket)
            };
            if let Some(ticket) = ticket {
                // This fails if the operation has begun or ended. Its completion follows anyway.
                let _ = this.canceller.cancel(ticket);
            }
        }
        Ok(0)
    }

    /// Executes operations that do not sleep, takes all completions, and calls their callbacks.
    /// Returns the number of completions.
    fn flush(&self, py: Python<'_>) -> PyResult<usize> {
        self.check_process()?;
        let cqes = self.reap(py, usize::MAX);
        Ok(self.deliver(py, cqes))
    }

    /// Takes completions, ``max_requests`` at most, and calls their callbacks. Waits up to
    /// ``timeout`` seconds (negative: without end) until ``min_requests`` were taken, by this call
    /// or another one. Returns the number that this call took.
    ///
    /// ``ValueError``: ``min_requests`` is more than ``max_requests``.
    #[pyo3(signature = (max_requests = 512, min_requests = 0, timeout = 0.0))]
    fn process_events(
        &self,
        py: Python<'_>,
        max_requests: usize,
        min_requests: usize,
        timeout: f64,
    ) -> PyResult<usize> {
        self.check_process()?;
        if min_requests > max_requests {
            return Err(PyValueError::new_err("min_requests is more than max_requests"));
        }
        let begin = Instant::now();
        let timeout = match timeout {
            seconds if seconds < 0.0 => None,
            seconds => Some(
                Duration::try_from_secs_f64(seconds)
                    .map_err(|_| PyValueError::new_err("timeout is out of range"))?,
            ),
        };
        let before = self.delivered.load(Ordering::SeqCst);
        let mut taken = 0;
        loop {
            let cqes = self.reap(py, max_requests - taken);
            taken += self.deliver(py, cqes);
            let delivered = self.delivered.load(Ordering::SeqCst).wrapping_sub(before);
            if delivered >= min_requests as u64 {
                return Ok(taken);
            }
            let left = timeout.map(|timeout| timeout.saturating_sub(begin.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(taken);
            }
            if self.counter.take() == 0 {
                self.sleep(py, left)?;
            }
        }
    }

    /// Sets the count of ``fileno`` to 0. Returns the old count.
    ///
    /// ``BlockingIOError``: the count was 0.
    fn poll(&self) -> PyResult<u64> {
        self.check_process()?;
        match self.counter.take() {
            0 => Err(PyBlockingIOError::new_err((libc::EAGAIN, "nothing was completed"))),
            count => Ok(count),
        }
    }

    fn __repr__(&self) -> String {
        let in_flight = lock(&self.in_flight).len();
        format!("<uringlet.caio.Context, {in_flight} of {} in flight>", self.max_requests)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Ok(in_flight) = self.in_flight.try_lock() {
            in_flight.values().try_for_each(|operation| visit.call(operation))?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        self.end();
    }
}

/// The arguments as operations.
fn of<'py>(operations: &Bound<'py, PyTuple>) -> PyResult<Vec<Bound<'py, Operation>>> {
    let each = operations.iter().map(|object| {
        object.cast_into::<Operation>().map_err(|_| PyTypeError::new_err("not an operation"))
    });
    each.collect()
}

impl Context {
    /// Submits an operation that was claimed.
    fn begin(&self, operation: &Bound<'_, Operation>, sqe: Sqe) -> PyResult<()> {
        let py = operation.py();
        let kept = operation.clone().unbind();
        let operation = operation.get();
        py.detach(|| {
            let mut owned = lock(&self.owned);
            let owned = owned.as_mut().ok_or_else(ended)?;
            if owned.outstanding >= self.max_requests {
                return Err(PyOverflowError::new_err("as many as may be are in flight"));
            }
            let ticket = owned.next;
            owned.next += 1;
            lock(&operation.changing).ticket = ticket;
            // The ticket is stored before the submit, because the request may end at once.
            lock(&self.in_flight).insert(ticket, kept);
            // SAFETY: the operation keeps its bytes, and the context keeps the operation until its
            // completion was reaped.
            let pushed = unsafe { owned.context.push(sqe.user_data(ticket)) };
            let submitted = pushed.map_err(|_| libc::EAGAIN).and_then(|()| {
                owned.context.submit().map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
            });
            match submitted {
                Ok(1) => {
                    owned.outstanding += 1;
                    Ok(())
                }
                Ok(_) => unreachable!("there is room for one: fewer are outstanding"),
                Err(errno) => {
                    let kept = lock(&self.in_flight).remove(&ticket);
                    drop(kept);
                    Err(error::os_error(errno))
                }
            }
        })
    }

    /// Ends the context. Another thread waits for the operations in flight, so that this one does
    /// not.
    fn end(&self) {
        let owned = lock(&self.owned).take();
        let operations = std::mem::take(&mut *lock(&self.in_flight));
        let Some(owned) = owned else { return };
        if owned.outstanding == 0 {
            return drop(owned);
        }
        let kept = (owned, operations);
        let thread = std::thread::Builder::new().name("uringlet-close".into());
        // The end of the context waits for operations that have begun. Then their bytes are
        // dropped. If no thread can be made, the bytes stay, because the kernel may be writing to
        // them.
        let closing = std::mem::ManuallyDrop::new(kept);
        let spawned = thread.spawn(move || {
            let (owned, operations) = std::mem::ManuallyDrop::into_inner(closing);
            drop(owned);
            drop(operations);
        });
        drop(spawned);
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.end();
    }
}
