//! The environment variables of a drop-in: read once, when the drop-in is loaded. Programs may
//! clear or overwrite their environment before they make a context.
#![allow(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use super::seen::{self, Seen};
use crate::environment::variable;
use crate::stats::{self, Region, STATS};
use crate::{Builder, Context, EngineKind, process, sys};

/// `URINGLET_ENGINE`: the engine that executes the requests (default `auto`).
const ENGINE: &str = "URINGLET_ENGINE";
/// `URINGLET_SPARE_CPUS`: as [`Builder::spare_cpus`].
const SPARE_CPUS: &str = "URINGLET_SPARE_CPUS";
/// `URINGLET_NULL_MEANT`: `uringlet run --engine null` was asked for, so no warning is printed.
const NULL_MEANT: &str = "URINGLET_NULL_MEANT";
/// `URINGLET_SEEN`: the path of the memory in which events of the program are counted for `uringlet
/// run`, see [`super::seen`].
const SEEN: &str = "URINGLET_SEEN";
/// `URINGLET_TRAP`: `never` (the default), `auto`, `signals` or `always`, see [`Trap`].
const TRAP: &str = "URINGLET_TRAP";
/// `URINGLET_IO_URING`: `always` (the default), or `if-refused`: the drop-in makes rings only where
/// the kernel refuses to make them.
const IO_URING: &str = "URINGLET_IO_URING";

/// The engine is `null`, the command line did not ask for it, and no context was made yet.
static UNWARNED: AtomicBool = AtomicBool::new(false);

const WARNING: &str = "uringlet: warning: no data is read or written, because URINGLET_ENGINE is \
                       null (unset URINGLET_ENGINE)\n";

/// Which calls by system call instructions in the program's own code come to the drop-in?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// Calls by instructions are never caught.
    Never,
    /// Calls in code that contains calls of io_uring are caught. The code may be patched, so that
    /// the calls come without a signal.
    Auto,
    /// As `Auto`, but no code is patched.
    Signals,
    /// As `Signals`; all calls in the program's own code are caught as well.
    Always,
}

/// The values of the variables.
struct Told {
    /// `None`: the value is invalid.
    builder: Option<Builder>,
    stats: Option<OsString>,
    /// The memory of `uringlet run`. It is mapped when a drop-in is loaded. Later, the program may
    /// become another user, change its root folder, or close every descriptor.
    seen: Option<Region>,
    /// Do `URINGLET_STATS` and `URINGLET_SEEN` name the same memory? Then contexts count in `seen`
    /// if that path cannot be opened later.
    counts_there: bool,
    /// `None`: the value is invalid.
    trap: Option<Trap>,
    /// Rings are made only where the kernel refuses them. `None`: the value is invalid.
    if_refused: Option<bool>,
}

/// Reads the environment, for [`at_load!`](crate::at_load).
pub extern "C" fn read() {
    told();
    seen(Seen::Loaded);
}

/// Tells `uringlet run` what has happened, if it has started the program.
fn seen(what: Seen) {
    if let Some(region) = &told().seen {
        seen::note(region, what);
    }
}

/// Tells `uringlet run` of a set-up (of a context or a ring) that was made, or refused for this
/// errno. The sign of the errno does not matter.
pub fn set_up<T>(result: Result<T, i32>) -> Result<T, i32> {
    seen(match &result {
        Ok(_) => Seen::Made,
        Err(errno) => Seen::Refused(u8::try_from(errno.unsigned_abs()).unwrap_or(u8::MAX)),
    });
    result
}

/// Tells `uringlet run` that the process has a filter of seccomp(2), by which calls come to the
/// drop-in.
pub fn filtered() {
    seen(Seen::Filtered);
}

/// Tells `uringlet run` of a set-up that was left to the kernel, and why.
pub fn left_to_kernel(why: Seen) {
    seen(why);
}

/// The values of the variables, read now if they were not read before. The child of a fork has the
/// values of its parent.
fn told() -> &'static Told {
    // Not a lock: another thread could hold a lock during a fork. The child does not have that
    // thread, and would wait without end.
    static TOLD: AtomicPtr<Told> = AtomicPtr::new(std::ptr::null_mut());
    let mut known = TOLD.load(Ordering::Acquire);
    if known.is_null() {
        let (stats, seen) = (variable(STATS), variable(SEEN));
        known = Box::into_raw(Box::new(Told {
            builder: told_builder(),
            counts_there: stats.is_some() && stats == seen,
            stats,
            // A failure to report must not become an error of the program.
            seen: seen.and_then(|path| Region::join(path.as_ref()).ok()),
            trap: match variable(TRAP).as_deref().map(OsStr::to_str) {
                None | Some(Some("never")) => Some(Trap::Never),
                Some(Some("auto")) => Some(Trap::Auto),
                Some(Some("signals")) => Some(Trap::Signals),
                Some(Some("always")) => Some(Trap::Always),
                Some(_) => None,
            },
            if_refused: match variable(IO_URING).as_deref().map(OsStr::to_str) {
                None | Some(Some("always")) => Some(false),
                Some(Some("if-refused")) => Some(true),
                Some(_) => None,
            },
        }));
        TOLD.store(known, Ordering::Release);
    }
    // SAFETY: leaked above, now or earlier.
    unsafe { &*known }
}

fn told_builder() -> Option<Builder> {
    let engine = match variable(ENGINE).as_deref().map(OsStr::to_str) {
        Some(name) => name?.parse().ok()?,
        None => EngineKind::default(),
    };
    if engine == EngineKind::Null && variable(NULL_MEANT).is_none() {
        UNWARNED.store(true, Ordering::Relaxed);
    }
    let placement = crate::affinity::Placement::from_environment().ok()?;
    let builder = Context::builder().engine(engine).placement(placement);
    Some(match variable(SPARE_CPUS).as_deref().map(OsStr::to_str) {
        Some(cpus) => builder.spare_cpus(cpus?.parse().ok()?),
        None => builder,
    })
}

/// The value of `URINGLET_TRAP`; never, if it is invalid.
pub fn trap() -> Trap {
    told().trap.unwrap_or(Trap::Never)
}

/// Are rings made only where the kernel refuses them (`URINGLET_IO_URING`)?
pub fn if_refused() -> bool {
    told().if_refused.unwrap_or(false)
}

/// The builder for contexts, as the variables say. If contexts will move no data, the first call
/// prints a warning.
///
/// # Errors
/// `-EINVAL` if the value of a variable is invalid: with a default, the program could run on
/// another engine than the one asked for. Also if the calling thread has a descriptor table of its
/// own (unshare(2)).
pub fn builder() -> Result<Builder, i32> {
    if process::has_parted() {
        return Err(-libc::EINVAL);
    }
    static IS_OBSERVED: AtomicBool = AtomicBool::new(false);
    let told = told();
    if told.stats.is_some() && !IS_OBSERVED.load(Ordering::Acquire) {
        // Statistics that cannot be written do not stop a program.
        let joined = told.seen.as_ref().filter(|_| told.counts_there);
        let _ = stats::observe_as(told.stats.as_deref(), joined);
        IS_OBSERVED.store(true, Ordering::Release);
    }
    let is_usable = told.trap.is_some() && told.if_refused.is_some();
    let builder = told.builder.clone().filter(|_| is_usable).ok_or(-libc::EINVAL)?;
    if UNWARNED.swap(false, Ordering::Relaxed) {
        warn();
    }
    Ok(builder)
}

/// Writes [`WARNING`] to standard error, without a lock. If standard error is a pipe without a
/// reader, no SIGPIPE is raised.
fn warn() {
    let line = libc::iovec { iov_base: WARNING.as_ptr() as *mut _, iov_len: WARNING.len() };
    // SAFETY: one vector, whose bytes are constant, and are only read.
    sys::without_write_signals(|| unsafe { sys::pwritev(2, &line, 1, u64::MAX, 0) });
}
