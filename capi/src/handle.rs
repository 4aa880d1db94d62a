//! `struct uringlet *`: the address of a context's entries, looked up in a table, never followed.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

use uringlet::front::PerProcess;
use uringlet::table::{PAGE, Pages, Pinned, Table};
use uringlet::{Canceller, Context, Sqe};

use crate::Answer;
use crate::owned::Owned;

uringlet::at_load!(uringlet::table::prepare_readers);

/// The value that the table has for each context.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Is true while a thread of the program uses `owned`.
    busy: AtomicBool,
    owned: UnsafeCell<Owned>,
    pub(crate) canceller: Canceller,
    pub(crate) engine: &'static CStr,
}

// SAFETY: `owned`, which can be sent, is touched only by the thread that has made `busy` true;
// the rest can be shared.
unsafe impl Sync for Shared {}

/// The exclusive right to use `owned`. The right ends when this value is dropped.
struct Turn<'a>(&'a Shared);

impl Shared {
    /// # Errors
    /// `-EBUSY`: another thread has the right, or the thread that this signal handler has
    /// interrupted.
    #[inline]
    fn turn(&self) -> Answer<Turn<'_>> {
        if self.busy.swap(true, Ordering::Acquire) { Err(-libc::EBUSY) } else { Ok(Turn(self)) }
    }
}

impl Turn<'_> {
    #[inline]
    fn owned(&mut self) -> &mut Owned {
        // SAFETY: only one `Turn` exists at a time, and this borrows it exclusively.
        unsafe { &mut *self.0.owned.get() }
    }

    /// Leaves `busy` true, so that no thread gets the right again.
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

static CONTEXTS: PerProcess<Table<Shared>> = PerProcess::new();

/// The context behind a handle.
///
/// # Errors
/// `-EINVAL` for a handle that is null, stale, forged or another process's.
#[inline]
pub(crate) fn get(handle: usize) -> Answer<Pinned<'static, Shared>> {
    CONTEXTS.current().and_then(|contexts| contexts.get(handle)).ok_or(-libc::EINVAL)
}

/// Calls `body` with the context's [`Owned`].
///
/// # Errors
/// As [`get`], and `-EBUSY` if another thread uses it now.
#[inline]
pub(crate) fn with_owned<T>(
    handle: usize,
    body: impl FnOnce(&mut Owned) -> Answer<T>,
) -> Answer<T> {
    let shared = get(handle)?;
    let mut turn = shared.turn()?;
    body(turn.owned())
}

/// Pages for the entries of a context.
///
/// # Errors
/// `-ENOMEM`, or `-EAGAIN` if there are too many contexts.
pub(crate) fn allocate(entries: usize) -> Answer<Pages> {
    CONTEXTS.current_or(Table::new)?.allocate((entries * size_of::<Sqe>()).max(PAGE))
}

/// Publishes a context, and returns its handle.
pub(crate) fn publish(context: Context, pages: Pages, engine: &'static CStr) -> usize {
    let handle = pages.address();
    let canceller = context.canceller();
    // SAFETY: pages for as many entries as the context has, which nobody else uses.
    let owned = UnsafeCell::new(unsafe { Owned::new(context, pages) });
    let shared = Shared { busy: AtomicBool::new(false), owned, canceller, engine };
    match CONTEXTS.current() {
        // SAFETY: pages of this process's table, handed over for this context.
        Some(contexts) => unsafe { contexts.publish_at(handle, Box::new(shared)) },
        None => unreachable!("this process has pages of its table"),
    }
    handle
}

/// Ends a context, unless `may_end` returns an error.
///
/// # Errors
/// As [`with_owned`], and the errors of `may_end`.
pub(crate) fn destroy(handle: usize, may_end: impl FnOnce(&mut Owned) -> Answer<()>) -> Answer<()> {
    let Some(contexts) = CONTEXTS.current() else { return Err(-libc::EINVAL) };
    let pages = {
        let shared = get(handle)?;
        let mut turn = shared.turn()?;
        may_end(turn.owned())?;
        let pages = turn.owned().end();
        turn.keep();
        pages
    };
    // Threads that look the context up now find that it is busy, and leave soon.
    let _removed = contexts.remove(handle, |_| {});
    if let Some(pages) = pages {
        // SAFETY: the pages are of this table. Their context was removed, so nothing uses them.
        unsafe { contexts.free(pages) };
    }
    Ok(())
}
