//! Asynchronous file I/O for Linux in user space.
//!
//! [`fs`] has files to be awaited, on any executor or none, with the names of `tokio::fs`. A read
//! from the page cache is one system call on the polling thread. Everything else goes to the
//! engine's threads or to the kernel, even where io_uring is refused.
//!
//! ```
//! use uringlet::fs::{self, BufResult, File};
//!
//! # async fn example() -> std::io::Result<()> {
//! let file = File::open("/proc/self/exe").await?;
//! let BufResult(result, buffer) = file.read_at(vec![0; 4], 0).await;
//! assert_eq!(&buffer[..result?], b"\x7fELF");
//! assert!(!fs::read_to_string("/proc/self/comm").await?.is_empty());
//! # Ok(())
//! # }
//! # pollster::block_on(example()).unwrap();
//! ```
//!
//! A [`Context`] takes requests in io_uring's layout, for programs that keep their own buffers and
//! wait for many completions at once. Submitting never blocks. Every accepted request completes
//! exactly once. A request that will not sleep costs one system call and wakes no thread.
//!
//! ```
//! use std::os::fd::AsRawFd;
//! use uringlet::{Context, Sqe};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let file = std::fs::File::open("/proc/self/exe")?;
//! let mut buffer = [0u8; 4];
//! let mut context = Context::new(8)?;
//! // SAFETY: `buffer` is not touched until its completion was reaped.
//! unsafe { context.push(Sqe::read(file.as_raw_fd(), &mut buffer[..], 0).user_data(7))? };
//! context.submit()?;
//! context.wait(1, None)?;
//! let cqe = context.reap().expect("waited for one");
//! assert_eq!((cqe.user_data, cqe.result()?), (7, 4));
//! assert_eq!(&buffer, b"\x7fELF");
//! # Ok(())
//! # }
//! ```

#![cfg_attr(loom, allow(dead_code, unused_imports))]

mod cpus;
mod cqe;
mod lazy_zeroed;
mod queue;
mod request;
mod sqe;
mod sync;
mod sys;

// A loom build contains the modelled protocols only. Each module has its own attribute: a macro
// around the modules would hide their files from rustfmt.
#[cfg(not(loom))]
pub mod affinity;
#[cfg(not(loom))]
mod board;
#[cfg(not(loom))]
mod config;
#[cfg(not(loom))]
mod context;
#[cfg(not(loom))]
mod descriptor;
#[cfg(not(loom))]
mod environment;
#[cfg(not(loom))]
mod errno;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod eventfd;
#[cfg(not(loom))]
mod exec;
#[cfg(not(loom))]
mod fallback_alloc;
#[doc(hidden)]
#[cfg(not(loom))]
pub mod front;
#[cfg(not(loom))]
pub mod fs;
#[cfg(not(loom))]
mod instance;
#[cfg(not(loom))]
mod lane;
#[cfg(not(loom))]
mod own;
#[cfg(not(loom))]
mod paths;
#[cfg(not(loom))]
mod place;
#[cfg(not(loom))]
mod placed;
#[cfg(not(loom))]
pub mod probe;
#[cfg(not(loom))]
mod process;
#[cfg(not(loom))]
mod router;
#[cfg(not(loom))]
pub mod stats;
#[doc(hidden)]
#[cfg(not(loom))]
pub mod table;
#[cfg(not(loom))]
mod threads;
mod word;

#[cfg(not(loom))]
#[cfg(feature = "faulty")]
pub use config::Faults;
#[cfg(not(loom))]
pub use config::{Builder, ConfigError, ENTRIES_MAX, EngineKind, FD_POOL_MAX};
#[cfg(not(loom))]
pub use context::{Canceller, Context, Full};
#[cfg(not(loom))]
pub use instance::choice::Choice;

/// The list of completions, for the experiment that measures what adding to it costs.
#[cfg(not(loom))]
#[doc(hidden)]
pub mod list {
    pub use crate::placed::completion::{Chain, CompletionList, Node, Owner};
}

/// Prints past the test harness's capture: a skipped test must not look like a passed one.
#[cfg(all(test, not(loom)))]
fn skipped(name: &str, reason: impl std::fmt::Display) {
    use std::io::Write as _;
    // The message has a line of its own: the harness may have printed half a line.
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {name}: {reason}");
}

#[cfg(loom)]
#[path = "placed/completion.rs"]
mod completion_list;
#[cfg(loom)]
#[path = "table/entry.rs"]
mod entry;
#[cfg(loom)]
#[path = "fs/flight.rs"]
mod flight;

pub use cqe::Cqe;
pub use sqe::{FILE_POSITION, FSYNC_DATASYNC, Sqe, opcode};

/// The README's example, compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// The examples of the book's page on this crate.
#[cfg(doctest)]
#[doc = include_str!("../../docs/rust.md")]
struct RustPage;

/// The examples of the book's page on files that are awaited.
#[cfg(doctest)]
#[doc = include_str!("../../docs/async.md")]
struct AsyncPage;

/// The example for users of other libraries.
#[cfg(doctest)]
#[doc = include_str!("../../docs/coming-from.md")]
struct ComingFromPage;
