//! The configuration of a context: validated once, every refusal names the field.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::affinity::{Affinity, Placement};
use crate::cqe::Cqe;
pub use crate::error::ConfigError;

/// The engines that can be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineKind {
    /// The fastest way for each request: inline, a worker, or the kernel where it is truly
    /// asynchronous. Where a sandbox refuses one of them, the others are used.
    #[default]
    Auto,
    /// Executes in user space, on waiting threads and workers.
    Workers,
    /// Reads and writes of files through io_uring(7), everything else as `workers`.
    IoUring,
    /// Reads and writes of files through Linux AIO (io_submit(2)), everything else as `workers`.
    LinuxAio,
    /// Reads and writes of files through the C library's aio(7), everything else as `workers`. Each
    /// request uses an idle descriptor from a pool of duplicates.
    PosixAio,
    /// Completes every request with 0 without executing it: for measuring the cost of uringlet
    /// itself.
    Null,
}

impl EngineKind {
    /// Every engine, in the order in which help texts list them.
    pub const ALL: [Self; 6] =
        [Self::Auto, Self::Workers, Self::IoUring, Self::LinuxAio, Self::PosixAio, Self::Null];

    /// The engine's name, as `--engine` and `URINGLET_ENGINE` take it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Workers => "workers",
            Self::IoUring => "io_uring",
            Self::LinuxAio => "linux_aio",
            Self::PosixAio => "posix_aio",
            Self::Null => "null",
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for EngineKind {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| ConfigError {
            field: "engine",
            value: name.to_owned(),
            expected: Self::ALL.map(Self::name).join(", "),
            errno: libc::EINVAL,
        })
    }
}

/// The maximum number of entries of a context.
pub const ENTRIES_MAX: u32 = 65_536;

/// The most descriptors of one file that `posix_aio` uses at a time.
pub const FD_POOL_MAX: usize = 64;

/// A function that runs for each completion.
#[derive(Clone)]
pub(crate) struct Handler(Arc<dyn Fn(Cqe) + Send + Sync>);

impl Handler {
    pub(crate) fn call(&self, cqe: Cqe) {
        (self.0)(cqe);
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handler")
    }
}

/// Builds a [`Context`](crate::Context).
///
/// ```
/// use uringlet::{Context, EngineKind};
///
/// let builder = Context::builder().entries(64).engine(EngineKind::Workers);
/// let context = builder.workers_max(4).build()?;
/// assert_eq!((context.entries(), context.engine()), (64, EngineKind::Workers));
/// // Every refusal names its field.
/// let error = Context::builder().entries(0).build().unwrap_err();
/// assert_eq!(error.to_string(), "entries is 0, expected 1 to 65536");
/// assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::InvalidInput);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    pub(crate) entries: u32,
    pub(crate) workers_max: usize,
    pub(crate) spare_cpus: Option<usize>,
    pub(crate) engine: EngineKind,
    pub(crate) stats: bool,
    /// Descriptors per file of `posix_aio`.
    pub(crate) fd_pool: usize,
    /// Malformed requests are refused at submit, as io_submit does.
    pub(crate) strict: bool,
    /// The number of requests that the kernel is asked to have room for.
    pub(crate) kernel_room: u32,
    pub(crate) placement: Placement,
    pub(crate) cell_stats: bool,
    pub(crate) handler: Option<Handler>,
    #[cfg(feature = "faulty")]
    pub(crate) faults: Option<Faults>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            entries: 128,
            workers_max: crate::router::tuning::WORKERS_MAX,
            spare_cpus: None,
            engine: EngineKind::default(),
            stats: false,
            fd_pool: FD_POOL_MAX,
            strict: false,
            kernel_room: ENTRIES_MAX,
            placement: Placement::default(),
            cell_stats: false,
            handler: None,
            #[cfg(feature = "faulty")]
            faults: None,
        }
    }
}

impl Builder {
    /// Requests that can be in flight or unreaped at a time: 1 to [`ENTRIES_MAX`]. 128 by default.
    #[must_use]
    pub fn entries(mut self, entries: u32) -> Self {
        self.entries = entries;
        self
    }

    /// Workers that may execute requests of this context at a time: 1 to 64. The default is 64, the
    /// limit of the process. A worker is free if it is idle or not made yet. A context can always
    /// have one worker. It gets another one while it has fewer than three for each free one.
    /// Requests that may wait without end have workers of their own, with the same limits. If none
    /// of these workers takes a request of the context for 1 to 2 ms, the context's busy ones no
    /// longer count.
    #[must_use]
    pub fn workers_max(mut self, workers: usize) -> Self {
        self.workers_max = workers;
        self
    }

    /// The maximum number of workers of the process that execute queued requests beside the
    /// program's threads while CPUs are idle; 0 for none. The default is one fewer than the CPUs of
    /// the process. A worker stops when others need its CPU, or when it has too little to do.
    #[must_use]
    pub fn spare_cpus(mut self, cpus: usize) -> Self {
        self.spare_cpus = Some(cpus);
        self
    }

    /// The engine; [`EngineKind::Auto`] by default.
    #[must_use]
    pub fn engine(mut self, engine: EngineKind) -> Self {
        self.engine = engine;
        self
    }

    /// Counts and times what the context does ([`Context::stats`](crate::Context::stats)); off by
    /// default.
    #[must_use]
    pub fn stats(mut self, on: bool) -> Self {
        self.stats = on;
        self
    }

    /// Descriptors that [`EngineKind::PosixAio`] uses for one file, the program's own and
    /// duplicates of it: 1 to 64, 64 by default. The C library executes requests of one descriptor
    /// one after the other, and those of several in parallel.
    #[must_use]
    pub fn fd_pool(mut self, descriptors: usize) -> Self {
        self.fd_pool = descriptors;
        self
    }

    /// CPUs on which requests are executed, and handed to the kernel. The default [`Affinity::Any`]
    /// leaves the choice to the waiting thread and the scheduler. With another value, threads of
    /// the program execute nothing.
    #[must_use]
    pub fn queue_affinity(mut self, cpus: Affinity) -> Self {
        self.placement.queue = cpus;
        self
    }

    /// CPUs on which completions are collected from the kernel, and handlers run; [`Affinity::Any`]
    /// by default. With another value, threads of the program execute nothing.
    #[must_use]
    pub fn completion_affinity(mut self, cpus: Affinity) -> Self {
        self.placement.completion = cpus;
        self
    }

    /// 0, the default: completions stay on the CPU where they arrive. 1: they are sent to the cell
    /// (NUMA node, else last-level cache, else core) of the submitting thread. 2: they are sent to
    /// its CPU. The result is always within `completion_affinity`.
    #[must_use]
    pub fn rq_affinity(mut self, back: u8) -> Self {
        self.placement.rq_affinity = back;
        self
    }

    /// Sets `queue_affinity`, `completion_affinity` and `rq_affinity` at once.
    #[must_use]
    pub fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// Counts in which cells ([`Builder::rq_affinity`]) requests are executed and completed, also
    /// for a context that is not placed; off by default. The counts are part of [`Builder::stats`].
    #[must_use]
    pub fn cell_stats(mut self, on: bool) -> Self {
        self.cell_stats = on;
        self
    }

    /// Runs `handler` for each completion, cancelled ones included, on an engine thread on the CPU
    /// where the request completes. After that the completion can be reaped. Handlers of one CPU
    /// run one after the other, for all contexts of the process: a blocking handler delays the
    /// others. A handler must not drop its own context. A panic in it ends the process.
    #[must_use]
    pub fn handler(mut self, handler: impl Fn(Cqe) + Send + Sync + 'static) -> Self {
        self.handler = Some(Handler(Arc::new(handler)));
        self
    }

    /// Refuses malformed requests at submit, as io_submit does, instead of completing them with an
    /// error. For front ends.
    #[must_use]
    pub fn strict(mut self, on: bool) -> Self {
        self.strict = on;
        self
    }

    /// Asks the kernel for room for this many requests (with `auto`, `linux_aio` and `io_uring`),
    /// and hands over no more requests than the kernel grants. This is for front ends whose
    /// contexts have more entries than that. All Linux AIO contexts of a host share one limit
    /// (fs.aio-max-nr).
    #[must_use]
    pub fn kernel_room(mut self, requests: u32) -> Self {
        self.kernel_room = requests.max(1);
        self
    }

    /// Delays, reorders, shortens and fails requests before they get to the engine; for tests.
    #[cfg(feature = "faulty")]
    #[must_use]
    pub fn faulty(mut self, faults: Faults) -> Self {
        self.faults = Some(faults);
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let range = |field, value: u64, most: u64| {
            if (1..=most).contains(&value) {
                return Ok(());
            }
            let expected = format!("1 to {most}");
            Err(ConfigError { field, value: value.to_string(), expected, errno: libc::EINVAL })
        };
        range("entries", u64::from(self.entries), u64::from(ENTRIES_MAX))?;
        let workers_max = crate::router::tuning::WORKERS_MAX as u64;
        range("workers_max", self.workers_max as u64, workers_max)?;
        range("fd_pool", self.fd_pool as u64, FD_POOL_MAX as u64)?;
        #[cfg(feature = "faulty")]
        self.faults.map_or(Ok(()), Faults::check)?;
        Ok(())
    }
}

#[cfg(feature = "faulty")]
/// The faults that are injected into requests, each with a probability in thousandths. The same
/// seed and the same submits give the same faults. The moment at which a delayed request continues
/// depends on the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// The seed of the random numbers: the same seed repeats a run.
    pub seed: u64,
    /// Reads and writes of files that are delayed, so that later ones overtake them.
    pub held: u16,
    /// The maximum delay in microseconds. A wait or submit may end it earlier.
    pub held_us_max: u32,
    /// Reads, writes, syncs, and functions that a front end has workers call: these complete with
    /// `-EIO` and do nothing.
    pub eio: u16,
    /// Reads and writes that complete with `-EAGAIN` and do nothing.
    pub eagain: u16,
    /// Reads and writes that transfer less than they could, but at least one byte. Of a vector they
    /// transfer whole parts, and of a file opened with `O_DIRECT` multiples of 4 KiB.
    pub short: u16,
}

#[cfg(feature = "faulty")]
impl Faults {
    /// A plan without faults.
    #[must_use]
    pub fn none(seed: u64) -> Self {
        Self { seed, held: 0, held_us_max: 2000, eio: 0, eagain: 0, short: 0 }
    }

    /// A third of the transfers, chosen at random, is delayed for up to 2 ms. There are no errors,
    /// so a correct program does not notice.
    #[must_use]
    pub fn reordering(seed: u64) -> Self {
        Self { held: 333, ..Self::none(seed) }
    }

    /// As [`Faults::reordering`]. Also, of a thousand reads and writes, some 50 fail with `EIO`, 50
    /// fail with `EAGAIN`, and 100 are short.
    #[must_use]
    pub fn all(seed: u64) -> Self {
        Self { eio: 50, eagain: 50, short: 100, ..Self::reordering(seed) }
    }

    pub(crate) fn check(self) -> Result<(), ConfigError> {
        let errors = u32::from(self.eio) + u32::from(self.eagain) + u32::from(self.short);
        if errors <= 1000 && self.held <= 1000 && self.held_us_max > 0 {
            return Ok(());
        }
        Err(ConfigError {
            field: "faults",
            value: format!("{self:?}"),
            expected: "probabilities of at most 1000 in all, and a time".to_owned(),
            errno: libc::EINVAL,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Builder, EngineKind};

    #[test]
    fn a_refusal_names_field_value_and_range() {
        let error = Builder::default().entries(0).build().err().unwrap();
        assert_eq!(error.to_string(), "entries is 0, expected 1 to 65536");
        let error = Builder::default().workers_max(65).build().err().unwrap();
        assert_eq!(error.to_string(), "workers_max is 65, expected 1 to 64");
        let error = "uring".parse::<EngineKind>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "engine is uring, expected auto, workers, io_uring, linux_aio, posix_aio, null"
        );
    }
}
