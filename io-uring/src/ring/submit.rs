//! Turns entries into requests, and starts them: the requests of a batch, and each request that had
//! to wait for the end of another one.

use std::sync::atomic::Ordering;

use super::batch::{Batch, Prepared};
use super::state::{Locked, State, calls_more, is_small};
use super::types::{Line, PlainSend, Request, SendOutcome, Stage, Task, Try, is_in_order};
use crate::abi::{Cqe, iosqe, op, setup};
use crate::calls::Call;
use crate::chains::{NONE, Step};
use crate::memory::Word;
use crate::prepare::{self, Fields, Plan, Refused};

/// The result of a part of a batch.
#[derive(Debug)]
pub(super) enum Submitted {
    All,
    /// Something has to be done without the lock before the rest of the batch. A cancel asks the
    /// engine, or calls are made that come before the next entry.
    Pauses,
    /// Another thread has taken the next entry.
    Overtaken,
    /// The process with this word has requests in flight.
    Held(u64),
}

/// The result of taking one entry of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The batch goes on.
    GoesOn,
    /// The batch ends with this entry.
    Ends,
    /// The entry was not taken: earlier calls have to be made first.
    Pauses,
}

impl Locked<'_> {
    /// Continues a batch: consumes up to `count` entries. `thread` is the submitting thread, or 0.
    /// `gone` is the word of an owner that has ended, or 0.
    pub(super) fn submit(
        &mut self,
        count: u32,
        thread: u32,
        batch: &mut Batch,
        gone: u64,
    ) -> Submitted {
        let core = self.core;
        self.state.is_in_batch = false;
        if let Err(by) = self.claim(gone) {
            return Submitted::Held(by);
        }
        let sq_head = &core.memory.page().sq_head;
        if !batch.is_over && sq_head.load(Ordering::Relaxed) != batch.next() {
            return Submitted::Overtaken;
        }
        (self.state.submits, self.state.is_in_batch) = (core.is_entered(), true);
        self.state.cancels = batch.cancels;
        batch.has_sent = false;
        self.start_new();
        let mut pauses = false;
        while self.state.asking == 0 && !pauses && !batch.is_over {
            let next = match batch.has_next(count) {
                true => self.submit_one(thread, batch),
                false => Next::Ends,
            };
            pauses = next == Next::Pauses;
            self.state.more_follow = batch.has_next(count);
            batch.is_over = next == Next::Ends || !self.state.more_follow;
            if batch.is_over {
                // A chain ends with its batch.
                self.end_chain();
            }
            sq_head.store(batch.next(), Ordering::Release);
            self.start_new();
        }
        (self.state.submits, self.state.cancels) = (false, false);
        let head = sq_head.load(Ordering::Relaxed);
        core.memory.word(Word::SqHead).store(head, Ordering::Release);
        if self.state.asking > 0 || pauses {
            return Submitted::Pauses;
        }
        self.state.is_in_batch = false;
        self.take_steps();
        Submitted::All
    }

    /// Consumes an entry.
    fn submit_one(&mut self, thread: u32, batch: &mut Batch) -> Next {
        let core = self.core;
        let place = batch.next();
        if batch.sends && self.takes_send(place, thread) {
            (batch.taken, batch.consumed) = (batch.taken + 1, batch.consumed + 1);
            batch.has_sent = true;
            return Next::GoesOn;
        }
        if batch.paused != Some(place) && self.has_to_pause(place, batch.has_sent) {
            batch.paused = Some(place);
            return Next::Pauses;
        }
        let goes_on_if = |goes_on| if goes_on { Next::GoesOn } else { Next::Ends };
        batch.taken += 1;
        let Some((at, prepared)) = self.accept(place, batch) else {
            core.memory.word(Word::SqDropped).fetch_add(1, Ordering::Relaxed);
            // The entry leaves the queue, and does not count as submitted.
            self.end_chain();
            return goes_on_if(core.has(setup::SQPOLL));
        };
        batch.consumed += 1;
        self.list(at);
        self.journal_taken(at, place);
        // With SUBMIT_ALL or SQPOLL, an entry that is refused does not end the batch.
        let goes_on = self.assemble(at, prepared, thread);
        goes_on_if(goes_on || core.has(setup::SUBMIT_ALL | setup::SQPOLL))
    }

    /// Makes a request from the entry at this position of the queue. `None`: the program's index of
    /// the entry is out of range.
    fn accept(&mut self, place: u32, batch: &mut Batch) -> Option<(u32, Result<(), Refused>)> {
        if let Some(Prepared { request, answer, .. }) = batch.take(place) {
            let at = self.take();
            self.fill(at, request);
            return Some((at, answer));
        }
        let entry = self.core.memory.sqe(place)?;
        let at = self.take();
        let iopoll = self.core.has(setup::IOPOLL);
        let answer = self.request(at).prepare(&Fields(entry), iopoll);
        Some((at, answer))
    }

    /// Fills the place `at` with a request that was prepared before the lock was taken.
    pub(super) fn fill(&mut self, at: u32, request: Request) {
        if matches!(request.opcode, op::READV | op::WRITEV) {
            self.core.saw_vector(request.expected);
        }
        let Request { generation, stage, .. } = *self.request(at);
        *self.request(at) = Request { generation, stage, ..request };
    }

    /// Takes the entry at this position of the queue, if it is a send that its submitter makes.
    /// False: nothing was done, and the entry becomes a request.
    fn takes_send(&mut self, place: u32, thread: u32) -> bool {
        let core = self.core;
        if !matches!(core.memory.opcode(place), Some(op::SEND | op::WRITE)) {
            return false;
        }
        let state = &mut *self.state;
        // With multishot polls, the results of calls are posted one by one (`Core::polls_edges`).
        let may_try = state.submits
            && !state.sharing.is_shared
            && !core.has(setup::IOPOLL | setup::SQPOLL)
            && state.chains.is_quiet()
            && !core.polls_edges.load(Ordering::Relaxed);
        let Some(fields) = core.memory.sqe(place).map(Fields).filter(|_| may_try) else {
            return false;
        };
        // Earlier sends of this socket may wait for room.
        let line = Line { fd: fields.fd(), events: libc::POLLOUT };
        let is_behind = || state.lines.all(line.key()).next().is_some();
        if !prepare::is_plain_send(&fields)
            || !state.restrictions.allow(fields.opcode(), 0)
            || is_behind()
        {
            return false;
        }
        core.one_was_taken();
        calls_more(1);
        state.chains.begun();
        state.sending.push_back(fields.fd());
        let send = PlainSend { fields, thread, outcome: SendOutcome::Untried };
        // Results of calls on sockets are posted in the order of the entries.
        if state.tasks.is_empty() {
            state.tries.push(Try::Send(send));
        } else {
            state.tasks.push(Task::Send(send));
        }
        true
    }

    /// The kernel makes earlier calls on sockets before it comes to the entry at this position of
    /// the queue. Are such calls still to be made here? `has_sent`: there are sends among them.
    fn has_to_pause(&self, place: u32, has_sent: bool) -> bool {
        let state = &*self.state;
        if !has_sent && state.tasks.is_empty() || state.chains.head() != NONE {
            return false;
        }
        let Some(fields) = self.core.memory.sqe(place).map(Fields) else { return false };
        let (opcode, fd) = (fields.opcode(), fields.fd());
        if has_sent && (fields.flags() != 0 || !op::receives(opcode)) {
            return true;
        }
        let is_tried = |at: u32| {
            let stage = state.requests[at as usize].stage;
            matches!(stage, Stage::Tried | Stage::Behind)
        };
        let gives_up = fields.op_flags() & libc::MSG_DONTWAIT as u32 != 0;
        match opcode {
            op::ASYNC_CANCEL => state.tasks.iter().any(|task| matches!(task, Task::Try(..))),
            op::CLOSE => state.by_number.all(fd as u64).any(is_tried),
            // A send with MSG_DONTWAIT is in no line.
            op::SEND | op::SENDMSG if gives_up => {
                let line = Line { fd, events: libc::POLLOUT };
                state.lines.all(line.key()).any(is_tried)
            }
            _ => false,
        }
    }

    /// A send was made, or was not. It becomes a request if it has not ended.
    pub(super) fn send_was_made(&mut self, send: PlainSend) {
        let PlainSend { fields, thread, outcome } = send;
        let number = self.sending.iter().position(|&fd| fd == fields.fd());
        number.and_then(|at| self.sending.remove(at));
        let (socket, tried) = match outcome {
            SendOutcome::Ended(res) => {
                return self.end(Cqe { user_data: fields.user_data(), res, flags: 0 });
            }
            SendOutcome::Waits(socket, tried) => (socket, tried),
            SendOutcome::Untried => {
                let at = self.place_for(&fields, thread);
                return match self.request(at).prepare(&fields, false) {
                    Ok(()) => self.start(at),
                    Err(Refused::Malformed(errno) | Refused::Errno(errno)) => {
                        self.finish(at, errno, 0);
                    }
                };
            }
        };
        let (at, fd) = (self.place_for(&fields, thread), fields.fd());
        let line = Line { fd, events: socket.line() };
        let request = self.request(at);
        request.set_call(Call::Socket { fd, socket });
        request.stage = Stage::Tried;
        if self.join_line(at, line) {
            self.socket_was_tried(at, tried);
        } else {
            self.request(at).stage = Stage::Behind;
        }
    }

    /// A request for an entry that was taken out of the queue, without its plan.
    pub(super) fn place_for(&mut self, fields: &Fields, thread: u32) -> u32 {
        let at = self.place();
        let request = self.request(at);
        (request.opcode, request.flags, request.fd) = (fields.opcode(), 0, fields.fd());
        (request.user_data, request.thread) = (fields.user_data(), thread);
        self.list(at);
        self.list_number(at);
        at
    }

    /// Adds a request to its chain. False: its preparation has failed, and a batch ends here.
    fn assemble(&mut self, at: u32, prepared: Result<(), Refused>, thread: u32) -> bool {
        let refused = self.judge(at, prepared);
        let head = self.state.chains.head();
        let request = self.request(at);
        (request.refused, request.thread) = (refused, thread);
        let links = request.flags & (iosqe::LINK | iosqe::HARDLINK) != 0;
        // `judge` has cleared the flag in an entry that no ring accepts.
        let drains = request.flags & iosqe::DRAIN != 0;
        if refused != 0 && head != NONE {
            // The chain is assembled to its end, and fails as a whole.
            let head = self.request(head);
            if head.refused == 0 {
                head.refused = -libc::ECANCELED;
            }
        }
        let state = &mut *self.state;
        state.chains.add(&mut state.requests, at, drains);
        if links {
            // An entry that is linked to the next one does not end the batch, even if it has
            // failed.
            return true;
        }
        self.end_chain();
        refused == 0
    }

    /// Do the ring, and the chain that is being assembled, accept a prepared entry? 0, or a
    /// negative errno.
    fn judge(&mut self, at: u32, prepared: Result<(), Refused>) -> i32 {
        if let Err(Refused::Malformed(errno)) = prepared {
            self.request(at).flags &= !iosqe::DRAIN;
            return errno;
        }
        let &mut Request { opcode, flags, .. } = self.request(at);
        if !self.restrictions.allow(opcode, flags) {
            self.request(at).notice = None;
            return -libc::EACCES;
        }
        self.drain_disabled |= flags & iosqe::CQE_SKIP != 0;
        if flags & iosqe::DRAIN != 0 && self.drain_disabled {
            self.request(at).flags &= !iosqe::DRAIN;
            self.request(at).notice = None;
            return -libc::EOPNOTSUPP;
        }
        if let Err(Refused::Errno(errno)) = prepared {
            return errno;
        }
        let tail = self.chain_tail();
        let mut has_target = || tail != NONE && self.request(tail).opcode != op::LINK_TIMEOUT;
        if opcode == op::LINK_TIMEOUT && !has_target() { -libc::EINVAL } else { 0 }
    }

    /// Starts chains that may start now.
    fn start_new(&mut self) {
        while self.state.asking == 0
            && let Some(at) = self.state.chains.next_start()
        {
            self.start(at);
        }
    }

    /// Takes the steps that follow from ended requests, until there are none. A batch goes first.
    pub(super) fn take_steps(&mut self) {
        if self.state.is_in_batch {
            return;
        }
        self.state.stepping = true;
        while self.state.asking == 0 {
            let state = &mut *self.state;
            match state.chains.next_step(&state.requests) {
                Some(Step::Start(at)) => self.start(at),
                Some(Step::End(at, result)) => self.finish(at, result, 0),
                Some(Step::Break { head, quiet }) => self.cancel_chain(head, quiet),
                None => break,
            }
        }
        self.state.stepping = false;
    }

    fn start(&mut self, at: u32) {
        let request = self.request(at);
        request.stage = Stage::Here;
        if request.refused != 0 {
            // The chain was broken when it was made: hard links do not continue it.
            request.flags &= !iosqe::HARDLINK;
            if request.next != NONE {
                request.flags |= iosqe::LINK;
            }
            let refused = request.refused;
            return self.finish(at, refused, 0);
        }
        let key = self.key(at);
        if let Some(result) = self.issue(at) {
            return self.finish(at, result, 0);
        }
        if self.find(key).is_none() {
            return;
        }
        if self.request(at).stage == Stage::Ready && !self.is_tried(at) {
            self.make_ready(at);
        }
        self.begin_link_timeout(at);
    }

    /// Lets the submitting thread try a read or a write without the lock. False: the request cannot
    /// be tried, or would overtake a request that the engine has. A write is tried only at the end
    /// of its batch: it may wait, and later entries must not wait for it. (The first entries of a
    /// batch went another way, `Core::submit_fast`.)
    fn is_tried(&mut self, at: u32) -> bool {
        let key = self.key(at);
        let Plan::Engine(sqe, None) = self.request(at).plan else { return false };
        let write = op::is_write(sqe.opcode);
        let State { submits, more_follow, .. } = *self.state;
        let first = submits && !(write && more_follow) && !self.is_in_front_of(is_in_order(&sqe));
        let request = self.request(at);
        let alone = request.next == NONE && request.flags & iosqe::ASYNC == 0;
        let plain = match sqe.opcode {
            op::READ | op::WRITE => true,
            op::READV | op::WRITEV => is_small(request.expected),
            _ => false,
        };
        if !first || !alone || !plain || !uringlet::front::is_tried(sqe.fd, write) {
            return false;
        }
        request.stage = Stage::Tried;
        // The try may have to wait, and the request then needs its file.
        self.list_number(at);
        self.state.tries.push(Try::Transfer { key, sqe, result: None });
        true
    }

    /// Requests that the engine has not accepted are ready once more. If `errno` is not `-EAGAIN`,
    /// all ready requests end with it.
    pub(super) fn take_back(&mut self, keys: &[u64], errno: i32) {
        for at in keys.iter().rev().filter_map(|&key| self.find(key)).collect::<Vec<u32>>() {
            self.request(at).stage = Stage::Ready;
            self.state.ready.push_front(at);
        }
        if errno == -libc::EAGAIN {
            return;
        }
        while let Some(at) = self.state.ready.pop_front() {
            self.core.handover.sub(1);
            self.finish(at, errno, 0);
        }
    }
}
