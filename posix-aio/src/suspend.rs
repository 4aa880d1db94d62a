//! Waiting and polling: aio_suspend(3) and aio_error(3).
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use uringlet::front::{self, Concern, Uncancelable, WaitCondition, Waited};

use crate::abi::Aiocb;
use crate::signals;
use crate::state::{self, Process};

/// aio_error(3). Requests that are known not to sleep are executed now, before the error code is
/// read.
///
/// # Safety
/// As aio_error(3).
#[inline]
pub(crate) unsafe fn look(block: *const Aiocb) -> c_int {
    if let Some(process) = state::current() {
        process.instance.poll();
    }
    // SAFETY: the caller's contract.
    unsafe { (*block).error.load(Ordering::Acquire) }
}

/// A list of control blocks, some of them null.
#[derive(Clone, Copy)]
struct Blocks(*const *const Aiocb, usize);

impl Blocks {
    fn iter(self) -> impl Iterator<Item = *const Aiocb> {
        // SAFETY: the list is valid by the contract of `suspend`.
        (0..self.1).map(move |at| unsafe { self.0.add(at).read_unaligned() })
    }

    /// The completions after which the waiting thread checks its requests. If the thread waits for
    /// more than eight requests, it checks them after every completion.
    fn concern(self) -> Concern {
        let mut blocks = self.iter().filter(|block| !block.is_null());
        let words: [u64; 8] = std::array::from_fn(|_| blocks.next().map_or(0, |at| at as u64));
        let any = blocks.next().is_some();
        // SAFETY: the closures read only the words that they get.
        unsafe {
            match any {
                true => Concern::new(|_, _| true, &[]),
                false => Concern::new(|words, event| words.contains(&event.obj), &words),
            }
        }
    }

    /// Has one of the requests ended, or is there none to wait for?
    fn is_over(self, process: &Process) -> bool {
        let mut any = false;
        for block in self.iter().filter(|block| !block.is_null()) {
            // SAFETY: a control block, by the same contract.
            let (error, owner) = unsafe {
                ((*block).error.load(Ordering::Acquire), (*block).owner.load(Ordering::Relaxed))
            };
            // A request that this process has not submitted never ends here, so the call does not
            // wait for it. The parent of a fork may have submitted the request.
            if error != libc::EINPROGRESS || owner != process.mark(block.addr()) {
                return true;
            }
            any = true;
        }
        !any
    }
}

/// The result of one attempt of [`suspend`].
pub(crate) enum Ended {
    Answer(Result<c_int, c_int>),
    /// pthread_cancel(3) was called, for this thread or another.
    Disturbed,
}

/// The deadline of the caller.
///
/// # Safety
/// The pointer is null, or points to a timespec.
pub(crate) unsafe fn deadline(timeout: *const libc::timespec) -> Option<Instant> {
    // SAFETY: the caller's contract.
    let timeout = *unsafe { timeout.as_ref() }?;
    // Negative times count as zero, as in the C library.
    Instant::now().checked_add(front::duration(timeout).unwrap_or_default())
}

/// aio_suspend(3); `nested` as in [`crate::submit::start`]. Also ends once pthread_cancel(3) was
/// called more than `cancels` times.
///
/// # Safety
/// As aio_suspend(3).
pub(crate) unsafe fn suspend(
    list: *const *const Aiocb,
    count: c_int,
    deadline: Option<Instant>,
    cancels: usize,
    nested: bool,
) -> Ended {
    let Ok(count) = usize::try_from(count) else { return Ended::Answer(Err(libc::EINVAL)) };
    let blocks = Blocks(list, count);
    let Some(process) = state::current() else {
        return Ended::Answer(if front::has_parted() { Err(libc::EINVAL) } else { Ok(0) });
    };
    if blocks.is_over(process) {
        return Ended::Answer(Ok(0));
    }
    if nested {
        return Ended::Answer(nap(blocks, process, deadline));
    }
    let _whole = Uncancelable::new();
    let timeout = || deadline.map(|end| end.saturating_duration_since(Instant::now()));
    let wish = WaitCondition {
        missing: &|| u32::from(!blocks.is_over(process)),
        concern: blocks.concern(),
        gives_up: &|| state::cancels() != cancels,
        mask: None,
        restarts: true,
        beside: None,
    };
    loop {
        return Ended::Answer(match process.instance.wait_for(&wish, timeout()) {
            Waited::Enough | Waited::Gone => Ok(0),
            Waited::TimedOut => Err(libc::EAGAIN),
            Waited::Interrupted if deadline.is_none() && signals::all_restart() => continue,
            Waited::Interrupted => Err(libc::EINTR),
            Waited::GaveUp => return Ended::Disturbed,
        });
    }
}

/// Waits in a signal handler that has interrupted a function of this library. The thread may hold
/// locks that the usual wait takes, so this checks the requests once a millisecond.
#[cold]
fn nap(blocks: Blocks, process: &Process, deadline: Option<Instant>) -> Result<c_int, c_int> {
    const NAP: Duration = Duration::from_millis(1);
    while !blocks.is_over(process) {
        if deadline.is_some_and(|end| Instant::now() >= end) {
            return Err(libc::EAGAIN);
        }
        std::thread::sleep(NAP);
    }
    Ok(0)
}
