//! Where the library under test lies.

#[path = "../../../libaio/tests/support/mod.rs"]
mod support;
pub use support::library as path;
