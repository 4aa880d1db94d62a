//! Takes buffers of a group for a request that is tried, and gives them back if the request has to
//! wait.

use super::state::Locked;
use super::types::{Stage, Taken};
use crate::buffers::{BufferGroup, Provided, bytes_of};
use crate::sockets::Socket;

/// The completion has used a buffer. The number of the buffer is in the upper half of the flags.
const CQE_BUFFER: u32 = 1;
/// The buffer has room left, and stays in its group.
const CQE_BUFFER_MORE: u32 = 1 << 4;

/// The flags of a completion that has used this buffer, and perhaps others behind it. `has_rest`:
/// the last one stays in its group.
fn flags_of(has_rest: bool, first: Provided) -> u32 {
    CQE_BUFFER | if has_rest { CQE_BUFFER_MORE } else { 0 } | u32::from(first.id) << 16
}

impl Locked<'_> {
    /// Takes a buffer for a request that is about to be tried, if it needs one. If the group has no
    /// buffer, the try fails for that reason. False: another request is being tried with a buffer
    /// of the group.
    pub(super) fn take_buffer(&mut self, at: u32, socket: &Socket) -> bool {
        let key = self.key(at);
        let request = self.request(at);
        let Some(number) = request.group.filter(|_| request.taken.is_none()) else { return true };
        let Some(group) = self.state.groups.get(number) else {
            socket.lacks_buffer(false);
            return true;
        };
        if group.user.is_some() {
            group.waiting.push_back(at);
            self.request(at).stage = Stage::Behind;
            return false;
        }
        let Some(buffer) = group.take() else {
            socket.lacks_buffer(true);
            return true;
        };
        // As in the kernel: the length does not count for a list's buffers.
        let bytes = |bytes| if group.is_list() { 0 } else { bytes };
        let (mut most, mut others) = (socket.takes_several().map(bytes), Vec::new());
        if buffer.len == 0 && (socket.commits() || most.is_some_and(|most| most > 0)) {
            group.give_back(buffer);
            socket.lacks_buffer(true);
            return true;
        }
        group.user = Some(key);
        if let Some(bytes) = most {
            group.give_back(buffer);
            others = group.take_several(bytes);
            if !group.is_list() && socket.exceeds(bytes_of(&others)) {
                // As in the kernel: if the request's length ends exactly at the end of a buffer,
                // later buffers are used, too.
                others.extend(group.take_several(0));
                most = Some(0);
            }
        }
        let several = if others.is_empty() { &[buffer][..] } else { &others[..] };
        let len = socket.select((buffer.at, buffer.len));
        let committed = socket.commits().then(|| {
            let bytes = bytes_of(several);
            let bound = most.map_or(len, |most| if most > 0 { most } else { bytes });
            let bytes = bytes.min(bound);
            flags_of(group.use_up(several, bytes, true), buffer)
        });
        if most.is_some() {
            // As in the kernel: a send whose buffers have exactly its length does not see that they
            // were the last.
            let is_short = most.is_none_or(|most| most == 0 || bytes_of(several) < most);
            let is_last = (is_short || !socket.commits()) && group.is_empty();
            socket.select_several(several, most.unwrap_or(0), is_last);
        }
        let group = group.id;
        let request = self.request(at);
        request.taken = Some(Taken { group, buffer, others, stays: false, committed });
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

    /// A request was tried: it has used this many bytes of its buffers. `None`: it gives them back.
    /// Returns the flags of its completion.
    pub(super) fn settle_buffer(&mut self, at: u32, bytes: Option<i32>) -> u32 {
        let request = self.request(at);
        let Some(taken) = request.taken.take() else { return 0 };
        if let Some(flags) = taken.committed {
            return flags;
        }
        let number = request.group;
        let found = number.and_then(|number| self.state.groups.get(number));
        let mut found = found.filter(|found| found.id == taken.group);
        let several = if taken.others.is_empty() { &[taken.buffer][..] } else { &taken.others[..] };
        let Some(bytes) = bytes.or(taken.stays.then_some(0)) else {
            if let Some(found) = found {
                several.iter().rev().for_each(|&buffer| found.give_back(buffer));
            }
            return 0;
        };
        // If `stays`, other requests may have taken buffers since this request took its own.
        let (bytes, are_last) = (bytes.max(0) as u64, !taken.stays);
        let has_rest = found.as_mut().is_some_and(|it| it.use_up(several, bytes, are_last));
        flags_of(has_rest, taken.buffer)
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
        self.settle_buffer(at, None);
        let group = self.request(at).group;
        if let Some(group) = group.and_then(|number| self.state.groups.get(number)) {
            group.waiting.retain(|&other| other != at);
        }
    }
}
