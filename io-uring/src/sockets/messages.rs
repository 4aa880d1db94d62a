//! Messages that are sent or received, with the program's header or without one.
#![allow(unsafe_code)]

use super::Name;
use crate::abi::MAX_RW_COUNT;
use crate::sys::sockets;
use crate::user;

/// A message's header, as it was at submit (`struct msghdr`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    /// The program's header, to which the received lengths are written.
    pub(crate) at: u64,
    /// The place for a received name, and its size.
    pub(crate) name: (u64, u32),
    /// Control data, and their length or room.
    pub(crate) control: (u64, u64),
}

/// A message that is sent or received.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) is_send: bool,
    /// The header's buffers, as `struct iovec`s. Without a header there is one buffer.
    pub(crate) parts: Vec<[u64; 2]>,
    pub(crate) buffer: [u64; 2],
    /// The destination.
    pub(crate) name: Name,
    pub(crate) header: Option<Header>,
}

impl Message {
    pub(crate) fn of_buffer(is_send: bool, buffer: [u64; 2]) -> Self {
        Self { is_send, parts: Vec::new(), buffer, name: Name::default(), header: None }
    }

    /// A message with several buffers, and without a header of the program's.
    pub(crate) fn of_parts(is_send: bool, parts: Vec<[u64; 2]>) -> Self {
        Self { parts, header: Some(Header::NONE), ..Self::of_buffer(is_send, [0; 2]) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len(None) == 0
    }

    /// The buffers of the message.
    pub(crate) fn all_parts(&self) -> &[[u64; 2]] {
        if self.header.is_some() { &self.parts } else { std::slice::from_ref(&self.buffer) }
    }

    /// Bytes that are to be sent, or that there is room for.
    pub(super) fn len(&self, picked: Option<&[[u64; 2]]>) -> usize {
        let parts = picked.unwrap_or(self.all_parts());
        let total = parts.iter().fold(0u64, |total, part| total.saturating_add(part[1]));
        total.min(MAX_RW_COUNT.into()) as usize
    }

    /// Sends or receives the part after the first `done` bytes, with buffers of a group or its own.
    /// Returns the result, and the flags that recvmsg(2) has returned; 0 for other calls.
    pub(super) fn transfer(
        &self,
        fd: i32,
        (done, picked): (usize, Option<&[[u64; 2]]>),
        flags: i32,
    ) -> (i32, i32) {
        let own = std::slice::from_ref(&self.buffer);
        if let (None, &[[at, len]]) = (&self.header, picked.unwrap_or(own)) {
            let (at, len) = (at.wrapping_add(done as u64), len as usize - done);
            let result = match self.is_send {
                true => sockets::send(fd, at, len, flags, &self.name),
                false => sockets::receive(fd, at, len, flags),
            };
            return (result, 0);
        }
        let rest;
        let whole = picked.unwrap_or(&self.parts);
        let header = self.header.as_ref().unwrap_or(&Header::NONE);
        let parts = if done > 0 {
            rest = behind(whole, done as u64);
            &rest[..]
        } else {
            whole
        };
        let mut message = header.with(parts);
        if self.is_send {
            (message.msg_name, message.msg_namelen) =
                (self.name.as_ptr().cast_mut().cast(), self.name.len() as u32);
            if done > 0 {
                // The control data was sent with the first part.
                (message.msg_control, message.msg_controllen) = (std::ptr::null_mut(), 0);
            }
        }
        let result = sockets::transfer(fd, self.is_send, &mut message, flags);
        if self.is_send || result < 0 {
            return (result, 0);
        }
        match header.tell(&message) {
            Ok(()) => (result, message.msg_flags),
            Err(errno) => (errno, 0),
        }
    }
}

impl Header {
    /// A header for a message without a header of the program's.
    pub(crate) const NONE: Self = Self { at: 0, name: (0, 0), control: (0, 0) };

    /// A header for these buffers.
    pub(super) fn with(&self, parts: &[[u64; 2]]) -> libc::msghdr {
        libc::msghdr {
            msg_name: self.name.0 as *mut _,
            msg_namelen: self.name.1,
            msg_iov: parts.as_ptr().cast_mut().cast(),
            msg_iovlen: parts.len(),
            msg_control: self.control.0 as *mut _,
            msg_controllen: self.control.1 as usize,
            msg_flags: 0,
        }
    }

    /// Writes the received lengths to the program's header.
    fn tell(&self, message: &libc::msghdr) -> Result<(), i32> {
        const NAME_LEN: usize = std::mem::offset_of!(libc::msghdr, msg_namelen);
        const CONTROL_LEN: usize = std::mem::offset_of!(libc::msghdr, msg_controllen);
        let at = self.at as usize;
        if at == 0 {
            return Ok(());
        }
        if self.name.0 != 0 {
            // SAFETY: the place is in the header that the program has named for this.
            unsafe { user::write(at + NAME_LEN, message.msg_namelen) }?;
        }
        let len = message.msg_controllen as u64;
        // The flags stand behind the length.
        let words = [len as u32, (len >> 32) as u32, message.msg_flags as u32];
        // SAFETY: as above.
        unsafe { user::write(at + CONTROL_LEN, words) }
    }
}

/// The parts without the first `bytes` bytes.
fn behind(parts: &[[u64; 2]], mut bytes: u64) -> Vec<[u64; 2]> {
    let mut rest = Vec::new();
    for &[at, len] in parts {
        let step = bytes.min(len);
        bytes -= step;
        if len > step {
            rest.push([at + step, len - step]);
        }
    }
    rest
}
