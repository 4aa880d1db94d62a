//! One operation that Python awaits: a future of `uringlet::fs`, polled by `send`.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use pyo3::exceptions::{PyRuntimeError, PyStopIteration, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};
use pyo3::{PyTraverseError, PyVisit};
use uringlet::fs::{self, BufResult, Op};

use crate::buffer::{Source, Target};
use crate::error;
use crate::file::File;
use crate::loops::{self, Bell, Home, Place, lock};

/// An operation, and where its buffer goes if it outlives those who wait.
pub(crate) struct Job {
    pub(crate) work: Work,
    home: Option<Home>,
}

impl Job {
    /// It is awaited at this place.
    pub(crate) fn wait_at(&self, place: &Place) {
        if let Some(home) = &self.home {
            let _ = home.set(place.ready());
        }
    }
}

/// What is done, and what of it the program gets.
pub(crate) enum Work {
    /// Into a buffer of the program's: the count.
    ReadInto(Op<fs::Read<Target>>),
    /// Into new bytes, which nobody has seen.
    Read(Op<fs::Read<Target>>, Py<PyBytes>),
    Write(Op<fs::Write<Source>>),
    Control(Op<fs::Control>),
    Close(Op<fs::Close>),
    Open(Op<fs::Open>, String),
    /// Nothing is left to do.
    Done(Py<PyAny>),
}

impl Work {
    /// Goes on with it. Ready: the value, or the exception.
    pub(crate) fn poll(&mut self, py: Python<'_>, waker: &Waker) -> Poll<PyResult<Py<PyAny>>> {
        let mut context = Context::from_waker(waker);
        let context = &mut context;
        let errors = |error: std::io::Error| error::from_io(&error);
        let count = |count: usize| Ok(count.into_pyobject(py)?.into_any().unbind());
        match self {
            Self::ReadInto(op) => Pin::new(op).poll(context).map(|BufResult(result, target)| {
                target.0.release(py);
                result.map_err(errors).and_then(count)
            }),
            Self::Read(op, bytes) => Pin::new(op).poll(context).map(|BufResult(result, target)| {
                target.0.release(py);
                cut(bytes.bind(py), result.map_err(errors)?)
            }),
            Self::Write(op) => Pin::new(op).poll(context).map(|BufResult(result, source)| {
                source.0.release(py);
                result.map_err(errors).and_then(count)
            }),
            Self::Control(op) => {
                Pin::new(op).poll(context).map(|result| result.map(|()| py.None()).map_err(errors))
            }
            Self::Close(op) => Pin::new(op)
                .poll(context)
                .map(|result| crate::file::closed(result).map(|()| py.None())),
            Self::Open(op, name) => Pin::new(op).poll(context).map(|result| {
                let file = File::of(result.map_err(|error| error::with_name(py, &error, name))?);
                Ok(Py::new(py, file.named(std::mem::take(name)))?.into_any())
            }),
            Self::Done(value) => Poll::Ready(Ok(value.clone_ref(py))),
        }
    }
}

/// So many of the bytes.
pub(crate) fn cut(bytes: &Bound<'_, PyBytes>, count: usize) -> PyResult<Py<PyAny>> {
    let all = bytes.as_bytes();
    if count == all.len() {
        return Ok(bytes.clone().into_any().unbind());
    }
    Ok(PyBytes::new(bytes.py(), &all[..count]).into_any().unbind())
}

enum State {
    Pending(Job, Option<Place>),
    /// A thread is at it.
    Busy,
    Over,
}

/// An operation of a file, to be awaited once, or given to ``gather``.
///
/// Nothing happens before it is awaited. What is done at once then does not go round the event
/// loop: a read of at most 64 KiB whose pages are in memory, say. Everything else is done by other
/// threads or the kernel, and the loop goes on meanwhile.
///
/// A task that is cancelled while it awaits goes on at once. A request that had not begun is left
/// undone; one that had goes on, and keeps its buffer until it is over. **A write that was
/// cancelled may have happened wholly, in part, or not at all.**
#[pyclass(frozen, weakref, module = "uringlet")]
pub(crate) struct Request {
    state: Mutex<State>,
}

impl Request {
    /// One without a buffer.
    pub(crate) fn new(work: Work) -> Self {
        Self { state: Mutex::new(State::Pending(Job { work, home: None }, None)) }
    }

    /// One whose buffer is at this home.
    pub(crate) fn with_home(work: Work, home: Home) -> Self {
        Self { state: Mutex::new(State::Pending(Job { work, home: Some(home) }, None)) }
    }

    /// What it is to do, for one that does it in its place.
    ///
    /// # Errors
    /// `RuntimeError`: it was awaited.
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

    /// As a coroutine's `send`: what the event loop is to get, or `StopIteration` with the value.
    fn step(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let state = std::mem::replace(&mut *lock(&self.state), State::Busy);
        let mut job = match state {
            // The place at the loop is the one of the last step.
            State::Pending(job, place) => {
                drop(place);
                job
            }
            other => {
                self.set(other);
                return Err(awaited());
            }
        };
        let bell = Bell::new();
        let waker = Waker::from(Arc::clone(&bell));
        match job.work.poll(py, &waker) {
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

    /// Nobody waits any more.
    fn abandon(&self) {
        let state = std::mem::replace(&mut *lock(&self.state), State::Over);
        drop(state);
    }
}

/// A coroutine was used up.
pub(crate) fn awaited() -> PyErr {
    PyRuntimeError::new_err("a request can be awaited once")
}

/// The exception that `throw` is to raise.
pub(crate) fn thrown(kind: &Bound<'_, PyAny>, value: Option<&Bound<'_, PyAny>>) -> PyResult<PyErr> {
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
        self.step(py)
    }

    /// Goes on with it, as for a coroutine.
    #[pyo3(signature = (value, /))]
    fn send(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        if !value.is_none() {
            return Err(PyTypeError::new_err("nothing but None can be sent"));
        }
        self.step(py)
    }

    /// Gives it up, and raises the exception, as for a coroutine.
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

    /// Gives it up. What has begun goes on, and keeps its buffer until it is over.
    fn close(&self) {
        self.abandon();
    }

    fn __repr__(&self) -> &'static str {
        match &*lock(&self.state) {
            State::Pending(_, None) => "<uringlet.Request, not awaited>",
            State::Pending(_, Some(_)) | State::Busy => "<uringlet.Request, in flight>",
            State::Over => "<uringlet.Request, over>",
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Ok(state) = self.state.try_lock()
            && let State::Pending(job, place) = &*state
        {
            if let Some(place) = place {
                visit.call(place.reader())?;
            }
            if let Work::Done(value) = &job.work {
                visit.call(value)?;
            }
        }
        Ok(())
    }

    fn __clear__(&self) {
        self.abandon();
    }
}
