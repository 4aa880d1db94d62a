//! Why requests of a file run where they do.

use std::fmt;
use std::io;

use super::driver::Fs;
use super::handle::File;
use crate::instance::choice::{Choice, ChosenLane};
use crate::process;

/// What [`File::explain`] gives; as text, four lines for a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explain {
    /// The engine, the kernel's interface that it uses, and what was tried and refused: as
    /// [`Context::choice`](crate::Context::choice) has it.
    pub choice: Choice,
    /// Are reads tried on the polling thread, and why not?
    pub tried: &'static str,
    /// The most bytes that a read may have for that.
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
    /// Says where requests of this file would run now, and why. What is learned about a file
    /// changes that. Some system calls, none of which waits for a device.
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
    /// `EINVAL`: the file belongs to the parent of a fork(2). As [`FsBuilder::build`], where the
    /// file has no [`Fs`] yet, and that of the process is made.
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
