//! Takes a buffer of a group for a request that is tried, and gives it back if the request has to
//! wait.

use super::state::Locked;
use super::types::{Stage, Taken};
use crate::buffers::BufferGroup;
use crate::sockets::Socket;

/// The number of a buffer is in the upper half of a completion's flags.
const CQE_BUFFER: u32 = 1;

impl Locked<'_> {
    /// Takes a buffer for a request that is about to be tried, if it needs one. If the group has
    /// none, the try fails with that. False: another request is being tried with a buffer of the
    /// group.
    pub(super) fn take_buffer(&mut self, at: u32, socket: &Socket) -> bool {
        let key = self.key(at);
        let request = self.request(at);
        let Some(number) = request.group.filter(|_| request.taken.is_none()) else { return true };
        let Some(group) = self.state.groups.get(number) else {
            socket.select(None);
            return true;
        };
        if group.user.is_some() {
            group.waiting.push_back(at);
            self.request(at).stage = Stage::Behind;
            return false;
        }
        let Some(buffer) = group.take() else {
            socket.select(None);
            return true;
        };
        group.user = Some(key);
        let group = group.id;
        let len = socket.select(Some((buffer.at, buffer.len)));
        let request = self.request(at);
        request.taken = Some(Taken { group, buffer, stays: false });
        if socket.is_read() {
            request.expected = i32::try_from(len).unwrap_or(i32::MAX);
        }
        true
    }

    /// Does the request need a buffer, and is there none?
    pub(super) fn lacks_buffer(&mut self, at: u32) -> bool {
        let Some(number) = self.request(at).group else { return false };
        self.state.groups.get(number).is_none_or(BufferGroup::is_used_up)
    }

    /// A request was tried: it has used its buffer, or gives it back. Returns the flags of its
    /// completion.
    pub(super) fn settle_buffer(&mut self, at: u32, uses: bool) -> u32 {
        let request = self.request(at);
        let Some(Taken { group, buffer, stays }) = request.taken.take() else { return 0 };
        if uses || stays {
            return CQE_BUFFER | u32::from(buffer.id) << 16;
        }
        let number = request.group;
        let found = number.and_then(|number| self.state.groups.get(number));
        if let Some(found) = found.filter(|found| found.id == group) {
            found.give_back(buffer);
        }
        0
    }

    /// A request is no longer tried: returns the next one that waits for its group.
    pub(super) fn free_group(&mut self, at: u32) -> Option<u32> {
        let key = self.key(at);
        let number = self.request(at).group?;
        let group = self.state.groups.get(number)?;
        if group.user == Some(key) {
            group.user = None;
        }
        if group.user.is_none() { group.waiting.pop_front() } else { None }
    }

    /// A request ends, and no longer waits for a group. Its buffer is given back.
    pub(super) fn forget_group(&mut self, at: u32) {
        self.settle_buffer(at, false);
        let group = self.request(at).group;
        if let Some(group) = group.and_then(|number| self.state.groups.get(number)) {
            group.waiting.retain(|&other| other != at);
        }
    }
}
