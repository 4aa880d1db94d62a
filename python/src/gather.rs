//! Many requests that are awaited together, with one wake-up of the loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use crate::buffer;
use crate::loops::Place;
use crate::request::{Job, Request, Steps};

/// The waker that one poll gives to all requests. It wakes the task when each request that was not
/// ready can be polled again.
struct Round {
    left: AtomicUsize,
    task: Waker,
}

impl Round {
    /// Subtracts this number of requests from the number awaited. True: none is left.
    fn less(&self, by: usize) -> bool {
        self.left.fetch_sub(by, Ordering::AcqRel) == by
    }
}

impl Wake for Round {
    fn wake(self: Arc<Self>) {
        if self.less(1) {
            self.task.wake_by_ref();
        }
    }
}

enum Part {
    Waits(Job),
    Ended(PyResult<Py<PyAny>>),
}

/// The requests of one [`gather`].
pub(crate) struct Together {
    parts: Vec<Part>,
    return_exceptions: bool,
}

impl Together {
    fn waiting(&self) -> impl Iterator<Item = &Job> {
        self.parts.iter().filter_map(|part| match part {
            Part::Waits(job) => Some(job),
            Part::Ended(_) => None,
        })
    }

    fn values(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let parts = std::mem::take(&mut self.parts);
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

impl Steps for Together {
    fn wait_at(&self, place: &Place) {
        self.waiting().for_each(|job| job.wait_at(place));
    }

    /// Polls all requests. Ready: the values, or the first exception.
    fn poll(&mut self, py: Python<'_>, context: &mut Context<'_>) -> Poll<PyResult<Py<PyAny>>> {
        let task = context.waker();
        let waiting = self.waiting().count();
        // This poll counts as one more request, so that the task is woken only after all were
        // polled.
        let left = AtomicUsize::new(waiting + 1);
        let round = Arc::new(Round { left, task: task.clone() });
        let waker = Waker::from(Arc::clone(&round));
        let mut ended = 0;
        for part in &mut self.parts {
            if let Part::Waits(job) = part
                && let Poll::Ready(result) = job.work.poll(py, &mut Context::from_waker(&waker))
            {
                *part = Part::Ended(result);
                ended += 1;
            }
        }
        if ended == waiting {
            return Poll::Ready(self.values(py));
        }
        if round.less(ended + 1) {
            // Each request that was not ready has woken `waker` during this poll: it has ended, or
            // has let other tasks run first. So the task has to poll again.
            task.wake_by_ref();
        }
        Poll::Pending
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.parts.iter().try_for_each(|part| match part {
            Part::Ended(Ok(value)) => visit.call(value),
            _ => Ok(()),
        })
    }
}

/// Begins requests of this module together, and wakes the task once, when all have ended.
///
/// Awaiting the result returns the values of the requests, in order. If some fail, the first of
/// them in order raises, after all have ended. With ``return_exceptions``, exceptions take the
/// place of values.
///
/// ``TypeError``: an argument is not a request of this module. ``RuntimeError``: a request was
/// awaited already, or is given twice. The other requests are dropped then.
#[pyfunction]
#[pyo3(signature = (*requests, return_exceptions = false))]
pub(crate) fn gather(
    py: Python<'_>,
    requests: &Bound<'_, PyTuple>,
    return_exceptions: bool,
) -> PyResult<Request> {
    buffer::sweep(py);
    let mut parts = Vec::with_capacity(requests.len());
    for request in requests.iter_borrowed() {
        let request = request.cast::<Request>().map_err(|_| {
            PyTypeError::new_err("gather takes requests of this module; others: asyncio.gather")
        })?;
        parts.push(Part::Waits(request.get().take()?));
    }
    Ok(Request::new("gather", Box::new(Together { parts, return_exceptions })))
}
