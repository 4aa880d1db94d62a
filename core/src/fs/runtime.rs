//! A tokio runtime that drives an [`Fs`]: it hands requests to the kernel and collects their
//! completions on its own threads. So no thread of the engine has to wake it.

use std::future::poll_fn;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::Poll;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use super::driver::Fs;
use crate::errno::kept;
use crate::instance::Instance;
use crate::instance::reactor::Reactor;
use crate::own::Copied;

/// Has the tokio runtime of the calling thread drive the [`Fs`] of the process: as
/// [`Fs::drive_on_tokio`]. Call this once, at the start of a program.
///
/// ```
/// # async fn program() {}
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() {
///     uringlet::fs::drive_on_tokio();
///     program().await;
/// }
/// ```
///
/// # Panics
/// As [`Fs::drive_on_tokio`].
pub fn drive_on_tokio() -> bool {
    Fs::global().is_ok_and(|fs| fs.drive_on_tokio())
}

impl Fs {
    /// Has the tokio runtime of the calling thread hand requests to an io_uring and collect their
    /// completions. Otherwise threads of the engine have to wake the runtime for each completion.
    /// The runtime hands over direct requests. It also hands over reads of at most 64 KiB that the
    /// first poll has not tried, or has not found in memory. If the kernel finds the pages in
    /// memory after all, it copies them on the runtime's thread.
    ///
    /// The runtime drives the `Fs` until one of the two ends. A task that computes may keep the
    /// runtime from driving. The engine's threads then take over within milliseconds, until the
    /// runtime drives again. The runtime's thread may be blocked inside the kernel (in `std::fs`,
    /// or because memory is short). Meanwhile no task learns of the end of requests that this
    /// thread has handed over. Tasks of other runtimes are served, too, and each of their
    /// completions passes through this runtime. If there are several runtimes, give each an `Fs` of
    /// its own. This function is meant for `current_thread`. A runtime with several threads drives
    /// on any of them that is free.
    ///
    /// False: the runtime does not drive the `Fs`. Another runtime does already, or the kernel
    /// refuses io_uring, or the `Fs` has another engine. The same holds if the `Fs` has handed
    /// requests to Linux AIO before.
    ///
    /// # Panics
    /// Outside of a tokio runtime, and in one without I/O
    /// ([`enable_io`](tokio::runtime::Builder::enable_io)).
    pub fn drive_on_tokio(&self) -> bool {
        let handle = tokio::runtime::Handle::current();
        let called = Arc::new(Called(Notify::new()));
        let reactor: Arc<dyn Reactor> = Arc::clone(&called) as _;
        let Some(events) = self.instance().begin_to_be_driven(reactor) else { return false };
        let driver = DrivingTask { instance: Arc::downgrade(self.instance()), called };
        // A copy: the engine may close its own descriptor before this task is dropped.
        let Some(events) = Copied::of(events) else { return false };
        #[allow(deprecated, reason = "its successor is newer than the oldest tokio that will do")]
        let events = AsyncFd::with_interest(Events(events), Interest::READABLE);
        let Ok(events) = events else { return false };
        handle.spawn(driver.run(events));
        true
    }
}

#[derive(Debug)]
struct Called(Notify);

impl Reactor for Called {
    fn call(&self) {
        self.0.notify_one();
    }
}

/// A copy of the eventfd(2) of completions, which stays open as long as this value lives.
struct Events(Arc<Copied>);

impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd()
    }
}

/// The runtime's task that drives the `Fs`.
struct DrivingTask {
    instance: Weak<Instance>,
    called: Arc<Called>,
}

impl DrivingTask {
    async fn run(self, events: AsyncFd<Events>) {
        let flavor = tokio::runtime::Handle::current().runtime_flavor();
        let has_threads = flavor != tokio::runtime::RuntimeFlavor::CurrentThread;
        let mut called = pin!(self.called.0.notified());
        loop {
            let is_over = poll_fn(|context| {
                let mut comes = false;
                loop {
                    match events.poll_read_ready(context) {
                        // Each completion is an edge-triggered event: the eventfd is not read here.
                        Poll::Ready(Ok(mut guard)) => guard.clear_ready(),
                        // The runtime is ending.
                        Poll::Ready(Err(_)) => return Poll::Ready(true),
                        Poll::Pending => break,
                    }
                    comes = true;
                }
                while called.as_mut().poll(context).is_ready() {
                    called.set(self.called.0.notified());
                    comes = true;
                }
                if comes { Poll::Ready(false) } else { Poll::Pending }
            });
            if is_over.await {
                return;
            }
            if has_threads {
                // tokio runs a woken task next, on the thread that has woken it. The yield lets
                // other tasks submit requests first, or an idle thread run this task.
                tokio::task::yield_now().await;
            }
            // tokio would catch a panic, and requests would be lost. `kept` aborts instead.
            let drive = |instance: Arc<Instance>| kept(|| instance.drive());
            if !self.instance.upgrade().is_some_and(drive) {
                return;
            }
        }
    }
}

impl Drop for DrivingTask {
    fn drop(&mut self) {
        if let Some(instance) = self.instance.upgrade() {
            instance.end_to_be_driven();
        }
    }
}
