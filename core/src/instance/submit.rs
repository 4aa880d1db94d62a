//! Submitting: slots are taken, requests are written to them, and the engine gets them, in batches.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Instance, Transfer};
use crate::engine::Contract;
use crate::exec;
use crate::request::{BATCH, CountSteps, Kind, Request};
use crate::sqe::Sqe;
use crate::sys;

/// A request as a front end hands it in.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The request.
    pub sqe: Sqe,
    /// Comes back as [`IoEvent::data`](crate::queue::IoEvent::data); not used with a ring of [`Cqe`](crate::Cqe)s.
    pub data: u64,
    /// An eventfd(2) that is counted up after the completion is visible, [`TOLD_OTHERWISE`], or -1.
    pub notify: i32,
}

/// [`Entry::notify`] of a request whose program is told of its end by the front end, and so may not
/// come to wait for it.
pub const TOLD_OTHERWISE: i32 = -2;

/// Where a request is written to; all three are to be set.
#[derive(Debug)]
pub struct Place<'a> {
    /// [`Entry::sqe`].
    pub sqe: &'a mut Sqe,
    /// [`Entry::data`].
    pub data: &'a mut u64,
    /// [`Entry::notify`].
    pub notify: &'a mut i32,
}

/// How far a submit got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// Entries taken over, from the first on.
    pub accepted: usize,
    /// Why the next one was refused, as a negative errno; 0 if all were accepted.
    pub refused: i32,
}

/// Writes each of `entries` to its place.
#[inline(always)]
fn entries_to(entries: &[Entry]) -> impl FnMut(usize, Place<'_>) -> Result<(), i32> {
    |at, place| entry_to(&entries[at], place)
}

#[inline(always)]
fn entry_to(&Entry { sqe, data, notify }: &Entry, place: Place<'_>) -> Result<(), i32> {
    *place.sqe = sqe;
    (*place.data, *place.notify) = (data, notify);
    Ok(())
}

/// What submits had to do with other submitters around: see [`Instance::submit_measured`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubmitSteps {
    /// Attempts to change a word of the free slots, which other submitters change too; failed ones
    /// and slots given back unused included.
    pub slots: u64,
    /// Calls of the engine, each of which announces its requests once.
    pub hand_overs: u64,
}

impl CountSteps for SubmitSteps {
    #[inline]
    fn step(&mut self) {
        self.slots += 1;
    }

    #[inline]
    fn handed_over(&mut self) {
        self.hand_overs += 1;
    }
}

impl Instance {
    /// Submits requests: takes slots for as many as there is room, in batches, and hands them to
    /// the engine. Never blocks.
    ///
    /// # Safety
    /// As for [`Instance::submit_with`].
    #[inline]
    pub unsafe fn submit(self: &Arc<Self>, entries: &[Entry]) -> Submitted {
        if let [entry] = entries {
            // SAFETY: the caller's contract.
            if unsafe { self.submit_entry_fast(entry) } {
                return Submitted { accepted: 1, refused: 0 };
            }
            // SAFETY: as above.
            let single = unsafe { self.submit_single(|place| entry_to(entry, place)) };
            if let Some(submitted) = single {
                return submitted;
            }
        }
        // SAFETY: as above.
        unsafe { self.submit_with(entries.len(), entries_to(entries)) }
    }

    /// # Safety
    /// As for [`Instance::submit_with`].
    #[inline(always)]
    unsafe fn submit_entry_fast(self: &Arc<Self>, entry: &Entry) -> bool {
        let &Entry { sqe, data, notify } = entry;
        // Cheapest first: many contexts have no fast path, as those of POSIX AIO.
        if !self.fast || notify != -1 || !self.is_of_this_process() {
            return false;
        }
        // SAFETY: the caller's contract.
        Transfer::of(&sqe)
            .is_some_and(|transfer| unsafe { self.submit_fast(&Transfer { data, ..transfer }) })
    }

    /// As [`Instance::submit`], with requests written to where they stay: `fill` gets the number
    /// of the request and its place, or refuses it with a negative errno, which ends the submit.
    ///
    /// # Safety
    /// The buffers of an accepted request stay valid until its completion was reaped, and the
    /// other addresses in it can be read now.
    #[inline(always)]
    pub unsafe fn submit_with(
        self: &Arc<Self>,
        count: usize,
        fill: impl FnMut(usize, Place<'_>) -> Result<(), i32>,
    ) -> Submitted {
        // SAFETY: the caller's contract.
        unsafe { self.submit_in_batches(count, BATCH, fill, &mut ()) }
    }

    /// As [`Instance::submit`], with slots taken `batch` at a time (1 to 32, which is what every
    /// other submit does), and the steps counted: for measuring what batches are worth.
    ///
    /// # Safety
    /// As for [`Instance::submit_with`].
    pub unsafe fn submit_measured(
        self: &Arc<Self>,
        entries: &[Entry],
        batch: usize,
        steps: &mut SubmitSteps,
    ) -> Submitted {
        // SAFETY: the caller's contract.
        unsafe { self.submit_in_batches(entries.len(), batch.max(1), entries_to(entries), steps) }
    }

    /// As [`Instance::submit_with`] for one request: the usual case of a program that submits one at a time, without what
    /// batches need. `None`: there was no free slot, and `fill` was not called; the other one makes room.
    ///
    /// # Safety
    /// As for [`Instance::submit_with`].
    #[inline(always)]
    pub unsafe fn submit_single(
        self: &Arc<Self>,
        fill: impl FnOnce(Place<'_>) -> Result<(), i32>,
    ) -> Option<Submitted> {
        let begin = if self.counters.is_some() { sys::ticks() } else { 0 };
        let slot = self.free.take_one(&mut ())?;
        // Asked while the slot is held: who destroys it later waits for what is in the slot.
        let gone = self.is_closed() || !self.is_of_this_process();
        let filled = if gone {
            Err(-libc::EINVAL)
        } else {
            // SAFETY: just taken; the caller answers for the rest.
            unsafe { self.fill_slot(slot, begin, fill) }
        };
        if let Err(refused) = filled {
            self.free.give(slot);
            return Some(Submitted { accepted: 0, refused });
        }
        self.hand_to_engine(&[slot]);
        self.count_submitted(1, begin);
        Some(Submitted { accepted: 1, refused: 0 })
    }

    /// # Safety
    /// As for [`Instance::submit_with`].
    #[inline(never)]
    unsafe fn submit_in_batches(
        self: &Arc<Self>,
        count: usize,
        batch_max: usize,
        mut fill: impl FnMut(usize, Place<'_>) -> Result<(), i32>,
        steps: &mut impl CountSteps,
    ) -> Submitted {
        if !self.is_usable() {
            return Submitted { accepted: 0, refused: -libc::EINVAL };
        }
        let begin = if self.counters.is_some() { sys::ticks() } else { 0 };
        let mut done = Submitted { accepted: 0, refused: 0 };
        let mut collected = false;
        while done.accepted < count && done.refused == 0 {
            let want = (count - done.accepted).min(batch_max);
            let (one, batch);
            let slots = if want == 1 {
                one = self.free.take_one(steps);
                one.as_slice()
            } else {
                batch = self.free.take_counted(want, steps);
                batch.as_slice()
            };
            if self.is_closed() {
                // Destroyed meanwhile: nobody would collect it.
                slots.iter().for_each(|&slot| self.free.give(slot));
                done.refused = -libc::EINVAL;
                break;
            }
            if slots.is_empty() {
                if collected {
                    done.refused = -libc::EAGAIN;
                } else {
                    self.make_room();
                    collected = true;
                }
                continue;
            }
            let mut filled = 0;
            for &slot in slots {
                let at = done.accepted + filled;
                // SAFETY: just taken; the caller answers for the rest.
                if let Err(errno) = unsafe { self.fill_slot(slot, begin, |place| fill(at, place)) }
                {
                    done.refused = errno;
                    break;
                }
                filled += 1;
            }
            for &slot in &slots[filled..] {
                steps.step();
                self.free.give(slot);
            }
            if filled > 0 {
                steps.handed_over();
                self.hand_to_engine(&slots[..filled]);
                done.accepted += filled;
            }
        }
        self.count_submitted(done.accepted, begin);
        done
    }

    /// Writes a request to its slot, or refuses it with a negative errno.
    ///
    /// # Safety
    /// The slot was taken from the free ones and not passed on yet; as for [`Instance::submit_with`].
    #[inline(always)]
    unsafe fn fill_slot(
        &self,
        slot: u32,
        begin: u64,
        fill: impl FnOnce(Place<'_>) -> Result<(), i32>,
    ) -> Result<(), i32> {
        let number = self.next_number(self.free.is_alone(slot));
        let slot = self.slot(slot);
        // SAFETY: the caller's contract.
        let request = unsafe { slot.request() };
        let Request { sqe, data, notify, .. } = &mut *request;
        fill(Place { sqe, data, notify })?;
        // SAFETY: the caller answers for the addresses.
        let refused = unsafe { exec::copy_in(request) }.err().unwrap_or(0);
        if refused != 0 && self.strict {
            return Err(refused);
        }
        request.kind = exec::kind(&request.sqe);
        let malformed = request.kind == Kind::Invalid;
        request.refused = if malformed { -libc::EINVAL as i16 } else { refused as i16 };
        request.submitted = begin;
        request.partial = 0;
        (request.fast, request.wary) = (false, false);
        slot.fill(request.sqe.user_data, request.sqe.fd, request.notify);
        slot.submitted_as(number, request.kind);
        Ok(())
    }

    #[inline(always)]
    fn hand_to_engine(self: &Arc<Self>, slots: &[u32]) {
        if let Some(placed) = &self.placed {
            placed.submitted(self, slots);
        }
        self.engine.submit(self, slots);
    }

    #[inline]
    fn count_submitted(&self, accepted: usize, begin: u64) {
        if let Some(counters) = self.counters()
            && accepted > 0
        {
            counters.submitted.fetch_add(accepted as u64, Ordering::Relaxed);
            counters.submit.record(self.ns_since(begin));
        }
    }

    /// Frees the slots of completions that the program has reaped from the ring by itself.
    pub(crate) fn collect_reaped(&self) {
        self.reaping(|reaped| self.completions.collect(reaped));
    }

    /// Gathers slots that are held for nobody.
    #[cold]
    #[inline(never)]
    fn make_room(self: &Arc<Self>) {
        self.collect_reaped();
        self.engine.purge(self);
        self.await_reaped();
    }

    /// Numbers of cancelled requests that are reaped already may be on their way out of a ring, in the
    /// hands of a thread that is executing: it is not to cost a program its room.
    #[cold]
    fn await_reaped(&self) {
        /// As long as a thread takes to pop them, even if it is preempted meanwhile.
        const POP_US: u64 = 2000;
        let begin = sys::ticks();
        while self.reaped_in_rings.load(Ordering::Relaxed) > 0
            && sys::ticks().wrapping_sub(begin) < POP_US * self.ticks_per_us
        {
            std::thread::yield_now();
        }
    }

    /// Slots whose completions were not reaped: a hint under concurrency.
    pub(crate) fn unreaped(&self) -> usize {
        let reaped = self.reaped_in_rings.load(Ordering::Relaxed).max(0) as usize;
        self.free.held().saturating_sub(reaped)
    }

    /// A slot is free: a hint, unless no other thread submits.
    pub fn has_room(&self) -> bool {
        !self.free.held_more_than(self.room() - 1)
    }
}
