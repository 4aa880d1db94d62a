//! The kernel lane: requests that the kernel executes asynchronously, handed over in batches.
//!
//! A submitter only queues them. Whoever comes to wait hands over all that is queued with one
//! system call and then sleeps inside the kernel's own wait; for programs that do not come, a worker hands
//! over and the poller's thread collects. README.md in this folder gives the rights and the argument
//! that no completion is left lying.
#![allow(unsafe_code)]

mod batch;
mod io_uring;
pub(crate) mod linux_aio;
mod posix_aio;
mod reaper;

use std::fmt;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use self::batch::together;
use self::reaper::{Reaper, Reaping};
use super::workers::baton::{Baton, Release, View};
use crate::config::{Builder, ConfigError, EngineKind};
use crate::instance::{By, Instance};
use crate::own;
use crate::probe::{self, KERNEL_ENGINES, Refusal};
use crate::queue::{IndexRing, SleepEnd, Sleeper};
use crate::request::{BATCH, Batch};
use crate::sync::lock;
use crate::sys;

/// A completion as the kernel gives it: the slot, and a count or a negative errno.
pub(super) type Done = (u32, i32);

/// Gets each completion: true if it has seen to it. The others are posted together.
type Finish<'a> = &'a mut dyn FnMut(u32, i32) -> bool;

/// The longest sleep for more than one completion.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// As many completions are collected at a time.
const HARVEST: usize = 64;

/// One kernel interface, set up for one context. All methods can be called from any thread, and at
/// any time, unless they say otherwise.
pub(super) trait Backend: Send + Sync + fmt::Debug {
    /// Which one it is.
    fn kind(&self) -> EngineKind;

    /// Requests that may be in flight at a time.
    fn room(&self) -> usize;

    /// A request that was handed over keeps its file open, whatever becomes of the descriptor.
    fn holds_files(&self) -> bool {
        true
    }

    /// Hands requests over, whose slots are the caller's. Gives how many were taken, from the
    /// first on, and the negative errno for the next one if not all were. With `tell`,
    /// [`Backend::events`] becomes readable when they complete.
    fn submit(&self, instance: &Instance, slots: &[u32], tell: bool) -> (usize, i32);

    /// [`Backend::events`] need not tell of completions any more, if it does so by itself once it was asked to.
    fn untell(&self) {}

    /// Some of what it took has not reached the kernel yet: the next call hands it over.
    fn keeps_back(&self) -> bool {
        false
    }

    /// Completions that have come, without sleeping: how many were written to `done`. One
    /// thread at a time, the reaper.
    fn harvest(&self, instance: &Instance, done: &mut [Done]) -> usize;

    /// As [`Backend::harvest`], after sleeping until `min` have come, the time is over, a signal handler ran, or
    /// [`Backend::wake_fd`] was counted up. The signal mask, if given, is in force meanwhile.
    fn sleep(
        &self,
        instance: &Instance,
        min: usize,
        timeout: Option<Duration>,
        mask: Option<u64>,
        done: &mut [Done],
    ) -> (usize, SleepEnd);

    /// Nothing is in flight, and nothing will be: gives back what the host has little of. Called once, by the reaper.
    fn close(&self) {}

    /// The eventfd(2) that ends a sleep, made on first use; negative if there is none to be had.
    fn wake_fd(&self) -> RawFd;

    /// The eventfd(2) that tells of completions, as [`Backend::wake_fd`].
    fn events(&self) -> RawFd;
}

/// Which requests go to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// None.
    Nothing,
    /// Direct reads and writes: what the kernel is truly asynchronous for.
    Direct,
    /// All reads and writes of files.
    Everything,
}

/// The kernel's wait is refused: some time passes all the same.
fn nap() -> SleepEnd {
    sys::nap(LOOK_AGAIN);
    SleepEnd::TimedOut
}

/// An io_uring has room for so many even if fewer are wanted: it takes no more of the host.
const RING_LEAST: usize = 128;

/// The kernel lane of one context.
#[derive(Debug)]
pub(super) struct KernelLane {
    reach: Reach,
    queue: IndexRing,
    /// The right to hand over what is queued.
    door: Baton,
    backend: OnceLock<Option<Box<dyn Backend>>>,
    refusals: Mutex<Vec<(EngineKind, Refusal)>>,
    slots: usize,
    room: usize,
    in_flight: AtomicUsize,
    reaper: Reaper,
    handed: AtomicU32,
    /// Grows with each time that completions were collected.
    collected: AtomicU32,
    /// Threads that are handing over right now.
    submitting: AtomicU32,
    /// The poller looks at [`Backend::events`].
    told: AtomicBool,
    /// Requests have named an eventfd: their program may sleep on that, and not come.
    notifies: AtomicBool,
}

/// `slots` are those of the context, of which `room` may be in the kernel's hands at a time.
fn make(
    kind: EngineKind,
    slots: usize,
    room: usize,
    fd_pool: usize,
) -> Result<Box<dyn Backend>, i32> {
    match kind {
        EngineKind::LinuxAio => Ok(Box::new(linux_aio::LinuxAio::new(slots, room)?)),
        EngineKind::IoUring => Ok(Box::new(io_uring::Uring::new(slots.min(room.max(RING_LEAST)))?)),
        EngineKind::PosixAio => Ok(Box::new(Arc::new(posix_aio::PosixAio::new(slots, fd_pool)?))),
        other => unreachable!("{other} is not a kernel interface"),
    }
}

impl KernelLane {
    /// # Errors
    /// The builder's engine is one of the kernel's, and refused.
    pub(super) fn new(builder: &Builder, slots: usize) -> Result<Self, ConfigError> {
        let backend = OnceLock::new();
        let room = slots.min(builder.kernel_room as usize);
        let reach = match builder.engine {
            EngineKind::Auto => Reach::Direct,
            EngineKind::Workers | EngineKind::Null => Reach::Nothing,
            kind => {
                let made =
                    make(kind, slots, room, builder.fd_pool).map_err(|errno| ConfigError {
                        field: "engine",
                        value: kind.name().to_owned(),
                        expected: format!(
                            "an engine that this machine allows ({})",
                            probe::explain(kind, -errno)
                        ),
                        errno: -errno,
                    })?;
                backend.set(Some(made)).expect("just made");
                Reach::Everything
            }
        };
        let queued = if reach == Reach::Nothing { 0 } else { slots };
        Ok(Self {
            reach,
            queue: IndexRing::new(queued),
            door: Baton::new(),
            backend,
            refusals: Mutex::default(),
            slots,
            room,
            in_flight: AtomicUsize::new(0),
            reaper: Reaper::new(),
            handed: AtomicU32::new(0),
            collected: AtomicU32::new(0),
            submitting: AtomicU32::new(0),
            told: AtomicBool::new(false),
            notifies: AtomicBool::new(false),
        })
    }

    /// Which requests it takes now.
    #[inline]
    pub(super) fn reach(&self) -> Reach {
        match self.backend.get() {
            Some(None) => Reach::Nothing,
            _ => self.reach,
        }
    }

    /// The interface in use, if one was needed yet.
    pub(super) fn kind(&self) -> Option<EngineKind> {
        Some(self.backend.get()?.as_ref()?.kind())
    }

    /// Cached requests are executed inside of the call that hands them over (io_submit(2)).
    pub(super) fn executes_what_is_cached(&self) -> bool {
        self.reach == Reach::Everything && self.kind() == Some(EngineKind::LinuxAio)
    }

    /// What was tried and refused.
    pub(super) fn refusals(&self) -> Vec<(EngineKind, Refusal)> {
        lock(&self.refusals).clone()
    }

    /// The interface, made now if none was needed before.
    fn backend(&self, instance: &Instance) -> Option<&dyn Backend> {
        let known = self.backend.get().is_some();
        let made = self.backend.get_or_init(|| {
            let _whole = sys::Uncancelable::new();
            for kind in KERNEL_ENGINES {
                match make(kind, self.slots, self.room, 1) {
                    Ok(backend) => return Some(backend),
                    Err(errno) => lock(&self.refusals).push((kind, probe::explain(kind, -errno))),
                }
            }
            None
        });
        if !known {
            instance.note_choice();
        }
        made.as_deref()
    }

    /// Queues requests. Gives the door as it was: if nobody is at it, the caller sees to it that
    /// somebody comes.
    #[inline]
    pub(super) fn push(&self, slots: &[u32]) -> View {
        self.queue.push(slots);
        self.door.announce()
    }

    /// Nothing queued and nothing in flight: a hint.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) == 0 && self.queue.is_empty()
    }

    /// Requests that wait to be handed over.
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// The queue itself.
    pub(super) fn queue(&self) -> &IndexRing {
        &self.queue
    }

    /// The context is destroyed and nothing in flight: nobody collects any more.
    pub(super) fn close(&self) {
        if let Some((reaping, backend)) = self.try_reap() {
            backend.close();
            // Nobody gets the right again.
            std::mem::forget(reaping);
        }
    }

    /// Who hands over, and since when.
    pub(super) fn door(&self) -> &Baton {
        &self.door
    }

    /// Requests in the kernel's hands.
    #[inline]
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// Is there something to hand over, or (if `collects`) to collect, and nobody at it?
    pub(super) fn has_help_to_offer(&self, collects: bool) -> bool {
        let view = self.door.view();
        self.queued() > 0 && view.has_work() && !view.is_held()
            || collects && self.in_flight() > 0 && self.reaper.is_free()
    }

    /// Hands over what is queued, as far as there is room. `refused` gets each slot that the kernel
    /// did not take, started. Gives the ticks that the slowest call took per request, and its first slot's descriptor.
    pub(super) fn hand_over(
        &self,
        instance: &Instance,
        nobody_comes: bool,
        refused: &mut dyn FnMut(u32),
        took: &mut dyn FnMut(i32, bool, u64),
    ) {
        let Some(mut turn) = self.door.take() else { return };
        loop {
            while let Some(batch) = self.next_batch(instance) {
                let Some(backend) = self.backend(instance) else {
                    batch.as_slice().iter().for_each(|&slot| refused(slot));
                    continue;
                };
                self.hand_over_batch(
                    instance,
                    backend,
                    batch.as_slice(),
                    nobody_comes,
                    refused,
                    took,
                );
                match self.door.proceed(turn) {
                    Some(next) => turn = next,
                    // It took long, and somebody else goes on.
                    None => return,
                }
            }
            match self.door.release(turn) {
                // Announced meanwhile: taken note of, and looked at once more.
                Release::Work(same) => match self.door.look_again(same) {
                    Some(next) => turn = next,
                    None => return,
                },
                Release::Free | Release::Lost => return,
            }
        }
    }

    /// Started requests from the queue, as many as there is room for; `None` if there are none.
    fn next_batch(&self, instance: &Instance) -> Option<Batch> {
        let room = self.backend.get().and_then(Option::as_ref).map_or(self.room, |b| b.room());
        let most = room.saturating_sub(self.in_flight()).min(BATCH);
        let mut batch = Batch::new();
        while batch.as_slice().len() < most
            && let Some(slot) = self.queue.pop()
        {
            if instance.start(slot) {
                batch.push(slot);
            }
        }
        (!batch.as_slice().is_empty()).then_some(batch)
    }

    fn hand_over_batch(
        &self,
        instance: &Instance,
        backend: &dyn Backend,
        slots: &[u32],
        nobody_comes: bool,
        refused: &mut dyn FnMut(u32),
        took: &mut dyn FnMut(i32, bool, u64),
    ) {
        // SAFETY: started by us, and not handed over yet.
        let first = unsafe { instance.slot(slots[0]).request() };
        let (fd, write) = (first.sqe.fd, first.kind == crate::request::Kind::Write);
        // SAFETY: as above.
        let notify = |&slot: &u32| unsafe { instance.slot(slot).request() }.notify;
        let notifies = slots.iter().any(|slot| notify(slot) != -1);
        if notifies && !self.notifies.load(Ordering::Relaxed) {
            self.notifies.store(true, Ordering::Relaxed);
        }
        let tell = nobody_comes || notifies;
        if !tell && !self.notifies.load(Ordering::Relaxed) {
            backend.untell();
        }
        self.submitting.fetch_add(1, Ordering::SeqCst);
        if backend.holds_files() {
            slots.iter().for_each(|&slot| instance.slot(slot).hand_over());
        }
        let before = self.in_flight.fetch_add(slots.len(), Ordering::SeqCst);
        instance.ran_here(slots);
        let begin = sys::ticks();
        let mut done = 0;
        while done < slots.len() {
            let together = together(instance, &slots[done..], before + done, self.queued());
            let (taken, errno) = backend.submit(instance, &slots[done..done + together], tell);
            done += taken;
            if errno < 0 {
                // Whatever the reason: executed by a thread it either works or says why not.
                self.in_flight.fetch_sub(1, Ordering::SeqCst);
                // While it is handed over nobody closes the descriptor.
                let _ = instance.slot(slots[done]).take_back();
                refused(slots[done]);
                done += 1;
            }
        }
        self.submitting.fetch_sub(1, Ordering::SeqCst);
        let ticks = sys::ticks().wrapping_sub(begin) / slots.len() as u64;
        self.handed.fetch_add(1, Ordering::Relaxed);
        took(fd, write, ticks);
    }

    /// Somebody is handing requests over: those in the kernel's phase may not have reached it.
    pub(super) fn is_handing_over(&self) -> bool {
        let keeps_back = |backend: &dyn Backend| backend.keeps_back();
        self.submitting.load(Ordering::SeqCst) > 0
            || self.backend.get().and_then(Option::as_deref).is_some_and(keeps_back)
    }

    /// Batches that were handed over: grows.
    pub(super) fn batches(&self) -> u32 {
        self.handed.load(Ordering::Relaxed)
    }

    /// Changes whenever somebody has collected completions.
    pub(super) fn collections(&self) -> u32 {
        self.collected.load(Ordering::Relaxed)
    }

    /// The eventfd that tells of completions, for whoever makes the poller look at it, which does not yet.
    pub(super) fn events_to_watch(&self, nobody_comes: bool) -> Option<RawFd> {
        let backend = self.backend.get()?.as_ref()?;
        if !nobody_comes && !self.notifies.load(Ordering::Relaxed)
            || self.told.load(Ordering::SeqCst)
            || self.told.swap(true, Ordering::SeqCst)
        {
            return None;
        }
        Some(backend.events()).filter(|&fd| fd >= 0)
    }

    /// Shall the poller go on looking? If not, it is told again when there is need.
    pub(super) fn stays_watched(&self) -> bool {
        self.told.store(false, Ordering::SeqCst);
        // Either this sees what was handed over, or who did so sees the flag.
        self.in_flight() > 0 && !self.told.swap(true, Ordering::SeqCst)
    }

    fn try_reap(&self) -> Option<(Reaping<'_>, &dyn Backend)> {
        let backend = self.backend.get()?.as_deref()?;
        Some((self.reaper.take()?, backend))
    }

    /// Collects what has completed. True if anything was.
    pub(super) fn harvest(&self, instance: &Instance, finish: Finish<'_>) -> bool {
        if self.in_flight.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let Some((reaping, backend)) = self.try_reap() else { return false };
        let mut any = false;
        loop {
            let mut done = [(0, 0); HARVEST];
            let n = backend.harvest(instance, &mut done);
            self.finish(instance, &mut done[..n], finish);
            any |= n > 0;
            if n < HARVEST {
                break;
            }
        }
        drop(reaping);
        self.pass_on_the_right(instance);
        any
    }

    fn finish(&self, instance: &Instance, done: &mut [Done], finish: Finish<'_>) {
        if !done.is_empty() {
            // Of two at a time one may be lost: it has changed all the same.
            self.collected.store(self.collections().wrapping_add(1), Ordering::Relaxed);
            self.in_flight.fetch_sub(done.len(), Ordering::SeqCst);
            let mut left = 0;
            instance.together(|| {
                for at in 0..done.len() {
                    let (slot, result) = done[at];
                    if !finish(slot, result) {
                        done[left] = done[at];
                        left += 1;
                    }
                }
            });
            if left > 0 {
                instance.finish_all_here(done[..left].iter().copied(), By::Kernel);
            }
        }
    }

    fn pass_on_the_right(&self, instance: &Instance) {
        if self.in_flight() > 0 || self.queued() > 0 {
            self.reaper.pass_on(instance.completions());
        }
    }

    /// Sleeps in the kernel's wait, if requests are in flight and nobody else does. `None`: sleep elsewhere.
    pub(super) fn sleep(
        &self,
        instance: &Instance,
        sleeper: &Sleeper<'_>,
        timeout: Option<Duration>,
        mask: Option<u64>,
        finish: Finish<'_>,
    ) -> Option<SleepEnd> {
        let in_flight = self.in_flight();
        if in_flight == 0 {
            return None;
        }
        let (reaping, backend) = self.try_reap()?;
        let fd = backend.wake_fd();
        // What other threads complete comes one by one.
        let alone = instance.free_slots().held() == in_flight;
        let min = if alone { (sleeper.need as usize).clamp(1, in_flight) } else { 1 };
        let mut done = [(0, 0); HARVEST];
        let mut n = 0;
        let end = instance.completions().sleep_elsewhere(sleeper, fd, || {
            let min = min.min(HARVEST);
            // A wake-up counts as one completion only, and fewer may come than were in flight
            // (refused at submit): it looks again. So does who cannot be woken.
            let looks_again = min > 1 || fd < 0;
            let shorter = timeout.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN);
            let timeout = if looks_again { Some(shorter) } else { timeout };
            let (harvested, end) = backend.sleep(instance, min, timeout, mask, &mut done);
            n = harvested;
            if n > 0 && end != SleepEnd::Interrupted { SleepEnd::Again } else { end }
        });
        drop(reaping);
        self.finish(instance, &mut done[..n], finish);
        self.pass_on_the_right(instance);
        Some(end)
    }
}

/// Two eventfds of a backend, each made on first use: one to be woken by, and one that tells of
/// completions.
#[derive(Debug)]
pub(super) struct Eventfds {
    wake: OnceLock<RawFd>,
    events: OnceLock<RawFd>,
    /// The kernel is told to end a sleep when `wake` is counted up.
    pub(super) armed: AtomicBool,
    /// Submits that have read their requests. The kernel orders a submit before its completions,
    /// which the language's memory model does not know.
    read: AtomicU32,
}

impl Eventfds {
    fn new() -> Self {
        let (wake, events) = (OnceLock::new(), OnceLock::new());
        Self { wake, events, armed: AtomicBool::new(false), read: AtomicU32::new(0) }
    }

    /// The requests were read; the kernel may complete them from now on.
    fn before_submit(&self) {
        self.read.fetch_add(1, Ordering::Release);
    }

    /// Completions were found: whoever has read their requests has done so before.
    fn after_harvest(&self) {
        self.read.load(Ordering::Acquire);
    }

    fn wake(&self) -> RawFd {
        Self::made(&self.wake)
    }

    fn events(&self) -> RawFd {
        Self::made(&self.events)
    }

    /// A negative number if there is none to be had now.
    fn made(place: &OnceLock<RawFd>) -> RawFd {
        if let Some(&fd) = place.get() {
            return fd;
        }
        let fd = own::eventfd() as RawFd;
        if fd < 0 {
            return fd;
        }
        // Another thread may have been first.
        place.set(fd).err().inspect(|&fd| own::close(fd));
        *place.get().expect("set")
    }
}

impl Drop for Eventfds {
    fn drop(&mut self) {
        let made = [self.wake.get(), self.events.get()].into_iter().flatten();
        made.for_each(|&fd| own::close(fd));
    }
}
