//! Many requests that are awaited together, with one wake-up of the loop.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Wake, Waker};

use pyo3::exceptions::{PyStopIteration, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use crate::buffer;
use crate::loops::{self, Bell, Place, lock};
use crate::request::{Job, Request, awaited, thrown};

/// Rings when the last of those that are polled with it is to be polled again.
struct Round {
    left: AtomicUsize,
    bell: Arc<Bell>,
}

impl Round {
    /// So many fewer are awaited. True: none is left.
    fn less(&self, by: usize) -> bool {
        self.left.fetch_sub(by, Ordering::AcqRel) == by
    }
}

impl Wake for Round {
    fn wake(self: Arc<Self>) {
        if self.less(1) {
            self.bell.ring();
        }
    }
}

enum Part {
    Waits(Job),
    Ended(PyResult<Py<PyAny>>),
}

enum State {
    Pending(Vec<Part>, Option<Place>),
    Busy,
    Over,
}

/// What ``gather`` gives: to be awaited once.
#[pyclass(frozen, weakref, module = "uringlet")]
pub(crate) struct Gather {
    state: Mutex<State>,
    return_exceptions: bool,
}

impl Gather {
    fn set(&self, state: State) {
        *lock(&self.state) = state;
    }

    fn abandon(&self) {
        let state = std::mem::replace(&mut *lock(&self.state), State::Over);
        drop(state);
    }

    fn step(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let state = std::mem::replace(&mut *lock(&self.state), State::Busy);
        let mut parts = match state {
            State::Pending(parts, place) => {
                drop(place);
                parts
            }
            other => {
                self.set(other);
                return Err(awaited());
            }
        };
        let waiting = parts.iter().filter(|part| matches!(part, Part::Waits(_))).count();
        let bell = Bell::new();
        // One more, which holds the ring back until all are polled.
        let left = AtomicUsize::new(waiting + 1);
        let round = Arc::new(Round { left, bell: Arc::clone(&bell) });
        let waker = Waker::from(Arc::clone(&round));
        let mut ended = 0;
        for part in &mut parts {
            if let Part::Waits(job) = part
                && let Poll::Ready(result) = job.work.poll(py, &waker)
            {
                *part = Part::Ended(result);
                ended += 1;
            }
        }
        if ended == waiting {
            self.set(State::Over);
            return Err(match self.values(py, parts) {
                Ok(values) => PyStopIteration::new_err((values,)),
                Err(exception) => exception,
            });
        }
        if round.less(ended + 1) {
            // Those that were put off so that others come to run are to be polled again.
            bell.ring();
        }
        match loops::wait_for(py, &bell) {
            Ok((place, given)) => {
                for part in &parts {
                    if let Part::Waits(job) = part {
                        job.wait_at(&place);
                    }
                }
                self.set(State::Pending(parts, Some(place)));
                Ok(given.unbind())
            }
            Err(exception) => {
                self.set(State::Over);
                Err(exception)
            }
        }
    }

    fn values(&self, py: Python<'_>, parts: Vec<Part>) -> PyResult<Py<PyAny>> {
        let mut values = Vec::with_capacity(parts.len());
        for part in parts {
            match part {
                Part::Ended(Ok(value)) => values.push(value),
                Part::Ended(Err(exception)) if self.return_exceptions => {
                    values.push(exception.into_value(py).into_any());
                }
                Part::Ended(Err(exception)) => return Err(exception),
                Part::Waits(_) => unreachable!("all have ended"),
            }
        }
        Ok(PyList::new(py, values)?.into_any().unbind())
    }
}

/// Begins requests of this module together, and wakes the task once, when all have ended.
///
/// Awaiting it gives their values, in order. If some fail, the first of them in order raises, after
/// all have ended; with ``return_exceptions`` exceptions take the place of values.
///
/// ``TypeError``: one of them is not a request of this module. ``RuntimeError``: one was awaited
/// already, or is given twice. The others are given up then.
#[pyfunction]
#[pyo3(signature = (*requests, return_exceptions = false))]
pub(crate) fn gather(
    py: Python<'_>,
    requests: &Bound<'_, PyTuple>,
    return_exceptions: bool,
) -> PyResult<Gather> {
    buffer::sweep(py);
    let mut parts = Vec::with_capacity(requests.len());
    for request in requests.iter_borrowed() {
        let request = request.cast::<Request>().map_err(|_| {
            PyTypeError::new_err("gather takes requests of this module; others: asyncio.gather")
        })?;
        parts.push(Part::Waits(request.get().take()?));
    }
    let state = Mutex::new(State::Pending(parts, None));
    Ok(Gather { state, return_exceptions })
}

#[pymethods]
impl Gather {
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

    /// Gives the requests up, and raises the exception, as for a coroutine.
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

    /// Gives the requests up. Those that have begun go on, and keep their buffers until then.
    fn close(&self) {
        self.abandon();
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Ok(state) = self.state.try_lock()
            && let State::Pending(_, Some(place)) = &*state
        {
            visit.call(place.reader())?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        self.abandon();
    }
}
