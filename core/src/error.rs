//! The error for a value with which no context can be made.

use std::{fmt, io};

/// A value with which no context can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub(crate) field: &'static str,
    pub(crate) value: String,
    pub(crate) expected: String,
    pub(crate) errno: i32,
}

impl ConfigError {
    /// The errno that the C interfaces answer with.
    pub fn errno(&self) -> i32 {
        self.errno
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = if self.value.is_empty() { "''" } else { &self.value };
        write!(f, "{} is {value}, expected {}", self.field, self.expected)
    }
}

impl std::error::Error for ConfigError {}

impl From<ConfigError> for io::Error {
    /// An error of the kind of [`ConfigError::errno`], with the [`ConfigError`] inside.
    fn from(error: ConfigError) -> Self {
        Self::new(Self::from_raw_os_error(error.errno).kind(), error)
    }
}
