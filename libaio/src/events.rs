//! Getting events: io_getevents and io_pgetevents, with libaio's rules.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use uringlet::front::{self, DirectCompletions, IoEvent, Waited};

use crate::handle::{self, AioContext};
use uringlet::front::memory::{accessible, accessible_now, is_known_to_be_accessible};
use uringlet::table::Pinned;

/// The maximum number of events per call that bypass the ring. These are the events of requests
/// that the waiting thread executes itself.
const DIRECT: u32 = 64;

/// io_getevents(2): the number of events written, or a negative errno. `mask` is the thread's
/// signal mask while it sleeps.
///
/// # Safety
/// `events` has room for `nr` events, `timeout` is null or a timespec; both are checked to be
/// accessible.
#[inline]
pub(crate) unsafe fn get_events(
    context: Pinned<'static, AioContext>,
    min_nr: i64,
    nr: i64,
    events: *mut IoEvent,
    timeout: *const libc::timespec,
    mask: Option<u64>,
) -> i64 {
    let invalid = i64::from(-libc::EINVAL);
    let timeout = if timeout.is_null() {
        None
    } else if accessible(timeout as usize, size_of::<libc::timespec>(), false) {
        // SAFETY: readable, and a timespec by the caller's contract.
        until(unsafe { timeout.read_unaligned() })
    } else {
        return i64::from(-libc::EFAULT);
    };
    let (Ok(min), Ok(max)) = (u32::try_from(min_nr), u32::try_from(nr.min(i64::from(u32::MAX))))
    else {
        return refused(&context, timeout);
    };
    if min_nr > nr {
        return refused(&context, timeout);
    }
    // A signal handler may leave the wait by a jump (longjmp(3)). So the context is not pinned
    // during the wait: io_destroy(2) would wait without end for this thread to unpin the context.
    let instance = Arc::clone(&context.instance);
    drop(context);
    // The ring never has more events than its room. If `min` is larger, the minimum becomes one
    // more than the room, which is never reached either.
    let reachable = min.min(instance.room() as u32 + u32::from(min as usize > instance.room()));
    let writable = |first: u32, count: u32| {
        let at = events.wrapping_add(first as usize);
        accessible(at as usize, count as usize * size_of::<IoEvent>(), true)
    };
    // If `events` cannot be written to, no event bypasses the ring: events stay in the ring.
    let direct = max.min(DIRECT);
    let direct = if direct > 0 && writable(0, direct) { direct } else { 0 };
    let mut at = events;
    let mut take = |data, obj, res| {
        // SAFETY: called for at most as many events as were found to be writable.
        unsafe {
            at.write_unaligned(IoEvent { data, obj, res, res2: 0 });
            at = at.add(1);
        }
    };
    let mut taker = DirectCompletions::new(direct, &mut take);
    let waited = instance.wait(reachable, max, timeout, mask, &mut taker);
    let taken = taker.taken();
    if taken > 0 && taken == max {
        return i64::from(taken);
    }
    if waited == Waited::Gone && taken == 0 {
        return invalid;
    }
    let ready = instance.available().min(max - taken);
    if ready == 0 {
        return match (taken, waited) {
            (0, Waited::Interrupted) => i64::from(-libc::EINTR),
            (taken, _) => i64::from(taken),
        };
    }
    if !writable(taken, ready) {
        return if taken > 0 { i64::from(taken) } else { i64::from(-libc::EFAULT) };
    }
    let reaped = instance.reap_events(ready, |event| take(event.data, event.obj, event.res));
    i64::from(taken + reaped)
}

/// A timeout as the kernel computes it: in nanoseconds of 64 bits, so that a large negative number
/// of seconds overflows. `None`: there is no end.
fn until(timeout: libc::timespec) -> Option<Duration> {
    const SECOND: i64 = 1_000_000_000;
    if timeout.tv_sec >= i64::MAX / SECOND {
        return None;
    }
    let time = timeout.tv_sec.wrapping_mul(SECOND).wrapping_add(timeout.tv_nsec);
    u64::try_from(time).ok().map(Duration::from_nanos)
}

/// The fast path of [`get_events`] for a minimum of one event: takes the event of the only request,
/// if this request took the fast path at its submit. With `is_one`, the caller has room for one
/// event, and the oldest of several requests is tried, too. False: no event was taken. errno is
/// preserved.
///
/// # Safety
/// As for [`get_events`], with room for an event.
#[inline(always)]
pub(crate) unsafe fn get_fast(
    handle: usize,
    is_one: bool,
    events: *mut IoEvent,
    timeout: *const libc::timespec,
) -> bool {
    let Some(context) = handle::get_again(handle) else { return false };
    let readable =
        |timeout| is_known_to_be_accessible(timeout as usize, size_of::<libc::timespec>(), false);
    if !is_known_to_be_accessible(events as usize, size_of::<IoEvent>(), true)
        || !(timeout.is_null() || readable(timeout))
    {
        return false;
    }
    let take = |data, obj, res| {
        // SAFETY: found to be writable, and room for an event by the caller's contract.
        unsafe { events.write_unaligned(IoEvent { data, obj, res, res2: 0 }) };
    };
    let bounded = !timeout.is_null();
    context.instance.wait_fast(bounded, take) || is_one && context.instance.wait_next(bounded, take)
}

/// The answer of [`get_events`] if this process has no such context. In the child of a fork, the
/// original still reads the parent's ring. If that ring is empty and the timeout is zero, the
/// original returns 0 without asking the kernel.
///
/// # Safety
/// `timeout` is null or a timespec, which is checked to be accessible.
#[cold]
pub(crate) unsafe fn without_context(handle: usize, timeout: *const libc::timespec) -> c_int {
    let polls = !timeout.is_null()
        && accessible_now(timeout as usize, size_of::<libc::timespec>(), false)
        // SAFETY: readable, and a timespec by the caller's contract.
        && front::duration(unsafe { timeout.read_unaligned() }) == Some(Duration::ZERO);
    if polls && handle::is_inherited_and_empty(handle) { 0 } else { -libc::EINVAL }
}

/// The answer if the arguments are wrong. The original checks the ring first: with a timeout of
/// zero and an empty ring it returns 0, whatever the other arguments are.
#[cold]
fn refused(context: &AioContext, timeout: Option<Duration>) -> i64 {
    if timeout == Some(Duration::ZERO) && context.instance.available() == 0 {
        return 0;
    }
    i64::from(-libc::EINVAL)
}
