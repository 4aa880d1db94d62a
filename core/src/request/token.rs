//! Tokens: the right of a thread to read a request, or to execute it.
#![allow(unsafe_code)]

use super::{FreeIt, Numbers, Request, Slot};

/// A request whose number was popped from a queue, and which no thread has started. Another thread
/// may cancel the request at this moment, and then reads it, too. So no thread may write to it.
#[derive(Debug)]
#[must_use]
pub(crate) struct Queued<'a> {
    slot: &'a Slot,
    index: u32,
}

/// A request that one thread has alone: its submitter before it is queued, or the executing thread.
/// The thread gives it up by queueing or finishing it; dropping it would lose the request.
#[derive(Debug)]
#[must_use]
pub(crate) struct Started<'a> {
    slot: &'a Slot,
    index: u32,
}

impl Slot {
    /// The request, for the one thread that has it.
    ///
    /// # Safety
    /// The caller is its submitter, which has not queued it yet, or the executing thread. The
    /// caller makes no second `Started` of the request, and no [`Queued`], until this one was given
    /// up.
    #[inline]
    pub(crate) unsafe fn in_hand(&self, index: u32) -> Started<'_> {
        Started { slot: self, index }
    }

    /// The request, for the thread that has popped its number.
    ///
    /// # Safety
    /// The caller has popped the number from a queue that holds each number once. So the slot is
    /// not reused until the request was started, or the number was pushed back. The request is not
    /// started.
    #[inline]
    pub(crate) unsafe fn popped(&self, index: u32) -> Queued<'_> {
        Queued { slot: self, index }
    }

    /// The request, for the thread that ends it without executing it.
    ///
    /// # Safety
    /// The caller has cancelled or ended the request, or was given it for that purpose, and no
    /// thread starts it. Other threads that have its number may read it.
    #[inline]
    pub(crate) unsafe fn ended(&self) -> &Request {
        // SAFETY: only read, by the caller's contract.
        self.request.with(|at| unsafe { &*at })
    }
}

impl<'a> Queued<'a> {
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    pub(crate) fn slot(&self) -> &'a Slot {
        self.slot
    }

    /// May the request be executed? `Err`: it was cancelled, and the value says whether the caller
    /// frees its slot.
    #[inline]
    pub(crate) fn start(self) -> Result<Started<'a>, FreeIt> {
        self.slot.start()?;
        Ok(Started { slot: self.slot, index: self.index })
    }
}

impl std::ops::Deref for Queued<'_> {
    type Target = Request;

    #[inline(always)]
    fn deref(&self) -> &Request {
        // SAFETY: `Slot::popped`: nobody has started it, and nobody writes to it before that.
        self.slot.request.with(|at| unsafe { &*at })
    }
}

impl<'a> Started<'a> {
    #[inline(always)]
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    #[inline(always)]
    pub(crate) fn slot(&self) -> &'a Slot {
        self.slot
    }

    /// The slot's number, for the thread that has the request from now on.
    #[inline(always)]
    pub(crate) fn into_index(self) -> u32 {
        let index = self.index;
        std::mem::forget(self);
        index
    }

    /// The slot's number, which goes to a queue next: from then on the request can be cancelled.
    #[inline(always)]
    pub(crate) fn queue(self) -> u32 {
        self.slot.queue();
        self.into_index()
    }
}

impl std::ops::Deref for Started<'_> {
    type Target = Request;

    #[inline(always)]
    fn deref(&self) -> &Request {
        // SAFETY: the request is this thread's alone, by the contract of `Slot::in_hand`, or
        // because `Queued::start` has succeeded.
        self.slot.request.with(|at| unsafe { &*at })
    }
}

impl std::ops::DerefMut for Started<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Request {
        // SAFETY: `Slot::in_hand`: the request is this thread's alone, and its one token is
        // borrowed mutably.
        self.slot.request.with_mut(|at| unsafe { &mut *at })
    }
}

#[cfg(debug_assertions)]
impl Drop for Started<'_> {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "request {} was lost", self.index);
    }
}

/// As [`Started`], for up to [`BATCH`](super::BATCH) requests of one board. Iterating gives them
/// away one by one, from the first on.
#[derive(Debug)]
#[must_use]
pub(crate) struct Batch<'a> {
    slots: &'a [Slot],
    numbers: Numbers,
    /// The number of requests that were given away.
    gone: usize,
}

impl<'a> Batch<'a> {
    /// A batch without requests, for slots of a board.
    #[inline]
    pub(crate) fn new(slots: &'a [Slot]) -> Self {
        Self { slots, numbers: Numbers::new(), gone: 0 }
    }

    #[inline]
    pub(crate) fn push(&mut self, request: Started<'a>) {
        self.numbers.push(request.into_index());
    }

    #[inline]
    pub(crate) fn numbers(&self) -> &[u32] {
        &self.numbers.as_slice()[self.gone..]
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.numbers().len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The requests of the batch.
    #[inline]
    pub(crate) fn requests(&self) -> Requests<'_> {
        Requests { slots: self.slots, numbers: self.numbers() }
    }

    /// Takes the first `count` requests out of the batch: another thread has them now.
    #[inline]
    pub(crate) fn give_away(&mut self, count: usize) {
        self.gone += count;
    }
}

impl<'a> Iterator for Batch<'a> {
    type Item = Started<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<Started<'a>> {
        let index = *self.numbers().first()?;
        self.gone += 1;
        Some(Started { slot: &self.slots[index as usize], index })
    }
}

#[cfg(debug_assertions)]
impl Drop for Batch<'_> {
    fn drop(&mut self) {
        assert!(
            std::thread::panicking() || self.is_empty(),
            "requests {:?} were lost",
            self.numbers()
        );
    }
}

/// The requests of a [`Batch`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requests<'a> {
    slots: &'a [Slot],
    numbers: &'a [u32],
}

impl<'a> Requests<'a> {
    pub(crate) fn len(self) -> usize {
        self.numbers.len()
    }

    /// The first `count` requests.
    pub(crate) fn first(self, count: usize) -> Self {
        Self { numbers: &self.numbers[..count], ..self }
    }

    /// Iterates over the requests and the numbers of their slots.
    pub(crate) fn iter(self) -> impl Iterator<Item = (u32, &'a Request)> + Clone {
        self.numbers.iter().map(move |&number| {
            // SAFETY: the batch alone has these started requests, and is borrowed, so nobody writes
            // to them meanwhile.
            (number, unsafe { self.slots[number as usize].ended() })
        })
    }
}
