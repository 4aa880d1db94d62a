//! Completions that a waiting thread takes directly.

use super::Board;
use crate::request::{Returned, Started};

/// Where a waiting thread takes completions of requests that it has executed itself: they need not
/// go through the completion queue.
pub struct DirectCompletions<'a> {
    sink: &'a mut dyn FnMut(u64, u64, i64),
    room: u32,
    pub(super) taken: u32,
    /// This thread has a deadline, or only looks: it waits for no server.
    bounded: bool,
    /// Their slots.
    returned: Returned,
}

impl<'a> DirectCompletions<'a> {
    /// Takes up to `room` completions: `data`, `obj` and `res` of an
    /// [`IoEvent`](crate::sys::aio::IoEvent). They come one by one, in registers.
    pub fn new(room: u32, sink: &'a mut dyn FnMut(u64, u64, i64)) -> Self {
        Self { sink, room, taken: 0, bounded: false, returned: Returned::default() }
    }

    #[inline(always)]
    pub(crate) fn has_room(&self) -> bool {
        self.taken < self.room
    }

    /// Takes the completion of a request that the caller has executed, and which nobody else is
    /// told of.
    #[inline(always)]
    pub(crate) fn take(&mut self, board: &Board, request: Started<'_>, result: i32) {
        let (data, user_data) = (request.data, request.sqe.user_data);
        request.slot().taken();
        board.free.give_later(request.into_index(), &mut self.returned);
        self.taken += 1;
        (self.sink)(data, user_data, i64::from(result));
    }

    /// Says whether the thread has a deadline, or only looks.
    #[inline(always)]
    pub(crate) fn bound(&mut self, bounded: bool) {
        self.bounded = bounded;
    }

    /// The thread may execute nothing that may wait for a server.
    #[inline(always)]
    pub(crate) fn is_bounded(&self) -> bool {
        self.bounded
    }

    /// How many it has taken.
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// Frees the slots of what it has taken.
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

/// Calls `f` with a taker that takes nothing.
pub(crate) fn without_taker<R>(f: impl FnOnce(&mut DirectCompletions<'_>) -> R) -> R {
    f(&mut DirectCompletions::new(0, &mut |_, _, _| {}))
}
