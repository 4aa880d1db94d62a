//! The two queues of a context. README.md in this folder gives their states and arguments.

mod completion;
mod gate;
mod ring;
mod submission;

pub(crate) use completion::{Completions, Posted, Sleep, SleepEnd, Sleeper};
pub use ring::IoEvent;
pub(crate) use ring::Ring;
pub(crate) use submission::IndexRing;
