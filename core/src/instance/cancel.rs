//! Cancelling: a request that has not started completes without being executed. A request that has
//! started is reported as started.

use std::collections::BTreeMap;

use super::Instance;
use crate::descriptor::fresh;
use crate::request::Cancel;
use crate::router::facts::FileKind;
use crate::router::tuning::PREEMPTED_LOOKS;
use crate::sync::Patience;

/// A request that [`Instance::in_flight_on`] has found: its slot, and the state of the slot then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    slot: u32,
    state: u32,
}

/// What [`Instance::cancel_all_on`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Canceled {
    /// Requests that were cancelled.
    pub canceled: usize,
    /// Requests that are being executed.
    pub running: usize,
}

impl Instance {
    /// Cancels one request with this [`Sqe::user_data`](crate::Sqe::user_data) that has not
    /// started: it completes with `-ECANCELED`. `Err`: `-EALREADY` if the request is being
    /// executed, `-ENOENT` if there is none, `-EINVAL` if the context is destroyed or belongs to
    /// another process.
    pub fn cancel(&self, user_data: u64) -> Result<(), i32> {
        if !self.is_usable() {
            return Err(-libc::EINVAL);
        }
        let mut answer = Err(-libc::ENOENT);
        self.board.free_slots().each_held(|slot| {
            if answer.is_ok() {
                return;
            }
            match self.cancel_slot(slot, user_data) {
                Cancel::Done => answer = Ok(()),
                Cancel::Started => answer = Err(-libc::EALREADY),
                Cancel::Polling | Cancel::Missed => {}
            }
        });
        answer
    }

    /// Cancels requests with these values, in their order, as [`cancel`](Self::cancel) does one.
    /// The slots are searched once for all of them. `answer` gets the result for each. A context
    /// that is destroyed, or belongs to another process, counts as one without requests.
    pub fn cancel_each(&self, user_data: &[u64], mut answer: impl FnMut(u64, Result<(), i32>)) {
        let mut slots: BTreeMap<u64, Option<u32>> =
            user_data.iter().map(|&key| (key, None)).collect();
        if self.is_usable() {
            self.board.free_slots().each_held(|slot| {
                if let Some(found) = slots.get_mut(&self.board.slot(slot).key()) {
                    *found = Some(slot);
                }
            });
        }
        for &key in user_data {
            // `cancel_slot` compares the key again: the slot may have another request by now.
            let found = slots[&key].map(|slot| self.cancel_slot(slot, key));
            answer(
                key,
                match found {
                    Some(Cancel::Done) => Ok(()),
                    Some(Cancel::Started) => Err(-libc::EALREADY),
                    Some(Cancel::Polling | Cancel::Missed) | None => Err(-libc::ENOENT),
                },
            );
        }
    }

    /// Cancels all requests on a descriptor that have not started.
    pub fn cancel_all_on(&self, fd: i32) -> Canceled {
        let mut found = Canceled::default();
        if !self.is_usable() {
            return found;
        }
        self.board.free_slots().each_held(|index| {
            let slot = self.board.slot(index);
            // Once the request is cancelled or completed, the slot may be used for another one.
            if let Some(state) = slot.in_flight_on(fd) {
                match self.cancel_slot(index, slot.key()) {
                    Cancel::Done => found.canceled += 1,
                    _ if slot.is_over(state) => {}
                    _ => found.running += 1,
                }
            }
        });
        found
    }

    /// The requests on a descriptor that this thread sees as submitted and not ended.
    pub fn in_flight_on(&self, fd: i32) -> Vec<InFlight> {
        let mut found = Vec::new();
        self.board.free_slots().each_held(|index| {
            if let Some(state) = self.board.slot(index).in_flight_on(fd) {
                found.push(InFlight { slot: index, state });
            }
        });
        found
    }

    /// Has this request ended: was it executed or cancelled?
    pub fn is_over(&self, request: InFlight) -> bool {
        self.board.slot(request.slot).is_over(request.state)
    }

    pub(super) fn cancel_slot(&self, index: u32, key: u64) -> Cancel {
        let slot = self.board.slot(index);
        let mut patience = Patience::default();
        for _ in 0..PREEMPTED_LOOKS {
            match slot.cancel_queued(key) {
                Cancel::Done => {
                    self.board.post_canceled(index);
                    return Cancel::Done;
                }
                Cancel::Polling if self.retract(index, key) => {
                    slot.done();
                    self.board.post_canceled(index);
                    return Cancel::Done;
                }
                // A thread was trying the request (executing it without waiting). That try has
                // ended.
                Cancel::Polling | Cancel::Started if self.outlasts_try(index, key) => {}
                // The poller may have tried the request between `cancel_queued` and this check, and
                // put it back on its list. The next round cancels it there.
                Cancel::Started if !slot.cancel_finds_started(key) => {}
                // In POSIX AIO (aio_cancel(3)), the first request of a stream counts as being
                // executed.
                Cancel::Polling if self.board.begins_streams_at_once() => return Cancel::Started,
                // A thread has taken the request off the poller's list or out of the mailbox, and
                // has not begun it. Or the request is back on the list by now.
                Cancel::Polling => patience.wait(),
                other => return other,
            }
        }
        Cancel::Started
    }

    /// If a thread is trying this request of a stream (executing it without waiting), waits until
    /// the try has ended. False: no thread tries the request, or the try takes too long.
    fn outlasts_try(&self, index: u32, key: u64) -> bool {
        if self.board.begins_streams_at_once() {
            return false;
        }
        let slot = self.board.slot(index);
        let polled = || self.threads.poller.is_trying(slot);
        // The descriptor number was noted as a file's, and names a stream now. So the request went
        // to another lane, where its positional call fails without waiting.
        let taken_for_file = || slot.cancel_finds_started(key) && slot.expected().is_some();
        let is_stream = || fresh(slot.fd()).is_ok_and(|file| file.kind() == FileKind::Stream);
        let is_tried: &dyn Fn() -> bool = match () {
            () if polled() => &polled,
            () if taken_for_file() && is_stream() => &taken_for_file,
            () => return false,
        };
        let mut patience = Patience::default();
        (0..PREEMPTED_LOOKS).any(|_| {
            patience.wait();
            !is_tried()
        })
    }

    /// Takes a request out of the mailbox or off the poller's list, if the slot still has the
    /// request with this key. In the mailbox, a submitter leaves a single request for its own wait.
    fn retract(&self, slot: u32, key: u64) -> bool {
        self.lanes.inline.retract(&self.board, slot, key)
            || self.threads.poller.remove(&self.board, slot, key)
    }
}
