//! An operation that Python awaits: a future of `uringlet::fs`, which `send` polls.
use std::ffi::CString;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};

use pyo3::exceptions::{PyRuntimeError, PyRuntimeWarning, PyStopIteration, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyType;
use pyo3::{PyTraverseError, PyVisit};

use crate::loops::{self, Bell, Place};
use crate::ready::{Home, lock};

/// The work of a request, and the loop to wake when a thread of the engine drops its buffer.
pub(crate) struct Job {
    pub(crate) work: Work,
    home: Option<Home>,
}

impl Job {
    /// Sets the wait whose loop or task releases a buffer that a thread of the engine has dropped.
    pub(crate) fn wait_at(&self, place: &Place) {
        if let Some(home) = &self.home {
            let _ = home.set(place.ready());
        }
        self.work.wait_at(place);
    }
}

/// The work of a request, which takes one poll or several.
pub(crate) trait Steps {
    /// Continues the work. Ready: the value, or the exception.
    fn poll(&mut self, py: Python<'_>, context: &mut Context<'_>) -> Poll<PyResult<Py<PyAny>>>;

    /// Sets the wait whose loop or task releases a buffer that a thread of the engine has dropped.
    fn wait_at(&self, _place: &Place) {}

    /// Visits the objects that the work refers to.
    fn traverse(&self, _visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        Ok(())
    }
}

pub(crate) type Work = Box<dyn Steps + Send>;

/// An operation, and the function that turns its result into the value.
struct Then<F, M>(F, Option<M>);

impl<F, M> Steps for Then<F, M>
where
    F: Future + Unpin,
    M: FnOnce(Python<'_>, F::Output) -> PyResult<Py<PyAny>>,
{
    fn poll(&mut self, py: Python<'_>, context: &mut Context<'_>) -> Poll<PyResult<Py<PyAny>>> {
        let result = ready!(Pin::new(&mut self.0).poll(context));
        Poll::Ready(self.1.take().map_or_else(|| Err(awaited()), |make| make(py, result)))
    }
}

/// An operation whose result `make` turns into the value.
pub(crate) fn then<F, M>(operation: F, make: M) -> Work
where
    F: Future + Unpin + Send + 'static,
    M: FnOnce(Python<'_>, F::Output) -> PyResult<Py<PyAny>> + Send + 'static,
{
    Box::new(Then(operation, Some(make)))
}

/// The work of a request that has its value already.
pub(crate) struct Done(pub(crate) Py<PyAny>);

impl Steps for Done {
    fn poll(&mut self, py: Python<'_>, _: &mut Context<'_>) -> Poll<PyResult<Py<PyAny>>> {
        Poll::Ready(Ok(self.0.clone_ref(py)))
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.0)
    }
}

enum State {
    Pending(Job, Option<Place>),
    /// A thread is polling the request.
    Busy,
    Over,
}

/// An operation of a file, or several of ``gather``, to be awaited once.
///
/// A request does nothing before it is awaited. A request that is never awaited gives a
/// ``RuntimeWarning``, as a coroutine does. An operation that can be done at once ends without a
/// wait for the event loop: for example a read of at most 64 KiB whose pages are in memory. Other
/// threads or the kernel execute all other operations, and the loop goes on meanwhile.
///
/// A task that is cancelled while it awaits goes on at once. A request that had not begun is not
/// executed. A request that had begun goes on, and keeps its buffer until it is over. **A write
/// that was cancelled may have happened wholly, in part, or not at all.**
#[pyclass(frozen, weakref, module = "uringlet")]
pub(crate) struct Request {
    name: &'static str,
    state: Mutex<State>,
}

impl Request {
    /// Makes a request without a buffer of its own; the name is for messages.
    pub(crate) fn new(name: &'static str, work: Work) -> Self {
        let job = Job { work, home: None };
        Self { name, state: Mutex::new(State::Pending(job, None)) }
    }

    /// Makes a request whose buffer has this home: the loop that is woken when a thread of the
    /// engine drops the buffer.
    pub(crate) fn with_home(name: &'static str, work: Work, home: Home) -> Self {
        let job = Job { work, home: Some(home) };
        Self { name, state: Mutex::new(State::Pending(job, None)) }
    }

    /// Takes the work out of the request, for a caller that polls it instead.
    ///
    /// # Errors
    /// `RuntimeError`: the request was awaited.
    pub(crate) fn take(&self) -> PyResult<Job> {
        let mut state = lock(&self.state);
        match std::mem::replace(&mut *state, State::Busy) {
            State::Pending(job, None) => {
                *state = State::Over;
                Ok(job)
            }
            other => {
                *state = other;
                Err(awaited())
            }
        }
    }

    fn set(&self, state: State) {
        *lock(&self.state) = state;
    }

    /// As a coroutine's `send`: the object for the event loop, or `StopIteration` with the value.
    fn step(&self, py: Python<'_>, sent: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        let state = std::mem::replace(&mut *lock(&self.state), State::Busy);
        let (mut job, place) = match state {
            State::Pending(job, place) => (job, place),
            other => {
                self.set(other);
                return Err(awaited());
            }
        };
        if let Some(place) = place {
            match place.resume(py, sent) {
                Ok(None) => {}
                Ok(Some(given)) => {
                    self.set(State::Pending(job, Some(place)));
                    return Ok(given.unbind());
                }
                Err(exception) => {
                    self.set(State::Over);
                    return Err(exception);
                }
            }
        }
        let bell = Bell::new();
        let waker = Waker::from(Arc::clone(&bell));
        match job.work.poll(py, &mut Context::from_waker(&waker)) {
            Poll::Ready(Ok(value)) => {
                self.set(State::Over);
                Err(PyStopIteration::new_err((value,)))
            }
            Poll::Ready(Err(exception)) => {
                self.set(State::Over);
                Err(exception)
            }
            Poll::Pending => match loops::wait_for(py, &bell) {
                Ok((place, given)) => {
                    job.wait_at(&place);
                    self.set(State::Pending(job, Some(place)));
                    Ok(given.unbind())
                }
                Err(exception) => {
                    self.set(State::Over);
                    Err(exception)
                }
            },
        }
    }

    /// Gives the request up: no task waits for it any more. True: the request was never awaited.
    fn abandon(&self) -> bool {
        let state = std::mem::replace(&mut *lock(&self.state), State::Over);
        matches!(state, State::Pending(_, None))
    }

    /// As [`Request::abandon`], for a request that is freed. Warns if it was never awaited.
    fn end(&self) {
        if self.abandon() {
            // While the interpreter ends, no thread can attach, and there is no warning.
            Python::try_attach(|py| never_awaited(py, self.name));
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.end();
    }
}

/// Warns as a coroutine does. An exception that is being raised meanwhile is kept.
#[cold]
fn never_awaited(py: Python<'_>, name: &str) {
    let on_its_way = PyErr::take(py);
    let text = CString::new(format!("{name} was never awaited")).unwrap_or_default();
    let warned = PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 1);
    if let Err(exception) = warned {
        exception.write_unraisable(py, None);
    }
    if let Some(exception) = on_its_way {
        exception.restore(py);
    }
}

/// The exception for a request that was awaited already.
fn awaited() -> PyErr {
    PyRuntimeError::new_err("a request can be awaited once")
}

/// The exception that `throw` has to raise.
fn thrown(kind: &Bound<'_, PyAny>, value: Option<&Bound<'_, PyAny>>) -> PyResult<PyErr> {
    let value = value.filter(|value| !value.is_none());
    if kind.is_instance_of::<PyType>() {
        let value = match value {
            Some(value) if value.is_instance(kind)? => value.clone(),
            Some(value) => kind.call1((value,))?,
            None => kind.call0()?,
        };
        return Ok(PyErr::from_value(value));
    }
    Ok(PyErr::from_value(kind.clone()))
}

#[pymethods]
impl Request {
    fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.step(py, None)
    }

    /// Continues the request, as for a coroutine.
    #[pyo3(signature = (value, /))]
    fn send(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let takes_values =
            matches!(&*lock(&self.state), State::Pending(_, Some(place)) if place.takes_values());
        if !value.is_none() && !takes_values {
            return Err(PyTypeError::new_err("nothing but None can be sent"));
        }
        self.step(py, Some(value))
    }

    /// Gives the request up, and raises the exception, as for a coroutine.
    #[pyo3(signature = (kind, value = None, traceback = None, /))]
    fn throw(
        &self,
        kind: &Bound<'_, PyAny>,
        value: Option<&Bound<'_, PyAny>>,
        traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let _ = traceback;
        self.abandon();
        Err(thrown(kind, value)?)
    }

    /// Gives the request up. An operation that has begun goes on, and keeps its buffer until it is
    /// over.
    fn close(&self) {
        self.abandon();
    }

    /// The name of the method that made the request.
    #[getter]
    fn __qualname__(&self) -> &str {
        self.name
    }

    /// As ``__qualname__``, without the class.
    #[getter]
    fn __name__(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or_default()
    }

    fn __repr__(&self) -> String {
        let state = match &*lock(&self.state) {
            State::Pending(_, None) => "not awaited",
            State::Pending(_, Some(_)) | State::Busy => "in flight",
            State::Over => "over",
        };
        format!("<uringlet.Request, {}, {state}>", self.name)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Ok(state) = self.state.try_lock()
            && let State::Pending(job, place) = &*state
        {
            if let Some(place) = place {
                place.traverse(&visit)?;
            }
            job.work.traverse(&visit)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        self.end();
    }
}
