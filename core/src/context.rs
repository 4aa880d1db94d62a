//! The context: push, submit, wait, reap, cancel, destroy.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use crate::board::DirectCompletions;
use crate::config::{Builder, ConfigError, EngineKind};
use crate::cqe::Cqe;
use crate::eventfd::{self, Eventfd};
use crate::instance::Instance;
use crate::instance::cancel::Canceled;
use crate::instance::choice::Choice;
use crate::instance::submit::{Entry, Submitted};
use crate::instance::wait::Waited;
use crate::own::Copied;
use crate::router::tuning::TAKEN_MAX;
use crate::sqe::Sqe;
use crate::stats::Snapshot;

/// One asynchronous I/O instance with one owner, which pushes, submits, waits and reaps.
///
/// A context can be sent to another thread, but not be used by two at a time (`Send`, not `Sync`).
/// [`Context::canceller`] gives a handle for cancelling from other threads.
///
/// Dropping a context cancels requests that have not started, and waits for the others, so that no
/// buffer is written to afterwards. [`Context::destroy`] does the same and returns the completions.
///
/// After a fork, the context belongs to the parent. In the child, submitting, waiting and
/// cancelling fail with `EINVAL`, and there is nothing to reap.
///
/// The threads that execute requests share the descriptor table of the thread that made the first
/// context. A thread that gets a table of its own (unshare(2) with `CLONE_FILES`, close_range(2)
/// with `CLOSE_RANGE_UNSHARE`) must neither submit nor wait. Its descriptors could name other files
/// in the engine's threads, and nothing notices that. The drop-ins see such calls, and refuse what
/// the thread asks for.
///
/// ```
/// use std::os::fd::AsFd as _;
/// use uringlet::{Context, Sqe};
///
/// let file = tempfile::tempfile()?;
/// let mut context = Context::new(8)?;
/// let blocks: Vec<[u8; 512]> = (0..8).map(|at| [at; 512]).collect();
/// for (at, block) in (0..).zip(&blocks) {
///     let write = Sqe::write(file.as_fd(), &block[..], at * 512).user_data(at);
///     // SAFETY: `blocks` outlives the requests, and nobody writes to it.
///     unsafe { context.push(write)? };
/// }
/// context.submit()?;
/// context.wait(8, None)?;
/// while let Some(cqe) = context.reap() {
///     assert_eq!(cqe.result()?, 512, "block {}", cqe.user_data);
/// }
/// assert_eq!(file.metadata()?.len(), 8 * 512);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Context {
    instance: Arc<Instance>,
    pushed: Vec<Entry>,
    /// Completions that `wait` and `reap` have taken from the engine, and not yet returned; oldest
    /// first.
    taken: VecDeque<Cqe>,
    /// The eventfd that completions count up, or -1.
    notify: RawFd,
    /// The eventfd that [`Context::eventfd`] has made. `notify` may be its number.
    eventfd: Option<Eventfd>,
    /// Duplicates of the program's eventfds ([`Context::set_eventfd`]). Requests may still count
    /// them up.
    eventfds: Vec<Arc<Copied>>,
    /// A context is not shared between threads: only the owner pushes and reaps.
    _not_sync: std::marker::PhantomData<std::cell::Cell<()>>,
}

/// The submission queue is full. The entry is returned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Full(pub Sqe);

impl fmt::Debug for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Full").field(&self.0).finish()
    }
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the submission queue is full: submit before pushing more")
    }
}

impl std::error::Error for Full {}

/// Cancels requests of a [`Context`] from any thread.
#[derive(Clone, Debug)]
pub struct Canceller(Arc<Instance>);

impl Canceller {
    /// As [`Context::cancel`].
    ///
    /// # Errors
    /// As [`Context::cancel`].
    pub fn cancel(&self, user_data: u64) -> io::Result<()> {
        self.0.cancel(user_data).map_err(|errno| io::Error::from_raw_os_error(-errno))
    }

    /// Ends the [`Context::wait`] in which the context's thread sleeps, with `EINTR`. If the thread
    /// is not asleep, its next sleep ends at once. A thread that executes a request returns after
    /// the request.
    ///
    /// ```
    /// use uringlet::Context;
    ///
    /// let mut context = Context::new(1)?;
    /// let other = context.canceller();
    /// let thread = std::thread::spawn(move || other.interrupt());
    /// let error = context.wait(1, None).unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::Interrupted);
    /// # thread.join().unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn interrupt(&self) {
        self.0.interrupt();
    }

    /// Cancels all requests that were submitted on a descriptor and have not started: each
    /// completes with `-ECANCELED`. Returns the number of cancelled requests.
    ///
    /// # Errors
    /// `EALREADY` if none was cancelled and some are being executed; `ENOENT` if there are none on
    /// this descriptor. `EINVAL` in the child of a fork.
    pub fn cancel_fd(&self, fd: impl AsFd) -> io::Result<usize> {
        let error = |errno| Err(io::Error::from_raw_os_error(errno));
        if !self.0.is_usable() {
            return error(libc::EINVAL);
        }
        match self.0.cancel_all_on(fd.as_fd().as_raw_fd()) {
            Canceled { canceled: 0, running: 0 } => error(libc::ENOENT),
            Canceled { canceled: 0, .. } => error(libc::EALREADY),
            Canceled { canceled, .. } => Ok(canceled),
        }
    }
}

impl Context {
    /// A context for `entries` requests in flight, with defaults for everything else.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new(entries: u32) -> Result<Self, ConfigError> {
        Self::builder().entries(entries).build()
    }

    /// A builder with the defaults.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn from_builder(builder: &Builder) -> Result<Self, ConfigError> {
        let instance = Instance::new(builder)?;
        let pushed = Vec::with_capacity(builder.entries as usize);
        let taken = VecDeque::with_capacity(TAKEN_MAX as usize);
        let _not_sync = std::marker::PhantomData;
        let (notify, eventfd, eventfds) = (-1, None, Vec::new());
        Ok(Self { instance, pushed, taken, notify, eventfd, eventfds, _not_sync })
    }

    /// The engine that executes the requests.
    pub fn engine(&self) -> EngineKind {
        self.choice().engine
    }

    /// The engine, the kernel interface that it uses, and what was tried and refused. Its text is a
    /// line for a log.
    pub fn choice(&self) -> Choice {
        self.instance.choice()
    }

    /// The placement in effect, with reasons where it differs from what was asked for. None before
    /// the first submit, or if no placement was asked for.
    pub fn placement(&self) -> Option<&crate::affinity::EffectivePlacement> {
        self.instance.placement()
    }

    /// Sets an eventfd(2) of the program, which the engine counts up after each completion that can
    /// be reaped. It is for loops that wait with epoll(7). `None` ends the counting. The setting
    /// applies to entries that are pushed from now on. The context keeps a duplicate of the
    /// descriptor. The duplicate is closed with the context, or by a later call that finds no entry
    /// pushed and every request reaped. The engine checks once whether the descriptor blocks
    /// (`O_NONBLOCK`), so the program must not change that flag.
    ///
    /// ```compile_fail,E0308
    /// let mut context = uringlet::Context::new(1)?;
    /// context.set_eventfd(Some(7))?; // A number may stand for any file, or none.
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// `EMFILE` if no descriptor is free: nothing changes then.
    pub fn set_eventfd(&mut self, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let error = || io::Error::from_raw_os_error(libc::EMFILE);
        let copy = match fd {
            Some(fd) => Some(Copied::of(fd.as_raw_fd()).ok_or_else(error)?),
            None => None,
        };
        if self.pushed.is_empty() && self.instance.unreaped() == 0 {
            self.eventfds.clear();
        }
        self.notify = copy.as_ref().map_or(-1, |copy| copy.fd());
        copy.iter().for_each(|copy| eventfd::is_kept(copy.fd()));
        self.eventfds.extend(copy);
        Ok(())
    }

    /// An eventfd(2) that the context makes and owns, for loops that wait with epoll(7) or with an
    /// executor's reactor. It becomes readable when entries complete. Reading it makes it
    /// unreadable; reap after that, until there is nothing left. Entries that were pushed before
    /// the first call do not count. The first call makes the eventfd, which is nonblocking.
    ///
    /// This is faster than [`Context::set_eventfd`] for direct I/O by Linux AIO. The kernel counts
    /// the eventfd up, and [`Context::reap`] collects what has completed: no thread of the engine
    /// is needed. But the count is not exact: the eventfd may be readable although nothing has
    /// completed.
    ///
    /// ```
    /// use std::os::fd::AsRawFd as _;
    /// use uringlet::{Context, Sqe};
    ///
    /// let mut context = Context::new(1)?;
    /// let bell = context.eventfd()?.as_raw_fd();
    /// // SAFETY: a nop has no buffers.
    /// unsafe { context.push(Sqe::nop())? };
    /// context.submit()?;
    /// let mut poll = libc::pollfd { fd: bell, events: libc::POLLIN, revents: 0 };
    /// // SAFETY: one entry.
    /// assert_eq!(unsafe { libc::poll(&mut poll, 1, -1) }, 1);
    /// assert!(context.reap().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As eventfd(2).
    pub fn eventfd(&mut self) -> io::Result<BorrowedFd<'_>> {
        if self.eventfd.is_none() {
            self.eventfd = Some(Eventfd::new()?);
        }
        let eventfd = self.eventfd.as_ref().expect("made above");
        self.notify = eventfd.as_raw_fd();
        self.instance.is_watched_by_program(self.notify);
        Ok(eventfd.as_fd())
    }

    /// Requests that can be in flight or unreaped at a time.
    pub fn entries(&self) -> usize {
        self.instance.room()
    }

    /// Puts an entry into the submission queue: a memory write, nothing begins.
    ///
    /// # Safety
    /// - The data buffers belong to the request from the submit that accepts it until its
    ///   completion was reaped. They are valid. Nothing else uses them (for reads), or writes to
    ///   them (for writes). The `statx` result is a data buffer.
    /// - Everything else that the request points to (iovec arrays, paths) is readable until that
    ///   submit has returned.
    /// - The caller may use the request's descriptor for this operation. If the number was closed
    ///   meanwhile and names another file, the request is for that file. The descriptor of
    ///   [`Sqe::close`] is owned by the caller, and nobody uses it any more.
    ///
    /// # Errors
    /// [`Full`] with the entry if [`Context::entries`] entries are already pushed.
    #[inline]
    pub unsafe fn push(&mut self, sqe: Sqe) -> Result<(), Full> {
        if self.pushed.len() == self.entries() {
            return Err(Full(sqe));
        }
        self.pushed.push(Entry { sqe, data: 0, notify: self.notify });
        Ok(())
    }

    /// Entries that are pushed and not yet submitted.
    pub fn pushed(&self) -> usize {
        self.pushed.len()
    }

    /// Submits what was pushed. Never blocks. Fewer entries are accepted if the completion queue
    /// has no room for more; the rest stays pushed. Returns the number accepted.
    ///
    /// A malformed entry is accepted and completes with `-EINVAL`.
    ///
    /// # Errors
    /// `EAGAIN` if the completion queue has no room for any pushed entry: reap first. `EINVAL` in
    /// the child of a fork.
    #[inline]
    pub fn submit(&mut self) -> io::Result<usize> {
        let batch = &self.pushed[..self.pushed.len().min(self.room())];
        if batch.is_empty() && !self.pushed.is_empty() && self.instance.is_usable() {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        // SAFETY: the code that pushed the entries answers for their addresses.
        let Submitted { accepted, refused } = unsafe { self.instance.submit(batch) };
        if accepted == self.pushed.len() {
            self.pushed.clear();
        } else {
            self.pushed.drain(..accepted);
        }
        match refused {
            errno if errno < 0 && accepted == 0 => Err(io::Error::from_raw_os_error(-errno)),
            _ => Ok(accepted),
        }
    }

    /// The maximum number of entries that a submit may accept now. The free slots are counted only
    /// if `taken` holds completions. Otherwise the engine accepts as many entries as it has free
    /// slots.
    #[inline]
    fn room(&self) -> usize {
        if self.taken.is_empty() { self.entries() } else { self.room_beside_taken() }
    }

    /// As `room`, if `taken` holds completions. The program has not reaped these, although their
    /// slots are free.
    #[inline(never)]
    fn room_beside_taken(&self) -> usize {
        let most = self.entries().saturating_sub(self.taken.len());
        let room = most.saturating_sub(self.instance.held());
        if room >= self.pushed.len() {
            return room;
        }
        // Slots of cancelled requests that were reaped count as free here: they will be free soon.
        most.saturating_sub(self.instance.unreaped())
    }

    /// Sleeps until `min` completions can be reaped, at most `timeout`. The thread executes
    /// requests instead of sleeping where that is no slower. Returns the number that can be reaped,
    /// which is less than `min` after a timeout. With `min` 0, it waits only for requests that
    /// other threads execute, and that are expected to end soon.
    ///
    /// # Errors
    /// `EINTR` if fewer than `min` can be reaped and a signal handler ran, or
    /// [`Canceller::interrupt`] was called. `EINVAL` in the child of a fork, or if `min` is more
    /// than [`Context::entries`].
    #[inline]
    pub fn wait(&mut self, min: usize, timeout: Option<Duration>) -> io::Result<usize> {
        let error = |errno| Err(io::Error::from_raw_os_error(errno));
        let Some(min) = u32::try_from(min).ok().filter(|_| min <= self.entries()) else {
            return error(libc::EINVAL);
        };
        let before = self.taken.len() as u32;
        if before >= min && min > 0 && self.instance.is_of_this_process() {
            return Ok(before as usize + self.instance.available() as usize);
        }
        let Self { instance, taken, .. } = self;
        let mut take = |_, user_data, res| {
            taken.push_back(Cqe { user_data, res: res as i32, flags: 0 });
        };
        if min == 1
            && before == 0
            && instance.is_of_this_process()
            && instance.wait_fast(timeout.is_some(), &mut take)
        {
            return Ok(1 + instance.available() as usize);
        }
        let mut taker = DirectCompletions::new(TAKEN_MAX - before.min(TAKEN_MAX), &mut take);
        let waited = instance.wait(min.saturating_sub(before), u32::MAX, timeout, None, &mut taker);
        match waited {
            Waited::Enough | Waited::TimedOut => {
                Ok(self.taken.len() + self.instance.available() as usize)
            }
            Waited::Interrupted | Waited::GaveUp => error(libc::EINTR),
            Waited::Gone => error(libc::EINVAL),
        }
    }

    /// Takes a completion, without sleeping and without executing anything. If the context has made
    /// an [eventfd](Context::eventfd), this also hands queued requests to the kernel.
    #[inline]
    pub fn reap(&mut self) -> Option<Cqe> {
        if !self.instance.is_of_this_process() {
            return None;
        }
        self.collect();
        let Self { instance, taken, .. } = self;
        if taken.is_empty() && instance.available() > 0 {
            // Takes several completions in one step.
            instance.reap(TAKEN_MAX, |cqe| taken.push_back(cqe));
        }
        taken.pop_front()
    }

    /// Collects what the kernel has completed, for a program that sleeps on the context's eventfd.
    #[inline]
    fn collect(&self) {
        if self.eventfd.is_some() && self.taken.is_empty() && self.instance.available() == 0 {
            self.instance.collect_for_program();
        }
    }

    /// Takes up to `cqes.len()` completions, without sleeping. Returns the number taken.
    #[inline]
    pub fn reap_into(&mut self, cqes: &mut [Cqe]) -> usize {
        let at = std::ptr::from_mut(cqes) as *mut [MaybeUninit<Cqe>];
        // SAFETY: the same memory, to which only completions are written.
        self.reap_into_uninit(unsafe { &mut *at })
    }

    /// As [`Context::reap_into`], for uninitialized memory: the first elements of `cqes`, as many
    /// as are returned, are completions afterwards.
    #[inline]
    pub fn reap_into_uninit(&mut self, cqes: &mut [MaybeUninit<Cqe>]) -> usize {
        if !self.instance.is_of_this_process() {
            return 0;
        }
        let mut at = self.take_into(cqes);
        if at < cqes.len() && self.eventfd.is_some() {
            // A program that gets fewer completions than it has room for may sleep on the eventfd.
            // So completions of the kernel are collected first.
            self.instance.collect_for_program();
            at += self.take_into(&mut cqes[at..]);
        }
        at
    }

    fn take_into(&mut self, cqes: &mut [MaybeUninit<Cqe>]) -> usize {
        let mut at = 0;
        while at < cqes.len()
            && let Some(cqe) = self.taken.pop_front()
        {
            cqes[at].write(cqe);
            at += 1;
        }
        let max = u32::try_from(cqes.len() - at).unwrap_or(u32::MAX);
        let take = |cqe| {
            cqes[at].write(cqe);
            at += 1;
        };
        self.instance.reap(max, take);
        at
    }

    /// Cancels one submitted request with this `user_data` that has not started: it completes with
    /// `-ECANCELED`.
    ///
    /// # Errors
    /// `EALREADY` if the request is being executed: it completes with its own result. `ENOENT` if
    /// no request has this value.
    pub fn cancel(&self, user_data: u64) -> io::Result<()> {
        self.canceller().cancel(user_data)
    }

    /// A handle for cancelling from any thread.
    pub fn canceller(&self) -> Canceller {
        Canceller(Arc::clone(&self.instance))
    }

    /// Cancels requests that have not started, waits for the others, and returns every completion
    /// that was not reaped. Entries that were pushed and not submitted are dropped.
    pub fn destroy(self) -> Vec<Cqe> {
        let mut cqes = Vec::new();
        if self.instance.is_of_this_process() {
            cqes.extend(&self.taken);
            self.instance.close();
            self.instance.reap(u32::MAX, |cqe| cqes.push(cqe));
        }
        cqes
    }

    /// The counters of the context, if [`Builder::stats`] asked for them.
    pub fn stats(&self) -> Option<Snapshot> {
        self.instance.stats()
    }
}

impl Builder {
    /// Makes the context.
    ///
    /// # Errors
    /// [`ConfigError`] if a value is out of range, or the machine refuses the engine;
    /// [`ConfigError::errno`] is the reason.
    pub fn build(self) -> Result<Context, ConfigError> {
        Context::from_builder(&self)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.instance.close();
        if self.eventfd.is_some() && !self.instance.forget_program() {
            // The descriptor is leaked. If it were closed, another file could get its number, and a
            // thread that still counts up the eventfd would write to that file.
            std::mem::forget(self.eventfd.take());
        }
    }
}
