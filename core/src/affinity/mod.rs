//! Placement: on which CPUs requests are handed over and executed, and on which they complete.
//!
//! Published for the Linux block layer in 2008: three placements that are chosen apart from each
//! other (the application's, `queue_affinity`, `completion_affinity`), and `rq_affinity`, which
//! sends completions back to where they were submitted.

mod device;
mod placement;
mod topology;

pub use crate::cpus::{BadList, CpuSet};
pub use device::{Device, Queue};
pub use placement::{
    Affinity, COMPLETION_VARIABLE, EffectivePlacement, Placement, QUEUE_VARIABLE, RQ_VARIABLE,
};
pub use topology::{CellKind, Topology, thread_affinity};

#[cfg(test)]
mod placement_tests;
#[cfg(test)]
mod recorded;
#[cfg(test)]
mod topology_tests;
