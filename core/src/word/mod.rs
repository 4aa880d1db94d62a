//! Small protocols between threads, one file each: one word or two, its states, and loom models
//! that prove it. They do not know lanes, and report nothing to the router.

pub(crate) mod admission;
pub(crate) mod baton;
pub(crate) mod handover;
pub(crate) mod mailbox;
pub(crate) mod readers;
pub(crate) mod readiness;
pub(crate) mod reaper;
pub(crate) mod seats;
