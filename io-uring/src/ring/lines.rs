//! Requests on sockets: those for the same events of a number wait in a line, in their order.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::state::Locked;
use super::types::{Line, Stage, Task};
use crate::calls::Call;
use crate::files::File;
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

    /// Has a call tried without the lock.
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

    /// A request leaves its line. The next one is tried.
    pub(super) fn leave_line(&mut self, at: u32) {
        let Some(line) = self.request(at).line.take() else { return };
        let Some(waiting) = self.lines.get_mut(&line) else { return };
        let was_first = waiting.front() == Some(&at);
        waiting.retain(|&other| other != at);
        match waiting.front().copied() {
            None => _ = self.lines.remove(&line),
            Some(next) if was_first => self.try_socket(next),
            Some(_) => {}
        }
    }

    /// Requests on these numbers have got duplicates of the descriptors.
    pub(super) fn move_lines(&mut self, moved: &[(i32, File)]) {
        for (fd, file) in moved {
            let lines: Vec<Line> =
                self.lines.keys().copied().filter(|line| line.0 == *fd).collect();
            for line in lines {
                let Some(waiting) = self.lines.remove(&line) else { continue };
                let to = (file.descriptor.number(), line.1);
                waiting.iter().for_each(|&at| self.request(at).line = Some(to));
                self.lines.insert(to, waiting);
            }
        }
    }
}
