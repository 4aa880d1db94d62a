//! Which engine executes, and why.

use std::fmt;

use crate::config::EngineKind;
use crate::probe::Refusal;

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
