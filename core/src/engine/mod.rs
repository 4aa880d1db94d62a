//! Engines: ways to get requests executed, behind one contract.
//!
//! [`Contract`] is what the compiler holds every engine to; [`Engine`] is what a context calls.
//! To add an engine, start from `null.rs`.

#[cfg(feature = "faulty")]
pub(crate) mod faulty;
pub(crate) mod kernel;
pub(crate) mod null;
mod trial;
pub(crate) mod workers;

use std::fmt;
use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Builder, ConfigError, EngineKind};
use crate::instance::{Instance, Taker};
use crate::probe::Refusal;
use crate::queue::{SleepEnd, Sleeper};
use crate::request::Slot;

/// A waiting thread's offer to execute requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Help {
    /// Completions that the thread waits for; 0 if it only looks.
    pub(crate) min: u32,
    /// Completions that it can take.
    pub(crate) max: u32,
    /// It has no deadline, so it may execute what it would have to wait for anyway.
    pub(crate) unbounded: bool,
    /// It may also execute what a file system's server may hold up for ever: it waits for all of its context, and
    /// without a deadline.
    pub(crate) wary: bool,
}

/// What an engine does for a context. Everything gets the instance that it belongs to.
pub(crate) trait Contract {
    /// Takes over requests whose slots are filled and queued. Never blocks.
    fn submit(&self, instance: &Arc<Instance>, slots: &[u32]);

    /// Lets the calling thread, which is waiting, execute the few requests that its context has. False: it has others, or none, or
    /// is not to; [`Contract::help`] knows.
    #[inline(always)]
    fn help_alone(&self, _: &Arc<Instance>, _taker: &mut Taker<'_>) -> bool {
        false
    }

    /// Lets the calling thread, which is waiting, execute requests. What it completes it may have
    /// at once, through `taker`. True if it is worth looking at the completions again.
    fn help(&self, instance: &Arc<Instance>, help: &Help, taker: &mut Taker<'_>) -> bool;

    /// Would [`Contract::help`] find something to do? Asked once more on the way to sleep, and, with a
    /// minimum of 0, before a look.
    fn has_help_to_offer(&self, instance: &Instance, help: &Help) -> bool;

    /// Puts a waiter to sleep, wherever this engine's completions wake it, with the signal mask, if one
    /// is given, in force meanwhile. What completes may go to `taker`.
    fn sleep(
        &self,
        instance: &Arc<Instance>,
        sleeper: &Sleeper<'_>,
        time: Option<Duration>,
        mask: Option<u64>,
        _taker: &mut Taker<'_>,
    ) -> SleepEnd {
        instance.completions().sleep_with(sleeper, time, mask)
    }

    /// Has a thread that only looks, and has helped, see what was submitted before and does not sleep, also where other threads
    /// are at it. Bounded.
    fn settle(&self, _: &Arc<Instance>, _: &Help, _taker: &mut Taker<'_>) {}

    /// Is a request of this slot's descriptor being tried without waiting, and may go back to waiting for it?
    fn is_trying(&self, _: &Slot) -> bool {
        false
    }

    /// Collects what has completed elsewhere, without executing anything.
    fn collect(&self, _: &Arc<Instance>) {}

    /// How long a waiter may sleep before [`Contract::watch`] is due; `nap` counts its sleeps.
    fn nap(&self, nap: u32) -> Option<Duration>;

    /// A waiter has slept for a nap.
    fn watch(&self, instance: &Arc<Instance>);

    /// Forgets the numbers of cancelled requests, so that their slots can be used again.
    fn purge(&self, instance: &Arc<Instance>);

    /// Cancels every request that has not been started: the context is being destroyed.
    fn drain(&self, instance: &Instance);

    /// The context is destroyed, and nothing is in flight any more: the kernel's part of it can go.
    fn closed(&self) {}

    /// A thread is handing requests to the kernel right now: some of those in its phase may not have
    /// reached it.
    fn is_handing_over(&self) -> bool {
        false
    }

    /// These descriptors are about to be closed: requests that wait until one is ready keep its file, and fsyncs that wait for another
    /// one are executed.
    fn before_close(&self, _: &Arc<Instance>, _fds: &RangeInclusive<RawFd>) {}

    /// Takes a request back that was handed to a poller or kernel, if the slot is still `key`'s. True if it will not complete by itself any more.
    fn retract(&self, instance: &Instance, slot: u32, key: u64) -> bool;
}

/// The engine of a context.
// One per context, and never moved: the size of the largest is no loss.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
pub(crate) enum Engine {
    Null(null::Null),
    Workers(workers::Workers),
    #[cfg(feature = "faulty")]
    Faulty(faulty::Faulty),
}

impl Engine {
    /// # Errors
    /// The builder asks for an engine that this machine refuses.
    pub(crate) fn new(builder: &Builder, slots: usize) -> Result<Self, ConfigError> {
        Ok(match builder.engine {
            EngineKind::Null => Self::Null(null::Null),
            _ => Self::Workers(workers::Workers::new(builder, slots)?),
        })
    }

    /// What is used, and what was tried and refused.
    pub(crate) fn choice(&self) -> Choice {
        match self {
            Self::Null(_) => {
                Choice { engine: EngineKind::Null, kernel: None, refusals: Vec::new() }
            }
            Self::Workers(workers) => workers.choice(),
            #[cfg(feature = "faulty")]
            Self::Faulty(faulty) => faulty.below().choice(),
        }
    }

    /// Is there a [fast path](crate::instance::Transfer)?
    pub(crate) fn has_fast_path(&self) -> bool {
        matches!(self, Self::Workers(workers) if workers.keeps_inline())
    }

    /// Where requests run, before the first.
    pub(crate) fn place(&self, choice: &crate::affinity::Choice) {
        if let Self::Workers(workers) = self.inner() {
            workers.place(choice);
        }
    }

    /// The engine that executes: itself, or what `faulty` is laid over.
    pub(crate) fn inner(&self) -> &Self {
        match self {
            #[cfg(feature = "faulty")]
            Self::Faulty(faulty) => faulty.below(),
            engine => engine,
        }
    }

    #[cfg(feature = "faulty")]
    pub(crate) fn with_faults(self, faults: Option<faulty::Faults>) -> Self {
        match faults {
            Some(faults) => Self::Faulty(faulty::Faulty::over(self, faults)),
            None => self,
        }
    }
}

/// Which engine executes, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What the context was made with.
    pub engine: EngineKind,
    /// The interface of the kernel, or of the C library, that requests are handed to. `auto` chooses it when the
    /// first request comes that it is good for; `None` before that, and if every one was refused.
    pub kernel: Option<EngineKind>,
    /// What `auto` has tried in vain.
    pub refusals: Vec<(EngineKind, Refusal)>,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.engine)?;
        match self.kernel {
            Some(kernel) if kernel == self.engine => {}
            Some(kernel) => write!(f, ", direct I/O through {kernel}")?,
            None if !self.refusals.is_empty() => write!(f, ", everything on threads")?,
            _ => {}
        }
        for (engine, refusal) in &self.refusals {
            write!(f, "; {engine} is refused ({refusal})")?;
        }
        Ok(())
    }
}

macro_rules! dispatch {
    ($self:ident, $engine:ident => $call:expr) => {
        match $self {
            Engine::Null($engine) => $call,
            Engine::Workers($engine) => $call,
            #[cfg(feature = "faulty")]
            Engine::Faulty($engine) => $call,
        }
    };
}

impl Contract for Engine {
    #[inline(always)]
    fn submit(&self, instance: &Arc<Instance>, slots: &[u32]) {
        dispatch!(self, engine => engine.submit(instance, slots));
    }

    #[inline(always)]
    fn help_alone(&self, instance: &Arc<Instance>, taker: &mut Taker<'_>) -> bool {
        dispatch!(self, engine => engine.help_alone(instance, taker))
    }

    #[inline]
    fn help(&self, instance: &Arc<Instance>, help: &Help, taker: &mut Taker<'_>) -> bool {
        dispatch!(self, engine => engine.help(instance, help, taker))
    }

    fn has_help_to_offer(&self, instance: &Instance, help: &Help) -> bool {
        dispatch!(self, engine => engine.has_help_to_offer(instance, help))
    }

    fn sleep(
        &self,
        instance: &Arc<Instance>,
        sleeper: &Sleeper<'_>,
        time: Option<Duration>,
        mask: Option<u64>,
        taker: &mut Taker<'_>,
    ) -> SleepEnd {
        dispatch!(self, engine => engine.sleep(instance, sleeper, time, mask, taker))
    }

    fn settle(&self, instance: &Arc<Instance>, help: &Help, taker: &mut Taker<'_>) {
        dispatch!(self, engine => engine.settle(instance, help, taker));
    }

    fn is_trying(&self, slot: &Slot) -> bool {
        dispatch!(self, engine => engine.is_trying(slot))
    }

    fn collect(&self, instance: &Arc<Instance>) {
        dispatch!(self, engine => Contract::collect(engine, instance));
    }

    fn nap(&self, nap: u32) -> Option<Duration> {
        dispatch!(self, engine => engine.nap(nap))
    }

    fn watch(&self, instance: &Arc<Instance>) {
        dispatch!(self, engine => engine.watch(instance));
    }

    fn purge(&self, instance: &Arc<Instance>) {
        dispatch!(self, engine => engine.purge(instance));
    }

    fn drain(&self, instance: &Instance) {
        dispatch!(self, engine => engine.drain(instance));
    }

    fn is_handing_over(&self) -> bool {
        dispatch!(self, engine => engine.is_handing_over())
    }

    fn closed(&self) {
        dispatch!(self, engine => engine.closed());
    }

    fn before_close(&self, instance: &Arc<Instance>, fds: &RangeInclusive<RawFd>) {
        dispatch!(self, engine => engine.before_close(instance, fds));
    }

    fn retract(&self, instance: &Instance, slot: u32, key: u64) -> bool {
        dispatch!(self, engine => engine.retract(instance, slot, key))
    }
}
