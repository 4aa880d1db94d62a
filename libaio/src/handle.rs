//! `io_context_t`: the address of an aio ring of this library, looked up in a table, never
//! followed.
#![allow(unsafe_code)]

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use uringlet::front::{self, Ends, Instance, IoEvent, PerProcess, RingMemory};
use uringlet::table::{PAGE, Pages, Pinned, Removed, Table};

use crate::abi::{RING_MAGIC, RingHeader};
use crate::users::{self, User, Users};

uringlet::at_load!(uringlet::table::prepare_readers);

/// A context as this library knows it.
#[derive(Debug)]
pub(crate) struct AioContext {
    pub(crate) instance: Arc<Instance>,
    /// The last number that was found to be an eventfd, plus one. 0: none. A hint, because the
    /// number may name another file now.
    eventfd: AtomicUsize,
    /// The context's id in the table of descriptor users.
    pub(crate) user: User,
}

impl AioContext {
    fn forget_eventfd(&self, fds: &RangeInclusive<i32>) {
        let known = self.eventfd.load(Ordering::Relaxed);
        if known > 0 && fds.contains(&(known as i32 - 1)) {
            let _ = self.eventfd.compare_exchange(known, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Refuses a descriptor that is no eventfd now: `-EINVAL`, or `-EBADF` if it is not open.
    pub(crate) fn check_eventfd(&self, fd: i32) -> Result<(), i32> {
        let number = fd as u32 as usize + 1;
        let was_one = self.eventfd.load(Ordering::Relaxed) == number;
        if !front::is_eventfd(fd, was_one)? {
            return Err(-libc::EINVAL);
        }
        if !was_one {
            // Remembers facts about the eventfd: threads that write to it need to know whether the
            // write may block.
            let _ = front::Hints::known(fd);
            self.eventfd.store(number, Ordering::Relaxed);
        }
        Ok(())
    }
}

static CONTEXTS: PerProcess<Table<AioContext>> = PerProcess::new();

/// The context of a handle. `None` for a handle that is stale, forged or another process's.
#[inline]
pub(crate) fn get(handle: usize) -> Option<Pinned<'static, AioContext>> {
    CONTEXTS.current()?.get(handle)
}

/// Did this process inherit the context at its fork, and is the context's ring empty?
#[cold]
pub(crate) fn is_inherited_and_empty(handle: usize) -> bool {
    let context = CONTEXTS.inherited().find_map(|contexts| contexts.get(handle));
    context.is_some_and(|context| context.instance.available() == 0)
}

/// As [`get`], faster, for the usual case. `None`: the context may exist nevertheless, and the
/// caller has to call `get`. Makes no call that changes errno.
#[inline(always)]
pub(crate) fn get_again(handle: usize) -> Option<Pinned<'static, AioContext>> {
    CONTEXTS.current()?.get_again(handle)
}

/// The sizes of a context for `entries` requests, on a machine with `cpus` CPUs. Returns the number
/// of event places in its ring, and the number of requests that the context accepts.
fn ring_size(entries: u32, cpus: usize) -> (u32, u32) {
    // As in the kernel: the ring fills whole pages. CPUs reserve requests in batches, of a size
    // that gives each CPU four batches. Places that fill no whole batch are not used.
    let batches = cpus * 4;
    let wanted = (entries as usize).max(batches) * 2 + 2;
    let bytes = size_of::<RingHeader>() + wanted * size_of::<IoEvent>();
    let places = (bytes.div_ceil(PAGE) * PAGE - size_of::<RingHeader>()) / size_of::<IoEvent>();
    let batch = ((places - 1) / batches).max(1);
    (places as u32, ((places - 1) / batch * batch) as u32)
}

fn cpus() -> usize {
    // SAFETY: sysconf(3) takes a number and writes to no memory of ours.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    usize::try_from(cpus).unwrap_or(1).max(1)
}

/// Makes a context for `entries` requests and returns its handle, or a negative errno.
pub(crate) fn create(entries: u32) -> Result<usize, i32> {
    front::env::set_up(make(entries))
}

/// Refuses a number of requests as the kernel does, with its numbers of 32 bits.
fn check_entries(entries: u32) -> Result<(), i32> {
    /// The kernel doubles the number, and allows this many events.
    const EVENTS_MAX: u32 = 0x1000_0000 / size_of::<IoEvent>() as u32;
    match entries {
        0 => Err(-libc::EINVAL),
        _ if entries.wrapping_mul(2) > EVENTS_MAX => Err(-libc::EINVAL),
        // The kernel also has a limit for the machine, which is smaller than these numbers.
        0x8000_0000.. => Err(-libc::EAGAIN),
        _ => Ok(()),
    }
}

fn make(entries: u32) -> Result<usize, i32> {
    check_entries(entries)?;
    let builder = front::env::builder()?.strict(true).kernel_room(entries);
    let see_exit = || front::leaving::at_exit(before_leaving);
    let table = CONTEXTS.current_or_then(Table::new, see_exit)?;
    let (places, room) = ring_size(entries, cpus());
    if !front::has_memory(front::context_bytes(places as usize)) {
        return Err(-libc::ENOMEM);
    }
    let pages = table.allocate(size_of::<RingHeader>() + places as usize * size_of::<IoEvent>())?;
    let (handle, user) = (pages.address(), User::new(pages.id()));
    let ring = handle as *mut RingHeader;
    let header = RingHeader {
        id: pages.id(),
        nr: places,
        head: 0.into(),
        tail: 0.into(),
        magic: RING_MAGIC,
        compat_features: 1,
        incompat_features: 0,
        header_length: size_of::<RingHeader>() as u32,
    };
    // SAFETY: fresh pages, aligned, long enough, and nobody else's.
    unsafe { ring.write(header) };
    let memory = Box::new(RingPages { pages: Some(pages), table });
    // SAFETY: fields and events lie in those pages, which live as long as `memory`.
    let instance = unsafe {
        let events = ring.add(1).cast::<IoEvent>();
        let (head, tail) = (&raw const (*ring).head, &raw const (*ring).tail);
        Instance::with_aio_ring(&builder, memory, head, tail, events, places, room)
    }
    .map_err(|error| -error.errno())?;
    let context = AioContext { instance, eventfd: AtomicUsize::new(0), user };
    // SAFETY: pages that were taken above. They are freed with the instance, of which a published
    // context has a share.
    unsafe { table.publish_at(handle, Box::new(context)) };
    Ok(handle)
}

/// The pages of a ring. A worker that has posted the last completion may read the ring once more.
/// So the pages are freed with the instance, and not with the handle.
#[derive(Debug)]
struct RingPages {
    pages: Option<Pages>,
    table: &'static Table<AioContext>,
}

impl RingMemory for RingPages {}

impl Drop for RingPages {
    fn drop(&mut self) {
        if let Some(pages) = self.pages.take() {
            // SAFETY: pages of this table. A published context has a share of the instance, which
            // owns this value. So no context is published under the pages' address.
            unsafe { self.table.free(pages) };
        }
    }
}

/// Destroys a context after its requests were executed, or cancelled if they may wait without end.
/// False: there is no such context.
pub(crate) fn destroy(handle: usize) -> bool {
    let Some(contexts) = CONTEXTS.current() else { return false };
    !matches!(contexts.remove(handle, |context| context.instance.close()), Removed::Nothing)
}

/// The process is about to exit, execute another program or start a process: see
/// [`Instance::before_leaving`].
pub(crate) extern "C" fn before_leaving() {
    if let Some(contexts) = CONTEXTS.current() {
        contexts.each(|context| context.instance.before_leaving());
    }
}

/// The program is about to close descriptors: see [`Instance::before_close_range`].
pub(crate) fn before_close(fds: &RangeInclusive<i32>, ends: Ends) {
    let Some(contexts) = CONTEXTS.current() else { return };
    let users = users::of(fds);
    if users != Users::Nobody && front::is_borrowed() {
        // The child of a vfork(2) runs this in its parent's memory. It closes only its own
        // descriptor, so the parent's requests are left alone.
        return;
    }
    let tell = |context: &AioContext| {
        context.instance.before_close_range(fds, ends == Ends::Closed);
        context.forget_eventfd(fds);
    };
    match users {
        Users::Nobody => {}
        Users::One(id) => contexts.with_id(id, tell),
        Users::Anybody => contexts.each(tell),
    }
    users::forget(fds, ends);
    front::forget_descriptors(fds);
}

#[cfg(test)]
mod tests {
    use super::ring_size;

    #[test]
    fn contexts_accept_as_many_requests_as_the_kernels() {
        // On a machine with `cpus` CPUs, one CPU submits all requests. A page has 127 places.
        for (entries, cpus, expected) in [
            (1, 1, (127, 124)),
            (1, 2, (127, 120)),
            (1, 4, (127, 126)),
            (1, 16, (255, 252)),
            (128, 2, (383, 376)),
            (128, 4, (383, 368)),
        ] {
            assert_eq!(ring_size(entries, cpus), expected, "{entries} on {cpus}");
        }
    }
}
