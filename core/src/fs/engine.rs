//! What executes the requests: an instance, or, in tests, something that Miri can execute.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

#[cfg(test)]
use super::fake::Fake;
use crate::board::Sink;
use crate::config::{Builder, ConfigError};
use crate::front::WaitCondition;
use crate::instance::{Choice, ChosenLane, Entry, Instance, Submitted, Waited};

/// What executes the requests. A handle.
#[derive(Clone, Debug)]
pub(super) enum FsEngine {
    Instance(Arc<Instance>),
    #[cfg(test)]
    Fake(Arc<Fake>),
}

/// Calls a method of whatever it is.
macro_rules! call {
    ($engine:expr, $name:ident($($argument:expr),*)) => {
        match $engine {
            FsEngine::Instance(engine) => engine.$name($($argument),*),
            #[cfg(test)]
            FsEngine::Fake(engine) => engine.$name($($argument),*),
        }
    };
}

impl FsEngine {
    pub(super) fn new(builder: &Builder, sink: Box<dyn Sink>) -> Result<Self, ConfigError> {
        Instance::with_sink(builder, sink).map(Self::Instance)
    }

    /// # Safety
    /// As [`Instance::submit`].
    pub(super) unsafe fn submit(&self, entries: &[Entry]) -> Submitted {
        // SAFETY: the caller's contract.
        unsafe { call!(self, submit(entries)) }
    }

    pub(super) fn cancel(&self, user_data: u64) -> Result<(), i32> {
        call!(self, cancel(user_data))
    }

    pub(super) fn wait_for(&self, what: &WaitCondition<'_>, time: Option<Duration>) -> Waited {
        call!(self, wait_for(what, time))
    }

    pub(super) fn close(&self) {
        call!(self, close());
    }

    pub(super) fn choice(&self) -> Choice {
        call!(self, choice())
    }

    pub(super) fn explain(&self, fd: i32, write: bool) -> Result<ChosenLane, i32> {
        call!(self, explain(fd, write))
    }
}
