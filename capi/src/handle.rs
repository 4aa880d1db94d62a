//! `struct uringlet *`: the address of a context's entries, looked up in a table, never followed.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use uringlet::table::{PAGE, Pages, Pinned, Table};
use uringlet::{Canceller, Context, Sqe, front};

use crate::Answer;
use crate::owned::Owned;

uringlet::at_load!(uringlet::table::prepare_readers);

/// A context as this library knows it.
#[derive(Debug)]
pub(crate) struct Shared {
    /// A thread of the program uses what is the owner's.
    busy: AtomicBool,
    owned: UnsafeCell<Owned>,
    pub(crate) canceller: Canceller,
    pub(crate) engine: &'static CStr,
}

// SAFETY: `owned`, which can be sent, is touched only by the thread that has made `busy` true;
// the rest can be shared.
unsafe impl Sync for Shared {}

/// The right to use what is the owner's.
struct Turn<'a>(&'a Shared);

impl Shared {
    /// # Errors
    /// `-EBUSY`: another thread has it, or the one that a signal handler has interrupted.
    #[inline]
    fn turn(&self) -> Answer<Turn<'_>> {
        if self.busy.swap(true, Ordering::Acquire) { Err(-libc::EBUSY) } else { Ok(Turn(self)) }
    }
}

impl Turn<'_> {
    #[inline]
    fn owned(&mut self) -> &mut Owned {
        // SAFETY: whoever has the turn has it alone.
        unsafe { &mut *self.0.owned.get() }
    }

    /// Nobody has a turn after this one.
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

/// The contexts of one process.
#[derive(Debug)]
struct Contexts {
    generation: u64,
    table: Table<Shared>,
}

/// The newest ones: of this process, or still of a parent, whose own stay as they are.
static CONTEXTS: AtomicPtr<Contexts> = AtomicPtr::new(null_mut());

/// Those of this process, if it has any. The child of a fork has none of its parent's.
#[inline]
fn contexts() -> Option<&'static Contexts> {
    // SAFETY: null, or leaked by `contexts_or_new`.
    let newest = unsafe { CONTEXTS.load(Ordering::Acquire).as_ref() };
    newest.filter(|contexts| contexts.generation == front::generation())
}

fn contexts_or_new() -> Answer<&'static Contexts> {
    let generation = front::enter_process();
    loop {
        let current = CONTEXTS.load(Ordering::Acquire);
        if let Some(contexts) = contexts() {
            return Ok(contexts);
        }
        let new = Box::into_raw(Box::new(Contexts { generation, table: Table::new()? }));
        let swap = CONTEXTS.compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed);
        if swap.is_err() {
            // SAFETY: made above and seen by nobody.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

/// The context behind a handle.
///
/// # Errors
/// `-EINVAL` for one that is null, stale, forged or another process's.
#[inline]
pub(crate) fn get(handle: usize) -> Answer<Pinned<'static, Shared>> {
    contexts().and_then(|contexts| contexts.table.get(handle)).ok_or(-libc::EINVAL)
}

/// Calls `body` with what is the owner's.
///
/// # Errors
/// As [`get`], and `-EBUSY` where another thread does so now.
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
    contexts_or_new()?.table.allocate((entries * size_of::<Sqe>()).max(PAGE))
}

/// Publishes a context, and gives its handle.
pub(crate) fn publish(context: Context, pages: Pages, engine: &'static CStr) -> usize {
    let handle = pages.address();
    let canceller = context.canceller();
    // SAFETY: pages for as many entries as the context has, which nobody else uses.
    let owned = UnsafeCell::new(unsafe { Owned::new(context, pages) });
    let shared = Shared { busy: AtomicBool::new(false), owned, canceller, engine };
    match contexts() {
        // SAFETY: pages of this process's table, handed over for this context.
        Some(contexts) => unsafe { contexts.table.publish_at(handle, Box::new(shared)) },
        None => unreachable!("this process has pages of its table"),
    }
    handle
}

/// Ends a context, if `may_end` says so.
///
/// # Errors
/// As [`with_owned`], and what `may_end` answers.
pub(crate) fn destroy(handle: usize, may_end: impl FnOnce(&mut Owned) -> Answer<()>) -> Answer<()> {
    let Some(contexts) = contexts() else { return Err(-libc::EINVAL) };
    let pages = {
        let shared = get(handle)?;
        let mut turn = shared.turn()?;
        may_end(turn.owned())?;
        let pages = turn.owned().end();
        turn.keep();
        pages
    };
    // Those that look are told that it is busy, and stay for a moment.
    let _removed = contexts.table.remove(handle, |_| {});
    if let Some(pages) = pages {
        // SAFETY: of this table; the context was removed, and its entries ended with it.
        unsafe { contexts.table.free(pages) };
    }
    Ok(())
}
