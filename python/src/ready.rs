//! How threads of the engine notify an event loop: a list of what has ended, and an eventfd(2).

use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use pyo3::prelude::*;
use uringlet::front::Eventfd;

use crate::error;

/// Locks a mutex under which no Python runs. Poisoning is ignored, because no change under such a
/// lock panics half-way.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The part of a loop's state that threads of the engine use.
pub(crate) struct Ready {
    counter: Eventfd,
    ended: Mutex<Vec<u64>>,
}

/// The loop on which an operation is awaited. It is set when the operation is first awaited.
pub(crate) type Home = Arc<OnceLock<Arc<Ready>>>;

impl Ready {
    pub(crate) fn new() -> PyResult<Arc<Self>> {
        let counter = Eventfd::new().map_err(|error| error::from_io(&error))?;
        Ok(Arc::new(Self { counter, ended: Mutex::default() }))
    }

    /// Has the loop call its reader.
    pub(crate) fn call(&self) {
        self.counter.count_up();
    }

    /// The descriptor that is readable after an operation has ended, until the next
    /// [`take`](Self::take).
    pub(crate) fn number(&self) -> i32 {
        self.counter.as_raw_fd()
    }

    /// Returns the tickets of the operations that have ended since the last call.
    pub(crate) fn take(&self) -> Vec<u64> {
        // The eventfd is reset first, so that an operation that is noted later counts again.
        self.counter.take();
        std::mem::take(&mut *lock(&self.ended))
    }

    /// Notes that the operation with this ticket has ended.
    pub(crate) fn note(&self, ticket: u64) {
        let mut ended = lock(&self.ended);
        let is_first = ended.is_empty();
        ended.push(ticket);
        drop(ended);
        if is_first {
            self.counter.count_up();
        }
    }
}
