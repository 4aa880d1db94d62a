//! Placement: on which CPUs requests are handed over and executed, and on which they complete.
//!
//! Published for the Linux block layer in 2008: three placements that are chosen apart from each
//! other (the application's, `queue_affinity`, `completion_affinity`), and `rq_affinity`, which
//! sends completions back to where they were submitted.

mod completers;
pub(crate) mod completion;
mod cpus;
mod device;
pub(crate) mod placed;
mod placement;
mod topology;

/// The list of completions, for the experiment that measures what adding to it costs.
#[doc(hidden)]
pub mod list {
    pub use super::completion::{Chain, CompletionList, Node, Owner};
}

pub use cpus::{BadList, CpuSet};
pub use device::{Device, Queue};
pub use placement::{
    Affinity, COMPLETION_VARIABLE, EffectivePlacement, Placement, QUEUE_VARIABLE, RQ_VARIABLE,
};
pub use topology::{CellKind, Topology};

pub(crate) use cpus::CPUS_MAX;

/// The CPUs that the calling thread may run on (sched_getaffinity(2)); none if the kernel does not
/// say.
pub fn thread_affinity() -> Option<CpuSet> {
    crate::sys::affinity(0).ok().map(|words| CpuSet::from_words(&words))
}

#[cfg(test)]
mod placement_tests;
#[cfg(test)]
mod recorded;
#[cfg(test)]
mod topology_tests;
