//! The end of requests: the completion is posted, the request's place in `State::requests` is
//! freed, and the chain goes on or breaks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::state::{Locked, State};
use super::types::Stage;
use crate::abi::{self, CQE_MORE, CQE_NONEMPTY, CQE_NOTICE, Cqe, iosqe, op, setup};
use crate::calls::Call;
use crate::chains::{NONE, Step};
use crate::completions::Queue as _;
use crate::memory::Word;
use crate::prepare::{self, Plan};
use crate::timers::{self, Timer};
use crate::tuning::FLUSH_AFTER_NS;
use crate::{service, sys};

/// The key of a timer without a request: it moves waiting completions into the ring.
pub(super) const FLUSH: u64 = u64::MAX;

impl Locked<'_> {
    /// The engine has ended a request. If a cancel has caused that, the cancel's completion is
    /// posted first.
    pub(super) fn complete(&mut self, at: u32, result: i32) {
        let by = self.request(at).canceled_by;
        if result != -libc::ECANCELED || self.find(by).is_none() {
            return self.finish(at, result, 0);
        }
        self.request(at).stage = Stage::Ends;
        self.state.held.push((by, at));
    }

    /// A cancel has ended. The requests that it has cancelled end in the next round.
    fn let_follow(&mut self, by: u64) {
        let State { held, chains, .. } = &mut *self.state;
        for (_, at) in held.extract_if(.., |(of, _)| *of == by) {
            chains.then_first(Step::End(at, -libc::ECANCELED));
        }
    }

    /// Removes a request from the place where it waits. It ends with this result in the next round.
    pub(super) fn end_later(&mut self, at: u32, result: i32) {
        self.disarm(at);
        self.request(at).stage = Stage::Ends;
        self.state.chains.then_first(Step::End(at, result));
    }

    /// As [`end_later`](Self::end_later), and no cancel finds it any more.
    pub(super) fn remove(&mut self, at: u32) {
        self.end_later(at, -libc::ECANCELED);
        self.request(at).stage = Stage::Removed;
    }

    /// As [`end_later`](Self::end_later), after the cancel with this key.
    pub(super) fn end_behind(&mut self, by: u64, at: u32) {
        self.disarm(at);
        self.request(at).stage = Stage::Ends;
        self.state.held.push((by, at));
    }

    /// Ends a request: its completion is posted, and its chain goes on or breaks.
    pub(super) fn finish(&mut self, at: u32, result: i32, flags: u32) {
        let result = match self.request(at).target_slot.take() {
            Some(slot) if result >= 0 => self.install_number(slot, result),
            _ => result,
        };
        let request = self.request(at);
        let (result, breaks) =
            request.call.as_deref().map_or((result, false), |call| call.outcome(result));
        let failed = breaks
            || match request.opcode {
                op::TIMEOUT => {
                    let asked = match &request.plan {
                        Plan::Timeout(timing) => timing.flags & abi::timeout::ETIME_SUCCESS != 0,
                        _ => false,
                    };
                    result < 0 && !(result == -libc::ETIME && asked)
                }
                op::LINK_TIMEOUT => request.refused != 0,
                _ => result < 0 || request.expected >= 0 && result != request.expected,
            };
        let failed = failed && !self.is_forgiven(at, result);
        let request = self.request(at);
        if failed && request.flags & iosqe::CQE_SKIP != 0 {
            request.quiet = true;
        }
        let skips = request.flags & iosqe::CQE_SKIP != 0 && !failed;
        let breaks = failed && request.flags & iosqe::HARDLINK == 0;
        let (opcode, user_data, quiet) = (request.opcode, request.user_data, request.quiet);
        let call = request.call.as_deref();
        let uses_buffer = call.is_some_and(|call| call.uses_buffer(result));
        let has_more = result >= 0 && call.is_some_and(Call::tells_more);
        let (timeout, mut next, key) = (request.timeout, request.next, self.key(at));
        let flags = flags | self.settle_buffer(at, uses_buffer.then_some(result));
        let flags = flags | if self.request(at).notice.is_some() { CQE_MORE } else { 0 };
        let flags = flags | if has_more { CQE_NONEMPTY } else { 0 };
        let cqe = Cqe { user_data, res: result, flags };
        self.post_end(at, (!skips).then_some(cqe), opcode == op::TIMEOUT);
        if !self.state.held.is_empty() {
            self.let_follow(key);
        }
        // If the request was not started, its timeout was not, either.
        let timeout = if timeout == NONE && self.is_link_timeout(next) { next } else { timeout };
        if timeout != NONE {
            // The request has ended before its linked timeout: the timeout is cancelled.
            let after = std::mem::replace(&mut self.request(timeout).next, NONE);
            self.request(timeout).target = NONE;
            self.disarm(timeout);
            self.request(timeout).stage = Stage::Ends;
            self.state.chains.then(Step::End(timeout, -libc::ECANCELED));
            if next == timeout {
                next = after;
            }
        }
        if next != NONE {
            let step = if breaks { Step::Break { head: next, quiet } } else { Step::Start(next) };
            self.state.chains.then(step);
        }
    }

    /// Does the chain of this request go on, although it has failed? For some operations the kernel
    /// only looks whether the entry was accepted and its file is there.
    fn is_forgiven(&mut self, at: u32, result: i32) -> bool {
        let request = self.request(at);
        let opcode = request.opcode;
        let is_registered = request.flags & iosqe::FIXED_FILE != 0;
        let (is_held, mode) = (request.file.is_some(), || sys::status_flags(request.fd));
        let has_file = || match is_registered {
            true => is_held,
            false => mode() >= 0 && mode() & libc::O_PATH == 0,
        };
        prepare::forgives(opcode)
            && request.refused == 0
            && result != -libc::ECANCELED
            && (opcode != op::SHUTDOWN || result != -libc::ENOTSOCK)
            && (result != -libc::EBADF || !prepare::has_file(opcode) || has_file())
    }

    /// Is this a linked timeout that the ring has accepted?
    fn is_link_timeout(&self, at: u32) -> bool {
        let request = self.requests.get(at as usize);
        request.is_some_and(|one| one.opcode == op::LINK_TIMEOUT && one.refused == 0)
    }

    /// Ends the rest of a broken chain.
    pub(super) fn cancel_chain(&mut self, mut next: u32, quiet: bool) {
        while next != NONE {
            let request = self.request(next);
            let result = if request.refused != 0 && request.refused != -libc::ECANCELED {
                request.refused
            } else {
                -libc::ECANCELED
            };
            let (at, user_data, opcode) = (next, request.user_data, request.opcode);
            next = request.next;
            let cqe = Cqe { user_data, res: result, flags: 0 };
            self.post_end(at, (!quiet).then_some(cqe), opcode == op::TIMEOUT);
        }
    }

    /// Ends the wait of a request: its poll, its timer, or its wait in the queue of ready requests.
    fn disarm(&mut self, at: u32) {
        if let Some(edges) = self.request(at).edges.take() {
            service::unwatch(edges.poll, self.key(at), Arc::as_ptr(self.core).addr());
        }
        // Matched by reference: a copy of the stage would have the size of the largest variant, and
        // most stages have no data.
        match &self.request(at).stage {
            &Stage::Poll(poll) => {
                service::unwatch(poll, self.key(at), Arc::as_ptr(self.core).addr())
            }
            &Stage::Timer(timer) => {
                if let Some(timer) = timer {
                    timer.disarm();
                }
                self.state.counting.retain(|&other| other != at);
            }
            &Stage::LinkTimer(timer) => _ = timer.disarm(),
            Stage::Ready => {
                let before = self.state.ready.len();
                self.state.ready.retain(|&other| other != at);
                if self.state.ready.len() < before {
                    self.core.handover.sub(1);
                }
            }
            Stage::Free
            | Stage::Waits
            | Stage::Behind
            | Stage::Tried
            | Stage::Engine
            | Stage::Here
            | Stage::Ends
            | Stage::Removed => {}
        }
    }

    /// Frees a request's place.
    fn let_go(&mut self, at: u32) {
        self.disarm(at);
        if self.request(at).group.is_some() {
            self.forget_group(at);
            self.leave_group(at);
            self.request(at).group = None;
        }
        self.leave_line(at);
        let (core, state) = (self.core, &mut *self.state);
        let request = &mut state.requests[at as usize];
        state.by_user_data.remove(at);
        state.by_number.remove(at);
        request.stage = Stage::Free;
        request.plan = Plan::Nop(0);
        request.drop_call();
        (request.target_slot, request.submitter) = (None, 0);
        if let Some(by) = request.in_front.take() {
            state.in_front[by as usize] -= 1;
        }
        state.asking -= u32::from(std::mem::take(&mut request.asks));
        if std::mem::take(&mut request.looked_at) {
            core.looks.fetch_sub(1, Ordering::Relaxed);
        }
        let files = [request.file.take(), request.source.take()];
        let (buffer, target) = (request.buffer.take(), request.target);
        if target != NONE {
            state.requests[target as usize].timeout = NONE;
        }
        state.free.push(at);
        state.chains.ended();
        files.into_iter().for_each(|file| self.release_file(file));
        self.release_buffer(buffer);
        core.one_has_ended();
    }

    /// Frees a request's place, and posts its completion, if it has one. If the request has a
    /// notice (`Request::notice`), a second completion follows.
    fn post_end(&mut self, at: u32, cqe: Option<Cqe>, of_timeout: bool) {
        let notice = self.request(at).notice.take();
        self.let_go(at);
        match cqe.zip(notice) {
            None => self.post_last(at, cqe, of_timeout),
            Some((cqe, res)) => {
                self.post(cqe, false);
                self.post_last(at, Some(Cqe { res, flags: CQE_NOTICE, ..cqe }), false);
            }
        }
    }

    /// Posts the last completion of the request `at`, if there is one, and records in the journal
    /// that the request has ended.
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

    /// Posts the completion of an entry that was executed without becoming a request.
    pub(super) fn end(&mut self, cqe: Cqe) {
        self.state.chains.ended();
        self.post(cqe, false);
        self.core.one_has_ended();
    }

    /// Posts a completion.
    pub(super) fn post(&mut self, cqe: Cqe, of_timeout: bool) {
        let core = self.core;
        self.state.to_wake = true;
        let disabled =
            core.memory.word(Word::CqFlags).load(Ordering::Relaxed) & abi::CQ_EVENTFD_DISABLED;
        if disabled == 0
            && let Some((_, only_async)) = &self.state.eventfd
        {
            self.state.eventfd_due |= !only_async || !core.is_entered();
        }
        if core.has(setup::DEFER_TASKRUN) && (self.state.stepping || !core.is_entered()) {
            self.state.completions.defer(&core.counts, cqe);
        } else {
            self.state.completions.add(&core.counts, &*core.memory, cqe);
            self.flush_later();
        }
        if of_timeout {
            core.memory.page().timeouts.fetch_add(1, Ordering::Release);
            return;
        }
        self.state.posted = self.state.posted.wrapping_add(1);
        if !self.state.counting.is_empty() {
            self.count_timeouts();
        }
    }

    /// Ends the timeouts whose number of completions has been posted.
    fn count_timeouts(&mut self) {
        let posted = self.state.posted;
        let counting = std::mem::take(&mut self.state.counting);
        let (due, left): (Vec<u32>, Vec<u32>) =
            counting.into_iter().partition(|&at| match &self.state.requests[at as usize].plan {
                Plan::Timeout(timing) => posted.wrapping_sub(timing.at) as i32 >= 0,
                _ => true,
            });
        self.state.counting = left;
        for at in due {
            self.end_later(at, 0);
        }
    }

    /// Does the ring have room for a completion after which the same request posts others?
    pub(super) fn can_go_on(&self) -> bool {
        self.state.completions.has_room(&self.core.counts, &*self.core.memory)
    }

    /// Moves waiting completions into the ring while it has room.
    pub(crate) fn flush(&mut self) {
        self.state.completions.flush(&self.core.counts, &*self.core.memory);
    }

    /// Sets a timer to move waiting completions into a shared ring. Another process may make room
    /// in the ring without a call of this process, and then wait for these completions.
    #[inline]
    pub(super) fn flush_later(&mut self) {
        let State { sharing, completions, .. } = &*self.state;
        if sharing.is_shared && completions.has_overflown() && !sharing.flushes {
            let deadline = sys::now(libc::CLOCK_MONOTONIC).saturating_add(FLUSH_AFTER_NS);
            self.state.sharing.flushes = self.set_timer(deadline, FLUSH).is_ok();
        }
    }

    pub(super) fn flush_again(&mut self) {
        self.state.sharing.flushes = false;
        self.flush();
        self.flush_later();
    }

    /// Sets a timer for the request with this key, or for [`FLUSH`]. It is due at `deadline`, or a
    /// little later.
    ///
    /// # Errors
    /// A negative errno: no thread can be made for the timer.
    pub(super) fn set_timer(&self, deadline: u64, key: u64) -> Result<Timer, i32> {
        timers::set(deadline, Arc::clone(self.core) as _, key)
    }
}
