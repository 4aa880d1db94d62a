//! Finds the ring of a descriptor number. The number is looked up in a table.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::ops::RangeInclusive;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use uringlet::front::{self, Ends, Instance, PerProcess};
use uringlet::table::{Pages, Pinned, Removed, Table};

use crate::ring::{self, Core, Peer, Registry};
use crate::tuning::WATCHED_RINGS;
use crate::{service, sys};

/// How many descriptor numbers one of `Rings::parts` maps, and the number of parts.
const PART: usize = 1024;
const PARTS: usize = 1024;

uringlet::at_load!(uringlet::table::prepare_readers);

/// A ring, as a lookup by its descriptor finds it.
#[derive(Debug)]
pub(crate) struct Ring {
    /// The ring's handle in `Rings::table`. `Rings::parts` maps its descriptor numbers to this
    /// handle.
    pub(crate) handle: usize,
    pub(crate) core: Arc<Core>,
    /// The engine for the ring's requests. Not set in a ring inherited from an ancestor process,
    /// until this process first needs the engine.
    instance: OnceLock<Arc<Instance>>,
    making: Mutex<()>,
    /// The number of the program's descriptors for the ring.
    numbers: AtomicU32,
    /// The id of the ring's eventfd in `/proc/self/fdinfo`.
    id: u64,
    /// The number of registrations by threads (`IORING_REGISTER_RING_FDS`).
    registered: AtomicU32,
    pages: Mutex<Option<Pages>>,
}

#[derive(Debug)]
struct Rings {
    table: Table<Ring>,
    parts: Box<[AtomicPtr<[AtomicUsize; PART]>]>,
}

static RINGS: PerProcess<Rings> = PerProcess::new();

impl Rings {
    fn make() -> Result<Self, i32> {
        let parts = (0..PARTS).map(|_| AtomicPtr::new(null_mut())).collect();
        Ok(Self { table: Table::new()?, parts })
    }

    #[inline]
    fn place(&self, fd: i32) -> Option<&AtomicUsize> {
        let fd = usize::try_from(fd).ok()?;
        let part = self.parts.get(fd / PART)?.load(Ordering::Acquire);
        // SAFETY: null, or leaked by `place_or_new`.
        unsafe { part.as_ref() }.map(|part| &part[fd % PART])
    }

    fn place_or_new(&self, fd: i32) -> Option<&AtomicUsize> {
        let number = usize::try_from(fd).ok()?;
        let part = self.parts.get(number / PART)?;
        if part.load(Ordering::Acquire).is_null() {
            let new = Box::into_raw(Box::new([const { AtomicUsize::new(0) }; PART]));
            let swap = part.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
            if swap.is_err() {
                // SAFETY: made above and seen by nobody.
                drop(unsafe { Box::from_raw(new) });
            }
        }
        self.place(fd)
    }

    /// A descriptor number names the ring with this handle from now on. If it named a ring before,
    /// that descriptor was closed by a call that this library has not seen.
    fn name(&self, place: &AtomicUsize, handle: usize) {
        let before = place.swap(handle, Ordering::AcqRel);
        if before != 0 {
            closed(self, before);
        }
    }

    fn handle(&self, fd: i32) -> Option<usize> {
        let handle = self.place(fd)?.load(Ordering::Acquire);
        (handle != 0).then_some(handle)
    }
}

/// The ring of a descriptor of this process.
#[inline]
pub(crate) fn get(fd: i32) -> Option<Pinned<'static, Ring>> {
    let rings = RINGS.current()?;
    rings.table.get(rings.handle(fd)?)
}

/// All rings of this process, as the [`Registry`] through which a ring finds other rings.
#[derive(Debug)]
pub(crate) struct AllRings;

impl Registry for AllRings {
    fn has(&self, fd: i32) -> bool {
        has(fd)
    }

    fn peer(&self, fd: i32) -> Option<Arc<dyn Peer>> {
        Some(Arc::clone(&find(fd).ok()??.core) as _)
    }

    fn is_polled(&self, fd: i32) {
        is_polled(fd);
    }

    fn is_needed(&self, fd: i32) -> bool {
        let mut is_needed = false;
        if let Some(rings) = RINGS.current() {
            rings.table.each(|ring| {
                is_needed |= ring.instance().is_some_and(|instance| instance.needs(fd));
            });
        }
        is_needed
    }

    fn any_is_polled(&self) -> bool {
        any_is_polled()
    }
}

/// Does this number name a ring?
pub(crate) fn has(fd: i32) -> bool {
    RINGS.current().is_some_and(|rings| rings.handle(fd).is_some())
}

/// Finds the ring of an ancestor process that a descriptor names, and publishes it in this process.
///
/// # Errors
/// `-EACCES` for a ring with restrictions; `-EINVAL` in a thread with a descriptor table of its
/// own; and the errors of [`publish`].
pub(crate) fn inherit(fd: i32) -> Result<Option<Pinned<'static, Ring>>, i32> {
    if front::has_parted() {
        return if may_be_inherited(fd) { Err(-libc::EINVAL) } else { Ok(None) };
    }
    if RINGS.inherited().next().is_none() {
        return Ok(None);
    }
    // The number may name something else now.
    let Some(id) = sys::eventfd_id(fd) else { return Ok(None) };
    for rings in RINGS.inherited() {
        let mut found = None;
        rings.table.each(|ring| {
            if ring.id == id {
                found = Some(Arc::clone(&ring.core));
            }
        });
        let Some(core) = found else { continue };
        if core.restricted.load(Ordering::Relaxed) {
            return Err(-libc::EACCES);
        }
        publish(fd, core.inherit(), None)?;
        return Ok(get(fd));
    }
    Ok(None)
}

/// Did this number name a ring of an ancestor process before the fork(2)?
pub(crate) fn may_be_inherited(fd: i32) -> bool {
    RINGS.inherited().any(|rings| rings.handle(fd).is_some())
}

/// The ring that a descriptor names, of this process or of an ancestor.
///
/// # Errors
/// As [`inherit`].
pub(crate) fn find(fd: i32) -> Result<Option<Pinned<'static, Ring>>, i32> {
    if let Some(ring) = get(fd).or_else(|| recognise(fd)) {
        return Ok(Some(ring));
    }
    inherit(fd)
}

/// A descriptor was duplicated (dup(2)): if it is a ring's, the new number finds the ring, too.
pub(crate) fn duplicated(fd: i32, other: i32) {
    let Some(rings) = RINGS.current() else { return };
    if front::is_borrowed() {
        // The child of a vfork(2) duplicates a descriptor of its own.
        return;
    }
    let Some(handle) = rings.handle(fd).filter(|_| other >= 0) else { return };
    let Some(ring) = rings.table.get(handle) else { return };
    if let Some(place) = rings.place_or_new(other) {
        ring.numbers.fetch_add(1, Ordering::SeqCst);
        drop(ring);
        rings.name(place, handle);
    }
}

/// Finds the ring of a descriptor that was duplicated without this library noticing, for example by
/// a system call instruction. Compares the ids of eventfds.
pub(crate) fn recognise(fd: i32) -> Option<Pinned<'static, Ring>> {
    let rings = RINGS.current()?;
    let id = sys::eventfd_id(fd)?;
    let mut found = None;
    rings.table.each(|ring| {
        if ring.id == id {
            found = ring.pages.lock().ok().and_then(|pages| pages.as_ref().map(Pages::address));
        }
    });
    let handle = found?;
    let ring = rings.table.get(handle)?;
    let place = rings.place_or_new(fd)?;
    ring.numbers.fetch_add(1, Ordering::SeqCst);
    rings.name(place, handle);
    Some(ring)
}

/// Publishes a ring under its descriptor.
pub(crate) fn publish(
    fd: i32,
    core: Arc<Core>,
    instance: Option<Arc<Instance>>,
) -> Result<(), i32> {
    let rings = RINGS.current_or(Rings::make)?;
    let place = rings.place_or_new(fd).ok_or(-libc::EMFILE)?;
    let pages = rings.table.allocate(1)?;
    let handle = pages.address();
    let ring = Ring {
        handle,
        core,
        instance: instance.map_or_else(OnceLock::new, OnceLock::from),
        making: Mutex::new(()),
        numbers: AtomicU32::new(1),
        id: sys::eventfd_id(fd).unwrap_or(u64::MAX),
        registered: AtomicU32::new(0),
        pages: Mutex::new(Some(pages)),
    };
    // SAFETY: pages that were taken above, for this ring.
    unsafe { rings.table.publish_at(handle, Box::new(ring)) };
    rings.name(place, handle);
    Ok(())
}

/// A ring was added to epoll or the like.
static POLLED: AtomicBool = AtomicBool::new(false);

/// May an epoll contain a ring?
pub(crate) fn any_is_polled() -> bool {
    POLLED.load(Ordering::Relaxed)
}

/// A descriptor is added to epoll or the like. If it is a ring's, the program possibly never waits
/// in io_uring_enter(2).
pub(crate) fn is_polled(fd: i32) {
    if let Some(ring) = get(fd) {
        POLLED.store(true, Ordering::Relaxed);
        ring.core.told.store(true, Ordering::Relaxed);
        ring.core.watch_for_ever(fd);
        // Completions that were reaped before must not keep the descriptor readable.
        ring.core.freshen();
    }
}

/// Rings that a thread waits for in one call. A thread may be cancelled in that call: then these
/// rings are watched permanently.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    rings: [*const Core; WATCHED_RINGS],
    count: usize,
}

impl Watched {
    pub(crate) const NONE: Self = Self { rings: [std::ptr::null(); WATCHED_RINGS], count: 0 };

    /// Watches the ring of a descriptor that the calling thread is about to wait for. Nothing is
    /// allocated.
    pub(crate) fn add(&mut self, fd: i32) {
        let Some(ring) = get(fd) else { return };
        ring.core.told.store(true, Ordering::Relaxed);
        if self.count == WATCHED_RINGS {
            return ring.core.watch_for_ever(fd);
        }
        ring.core.watch(fd);
        self.rings[self.count] = Arc::into_raw(Arc::clone(&ring.core));
        self.count += 1;
    }

    fn cores(&self) -> impl Iterator<Item = ManuallyDrop<Arc<Core>>> {
        // SAFETY: made by `Arc::into_raw` in `add`. The reference is not given back here.
        self.rings[..self.count]
            .iter()
            .map(|&ring| ManuallyDrop::new(unsafe { Arc::from_raw(ring) }))
    }

    /// Stops watching the rings until [`resume`](Self::resume): the awake thread sees completions
    /// without the descriptors.
    pub(crate) fn pause(&self) {
        self.cores().for_each(|core| core.unwatch());
    }

    /// Watches the rings again: the thread is about to sleep again.
    pub(crate) fn resume(&self) {
        self.cores().for_each(|core| core.watch_again());
    }

    /// Stops watching the rings, because the call has ended. `is_paused`: after a
    /// [`pause`](Self::pause).
    #[inline]
    pub(crate) fn end(self, is_paused: bool) {
        for &ring in &self.rings[..self.count] {
            // `front::enter` keeps the errno that the call has set.
            front::enter(|| {
                // SAFETY: made by `add`. Each pointer is taken back once, because the waiting
                // thread calls `end` once, and `add` never afterwards.
                let core = unsafe { Arc::from_raw(ring) };
                if !is_paused {
                    core.unwatch();
                }
            });
        }
    }
}

/// If all completions of a ring were reaped, makes the ring's descriptor unreadable. Does so for
/// all rings.
#[inline]
pub(crate) fn freshen() {
    if ring::any_is_armed() {
        freshen_all();
    }
}

#[cold]
fn freshen_all() {
    if let Some(rings) = RINGS.current() {
        rings.table.each(|ring| ring.core.freshen());
    }
}

/// The program is about to close descriptors, or to replace them. Numbers of rings are forgotten,
/// and requests on other descriptors keep their files.
pub(crate) fn before_close(fds: &RangeInclusive<i32>, ends: Ends) {
    let Some(rings) = RINGS.current() else { return };
    if front::is_borrowed() {
        // The child of a vfork(2) closes its own descriptor.
        return;
    }
    let (first, last) = (*fds.start(), (*fds.end()).min((PART * PARTS) as i32 - 1));
    let mut fd = first;
    while fd <= last {
        let Some(place) = rings.place(fd) else {
            fd = (fd / PART as i32 + 1) * PART as i32;
            continue;
        };
        let handle = place.swap(0, Ordering::AcqRel);
        if handle != 0 {
            closed(rings, handle);
        }
        fd += 1;
    }
    let gone = ends == Ends::Closed;
    rings.table.each(|ring| {
        ring.core.before_close(fds);
        if let Some(instance) = ring.instance() {
            instance.before_close_range(fds, gone);
        }
    });
    // This comes last: a send that was being made may have begun to wait for one of these numbers.
    service::before_close(fds);
    front::forget_descriptors(fds);
}

/// The program has closed a descriptor of a ring. A ring without descriptors and registrations is
/// removed.
fn closed(rings: &Rings, handle: usize) {
    let is_last = {
        let Some(ring) = rings.table.get(handle) else { return };
        let left = ring.numbers.fetch_sub(1, Ordering::SeqCst) - 1;
        left == 0 && ring.registered.load(Ordering::SeqCst) == 0
    };
    if is_last {
        remove(rings, handle);
    }
}

fn remove(rings: &Rings, handle: usize) {
    let last = |ring: &Ring| ring.core.closing.store(true, Ordering::SeqCst);
    let removed = rings.table.remove(handle, |ring| {
        last(ring);
        // Waiting threads check again, and return.
        if let Some(instance) = ring.instance() {
            instance.disturb();
        }
    });
    let Removed::Value(ring) = removed else { return };
    if let Some(pages) = ring.pages.lock().ok().and_then(|mut pages| pages.take()) {
        // SAFETY: pages of this table. The ring was removed from their address, and nothing uses
        // their memory.
        unsafe { rings.table.free(pages) };
    }
    if let Some(instance) = ring.instance() {
        ring.core.close(instance);
    }
}

/// The ring with a handle.
#[inline]
pub(crate) fn behind(handle: usize) -> Option<Pinned<'static, Ring>> {
    RINGS.current()?.table.get(handle)
}

/// Calls `f` with each ring.
pub(crate) fn each(f: impl FnMut(&Ring)) {
    if let Some(rings) = RINGS.current() {
        rings.table.each(f);
    }
}

impl Ring {
    /// The engine for the ring's requests in this process, if there is one.
    pub(crate) fn instance(&self) -> Option<&Arc<Instance>> {
        self.instance.get()
    }

    /// As [`instance`](Self::instance), made if there is none yet.
    ///
    /// # Errors
    /// `-EAGAIN`: another thread, or the code that this signal handler has interrupted, is making
    /// the engine. Any other errno: the engine cannot be made.
    pub(crate) fn engine(&self) -> Result<&Arc<Instance>, i32> {
        if let Some(instance) = self.instance.get() {
            return Ok(instance);
        }
        let Ok(_one) = self.making.try_lock() else { return Err(-libc::EAGAIN) };
        if self.instance.get().is_none() {
            let _ = self.instance.set(self.core.engine()?);
        }
        self.instance.get().ok_or(-libc::EAGAIN)
    }

    /// Counts a registration of the ring by a thread.
    pub(crate) fn is_registered(&self) {
        self.registered.fetch_add(1, Ordering::SeqCst);
    }
}

/// A thread has unregistered the ring with this handle. A ring without descriptors and
/// registrations is removed.
pub(crate) fn is_unregistered(handle: usize) {
    let Some(rings) = RINGS.current().filter(|_| handle != 0) else { return };
    let is_last = {
        let Some(ring) = rings.table.get(handle) else { return };
        let left = ring.registered.fetch_sub(1, Ordering::SeqCst) - 1;
        left == 0 && ring.numbers.load(Ordering::SeqCst) == 0
    };
    if is_last {
        remove(rings, handle);
    }
}

/// Has this process published no ring so far?
#[inline]
pub(crate) fn none() -> bool {
    RINGS.current().is_none()
}
