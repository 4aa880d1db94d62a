//! Waiting for operations that nobody else waits for, because they were dropped or detached.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::budget::{Awaited, Spent, Turns, awaited};
use super::deadline::{Alarm, End};
use super::driver::Fs;
use super::handle::File;
use super::wakers::Flights;
use crate::process;

/// Ready when no detached operation of the process's [`Fs`] is in flight or queued. Detached
/// operations come from [`Op::detach`](super::Op::detach), and from a dropped `Cursor` that was
/// writing. See [`Fs::drain`].
///
/// The end of `main` ends the process, and cuts off operations in flight. To complete them, wait:
///
/// ```
/// use uringlet::fs;
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("file");
/// fs::write(&path, b"at last".to_vec()).detach();
/// fs::drain().wait();
/// assert_eq!(std::fs::read(&path)?, b"at last");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn drain() -> Drain {
    Drain { fs: Fs::known(), turns: Turns::default() }
}

impl Fs {
    /// Ready when no detached operation of this `Fs` is in flight or queued. Operations that are
    /// detached meanwhile count as well; dropped ones do not. An operation that never ends, such as
    /// a read of an empty pipe, is waited for without end: [`Drain::timeout`] bounds the wait.
    pub fn drain(&self) -> Drain {
        Drain { fs: Some(self.clone()), turns: Turns::default() }
    }

    /// From the first poll on, further operations are refused. The future is ready when all
    /// operations that were begun have ended, also dropped and detached ones. After that, this `Fs`
    /// changes no file and uses no buffer.
    ///
    /// ```
    /// use std::time::Duration;
    /// use uringlet::fs::{File, Fs};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("file");
    /// let fs = Fs::builder().build()?;
    /// let file = File::create(&path).on(&fs).wait()?;
    /// drop(file.write_all_at(vec![1; 1 << 20], 0).submit());
    /// fs.shutdown(Duration::from_secs(10)).wait()?;
    /// assert!(file.write_at(vec![2], 0).wait().0.is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `TimedOut`: some operations have not ended after `time`. Further operations are refused
    /// nevertheless, with `ESHUTDOWN`.
    pub fn shutdown(&self, time: Duration) -> Over {
        Over::new(Some((self.clone(), Awaits::Shutdown)), time)
    }
}

impl File {
    /// Ready when all operations of this file that were begun have ended. Dropped and detached ones
    /// are included, and those of other handles. Operations that begin meanwhile count, too.
    ///
    /// # Errors
    /// `TimedOut`: some operations have not ended after `time`.
    pub fn drain(&self, time: Duration) -> Over {
        let fs = self.fs().cloned();
        Over::new(fs.map(|fs| (fs, Awaits::File(Arc::clone(self.flights())))), time)
    }
}

/// A future, from [`drain`].
#[derive(Debug)]
#[must_use = "a future does nothing until it is awaited or waited for"]
pub struct Drain {
    fs: Option<Fs>,
    turns: Turns,
}

impl Drain {
    /// As this future, but at most for `time`.
    ///
    /// # Errors
    /// `TimedOut`: some operations have not ended after `time`.
    pub fn timeout(self, time: Duration) -> Over {
        Over::new(self.fs.clone().map(|fs| (fs, Awaits::Detached)), time)
    }

    /// Blocks the calling thread until the future is ready; needs no executor.
    pub fn wait(mut self) {
        block_on(|context| self.poll_in_turn(context, &mut Spent::default()));
    }
}

/// Polls on this thread until the result is ready.
pub(super) fn block_on<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

awaited!(Drain, ());

impl Awaited for Drain {
    fn poll_in_turn(&mut self, context: &mut Context<'_>, _: &mut Spent) -> Poll<()> {
        match &self.fs {
            // In the child of a fork(2), the parent's operations end in the parent.
            Some(fs) if fs.generation() == process::generation() => {
                fs.detached().poll(context.waker())
            }
            _ => Poll::Ready(()),
        }
    }
}

/// The operations that an [`Over`] waits for.
#[derive(Debug)]
enum Awaits {
    Detached,
    Shutdown,
    File(Arc<Flights>),
}

/// A future, from [`Fs::shutdown`], [`File::drain`] and [`Drain::timeout`]. The time counts from
/// the first poll.
#[must_use = "a future does nothing until it is awaited or waited for"]
pub struct Over {
    what: Option<(Fs, Awaits)>,
    end: End,
    alarm: Option<Alarm>,
    turns: Turns,
}

impl Over {
    fn new(what: Option<(Fs, Awaits)>, time: Duration) -> Self {
        Self { what, end: End::After(time), alarm: None, turns: Turns::default() }
    }

    /// Blocks the calling thread until the future is ready; needs no executor.
    ///
    /// # Errors
    /// As the future.
    pub fn wait(mut self) -> io::Result<()> {
        block_on(|context| self.poll_in_turn(context, &mut Spent::default()))
    }
}

awaited!(Over, io::Result<()>);

impl Awaited for Over {
    fn poll_in_turn(&mut self, context: &mut Context<'_>, _: &mut Spent) -> Poll<io::Result<()>> {
        let Some((fs, which)) = &self.what else { return Poll::Ready(Ok(())) };
        if fs.generation() != process::generation() {
            // In the child of a fork(2), the parent's operations end in the parent.
            return Poll::Ready(Ok(()));
        }
        let flights = match which {
            Awaits::Detached => fs.detached(),
            Awaits::File(flights) => flights,
            Awaits::Shutdown => {
                fs.refuse_further();
                fs.flights()
            }
        };
        if flights.poll(context.waker()).is_ready() {
            self.alarm = None;
            return Poll::Ready(Ok(()));
        }
        let now = Instant::now();
        let Some(at) = self.end.fix(now) else { return Poll::Pending };
        match &self.alarm {
            _ if at <= now => return Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Some(alarm) => alarm.wakes(context.waker()),
            None => self.alarm = Some(Alarm::set(at, context.waker())?),
        }
        // The deadline may have passed before the waker was stored.
        if self.alarm.as_ref().is_some_and(Alarm::has_rung) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl std::fmt::Debug for Over {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Over").field("what", &self.what).finish_non_exhaustive()
    }
}
