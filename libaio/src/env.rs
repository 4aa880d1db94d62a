//! What the environment says: read once, at the first io_setup.

use std::path::Path;
use std::sync::OnceLock;

use uringlet::{Builder, Context, EngineKind};

/// `URINGLET_ENGINE`: which engine executes the requests (default `workers`).
const ENGINE: &str = "URINGLET_ENGINE";
/// `URINGLET_STATS`: a file made by `uringlet run --stats`, to count into.
const STATS: &str = "URINGLET_STATS";

/// How contexts are to be made. A value that cannot be used is `-EINVAL`: the program was started
/// to run on something that it would not run on.
pub(crate) fn builder() -> Result<Builder, i32> {
    static BUILDER: OnceLock<Option<Builder>> = OnceLock::new();
    let builder = BUILDER.get_or_init(|| {
        let engine = match std::env::var(ENGINE) {
            Ok(name) => name.parse().ok()?,
            Err(_) => EngineKind::default(),
        };
        if let Some(path) = std::env::var_os(STATS) {
            // Statistics that cannot be written are no reason to stop a program.
            let _ = uringlet::stats::publish_to(Path::new(&path));
        }
        Some(Context::builder().engine(engine).strict(true))
    });
    builder.clone().ok_or(-libc::EINVAL)
}
