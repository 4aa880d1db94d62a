//! The laboratory: published experiments, and the instruments that measure them.
//!
//! The instruments (`bench`, `report`, `session`, `scratch`, `machine`, `size`, `sandbox`) also
//! serve the commands of `uringlet`. The crate is not published, so its interface is not stable.

// A field of a result is named after what it counts; a comment is only added if the name is not
// enough.
#![allow(missing_docs)]
// `println!` and `eprintln!` panic if the reader of the output has gone. `session::say` and
// `session::tell` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod bench;
pub mod machine;
pub mod named;
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
