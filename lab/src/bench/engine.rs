//! The engines to compare: the native interfaces, and uringlet's engines.

use super::drive::{Figure, keep_in_flight};
use super::manner::Manner;
use super::native::{IoUring, Libaio, Posixaio, psync};
use super::ours::Ours;
use super::workload::Job;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::Serialize;
use strum::{EnumMessage, IntoStaticStr};
use uringlet::{Builder, Context, EngineKind};

/// A way to execute requests. Native engines have fio's names, and uringlet's engines begin with
/// `uringlet:`. So `io_uring` is the kernel's ring, and `uringlet:io_uring` is uringlet's engine of
/// that name.
///
/// The comments are also the help on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumMessage, IntoStaticStr, Serialize)]
#[serde(into = "&str")]
#[strum(const_into_str)]
pub enum Engine {
    /// Native: pread and pwrite, one after the other
    #[strum(serialize = "psync")]
    Psync,
    /// Native: Linux AIO, io_submit and io_getevents
    #[strum(serialize = "libaio")]
    Libaio,
    /// Native: Linux io_uring
    #[strum(serialize = "io_uring")]
    IoUring,
    /// Native: Linux io_uring, on the kernel's workers
    // For a reproduction, not on the command line.
    #[strum(serialize = "io_uring, async")]
    IoUringAsync,
    /// Native: the C library's aio_read and aio_write
    #[strum(serialize = "posixaio")]
    Posixaio,
    /// uringlet; chooses who executes each request
    #[strum(serialize = "uringlet:auto")]
    OursAuto,
    /// uringlet, on waiting threads and workers only
    #[strum(serialize = "uringlet:workers")]
    OursWorkers,
    /// uringlet over io_uring only
    #[strum(serialize = "uringlet:io_uring")]
    OursIoUring,
    /// uringlet over Linux AIO only
    #[strum(serialize = "uringlet:linux_aio")]
    OursLinuxAio,
    /// uringlet over aio(7), with a pool of descriptors
    #[strum(serialize = "uringlet:posix_aio")]
    OursPosixAio,
    /// psync under another name, in uringlet's place
    // For a comparison that must find no difference.
    #[strum(serialize = "psync-again")]
    PsyncAgain,
}

impl Engine {
    /// The values of the command line; the last one is not in its help.
    const SELECTABLE: [Self; 10] = [
        Self::Psync,
        Self::Libaio,
        Self::IoUring,
        Self::Posixaio,
        Self::OursAuto,
        Self::OursWorkers,
        Self::OursIoUring,
        Self::OursLinuxAio,
        Self::OursPosixAio,
        Self::PsyncAgain,
    ];

    /// The engines that the help lists, in the order of the table.
    pub const ALL: [Self; 9] = *Self::SELECTABLE.first_chunk().unwrap();

    /// The engines that are compared by default.
    pub const DEFAULT: [Self; 5] =
        [Self::Psync, Self::Libaio, Self::IoUring, Self::Posixaio, Self::OursAuto];

    /// The name on the command line, in the tables and in JSON.
    pub fn name(self) -> &'static str {
        self.into_str()
    }

    /// uringlet's engine; none for a native one.
    pub fn kind(self) -> Option<EngineKind> {
        self.name().strip_prefix("uringlet:")?.parse().ok()
    }

    /// Does the engine have only one request in flight, whatever the depth?
    pub fn is_synchronous(self) -> bool {
        matches!(self, Self::Psync | Self::PsyncAgain)
    }

    /// Is it an engine that uringlet is compared with?
    pub fn is_native(self) -> bool {
        self.kind().is_none() && self != Self::PsyncAgain
    }

    /// Can it hand over requests in this manner? An event loop needs an interface that counts an
    /// eventfd up.
    pub fn takes(self, manner: Manner) -> bool {
        manner != Manner::EventLoop || !self.is_synchronous() && self != Self::Posixaio
    }

    /// Tries to set the engine up for `depth` requests.
    ///
    /// # Errors
    /// The reason why it cannot be used here.
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

    /// Runs one job, and checks afterwards whether the last requests were really executed. `pool`
    /// is the number of duplicates of a descriptor that uringlet's engine `posix_aio` makes.
    ///
    /// # Errors
    /// The first error. A request that fails or is short is never counted.
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
        &Self::SELECTABLE
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let value =
            PossibleValue::new(self.name()).help(self.get_documentation().unwrap_or_default());
        Some(match self {
            // `auto` and `workers` are unambiguous: no native engine has these names.
            Self::OursAuto => value.alias("auto"),
            Self::OursWorkers => value.alias("workers"),
            Self::PsyncAgain => value.hide(true),
            _ => value,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uringlets_engines_are_known_by_their_names_and_all_have_a_help_text() {
        let kinds: Vec<EngineKind> = Engine::ALL.into_iter().filter_map(Engine::kind).collect();
        assert_eq!(kinds, EngineKind::ALL[..5]);
        for engine in Engine::value_variants() {
            let value = engine.to_possible_value().unwrap();
            assert!(!value.get_help().unwrap().to_string().is_empty(), "{}", engine.name());
        }
    }
}
