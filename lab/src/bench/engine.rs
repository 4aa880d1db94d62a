//! What can be compared: the native interfaces, and uringlet's engines.

use super::drive::{Figure, keep_in_flight};
use super::native::{IoUring, Libaio, Posixaio, psync};
use super::ours::Ours;
use super::workload::Job;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::{Serialize, Serializer};
use uringlet::{Builder, Context, EngineKind};

/// A way to get requests executed. The native ones are called as fio calls them, uringlet's have
/// its name in front: `io_uring` is the kernel's ring, `uringlet:io_uring` is uringlet's engine of
/// that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Plain pread and pwrite.
    Psync,
    /// Linux AIO by its system calls.
    Libaio,
    /// The kernel's ring.
    IoUring,
    /// The kernel's ring, every request on one of the kernel's workers; for a reproduction, not on
    /// the command line.
    IoUringAsync,
    /// The C library's aio(7).
    Posixaio,
    /// uringlet, a road chosen for each request.
    OursAuto,
    /// uringlet's threads.
    OursWorkers,
    /// uringlet over io_uring.
    OursIoUring,
    /// uringlet over Linux AIO.
    OursLinuxAio,
    /// uringlet over aio(7), with a pool of descriptors.
    OursPosixAio,
    /// Plain pread and pwrite once more, on uringlet's side: a comparison that must find nothing.
    PsyncAgain,
}

impl Engine {
    /// Every engine that can be chosen, in the order of the table.
    pub const ALL: [Self; 9] = [
        Self::Psync,
        Self::Libaio,
        Self::IoUring,
        Self::Posixaio,
        Self::OursAuto,
        Self::OursWorkers,
        Self::OursIoUring,
        Self::OursLinuxAio,
        Self::OursPosixAio,
    ];

    /// What is compared unless the user says otherwise.
    pub const DEFAULT: [Self; 5] =
        [Self::Psync, Self::Libaio, Self::IoUring, Self::Posixaio, Self::OursAuto];

    /// On the command line, in the tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Psync => "psync",
            Self::Libaio => "libaio",
            Self::IoUring => "io_uring",
            Self::IoUringAsync => "io_uring, async",
            Self::Posixaio => "posixaio",
            Self::OursAuto => "uringlet:auto",
            Self::OursWorkers => "uringlet:workers",
            Self::OursIoUring => "uringlet:io_uring",
            Self::OursLinuxAio => "uringlet:linux_aio",
            Self::OursPosixAio => "uringlet:posix_aio",
            Self::PsyncAgain => "psync-again",
        }
    }

    fn help(self) -> &'static str {
        match self {
            Self::Psync => "Native: pread and pwrite, one after the other",
            Self::Libaio => "Native: Linux AIO, io_submit and io_getevents",
            Self::IoUring => "Native: Linux io_uring",
            Self::IoUringAsync => "Native: Linux io_uring, on the kernel's workers",
            Self::Posixaio => "Native: the C library's aio_read and aio_write",
            Self::OursAuto => "uringlet; chooses who executes each request",
            Self::OursWorkers => "uringlet, on waiting threads and workers only",
            Self::OursIoUring => "uringlet over io_uring only",
            Self::OursLinuxAio => "uringlet over Linux AIO only",
            Self::OursPosixAio => "uringlet over aio(7), with a pool of descriptors",
            Self::PsyncAgain => "psync under another name, in uringlet's place",
        }
    }

    /// Which of uringlet's engines it is; none for a native one.
    pub fn kind(self) -> Option<EngineKind> {
        match self {
            Self::Psync
            | Self::PsyncAgain
            | Self::Libaio
            | Self::IoUring
            | Self::IoUringAsync
            | Self::Posixaio => None,
            Self::OursAuto => Some(EngineKind::Auto),
            Self::OursWorkers => Some(EngineKind::Workers),
            Self::OursIoUring => Some(EngineKind::IoUring),
            Self::OursLinuxAio => Some(EngineKind::LinuxAio),
            Self::OursPosixAio => Some(EngineKind::PosixAio),
        }
    }

    /// Has only one request in flight, whatever the depth.
    pub fn is_synchronous(self) -> bool {
        matches!(self, Self::Psync | Self::PsyncAgain)
    }

    /// What uringlet is compared with.
    pub fn is_native(self) -> bool {
        self.kind().is_none() && self != Self::PsyncAgain
    }

    /// Tries to set it up for `depth` requests.
    ///
    /// # Errors
    /// Why it cannot be used here.
    pub fn probe(self, depth: usize, pool: Option<usize>) -> Result<(), String> {
        match self.kind() {
            Some(kind) => Ours::new(builder(kind, pool), depth).map(drop),
            None => match self {
                Self::Libaio => Libaio::new(depth).map(drop),
                Self::IoUring | Self::IoUringAsync => IoUring::new(depth).map(drop),
                Self::Posixaio => Posixaio::new(depth).map(drop),
                _ => Ok(()),
            },
        }
    }

    /// Runs one job, and looks afterwards whether the last requests did what they said.
    /// `pool` is the number of duplicates of a descriptor, for the engine that makes some.
    ///
    /// # Errors
    /// What failed first. A request that fails or is short is never counted.
    pub fn run(self, pool: Option<usize>, job: &mut Job<'_>) -> Result<Figure, String> {
        let depth = job.depth;
        let figure = match (self, self.kind()) {
            (_, Some(kind)) => {
                let mut ours = Ours::new(builder(kind, pool), depth)?;
                let figure = keep_in_flight(&mut ours, job)?;
                Figure { executed_by: Some(ours.context().choice().to_string()), ..figure }
            }
            (Self::Libaio, _) => keep_in_flight(&mut Libaio::new(depth)?, job)?,
            (Self::IoUring, _) => keep_in_flight(&mut IoUring::new(depth)?, job)?,
            (Self::IoUringAsync, _) => keep_in_flight(&mut IoUring::new(depth)?.on_workers(), job)?,
            (Self::Posixaio, _) => keep_in_flight(&mut Posixaio::new(depth)?, job)?,
            _ => psync(job)?,
        };
        job.compare_with_the_file()?;
        Ok(figure)
    }
}

fn builder(kind: EngineKind, pool: Option<usize>) -> Builder {
    let builder = Context::builder().engine(kind);
    pool.into_iter().fold(builder, Builder::fd_pool)
}

impl ValueEnum for Engine {
    fn value_variants<'a>() -> &'a [Self] {
        const SELECTABLE: [Engine; 10] = {
            let mut all = [Engine::PsyncAgain; 10];
            let mut at = 0;
            while at < Engine::ALL.len() {
                all[at] = Engine::ALL[at];
                at += 1;
            }
            all
        };
        &SELECTABLE
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let value = PossibleValue::new(self.name()).help(self.help());
        Some(match self {
            // Nothing native is called so.
            Self::OursAuto => value.alias("auto"),
            Self::OursWorkers => value.alias("workers"),
            Self::PsyncAgain => value.hide(true),
            _ => value,
        })
    }
}

impl Serialize for Engine {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
