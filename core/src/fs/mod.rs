//! Files to be awaited, on any executor or none.
//!
//! **A write whose future is dropped after its first poll may happen wholly, in part, or not at
//! all.** Dropping is safe at any time, and never blocks: buffer and descriptor stay with the engine until it is done with them.

mod budget;
mod driver;
mod file;
mod flight;
mod metadata;
mod names;
mod op;
mod options;
mod transfer;

pub use compio_buf::{self as buf, BufResult, IoBuf, IoBufMut, SetLen};

pub use self::driver::{Fs, FsBuilder};
pub use self::file::{Advice, Alignment, Close, Control, File};
pub use self::metadata::{Metadata, Stat};
pub use self::names::{
    Copy, MakeDirs, Name, ReadFile, SyncDir, WriteFile, copy, create_dir_all, metadata, read,
    remove_file, rename, sync_dir, write,
};
pub use self::op::{Op, Operation};
pub use self::options::{Direct, Open, OpenOptions};
pub use self::transfer::{Read, ReadExact, Write, WriteAll};
