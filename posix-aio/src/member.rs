//! The requests of a list: how many have not ended, and to which list a request belongs.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::abi::Sigevent;
use crate::notify;

/// A list that has not ended. Each of its requests has a reference to it, and so has the call of
/// lio_listio(3).
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) holders: AtomicU32,
    /// The number of requests that have not ended. It is larger by one while requests are being
    /// submitted.
    pub(crate) remaining: AtomicU32,
    /// The notification at the end, if nobody waits. Fields that this kind of notification does not
    /// use may be uninitialized.
    pub(crate) sigevent: Option<MaybeUninit<Sigevent>>,
}

// SAFETY: what a sigevent points to is the program's, and passed on to its function only.
unsafe impl Sync for List {}

/// The list of a request: its address, and a flag in the lowest bit. 0: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member(u64);

/// Flag in a [`Member`]: a notification is sent when its list has ended.
const TELLS: u64 = 1;

impl Member {
    pub(crate) fn of(list: *const List, tells: bool) -> Self {
        Self(list as u64 | if tells { TELLS } else { 0 })
    }

    pub(crate) const fn none() -> Self {
        Self(0)
    }

    /// The member that [`Member::word`] has turned into this number. Any number of copies may
    /// exist; [`Member::ended`] is called on one of them only.
    pub(crate) fn from_word(word: u64) -> Self {
        Self(word)
    }

    pub(crate) fn word(self) -> u64 {
        self.0
    }

    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) fn tells(self) -> bool {
        self.0 & TELLS != 0
    }

    pub(crate) fn list(self) -> *const List {
        (self.0 & !TELLS) as *const List
    }

    /// The request has ended.
    ///
    /// # Safety
    /// The request was accepted with this member, which `listio` has counted. This is called once
    /// for each request.
    #[inline]
    pub(crate) unsafe fn ended(self) {
        if self.0 != 0 {
            // SAFETY: a member holds its list, and lets go of it here, by the caller's contract.
            unsafe { one_less(self.list()) };
        }
    }
}

/// # Safety
/// The caller has a reference, and is counted in `remaining`. This call ends both.
#[cold]
pub(crate) unsafe fn one_less(list: *const List) {
    // SAFETY: held by the caller.
    let fields = unsafe { &*list };
    // Release and acquire: the effects of the other requests are visible.
    if fields.remaining.fetch_sub(1, Ordering::AcqRel) == 1
        && let Some(event) = &fields.sigevent
    {
        // SAFETY: the sigevent is the program's, by the contract of lio_listio(3).
        unsafe { notify::send(event.as_ptr()) };
    }
    // SAFETY: as above.
    unsafe { let_go(list) };
}

/// # Safety
/// The caller has a reference, which this drops.
pub(crate) unsafe fn let_go(list: *const List) {
    // SAFETY: held by the caller.
    if unsafe { (*list).holders.fetch_sub(1, Ordering::AcqRel) } == 1 {
        // SAFETY: from the box of `listio`, and nobody else holds it.
        drop(unsafe { Box::from_raw(list.cast_mut()) });
    }
}
