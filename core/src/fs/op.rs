//! An operation: a future that does nothing until it is polled, and may be dropped at any time.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::budget::{Awaited, Spent, Turns, awaited};
use super::driver::{Fs, Header, OpVtable};
use super::flight::{Ended, Flight};
use super::wakers::{self, Flights, guarded};
use crate::front::{Concern, WaitCondition};
use crate::instance::submit::TOLD_OTHERWISE;
use crate::instance::wait::Waited;
use crate::process;
use crate::sqe::Sqe;
use crate::sync::Patience;

/// The work of an [`Op`]: implemented by the types that functions of this module return.
pub trait Operation: Steps {}

impl<O: Steps> Operation for O {}

/// The requests of an operation, one after the other.
///
/// Methods that are called while the operation is in flight take `&self`, and change fields
/// through `Cell` and `UnsafeCell`. A unique reference would invalidate addresses that the kernel
/// has.
///
/// # Safety
/// If `self` is not moved, buffers of a [`Steps::request`] stay valid until its result is there,
/// and its paths until it is submitted.
pub unsafe trait Steps: Send + 'static {
    /// The output of the future.
    type Output;

    /// A request may be cancelled while the engine has it.
    const CANCELLABLE: bool = true;

    /// Holds the `Fs` that gets the operation's requests. If this is not set, the process's `Fs`
    /// gets them.
    fn home(&self) -> &OnceLock<Fs>;

    /// The counter of operations on the file, if the operation is on an open file.
    fn flights(&self) -> Option<&Arc<Flights>> {
        None
    }

    /// Refuses an operation that cannot be begun, with a negative errno.
    fn prepare(&mut self) -> Result<(), i32> {
        Ok(())
    }

    /// Executes the operation at once if that is known not to sleep. Returns its result.
    fn attempt(&mut self) -> Option<i32> {
        None
    }

    /// Stores addresses of parts of `self`. From now on `self` does not move: it is in a slot,
    /// which has this header.
    fn pin(&self, _header: &Header) {}

    /// The next request.
    fn request(&self) -> Sqe;

    /// The number of bytes in the buffers of the next request.
    fn bytes(&self) -> u64 {
        0
    }

    /// Takes the result of a request. `None`: another request follows. Else the operation's result,
    /// a count or a negative errno.
    fn after(&self, result: i32) -> Option<i32> {
        Some(result)
    }

    /// Makes the output.
    fn end(self, result: i32) -> Self::Output;
}

/// An operation on a file: a future for any executor, or none.
///
/// An `Op` is lazy. If it is dropped before it was polled, nothing has happened. The first poll
/// executes reads that are in memory. Anything that would sleep is handed to the engine's threads.
///
/// Dropping an `Op` after its first poll is safe, and never blocks. Its buffer and its descriptor
/// stay with the engine until the request has ended. A request that has not begun is cancelled; one
/// that has begun goes on. **A write whose future was dropped may have happened wholly, in part, or
/// not at all.**
///
/// In the child of a fork(2), the parent's operations end with `EINVAL`.
#[must_use = "an operation does nothing until it is awaited, waited for, submitted or detached"]
pub struct Op<O: Operation> {
    state: State<O>,
    pub(super) turns: Turns,
    /// The operation is never tried on the polling thread.
    never_inline: bool,
    is_background: bool,
    /// No path has a NUL, and the open options are valid. Else the operation ends with `EINVAL`.
    pub(super) is_sound: bool,
}

enum State<O: Operation> {
    /// The operation has not begun.
    Lazy(O),
    /// The operation has ended, with this result.
    Ended(O, i32),
    Flying(Arc<OpSlot<O>>),
    /// The output was returned.
    Over,
}

/// An operation that was handed over. Its slot does not move while the engine uses it.
#[repr(C)]
pub(super) struct OpSlot<O: Operation> {
    header: Header,
    flight: Flight<Settled<O>>,
}

/// An operation together with its result.
struct Settled<O> {
    operation: O,
    result: std::cell::Cell<i32>,
}

impl<O: Operation> OpSlot<O> {
    const VTABLE: OpVtable = OpVtable { complete: complete::<O>, forget: forget::<O> };

    fn generation(&self) -> u64 {
        self.header.fs().generation()
    }
}

/// The slot of a header.
///
/// # Safety
/// The header is the first field of an `OpSlot<O>`, and the caller has a reference to that slot.
unsafe fn slot<'a, O: Operation>(header: NonNull<Header>) -> &'a OpSlot<O> {
    // SAFETY: with `repr(C)`, the slot has its header's address. The rest is the caller's contract.
    unsafe { header.cast::<OpSlot<O>>().as_ref() }
}

/// Drops the engine's reference to a slot whose payload belongs to the operation.
///
/// # Safety
/// As for [`slot`]; the reference is the engine's, and dropped by this.
unsafe fn forget<O: Operation>(header: NonNull<Header>) {
    // SAFETY: the caller's contract; the engine's reference is from `Arc::into_raw`.
    drop(unsafe { Arc::from_raw(header.cast::<OpSlot<O>>().as_ptr().cast_const()) });
}

/// Takes the result of a request. False: another request follows, and the engine's reference is
/// kept; else the reference is dropped.
///
/// # Safety
/// As for [`slot`]; the caller owns the payload for the engine. As for [`forget`] if it returns
/// true.
unsafe fn complete<O: Operation>(header: NonNull<Header>, result: i32) -> bool {
    // SAFETY: the caller's contract.
    let here = unsafe { slot::<O>(header) };
    {
        // SAFETY: as above.
        let payload = unsafe { here.flight.payload() };
        let result = match payload.operation.after(result) {
            Some(result) => result,
            None if here.header.is_stopped() => -libc::ECANCELED,
            None => {
                let request = payload.operation.request();
                // SAFETY: as above.
                unsafe { Header::fill(header, request, payload.operation.bytes()) };
                return false;
            }
        };
        payload.result.set(result);
    }
    // SAFETY: as above; the request is over.
    let ended = unsafe { here.flight.finish() };
    let left = match &ended {
        // The counts end below, after the payload was dropped.
        Ended::Abandoned(_) => Some(here.header.counts(true)),
        _ => {
            here.header.counts(false).end();
            None
        }
    };
    // SAFETY: this is the engine's reference, and nothing uses it after this call.
    unsafe { forget::<O>(header) };
    match ended {
        Ended::Quietly => {}
        Ended::Wake(waker) => wakers::wake(waker),
        Ended::Abandoned(payload) => guarded(|| drop(payload)),
    }
    if let Some(left) = left {
        left.end();
    }
    true
}

impl<O: Operation> Op<O> {
    pub(super) fn new(operation: O) -> Self {
        let state = State::Lazy(operation);
        Self {
            state,
            turns: Turns::default(),
            never_inline: false,
            is_background: false,
            is_sound: true,
        }
    }

    /// Changes an operation that has not begun.
    pub(super) fn map(mut self, f: impl FnOnce(&mut O)) -> Self {
        if let State::Lazy(operation) = &mut self.state {
            f(operation);
        }
        self
    }

    /// An operation on paths, which `make` gets as C strings.
    pub(super) fn named<const N: usize>(
        paths: [&Path; N],
        make: impl FnOnce([CString; N]) -> O,
    ) -> Self {
        let paths = paths.map(|path| CString::new(path.as_os_str().as_bytes()));
        let is_sound = paths.iter().all(Result::is_ok);
        let mut op = Self::new(make(paths.map(Result::unwrap_or_default)));
        op.is_sound = is_sound;
        op
    }

    /// Tries nothing on the polling thread: for executors whose threads must not spend time on
    /// copies. A runtime that drives the engine may still copy, in a task of its own.
    pub fn forced_async(mut self) -> Self {
        self.never_inline = true;
        self
    }

    /// Lets other operations go first. Only [a few](super::FsBuilder::background) background
    /// operations of an [`Fs`] compete with the others at a time, by default one. The rest waits,
    /// in order. So another operation has at most that many background operations before it.
    ///
    /// This has no effect on a read that is in memory, which the polling thread executes at once,
    /// or on an operation that has begun.
    ///
    /// ```
    /// use uringlet::fs::File;
    ///
    /// # async fn example() -> std::io::Result<()> {
    /// let file = File::open("/proc/self/exe").await?;
    /// // A scrub, which looks for damage.
    /// let scrub = file.read_at(vec![0; 1 << 20], 0).background().submit();
    /// // This read does not wait for the scrub.
    /// let head = file.read_at(vec![0; 4], 0).await;
    /// # head.0.and(scrub.await.0).map(|_| ())
    /// # }
    /// # pollster::block_on(example())?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn background(mut self) -> Self {
        self.is_background = true;
        self
    }

    /// Sends the operation's requests to `fs` in place of the process's `Fs`. A file that the
    /// operation opens gets `fs`, too. This has no effect on an operation that has begun, or whose
    /// file has an `Fs` already.
    pub fn on(self, fs: &Fs) -> Self {
        if let State::Lazy(operation) = &self.state {
            // If the operation has an `Fs` already, it keeps that one.
            let _ = operation.home().set(fs.clone());
        }
        self
    }

    /// Begins now. The operation can be awaited later.
    pub fn submit(mut self) -> Self {
        self.begin(TOLD_OTHERWISE);
        self
    }

    /// Blocks the calling thread until the operation has ended; needs no executor. Meanwhile the
    /// thread executes requests itself where that is no slower than a thread of the engine.
    pub fn wait(mut self) -> O::Output {
        self.begin(-1);
        if let State::Flying(slot) = &self.state {
            block_on(slot, None);
        }
        self.output().expect("it was waited for")
    }

    /// As [`Op::wait`], at most until `at`. `Err`: the operation, which has begun and not ended.
    pub(super) fn wait_until(mut self, at: Instant) -> Result<O::Output, Self> {
        self.begin(-1);
        if let State::Flying(slot) = &self.state {
            block_on(slot, Some(at));
        }
        self.output().ok_or(self)
    }

    /// Has the operation begun, so that something may have happened?
    pub(super) fn has_begun(&self) -> bool {
        !matches!(self.state, State::Lazy(_))
    }

    /// Asks to cancel the operation. The outcome follows, with the buffer: `ECANCELED` if nothing
    /// was begun, and the real result otherwise.
    pub fn cancel(mut self) -> Self {
        self.state = match self.take() {
            State::Lazy(operation) => State::Ended(operation, -libc::ECANCELED),
            State::Flying(slot) => {
                if stop(&slot) {
                    // SAFETY: the request was withdrawn, so this thread owns the payload.
                    let Settled { operation, .. } = unsafe { slot.flight.take() };
                    State::Ended(operation, -libc::ECANCELED)
                } else {
                    State::Flying(slot)
                }
            }
            other => other,
        };
        self
    }

    /// Lets the operation run to its end though nobody waits. Begins it if needed. The end of the
    /// process cuts it off: [`drain`](super::drain()) waits for detached operations.
    pub fn detach(self) {
        self.submit().release();
    }

    /// Lets the operation run to its end, if it has begun.
    pub(super) fn release(&mut self) {
        if let State::Flying(slot) = self.take() {
            // In the child of a fork(2), an operation of the parent is not counted.
            let is_counted = slot.generation() == process::generation();
            if is_counted {
                slot.header.detach();
            }
            // SAFETY: this `Op` gives its slot up here, and has not taken the payload.
            let ended = unsafe { slot.flight.abandon() };
            if is_counted && ended.is_some() {
                slot.header.fs().detached().end();
            }
        }
    }

    /// Has the operation, which has begun, ended? If not, wakes `waker` at its end.
    pub(super) fn is_ended(&mut self, waker: &Waker) -> bool {
        match &self.state {
            // SAFETY: this `Op` has the slot, and has not abandoned it.
            State::Flying(slot) => unsafe { slot.flight.poll(waker) },
            _ => true,
        }
    }

    /// Adds the work that was done in this poll.
    #[inline]
    pub(super) fn spend(&self, spent: &mut Spent) {
        if let State::Ended(_, result) = &self.state {
            spent.add(*result);
        }
    }

    fn take(&mut self) -> State<O> {
        std::mem::replace(&mut self.state, State::Over)
    }

    /// Begins an operation that has not begun: executes it at once, or hands it over.
    fn begin(&mut self, notify: i32) {
        if let State::Lazy(_) = self.state
            && let State::Lazy(operation) = self.take()
        {
            self.state = self.begun(operation, notify);
        }
    }

    fn begun(&self, mut operation: O, notify: i32) -> State<O> {
        if operation.home().get().is_none() {
            match Fs::global() {
                // Another operation on the file may have set the same `Fs` first.
                Ok(fs) => drop(operation.home().set(fs)),
                Err(errno) => return State::Ended(operation, errno),
            }
        }
        let home = operation.home().get();
        if !self.is_sound || home.is_none_or(|fs| fs.generation() != process::generation()) {
            return State::Ended(operation, -libc::EINVAL);
        }
        if home.is_some_and(Fs::is_shut_down) {
            return State::Ended(operation, -libc::ESHUTDOWN);
        }
        if let Err(errno) = operation.prepare() {
            return State::Ended(operation, errno);
        }
        if !self.never_inline
            && let Some(result) = operation.attempt()
        {
            return State::Ended(operation, result);
        }
        Self::hand_over(operation, notify, self.is_background)
    }

    #[inline(never)]
    fn hand_over(operation: O, notify: i32, is_background: bool) -> State<O> {
        let fs = operation.home().get().expect("set above").clone();
        let payload = Settled { operation, result: std::cell::Cell::new(0) };
        let flights = payload.operation.flights().cloned();
        let header = Header::new(fs, notify, &OpSlot::<O>::VTABLE, flights, is_background);
        let slot = Arc::new(OpSlot { header, flight: Flight::new(payload) });
        let engines = Arc::into_raw(Arc::clone(&slot));
        let header = NonNull::new(engines.cast_mut().cast::<Header>()).expect("an Arc's");
        {
            // SAFETY: no other thread has the slot yet. From here on the operation does not move.
            let operation = &unsafe { slot.flight.payload() }.operation;
            operation.pin(&slot.header);
            let request = operation.request();
            // SAFETY: `header` is the address of the whole slot, which no other thread has yet.
            unsafe { Header::fill(header, request, operation.bytes()) };
        }
        // SAFETY: the request is set, and `engines` is the engine's reference to the slot.
        unsafe { Header::start(header) };
        State::Flying(slot)
    }

    /// The output, if the operation has ended.
    fn output(&mut self) -> Option<O::Output> {
        match self.take() {
            State::Ended(operation, result) => Some(operation.end(result)),
            State::Flying(slot) if slot.flight.is_done() => {
                // SAFETY: the request is done, so this thread owns the payload. It is taken once,
                // because the state is `Over` now.
                let Settled { operation, result } = unsafe { slot.flight.take() };
                Some(operation.end(result.get()))
            }
            State::Flying(slot) if slot.generation() != process::generation() => {
                Some(orphaned(&slot))
            }
            other => {
                self.state = other;
                None
            }
        }
    }
}

/// The output of an operation of the parent, in the child of a fork(2), where the operation never
/// ends.
#[cold]
fn orphaned<O: Operation>(slot: &OpSlot<O>) -> O::Output {
    // SAFETY: the `Op` gives its slot up here, and has not taken the payload.
    let done = unsafe { slot.flight.abandon() };
    // SAFETY: the parent's other threads do not exist in the child, so nothing else uses this
    // process's copy of the payload.
    let payload = done.unwrap_or_else(|| unsafe { slot.flight.take() });
    payload.operation.end(-libc::EINVAL)
}

/// Stops a request that has not ended, if possible. True: the request was withdrawn from the line,
/// and the caller owns its payload.
fn stop<O: Operation>(slot: &Arc<OpSlot<O>>) -> bool {
    let header = &slot.header;
    if slot.flight.is_done() || slot.generation() != process::generation() {
        return false;
    }
    if O::CANCELLABLE {
        header.stop();
    }
    if header.withdraw() {
        header.counts(false).end();
        return true;
    }
    if O::CANCELLABLE {
        header.interrupt();
        // The caller has a reference, so the address is not that of another slot.
        let _ = header.fs().instance().cancel(Arc::as_ptr(slot) as u64);
    }
    false
}

/// Waits until the operation has ended, or until `end`.
fn block_on<O: Operation>(slot: &Arc<OpSlot<O>>, end: Option<Instant>) {
    let address = Arc::as_ptr(slot) as u64;
    let fs = slot.header.fs();
    let wish = WaitCondition {
        missing: &|| u32::from(!slot.flight.is_done()),
        concern: Concern::about(address),
        gives_up: &|| false,
        mask: None,
        restarts: true,
        beside: None,
    };
    let mut patience = Patience::default();
    while !slot.flight.is_done() && slot.generation() == process::generation() {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        match fs.instance().wait_for(&wish, left) {
            Waited::TimedOut => return,
            // `Interrupted`: a signal handler ran.
            Waited::Enough | Waited::Interrupted | Waited::GaveUp => {}
            Waited::Gone if left == Some(Duration::ZERO) => return,
            Waited::Gone => patience.wait(),
        }
    }
}

awaited!(Op<O: Operation>, O::Output);

impl<O: Operation> Awaited for Op<O> {
    #[inline]
    fn poll_in_turn(&mut self, context: &mut Context<'_>, spent: &mut Spent) -> Poll<O::Output> {
        self.begin(TOLD_OTHERWISE);
        self.spend(spent);
        if let State::Flying(slot) = &self.state {
            // SAFETY: this `Op` has the slot, and has not abandoned it.
            let is_done = unsafe { slot.flight.poll(context.waker()) };
            if !is_done && slot.generation() == process::generation() {
                return Poll::Pending;
            }
        }
        assert!(!matches!(self.state, State::Over), "polled after it was ready");
        Poll::Ready(self.output().expect("it has ended"))
    }
}

/// An `Op` may be moved at any time: addresses are taken only of operations in flight, which are in
/// slots.
impl<O: Operation> Unpin for Op<O> {}

impl<O: Operation> Drop for Op<O> {
    fn drop(&mut self) {
        let State::Flying(slot) = self.take() else { return };
        // SAFETY: this `Op` gives its slot up here, and has not taken the payload.
        let done = unsafe { slot.flight.abandon() };
        if done.is_none() && stop(&slot) {
            // SAFETY: the request was withdrawn, so this thread owns the payload.
            drop(unsafe { slot.flight.take() });
        }
    }
}

impl<O: Operation> fmt::Debug for Op<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Lazy(_) => "not begun",
            State::Flying(slot) if !slot.flight.is_done() => "in flight",
            State::Flying(_) | State::Ended(..) => "ended",
            State::Over => "over",
        };
        f.debug_struct("Op").field("state", &state).finish_non_exhaustive()
    }
}
