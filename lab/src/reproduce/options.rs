//! The options that every experiment has.

use crate::machine::{Machine, Storage};
use crate::report::Outputs;
use crate::sandbox::Sandbox;
use crate::session;
use clap::Args;

/// How thoroughly, in which sandbox, and where the result goes.
#[derive(Args)]
pub struct Options {
    /// One short round: a look, not a measurement
    #[arg(long)]
    pub quick: bool,

    /// Rounds, over which the median is taken [default: 3; with --quick 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000),
          allow_hyphen_values = true)]
    rounds: Option<u32>,

    #[command(flatten)]
    pub outputs: Outputs,

    #[command(flatten)]
    pub sandbox: Sandbox,
}

impl Options {
    /// As given, or by default.
    pub fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 1 } else { 3 })
    }

    /// What a reader should know before believing a figure; `own` is of the files that are worked
    /// on.
    pub fn notices(&self, machine: &Machine, storage: &Storage, own: &[String]) -> Vec<String> {
        let mut notices = session::notices(machine, storage, own);
        notices.extend(self.sandbox.notice());
        if self.rounds() == 1 {
            notices.push("one round: a look, not a measurement (without --quick: three)".into());
        }
        notices
    }
}
