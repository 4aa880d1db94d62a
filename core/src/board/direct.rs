//! Completions that a waiting thread takes directly, past the completion queue.

use super::Board;
use crate::request::{Returned, Started};

/// Receives completions of requests that the waiting thread has executed itself: they bypass the
/// completion queue.
pub struct DirectCompletions<'a> {
    sink: &'a mut dyn FnMut(u64, u64, i64),
    room: u32,
    pub(super) taken: u32,
    /// The thread leaves requests that may wait without end, for example for a file server, to
    /// other threads. Set for polls and for waits with a deadline, among others.
    bounded: bool,
    /// The slots of the completions that were taken.
    returned: Returned,
}

impl<'a> DirectCompletions<'a> {
    /// Takes up to `room` completions. `sink` gets `data`, `obj` and `res` of an
    /// [`IoEvent`](crate::sys::aio::IoEvent) for each, in registers.
    pub fn new(room: u32, sink: &'a mut dyn FnMut(u64, u64, i64)) -> Self {
        Self { sink, room, taken: 0, bounded: false, returned: Returned::default() }
    }

    #[inline(always)]
    pub(crate) fn has_room(&self) -> bool {
        self.taken < self.room
    }

    /// Takes the completion of a request that the caller has executed. No other thread is notified
    /// of it.
    #[inline(always)]
    pub(crate) fn take(&mut self, board: &Board, request: Started<'_>, result: i32) {
        let (data, user_data) = (request.data, request.sqe.user_data);
        request.slot().taken();
        board.free.give_later(request.into_index(), &mut self.returned);
        self.taken += 1;
        (self.sink)(data, user_data, i64::from(result));
    }

    /// Sets whether requests that may wait without end are left to other threads.
    #[inline(always)]
    pub(crate) fn bound(&mut self, bounded: bool) {
        self.bounded = bounded;
    }

    /// Must the thread avoid requests that may wait for a server?
    #[inline(always)]
    pub(crate) fn is_bounded(&self) -> bool {
        self.bounded
    }

    /// The number of completions that were taken.
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// Frees the slots of the completions that were taken.
    #[inline]
    pub(crate) fn give_back(&mut self, board: &Board) {
        board.free.give_returned(&mut self.returned);
    }
}

impl std::fmt::Debug for DirectCompletions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirectCompletions")
            .field("room", &self.room)
            .field("taken", &self.taken)
            .finish()
    }
}

/// Calls `f` with a `DirectCompletions` that takes nothing.
pub(crate) fn without_taker<R>(f: impl FnOnce(&mut DirectCompletions<'_>) -> R) -> R {
    f(&mut DirectCompletions::new(0, &mut |_, _, _| {}))
}
