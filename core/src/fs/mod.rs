//! Files to be awaited, on any executor or none.
//!
//! **A write whose future is dropped after its first poll may happen wholly, in part, or not at
//! all.** Dropping is safe at any time, and never blocks: buffer and descriptor stay with the
//! engine until it has finished with them.
//!
//! ```
//! use uringlet::fs::{self, BufResult, File};
//!
//! async fn example(path: &std::path::Path) -> std::io::Result<()> {
//!     let file = File::options().read(true).write(true).create(true).open(path).await?;
//!     let BufResult(result, buffer) = file.write_all_at(b"hello, file".to_vec(), 0).await;
//!     result?;
//!     file.sync_data().await?;
//!     let BufResult(result, buffer) = file.read_at(buffer, 7).await;
//!     assert_eq!(&buffer[..result?], b"file");
//!     file.close().await?;
//!     fs::remove_file(path).await
//! }
//! # let folder = tempfile::tempdir()?;
//! # pollster::block_on(example(&folder.path().join("file")))?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # How it works
//!
//! An [`Op`] does nothing until it is polled. The first poll of a read of at most 64 KiB asks the
//! kernel for it with `RWF_NOWAIT` (preadv2(2)). If the pages are in memory, that is the whole
//! operation: one system call without allocation, lock or wake-up. Every other operation moves to
//! the heap and goes to the engine. The engine's threads execute the operation or hand it to the
//! kernel, and wake the task. The futures are `Send + 'static`, depend on no executor, and can be
//! waited for without one ([`Op::wait`]).
//!
//! A task whose reads are all in memory would never yield. So each thread counts the futures of
//! this module that are ready at once, and the calls of a `Cursor`. After 128 of these, or after 1
//! MiB, the thread's next future wakes its task and is pending once. With the feature `tokio`,
//! tokio's own budget is used as well.
//!
//! With the feature `tokio`, a runtime can hand requests to the kernel and collect their
//! completions itself. Otherwise threads of the engine have to wake it. See `drive_on_tokio`.
//!
//! For code that uses streams, `Cursor` has tokio's traits and those of `futures-io`, with the
//! features `tokio` and `futures-io`. [`File::explain`] says in which way (lane) the engine
//! executes the requests of a file, and why.
//!
//! # Names, directories, whole files
//!
//! Functions and types have the names and meanings of the standard library and of `tokio::fs`. Each
//! operation goes to a thread of the engine once: a small file is opened, read and closed there.
//! [`read_many`], [`metadata_many`] and [`walk`] use a few threads for many files, and return
//! results as they become ready. [`replace`] leaves the old or the new content after a crash. A
//! [`Dir`] is a directory that is opened once. [`Op::background`] lets other operations go first.
//!
//! # Buffers
//!
//! An operation owns its buffer, and returns it with the result, as a [`BufResult`]. The traits are
//! those of the crate `compio-buf` ([`buf`]): `Vec<u8>`, arrays, `Box<[u8]>`, and, with the feature
//! `bytes`, `Bytes` and `BytesMut`. A read fills a `Vec` up to its *capacity*; [`IoBuf::slice`]
//! takes a part of a buffer.
//!
//! # What is promised
//!
//! 1. An operation that is dropped before its first poll has done nothing.
//! 2. An operation that is dropped later is cancelled, unless the engine has begun to execute it.
//!    Nothing leaks, even if the runtime or the [`Fs`] is dropped first.
//! 3. [`Op::cancel`] asks the engine to stop the operation, and gives the real outcome and the
//!    buffer.
//! 4. Requests have no order among each other. [`File::sync_data`] covers the writes whose futures
//!    were ready before it was polled.
//! 5. The engine has a limit of requests and a limit of bytes ([`FsBuilder`] sets both). Below both
//!    limits it takes the next request, however large. Further requests are queued in order, and
//!    never fail because of a limit. A request that is dropped in the queue does not hold up the
//!    next one.
//! 6. A waker is called after the result is final, and never under a lock.
//! 7. Errors have the kernel's errno; a cancelled operation's is `ECANCELED`.
//! 8. [`Op::timeout`] is ready in time, whatever the kernel does; a late operation and its buffer
//!    are inside the error.
//! 9. A [`File`] belongs to the process that opened it. In the child of a fork(2) its operations,
//!    and those that were in flight, end with `EINVAL`; files that the child opens are its own.
//!    open(2) says why no direct I/O should be in flight at a fork.
//! 10. A detached operation runs to its end, as long as the process does: [`drain`] waits for it.
//! 11. After [`Fs::shutdown`] has succeeded, no operation of that `Fs` touches a file or a buffer
//!     any more.
//! 12. If the open of a FIFO is cancelled or dropped, it ends, and gives its thread back. For that
//!     the engine uses a real-time signal that had no handler.

mod any_range;
mod background;
mod batch;
mod budget;
#[cfg(any(feature = "tokio", feature = "futures-io"))]
mod cursor;
mod deadline;
mod dir;
mod drain;
mod driver;
mod explain;
mod file;
mod flight;
mod folder;
mod handle;
mod interrupt;
mod metadata;
mod names;
mod op;
mod options;
mod pool;
mod ranges;
mod replace;
#[cfg(feature = "tokio")]
mod runtime;
mod transfer;
mod vectored;
mod wakers;
mod whole;
mod worker;

pub use crate::instance::choice::{Choice, ChosenLane};
pub use compio_buf::{self as buf, BufResult, IoBuf, IoBufMut, SetLen};
pub use std::fs::FileTimes;

pub use self::any_range::WriteRange;
pub use self::batch::{Many, WalkError, metadata_many, read_many, walk, walk_with_metadata};
#[cfg(any(feature = "tokio", feature = "futures-io"))]
pub use self::cursor::Cursor;
pub use self::deadline::{Elapsed, Timeout};
pub use self::dir::Dir;
pub use self::drain::{Drain, Over, drain};
pub use self::driver::{Fs, FsBuilder};
pub use self::explain::Explain;
pub use self::file::{Advice, Close, Control};
pub use self::folder::{
    DirBuilder, DirEntry, ReadDir, create_dir, create_dir_all, read_dir, read_dir_with_metadata,
};
pub use self::handle::{Alignment, File};
pub use self::metadata::{FileType, Metadata, Stat};
pub use self::names::{
    Name, canonicalize, hard_link, metadata, read_link, remove_dir, remove_dir_all, remove_file,
    rename, set_permissions, symlink, symlink_metadata, try_exists,
};
pub use self::op::{Op, Operation};
pub use self::options::{Direct, Open, OpenOptions};
pub use self::pool::{Pool, PoolBuf, Take};
pub use self::ranges::{Chunk, Coalesce, RangeChunks, ReadRanges};
pub use self::replace::{copy, sync_dir};
#[cfg(feature = "tokio")]
pub use self::runtime::drive_on_tokio;
pub use self::transfer::{Read, ReadExact, Write, WriteAll};
pub use self::vectored::{ReadVectored, Vectored, WriteVectored};
pub use self::whole::{ReadFile, WriteFile, read, read_to_string, replace, write};
pub use self::worker::OnWorker;

#[cfg(test)]
mod tests;
