//! What a ring does for other processes that use it: ownership, the journal, and their sleep.
//! [`shared`](crate::shared) has the words.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use uringlet::front::{self, Instance};

use super::{Core, Deliver, Locked, State};
use crate::abi::Cqe;
use crate::completions::Queue as _;
use crate::memory::Word;
use crate::shared::page::Claim;
use crate::sys;

/// Requests of one ring that can be with the engine at a time: others wait for a place.
pub(crate) const SLOTS: (u32, u32) = (64, 4096);

/// The key of a timer that no request has: completions that wait for room are to go into the ring.
pub(super) const FLUSH: u64 = u64::MAX;
/// In nanoseconds.
const FLUSH_AFTER: u64 = 1_000_000;

/// What the process knows of its part, under the ring's lock.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    /// It is the owner, and busy.
    owns: bool,
    /// Other processes use the ring: the journal is kept, and nothing is left for a waiter.
    is_shared: bool,
    /// The timer for [`FLUSH`] is set.
    flushes: bool,
}

impl Core {
    /// The process makes the ring.
    pub(crate) fn found(&self) {
        self.memory.page().found(self.me);
        self.show_flags(0);
    }

    /// Another ring of this process over the same memory, which it has from its parent.
    pub(crate) fn inherit(&self) -> Arc<Self> {
        let params = crate::abi::Params {
            flags: self.flags,
            sq_entries: self.sq_entries,
            cq_entries: self.cq_entries,
            ..Default::default()
        };
        let owner = self.owner.load(Ordering::Relaxed);
        let core = Self::new(self.registry, Arc::clone(&self.memory), &params, owner);
        core.disabled.store(self.disabled.load(Ordering::Relaxed), Ordering::Relaxed);
        core.memory.page().share();
        core
    }

    /// What executes its requests in this process.
    ///
    /// # Errors
    /// A negative errno.
    pub(crate) fn engine(self: &Arc<Self>) -> Result<Arc<Instance>, i32> {
        let slots = self.cq_entries.clamp(SLOTS.0, SLOTS.1);
        let builder = front::env::builder()?.entries(slots).kernel_room(slots);
        let sink = Box::new(Deliver(Arc::clone(self)));
        let instance = Instance::with_sink(&builder, sink).map_err(|error| -error.errno())?;
        let _ = self.instance.set(Arc::downgrade(&instance));
        Ok(instance)
    }

    /// Has this process nothing in flight on a ring that others use? Then its engine has nothing
    /// to wait for.
    pub(crate) fn waits_for_others(&self) -> bool {
        self.memory.page().is_shared() && self.taken.load(Ordering::Acquire) == self.ended()
    }

    /// After posts, and behind a fence: wakes threads that sleep on the ring's tail.
    #[inline]
    pub(super) fn wake_sleepers(&self) {
        let page = self.memory.page();
        if page.takes_sleepers() {
            sys::wake_all(&page.cq_tail);
        }
    }

    /// A thread that waits has seen that the owner with this word is gone: what that has left
    /// ends.
    pub(crate) fn end_what_is_left(self: &Arc<Self>, gone: u64) {
        // If another process is quicker, that one does it.
        let _ = self.with(|locked| locked.claim(gone));
    }

    /// The word of another process that has requests of this ring in flight.
    pub(crate) fn busy_other(&self) -> Option<u64> {
        self.memory.page().busy_other(self.me)
    }
}

impl Locked<'_> {
    /// The process is to be the owner, and to stay it until it has nothing in flight. `gone` is the
    /// word of an owner that is gone, or 0.
    ///
    /// # Errors
    /// The word of another owner that is busy.
    pub(super) fn claim(&mut self, gone: u64) -> Result<(), u64> {
        let page = self.core.memory.page();
        if self.state.sharing.owns && !page.is_shared() {
            return Ok(());
        }
        let claim = page.claim(self.core.me, gone);
        if let Claim::Held(by) = claim {
            return Err(by);
        }
        self.state.sharing.owns = true;
        if page.is_shared() && !self.state.sharing.is_shared {
            self.begin_to_share();
        }
        if let Claim::Adopted { was_busy } = claim {
            self.adopt(was_busy);
        }
        Ok(())
    }

    #[cold]
    fn begin_to_share(&mut self) {
        self.state.sharing.is_shared = true;
        // No thread of this process may come to wait.
        self.core.told.store(true, Ordering::Relaxed);
        let records = self.core.memory.records();
        for (at, request) in self.live() {
            if let Some(record) = records.get(at as usize) {
                record.live(request.user_data);
            }
        }
    }

    /// Goes on where the former owner has ended.
    #[cold]
    fn adopt(&mut self, was_busy: bool) {
        let memory = &*self.core.memory;
        let (head, tail) = (memory.page().sq_head.load(Ordering::Relaxed), memory.tail());
        memory.word(Word::SqHead).store(head, Ordering::Release);
        memory.word(Word::CqTail).store(tail, Ordering::Release);
        if !was_busy {
            return;
        }
        for at in 0..memory.records().len() as u32 {
            // The tail of the former owner: what it has posted lies before that.
            if let Some(user_data) = memory.records()[at as usize].left(head, tail) {
                let cqe = Cqe { user_data, res: -libc::ECANCELED, flags: 0 };
                self.post_last(at, Some(cqe), false);
            }
        }
    }

    /// Nothing is in flight any more: another process may submit.
    pub(super) fn release(&mut self) {
        let (core, state) = (self.core, &mut *self.state);
        let is_idle = core.taken.load(Ordering::Relaxed) == core.ended()
            && !state.completions.has_overflown()
            && !state.completions.has_deferred();
        if is_idle && std::mem::take(&mut state.sharing.owns) {
            core.memory.page().release(core.me);
        }
    }

    /// Another process may make room in the ring, and wait for what has had none.
    #[inline]
    pub(super) fn flush_later(&mut self) {
        let State { sharing, completions, .. } = &mut *self.state;
        if sharing.is_shared && completions.has_overflown() && !sharing.flushes {
            let deadline = sys::now(libc::CLOCK_MONOTONIC).saturating_add(FLUSH_AFTER);
            sharing.flushes = self.core.set_timer(deadline, FLUSH).is_ok();
        }
    }

    pub(super) fn flush_again(&mut self) {
        self.state.sharing.flushes = false;
        self.flush();
        self.flush_later();
    }

    /// May this process say in the ring's words what is true?
    pub(super) fn speaks_for_ring(&self) -> bool {
        self.state.sharing.owns || !self.core.memory.page().is_shared()
    }

    /// An entry has become the request `at`.
    #[inline]
    pub(super) fn journal_taken(&mut self, at: u32, place: u32) {
        if !self.state.sharing.is_shared {
            return;
        }
        let memory = &*self.core.memory;
        let record = memory.records().get(at as usize);
        if let Some(record) = record {
            record.take(place, self.state.requests[at as usize].user_data);
        }
        memory.page().sq_head.store(place.wrapping_add(1), Ordering::Release);
        record.inspect(|record| record.taken());
    }

    /// The request `at` has ended, with a completion or without.
    #[inline]
    pub(super) fn post_last(&mut self, at: u32, cqe: Option<Cqe>, of_timeout: bool) {
        let core = self.core;
        let shared = self.state.sharing.is_shared;
        let record = shared.then(|| core.memory.records().get(at as usize)).flatten();
        if let Some(cqe) = cqe {
            record.inspect(|record| record.post(core.memory.tail()));
            self.post(cqe, of_timeout);
        }
        record.inspect(|record| record.end());
    }
}
