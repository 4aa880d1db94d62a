//! The path of the library under test.

#[path = "../../../libaio/tests/support/mod.rs"]
mod support;
pub use support::library as path;
#[allow(unused_imports, reason = "not every test file skips")]
pub use support::skipped;
