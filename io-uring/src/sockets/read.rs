//! Reads into buffers of a group, whose files need not be sockets.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use uringlet::front;

use super::{Socket, uninterrupted};
use crate::abi::rwf;
use crate::attempts::Tried;
use crate::sys;

fn has_no_poll_method(fd: i32) -> bool {
    match sys::kind(fd) {
        libc::S_IFIFO | libc::S_IFSOCK => false,
        // A file server is not asked.
        libc::S_IFREG if front::poll_may_wait(fd) => true,
        _ => front::never_has(fd, 0),
    }
}

impl Socket {
    /// The errno for a read that no preadv2(2) would refuse, or with another errno.
    fn refused_read(&self, fd: i32) -> Option<i32> {
        let is_first = self.goes_on && !self.begun.swap(true, Ordering::Relaxed);
        if is_first && has_no_poll_method(fd) {
            return Some(-libc::EBADFD);
        }
        let flags = self.flags as u32;
        if flags & (rwf::HIPRI | !rwf::ALL) != 0 {
            let mode = sys::status_flags(fd);
            return Some(match mode & libc::O_ACCMODE {
                _ if mode < 0 => -libc::EBADF,
                libc::O_WRONLY => -libc::EBADF,
                _ if flags & !rwf::ALL != 0 => -libc::EOPNOTSUPP,
                _ => -libc::EINVAL,
            });
        }
        None
    }

    pub(super) fn read(&self, fd: i32, offset: u64, may_wait: bool) -> Tried {
        const ANYWHERE: u64 = u64::MAX;
        let [at, len] = self.buffer.each_ref().map(|it| it.load(Ordering::Relaxed));
        let part = [libc::iovec { iov_base: at as *mut _, iov_len: len as usize }];
        if let Some(errno) = self.refused_read(fd) {
            return Tried::Done(errno);
        }
        let flags = self.flags as u32 | if may_wait { 0 } else { libc::RWF_NOWAIT as u32 };
        let read =
            |offset| uninterrupted(|| sys::transfer(fd, false, &part, offset, flags), |&it| it);
        let mut result = read(offset);
        if result == -libc::ESPIPE && offset != ANYWHERE && (offset == 0 || !sys::is_socket(fd)) {
            // Streams have no offsets.
            result = read(ANYWHERE);
        }
        match -result {
            // The data has to be fetched, which no event reports.
            libc::EAGAIN if !may_wait && !self.gives_up && sys::is_always_ready(fd) => {
                Tried::Blocks
            }
            libc::EAGAIN if !may_wait => self.missed(),
            libc::EOPNOTSUPP if !may_wait && !self.gives_up => {
                let is_empty = || sys::poll_now(fd, libc::POLLIN) == 0;
                if front::poll_may_wait(fd) || !is_empty() { Tried::Blocks } else { Tried::Waits }
            }
            _ => Tried::Done(result),
        }
    }
}
