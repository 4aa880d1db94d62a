//! Placement: on which CPUs requests are handed over and executed, and on which they complete.
//!
//! Published for the Linux block layer in 2008: three placements that are chosen apart from each other (the
//! application's, `queue_affinity`, `completion_affinity`), and `rq_affinity`, which sends completions
//! back to where they were submitted.

#[cfg(not(loom))]
mod compare;
#[cfg(not(loom))]
mod completers;
pub(crate) mod completion;
#[cfg(not(loom))]
mod cpus;
#[cfg(not(loom))]
mod device;
#[cfg(not(loom))]
pub(crate) mod placed;
#[cfg(not(loom))]
mod placement;
#[cfg(not(loom))]
mod topology;

#[cfg(not(loom))]
pub use compare::{ListCost, compare_lists};
#[cfg(not(loom))]
pub use cpus::{BadList, CpuSet};
#[cfg(not(loom))]
pub use device::{Device, Queue};
#[cfg(not(loom))]
pub use placement::{
    Affinity, COMPLETION_VARIABLE, Choice, Placement, QUEUE_VARIABLE, RQ_VARIABLE,
};
#[cfg(not(loom))]
pub use topology::{CellKind, Topology};

#[cfg(not(loom))]
pub(crate) use cpus::CPUS_MAX;

/// The CPUs that the calling thread may run on (sched_getaffinity(2)); none if the kernel does not say.
#[cfg(not(loom))]
pub fn thread_affinity() -> Option<CpuSet> {
    crate::sys::affinity(0).ok().map(|words| CpuSet::from_words(&words))
}

#[cfg(all(test, not(loom)))]
mod placement_tests;
#[cfg(all(test, not(loom)))]
mod recorded;
#[cfg(all(test, not(loom)))]
mod topology_tests;
