//! Commands that refuse what they were asked for.

use std::fmt::{Display, Formatter};

/// A command does not do what it was asked for: in vain, or to spare the user's data.
#[derive(Debug)]
struct Refusal(String);

impl Display for Refusal {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// The error of a command that refuses what it was asked for. The exit status says so.
pub fn refusal(reason: impl Display) -> anyhow::Error {
    Refusal(reason.to_string()).into()
}

/// Made by [`refusal`].
pub fn is_refusal(error: &anyhow::Error) -> bool {
    error.is::<Refusal>()
}
