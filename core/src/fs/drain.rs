//! Waiting for what nobody else waits for: operations that were detached.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use super::budget::{Awaited, Spent, Turns, awaited};
use super::driver::Fs;
use super::wakers;
use crate::process;
use crate::sync::lock;

/// Ready when no detached operation of the process's [`Fs`] is in flight or stands in line: those
/// of [`Op::detach`](super::Op::detach), and writes that a `Cursor` was dropped with. As
/// [`Fs::drain`].
///
/// The end of `main` ends the process, and cuts off what is in flight. To have it done, wait:
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
    /// Ready when no detached operation of this `Fs` is in flight or stands in line. Operations
    /// that are detached meanwhile count as well; dropped ones do not. One that never ends, such as
    /// a read of an empty pipe, is waited for without end.
    pub fn drain(&self) -> Drain {
        Drain { fs: Some(self.clone()), turns: Turns::default() }
    }
}

/// What [`drain`] gives: a future.
#[derive(Debug)]
#[must_use = "a future does nothing until it is awaited or waited for"]
pub struct Drain {
    fs: Option<Fs>,
    turns: Turns,
}

impl Drain {
    /// Blocks the calling thread until then; needs no executor.
    pub fn wait(mut self) {
        block_on(|context| self.poll_in_turn(context, &mut Spent::default()));
    }
}

/// Polls on this thread until it is ready.
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
            // Those of a fork(2)'s parent end there.
            Some(fs) if fs.generation() == process::generation() => {
                fs.detached().poll(context.waker())
            }
            _ => Poll::Ready(()),
        }
    }
}

/// Operations that were detached and have not ended.
#[derive(Debug, Default)]
pub(super) struct Detached(Mutex<DetachedState>);

#[derive(Debug, Default)]
struct DetachedState {
    count: usize,
    wakers: Vec<Waker>,
}

impl Detached {
    pub(super) fn begin(&self) {
        lock(&self.0).count += 1;
    }

    pub(super) fn end(&self) {
        let mut state = lock(&self.0);
        state.count -= 1;
        let wakers = if state.count == 0 { std::mem::take(&mut state.wakers) } else { Vec::new() };
        drop(state);
        wakers.into_iter().for_each(wakers::wake);
    }

    fn poll(&self, waker: &Waker) -> Poll<()> {
        let mut state = lock(&self.0);
        if state.count == 0 {
            return Poll::Ready(());
        }
        if !state.wakers.iter().any(|known| known.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
        Poll::Pending
    }
}
