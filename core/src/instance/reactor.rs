//! An event loop of the program's that drives a context: it hands over what is queued for the
//! kernel, and collects what the kernel has completed. No thread of ours is woken for that. While
//! it does not come in time, our threads do both.

use std::fmt;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::Instance;
use crate::board::{By, Dispatcher, without_taker};
use crate::router::{Call, KernelScope};
use crate::sync::lock;

/// An event loop that drives a context.
pub(crate) trait Reactor: Send + Sync + fmt::Debug {
    /// The loop is to call [`Instance::drive`] soon. Never blocks.
    fn call(&self);
}

/// Who drives a context.
#[derive(Debug, Default)]
pub(super) struct Driven {
    by: Mutex<Option<Arc<dyn Reactor>>>,
    /// The loop has come in time so far.
    comes: AtomicBool,
}

impl Driven {
    #[inline]
    pub(super) fn comes(&self) -> bool {
        self.comes.load(Ordering::Relaxed)
    }

    /// As [`Driven::comes`], in one order with a store before it. Either whoever ends the driving
    /// sees that store, or this sees that the driving has ended.
    pub(super) fn still_comes(&self) -> bool {
        self.comes.load(Ordering::SeqCst)
    }

    fn by(&self) -> Option<Arc<dyn Reactor>> {
        lock(&self.by).clone()
    }
}

impl Instance {
    /// `reactor` drives it from now on: it comes when it is called, and when the eventfd(2) that
    /// is given is counted up. `None`: somebody drives it already, or it has no io_uring.
    #[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "a tokio runtime drives"))]
    pub(crate) fn begin_to_be_driven(&self, reactor: Arc<dyn Reactor>) -> Option<RawFd> {
        // A thread that the child of a fork does not have may hold the lock for ever.
        if !self.is_usable() {
            return None;
        }
        let mut by = lock(&self.driven.by);
        if by.is_some() {
            return None;
        }
        let events = self.lanes.kernel.events_for_reactor(&self.board)?;
        *by = Some(reactor);
        self.driven.comes.store(true, Ordering::SeqCst);
        Some(events)
    }

    /// The event loop has come. False: the context is closed, and there is no need to come again.
    #[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "a tokio runtime drives"))]
    pub(crate) fn drive(&self) -> bool {
        if !self.is_usable() {
            return false;
        }
        if !self.driven.comes() {
            self.driven.comes.store(true, Ordering::SeqCst);
        }
        let kernel = &self.lanes.kernel;
        without_taker(|taker| kernel.harvest_for_reactor(&self.board, taker));
        if kernel.queued() > 0 {
            self.hand_over(By::Waiter);
        }
        true
    }

    /// The event loop has ended.
    #[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "a tokio runtime drives"))]
    pub(crate) fn end_to_be_driven(&self) {
        if self.is_of_this_process() {
            *lock(&self.driven.by) = None;
            self.leave_to_our_threads();
        }
    }

    /// The context closes: its event loop is to find out.
    pub(super) fn dismiss_reactor(&self) {
        let by = lock(&self.driven.by).take();
        self.driven.comes.store(false, Ordering::SeqCst);
        if let Some(by) = by {
            by.call();
        }
    }

    /// Calls the event loop to hand over. False: there is none that comes.
    pub(super) fn call_reactor(&self) -> bool {
        self.driven.comes() && self.driven.by().inspect(|by| by.call()).is_some()
    }

    /// The event loop has not come in time, or comes no more, and what is queued is handed over by
    /// a worker. Called once more, the loop drives again when it comes.
    #[cold]
    pub(super) fn leave_to_our_threads(&self) {
        if self.driven.comes.swap(false, Ordering::SeqCst) {
            self.have_events_watched(true);
            if let Some(by) = self.driven.by() {
                by.call();
            }
        }
        if self.lanes.kernel.queued() > 0 {
            self.call(Call::HandOver);
        }
    }

    /// Has the poller look at the kernel's completions, unless it does, or an event loop does.
    pub(super) fn have_events_watched(&self, nobody_comes: bool) {
        if self.driven.comes() {
            return;
        }
        if let Some(events) = self.lanes.kernel.events_to_watch(nobody_comes)
            && let Some(me) = self.me.upgrade()
        {
            let owner: Arc<dyn Dispatcher> = me;
            self.harvesters.get().poller.watch(&owner, events);
        }
    }

    /// Which requests go to the kernel now.
    #[inline]
    pub(super) fn kernel_scope(&self) -> KernelScope {
        match self.lanes.kernel.scope() {
            KernelScope::Direct if self.driven.comes() => KernelScope::DirectAndReads,
            scope => scope,
        }
    }
}
