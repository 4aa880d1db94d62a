//! Which engine executes, and why.

use std::fmt;

use super::Instance;
use crate::config::EngineKind;
use crate::descriptor;
use crate::probe::Refusal;
use crate::request::Route;
use crate::router;

/// Which engine executes, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What the context was made with.
    pub engine: EngineKind,
    /// The interface of the kernel, or of the C library, that requests are handed to. `auto`
    /// chooses it when the first request comes that it is good for; `None` before that, and if
    /// every one was refused.
    pub kernel: Option<EngineKind>,
    /// What `auto` has tried in vain.
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

/// The lane of a file's usual reads, or writes, and why it is that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChosenLane {
    /// `inline`, `ordered`, `cold`, `pool`, `stream`, `worker` or `kernel`: ARCHITECTURE.md says
    /// what each of them does.
    pub name: &'static str,
    /// Why.
    pub reason: &'static str,
}

impl fmt::Display for ChosenLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lane: {}", self.name, self.reason)
    }
}

impl Instance {
    /// What executes, and what was tried and refused.
    pub fn choice(&self) -> Choice {
        let kernel = self.lanes.kernel.kind();
        Choice { engine: self.engine, kernel, refusals: self.lanes.kernel.refusals() }
    }

    /// Where a read (or write) of this file would go now. `Err`: `-EBADF`.
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
