//! Completes every request at submit without doing anything: measures the frame around an engine,
//! and is the skeleton of a new one.

use std::sync::Arc;
use std::time::Duration;

use super::{Contract, Help};
use crate::instance::{By, Instance, Taker};

/// The engine; a real one keeps its queues here.
#[derive(Debug)]
pub(crate) struct Null;

impl Contract for Null {
    fn submit(&self, instance: &Arc<Instance>, slots: &[u32]) {
        // Started at once. An engine that lets them wait calls `queue` here: from then on each can be cancelled, so
        // it is executed only if `Instance::start` says so.
        slots.iter().for_each(|&slot| instance.slot(slot).begin());
        // And each finished once, with a count or a negative errno.
        instance.finish_all(slots.iter().map(|&slot| (slot, 0)), By::Worker);
    }

    fn help(&self, _: &Arc<Instance>, _: &Help, _: &mut Taker<'_>) -> bool {
        // Nothing is ever waiting.
        false
    }

    fn has_help_to_offer(&self, _: &Instance, _: &Help) -> bool {
        false
    }

    fn nap(&self, _: u32) -> Option<Duration> {
        // No watch needed: sleep until something completes.
        None
    }

    fn watch(&self, _: &Arc<Instance>) {}

    fn purge(&self, _: &Arc<Instance>) {}

    fn drain(&self, _: &Instance) {}

    fn retract(&self, _: &Instance, _: u32, _: u64) -> bool {
        false
    }
}
