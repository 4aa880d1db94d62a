//! A ring that several processes use, because it was made before a fork(2).

pub(crate) mod journal;
pub(crate) mod page;
#[cfg(not(loom))]
pub(crate) mod process;
