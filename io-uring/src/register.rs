//! io_uring_register(2).
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use uringlet::front::{self, OwnDescriptor, Waited};

use crate::abi::{
    self, BufferRing, BufferStatus, RSRC_SPARSE, RsrcRegister, RsrcUpdate, SyncCancel, Timespec,
    buffer_ring, clone, op, register as reg, setup,
};
use crate::enter::{find, not_ours, not_registered};
use crate::files::{Buffer, File};
use crate::prepare::{self, Fields, Match, Plan};
use crate::restrict::Restrictions;
use crate::ring::{self, Core, List, Locked, NO_NETWORK_POLLING};
use crate::rings::Ring;
use crate::{query, resize, sys, threads, user};

/// io_uring_register(2): a result, or a negative errno.
///
/// # Safety
/// As io_uring_register(2).
pub(crate) unsafe fn register(fd: i32, opcode: u32, arg: usize, count: u32) -> i32 {
    front::enter_whole(|| {
        if fd == -1 && opcode == reg::SEND_MSG_RING {
            // SAFETY: the caller's contract.
            return unsafe { send_message(arg, count) }.unwrap_or_else(|errno| errno);
        }
        if fd == -1 && opcode == reg::QUERY && !crate::setup::steps_aside() {
            return query::answer(arg, count).unwrap_or_else(|errno| errno);
        }
        let number = opcode & !reg::USE_REGISTERED_RING;
        let registered = opcode != number && number < reg::LAST;
        let errno = match find(fd, registered) {
            Ok(_) if number >= reg::LAST => return -libc::EINVAL,
            Ok(ring) => return act(&ring, number, arg, count).unwrap_or_else(|errno| errno),
            Err(errno) => errno,
        };
        if errno != 0 && !registered {
            return errno;
        }
        // SAFETY: the caller's contract.
        let answer = unsafe { sys::io_uring_register(fd, opcode, arg, count) };
        if fd == -1 && !registered && not_ours(answer, fd) == -libc::EBADF {
            // If the kernel refuses io_uring, no other opcode than the two above works without a
            // ring.
            return -libc::EINVAL;
        }
        if errno == 0 { not_ours(answer, fd) } else { not_registered(answer, errno) }
    })
}

fn no_argument(arg: usize, count: u32) -> Result<(), i32> {
    if arg == 0 && count == 0 { Ok(()) } else { Err(-libc::EINVAL) }
}

fn act(ring: &Ring, opcode: u32, arg: usize, count: u32) -> Result<i32, i32> {
    let core = &ring.core;
    let owner = core.owner.load(Ordering::Relaxed);
    if owner != 0 && owner != sys::thread_id() {
        return Err(-libc::EEXIST);
    }
    if opcode == reg::SYNC_CANCEL {
        return sync_cancel(ring, arg, count);
    }
    if core.is_held_here() {
        // This is a signal handler; the code that it interrupts has the lock.
        return Err(-libc::EAGAIN);
    }
    if opcode == reg::CLONE_BUFFERS {
        return clone_buffers(core, arg, count);
    }
    core.with(|locked| {
        allow(locked, opcode)?;
        act_locked(locked, opcode, arg, count)
    })
}

fn allow(locked: &Locked<'_>, opcode: u32) -> Result<(), i32> {
    let is_enabled = !locked.core().disabled.load(Ordering::Relaxed);
    let is_refused = is_enabled && !locked.restrictions.allow_register(opcode);
    if is_refused { Err(-libc::EACCES) } else { Ok(()) }
}

/// Copies the buffers of another ring, or of this ring, into slots. No thread takes a ring's lock
/// while it holds the lock of another ring.
fn clone_buffers(core: &Arc<Core>, arg: usize, count: u32) -> Result<i32, i32> {
    if arg == 0 || count != 1 {
        return Err(-libc::EINVAL);
    }
    let [fd, flags, from, to, wanted, pad @ ..]: [u32; 8] = user::read(arg)?;
    if flags & !(clone::REGISTERED | clone::REPLACE) != 0 {
        return Err(-libc::EINVAL);
    }
    core.with(|locked| {
        allow(locked, reg::CLONE_BUFFERS)?;
        let is_full = flags & clone::REPLACE == 0 && ring::has_buffers(locked);
        if is_full { Err(-libc::EBUSY) } else { Ok(()) }
    })?;
    if pad != [0; 3] {
        return Err(-libc::EINVAL);
    }
    let source = match find(fd as i32, flags & clone::REGISTERED != 0) {
        Ok(source) => source,
        Err(_) if flags & clone::REGISTERED != 0 || !sys::is_open(fd as i32) => {
            return Err(-libc::EBADF);
        }
        Err(_) => return Err(-libc::EOPNOTSUPP),
    };
    if wanted == 0 && (from != 0 || to != 0) {
        return Err(-libc::EINVAL);
    }
    let all = source.core.with(|locked| ring::copies_of_buffers(locked));
    let all = all.ok_or(-libc::ENXIO)?;
    let wanted = if wanted == 0 { all.len() } else { wanted as usize };
    if wanted > all.len() {
        return Err(-libc::EINVAL);
    }
    to.checked_add(wanted as u32).ok_or(-libc::EOVERFLOW)?;
    let some = from.checked_add(wanted as u32).and_then(|end| all.get(from as usize..end as usize));
    let some = some.ok_or(-libc::EOVERFLOW)?;
    core.with(|locked| ring::put_buffers(locked, to as usize, some, flags & clone::REPLACE != 0))
}

/// The calls by their opcodes.
fn act_locked(locked: &mut Locked<'_>, opcode: u32, arg: usize, count: u32) -> Result<i32, i32> {
    let plain = List { data: arg, tags: 0, count };
    match opcode {
        reg::BUFFERS | reg::FILES if arg == 0 => Err(-libc::EFAULT),
        reg::BUFFERS => ring::register::<Buffer>(locked, &plain),
        reg::FILES => ring::register::<File>(locked, &plain),
        reg::BUFFERS2 => ring::register::<Buffer>(locked, &List::to_register(arg, count)?),
        reg::FILES2 => ring::register::<File>(locked, &List::to_register(arg, count)?),
        reg::UNREGISTER_BUFFERS => {
            no_argument(arg, count).and_then(|()| ring::unregister::<Buffer>(locked))
        }
        reg::UNREGISTER_FILES => {
            no_argument(arg, count).and_then(|()| ring::unregister::<File>(locked))
        }
        reg::FILES_UPDATE => update_files(locked, arg, count),
        reg::FILES_UPDATE2 => ring::update::<File>(locked, List::to_update(arg, count)?),
        reg::BUFFERS_UPDATE => ring::update::<Buffer>(locked, List::to_update(arg, count)?),
        reg::EVENTFD => set_eventfd(locked, arg, count, false),
        reg::EVENTFD_ASYNC => set_eventfd(locked, arg, count, true),
        reg::UNREGISTER_EVENTFD => {
            no_argument(arg, count)?;
            locked.eventfd.take().map(|_| 0).ok_or(-libc::ENXIO)
        }
        reg::PROBE => probe(arg, count),
        reg::RESTRICTIONS => restrict(locked, arg, count),
        reg::ENABLE_RINGS => enable(locked.core(), arg, count),
        // Accepted without effect: workers serve all rings, so none has the affinity of one ring.
        reg::IOWQ_AFF if arg != 0 && count > 0 => user::read::<u8>(arg).map(|_| 0),
        reg::UNREGISTER_IOWQ_AFF => no_argument(arg, count).map(|()| 0),
        reg::IOWQ_MAX_WORKERS => set_workers(locked, arg, count),
        reg::RING_FDS | reg::UNREGISTER_RING_FDS => ring_fds(opcode, arg, count),
        reg::PBUF_RING | reg::UNREGISTER_PBUF_RING | reg::PBUF_STATUS => {
            buffer_rings(locked, opcode, arg, count)
        }
        reg::FILE_ALLOC_RANGE => set_range(locked, arg, count),
        reg::CLOCK => set_clock(locked, arg, count),
        reg::RESIZE_RINGS => resize::resize(locked, arg, count),
        reg::QUERY => query::answer(arg, count),
        reg::NAPI => set_network_polling(locked, arg, count),
        reg::UNREGISTER_NAPI => leave_network_polling(locked, arg, count),
        _ => Err(-libc::EINVAL),
    }
}

impl List {
    /// From `struct io_uring_rsrc_register`.
    fn to_register(arg: usize, size: u32) -> Result<Self, i32> {
        let RsrcRegister { nr, flags, resv2, data, tags } = read_sized(arg, size)?;
        if nr == 0 || resv2 != 0 || flags & !RSRC_SPARSE != 0 {
            return Err(-libc::EINVAL);
        }
        if flags & RSRC_SPARSE != 0 && data != 0 {
            return Err(-libc::EINVAL);
        }
        Ok(Self { data: data as usize, tags: tags as usize, count: nr })
    }

    /// From `struct io_uring_rsrc_update2`, with the first slot.
    fn to_update(arg: usize, size: u32) -> Result<(u32, Self), i32> {
        let RsrcUpdate { offset, resv, data, tags, nr, resv2 } = read_sized(arg, size)?;
        if nr == 0 || resv != 0 || resv2 != 0 {
            return Err(-libc::EINVAL);
        }
        Ok((offset, Self { data: data as usize, tags: tags as usize, count: nr }))
    }
}

fn update_files(locked: &mut Locked<'_>, arg: usize, count: u32) -> Result<i32, i32> {
    if count == 0 {
        return Err(-libc::EINVAL);
    }
    let RsrcUpdateHead { offset, resv, data } = user::read(arg)?;
    if resv != 0 {
        return Err(-libc::EINVAL);
    }
    ring::update::<File>(locked, (offset, List { data: data as usize, tags: 0, count }))
}

/// `only_async`: the eventfd is not counted up for completions that a thread posts inside a call
/// for the ring.
fn set_eventfd(
    locked: &mut Locked<'_>,
    arg: usize,
    count: u32,
    only_async: bool,
) -> Result<i32, i32> {
    if count != 1 {
        return Err(-libc::EINVAL);
    }
    if locked.eventfd.is_some() {
        return Err(-libc::EBUSY);
    }
    let fd: i32 = user::read(arg)?;
    if !uringlet::front::is_eventfd(fd, false)? {
        return Err(-libc::EINVAL);
    }
    let copy = OwnDescriptor::duplicate(fd).ok_or(-libc::EMFILE)?;
    locked.eventfd = Some((copy, only_async));
    locked.core().told.store(true, Ordering::Relaxed);
    Ok(0)
}

fn restrict(locked: &mut Locked<'_>, arg: usize, count: u32) -> Result<i32, i32> {
    if !locked.core().disabled.load(Ordering::Relaxed) {
        return Err(-libc::EBADFD);
    }
    if locked.restrictions.any {
        return Err(-libc::EBUSY);
    }
    if arg == 0 || count > 64 {
        return Err(-libc::EINVAL);
    }
    let mut list = Vec::new();
    user::read_array(arg, count as usize, &mut list)?;
    // An empty list forbids everything.
    locked.restrictions = Restrictions::read(&list)?;
    locked.core().restricted.store(true, Ordering::Relaxed);
    Ok(0)
}

fn enable(core: &Core, arg: usize, count: u32) -> Result<i32, i32> {
    no_argument(arg, count)?;
    if !core.disabled.load(Ordering::Relaxed) {
        return Err(-libc::EBADFD);
    }
    if core.has(setup::SINGLE_ISSUER) {
        core.owner.store(sys::thread_id(), Ordering::Relaxed);
    }
    core.disabled.store(false, Ordering::Release);
    Ok(0)
}

fn set_workers(locked: &mut Locked<'_>, arg: usize, count: u32) -> Result<i32, i32> {
    if arg == 0 || count != 2 {
        return Err(-libc::EINVAL);
    }
    let new: [u32; 2] = user::read(arg)?;
    let old = locked.workers.map(|old| if old == 0 { 64 } else { old });
    for at in 0..2 {
        locked.workers[at] = if new[at] == 0 { old[at] } else { new[at] };
    }
    // SAFETY: the address is the call's argument, so the memory is the program's. That holds below,
    // too.
    unsafe { user::write(arg, old) }?;
    Ok(0)
}

/// Registers a ring of buffers, unregisters one, or returns its state.
fn buffer_rings(locked: &mut Locked<'_>, opcode: u32, arg: usize, count: u32) -> Result<i32, i32> {
    if arg == 0 || count != 1 {
        return Err(-libc::EINVAL);
    }
    if opcode == reg::PBUF_STATUS {
        let status: BufferStatus = user::read(arg)?;
        if status.resv != [0; 8] {
            return Err(-libc::EINVAL);
        }
        let number = u16::try_from(status.group).map_err(|_| -libc::ENOENT)?;
        let head = locked.groups.head(number)?.into();
        // SAFETY: as above.
        return unsafe { user::write(arg, BufferStatus { head, ..status }) }.map(|()| 0);
    }
    let BufferRing { at, entries, group, flags, resv } = user::read(arg)?;
    if opcode == reg::UNREGISTER_PBUF_RING {
        if flags != 0 {
            return Err(-libc::EINVAL);
        }
        return locked.unregister_group(group).map(|()| 0);
    }
    if flags & !(buffer_ring::TO_MAP | buffer_ring::IN_PIECES) != 0 {
        return Err(-libc::EINVAL);
    }
    match u16::try_from(entries) {
        Ok(entries) if entries.is_power_of_two() && resv == [0; 3] => {
            let in_pieces = flags & buffer_ring::IN_PIECES != 0;
            let at = (flags & buffer_ring::TO_MAP == 0).then_some(at);
            locked.groups.register(group, at, entries, in_pieces).map(|()| 0)
        }
        _ => Err(-libc::EINVAL),
    }
}

fn set_range(locked: &mut Locked<'_>, arg: usize, count: u32) -> Result<i32, i32> {
    let [offset, len, resv @ ..]: [u32; 4] = user::read(arg)?;
    let end = offset.checked_add(len).ok_or(-libc::EOVERFLOW)?;
    let files = locked.files.as_mut().ok_or(-libc::EINVAL)?;
    if count != 0 || resv != [0; 2] || end as usize > files.len() {
        return Err(-libc::EINVAL);
    }
    files.range = (offset as usize, end as usize);
    files.hint = offset as usize;
    Ok(0)
}

fn set_clock(locked: &mut Locked<'_>, arg: usize, count: u32) -> Result<i32, i32> {
    let [clock, resv @ ..]: [u32; 4] = user::read(arg)?;
    let clock = clock as i32;
    let is_known = [libc::CLOCK_MONOTONIC, libc::CLOCK_BOOTTIME].contains(&clock);
    if count != 0 || resv != [0; 3] || !is_known {
        return Err(-libc::EINVAL);
    }
    locked.clock = clock;
    Ok(0)
}

/// IORING_REGISTER_NAPI. The values are a hint: they are stored, and have no effect. `struct
/// io_uring_napi` in words: a time, a preference and a kind, and a parameter.
fn set_network_polling(locked: &mut Locked<'_>, arg: usize, count: u32) -> Result<i32, i32> {
    const HOW: [u32; 2] = [0, 1];
    if arg == 0 || count != 1 {
        return Err(-libc::EINVAL);
    }
    let [time, bytes, parameter, reserved]: [u32; 4] = user::read(arg)?;
    let [prefers, kind, pad @ ..] = bytes.to_le_bytes();
    if pad != [0; 2] || reserved != 0 {
        return Err(-libc::EINVAL);
    }
    // SAFETY: as above.
    unsafe { user::write(arg, locked.network_polling) }?;
    // Other kinds add or remove the number of a network queue, and are refused.
    if kind != 0 || !HOW.contains(&parameter) {
        return Err(-libc::EINVAL);
    }
    locked.network_polling = [time, u32::from(prefers != 0), parameter, 0];
    Ok(0)
}

fn leave_network_polling(locked: &mut Locked<'_>, arg: usize, count: u32) -> Result<i32, i32> {
    if count != 1 {
        return Err(-libc::EINVAL);
    }
    let [time, prefers, ..] = std::mem::replace(&mut locked.network_polling, NO_NETWORK_POLLING);
    if arg != 0 {
        // SAFETY: as above.
        unsafe { user::write(arg, [time, prefers, 0, 0]) }?;
    }
    Ok(0)
}

/// A struct whose size the program passes as well.
fn read_sized<T: user::Plain>(arg: usize, size: u32) -> Result<T, i32> {
    if size as usize != size_of::<T>() {
        return Err(-libc::EINVAL);
    }
    user::read(arg)
}

fn probe(arg: usize, count: u32) -> Result<i32, i32> {
    if arg == 0 || count > 256 {
        return Err(-libc::EINVAL);
    }
    let count = count.min(op::LAST.into());
    // As in the kernel: the program must have cleared the struct.
    let size = 16 + 8 * count as usize;
    if user::read_bytes(arg, size)?.iter().any(|&byte| byte != 0) {
        return Err(-libc::EINVAL);
    }
    // SAFETY: as above.
    unsafe { user::write(arg, [op::LAST - 1, count as u8]) }?;
    for opcode in 0..count as u8 {
        let supported = u16::from(prepare::is_known(opcode));
        let [low, high] = supported.to_le_bytes();
        let place = arg + 16 + 8 * usize::from(opcode);
        // SAFETY: as above.
        unsafe { user::write(place, [opcode, 0, low, high, 0, 0, 0, 0]) }?;
    }
    Ok(0)
}

fn ring_fds(opcode: u32, arg: usize, count: u32) -> Result<i32, i32> {
    if count == 0 || count > 16 {
        return Err(-libc::EINVAL);
    }
    let mut done = 0;
    for at in 0..count as usize {
        let place = arg + at * size_of::<RsrcUpdateHead>();
        let answer = user::read::<RsrcUpdateHead>(place).and_then(|update| {
            if update.resv != 0 {
                return Err(-libc::EINVAL);
            }
            if opcode == reg::UNREGISTER_RING_FDS {
                return if update.data == 0 {
                    threads::unregister(update.offset)
                } else {
                    Err(-libc::EINVAL)
                };
            }
            let index = threads::register(update.data as i32, update.offset)?;
            // SAFETY: as above.
            unsafe { user::write(place, RsrcUpdateHead { offset: index, ..update }) }
        });
        match answer {
            Ok(()) => done += 1,
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// `struct io_uring_rsrc_update`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct RsrcUpdateHead {
    offset: u32,
    resv: u32,
    data: u64,
}

// SAFETY: numbers, without padding.
unsafe impl user::Plain for RsrcUpdateHead {}

/// IORING_REGISTER_SEND_MSG_RING: sends a message to a ring, without a ring that submits it. `arg`
/// is the address of one MSG_RING entry.
///
/// # Safety
/// As io_uring_register(2).
unsafe fn send_message(arg: usize, count: u32) -> Result<i32, i32> {
    if arg == 0 || count != 1 {
        return Err(-libc::EINVAL);
    }
    let fields = Fields(user::read(arg)?);
    let planned = prepare::plan(&fields, false);
    let message = match planned {
        Ok(Plan::Message(message)) if fields.flags() == 0 => message,
        _ => return Err(-libc::EINVAL),
    };
    if message.kind != abi::message_ring::DATA {
        return Err(-libc::EINVAL);
    }
    match find(fields.fd(), false) {
        Ok(ring) => Ok(ring.core.tell(&message)?),
        Err(0) => {
            // SAFETY: the caller's contract.
            let answer = unsafe { sys::io_uring_register(-1, reg::SEND_MSG_RING, arg, count) };
            let none = if sys::is_open(fields.fd()) { -libc::EBADFD } else { -libc::EBADF };
            Ok(not_registered(answer, none))
        }
        Err(errno) => Err(errno),
    }
}

fn sync_cancel(ring: &Ring, arg: usize, count: u32) -> Result<i32, i32> {
    if arg == 0 || count != 1 {
        return Err(-libc::EINVAL);
    }
    let asked: SyncCancel = user::read(arg)?;
    if asked.flags & !abi::cancel::KNOWN != 0 || asked.pad != [0; 7] || asked.pad2 != [0; 3] {
        return Err(-libc::EINVAL);
    }
    let what =
        Match { user_data: asked.addr, fd: asked.fd, opcode: asked.opcode, flags: asked.flags };
    let (core, engine) = (&ring.core, ring.engine()?);
    let Timespec { seconds, nanoseconds } = asked.timeout;
    let left = if seconds == -1 && nanoseconds == -1 {
        None
    } else {
        Some(Duration::from_nanos(asked.timeout.in_nanoseconds()?))
    };
    let (done, keys) = core.with(|locked| locked.cancel_now(&what))?;
    let (mut done, mut one, mut running) = (done, 0, Vec::new());
    core.cancel_each(engine, &keys, |key, answer| match answer {
        0.. => {
            done += 1;
            one = answer;
        }
        errno if errno == -libc::EALREADY => running.push(key),
        _ => {}
    });
    if running.is_empty() {
        let all = asked.flags & (abi::cancel::ALL | abi::cancel::ANY) != 0;
        return match done {
            0 if all => Ok(0),
            0 => Err(-libc::ENOENT),
            done if all => Ok(done),
            _ => Ok(one),
        };
    }
    // The requests are being executed: waits until they have ended.
    let deadline = left.and_then(|left| Instant::now().checked_add(left));
    loop {
        let seen = core.ended();
        if core.with(|locked| running.iter().all(|&key| locked.find(key).is_none())) {
            return Ok(0);
        }
        let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
        match core.wait_for_end(engine, seen, left, false) {
            Waited::Enough => {}
            Waited::TimedOut => return Err(-libc::ETIME),
            Waited::Interrupted => return Err(-libc::EINTR),
            Waited::Gone | Waited::GaveUp => return Err(-libc::EBADF),
        }
    }
}
