//! Engines: ways to get requests executed, behind one contract.
//!
//! [`Contract`] is what the compiler holds every engine to; [`Engine`] is what a context calls.
//! To add an engine, start from `null.rs`.

pub(crate) mod null;
pub(crate) mod workers;

use std::sync::Arc;
use std::time::Duration;

use crate::config::EngineKind;
use crate::instance::{Instance, Taker};

/// A waiting thread's offer to execute requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Help {
    /// Completions that the thread waits for; 0 if it only looks.
    pub(crate) min: u32,
    /// Completions that it can take.
    pub(crate) max: u32,
    /// It has no deadline, so it may execute what it would have to wait for anyway.
    pub(crate) unbounded: bool,
}

/// What an engine does for a context. Everything gets the instance that it belongs to.
pub(crate) trait Contract {
    /// Takes over requests whose slots are filled and queued. Never blocks.
    fn submit(&self, instance: &Arc<Instance>, slots: &[u32]);

    /// Lets the calling thread, which is waiting, execute requests. What it completes it may have
    /// at once, through `taker`. True if it is worth looking at the completions again.
    fn help(&self, instance: &Arc<Instance>, help: Help, taker: &mut Taker<'_>) -> bool;

    /// Would [`Contract::help`] find something to do? Asked once more on the way to sleep.
    fn has_help_to_offer(&self, instance: &Instance, help: Help) -> bool;

    /// How long a waiter may sleep before [`Contract::watch`] is due; `nap` counts its sleeps.
    fn nap(&self, nap: u32) -> Option<Duration>;

    /// A waiter has slept for a nap.
    fn watch(&self, instance: &Arc<Instance>);

    /// Forgets the numbers of cancelled requests, so that their slots can be used again.
    fn purge(&self, instance: &Instance);

    /// Cancels every request that has not been started: the context is being destroyed.
    fn drain(&self, instance: &Instance);

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
}

impl Engine {
    pub(crate) fn new(kind: EngineKind, slots: usize, workers_max: usize) -> Self {
        match kind {
            EngineKind::Null => Self::Null(null::Null),
            _ => Self::Workers(workers::Workers::new(slots, workers_max)),
        }
    }

    pub(crate) fn kind(&self) -> EngineKind {
        match self {
            Self::Null(_) => EngineKind::Null,
            Self::Workers(_) => EngineKind::Workers,
        }
    }
}

macro_rules! dispatch {
    ($self:ident, $engine:ident => $call:expr) => {
        match $self {
            Engine::Null($engine) => $call,
            Engine::Workers($engine) => $call,
        }
    };
}

impl Contract for Engine {
    #[inline]
    fn submit(&self, instance: &Arc<Instance>, slots: &[u32]) {
        dispatch!(self, engine => engine.submit(instance, slots));
    }

    #[inline]
    fn help(&self, instance: &Arc<Instance>, help: Help, taker: &mut Taker<'_>) -> bool {
        dispatch!(self, engine => engine.help(instance, help, taker))
    }

    fn has_help_to_offer(&self, instance: &Instance, help: Help) -> bool {
        dispatch!(self, engine => engine.has_help_to_offer(instance, help))
    }

    fn nap(&self, nap: u32) -> Option<Duration> {
        dispatch!(self, engine => engine.nap(nap))
    }

    fn watch(&self, instance: &Arc<Instance>) {
        dispatch!(self, engine => engine.watch(instance));
    }

    fn purge(&self, instance: &Instance) {
        dispatch!(self, engine => engine.purge(instance));
    }

    fn drain(&self, instance: &Instance) {
        dispatch!(self, engine => engine.drain(instance));
    }

    fn retract(&self, instance: &Instance, slot: u32, key: u64) -> bool {
        dispatch!(self, engine => engine.retract(instance, slot, key))
    }
}
