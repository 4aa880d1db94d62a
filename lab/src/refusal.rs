//! Errors of commands that refuse a request.

use std::fmt::{Display, Formatter};

/// A command has refused a request, because it is impossible, or to spare the user's data.
#[derive(Debug)]
struct Refusal(String);

impl Display for Refusal {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// Makes the error of a command that refuses a request. Such an error has its own exit status.
pub fn refusal(reason: impl Display) -> anyhow::Error {
    Refusal(reason.to_string()).into()
}

/// Was the error made by [`refusal`]?
pub fn is_refusal(error: &anyhow::Error) -> bool {
    error.is::<Refusal>()
}
