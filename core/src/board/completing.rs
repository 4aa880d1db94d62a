//! How requests end. A completion goes to the queue, to a sink, to another CPU, or to the thread
//! that executed the request.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Board, Delivery, DirectCompletions, Executor, Sink};
use crate::cqe::Cqe;
use crate::eventfd;
use crate::exec::{self, Mode};
use crate::queue::{IndexRing, Posted};
use crate::request::{Completion, Kind, Queued, Request, Returned, Started};
use crate::stats::Counters;
use crate::sys::aio::IoEvent;

impl Board {
    /// Ends all requests of a queue, because the context is being destroyed.
    pub(crate) fn end_all(&self, queue: &IndexRing) {
        while let Some(request) = self.pop(queue) {
            self.end(request);
        }
    }

    /// Ends a request because the context is being destroyed.
    ///
    /// A strict context, as of libaio, executes requests that have not started. It cancels only
    /// polls, and requests on pipes and sockets, which may wait without end. io_destroy(2) cancels
    /// no others either: io_submit(2) has executed buffered requests, and begun direct ones. Other
    /// contexts cancel all requests that have not started.
    fn end(&self, request: Queued<'_>) {
        if let Some(request) = self.start(request) {
            self.end_started(request);
        }
    }

    /// Ends a started request, as [`Board::end_all`] does with the requests of a queue.
    pub(crate) fn end_started(&self, mut request: Started<'_>) {
        let ends = !request.stream && request.kind != Kind::Poll;
        if self.strict && ends {
            // SAFETY: `copy_in` has run at submit, and the buffers belong to the request until its
            // completion.
            let result = unsafe { exec::execute(&mut request, Mode::Plain) };
            if let Some(counters) = self.counters() {
                self.count_finished(counters, request.index(), &request, result, Executor::Waiter);
            }
            request.slot().done();
            self.post_placed(request.into_index(), result);
        } else {
            request.slot().done();
            self.post_canceled(request.into_index());
        }
    }

    /// Completes a request that the caller has cancelled. If another thread still has its number,
    /// that thread does not execute it.
    pub(crate) fn post_canceled(&self, index: u32) {
        self.count(|counters| &counters.canceled);
        // SAFETY: the caller has cancelled the request, so no thread executes or changes it. A
        // thread that pops its number may read it.
        let request = unsafe { self.slot(index).ended() };
        let result = match request.kind {
            // Bytes that went into a stream cannot be taken back.
            _ if request.partial > 0 => request.partial as i32,
            // As in io_cancel(2).
            Kind::Poll if self.strict => 0,
            _ => -libc::ECANCELED,
        };
        self.post_placed(index, result);
    }

    /// Runs `f`. The completions that `f` makes for another CPU are sent to that CPU in one batch.
    pub(crate) fn together(&self, mut f: impl FnMut()) {
        match &self.placed {
            Some(placed) => placed.together(self, &mut f),
            None => f(),
        }
    }

    /// Sends a completion to its CPU. False: the caller completes the request here.
    #[inline]
    fn sends_away(&self, index: u32, result: i32, how: Delivery) -> bool {
        self.placed.as_ref().is_some_and(|placed| placed.sends_away(index, result, how))
    }

    /// Completes a request on the CPU to which its completion was sent. Runs the handler first.
    pub(crate) fn complete_placed(&self, index: u32, result: i32, how: Delivery) {
        if let Some(placed) = &self.placed {
            // SAFETY: the thread that executed or cancelled the request has passed it to this one.
            let user_data = unsafe { self.slot(index).ended() }.sqe.user_data;
            placed.handle(Cqe { user_data, res: result, flags: 0 });
        }
        match how {
            Delivery::Finished(by) => self.finish_here(std::iter::once((index, result)), by),
            Delivery::Posted => self.post(std::iter::once((index, result))),
        }
    }

    fn post_placed(&self, index: u32, result: i32) {
        if !self.sends_away(index, result, Delivery::Posted) {
            self.post(std::iter::once((index, result)));
        }
    }

    /// As [`Board::finish`], for a thread that may take the completion directly.
    #[inline(always)]
    pub(crate) fn finish_for(
        &self,
        request: Started<'_>,
        result: i32,
        by: Executor,
        taker: &mut DirectCompletions<'_>,
    ) {
        if let Some(request) = self.offer(request, result, by, taker) {
            self.finish_here(std::iter::once((request.into_index(), result)), by);
        }
    }

    /// Completes a request if another CPU or the calling thread takes its completion. Otherwise
    /// returns the request, to be posted.
    #[inline(always)]
    pub(crate) fn offer<'a>(
        &self,
        request: Started<'a>,
        result: i32,
        by: Executor,
        taker: &mut DirectCompletions<'_>,
    ) -> Option<Started<'a>> {
        if self.sends_away(request.index(), result, Delivery::Finished(by)) {
            // The other CPU has the slot now.
            request.into_index();
            return None;
        }
        if !taker.has_room() || request.notify >= 0 {
            // A sink receives the completion at once, so it counts as taken.
            taker.taken += u32::from(self.sink.is_some());
            return Some(request);
        }
        if let Some(counters) = self.counters() {
            self.count_finished(counters, request.index(), &request, result, by);
        }
        taker.take(self, request, result);
        None
    }

    /// Completes a request.
    #[inline]
    pub(crate) fn finish(&self, request: Started<'_>, result: i32, by: Executor) {
        let index = request.into_index();
        if !self.sends_away(index, result, Delivery::Finished(by)) {
            self.finish_here(std::iter::once((index, result)), by);
        }
    }

    /// Completes requests that ended together, at least one. Waiters are woken once.
    #[inline]
    pub(crate) fn finish_together(&self, done: &[(u32, i32)], by: Executor) {
        let finish = || {
            if self.placed.is_none() {
                return self.finish_here(done.iter().copied(), by);
            }
            for &(index, result) in done {
                if !self.sends_away(index, result, Delivery::Finished(by)) {
                    self.finish_here(std::iter::once((index, result)), by);
                }
            }
        };
        match &self.sink {
            Some(sink) if done.len() > 1 => sink.together(&mut { finish }),
            _ => finish(),
        }
    }

    /// Posts completions on the calling thread's CPU.
    #[inline]
    fn finish_here(&self, done: impl Iterator<Item = (u32, i32)> + Clone, by: Executor) {
        let ended = |(index, result): (u32, i32)| {
            if let Some(counters) = self.counters() {
                // SAFETY: this thread has the ended request, which is not posted yet.
                let request = unsafe { self.slot(index).ended() };
                self.count_finished(counters, index, request, result, by);
            }
            self.slot(index).done();
        };
        if self.has_sink() {
            // The completions are posted one by one: a thread that sees that a request has ended
            // has to find its completion.
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
            let request = unsafe { self.slot(index).ended() };
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
        let request = unsafe { self.slot(index).ended() };
        let (data, obj) = (request.data, request.sqe.user_data);
        let event = IoEvent { data, obj, res: i64::from(result), res2: 0 };
        // SAFETY: `data` and `obj` are those of the request, which ends once.
        unsafe { sink.complete(&event) };
        // The slot is freed after the call, so that a thread that finds it free finds the
        // completion.
        self.reaped(index);
        self.completions.completed(&event);
        sink.released();
    }

    #[inline(never)]
    fn tell(&self, posted: &Posted) {
        // The eventfd is counted up before the waiter is woken, as in the kernel: the woken thread
        // finds the count. The write cannot block.
        for &(fd, count) in posted.notifies() {
            eventfd::count_up(fd, count);
            self.completions.signalled(count);
        }
        if posted.wakes() {
            self.completions.wake();
        }
    }

    /// Frees the slot of a completion that was reaped, unless the slot's number is still in a
    /// queue.
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
        }
    }

    /// Calls `f` with a function that frees slots. `f` calls that function with the slot of each
    /// completion that it reaps.
    #[inline]
    pub(crate) fn reaping<R>(&self, f: impl FnOnce(&mut dyn FnMut(u32)) -> R) -> R {
        let mut returned = Returned::default();
        let result = f(&mut |index| self.reaped_with_others(index, &mut returned));
        self.free.give_returned(&mut returned);
        result
    }

    /// Frees the slots of completions that the program has reaped from the ring itself.
    pub(crate) fn collect_reaped(&self) {
        self.reaping(|reaped| self.completions.collect(reaped));
    }

    #[inline(never)]
    fn count_finished(
        &self,
        counters: &Counters,
        index: u32,
        request: &Request,
        result: i32,
        by: Executor,
    ) {
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
            Executor::Waiter => &counters.by_waiter,
            Executor::Worker => &counters.by_worker,
            Executor::Pool => &counters.by_pool,
            Executor::Poller => &counters.by_poller,
            Executor::Kernel => &counters.by_kernel,
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

    /// Counts a read or a write that was executed at its submit, without a slot, with this result.
    #[inline]
    pub(crate) fn count_tried(&self, kind: Kind, result: i32) {
        if let Some(counters) = self.counters() {
            let all = u64::try_from(result).unwrap_or(0);
            let (bytes, transfers) = match kind {
                Kind::Write => (&counters.bytes_written, &counters.writes),
                _ => (&counters.bytes_read, &counters.reads),
            };
            bytes.fetch_add(all, Ordering::Relaxed);
            for counter in [&counters.submitted, transfers, &counters.by_waiter] {
                counter.fetch_add(1, Ordering::Relaxed);
            }
            if result < 0 {
                counters.errors.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
