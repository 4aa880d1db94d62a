//! Starts requests: the first step of each operation.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use uringlet::Sqe;
use uringlet::front::{self, Descriptor};

use super::state::Locked;
use super::types::{Stage, Task};
use crate::abi::{iosqe, op, rwf, setup, splice};
use crate::calls::Call;
use crate::files::Buffer;
use crate::prepare::{self, Plan};
use crate::sys::sockets;
use crate::{rights, sys};

/// The offset in a call on a stream, which has no offsets.
const STREAM: u64 = u64::MAX;

impl Locked<'_> {
    /// Begins a request. Returns the result with which the caller ends it. `None`: it ends later,
    /// or has ended already.
    pub(super) fn issue(&mut self, at: u32) -> Option<i32> {
        if let Err(errno) = self.resolve(at) {
            return Some(errno);
        }
        match self.request(at).plan {
            Plan::Nop(result) => Some(result),
            Plan::Engine(sqe, index) => self.issue_transfer(at, sqe, index),
            Plan::Call(slot, _) => self.issue_call(at, slot),
            // The memory that the entry points to was not copied.
            Plan::Vectored(..) => Some(-libc::EFAULT),
            Plan::CloseSlot(slot) => Some(self.clear_file(slot as usize)),
            Plan::Poll(watch) => self.issue_poll(at, watch),
            Plan::PollUpdate { old, new, events, flags } => {
                Some(self.update_poll(old, new, events, flags))
            }
            Plan::Timeout(timing) => self.begin_timeout(at, timing),
            Plan::TimeoutRemove { of, update } => Some(self.change_timeout(of, update)),
            // The target of the timeout has ended before the timeout was set.
            Plan::LinkTimeout(_) => Some(-libc::ECANCELED),
            Plan::Cancel(what) => self.begin_cancel(at, what),
            Plan::FilesUpdate { fds, count, offset } => {
                Some(self.update_files_by_request(fds, count, offset))
            }
            Plan::EpollCtl { epoll, op, fd, event } => {
                let (events, data) = event.unwrap_or_default();
                if op == libc::EPOLL_CTL_ADD {
                    self.core().registry.is_polled(fd);
                }
                if op != libc::EPOLL_CTL_DEL && front::poll_may_wait(fd) {
                    let call = Call::EpollCtl { epoll, op, fd, events, data };
                    self.request(at).set_call(call);
                    return self.issue_call(at, None);
                }
                Some(sys::epoll_ctl(epoll, op, fd, events, data))
            }
            Plan::Message(message) => self.send_parcel(at, message),
            Plan::Provide { group, count, first } => Some(self.groups.provide(group, count, first)),
            Plan::RemoveProvided { group, count } => Some(self.groups.remove(group, count)),
            Plan::Pipe { at, flags, slot } => Some(self.open_pipe(at, flags, slot)),
            Plan::Install { cloexec } => Some(sys::duplicate(self.number(at), cloexec)),
        }
    }

    /// Issues a transfer for the engine. `index`: the number of its registered buffer, if it uses
    /// one.
    fn issue_transfer(&mut self, at: u32, mut sqe: Sqe, index: Option<u16>) -> Option<i32> {
        sqe.fd = self.number(at);
        if sqe.fd < 0 {
            return Some(-libc::EBADF);
        }
        if let Some(index) = index {
            let held = if matches!(sqe.opcode, op::READV | op::WRITEV) {
                let parts = self.request(at).iov.iter();
                let parts = parts.map(|part| [part.iov_base as u64, part.iov_len as u64]);
                let parts: Vec<[u64; 2]> = parts.collect();
                self.hold_buffer(at, index, &parts, true)
            } else {
                self.hold_buffer(at, index, &[[sqe.addr, sqe.len.into()]], false)
            };
            if let Err(errno) = held {
                return Some(errno);
            }
        }
        if self.core().has(setup::IOPOLL) && sys::status_flags(sqe.fd) & libc::O_DIRECT == 0 {
            let open = sys::is_open(sqe.fd);
            return Some(if open { -libc::EOPNOTSUPP } else { -libc::EBADF });
        }
        let refused = self.is_refused(&sqe).then_some(-libc::EINVAL);
        let is_flagged = sqe.op_flags & !rwf::NOWAIT != 0;
        if is_flagged && sqe.op_flags & !rwf::OF_ANY_FILE == 0 && sys::ignores_flags(sqe.fd) {
            sqe.op_flags &= rwf::NOWAIT;
        }
        if let Some(result) = refused.or_else(|| self.transfer_now(at, &sqe)) {
            return Some(result);
        }
        if self.is_transfer_on_socket(at, &sqe) {
            return self.issue_socket(at);
        }
        self.hand_over(at, sqe)
    }

    /// Takes a registered buffer for a request. `-EFAULT`: there is no such buffer, a part of the
    /// transfer is outside of the buffer, or a part of a list is empty.
    fn hold_buffer(
        &mut self,
        at: u32,
        index: u16,
        parts: &[[u64; 2]],
        is_list: bool,
    ) -> Result<(), i32> {
        let buffer = self.buffers.as_ref().and_then(|all| all.get(index.into()));
        let is_in =
            |buffer: &Buffer, [at, len]: [u64; 2]| buffer.has(at, len) && !(is_list && len == 0);
        let has = |buffer: &Buffer| parts.iter().all(|&part| is_in(buffer, part));
        let buffer = buffer.filter(|buffer| has(&buffer.value)).cloned().ok_or(-libc::EFAULT)?;
        self.request(at).buffer = Some(buffer);
        Ok(())
    }

    /// The errno for a file that cannot send uncopied. It takes precedence over an error of the
    /// buffer.
    fn wrong_file(&mut self, at: u32) -> Option<i32> {
        let number = self.number(at);
        let refused = sockets::can_send_uncopied(number).err()?;
        (self.request(at).opcode == op::SEND_ZC || refused == -libc::EBADF).then_some(refused)
    }

    /// Makes a worker or this thread execute the request's call. `slot`: the slot for the opened
    /// file, if the entry names one.
    fn issue_call(&mut self, at: u32, slot: Option<u32>) -> Option<i32> {
        if let Err(errno) = self.aim_call(at) {
            return Some(errno);
        }
        let request = self.request(at);
        request.target_slot = slot;
        if rights::may_differ() && request.is_judged() {
            return self.call_here(at);
        }
        if matches!(request.call.as_deref(), Some(Call::Socket { .. })) {
            return self.issue_socket(at);
        }
        if self.is_made_here(at) {
            return None;
        }
        let sqe = self.request(at).call_sqe();
        self.hand_over(at, sqe)
    }

    /// Is this a close that does not wait, or an open that can be tried without waiting? Then the
    /// submitting thread makes the call, as in the kernel, after the requests before it have gone
    /// to the engine. Later entries of the batch are taken afterwards.
    fn is_made_here(&mut self, at: u32) -> bool {
        let (submits, key) = (self.state.submits, self.key(at));
        let request = &self.requests[at as usize];
        if !submits || request.flags & iosqe::ASYNC != 0 {
            return false;
        }
        let task = match request.call.as_deref() {
            Some(&Call::Close { fd }) if self.is_closed_here(at, fd) => Task::Call,
            Some(call) if call.is_tried_open() => Task::Open,
            _ => return false,
        };
        let request = self.request(at);
        if let Some(call) = request.call.take() {
            request.stage = Stage::Here;
            self.tasks.push(task(key, call));
        }
        self.begin_asking(at);
        true
    }

    /// May the submitting thread close this descriptor, for the request at `at`?
    fn is_closed_here(&self, at: u32, fd: i32) -> bool {
        // Requests that wait for an event get duplicates of the descriptor.
        let waits =
            |one: u32| matches!(self.requests[one as usize].stage, Stage::Poll(_) | Stage::Behind);
        let others = self.by_number.all(fd as u64).any(|one| one != at && !waits(one));
        !others && !self.core().registry.is_needed(fd) && closes_at_once(fd)
    }

    /// The engine gets a call that its submitter should have made. Returns the call if its request
    /// has ended, or its ring is being closed.
    pub(super) fn hand_over_call(&mut self, key: u64, call: Box<Call>) -> Option<Box<Call>> {
        let is_over = self.core().closing.load(Ordering::Relaxed);
        let Some(at) = self.find(key).filter(|_| !is_over) else { return Some(call) };
        let request = self.request(at);
        request.call = Some(call);
        let (sqe, asked) = (request.call_sqe(), std::mem::take(&mut request.asks));
        self.asking -= u32::from(asked);
        self.hand_over(at, sqe);
        self.make_ready(at);
        self.begin_link_timeout(at);
        None
    }

    /// A transfer was tried with this result. `None`: it would wait, and the engine gets it, unless
    /// it was cancelled meanwhile.
    pub(super) fn transfer_was_tried(&mut self, at: u32, result: Option<i32>) {
        let is_cancelled = self.request(at).refused != 0;
        match result.or(is_cancelled.then_some(-libc::ECANCELED)) {
            Some(result) => self.complete(at, result),
            None => self.make_ready(at),
        }
    }

    /// Makes a call on this thread, if this thread has submitted the request. Another thread comes
    /// here if it continues a chain. It may have other rights, so the answer is `-EACCES`.
    fn call_here(&mut self, at: u32) -> Option<i32> {
        let key = self.key(at);
        let request = self.request(at);
        let is_here = request.submitter == sys::thread_id();
        let Some(call) = request.call.take().filter(|_| is_here) else {
            return Some(-libc::EACCES);
        };
        self.tasks.push(Task::Call(key, call));
        None
    }

    /// Does the kernel refuse the flags or the offset with `EINVAL`, whatever file it is? Other
    /// errors have precedence, and the call for the transfer reports them.
    fn is_refused(&self, sqe: &Sqe) -> bool {
        const HIPRI: u32 = libc::RWF_HIPRI as u32;
        const APPENDS: u32 = libc::RWF_APPEND as u32 | rwf::NOAPPEND;
        let (flags, is_negative) = (sqe.op_flags, (sqe.off as i64) < -1);
        if !op::is_transfer(sqe.opcode)
            || flags == 0 && !is_negative
            || flags & !rwf::OF_ANY_FILE != 0
        {
            return false;
        }
        let is_polled = flags & HIPRI != 0 && !self.core.has(setup::IOPOLL);
        let is_wrong = is_polled || is_negative || flags & APPENDS == APPENDS;
        is_wrong && sys::is_open_for(sqe.fd, op::is_write(sqe.opcode))
    }

    /// Executes a buffered transfer with RWF_NOWAIT, which must not wait. `None`: it is another
    /// transfer.
    fn transfer_now(&mut self, at: u32, sqe: &Sqe) -> Option<i32> {
        let is_write = match sqe.opcode {
            op::READ | op::READV => false,
            op::WRITE | op::WRITEV => true,
            _ => return None,
        };
        let flags = sqe.op_flags;
        if flags & rwf::NOWAIT == 0 || sys::status_flags(sqe.fd) & libc::O_DIRECT != 0 {
            return None;
        }
        let whole = [libc::iovec { iov_base: sqe.addr as *mut _, iov_len: sqe.len as usize }];
        let is_vectored = matches!(sqe.opcode, op::READV | op::WRITEV);
        let parts = if is_vectored { &self.request(at).iov[..] } else { &whole };
        let call = |offset, flags| sys::transfer(sqe.fd, is_write, parts, offset, flags);
        let mut result = call(sqe.off, flags);
        // Streams have no offsets. A socket only takes offset 0.
        if result == -libc::ESPIPE && (sqe.off == 0 || !sys::is_socket(sqe.fd)) {
            result = call(STREAM, flags);
        }
        if result != -libc::EOPNOTSUPP || !is_write || flags & !rwf::OF_ANY_FILE != 0 {
            return Some(result);
        }
        Some(match sys::status_flags(sqe.fd) & libc::O_NONBLOCK {
            _ if !sys::is_anonymous(sqe.fd) => sys::refused_write(sqe.fd),
            0 => -libc::EAGAIN,
            _ => call(STREAM, 0),
        })
    }

    /// Takes the registered file of a request.
    fn resolve(&mut self, at: u32) -> Result<(), i32> {
        let request = self.request(at);
        if request.flags & iosqe::FIXED_FILE == 0 || !prepare::has_file(request.opcode) {
            return Ok(());
        }
        let index = request.fd as u32;
        self.request(at).file = Some(self.registered(index)?);
        Ok(())
    }

    /// Puts the descriptor numbers of the request's files into its call.
    fn aim_call(&mut self, at: u32) -> Result<(), i32> {
        let number = self.number(at);
        let is_fixed_in =
            match self.request(at).call.as_deref() {
                Some(
                    Call::Splice { from: (from, _), flags, .. } | Call::Tee { from, flags, .. },
                ) if flags & splice::FD_IN_FIXED != 0 => Some(*from),
                _ => None,
            };
        let source = is_fixed_in.map(|index| self.registered(index as u32)).transpose()?;
        let registry = self.core().registry;
        let Some(call) = self.request(at).call.as_deref_mut() else { return Ok(()) };
        match call {
            Call::Splice { from: (from, _), to: (to, _), flags, .. }
            | Call::Tee { from, to, flags, .. } => {
                *to = number;
                *flags &= !splice::FD_IN_FIXED;
                if let Some(source) = &source {
                    *from = source.number();
                }
            }
            Call::FSetXattr { fd, .. } | Call::FGetXattr { fd, .. } => *fd = number,
            Call::Socket { fd, socket } => {
                *fd = number;
                // Cloned only if there is a registered buffer: a clone costs two locked
                // instructions.
                let indexed = socket.buffer_index.map(|index| (index, Arc::clone(socket)));
                if let Some((index, socket)) = indexed
                    && let Some(message) = socket.message()
                {
                    let is_list = message.header.is_some();
                    let held = self.hold_buffer(at, index, message.all_parts(), is_list);
                    held.map_err(|errno| self.wrong_file(at).unwrap_or(errno))?;
                }
            }
            Call::Close { fd } => {
                let is_ours = registry.has(*fd) || front::is_own_descriptor(*fd);
                if is_ours {
                    return Err(-libc::EBADF);
                }
            }
            _ => {}
        }
        if let Some(source) = source {
            self.request(at).source = Some(source);
        }
        Ok(())
    }
}

/// Is it sure that close(2) of this descriptor does not wait? Yes for pipes, for sockets without
/// SO_LINGER, and for files of local file systems, as long as no request has begun on them.
fn closes_at_once(fd: i32) -> bool {
    match sys::kind(fd) {
        libc::S_IFIFO => true,
        libc::S_IFREG => Descriptor::fresh(fd).is_ok_and(Descriptor::is_local),
        libc::S_IFSOCK => {
            let domain = sockets::option(fd, libc::SO_DOMAIN);
            let is_usual = matches!(domain, Ok(libc::AF_UNIX | libc::AF_INET | libc::AF_INET6));
            is_usual && sockets::option(fd, libc::SO_LINGER) == Ok(0)
        }
        _ => false,
    }
}
