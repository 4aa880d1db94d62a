//! Requests that the calling thread waits for. They go through a context that the thread keeps for
//! later calls, so that a call takes no lock and makes no context.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::os::fd::RawFd;

use pyo3::prelude::*;
use uringlet::{Context, Sqe};

use crate::error;

/// The maximum number of requests in flight of a thread's context. It is enough to keep a disk and
/// 64 threads busy.
const ENTRIES: u32 = 512;

/// The maximum number of bytes of one call (read(2)). Longer transfers take several calls.
pub(crate) const LENGTH_MAX: usize = 0x7fff_f000;

/// The value of [`BatchRequest::result`] until the request has ended.
const NONE_YET: i64 = i64::MIN;

/// One request, and its result: a count, or a negative errno.
pub(crate) struct BatchRequest {
    what: What,
    /// Is a short transfer continued with another call?
    is_whole: bool,
    fd: RawFd,
    pub(crate) result: i64,
    offset: u64,
    address: *mut u8,
    length: usize,
    done: usize,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Read,
    Write,
    Fsync,
    Fdatasync,
}

// SAFETY: `address` is used only as the contract of `execute` allows, on any thread.
unsafe impl Send for BatchRequest {}

impl BatchRequest {
    pub(crate) fn new(what: What, fd: RawFd, memory: (*mut u8, usize), offset: u64) -> Self {
        let (address, length) = memory;
        Self { what, is_whole: false, fd, result: NONE_YET, offset, address, length, done: 0 }
    }

    /// Makes the request continue until everything is transferred, or nothing more can be.
    pub(crate) fn whole(self) -> Self {
        Self { is_whole: true, ..self }
    }

    pub(crate) fn sync(what: What, fd: RawFd) -> Self {
        Self::new(what, fd, (std::ptr::null_mut(), 0), 0)
    }

    /// The next call of the request, for the bytes that are left, [`LENGTH_MAX`] at most.
    #[inline]
    fn sqe(&self) -> Sqe {
        let address = self.address.wrapping_add(self.done);
        let length = (self.length - self.done).min(LENGTH_MAX);
        let memory = std::ptr::slice_from_raw_parts_mut(address, length);
        let offset = self.offset.saturating_add(self.done as u64);
        match self.what {
            What::Read => Sqe::read(self.fd, memory, offset),
            What::Write => Sqe::write(self.fd, memory, offset),
            What::Fsync => Sqe::fsync(self.fd),
            What::Fdatasync => Sqe::fdatasync(self.fd),
        }
    }

    /// Takes the result of a call. True: the request needs another call.
    #[inline]
    fn after(&mut self, result: i32) -> bool {
        let Ok(count) = usize::try_from(result) else {
            // A request that is not whole reports the bytes that were transferred before the error,
            // as after a short transfer.
            let is_short = self.done > 0 && !self.is_whole;
            self.result = if is_short { self.done as i64 } else { result.into() };
            return false;
        };
        self.done += count;
        let goes_on = count == LENGTH_MAX || self.is_whole && count > 0;
        if goes_on && self.done < self.length {
            return true;
        }
        self.result = self.done as i64;
        false
    }
}

/// A context of one thread.
struct Own {
    /// The process that made the context. The child of a fork makes another one.
    generation: u64,
    context: Context,
}

thread_local! {
    static OWN: RefCell<Option<Own>> = const { RefCell::new(None) };
}

impl Own {
    /// Takes the context of this thread out of `OWN`. A Python signal handler that calls this
    /// before [`Own::put_back`] makes another context.
    fn take() -> PyResult<Self> {
        let generation = uringlet::front::enter_process();
        let kept = OWN.try_with(RefCell::take).ok().flatten();
        if let Some(own) = kept.filter(|own| own.generation == generation) {
            return Ok(own);
        }
        let context = Context::new(ENTRIES).map_err(|error| error::os_error(error.errno()))?;
        Ok(Self { generation, context })
    }

    fn put_back(self) {
        let _ = OWN.try_with(|own| own.replace(Some(self)));
    }
}

/// The progress of a batch.
#[derive(Default)]
struct Progress {
    /// The number of the first request that was not pushed.
    next: usize,
    /// The numbers of requests that need another call.
    again: Vec<usize>,
    outstanding: usize,
    /// No more requests are pushed.
    is_stopped: bool,
}

impl Progress {
    /// Do some of `count` requests still need calls?
    fn has_more(&self, count: usize) -> bool {
        !self.is_stopped && (self.next < count || !self.again.is_empty())
    }

    /// The number of the next request that needs a call.
    fn take(&mut self) -> usize {
        self.again.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

/// The reason why a batch stopped.
enum Stop {
    Over,
    /// A signal handler has to run.
    Interrupted,
    Failed(i32),
}

/// Pushes, submits and reaps requests until all have ended, or until a signal comes.
///
/// # Safety
/// The buffers belong to the requests until nothing is outstanding.
unsafe fn go_on(context: &mut Context, requests: &mut [BatchRequest], at: &mut Progress) -> Stop {
    let room = context.entries();
    let errno = |error: &std::io::Error| error.raw_os_error().unwrap_or(libc::EIO);
    // Requests that were pushed are submitted in any case. Otherwise a later call would submit
    // them, when their buffers may be gone.
    while at.outstanding + context.pushed() > 0 || at.has_more(requests.len()) {
        let mut pushed = context.pushed();
        while at.has_more(requests.len()) && pushed + at.outstanding < room {
            let next = at.take();
            let sqe = requests[next].sqe().user_data(next as u64);
            // SAFETY: the caller's contract.
            if unsafe { context.push(sqe) }.is_err() {
                at.again.push(next);
                break;
            }
            pushed += 1;
        }
        if pushed > 0 {
            match context.submit() {
                Ok(accepted) => at.outstanding += accepted,
                Err(error) if errno(&error) == libc::EAGAIN => {}
                // This is the child of a fork, in which no request of its parent is in flight.
                Err(_) => return Stop::Failed(libc::EINVAL),
            }
        }
        // While more requests are to come, this waits for half of those in flight only.
        let has_more = at.has_more(requests.len());
        let min = if has_more { at.outstanding.div_ceil(2) } else { at.outstanding };
        let waited = context.wait(min, None);
        while let Some(cqe) = context.reap() {
            at.outstanding -= 1;
            let at_request = cqe.user_data as usize;
            if requests[at_request].after(cqe.res) {
                at.again.push(at_request);
            }
        }
        match waited.map_err(|error| errno(&error)) {
            Ok(_) => {}
            Err(libc::EINTR) => return Stop::Interrupted,
            Err(errno) => return Stop::Failed(errno),
        }
    }
    Stop::Over
}

/// Executes all requests, without the interpreter, and waits for all of them.
///
/// # Errors
/// The exception of a signal handler. Then requests that have not begun are not executed, and
/// this waits for the others. `OSError` if no context can be made, or if a submit or wait fails.
///
/// # Safety
/// The buffers stay valid until this returns.
pub(crate) unsafe fn execute(py: Python<'_>, requests: &mut [BatchRequest]) -> PyResult<()> {
    let mut own = Own::take()?;
    let mut at = Progress::default();
    let mut raised = None;
    loop {
        // SAFETY: the buffers stay valid until this returns, and nothing is outstanding then.
        match py.detach(|| unsafe { go_on(&mut own.context, requests, &mut at) }) {
            Stop::Over => break,
            Stop::Failed(errno) => {
                // The context is dropped, which waits for its requests in flight.
                py.detach(|| drop(own));
                return Err(error::os_error(errno));
            }
            Stop::Interrupted => {
                if let Err(exception) = py.check_signals()
                    && raised.is_none()
                {
                    raised = Some(exception);
                    at.is_stopped = true;
                    withdraw(&own.context, &requests[..at.next]);
                }
            }
        }
    }
    own.put_back();
    match raised {
        Some(exception) => Err(exception),
        None => Ok(()),
    }
}

/// Asks to cancel requests that have not begun.
fn withdraw(context: &Context, requests: &[BatchRequest]) {
    let canceller = context.canceller();
    for (at, request) in requests.iter().enumerate() {
        if request.result == NONE_YET {
            // A request that has begun or ended is left alone.
            let _ = canceller.cancel(at as u64);
        }
    }
}

/// Executes one request. Returns its count.
///
/// # Errors
/// As [`execute`], and the request's own error.
///
/// # Safety
/// As [`execute`].
pub(crate) unsafe fn execute_one(py: Python<'_>, request: BatchRequest) -> PyResult<usize> {
    let mut requests = [request];
    // SAFETY: the caller's contract.
    unsafe { execute(py, &mut requests)? };
    let [BatchRequest { result, .. }] = requests;
    usize::try_from(result).map_err(|_| error::os_error(-result as i32))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a request results until it makes no further call. Returns its result, and the calls'
    /// ranges.
    fn over(mut request: BatchRequest, results: &[i32]) -> (i64, Vec<(u64, u32)>) {
        let mut calls = Vec::new();
        for &result in results {
            let sqe = request.sqe();
            calls.push((sqe.off, sqe.len));
            if !request.after(result) {
                break;
            }
        }
        assert_eq!(calls.len(), results.len(), "calls that nobody expects");
        (request.result, calls)
    }

    fn of(length: usize) -> BatchRequest {
        BatchRequest::new(What::Write, 0, (std::ptr::dangling_mut(), length), 10)
    }

    #[test]
    fn a_short_transfer_is_the_last_one() {
        assert_eq!(over(of(100), &[100]), (100, vec![(10, 100)]));
        assert_eq!(over(of(100), &[7]), (7, vec![(10, 100)]));
        assert_eq!(over(of(100), &[0]), (0, vec![(10, 100)]));
        assert_eq!(over(of(100), &[-libc::EIO]), (-i64::from(libc::EIO), vec![(10, 100)]));
    }

    #[test]
    fn what_one_call_cannot_transfer_takes_several() {
        let most = LENGTH_MAX as i32;
        let calls = vec![(10, LENGTH_MAX as u32), (10 + LENGTH_MAX as u64, 50)];
        assert_eq!(over(of(LENGTH_MAX), &[most]), (most.into(), calls[..1].to_vec()));
        assert_eq!(over(of(LENGTH_MAX + 50), &[most, 50]), (i64::from(most) + 50, calls.clone()));
        assert_eq!(over(of(LENGTH_MAX + 50), &[most, 0]), (most.into(), calls.clone()));
        assert_eq!(over(of(LENGTH_MAX + 50), &[most, -libc::EIO]), (most.into(), calls));
    }

    #[test]
    fn a_whole_one_goes_on_until_nothing_is_transferred() {
        let calls = vec![(10, 100), (40, 70), (50, 60)];
        assert_eq!(over(of(100).whole(), &[30, 10, 60]), (100, calls.clone()));
        assert_eq!(over(of(100).whole(), &[30, 10, 0]), (40, calls.clone()));
        let failed = over(of(100).whole(), &[30, 10, -libc::ENOSPC]);
        assert_eq!(failed, (-i64::from(libc::ENOSPC), calls));
    }
}
