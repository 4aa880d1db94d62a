//! MSG_RING: messages (*parcels*) from one ring to another. No thread holds a ring's lock while it
//! takes another ring's lock or waits for it. A busy ring reads the parcel as mail.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::state::Locked;
use super::types::{Parcel, Task};
use crate::abi::{Cqe, message_ring as kinds};
use crate::prepare::RingMessage;
use crate::sys;

impl Locked<'_> {
    /// Sends a parcel to the ring that the request's descriptor names. `None`: the request ends
    /// later.
    pub(super) fn send_parcel(&mut self, at: u32, what: RingMessage) -> Option<i32> {
        let fd = self.number(at);
        let Some(peer) = self.core().registry.peer(fd) else {
            return Some(if sys::is_open(fd) { -libc::EBADFD } else { -libc::EBADF });
        };
        let is_own = std::ptr::addr_eq(Arc::as_ptr(&peer), Arc::as_ptr(self.core()));
        match self.write_parcel(&what, is_own) {
            Ok(parcel) if is_own => Some(self.open_parcel(parcel)),
            Ok(parcel) => {
                let key = self.key(at);
                self.tasks.push(Task::Parcel { key, to: peer, parcel });
                None
            }
            Err(errno) => Some(errno),
        }
    }

    fn write_parcel(&self, what: &RingMessage, to_itself: bool) -> Result<Parcel, i32> {
        let RingMessage { kind, user_data, len, source, target, flags } = *what;
        if kind == kinds::DATA {
            return Parcel::of_data(what);
        }
        if kind != kinds::FILE || len != 0 || to_itself {
            return Err(-libc::EINVAL);
        }
        let slot = target.checked_sub(1).ok_or(-libc::EINVAL);
        let file = self.registered(source as u32)?;
        Ok(Parcel {
            cqe: Cqe { user_data, res: 0, flags: 0 },
            file: Some((file.value.clone(), slot?)),
            skips: flags & kinds::SKIP != 0,
        })
    }

    /// Puts the file and the completion of a parcel into this ring. Returns the result for the
    /// request that has sent it.
    pub(super) fn open_parcel(&mut self, parcel: Parcel) -> i32 {
        let core = self.core;
        if core.disabled.load(Ordering::Relaxed) || core.closing.load(Ordering::Relaxed) {
            return -libc::EBADFD;
        }
        if self.claim(0).is_err() {
            return -libc::EEXIST;
        }
        let Parcel { cqe, file, skips } = parcel;
        let result = file.map(|(file, slot)| self.install(slot, file));
        if let Some(errno) = result.filter(|&result| result < 0) {
            return errno;
        }
        if !skips {
            self.post(Cqe { res: result.unwrap_or(cqe.res), ..cqe }, false);
        }
        result.unwrap_or(0)
    }
}

impl Parcel {
    /// A parcel that makes a completion.
    pub(crate) fn of_data(what: &RingMessage) -> Result<Self, i32> {
        let RingMessage { user_data, len, source, target, flags, .. } = *what;
        let passes = flags & kinds::PASS != 0;
        if source != 0 || flags & !kinds::PASS != 0 || !passes && target != 0 {
            return Err(-libc::EINVAL);
        }
        let cqe = Cqe { user_data, res: len as i32, flags: target };
        Ok(Self { cqe, file: None, skips: false })
    }
}
