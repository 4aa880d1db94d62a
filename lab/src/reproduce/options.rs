//! The options that every experiment has.

use crate::machine::{Machine, Storage};
use crate::report::Outputs;
use crate::sandbox::Sandbox;
use crate::session;
use crate::size;
use clap::Args;

/// The thoroughness, the sandbox, and the outputs.
#[derive(Args)]
pub struct Options {
    /// One short round: a look, not a measurement
    #[arg(long)]
    pub quick: bool,

    /// Rounds, over which the median is taken [default: 3; with --quick 1]
    #[arg(long, value_parser = size::whole::<u32>(1..=1000),
          allow_hyphen_values = true)]
    rounds: Option<u32>,

    #[command(flatten)]
    pub outputs: Outputs,

    #[command(flatten)]
    pub sandbox: Sandbox,
}

impl Options {
    /// The given number, or the default.
    pub fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 1 } else { 3 })
    }

    /// Notices that a reader should know before trusting a figure; `own` is about the measured
    /// files.
    pub fn notices(&self, machine: &Machine, storage: &Storage, own: &[String]) -> Vec<String> {
        let mut notices = session::notices(machine, storage, own);
        notices.extend(self.sandbox.notice());
        if self.rounds() == 1 {
            notices.push("one round: a look, not a measurement (without --quick: three)".into());
        }
        notices
    }
}
