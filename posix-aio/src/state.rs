//! The state of a process: one instance for all its control blocks, and the requests that the
//! instance does not have yet.
//!
//! Requests wait here in their order while the instance has no free slot. Fsyncs wait here until
//! earlier requests of their descriptor have ended.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};

use uringlet::front::{
    self, Handover, InFlight, Instance, IoEvent, PerProcess, Place, Sink, Submitted,
};

use crate::request::Ready;
use crate::{complete, reentry};

/// The number of the instance's slots. A slot's memory is touched when it is first used.
const SLOTS: u32 = 4096;
/// The maximum number of bytes for the list of requests that an fsync waits for.
const SYNC_BYTES: usize = 64 * 1024 + SLOTS as usize * 32;
/// The number of bits in an address of a program.
const ADDRESS_BITS: u32 = 48;
/// The maximum number of requests that the kernel has at a time. Some hosts allow Linux AIO only
/// few requests (fs.aio-max-nr).
const KERNEL_ROOM: u32 = 1024;

/// The POSIX AIO of one process.
#[derive(Debug)]
pub(crate) struct Process {
    generation: u64,
    pub(crate) instance: Arc<Instance>,
    waiting: Mutex<Waiting>,
    /// The number of requests that wait for a slot. Later requests wait behind them.
    backlog: AtomicUsize,
    /// Counts the requests that wait for a slot and the waiting fsyncs. One thread at a time passes
    /// them on.
    held_back: Handover,
}

/// Waiting requests, in the order of submission.
#[derive(Debug, Default)]
struct Waiting {
    backlog: VecDeque<Ready>,
    syncs: Vec<PendingSync>,
}

#[derive(Debug)]
struct PendingSync {
    ready: Ready,
    /// The requests that have to end first.
    before: Vec<InFlight>,
}

/// The requests that [`Process::withdraw`] has withdrawn.
pub(crate) type Withdrawn = Vec<Ready>;

static CANCELS: AtomicUsize = AtomicUsize::new(0);

static PROCESS: PerProcess<Process> = PerProcess::new();

/// The state of this process, if it has used POSIX AIO. The child of a fork does not get its
/// parent's.
#[inline]
pub(crate) fn current() -> Option<&'static Process> {
    PROCESS.current()
}

/// The state of this process, made now if there is none.
///
/// # Errors
/// `EAGAIN` if memory is short, or the errno with which the environment's engine is refused.
#[inline]
pub(crate) fn current_or_new() -> Result<&'static Process, i32> {
    match current() {
        Some(process) => Ok(process),
        None => front::env::set_up(make()),
    }
}

#[cold]
fn make() -> Result<&'static Process, i32> {
    if !front::has_memory(front::context_bytes(SLOTS as usize)) {
        return Err(libc::EAGAIN);
    }
    // The call may open files, during which the thread must not be cancelled.
    let _whole = front::Uncancelable::new();
    let generation = front::enter_process();
    let builder =
        front::env::builder().map_err(|errno| -errno)?.entries(SLOTS).kernel_room(KERNEL_ROOM);
    let make = || {
        let instance =
            Instance::with_sink(&builder, Box::new(Deliver)).map_err(|error| error.errno())?;
        Ok(Process {
            generation,
            instance,
            waiting: Mutex::default(),
            backlog: AtomicUsize::new(0),
            held_back: Handover::new(),
        })
    };
    PROCESS.current_or_then(make, || front::leaving::at_exit(before_leaving))
}

impl Process {
    /// The mark of a control block in progress at this address. Copies of the block have other
    /// addresses, and the child of a fork has another generation, so their marks differ.
    #[inline]
    pub(crate) fn mark(&self, address: usize) -> u64 {
        mark(self.generation, address)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // The critical sections do not panic.
        self.waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Submits a request, or has it wait here.
    ///
    /// # Errors
    /// `EAGAIN`: there is no memory for a waiting request.
    #[inline]
    pub(crate) fn start(&self, ready: Ready) -> Result<(), i32> {
        if ready.is_sync() || self.backlog.load(Ordering::Relaxed) > 0 || !self.submit(&ready) {
            return self.hold_back(ready);
        }
        Ok(())
    }

    /// False if there is no free slot.
    #[inline]
    fn submit(&self, ready: &Ready) -> bool {
        let fill = |place: Place<'_>| {
            ready.fill(place);
            Ok(())
        };
        // SAFETY: the buffer belongs to the request by the contract of aio_read(3) and the like.
        let submitted = unsafe { self.instance.submit_single(fill, |_| Ok(())) };
        let submitted = submitted.unwrap_or_else(|| {
            // SAFETY: as above.
            unsafe { self.instance.submit_with(1, |_, place| fill(place)) }
        });
        submitted == Submitted { accepted: 1, refused: 0 }
    }

    #[cold]
    fn hold_back(&self, ready: Ready) -> Result<(), i32> {
        if ready.is_sync() && !front::has_memory(SYNC_BYTES) {
            return Err(libc::EAGAIN);
        }
        let mut waiting = self.lock();
        let Waiting { backlog, syncs } = &mut *waiting;
        backlog.try_reserve(1).and_then(|()| syncs.try_reserve(1)).map_err(|_| libc::EAGAIN)?;
        if ready.is_sync() && waiting.backlog.is_empty() {
            // The fsync is counted first. If a request ends from here on, its thread sees the
            // count, or this thread sees that the request has ended.
            self.held_back.add();
            fence(Ordering::SeqCst);
            let before = self.instance.in_flight_on(ready.fildes());
            waiting.syncs.push(PendingSync { ready, before });
        } else {
            waiting.backlog.push_back(ready);
            self.backlog.fetch_add(1, Ordering::SeqCst);
            self.held_back.add();
        }
        drop(waiting);
        // The requests that the new one waits for may have ended just now.
        self.pass_on();
        Ok(())
    }

    /// A request has ended: passes on requests that have waited for it.
    #[inline]
    pub(crate) fn released(&self) {
        // Pairs with the steps in `hold_back`: either this thread sees the waiting request, or the
        // thread in `hold_back` sees the free slot.
        if self.held_back.waits_for_room() {
            self.pass_on();
        }
    }

    /// Passes on waiting requests that are ready. Only one thread at a time does this. A call by
    /// another thread returns at once, and the first thread does its work.
    #[cold]
    fn pass_on(&self) {
        self.held_back.run(|| self.pass_on_now(), || self.can_pass());
    }

    /// Is there a free slot, and a request for it: a ready fsync, or one of the backlog?
    fn can_pass(&self) -> bool {
        let mut waiting = self.lock();
        let ready = waiting.syncs.iter_mut().any(|sync| is_ready(&self.instance, sync));
        (ready || !waiting.backlog.is_empty()) && self.instance.has_room()
    }

    fn pass_on_now(&self) -> bool {
        let mut any = false;
        loop {
            let mut waiting = self.lock();
            let at = waiting.syncs.iter_mut().position(|sync| is_ready(&self.instance, sync));
            let next = match at {
                Some(at) => waiting.syncs.remove(at).ready,
                None => match waiting.backlog.pop_front() {
                    None => return any,
                    Some(sync) if sync.is_sync() => {
                        self.backlog.fetch_sub(1, Ordering::SeqCst);
                        let before = self.instance.in_flight_on(sync.fildes());
                        waiting.syncs.push(PendingSync { ready: sync, before });
                        continue;
                    }
                    Some(next) => next,
                },
            };
            let from_backlog = at.is_none();
            // The request is submitted without the lock, because it may complete at once. A thread
            // that cancels it meanwhile finds it neither here nor in the instance, and waits.
            drop(waiting);
            if !self.submit(&next) {
                let mut waiting = self.lock();
                if from_backlog {
                    waiting.backlog.push_front(next);
                } else {
                    waiting.syncs.insert(0, PendingSync { ready: next, before: Vec::new() });
                }
                return any;
            }
            any = true;
            if from_backlog {
                self.backlog.fetch_sub(1, Ordering::SeqCst);
            }
            self.held_back.sub(1);
        }
    }

    /// Removes waiting requests for which `wanted` is true. The caller completes them.
    pub(crate) fn withdraw(&self, wanted: impl Fn(&Ready) -> bool) -> Withdrawn {
        let mut withdrawn = Vec::new();
        if self.held_back.ready() == 0 {
            return withdrawn;
        }
        let mut waiting = self.lock();
        let mut syncs = 0;
        let Waiting { backlog, syncs: pending } = &mut *waiting;
        pending.retain(|sync| {
            let wanted = wanted(&sync.ready);
            if wanted {
                withdrawn.push(sync.ready);
                syncs += 1;
            }
            !wanted
        });
        backlog.retain(|ready| {
            let wanted = wanted(ready);
            if wanted {
                withdrawn.push(*ready);
            }
            !wanted
        });
        self.backlog.fetch_sub(withdrawn.len() - syncs, Ordering::SeqCst);
        self.held_back.sub(withdrawn.len());
        withdrawn
    }

    /// Completes a request that this thread has withdrawn.
    ///
    /// # Safety
    /// [`Process::withdraw`] has withdrawn it, and this is called once.
    pub(crate) unsafe fn complete_withdrawn(&self, ready: &Ready, result: i32) {
        let event =
            IoEvent { data: ready.data(), obj: ready.address(), res: i64::from(result), res2: 0 };
        // SAFETY: the request is in progress, and this thread alone has it.
        unsafe { complete::complete(&event) };
        self.instance.wake_for(&event);
    }
}

/// The instance's sink for completions.
#[derive(Debug)]
struct Deliver;

impl Sink for Deliver {
    #[inline]
    unsafe fn complete(&self, event: &IoEvent) {
        // SAFETY: the caller's contract: control block and list are those of `submit::start`.
        unsafe { complete::complete(event) };
    }

    #[inline]
    fn released(&self) {
        if let Some(process) = current() {
            process.released();
        }
    }
}

/// The process is about to leave: see [`Instance::before_leaving`]. Does nothing in a signal
/// handler that has interrupted a function of this library.
pub(crate) extern "C" fn before_leaving() {
    if let Some(process) = current()
        && !reentry::is_inside()
    {
        process.instance.before_leaving();
    }
}

fn mark(generation: u64, address: usize) -> u64 {
    generation << ADDRESS_BITS ^ address as u64
}

/// `owner` is the mark of a control block in progress at this address. Did the parent of this
/// process submit the block's request?
pub(crate) fn is_inherited(owner: u64, address: usize) -> bool {
    let submitted_by = (owner ^ address as u64) >> ADDRESS_BITS;
    submitted_by != 0
        && owner == mark(submitted_by, address)
        && current().is_none_or(|process| process.mark(address) != owner)
}

/// Wakes all waiters after a call of pthread_cancel(3). Each checks whether it is cancelled.
pub(crate) fn disturb() {
    CANCELS.fetch_add(1, Ordering::SeqCst);
    if let Some(process) = current() {
        process.instance.disturb();
    }
}

/// The number of calls of pthread_cancel(3).
pub(crate) fn cancels() -> usize {
    CANCELS.load(Ordering::SeqCst)
}

/// The program is about to close descriptors: see [`Instance::before_close_range`].
pub(crate) fn before_close(fds: &RangeInclusive<i32>, ends: front::Ends) {
    if let Some(process) = current() {
        process.instance.before_close_range(fds, ends == front::Ends::Closed);
        front::forget_descriptors(fds);
    }
}

/// Have all requests ended that this fsync waits for?
fn is_ready(instance: &Instance, sync: &mut PendingSync) -> bool {
    sync.before.retain(|&request| !instance.is_over(request));
    sync.before.is_empty()
}
