//! The lanes of a file's requests (the ways in which the engine executes them), and the reasons.

use std::fmt;
use std::io;

use super::driver::Fs;
use super::handle::File;
use crate::instance::choice::{Choice, ChosenLane};
use crate::process;

/// The result of [`File::explain`]; its text is four lines for a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explain {
    /// The engine, the kernel's interface that it uses, and what was tried and refused, as in
    /// [`Context::choice`](crate::Context::choice).
    pub choice: Choice,
    /// The reason why reads are or are not tried on the polling thread.
    pub tried: &'static str,
    /// The maximum length of a read that is tried, in bytes.
    pub inline_max: usize,
    /// The lane of reads that are handed over.
    pub reads: ChosenLane,
    /// The lane of writes.
    pub writes: ChosenLane,
}

impl fmt::Display for Explain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { choice, tried, inline_max, reads, writes } = self;
        writeln!(f, "{choice}")?;
        writeln!(f, "reads of at most {inline_max} bytes: {tried}")?;
        writeln!(f, "other reads: {reads}")?;
        write!(f, "writes: {writes}")
    }
}

impl File {
    /// The lanes that requests of this file would take now, and the reasons. They change with what
    /// is learned about the file. Makes some system calls, none of which waits for a device.
    ///
    /// ```
    /// let file = uringlet::fs::File::open("/proc/self/exe").wait()?;
    /// let explained = file.explain()?;
    /// assert_eq!(explained.reads.name, "inline");
    /// println!("{explained}");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// `EINVAL`: the file belongs to the parent of a fork(2). If the file has no [`Fs`] yet, the
    /// process's `Fs` is made, with the errors of [`FsBuilder::build`].
    ///
    /// [`FsBuilder::build`]: super::FsBuilder::build
    pub fn explain(&self) -> io::Result<Explain> {
        let error = |errno: i32| io::Error::from_raw_os_error(-errno);
        let fs = match self.fs() {
            Some(fs) => fs.clone(),
            None => Fs::global().map_err(error)?,
        };
        if fs.generation() != process::generation() {
            return Err(error(-libc::EINVAL));
        }
        let lane = |write| fs.instance().explain(self.number(), write).map_err(error);
        Ok(Explain {
            choice: fs.choice(),
            tried: self.tried(),
            inline_max: fs.inline_max(),
            reads: lane(false)?,
            writes: lane(true)?,
        })
    }
}
