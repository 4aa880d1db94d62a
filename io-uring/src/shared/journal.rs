//! The journal of a ring that several processes use: its requests in flight, in memory that
//! outlives the owner. The process that adopts a ring completes requests that a killed owner has
//! left.
//!
//! Each step is one store, so that a process can be killed between any two. The owner of the ring
//! makes the steps, one thread at a time:
//!
//! | step | the record says | if the owner is killed then, the entry |
//! |---|---|---|
//! | an entry is read | `TAKING`, its place | is still in the submission queue |
//! | the queue's head moves | | is in flight, by its place |
//! | | `LIVE` | is in flight |
//! | its completion is written | `POSTING`, the place | is in flight |
//! | the queue's tail moves | | has completed, by that place |
//! | | free | is forgotten |

use crate::sync::{AtomicU64, Ordering};

/// The state of a record, in its upper half. The lower half has a place: a value of a queue's head
/// or tail.
const TAKING: u64 = 1 << 32;
const LIVE: u64 = 2 << 32;
const POSTING: u64 = 3 << 32;
const KIND: u64 = !0 << 32;

/// Initially zero: free.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Record {
    state: AtomicU64,
    user_data: AtomicU64,
}

impl Record {
    /// An entry at a place of the submission queue was read. Next, the queue's head moves. Then
    /// [`taken`](Self::taken) is called.
    pub(crate) fn take(&self, place: u32, user_data: u64) {
        self.user_data.store(user_data, Ordering::Relaxed);
        self.state.store(TAKING | u64::from(place), Ordering::Release);
    }

    pub(crate) fn taken(&self) {
        self.state.store(LIVE, Ordering::Release);
    }

    /// A request was taken before the journal was kept, and is still in flight.
    pub(crate) fn live(&self, user_data: u64) {
        self.user_data.store(user_data, Ordering::Relaxed);
        self.taken();
    }

    /// The last completion of the request is about to be written to a place of the completion
    /// queue.
    pub(crate) fn post(&self, place: u32) {
        self.state.store(POSTING | u64::from(place), Ordering::Release);
    }

    pub(crate) fn end(&self) {
        self.state.store(0, Ordering::Release);
    }

    /// The `user_data` of a request that a killed owner has left, given the positions of both
    /// queues. `None`: there is no request to complete, and the record is free now.
    pub(crate) fn left(&self, sq_head: u32, cq_tail: u32) -> Option<u64> {
        let state = self.state.load(Ordering::Acquire);
        let (kind, place) = (state & KIND, state as u32);
        let is_over = match kind {
            TAKING => place == sq_head,
            POSTING => cq_tail.wrapping_sub(place) as i32 > 0,
            kind => kind != LIVE,
        };
        if is_over {
            self.end();
            return None;
        }
        Some(self.user_data.load(Ordering::Relaxed))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::Record;

    /// Changes the record, or the head or tail of the queues.
    type Store<'a> = &'a mut dyn FnMut(&mut u32, &mut u32);

    fn record() -> Record {
        Record { state: AtomicU64::new(0), user_data: AtomicU64::new(0) }
    }

    /// One request of an owner that is killed after `steps` stores, and what the next owner does.
    /// Returns the number of completions with the request's result, and of those with -ECANCELED.
    fn killed_after(steps: usize, place: u32) -> (u32, u32) {
        let (record, mut head, mut tail) = (record(), place, place);
        let stores: [Store<'_>; 6] = [
            &mut |_, _| record.take(place, 7),
            &mut |head, _| *head = place.wrapping_add(1),
            &mut |_, _| record.taken(),
            &mut |_, tail| record.post(*tail),
            &mut |_, tail| *tail = tail.wrapping_add(1),
            &mut |_, _| record.end(),
        ];
        for store in stores.into_iter().take(steps) {
            store(&mut head, &mut tail);
        }
        let posted = tail.wrapping_sub(place);
        let left = record.left(head, tail);
        assert!(left.is_none_or(|user_data| user_data == 7));
        let canceled = u32::from(left.is_some());
        if head == place {
            // The next owner finds the entry in the queue.
            return (posted + 1, canceled);
        }
        (posted, canceled)
    }

    #[test]
    fn an_owner_killed_between_any_two_steps_leaves_one_completion() {
        for place in [0, 1, u32::MAX, i32::MAX as u32] {
            for steps in 0..=6 {
                let (posted, canceled) = killed_after(steps, place);
                assert_eq!(posted + canceled, 1, "after {steps} steps, at {place}");
            }
        }
    }

    #[test]
    fn what_is_written_there_by_others_is_nothing() {
        let record = record();
        for state in [1, 9 << 32, u64::MAX] {
            record.state.store(state, Ordering::Relaxed);
            assert_eq!(record.left(0, 0), None);
        }
    }
}
