//! The two queues of a context. README.md in this folder gives their states and arguments.

mod completion;
mod gate;
mod ring;
mod sleep;
mod submission;

pub use completion::Concern;
pub(crate) use completion::{Completions, Posted, Sleeper};
pub(crate) use ring::Ring;
pub(crate) use sleep::{Sleep, SleepEnd};
pub(crate) use submission::IndexRing;
