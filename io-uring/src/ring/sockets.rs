//! Requests on sockets: they are tried without the lock, and again when their sockets are ready.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use uringlet::Sqe;
use uringlet::front::Hints;

use super::state::Locked;
use super::types::{Edges, Line, Stage, Task};
use crate::abi::{CQE_MORE, CQE_NONEMPTY, Cqe, op};
use crate::attempts::{Sleeper, Tried};
use crate::calls::Call;
use crate::prepare::Plan;
use crate::service::{self, Watch};
use crate::sockets::{Ask, Message, Rest, Socket};
use crate::tuning::{SHOTS_IN_A_ROW, VAIN_TRIES};

impl Locked<'_> {
    /// Begins a call on a socket. `None`: it ends later.
    pub(super) fn issue_socket(&mut self, at: u32) -> Option<i32> {
        let (number, socket) = self.socket(at)?;
        self.list_number(at);
        // A request whose group has no buffer fails at once: it does not wait for earlier requests.
        let ends = !socket.polls_first && self.lacks_buffer(at);
        if socket.is_in_line() && !ends {
            self.request(at).stage = Stage::Behind;
            let line = Line { fd: number, events: socket.line() };
            if !self.join_line(at, line) {
                return None;
            }
        }
        if socket.polls_first {
            let is_known = || Hints::known(number).is_ok_and(Hints::seems_socket);
            let asks = socket.message().is_some() && (socket.gives_up || !is_known());
            let refusal = if asks { socket.refusal(number) } else { None };
            return refusal.or_else(|| self.wait_for_socket(at));
        }
        if socket.may_be_left_untried()
            && !self.cancels
            && let watcher = Arc::clone(self.core())
            && let Some(poll) = service::watch_untried(number, watcher, self.key(at))
        {
            self.request(at).stage = Stage::Poll(poll);
            self.core().untried.store(true, Ordering::Relaxed);
            return None;
        }
        self.try_socket(at);
        None
    }

    /// Is this a read or write of a socket? Then it becomes a call on the socket.
    pub(super) fn is_transfer_on_socket(&mut self, at: u32, sqe: &Sqe) -> bool {
        let is_send = match sqe.opcode {
            op::READ | op::READV => false,
            op::WRITE | op::WRITEV => true,
            _ => return false,
        };
        // The engine executes transfers that have flags or an offset, or are empty.
        let is_plain = sqe.op_flags == 0 && [0, u64::MAX].contains(&sqe.off);
        if !is_plain || !Hints::known(sqe.fd).is_ok_and(Hints::seems_socket) {
            return false;
        }
        let request = self.request(at);
        let message = if matches!(sqe.opcode, op::READV | op::WRITEV) {
            let part = |one: &libc::iovec| [one.iov_base.addr() as u64, one.iov_len as u64];
            Message::of_parts(is_send, request.iov.iter().map(part).collect())
        } else {
            Message::of_buffer(is_send, [sqe.addr, sqe.len.into()])
        };
        if message.is_empty() {
            return false;
        }
        let flags = if is_send { libc::MSG_NOSIGNAL } else { 0 };
        let socket = Socket::new(Ask::Transfer(message), flags).shared();
        request.set_call(Call::Socket { fd: sqe.fd, socket });
        true
    }

    /// A call has ended with this result. True: it was a read or write of something else than a
    /// socket, and the engine gets it.
    pub(super) fn was_no_socket(&mut self, at: u32, result: i32) -> bool {
        let request = self.request(at);
        let Plan::Engine(sqe, _) = request.plan else { return false };
        let is_transfer = op::is_transfer(sqe.opcode) && request.stage == Stage::Tried;
        if result != -libc::ENOTSOCK || !is_transfer {
            return false;
        }
        request.call = None;
        self.leave_line(at);
        self.hand_over(at, sqe);
        self.make_ready(at);
        true
    }

    /// Unregisters a ring of buffers. Requests that wait for its buffers end.
    pub(crate) fn unregister_group(&mut self, number: u16) -> Result<(), i32> {
        let waiting = self.groups.unregister(number)?;
        waiting.into_iter().for_each(|at| self.try_socket(at));
        Ok(())
    }

    /// A call was tried, and has not ended.
    pub(super) fn socket_was_tried(&mut self, at: u32, tried: Tried) {
        if self.request(at).stage != Stage::Tried {
            return;
        }
        if let Some((_, socket)) = self.socket(at) {
            if matches!(tried, Tried::Waits) && !socket.has_begun() && !socket.commits() {
                self.settle_buffer(at, None);
            } else if let Some(taken) = &mut self.request(at).taken {
                taken.stays = true;
            }
        }
        self.leave_group(at);
        let is_over = self.core().closing.load(Ordering::Relaxed);
        let refused = self.request(at).refused;
        let result = match tried {
            Tried::Done(result) => Some(result),
            // The request was cancelled meanwhile, its thread has ended, or the ring is being
            // closed.
            _ if refused != 0 || is_over => Some(-libc::ECANCELED),
            Tried::Waits => self.wait_for_socket(at),
            Tried::Sleeps => self.sleep(at),
            Tried::Blocks => {
                self.socket(at);
                let sqe = self.request(at).call_sqe();
                self.hand_over(at, sqe);
                self.make_ready(at);
                None
            }
        };
        if let Some(result) = result {
            self.finish(at, result, 0);
        }
    }

    /// Makes a separate thread wait for the request.
    fn sleep(&mut self, at: u32) -> Option<i32> {
        let key = self.key(at);
        let Some(sleeper) = self.socket(at).and_then(|(_, socket)| socket.sleeper()) else {
            return Some(-libc::EINVAL);
        };
        self.request(at).stage = Stage::Engine;
        self.tasks.push(Task::Sleep(key, sleeper));
        None
    }

    /// The wait of this request in a separate thread, if there is one.
    pub(super) fn sleeper(&self, at: u32) -> Option<Arc<dyn Sleeper>> {
        let request = &self.requests[at as usize];
        match request.call.as_deref() {
            Some(Call::Socket { socket, .. }) if request.stage == Stage::Engine => socket.sleeper(),
            _ => None,
        }
    }

    /// The engine has ended a call. False: the request has not ended, because it waits for its
    /// socket or goes on.
    pub(super) fn was_ended(&mut self, at: u32, result: i32) -> bool {
        if self.goes_on(at, result) {
            return false;
        }
        let is_over = result != -libc::EAGAIN
            || !self.socket(at).is_some_and(|(_, socket)| socket.was_given_back());
        if !is_over {
            self.request(at).stage = Stage::Tried;
            self.socket_was_tried(at, Tried::Waits);
        }
        is_over
    }

    /// Handles a result of a call. True: the request continues after a completion, or has ended
    /// here.
    pub(super) fn goes_on(&mut self, at: u32, result: i32) -> bool {
        let socket = match self.request(at).call.as_deref() {
            Some(Call::Socket { socket, .. }) if socket.goes_on_after(result) => Arc::clone(socket),
            _ => return false,
        };
        let core = self.core();
        let has_room = self.can_go_on() && core.completions() < core.memory.cq_entries();
        let is_over = core.closing.load(Ordering::Relaxed) || self.request(at).refused != 0;
        if !has_room || is_over {
            return false;
        }
        let result = match self.request(at).target_slot {
            Some(slot) => self.install_number(slot, result),
            None => result,
        };
        if result < 0 {
            self.request(at).target_slot = None;
            self.finish(at, result, 0);
            return true;
        }
        let more = if socket.tells_more() { CQE_NONEMPTY } else { 0 };
        let flags = CQE_MORE | more | self.settle_buffer(at, Some(result));
        let user_data = self.request(at).user_data;
        self.post(Cqe { user_data, res: result, flags }, false);
        self.leave_group(at);
        self.request(at).stage = Stage::Tried;
        let has_rest = socket.rest() != Rest::Nothing;
        if has_rest && socket.rounds() % SHOTS_IN_A_ROW != 0 {
            self.try_socket(at);
        } else if !has_rest && socket.gives_up && socket.is_read() {
            self.finish(at, -libc::EAGAIN, 0);
        } else if let Some(errno) = self.wait_for_socket(at) {
            self.finish(at, errno, 0);
        }
        true
    }

    /// Lets a call be tried when its socket is ready, or returns a negative errno.
    fn wait_for_socket(&mut self, at: u32) -> Option<i32> {
        let (number, socket) = self.socket(at)?;
        let misses = socket.misses();
        if let Some(edges) = &self.request(at).edges {
            if edges.again || misses == 0 {
                self.try_socket(at);
            } else {
                self.request(at).stage = Stage::Poll(edges.poll);
            }
            return None;
        }
        let watch = Watch::of(socket.events() as u16 as u32, misses > VAIN_TRIES);
        let stays = socket.may_be_left_untried() && !watch.multi;
        let watch = Watch { stays, is_poll: false, ..watch };
        match service::watch(number, watch, Arc::clone(self.core()) as _, self.key(at)) {
            Ok(poll) => {
                let request = self.request(at);
                request.stage = Stage::Poll(poll);
                request.edges = watch.multi.then_some(Edges { poll, again: false });
                None
            }
            // A file that cannot be polled has no event that would come first.
            Err(errno) if errno == -libc::EPERM && socket.polls_first => Some(-libc::EAGAIN),
            Err(errno) => Some(errno),
        }
    }

    /// The socket of a request is ready. False: the request is not on a socket.
    pub(super) fn socket_is_ready(&mut self, at: u32) -> bool {
        let request = self.request(at);
        let is_socket = matches!(request.call.as_deref(), Some(Call::Socket { .. }));
        if is_socket && matches!(request.stage, Stage::Poll(_)) {
            self.try_socket(at);
        } else if let Some(edges) = &mut request.edges {
            edges.again = true;
        }
        is_socket
    }

    /// A cancel has found a request that was being tried. Returns the present stage of the request.
    /// A request that waits now, or is about to go to the engine, ends.
    pub(super) fn cancel_tried(&mut self, at: u32) -> Stage {
        let (stage, by) = (self.request(at).stage, self.request(at).canceled_by);
        if !matches!(stage, Stage::Poll(_) | Stage::Behind | Stage::Ready) {
            return stage;
        }
        if self.find(by).is_some() {
            self.end_behind(by, at);
        } else {
            self.end_later(at, -libc::ECANCELED);
        }
        Stage::Ends
    }
}
