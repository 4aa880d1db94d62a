//! From the start of a request to its end: who takes its completion, and when its slot is free.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Instance, Taker};
use crate::affinity::placed::How;
use crate::cqe::Cqe;
use crate::eventfd;
use crate::queue::{IoEvent, Posted};
use crate::request::{Completion, FreeIt, Kind, Returned};
use crate::stats::Counters;

/// Takes completions as they happen, in place of a completion queue: called by whichever thread
/// has ended the request, with no lock held.
pub trait Sink: Send + Sync + std::fmt::Debug {
    /// A request has ended; `obj` is its [`Sqe::user_data`](crate::Sqe::user_data). Called once for each.
    fn complete(&self, event: &IoEvent);

    /// Its slot is free, and those who wait for it are woken.
    fn released(&self);
}

/// Who executed a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// A thread of the program, while it waited.
    Waiter,
    /// A worker with the baton.
    Worker,
    /// A worker without the baton.
    Pool,
    /// The poller.
    Poller,
    /// The kernel, or the C library's threads.
    Kernel,
}

impl Instance {
    /// Begins the execution of a request whose number the caller popped. False: it was cancelled.
    #[inline]
    pub(crate) fn start(&self, index: u32) -> bool {
        match self.slot(index).start() {
            Ok(()) => true,
            Err(FreeIt(free)) => {
                if free {
                    self.reaped_in_rings.fetch_sub(1, Ordering::Relaxed);
                    self.free.give(index);
                }
                false
            }
        }
    }

    /// Completions that `f` finishes are sent to other CPUs at once.
    pub(crate) fn together(&self, f: impl FnOnce()) {
        match &self.placed {
            Some(placed) => placed.together(self, f),
            None => f(),
        }
    }

    /// Sends a completion to its CPU. False: it is completed here.
    #[inline]
    fn sends_away(&self, index: u32, result: i32, how: How) -> bool {
        self.placed.as_ref().is_some_and(|placed| placed.sends_away(index, result, how))
    }

    /// A completion has come to its CPU.
    pub(crate) fn complete_placed(&self, index: u32, result: i32, how: How) {
        if let Some(placed) = &self.placed {
            // SAFETY: who executed or cancelled it has passed it on to this thread.
            let user_data = unsafe { self.slot(index).shared() }.sqe.user_data;
            placed.handle(Cqe { user_data, res: result, flags: 0 });
        }
        match how {
            How::Finished(by) => self.finish_here(index, result, by),
            How::Posted => self.post(std::iter::once((index, result))),
        }
    }

    pub(super) fn post_placed(&self, index: u32, result: i32) {
        if !self.sends_away(index, result, How::Posted) {
            self.post(std::iter::once((index, result)));
        }
    }

    /// As [`Instance::finish`], by a thread that may want the completion for itself.
    #[inline(always)]
    pub(crate) fn finish_for(&self, index: u32, result: i32, by: By, taker: &mut Taker<'_>) {
        if !self.is_taken(index, result, by, taker) {
            self.finish_here(index, result, by);
        }
    }

    /// Completes a started request if it belongs to another CPU, or the caller wants the completion for itself. False: it is to be posted.
    #[inline(always)]
    pub(crate) fn is_taken(&self, index: u32, result: i32, by: By, taker: &mut Taker<'_>) -> bool {
        // SAFETY: started by the caller.
        let request = unsafe { self.slot(index).request() };
        if self.sends_away(index, result, How::Finished(by)) {
            return true;
        }
        if !taker.has_room() || request.notify >= 0 {
            // With a sink it has its completion at once, too.
            taker.taken += u32::from(self.sink.is_some());
            return false;
        }
        if let Some(counters) = self.counters() {
            self.count_finished(counters, index, result, by);
        }
        taker.take(self, index, result);
        true
    }

    /// Completes a started request. The caller lets go of the slot here.
    #[inline]
    pub(crate) fn finish(&self, index: u32, result: i32, by: By) {
        if !self.sends_away(index, result, How::Finished(by)) {
            self.finish_here(index, result, by);
        }
    }

    /// As [`Instance::finish`], for requests that have ended together, at least one: whoever waits is told once.
    #[inline]
    pub(crate) fn finish_all(&self, done: impl Iterator<Item = (u32, i32)> + Clone, by: By) {
        if self.placed.is_none() {
            return self.finish_all_here(done, by);
        }
        done.for_each(|(index, result)| self.finish(index, result, by));
    }

    /// As [`Instance::finish`], on this very CPU.
    #[inline]
    fn finish_here(&self, index: u32, result: i32, by: By) {
        self.finish_all_here(std::iter::once((index, result)), by);
    }

    /// As [`Instance::finish_all`], on this very CPU.
    #[inline]
    pub(crate) fn finish_all_here(&self, done: impl Iterator<Item = (u32, i32)> + Clone, by: By) {
        let ended = |(index, result): (u32, i32)| {
            if let Some(counters) = self.counters() {
                self.count_finished(counters, index, result, by);
            }
            self.slot(index).done();
        };
        if self.has_sink() {
            // One by one: whoever finds that a request is over is to find its completion.
            return done.for_each(|one| {
                ended(one);
                self.post(std::iter::once(one));
            });
        }
        done.clone().for_each(ended);
        self.post(done);
    }

    #[inline]
    fn post(&self, done: impl Iterator<Item = (u32, i32)> + Clone) {
        if let Some(sink) = &self.sink {
            return done.for_each(|(index, result)| self.deliver(&**sink, index, result));
        }
        let completions = done.map(|(index, result)| {
            // SAFETY: the caller holds the slot: it executed, cancelled or retracted the request.
            let request = unsafe { self.slot(index).shared() };
            Completion {
                cqe: Cqe { user_data: request.sqe.user_data, res: result, flags: 0 },
                data: request.data,
                notify: self.slot(index).notify(),
                slot: index,
            }
        });
        if let Some(posted) = self.completions.post(completions)
            && (posted.wakes() || !posted.notifies().is_empty())
        {
            self.tell(&posted);
        }
    }

    #[inline(never)]
    fn deliver(&self, sink: &dyn Sink, index: u32, result: i32) {
        // SAFETY: as in `post`.
        let request = unsafe { self.slot(index).shared() };
        let (data, obj) = (request.data, request.sqe.user_data);
        let event = IoEvent { data, obj, res: i64::from(result), res2: 0 };
        sink.complete(&event);
        // Afterwards, so that whoever finds no such slot finds the completion.
        self.reaped(index);
        self.completions.completed(&event);
        sink.released();
    }

    #[inline(never)]
    fn tell(&self, posted: &Posted) {
        // As the kernel does: who is woken finds the count. It cannot block.
        for &(fd, count) in posted.notifies() {
            eventfd::count_up(fd, count);
            self.completions.told(count);
        }
        if posted.wakes() {
            self.completions.wake();
        }
    }

    /// A completion was reaped: its slot is free, unless its number is still in a ring.
    #[inline]
    fn reaped(&self, index: u32) {
        let mut returned = Returned::default();
        self.reaped_with_others(index, &mut returned);
        self.free.give_returned(&mut returned);
    }

    #[inline]
    fn reaped_with_others(&self, index: u32, returned: &mut Returned) {
        if self.slot(index).reaped().0 {
            self.free.give_later(index, returned);
        } else {
            self.reaped_in_rings.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Calls `f` with what is to be called for each completion that was reaped.
    #[inline]
    pub(super) fn reaping<R>(&self, f: impl FnOnce(&mut dyn FnMut(u32)) -> R) -> R {
        let mut returned = Returned::default();
        let result = f(&mut |index| self.reaped_with_others(index, &mut returned));
        self.free.give_returned(&mut returned);
        result
    }

    #[inline(never)]
    pub(super) fn count_finished(&self, counters: &Counters, index: u32, result: i32, by: By) {
        // SAFETY: started by the caller, which still holds it.
        let request = unsafe { self.slot(index).request() };
        let bytes = u64::try_from(result).unwrap_or(0) + u64::from(request.partial);
        let add = |counter: &AtomicU64, n| counter.fetch_add(n, Ordering::Relaxed);
        match request.kind {
            Kind::Read => {
                add(&counters.bytes_read, bytes);
                add(&counters.reads, 1)
            }
            Kind::Write => {
                add(&counters.bytes_written, bytes);
                add(&counters.writes, 1)
            }
            Kind::Sync => add(&counters.fsyncs, 1),
            Kind::Poll => add(&counters.polls, 1),
            Kind::Quick | Kind::Other | Kind::Invalid => add(&counters.others, 1),
        };
        let by = match by {
            By::Waiter => &counters.by_waiter,
            By::Worker => &counters.by_worker,
            By::Pool => &counters.by_pool,
            By::Poller => &counters.by_poller,
            By::Kernel => &counters.by_kernel,
        };
        add(by, 1);
        if result < 0 {
            add(&counters.errors, 1);
        }
        counters.completion.record(self.ns_since(request.submitted));
        if let Some(placed) = &self.placed {
            placed.count(counters, index);
        }
    }
}
