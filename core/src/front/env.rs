//! What the environment says to a drop-in: read once, when it makes its first context.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicPtr, Ordering};

use crate::{Builder, Context, EngineKind};

/// `URINGLET_ENGINE`: which engine executes the requests (default `auto`).
const ENGINE: &str = "URINGLET_ENGINE";
/// `URINGLET_STATS`: where `uringlet run --stats` has the program count, or [`STATS_OWN`].
pub(crate) const STATS: &str = "URINGLET_STATS";
/// Each process counts into memory of its own, for `uringlet top`.
pub(crate) const STATS_OWN: &str = "auto";

/// How contexts are to be made.
///
/// # Errors
/// `-EINVAL` for a value that cannot be used: the program was started to run on something that it
/// would not run on.
pub fn builder() -> Result<Builder, i32> {
    // No lock: a thread that the child of a fork does not have may hold it for ever.
    static BUILDER: AtomicPtr<Option<Builder>> = AtomicPtr::new(std::ptr::null_mut());
    let mut known = BUILDER.load(Ordering::Acquire);
    if known.is_null() {
        known = Box::into_raw(Box::new(read()));
        BUILDER.store(known, Ordering::Release);
    }
    // SAFETY: leaked above, now or earlier.
    unsafe { &*known }.clone().ok_or(-libc::EINVAL)
}

fn read() -> Option<Builder> {
    let engine = match std::env::var(ENGINE) {
        Ok(name) => name.parse().ok()?,
        Err(_) => EngineKind::default(),
    };
    if std::env::var_os(STATS).is_some() {
        // Statistics that cannot be written are no reason to stop a program.
        let _ = crate::stats::observe();
    }
    let placement = crate::affinity::Placement::from_environment().ok()?;
    Some(Context::builder().engine(engine).placement(placement))
}
