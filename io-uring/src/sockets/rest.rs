//! What follows a completion: more data, a further connection, or nothing yet.

use std::sync::atomic::Ordering;

use super::{Ask, Message, Socket};
use crate::service;
use crate::sys::{self, sockets};

/// What is known of the data that follows a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    Unknown,
    Nothing,
    More,
}

impl Socket {
    /// What is known about the data that follows.
    pub(crate) fn rest(&self) -> Rest {
        match self.rest.load(Ordering::Relaxed) {
            0 => Rest::Unknown,
            1 => Rest::Nothing,
            _ => Rest::More,
        }
    }

    /// Does the completion say that the socket has more?
    pub(crate) fn tells_more(&self) -> bool {
        self.tells_rest && self.rest() == Rest::More
    }

    /// Notes what follows a completion with this result. A multishot that must not wait is tried
    /// until it fails.
    pub(super) fn note_rest(&self, fd: i32, result: i32) {
        let rest = match &self.ask {
            // The next read waits for an event.
            Ask::Read { .. } => Rest::Nothing,
            Ask::Accept { .. } if sys::poll_now(fd, libc::POLLIN) == 0 => Rest::Nothing,
            Ask::Accept { .. } if sockets::is_tcp(fd) => Rest::More,
            Ask::Transfer(message) if !message.is_send => self.rest_of(message, fd, result),
            _ => Rest::Unknown,
        };
        let is_tried = self.gives_up && rest == Rest::Nothing && !self.is_read();
        let rest = if is_tried { Rest::Unknown } else { rest };
        self.rest.store(rest as u32, Ordering::Relaxed);
    }

    /// What follows a receive with this result. The kernel reports that for TCP streams and for
    /// Unix streams. The end of a TCP stream counts as data.
    fn rest_of(&self, message: &Message, fd: i32, result: i32) -> Rest {
        if self.flags & libc::MSG_ERRQUEUE != 0 {
            return Rest::Unknown;
        }
        let picked = self.buffer[1].load(Ordering::Relaxed) as usize;
        let len = match &self.bundle {
            _ if !self.selects => message.len(None),
            None => picked,
            Some(bundle) => message.len(Some(&bundle.parts())),
        };
        // A receive that got less than its buffer holds has usually emptied the socket.
        let is_full = result as usize >= len;
        let bytes = if is_full { sockets::readable(fd) } else { 0 };
        let is_urgent = self.flags & libc::MSG_OOB != 0;
        let events = libc::POLLIN | libc::POLLPRI | libc::POLLRDHUP;
        // The end of a Unix stream does not count as data.
        let is_empty = || is_full && service::is_unix(fd) || sys::poll_now(fd, events) == 0;
        if bytes == 0 && !is_urgent && is_empty() {
            // A multishot on a socket of another kind is tried again.
            let is_known = !self.goes_on || self.stream(fd).is_some();
            return if is_known { Rest::Nothing } else { Rest::Unknown };
        }
        let has_more = || bytes > 0 || sockets::readable(fd) > 0;
        let has_ended = || sockets::is_at_mark(fd) || sockets::has_ended(fd);
        match self.stream(fd) {
            Some(Stream::Unix) if is_urgent => Rest::Unknown,
            Some(_) if has_more() => Rest::More,
            Some(Stream::Tcp) if has_ended() => Rest::More,
            Some(_) => Rest::Nothing,
            None => Rest::Unknown,
        }
    }

    fn stream(&self, fd: i32) -> Option<Stream> {
        *self.stream.get_or_init(|| match sockets::option(fd, libc::SO_TYPE) {
            Ok(libc::SOCK_STREAM) if sockets::is_tcp(fd) => Some(Stream::Tcp),
            Ok(libc::SOCK_STREAM) => {
                let is_unix = sockets::option(fd, libc::SO_DOMAIN) == Ok(libc::AF_UNIX);
                is_unix.then_some(Stream::Unix)
            }
            _ => None,
        })
    }
}

/// The streams for which the kernel reports whether more data follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Tcp,
    Unix,
}
