//! io_uring_enter(2).
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use uringlet::front::{self, Instance, WaitCondition, Waited};
use uringlet::table::Pinned;

use crate::abi::{GetEventsArg, Timespec, enter, setup};
use crate::ring::Core;
use crate::rings::Ring;
use crate::sigsys::mask_of_wait;
use crate::{rings, service, sys, threads, user};

/// The bounds of a wait.
#[derive(Clone, Copy, Debug, Default)]
struct Bounds {
    mask: Option<u64>,
    /// Nanoseconds of CLOCK_MONOTONIC.
    deadline: Option<u64>,
    /// The time after which one completion is enough, in nanoseconds.
    min_wait: Option<u64>,
}

/// The ring of a call. `Err(0)`: the descriptor names no ring of this library, and the kernel is
/// asked.
pub(crate) fn find(fd: i32, registered: bool) -> Result<Pinned<'static, Ring>, i32> {
    if registered {
        return threads::registered(fd as u32);
    }
    rings::find(fd)?.ok_or(0)
}

/// As [`not_ours`], for an index that the calling thread has not registered here. Returns `errno`
/// if the kernel refuses io_uring, or knows no such index while this process has rings. Otherwise
/// returns the kernel's `answer`.
pub(crate) fn not_registered(answer: i32, errno: i32) -> i32 {
    let is_refused = REFUSALS.contains(&answer);
    let is_none = [-libc::EBADF, -libc::EINVAL].contains(&answer) && !rings::none();
    if is_refused || is_none { errno } else { answer }
}

/// The kernel's answers if it has no io_uring for this process.
const REFUSALS: [i32; 3] = [-libc::ENOSYS, -libc::EPERM, -libc::EACCES];

/// The answer for a descriptor that is no ring here: the kernel's answer. If the kernel refuses
/// io_uring, the answer that a kernel with io_uring would give.
pub(crate) fn not_ours(answer: i32, fd: i32) -> i32 {
    if !REFUSALS.contains(&answer) {
        return answer;
    }
    if sys::is_open(fd) { -libc::EOPNOTSUPP } else { -libc::EBADF }
}

/// Submits entries and waits (io_uring_enter(2)). Returns the number of entries submitted, or a
/// negative errno.
///
/// # Safety
/// As io_uring_enter(2).
pub(crate) unsafe fn enter(fd: i32, count: u32, min: u32, flags: u32, arg: [usize; 2]) -> i32 {
    front::enter_whole(|| {
        let registered = flags & enter::REGISTERED_RING != 0 && flags & !enter::KNOWN == 0;
        let errno = match find(fd, registered) {
            Ok(ring) => {
                // SAFETY: the caller's contract.
                let answer = unsafe { enter_ring(ring, count, min, flags, arg) };
                return answer.unwrap_or_else(|errno| errno);
            }
            Err(errno) => errno,
        };
        if errno != 0 && !registered {
            return errno;
        }
        // SAFETY: the caller's contract.
        let answer = unsafe { sys::io_uring_enter(fd, count, min, flags, arg) };
        if errno == 0 { not_ours(answer, fd) } else { not_registered(answer, errno) }
    })
}

/// May the calling thread enter this ring now, with these flags?
fn check(core: &Core, count: u32, flags: u32) -> Result<(), i32> {
    if flags & !enter::KNOWN != 0 {
        return Err(-libc::EINVAL);
    }
    if core.is_held_here() || front::holds_lock() {
        return Err(-libc::EAGAIN);
    }
    if core.disabled.load(Ordering::Acquire) {
        return Err(-libc::EBADFD);
    }
    let owner = core.owner.load(Ordering::Relaxed);
    let single = core.has(setup::SINGLE_ISSUER) && owner != 0;
    let is_owners = count > 0 || core.has(setup::DEFER_TASKRUN) && flags & enter::GETEVENTS != 0;
    if single && is_owners && owner != sys::thread_id() {
        return Err(-libc::EEXIST);
    }
    Ok(())
}

/// Submits at most `count` entries behind `ended` ones, and returns the number of all. NOPs at the
/// head of the queue end at once, except on rings with SQPOLL.
fn submit(
    core: &Arc<Core>,
    engine: &Instance,
    (ended, count): (u32, u32),
    thread: u32,
) -> Result<u32, i32> {
    // A program may fill the queue while it is submitted.
    let count = count.min(core.memory.sq_entries().saturating_sub(ended));
    let nops = if core.has(setup::SQPOLL) { 0 } else { core.submit_nops(engine, count) };
    let ended = ended + nops;
    if nops == count {
        return Ok(ended);
    }
    match core.submit(engine, count - nops, thread) {
        Err(errno) if ended == 0 => Err(errno),
        rest => Ok(ended + rest.unwrap_or(0)),
    }
}

unsafe fn enter_ring(
    ring: Pinned<'static, Ring>,
    count: u32,
    min: u32,
    flags: u32,
    arg: [usize; 2],
) -> Result<i32, i32> {
    let core = &ring.core;
    check(core, count, flags)?;
    // With SQPOLL, a call with SQ_WAKEUP or with a count submits all entries. It returns the count
    // that it was passed.
    let (polls, submitted) = (core.has(setup::SQPOLL), count);
    let count = match () {
        () if !polls => count,
        () if flags & enter::SQ_WAKEUP != 0 || count > 0 => u32::MAX,
        () => 0,
    };
    let asks = flags & enter::GETEVENTS != 0;
    // A call that submits nothing collects completions. With DEFER_TASKRUN, only a call with
    // GETEVENTS does.
    let is_empty = submitted == 0 && !core.has(setup::DEFER_TASKRUN);
    core.look_at_polls(if asks { min == 0 } else { is_empty }, count);
    if count > 0 {
        // With SQPOLL, the end of the calling thread does not cancel the requests.
        let thread = if polls { 0 } else { threads::enters(ring.handle) };
        let engine = ring.engine()?;
        let _entered = core.entered();
        let fast = if polls { 0 } else { core.submit_fast(engine, count, thread) };
        let rest = || submit(core, engine, (fast, count - fast), thread);
        let consumed = if fast == count { fast } else { rest()? };
        if !polls && consumed != count {
            engine.poll();
            return Ok(consumed as i32);
        }
    }
    if flags & enter::GETEVENTS == 0 {
        core.look_for_untried();
        if count > 0 {
            poll(&ring);
        }
        ring.core.freshen();
        return Ok(submitted as i32);
    }
    let min = min.min(core.memory.cq_entries());
    flush(core);
    let waited = match bounds(flags, arg) {
        Err(errno) => Err(errno),
        Ok(_) if core.completions() >= min => {
            core.look_for_untried();
            poll(&ring);
            flush(core);
            Ok(())
        }
        Ok(bounds) => {
            // The wait also takes the events of receives that wait without a first try, so nothing
            // has to look for them later.
            core.untried.store(false, Ordering::Relaxed);
            let (core, instance) = (Arc::clone(core), ring.instance().cloned());
            // A signal handler may leave the wait by a jump, and a pin would stay then. The end of
            // the ring waits for pins, so the ring is not pinned during the wait.
            drop(ring);
            wait(&core, instance.as_deref(), min, bounds)
        }
    };
    match waited {
        Err(errno) if submitted == 0 => Err(errno),
        _ => Ok(submitted as i32),
    }
}

/// Executes requests that need not wait. If every request has ended, there is nothing to look for.
fn poll(ring: &Ring) {
    if !ring.core.has_requests() {
        return;
    }
    let _entered = ring.core.entered();
    ring.instance().inspect(|engine| engine.poll());
}

fn bounds(flags: u32, [at, size]: [usize; 2]) -> Result<Bounds, i32> {
    let mut bounds = Bounds::default();
    let (sigmask, sigmask_size) = if flags & enter::EXT_ARG != 0 {
        if size != size_of::<GetEventsArg>() {
            return Err(-libc::EINVAL);
        }
        let arg: GetEventsArg = user::read_known(at)?;
        if arg.ts != 0 {
            let time = user::read_known::<Timespec>(arg.ts as usize)?.of_wait();
            let absolute = flags & enter::ABS_TIMER != 0;
            bounds.deadline = Some(sys::deadline(time, libc::CLOCK_MONOTONIC, absolute));
        }
        if arg.min_wait_usec > 0 {
            bounds.min_wait = Some(u64::from(arg.min_wait_usec) * 1000);
        }
        (arg.sigmask as usize, arg.sigmask_sz as usize)
    } else {
        (at, size)
    };
    if sigmask != 0 {
        if sigmask_size != 8 {
            return Err(-libc::EINVAL);
        }
        bounds.mask = Some(mask_of_wait(user::read_known(sigmask)?));
    }
    Ok(bounds)
}

/// Waits for this many completions.
fn wait(
    core: &Arc<Core>,
    instance: Option<&Instance>,
    min: u32,
    bounds: Bounds,
) -> Result<(), i32> {
    let answer = match bounds.min_wait {
        Some(min_wait) if min > 1 => {
            let first = sys::now(libc::CLOCK_MONOTONIC).saturating_add(min_wait);
            let first_bounds = Bounds { deadline: Some(first), ..bounds };
            match wait_once(core, instance, min, first_bounds) {
                Err(errno) if errno == -libc::ETIME && core.completions() > 0 => Ok(()),
                Err(errno) if errno == -libc::ETIME => wait_once(core, instance, 1, bounds),
                other => other,
            }
        }
        _ => wait_once(core, instance, min, bounds),
    };
    flush(core);
    // If there are completions, the error is not returned.
    if core.completions() > 0 { Ok(()) } else { answer }
}

/// Moves waiting completions into the ring.
fn flush(core: &Arc<Core>) {
    if core.has_more() {
        core.with(|locked| locked.flush());
    } else {
        core.freshen();
    }
}

fn wait_once(
    core: &Arc<Core>,
    instance: Option<&Instance>,
    min: u32,
    bounds: Bounds,
) -> Result<(), i32> {
    let timeouts = core.memory.page().timeouts.load(Ordering::Acquire);
    let waiter = core.waiter();
    loop {
        let Some(instance) = instance.filter(|_| !core.waits_for_others()) else {
            return core.sleep_for_others((min, timeouts), bounds.deadline, bounds.mask);
        };
        let missing = || core.missing(min, timeouts);
        let wish = WaitCondition {
            missing: &missing,
            concern: core.concern(min, timeouts),
            gives_up: &|| core.closing.load(Ordering::Relaxed),
            mask: bounds.mask,
            restarts: false,
            beside: Some(&waiter),
        };
        let left = bounds.deadline.map(|deadline| {
            Duration::from_nanos(deadline.saturating_sub(sys::now(libc::CLOCK_MONOTONIC)))
        });
        let entered = core.entered();
        let waited = instance.wait_for(&wish, left);
        drop(entered);
        match waited {
            Waited::Enough if core.missing_of_all(min, timeouts) == 0 => return Ok(()),
            // This process has nothing in flight in a shared ring: the loop waits for other
            // processes.
            Waited::Enough => {}
            Waited::TimedOut => return look_last(core, (min, timeouts), -libc::ETIME),
            Waited::Interrupted => return look_last(core, (min, timeouts), -libc::EINTR),
            Waited::Gone | Waited::GaveUp => return Err(-libc::EBADF),
        }
    }
}

/// A wait ends with `errno`, and may not have seen which sockets and polls are ready. Checks the
/// sockets and polls once more. Returns `Ok` if enough completions are there then.
fn look_last(core: &Core, (min, timeouts): (u32, u32), errno: i32) -> Result<(), i32> {
    let entered = core.entered();
    service::look_at_all();
    drop(entered);
    if core.missing_of_all(min, timeouts) == 0 { Ok(()) } else { Err(errno) }
}
