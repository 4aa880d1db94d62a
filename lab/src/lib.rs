//! The laboratory: published experiments, and the instruments that measure them.
//!
//! The instruments (`bench`, `report`, `session`, `scratch`, `machine`, `size`, `sandbox`) also
//! serve the commands of `uringlet`. The crate is not published, so it promises no interface to
//! anybody.

// A field of a result is named after what it counts; a comment stands where the name does not say
// it.
#![allow(missing_docs)]
// They panic where nobody reads any more: `session::say` and `session::tell` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod bench;
pub mod machine;
pub mod refusal;
pub mod report;
pub mod reproduce;
pub mod sandbox;
pub mod scratch;
pub mod session;
pub mod size;
#[cfg(test)]
#[path = "../../cli/tests/skip/mod.rs"]
mod skip;
pub mod verdict;
