//! Requests on sockets. Requests for the same events of a descriptor number wait in a line, in
//! their order.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::state::{Locked, calls_more};
use super::types::{Line, Stage, Task};
use crate::calls::Call;
use crate::chains::NONE;
use crate::sockets::Socket;

impl Locked<'_> {
    /// The call of a request on a socket, and its descriptor.
    pub(super) fn socket(&mut self, at: u32) -> Option<(i32, Arc<Socket>)> {
        let number = self.number(at);
        match self.request(at).call.as_deref_mut() {
            Some(Call::Socket { fd, socket }) => {
                *fd = number;
                Some((number, Arc::clone(socket)))
            }
            _ => None,
        }
    }

    /// Lets a call be tried without the lock, as a task.
    pub(super) fn try_socket(&mut self, at: u32) {
        let Some((number, socket)) = self.socket(at) else { return };
        if !self.take_buffer(at, &socket) {
            return;
        }
        let key = self.key(at);
        let request = self.request(at);
        request.stage = Stage::Tried;
        if let Some(edges) = &mut request.edges {
            edges.again = false;
        }
        self.core().trying.fetch_add(1, Ordering::Relaxed);
        calls_more(1);
        self.tasks.push(Task::Try(key, number, socket));
    }

    /// A request is no longer tried: another request that waits for the same group of buffers is
    /// tried.
    pub(super) fn leave_group(&mut self, at: u32) {
        while let Some(next) = self.free_group(at) {
            self.try_socket(next);
        }
    }

    /// Adds a request to the end of a line. True: the line was empty.
    pub(super) fn join_line(&mut self, at: u32, line: Line) -> bool {
        let last = self.lines.all(line.key()).next().unwrap_or(NONE);
        self.lines.add(at, line.key());
        let request = self.request(at);
        (request.line, request.in_line) = (Some(line), [NONE, last]);
        if last != NONE {
            self.request(last).in_line[0] = at;
        }
        last == NONE
    }

    /// A request leaves its line. The next one is tried.
    pub(super) fn leave_line(&mut self, at: u32) {
        let request = self.request(at);
        if request.line.take().is_none() {
            return;
        }
        let [behind, ahead] = request.in_line;
        if behind != NONE {
            self.request(behind).in_line[1] = ahead;
        }
        if ahead != NONE {
            self.request(ahead).in_line[0] = behind;
        }
        self.lines.remove(at);
        if ahead == NONE && behind != NONE {
            self.try_socket(behind);
        }
    }

    /// Moves a line to the number `to`. A request of the line has got a duplicate of its descriptor
    /// with that number, and so have the others.
    pub(super) fn move_line(&mut self, line: Line, to: i32) {
        let (all, to): (Vec<u32>, _) =
            (self.lines.all(line.key()).collect(), Line { fd: to, ..line });
        for &at in all.iter().rev() {
            self.lines.remove(at);
            self.lines.add(at, to.key());
            self.request(at).line = Some(to);
        }
    }
}
