//! Contexts that the program's event loops drive. The thread of a loop hands their requests over,
//! and sleeps in poll(2) or a similar call. `front/waits.rs` has these calls.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};

use super::tenant::Tenant;
use crate::sync::this_thread;

/// The maximum number of contexts that one thread drives; others are left to the poller.
pub(crate) const AT_A_TIME: usize = 4;

/// The contexts that event loops of this process drive.
#[derive(Debug, Default)]
pub(crate) struct Loops(Mutex<Vec<LoopOf>>);

#[derive(Debug)]
struct LoopOf {
    /// The number of the thread that drives the context.
    thread: usize,
    /// As [`Collecting::events`](super::tenant::Collecting::events).
    events: RawFd,
    tenant: Weak<dyn Tenant>,
}

/// The drop-in sees the program's calls that sleep.
static SEEN: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The thread has begun to drive a context, and may hand requests over.
    static HANDS_OVER: Cell<bool> = const { Cell::new(false) };
}

/// Notes that a drop-in sees the program's calls that sleep from now on.
pub(crate) extern "C" fn see() {
    SEEN.store(true, Ordering::Relaxed);
}

/// Are the program's calls that sleep seen?
#[inline]
pub(crate) fn are_seen() -> bool {
    SEEN.load(Ordering::Relaxed)
}

/// May the calling thread drive a context?
#[inline]
pub(crate) fn may_drive() -> bool {
    are_seen() && HANDS_OVER.get()
}

impl Loops {
    /// Notes that the calling thread drives this context from now on, and that no other thread
    /// does. False: the lock is held, and the caller asks again later.
    pub(crate) fn add(&self, tenant: &Arc<dyn Tenant>, events: RawFd) -> bool {
        let Some(mut all) = self.try_lock() else { return false };
        let is_other =
            |one: &Weak<dyn Tenant>| !std::ptr::addr_eq(one.as_ptr(), Arc::as_ptr(tenant));
        all.retain(|one| one.tenant.strong_count() > 0 && is_other(&one.tenant));
        all.push(LoopOf { thread: this_thread(), events, tenant: Arc::downgrade(tenant) });
        HANDS_OVER.set(true);
        true
    }

    /// Waits for the lock for a moment only, because a signal handler may have interrupted the
    /// thread that has the lock.
    fn try_lock(&self) -> Option<MutexGuard<'_, Vec<LoopOf>>> {
        const TRIES: u32 = 100;
        for _ in 0..TRIES {
            match self.0.try_lock() {
                Ok(all) => return Some(all),
                Err(TryLockError::Poisoned(all)) => return Some(all.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
        None
    }

    /// Contexts that the calling thread drives, or whose eventfds are among `told`. Allocates
    /// nothing.
    pub(crate) fn of_this_thread(&self, told: &[RawFd]) -> [Option<Arc<dyn Tenant>>; AT_A_TIME] {
        let mut found = [const { None }; AT_A_TIME];
        let Some(all) = self.try_lock() else { return found };
        let me = this_thread();
        let mine = all.iter().filter(|one| one.thread == me || told.contains(&one.events));
        for (tenant, place) in mine.filter_map(|one| one.tenant.upgrade()).zip(&mut found) {
            *place = Some(tenant);
        }
        drop(all);
        found
    }
}
