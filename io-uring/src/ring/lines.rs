//! Requests on sockets. Requests for the same events of a descriptor number wait in a line, in
//! their order.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::state::Locked;
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
        self.tasks.push(Task::Try(key, number, socket));
    }

    /// A request is no longer tried: another one that waits for its group is tried.
    pub(super) fn leave_group(&mut self, at: u32) {
        while let Some(next) = self.free_group(at) {
            self.try_socket(next);
        }
    }

    /// Adds a request to the end of a line. True: the line was empty.
    pub(super) fn join_line(&mut self, at: u32, line: Line) -> bool {
        let ends = self.lines.entry(line).or_insert([at, NONE]);
        let last = std::mem::replace(&mut ends[1], at);
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
        let Some(line) = request.line.take() else { return };
        let [behind, ahead] = request.in_line;
        if behind != NONE {
            self.request(behind).in_line[1] = ahead;
        }
        if ahead != NONE {
            self.request(ahead).in_line[0] = behind;
        }
        let Some(ends) = self.lines.get_mut(&line) else { return };
        match [behind, ahead] {
            [NONE, NONE] => _ = self.lines.remove(&line),
            [next, NONE] => {
                ends[0] = next;
                self.try_socket(next);
            }
            [NONE, last] => ends[1] = last,
            _ => {}
        }
    }

    /// Moves a line to the number `to`. A request of the line has got a duplicate of its descriptor
    /// with that number, and so have the others.
    pub(super) fn move_line(&mut self, line: Line, to: i32) {
        let Some(ends) = self.lines.remove(&line) else { return };
        let (to, mut at) = ((to, line.1), ends[0]);
        while at != NONE {
            let request = self.request(at);
            request.line = Some(to);
            at = request.in_line[0];
        }
        self.lines.insert(to, ends);
    }
}
