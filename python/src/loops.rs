//! The event loops: how a loop learns, on its own thread, that requests have ended.
//!
//! An asyncio loop has one eventfd(2) among its readers. Threads of the engine note ended requests,
//! and signal this eventfd. Then the loop's thread completes the futures. A trio task waits for an
//! eventfd that only this task has. No thread of the engine touches Python.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Wake;

use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::{PyTraverseError, PyVisit};

use crate::buffer;
use crate::ready::{Ready, lock};

/// Notes that an operation has ended, for the loop or task that awaits it. The operation may end
/// before [`Bell::connect`] sets this loop or task.
pub(crate) struct Bell {
    ticket: u64,
    ready: OnceLock<Arc<Ready>>,
    has_rung: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> Arc<Self> {
        static TICKET: AtomicU64 = AtomicU64::new(0);
        let ticket = TICKET.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { ticket, ready: OnceLock::new(), has_rung: AtomicBool::new(false) })
    }

    fn connect(&self, ready: Arc<Ready>) {
        let ready = self.ready.get_or_init(|| ready);
        // Either `ring` sees the loop, or this thread sees that `ring` was called. If both do, the
        // ticket is noted twice, which does no harm.
        if self.has_rung.load(Ordering::SeqCst) {
            ready.note(self.ticket);
        }
    }

    pub(crate) fn ring(&self) {
        self.has_rung.store(true, Ordering::SeqCst);
        if let Some(ready) = self.ready.get() {
            ready.note(self.ticket);
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

/// A loop's reader: the loop calls this object when the eventfd in `ready` is readable.
#[pyclass(frozen, weakref, module = "uringlet._uringlet")]
pub(crate) struct Reader {
    ready: Arc<Ready>,
    /// The futures of waiting tasks, by the tickets of their bells.
    waiting: Mutex<BTreeMap<u64, Py<PyAny>>>,
}

#[pymethods]
impl Reader {
    fn __call__(&self, py: Python<'_>) {
        for ticket in self.ready.take() {
            let future = lock(&self.waiting).remove(&ticket);
            if let Some(future) = future
                && let Err(exception) = finish(future.bind(py))
            {
                exception.write_unraisable(py, Some(future.bind(py)));
            }
        }
        buffer::sweep(py);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // If the lock is held, a thread uses the futures, and they are not garbage.
        if let Ok(waiting) = self.waiting.try_lock() {
            waiting.values().try_for_each(|future| visit.call(future))?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        drop(waiting);
    }
}

fn finish(future: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = future.py();
    // A cancelled future is done.
    if !future.call_method0(intern!(py, "done"))?.is_truthy()? {
        future.call_method1(intern!(py, "set_result"), (py.None(),))?;
    }
    Ok(())
}

/// A task's wait for a [`Bell`]. Dropping this ends the wait.
pub(crate) enum Place {
    /// A wait in an asyncio loop, which completes a future.
    Loop(Seat),
    /// A wait in a trio task, until the eventfd of `ready` is readable.
    Trio { ready: Arc<Ready>, wait: Py<PyAny> },
}

/// A future in a loop's [`Reader`]. Dropping this removes the future.
pub(crate) struct Seat {
    reader: Py<Reader>,
    ticket: u64,
}

impl Place {
    /// The list and the eventfd by which threads of the engine end this wait.
    pub(crate) fn ready(&self) -> Arc<Ready> {
        match self {
            Self::Loop(seat) => Arc::clone(&seat.reader.get().ready),
            Self::Trio { ready, .. } => Arc::clone(ready),
        }
    }

    /// Does the scheduler send a value into the wait?
    pub(crate) fn takes_values(&self) -> bool {
        matches!(self, Self::Trio { .. })
    }

    /// Continues the wait. Returns the value for the scheduler, or `None` if the wait has ended.
    ///
    /// # Errors
    /// The exception of the wait: it was cancelled.
    pub(crate) fn resume<'py>(
        &self,
        py: Python<'py>,
        sent: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Self::Trio { wait, .. } = self else { return Ok(None) };
        match wait.bind(py).call_method1(intern!(py, "send"), (sent,)) {
            Ok(given) => Ok(Some(given)),
            Err(end) if end.is_instance_of::<PyStopIteration>(py) => Ok(None),
            Err(exception) => Err(exception),
        }
    }

    /// Visits the objects that this refers to.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self {
            Self::Loop(seat) => visit.call(&seat.reader),
            Self::Trio { wait, .. } => visit.call(wait),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let future = lock(&self.reader.get().waiting).remove(&self.ticket);
        // The lock was released before, because this may drop the last reference and run Python.
        drop(future);
    }
}

/// The running loop's reader, made now if the loop has none.
///
/// # Errors
/// The exception of a loop without `add_reader`.
fn reader<'py>(py: Python<'py>, running: &Bound<'py, PyAny>) -> PyResult<Py<Reader>> {
    static READERS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static REFERENCE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let readers = READERS.import(py, "uringlet._loops", "READERS")?;
    let known = readers.call_method1(intern!(py, "get"), (running,))?;
    if !known.is_none()
        && let Ok(known) = known.call0()?.cast::<Reader>()
    {
        return Ok(known.clone().unbind());
    }
    let ready = Ready::new()?;
    let number = ready.number();
    let reader = Py::new(py, Reader { ready, waiting: Mutex::default() })?;
    // The loop keeps the reader. If the table kept it, the table would keep the reader's futures,
    // and these would keep the loop.
    running.call_method1(intern!(py, "add_reader"), (number, reader.clone_ref(py)))?;
    let reference = REFERENCE.import(py, "weakref", "ref")?.call1((reader.clone_ref(py),))?;
    readers.set_item(running, reference)?;
    Ok(reader)
}

/// Has the running task wait for a bell. Returns the wait, and the object that `send` passes to the
/// scheduler.
///
/// # Errors
/// `RuntimeError`: no task of asyncio or trio is running.
pub(crate) fn wait_for<'py>(py: Python<'py>, bell: &Bell) -> PyResult<(Place, Bound<'py, PyAny>)> {
    static IN_TRIO: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static RUNNING: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let in_trio = IN_TRIO.import(py, "uringlet._loops", "trio")?.call0()?;
    if !in_trio.is_none() {
        return wait_in_trio(&in_trio, bell);
    }
    let running = RUNNING.import(py, "asyncio", "get_running_loop")?.call0().map_err(|_| {
        PyRuntimeError::new_err("no running event loop: await it in a task of asyncio or trio")
    })?;
    let reader = reader(py, &running)?;
    let future = running.call_method0(intern!(py, "create_future"))?;
    // This is the first step of awaiting the future, which marks the future as awaited.
    let step = future.call_method0(intern!(py, "__await__"))?;
    let given = step.call_method0(intern!(py, "__next__"))?;
    lock(&reader.get().waiting).insert(bell.ticket, future.unbind());
    let place = Place::Loop(Seat { reader, ticket: bell.ticket });
    bell.connect(place.ready());
    Ok((place, given))
}

/// As [`wait_for`], with `trio.lowlevel`.
fn wait_in_trio<'py>(
    lowlevel: &Bound<'py, PyAny>,
    bell: &Bell,
) -> PyResult<(Place, Bound<'py, PyAny>)> {
    let py = lowlevel.py();
    let ready = Ready::new()?;
    bell.connect(Arc::clone(&ready));
    let number = ready.number();
    let wait = lowlevel.call_method1(intern!(py, "wait_readable"), (number,))?;
    let given = wait.call_method1(intern!(py, "send"), (py.None(),))?;
    Ok((Place::Trio { ready, wait: wait.unbind() }, given))
}
