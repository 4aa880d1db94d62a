//! The engine that executes the requests of a context, the lane of a file's requests, and the
//! reasons.

use std::fmt;

use super::Instance;
use crate::config::EngineKind;
use crate::descriptor;
use crate::probe::Refusal;
use crate::request::Route;
use crate::router;

/// The engine that executes the requests of a context, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The engine that the context was made with.
    pub engine: EngineKind,
    /// The interface of the kernel or the C library that requests are handed to. `auto` chooses it
    /// at the first request that can use it. `None` before that, if every interface was refused,
    /// and for the engines that use none.
    pub kernel: Option<EngineKind>,
    /// The engines that `auto` has tried, and that were refused.
    pub refusals: Vec<(EngineKind, Refusal)>,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.engine)?;
        match self.kernel {
            Some(kernel) if kernel == self.engine => {}
            Some(kernel) => write!(f, ", direct I/O through {kernel}")?,
            None if !self.refusals.is_empty() => write!(f, ", everything on threads")?,
            _ => {}
        }
        for (engine, refusal) in &self.refusals {
            write!(f, "; {engine} is refused ({refusal})")?;
        }
        Ok(())
    }
}

/// The lane of a file's usual reads or writes, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChosenLane {
    /// `inline`, `ordered`, `cold`, `pool`, `stream`, `worker` or `kernel`:
    /// `core/src/lane/README.md` says what each lane does. With the engine `null`, the name is
    /// `null`.
    pub name: &'static str,
    /// The reason for the lane.
    pub reason: &'static str,
}

impl fmt::Display for ChosenLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lane: {}", self.name, self.reason)
    }
}

impl Instance {
    /// The engine that executes this context's requests, and the engines that were refused.
    pub fn choice(&self) -> Choice {
        let kernel = self.lanes.kernel.kind();
        Choice { engine: self.engine, kernel, refusals: self.lanes.kernel.refusals() }
    }

    /// The lane that a read (or write) of this file would take now. `Err`: `-EBADF`.
    pub(crate) fn explain(&self, fd: i32, write: bool) -> Result<ChosenLane, i32> {
        let facts = descriptor::fresh(fd)?.facts();
        let (route, reason) = match self.engine {
            EngineKind::Null => (Route::Null, "the engine ends every request undone"),
            _ => router::explain(facts, write, self.kernel_scope()),
        };
        let name = match route {
            Route::Inline => "inline",
            Route::Ordered => "ordered",
            Route::Copy => "copy",
            Route::Cold => "cold",
            Route::Pool => "pool",
            Route::Sync => "sync",
            Route::Worker => "worker",
            Route::Stream => "stream",
            Route::Kernel => "kernel",
            Route::Null => "null",
        };
        Ok(ChosenLane { name, reason })
    }
}
