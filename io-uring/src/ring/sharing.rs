//! How this process shares a ring with other processes: ownership and the journal. The words in
//! shared memory are in [`shared`](crate::shared).

use std::sync::atomic::Ordering;

use super::state::{Core, Locked};
use crate::abi::Cqe;
use crate::completions::Queue as _;
use crate::memory::Word;
use crate::shared::page::Claim;
use crate::sys;

impl Core {
    /// Makes this process the first owner of the new ring.
    pub(crate) fn found(&self) {
        self.memory.page().found(self.me);
        self.show_flags(0);
    }

    /// Called after posts, and after a fence: wakes threads that sleep on the ring's tail.
    #[inline]
    pub(super) fn wake_sleepers(&self) {
        let page = self.memory.page();
        if page.takes_sleepers() {
            sys::wake_all(&page.cq_tail);
        }
    }
}

impl Locked<'_> {
    /// This process becomes the owner, and remains the owner until it has nothing in flight. `gone`
    /// is the word of an owner that has ended, or 0.
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
        // Possibly no thread of this process ever waits, so nothing may be left to a waiting
        // thread.
        self.core.told.store(true, Ordering::Relaxed);
        let records = self.core.memory.records();
        for (at, request) in self.live() {
            if let Some(record) = records.get(at as usize) {
                record.live(request.user_data);
            }
        }
    }

    /// Takes over the queues of the former owner, and completes the requests that it has left if it
    /// was busy.
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
            // `tail` is the former owner's: all completions of that owner are before `tail`.
            if let Some(user_data) = memory.records()[at as usize].left(head, tail) {
                let cqe = Cqe { user_data, res: -libc::ECANCELED, flags: 0 };
                self.post_last(at, Some(cqe), false);
            }
        }
    }

    /// Gives up ownership if this process has nothing in flight any more: another process may
    /// submit then.
    pub(super) fn release(&mut self) {
        let (core, state) = (self.core, &mut *self.state);
        let is_idle = core.taken.load(Ordering::Relaxed) == core.ended()
            && !state.completions.has_overflown()
            && !state.completions.has_deferred();
        if is_idle && std::mem::take(&mut state.sharing.owns) {
            core.memory.page().release(core.me);
        }
    }

    /// May this process update the ring's flags?
    pub(super) fn speaks_for_ring(&self) -> bool {
        self.state.sharing.owns || !self.core.memory.page().is_shared()
    }

    /// Records in the journal that the entry at `place` has become the request `at`.
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
}
