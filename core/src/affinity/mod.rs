//! Placement: the CPUs on which requests are handed over, executed and completed.
//!
//! The design was published for the Linux block layer in 2008. It has three independent placements:
//! the application's, `queue_affinity`, and `completion_affinity`. `rq_affinity` sends completions
//! back to the CPUs that submitted the requests.

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
