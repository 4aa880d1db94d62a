//! What the environment says to a drop-in: read once, when it makes its first context.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::{Builder, Context, EngineKind, sys};

/// `URINGLET_ENGINE`: which engine executes the requests (default `auto`).
const ENGINE: &str = "URINGLET_ENGINE";
/// `URINGLET_NULL_MEANT`: `uringlet run --engine null` was asked for, so nobody has to be warned.
const NULL_MEANT: &str = "URINGLET_NULL_MEANT";
/// `URINGLET_STATS`: where `uringlet run --stats` has the program count, or [`STATS_OWN`].
pub(crate) const STATS: &str = "URINGLET_STATS";
/// Each process counts into memory of its own, for `uringlet top`.
pub(crate) const STATS_OWN: &str = "auto";

/// The engine is `null`, nobody on the command line asked for it, and no context was made yet.
static UNWARNED: AtomicBool = AtomicBool::new(false);

const WARNING: &str = "uringlet: warning: no data is read or written, because URINGLET_ENGINE is \
                       null (unset URINGLET_ENGINE)\n";

/// How contexts are to be made. Where they will move no data, the first call warns of it.
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
    let builder = unsafe { &*known }.clone().ok_or(-libc::EINVAL)?;
    if UNWARNED.swap(false, Ordering::Relaxed) {
        warn();
    }
    Ok(builder)
}

/// To standard error as it is, which takes no lock. Whoever reads it may be gone: no signal then.
fn warn() {
    let line = libc::iovec { iov_base: WARNING.as_ptr() as *mut _, iov_len: WARNING.len() };
    // SAFETY: one vector, whose bytes are constant, and are only read.
    sys::without_write_signals(|| unsafe { sys::pwritev(2, &line, 1, u64::MAX, 0) });
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
    if engine == EngineKind::Null && std::env::var_os(NULL_MEANT).is_none() {
        UNWARNED.store(true, Ordering::Relaxed);
    }
    let placement = crate::affinity::Placement::from_environment().ok()?;
    Some(Context::builder().engine(engine).placement(placement))
}
