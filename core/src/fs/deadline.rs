//! Operations with a deadline.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::budget::{Awaited, Spent, Turns, awaited};
use super::op::{Op, Operation};
use super::wakers::guarded;
use crate::front::{Armed, Expire};
use crate::sync::lock;

/// An operation with a deadline, from [`Op::timeout`] and [`Op::deadline`]. A future for any
/// executor, or none. Dropping it has the effect of dropping an [`Op`].
#[must_use = "an operation does nothing until it is awaited, waited for or submitted"]
pub struct Timeout<O: Operation> {
    /// `None` once the output was returned.
    operation: Option<Op<O>>,
    end: End,
    alarm: Option<Alarm>,
    turns: Turns,
}

/// The deadline of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// This long after the operation has begun.
    After(Duration),
    /// `None`: never.
    At(Option<Instant>),
}

impl End {
    /// Fixes the deadline of an operation that begins now. A deadline that is fixed already stays.
    pub(super) fn fix(&mut self, now: Instant) -> Option<Instant> {
        let at = match *self {
            Self::After(time) => now.checked_add(time),
            Self::At(at) => at,
        };
        *self = Self::At(at);
        at
    }

    /// The deadline of an operation that has begun.
    fn fixed(&self) -> Option<Instant> {
        match *self {
            Self::After(_) => None,
            Self::At(at) => at,
        }
    }
}

/// A deadline that wakes a task.
pub(super) struct Alarm {
    bell: Arc<Bell>,
    armed: Armed,
}

struct Bell {
    has_rung: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Expire for Bell {
    fn expire(&self) {
        self.has_rung.store(true, Ordering::Release);
        // If another task is stored too late for this, the storing thread sees the flag afterwards.
        let task = lock(&self.task).take();
        guarded(|| task.into_iter().for_each(Waker::wake));
    }
}

impl Alarm {
    pub(super) fn set(at: Instant, task: &Waker) -> io::Result<Self> {
        let task = Mutex::new(Some(task.clone()));
        let bell = Arc::new(Bell { has_rung: AtomicBool::new(false), task });
        let what = Arc::clone(&bell);
        Ok(Self { armed: Armed::new(at, what)?, bell })
    }

    pub(super) fn has_rung(&self) -> bool {
        self.bell.has_rung.load(Ordering::Acquire)
    }

    /// Stores the task to wake.
    pub(super) fn wakes(&self, task: &Waker) {
        let mut known = lock(&self.bell.task);
        let is_same = known.as_ref().is_some_and(|known| known.will_wake(task));
        let before = if is_same { None } else { known.replace(task.clone()) };
        drop(known);
        drop(before);
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.armed.disarm();
    }
}

/// The time is over. This error contains the operation, which was asked to stop, as by
/// [`Op::cancel`].
///
/// An operation that had not begun has ended with `ECANCELED`. A request that the kernel was
/// executing goes on until the kernel is done; a write may still happen. [`Elapsed::into_op`] gives
/// the real outcome and the buffer. If the error is dropped, operation and buffer are dropped when
/// the engine has finished with them.
pub struct Elapsed<O: Operation> {
    operation: Op<O>,
    errno: i32,
}

impl<O: Operation> Elapsed<O> {
    /// The operation that was late: a future for its real outcome, and its buffer.
    pub fn into_op(self) -> Op<O> {
        self.operation
    }

    /// `ETIMEDOUT`. `EAGAIN` or `ENOMEM` if the thread for deadlines cannot be made (clone(2)).
    pub fn errno(&self) -> i32 {
        self.errno
    }
}

impl<O: Operation> fmt::Debug for Elapsed<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elapsed").field("operation", &self.operation).finish_non_exhaustive()
    }
}

impl<O: Operation> fmt::Display for Elapsed<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.errno).fmt(f)
    }
}

impl<O: Operation> std::error::Error for Elapsed<O> {}

impl<O: Operation> From<Elapsed<O>> for io::Error {
    /// The error alone; the operation is dropped.
    fn from(elapsed: Elapsed<O>) -> Self {
        Self::from_raw_os_error(elapsed.errno)
    }
}

impl<O: Operation> Op<O> {
    /// Ends with [`Elapsed`] if the operation has not ended within `time` of its beginning. The
    /// operation begins with its first poll, with [`Timeout::submit`], or with [`Timeout::wait`].
    ///
    /// When the time is over, a request that is queued, or waits for a pipe, a socket or a thread,
    /// is no longer executed. A request that the kernel executes cannot be stopped: the future is
    /// ready without it. The buffer stays with the engine until the kernel is done.
    ///
    /// ```
    /// use std::time::Duration;
    /// use uringlet::fs::{BufResult, File};
    ///
    /// async fn head(file: &File) -> std::io::Result<Vec<u8>> {
    ///     let read = file.read_at(Vec::with_capacity(512), 0);
    ///     let BufResult(result, buffer) = read.timeout(Duration::from_secs(5)).await?;
    ///     result.map(|_| buffer)
    /// }
    /// # let file = File::open("/proc/self/exe").wait()?;
    /// # assert_eq!(pollster::block_on(head(&file))?[..4], *b"\x7fELF");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Elapsed`]: the time is over.
    pub fn timeout(self, time: Duration) -> Timeout<O> {
        Timeout::new(self, End::After(time))
    }

    /// As [`Op::timeout`], with a point in time. An operation that is begun later is not executed.
    ///
    /// # Errors
    /// [`Elapsed`]: the time is over.
    pub fn deadline(self, at: Instant) -> Timeout<O> {
        Timeout::new(self, End::At(Some(at)))
    }
}

impl<O: Operation> Timeout<O> {
    fn new(operation: Op<O>, end: End) -> Self {
        Self { operation: Some(operation), end, alarm: None, turns: Turns::default() }
    }

    /// Begins now; the time of [`Op::timeout`] starts now.
    pub fn submit(mut self) -> Self {
        let now = Instant::now();
        if self.end.fix(now).is_none_or(|at| now < at) {
            self.operation = self.operation.take().map(Op::submit);
        }
        self
    }

    /// Blocks the calling thread until the operation has ended, or the time is over; needs no
    /// executor. The thread makes no call that may wait for a file server.
    ///
    /// # Errors
    /// [`Elapsed`]: the time is over.
    pub fn wait(mut self) -> Result<O::Output, Elapsed<O>> {
        let operation = self.operation.take().expect("it has not ended");
        let now = Instant::now();
        match self.end.fix(now) {
            None => Ok(operation.wait()),
            Some(at) if at <= now && !operation.has_begun() => {
                Err(elapsed(operation, libc::ETIMEDOUT))
            }
            Some(at) => operation.wait_until(at).map_err(|late| elapsed(late, libc::ETIMEDOUT)),
        }
    }

    /// The time is over: asks the operation to stop.
    fn elapse(&mut self, errno: i32) -> Elapsed<O> {
        self.alarm = None;
        elapsed(self.operation.take().expect("it has not ended"), errno)
    }
}

fn elapsed<O: Operation>(operation: Op<O>, errno: i32) -> Elapsed<O> {
    Elapsed { operation: operation.cancel(), errno }
}

awaited!(Timeout<O: Operation>, Result<O::Output, Elapsed<O>>);

impl<O: Operation> Awaited for Timeout<O> {
    fn poll_in_turn(&mut self, context: &mut Context<'_>, spent: &mut Spent) -> Poll<Self::Output> {
        let this = self;
        let operation = this.operation.as_mut().expect("polled after it was ready");
        if !operation.has_begun() {
            let now = Instant::now();
            if this.end.fix(now).is_some_and(|at| at <= now) {
                return Poll::Ready(Err(this.elapse(libc::ETIMEDOUT)));
            }
        }
        if let Poll::Ready(output) = operation.poll_in_turn(context, spent) {
            (this.alarm, this.operation) = (None, None);
            return Poll::Ready(Ok(output));
        }
        let Some(at) = this.end.fixed() else { return Poll::Pending };
        match &this.alarm {
            Some(alarm) => alarm.wakes(context.waker()),
            None => match Alarm::set(at, context.waker()) {
                Ok(alarm) => this.alarm = Some(alarm),
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(libc::ENOMEM);
                    return Poll::Ready(Err(this.elapse(errno)));
                }
            },
        }
        // The alarm may have rung before the waker was stored.
        if this.alarm.as_ref().is_some_and(Alarm::has_rung) {
            return Poll::Ready(Err(this.elapse(libc::ETIMEDOUT)));
        }
        Poll::Pending
    }
}

impl<O: Operation> fmt::Debug for Timeout<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeout")
            .field("operation", &self.operation)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}
