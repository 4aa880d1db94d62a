//! Rings that several processes use: one that was made before a fork(2).

pub(crate) mod journal;
pub(crate) mod page;
#[cfg(not(loom))]
pub(crate) mod process;
