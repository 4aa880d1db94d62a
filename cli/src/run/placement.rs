//! The placement of the program's requests and completions: passed to the drop-in by the
//! environment.

use crate::size;
use clap::Args;
use std::process::Command;
use uringlet::affinity::{
    Affinity, COMPLETION_VARIABLE, Placement, QUEUE_VARIABLE, RQ_VARIABLE, Topology,
};

/// The settings. A variable whose option is not given keeps its value in the environment.
#[derive(Args)]
pub struct CpuOptions {
    /// CPUs that execute requests and hand them to the kernel: a list as in 0-3,8, or application,
    /// interrupt, other-cell, any
    #[arg(long, value_name = "CPUS", allow_hyphen_values = true)]
    queue_affinity: Option<Affinity>,

    /// CPUs that collect completions: as --queue-affinity
    #[arg(long, value_name = "CPUS", allow_hyphen_values = true)]
    completion_affinity: Option<Affinity>,

    /// Where completions go: 0 leaves them, 1 sends them back to the submitter's cell, 2 to its
    /// very CPU
    #[arg(long, value_name = "N", value_parser = size::whole::<u8>(0..=2),
          allow_hyphen_values = true)]
    rq_affinity: Option<u8>,

    /// Workers that execute queued requests beside the program's threads while CPUs are spare: at
    /// most N, 0 for none (default: one fewer than the CPUs)
    #[arg(long, value_name = "N", value_parser = size::whole::<usize>(0..=u64::MAX),
          allow_hyphen_values = true)]
    spare_cpus: Option<usize>,
}

/// Read by the drop-ins: the value of `--spare-cpus`.
const SPARE_VARIABLE: &str = "URINGLET_SPARE_CPUS";

impl CpuOptions {
    /// Does this machine have these CPUs?
    ///
    /// # Errors
    /// A text with the name of the option.
    pub fn check(&self) -> Result<(), String> {
        let placement = Placement {
            queue: self.queue_affinity.clone().unwrap_or_default(),
            completion: self.completion_affinity.clone().unwrap_or_default(),
            rq_affinity: self.rq_affinity.unwrap_or_default(),
        };
        if placement.is_free() {
            return Ok(());
        }
        let option = |error: String| format!("--{}", error.replacen('_', "-", 1));
        placement.check(&Topology::look()).map_err(|error| option(error.to_string()))
    }

    /// Sets the drop-in's variables.
    pub fn set(&self, command: &mut Command) {
        let cpus = [
            (QUEUE_VARIABLE, &self.queue_affinity),
            (COMPLETION_VARIABLE, &self.completion_affinity),
        ];
        for (name, value) in cpus {
            if let Some(value) = value {
                command.env(name, value.to_string());
            }
        }
        if let Some(back) = self.rq_affinity {
            command.env(RQ_VARIABLE, back.to_string());
        }
        if let Some(cpus) = self.spare_cpus {
            command.env(SPARE_VARIABLE, cpus.to_string());
        }
    }
}
